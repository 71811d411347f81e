/* The tile of products that float convolutions are made of; in a header to be inlined where runs are short. */
#ifndef ONEBIT_MULTIPLY_AVX2_H
#define ONEBIT_MULTIPLY_AVX2_H

#include "avx2.h"
#include "kernels.h"

INLINE void multiply_tile(const float *const rows[TILE_ROWS], const ptrdiff_t *offsets, size_t runs, size_t run_length,
                          const float *weight, float *tile) {
    floats left[TILE_ROWS], right[TILE_ROWS];
#pragma GCC unroll 6 /* or the sums would not stay in registers */
    for (int r = 0; r < TILE_ROWS; r++) left[r] = right[r] = _mm256_setzero_ps();
    for (size_t u = 0; u < runs; u++) {
        const float *x0 = rows[0] + offsets[u], *x1 = rows[1] + offsets[u], *x2 = rows[2] + offsets[u];
        const float *x3 = rows[3] + offsets[u], *x4 = rows[4] + offsets[u], *x5 = rows[5] + offsets[u];
        for (size_t k = 0; k < run_length; k++, weight += TILE_COLUMNS) {
            const floats w0 = _mm256_load_ps(weight), w1 = _mm256_load_ps(weight + 8);
#define ROW(r, x)                                    \
    {                                                \
        const floats v = _mm256_broadcast_ss(x + k); \
        left[r] = _mm256_fmadd_ps(v, w0, left[r]);   \
        right[r] = _mm256_fmadd_ps(v, w1, right[r]); \
    }
            ROW(0, x0) ROW(1, x1) ROW(2, x2) ROW(3, x3) ROW(4, x4) ROW(5, x5)
#undef ROW
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < TILE_ROWS; r++) {
        _mm256_store_ps(tile + r * TILE_COLUMNS, left[r]);
        _mm256_store_ps(tile + r * TILE_COLUMNS + 8, right[r]);
    }
}
#endif
