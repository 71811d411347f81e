/* The AVX2 kernels of levels with every buffer against a page that can't be read or written: what their assembly touches, no
   sanitizer sees. Sums must be those of plain C.

       guard_levels SEED CONVOLUTIONS */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../src/levels_avx2.h"

enum { PAGE = 4096, GARBAGE = 0xE7 };

/* Memory that ends at a forbidden page, at most `alignment` bytes before it. */
typedef struct {
    char *base, *data;
    size_t length;
} Area;

static Area new_area(size_t bytes, size_t alignment) {
    const size_t usable = round_up(bytes, PAGE) + PAGE;
    Area area = {.length = usable + PAGE};
    area.base = mmap(NULL, area.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area.base == MAP_FAILED || mprotect(area.base + usable, PAGE, PROT_NONE)) exit(2);
    memset(area.base, GARBAGE, usable);
    area.data = area.base + (usable - bytes) / alignment * alignment;
    return area;
}

static void free_area(Area area) { munmap(area.base, area.length); }

static size_t between(size_t low, size_t high) { return low + (size_t)rand() % (high - low + 1); }

/* An image of one row of pixels, and the places in it where the runs of windows begin. */
typedef struct {
    LevelConv conv;
    size_t image_pixels, pixels;
    size_t runs[LEVEL_PIXELS][3];
    Area bytes, weights;
} Case;

static Case draw(bool are_signs) {
    static const size_t PLANES[] = {1, 2, 3, 4, 5, 8, 13, 16, 31, 33, 64, 67, 128, 260};
    Case made = {.conv = {.planes = PLANES[between(0, sizeof PLANES / sizeof *PLANES - 1)],
                          .outputs = between(0, 1) ? between(1, 20) : between(1, 150),
                          .runs = between(1, 3),
                          .run_pixels = between(1, 7)},
                 .pixels = between(1, LEVEL_PIXELS)};
    made.image_pixels = made.conv.run_pixels + between(0, 20);
    for (size_t i = 0; i < LEVEL_PIXELS; i++)
        for (size_t run = 0; run < made.conv.runs; run++)
            made.runs[i][run] = between(0, 3) ? between(0, made.image_pixels - made.conv.run_pixels)
                                              : made.image_pixels - made.conv.run_pixels;
    const size_t n_weights = made.conv.outputs * made.conv.planes * made.conv.runs * made.conv.run_pixels;
    const int32_t most = are_signs ? 1 : between(0, 1) ? 32 : 64;
    made.bytes = new_area(made.image_pixels * made.conv.planes, 1);
    made.weights = new_area(n_weights, 1);
    for (size_t i = 0; i < made.image_pixels * made.conv.planes; i++) made.bytes.data[i] = (char)(rand() >> 4);
    for (size_t i = 0; i < n_weights; i++)
        made.weights.data[i] = (char)(are_signs ? (rand() & 64 ? 1 : -1) : rand() % (2 * most + 1) - most);
    return made;
}

/* All sums, [pixel][output]. */
static void sum_all(const LevelKernels *kernels, const Case *of, int32_t *all) {
    const LevelConv *conv = &of->conv;
    const size_t pixel_bytes = kernels->pixel_bytes(conv), channels = level_channels(kernels, conv->outputs);
    const Area prepared = new_area(of->image_pixels * pixel_bytes + LEVEL_SLACK, 1),
               packed = new_area(kernels->packed_bytes(conv), 64), bases = new_area(channels * sizeof(int32_t), 4),
               away = new_area(of->image_pixels * sizeof(int32_t), 4);
    memset(packed.data, 0, kernels->packed_bytes(conv)); /* as net_alloc gives it */
    kernels->pack(conv, (const int8_t *)of->weights.data, packed.data);
    kernels->prepare(conv, (const uint8_t *)of->bytes.data, of->image_pixels, prepared.data,
                     (int32_t *)(void *)away.data);
    for (size_t n = 0; n < channels; n++) ((int32_t *)(void *)bases.data)[n] = (int32_t)n - 50;
    const void *windows[LEVEL_PIXELS * 3];
    int32_t taken_away[LEVEL_PIXELS] = {0};
    for (size_t i = 0; i < LEVEL_PIXELS; i++)
        for (size_t run = 0; run < conv->runs; run++) {
            windows[i * conv->runs + run] = prepared.data + of->runs[i][run] * pixel_bytes;
            for (size_t k = 0; k < conv->run_pixels && kernels->takes_away; k++)
                taken_away[i] += ((const int32_t *)(const void *)away.data)[of->runs[i][run] + k];
        }
    LevelBlock block = {.packed = packed.data, .windows = windows, .pixels = of->pixels, .taken_away = taken_away};
    for (; block.first_channel < conv->outputs; block.first_channel += block.width) {
        block.width = kernels->width(conv->outputs - block.first_channel);
        block.bases = (const int32_t *)(const void *)bases.data + block.first_channel;
        const Area sums = new_area(LEVEL_PIXELS * block.width * sizeof(int32_t), 64);
        kernels->sum(conv, &block, (int32_t *)(void *)sums.data);
        for (size_t i = 0; i < of->pixels; i++)
            for (size_t n = 0; n < block.width && block.first_channel + n < conv->outputs; n++)
                all[i * conv->outputs + block.first_channel + n] =
                    ((const int32_t *)(const void *)sums.data)[i * block.width + n];
        free_area(sums);
    }
    free_area(prepared);
    free_area(packed);
    free_area(bases);
    free_area(away);
}

int main(int n_words, char **words) {
    if (n_words != 3) return 2;
    srand((unsigned)atoi(words[1]));
    const int wanted = atoi(words[2]);
    for (int done = 0; done < wanted; done++) {
        const bool are_signs = done % 2;
        const Case drawn = draw(are_signs);
        const size_t bytes = drawn.pixels * drawn.conv.outputs * sizeof(int32_t);
        int32_t *found = malloc(bytes), *expected = malloc(bytes);
        sum_all(are_signs ? &signs_of_levels_avx2 : &bytes_of_levels_avx2, &drawn, found);
        sum_all(&level_kernels_scalar, &drawn, expected);
        if (memcmp(found, expected, bytes)) {
            printf("convolution %d of seed %s: sums differ\n", done, words[1]);
            return 1;
        }
        free_area(drawn.bytes);
        free_area(drawn.weights);
        free(found);
        free(expected);
    }
    printf("%d passed, 0 failed\n", wanted);
    return 0;
}
