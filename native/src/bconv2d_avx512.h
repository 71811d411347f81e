/* How the AVX-512 kernel of 1-bit convolution sees a window: as words of 64 bits, three of them at a time where it can. */
#ifndef ONEBIT_BCONV2D_AVX512_H
#define ONEBIT_BCONV2D_AVX512_H

#include "bconv2d.h"

/* Three ways to make words of the taps of a row:
     TRIPLES   three neighbouring taps, and a word of each, go together (see bconv2d_avx512.c); taps that are left over go singly
     SINGLES   a word goes by itself
     PACKED    few planes: the bits of all taps of a row lie one behind the other, in fewer words than there are taps */
typedef enum { TRIPLES, SINGLES, PACKED } WayOfWords;

typedef struct {
    WayOfWords way;
    size_t pixel_words;      /* of a pixel of the image */
    size_t packed_words;     /* of a row of taps, if it is packed */
    size_t triples, singles; /* of the window */
    size_t spread;           /* words prepared for each word of the image: 4 for triples, else 1 */
    size_t sheet, line;      /* words of a row of the padded image with one word a pixel; of a prepared row */
} Words;

Words words_in_window(const Bconv2d *conv);

/* Words of weights for each channel. */
static inline size_t window_words(const Words *words) { return 4 * words->triples + words->singles; }

/* What it takes: instructions for each eight channels of a pixel. */
static inline size_t n_instructions(size_t triples, size_t singles) { return 8 * triples + 3 * singles; }

/* Common to all groups: where the window's words are, counted from its first, those of triples first. */
typedef struct {
    Words words;
    size_t offsets[];
} Common;

size_t common_bytes_avx512(const Bconv2d *conv);
void put_common_avx512(const Bconv2d *conv, void *common);
size_t packed_bytes_avx512(const Bconv2d *conv);
void pack_avx512(const Bconv2d *conv, const int8_t *signs, void *packed);
size_t prepared_bytes_avx512(const Bconv2d *conv);
size_t row_bytes_avx512(const Bconv2d *conv);
void prepare_avx512(const Bconv2d *conv, const uint64_t *bits, int32_t first, int32_t end, void *prepared, void *row);
void count_avx512(const Bconv2d *conv, const Block *block, uint16_t *counts);
#endif
