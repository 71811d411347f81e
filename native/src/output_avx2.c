/* What becomes of a layer's numbers, eight channels at a time. */
#include "output_avx2.h"

#include <immintrin.h>
#include <string.h>

typedef __m256 floats;

/* Which parts an output has. With these known to the compiler, a loop holds no test of what is not there. */
enum {
    AFFINE = 1,
    FIRST_SLOPE = 2,
    FIRST_CLAMP = 4,
    RESIDUAL = 8,
    SECOND_SLOPE = 16,
    SECOND_CLAMP = 32,
    NUMBERS = 64,
    MAKES_SUMS = 128,
    MAKES_BITS = 256,
    THRESHOLDS = 512
};
typedef enum { COUNTS, SUMS_IN, FLOATS_IN } Source;

static unsigned parts_of(const Output *output, const Pixels *pixels) {
    return (output->scale ? AFFINE : 0) | (output->first_slope ? FIRST_SLOPE : 0) |
           (output->first_clamps ? FIRST_CLAMP : 0) | (pixels->residual ? RESIDUAL : 0) |
           (output->second_slope ? SECOND_SLOPE : 0) | (output->second_clamps ? SECOND_CLAMP : 0) |
           (pixels->float_numbers ? NUMBERS : 0) | (pixels->sum_numbers ? MAKES_SUMS : 0) |
           (pixels->bits ? MAKES_BITS : 0) | (output->thresholds ? THRESHOLDS : 0);
}

#define INLINE static inline __attribute__((always_inline))

INLINE floats activated(floats v, const float *slopes, int32_t channel, float low, float high, bool has_slope,
                        bool clamps) {
    if (has_slope) {
        const floats below = _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_LT_OQ);
        v = _mm256_blendv_ps(v, _mm256_mul_ps(v, _mm256_loadu_ps(slopes + channel)), below);
    }
    if (clamps) /* min and max take their second operand if one is NaN: NaN stays */
        v = _mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), v));
    return v;
}

INLINE floats number_at(const Pixels *pixels, size_t row, int32_t n, Source source) {
    const size_t at = row * pixels->stride + (size_t)n;
    if (source == FLOATS_IN) return _mm256_loadu_ps(pixels->floats + at);
    if (source == SUMS_IN) return _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(pixels->sums + at)));
    const __m256i counts = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(pixels->counts + at)));
    /* Whole numbers below 2^24: exact. */
    return _mm256_fnmadd_ps(_mm256_set1_ps(2), _mm256_cvtepi32_ps(counts), _mm256_loadu_ps(pixels->offsets[row] + n));
}

INLINE void finish(const Output *output, const Pixels *pixels, Source source, unsigned parts) {
    const Output o = *output; /* copies, which no store of a byte can change: the compiler keeps them in registers */
    const Pixels p = *pixels;
    const size_t row_bytes = words_of(o.channels) * 8, last_word = row_bytes - 8;
    const int32_t whole = p.channels / 8 * 8, first_byte = p.first_channel / 8;
    /* What is left of the last word of bits is 0: the block in which it begins sees to it. */
    const bool clears =
        last_word * 8 >= (size_t)p.first_channel && last_word * 8 < (size_t)(p.first_channel + p.channels);
    for (size_t row = 0; row < p.count; row++) {
        const size_t pixel = p.first + row, at = pixel * (size_t)o.channels + (size_t)p.first_channel;
        uint8_t *bits = parts & MAKES_BITS ? p.bits + pixel * row_bytes : NULL;
        if (bits && clears) memset(bits + last_word, 0, 8);
        for (int32_t n = 0; n < whole; n += 8) {
            const int32_t c = p.first_channel + n;
            floats v = number_at(&p, row, n, source);
            if (parts & MAKES_SUMS) {
                const __m256i sums = source == SUMS_IN
                                         ? _mm256_loadu_si256((const __m256i *)(p.sums + row * p.stride + n))
                                         : _mm256_cvtps_epi32(v);
                _mm256_storeu_si256((__m256i *)(p.sum_numbers + at + n), sums);
            }
            if (parts & AFFINE) v = _mm256_fmadd_ps(v, _mm256_loadu_ps(o.scale + c), _mm256_loadu_ps(o.shift + c));
            v = activated(v, o.first_slope, c, o.first_low, o.first_high, parts & FIRST_SLOPE, parts & FIRST_CLAMP);
            if (parts & RESIDUAL) v = _mm256_add_ps(v, _mm256_loadu_ps(p.residual + at + n));
            v = activated(v, o.second_slope, c, o.second_low, o.second_high, parts & SECOND_SLOPE,
                          parts & SECOND_CLAMP);
            if (parts & NUMBERS) _mm256_storeu_ps(p.float_numbers + at + n, v);
            if (parts & MAKES_BITS) {
                floats threshold = _mm256_setzero_ps();
                if (parts & THRESHOLDS) {
                    v = _mm256_xor_ps(v, _mm256_loadu_ps((const float *)(o.flips + c)));
                    threshold = _mm256_loadu_ps(o.thresholds + c);
                }
                bits[first_byte + n / 8] = (uint8_t)_mm256_movemask_ps(_mm256_cmp_ps(v, threshold, _CMP_GE_OQ));
            }
        }
        if (whole < p.channels) finish_row_scalar(output, pixels, row, whole, p.channels);
    }
}

/* Outputs that nets are made of get loops of their own; others share one for each source. */
#define CASE(source, parts) \
    case parts: finish(output, pixels, source, parts); return;

void finish_avx2(const Output *output, const Pixels *pixels) {
    const unsigned parts = parts_of(output, pixels);
    if (pixels->sums) {
        finish(output, pixels, SUMS_IN, parts);
    } else if (pixels->floats) {
        switch (parts) {
            CASE(FLOATS_IN, NUMBERS)
            CASE(FLOATS_IN, AFFINE | NUMBERS)
            CASE(FLOATS_IN, AFFINE | FIRST_CLAMP | NUMBERS)
            CASE(FLOATS_IN, AFFINE | FIRST_SLOPE | NUMBERS)
            CASE(FLOATS_IN, AFFINE | NUMBERS | MAKES_BITS)
            CASE(FLOATS_IN, AFFINE | RESIDUAL | NUMBERS)
            CASE(FLOATS_IN, AFFINE | FIRST_SLOPE | RESIDUAL | NUMBERS)
            CASE(FLOATS_IN, RESIDUAL | NUMBERS)
            CASE(FLOATS_IN, MAKES_BITS)
            CASE(FLOATS_IN, MAKES_BITS | THRESHOLDS)
            default: finish(output, pixels, FLOATS_IN, parts);
        }
    } else {
        switch (parts) {
            CASE(COUNTS, AFFINE | NUMBERS)
            CASE(COUNTS, AFFINE | FIRST_SLOPE | NUMBERS)
            CASE(COUNTS, AFFINE | RESIDUAL | NUMBERS)
            CASE(COUNTS, AFFINE | RESIDUAL | NUMBERS | MAKES_BITS | THRESHOLDS)
            CASE(COUNTS, AFFINE | FIRST_SLOPE | RESIDUAL | NUMBERS)
            CASE(COUNTS, AFFINE | FIRST_SLOPE | RESIDUAL | NUMBERS | MAKES_BITS)
            CASE(COUNTS, AFFINE | FIRST_SLOPE | RESIDUAL | NUMBERS | MAKES_BITS | THRESHOLDS)
            CASE(COUNTS, MAKES_BITS | THRESHOLDS)
            CASE(COUNTS, MAKES_SUMS)
            default: finish(output, pixels, COUNTS, parts);
        }
    }
}
