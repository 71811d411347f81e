/* The transforms of winograd.h, and the products between them. */
#include "winograd_avx2.h"

#include "kernels.h"
#include "multiply_avx2.h"

enum { SIDE = WINOGRAD_SIDE };

/* a * x + y */
INLINE floats plus(float a, floats x, floats y) { return _mm256_fmadd_ps(_mm256_set1_ps(a), x, y); }

/* v[i * step] = B' d: the coefficients of polynomials whose roots are all points but one. */
INLINE void transform_line(const floats d[SIDE], floats *v, size_t step) {
    const floats d31 = d[3] - d[1], d42 = d[4] - d[2];
    v[0 * step] = plus(1.5f, d31, plus(-2, d[2], d[0] + d[4]));
    v[1 * step] = plus(0.5f, d[2], plus(2.5f, d[3], d[4] - d[1]));
    v[2 * step] = plus(-2.5f, d[2], plus(0.5f, d[3], d[4] + d[1]));
    v[3 * step] = plus(2, d31, d42);
    v[4 * step] = plus(-0.5f, d31, d42);
    v[5 * step] = plus(1.5f, d42, plus(-2, d[3], d[1] + d[5]));
}

INLINE void transform_planes(const float *pixels, size_t row_step, size_t column_step, float *tile, size_t place_step) {
    floats rows[SIDE][SIDE], made[SIDE];
#pragma GCC unroll 6
    for (size_t x = 0; x < SIDE; x++) {
        floats d[SIDE];
#pragma GCC unroll 6
        for (size_t y = 0; y < SIDE; y++) d[y] = _mm256_loadu_ps(pixels + y * row_step + x * column_step);
        transform_line(d, &rows[0][x], SIDE);
    }
#pragma GCC unroll 6
    for (size_t y = 0; y < SIDE; y++) {
        transform_line(rows[y], made, 1);
#pragma GCC unroll 6
        for (size_t x = 0; x < SIDE; x++) _mm256_storeu_ps(tile + (y * SIDE + x) * place_step, made[x]);
    }
}

void transform_pixels_avx2(const float *pixels, size_t row_step, size_t planes, float *tile) {
    const size_t last = planes - WINOGRAD_PLANES; /* the last planes may be done twice */
    for (size_t plane = 0;; plane = plane + WINOGRAD_PLANES < last ? plane + WINOGRAD_PLANES : last) {
        transform_planes(pixels + plane, row_step, planes, tile + plane, TILE_ROWS * planes);
        if (plane == last) break;
    }
}

void multiply_places_avx2(const float *tiles, size_t planes, const float *weight, float *products) {
    for (size_t place = 0; place < WINOGRAD_PLACES; place++) {
        const float *rows[TILE_ROWS];
        for (size_t r = 0; r < TILE_ROWS; r++) rows[r] = tiles + r * planes;
        static const ptrdiff_t at_once = 0;
        multiply_tile(rows, &at_once, 1, planes, weight, products);
        tiles += TILE_ROWS * planes;
        weight += planes * TILE_COLUMNS;
        products += TILE_ROWS * TILE_COLUMNS;
    }
}

/* y = A' m: sums of powers of the points. */
INLINE void transform_sums(const floats m[SIDE], int made, floats *y) {
    const floats sum = m[1] + m[2], difference = m[1] - m[2];
    y[0] = (m[0] + sum) + (m[3] + m[4]);
    y[1] = plus(0.5f, m[3], plus(-2, m[4], difference));
    y[2] = plus(0.25f, m[3], plus(4, m[4], sum));
    if (made == 3) y[2] = y[2] + m[5];
    if (made == 4) y[3] = plus(0.125f, m[3], plus(-8, m[4], difference + m[5]));
}

INLINE void transform_columns(const float *products, int made, float *y, size_t row_step) {
    floats rows[4][SIDE], sums[4];
#pragma GCC unroll 6
    for (size_t x = 0; x < SIDE; x++) {
        floats m[SIDE];
#pragma GCC unroll 6
        for (size_t i = 0; i < SIDE; i++) m[i] = _mm256_load_ps(products + (i * SIDE + x) * TILE_ROWS * TILE_COLUMNS);
        transform_sums(m, made, sums);
#pragma GCC unroll 4
        for (int i = 0; i < made; i++) rows[i][x] = sums[i];
    }
#pragma GCC unroll 4
    for (int i = 0; i < made; i++) {
        transform_sums(rows[i], made, sums);
#pragma GCC unroll 4
        for (int j = 0; j < made; j++) _mm256_store_ps(y + (size_t)i * row_step + (size_t)j * TILE_COLUMNS, sums[j]);
    }
}

void transform_products_avx2(const float *products, int32_t made, float *y, size_t row_step) {
    for (size_t n = 0; n < TILE_COLUMNS; n += 8)
        if (made == 3)
            transform_columns(products + n, 3, y + n, row_step);
        else
            transform_columns(products + n, 4, y + n, row_step);
}
