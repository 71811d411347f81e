/* How the AVX2 kernel of 1-bit convolution sees a window: as runs of nibbles, cut into parts. */
#ifndef ONEBIT_BCONV2D_AVX2_H
#define ONEBIT_BCONV2D_AVX2_H

#include "tiles_avx2.h"

/* The nibbles of a window. Those of a row of taps lie together in the prepared image, so they are a run of it (if their number is a
   multiple of three, which is how many go at a time). For other windows the nibbles of every pair are gathered, into one
   run, filled up with zeros. */
typedef struct {
    size_t pixel_nibbles; /* of one pixel */
    size_t count, nibbles;
    bool gathers;
} Runs;

/* What is counted before counts are widened: some of the nibbles of one run, or all of several. */
typedef struct {
    size_t run, runs;      /* the first run, and how many */
    size_t first, nibbles; /* in each of these runs; multiples of 3 */
} Part;

static inline Runs runs_of(const Bconv2d *conv) {
    const size_t rows = (size_t)conv->window.kernel[0], columns = (size_t)conv->window.kernel[1];
    const size_t pixel = ((size_t)conv->planes + 3) / 4;
    if (conv->window.dilation[1] == 1 && columns * pixel % 3 == 0) return (Runs){pixel, rows, columns * pixel, false};
    return (Runs){pixel, 1, round_up(rows * columns * pixel, 3), true};
}

static inline Part first_part(const Runs *runs) {
    const size_t together = NIBBLES_OF_PART / runs->nibbles;
    if (together > 1) return (Part){0, together < runs->count ? together : runs->count, 0, runs->nibbles};
    const size_t pieces = (runs->nibbles + NIBBLES_OF_PART - 1) / NIBBLES_OF_PART;
    return (Part){0, 1, 0, round_up((runs->nibbles + pieces - 1) / pieces, 3)};
}

/* The part behind this one; without runs if there is none. */
static inline Part next_part(const Runs *runs, Part part) {
    const size_t in_run = first_part(runs).nibbles;
    part.first += part.nibbles;
    if (part.first >= runs->nibbles) {
        part.first = 0;
        part.run += part.runs;
        if (part.runs > runs->count - part.run) part.runs = runs->count - part.run;
    }
    part.nibbles = runs->nibbles - part.first < in_run ? runs->nibbles - part.first : in_run;
    return part;
}

/* The table's functions. */
int32_t block_width_avx2(const Bconv2d *conv, int32_t left);
size_t common_bytes_avx2(const Bconv2d *conv);
void put_common_avx2(const Bconv2d *conv, void *common);
size_t packed_bytes_avx2(const Bconv2d *conv);
void pack_avx2(const Bconv2d *conv, const int8_t *signs, void *packed);
size_t prepared_bytes_avx2(const Bconv2d *conv);
size_t row_bytes_avx2(const Bconv2d *conv);
void prepare_avx2(const Bconv2d *conv, const uint64_t *bits, int32_t first, int32_t end, void *prepared, void *row);
size_t block_bytes_avx2(const Bconv2d *conv);
void prepare_block_avx2(const Bconv2d *conv, const Block *block);
void count_avx2(const Bconv2d *conv, const Block *block, uint16_t *counts);

/* There are three ways, each with functions like these: outputs one by one (bconv2d_avx2.c), projections that share their
   work (shared_avx2.c), and the same with few kernels (columns_avx2.c). */
typedef struct {
    int32_t (*block_width)(const Bconv2d *conv, int32_t left);
    size_t (*common_bytes)(const Bconv2d *conv);
    void (*put_common)(const Bconv2d *conv, void *common);
    size_t (*packed_bytes)(const Bconv2d *conv);
    void (*pack)(const Bconv2d *conv, const int8_t *signs, void *packed);
    size_t (*prepared_bytes)(const Bconv2d *conv);
    size_t (*row_bytes)(const Bconv2d *conv);
    void (*prepare)(const Bconv2d *conv, const uint64_t *bits, int32_t first, int32_t end, void *prepared, void *row);
    size_t (*block_bytes)(const Bconv2d *conv);
    void (*prepare_block)(const Bconv2d *conv, const Block *block);
    void (*count)(const Bconv2d *conv, const Block *block, uint16_t *counts);
} Way;

extern const Way ONE_BY_ONE, SHARED_BY_PAIRS, SHARED_BY_COLUMNS;

/* The widest tile that is not filled up with more than a quarter of nothing. */
int32_t tile_width_avx2(int32_t channels);

/* An image as pairs, prepared: places of rows in the table. If runs of the padded image are windows: for every pixel of it,
   and then for the windows of pairs that cross from one row to the next; else for the windows of one block of pixels at a time.
   Offsets: where the runs of each pair begin there, [pair][run]; there are as many pairs as whole tiles have. */
enum { MOST_PAIRS_OF_TILE = 8 };
size_t offsets_bytes_avx2(const Bconv2d *conv);
void put_offsets_avx2(const Bconv2d *conv, void *offsets);
size_t pairs_bytes_avx2(const Bconv2d *conv);
size_t pairs_row_bytes_avx2(const Bconv2d *conv);
void prepare_pairs_avx2(const Bconv2d *conv, const uint64_t *bits, int32_t first, int32_t end, void *prepared,
                        void *row);
size_t pairs_block_bytes_avx2(const Bconv2d *conv);
void prepare_pairs_of_block_avx2(const Bconv2d *conv, const Block *block);
#endif
