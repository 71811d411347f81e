/* How near the AVX2 kernel of 1-bit convolution comes to what the core could do at most: `count` alone, without what comes
   before and after it in a layer, beside loops of nothing but its instructions, all in one run.

       benchmarks/engine.py builds and runs this */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../src/bconv2d_avx2.h"
#include "../src/kernels.h"

enum { ROUNDS = 301, LOOPS = 20000, MACS_OF_LOOK_UP = 32 * 2 * 4 };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What 12 look-ups of the kernel need, from registers alone; no result is waited for. */
/* clang-format off */
#define LOOK_UPS(a, b, c) "vpshufb %%ymm0, %%ymm1, %%" #a "\nvpshufb %%ymm0, %%ymm1, %%" #b "\nvpshufb %%ymm0, %%ymm1, %%" #c "\n"
#define SHIFT(a) "vpsrlw $4, %%" #a ", %%" #a "\n"
#define SUMS(a, b, c, S, T) "vpaddb %%" #b ", %%" #a ", %%" #a "\nvpaddb %%" #c ", %%" #a ", %%" #a "\n"          \
    "vpaddb %%" #a ", %%" #S ", %%" #S "\n" SHIFT(a) "vpaddb %%" #a ", %%" #T ", %%" #T "\n"
#define CLOBBERED "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11", "ymm12"
static void look_ups_and_shifts(void) {
    for (int i = 0; i < LOOPS; i++)
        __asm__ volatile(LOOK_UPS(ymm2, ymm3, ymm4) SHIFT(ymm2) LOOK_UPS(ymm5, ymm6, ymm7) SHIFT(ymm5)
                         LOOK_UPS(ymm8, ymm9, ymm10) SHIFT(ymm8) LOOK_UPS(ymm2, ymm3, ymm4) SHIFT(ymm2) ::: CLOBBERED);
}

static void and_additions(void) {
    for (int i = 0; i < LOOPS; i++)
        __asm__ volatile(LOOK_UPS(ymm2, ymm3, ymm4) SUMS(ymm2, ymm3, ymm4, ymm11, ymm12)
                         LOOK_UPS(ymm5, ymm6, ymm7) SUMS(ymm5, ymm6, ymm7, ymm11, ymm12)
                         LOOK_UPS(ymm8, ymm9, ymm10) SUMS(ymm8, ymm9, ymm10, ymm11, ymm12)
                         LOOK_UPS(ymm2, ymm3, ymm4) SUMS(ymm2, ymm3, ymm4, ymm11, ymm12) ::: CLOBBERED);
}
/* clang-format on */

/* 3 x 3 with a border of 1, as many channels out as in. */
typedef struct {
    Bconv2d conv;
    Block block;
    uint16_t counts[BLOCK_PIXELS * MAX_BLOCK_WIDTH] __attribute__((aligned(64)));
} Layer;

static void *aligned(size_t bytes) {
    void *found = aligned_alloc(64, round_up(bytes, 64));
    if (!found) exit(2);
    memset(found, 0, bytes);
    return found;
}

static Layer *new_layer(int32_t channels, int32_t side) {
    Layer *layer = aligned(sizeof *layer);
    const int32_t sizes[2] = {side, side};
    layer->conv = (Bconv2d){.planes = channels, .height = side, .width = side, .outputs = channels};
    layer->conv.out_height = layer->conv.out_width = side;
    layer->conv.window = (onebit_window){{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 1};
    layer->conv.padded = reach_of(&layer->conv.window, sizes);
    const size_t n_signs = (size_t)channels * (size_t)channels * 9;
    const size_t n_words = (size_t)side * (size_t)side * words_of(channels);
    int8_t *signs = aligned(n_signs);
    uint64_t *bits = aligned(n_words * sizeof *bits);
    for (size_t i = 0; i < n_signs; i++) signs[i] = rand() & 64 ? 1 : -1;
    const uint64_t used = channels % 64 ? (UINT64_C(1) << channels % 64) - 1 : ~UINT64_C(0);
    for (size_t i = 0; i < n_words; i++)
        bits[i] = ((uint64_t)rand() << 42 ^ (uint64_t)rand() << 21 ^ (uint64_t)rand()) & used;
    void *packed = aligned(packed_bytes_avx2(&layer->conv)), *prepared = aligned(prepared_bytes_avx2(&layer->conv));
    void *common = aligned(common_bytes_avx2(&layer->conv));
    put_common_avx2(&layer->conv, common);
    pack_avx2(&layer->conv, signs, packed);
    prepare_avx2(&layer->conv, bits, prepared);
    layer->block = (Block){.common = common, .packed = packed, .bits = bits, .prepared = prepared};
    return layer;
}

static void count_all(Layer *layer) {
    const size_t all = (size_t)layer->conv.out_height * (size_t)layer->conv.out_width;
    for (Block block = layer->block; block.first_pixel < all; block.first_pixel += BLOCK_PIXELS) {
        block.pixels = all - block.first_pixel < BLOCK_PIXELS ? all - block.first_pixel : BLOCK_PIXELS;
        prepare_block_avx2(&layer->conv, &block);
        for (block.first_channel = 0; block.first_channel < layer->conv.outputs; block.first_channel += block.width) {
            block.width = block_width_avx2(&layer->conv, layer->conv.outputs - block.first_channel);
            count_avx2(&layer->conv, &block, layer->counts);
        }
    }
}

static int by_size(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

int main(void) {
    static const int32_t SHAPES[][2] = {{16, 32}, {32, 16}, {64, 56}, {128, 28}, {256, 14}, {512, 7}};
    enum { N_SHAPES = sizeof SHAPES / sizeof *SHAPES, ROWS = N_SHAPES + 2, LIMIT = 1 };
    static double speeds[ROWS][ROUNDS], shares[ROWS][ROUNDS]; /* multiply-adds a nanosecond, and of LIMIT's */
    static char names[ROWS][80];
    Layer *layers[N_SHAPES];
    for (int i = 0; i < N_SHAPES; i++) layers[i] = new_layer(SHAPES[i][0], SHAPES[i][1]);
    snprintf(names[0], sizeof *names, "look-ups and shifts alone, from registers");
    snprintf(names[1], sizeof *names, "with additions: the limit");
    for (int round = 0; round < ROUNDS; round++)
        for (int row = 0; row < ROWS; row++) {
            double macs = 12.0 * LOOPS * MACS_OF_LOOK_UP;
            const double start = seconds();
            if (row == 0) look_ups_and_shifts();
            if (row == 1) and_additions();
            if (row > 1) {
                const int32_t channels = SHAPES[row - 2][0], side = SHAPES[row - 2][1];
                count_all(layers[row - 2]);
                macs = 9.0 * channels * channels * side * side;
                snprintf(names[row], sizeof *names, "counts of a layer, %d channels at %d x %d", channels, side, side);
            }
            speeds[row][round] = macs / (seconds() - start) / 1e9;
        }
    for (int round = 0; round < ROUNDS; round++)
        for (int row = 0; row < ROWS; row++) shares[row][round] = speeds[row][round] / speeds[LIMIT][round];
    printf("%-44s %18s %16s\n", "", "multiply-adds a ns", "of the limit");
    for (int row = 0; row < ROWS; row++) {
        qsort(speeds[row], ROUNDS, sizeof(double), by_size);
        qsort(shares[row], ROUNDS, sizeof(double), by_size);
        printf("%-44s %8.0f (p90 %.0f) %15.0f %%\n", names[row], speeds[row][ROUNDS / 2], speeds[row][ROUNDS * 9 / 10],
               100 * shares[row][ROUNDS / 2]);
    }
    return 0;
}
