/* Which way a 1-bit convolution goes with AVX2. */
#include "bconv2d_avx2.h"
#include "shared_avx2.h"

/* What a pixel takes in nanoseconds, as measured on Zen 4 (`benchmarks/engine.py --part projections`; other cores differ, but not
   so much in what is faster). Of a nibble of the window, for tiles of so many channels by pairs, or of 8 kernels by columns: */
static double of_tile(int32_t width) { return width == 128 ? 0.53 : width == 64 ? 0.29 : width == 32 ? 0.163 : 0.137; }
static const double OF_COLUMNS = 0.037;
/* Of a kernel, for each class and for each projection; of a nibble of a pixel, for each copy of the image in columns: */
static const double OF_CLASS = 0.03, OF_PROJECTION = 0.06, OF_COPY = 0.1;

static double by_pairs(const Bconv2d *conv, int32_t channels) {
    const Runs runs = runs_of(conv);
    double time = 0;
    int32_t width;
    for (int32_t first = 0; first < channels; first += width) {
        width = tile_width_avx2(channels - first);
        time += of_tile(width) * (double)(runs.count * runs.nibbles);
    }
    return time;
}

static double combining(const Classes *classes, int32_t kernels) {
    return kernels * (OF_CLASS * (double)classes->count + OF_PROJECTION * classes->projections);
}

/* A block is counted to its end, however few pixels it has. */
static double by_columns(const Bconv2d *conv, const Classes *classes, int32_t kernels) {
    const size_t pixels = (size_t)conv->out_height * (size_t)conv->out_width;
    const double filled = (double)round_up(pixels, BLOCK_PIXELS) / (double)pixels;
    const double nibbles = (double)(((size_t)conv->planes + 3) / 4), tiles = (double)round_up((size_t)kernels, 8) / 8;
    return filled * (tiles * OF_COLUMNS * nibbles * (double)taps_of(conv) + combining(classes, kernels)) +
           OF_COPY * nibbles * (double)copies_avx2(conv);
}

enum { MOST_COPIES = 8, MOST_STRIDE = 4 }; /* the image in columns is so many times as large */

bool shares_avx2(const Bconv2d *conv, Classes *classes) {
    const int32_t kernels = conv->outputs / classes->projections;
    const double apart = by_pairs(conv, conv->outputs);
    const double pairs = by_pairs(conv, kernels) + combining(classes, kernels);
    const double columns = by_columns(conv, classes, kernels);
    const bool can_be_columns = conv->window.kernel[1] <= MOST_COPIES && conv->window.stride[0] <= MOST_STRIDE;
    classes->way = can_be_columns && columns < pairs ? BY_COLUMNS : BY_PAIRS;
    return (classes->way == BY_COLUMNS ? columns : pairs) < apart;
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
void prepare_avx2(const Bconv2d *conv, const uint64_t *bits, void *prepared) {
    way_of(conv)->prepare(conv, bits, prepared);
}
void prepare_block_avx2(const Bconv2d *conv, const Block *block) { way_of(conv)->prepare_block(conv, block); }
void count_avx2(const Bconv2d *conv, const Block *block, uint16_t *counts) { way_of(conv)->count(conv, block, counts); }
