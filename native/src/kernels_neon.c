/* Kernels for AArch64, where every CPU has NEON. Exact under emulation; their speed was never measured. */
#include <arm_neon.h>

#include "bconv2d_neon.h"
#include "kernels.h"
#include "output_neon.h"

typedef float32x4_t floats;
enum { LANES = 4, COLUMNS = TILE_COLUMNS / LANES /* vectors of a row of the tile */ };

static void multiply(const float *const rows[TILE_ROWS], const ptrdiff_t *offsets, size_t runs, size_t run_length,
                     const float *weight, float *tile) {
    floats sums[TILE_ROWS][COLUMNS];
#pragma GCC unroll 6 /* or the sums would not stay in registers */
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 4
        for (int n = 0; n < COLUMNS; n++) sums[r][n] = vdupq_n_f32(0);
    for (size_t u = 0; u < runs; u++)
        for (size_t k = 0; k < run_length; k++, weight += TILE_COLUMNS) {
            floats w[COLUMNS];
#pragma GCC unroll 4
            for (int n = 0; n < COLUMNS; n++) w[n] = vld1q_f32(weight + n * LANES);
#pragma GCC unroll 6
            for (int r = 0; r < TILE_ROWS; r++) {
                const floats x = vld1q_dup_f32(rows[r] + offsets[u] + (ptrdiff_t)k);
#pragma GCC unroll 4
                for (int n = 0; n < COLUMNS; n++) sums[r][n] = vfmaq_f32(sums[r][n], x, w[n]);
            }
        }
#pragma GCC unroll 6
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 4
        for (int n = 0; n < COLUMNS; n++) vst1q_f32(tile + r * TILE_COLUMNS + n * LANES, sums[r][n]);
}

static void multiply_row(const float *row, const ptrdiff_t *offsets, size_t runs, size_t run_length,
                         const float *weight, float *tile) {
    floats sums[COLUMNS];
#pragma GCC unroll 4
    for (int n = 0; n < COLUMNS; n++) sums[n] = vdupq_n_f32(0);
    for (size_t u = 0; u < runs; u++)
        for (size_t k = 0; k < run_length; k++, weight += TILE_COLUMNS) {
            const floats x = vld1q_dup_f32(row + offsets[u] + (ptrdiff_t)k);
#pragma GCC unroll 4
            for (int n = 0; n < COLUMNS; n++) sums[n] = vfmaq_f32(sums[n], x, vld1q_f32(weight + n * LANES));
        }
#pragma GCC unroll 4
    for (int n = 0; n < COLUMNS; n++) vst1q_f32(tile + n * LANES, sums[n]);
}

/* Channels that are left over go through plain C. */
static Taps from_channel(const Taps *taps, size_t channel) {
    Taps rest = *taps;
    rest.first += channel;
    return rest;
}

static void maximum(const Taps *taps, float *made, size_t channels) {
    size_t c = 0;
    for (; c + LANES <= channels; c += LANES) {
        floats most = vld1q_f32(taps->first + c);
        for (size_t row = 0; row < taps->rows; row++) {
            const float *x = taps->first + row * taps->row_step + c;
            for (size_t column = 0; column < taps->columns; column++, x += taps->column_step) {
                const floats v = vld1q_f32(x);
                const uint32x4_t is_nan = vmvnq_u32(vceqq_f32(v, v)); /* which wins */
                most = vbslq_f32(vorrq_u32(vcgtq_f32(v, most), is_nan), v, most);
            }
        }
        vst1q_f32(made + c, most);
    }
    const Taps rest = from_channel(taps, c);
    kernels_scalar.maximum(&rest, made + c, channels - c);
}

static void mean(const Taps *taps, float divisor, float *made, size_t channels) {
    size_t c = 0;
    for (; c + LANES <= channels; c += LANES) {
        floats sum = vdupq_n_f32(0);
        for (size_t row = 0; row < taps->rows; row++) {
            const float *x = taps->first + row * taps->row_step + c;
            floats of_row = vdupq_n_f32(0);
            for (size_t column = 0; column < taps->columns; column++, x += taps->column_step)
                of_row = vaddq_f32(of_row, vld1q_f32(x));
            sum = vaddq_f32(sum, of_row);
        }
        vst1q_f32(made + c, vdivq_f32(sum, vdupq_n_f32(divisor)));
    }
    const Taps rest = from_channel(taps, c);
    kernels_scalar.mean(&rest, divisor, made + c, channels - c);
}

static void multiply_add(const float *x, const float *w, float *y, size_t count) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        vst1q_f32(y + i, vfmaq_f32(vld1q_f32(y + i), vld1q_f32(x + i), vld1q_f32(w + i)));
    kernels_scalar.multiply_add(x + i, w + i, y + i, count - i);
}

const Kernels kernels_neon = {
    .name = "neon",
    .block_width = block_width_neon,
    .common_bytes = common_bytes_neon,
    .put_common = put_common_neon,
    .packed_bytes = packed_bytes_neon,
    .pack = pack_neon,
    .prepared_bytes = prepared_bytes_neon,
    .row_bytes = no_bytes_neon,
    .prepare = prepare_neon,
    .block_bytes = no_bytes_neon,
    .prepare_block = prepare_block_neon,
    .count = count_neon,
    .signs_of_levels = &level_kernels_scalar,
    .bytes_of_levels = &level_kernels_scalar,
    .multiply = multiply,
    .multiply_row = multiply_row,
    .least_finished = 8,
    .finish = finish_neon,
    .least_pooled = LANES,
    .maximum = maximum,
    .mean = mean,
    .least_added = LANES,
    .multiply_add = multiply_add,
};
