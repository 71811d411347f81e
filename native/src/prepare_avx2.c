/* An image's bits, laid out for the AVX2 kernel of 1-bit convolution: pairs of nibbles, as places in its table. */
#include <immintrin.h>
#include <string.h>

#include "bconv2d_avx2.h"

enum { SLACK = 16 }; /* places: a word's are written at once, also where a pixel has fewer */

typedef struct {
    const Bconv2d *conv;
    const uint64_t *bits;
    size_t words;
} Image;

/* The words of a pixel of the padded image; null outside of the image itself. */
static const uint64_t *pixel_at(const Image *image, int32_t y, int32_t x) {
    y -= image->conv->window.padding[0];
    x -= image->conv->window.padding[2];
    if (y < 0 || x < 0 || y >= image->conv->height || x >= image->conv->width) return NULL;
    return image->bits + ((size_t)y * (size_t)image->conv->width + (size_t)x) * image->words;
}

/* The 16 nibbles of a word, a byte each. */
static inline __m128i nibbles_of(uint64_t word) {
    const __m128i low = _mm_set1_epi8(15), both = _mm_cvtsi64_si128((long long)word);
    return _mm_unpacklo_epi8(_mm_and_si128(both, low), _mm_and_si128(_mm_srli_epi16(both, 4), low));
}

/* The places in the table, in bytes, of 16 pairs of nibbles. */
static inline void put_pairs(__m128i first, __m128i second, uint16_t *places) {
    const __m128i pairs = _mm_or_si128(first, _mm_slli_epi16(second, 4));
    _mm256_storeu_si256((__m256i *)places, _mm256_slli_epi16(_mm256_cvtepu8_epi16(pairs), 4));
}

/* Of the nibbles of two pixels; the next pixel's overwrite what is too much of the last word. */
static inline void put_pixels(const uint64_t *first, const uint64_t *second, size_t words, uint16_t *places) {
    for (size_t i = 0; i < words; i++)
        put_pairs(nibbles_of(first ? first[i] : 0), nibbles_of(second ? second[i] : 0), places + 16 * i);
}

/* Two pixels of the output, one after the other: row and column of each. */
typedef struct {
    int32_t first[2], second[2];
    bool is_gathered;
} Pair;

static size_t n_pixels_of(const Bconv2d *conv) { return (size_t)conv->out_height * (size_t)conv->out_width; }
static size_t n_pairs_of(const Bconv2d *conv) { return (n_pixels_of(conv) + 1) / 2; }

/* Runs of a pair are gathered if those of all are, or if it is the last pixel of a row and the first of the next. The
   last pixel of all may be alone: what is to its right is counted in vain. */
static Pair pair_at(const Bconv2d *conv, const Runs *runs, size_t index) {
    const size_t width = (size_t)conv->out_width, pixel = 2 * index;
    const int32_t row = (int32_t)(pixel / width), column = (int32_t)(pixel % width);
    if (column + 1 < conv->out_width || pixel + 1 == n_pixels_of(conv))
        return (Pair){{row, column}, {row, column + 1}, runs->gathers};
    return (Pair){{row, column}, {row + 1, 0}, true};
}

enum { BLOCK_PAIRS = BLOCK_PIXELS / 2 };

/* How many windows are kept at a time. */
static size_t n_gathered(const Bconv2d *conv, const Runs *runs) {
    return runs->gathers ? BLOCK_PAIRS : (size_t)(conv->out_width % 2 * (conv->out_height / 2));
}

static size_t row_places(const Bconv2d *conv, const Runs *runs) {
    return (size_t)conv->padded.width * runs->pixel_nibbles;
}

/* Places of the padded image: of each pixel and the one that is a stride to its right. */
static size_t image_places(const Bconv2d *conv, const Runs *runs) {
    return runs->gathers ? 0 : (size_t)conv->padded.height * row_places(conv, runs);
}

/* Places of a gathered window, and what its last word may write behind it: other threads gather others. */
static size_t window_places(const Runs *runs) { return runs->count * runs->nibbles + SLACK; }

static size_t gathered_places(const Bconv2d *conv, const Runs *runs) {
    return n_gathered(conv, runs) * window_places(runs);
}

static size_t row_nibbles(const Bconv2d *conv, const Runs *runs) {
    return (size_t)(conv->padded.width + conv->window.stride[1]) * runs->pixel_nibbles + 2 * SLACK;
}

size_t pairs_bytes_avx2(const Bconv2d *conv) {
    const Runs runs = runs_of(conv);
    return runs.gathers ? 0 : (image_places(conv, &runs) + gathered_places(conv, &runs)) * sizeof(uint16_t);
}

size_t pairs_row_bytes_avx2(const Bconv2d *conv) {
    const Runs runs = runs_of(conv);
    return runs.gathers ? 0 : row_nibbles(conv, &runs);
}

size_t pairs_block_bytes_avx2(const Bconv2d *conv) {
    const Runs runs = runs_of(conv);
    return runs.gathers ? gathered_places(conv, &runs) * sizeof(uint16_t) : 0;
}

static size_t n_offsets(const Bconv2d *conv) {
    return round_up(n_pairs_of(conv), MOST_PAIRS_OF_TILE) * runs_of(conv).count;
}

size_t offsets_bytes_avx2(const Bconv2d *conv) { return n_offsets(conv) * sizeof(size_t); }

void put_offsets_avx2(const Bconv2d *conv, void *common) {
    size_t *offsets = common;
    const Runs runs = runs_of(conv);
    const onebit_window *window = &conv->window;
    const size_t row = row_places(conv, &runs), pairs = n_pairs_of(conv), all = n_offsets(conv);
    size_t gathered = image_places(conv, &runs), at = 0;
    for (size_t index = 0; index < pairs; index++) {
        const Pair pair = pair_at(conv, &runs, index);
        const size_t y = (size_t)pair.first[0] * (size_t)window->stride[0],
                     x = (size_t)pair.first[1] * (size_t)window->stride[1];
        for (size_t u = 0; u < runs.count; u++, at++)
            offsets[at] = pair.is_gathered ? gathered + u * runs.nibbles
                                           : (y + u * (size_t)window->dilation[0]) * row + x * runs.pixel_nibbles;
        if (pair.is_gathered) gathered += window_places(&runs);
        if (runs.gathers && index % BLOCK_PAIRS == BLOCK_PAIRS - 1)
            gathered = 0; /* the next block's are in the same place */
    }
    for (; at < all; at++)
        offsets[at] = offsets[at - runs.count]; /* tiles are whole: the last may count a pair again */
}

/* The window's nibbles of a pair, one run after another. */
static void gather(const Image *image, const Runs *runs, size_t index, uint16_t *places) {
    const Pair pair = pair_at(image->conv, runs, index);
    const onebit_window *window = &image->conv->window;
    uint16_t *end = places + runs->count * runs->nibbles;
    for (int32_t dy = 0; dy < window->kernel[0]; dy++)
        for (int32_t dx = 0; dx < window->kernel[1]; dx++, places += runs->pixel_nibbles) {
            const int32_t y = dy * window->dilation[0], x = dx * window->dilation[1];
            put_pixels(pixel_at(image, pair.first[0] * window->stride[0] + y, pair.first[1] * window->stride[1] + x),
                       pixel_at(image, pair.second[0] * window->stride[0] + y, pair.second[1] * window->stride[1] + x),
                       image->words, places);
        }
    for (; places < end; places++) *places = 0; /* fills the last triple: nibbles of 0, as in the weights */
}

/* A row of the padded image, a byte for each nibble. */
static void put_row_nibbles(const Image *image, const Runs *runs, int32_t y, size_t columns, uint8_t *nibbles) {
    const Bconv2d *conv = image->conv;
    const size_t n = runs->pixel_nibbles, left = (size_t)conv->window.padding[2];
    const uint64_t *word = pixel_at(image, y, conv->window.padding[2]);
    memset(nibbles, 0, columns * n);
    if (!word) return;
    const size_t end = left + (size_t)conv->width < columns ? left + (size_t)conv->width : columns;
    for (size_t x = left; x < end; x++) /* what a word writes behind its pixel is 0 */
        for (size_t i = 0; i < image->words; i++)
            _mm_storeu_si128((__m128i *)(nibbles + x * n + 16 * i), nibbles_of(*word++));
}

/* 16 places at a time; the last ones again with those before them, since behind the row is another, perhaps of another thread. */
static void put_row(const Image *image, const Runs *runs, int32_t y, uint8_t *nibbles, uint16_t *places) {
    enum { AT_A_TIME = 16 };
    const Bconv2d *conv = image->conv;
    const size_t row = row_places(conv, runs), stride = (size_t)conv->window.stride[1] * runs->pixel_nibbles;
    put_row_nibbles(image, runs, y, (size_t)(conv->padded.width + conv->window.stride[1]), nibbles);
    if (row < AT_A_TIME) {
        uint16_t made[AT_A_TIME];
        put_pairs(_mm_loadu_si128((const __m128i *)nibbles), _mm_loadu_si128((const __m128i *)(nibbles + stride)),
                  made);
        memcpy(places, made, row * sizeof *places);
        return;
    }
    for (size_t i = 0;; i = i + 2 * AT_A_TIME <= row ? i + AT_A_TIME : row - AT_A_TIME) {
        put_pairs(_mm_loadu_si128((const __m128i *)(nibbles + i)),
                  _mm_loadu_si128((const __m128i *)(nibbles + i + stride)), places + i);
        if (i == row - AT_A_TIME) break;
    }
}

void prepare_pairs_avx2(const Bconv2d *conv, const uint64_t *bits, int32_t first, int32_t end, void *prepared,
                        void *row) {
    const Runs runs = runs_of(conv);
    const Image image = {conv, bits, words_of(conv->planes)};
    uint16_t *places = prepared, *gathered = places + image_places(conv, &runs);
    const size_t all_gathered = n_gathered(conv, &runs);
    for (int32_t y = first; y < end; y++) put_row(&image, &runs, y, row, places + (size_t)y * row_places(conv, &runs));
    /* With output rows of odd length, pairs that cross from one to the next are at the end of rows 0, 2, 4, ...; there are
       fewer of those than rows of the padded image. */
    for (size_t i = (size_t)first; i < (size_t)end && i < all_gathered; i++)
        gather(&image, &runs, ((2 * i + 1) * (size_t)conv->out_width - 1) / 2, gathered + i * window_places(&runs));
}

void prepare_pairs_of_block_avx2(const Bconv2d *conv, const Block *block) {
    const Runs runs = runs_of(conv);
    if (!runs.gathers) return;
    const Image image = {conv, block->bits, words_of(conv->planes)};
    const size_t first = block->first_pixel / 2, pairs = (block->pixels + 1) / 2;
    for (size_t i = 0; i < pairs; i++)
        gather(&image, &runs, first + i, (uint16_t *)block->prepared + i * window_places(&runs));
}
