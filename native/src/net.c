/* A net and its parts: memory, errors, and the checks that every kind of step needs. */
#include "net.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

enum { ALIGNMENT = 64, MAX_SIDE = 1 << 28, MAX_WINDOW = 1 << 10, MAX_PARTS = 1 << 20 };
static const size_t MAX_NUMBERS = (size_t)1 << 28;
static const uint64_t MAX_OFFSET = UINT64_C(1) << 40;
static const size_t MAX_WEIGHT_BYTES = (size_t)1 << 32; /* some weights take far more as laid out than in a file */

struct Allocation {
    struct Allocation *before;
    char padding[ALIGNMENT - sizeof(struct Allocation *)];
};

onebit_net *onebit_net_new(const char *isa) {
    const Kernels *kernels = kernels_of(isa);
    onebit_net *net = kernels ? calloc(1, sizeof *net) : NULL;
    if (!net) return NULL;
    net->kernels = kernels;
    net->passed = -1;
    return net;
}

void onebit_net_free(onebit_net *net) {
    if (!net) return;
    for (struct Allocation *it = net->allocations, *before; it; it = before) {
        before = it->before;
        free(it);
    }
    free(net->values);
    free(net->steps);
    free(net);
}

const char *onebit_error(const onebit_net *net) { return net->error; }

onebit_status invalid(onebit_net *net, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(net->error, sizeof net->error, format, arguments);
    va_end(arguments);
    net->n_made = 0;
    return ONEBIT_INVALID;
}

onebit_status no_memory(onebit_net *net) {
    invalid(net, "there is no memory left");
    return ONEBIT_NO_MEMORY;
}

void *net_alloc(onebit_net *net, size_t bytes) {
    struct Allocation *block = NULL;
    void *found = NULL;
    if (bytes > MAX_WEIGHT_BYTES - net->weight_bytes || posix_memalign(&found, ALIGNMENT, sizeof *block + bytes))
        return NULL;
    memset(found, 0, sizeof *block + bytes);
    block = found;
    block->before = net->allocations;
    net->allocations = block;
    net->weight_bytes += bytes;
    return block + 1;
}

float *net_copy_floats(onebit_net *net, const float *from, size_t count) {
    float *copy = net_alloc(net, count * sizeof *copy);
    if (copy) memcpy(copy, from, count * sizeof *copy);
    return copy;
}

/* An array with room for one more, which grows by doubling; NULL, and nothing has changed, if there is no memory left. */
static void *grown(void *array, size_t count, size_t *room, size_t size) {
    if (count < *room) return array;
    const size_t larger = *room ? 2 * *room : 64;
    void *moved = realloc(array, larger * size);
    if (moved) *room = larger;
    return moved;
}

onebit_status onebit_add_value(onebit_net *net, onebit_kind kind, int32_t channels, int32_t height, int32_t width,
                               size_t offset, int32_t low) {
    if (net->is_finished || net->n_values >= MAX_PARTS) return invalid(net, "no more values can be added");
    if ((int)kind < ONEBIT_FLOAT || (int)kind > ONEBIT_SUMS) return invalid(net, "a value of unknown kind");
    if (channels < 1 || height < 1 || width < 1 || channels > MAX_SIDE || height > MAX_SIDE || width > MAX_SIDE)
        return invalid(net, "a value has sides %d x %d x %d", channels, height, width);
    const size_t pixels = (size_t)height * (size_t)width;
    if (pixels > MAX_NUMBERS || pixels * (size_t)channels > MAX_NUMBERS)
        return invalid(net, "a value has more than %zu numbers", MAX_NUMBERS);
    const bool is_passed = offset == ONEBIT_PASSED;
    if (is_passed && kind != ONEBIT_FLOAT) return invalid(net, "a value that is passed on is not of floats");
    if (!is_passed && (offset % ALIGNMENT || (uint64_t)offset > MAX_OFFSET))
        return invalid(net, "a value lies at byte %zu", offset);
    if (low < (kind == ONEBIT_LEVELS ? -128 : 0) || low > 0)
        return invalid(net, "a value's levels are from %d on", low);
    Value *values = grown(net->values, net->n_values, &net->values_room, sizeof *values);
    if (!values) return no_memory(net);
    net->values = values;
    const size_t bytes =
        pixels * (kind == ONEBIT_BITS ? words_of(channels) * 8 : (size_t)channels * number_bytes(kind));
    net->values[net->n_values++] =
        (Value){kind, channels, height, width, is_passed ? 0 : offset, bytes, low, false, is_passed};
    if (!is_passed && offset + bytes > net->value_bytes) net->value_bytes = offset + bytes;
    return ONEBIT_OK;
}

static Value *checked(onebit_net *net, int32_t index, int kinds) {
    if (net->is_finished) return invalid(net, "the net is finished"), NULL;
    if (index < 0 || (size_t)index >= net->n_values) return invalid(net, "there is no value %d", index), NULL;
    Value *v = &net->values[index];
    if (!(1 << v->kind & kinds)) return invalid(net, "value %d is of the wrong kind", index), NULL;
    return v;
}

/* Whether it has a place, where others than a pool can read it and others than a convolution of floats write it. */
static bool has_place(onebit_net *net, const Value *v, int32_t index) {
    if (v && v->is_passed) invalid(net, "value %d has no place", index);
    return v && !v->is_passed;
}

const Value *readable(onebit_net *net, int32_t index, int kinds) {
    const Value *v = checked(net, index, kinds);
    if (!has_place(net, v, index)) return NULL;
    if (v && index != INPUT && !v->is_written) return invalid(net, "value %d is read before it is made", index), NULL;
    return v;
}

const Value *readable_as(onebit_net *net, int32_t index, int32_t model) {
    const Value wanted = net->values[model], *v = readable(net, index, 1 << wanted.kind);
    const int32_t sizes[2] = {wanted.height, wanted.width};
    if (v && !(has_shape(v, wanted.channels, sizes) && v->low == wanted.low))
        return invalid(net, "value %d is not as value %d", index, model), NULL;
    return v;
}

onebit_status onebit_add_again(onebit_net *net, size_t step, int32_t input, const onebit_output *output) {
    if (step >= net->n_steps || !net->steps[step]->again) return invalid(net, "step %zu has no weights", step);
    return net->steps[step]->again(net, net->steps[step], input, output);
}

Value *writable(onebit_net *net, int32_t index, int kinds) {
    return has_place(net, checked(net, index, kinds), index) ? writable_or_passed(net, index, kinds) : NULL;
}

const Step *maker_of_passed(onebit_net *net, int32_t index) {
    if (!checked(net, index, FLOATS)) return NULL;
    if (net->passed != index) return invalid(net, "value %d is not passed on here", index), NULL;
    net->passed = -1;
    return net->steps[net->n_steps - 1];
}

Value *writable_or_passed(onebit_net *net, int32_t index, int kinds) {
    Value *v = checked(net, index, kinds);
    if (v && index == INPUT) return invalid(net, "value %d is the input", index), NULL;
    if (v && net->n_made == sizeof net->made / sizeof *net->made)
        return invalid(net, "a step makes too many values"), NULL;
    if (v) net->made[net->n_made++] = index;
    return v;
}

onebit_status add_step(onebit_net *net, Step *step, const char *kernel, Loop loop) {
    if (net->n_steps >= MAX_PARTS) return invalid(net, "no more steps can be added");
    if (net->passed >= 0) return invalid(net, "value %d is passed on to what is no pool", net->passed);
    for (size_t i = 0; i < net->n_made; i++)
        if (net->values[net->made[i]].is_passed && !step->make_rows)
            return invalid(net, "value %d can't be passed on from here", net->made[i]);
    Step **steps = grown(net->steps, net->n_steps, &net->steps_room, sizeof *steps);
    if (!steps) return no_memory(net);
    net->steps = steps;
    step->kernel = kernel;
    step->isa = loop == IN_TABLE ? net->kernels->name : kernels_scalar.name;
    net->steps[net->n_steps++] = step;
    for (; net->n_made; net->n_made--) {
        const int32_t made = net->made[net->n_made - 1];
        net->values[made].is_written = true;
        if (net->values[made].is_passed) net->passed = made;
    }
    /* In whole cache lines, so that threads do not write to one line. */
    const size_t common = round_up(step->common_bytes, ALIGNMENT), own = round_up(step->own_bytes, ALIGNMENT);
    if (common > net->common_bytes) net->common_bytes = common;
    if (own > net->own_bytes) net->own_bytes = own;
    return ONEBIT_OK;
}

onebit_status check_window(onebit_net *net, const onebit_window *window, const Value *image, int32_t sizes[2]) {
    const int32_t sides[2] = {image->height, image->width};
    for (int axis = 0; axis < 2; axis++) {
        const int32_t kernel = window->kernel[axis], stride = window->stride[axis], dilation = window->dilation[axis];
        const int32_t before = window->padding[2 * axis], after = window->padding[2 * axis + 1];
        if (kernel < 1 || kernel > MAX_WINDOW || stride < 1 || stride > MAX_WINDOW || dilation < 1 ||
            dilation > MAX_WINDOW || before < 0 || before > MAX_WINDOW || after < 0 || after > MAX_WINDOW)
            return invalid(net, "a window is out of bounds");
        const int64_t room = (int64_t)sides[axis] + before + after - (int64_t)dilation * (kernel - 1) - 1;
        if (room < 0) return invalid(net, "a window is larger than its padded image");
        sizes[axis] = (int32_t)(room / stride + 1);
    }
    return ONEBIT_OK;
}

onebit_status onebit_net_finish(onebit_net *net, int32_t output) {
    const Value *out = checked(net, output, FLOATS);
    if (!checked(net, INPUT, FLOATS) || !out) return ONEBIT_INVALID;
    if (!out->is_written) return invalid(net, "value %d, the output, is never made", output);
    if (!has_place(net, out, output) || !has_place(net, &net->values[INPUT], INPUT)) return ONEBIT_INVALID;
    if (net->passed >= 0) return invalid(net, "value %d is passed on to nothing", net->passed);
    net->output = output;
    net->is_finished = true;
    return ONEBIT_OK;
}

size_t onebit_workspace_bytes(const onebit_net *net, int32_t threads) {
    const size_t own = net->own_bytes * (size_t)(threads < 1 ? 1 : threads);
    return round_up(net->value_bytes, ALIGNMENT) + net->common_bytes + own;
}

size_t onebit_steps(const onebit_net *net) { return net->n_steps; }

const char *onebit_step_kernel(const onebit_net *net, size_t step) {
    return step < net->n_steps ? net->steps[step]->kernel : NULL;
}

const char *onebit_step_isa(const onebit_net *net, size_t step) {
    return step < net->n_steps ? net->steps[step]->isa : NULL;
}

size_t onebit_weight_bytes(const onebit_net *net) { return net->weight_bytes; }
