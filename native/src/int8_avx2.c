/* Weights of 8 bits on levels with AVX2: four neighbouring bytes of a run, of eight channels, in three instructions.

   vpmaddubsw makes words of two products each, which fit (levels.c sees to that); vpmaddwd adds two words each to
   32 bits. Weights are laid out in blocks of 16 channels, two vectors; behind the end of a run they are 0, and whatever bytes are
   there do not matter. */
#include <string.h>

#include "avx2.h"
#include "levels_avx2.h"

typedef __m256i vector;

enum { COLUMNS = 16, PIXELS = 4, BYTES = 4 };

static size_t run_quads(const LevelConv *conv) { return (conv->run_pixels * conv->planes + BYTES - 1) / BYTES; }

static size_t width(size_t channels_left) {
    (void)channels_left;
    return COLUMNS;
}

static size_t pixel_bytes(const LevelConv *conv) { return conv->planes; }

static void prepare(const LevelConv *conv, const uint8_t *bytes, size_t pixels, void *prepared, int32_t *taken_away) {
    (void)taken_away;
    memcpy(prepared, bytes, pixels * conv->planes);
}

/* Packed: [block][run][quad][channel of the block][BYTES]. */
static size_t packed_bytes(const LevelConv *conv) {
    return level_channels(&bytes_of_levels_avx2, conv->outputs) * conv->runs * run_quads(conv) * BYTES;
}

static void pack(const LevelConv *conv, const int8_t *weights, void *packed) {
    const size_t quads = run_quads(conv), block_bytes = conv->runs * quads * BYTES * COLUMNS;
    for (size_t n = 0; n < conv->outputs; n++)
        for (size_t plane = 0; plane < conv->planes; plane++)
            for (size_t run = 0; run < conv->runs; run++)
                for (size_t pixel = 0; pixel < conv->run_pixels; pixel++) {
                    const size_t i = pixel * conv->planes + plane;
                    int8_t *block = (int8_t *)packed + n / COLUMNS * block_bytes;
                    block[((run * quads + i / BYTES) * COLUMNS + n % COLUMNS) * BYTES + i % BYTES] = *weights++;
                }
}

INLINE vector load(const void *from) { return _mm256_loadu_si256((const vector *)from); }

INLINE vector dot(vector bytes, vector weights, vector sums) {
    const vector pairs = _mm256_maddubs_epi16(bytes, weights);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* Some pixels from one on, with the weights of a block. */
INLINE void sum_tile(const LevelConv *conv, const LevelBlock *block, size_t pixel, size_t pixels, int32_t *sums) {
    const size_t quads = run_quads(conv);
    const int8_t *weights =
        (const int8_t *)block->packed + block->first_channel * conv->runs * quads * BYTES;
    vector left[PIXELS], right[PIXELS];
    for (size_t i = 0; i < pixels; i++) left[i] = load(block->bases), right[i] = load(block->bases + 8);
    for (size_t run = 0; run < conv->runs; run++) {
        const uint8_t *bytes[PIXELS];
        for (size_t i = 0; i < pixels; i++) bytes[i] = block->windows[(pixel + i) * conv->runs + run];
        for (size_t quad = 0; quad < quads; quad++, weights += COLUMNS * BYTES) {
            const vector first = load(weights), second = load(weights + 32);
#pragma GCC unroll 4
            for (size_t i = 0; i < pixels; i++) {
                int32_t four;
                memcpy(&four, bytes[i] + quad * BYTES, sizeof four);
                const vector spread = _mm256_set1_epi32(four);
                left[i] = dot(spread, first, left[i]);
                right[i] = dot(spread, second, right[i]);
            }
        }
    }
    for (size_t i = 0; i < pixels; i++) {
        _mm256_store_si256((vector *)(sums + (pixel + i) * COLUMNS), left[i]);
        _mm256_store_si256((vector *)(sums + (pixel + i) * COLUMNS + 8), right[i]);
    }
}

static void sum(const LevelConv *conv, const LevelBlock *block, int32_t *sums) {
    size_t pixel = 0;
    for (; pixel + 1 < block->pixels; pixel += PIXELS) sum_tile(conv, block, pixel, PIXELS, sums);
    if (pixel < block->pixels) sum_tile(conv, block, pixel, 1, sums);
}

const LevelKernels bytes_of_levels_avx2 = {
    .width = width,
    .pixel_bytes = pixel_bytes,
    .prepare = prepare,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .sum = sum,
};
