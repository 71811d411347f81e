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

static size_t n_pixels_of(const Bconv2d *conv) { return (size_t)conv->out_height * (size_t)conv->out_width; }
static size_t n_pointers(const Bconv2d *conv) {
    return round_up((n_pixels_of(conv) + 1) / 2, MOST_PAIRS_OF_TILE) * runs_of(conv).count;
}

/* Pairs whose runs are gathered: all, or those of the last pixel of a row and the first of the next. */
static size_t n_gathered(const Bconv2d *conv, const Runs *runs) {
    return runs->gathers ? (n_pixels_of(conv) + 1) / 2 : (size_t)(conv->out_width % 2 * (conv->out_height / 2));
}

static size_t row_places(const Bconv2d *conv, const Runs *runs) {
    return (size_t)conv->padded.width * runs->pixel_nibbles;
}

/* Places of the padded image: of each pixel and the one that is a stride to its right. */
static size_t image_places(const Bconv2d *conv, const Runs *runs) {
    return runs->gathers ? 0 : (size_t)conv->padded.height * row_places(conv, runs) + SLACK;
}

static size_t gathered_places(const Bconv2d *conv, const Runs *runs) {
    return n_gathered(conv, runs) * runs->count * runs->nibbles + SLACK;
}

static size_t row_nibbles(const Bconv2d *conv, const Runs *runs) {
    return (size_t)(conv->padded.width + conv->window.stride[1]) * runs->pixel_nibbles + 2 * SLACK;
}

size_t prepared_bytes_avx2(const Bconv2d *conv) {
    const Runs runs = runs_of(conv);
    const size_t places = image_places(conv, &runs) + gathered_places(conv, &runs);
    return n_pointers(conv) * sizeof(RunPointer) + places * sizeof(uint16_t) + row_nibbles(conv, &runs);
}

/* The window's nibbles of any two pixels of the output, one run after another. */
static void gather(const Image *image, const Runs *runs, const int32_t first[2], const int32_t second[2],
                   uint16_t *places) {
    const onebit_window *window = &image->conv->window;
    uint16_t *end = places + runs->count * runs->nibbles;
    for (int32_t dy = 0; dy < window->kernel[0]; dy++)
        for (int32_t dx = 0; dx < window->kernel[1]; dx++, places += runs->pixel_nibbles) {
            const int32_t y = dy * window->dilation[0], x = dx * window->dilation[1];
            put_pixels(pixel_at(image, first[0] * window->stride[0] + y, first[1] * window->stride[1] + x),
                       pixel_at(image, second[0] * window->stride[0] + y, second[1] * window->stride[1] + x),
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
    uint8_t *pixel = nibbles + left * n;
    for (size_t x = left; x < end; x++, pixel += n)
        for (size_t i = 0; i < image->words; i++) _mm_storeu_si128((__m128i *)(pixel + 16 * i), nibbles_of(*word++));
    if (end < columns) memset(nibbles + end * n, 0, n < 16 ? 16 : n); /* what the last word wrote too far */
}

static void put_image(const Image *image, const Runs *runs, uint8_t *nibbles, uint16_t *places) {
    const Bconv2d *conv = image->conv;
    const size_t row = row_places(conv, runs), stride = (size_t)conv->window.stride[1] * runs->pixel_nibbles;
    for (int32_t y = 0; y < conv->padded.height; y++, places += row) {
        put_row_nibbles(image, runs, y, (size_t)(conv->padded.width + conv->window.stride[1]), nibbles);
        for (size_t i = 0; i < row; i += 16) {
            const __m128i first = _mm_loadu_si128((const __m128i *)(nibbles + i));
            const __m128i second = _mm_loadu_si128((const __m128i *)(nibbles + i + stride));
            put_pairs(first, second, places + i);
        }
    }
}

void prepare_avx2(const Bconv2d *conv, const uint64_t *bits, void *prepared) {
    const Runs runs = runs_of(conv);
    const Image image = {conv, bits, words_of(conv->planes)};
    const onebit_window *window = &conv->window;
    const size_t n_pixels = n_pixels_of(conv), pointers = n_pointers(conv), row = row_places(conv, &runs);
    RunPointer *pointer = prepared;
    uint16_t *places = (uint16_t *)(pointer + pointers), *gathered = places + image_places(conv, &runs);
    if (!runs.gathers) put_image(&image, &runs, (uint8_t *)(gathered + gathered_places(conv, &runs)), places);

    int32_t first[2] = {0, 0};
    for (size_t pixel = 0; pixel < n_pixels; pixel += 2) {
        int32_t second[2] = {first[0], first[1] + 1}; /* the last pixel's neighbour is counted in vain */
        const bool crosses = second[1] == conv->out_width && pixel + 1 < n_pixels;
        if (crosses) second[0]++, second[1] = 0;
        const uint16_t *window_places = places + (size_t)(first[0] * window->stride[0]) * row +
                                        (size_t)(first[1] * window->stride[1]) * runs.pixel_nibbles;
        if (runs.gathers || crosses) {
            gather(&image, &runs, first, second, gathered);
            for (size_t u = 0; u < runs.count; u++) *pointer++ = gathered + u * runs.nibbles;
            gathered += runs.count * runs.nibbles;
        } else {
            for (size_t u = 0; u < runs.count; u++) *pointer++ = window_places + u * (size_t)window->dilation[0] * row;
        }
        first[0] = second[0];
        first[1] = second[1] + 1;
        if (first[1] >= conv->out_width) first[0]++, first[1] = 0;
    }
    /* Tiles are whole: the last one may count a pair several times. */
    for (RunPointer *end = (RunPointer *)prepared + pointers; pointer < end; pointer++)
        *pointer = pointer[-(ptrdiff_t)runs.count];
}
