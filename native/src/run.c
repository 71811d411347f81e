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
} Passage;

static Passage passage_of(const onebit_net *net, onebit_team *team, onebit_layout layout) {
    return (Passage){.net = net,
                     .team = team,
                     .in_place = layout == ONEBIT_NHWC || is_flat(&net->values[INPUT]),
                     .out_place = layout == ONEBIT_NHWC || is_flat(&net->values[net->output])};
}

static Run run_of(const Passage *passage, size_t member) {
    Run run = {.net = passage->net, .values = passage->workspace};
    run.common = run.values + round_up(passage->net->value_bytes, 64);
    run.own = run.common + passage->net->common_bytes + member * passage->net->own_bytes;
    run.input = passage->in_place ? passage->image : NULL;
    run.output = passage->out_place ? passage->outputs : NULL;
    return run;
}

/* A step's phase, as far as this thread gets it; when it returns, all of it is done. */
static void share_phase(onebit_team *team, const Phase *phase, const Step *step, const Run *run) {
    if (!phase->units) return;
    if (!team) {
        phase->run(step, run, 0, phase->units);
        return;
    }
    size_t first, end;
    while (team_claim(team, phase->units, &first, &end)) phase->run(step, run, first, end);
    team_meet(team);
}

/* The first and the last thing that is done to an image may be a transposition. They run as phases do. */
typedef struct {
    Step step;
    const float *from;
    size_t rows, columns;
    float *to;
} Transposition;

static void run_transposition(const Step *step, const Run *run, size_t first, size_t end) {
    (void)run;
    const Transposition *it = (const Transposition *)step;
    transpose(it->from, it->rows, it->columns, first, end, it->to);
}

static void share_transposition(onebit_team *team, const float *from, size_t rows, size_t columns, float *to) {
    const Transposition it = {.from = from, .rows = rows, .columns = columns, .to = to};
    const Phase phase = {run_transposition, squares_of(columns)};
    share_phase(team, &phase, &it.step, NULL);
}

/* One image, as one of the team's threads sees it. */
static void pass(void *given, size_t member) {
    const Passage *passage = given;
    const onebit_net *net = passage->net;
    const Value *in = &net->values[INPUT], *out = &net->values[net->output];
    const Run run = run_of(passage, member);
    if (!passage->in_place)
        share_transposition(passage->team, passage->image, (size_t)in->channels, pixels_of(in), numbers(&run, INPUT));
    const bool keeps_time = passage->step_seconds && member == 0;
    double before = keeps_time ? seconds() : 0;
    for (size_t s = 0; s < net->n_steps; s++) {
        for (size_t p = 0; p < MAX_PHASES; p++)
            share_phase(passage->team, &net->steps[s]->phases[p], net->steps[s], &run);
        if (!keeps_time) continue;
        const double after = seconds();
        passage->step_seconds[s] += after - before;
        before = after;
    }
    if (!passage->out_place)
        share_transposition(passage->team, numbers(&run, net->output), pixels_of(out), (size_t)out->channels,
                            passage->outputs);
}

static void aim_at(Passage *passage, const float *images, float *outputs, size_t index) {
    passage->image = images + index * (passage->net->values[INPUT].bytes / sizeof *images);
    passage->outputs = outputs + index * (passage->net->values[passage->net->output].bytes / sizeof *outputs);
}

onebit_status onebit_run(const onebit_net *net, onebit_team *team, void *workspace, const float *images, size_t batch,
                         onebit_layout layout, float *outputs, double *step_seconds) {
    if (!net->is_finished) return ONEBIT_INVALID;
    if (team && team_members(team) == 1) team = NULL;
    Passage passage = passage_of(net, team, layout);
    passage.workspace = workspace;
    passage.step_seconds = step_seconds;
    for (size_t i = 0; i < batch; i++) {
        aim_at(&passage, images, outputs, i);
        if (team)
            team_do(team, pass, &passage);
        else
            pass(&passage, 0);
    }
    return ONEBIT_OK;
}

/* Images side by side. */
typedef struct {
    const onebit_net *net;
    void *const *workspaces;
    const float *images;
    float *outputs;
    onebit_layout layout;
    size_t batch;
    atomic_size_t next; /* image that no thread has taken yet */
} Batch;

static void pass_some(void *given, size_t member) {
    Batch *batch = given;
    Passage passage = passage_of(batch->net, NULL, batch->layout);
    passage.workspace = batch->workspaces[member];
    for (size_t i; (i = atomic_fetch_add(&batch->next, 1)) < batch->batch;) {
        aim_at(&passage, batch->images, batch->outputs, i);
        pass(&passage, 0);
    }
}

onebit_status onebit_run_apart(const onebit_net *net, onebit_team *team, void *const *workspaces, const float *images,
                               size_t batch, onebit_layout layout, float *outputs) {
    if (!net->is_finished || !team) return ONEBIT_INVALID;
    Batch all = {
        .net = net, .workspaces = workspaces, .images = images, .outputs = outputs, .layout = layout, .batch = batch};
    atomic_init(&all.next, 0);
    team_do(team, pass_some, &all);
    return ONEBIT_OK;
}
