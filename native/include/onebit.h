/* The engine of onebit: runs packed 1-bit nets on CPUs.

   A net is made of values (what flows) and steps (what makes them), added in the order in which they run. Every call
   checks what it is given and returns ONEBIT_OK or an error; `onebit_error` says in a line what was wrong. Nothing
   is kept of the caller's pointers: tensors are copied, in the form that the kernels want. Those of a net take 4 GiB at
   most; beyond that there is ONEBIT_NO_MEMORY.

   Inside, an image is laid out by rows, columns, channels (NHWC). Floats and sums take 4 bytes a number,
   levels one (the level less the lowest there is); bits are packed 64 channels to a word, the first in the lowest bit, 1 for +1; what is left of a pixel's last word is 0. */
#ifndef ONEBIT_H
#define ONEBIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct onebit_net onebit_net;

typedef enum { ONEBIT_OK = 0, ONEBIT_INVALID = 1, ONEBIT_NO_MEMORY = 2, ONEBIT_STOPPED = 3 } onebit_status;

/* Levels are whole numbers of a range of 256; sums are 32-bit whole numbers. */
typedef enum { ONEBIT_FLOAT = 0, ONEBIT_BITS = 1, ONEBIT_LEVELS = 2, ONEBIT_SUMS = 3 } onebit_kind;

/* Windows of a convolution or a pool. For a pool, padding is never read. */
typedef struct {
    int32_t kernel[2], stride[2], dilation[2];
    int32_t padding[4]; /* top, bottom, left, right */
    int32_t groups;
} onebit_window;

/* What happens to the number v of a channel before it is stored, in this order; a null pointer leaves a part out:
     v = scale * v + shift;  v = first(v);  v = v + residual;  v = second(v);
     store v as a float, or as a sum (only if nothing above is asked for);
     store the bit v >= threshold, or v <= threshold where at_most;
     store the level that is nearest to per_unit * v (halves to the even one) from `low`, which is that of the value, to
     `high`; that of NaN is 0
   where an activation is: slope * v where v < 0 if there are slopes, then at least low and at most high. */
typedef struct {
    const float *slope;
    float low, high; /* -INFINITY, INFINITY: no bound */
} onebit_activation;

typedef struct {
    int32_t channels; /* of each tensor here; those of what makes the numbers */
    const float *scale, *shift;
    onebit_activation first, second;
    int32_t residual;   /* a value of floats of the same shape, or -1 */
    int32_t numbers_to; /* a value of floats or sums, or -1 */
    int32_t bits_to;    /* a value of bits, or -1 */
    const float *thresholds;
    const uint8_t *at_most; /* a byte for each channel */
    int32_t levels_to;      /* a value of levels, or -1 */
    float per_unit;
    int32_t high;
} onebit_output;

/* 'scalar' always; 'avx2', and 'avx512' with VPOPCNTDQ, where the CPU and the operating system have them; 'neon' on
   AArch64. */
int onebit_has_isa(const char *isa);

/* NULL without memory or for an isa that is not there. */
onebit_net *onebit_net_new(const char *isa);
void onebit_net_free(onebit_net *net);
const char *onebit_error(const onebit_net *net);

/* Values are numbered from 0, which is the net's input. The numbers of one begin at byte `offset` of the workspace.
   ONEBIT_PASSED: it has no place there; a convolution of floats or levels hands its rows over to the pool that is added next, and to
   nothing else. low: the lowest level, from -128 to 0; of other kinds 0. */
#define ONEBIT_PASSED SIZE_MAX
onebit_status onebit_add_value(onebit_net *net, onebit_kind kind, int32_t channels, int32_t height, int32_t width,
                               size_t offset, int32_t low);

/* Output o * count + j is the convolution with mask j times kernel o. */
typedef struct {
    int32_t count;       /* a divisor of the outputs; 1: outputs are kernels */
    const int8_t *masks; /* +1 or -1, (count, kernel height, kernel width); null: +1 everywhere */
    size_t n_masks;      /* signs of all masks together; 0 if there are none */
} onebit_projections;
/* kernels: +1 or -1, (outputs / projections, planes, kernel height, kernel width). The input is bits or levels. */
onebit_status onebit_add_bconv2d(onebit_net *net, int32_t input, const onebit_window *window, int32_t outputs,
                                 const int8_t *kernels, size_t n_signs, const onebit_projections *projections,
                                 const onebit_output *output);
/* weight: (outputs, planes, kernel height, kernel width). The input is floats. keeps_zeros: sums over zeros, and sums that
   cancel, must be exactly 0, since bits are made of them; else they may be as small as rounding errors are. */
onebit_status onebit_add_conv2d(onebit_net *net, int32_t input, const onebit_window *window, int32_t outputs,
                                const float *weight, size_t n_weights, int keeps_zeros, const onebit_output *output);
/* weight: as above, whole numbers. The input is levels. Fast if 255 times the sum of any two weights that follow each other
   in a row of the kernel (planes inside of taps) fits 16 bits: weights of -64 to 64 always do. */
onebit_status onebit_add_level_conv2d(onebit_net *net, int32_t input, const onebit_window *window, int32_t outputs,
                                      const int8_t *weight, size_t n_weights, const onebit_output *output);
/* The convolution that step `step` is, with its weights as they are laid out there, once more: of an input that is as that of
   the step in kind, shape and lowest level. */
onebit_status onebit_add_again(onebit_net *net, size_t step, int32_t input, const onebit_output *output);
/* The input's numbers (bits: -1 or +1) go straight to the output. */
onebit_status onebit_add_pointwise(onebit_net *net, int32_t input, const onebit_output *output);

typedef enum { ONEBIT_MAX = 0, ONEBIT_MEAN = 1, ONEBIT_MEAN_PADDED = 2 } onebit_pool;
/* sizes: rows and columns of windows; the last window may reach beyond the padding. */
onebit_status onebit_add_pool(onebit_net *net, int32_t input, const onebit_window *window, onebit_pool pool,
                              const int32_t sizes[2], const onebit_output *output);
/* The means of sizes[0] x sizes[1] parts of the image. */
onebit_status onebit_add_adaptive_mean(onebit_net *net, int32_t input, const int32_t sizes[2],
                                       const onebit_output *output);

typedef enum { ONEBIT_ADD = 0, ONEBIT_MULTIPLY = 1 } onebit_binary;
/* Sides of 1 are repeated. */
onebit_status onebit_add_binary(onebit_net *net, int32_t left, int32_t right, int32_t output, onebit_binary binary);

typedef enum {
    ONEBIT_SIGMOID = 0,
    ONEBIT_HARDSIGMOID = 1,
    ONEBIT_HARDSWISH = 2,
    ONEBIT_SILU = 3,
    ONEBIT_TANH = 4,
    ONEBIT_ELU = 5,
    ONEBIT_ABS = 6,
    ONEBIT_SOFTMAX = 7
} onebit_unary;
onebit_status onebit_add_unary(onebit_net *net, int32_t input, int32_t output, onebit_unary unary);

/* Bits of sums, compared as whole numbers. */
onebit_status onebit_add_threshold(onebit_net *net, int32_t input, int32_t output, const int32_t *thresholds,
                                   const uint8_t *at_most, size_t channels);

/* channels of the input, from `from`, to the output, from `to`; the other channels of the output stay. */
onebit_status onebit_add_copy(onebit_net *net, int32_t input, int32_t from, int32_t output, int32_t to,
                              int32_t channels);
typedef enum { ONEBIT_ZEROS = 0, ONEBIT_REFLECT = 1, ONEBIT_REPLICATE = 2, ONEBIT_CIRCULAR = 3 } onebit_padding;
onebit_status onebit_add_pad(onebit_net *net, int32_t input, int32_t output, const int32_t padding[4],
                             onebit_padding mode);
/* The same numbers in order of channels, rows, columns. */
onebit_status onebit_add_reshape(onebit_net *net, int32_t input, int32_t output);

/* The last call before runs. The input and the output are floats. */
onebit_status onebit_net_finish(onebit_net *net, int32_t output);

/* Threads that share the work of a run: the caller's, and threads - 1 more, which sleep between runs. NULL if they can't be
   had. A team does one run at a time, of whichever net. */
typedef struct onebit_team onebit_team;
onebit_team *onebit_team_new(int32_t threads);
void onebit_team_free(onebit_team *team);

/* What a run by so many threads needs, aligned to 64 bytes; what the packed tensors take. */
size_t onebit_workspace_bytes(const onebit_net *net, int32_t threads);
size_t onebit_weight_bytes(const onebit_net *net);

/* Asked by the caller's thread between units of work, about every few milliseconds: whether the run is to end. */
typedef struct {
    int (*is_wanted)(void *context);
    void *context;
} onebit_stop;

typedef enum { ONEBIT_NCHW = 0, ONEBIT_NHWC = 1 } onebit_layout;
/* Images one after another, each shared by a team's threads (null: the caller's alone). Images and outputs are of one layout.
   Several threads may run one net at a time, each with a workspace (and a team) of its own. Allocates nothing, and makes
   the same bits with any number of threads. step_seconds: the time that each step took, in order, is added to it; may
   be null. stop: null, but for nets that take long; a run that was stopped is ONEBIT_STOPPED, and its outputs are anything. */
onebit_status onebit_run(const onebit_net *net, onebit_team *team, void *workspace, const float *images, size_t batch,
                         onebit_layout layout, float *outputs, double *step_seconds, const onebit_stop *stop);
/* Images side by side: each of the team's threads takes whole ones, in a workspace of its own: workspaces[thread], of one
   thread each. For batches of at least as many images as there are threads this is faster. */
onebit_status onebit_run_apart(const onebit_net *net, onebit_team *team, void *const *workspaces, const float *images,
                               size_t batch, onebit_layout layout, float *outputs);

/* What runs. Of each step, in order: the kernel of its inner loop, in words, and the instruction set of that: the net's,
   or 'scalar' where the net's has nothing for it. What becomes of a layer's numbers (`onebit_output`) counts only
   where a step is nothing else ("output stage").
   "Winograd or floats": the second for images with numbers that are large or not finite. NULL: there is no such step. */
size_t onebit_steps(const onebit_net *net);
const char *onebit_step_kernel(const onebit_net *net, size_t step);
const char *onebit_step_isa(const onebit_net *net, size_t step);

#ifdef __cplusplus
}
#endif
#endif
