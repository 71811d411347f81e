/* Convolutions of levels: of 1-bit kernels (W1A8), and of weights of 8 bits.

   A level is kept as the byte u = level - low, so with weights w
       sum of w * level = sum of w * u + low * sum of w
   over all taps, those outside of the image included: a level of 0 there is a byte of -low. So border pixels are like all
   others.

   The driver (levels.c) goes through the rows of the image once. `prepare` lays the bytes of a row out as the kernel wants
   them, and says of each pixel what it takes away from every sum that it is part of; `sum` makes the sums of a block of
   pixels and `width` channels. A window is some runs of neighbouring pixels. */
#ifndef ONEBIT_LEVELS_H
#define ONEBIT_LEVELS_H

#include "convolution.h"

/* Pixels of a block; a multiple of what any kernel takes at a time, since `sum` may make more rows than it is asked for. */
enum { LEVEL_PIXELS = 32, MAX_LEVEL_WIDTH = 64, MAX_LEVEL = 255 };

/* Bytes that a kernel may read behind the last of what was prepared. */
enum { LEVEL_SLACK = 64 };

/* A convolution of one group, as kernels see it. */
typedef struct {
    size_t planes, outputs;
    size_t runs, run_pixels; /* of a window */
} LevelConv;

typedef struct {
    const void *packed;         /* of all channels */
    const void *const *windows; /* [LEVEL_PIXELS][run]: where runs begin in what was prepared */
    size_t pixels;
    size_t first_channel, width; /* `width` is what the kernel's function of that name said */
    const int32_t *bases;        /* a number that each channel's sums begin with, from first_channel on */
    const int32_t *taken_away;   /* of each pixel's window */
} LevelBlock;

typedef struct {
    size_t
        least_outputs; /* of signs: with fewer, a table would be looked up too seldom, and the kernel of bytes is faster */
    size_t (*width)(size_t channels_left);
    size_t (*pixel_bytes)(const LevelConv *conv); /* of a prepared pixel */
    bool takes_away;                              /* else `prepare` leaves taken_away as it is */
    /* bytes: [pixel][plane] */
    void (*prepare)(const LevelConv *conv, const uint8_t *bytes, size_t pixels, void *prepared, int32_t *taken_away);
    size_t (*packed_bytes)(const LevelConv *conv);
    /* weights: [output][plane][run][pixel of the run]; memory is zeroed */
    void (*pack)(const LevelConv *conv, const int8_t *weights, void *packed);
    void (*sum)(const LevelConv *conv, const LevelBlock *block, int32_t *sums); /* [pixel][width] */
} LevelKernels;

/* Channels of all blocks of a convolution, the last one filled up. */
static inline size_t level_channels(const LevelKernels *kernels, size_t outputs) {
    size_t first = 0;
    while (first < outputs) first += kernels->width(outputs - first);
    return first;
}

/* In plain C, of signs and of bytes. */
extern const LevelKernels level_kernels_scalar;

/* Of levels; weights are -1 and +1 if are_signs. */
onebit_status add_level_conv2d(onebit_net *net, const Convolution *convolution, const int8_t *weights, bool are_signs);
#endif
