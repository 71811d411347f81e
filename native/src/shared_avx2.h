/* J projections that share their work, with AVX2: see classes.h. */
#ifndef ONEBIT_SHARED_AVX2_H
#define ONEBIT_SHARED_AVX2_H

#include "tiles_avx2.h"

typedef enum { BY_PAIRS, BY_COLUMNS } WayOfSharing; /* Classes.way */

/* Whether a layer is faster so than output by output; chooses the way. */
bool shares_avx2(const Bconv2d *conv, Classes *classes);

/* Whether a layer can go by columns, and copies of the image that these take: see columns_avx2.c. */
bool can_be_columns_avx2(const Bconv2d *conv);
size_t copies_avx2(const Bconv2d *conv);

/* Counts of classes, [class][BLOCK_PIXELS][width], to counts of outputs, [pixel][channel * J + j]. */
void combine_avx2(const Bconv2d *conv, const uint16_t *of_classes, size_t width, size_t pixels, uint16_t *counts);

/* The same, from counts [class][kernel][BLOCK_PIXELS: the even ones first], of the first `kernels` of a block, a multiple
   of 8. */
void combine_columns_avx2(const Bconv2d *conv, const uint16_t *of_classes, size_t width, size_t kernels,
                          uint16_t *counts);

/* Counts of one pixel, all classes and kernels of a block together: 32 KB for a block of pixels. */
enum { CLASS_COUNTS = 512 };

/* Nibbles of a part of a class that is cut into parts of about the same size. */
static inline size_t nibbles_of_part(size_t nibbles) {
    const size_t parts = (nibbles + NIBBLES_OF_PART - 1) / NIBBLES_OF_PART;
    return round_up((nibbles + parts - 1) / parts, 3);
}

/* Where kernel n of a tile is among its counts: `combine_avx2` interleaves vectors of 16 within their halves. Of each 8
   (J = 2), 16 (3) or 4 kernels, the first half are in the first half of a vector. */
static inline int32_t slot_of(int32_t n, int32_t projections) {
    const int32_t half = projections == 2 ? 4 : projections == 3 ? 8 : 2;
    const int32_t in_vector = n % 16, within = in_vector % (2 * half);
    return n - in_vector + in_vector / (2 * half) * half + within % half + within / half * 8;
}
#endif
