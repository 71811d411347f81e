/* Convolutions whose sums are too large for the kernels: of bits with very many taps, and of levels with very many taps or
   with large weights. */
#include <stdlib.h>
#include <string.h>

#include "convolution.h"
#include "kernels.h"

typedef struct {
    Step step;
    ConvolutionShape shape;
    Output output;
    int32_t low;     /* of levels */
    int8_t *weights; /* as given: [output][plane][tap] */
} WideStep;

static int32_t level_at(const WideStep *it, const void *image, bool is_bits, size_t pixel, int32_t channel) {
    if (!is_bits) return ((const uint8_t *)image)[pixel * (size_t)it->shape.channels + (size_t)channel] + it->low;
    const uint64_t word = ((const uint64_t *)image)[pixel * words_of(it->shape.channels) + (size_t)channel / 64];
    return word >> channel % 64 & 1 ? 1 : -1;
}

/* Exact in 32 bits: that was checked. */
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
            const int8_t *w = it->weights + (size_t)n * (size_t)planes * taps + (size_t)(dy * window->kernel[1] + dx);
            for (int32_t plane = 0; plane < planes; plane++, w += taps)
                sum += *w * level_at(it, image, is_bits, pixel, group * planes + plane);
        }
    }
    return sum;
}

/* Pixels from `first` to before `end`, to where `pixels` aims, which begins with pixel `origin`. */
static void run_pixels(const WideStep *it, const Run *run, size_t first, size_t end, size_t origin, int32_t *sums,
                       Pixels pixels) {
    const void *image = numbers(run, it->shape.input);
    const bool is_bits = run->net->values[it->shape.input].kind == ONEBIT_BITS;
    pixels.sums = sums;
    pixels.count = 1;
    pixels.channels = it->shape.outputs;
    for (size_t pixel = first; pixel < end; pixel++) {
        const int32_t width = it->shape.sizes[1], row = (int32_t)pixel / width, column = (int32_t)pixel % width;
        for (int32_t n = 0; n < it->shape.outputs; n++) sums[n] = sum_of_window(it, image, is_bits, n, row, column);
        pixels.first = pixel - origin;
        run->net->kernels->finish(&it->output, &pixels);
    }
}

/* Units: pixels. */
static void run_wide(const Step *step, const Run *run, size_t first, size_t end) {
    const WideStep *it = (const WideStep *)step;
    Pixels pixels = {0};
    aim(&it->output, run, &pixels);
    run_pixels(it, run, first, end, 0, (int32_t *)run->own, pixels);
}

static void make_rows(const Step *step, const Run *run, size_t first, size_t end, float *rows, char *scratch) {
    const WideStep *it = (const WideStep *)step;
    const size_t width = (size_t)it->shape.sizes[1];
    run_pixels(it, run, first * width, end * width, first * width, (int32_t *)scratch, (Pixels){.float_numbers = rows});
}

static onebit_status add_again(onebit_net *net, const Step *step, int32_t input, const onebit_output *output);

/* What is known but for the output. */
static onebit_status finish_step(onebit_net *net, WideStep *it, const onebit_output *output) {
    const onebit_status status = check_output(net, output, it->shape.outputs, it->shape.sizes, true, &it->output);
    const size_t sums_bytes = (size_t)it->shape.outputs * sizeof(int32_t);
    if (it->output.passes_on)
        it->step = (Step){.make_rows = make_rows, .rows_bytes = sums_bytes};
    else
        it->step = (Step){.phases = {{run_wide, (size_t)it->shape.sizes[0] * (size_t)it->shape.sizes[1]}},
                          .own_bytes = sums_bytes};
    it->step.again = add_again;
    return status ? status : add_step(net, &it->step, "wide sums", IN_PLAIN_C);
}

static onebit_status add_again(onebit_net *net, const Step *step, int32_t input, const onebit_output *output) {
    const WideStep *first = (const WideStep *)step;
    if (!readable_as(net, input, first->shape.input)) return ONEBIT_INVALID;
    WideStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = *first;
    it->shape.input = input;
    return finish_step(net, it, output);
}

onebit_status add_wide_conv2d(onebit_net *net, const Convolution *wanted, const int8_t *weights) {
    const Value *image = &net->values[wanted->input];
    const size_t taps = (size_t)taps_of_output(image, wanted->window), n_weights = taps * (size_t)wanted->outputs;
    const int64_t most = INT32_MAX / (image->kind == ONEBIT_BITS ? 1 : MAX_LEVEL);
    for (size_t n = 0; n < (size_t)wanted->outputs; n++) {
        int64_t size = 0;
        for (size_t i = 0; i < taps; i++) size += abs(weights[n * taps + i]);
        if (size > most) return invalid(net, "sums would not fit 32 bits");
    }
    WideStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = (WideStep){.shape = shape_of(wanted, image), .low = image->low, .weights = net_alloc(net, n_weights)};
    if (!it->weights) return no_memory(net);
    memcpy(it->weights, weights, n_weights);
    return finish_step(net, it, wanted->output);
}
