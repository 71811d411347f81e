/* 1-bit convolution of bits: geometry, and the contract between its driver and the kernels.

   The driver cuts the outputs into blocks of pixels, and each of those into blocks of channels (`block_width`). When
   the net is made, `put_common` writes down once what depends on the shape alone, and `pack` lays out the signs of
   each group; `prepare` lays an image's bits out, row by row, once for each image, or `prepare_block` the windows of a
   block of pixels; `count` then makes, for a block, the number of places in which the window's bits and the kernel's
   differ. Threads share rows, then blocks. To `count`, bits outside of the image are 0 (a -1): the driver knows what that adds, and takes it away
   (see border.c). */
#ifndef ONEBIT_BCONV2D_H
#define ONEBIT_BCONV2D_H

#include "classes.h"
#include "convolution.h"

/* Pixels in a block: counts of a block stay in the first cache. Even, since kernels work on pairs. */
enum { BLOCK_PIXELS = 32, MAX_BLOCK_WIDTH = 256 };

/* Counts are 16 bits wide: the number of taps of one output may be as large as this. Any count is at most that. */
enum { MAX_TAPS = 65535 };

/* Of one group: planes and outputs are those of the group, and so are the bits that `prepare` gets. */
typedef struct {
    int32_t planes, height, width; /* of the image */
    int32_t outputs, out_height, out_width;
    onebit_window window;
    PaddedSize padded;
    const Classes *shared; /* of projections that share their work; null: outputs are counted one by one */
} Bconv2d;

typedef struct {
    const void *common, *packed;
    const uint64_t *bits;         /* of the image */
    void *prepared;               /* by `prepare`; if there are block_bytes, by `prepare_block` */
    int32_t first_channel, width; /* of the outputs; `width` is what block_width said */
    size_t first_pixel, pixels;
} Block;

static inline size_t taps_of(const Bconv2d *conv) {
    return (size_t)conv->window.kernel[0] * (size_t)conv->window.kernel[1];
}
#endif
