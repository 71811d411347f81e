/* Weights of 8 bits on levels with AVX2: four neighbouring bytes of a run, of eight channels, in three instructions.

   vpmaddubsw makes words of two products each, which fit (levels.c sees to that); vpmaddwd adds two words each to 32 bits.
   Where the words of two such fours can be added before, as small weights allow, eight bytes take five instructions.
   Weights are laid out in blocks of 16 channels, two vectors; behind the end of a run they are 0, and whatever bytes are there
   do not matter. */
#include <string.h>

#include "avx2.h"
#include "levels_avx2.h"

typedef __m256i vector;

enum { COLUMNS = 16, PIXELS = 4, BYTES = 4, MOST = INT16_MAX / MAX_LEVEL };

static size_t run_fours(const LevelConv *conv) { return (conv->run_pixels * conv->planes + BYTES - 1) / BYTES; }
static size_t blocks_of(const LevelConv *conv) { return (conv->outputs + COLUMNS - 1) / COLUMNS; }
static size_t block_bytes(const LevelConv *conv) { return conv->runs * run_fours(conv) * BYTES * COLUMNS; }

static size_t width(size_t channels_left) {
    (void)channels_left;
    return COLUMNS;
}

static size_t pixel_bytes(const LevelConv *conv) { return conv->planes; }

static void prepare(const LevelConv *conv, const uint8_t *bytes, size_t pixels, void *prepared, int32_t *taken_away) {
    (void)taken_away;
    memcpy(prepared, bytes, pixels * conv->planes);
}

/* Packed: a byte for each block, whether two fours may be added; then [block][run][four][channel of the block][BYTES]. */
static size_t weights_at(const LevelConv *conv) { return round_up(blocks_of(conv), 64); }
static size_t packed_bytes(const LevelConv *conv) { return weights_at(conv) + blocks_of(conv) * block_bytes(conv); }

/* Whether, in every channel, the words of two neighbouring fours of a run always have a sum of 16 bits. */
static bool can_add(const LevelConv *conv, const int8_t *block) {
    const size_t fours = run_fours(conv), four = BYTES * COLUMNS;
    for (size_t run = 0; run < conv->runs; run++)
        for (size_t k = 0; k + 2 <= fours; k += 2)
            for (size_t i = 0; i < four; i += 2) {
                const int8_t *at = block + (run * fours + k) * four + i;
                const int8_t four_weights[] = {at[0], at[1], at[four], at[four + 1]};
                int32_t above = 0, below = 0;
                for (int w = 0; w < 4; w++) *(four_weights[w] > 0 ? &above : &below) += four_weights[w];
                if (above > MOST || below < -MOST) return false;
            }
    return true;
}

static void pack(const LevelConv *conv, const int8_t *weights, void *packed) {
    const size_t fours = run_fours(conv);
    int8_t *blocks = (int8_t *)packed + weights_at(conv);
    for (size_t n = 0; n < conv->outputs; n++)
        for (size_t plane = 0; plane < conv->planes; plane++)
            for (size_t run = 0; run < conv->runs; run++)
                for (size_t pixel = 0; pixel < conv->run_pixels; pixel++) {
                    const size_t i = pixel * conv->planes + plane;
                    int8_t *block = blocks + n / COLUMNS * block_bytes(conv);
                    block[((run * fours + i / BYTES) * COLUMNS + n % COLUMNS) * BYTES + i % BYTES] = *weights++;
                }
    for (size_t b = 0; b < blocks_of(conv); b++) ((uint8_t *)packed)[b] = can_add(conv, blocks + b * block_bytes(conv));
}

INLINE vector load(const void *from) { return _mm256_loadu_si256((const vector *)from); }

INLINE vector words_of_four(const uint8_t *bytes, vector weights) {
    int32_t four;
    memcpy(&four, bytes, sizeof four);
    return _mm256_maddubs_epi16(_mm256_set1_epi32(four), weights);
}

/* Some pixels from one on, with the weights of a block. */
INLINE void sum_tile(const LevelConv *conv, const LevelBlock *block, const int8_t *weights, size_t pixel, size_t pixels,
                     bool adds, int32_t *sums) {
    const size_t fours = run_fours(conv), two = adds ? fours / 2 * 2 : 0;
    const vector ones = _mm256_set1_epi16(1);
    vector left[PIXELS], right[PIXELS];
    for (size_t i = 0; i < pixels; i++) left[i] = load(block->bases), right[i] = load(block->bases + 8);
    for (size_t run = 0; run < conv->runs; run++) {
        const uint8_t *bytes[PIXELS];
        for (size_t i = 0; i < pixels; i++) bytes[i] = block->windows[(pixel + i) * conv->runs + run];
        size_t k = 0;
        for (; k < two; k += 2, weights += 128) {
            const vector w0 = load(weights), w1 = load(weights + 32), w2 = load(weights + 64), w3 = load(weights + 96);
#pragma GCC unroll 4
            for (size_t i = 0; i < pixels; i++) {
                const uint8_t *at = bytes[i] + k * BYTES;
                const vector l = _mm256_add_epi16(words_of_four(at, w0), words_of_four(at + BYTES, w2));
                const vector r = _mm256_add_epi16(words_of_four(at, w1), words_of_four(at + BYTES, w3));
                left[i] = _mm256_add_epi32(left[i], _mm256_madd_epi16(l, ones));
                right[i] = _mm256_add_epi32(right[i], _mm256_madd_epi16(r, ones));
            }
        }
        for (; k < fours; k++, weights += 64) {
            const vector w0 = load(weights), w1 = load(weights + 32);
#pragma GCC unroll 4
            for (size_t i = 0; i < pixels; i++) {
                const uint8_t *at = bytes[i] + k * BYTES;
                left[i] = _mm256_add_epi32(left[i], _mm256_madd_epi16(words_of_four(at, w0), ones));
                right[i] = _mm256_add_epi32(right[i], _mm256_madd_epi16(words_of_four(at, w1), ones));
            }
        }
    }
    for (size_t i = 0; i < pixels; i++) {
        _mm256_store_si256((vector *)(sums + (pixel + i) * COLUMNS), left[i]);
        _mm256_store_si256((vector *)(sums + (pixel + i) * COLUMNS + 8), right[i]);
    }
}

INLINE void sum_tiles(const LevelConv *conv, const LevelBlock *block, const int8_t *weights, bool adds, int32_t *sums) {
    size_t pixel = 0;
    for (; pixel + 1 < block->pixels; pixel += PIXELS) sum_tile(conv, block, weights, pixel, PIXELS, adds, sums);
    if (pixel < block->pixels) sum_tile(conv, block, weights, pixel, 1, adds, sums);
}

static void sum(const LevelConv *conv, const LevelBlock *block, int32_t *sums) {
    const size_t number = block->first_channel / COLUMNS;
    const int8_t *weights = (const int8_t *)block->packed + weights_at(conv) + number * block_bytes(conv);
    if (((const uint8_t *)block->packed)[number])
        sum_tiles(conv, block, weights, true, sums);
    else
        sum_tiles(conv, block, weights, false, sums);
}

const LevelKernels bytes_of_levels_avx2 = {
    .width = width,
    .pixel_bytes = pixel_bytes,
    .prepare = prepare,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .sum = sum,
};
