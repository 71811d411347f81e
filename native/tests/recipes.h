/* Nets of the kinds that agreement.c compares: each draws one. */
#ifndef ONEBIT_RECIPES_H
#define ONEBIT_RECIPES_H

#include "plans.h"

static const int32_t CHANNELS[] = {1, 2, 3, 4, 5, 8, 16, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 192, 260};

static size_t n_weights(int32_t channels, const onebit_window *window, int32_t outputs) {
    return (size_t)outputs * (size_t)(channels / window->groups) * (size_t)window->kernel[0] *
           (size_t)window->kernel[1];
}

static void add_bconv2d(Plan *plan, int32_t bits, const onebit_window *window, const onebit_output *output) {
    static const int32_t PROJECTIONS[] = {1, 1, 2, 3, 4, 8};
    const size_t taps = (size_t)window->kernel[0] * (size_t)window->kernel[1];
    int32_t J = ONE_OF(PROJECTIONS);
    if (output->channels % J) J = 1;
    const size_t count = n_weights(plan->values[bits].channels, window, output->channels) / (size_t)J;
    onebit_projections projections = {.count = J};
    if (!one_in(4)) projections.masks = draw_signs(plan, projections.n_masks = (size_t)J * taps);
    must(plan, onebit_add_bconv2d(plan->net, bits, window, output->channels, draw_signs(plan, count), count,
                                  &projections, output));
}

/* The input, and bits of it. */
static int32_t add_input_bits(Plan *plan, int32_t channels, const int32_t sides[2]) {
    const int32_t input = add_value(plan, ONEBIT_FLOAT, channels, sides);
    const int32_t bits = add_value(plan, ONEBIT_BITS, channels, sides);
    onebit_output output = plain_output(channels, -1);
    draw_bits(plan, &output, bits, 1);
    must(plan, onebit_add_pointwise(plan->net, input, &output));
    return bits;
}

/* 3 x 3 with zero padding, as nets have it: every shape of tile, odd and even rows. */
static void every_width(Plan *plan, int32_t channels, int32_t width) {
    const onebit_window window = {{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 1};
    const int32_t sides[2] = {5, width}, bits = add_input_bits(plan, channels, sides);
    plan->output = add_value(plan, ONEBIT_FLOAT, channels, sides);
    const onebit_output output = plain_output(channels, plan->output);
    add_bconv2d(plan, bits, &window, &output);
    plan->is_exact = true;
}

typedef struct {
    int32_t channels, outputs, sides[2], sizes[2];
    onebit_window window;
} Layer;

static Layer draw_layer(void) {
    static const int32_t GROUPS[] = {1, 1, 1, 2, 3}, OF_GROUP[] = {1, 3, 32, 65}, OUTPUTS[] = {1, 5, 8, 17, 24};
    const int32_t groups = ONE_OF(GROUPS);
    Layer layer = {.channels = groups > 1 ? groups * ONE_OF(OF_GROUP) : ONE_OF(CHANNELS)};
    layer.outputs = groups > 1 ? groups * ONE_OF(OUTPUTS) : ONE_OF(CHANNELS);
    layer.window = draw_window(groups, layer.sides);
    sizes_made(&layer.window, layer.sides, layer.sizes);
    return layer;
}

/* Two 1-bit layers of one input; the second has a stage, maybe with the first as its residual, and makes numbers, and bits
   unless it is in groups. */
static void bits_to_numbers_and_bits(Plan *plan) {
    const Layer layer = draw_layer();
    const int32_t bits = add_input_bits(plan, layer.channels, layer.sides);
    const int32_t first = add_value(plan, ONEBIT_FLOAT, layer.outputs, layer.sizes);
    onebit_output output = plain_output(layer.outputs, first);
    add_bconv2d(plan, bits, &layer.window, &output);
    plan->output = add_value(plan, ONEBIT_FLOAT, layer.outputs, layer.sizes);
    output = plain_output(layer.outputs, plan->output);
    draw_stage(plan, &output, first);
    const int32_t made = layer.window.groups == 1 ? add_value(plan, ONEBIT_BITS, layer.outputs, layer.sizes) : -1;
    if (made >= 0) draw_bits(plan, &output, made, 9);
    add_bconv2d(plan, bits, &layer.window, &output);
    if (made >= 0) plan->output = join(plan, plan->output, as_floats(plan, made));
    plan->is_exact = true;
}

/* Bits alone, straight from counts, and a second layer that reads them. */
static void bits_to_bits(Plan *plan) {
    Layer layer = draw_layer();
    layer.window.groups = 1;
    const int32_t bits = add_input_bits(plan, layer.channels, layer.sides);
    const int32_t between_layers = add_value(plan, ONEBIT_BITS, layer.outputs, layer.sizes);
    onebit_output output = plain_output(layer.outputs, -1);
    if (one_in(2)) draw_stage(plan, &output, -1);
    draw_bits(plan, &output, between_layers, 9);
    add_bconv2d(plan, bits, &layer.window, &output);
    const onebit_window window = {{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 1};
    const int32_t channels = ONE_OF(CHANNELS);
    plan->output = add_value(plan, ONEBIT_FLOAT, channels, layer.sizes);
    output = plain_output(channels, plan->output);
    add_bconv2d(plan, between_layers, &window, &output);
    plan->is_exact = true;
}

/* Counts at their limits: all bits of a window are equal, and so are those of each kernel. */
static void extremes(Plan *plan) {
    static const int32_t PLANES[] = {31, 33, 64, 128, 255, 256, 260, 1000, 7281}; /* the last: 65529 taps */
    const int32_t channels = ONE_OF(PLANES), outputs = between(2, 70), sides[2] = {3, between(3, 5)};
    const onebit_window window = {{3, 3}, {1, 1}, {1, 1}, {1, 0, 0, 1}, 1};
    const int32_t sizes[2] = {2, sides[1] - 1};
    const size_t count = n_weights(channels, &window, outputs);
    const int32_t input = add_value(plan, ONEBIT_FLOAT, channels, sides);
    const int32_t bits = add_value(plan, ONEBIT_BITS, channels, sides);
    onebit_output output = plain_output(channels, -1);
    draw_bits(plan, &output, bits, 1);
    float *thresholds = draw_floats(plan, (size_t)channels);
    for (int32_t c = 0; c < channels; c++) thresholds[c] = output.at_most[c] ? INFINITY : -INFINITY;
    output.thresholds = thresholds;
    must(plan, onebit_add_pointwise(plan->net, input, &output));
    int8_t *signs = draw_signs(plan, count);
    for (size_t i = 0; i < count; i++) signs[i] = i / (count / (size_t)outputs) % 2 ? 1 : -1;
    plan->output = add_value(plan, ONEBIT_FLOAT, outputs, sizes);
    output = plain_output(outputs, plan->output);
    const onebit_projections one = {.count = 1};
    must(plan, onebit_add_bconv2d(plan->net, bits, &window, outputs, signs, count, &one, &output));
    plan->is_exact = true;
}

/* Sums as whole numbers, their bits, and the largest of neighbours. */
static void sums(Plan *plan) {
    const Layer layer = draw_layer();
    const int32_t bits = add_input_bits(plan, layer.channels, layer.sides);
    const int32_t made = add_value(plan, ONEBIT_SUMS, layer.outputs, layer.sizes);
    onebit_output output = plain_output(layer.outputs, made);
    add_bconv2d(plan, bits, &layer.window, &output);
    const int32_t passed = add_value(plan, ONEBIT_BITS, layer.outputs, layer.sizes);
    int32_t *thresholds = keep(plan, (size_t)layer.outputs * sizeof *thresholds);
    for (int32_t c = 0; c < layer.outputs; c++) thresholds[c] = between(-9, 9);
    must(plan, onebit_add_threshold(plan->net, made, passed, thresholds, draw_flags(plan, layer.outputs),
                                    (size_t)layer.outputs));
    const int32_t numbers = add_value(plan, ONEBIT_FLOAT, layer.outputs, layer.sizes);
    const onebit_window window = {{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 1};
    output = plain_output(layer.outputs, numbers);
    draw_stage(plan, &output, -1);
    must(plan, onebit_add_pool(plan->net, made, &window, ONEBIT_MAX, layer.sizes, &output));
    plan->output = join(plan, numbers, as_floats(plan, passed));
    plan->is_exact = true;
}

/* An output stage by itself, behind floats or the largest of them. */
static void stages_of_floats(Plan *plan) {
    const int32_t channels = ONE_OF(CHANNELS), sides[2] = {between(1, 6), between(1, 6)};
    const int32_t input = add_value(plan, ONEBIT_FLOAT, channels, sides);
    plan->output = add_value(plan, ONEBIT_FLOAT, channels, sides);
    const int32_t bits = add_value(plan, ONEBIT_BITS, channels, sides);
    const onebit_window window = {{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 1};
    onebit_output output = plain_output(channels, plan->output);
    draw_stage(plan, &output, input);
    draw_bits(plan, &output, bits, 1);
    if (one_in(3)) output.numbers_to = -1;
    must(plan, one_in(2) ? onebit_add_pointwise(plan->net, input, &output)
                         : onebit_add_pool(plan->net, input, &window, ONEBIT_MAX, sides, &output));
    const int32_t numbers = as_floats(plan, bits);
    plan->output = output.numbers_to < 0 ? numbers : join(plan, plan->output, numbers);
    plan->is_exact = true;
}

/* Float convolutions, depthwise ones too; images that are large enough for Winograd's way, where a table has it. */
static void float_convolution(Plan *plan) {
    Layer layer = draw_layer();
    if (one_in(3)) layer.window.groups = layer.outputs = layer.channels; /* depthwise */
    if (one_in(4)) {
        layer = (Layer){
            between(16, 40), between(16, 40), {between(12, 20), between(12, 20)}, {0, 0}, {{0}, {0}, {0}, {0}, 0}};
        layer.window = (onebit_window){{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 1};
        sizes_made(&layer.window, layer.sides, layer.sizes);
    }
    const int32_t input = add_value(plan, ONEBIT_FLOAT, layer.channels, layer.sides);
    plan->output = add_value(plan, ONEBIT_FLOAT, layer.outputs, layer.sizes);
    onebit_output output = plain_output(layer.outputs, plan->output);
    if (one_in(2)) {
        output.scale = draw_floats(plan, (size_t)layer.outputs);
        output.shift = draw_floats(plan, (size_t)layer.outputs);
    }
    const size_t count = n_weights(layer.channels, &layer.window, layer.outputs);
    must(plan, onebit_add_conv2d(plan->net, input, &layer.window, layer.outputs, draw_floats(plan, count), count,
                                 one_in(4), &output));
}

/* Means of windows and of parts of the image. */
static void means(Plan *plan) {
    Layer layer = draw_layer();
    layer.window.dilation[0] = layer.window.dilation[1] = layer.window.groups = 1;
    for (int side = 0; side < 4; side++)
        if (layer.window.padding[side] >= layer.window.kernel[side / 2]) layer.window.padding[side] = 0;
    for (int axis = 0; axis < 2; axis++) /* so that it fits without padding */
        if (layer.sides[axis] < layer.window.kernel[axis]) layer.sides[axis] = layer.window.kernel[axis];
    sizes_made(&layer.window, layer.sides, layer.sizes);
    const bool adapts = one_in(3);
    if (adapts) layer.sizes[0] = between(1, layer.sides[0]), layer.sizes[1] = between(1, layer.sides[1]);
    const int32_t input = add_value(plan, ONEBIT_FLOAT, layer.channels, layer.sides);
    plan->output = add_value(plan, ONEBIT_FLOAT, layer.channels, layer.sizes);
    onebit_output output = plain_output(layer.channels, plan->output);
    must(plan, adapts ? onebit_add_adaptive_mean(plan->net, input, layer.sizes, &output)
                      : onebit_add_pool(plan->net, input, &layer.window, one_in(2) ? ONEBIT_MEAN : ONEBIT_MEAN_PADDED,
                                        layer.sizes, &output));
}

/* Where a convolution's numbers go: to a value, or row by row to a pool, which is then what the net makes. */
static int32_t add_numbers(Plan *plan, const Layer *layer, bool is_passed) {
    const Shape shape = {ONEBIT_FLOAT, layer->outputs, {layer->sizes[0], layer->sizes[1]}};
    if (is_passed) return add_value_at(plan, shape, ONEBIT_PASSED, 0);
    return add_value(plan, ONEBIT_FLOAT, layer->outputs, layer->sizes);
}

static void pool_what_is_passed(Plan *plan, int32_t passed) {
    const Shape made = plan->values[passed];
    onebit_window window = {{1, 1}, {2, 2}, {1, 1}, {0, 0, 0, 0}, 1};
    int32_t sizes[2];
    for (int axis = 0; axis < 2; axis++) {
        window.kernel[axis] = between(1, made.sizes[axis] < 4 ? made.sizes[axis] : 4);
        if (axis == 0 && window.kernel[0] > 1)
            window.dilation[0] = between(1, (made.sizes[0] - 1) / (window.kernel[0] - 1));
        window.padding[2 * axis] = window.padding[2 * axis + 1] = window.kernel[axis] / 2;
    }
    sizes_made(&window, made.sizes, sizes);
    plan->output = add_value(plan, ONEBIT_FLOAT, made.channels, sizes);
    const onebit_output output = plain_output(made.channels, plan->output);
    must(plan, onebit_add_pool(plan->net, passed, &window, ONEBIT_MAX, sizes, &output));
}

/* Levels of floats, and a convolution of them: with signs, or with weights of 8 bits, small or large. */
static void convolution_of_levels(Plan *plan) {
    static const int32_t LOWS[] = {0, -1, -100, -128}, SIZES[] = {16, 64, 127};
    const Layer layer = draw_layer();
    const int32_t low = ONE_OF(LOWS), most = ONE_OF(SIZES);
    const int32_t input = add_value(plan, ONEBIT_FLOAT, layer.channels, layer.sides);
    const int32_t levels = add_levels(plan, ONEBIT_LEVELS, layer.channels, layer.sides, low);
    onebit_output output = plain_output(layer.channels, -1);
    output.levels_to = levels;
    output.per_unit = (float)between(1, 100);
    output.high = between(1, 255 + low);
    must(plan, onebit_add_pointwise(plan->net, input, &output));
    const bool is_passed = layer.window.groups == 1 && one_in(2);
    const int32_t made = add_numbers(plan, &layer, is_passed);
    output = plain_output(layer.outputs, made);
    draw_stage(plan, &output, -1);
    output.residual = -1;
    if (one_in(2)) {
        add_bconv2d(plan, levels, &layer.window, &output);
    } else {
        const size_t count = n_weights(layer.channels, &layer.window, layer.outputs);
        int8_t *weights = keep(plan, count);
        for (size_t i = 0; i < count; i++) weights[i] = (int8_t)between(-most, most);
        must(plan, onebit_add_level_conv2d(plan->net, levels, &layer.window, layer.outputs, weights, count, &output));
    }
    plan->output = made;
    if (is_passed) pool_what_is_passed(plan, made);
    plan->is_exact = true;
}

/* Floats whose rows go to a pool. */
static void rows_to_a_pool(Plan *plan) {
    Layer layer = draw_layer();
    layer.window.groups = 1;
    const int32_t input = add_value(plan, ONEBIT_FLOAT, layer.channels, layer.sides);
    const int32_t made = add_numbers(plan, &layer, true);
    const onebit_output output = plain_output(layer.outputs, made);
    const size_t count = n_weights(layer.channels, &layer.window, layer.outputs);
    must(plan, onebit_add_conv2d(plan->net, input, &layer.window, layer.outputs, draw_floats(plan, count), count, 0,
                                 &output));
    pool_what_is_passed(plan, made);
}
#endif
