/* Tiles of channels and pairs of pixels. A byte of two pixels picks a row of the table; the nibbles of kernels are places in it. */
#include "tiles_avx2.h"

#include "look_ups_avx2.h"

#define ONES(n) (((n) & 1) + ((n) >> 1 & 1) + ((n) >> 2 & 1) + ((n) >> 3 & 1))
#define ENTRY(a, w) (ONES(((a) & 15) ^ (w)) | ONES(((a) >> 4) ^ (w)) << 4)
#define ROW(a)                                                                                                    \
    {ENTRY(a, 0), ENTRY(a, 1), ENTRY(a, 2),  ENTRY(a, 3),  ENTRY(a, 4),  ENTRY(a, 5),  ENTRY(a, 6),  ENTRY(a, 7), \
     ENTRY(a, 8), ENTRY(a, 9), ENTRY(a, 10), ENTRY(a, 11), ENTRY(a, 12), ENTRY(a, 13), ENTRY(a, 14), ENTRY(a, 15)}
#define ROWS4(a) ROW(a), ROW(a + 1), ROW(a + 2), ROW(a + 3)
#define ROWS16(a) ROWS4(a), ROWS4(a + 4), ROWS4(a + 8), ROWS4(a + 12)
#define ROWS64(a) ROWS16(a), ROWS16(a + 16), ROWS16(a + 32), ROWS16(a + 48)
const uint8_t ROWS_OF_PAIRS[256][16] __attribute__((aligned(64))) = {ROWS64(0), ROWS64(64), ROWS64(128), ROWS64(192)};

/* 16 channels of two pairs, one in each half of S and T. */
static inline void put_halves(vector S, vector T, uint16_t *counts, bool is_first) {
    const Fields fields = fields_of(S, T);
    put(counts, _mm256_permute2x128_si256(fields.first_even, fields.first_odd, 0x20), is_first);
    put(counts + 16, _mm256_permute2x128_si256(fields.second_even, fields.second_odd, 0x20), is_first);
    put(counts + 32, _mm256_permute2x128_si256(fields.first_even, fields.first_odd, 0x31), is_first);
    put(counts + 48, _mm256_permute2x128_si256(fields.second_even, fields.second_odd, 0x31), is_first);
}

/* Rounds: see look_ups_avx2.h. */
/* clang-format off */
#define TABLE_ROW(x, q, row)                                                                                           \
    "movzwl 2*" #q "(%[" #x "],%[k],2), %k[r]\n"                                                                       \
    "vbroadcasti128 (%[table],%[r]), %%" #row "\n"
#define TABLE_ROWS(x, y, q, row) /* one in each half */                                                                \
    "movzwl 2*" #q "(%[" #x "],%[k],2), %k[r]\n"                                                                       \
    "vmovdqa (%[table],%[r]), %%x" #row "\n"                                                                           \
    "movzwl 2*" #q "(%[" #y "],%[k],2), %k[r]\n"                                                                       \
    "vinserti128 $1, (%[table],%[r]), %%y" #row ", %%y" #row "\n"
/* 128 channels of one pair; nibbles straight from memory. */
#define ROUND_128(look, q)                                                                                             \
    TABLE_ROW(x0, q, ymm12)                                                                                            \
    look("128*" #q "(%[weights])", ymm12, ymm8) look("128*" #q "+32(%[weights])", ymm12, ymm9)                         \
    look("128*" #q "+64(%[weights])", ymm12, ymm10) look("128*" #q "+96(%[weights])", ymm12, ymm11)

/* 64 channels of two pairs. */
#define ROUND_64(look, q)                                                                                              \
    TABLE_ROW(x0, q, ymm12) TABLE_ROW(x1, q, ymm13)                                                                    \
    "vmovdqa 64*" #q "(%[weights]), %%ymm14\n" look("%%ymm14", ymm12, ymm8) look("%%ymm14", ymm13, ymm10)              \
    "vmovdqa 64*" #q "+32(%[weights]), %%ymm14\n" look("%%ymm14", ymm12, ymm9) look("%%ymm14", ymm13, ymm11)

/* 32 channels of four pairs. */
#define ROUND_32(look, q)                                                                                              \
    "vmovdqa 32*" #q "(%[weights]), %%ymm14\n"                                                                         \
    TABLE_ROW(x0, q, ymm12) look("%%ymm14", ymm12, ymm8) TABLE_ROW(x1, q, ymm13) look("%%ymm14", ymm13, ymm9)          \
    TABLE_ROW(x2, q, ymm12) look("%%ymm14", ymm12, ymm10) TABLE_ROW(x3, q, ymm13) look("%%ymm14", ymm13, ymm11)

/* 16 channels of eight pairs, two in each vector. */
#define ROUND_16(look, q)                                                                                              \
    "vbroadcasti128 16*" #q "(%[weights]), %%ymm14\n"                                                                  \
    TABLE_ROWS(x0, x1, q, mm12) look("%%ymm14", ymm12, ymm8) TABLE_ROWS(x2, x3, q, mm13) look("%%ymm14", ymm13, ymm9)  \
    TABLE_ROWS(x4, x5, q, mm12) look("%%ymm14", ymm12, ymm10) TABLE_ROWS(x6, x7, q, mm13) look("%%ymm14", ymm13, ymm11)
/* clang-format on */

/* While a tile is counted: what the next one reads, and a share of the next part's weights. */
static inline void fetch_ahead(const Tiles *tiles, size_t pair, size_t pairs_of_tile) {
    const char *share = (const char *)tiles->next_weights + pair * tiles->fetched_by_pair;
    for (size_t at = 0; at < tiles->fetched_by_pair; at += 64) _mm_prefetch(share + at, _MM_HINT_T0);
    for (size_t next = pair + pairs_of_tile; next < pair + 2 * pairs_of_tile && next < tiles->n_pairs; next++) {
        const uint16_t *places =
            tiles->places + tiles->offsets[next * tiles->runs + tiles->pieces->run] + tiles->pieces->first;
        _mm_prefetch((const char *)places, _MM_HINT_T0);
        _mm_prefetch((const char *)places + 64, _MM_HINT_T0);
    }
}

/* S and T of a tile from `pair` on, by the look-ups of all pieces; x: behind the threes of each pair of it. */
#define LOOK_UP(ROUND, bytes, pairs, ...)                                                                    \
    vector S[4] = ZEROS, T[4] = ZEROS;                                                                       \
    const uint8_t *weights = tiles->weights;                                                                 \
    for (const Piece *piece = tiles->pieces; piece < tiles->pieces + tiles->n_pieces; piece++) {             \
        const size_t left = piece->nibbles % 3, threes = piece->nibbles - left;                              \
        const size_t *offsets = tiles->offsets + pair * tiles->runs + piece->run;                            \
        const uint16_t *places = tiles->places + piece->first + threes, *x[pairs];                           \
        for (size_t i = 0; i < pairs; i++) x[i] = places + offsets[i * tiles->runs];                         \
        intptr_t k = -(intptr_t)threes;                                                                      \
        uintptr_t r;                                                                                         \
        if (k) __asm__ volatile(THREES(ROUND, bytes) : CHANGED : IN_TABLE_AT, __VA_ARGS__ : CLOBBERED);      \
        if (left == 1) __asm__ volatile(ONE(ROUND, bytes) : CHANGED : IN_TABLE_AT, __VA_ARGS__ : CLOBBERED); \
        if (left == 2) __asm__ volatile(TWO(ROUND, bytes) : CHANGED : IN_TABLE_AT, __VA_ARGS__ : CLOBBERED); \
    }
#define IN_TABLE_AT [table] "r"(ROWS_OF_PAIRS)
#define X(i) [x##i] "r"(x[i])

static void tiles_128(const Tiles *tiles) {
    for (size_t pair = 0; pair < tiles->n_pairs; pair++) {
        fetch_ahead(tiles, pair, 1);
        LOOK_UP(ROUND_128, 128, 1, X(0))
        uint16_t *counts = tiles->counts + pair * 256;
        for (int i = 0; i < 4; i++) put_fields(S[i], T[i], counts + 32 * i, counts + 128 + 32 * i, tiles->is_first);
    }
}

static void tiles_64(const Tiles *tiles) {
    for (size_t pair = 0; pair < tiles->n_pairs; pair += 2) {
        fetch_ahead(tiles, pair, 2);
        LOOK_UP(ROUND_64, 64, 2, X(0), X(1))
        for (int i = 0; i < 4; i++) {
            uint16_t *counts = tiles->counts + pair * 128 + i / 2 * 128 + i % 2 * 32;
            put_fields(S[i], T[i], counts, counts + 64, tiles->is_first);
        }
    }
}

static void tiles_32(const Tiles *tiles) {
    for (size_t pair = 0; pair < tiles->n_pairs; pair += 4) {
        LOOK_UP(ROUND_32, 32, 4, X(0), X(1), X(2), X(3))
        uint16_t *counts = tiles->counts + pair * 64;
        for (int i = 0; i < 4; i++) put_fields(S[i], T[i], counts + 64 * i, counts + 64 * i + 32, tiles->is_first);
    }
}

static void tiles_16(const Tiles *tiles) {
    for (size_t pair = 0; pair < tiles->n_pairs; pair += 8) {
        LOOK_UP(ROUND_16, 16, 8, X(0), X(1), X(2), X(3), X(4), X(5), X(6), X(7))
        for (int i = 0; i < 4; i++) put_halves(S[i], T[i], tiles->counts + pair * 32 + 64 * i, tiles->is_first);
    }
}

void count_tiles_avx2(const Tiles *tiles, size_t width) {
    (width == 128 ? tiles_128 : width == 64 ? tiles_64 : width == 32 ? tiles_32 : tiles_16)(tiles);
}
