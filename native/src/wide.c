/* 1-bit convolutions that counts of 16 bits can't do: of levels, and of bits with very many taps. */
#include <stdlib.h>
#include <string.h>

#include "convolution.h"
#include "kernels.h"

enum { MAX_LEVEL = 255 };
static const int64_t EXACT_FLOATS = INT64_C(1) << 24; /* floats hold every whole number up to here */

typedef struct {
    Step step;
    ConvolutionShape shape;
    Output output;
    int8_t *signs; /* as given: [output][plane][tap] */
} WideStep;

static int32_t level_at(const WideStep *it, const void *image, bool is_bits, size_t pixel, int32_t channel) {
    if (!is_bits) {
        const float level = ((const float *)image)[pixel * (size_t)it->shape.channels + (size_t)channel];
        return level >= -MAX_LEVEL && level <= MAX_LEVEL ? (int32_t)level : 0;
    }
    const uint64_t word = ((const uint64_t *)image)[pixel * words_of(it->shape.channels) + (size_t)channel / 64];
    return word >> channel % 64 & 1 ? 1 : -1;
}

/* Exact in 32 bits: there are at most INT32_MAX / MAX_LEVEL taps. */
static int32_t sum_of_window(const WideStep *it, const void *image, bool is_bits, int32_t n, int32_t row,
                             int32_t column) {
    const onebit_window *window = &it->shape.window;
    const int32_t planes = it->shape.channels / window->groups, group = n / (it->shape.outputs / window->groups);
    const size_t taps = (size_t)window->kernel[0] * (size_t)window->kernel[1];
    int32_t sum = 0;
    for (int32_t dy = 0; dy < window->kernel[0]; dy++) {
        const int32_t y = tap_at(window, 0, row, dy);
        if (y < 0 || y >= it->shape.height) continue;
        for (int32_t dx = 0; dx < window->kernel[1]; dx++) {
            const int32_t x = tap_at(window, 1, column, dx);
            if (x < 0 || x >= it->shape.width) continue;
            const size_t pixel = (size_t)y * (size_t)it->shape.width + (size_t)x;
            const int8_t *sign = it->signs + (size_t)n * (size_t)planes * taps + (size_t)(dy * window->kernel[1] + dx);
            for (int32_t plane = 0; plane < planes; plane++, sign += taps)
                sum += *sign * level_at(it, image, is_bits, pixel, group * planes + plane);
        }
    }
    return sum;
}

/* Units: pixels. */
static void run_wide(const Step *step, const Run *run, size_t first, size_t end) {
    const WideStep *it = (const WideStep *)step;
    const void *image = numbers(run, it->shape.input);
    const bool is_bits = run->net->values[it->shape.input].kind == ONEBIT_BITS;
    int32_t *sums = (int32_t *)run->own;
    Pixels pixels = {.sums = sums, .count = 1, .channels = it->shape.outputs};
    aim(&it->output, run, &pixels);
    for (pixels.first = first; pixels.first < end; pixels.first++) {
        const int32_t width = it->shape.sizes[1], row = (int32_t)pixels.first / width,
                      column = (int32_t)pixels.first % width;
        for (int32_t n = 0; n < it->shape.outputs; n++) sums[n] = sum_of_window(it, image, is_bits, n, row, column);
        run->net->kernels->finish(&it->output, &pixels);
    }
}

/* Levels whose sums are small: the float kernel is exact, and fast. */
static onebit_status add_as_floats(onebit_net *net, const Convolution *wanted, const int8_t *signs, size_t n_signs) {
    float *weight = malloc(n_signs * sizeof *weight);
    if (!weight) return no_memory(net);
    for (size_t i = 0; i < n_signs; i++) weight[i] = signs[i] > 0 ? 1.f : -1.f;
    const onebit_status status = add_float_conv2d(net, wanted, weight);
    free(weight);
    return status;
}

onebit_status add_wide_bconv2d(onebit_net *net, const Convolution *wanted, const int8_t *signs) {
    const Value *image = &net->values[wanted->input];
    const int64_t taps = taps_of_output(image, wanted->window);
    const size_t n_signs = (size_t)taps * (size_t)wanted->outputs;
    if (image->kind == ONEBIT_LEVELS && taps * MAX_LEVEL < EXACT_FLOATS)
        return add_as_floats(net, wanted, signs, n_signs);
    if (taps > INT32_MAX / (image->kind == ONEBIT_BITS ? 1 : MAX_LEVEL))
        return invalid(net, "sums would not fit 32 bits");
    WideStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = (WideStep){.step = {.phases = {{run_wide, (size_t)wanted->sizes[0] * (size_t)wanted->sizes[1]}},
                              .own_bytes = (size_t)wanted->outputs * sizeof(int32_t)},
                     .shape = shape_of(wanted, image),
                     .signs = net_alloc(net, n_signs)};
    if (!it->signs) return no_memory(net);
    for (size_t i = 0; i < n_signs; i++) it->signs[i] = signs[i] > 0 ? 1 : -1;
    const onebit_status status = check_output(net, wanted->output, wanted->outputs, it->shape.sizes, true, &it->output);
    return status ? status : add_step(net, &it->step, "wide sums", IN_PLAIN_C);
}
