/* Operations of number by number. */
#include <math.h>
#include <string.h>

#include "kernels.h"

static const char NUMBER_BY_NUMBER[] = "number by number";

/* Values of one shape to read and to write; false if they are not. */
static bool check_pair(onebit_net *net, int32_t input, int in_kinds, int32_t output, int out_kinds) {
    const Value *in = readable(net, input, in_kinds), *out = in ? writable(net, output, out_kinds) : NULL;
    if (!in || !out) return false;
    if (has_shape(out, in->channels, (const int32_t[2]){in->height, in->width})) return true;
    invalid(net, "value %d has another shape than %d", output, input);
    return false;
}

/* Straight to the output stage. */

typedef struct {
    Step step;
    int32_t input;
    Output output;
} PointwiseStep;

/* Units of all steps here: pixels. */
static void run_pointwise(const Step *step, const Run *run, size_t first, size_t end) {
    const PointwiseStep *it = (const PointwiseStep *)step;
    const Value *in = &run->net->values[it->input];
    const size_t channels = (size_t)in->channels;
    const void *from = numbers(run, it->input);
    Pixels pixels = {.stride = channels, .first = first, .count = end - first, .channels = in->channels};
    aim(&it->output, run, &pixels);
    if (in->kind != ONEBIT_BITS) {
        if (in->kind == ONEBIT_SUMS)
            pixels.sums = (const int32_t *)from + first * channels;
        else
            pixels.floats = (const float *)from + first * channels;
        run->net->kernels->finish(&it->output, &pixels);
        return;
    }
    float *row = (float *)run->own; /* bits become numbers pixel by pixel */
    pixels.floats = row;
    pixels.count = 1;
    for (; pixels.first < end; pixels.first++) {
        const uint64_t *bits = (const uint64_t *)from + pixels.first * words_of(in->channels);
        for (int32_t c = 0; c < in->channels; c++) row[c] = bits[c / 64] >> c % 64 & 1 ? 1.f : -1.f;
        run->net->kernels->finish(&it->output, &pixels);
    }
}

onebit_status onebit_add_pointwise(onebit_net *net, int32_t input, const onebit_output *wanted) {
    const Value *in = readable(net, input, FLOATS | SUMS | BITS);
    if (!in) return ONEBIT_INVALID;
    PointwiseStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = (PointwiseStep){.step = {.phases = {{run_pointwise, pixels_of(in)}}}, .input = input};
    const int32_t sizes[2] = {in->height, in->width};
    const int32_t channels = in->channels;
    if (in->kind == ONEBIT_BITS) it->step.own_bytes = (size_t)channels * sizeof(float);
    const onebit_status status = check_output(net, wanted, channels, sizes, in->kind == ONEBIT_SUMS, &it->output);
    const bool is_in_table =
        in->kind != ONEBIT_BITS && (channels >= net->kernels->least_finished || makes_only_levels(&it->output));
    return status ? status : add_step(net, &it->step, "output stage", is_in_table ? IN_TABLE : IN_PLAIN_C);
}

/* Two values. */

typedef struct {
    Step step;
    int32_t left, right, output;
    onebit_binary binary;
} BinaryStep;

static void run_binary(const Step *step, const Run *run, size_t first, size_t end) {
    const BinaryStep *it = (const BinaryStep *)step;
    const Value *a = &run->net->values[it->left], *b = &run->net->values[it->right],
                *out = &run->net->values[it->output];
    const float *left = numbers(run, it->left), *right = numbers(run, it->right);
    const size_t channels = (size_t)out->channels, width = (size_t)out->width;
    float *made = (float *)numbers(run, it->output) + first * channels;
    /* A side of 1 is repeated: its stride is 0. */
#define STRIDES(v) \
    {v->height > 1 ? (size_t)(v->width * v->channels) : 0, v->width > 1 ? (size_t)v->channels : 0, v->channels > 1}
    const size_t a_by[3] = STRIDES(a), b_by[3] = STRIDES(b);
    for (size_t pixel = first; pixel < end; pixel++) {
        const size_t y = pixel / width, x = pixel % width;
        const float *l = left + y * a_by[0] + x * a_by[1], *r = right + y * b_by[0] + x * b_by[1];
        for (size_t c = 0; c < channels; c++, made++) {
            const float u = l[c * a_by[2]], v = r[c * b_by[2]];
            *made = it->binary == ONEBIT_ADD ? u + v : u * v;
        }
    }
}

static bool meets(int32_t a, int32_t b, int32_t made) {
    return (a == made || a == 1) && (b == made || b == 1) && (a == made || b == made);
}

onebit_status onebit_add_binary(onebit_net *net, int32_t left, int32_t right, int32_t output, onebit_binary binary) {
    const Value *a = readable(net, left, FLOATS), *b = a ? readable(net, right, FLOATS) : NULL;
    const Value *out = b ? writable(net, output, FLOATS) : NULL;
    if (!out) return ONEBIT_INVALID;
    if (!meets(a->channels, b->channels, out->channels) || !meets(a->height, b->height, out->height) ||
        !meets(a->width, b->width, out->width) || (binary != ONEBIT_ADD && binary != ONEBIT_MULTIPLY))
        return invalid(net, "values %d and %d don't make value %d", left, right, output);
    BinaryStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = (BinaryStep){.step = {.phases = {{run_binary, pixels_of(out)}}},
                       .left = left,
                       .right = right,
                       .output = output,
                       .binary = binary};
    return add_step(net, &it->step, NUMBER_BY_NUMBER, IN_PLAIN_C);
}

/* Functions of one number. */

typedef struct {
    Step step;
    int32_t input, output;
    onebit_unary unary;
} UnaryStep;

static float sixth(float x) { /* min(max(x + 3, 0), 6) / 6, NaN stays NaN */
    x += 3;
    if (x < 0) x = 0;
    if (x > 6) x = 6;
    return x / 6;
}

static float sigmoid(float x) { return 0.5f * (1 + tanhf(0.5f * x)); } /* 1 / (1 + exp(-x)) could overflow */

static float unary_of(onebit_unary unary, float x) {
    switch (unary) {
        case ONEBIT_SIGMOID: return sigmoid(x);
        case ONEBIT_HARDSIGMOID: return sixth(x);
        case ONEBIT_HARDSWISH: return x * sixth(x);
        case ONEBIT_SILU: return x * sigmoid(x);
        case ONEBIT_TANH: return tanhf(x);
        case ONEBIT_ELU: return x > 0 ? x : expm1f(x);
        case ONEBIT_ABS: return fabsf(x);
        default: return x;
    }
}

static void softmax(const float *x, float *y, size_t channels) {
    float largest = x[0], sum = 0;
    for (size_t c = 1; c < channels; c++) largest = x[c] > largest ? x[c] : largest;
    for (size_t c = 0; c < channels; c++) sum += y[c] = expf(x[c] - largest);
    for (size_t c = 0; c < channels; c++) y[c] /= sum;
}

static void run_unary(const Step *step, const Run *run, size_t first, size_t end) {
    const UnaryStep *it = (const UnaryStep *)step;
    const float *x = numbers(run, it->input);
    float *y = numbers(run, it->output);
    const size_t channels = (size_t)run->net->values[it->input].channels;
    if (it->unary == ONEBIT_SOFTMAX)
        for (size_t i = first; i < end; i++) softmax(x + i * channels, y + i * channels, channels);
    else
        for (size_t i = first * channels; i < end * channels; i++) y[i] = unary_of(it->unary, x[i]);
}

onebit_status onebit_add_unary(onebit_net *net, int32_t input, int32_t output, onebit_unary unary) {
    if ((int)unary < ONEBIT_SIGMOID || (int)unary > ONEBIT_SOFTMAX) return invalid(net, "an unknown function");
    if (!check_pair(net, input, FLOATS, output, FLOATS)) return ONEBIT_INVALID;
    UnaryStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = (UnaryStep){.step = {.phases = {{run_unary, pixels_of(&net->values[input])}}},
                      .input = input,
                      .output = output,
                      .unary = unary};
    return add_step(net, &it->step, NUMBER_BY_NUMBER, IN_PLAIN_C);
}

/* Bits of sums. */

typedef struct {
    Step step;
    int32_t input, output;
    int32_t *thresholds;
    uint8_t *at_most;
} ThresholdStep;

static void run_threshold(const Step *step, const Run *run, size_t first, size_t end) {
    const ThresholdStep *it = (const ThresholdStep *)step;
    const int32_t channels = run->net->values[it->input].channels;
    const size_t words = words_of(channels);
    const int32_t *sums = (const int32_t *)numbers(run, it->input) + first * (size_t)channels;
    uint64_t *bits = (uint64_t *)numbers(run, it->output) + first * words;
    for (size_t pixel = first; pixel < end; pixel++, sums += channels, bits += words) {
        memset(bits, 0, words * sizeof *bits);
        for (int32_t c = 0; c < channels; c++) {
            const bool is_one = it->at_most[c] ? sums[c] <= it->thresholds[c] : sums[c] >= it->thresholds[c];
            bits[c / 64] |= (uint64_t)is_one << c % 64;
        }
    }
}

onebit_status onebit_add_threshold(onebit_net *net, int32_t input, int32_t output, const int32_t *thresholds,
                                   const uint8_t *at_most, size_t channels) {
    if (!check_pair(net, input, SUMS, output, BITS)) return ONEBIT_INVALID;
    if (channels != (size_t)net->values[input].channels) return invalid(net, "there are %zu thresholds", channels);
    ThresholdStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = (ThresholdStep){.step = {.phases = {{run_threshold, pixels_of(&net->values[input])}}},
                          .input = input,
                          .output = output,
                          .thresholds = net_alloc(net, channels * sizeof *thresholds),
                          .at_most = net_alloc(net, channels)};
    if (!it->thresholds || !it->at_most) return no_memory(net);
    memcpy(it->thresholds, thresholds, channels * sizeof *thresholds);
    memcpy(it->at_most, at_most, channels);
    return add_step(net, &it->step, NUMBER_BY_NUMBER, IN_PLAIN_C);
}
