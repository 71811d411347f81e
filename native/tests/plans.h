/* Plans of nets from random numbers, the same for every table of kernels: what agreement.c is made of. */
#ifndef ONEBIT_PLANS_H
#define ONEBIT_PLANS_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onebit.h"

/* Random numbers that are the same on every machine (splitmix64). */
static uint64_t random_state;

static inline uint64_t draw(void) {
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
static inline int32_t between(int32_t low, int32_t high) {
    return low + (int32_t)(draw() % (uint64_t)(high - low + 1));
}
static inline bool one_in(int32_t n) { return between(1, n) == 1; }
static inline float number(void) { return (float)between(-2000000, 2000000) / 1e6f; }
#define ONE_OF(list) ((list)[between(0, (int32_t)(sizeof(list) / sizeof *(list)) - 1)])

static inline void *checked(void *memory) {
    if (memory) return memory;
    fprintf(stderr, "no memory\n");
    exit(2);
}

typedef struct {
    onebit_kind kind;
    int32_t channels, sizes[2];
} Shape;

enum { MOST_VALUES = 16, MOST_KEPT = 64 };

/* A net on its way. `is_exact`: outputs must be equal, not only near. */
typedef struct {
    onebit_net *net;
    Shape values[MOST_VALUES];
    int32_t n_values, output;
    size_t offset;
    void *kept[MOST_KEPT]; /* tensors, until the net is made */
    size_t n_kept;
    bool is_exact;
} Plan;

static inline void must(const Plan *plan, onebit_status status) {
    if (status == ONEBIT_OK) return;
    fprintf(stderr, "a plan is wrong: %s\n", onebit_error(plan->net));
    exit(2);
}

static inline size_t count_of(Shape shape) {
    return (size_t)shape.channels * (size_t)shape.sizes[0] * (size_t)shape.sizes[1];
}

/* The number of a new value; low: of levels. */
static inline int32_t add_value_at(Plan *plan, Shape shape, size_t offset, int32_t low) {
    must(plan, onebit_add_value(plan->net, shape.kind, shape.channels, shape.sizes[0], shape.sizes[1], offset, low));
    plan->values[plan->n_values] = shape;
    return plan->n_values++;
}

static inline int32_t add_levels(Plan *plan, onebit_kind kind, int32_t channels, const int32_t sizes[2], int32_t low) {
    const Shape shape = {kind, channels, {sizes[0], sizes[1]}};
    const size_t bytes = kind == ONEBIT_BITS ? (size_t)sizes[0] * (size_t)sizes[1] * (((size_t)channels + 63) / 64) * 8
                                             : count_of(shape) * (kind == ONEBIT_LEVELS ? 1 : 4);
    const size_t offset = plan->offset;
    plan->offset += (bytes + 63) / 64 * 64;
    return add_value_at(plan, shape, offset, low);
}

static inline int32_t add_value(Plan *plan, onebit_kind kind, int32_t channels, const int32_t sizes[2]) {
    return add_levels(plan, kind, channels, sizes, 0);
}

static inline void *keep(Plan *plan, size_t bytes) {
    if (plan->n_kept == MOST_KEPT) exit(2);
    return plan->kept[plan->n_kept++] = checked(malloc(bytes));
}

static inline float *draw_floats(Plan *plan, size_t count) {
    float *numbers = keep(plan, count * sizeof *numbers);
    for (size_t i = 0; i < count; i++) numbers[i] = number();
    return numbers;
}

static inline int8_t *draw_signs(Plan *plan, size_t count) {
    int8_t *signs = keep(plan, count);
    for (size_t i = 0; i < count; i++) signs[i] = one_in(2) ? 1 : -1;
    return signs;
}

static inline uint8_t *draw_flags(Plan *plan, int32_t count) {
    uint8_t *flags = keep(plan, (size_t)count);
    for (int32_t i = 0; i < count; i++) flags[i] = one_in(2);
    return flags;
}

/* An output stage that does nothing yet. */
static inline onebit_output plain_output(int32_t channels, int32_t numbers_to) {
    const onebit_activation none = {NULL, -INFINITY, INFINITY};
    return (onebit_output){channels, NULL, NULL, none, none, -1, numbers_to, -1, NULL, NULL, -1, 0, 0};
}

/* Bits of numbers about as large as `size`: their signs, or by thresholds, some of which are met exactly, some never. */
static inline void draw_bits(Plan *plan, onebit_output *output, int32_t bits_to, int32_t size) {
    float *thresholds = keep(plan, (size_t)output->channels * sizeof *thresholds);
    output->bits_to = bits_to;
    output->thresholds = thresholds;
    output->at_most = draw_flags(plan, output->channels);
    if (one_in(4)) {
        memset(thresholds, 0, (size_t)output->channels * sizeof *thresholds);
        output->at_most = memset(keep(plan, (size_t)output->channels), 0, (size_t)output->channels);
        return;
    }
    for (int32_t c = 0; c < output->channels; c++)
        thresholds[c] = one_in(20) ? INFINITY : one_in(3) ? number() * (float)size : (float)between(-size, size);
}

static inline void draw_activation(Plan *plan, onebit_activation *made, int32_t channels) {
    if (one_in(2)) made->slope = draw_floats(plan, (size_t)channels);
    if (one_in(3)) made->low = -(float)between(0, 20);
    if (one_in(3)) made->high = (float)between(0, 20);
}

/* Some of what an output stage can do. */
static inline void draw_stage(Plan *plan, onebit_output *output, int32_t residual) {
    if (one_in(3)) output->residual = residual;
    if (!one_in(4)) {
        output->scale = draw_floats(plan, (size_t)output->channels);
        output->shift = draw_floats(plan, (size_t)output->channels);
    }
    draw_activation(plan, &output->first, output->channels);
    draw_activation(plan, &output->second, output->channels);
}

/* A window and the sides of an image that it fits. */
static inline onebit_window draw_window(int32_t groups, int32_t sides[2]) {
    static const int32_t KERNELS[][2] = {{1, 1}, {3, 3}, {3, 3}, {3, 3}, {5, 5}, {1, 3}, {2, 2}, {3, 1}, {4, 7}};
    const int32_t *kernel = ONE_OF(KERNELS);
    onebit_window window = {.groups = groups};
    for (int axis = 0; axis < 2; axis++) {
        window.kernel[axis] = kernel[axis];
        window.stride[axis] = one_in(2) ? 1 : between(1, 3);
        window.dilation[axis] = one_in(2) ? 1 : between(1, 3);
        const int32_t reach = window.dilation[axis] * (kernel[axis] - 1) + 1;
        int32_t least = reach;
        for (int side = 0; side < 2; side++) least -= window.padding[2 * axis + side] = between(0, 3);
        if (least < 1) least = 1;
        sides[axis] = between(least, least > 13 ? least + 3 : 13);
    }
    return window;
}

static inline void sizes_made(const onebit_window *window, const int32_t sides[2], int32_t made[2]) {
    for (int axis = 0; axis < 2; axis++)
        made[axis] = (sides[axis] + window->padding[2 * axis] + window->padding[2 * axis + 1] -
                      window->dilation[axis] * (window->kernel[axis] - 1) - 1) /
                         window->stride[axis] +
                     1;
}

/* Two values of floats side by side, as channels of one. */
static inline int32_t join(Plan *plan, int32_t left, int32_t right) {
    const Shape *a = &plan->values[left], *b = &plan->values[right];
    const int32_t both = add_value(plan, ONEBIT_FLOAT, a->channels + b->channels, a->sizes);
    must(plan, onebit_add_copy(plan->net, left, 0, both, 0, a->channels));
    must(plan, onebit_add_copy(plan->net, right, 0, both, a->channels, b->channels));
    return both;
}

/* Bits or sums as floats. */
static inline int32_t as_floats(Plan *plan, int32_t value) {
    const Shape *shape = &plan->values[value];
    const int32_t floats = add_value(plan, ONEBIT_FLOAT, shape->channels, shape->sizes);
    const onebit_output output = plain_output(shape->channels, floats);
    must(plan, onebit_add_pointwise(plan->net, value, &output));
    return floats;
}
#endif
