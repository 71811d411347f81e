/* 1-bit kernels on levels with AVX2, by look-ups: four planes of 32 channels in two of them.

   With signs of -1 and +1, sum of sign * u = 2 * S - U: S is the sum of the u whose sign is +1, U that of all. Of four planes
   there are 16 different S, from 0 to 4 * 255 = 1020. `prepare` makes a table of them for every four planes of a
   pixel, in two rows of bytes: the low five bits, and the high five. A window's taps and all channels share it. The signs of
   four planes are a nibble; nibbles of 32 channels are the places of a vpshufb in a row of the table.

   A byte holds eight of these (8 * 31 < 256). Then low and high bytes are put side by side and become words low + 32 * high by
   one vpmaddubsw; a word holds eight such sums, of 64 nibbles in all (64 * 1020 < 65536). Eight nibbles of 128 places take
   128 look-ups and additions less 8, and 24 instructions for the words: 28 multiply-adds an instruction. */
#include "levels_avx2.h"

#include <string.h>

#include "avx2.h"

typedef __m256i vector;

enum { ROW = 16, TABLE = 2 * ROW, LOW_BITS = 5, NIBBLES_OF_BYTE = 8, NIBBLES_OF_WORD = 64, VECTORS = 4 };

/* Nibbles of a pixel, of a run, of a window. */
static size_t pixel_nibbles(const LevelConv *conv) { return (conv->planes + 3) / 4; }
static size_t run_nibbles(const LevelConv *conv) { return conv->run_pixels * pixel_nibbles(conv); }
static size_t window_nibbles(const LevelConv *conv) { return conv->runs * run_nibbles(conv); }

static size_t width(size_t channels_left) { return channels_left > 32 ? 64 : 32; }

static size_t pixel_bytes(const LevelConv *conv) { return TABLE * pixel_nibbles(conv); }

static inline void put_table(const uint8_t *bytes, uint8_t *table) {
    /* Of entry w, which of each pair of planes count: bits 0 and 1 of w, and 2 and 3. */
    const vector first = _mm256_setr_epi16(0, 1, 256, 257, 0, 1, 256, 257, 0, 1, 256, 257, 0, 1, 256, 257);
    const vector second = _mm256_setr_epi16(0, 0, 0, 0, 1, 1, 1, 1, 256, 256, 256, 256, 257, 257, 257, 257);
    int16_t pairs[2];
    memcpy(pairs, bytes, sizeof pairs);
    const vector sums = _mm256_add_epi16(_mm256_maddubs_epi16(_mm256_set1_epi16(pairs[0]), first),
                                         _mm256_maddubs_epi16(_mm256_set1_epi16(pairs[1]), second));
    const vector low = _mm256_and_si256(sums, _mm256_set1_epi16((1 << LOW_BITS) - 1));
    const vector both = _mm256_packus_epi16(low, _mm256_srli_epi16(sums, LOW_BITS)); /* halves of both rows by turns */
    _mm256_storeu_si256((vector *)table, _mm256_permute4x64_epi64(both, 0xd8));
}

/* Prepared: the two rows of the table of each nibble, [pixel][nibble][TABLE]. What a pixel takes away is the sum of its bytes. */
static void prepare(const LevelConv *conv, const uint8_t *bytes, size_t pixels, void *prepared, int32_t *taken_away) {
    const size_t whole = conv->planes / 4 * 4, left = conv->planes - whole;
    uint8_t *table = prepared;
    for (size_t pixel = 0; pixel < pixels; pixel++, bytes += conv->planes) {
        int32_t sum = 0;
        for (size_t plane = 0; plane < whole; plane += 4, table += TABLE) put_table(bytes + plane, table);
        for (size_t plane = 0; plane < conv->planes; plane++) sum += bytes[plane];
        taken_away[pixel] = sum;
        if (!left) continue;
        uint8_t last[4] = {0};
        memcpy(last, bytes + whole, left);
        put_table(last, table);
        table += TABLE;
    }
}

/* Packed: the nibbles of a block of channels, [nibble][channel of the block], one block after another. */
static size_t packed_bytes(const LevelConv *conv) {
    return level_channels(&signs_of_levels_avx2, conv->outputs) * window_nibbles(conv);
}

static void pack(const LevelConv *conv, const int8_t *weights, void *packed) {
    const size_t taps = conv->runs * conv->run_pixels, nibbles = window_nibbles(conv);
    for (size_t first = 0, columns; first < conv->outputs; first += columns) {
        columns = width(conv->outputs - first);
        uint8_t *block = (uint8_t *)packed + first * nibbles;
        for (size_t n = 0; n < columns && first + n < conv->outputs; n++)
            for (size_t plane = 0; plane < conv->planes; plane++)
                for (size_t tap = 0; tap < taps; tap++) {
                    const bool is_one = weights[((first + n) * conv->planes + plane) * taps + tap] > 0;
                    block[(tap * pixel_nibbles(conv) + plane / 4) * columns + n] |= (uint8_t)(is_one << plane % 4);
                }
    }
}

/* A tile is four vectors: 64 channels of 2 pixels, or 32 of 4. */
INLINE size_t pixels_of_tile(size_t columns) { return 32 * VECTORS / columns; }

INLINE vector load(const void *from) { return _mm256_loadu_si256((const vector *)from); }

/* The look-ups are in assembly: of intrinsics, compilers make sums in another order, with half of them in memory. The low and
   high bytes of vector i are L<i> and H<i>:
       ymm8, ymm9     rows of a table
       ymm10, ymm11   nibbles of kernels
       ymm12          what was looked up */
/* clang-format off */
#define SPREAD_ROW(t, at, row) "vbroadcasti128 " at "(%[" #t "]), %%" #row "\n"
#define LOOK(row, places, sum) "vpshufb %%" #places ", %%" #row ", %[" #sum "]\n"
#define LOOK_AND_ADD(row, places, sum)                                                                                 \
    "vpshufb %%" #places ", %%" #row ", %%ymm12\n"                                                                     \
    "vpaddb %%ymm12, %[" #sum "], %[" #sum "]\n"

/* 64 channels of two pixels. */
#define NIBBLE_64(look, q)                                                                                             \
    "vmovdqa 64*" #q "(%[nibbles]), %%ymm10\nvmovdqa 64*" #q "+32(%[nibbles]), %%ymm11\n"                              \
    SPREAD_ROW(t0, "32*" #q, ymm8) look(ymm8, ymm10, L0) look(ymm8, ymm11, L1)                                         \
    SPREAD_ROW(t0, "32*" #q "+16", ymm9) look(ymm9, ymm10, H0) look(ymm9, ymm11, H1)                                   \
    SPREAD_ROW(t1, "32*" #q, ymm8) look(ymm8, ymm10, L2) look(ymm8, ymm11, L3)                                         \
    SPREAD_ROW(t1, "32*" #q "+16", ymm9) look(ymm9, ymm10, H2) look(ymm9, ymm11, H3)

/* 32 channels of four pixels. */
#define PIXEL_32(look, q, t, L, H)                                                                                     \
    SPREAD_ROW(t, "32*" #q, ymm8) look(ymm8, ymm10, L) SPREAD_ROW(t, "32*" #q "+16", ymm9) look(ymm9, ymm10, H)
#define NIBBLE_32(look, q)                                                                                             \
    "vmovdqa 32*" #q "(%[nibbles]), %%ymm10\n"                                                                         \
    PIXEL_32(look, q, t0, L0, H0) PIXEL_32(look, q, t1, L1, H1)                                                        \
    PIXEL_32(look, q, t2, L2, H2) PIXEL_32(look, q, t3, L3, H3)

#define NIBBLES_1(NIBBLE) NIBBLE(LOOK, 0)
#define NIBBLES_4(NIBBLE) NIBBLES_1(NIBBLE) NIBBLE(LOOK_AND_ADD, 1) NIBBLE(LOOK_AND_ADD, 2) NIBBLE(LOOK_AND_ADD, 3)
#define NIBBLES_8(NIBBLE)                                                                                              \
    NIBBLES_4(NIBBLE) NIBBLE(LOOK_AND_ADD, 4) NIBBLE(LOOK_AND_ADD, 5) NIBBLE(LOOK_AND_ADD, 6) NIBBLE(LOOK_AND_ADD, 7)
/* clang-format on */

#define T(i) [t##i] "r"(tables[i] + at)
#define TABLES_64 T(0), T(1)
#define TABLES_32 TABLES_64, T(2), T(3)
#define LOOK_UP(count, columns)                                                                                    \
    __asm__(NIBBLES_##count(NIBBLE_##columns)                                                                      \
            : [L0] "=&x"(low[0]), [L1] "=&x"(low[1]), [L2] "=&x"(low[2]), [L3] "=&x"(low[3]), [H0] "=&x"(high[0]), \
              [H1] "=&x"(high[1]), [H2] "=&x"(high[2]), [H3] "=&x"(high[3])                                        \
            : TABLES_##columns, [nibbles] "r"(nibbles)                                                             \
            : "memory", "ymm8", "ymm9", "ymm10", "ymm11", "ymm12")

/* Adds 8, 4 or 1 nibbles, from byte `at` on of each pixel's tables, to the words of a tile: for each vector, those of channels
   0 to 7 and 16 to 23, then of 8 to 15 and 24 to 31. */
INLINE void add_nibbles(const uint8_t *const *tables, size_t at, const uint8_t *nibbles, size_t count, size_t columns,
                        vector words[2 * VECTORS]) {
    const vector weights = _mm256_set1_epi16(1 | (1 << LOW_BITS) << 8);
    vector low[VECTORS], high[VECTORS];
#define LOOK_UP_COLUMNS(columns) \
    {                            \
        if (count == 8)          \
            LOOK_UP(8, columns); \
        else if (count == 4)     \
            LOOK_UP(4, columns); \
        else                     \
            LOOK_UP(1, columns); \
    }
    if (columns == 64)
        LOOK_UP_COLUMNS(64)
    else
        LOOK_UP_COLUMNS(32)
#pragma GCC unroll 4
    for (size_t v = 0; v < VECTORS; v++) {
        const vector first = _mm256_unpacklo_epi8(low[v], high[v]), second = _mm256_unpackhi_epi8(low[v], high[v]);
        words[2 * v] = _mm256_add_epi16(words[2 * v], _mm256_maddubs_epi16(first, weights));
        words[2 * v + 1] = _mm256_add_epi16(words[2 * v + 1], _mm256_maddubs_epi16(second, weights));
    }
}

/* What words can hold of a window: part of one run, or several whole runs. */
typedef struct {
    size_t run, runs, first, nibbles;
} Part;

static Part next_part(const LevelConv *conv, Part part) {
    const size_t in_run = run_nibbles(conv);
    part.first += part.nibbles;
    if (part.first == in_run || part.runs > 1) {
        part.run += part.runs;
        part.first = 0;
    }
    const size_t left = in_run - part.first, whole = NIBBLES_OF_WORD / in_run, runs_left = conv->runs - part.run;
    part.nibbles = left < NIBBLES_OF_WORD ? left : NIBBLES_OF_WORD;
    part.runs = part.first || !whole ? runs_left > 0 : whole < runs_left ? whole : runs_left;
    return part;
}

typedef struct {
    const LevelConv *conv;
    const LevelBlock *block;
    const uint8_t *nibbles; /* of the part */
    Part part;
    bool is_first;
    int32_t *sums;
} Tiles;

/* sums = base - taken away + 2 * words, or 2 * words more than they are. */
INLINE void put_eight(const Tiles *tiles, size_t pixel, size_t channel, size_t columns, __m128i words) {
    vector *sums = (vector *)(tiles->sums + pixel * columns + channel);
    const vector twice = _mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 1);
    const vector before = tiles->is_first ? _mm256_sub_epi32(load(tiles->block->bases + channel),
                                                             _mm256_set1_epi32(tiles->block->taken_away[pixel]))
                                          : _mm256_load_si256(sums);
    _mm256_store_si256(sums, _mm256_add_epi32(before, twice));
}

INLINE void put_words(const Tiles *tiles, size_t pixel, size_t columns, const vector words[2 * VECTORS]) {
    for (size_t v = 0; v < VECTORS; v++)
        for (size_t half = 0; half < 2; half++) {
            const size_t of = pixel + v * 32 / columns, channel = v * 32 % columns + 8 * half;
            put_eight(tiles, of, channel, columns, _mm256_castsi256_si128(words[2 * v + half]));
            put_eight(tiles, of, channel + 16, columns, _mm256_extracti128_si256(words[2 * v + half], 1));
        }
}

INLINE void sum_tiles(const Tiles *tiles, size_t columns) {
    const LevelConv *conv = tiles->conv;
    const Part part = tiles->part;
    for (size_t pixel = 0; pixel < tiles->block->pixels; pixel += pixels_of_tile(columns)) {
        vector words[2 * VECTORS];
        for (size_t i = 0; i < 2 * VECTORS; i++) words[i] = _mm256_setzero_si256();
        const uint8_t *nibbles = tiles->nibbles;
        for (size_t run = part.run; run < part.run + part.runs; run++) {
            const uint8_t *tables[VECTORS];
            for (size_t i = 0; i < pixels_of_tile(columns); i++)
                tables[i] = (const uint8_t *)tiles->block->windows[(pixel + i) * conv->runs + run] + part.first * TABLE;
            size_t k = 0;
            for (; k + NIBBLES_OF_BYTE <= part.nibbles; k += NIBBLES_OF_BYTE, nibbles += NIBBLES_OF_BYTE * columns)
                add_nibbles(tables, k * TABLE, nibbles, NIBBLES_OF_BYTE, columns, words);
            for (; k + 4 <= part.nibbles; k += 4, nibbles += 4 * columns)
                add_nibbles(tables, k * TABLE, nibbles, 4, columns, words);
            for (; k < part.nibbles; k++, nibbles += columns)
                add_nibbles(tables, k * TABLE, nibbles, 1, columns, words);
        }
        put_words(tiles, pixel, columns, words);
    }
}

static void sum_tiles_64(const Tiles *tiles) { sum_tiles(tiles, 64); }
static void sum_tiles_32(const Tiles *tiles) { sum_tiles(tiles, 32); }

static void sum(const LevelConv *conv, const LevelBlock *block, int32_t *sums) {
    Tiles tiles = {.conv = conv,
                   .block = block,
                   .nibbles = (const uint8_t *)block->packed + block->first_channel * window_nibbles(conv),
                   .is_first = true,
                   .sums = sums};
    for (tiles.part = next_part(conv, (Part){0}); tiles.part.runs; tiles.part = next_part(conv, tiles.part)) {
        (block->width == 64 ? sum_tiles_64 : sum_tiles_32)(&tiles);
        tiles.nibbles += tiles.part.runs * tiles.part.nibbles * block->width;
        tiles.is_first = false;
    }
}

const LevelKernels signs_of_levels_avx2 = {
    .least_outputs = 32,
    .width = width,
    .pixel_bytes = pixel_bytes,
    .takes_away = true,
    .prepare = prepare,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .sum = sum,
};
