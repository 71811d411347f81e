/* Images through the net, one after another. */
#include <time.h>

#include "kernels.h"
#include "net.h"

void *numbers(const Run *run, int32_t index) {
    if (run->input && index == INPUT) return (void *)(uintptr_t)run->input; /* no step writes to the input */
    if (run->output && index == run->net->output) return run->output;
    return run->values + run->net->values[index].offset;
}

/* (rows, columns) to (columns, rows), in squares that fit the cache. */
static void transpose(const float *from, size_t rows, size_t columns, float *to) {
    enum { SQUARE = 16 };
    for (size_t r0 = 0; r0 < rows; r0 += SQUARE)
        for (size_t c0 = 0; c0 < columns; c0 += SQUARE)
            for (size_t c = c0; c < columns && c < c0 + SQUARE; c++)
                for (size_t r = r0; r < rows && r < r0 + SQUARE; r++) to[c * rows + r] = from[r * columns + c];
}

/* Whether an image looks the same in both layouts. */
static bool is_flat(const Value *v) { return v->channels == 1 || pixels_of(v) == 1; }

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void run_and_time(const Run *run, double *step_seconds) {
    double before = seconds();
    for (size_t s = 0; s < run->net->n_steps; s++) {
        run->net->steps[s]->run(run->net->steps[s], run);
        const double after = seconds();
        step_seconds[s] += after - before;
        before = after;
    }
}

onebit_status onebit_run(const onebit_net *net, void *workspace, const float *images, size_t batch,
                         onebit_layout layout, float *outputs, double *step_seconds) {
    if (!net->is_finished) return ONEBIT_INVALID;
    const Value *in = &net->values[INPUT], *out = &net->values[net->output];
    const bool in_place = layout == ONEBIT_NHWC || is_flat(in), out_place = layout == ONEBIT_NHWC || is_flat(out);
    Run run = {.net = net, .values = workspace};
    run.scratch = run.values + round_up(net->value_bytes, 64);
    for (size_t i = 0; i < batch; i++) {
        run.input = in_place ? images : NULL;
        run.output = out_place ? outputs : NULL;
        if (!in_place) transpose(images, (size_t)in->channels, pixels_of(in), numbers(&run, INPUT));
        if (step_seconds)
            run_and_time(&run, step_seconds);
        else
            for (size_t s = 0; s < net->n_steps; s++) net->steps[s]->run(net->steps[s], &run);
        if (!out_place) transpose(numbers(&run, net->output), pixels_of(out), (size_t)out->channels, outputs);
        images += in->bytes / sizeof *images;
        outputs += out->bytes / sizeof *outputs;
    }
    return ONEBIT_OK;
}
