/* Which way a 1-bit convolution goes with AVX2. */
#include <math.h>

#include "bconv2d_avx2.h"
#include "shared_avx2.h"

/* What an output pixel takes, in nanoseconds of a Zen 4 at 3.6 GHz. Other cores differ, but less in what is faster
   (`benchmarks/engine.py --part projections` shows both).
   A nibble of the window, for a tile of so many channels by pairs, or of 8 kernels by columns: */
static double of_tile(int32_t width) { return width == 128 ? 0.49 : width == 64 ? 0.26 : width == 32 ? 0.15 : 0.13; }
static const double OF_COLUMNS = 0.034;
/* A channel or kernel, whenever counts are widened: */
static const double OF_PART = 0.02;
/* A nibble of a pixel, for each copy of the image in columns: rows are made by 16 pixels. */
static double of_copy(int32_t width) { return width % 16 ? 0.2 : 0.1; }
/* A kernel, for each projection: combine_avx2.c has loops of their own for up to 4. */
static double of_projection(const Classes *classes, WayOfSharing way) {
    const int32_t J = classes->projections;
    if (J > 4) return (way == BY_PAIRS ? 0.08 : 0.05) + 0.02 * (double)classes->count;
    if (way == BY_COLUMNS) return 0.1;
    return J == 2 ? 0.055 : 0.09;
}

typedef struct {
    double nibbles, parts; /* of a window */
} Window;

static double by_pairs(Window window, int32_t channels, double of_channel) {
    double time = 0;
    int32_t width;
    for (int32_t first = 0; first < channels; first += width) {
        width = tile_width_avx2(channels - first);
        time += of_tile(width) * window.nibbles + width * (OF_PART * window.parts + of_channel);
    }
    return time;
}

/* A block is counted to its end, however few pixels it has. */
static double by_columns(const Bconv2d *conv, Window window, int32_t kernels, double of_kernel) {
    const size_t pixels = (size_t)conv->out_height * (size_t)conv->out_width;
    const double filled = (double)round_up(pixels, BLOCK_PIXELS) / (double)pixels, tiles = (kernels + 7) / 8;
    const double pixel_nibbles = window.nibbles / (double)taps_of(conv);
    return filled * tiles * (OF_COLUMNS * window.nibbles + 8 * (OF_PART * window.parts + of_kernel)) +
           of_copy(conv->out_width) * pixel_nibbles * (double)copies_avx2(conv);
}

bool shares_avx2(const Bconv2d *conv, Classes *classes) {
    const Runs runs = runs_of(conv);
    const double apart_nibbles = (double)(runs.count * runs.nibbles);
    const Window apart = {apart_nibbles, ceil(apart_nibbles / NIBBLES_OF_PART)};
    Window shared = {(double)(taps_of(conv) * runs.pixel_nibbles), 0};
    for (size_t c = 0; c < classes->count; c++)
        shared.parts += ceil((double)(classes->taps[c] * runs.pixel_nibbles) / NIBBLES_OF_PART);
    const int32_t J = classes->projections, kernels = conv->outputs / J;
    const double pairs = by_pairs(shared, kernels, J * of_projection(classes, BY_PAIRS));
    const double columns = by_columns(conv, shared, kernels, J * of_projection(classes, BY_COLUMNS));
    classes->way = can_be_columns_avx2(conv) && columns < pairs ? BY_COLUMNS : BY_PAIRS;
    return (classes->way == BY_COLUMNS ? columns : pairs) < by_pairs(apart, conv->outputs, 0);
}

static const Way *way_of(const Bconv2d *conv) {
    if (!conv->shared) return &ONE_BY_ONE;
    return conv->shared->way == BY_COLUMNS ? &SHARED_BY_COLUMNS : &SHARED_BY_PAIRS;
}

int32_t block_width_avx2(const Bconv2d *conv, int32_t left) { return way_of(conv)->block_width(conv, left); }
size_t common_bytes_avx2(const Bconv2d *conv) { return way_of(conv)->common_bytes(conv); }
void put_common_avx2(const Bconv2d *conv, void *common) { way_of(conv)->put_common(conv, common); }
size_t packed_bytes_avx2(const Bconv2d *conv) { return way_of(conv)->packed_bytes(conv); }
void pack_avx2(const Bconv2d *conv, const int8_t *signs, void *packed) { way_of(conv)->pack(conv, signs, packed); }
size_t prepared_bytes_avx2(const Bconv2d *conv) { return way_of(conv)->prepared_bytes(conv); }
size_t row_bytes_avx2(const Bconv2d *conv) { return way_of(conv)->row_bytes(conv); }
void prepare_avx2(const Bconv2d *conv, const uint64_t *bits, int32_t first, int32_t end, void *prepared, void *row) {
    way_of(conv)->prepare(conv, bits, first, end, prepared, row);
}
size_t block_bytes_avx2(const Bconv2d *conv) { return way_of(conv)->block_bytes(conv); }
void prepare_block_avx2(const Bconv2d *conv, const Block *block) { way_of(conv)->prepare_block(conv, block); }
void count_avx2(const Bconv2d *conv, const Block *block, uint16_t *counts) { way_of(conv)->count(conv, block, counts); }
