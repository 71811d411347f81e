/* 1-bit convolution with AVX-512: a word of eight channels in an instruction, and fewer instructions for three words.

   A vector holds the same word of eight kernels; the window's word is broadcast to all of them. By itself, a word takes three
   instructions: xor, count of ones, addition. Three words x1, x2, x3 of differing bits (x = a ^ w, of window and kernel) have
       ones(x1) + ones(x2) + ones(x3) = 2 * ones(majority(x1, x2, x3)) + ones(x1 ^ x2 ^ x3)
       majority(x1, x2, x3) = x1 ^ ((x1 ^ x2) & (x1 ^ x3))
   and each xor of some of the x is the same xor of the a, which is made once for a pixel, with that of the w, which is made
   when the net is. So a triple takes a xor, two ternary instructions, a count and an addition for the majority, and a xor, a
   count and an addition for the parity: eight instructions in place of nine. */
#include "bconv2d_avx512.h"

#include <immintrin.h>

#include "bconv2d_avx2.h"

#define INLINE static inline __attribute__((always_inline))
typedef __m512i vector;

/* AND_XOR: a & (b ^ c); XOR: a ^ b ^ c */
enum { AND_XOR = 0x60, XOR = 0x96, LANES = 8, TILE_PIXELS = 8 };

/* Some pixels and all channels of a group, which is four vectors, or two: [vector][word of the window] */
typedef struct {
    const vector *weights;
    const size_t *offsets; /* of the window's words, from its first pixel */
    size_t triples, singles;
    const uint64_t *windows[TILE_PIXELS];
    uint16_t *counts;
    size_t stride;
} Tile;

INLINE vector broadcast(const uint64_t *word) { return _mm512_set1_epi64((long long)*word); }

/* A lane of the sums has a field of 16 bits for each vector: channel v + n_vectors * lane of the group is in field v, so
   that counts come out in their order. Vectors go one after another, the last first, and fields move up in between. */
INLINE void count_tile(const Tile *tile, int n_pixels, int n_vectors, bool has_triples) {
    vector majorities[TILE_PIXELS], ones[TILE_PIXELS];
    const size_t words = 4 * tile->triples + tile->singles;
#pragma GCC unroll 8
    for (int p = 0; p < n_pixels; p++) majorities[p] = ones[p] = _mm512_setzero_si512();
    for (int v = n_vectors - 1; v >= 0; v--) {
        const vector *w = tile->weights + (size_t)v * words;
        const size_t *at = tile->offsets, *end = at + tile->triples;
#pragma GCC unroll 8
        for (int p = 0; p < n_pixels; p++) {
            if (has_triples) majorities[p] = _mm512_slli_epi64(majorities[p], 16);
            ones[p] = _mm512_slli_epi64(ones[p], 16);
        }
        if (has_triples)
            for (; at < end; at++, w += 4) {
                const vector w1 = w[0], w12 = w[1], w13 = w[2], w123 = w[3];
#pragma GCC unroll 8
                for (int p = 0; p < n_pixels; p++) {
                    const uint64_t *a = tile->windows[p] + *at;
                    const vector x12 = _mm512_xor_si512(w12, broadcast(a + 1));
                    const vector both = _mm512_ternarylogic_epi64(x12, w13, broadcast(a + 2), AND_XOR);
                    const vector majority = _mm512_ternarylogic_epi64(both, w1, broadcast(a), XOR);
                    const vector parity = _mm512_xor_si512(w123, broadcast(a + 3));
                    majorities[p] = _mm512_add_epi64(majorities[p], _mm512_popcnt_epi64(majority));
                    ones[p] = _mm512_add_epi64(ones[p], _mm512_popcnt_epi64(parity));
                }
            }
        end += tile->singles;
        for (; at < end; at++, w++) {
            const vector w1 = *w;
#pragma GCC unroll 8
            for (int p = 0; p < n_pixels; p++) {
                const vector x1 = _mm512_xor_si512(w1, broadcast(tile->windows[p] + *at));
                ones[p] = _mm512_add_epi64(ones[p], _mm512_popcnt_epi64(x1));
            }
        }
    }
#pragma GCC unroll 8
    for (int p = 0; p < n_pixels; p++) {
        vector counts = ones[p];
        if (has_triples) counts = _mm512_add_epi16(counts, _mm512_add_epi16(majorities[p], majorities[p]));
        uint16_t *to = tile->counts + (size_t)p * tile->stride;
        if (n_vectors == 4)
            _mm512_storeu_si512(to, counts);
        else
            _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi64_epi32(counts));
    }
}

/* A loop for each number of pixels, so that all sums stay in registers and the last tile of a block does no more than it must. */
#define CASE(n) \
    case n: count_tile(tile, n, n_vectors, has_triples); return;
INLINE void count_pixels(const Tile *tile, size_t n_pixels, int n_vectors, bool has_triples) {
    switch (n_pixels) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
}

static void triples_of_32(const Tile *tile, size_t n_pixels) { count_pixels(tile, n_pixels, 4, true); }
static void triples_of_16(const Tile *tile, size_t n_pixels) { count_pixels(tile, n_pixels, 2, true); }
static void singles_of_32(const Tile *tile, size_t n_pixels) { count_pixels(tile, n_pixels, 4, false); }
static void singles_of_16(const Tile *tile, size_t n_pixels) { count_pixels(tile, n_pixels, 2, false); }

void count_avx512(const Bconv2d *conv, const Block *block, uint16_t *counts) {
    if (looks_up(conv)) {
        count_avx2(conv, block, counts);
        return;
    }
    const Words words = words_in_window(conv);
    const size_t width = (size_t)block->width, group = width < 32 ? 16 : 32, out_width = (size_t)conv->out_width;
    const size_t row_step = (size_t)conv->window.stride[0] * words.line,
                 pixel_step = (size_t)conv->window.stride[1] * words.pixel_words * words.spread;
    const uint64_t *prepared = block->prepared;
    const uint64_t *weights = (const uint64_t *)block->packed + (size_t)block->first_channel * window_words(&words);
    Tile tile = {.offsets = block->common, .triples = words.triples, .singles = words.singles, .stride = width};
    /* The weights of a group stay in the first cache while the block's pixels go by. */
    for (size_t first = 0; first < width; first += group, weights += group * window_words(&words)) {
        tile.weights = (const vector *)weights;
        size_t row = block->first_pixel / out_width, column = block->first_pixel % out_width, n_pixels;
        for (size_t pixel = 0; pixel < block->pixels; pixel += n_pixels) {
            n_pixels = block->pixels - pixel < TILE_PIXELS ? block->pixels - pixel : TILE_PIXELS;
            for (size_t p = 0; p < n_pixels; p++) {
                tile.windows[p] = prepared + row * row_step + column * pixel_step;
                if (++column == out_width) column = 0, row++;
            }
            tile.counts = counts + pixel * width + first;
            if (words.triples)
                (group == 32 ? triples_of_32 : triples_of_16)(&tile, n_pixels);
            else
                (group == 32 ? singles_of_32 : singles_of_16)(&tile, n_pixels);
        }
    }
}
