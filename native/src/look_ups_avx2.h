/* 1-bit convolution with AVX2: four places of two pixels and 32 channels in one look-up.

   A byte holds four neighbouring bits (a nibble) of two pixels, a pair. It picks a row of a table whose entry w is the number
   of bits in which w differs from the first nibble, plus 16 times that for the second. The nibbles of 32 kernels are the
   places of a vpshufb in that row: it gives the counts of 32 channels x 2 pixels x 4 bits. (Or, where kernels are few, the other way
   round: rows for the nibbles of two kernels, and 32 pixels as places.)

   Three such bytes can be added before a field of 4 bits is full (3 * 4 < 16). Their sum s is then added to S, and s >> 4 (a
   shift of 16-bit words) to T, both modulo 256. Of two neighbouring bytes, e and o, whose low and high fields sum up to
   Le, He, Lo, Ho, that leaves
       Se = Le + 16 He,  So = Lo + 16 Ho,  Te = He + 16 Lo,  To = Ho     (modulo 256)
   from which all four come back, as long as each is below 256: that is for 63 nibbles (63 * 4 = 252). Then they are added to
   counts of 16 bits. */
#ifndef ONEBIT_LOOK_UPS_AVX2_H
#define ONEBIT_LOOK_UPS_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

typedef __m256i vector;

/* The table: [first nibble | second nibble << 4][w]. */
extern const uint8_t ROWS_OF_PAIRS[256][16];

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

/* The inner loops are in assembly: what the compiler makes of intrinsics here is a fifth slower, for moves between
   registers that are not needed. A loop looks up three nibbles (q = 0, 1, 2) in each round, and then the one or two that may
   be left of a run:
       ymm8 to ymm11   sums of three look-ups, of the four vectors of a tile
       ymm12, ymm13    rows of the table
       ymm14           nibbles of kernels
       ymm15           what was looked up
       k               counts up to 0, so pointers are to the ends of what they read */
/* clang-format off */
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

/* clang-format on */
#define ZEROS {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()}
#endif
