/* Kernels for x86-64 with AVX2 and FMA. */
#include "kernels_avx2.h"

#include "bconv2d_avx2.h"
#include "levels_avx2.h"
#include "multiply_avx2.h"
#include "output_avx2.h"
#include "shared_avx2.h"
#include "winograd_avx2.h"

void multiply_avx2(const float *const rows[TILE_ROWS], const ptrdiff_t *offsets, size_t runs, size_t run_length,
                   const float *weight, float *tile) {
    multiply_tile(rows, offsets, runs, run_length, weight, tile);
}

/* Four sums of each vector, since one multiply-add waits for the last in the same sum. */
void multiply_row_avx2(const float *row, const ptrdiff_t *offsets, size_t runs, size_t run_length, const float *weight,
                       float *tile) {
    floats left[4], right[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) left[i] = right[i] = _mm256_setzero_ps();
    for (size_t u = 0; u < runs; u++) {
        const float *x = row + offsets[u];
        size_t k = 0;
        for (; k + 4 <= run_length; k += 4, weight += 4 * TILE_COLUMNS) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                const floats v = _mm256_broadcast_ss(x + k + i);
                left[i] = _mm256_fmadd_ps(v, _mm256_load_ps(weight + i * TILE_COLUMNS), left[i]);
                right[i] = _mm256_fmadd_ps(v, _mm256_load_ps(weight + i * TILE_COLUMNS + 8), right[i]);
            }
        }
        for (; k < run_length; k++, weight += TILE_COLUMNS) {
            const floats v = _mm256_broadcast_ss(x + k);
            left[0] = _mm256_fmadd_ps(v, _mm256_load_ps(weight), left[0]);
            right[0] = _mm256_fmadd_ps(v, _mm256_load_ps(weight + 8), right[0]);
        }
    }
    _mm256_store_ps(tile, _mm256_add_ps(_mm256_add_ps(left[0], left[1]), _mm256_add_ps(left[2], left[3])));
    _mm256_store_ps(tile + 8, _mm256_add_ps(_mm256_add_ps(right[0], right[1]), _mm256_add_ps(right[2], right[3])));
}

/* max takes its second operand if one is NaN. */
static inline floats larger(floats v, floats most) {
    return _mm256_blendv_ps(_mm256_max_ps(v, most), v, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

static Taps from_channel(const Taps *taps, size_t channel) {
    Taps rest = *taps;
    rest.first += channel;
    return rest;
}

/* Over the pixels of a row, 32 channels from x on. */
typedef struct {
    floats v[4];
} Channels32;

static inline Channels32 load_32(const float *x) {
    return (Channels32){{_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24)}};
}

static inline void store_32(float *y, Channels32 of) {
    for (int i = 0; i < 4; i++) _mm256_storeu_ps(y + 8 * i, of.v[i]);
}

void maximum_avx2(const Taps *taps, float *made, size_t channels) {
    size_t c = 0;
    for (; c + 32 <= channels; c += 32) {
        Channels32 most = load_32(taps->first + c);
        for (size_t row = 0; row < taps->rows; row++) {
            const float *x = taps->first + row * taps->row_step + c;
            for (size_t column = 0; column < taps->columns; column++, x += taps->column_step) {
                const Channels32 here = load_32(x);
                for (int i = 0; i < 4; i++) most.v[i] = larger(here.v[i], most.v[i]);
            }
        }
        store_32(made + c, most);
    }
    const Taps rest = from_channel(taps, c);
    kernels_scalar.maximum(&rest, made + c, channels - c);
}

void mean_avx2(const Taps *taps, float divisor, float *made, size_t channels) {
    const Channels32 zeros = {{_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()}};
    size_t c = 0;
    for (; c + 32 <= channels; c += 32) {
        Channels32 sum = zeros;
        for (size_t row = 0; row < taps->rows; row++) {
            const float *x = taps->first + row * taps->row_step + c;
            Channels32 of_row = zeros;
            for (size_t column = 0; column < taps->columns; column++, x += taps->column_step) {
                const Channels32 here = load_32(x);
                for (int i = 0; i < 4; i++) of_row.v[i] = _mm256_add_ps(of_row.v[i], here.v[i]);
            }
            for (int i = 0; i < 4; i++) sum.v[i] = _mm256_add_ps(sum.v[i], of_row.v[i]);
        }
        for (int i = 0; i < 4; i++) sum.v[i] = _mm256_div_ps(sum.v[i], _mm256_set1_ps(divisor));
        store_32(made + c, sum);
    }
    const Taps rest = from_channel(taps, c);
    kernels_scalar.mean(&rest, divisor, made + c, channels - c);
}

void multiply_add_avx2(const float *x, const float *w, float *y, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(y + i,
                         _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(w + i), _mm256_loadu_ps(y + i)));
    kernels_scalar.multiply_add(x + i, w + i, y + i, count - i);
}

const Kernels kernels_avx2 = {
    .name = "avx2",
    .shares = shares_avx2,
    .block_width = block_width_avx2,
    .common_bytes = common_bytes_avx2,
    .put_common = put_common_avx2,
    .packed_bytes = packed_bytes_avx2,
    .pack = pack_avx2,
    .prepared_bytes = prepared_bytes_avx2,
    .row_bytes = row_bytes_avx2,
    .prepare = prepare_avx2,
    .block_bytes = block_bytes_avx2,
    .prepare_block = prepare_block_avx2,
    .count = count_avx2,
    .signs_of_levels = &signs_of_levels_avx2,
    .bytes_of_levels = &bytes_of_levels_avx2,
    .multiply = multiply_avx2,
    .multiply_row = multiply_row_avx2,
    .transform_pixels = transform_pixels_avx2,
    .multiply_places = multiply_places_avx2,
    .transform_products = transform_products_avx2,
    .least_finished = 8,
    .finish = finish_avx2,
    .least_pooled = 32,
    .maximum = maximum_avx2,
    .mean = mean_avx2,
    .least_added = 8,
    .multiply_add = multiply_add_avx2,
};
