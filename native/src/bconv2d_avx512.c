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

#define INLINE static inline __attribute__((always_inline))
typedef __m512i vector;

/* AND_XOR: a & (b ^ c); XOR: a ^ b ^ c */
enum { AND_XOR = 0x60, XOR = 0x96 };
enum { TILE_PIXELS = 8, FIELD = 16 /* bits */, MOST_FEW = 6 /* words */, FEW_PIXELS = 2 };

/* Pixels of a block and a group of channels, which is four vectors, or two. */
typedef struct {
    const vector *weights; /* [vector][word of the window] */
    const size_t *offsets; /* of the window's words, from its first pixel */
    size_t triples, singles;
    const uint64_t *prepared;
    size_t row, column, width;   /* the first pixel, and how many are in a row of the output */
    size_t row_step, pixel_step; /* words from the window of a pixel to the next one's */
    size_t pixels;
    uint16_t *counts;
    size_t stride; /* from the counts of a pixel to those of the next */
} Group;

/* The window of a pixel, and on to the next one. */
INLINE const uint64_t *next_window(Group *group) {
    const uint64_t *window = group->prepared + group->row * group->row_step + group->column * group->pixel_step;
    if (++group->column == group->width) group->column = 0, group->row++;
    return window;
}

INLINE vector broadcast(const uint64_t *word) { return _mm512_set1_epi64((long long)*word); }

/* A lane of the sums has a field of 16 bits for each vector: channel v + n_vectors * lane of the group is in field v, so
   that counts come out in their order. Vectors go one after another, the last first, and fields move up in between. */
INLINE void put(vector counts, int n_vectors, uint16_t *to) {
    if (n_vectors == 4)
        _mm512_storeu_si512(to, counts);
    else
        _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi64_epi32(counts));
}

INLINE void count_tile(const Group *group, const uint64_t *const *windows, uint16_t *counts, int n_pixels,
                       int n_vectors, bool has_triples) {
    vector majorities[TILE_PIXELS], ones[TILE_PIXELS];
    const size_t words = 4 * group->triples + group->singles;
#pragma GCC unroll 8
    for (int p = 0; p < n_pixels; p++) majorities[p] = ones[p] = _mm512_setzero_si512();
    for (int v = n_vectors - 1; v >= 0; v--) {
        const vector *w = group->weights + (size_t)v * words;
        const size_t *at = group->offsets, *end = at + group->triples;
        if (has_triples)
            for (; at < end; at++, w += 4) {
                const vector w1 = w[0], w12 = w[1], w13 = w[2], w123 = w[3];
#pragma GCC unroll 8
                for (int p = 0; p < n_pixels; p++) {
                    const uint64_t *a = windows[p] + *at;
                    const vector x12 = _mm512_xor_si512(w12, broadcast(a + 1));
                    const vector both = _mm512_ternarylogic_epi64(x12, w13, broadcast(a + 2), AND_XOR);
                    const vector majority = _mm512_ternarylogic_epi64(both, w1, broadcast(a), XOR);
                    const vector parity = _mm512_xor_si512(w123, broadcast(a + 3));
                    majorities[p] = _mm512_add_epi64(majorities[p], _mm512_popcnt_epi64(majority));
                    ones[p] = _mm512_add_epi64(ones[p], _mm512_popcnt_epi64(parity));
                }
            }
        end += group->singles;
        for (; at < end; at++, w++) {
            const vector w1 = *w;
#pragma GCC unroll 8
            for (int p = 0; p < n_pixels; p++) {
                const vector x1 = _mm512_xor_si512(w1, broadcast(windows[p] + *at));
                ones[p] = _mm512_add_epi64(ones[p], _mm512_popcnt_epi64(x1));
            }
        }
        if (v == 0) break;
#pragma GCC unroll 8
        for (int p = 0; p < n_pixels; p++) {
            if (has_triples) majorities[p] = _mm512_slli_epi64(majorities[p], FIELD);
            ones[p] = _mm512_slli_epi64(ones[p], FIELD);
        }
    }
#pragma GCC unroll 8
    for (int p = 0; p < n_pixels; p++, counts += group->stride) {
        if (has_triples) ones[p] = _mm512_add_epi16(ones[p], _mm512_add_epi16(majorities[p], majorities[p]));
        put(ones[p], n_vectors, counts);
    }
}

/* A loop for each number of pixels, so that all sums stay in registers and the last tile of a block does no more than it must. */
#define CASE(n) \
    case n: count_tile(&group, windows, counts, n, n_vectors, has_triples); break;
INLINE void count_tiles(Group group, int n_vectors, bool has_triples) {
    uint16_t *counts = group.counts;
    for (size_t left = group.pixels, n; left > 0; left -= n, counts += n * group.stride) {
        n = left < TILE_PIXELS ? left : TILE_PIXELS;
        const uint64_t *windows[TILE_PIXELS];
        for (size_t p = 0; p < n; p++) windows[p] = next_window(&group);
        switch (n) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
    }
}

/* Of few words, all in one go, and some pixels for each load of weights. */
INLINE void count_few(Group *group, const size_t *offsets, uint16_t *counts, int n_pixels, int n_vectors, int n_words) {
    vector a[FEW_PIXELS][MOST_FEW], made[FEW_PIXELS];
#pragma GCC unroll 4
    for (int p = 0; p < n_pixels; p++) {
        const uint64_t *window = next_window(group);
#pragma GCC unroll 6
        for (int i = 0; i < n_words; i++) a[p][i] = broadcast(window + offsets[i]);
    }
#pragma GCC unroll 4
    for (int v = n_vectors - 1; v >= 0; v--) {
        vector ones[FEW_PIXELS];
#pragma GCC unroll 6
        for (int i = 0; i < n_words; i++) {
            const vector w = group->weights[v * n_words + i];
#pragma GCC unroll 4
            for (int p = 0; p < n_pixels; p++) {
                const vector more = _mm512_popcnt_epi64(_mm512_xor_si512(w, a[p][i]));
                ones[p] = i == 0 ? more : _mm512_add_epi64(ones[p], more);
            }
        }
#pragma GCC unroll 4
        for (int p = 0; p < n_pixels; p++)
            made[p] = v == n_vectors - 1 ? ones[p] : _mm512_add_epi64(_mm512_slli_epi64(made[p], FIELD), ones[p]);
    }
#pragma GCC unroll 4
    for (int p = 0; p < n_pixels; p++) put(made[p], n_vectors, counts + (size_t)p * group->stride);
}

INLINE void count_all_few(Group group, int n_vectors, int n_words) {
    size_t offsets[MOST_FEW]; /* copies, which no store can change */
#pragma GCC unroll 6
    for (int i = 0; i < n_words; i++) offsets[i] = group.offsets[i];
    uint16_t *counts = group.counts;
    size_t pixel = 0;
    for (; pixel + FEW_PIXELS <= group.pixels; pixel += FEW_PIXELS, counts += FEW_PIXELS * group.stride)
        count_few(&group, offsets, counts, FEW_PIXELS, n_vectors, n_words);
    for (; pixel < group.pixels; pixel++, counts += group.stride)
        count_few(&group, offsets, counts, 1, n_vectors, n_words);
}

INLINE void count_group(const Group *group, int n_vectors) {
    if (group->triples)
        count_tiles(*group, n_vectors, true);
    else if (group->singles == 3)
        count_all_few(*group, n_vectors, 3);
    else if (group->singles == 6)
        count_all_few(*group, n_vectors, 6);
    else
        count_tiles(*group, n_vectors, false);
}

static void count_32(const Group *group) { count_group(group, 4); }
static void count_16(const Group *group) { count_group(group, 2); }

void count_avx512(const Bconv2d *conv, const Block *block, uint16_t *counts) {
    const Common *common = block->common;
    const Words *words = &common->words;
    const size_t width = (size_t)block->width, channels = width < 32 ? 16 : 32, in_row = (size_t)conv->out_width;
    const uint64_t *weights = (const uint64_t *)block->packed + (size_t)block->first_channel * window_words(words);
    Group group = {.offsets = common->offsets,
                   .triples = words->triples,
                   .singles = words->singles,
                   .prepared = block->prepared,
                   .row = block->first_pixel / in_row,
                   .column = block->first_pixel % in_row,
                   .width = in_row,
                   .row_step = (size_t)conv->window.stride[0] * words->line,
                   .pixel_step = (size_t)conv->window.stride[1] * words->pixel_words * words->spread,
                   .pixels = block->pixels,
                   .stride = width};
    /* The weights of a group stay in the first cache while the block's pixels go by. */
    for (size_t first = 0; first < width; first += channels, weights += channels * window_words(words)) {
        group.weights = (const vector *)weights;
        group.counts = counts + first;
        (channels == 32 ? count_32 : count_16)(&group);
    }
}
