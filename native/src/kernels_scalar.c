/* Kernels in plain C, the yardstick of the others: each says in the fewest words what has to come out. */
#include <string.h>

#include "convolution.h"
#include "kernels.h"

static int count_ones(uint64_t word) {
    /* Sums of neighbouring fields of 1, 2, 4 bits, then of all bytes by a multiplication. */
    word -= word >> 1 & UINT64_C(0x5555555555555555);
    word = (word & UINT64_C(0x3333333333333333)) + (word >> 2 & UINT64_C(0x3333333333333333));
    word = (word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (int)(word * UINT64_C(0x0101010101010101) >> 56);
}

static int32_t block_width(const Bconv2d *conv, int32_t left) {
    (void)conv;
    return left < 64 ? left : 64;
}

static void put_common(const Bconv2d *conv, void *common) { (void)conv, (void)common; }

/* Packed: [output][tap][word]. */
static size_t packed_bytes(const Bconv2d *conv) {
    return (size_t)conv->outputs * taps_of(conv) * words_of(conv->planes) * sizeof(uint64_t);
}

static void pack(const Bconv2d *conv, const int8_t *signs, void *packed) {
    uint64_t *words = packed;
    const size_t taps = taps_of(conv), planes = (size_t)conv->planes, per_tap = words_of(conv->planes);
    for (size_t n = 0; n < (size_t)conv->outputs; n++)
        for (size_t plane = 0; plane < planes; plane++)
            for (size_t tap = 0; tap < taps; tap++)
                if (signs[(n * planes + plane) * taps + tap] > 0)
                    words[(n * taps + tap) * per_tap + plane / 64] |= UINT64_C(1) << plane % 64;
}

/* Prepared: the image with zero bits around it, [row][column][word]. */
static size_t prepared_bytes(const Bconv2d *conv) {
    return (size_t)conv->padded.height * (size_t)conv->padded.width * words_of(conv->planes) * sizeof(uint64_t);
}

static size_t no_bytes(const Bconv2d *conv) {
    (void)conv;
    return 0;
}

static void prepare(const Bconv2d *conv, const uint64_t *bits, int32_t first, int32_t end, void *prepared, void *row) {
    (void)row;
    pad_with_zeros(bits, conv->height, conv->width, words_of(conv->planes) * sizeof *bits, &conv->window, conv->padded,
                   first, end, prepared);
}

static void prepare_block(const Bconv2d *conv, const Block *block) {
    (void)conv, (void)block; /* the image is all it takes */
}

static void count(const Bconv2d *conv, const Block *block, uint16_t *counts) {
    const onebit_window *window = &conv->window;
    const size_t words = words_of(conv->planes), taps = taps_of(conv);
    const int32_t end = block->first_channel + block->width;
    for (size_t r = 0; r < block->pixels; r++) {
        const int32_t pixel = (int32_t)(block->first_pixel + r);
        const int32_t y = pixel / conv->out_width * window->stride[0], x = pixel % conv->out_width * window->stride[1];
        for (int32_t n = block->first_channel; n < end; n++) {
            const uint64_t *kernel = (const uint64_t *)block->packed + (size_t)n * taps * words;
            int differing = 0;
            for (int32_t dy = 0; dy < window->kernel[0]; dy++)
                for (int32_t dx = 0; dx < window->kernel[1]; dx++) {
                    const size_t row = (size_t)(y + dy * window->dilation[0]),
                                 column = (size_t)(x + dx * window->dilation[1]);
                    const uint64_t *image =
                        (const uint64_t *)block->prepared + (row * (size_t)conv->padded.width + column) * words;
                    for (size_t word = 0; word < words; word++) differing += count_ones(image[word] ^ *kernel++);
                }
            counts[r * (size_t)block->width + (size_t)(n - block->first_channel)] = (uint16_t)differing;
        }
    }
}

static void multiply(const float *const rows[TILE_ROWS], const ptrdiff_t *offsets, size_t runs, size_t run_length,
                     const float *weight, float *tile) {
    memset(tile, 0, sizeof(float) * TILE_ROWS * TILE_COLUMNS);
    for (size_t u = 0; u < runs; u++)
        for (size_t k = 0; k < run_length; k++, weight += TILE_COLUMNS)
            for (int r = 0; r < TILE_ROWS; r++)
                for (int n = 0; n < TILE_COLUMNS; n++)
                    tile[r * TILE_COLUMNS + n] += rows[r][offsets[u] + (ptrdiff_t)k] * weight[n];
}

static void multiply_row(const float *row, const ptrdiff_t *offsets, size_t runs, size_t run_length,
                         const float *weight, float *tile) {
    memset(tile, 0, sizeof(float) * TILE_COLUMNS);
    for (size_t u = 0; u < runs; u++)
        for (size_t k = 0; k < run_length; k++, weight += TILE_COLUMNS)
            for (int n = 0; n < TILE_COLUMNS; n++) tile[n] += row[offsets[u] + (ptrdiff_t)k] * weight[n];
}

static void maximum(const Taps *taps, float *made, size_t channels) {
    for (size_t c = 0; c < channels; c++) {
        float most = taps->first[c];
        for (size_t row = 0; row < taps->rows; row++)
            for (size_t column = 0; column < taps->columns; column++) {
                const float v = taps->first[row * taps->row_step + column * taps->column_step + c];
                if (v > most || v != v) most = v; /* NaN wins */
            }
        made[c] = most;
    }
}

static void mean(const Taps *taps, float divisor, float *made, size_t channels) {
    for (size_t c = 0; c < channels; c++) {
        float sum = 0;
        for (size_t row = 0; row < taps->rows; row++) {
            float of_row = 0; /* on its own: a long sum would lose the last bits of what is added to it */
            for (size_t column = 0; column < taps->columns; column++)
                of_row += taps->first[row * taps->row_step + column * taps->column_step + c];
            sum += of_row;
        }
        made[c] = sum / divisor;
    }
}

static void multiply_add(const float *x, const float *w, float *y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] += x[i] * w[i];
}

const Kernels kernels_scalar = {
    .name = "scalar",
    .block_width = block_width,
    .common_bytes = no_bytes,
    .put_common = put_common,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .prepared_bytes = prepared_bytes,
    .row_bytes = no_bytes,
    .prepare = prepare,
    .block_bytes = no_bytes,
    .prepare_block = prepare_block,
    .count = count,
    .signs_of_levels = &level_kernels_scalar,
    .bytes_of_levels = &level_kernels_scalar,
    .multiply = multiply,
    .multiply_row = multiply_row,
    .finish = finish_scalar,
    .maximum = maximum,
    .mean = mean,
    .multiply_add = multiply_add,
};
