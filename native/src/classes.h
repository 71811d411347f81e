/* Classes of taps: what J projections of a kernel have in common.

   Output o*J + j is the convolution with mask_j times kernel_o, where masks are signs of taps, the same for all kernels and
   planes. Taps t for which (mask_0t, ..., mask_(J-1)t) is the same up to its sign are of one class c: within it, the signs
   of projection j are those of projection 0, or all of them the other way round. With cnt_c(o), the bits of mask_0 times
   kernel_o that differ from the window's within the taps of class c, and n_c, the bits of these taps (taps x planes),
       count of output o*J + j  =  sum over c of (cnt_c(o) if the signs are those of projection 0, else n_c - cnt_c(o))
   So one count of each class does for all J outputs. It holds at borders, too, whatever the bits outside are taken for. */
#ifndef ONEBIT_CLASSES_H
#define ONEBIT_CLASSES_H

#include "net.h"

enum {
    MOST_SHARED = 16,
    MOST_CLASSES = 32
}; /* projections that may share their work, and classes that they may have */

typedef struct {
    int32_t projections;           /* J */
    size_t count;                  /* of classes; 0: they don't share, since there are too many of either */
    uint8_t *class_of;             /* [tap] */
    size_t taps[MOST_CLASSES];     /* how many a class has */
    uint16_t flips[MOST_CLASSES];  /* bit j is set where the signs of projection j are not those of projection 0 */
    uint16_t flipped[MOST_SHARED]; /* of each projection: the bits of the window in classes that it flips */
    int way;                       /* for the table of kernels: which of its ways it has chosen, if it has several */
} Classes;

/* masks: [projection][tap], or null for +1 everywhere. planes * taps is at most 65535. */
onebit_status make_classes(onebit_net *net, int32_t projections, const int8_t *masks, size_t planes, size_t taps,
                           Classes *made);

/* The signs of all outputs, [kernel * J + j][plane][tap]; NULL without memory. The caller frees it. */
int8_t *written_out(const int8_t *kernels, size_t n_kernels, int32_t projections, const int8_t *masks, size_t planes,
                    size_t taps);
#endif
