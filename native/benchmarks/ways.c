/* Is the rule right by which projections share their work (ways_avx2.c)? Many layers, each counted output by output, by pairs
   and by columns, and how much slower what the rule chooses is than the best of the three.

       benchmarks/engine.py --part ways builds and runs this */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../src/bconv2d_avx2.h"
#include "../src/kernels.h"
#include "../src/shared_avx2.h"

enum { TIMES = 15, ROUNDS = 3, APART = 0, N_WAYS = 3, MOST_SIGNS = 256 * 256 * 9 };
static const char *const NAMES[N_WAYS] = {"output by output", "by pairs", "by columns"};

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *aligned(size_t bytes) {
    void *found = aligned_alloc(64, round_up(bytes, 64));
    if (!found) exit(2);
    memset(found, 0, bytes);
    return found;
}

static int8_t signs[MOST_SIGNS], masks[MOST_SHARED * 9];
static uint64_t bits[32 * 32 * 4];
static uint16_t counts[BLOCK_PIXELS * MAX_BLOCK_WIDTH] __attribute__((aligned(64)));

/* 3 x 3 with a border of 1. */
static Bconv2d layer_of(int32_t outputs, int32_t planes, int32_t side) {
    const int32_t sizes[2] = {side, side};
    Bconv2d conv = {.planes = planes, .height = side, .width = side, .outputs = outputs};
    conv.out_height = conv.out_width = side;
    conv.window = (onebit_window){{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 1};
    conv.padded = reach_of(&conv.window, sizes);
    return conv;
}

/* The rows of 3 x 3 windows of whole nibbles are runs of the image: blocks need nothing of their own. */
static void run(const Bconv2d *conv, Block block, void *row) {
    const size_t all = (size_t)conv->out_height * (size_t)conv->out_width;
    prepare_avx2(conv, bits, 0, conv->padded.height, block.prepared, row);
    for (; block.first_pixel < all; block.first_pixel += BLOCK_PIXELS) {
        block.pixels = all - block.first_pixel < BLOCK_PIXELS ? all - block.first_pixel : BLOCK_PIXELS;
        for (block.first_channel = 0; block.first_channel < conv->outputs; block.first_channel += block.width) {
            block.width = block_width_avx2(conv, conv->outputs - block.first_channel);
            count_avx2(conv, &block, counts);
        }
    }
}

static int by_size(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The least of some medians. */
static double time_of(const Bconv2d *conv) {
    void *common = aligned(common_bytes_avx2(conv)), *packed = aligned(packed_bytes_avx2(conv));
    const Block block = {
        .common = common, .packed = packed, .bits = bits, .prepared = aligned(prepared_bytes_avx2(conv))};
    void *row = aligned(row_bytes_avx2(conv));
    double least = 1e9, times[TIMES];
    put_common_avx2(conv, common);
    pack_avx2(conv, signs, packed);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < TIMES; i++) {
            const double start = seconds();
            run(conv, block, row);
            times[i] = seconds() - start;
        }
        qsort(times, TIMES, sizeof(double), by_size);
        if (times[TIMES / 2] < least) least = times[TIMES / 2];
    }
    free(common);
    free(packed);
    free(block.prepared);
    return least;
}

int main(void) {
    static const int32_t KERNELS[] = {1, 2, 4, 8, 16, 24, 32, 64, 128}, PROJECTIONS[] = {2, 3, 4, 8},
                         PLANES[] = {3, 16, 64, 128, 256}, SIDES[] = {7, 16, 32};
    int layers = 0;
    double sum = 0, worst = 0;
    for (size_t i = 0; i < sizeof signs; i++) signs[i] = rand() & 64 ? 1 : -1;
    for (int s = 0; s < 3; s++)
        for (int p = 0; p < 5; p++)
            for (int j = 0; j < 4; j++)
                for (int k = 0; k < 9; k++) {
                    const int32_t J = PROJECTIONS[j], outputs = KERNELS[k] * J, planes = PLANES[p], side = SIDES[s];
                    if (outputs < 8 || outputs > 256 || outputs * planes * side * side > 1 << 24) continue;
                    onebit_net *net = onebit_net_new("avx2");
                    Classes classes;
                    for (size_t i = 0; i < sizeof masks; i++) masks[i] = rand() & 64 ? 1 : -1;
                    if (!net || make_classes(net, J, masks, (size_t)planes, 9, &classes)) return 2;
                    Bconv2d conv = layer_of(outputs, planes, side);
                    const int chosen = shares_avx2(&conv, &classes) ? 1 + classes.way : APART;
                    double times[N_WAYS], best = 1e9;
                    for (int way = 0; way < N_WAYS; way++) {
                        conv.shared = way == APART ? NULL : &classes;
                        classes.way = way - 1;
                        times[way] = time_of(&conv);
                        if (times[way] < best) best = times[way];
                    }
                    const double ratio = times[chosen] / best;
                    printf("%3d kernels, J = %d, %3d planes, %2d x %2d, %zu classes:", KERNELS[k], J, planes, side,
                           side, classes.count);
                    for (int way = 0; way < N_WAYS; way++) printf(" %6.1f us", 1e6 * times[way]);
                    printf(", chosen: %s, %.2f of the best\n", NAMES[chosen], ratio);
                    layers++;
                    sum += ratio;
                    if (ratio > worst) worst = ratio;
                    onebit_net_free(net);
                }
    printf("%d layers: the chosen way takes %.3f of the best one's time in the mean, %.2f at worst\n", layers,
           sum / layers, worst);
    return 0;
}
