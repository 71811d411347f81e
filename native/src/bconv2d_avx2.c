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
#include "bconv2d_avx2.h"

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
   registers that are not needed. A loop looks up three nibbles (q = 0, 1, 2) in each round:
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
#define LOOP(ROUND, bytes)                                                                                             \
    ".p2align 5\n1:\n"                                                                                                 \
    ROUND(LOOK, 0) ROUND(LOOK_AND_ADD, 1) ROUND(LOOK_AND_ADD, 2)                                                       \
    ADD_TO_S_AND_T(ymm8, 0) ADD_TO_S_AND_T(ymm9, 1) ADD_TO_S_AND_T(ymm10, 2) ADD_TO_S_AND_T(ymm11, 3)                  \
    "add $3*" #bytes ", %[weights]\n"                                                                                  \
    "add $3, %[k]\n"                                                                                                   \
    "jnz 1b\n"
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

/* Tiles: counts of `part` of the window for all pairs of a block, some pairs at a time, added to what was counted before.
   Weights are those of the part; counts are [pixel][channel]. */
typedef struct {
    const uint8_t *weights;
    const uint16_t *places;
    const size_t *offsets; /* [pair][run] */
    size_t n_pairs, runs;
    Part part;
    bool is_first;
    uint16_t *counts;
    const uint8_t *next_weights;
    size_t fetched_by_pair; /* bytes */
} Tiles;

/* While a tile is counted: what the next one reads, and a share of the next part's weights. */
static inline void fetch_ahead(const Tiles *tiles, size_t pair, size_t pairs_of_tile) {
    const char *share = (const char *)tiles->next_weights + pair * tiles->fetched_by_pair;
    for (size_t at = 0; at < tiles->fetched_by_pair; at += 64) _mm_prefetch(share + at, _MM_HINT_T0);
    for (size_t next = pair + pairs_of_tile; next < pair + 2 * pairs_of_tile && next < tiles->n_pairs; next++) {
        const uint16_t *places =
            tiles->places + tiles->offsets[next * tiles->runs + tiles->part.run] + tiles->part.first;
        _mm_prefetch((const char *)places, _MM_HINT_T0);
        _mm_prefetch((const char *)places + 64, _MM_HINT_T0);
    }
}

#define ZEROS {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()}
#define EACH_RUN                            \
    size_t u = tiles->part.run;             \
    u < tiles->part.run + tiles->part.runs; \
    u++
/* Behind the last nibble of a pair of the tile, in run u of the part. */
#define END(i) "r"(ends + tiles->offsets[(pair + (i)) * tiles->runs + u])

static void tiles_128(const Tiles *tiles) {
    for (size_t pair = 0; pair < tiles->n_pairs; pair++) {
        fetch_ahead(tiles, pair, 1);
        vector S[4] = ZEROS, T[4] = ZEROS;
        const uint8_t *weights = tiles->weights;
        const uint16_t *ends = tiles->places + tiles->part.first + tiles->part.nibbles;
        for (EACH_RUN) {
            intptr_t k = -(intptr_t)tiles->part.nibbles;
            uintptr_t r;
            __asm__ volatile(LOOP(ROUND_128, 128) : CHANGED : [table] "r"(TABLE), [x0] END(0) : CLOBBERED);
        }
        uint16_t *counts = tiles->counts + pair * 256;
        for (int i = 0; i < 4; i++) put_fields(S[i], T[i], counts + 32 * i, counts + 128 + 32 * i, tiles->is_first);
    }
}

static void tiles_64(const Tiles *tiles) {
    for (size_t pair = 0; pair < tiles->n_pairs; pair += 2) {
        fetch_ahead(tiles, pair, 2);
        vector S[4] = ZEROS, T[4] = ZEROS;
        const uint8_t *weights = tiles->weights;
        const uint16_t *ends = tiles->places + tiles->part.first + tiles->part.nibbles;
        for (EACH_RUN) {
            intptr_t k = -(intptr_t)tiles->part.nibbles;
            uintptr_t r;
            __asm__ volatile(LOOP(ROUND_64, 64) : CHANGED : [table] "r"(TABLE), [x0] END(0), [x1] END(1) : CLOBBERED);
        }
        for (int i = 0; i < 4; i++) {
            uint16_t *counts = tiles->counts + pair * 128 + i / 2 * 128 + i % 2 * 32;
            put_fields(S[i], T[i], counts, counts + 64, tiles->is_first);
        }
    }
}

static void tiles_32(const Tiles *tiles) {
    for (size_t pair = 0; pair < tiles->n_pairs; pair += 4) {
        vector S[4] = ZEROS, T[4] = ZEROS;
        const uint8_t *weights = tiles->weights;
        const uint16_t *ends = tiles->places + tiles->part.first + tiles->part.nibbles;
        for (EACH_RUN) {
            intptr_t k = -(intptr_t)tiles->part.nibbles;
            uintptr_t r;
            __asm__ volatile(LOOP(ROUND_32, 32)
                             : CHANGED
                             : [table] "r"(TABLE), [x0] END(0), [x1] END(1), [x2] END(2), [x3] END(3)
                             : CLOBBERED);
        }
        uint16_t *counts = tiles->counts + pair * 64;
        for (int i = 0; i < 4; i++) put_fields(S[i], T[i], counts + 64 * i, counts + 64 * i + 32, tiles->is_first);
    }
}

static void tiles_16(const Tiles *tiles) {
    for (size_t pair = 0; pair < tiles->n_pairs; pair += 8) {
        vector S[4] = ZEROS, T[4] = ZEROS;
        const uint8_t *weights = tiles->weights;
        const uint16_t *ends = tiles->places + tiles->part.first + tiles->part.nibbles;
        for (EACH_RUN) {
            intptr_t k = -(intptr_t)tiles->part.nibbles;
            uintptr_t r;
            __asm__ volatile(LOOP(ROUND_16, 16)
                             : CHANGED
                             : [table] "r"(TABLE), [x0] END(0), [x1] END(1), [x2] END(2), [x3] END(3), [x4] END(4),
                               [x5] END(5), [x6] END(6), [x7] END(7)
                             : CLOBBERED);
        }
        for (int i = 0; i < 4; i++) put_halves(S[i], T[i], tiles->counts + pair * 32 + 64 * i, tiles->is_first);
    }
}

enum { NEAR_BYTES = 1 << 14 }; /* of weights that stay in the first cache beside all else */

/* The widest tile that is not filled up with more than a quarter of nothing. */
int32_t block_width_avx2(int32_t channels) {
    return channels > 96 ? 128 : channels > 48 ? 64 : channels > 16 ? 32 : 16;
}

/* Where channel n of a tile is among its bytes: the even bytes of a vector are the first half of its channels. */
static size_t byte_of(int32_t n, int32_t width) {
    const int32_t lane = width < 32 ? 16 : 32, in_lane = n % lane;
    return (size_t)(n - in_lane + (in_lane < lane / 2 ? 2 * in_lane : 2 * in_lane - lane + 1));
}

/* Packed: weights, [block][nibble of the window][channel]. */
static size_t channels_packed(const Bconv2d *conv) {
    int32_t first = 0;
    while (first < conv->outputs) first += block_width_avx2(conv->outputs - first);
    return (size_t)first;
}

size_t packed_bytes_avx2(const Bconv2d *conv) {
    const Runs runs = runs_of(conv);
    return channels_packed(conv) * runs.count * runs.nibbles;
}

void pack_avx2(const Bconv2d *conv, const int8_t *signs, void *packed) {
    const Runs runs = runs_of(conv);
    const size_t taps = taps_of(conv), planes = (size_t)conv->planes, nibbles = runs.count * runs.nibbles;
    int32_t width;
    for (int32_t first = 0; first < conv->outputs; first += width) {
        width = block_width_avx2(conv->outputs - first);
        uint8_t *block = (uint8_t *)packed + (size_t)first * nibbles;
        for (int32_t n = 0; n < width && first + n < conv->outputs; n++)
            for (size_t plane = 0; plane < planes; plane++)
                for (size_t tap = 0; tap < taps; tap++) {
                    const bool is_one = signs[((size_t)(first + n) * planes + plane) * taps + tap] > 0;
                    const size_t nibble = tap * runs.pixel_nibbles + plane / 4;
                    block[nibble * (size_t)width + byte_of(n, width)] |= (uint8_t)(is_one << plane % 4);
                }
    }
}

void count_avx2(const Bconv2d *conv, const Block *block, uint16_t *counts) {
    const Runs runs = runs_of(conv);
    const size_t width = (size_t)block->width, all_nibbles = runs.count * runs.nibbles;
    const uint8_t *weights = (const uint8_t *)block->packed + (size_t)block->first_channel * all_nibbles;
    const size_t n_pairs = (block->pixels + 1) / 2;
    /* Large weights come from far: while wide tiles are counted, those of the next part are fetched, a share by each pair. */
    const bool are_far = all_nibbles * width > NEAR_BYTES;
    Tiles tiles = {.places = block->prepared,
                   .offsets = (const size_t *)block->common + block->first_pixel / 2 * runs.count,
                   .n_pairs = n_pairs,
                   .fetched_by_pair = are_far ? round_up(NIBBLES_OF_PART * width / n_pairs, 64) : 0,
                   .runs = runs.count,
                   .is_first = true,
                   .counts = counts};
    for (Part part = first_part(&runs); part.runs; part = next_part(&runs, part)) {
        const size_t bytes = part.runs * part.nibbles * width;
        tiles.weights = weights;
        tiles.part = part;
        weights += bytes;
        tiles.next_weights = weights;
        (width == 128 ? tiles_128 : width == 64 ? tiles_64 : width == 32 ? tiles_32 : tiles_16)(&tiles);
        tiles.is_first = false;
    }
}
