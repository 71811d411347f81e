/* How near the AVX2 kernel of 1-bit kernels on levels (W1A8) comes to what the core could do at most: `sum` alone, beside a loop of
   nothing but its instructions; `prepare`, which makes its tables; and the other way to do it, by vpmaddubsw, which is how the
   engine multiplies weights of 8 bits. All in one run.

       benchmarks/engine.py builds and runs this */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../src/levels_avx2.h"

enum { ROUNDS = 101, LOOPS = 4000, STRIPS = 4, MACS_OF_LOOP = 8 * 4 * 128 };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Eight nibbles of a tile, from registers alone: 64 look-ups, 56 additions, and words of eight bytes. */
/* clang-format off */
#define LOOK(a) "vpshufb %%ymm0, %%ymm1, %%" #a "\n"
#define ADD(a, b) "vpaddb %%" #b ", %%" #a ", %%" #a "\n"
#define LOOK_EIGHT LOOK(ymm2) LOOK(ymm3) LOOK(ymm4) LOOK(ymm5) LOOK(ymm6) LOOK(ymm7) LOOK(ymm8) LOOK(ymm9)
#define ADD_EIGHT ADD(ymm10, ymm2) ADD(ymm11, ymm3) ADD(ymm12, ymm4) ADD(ymm13, ymm5)                                  \
                  ADD(ymm10, ymm6) ADD(ymm11, ymm7) ADD(ymm12, ymm8) ADD(ymm13, ymm9)
#define WORDS(a, b) "vpunpcklbw %%" #b ", %%" #a ", %%ymm2\nvpunpckhbw %%" #b ", %%" #a ", %%ymm3\n"                   \
                    "vpmaddubsw %%ymm0, %%ymm2, %%ymm4\nvpmaddubsw %%ymm0, %%ymm3, %%ymm5\n"                           \
                    "vpaddw %%ymm4, %%ymm14, %%ymm14\nvpaddw %%ymm5, %%ymm15, %%ymm15\n"
#define CLOBBERED "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11",    \
                  "ymm12", "ymm13", "ymm14", "ymm15"
static void instructions_alone(void) {
    for (int i = 0; i < LOOPS; i++)
        __asm__ volatile(LOOK_EIGHT LOOK_EIGHT ADD_EIGHT LOOK_EIGHT ADD_EIGHT LOOK_EIGHT ADD_EIGHT
                         LOOK_EIGHT ADD_EIGHT LOOK_EIGHT ADD_EIGHT LOOK_EIGHT ADD_EIGHT LOOK_EIGHT ADD_EIGHT
                         WORDS(ymm10, ymm11) WORDS(ymm12, ymm13) WORDS(ymm10, ymm11) WORDS(ymm12, ymm13) ::: CLOBBERED);
}
/* clang-format on */

/* 3 x 3, as many channels out as in: a strip of outputs and the rows that it reads. */
typedef struct {
    const LevelKernels *kernels;
    LevelConv conv;
    size_t side, rows, strip_rows, pixel_bytes;
    uint8_t *bytes, *prepared;
    void *packed;
    int32_t *taken_away, *bases, *sums;
} Layer;

static void *aligned(size_t bytes) {
    void *found = aligned_alloc(64, round_up(bytes + LEVEL_SLACK, 64));
    if (!found) exit(2);
    memset(found, 0, bytes + LEVEL_SLACK);
    return found;
}

static Layer new_layer(const LevelKernels *kernels, size_t channels, size_t side) {
    Layer layer = {.kernels = kernels, .conv = {channels, channels, 3, 3}, .side = side};
    const LevelConv *conv = &layer.conv;
    layer.strip_rows = (24 + side - 1) / side;
    layer.rows = layer.strip_rows + 2;
    layer.pixel_bytes = kernels->pixel_bytes(conv);
    const size_t pixels = layer.rows * (side + 2), n_weights = channels * channels * 9;
    layer.bytes = aligned(pixels * channels);
    layer.prepared = aligned(pixels * layer.pixel_bytes);
    layer.packed = aligned(kernels->packed_bytes(conv));
    layer.taken_away = aligned(pixels * sizeof(int32_t));
    layer.bases = aligned(MAX_LEVEL_WIDTH * sizeof(int32_t));
    layer.sums = aligned(LEVEL_PIXELS * MAX_LEVEL_WIDTH * sizeof(int32_t));
    int8_t *weights = aligned(n_weights);
    for (size_t i = 0; i < n_weights; i++) weights[i] = rand() & 64 ? 1 : -1;
    for (size_t i = 0; i < pixels * channels; i++) layer.bytes[i] = (uint8_t)rand();
    kernels->pack(conv, weights, layer.packed);
    free(weights);
    return layer;
}

static void prepare(const Layer *layer) {
    layer->kernels->prepare(&layer->conv, layer->bytes, layer->rows * (layer->side + 2), layer->prepared,
                            layer->taken_away);
}

static void sum_strip(const Layer *layer) {
    const size_t side = layer->side, all = layer->strip_rows * side;
    const void *windows[LEVEL_PIXELS * 3];
    LevelBlock block = {.packed = layer->packed, .windows = windows, .bases = layer->bases};
    block.taken_away = layer->taken_away;
    for (size_t first = 0; first < all; first += LEVEL_PIXELS) {
        block.pixels = all - first < LEVEL_PIXELS ? all - first : LEVEL_PIXELS;
        for (size_t i = 0; i < LEVEL_PIXELS; i++) {
            const size_t pixel = first + (i < block.pixels ? i : block.pixels - 1);
            for (size_t dy = 0; dy < 3; dy++)
                windows[3 * i + dy] =
                    layer->prepared + ((pixel / side + dy) * (side + 2) + pixel % side) * layer->pixel_bytes;
        }
        for (block.first_channel = 0; block.first_channel < layer->conv.outputs; block.first_channel += block.width) {
            block.width = layer->kernels->width(layer->conv.outputs - block.first_channel);
            layer->kernels->sum(&layer->conv, &block, layer->sums);
        }
    }
}

static int by_size(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *numbers) {
    qsort(numbers, ROUNDS, sizeof *numbers, by_size);
    return numbers[ROUNDS / 2];
}

int main(void) {
    static const size_t SHAPES[][2] = {{16, 32}, {32, 16}, {64, 56}, {128, 28}, {256, 14}, {512, 7}};
    enum { N_SHAPES = sizeof SHAPES / sizeof *SHAPES };
    static double limits[ROUNDS], speeds[N_SHAPES][ROUNDS], shares[N_SHAPES][ROUNDS], others[N_SHAPES][ROUNDS],
        tables[N_SHAPES][ROUNDS];
    Layer layers[N_SHAPES], by_bytes[N_SHAPES];
    for (int i = 0; i < N_SHAPES; i++) {
        layers[i] = new_layer(&signs_of_levels_avx2, SHAPES[i][0], SHAPES[i][1]);
        by_bytes[i] = new_layer(&bytes_of_levels_avx2, SHAPES[i][0], SHAPES[i][1]);
        prepare(&by_bytes[i]);
    }
    for (int round = 0; round < ROUNDS; round++) {
        const double start = seconds();
        instructions_alone();
        limits[round] = (double)LOOPS * MACS_OF_LOOP / (seconds() - start) / 1e9;
        for (int i = 0; i < N_SHAPES; i++) {
            const double macs = 9.0 * (double)(SHAPES[i][0] * SHAPES[i][0] * SHAPES[i][1] * layers[i].strip_rows);
            const double before = seconds();
            prepare(&layers[i]);
            const double prepared = seconds();
            for (int strip = 0; strip < STRIPS; strip++) sum_strip(&layers[i]);
            const double summed = seconds();
            for (int strip = 0; strip < STRIPS; strip++) sum_strip(&by_bytes[i]);
            speeds[i][round] = STRIPS * macs / (summed - prepared) / 1e9;
            shares[i][round] = speeds[i][round] / limits[round];
            others[i][round] = STRIPS * macs / (seconds() - summed) / 1e9;
            /* A row of the image is prepared once for each row of outputs. */
            tables[i][round] = (prepared - before) * (double)layers[i].strip_rows / (double)layers[i].rows /
                               ((summed - prepared) / STRIPS);
        }
    }
    printf("%-48s %18s %13s %16s %15s\n", "", "multiply-adds a ns", "of the limit", "with its tables", "by vpmaddubsw");
    printf("%-48s %18.0f\n", "look-ups and additions alone, from registers", median(limits));
    for (int i = 0; i < N_SHAPES; i++) {
        char name[80];
        snprintf(name, sizeof name, "sums of a layer, %zu channels at %zu x %zu", SHAPES[i][0], SHAPES[i][1],
                 SHAPES[i][1]);
        const double speed = median(speeds[i]);
        printf("%-48s %18.0f %11.0f %% %16.0f %15.0f\n", name, speed, 100 * median(shares[i]),
               speed / (1 + median(tables[i])), median(others[i]));
    }
    return 0;
}
