/* Images through the net: one after another, each shared by the threads of a team; or side by side. */
#include <stdatomic.h>
#include <time.h>

#include "kernels.h"
#include "net.h"
#include "team.h"

void *numbers(const Run *run, int32_t index) {
    if (run->input && index == INPUT) return (void *)(uintptr_t)run->input; /* no step writes to the input */
    if (run->output && index == run->net->output) return run->output;
    return run->values + run->net->values[index].offset;
}

enum { SQUARE = 16 };

static size_t squares_of(size_t columns) { return (columns + SQUARE - 1) / SQUARE; }

/* (rows, columns) to (columns, rows), in squares that fit the cache: those of columns of squares from `first` to `end`. */
static void transpose(const float *from, size_t rows, size_t columns, size_t first, size_t end, float *to) {
    for (size_t c0 = first * SQUARE; c0 < end * SQUARE && c0 < columns; c0 += SQUARE)
        for (size_t r0 = 0; r0 < rows; r0 += SQUARE)
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

/* An image and its outputs, as the caller has them. */
typedef struct {
    const onebit_net *net;
    onebit_team *team; /* null: one thread */
    char *workspace;
    const float *image;
    float *outputs;
    bool in_place, out_place; /* they lie as the net has them */
    double *step_seconds;
    const onebit_stop *stop;
    atomic_bool *is_stopped; /* if there is a stop */
} Passage;

static Passage passage_of(const onebit_net *net, onebit_team *team, onebit_layout layout) {
    return (Passage){.net = net,
                     .team = team,
                     .in_place = layout == ONEBIT_NHWC || is_flat(&net->values[INPUT]),
                     .out_place = layout == ONEBIT_NHWC || is_flat(&net->values[net->output])};
}

static void aim_at(Passage *passage, const float *images, float *outputs, size_t index) {
    passage->image = images + index * (passage->net->values[INPUT].bytes / sizeof *images);
    passage->outputs = outputs + index * (passage->net->values[passage->net->output].bytes / sizeof *outputs);
}

static Run run_of(const Passage *passage, size_t member) {
    Run run = {.net = passage->net, .values = passage->workspace};
    run.common = run.values + round_up(passage->net->value_bytes, 64);
    run.own = run.common + passage->net->common_bytes + member * passage->net->own_bytes;
    run.input = passage->in_place ? passage->image : NULL;
    run.output = passage->out_place ? passage->outputs : NULL;
    return run;
}

/* A phase of a step, for a team to share. */
typedef struct {
    const Passage *passage;
    const Step *step;
    const Phase *phase;
} Shared;

static bool is_stopped(const Passage *passage) { return passage->stop && atomic_load(passage->is_stopped); }

/* One unit, then two, then four, while they are quick: what units that follow each other have in common is done for each
   piece. Between pieces the caller's thread asks whether to go on. */
static void run_in_pieces(const Shared *it, const Run *run, size_t member, size_t first, size_t end) {
    static const double QUICK = 0.005;
    const Passage *passage = it->passage;
    for (size_t piece = 1, next; first < end && !is_stopped(passage); first = next) {
        next = end - first < piece ? end : first + piece;
        const double start = seconds();
        it->phase->run(it->step, run, first, next);
        if (seconds() - start < QUICK) piece *= 2;
        if (!member && passage->stop->is_wanted(passage->stop->context)) atomic_store(passage->is_stopped, true);
    }
}

static void run_some(void *given, size_t member, size_t first, size_t end) {
    const Shared *it = given;
    const Run run = run_of(it->passage, member);
    if (it->passage->stop)
        run_in_pieces(it, &run, member, first, end);
    else
        it->phase->run(it->step, &run, first, end);
}

/* The first and the last thing that is done to an image may be a transposition. */
typedef struct {
    const float *from;
    size_t rows, columns;
    float *to;
} Transposition;

static void transpose_some(void *given, size_t member, size_t first, size_t end) {
    (void)member;
    const Transposition *it = given;
    transpose(it->from, it->rows, it->columns, first, end, it->to);
}

/* One image through all steps. */
static void pass(const Passage *passage) {
    const onebit_net *net = passage->net;
    const Value *in = &net->values[INPUT], *out = &net->values[net->output];
    const Run run = run_of(passage, 0);
    if (!passage->in_place) {
        Transposition it = {passage->image, (size_t)in->channels, pixels_of(in), numbers(&run, INPUT)};
        team_share(passage->team, transpose_some, &it, squares_of(it.columns));
    }
    double before = passage->step_seconds ? seconds() : 0;
    for (size_t s = 0; s < net->n_steps; s++) {
        for (size_t p = 0; p < MAX_PHASES; p++) {
            Shared it = {passage, net->steps[s], &net->steps[s]->phases[p]};
            team_share(passage->team, run_some, &it, it.phase->units);
            if (is_stopped(passage)) return;
        }
        if (!passage->step_seconds) continue;
        const double after = seconds();
        passage->step_seconds[s] += after - before;
        before = after;
    }
    if (!passage->out_place) {
        Transposition it = {numbers(&run, net->output), pixels_of(out), (size_t)out->channels, passage->outputs};
        team_share(passage->team, transpose_some, &it, squares_of(it.columns));
    }
}

onebit_status onebit_run(const onebit_net *net, onebit_team *team, void *workspace, const float *images, size_t batch,
                         onebit_layout layout, float *outputs, double *step_seconds, const onebit_stop *stop) {
    if (!net->is_finished) return ONEBIT_INVALID;
    Passage passage = passage_of(net, team_members(team) > 1 ? team : NULL, layout);
    passage.workspace = workspace;
    passage.step_seconds = step_seconds;
    atomic_bool stopped = false;
    passage.stop = stop;
    passage.is_stopped = &stopped;
    for (size_t i = 0; i < batch; i++) {
        aim_at(&passage, images, outputs, i);
        pass(&passage);
        if (is_stopped(&passage)) return ONEBIT_STOPPED;
    }
    return ONEBIT_OK;
}

/* Images side by side; units: images. */
typedef struct {
    const onebit_net *net;
    void *const *workspaces;
    const float *images;
    float *outputs;
    onebit_layout layout;
} Batch;

static void pass_some(void *given, size_t member, size_t first, size_t end) {
    const Batch *batch = given;
    Passage passage = passage_of(batch->net, NULL, batch->layout);
    passage.workspace = batch->workspaces[member];
    for (size_t i = first; i < end; i++) {
        aim_at(&passage, batch->images, batch->outputs, i);
        pass(&passage);
    }
}

onebit_status onebit_run_apart(const onebit_net *net, onebit_team *team, void *const *workspaces, const float *images,
                               size_t batch, onebit_layout layout, float *outputs) {
    if (!net->is_finished) return ONEBIT_INVALID;
    Batch all = {.net = net, .workspaces = workspaces, .images = images, .outputs = outputs, .layout = layout};
    team_share(team, pass_some, &all, batch);
    return ONEBIT_OK;
}
