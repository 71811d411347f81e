/* J projections that share their work, with AVX2: see classes.h. */
#ifndef ONEBIT_SHARED_AVX2_H
#define ONEBIT_SHARED_AVX2_H

#include "bconv2d.h"

/* Whether a layer is faster so than kernel by kernel. */
bool shares_avx2(const Bconv2d *conv, const Classes *classes);

int32_t shared_width_avx2(const Bconv2d *conv, int32_t left);
size_t packed_shared_bytes_avx2(const Bconv2d *conv);
void pack_shared_avx2(const Bconv2d *conv, const int8_t *signs, void *packed);
void count_shared_avx2(const Bconv2d *conv, const Block *block, uint16_t *counts);

/* The order in which nibbles of a window are counted, class by class; in `common`, behind the offsets of runs. */
size_t plan_bytes_avx2(const Bconv2d *conv);
void put_plan_avx2(const Bconv2d *conv, void *plan);

/* Counts of classes, [class][BLOCK_PIXELS][width], to counts of outputs, [pixel][channel * J + j]. */
void combine_avx2(const Bconv2d *conv, const uint16_t *of_classes, size_t width, size_t pixels, uint16_t *counts);

/* Where kernel n of a tile is among its counts: `combine_avx2` interleaves vectors of 16 within their halves. Of each 8 (J = 2) or
   4 kernels, the first half are in the first half of a vector. */
static inline int32_t slot_of(int32_t n, int32_t projections) {
    const int32_t half = projections == 2 ? 4 : 2, in_vector = n % 16, within = in_vector % (2 * half);
    return n - in_vector + in_vector / (2 * half) * half + within % half + within / half * 8;
}
#endif
