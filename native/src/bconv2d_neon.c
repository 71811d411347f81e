/* 1-bit convolution with NEON: eight planes of 16 channels in three instructions.

   A vector holds the same byte of 16 kernels, one in each lane; the window's byte is repeated in all lanes. Their xor has as many
   ones in a lane as bits differ there; those are counted, and added up in bytes for as long as a byte can hold them. */
#include "bconv2d_neon.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 16, TILE_PIXELS = 4, MOST_VECTORS = 4, MOST_BYTES = 255 / 8 /* whose counts a byte can hold */ };
_Static_assert(BLOCK_PIXELS % TILE_PIXELS == 0, "tiles are whole: the last may count a pixel again");

static size_t bytes_of_tap(const Bconv2d *conv) { return ((size_t)conv->planes + 7) / 8; }

int32_t block_width_neon(const Bconv2d *conv, int32_t left) {
    (void)conv;
    return left > 2 * LANES ? 64 : left > LANES ? 32 : LANES;
}

/* Common: where the window's taps are, in bytes from its first. */
size_t common_bytes_neon(const Bconv2d *conv) { return taps_of(conv) * sizeof(size_t); }

static size_t pixel_bytes(const Bconv2d *conv) { return words_of(conv->planes) * sizeof(uint64_t); }
static size_t row_bytes(const Bconv2d *conv) { return (size_t)conv->padded.width * pixel_bytes(conv); }

void put_common_neon(const Bconv2d *conv, void *common) {
    const onebit_window *window = &conv->window;
    size_t *offset = common;
    for (size_t dy = 0; dy < (size_t)window->kernel[0]; dy++)
        for (size_t dx = 0; dx < (size_t)window->kernel[1]; dx++)
            *offset++ = dy * (size_t)window->dilation[0] * row_bytes(conv) +
                        dx * (size_t)window->dilation[1] * pixel_bytes(conv);
}

/* Packed: [block][tap][byte][channel]. */
static size_t channels_packed(const Bconv2d *conv) {
    int32_t first = 0;
    while (first < conv->outputs) first += block_width_neon(conv, conv->outputs - first);
    return (size_t)first;
}

size_t packed_bytes_neon(const Bconv2d *conv) { return channels_packed(conv) * taps_of(conv) * bytes_of_tap(conv); }

void pack_neon(const Bconv2d *conv, const int8_t *signs, void *packed) {
    const size_t taps = taps_of(conv), planes = (size_t)conv->planes, bytes = taps * bytes_of_tap(conv);
    int32_t width;
    for (int32_t first = 0; first < conv->outputs; first += width) {
        width = block_width_neon(conv, conv->outputs - first);
        uint8_t *block = (uint8_t *)packed + (size_t)first * bytes;
        for (int32_t n = 0; n < width && first + n < conv->outputs; n++)
            for (size_t plane = 0; plane < planes; plane++)
                for (size_t tap = 0; tap < taps; tap++) {
                    const bool is_one = signs[((size_t)(first + n) * planes + plane) * taps + tap] > 0;
                    const size_t byte = tap * bytes_of_tap(conv) + plane / 8;
                    block[byte * (size_t)width + (size_t)n] |= (uint8_t)(is_one << plane % 8);
                }
    }
}

/* Prepared: the image with zero bits around it, [row][column][word]. */
size_t prepared_bytes_neon(const Bconv2d *conv) { return (size_t)conv->padded.height * row_bytes(conv); }

size_t no_bytes_neon(const Bconv2d *conv) {
    (void)conv;
    return 0;
}

void prepare_neon(const Bconv2d *conv, const uint64_t *bits, int32_t first, int32_t end, void *prepared, void *row) {
    (void)row;
    pad_with_zeros(bits, conv->height, conv->width, pixel_bytes(conv), &conv->window, conv->padded, first, end,
                   prepared);
}

void prepare_block_neon(const Bconv2d *conv, const Block *block) {
    (void)conv, (void)block; /* the image is all it takes */
}

typedef struct {
    const uint8_t *weights;
    const size_t *offsets;
    size_t taps, bytes; /* of each tap */
} Window;

/* 16 counts of bytes, added to those of 16 bits that are there. */
INLINE void put(uint8x16_t sums, uint16_t *counts, bool is_first) {
    const uint8x8_t low = vget_low_u8(sums), high = vget_high_u8(sums);
    vst1q_u16(counts, is_first ? vmovl_u8(low) : vaddw_u8(vld1q_u16(counts), low));
    vst1q_u16(counts + 8, is_first ? vmovl_u8(high) : vaddw_u8(vld1q_u16(counts + 8), high));
}

/* Counts, [pixel][channel], of some pixels and all channels of a block. */
INLINE void count_tile(const Window *window, const uint8_t *const pixels[TILE_PIXELS], uint16_t *counts,
                       int n_vectors) {
    uint8x16_t sums[TILE_PIXELS][MOST_VECTORS];
    const uint8_t *weights = window->weights;
    size_t tap = 0, byte = 0;
    for (bool is_first = true; tap < window->taps; is_first = false) {
#pragma GCC unroll 4
        for (int p = 0; p < TILE_PIXELS; p++)
#pragma GCC unroll 4
            for (int v = 0; v < n_vectors; v++) sums[p][v] = vdupq_n_u8(0);
        for (int room = MOST_BYTES; room > 0 && tap < window->taps;) {
            const size_t end = window->bytes - byte < (size_t)room ? window->bytes : byte + (size_t)room;
            room -= (int)(end - byte);
            for (; byte < end; byte++, weights += n_vectors * LANES) {
                const size_t at = window->offsets[tap] + byte;
#pragma GCC unroll 4
                for (int v = 0; v < n_vectors; v++) {
                    const uint8x16_t w = vld1q_u8(weights + v * LANES);
#pragma GCC unroll 4
                    for (int p = 0; p < TILE_PIXELS; p++)
                        sums[p][v] = vaddq_u8(sums[p][v], vcntq_u8(veorq_u8(w, vld1q_dup_u8(pixels[p] + at))));
                }
            }
            if (byte == window->bytes) byte = 0, tap++;
        }
#pragma GCC unroll 4
        for (int p = 0; p < TILE_PIXELS; p++)
#pragma GCC unroll 4
            for (int v = 0; v < n_vectors; v++) put(sums[p][v], counts + (p * n_vectors + v) * LANES, is_first);
    }
}

static void count_64(const Window *window, const uint8_t *const *pixels, uint16_t *counts) {
    count_tile(window, pixels, counts, 4);
}
static void count_32(const Window *window, const uint8_t *const *pixels, uint16_t *counts) {
    count_tile(window, pixels, counts, 2);
}
static void count_16(const Window *window, const uint8_t *const *pixels, uint16_t *counts) {
    count_tile(window, pixels, counts, 1);
}

void count_neon(const Bconv2d *conv, const Block *block, uint16_t *counts) {
    const size_t width = (size_t)block->width, in_row = (size_t)conv->out_width;
    Window window = {.offsets = block->common, .taps = taps_of(conv), .bytes = bytes_of_tap(conv)};
    window.weights = (const uint8_t *)block->packed + (size_t)block->first_channel * window.taps * window.bytes;
    const uint8_t *prepared = block->prepared;
    const size_t row_step = (size_t)conv->window.stride[0] * row_bytes(conv),
                 column_step = (size_t)conv->window.stride[1] * pixel_bytes(conv);
    for (size_t first = 0; first < block->pixels; first += TILE_PIXELS) {
        const uint8_t *pixels[TILE_PIXELS];
        for (size_t p = 0; p < TILE_PIXELS; p++) {
            const size_t pixel = block->first_pixel + (first + p < block->pixels ? first + p : block->pixels - 1);
            pixels[p] = prepared + pixel / in_row * row_step + pixel % in_row * column_step;
        }
        (width == 64 ? count_64 : width == 32 ? count_32 : count_16)(&window, pixels, counts + first * width);
    }
}
