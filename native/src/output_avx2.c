/* What becomes of a layer's numbers, eight channels at a time. */
#include "output_avx2.h"

#include <string.h>

#include "avx2.h"
#include "levels.h"

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
    THRESHOLDS = 512,
    MAKES_LEVELS = 1024
};
typedef enum { COUNTS, SUMS_IN, FLOATS_IN } Source;

static unsigned parts_of(const Output *output, const Pixels *pixels) {
    return (output->scale ? AFFINE : 0) | (output->first_slope ? FIRST_SLOPE : 0) |
           (output->first_clamps ? FIRST_CLAMP : 0) | (pixels->residual ? RESIDUAL : 0) |
           (output->second_slope ? SECOND_SLOPE : 0) | (output->second_clamps ? SECOND_CLAMP : 0) |
           (pixels->float_numbers ? NUMBERS : 0) | (pixels->sum_numbers ? MAKES_SUMS : 0) |
           (pixels->bits ? MAKES_BITS : 0) | (output->thresholds ? THRESHOLDS : 0) |
           (pixels->levels ? MAKES_LEVELS : 0);
}

/* What the eight channels from one on need, in registers while pixels go by. */
typedef struct {
    floats scale, shift, first_slope, second_slope, threshold, flip;
} Channels;

INLINE floats load_if(bool is_there, const float *numbers, int32_t at) {
    return is_there ? _mm256_loadu_ps(numbers + at) : _mm256_setzero_ps();
}

INLINE Channels channels_from(const Output *o, int32_t c, unsigned parts) {
    return (Channels){load_if(parts & AFFINE, o->scale, c),
                      load_if(parts & AFFINE, o->shift, c),
                      load_if(parts & FIRST_SLOPE, o->first_slope, c),
                      load_if(parts & SECOND_SLOPE, o->second_slope, c),
                      load_if(parts & THRESHOLDS, o->thresholds, c),
                      load_if(parts & THRESHOLDS, (const float *)o->flips, c)};
}

INLINE floats activated(floats v, floats slope, float low, float high, bool has_slope, bool clamps) {
    if (has_slope) v = _mm256_blendv_ps(v, _mm256_mul_ps(v, slope), v); /* where the sign bit of v is set; -0 stays 0 */
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

INLINE __m256i sum_at(const Pixels *pixels, size_t row, int32_t n, Source source) {
    if (source != SUMS_IN) return _mm256_cvtps_epi32(number_at(pixels, row, n, source));
    return _mm256_loadu_si256((const __m256i *)(pixels->sums + row * pixels->stride + (size_t)n));
}

/* The levels of eight numbers as bytes. */
INLINE void put_levels(const Output *o, floats v, uint8_t *levels) {
    floats x = _mm256_mul_ps(v, _mm256_set1_ps(o->per_unit));
    x = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q)); /* NaN to 0 */
    x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps((float)o->low)), _mm256_set1_ps((float)o->high));
    const __m256i level =
        _mm256_sub_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(o->low)); /* halves to the even one */
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(level), _mm256_extracti128_si256(level, 1));
    _mm_storel_epi64((__m128i *)levels, _mm_packus_epi16(words, words));
}

/* Eight channels from n on, of some rows. */
INLINE void finish_channels(const Output *o, const Pixels *p, size_t first_row, size_t end_row, int32_t n,
                            Source source, unsigned parts) {
    const int32_t c = p->first_channel + n;
    const Channels of = channels_from(o, c, parts);
    const size_t channels = (size_t)o->channels, row_bytes = words_of(o->channels) * 8;
    for (size_t row = first_row; row < end_row; row++) {
        const size_t pixel = p->first + row, at = pixel * channels + (size_t)c;
        floats v = number_at(p, row, n, source);
        if (parts & MAKES_SUMS) _mm256_storeu_si256((__m256i *)(p->sum_numbers + at), sum_at(p, row, n, source));
        /* Rounded twice, as the reference and the rest of a row: bits must not depend on the kernels. */
        if (parts & AFFINE) v = _mm256_add_ps(_mm256_mul_ps(v, of.scale), of.shift);
        v = activated(v, of.first_slope, o->first_low, o->first_high, parts & FIRST_SLOPE, parts & FIRST_CLAMP);
        if (parts & RESIDUAL) v = _mm256_add_ps(v, _mm256_loadu_ps(p->residual + at));
        v = activated(v, of.second_slope, o->second_low, o->second_high, parts & SECOND_SLOPE, parts & SECOND_CLAMP);
        if (parts & NUMBERS) _mm256_storeu_ps(p->float_numbers + at, v);
        if (parts & MAKES_LEVELS) put_levels(o, v, p->levels + at);
        if (parts & MAKES_BITS) {
            if (parts & THRESHOLDS) v = _mm256_xor_ps(v, of.flip);
            p->bits[pixel * row_bytes + (size_t)c / 8] =
                (uint8_t)_mm256_movemask_ps(_mm256_cmp_ps(v, of.threshold, _CMP_GE_OQ));
        }
    }
}

/* What is left of the last word of bits is 0: the block with the last channels sees to it, and to no byte of others. There are
   at most 7 such bytes; a call of memset for each pixel would take longer than the rest of it. */
static void clear_what_is_left(const Output *output, const Pixels *pixels) {
    if (pixels->first_channel + pixels->channels < output->channels) return;
    const size_t all = words_of(output->channels) * 8, used = ((size_t)output->channels + 7) / 8, left = all - used;
    uint8_t *byte = pixels->bits + pixels->first * all + used;
    for (size_t row = 0; row < pixels->count; row++, byte += all) {
        if (left & 4) memset(byte, 0, 4);
        if (left & 2) memset(byte + (left & 4), 0, 2);
        if (left & 1) byte[left - 1] = 0;
    }
}

INLINE void finish(const Output *output, const Pixels *pixels, Source source, unsigned parts) {
    const Output o = *output; /* copies, which no store of a byte can change: the compiler keeps them in registers */
    const Pixels p = *pixels;
    const int32_t whole = p.channels / 8 * 8;
    if (parts & MAKES_BITS && o.channels % 64) clear_what_is_left(output, pixels);
    /* Numbers of a block are few enough for the first cache: what a channel needs is loaded once for all of them. Others come
       from farther away, and are best taken as they lie. */
    const bool is_near = source == COUNTS || p.channels < o.channels || p.count <= LEVEL_PIXELS;
    const size_t rows_at_a_time = is_near ? p.count : 1;
    for (size_t row = 0, end; row < p.count; row = end) {
        end = row + rows_at_a_time;
        for (int32_t n = 0; n < whole; n += 8) finish_channels(&o, &p, row, end, n, source, parts);
        if (whole < p.channels)
            for (size_t r = row; r < end; r++) finish_row_scalar(output, pixels, r, whole, p.channels);
    }
}

/* Signs of numbers that lie as their bits do, one after another; 32 at a time, of a multiple of 64. */
static void put_signs(const float *numbers, size_t count, uint8_t *bits) {
    const floats zero = _mm256_setzero_ps();
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packing works on halves of vectors */
    for (size_t i = 0; i < count; i += 32) {
        __m256i is_one[4];
        for (size_t k = 0; k < 4; k++)
            is_one[k] = _mm256_castps_si256(_mm256_cmp_ps(zero, _mm256_loadu_ps(numbers + i + 8 * k), _CMP_LE_OQ));
        const __m256i low = _mm256_packs_epi32(is_one[0], is_one[1]), high = _mm256_packs_epi32(is_one[2], is_one[3]);
        const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), in_order);
        const int32_t mask = _mm256_movemask_epi8(bytes);
        memcpy(bits + i / 8, &mask, sizeof mask);
    }
}

/* Levels of numbers that lie as they do. */
static void put_all_levels(const Output *output, const float *numbers, size_t count, uint8_t *levels) {
    const Output o = *output;
    size_t i = 0;
    for (; i + 8 <= count; i += 8) put_levels(&o, _mm256_loadu_ps(numbers + i), levels + i);
    for (; i < count; i++) levels[i] = level_of(&o, numbers[i]);
}

/* Outputs that nets are made of get loops of their own; others share one for each source. */
#define CASE(source, parts) \
    case parts: finish(output, pixels, source, parts); return;

static bool are_whole(const Output *output, const Pixels *pixels) {
    return pixels->stride == (size_t)output->channels && pixels->channels == output->channels;
}

void finish_avx2(const Output *output, const Pixels *pixels) {
    const unsigned parts = parts_of(output, pixels);
    if (pixels->sums) {
        switch (parts) {
            CASE(SUMS_IN, AFFINE | NUMBERS)
            CASE(SUMS_IN, AFFINE | FIRST_SLOPE | NUMBERS)
            CASE(SUMS_IN, AFFINE | FIRST_CLAMP | MAKES_LEVELS)
            CASE(SUMS_IN, AFFINE | FIRST_CLAMP | NUMBERS)
            CASE(SUMS_IN, AFFINE | RESIDUAL | NUMBERS)
            CASE(SUMS_IN, AFFINE | FIRST_SLOPE | RESIDUAL | NUMBERS)
            CASE(SUMS_IN, AFFINE | FIRST_SLOPE | RESIDUAL | NUMBERS | MAKES_LEVELS)
            CASE(SUMS_IN, MAKES_SUMS)
            default: finish(output, pixels, SUMS_IN, parts);
        }
    } else if (pixels->floats && parts == MAKES_BITS && are_whole(output, pixels) && output->channels % 64 == 0) {
        const size_t channels = pixels->stride;
        put_signs(pixels->floats, pixels->count * channels, pixels->bits + pixels->first * channels / 8);
    } else if (pixels->floats && parts == MAKES_LEVELS && are_whole(output, pixels)) {
        const size_t channels = pixels->stride;
        put_all_levels(output, pixels->floats, pixels->count * channels, pixels->levels + pixels->first * channels);
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
            CASE(FLOATS_IN, NUMBERS | MAKES_LEVELS)
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
