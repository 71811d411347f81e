/* The last part of a layer: from the numbers that it makes to floats, sums, bits or levels in memory. */
#ifndef ONEBIT_OUTPUT_H
#define ONEBIT_OUTPUT_H

#include "net.h"

/* An onebit_output that was checked, its tensors copied: of as many numbers as there are channels. */
typedef struct {
    const float *scale, *shift; /* both or none */
    const float *first_slope, *second_slope;
    float first_low, first_high, second_low, second_high;
    bool first_clamps, second_clamps;
    int32_t residual, numbers_to, bits_to, levels_to;
    bool makes_sums, passes_on; /* numbers_to has no place: rows are made where and when they are asked for */
    const float *thresholds;    /* null: 0, for every channel */
    const uint32_t *flips;      /* of the sign bit, so that v <= t is -v >= -t; null: none */
    float per_unit;             /* of levels, and the lowest and highest */
    int32_t low, high;
    int32_t channels;
} Output;

/* Numbers of `count` pixels from `first` on, `channels` of them from `first_channel` on. One of three pointers is set;
   row r begins at r * stride. first_channel is a multiple of 8 if bits are wanted. */
typedef struct {
    const uint16_t *counts;      /* differing bits: the number is offsets[r][channel] - 2 * count */
    const float *const *offsets; /* a row for each pixel, from first_channel on */
    const int32_t *sums;
    const float *floats;
    size_t stride;
    size_t first, count;
    int32_t first_channel, channels;
    /* Filled in by `aim`: where the numbers go, of all pixels. */
    const float *residual;
    float *float_numbers;
    int32_t *sum_numbers;
    uint8_t *bits, *levels;
} Pixels;

/* Checks `wanted` for a step that makes `channels` x `sizes` numbers; copies it. */
onebit_status check_output(onebit_net *net, const onebit_output *wanted, int32_t channels, const int32_t sizes[2],
                           bool can_make_sums, Output *made);

/* Whether numbers become levels, and nothing else happens to them: then channels do not matter. */
bool makes_only_levels(const Output *output);

/* Fills in where the numbers go; to be called once in a run of a step, before `finish`. */
void aim(const Output *output, const Run *run, Pixels *pixels);

/* The byte of the level that is nearest. */
uint8_t level_of(const Output *output, float v);

/* In plain C; also what other kernels use for the channels that are left over. */
void finish_scalar(const Output *output, const Pixels *pixels);
void finish_row_scalar(const Output *output, const Pixels *pixels, size_t row, int32_t from, int32_t to);
#endif
