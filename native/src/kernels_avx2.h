/* Kernels for AVX2 that other tables have, too; see kernels.h. */
#ifndef ONEBIT_KERNELS_AVX2_H
#define ONEBIT_KERNELS_AVX2_H

#include "kernels.h"

void multiply_avx2(const float *const rows[TILE_ROWS], const ptrdiff_t *offsets, size_t runs, size_t run_length,
                   const float *weight, float *tile);
void multiply_row_avx2(const float *row, const ptrdiff_t *offsets, size_t runs, size_t run_length, const float *weight,
                       float *tile);
void maximum_avx2(const Taps *taps, float *made, size_t channels);
void mean_avx2(const Taps *taps, float divisor, float *made, size_t channels);
void multiply_add_avx2(const float *x, const float *w, float *y, size_t count);
#endif
