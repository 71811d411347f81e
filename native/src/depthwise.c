/* Convolution of floats with one kernel a channel: every channel on its own, so channels go side by side. */
#include <string.h>

#include "convolution.h"
#include "kernels.h"

typedef struct {
    Step step;
    ConvolutionShape shape;
    Output output;
    float *weight; /* [tap][channel] */
} DepthwiseStep;

bool is_depthwise(const Convolution *convolution, const Value *image) {
    const int32_t channels = image->channels;
    return channels > 1 && convolution->window->groups == channels && convolution->outputs == channels;
}

/* sums = the window at this row and column, taps outside of the image left out */
static void sum_window(const DepthwiseStep *it, const Kernels *kernels, const float *image, int32_t row, int32_t column,
                       float *sums) {
    const onebit_window *window = &it->shape.window;
    const size_t channels = (size_t)it->shape.channels;
    memset(sums, 0, channels * sizeof *sums);
    for (int32_t dy = 0; dy < window->kernel[0]; dy++) {
        const int32_t y = tap_at(window, 0, row, dy);
        if (y < 0 || y >= it->shape.height) continue;
        for (int32_t dx = 0; dx < window->kernel[1]; dx++) {
            const int32_t x = tap_at(window, 1, column, dx);
            if (x < 0 || x >= it->shape.width) continue;
            kernels->multiply_add(image + ((size_t)y * (size_t)it->shape.width + (size_t)x) * channels,
                                  it->weight + (size_t)(dy * window->kernel[1] + dx) * channels, sums, channels);
        }
    }
}

/* Units: rows of windows. */
static void run_depthwise(const Step *step, const Run *run, size_t first, size_t end) {
    const DepthwiseStep *it = (const DepthwiseStep *)step;
    const float *image = numbers(run, it->shape.input);
    float *sums = (float *)run->own; /* of a row */
    const size_t channels = (size_t)it->shape.channels, width = (size_t)it->shape.sizes[1];
    Pixels pixels = {.floats = sums, .stride = channels, .count = width, .channels = it->shape.channels};
    aim(&it->output, run, &pixels);
    for (size_t row = first; row < end; row++) {
        for (size_t column = 0; column < width; column++)
            sum_window(it, run->net->kernels, image, (int32_t)row, (int32_t)column, sums + column * channels);
        pixels.first = row * width;
        run->net->kernels->finish(&it->output, &pixels);
    }
}

static onebit_status add_again(onebit_net *net, const Step *step, int32_t input, const onebit_output *output);

/* What is known but for the output. */
static onebit_status finish_step(onebit_net *net, DepthwiseStep *it, const onebit_output *output) {
    const size_t width = (size_t)it->shape.sizes[1], channels = (size_t)it->shape.channels;
    it->step = (Step){.phases = {{run_depthwise, (size_t)it->shape.sizes[0]}},
                      .own_bytes = width * channels * sizeof(float),
                      .again = add_again};
    const onebit_status status = check_output(net, output, it->shape.channels, it->shape.sizes, false, &it->output);
    const Loop loop = it->shape.channels >= net->kernels->least_added ? IN_TABLE : IN_PLAIN_C;
    return status ? status : add_step(net, &it->step, "depthwise", loop);
}

static onebit_status add_again(onebit_net *net, const Step *step, int32_t input, const onebit_output *output) {
    const DepthwiseStep *first = (const DepthwiseStep *)step;
    if (!readable_as(net, input, first->shape.input)) return ONEBIT_INVALID;
    DepthwiseStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = *first;
    it->shape.input = input;
    return finish_step(net, it, output);
}

onebit_status add_depthwise(onebit_net *net, const Convolution *wanted, const float *weight) {
    const Value *image = &net->values[wanted->input];
    const onebit_window *window = wanted->window;
    const size_t channels = (size_t)image->channels, taps = (size_t)window->kernel[0] * (size_t)window->kernel[1];
    DepthwiseStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = (DepthwiseStep){.shape = shape_of(wanted, image), .weight = net_alloc(net, taps * channels * sizeof(float))};
    if (!it->weight) return no_memory(net);
    for (size_t channel = 0; channel < channels; channel++)
        for (size_t tap = 0; tap < taps; tap++) it->weight[tap * channels + channel] = weight[channel * taps + tap];
    return finish_step(net, it, wanted->output);
}
