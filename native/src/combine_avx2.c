/* From counts of classes to those of J outputs. classes.h has the equation; of 16-bit words it holds modulo 2^16, so
       count of output j  =  bits that j flips + sum over c of (+cnt_c, or -cnt_c where j flips c). */
#include <string.h>

#include "avx2.h"
#include "shared_avx2.h"

typedef __m256i vector;

static const uint16_t NOTHING[16] __attribute__((aligned(32))) = {0};

/* With 2 to 4 projections there are 8 classes at most, by what is flipped in projections 1 (1), 2 (2) and 3 (4). One that has
   no taps counts nothing. */
typedef struct {
    const uint16_t *counts[8];
    size_t is_there[8]; /* all bits or none */
    vector flipped[4];  /* of each projection */
} Slots;

INLINE vector slot_at(const Slots *slots, int which, size_t at) {
    return _mm256_load_si256((const vector *)(slots->counts[which] + (at & slots->is_there[which])));
}

/* With z_abc, a = 1 where projection 3 flips, b projection 2, c projection 1:
       x_bc = z_0bc + z_1bc, y_bc = z_0bc - z_1bc,  u_c = x_0c + x_1c, v_c = x_0c - x_1c
       sums: 0 = u_0 + u_1, 1 = u_0 - u_1, 2 = v_0 + v_1, 3 = y_00 + y_01 + y_10 + y_11 */
INLINE void sum_slots(const Slots *slots, size_t at, int J, vector sums[4]) {
    vector x[4], u[2], v[2];
    sums[3] = slots->flipped[3];
    const int slots_of_half = J > 2 ? 4 : 2;
#pragma GCC unroll 4
    for (int i = 0; i < slots_of_half; i++) {
        x[i] = slot_at(slots, i, at);
        if (J < 4) continue;
        const vector flips = slot_at(slots, i + 4, at);
        sums[3] = _mm256_add_epi16(sums[3], _mm256_sub_epi16(x[i], flips));
        x[i] = _mm256_add_epi16(x[i], flips);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        u[i] = J > 2 ? _mm256_add_epi16(x[i], x[i + 2]) : x[i];
        v[i] = J > 2 ? _mm256_sub_epi16(x[i], x[i + 2]) : x[i];
    }
    sums[0] = _mm256_add_epi16(u[0], u[1]);
    sums[1] = _mm256_add_epi16(_mm256_sub_epi16(u[0], u[1]), slots->flipped[1]);
    sums[2] = _mm256_add_epi16(_mm256_add_epi16(v[0], v[1]), slots->flipped[2]);
}

/* With more projections, four of them at a time, from j on (of J - j, if they are fewer): class by class. */
typedef struct {
    vector signs[MOST_CLASSES][4]; /* -1 where a projection flips a class, else 1 */
    vector flipped[4];
} Signs;

static void put_signs(const Classes *classes, int32_t j, Signs *made) {
    for (int32_t i = 0; i < 4; i++) {
        const bool is_one = j + i < classes->projections;
        made->flipped[i] = _mm256_set1_epi16(is_one ? (short)classes->flipped[j + i] : 0);
        for (size_t c = 0; c < classes->count; c++)
            made->signs[c][i] = _mm256_set1_epi16(is_one && classes->flips[c] >> (j + i) & 1 ? -1 : 1);
    }
}

INLINE void sum_any(const Signs *signs, size_t classes, const uint16_t *of_classes, size_t step, vector sums[4]) {
    for (int i = 0; i < 4; i++) sums[i] = signs->flipped[i];
    for (size_t c = 0; c < classes; c++) {
        const vector count = _mm256_load_si256((const vector *)(of_classes + c * step));
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sums[i] = _mm256_add_epi16(sums[i], _mm256_sign_epi16(count, signs->signs[c][i]));
    }
}

/* The first `count` projections (1 to 4) of four kernels, which are in the quarters of a vector. */
INLINE void put_quarters(vector four, size_t J, int count, uint16_t *counts) {
    const __m128i halves[2] = {_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, counts += J) {
        const uint64_t quarter =
            (uint64_t)(i % 2 ? _mm_extract_epi64(halves[i / 2], 1) : _mm_cvtsi128_si64(halves[i / 2]));
        const uint32_t half = (uint32_t)quarter;
        const uint16_t third = (uint16_t)(quarter >> 32), first = (uint16_t)quarter;
        if (count == 4) memcpy(counts, &quarter, 8);
        if (count == 3 || count == 2) memcpy(counts, &half, 4);
        if (count == 3) memcpy(counts + 2, &third, 2);
        if (count == 1) memcpy(counts, &first, 2);
    }
}

/* Three projections of 16 kernels: in each half, 8 x 3 counts become three eights. Count n of them is number n / 3 of
   projection n % 3. */
INLINE void interleave_3(const vector sums[4], uint16_t *counts) {
#pragma GCC unroll 3
    for (int eight = 0; eight < 3; eight++) {
        vector made = _mm256_setzero_si256();
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++) {
            char from[16];
#pragma GCC unroll 16
            for (int byte = 0; byte < 16; byte++) {
                const int n = 8 * eight + byte / 2;
                from[byte] = (char)(n % 3 == j ? 2 * (n / 3) + byte % 2 : -1); /* -1 looks up 0 */
            }
            const vector places = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)from));
            made = _mm256_or_si256(made, _mm256_shuffle_epi8(sums[j], places));
        }
        _mm_store_si128((__m128i *)(counts + 8 * eight), _mm256_castsi256_si128(made));
        _mm_store_si128((__m128i *)(counts + 24 + 8 * eight), _mm256_extracti128_si256(made, 1));
    }
}

/* Up to four projections of 16 kernels, side by side: kernel after kernel, J counts from one to the next. */
INLINE void interleave(const vector sums[4], size_t J, int count, uint16_t *counts) {
    if (J == 3) {
        interleave_3(sums, counts);
        return;
    }
    const vector low = _mm256_unpacklo_epi16(sums[0], sums[1]), high = _mm256_unpackhi_epi16(sums[0], sums[1]);
    if (J == 2) {
        _mm256_store_si256((vector *)counts, low);
        _mm256_store_si256((vector *)(counts + 16), high);
        return;
    }
    const vector more_low = _mm256_unpacklo_epi16(sums[2], sums[3]),
                 more_high = _mm256_unpackhi_epi16(sums[2], sums[3]);
    const vector fours[4] = {_mm256_unpacklo_epi32(low, more_low), _mm256_unpackhi_epi32(low, more_low),
                             _mm256_unpacklo_epi32(high, more_high), _mm256_unpackhi_epi32(high, more_high)};
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        if (J == 4)
            _mm256_store_si256((vector *)(counts + 16 * i), fours[i]);
        else
            put_quarters(fours[i], J, count, counts + 4 * i * J);
    }
}

INLINE void combine_slots(const Slots *slots, size_t numbers, int J, uint16_t *counts) {
    const Slots here = *slots;
    for (size_t at = 0; at < numbers; at += 16) {
        vector sums[4];
        sum_slots(&here, at, J, sums);
        interleave(sums, (size_t)J, J, counts + at * (size_t)J);
    }
}

static Slots slots_of(const Bconv2d *conv, const uint16_t *of_classes, size_t step) {
    const Classes *classes = conv->shared;
    Slots slots;
    for (int i = 0; i < 8; i++) slots.counts[i] = NOTHING, slots.is_there[i] = 0;
    for (size_t c = 0; c < classes->count; c++) {
        slots.counts[classes->flips[c] >> 1] = of_classes + c * step;
        slots.is_there[classes->flips[c] >> 1] = ~(size_t)0;
    }
    for (int32_t j = 0; j < 4; j++) slots.flipped[j] = _mm256_set1_epi16((short)classes->flipped[j]);
    return slots;
}

/* Of 8 vectors of two halves with 8 words each, word w of vector i becomes word i of vector w, in both halves. */
INLINE void exchange(vector v[8]) {
    vector made[8];
#pragma GCC unroll 3
    for (int round = 0; round < 3; round++) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            made[2 * i] = _mm256_unpacklo_epi16(v[i], v[i + 4]);
            made[2 * i + 1] = _mm256_unpackhi_epi16(v[i], v[i + 4]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) v[i] = made[i];
    }
}

/* Eight outputs of the even pixels, or the odd ones (half: 0, 1), to where they belong. */
INLINE void put_eight(vector v[8], size_t half, size_t outputs, uint16_t *counts) {
    exchange(v);
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) {
        uint16_t *pixel = counts + (2 * i + half) * outputs;
        _mm_store_si128((__m128i *)pixel, _mm256_castsi256_si128(v[i]));
        _mm_store_si128((__m128i *)(pixel + 16 * outputs), _mm256_extracti128_si256(v[i], 1));
    }
}

/* J = 2 or 4: eight outputs are those of 8 / J kernels. */
INLINE void combine_eights(const Slots *slots, size_t kernels, size_t outputs, int J, uint16_t *counts) {
    const Slots here = *slots;
    const int at_a_time = 8 / J;
    for (size_t o = 0; o < kernels; o += (size_t)at_a_time, counts += 8)
        for (size_t half = 0; half < 2; half++) {
            vector v[8];
#pragma GCC unroll 4
            for (int i = 0; i < at_a_time; i++) {
                vector sums[4];
                sum_slots(&here, (o + (size_t)i) * BLOCK_PIXELS + 16 * half, J, sums);
#pragma GCC unroll 4
                for (int j = 0; j < J; j++) v[i * J + j] = sums[j];
            }
            put_eight(v, half, outputs, counts);
        }
}

/* Up to four projections of 16 pixels of a kernel, from j on, to rows [output][pixel]; at: [kernel][pixel]. */
INLINE void put_sums(const vector sums[4], int32_t J, int32_t j, size_t at, uint16_t *rows) {
    uint16_t *row = rows + (at / BLOCK_PIXELS * (size_t)J + (size_t)j) * BLOCK_PIXELS + at % BLOCK_PIXELS;
    for (int32_t i = 0; i < 4 && j + i < J; i++) _mm256_store_si256((vector *)(row + i * BLOCK_PIXELS), sums[i]);
}

/* Any J: all outputs first, then by eights. */
static void combine_rows(const Bconv2d *conv, const uint16_t *of_classes, size_t width, size_t kernels,
                         uint16_t *counts) {
    uint16_t rows[MAX_BLOCK_WIDTH * BLOCK_PIXELS] __attribute__((aligned(64)));
    const Classes *classes = conv->shared;
    const int32_t J = classes->projections;
    const size_t step = BLOCK_PIXELS * width, numbers = BLOCK_PIXELS * kernels;
    vector sums[4];
    if (J == 3) {
        const Slots slots = slots_of(conv, of_classes, step);
        for (size_t at = 0; at < numbers; at += 16) {
            sum_slots(&slots, at, 3, sums);
            put_sums(sums, 3, 0, at, rows);
        }
    }
    for (int32_t j = 0; J > 4 && j < J; j += 4) {
        Signs signs;
        put_signs(classes, j, &signs);
        for (size_t at = 0; at < numbers; at += 16) {
            sum_any(&signs, classes->count, of_classes + at, step, sums);
            put_sums(sums, J, j, at, rows);
        }
    }
    for (size_t n = 0; n < kernels * (size_t)J; n += 8)
        for (size_t half = 0; half < 2; half++) {
            vector v[8];
#pragma GCC unroll 8
            for (size_t i = 0; i < 8; i++)
                v[i] = _mm256_load_si256((const vector *)(rows + (n + i) * BLOCK_PIXELS + 16 * half));
            put_eight(v, half, width * (size_t)J, counts + n);
        }
}

void combine_columns_avx2(const Bconv2d *conv, const uint16_t *of_classes, size_t width, size_t kernels,
                          uint16_t *counts) {
    const int32_t J = conv->shared->projections;
    if (J == 2 || J == 4) {
        const Slots slots = slots_of(conv, of_classes, BLOCK_PIXELS * width);
        if (J == 2) combine_eights(&slots, kernels, 2 * width, 2, counts);
        if (J == 4) combine_eights(&slots, kernels, 4 * width, 4, counts);
    } else {
        combine_rows(conv, of_classes, width, kernels, counts);
    }
}

void combine_avx2(const Bconv2d *conv, const uint16_t *of_classes, size_t width, size_t pixels, uint16_t *counts) {
    const size_t step = BLOCK_PIXELS * width, numbers = pixels * width;
    const int32_t J = conv->shared->projections;
    if (J <= 4) {
        const Slots slots = slots_of(conv, of_classes, step);
        if (J == 2) combine_slots(&slots, numbers, 2, counts);
        if (J == 3) combine_slots(&slots, numbers, 3, counts);
        if (J == 4) combine_slots(&slots, numbers, 4, counts);
        return;
    }
    for (int32_t j = 0; j < J; j += 4) {
        Signs signs;
        put_signs(conv->shared, j, &signs);
        for (size_t at = 0; at < numbers; at += 16) {
            vector sums[4];
            uint16_t *to = counts + at * (size_t)J + j;
            sum_any(&signs, conv->shared->count, of_classes + at, step, sums);
            if (J - j >= 4) interleave(sums, (size_t)J, 4, to);
            if (J - j == 3) interleave(sums, (size_t)J, 3, to);
            if (J - j == 2) interleave(sums, (size_t)J, 2, to);
            if (J - j == 1) interleave(sums, (size_t)J, 1, to);
        }
    }
}
