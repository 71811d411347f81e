/* Pools: the largest or the mean of windows. Channels go side by side. */
#include <string.h>

#include "kernels.h"

typedef struct {
    Step step;
    int32_t input, output;
    onebit_window window;
    onebit_pool pool;
    bool adapts; /* windows are parts of the image, not of the window's size */
} PoolStep;

typedef struct {
    int32_t first, end, by; /* places inside of the image */
    int32_t counted;        /* that a mean divides by */
} Span;

/* What the window at `place` covers along an axis. */
static Span span_of(const PoolStep *it, int axis, int32_t place, int32_t side, int32_t places) {
    if (it->adapts) {
        const int32_t first = (int32_t)((int64_t)place * side / places);
        const int32_t end = (int32_t)(((int64_t)(place + 1) * side + places - 1) / places);
        return (Span){first, end, 1, end - first};
    }
    const onebit_window *window = &it->window;
    const int32_t before = window->padding[2 * axis], dilation = window->dilation[axis];
    const int32_t start = place * window->stride[axis] - before;
    int32_t end = start + dilation * window->kernel[axis];
    const int32_t counted_end = side + window->padding[2 * axis + 1]; /* what is behind the padding never counts */
    Span it_covers = {start, end < side ? end : side, dilation, (end < counted_end ? end : counted_end) - start};
    while (it_covers.first < 0) it_covers.first += dilation;
    if (it->pool != ONEBIT_MEAN_PADDED) it_covers.counted = it_covers.end - it_covers.first; /* means have no dilation */
    return it_covers;
}

static void maximum_of_sums(const int32_t *x, int32_t *y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = x[i] > y[i] ? x[i] : y[i];
}

static void pool_window(const PoolStep *it, const Run *run, Span rows, Span columns, const float *image, float *made) {
    const Value *in = &run->net->values[it->input];
    const Kernels *kernels = run->net->kernels;
    const size_t channels = (size_t)in->channels;
    bool is_first = true;
    for (int32_t y = rows.first; y < rows.end; y += rows.by)
        for (int32_t x = columns.first; x < columns.end; x += columns.by, is_first = false) {
            const float *pixel = image + ((size_t)y * (size_t)in->width + (size_t)x) * channels;
            if (is_first)
                memcpy(made, pixel, channels * sizeof *made);
            else if (it->pool != ONEBIT_MAX)
                kernels->add(pixel, made, channels);
            else if (in->kind == ONEBIT_SUMS)
                maximum_of_sums((const int32_t *)pixel, (int32_t *)made, channels);
            else
                kernels->maximum(pixel, made, channels);
        }
    if (it->pool == ONEBIT_MAX) return;
    const float counted = (float)rows.counted * (float)columns.counted;
    for (size_t i = 0; i < channels; i++) made[i] /= counted;
}

static void run_pool(const Step *step, const Run *run) {
    const PoolStep *it = (const PoolStep *)step;
    const Value *in = &run->net->values[it->input], *out = &run->net->values[it->output];
    const float *image = numbers(run, it->input);
    float *made = numbers(run, it->output);
    for (int32_t row = 0; row < out->height; row++) {
        const Span rows = span_of(it, 0, row, in->height, out->height);
        for (int32_t column = 0; column < out->width; column++, made += out->channels)
            pool_window(it, run, rows, span_of(it, 1, column, in->width, out->width), image, made);
    }
}

/* Every window must have a tap inside of the image, or there is nothing to pool. */
static bool all_have_taps(const PoolStep *it, const Value *in, const Value *out) {
    for (int axis = 0; axis < 2; axis++) {
        const int32_t places = axis ? out->width : out->height, side = axis ? in->width : in->height;
        for (int32_t place = 0; place < places; place++) {
            const Span covered = span_of(it, axis, place, side, places);
            if (covered.first >= covered.end || covered.counted < 1) return false;
        }
    }
    return true;
}

static onebit_status add_pool(onebit_net *net, PoolStep wanted, const Value *in, const Value *out) {
    if (!in || !out) return ONEBIT_INVALID;
    if (in->kind != out->kind || in->channels != out->channels) return invalid(net, "a pool makes another kind of value");
    if (!all_have_taps(&wanted, in, out)) return invalid(net, "one of a pool's windows has no tap within the image");
    PoolStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = wanted;
    it->step.run = run_pool;
    return add_step(net, &it->step);
}

onebit_status onebit_add_pool(onebit_net *net, int32_t input, int32_t output, const onebit_window *window, onebit_pool pool) {
    const int kinds = pool == ONEBIT_MAX ? FLOATS | SUMS : FLOATS;
    if ((int)pool < ONEBIT_MAX || (int)pool > ONEBIT_MEAN_PADDED) return invalid(net, "an unknown pool");
    const Value *in = readable(net, input, kinds);
    int32_t sizes[2];
    if (!in || check_window(net, window, in, sizes)) return ONEBIT_INVALID;
    const Value *out = writable(net, output, kinds);
    if (!out) return ONEBIT_INVALID;
    /* With ceil_mode there is one more window than fits. */
    if (out->height < sizes[0] - 1 || out->height > sizes[0] + 1 || out->width < sizes[1] - 1 || out->width > sizes[1] + 1)
        return invalid(net, "a pool makes %d x %d of an image", out->height, out->width);
    return add_pool(net, (PoolStep){.input = input, .output = output, .window = *window, .pool = pool}, in, out);
}

onebit_status onebit_add_adaptive_mean(onebit_net *net, int32_t input, int32_t output) {
    const Value *in = readable(net, input, FLOATS), *out = in ? writable(net, output, FLOATS) : NULL;
    return add_pool(net, (PoolStep){.input = input, .output = output, .pool = ONEBIT_MEAN, .adapts = true}, in, out);
}
