/* Windows, kernels and images as words for the AVX-512 kernel of 1-bit convolution. */
#include <immintrin.h>
#include <string.h>

#include "bconv2d_avx2.h"
#include "bconv2d_avx512.h"

enum { LANES = 8 };

Words words_in_window(const Bconv2d *conv) {
    const size_t rows = (size_t)conv->window.kernel[0], columns = (size_t)conv->window.kernel[1];
    const size_t planes = (size_t)conv->planes, width = (size_t)conv->padded.width;
    const size_t pixel = words_of(conv->planes), packed = (columns * planes + 63) / 64;
    if (planes < 64 && n_instructions(0, packed) < n_instructions(columns / 3, columns % 3)) {
        const size_t sheet = round_up(width, LANES);
        return (Words){PACKED, 1, packed, 0, rows * packed, 1, sheet, packed * sheet};
    }
    const size_t sheet = round_up(width * pixel, LANES);
    if (columns < 3) return (Words){SINGLES, pixel, 0, 0, rows * columns * pixel, 1, sheet, sheet};
    return (Words){TRIPLES, pixel, 0, rows * (columns / 3) * pixel, rows * (columns % 3) * pixel, 4, sheet, 4 * sheet};
}

size_t common_bytes_avx512(const Bconv2d *conv) {
    const Words words = words_in_window(conv);
    return sizeof(Common) + (words.triples + words.singles) * sizeof(size_t);
}

void put_common_avx512(const Bconv2d *conv, void *put) {
    Common *common = put;
    const Words words = common->words = words_in_window(conv);
    const onebit_window *window = &conv->window;
    size_t *triple = common->offsets, *single = triple + words.triples;
    for (size_t dy = 0; dy < (size_t)window->kernel[0]; dy++) {
        const size_t row = dy * (size_t)window->dilation[0] * words.line;
        if (words.way == PACKED)
            for (size_t i = 0; i < words.packed_words; i++) *single++ = row + i * words.sheet;
        else
            for (size_t dx = 0, columns = (size_t)window->kernel[1]; dx < columns;) {
                const bool is_triple = words.way == TRIPLES && dx + 3 <= columns;
                const size_t tap = dx * (size_t)window->dilation[1] * words.pixel_words;
                for (size_t i = 0; i < words.pixel_words; i++)
                    *(is_triple ? triple++ : single++) = row + (tap + i) * words.spread;
                dx += is_triple ? 3 : 1;
            }
    }
}

/* Packed: [group of 32 or 16 channels][vector][word][lane]; see count_tile for which channel is where. */
static size_t channels_packed(const Bconv2d *conv) {
    int32_t first = 0;
    while (first < conv->outputs) first += tile_width_avx2(conv->outputs - first);
    return (size_t)first;
}

size_t packed_bytes_avx512(const Bconv2d *conv) {
    const Words words = words_in_window(conv);
    return channels_packed(conv) * window_words(&words) * sizeof(uint64_t);
}

/* The bits of a tap of one kernel, planes from `first` on. */
static uint64_t word_of_signs(const Bconv2d *conv, const int8_t *signs, size_t tap, size_t first) {
    const size_t taps = taps_of(conv), planes = (size_t)conv->planes;
    uint64_t word = 0;
    for (size_t bit = 0; bit < 64 && first + bit < planes; bit++)
        word |= (uint64_t)(signs[(first + bit) * taps + tap] > 0) << bit;
    return word;
}

static void put_packed_row(const Bconv2d *conv, const int8_t *signs, size_t first_tap, uint64_t *to) {
    const size_t planes = (size_t)conv->planes, taps = taps_of(conv);
    for (size_t bit = 0; bit < (size_t)conv->window.kernel[1] * planes; bit++)
        if (signs[bit % planes * taps + first_tap + bit / planes] > 0) to[bit / 64 * LANES] |= UINT64_C(1) << bit % 64;
}

/* The words of one kernel, LANES apart. */
static void put_kernel(const Bconv2d *conv, const Words *words, const int8_t *signs, uint64_t *to) {
    const size_t columns = (size_t)conv->window.kernel[1], pixel_words = words->pixel_words;
    uint64_t *triple = to, *single = to + 4 * words->triples * LANES;
    for (size_t row = 0; row < taps_of(conv); row += columns) {
        if (words->way == PACKED) {
            put_packed_row(conv, signs, row, single);
            single += words->packed_words * LANES;
            continue;
        }
        for (size_t dx = 0; dx < columns;) {
            const bool is_triple = words->way == TRIPLES && dx + 3 <= columns;
            for (size_t i = 0; i < pixel_words; i++) {
                const uint64_t w1 = word_of_signs(conv, signs, row + dx, 64 * i);
                if (!is_triple) {
                    *single = w1;
                    single += LANES;
                    continue;
                }
                const uint64_t w2 = word_of_signs(conv, signs, row + dx + 1, 64 * i),
                               w3 = word_of_signs(conv, signs, row + dx + 2, 64 * i);
                triple[0 * LANES] = w1;
                triple[1 * LANES] = w1 ^ w2;
                triple[2 * LANES] = w1 ^ w3;
                triple[3 * LANES] = w1 ^ w2 ^ w3;
                triple += 4 * LANES;
            }
            dx += is_triple ? 3 : 1;
        }
    }
}

void pack_avx512(const Bconv2d *conv, const int8_t *signs, void *packed) {
    const Words words = words_in_window(conv);
    const size_t signs_of_kernel = (size_t)conv->planes * taps_of(conv);
    int32_t width;
    for (int32_t first = 0; first < conv->outputs; first += width) {
        width = tile_width_avx2(conv->outputs - first);
        const int32_t group = width < 32 ? 16 : 32, vectors = group / LANES;
        for (int32_t n = first; n < first + width && n < conv->outputs; n++) {
            const int32_t within = (n - first) % group;
            const size_t vector = (size_t)((n - within) / LANES + within % vectors);
            put_kernel(conv, &words, signs + (size_t)n * signs_of_kernel,
                       (uint64_t *)packed + vector * LANES * window_words(&words) + (size_t)(within / vectors));
        }
    }
}

/* Prepared: rows of the padded image, each made from the image alone, by way of a row that is no more than padded. */
static size_t padded_row_words(const Bconv2d *conv, const Words *words) {
    const size_t reach = (size_t)conv->window.dilation[1] * (size_t)(conv->window.kernel[1] - 1);
    return ((size_t)conv->padded.width + reach) * words->pixel_words + 2 * LANES;
}

size_t prepared_bytes_avx512(const Bconv2d *conv) {
    const Words words = words_in_window(conv);
    return (size_t)conv->padded.height * words.line * sizeof(uint64_t);
}

size_t row_bytes_avx512(const Bconv2d *conv) {
    const Words words = words_in_window(conv);
    return padded_row_words(conv, &words) * sizeof(uint64_t);
}

/* For each word what a triple needs that begins there, four words together: a1, a1 ^ a2, a1 ^ a3, a1 ^ a2 ^ a3. */
static void put_triples(const uint64_t *padded, size_t count, size_t tap_step, uint64_t *to) {
    const __m512i first_halves = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  second_halves = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (size_t i = 0; i < count; i += LANES, to += 4 * LANES) {
        const __m512i a1 = _mm512_loadu_si512(padded + i), a2 = _mm512_loadu_si512(padded + i + tap_step),
                      a3 = _mm512_loadu_si512(padded + i + 2 * tap_step);
        const __m512i a12 = _mm512_xor_si512(a1, a2), a13 = _mm512_xor_si512(a1, a3), a123 = _mm512_xor_si512(a12, a3);
        /* Pairs (a1, a12) and (a13, a123) of words 0, 2, 4, 6, and of 1, 3, 5, 7; then all four of 0 and 2, and so on. */
        const __m512i even = _mm512_unpacklo_epi64(a1, a12), even_rest = _mm512_unpacklo_epi64(a13, a123),
                      odd = _mm512_unpackhi_epi64(a1, a12), odd_rest = _mm512_unpackhi_epi64(a13, a123);
        const __m512i of_0_2 = _mm512_permutex2var_epi64(even, first_halves, even_rest),
                      of_1_3 = _mm512_permutex2var_epi64(odd, first_halves, odd_rest),
                      of_4_6 = _mm512_permutex2var_epi64(even, second_halves, even_rest),
                      of_5_7 = _mm512_permutex2var_epi64(odd, second_halves, odd_rest);
        enum { FIRST_HALVES = 0x44, SECOND_HALVES = 0xEE };
        _mm512_storeu_si512(to, _mm512_shuffle_i64x2(of_0_2, of_1_3, FIRST_HALVES));
        _mm512_storeu_si512(to + LANES, _mm512_shuffle_i64x2(of_0_2, of_1_3, SECOND_HALVES));
        _mm512_storeu_si512(to + 2 * LANES, _mm512_shuffle_i64x2(of_4_6, of_5_7, FIRST_HALVES));
        _mm512_storeu_si512(to + 3 * LANES, _mm512_shuffle_i64x2(of_4_6, of_5_7, SECOND_HALVES));
    }
}

/* For each pixel the bits of the row of taps that begins there, as `packed_words` sheets of one word a pixel. */
static void put_packed(const Bconv2d *conv, const Words *words, const uint64_t *padded, uint64_t *to) {
    const size_t planes = (size_t)conv->planes, tap_step = (size_t)conv->window.dilation[1];
    for (size_t sheet = 0; sheet < words->packed_words; sheet++, to += words->sheet) {
        const size_t first_bit = 64 * sheet, last_bit = first_bit + 63, last_tap = (size_t)conv->window.kernel[1] - 1;
        const size_t first = first_bit / planes, last = last_bit / planes < last_tap ? last_bit / planes : last_tap;
        for (size_t x = 0; x < words->sheet; x += LANES) {
            __m512i made = _mm512_setzero_si512();
            for (size_t tap = first; tap <= last; tap++) {
                const __m512i bits = _mm512_loadu_si512(padded + x + tap * tap_step);
                const size_t bit = tap * planes; /* a tap may begin in the word before */
                made = _mm512_or_si512(made, bit >= first_bit ? _mm512_slli_epi64(bits, (unsigned)(bit - first_bit))
                                                              : _mm512_srli_epi64(bits, (unsigned)(first_bit - bit)));
            }
            _mm512_storeu_si512(to + x, made);
        }
    }
}

void prepare_avx512(const Bconv2d *conv, const uint64_t *bits, int32_t first, int32_t end, void *prepared, void *row) {
    const Words words = words_in_window(conv);
    const int32_t left = conv->window.padding[2], room = conv->padded.width - left;
    const size_t pixel = words.pixel_words, inside = (size_t)(room < conv->width ? room : conv->width);
    uint64_t *line = (uint64_t *)prepared + (size_t)first * words.line, *padded = row;
    memset(padded, 0, padded_row_words(conv, &words) * sizeof *padded); /* what is beside the image stays 0 */
    for (int32_t y = first; y < end; y++, line += words.line) {
        const int32_t inner = y - conv->window.padding[0];
        if (inner < 0 || inner >= conv->height || room <= 0) {
            memset(line, 0, words.line * sizeof *line);
            continue;
        }
        memcpy(padded + (size_t)left * pixel, bits + (size_t)inner * (size_t)conv->width * pixel,
               inside * pixel * sizeof *padded);
        if (words.way == TRIPLES)
            put_triples(padded, words.sheet, (size_t)conv->window.dilation[1] * pixel, line);
        else if (words.way == PACKED)
            put_packed(conv, &words, padded, line);
        else
            memcpy(line, padded, words.sheet * sizeof *line);
    }
}
