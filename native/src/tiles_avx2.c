/* 1-bit convolution with AVX2: four places of two pixels and 32 channels in one look-up.

   A byte holds four neighbouring bits (a nibble) of two pixels, a pair. It picks a row of a table whose entry w is the number
   of bits in which w differs from the first nibble, plus 16 times that for the second. The nibbles of 32 kernels are the
   places of a vpshufb in that row: it gives the counts of 32 channels x 2 pixels x 4 bits.

   Three such bytes can be added before a field of 4 bits is full (3 * 4 < 16). Their sum s is then added to S, and s >> 4 (a
   shift of 16-bit words) to T, both modulo 256. Of two neighbouring bytes, e and o, whose low and high fields sum up to
   Le, He, Lo, Ho, that leaves
       Se = Le + 16 He,  So = Lo + 16 Ho,  Te = He + 16 Lo,  To = Ho     (modulo 256)
   from which all four come back, as long as each is below 256: that is for 63 nibbles (63 * 4 = 252). Then they are added to
   counts of 16 bits. */
#include "tiles_avx2.h"

#include <immintrin.h>

typedef __m256i vector;

/* TABLE[a][w], for a = first nibble | second nibble << 4. */
#define ONES(n) (((n) & 1) + ((n) >> 1 & 1) + ((n) >> 2 & 1) + ((n) >> 3 & 1))
#define ENTRY(a, w) (ONES(((a) & 15) ^ (w)) | ONES(((a) >> 4) ^ (w)) << 4)
#define ROW(a)                                                                                                    \
    {ENTRY(a, 0), ENTRY(a, 1), ENTRY(a, 2),  ENTRY(a, 3),  ENTRY(a, 4),  ENTRY(a, 5),  ENTRY(a, 6),  ENTRY(a, 7), \
     ENTRY(a, 8), ENTRY(a, 9), ENTRY(a, 10), ENTRY(a, 11), ENTRY(a, 12), ENTRY(a, 13), ENTRY(a, 14), ENTRY(a, 15)}
#define ROWS4(a) ROW(a), ROW(a + 1), ROW(a + 2), ROW(a + 3)
#define ROWS16(a) ROWS4(a), ROWS4(a + 4), ROWS4(a + 8), ROWS4(a + 12)
#define ROWS64(a) ROWS16(a), ROWS16(a + 16), ROWS16(a + 32), ROWS16(a + 48)
static const uint8_t TABLE[256][16] __attribute__((aligned(64))) = {ROWS64(0), ROWS64(64), ROWS64(128), ROWS64(192)};

/* The four fields of S and T, to counts of 16 channels each: Le and Lo of the first pixel, He and Ho of the second. */
typedef struct {
    vector first_even, first_odd, second_even, second_odd;
} Fields;

static inline Fields fields_of(vector S, vector T) {
    const vector low_byte = _mm256_set1_epi16(255);
    const vector Ho = _mm256_srli_epi16(T, 8);
    const vector Lo = _mm256_srli_epi16(_mm256_sub_epi16(S, _mm256_slli_epi16(Ho, 12)), 8);
    const vector He = _mm256_and_si256(_mm256_sub_epi16(T, _mm256_slli_epi16(Lo, 4)), low_byte);
    const vector Le = _mm256_and_si256(_mm256_sub_epi16(S, _mm256_slli_epi16(He, 4)), low_byte);
    return (Fields){Le, Lo, He, Ho};
}

static inline void put(uint16_t *counts, vector more, bool is_first) {
    if (!is_first) more = _mm256_add_epi16(more, _mm256_load_si256((const vector *)counts));
    _mm256_store_si256((vector *)counts, more);
}

/* 32 channels of a pair. */
static inline void put_fields(vector S, vector T, uint16_t *first, uint16_t *second, bool is_first) {
    const Fields fields = fields_of(S, T);
    put(first, fields.first_even, is_first);
    put(first + 16, fields.first_odd, is_first);
    put(second, fields.second_even, is_first);
    put(second + 16, fields.second_odd, is_first);
}

/* 16 channels of two pairs, one in each half of S and T. */
static inline void put_halves(vector S, vector T, uint16_t *counts, bool is_first) {
    const Fields fields = fields_of(S, T);
    put(counts, _mm256_permute2x128_si256(fields.first_even, fields.first_odd, 0x20), is_first);
    put(counts + 16, _mm256_permute2x128_si256(fields.second_even, fields.second_odd, 0x20), is_first);
    put(counts + 32, _mm256_permute2x128_si256(fields.first_even, fields.first_odd, 0x31), is_first);
    put(counts + 48, _mm256_permute2x128_si256(fields.second_even, fields.second_odd, 0x31), is_first);
}

/* The inner loops are in assembly: what the compiler makes of intrinsics here is a fifth slower, for moves between
   registers that are not needed. A loop looks up three nibbles (q = 0, 1, 2) in each round, and then the one or two that may
   be left of a run:
       ymm8 to ymm11   sums of three look-ups, of the four vectors of a tile
       ymm12, ymm13    rows of the table
       ymm14           nibbles of kernels
       ymm15           what was looked up
       k               counts up to 0, so pointers are to the ends of what they read */
/* clang-format off */
#define TABLE_ROW(x, q, row)                                                                                           \
    "movzwl 2*" #q "(%[" #x "],%[k],2), %k[r]\n"                                                                       \
    "vbroadcasti128 (%[table],%[r]), %%" #row "\n"
#define TABLE_ROWS(x, y, q, row) /* one in each half */                                                                \
    "movzwl 2*" #q "(%[" #x "],%[k],2), %k[r]\n"                                                                       \
    "vmovdqa (%[table],%[r]), %%x" #row "\n"                                                                           \
    "movzwl 2*" #q "(%[" #y "],%[k],2), %k[r]\n"                                                                       \
    "vinserti128 $1, (%[table],%[r]), %%y" #row ", %%y" #row "\n"
#define LOOK(nibbles, row, sum)                                                                                        \
    "vpshufb " nibbles ", %%" #row ", %%" #sum "\n"
#define LOOK_AND_ADD(nibbles, row, sum)                                                                                \
    "vpshufb " nibbles ", %%" #row ", %%ymm15\n"                                                                       \
    "vpaddb %%ymm15, %%" #sum ", %%" #sum "\n"
#define ADD_TO_S_AND_T(sum, i)                                                                                         \
    "vpaddb %%" #sum ", %[S" #i "], %[S" #i "]\n"                                                                      \
    "vpsrlw $4, %%" #sum ", %%" #sum "\n"                                                                              \
    "vpaddb %%" #sum ", %[T" #i "], %[T" #i "]\n"
#define ADD_ALL_TO_S_AND_T                                                                                             \
    ADD_TO_S_AND_T(ymm8, 0) ADD_TO_S_AND_T(ymm9, 1) ADD_TO_S_AND_T(ymm10, 2) ADD_TO_S_AND_T(ymm11, 3)
#define THREES(ROUND, bytes)                                                                                           \
    ".p2align 5\n1:\n"                                                                                                 \
    ROUND(LOOK, 0) ROUND(LOOK_AND_ADD, 1) ROUND(LOOK_AND_ADD, 2) ADD_ALL_TO_S_AND_T                                    \
    "add $3*" #bytes ", %[weights]\n"                                                                                  \
    "add $3, %[k]\n"                                                                                                   \
    "jnz 1b\n"
#define TWO(ROUND, bytes)                                                                                              \
    ROUND(LOOK, 0) ROUND(LOOK_AND_ADD, 1) ADD_ALL_TO_S_AND_T "add $2*" #bytes ", %[weights]\n"
#define ONE(ROUND, bytes)                                                                                              \
    ROUND(LOOK, 0) ADD_ALL_TO_S_AND_T "add $" #bytes ", %[weights]\n"
#define CHANGED                                                                                                        \
    [weights] "+&r"(weights), [k] "+&r"(k), [r] "=&r"(r),                                                                \
    [S0] "+x"(S[0]), [S1] "+x"(S[1]), [S2] "+x"(S[2]), [S3] "+x"(S[3]),                                                \
    [T0] "+x"(T[0]), [T1] "+x"(T[1]), [T2] "+x"(T[2]), [T3] "+x"(T[3])
#define CLOBBERED "memory", "cc", "ymm8", "ymm9", "ymm10", "ymm11", "ymm12", "ymm13", "ymm14", "ymm15"

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

#define ZEROS {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()}
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
#define IN_TABLE_AT [table] "r"(TABLE)
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
