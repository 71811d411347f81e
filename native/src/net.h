/* What the parts of the engine share. */
#ifndef ONEBIT_NET_H
#define ONEBIT_NET_H

#include <stdbool.h>

#include "onebit.h"

/* Products of sizes that are checked here would not fit 32 bits; bits are written by bytes and read by words. */
_Static_assert(sizeof(size_t) == 8, "the engine is for 64-bit machines");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the engine is for little-endian machines");

enum { INPUT = 0 }; /* the number of the net's input */

typedef struct {
    onebit_kind kind;
    int32_t channels, height, width;
    size_t offset, bytes;
    int32_t low;                /* of levels; else 0 */
    bool is_written, is_passed; /* passed: see ONEBIT_PASSED */
} Value;

typedef struct Step Step;
typedef struct Run Run;
typedef struct Kernels Kernels;

/* A part of a step: units of work that do not depend on each other, so that threads may share them. `run` does those from
   `first` to before `end`. All that a phase makes is there when the next one begins. */
typedef struct {
    void (*run)(const Step *, const Run *, size_t first, size_t end);
    size_t units;
} Phase;

enum { MAX_PHASES = 4 };

/* Adds what a step does once more, with the same weights, for another input: see onebit_add_again. */
typedef onebit_status (*Again)(onebit_net *net, const Step *step, int32_t input, const onebit_output *output);

/* The head of every kind of step. `kernel` and `isa`: see onebit_step_kernel; `add_step` fills them in. */
struct Step {
    Phase phases[MAX_PHASES];       /* those without units are left out */
    size_t common_bytes, own_bytes; /* of scratch: for all threads together; for each by itself */
    const char *kernel, *isa;
    /* Of a step whose numbers are passed on: makes rows from `first` to before `end`, with `rows_bytes` of scratch. Its phases
       have run before. */
    void (*make_rows)(const Step *, const Run *, size_t first, size_t end, float *rows, char *scratch);
    size_t rows_bytes;
    Again again; /* null: it has no weights to share */
};

struct onebit_net {
    const Kernels *kernels;
    Value *values;
    Step **steps;
    size_t n_values, n_steps, values_room, steps_room;
    struct Allocation *allocations;
    size_t weight_bytes, value_bytes, common_bytes, own_bytes;
    int32_t output;
    bool is_finished;
    int32_t passed;  /* what the last step passes on, or -1 */
    int32_t made[3]; /* values that the step which is being added makes */
    size_t n_made;
    char error[200];
};

/* One image on its way through the net, as one of the threads sees it that share its steps. */
struct Run {
    const onebit_net *net;
    char *values;       /* the workspace */
    char *common, *own; /* scratch of the step that runs: of all threads, and of this one */
    const float *input; /* not null: the input's numbers are here, not in the workspace */
    float *output;      /* not null: so are the output's */
};

/* Words of 64 channels of a pixel of bits. */
static inline size_t words_of(int32_t channels) { return ((size_t)channels + 63) / 64; }
/* Of a number, but for bits. */
static inline size_t number_bytes(onebit_kind kind) { return kind == ONEBIT_LEVELS ? 1 : 4; }
static inline size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static inline size_t pixels_of(const Value *v) { return (size_t)v->height * (size_t)v->width; }
static inline bool has_shape(const Value *v, int32_t channels, const int32_t sizes[2]) {
    return v->channels == channels && v->height == sizes[0] && v->width == sizes[1];
}

/* The numbers of a value in this run. */
void *numbers(const Run *run, int32_t index);

/* Zeroed memory of the net's, aligned to 64 bytes; NULL if there is none left. */
void *net_alloc(onebit_net *net, size_t bytes);
float *net_copy_floats(onebit_net *net, const float *from, size_t count);

onebit_status invalid(onebit_net *net, const char *format, ...) __attribute__((format(printf, 2, 3)));
onebit_status no_memory(onebit_net *net);

/* The value of this number, if a step that is added now may read it (or make it) and it is of these kinds; else NULL.
   What a step makes counts as made once the step is added. */
enum { FLOATS = 1 << ONEBIT_FLOAT, BITS = 1 << ONEBIT_BITS, LEVELS = 1 << ONEBIT_LEVELS, SUMS = 1 << ONEBIT_SUMS };
const Value *readable(onebit_net *net, int32_t index, int kinds);
/* So, if it is as value `model` in kind, shape and lowest level. */
const Value *readable_as(onebit_net *net, int32_t index, int32_t model);
Value *writable(onebit_net *net, int32_t index, int kinds);
/* So may a step that knows how to pass it on; and the step that makes it, if one that is added now may take it from that. */
Value *writable_or_passed(onebit_net *net, int32_t index, int kinds);
const Step *maker_of_passed(onebit_net *net, int32_t index);

/* Where the inner loop of a step is: in the net's table of kernels, or beside it, in plain C whichever table that is. */
typedef enum { IN_TABLE, IN_PLAIN_C } Loop;

/* kernel: how it runs, in words that live as long as the step. */
onebit_status add_step(onebit_net *net, Step *step, const char *kernel, Loop loop);

/* Whether a window is sound and what it makes of an image: sizes[0] rows of sizes[1] pixels. */
onebit_status check_window(onebit_net *net, const onebit_window *window, const Value *image, int32_t sizes[2]);
#endif
