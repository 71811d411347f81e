/* Convolution of levels in plain C: bytes as they are, times weights as they are. */
#include <string.h>

#include "levels.h"

static size_t run_length(const LevelConv *conv) { return conv->run_pixels * conv->planes; }

static size_t width(size_t channels_left) { return channels_left < 16 ? channels_left : 16; }

static size_t pixel_bytes(const LevelConv *conv) { return conv->planes; }

static void prepare(const LevelConv *conv, const uint8_t *bytes, size_t pixels, void *prepared, int32_t *taken_away) {
    (void)taken_away;
    memcpy(prepared, bytes, pixels * conv->planes);
}

/* Packed: [output][run][pixel of the run][plane]. */
static size_t packed_bytes(const LevelConv *conv) { return conv->outputs * conv->runs * run_length(conv); }

static void pack(const LevelConv *conv, const int8_t *weights, void *packed) {
    const size_t taps = conv->runs * conv->run_pixels;
    for (size_t n = 0; n < conv->outputs; n++)
        for (size_t plane = 0; plane < conv->planes; plane++)
            for (size_t tap = 0; tap < taps; tap++)
                ((int8_t *)packed)[(n * taps + tap) * conv->planes + plane] = *weights++;
}

static void sum(const LevelConv *conv, const LevelBlock *block, int32_t *sums) {
    for (size_t pixel = 0; pixel < block->pixels; pixel++)
        for (size_t n = 0; n < block->width; n++) {
            const int8_t *weight =
                (const int8_t *)block->packed + (block->first_channel + n) * conv->runs * run_length(conv);
            int32_t of_window = block->bases[n];
            for (size_t run = 0; run < conv->runs; run++) {
                const uint8_t *bytes = block->windows[pixel * conv->runs + run];
                for (size_t i = 0; i < run_length(conv); i++) of_window += bytes[i] * *weight++;
            }
            sums[pixel * block->width + n] = of_window;
        }
}

const LevelKernels level_kernels_scalar = {
    .width = width,
    .pixel_bytes = pixel_bytes,
    .prepare = prepare,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .sum = sum,
};
