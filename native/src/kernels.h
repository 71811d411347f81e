/* The table of kernels: what each instruction set does in its own way. One is chosen when a net is made. */
#ifndef ONEBIT_KERNELS_H
#define ONEBIT_KERNELS_H

#include "bconv2d.h"
#include "levels.h"
#include "net.h"
#include "output.h"

/* Rows and columns of the tile that the float kernel makes at a time. */
enum { TILE_ROWS = 6, TILE_COLUMNS = 16 };

/* Pixels of a window, in rows. */
typedef struct {
    const float *first;
    size_t rows, columns, row_step, column_step;
} Taps;

struct Kernels {
    const char *name;

    /* 1-bit convolution: see bconv2d.h. */
    bool (*shares)(const Bconv2d *conv, Classes *classes);     /* whether projections should; null: they can't */
    int32_t (*block_width)(const Bconv2d *conv, int32_t left); /* with so many outputs to come */
    size_t (*common_bytes)(const Bconv2d *conv);
    void (*put_common)(const Bconv2d *conv, void *common);
    size_t (*packed_bytes)(const Bconv2d *conv);
    void (*pack)(const Bconv2d *conv, const int8_t *signs, void *packed);
    size_t (*prepared_bytes)(const Bconv2d *conv);
    size_t (*row_bytes)(const Bconv2d *conv); /* of scratch while rows are prepared */
    /* Rows from `first` to before `end` of the padded image. */
    void (*prepare)(const Bconv2d *conv, const uint64_t *bits, int32_t first, int32_t end, void *prepared, void *row);
    size_t (*block_bytes)(const Bconv2d *conv); /* 0: blocks are read in the prepared image */
    void (*prepare_block)(const Bconv2d *conv, const Block *block);
    void (*count)(const Bconv2d *conv, const Block *block, uint16_t *counts); /* [pixel][width] */

    /* Convolutions of levels: with weights of -1 and +1, and with weights of 8 bits. See levels.h. */
    const LevelKernels *signs_of_levels, *bytes_of_levels;

    /* tile[r][n] = sum over runs u, places k of rows[r][offsets[u] + k] * weight[u][k][n] */
    void (*multiply)(const float *const rows[TILE_ROWS], const ptrdiff_t *offsets, size_t runs, size_t run_length,
                     const float *weight, float *tile);

    /* The first row of that tile alone. */
    void (*multiply_row)(const float *row, const ptrdiff_t *offsets, size_t runs, size_t run_length,
                         const float *weight, float *tile);

    /* See winograd.h; null where images always go the plain way.
       A tile's pixels, of all planes, to its places: tile[place][TILE_ROWS][plane]. */
    void (*transform_pixels)(const float *pixels, size_t row_step, size_t planes, float *tile);

    /* products[place][r][n] = sum over planes of tiles[place][r][plane] * weight[place][plane][n] */
    void (*multiply_places)(const float *tiles, size_t planes, const float *weight, float *products);

    /* One row of products of each place to `made` x `made` pixels of TILE_COLUMNS channels. */
    void (*transform_products)(const float *products, int32_t made, float *y, size_t row_step);

    /* What becomes of a layer's numbers: see output.h. With fewer channels than `least_finished` it is plain C. */
    int32_t least_finished;
    void (*finish)(const Output *output, const Pixels *pixels);

    /* Of the numbers of each channel in a window: the largest; or the sum over `divisor`. With fewer channels than
       `least_pooled` it is plain C. */
    int32_t least_pooled;
    void (*maximum)(const Taps *taps, float *made, size_t channels);
    void (*mean)(const Taps *taps, float divisor, float *made, size_t channels);

    /* y[i] = x[i] * w[i] + y[i], for i < count. With fewer numbers than `least_added` it is plain C. */
    int32_t least_added;
    void (*multiply_add)(const float *x, const float *w, float *y, size_t count);
};

/* NULL if there is no such table, or the machine can't run it. */
const Kernels *kernels_of(const char *isa);

extern const Kernels kernels_scalar;
#ifdef ONEBIT_AVX2
extern const Kernels kernels_avx2;
#endif
#ifdef ONEBIT_AVX512
extern const Kernels kernels_avx512;
#endif
#ifdef ONEBIT_NEON
extern const Kernels kernels_neon;
#endif
#endif
