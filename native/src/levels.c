/* Convolution of levels: the walk over strips of rows, blocks of pixels and blocks of channels (see levels.h).

   What is prepared of an image would not fit the caches, so there is never more of it than the rows that a strip of
   outputs needs, in a ring: row y of the padded image is in place y modulo the rows that there are. */
#include "levels.h"

#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* Strips have at least so many pixels, if the image does: weights are read once for each strip. */
enum { STRIP_PIXELS = 24 };

typedef struct {
    Step step;
    ConvolutionShape shape;
    LevelConv conv; /* of one group */
    const LevelKernels *kernels;
    PaddedSize padded;
    Output output;
    bool are_signs;
    uint8_t outside; /* the byte of level 0 */
    int32_t strip_rows;
    size_t ring_rows, pixel_bytes, row_bytes;
    void **packed;  /* of each group */
    int32_t *bases; /* [group][output]: low times the sum of the weights */
    size_t group_bases;
    size_t line_at, taken_away_at, columns_at, windows_at; /* in the scratch, behind the ring */
    size_t scratch_bytes;
} LevelStep;

/* What a thread of its own would need to make some rows of one group. */
typedef struct {
    const LevelStep *it;
    const uint8_t *image; /* from the group's first plane on */
    int32_t group;
    char *prepared;
    uint8_t *line;
    int32_t *taken_away, *columns; /* of pixels; of columns of the windows of a row */
    const void **windows;
    const char **first_runs;
    int32_t next_row; /* of the padded image: those before are prepared, as far back as the ring reaches */
} Strips;

static size_t strips_of(const LevelStep *it) {
    return ((size_t)it->shape.sizes[0] + (size_t)it->strip_rows - 1) / (size_t)it->strip_rows;
}

/* A row of the padded image as bytes, one pixel after another. */
static void put_line(const Strips *strips, int32_t row) {
    const ConvolutionShape *shape = &strips->it->shape;
    const size_t planes = strips->it->conv.planes, channels = (size_t)shape->channels;
    const int32_t y = row - shape->window.padding[0], left = shape->window.padding[2];
    const size_t width = (size_t)strips->it->padded.width;
    const size_t before = (size_t)left < width ? (size_t)left : width;
    const size_t inside = width - before < (size_t)shape->width ? width - before : (size_t)shape->width;
    if (y < 0 || y >= shape->height) {
        memset(strips->line, strips->it->outside, width * planes);
        return;
    }
    uint8_t *to = strips->line + before * planes;
    const uint8_t *from = strips->image + (size_t)y * (size_t)shape->width * channels;
    memset(strips->line, strips->it->outside, before * planes);
    if (planes == channels)
        memcpy(to, from, inside * planes);
    else
        for (size_t x = 0; x < inside; x++) memcpy(to + x * planes, from + x * channels, planes);
    memset(to + inside * planes, strips->it->outside, (width - before - inside) * planes);
}

static void prepare_up_to(Strips *strips, int32_t end) {
    const LevelStep *it = strips->it;
    const size_t width = (size_t)it->padded.width;
    for (; strips->next_row < end; strips->next_row++) {
        const size_t place = (size_t)strips->next_row % it->ring_rows;
        put_line(strips, strips->next_row);
        char *row = strips->prepared + place * it->row_bytes;
        it->kernels->prepare(&it->conv, strips->line, width, row, strips->taken_away + place * width);
        /* Kernels read on behind it, for weights of 0. */
        memset(row + width * it->pixel_bytes, 0, it->row_bytes - width * it->pixel_bytes);
    }
}

/* Of a row of outputs: where the runs of its first window begin, and what columns of windows take away. */
static void begin_row(const Strips *strips, int32_t row) {
    const LevelStep *it = strips->it;
    const onebit_window *window = &it->shape.window;
    const size_t runs_in_row = it->conv.runs / (size_t)window->kernel[0], width = (size_t)it->padded.width;
    const char **first = strips->first_runs;
    memset(strips->columns, 0, width * sizeof *strips->columns);
    for (int32_t dy = 0; dy < window->kernel[0]; dy++) {
        const size_t y = (size_t)(row * window->stride[0] + dy * window->dilation[0]) % it->ring_rows;
        for (size_t run = 0; run < runs_in_row; run++)
            *first++ = strips->prepared + y * it->row_bytes + run * (size_t)window->dilation[1] * it->pixel_bytes;
        if (it->kernels->takes_away)
            for (size_t x = 0; x < width; x++) strips->columns[x] += strips->taken_away[y * width + x];
    }
}

/* The runs of one window of that row; what all its pixels take away. */
static int32_t put_window(const Strips *strips, int32_t column, const void **runs) {
    const LevelStep *it = strips->it;
    const onebit_window *window = &it->shape.window;
    const size_t x = (size_t)column * (size_t)window->stride[1];
    int32_t taken_away = 0;
    for (size_t run = 0; run < it->conv.runs; run++) runs[run] = strips->first_runs[run] + x * it->pixel_bytes;
    if (it->kernels->takes_away)
        for (int32_t dx = 0; dx < window->kernel[1]; dx++)
            taken_away += strips->columns[x + (size_t)(dx * window->dilation[1])];
    return taken_away;
}

/* All channels of some pixels, whose windows are known. */
static void run_block(const Strips *strips, const Run *run, LevelBlock block, Pixels *pixels) {
    const LevelStep *it = strips->it;
    int32_t sums[LEVEL_PIXELS * MAX_LEVEL_WIDTH] __attribute__((aligned(64)));
    pixels->sums = sums;
    pixels->count = block.pixels;
    for (block.first_channel = 0; block.first_channel < it->conv.outputs; block.first_channel += block.width) {
        const size_t left = it->conv.outputs - block.first_channel;
        block.width = it->kernels->width(left);
        block.bases = it->bases + (size_t)strips->group * it->group_bases + block.first_channel;
        it->kernels->sum(&it->conv, &block, sums);
        pixels->stride = block.width;
        pixels->first_channel = strips->group * (int32_t)it->conv.outputs + (int32_t)block.first_channel;
        pixels->channels = (int32_t)(left < block.width ? left : block.width);
        run->net->kernels->finish(&it->output, pixels);
    }
    pixels->first += block.pixels;
}

/* Rows from `first` to `end` of one group, to where `pixels` aims; nothing is left of it in the scratch. */
static void run_rows(const LevelStep *it, const Run *run, char *scratch, int32_t group, int32_t first, int32_t end,
                     Pixels pixels) {
    const size_t runs = it->conv.runs;
    Strips strips = {.it = it,
                     .image = (const uint8_t *)numbers(run, it->shape.input) + (size_t)group * it->conv.planes,
                     .group = group,
                     .prepared = scratch,
                     .line = (uint8_t *)scratch + it->line_at,
                     .taken_away = (int32_t *)(void *)(scratch + it->taken_away_at),
                     .columns = (int32_t *)(void *)(scratch + it->columns_at),
                     .windows = (const void **)(void *)(scratch + it->windows_at),
                     .first_runs = (const char **)(void *)(scratch + it->windows_at) + LEVEL_PIXELS * runs,
                     .next_row = first * it->shape.window.stride[0]};
    memset(strips.line + (size_t)it->padded.width * it->conv.planes, 0, LEVEL_SLACK);
    int32_t taken_away[LEVEL_PIXELS];
    LevelBlock block = {.packed = it->packed[group], .windows = strips.windows, .taken_away = taken_away};
    for (int32_t row = first, strip_end; row < end; row = strip_end) {
        strip_end = end - row < it->strip_rows ? end : row + it->strip_rows;
        const onebit_window *window = &it->shape.window;
        prepare_up_to(&strips, (strip_end - 1) * window->stride[0] + (window->kernel[0] - 1) * window->dilation[0] + 1);
        for (int32_t y = row; y < strip_end; y++) {
            begin_row(&strips, y);
            for (int32_t x = 0; x < it->shape.sizes[1]; x++) {
                taken_away[block.pixels] = put_window(&strips, x, strips.windows + block.pixels * runs);
                if (++block.pixels < LEVEL_PIXELS && (y < strip_end - 1 || x < it->shape.sizes[1] - 1)) continue;
                /* Kernels take several pixels at a time: the last one again and again where there are no more. */
                for (size_t more = block.pixels; more < LEVEL_PIXELS; more++) {
                    memcpy(strips.windows + more * runs, strips.windows + (block.pixels - 1) * runs,
                           runs * sizeof *strips.windows);
                    taken_away[more] = 0;
                }
                run_block(&strips, run, block, &pixels);
                block.pixels = 0;
            }
        }
    }
}

/* Units: strips of rows of groups. */
static void run_strips(const Step *step, const Run *run, size_t first, size_t end) {
    const LevelStep *it = (const LevelStep *)step;
    const size_t strips = strips_of(it), rows = (size_t)it->shape.sizes[0], height = (size_t)it->strip_rows;
    Pixels pixels = {0};
    aim(&it->output, run, &pixels);
    for (size_t unit = first, next; unit < end; unit = next) {
        const size_t group = unit / strips, from = unit % strips * height;
        next = (group + 1) * strips < end ? (group + 1) * strips : end;
        const size_t to = from + (next - unit) * height < rows ? from + (next - unit) * height : rows;
        pixels.first = from * (size_t)it->shape.sizes[1];
        run_rows(it, run, run->own, (int32_t)group, (int32_t)from, (int32_t)to, pixels);
    }
}

static void make_rows(const Step *step, const Run *run, size_t first, size_t end, float *rows, char *scratch) {
    const Pixels pixels = {.float_numbers = rows};
    run_rows((const LevelStep *)step, run, scratch, 0, (int32_t)first, (int32_t)end, pixels);
}

/* As [output][plane][run][pixel of the run], which is how they are given; and the sums of the weights. */
static onebit_status fill_weights(onebit_net *net, LevelStep *it, const int8_t *weights, int32_t low) {
    const size_t taps = it->conv.planes * it->conv.runs * it->conv.run_pixels, groups = (size_t)it->shape.window.groups;
    it->group_bases = level_channels(it->kernels, it->conv.outputs);
    it->packed = net_alloc(net, groups * sizeof *it->packed);
    it->bases = net_alloc(net, groups * it->group_bases * sizeof *it->bases);
    if (!it->packed || !it->bases) return no_memory(net);
    for (size_t group = 0; group < groups; group++) {
        const int8_t *of_group = weights + group * it->conv.outputs * taps;
        it->packed[group] = net_alloc(net, it->kernels->packed_bytes(&it->conv));
        if (!it->packed[group]) return no_memory(net);
        it->kernels->pack(&it->conv, of_group, it->packed[group]);
        for (size_t n = 0; n < it->conv.outputs; n++)
            for (size_t i = 0; i < taps; i++) it->bases[group * it->group_bases + n] += low * of_group[n * taps + i];
    }
    return ONEBIT_OK;
}

static void lay_out_scratch(LevelStep *it) {
    const onebit_window *window = &it->shape.window;
    const size_t width = (size_t)it->padded.width;
    const int32_t wanted = (STRIP_PIXELS + it->shape.sizes[1] - 1) / it->shape.sizes[1];
    it->strip_rows = wanted < it->shape.sizes[0] ? wanted : it->shape.sizes[0];
    it->ring_rows = (size_t)((it->strip_rows - 1) * window->stride[0]) +
                    (size_t)((window->kernel[0] - 1) * window->dilation[0]) + 1;
    it->pixel_bytes = it->kernels->pixel_bytes(&it->conv);
    it->row_bytes = round_up(width * it->pixel_bytes + LEVEL_SLACK, 64);
    it->line_at = it->ring_rows * it->row_bytes;
    it->taken_away_at = it->line_at + round_up(width * it->conv.planes + LEVEL_SLACK, 64);
    it->columns_at = it->taken_away_at + round_up(it->ring_rows * width * sizeof(int32_t), 64);
    it->windows_at = it->columns_at + round_up(width * sizeof(int32_t), 64);
    it->scratch_bytes = it->windows_at + (LEVEL_PIXELS + 1) * it->conv.runs * sizeof(void *);
}

/* Rows that are passed on are made when the pool asks for them. */
static void plan(LevelStep *it) {
    const size_t groups = (size_t)it->shape.window.groups;
    if (it->output.passes_on && groups == 1) {
        it->step.make_rows = make_rows;
        it->step.rows_bytes = it->scratch_bytes;
    } else {
        it->step.phases[0] = (Phase){run_strips, groups * strips_of(it)};
        it->step.own_bytes = it->scratch_bytes;
    }
}

/* Whether 32 bits hold every sum, and 16 bits those of two neighbouring products of a run (as `vpmaddubsw` makes them). */
static bool fits(const LevelConv *conv, size_t outputs, const int8_t *weights) {
    const size_t row = conv->runs * conv->run_pixels;
    for (size_t n = 0; n < outputs; n++, weights += conv->planes * row) {
        int64_t size = 0;
        for (size_t run = 0; run < conv->runs; run++) {
            int32_t before = 0;
            for (size_t i = 0; i < conv->run_pixels * conv->planes; i++) {
                const size_t pixel = run * conv->run_pixels + i / conv->planes;
                const int32_t w = weights[i % conv->planes * row + pixel];
                if (MAX_LEVEL * (w + before) > INT16_MAX || MAX_LEVEL * (w + before) < INT16_MIN) return false;
                size += abs(w);
                before = w;
            }
        }
        if (2 * MAX_LEVEL * size > INT32_MAX) return false;
    }
    return true;
}

static const char *name_of(const LevelStep *it) { return it->are_signs ? "levels" : "8-bit weights"; }

static onebit_status add_again(onebit_net *net, const Step *step, int32_t input, const onebit_output *output) {
    const LevelStep *first = (const LevelStep *)step;
    if (!readable_as(net, input, first->shape.input)) return ONEBIT_INVALID;
    LevelStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = *first;
    it->step = (Step){.again = add_again};
    it->shape.input = input;
    const onebit_status status = check_output(net, output, it->shape.outputs, it->shape.sizes, true, &it->output);
    if (!status) plan(it);
    return status ? status : add_step(net, &it->step, name_of(it), IN_TABLE);
}

onebit_status add_level_conv2d(onebit_net *net, const Convolution *wanted, const int8_t *weights, bool are_signs) {
    const Value *image = &net->values[wanted->input];
    const onebit_window *window = wanted->window;
    const int32_t low = image->low;
    const bool by_rows = window->dilation[1] == 1; /* a row of the kernel lies together */
    LevelStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = (LevelStep){.step.again = add_again,
                      .are_signs = are_signs,
                      .shape = shape_of(wanted, image),
                      .conv = {.planes = (size_t)(image->channels / window->groups),
                               .outputs = (size_t)(wanted->outputs / window->groups),
                               .runs = (size_t)window->kernel[0] * (by_rows ? 1 : (size_t)window->kernel[1]),
                               .run_pixels = by_rows ? (size_t)window->kernel[1] : 1},
                      .padded = reach_of(window, wanted->sizes),
                      .outside = (uint8_t)-low};
    it->kernels = net->kernels->bytes_of_levels;
    if (are_signs && it->conv.outputs >= net->kernels->signs_of_levels->least_outputs)
        it->kernels = net->kernels->signs_of_levels;
    if (!fits(&it->conv, (size_t)wanted->outputs, weights)) return add_wide_conv2d(net, wanted, weights);
    lay_out_scratch(it);
    onebit_status status = check_output(net, wanted->output, wanted->outputs, it->shape.sizes, true, &it->output);
    if (!status) status = fill_weights(net, it, weights, low);
    if (!status) plan(it);
    return status ? status : add_step(net, &it->step, name_of(it), IN_TABLE);
}

onebit_status onebit_add_level_conv2d(onebit_net *net, int32_t input, const onebit_window *window, int32_t outputs,
                                      const int8_t *weight, size_t n_weights, const onebit_output *output) {
    const Value *image = readable(net, input, LEVELS);
    Convolution wanted = {.input = input, .outputs = outputs, .window = window, .output = output};
    if (!image || check_convolution(net, &wanted, image, n_weights)) return ONEBIT_INVALID;
    return add_level_conv2d(net, &wanted, weight, false);
}
