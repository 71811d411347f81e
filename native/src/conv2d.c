/* Convolution of floats: a matrix product whose rows are windows of the image, read where they lie.

   A window is a few runs of numbers that lie together (a row of the kernel, or a tap if the kernel is dilated or in
   groups), each at the same distance from the window's first pixel, whichever window it is. */
#include <stdlib.h>
#include <string.h>

#include "convolution.h"
#include "kernels.h"
#include "winograd.h"

/* Of packed weights: with no more, they stay in the second cache while blocks of pixels go by. */
enum { SMALL_WEIGHT = 1 << 18, BLOCK_ROWS = 16 * TILE_ROWS, MAX_PARTS_OF_IMAGE = 16 };

typedef struct {
    Step step;
    ConvolutionShape shape;
    bool pads;
    PaddedSize padded;
    Output output;
    size_t runs, run_length;
    ptrdiff_t *offsets;
    float *weight; /* [group][outputs / TILE_COLUMNS][run][place][TILE_COLUMNS], the last columns 0 */
    size_t column_weights, group_weights; /* numbers of one column of tiles, of one group */
    size_t blocks, block_pixels, columns; /* of the image; of the outputs of a group */
    bool by_columns;                      /* units go through the image first, then through columns */
    Winograd *winograd;                   /* null: images always go the plain way */
    size_t looked_bytes;                  /* of scratch before the padded image: see look_at_parts */
} ConvStep;

/* Pixels from `first` to `end` with one column of weights: tiles of a block, then what becomes of them. Where they go begins
   with pixel `origin`. */
static void run_tiles(const ConvStep *it, const Kernels *kernels, const float *image, const float *weight, size_t first,
                      size_t end, size_t origin, Pixels *pixels) {
    float tiles[BLOCK_ROWS * TILE_COLUMNS] __attribute__((aligned(64)));
    const size_t width = (size_t)it->shape.sizes[1];
    const ptrdiff_t pixel_step = (ptrdiff_t)it->shape.channels * it->shape.window.stride[1];
    const ptrdiff_t row_step = (ptrdiff_t)it->shape.channels * it->padded.width * it->shape.window.stride[0];
    size_t row = first / width, column = first % width;
    pixels->floats = tiles;
    pixels->stride = TILE_COLUMNS;
    for (; first < end; first += BLOCK_ROWS) {
        pixels->first = first - origin;
        pixels->count = end - first < BLOCK_ROWS ? end - first : BLOCK_ROWS;
        for (size_t done = 0; done < pixels->count; done += TILE_ROWS) {
            const float *rows[TILE_ROWS];
            const size_t left = pixels->count - done;
            for (size_t r = 0; r < TILE_ROWS; r++) {
                rows[r] = r < left ? image + (ptrdiff_t)row * row_step + (ptrdiff_t)column * pixel_step : rows[0];
                if (++column == width) column = 0, row++;
            }
            float *tile = tiles + done * TILE_COLUMNS;
            if (left == 1)
                kernels->multiply_row(rows[0], it->offsets, it->runs, it->run_length, weight, tile);
            else
                kernels->multiply(rows, it->offsets, it->runs, it->run_length, weight, tile);
        }
        kernels->finish(&it->output, pixels);
    }
}

/* One column of outputs for a block of pixels. Large weights are read once, from end to end; small ones again for each
   block. */
static void run_unit(const ConvStep *it, const Run *run, const float *image, size_t unit, Pixels *pixels) {
    const size_t all = (size_t)it->shape.sizes[0] * (size_t)it->shape.sizes[1], of_group = it->blocks * it->columns;
    const size_t group = unit / of_group, within = unit % of_group;
    const size_t block = it->by_columns ? within % it->blocks : within / it->columns;
    const size_t column = it->by_columns ? within / it->blocks : within % it->columns;
    const size_t first = block * it->block_pixels;
    const int32_t group_outputs = it->shape.outputs / it->shape.window.groups, n = (int32_t)column * TILE_COLUMNS;
    pixels->first_channel = (int32_t)group * group_outputs + n;
    pixels->channels = group_outputs - n < TILE_COLUMNS ? group_outputs - n : TILE_COLUMNS;
    run_tiles(it, run->net->kernels, image + group * (size_t)(it->shape.channels / it->shape.window.groups),
              it->weight + group * it->group_weights + column * it->column_weights, first,
              all - first < it->block_pixels ? all : first + it->block_pixels, 0, pixels);
}

static const float *plain_image(const ConvStep *it, const Run *run) {
    return it->pads ? (const float *)(run->common + it->looked_bytes) : numbers(run, it->shape.input);
}

/* Winograd's way is for tame images. Phase 0: parts of the image are looked at, and leave a byte each. */
static void look_at_parts(const Step *step, const Run *run, size_t first, size_t end) {
    const ConvStep *it = (const ConvStep *)step;
    const float *image = numbers(run, it->shape.input);
    const size_t all = (size_t)it->shape.height * (size_t)it->shape.width * (size_t)it->shape.channels;
    for (size_t part = first; part < end; part++) {
        const size_t from = all * part / MAX_PARTS_OF_IMAGE, to = all * (part + 1) / MAX_PARTS_OF_IMAGE;
        run->common[part] = !is_tame(image + from, to - from);
    }
}

static bool goes_by_winograd(const ConvStep *it, const Run *run) {
    if (!it->winograd) return false;
    bool is_wild = false;
    for (size_t part = 0; part < MAX_PARTS_OF_IMAGE; part++) is_wild |= run->common[part];
    return !is_wild;
}

/* Phase 1: rows of the padded image. */
static void pad_rows(const Step *step, const Run *run, size_t first, size_t end) {
    const ConvStep *it = (const ConvStep *)step;
    if (goes_by_winograd(it, run)) return;
    pad_with_zeros(numbers(run, it->shape.input), it->shape.height, it->shape.width,
                   (size_t)it->shape.channels * sizeof(float), &it->shape.window, it->padded, (int32_t)first,
                   (int32_t)end, run->common + it->looked_bytes);
}

/* Phase 2: blocks of rows of tiles. */
static void run_tame(const Step *step, const Run *run, size_t first, size_t end) {
    const ConvStep *it = (const ConvStep *)step;
    if (goes_by_winograd(it, run)) run_winograd(it->winograd, run, &it->output, first, end);
}

/* Phase 3: columns of outputs of blocks of pixels. */
static void run_units(const Step *step, const Run *run, size_t first, size_t end) {
    const ConvStep *it = (const ConvStep *)step;
    if (goes_by_winograd(it, run)) return;
    Pixels pixels = {0};
    aim(&it->output, run, &pixels);
    for (size_t unit = first; unit < end; unit++) run_unit(it, run, plain_image(it, run), unit, &pixels);
}

/* In place of phases 2 and 3, if rows are passed on; only of convolutions in one group. */
static void make_rows(const Step *step, const Run *run, size_t first, size_t end, float *rows, char *scratch) {
    const ConvStep *it = (const ConvStep *)step;
    if (goes_by_winograd(it, run)) {
        pass_winograd(it->winograd, run, &it->output, first, end, rows, scratch);
        return;
    }
    const size_t width = (size_t)it->shape.sizes[1];
    Pixels pixels = {.float_numbers = rows};
    for (size_t column = 0; column < it->columns; column++) {
        const int32_t n = (int32_t)column * TILE_COLUMNS;
        pixels.first_channel = n;
        pixels.channels = it->shape.outputs - n < TILE_COLUMNS ? it->shape.outputs - n : TILE_COLUMNS;
        run_tiles(it, run->net->kernels, plain_image(it, run), it->weight + column * it->column_weights, first * width,
                  end * width, first * width, &pixels);
    }
}

static void pack_weight(const ConvStep *it, const float *weight) {
    const size_t taps = (size_t)it->shape.window.kernel[0] * (size_t)it->shape.window.kernel[1];
    const size_t planes = (size_t)(it->shape.channels / it->shape.window.groups),
                 outputs = (size_t)(it->shape.outputs / it->shape.window.groups);
    for (size_t n = 0; n < (size_t)it->shape.outputs; n++)
        for (size_t plane = 0; plane < planes; plane++)
            for (size_t tap = 0; tap < taps; tap++) { /* runs one after another are all taps, planes inside */
                const size_t group = n / outputs, column = n % outputs / TILE_COLUMNS;
                float *tiles = it->weight + group * it->group_weights + column * it->column_weights;
                tiles[(tap * planes + plane) * TILE_COLUMNS + n % outputs % TILE_COLUMNS] =
                    weight[(n * planes + plane) * taps + tap];
            }
}

static onebit_status fill_step(onebit_net *net, ConvStep *it, const float *weight) {
    const onebit_window *window = &it->shape.window;
    const size_t planes = (size_t)(it->shape.channels / it->shape.window.groups), columns = (size_t)window->kernel[1];
    const bool by_rows =
        it->shape.window.groups == 1 && window->dilation[1] == 1; /* a row of the kernel lies together */
    it->runs = (size_t)window->kernel[0] * (by_rows ? 1 : columns);
    it->run_length = planes * (by_rows ? columns : 1);
    it->column_weights = it->runs * it->run_length * TILE_COLUMNS;
    it->group_weights =
        it->column_weights * ((size_t)(it->shape.outputs / it->shape.window.groups + TILE_COLUMNS - 1) / TILE_COLUMNS);
    it->offsets = net_alloc(net, it->runs * sizeof *it->offsets);
    it->weight = net_alloc(net, (size_t)it->shape.window.groups * it->group_weights * sizeof *it->weight);
    if (!it->offsets || !it->weight) return no_memory(net);
    for (size_t u = 0; u < it->runs; u++) {
        const ptrdiff_t dy = (ptrdiff_t)(by_rows ? u : u / columns), dx = (ptrdiff_t)(by_rows ? 0 : u % columns);
        it->offsets[u] = (dy * window->dilation[0] * it->padded.width + dx * window->dilation[1]) * it->shape.channels;
    }
    pack_weight(it, weight);
    return ONEBIT_OK;
}

/* Which part of the work is done when, and in what memory. */
static void plan(ConvStep *it) {
    const size_t all = (size_t)it->shape.sizes[0] * (size_t)it->shape.sizes[1],
                 groups = (size_t)it->shape.window.groups;
    const size_t padded_numbers = (size_t)it->padded.height * (size_t)it->padded.width * (size_t)it->shape.channels;
    it->by_columns = it->group_weights * sizeof(float) > SMALL_WEIGHT;
    it->columns = it->group_weights / it->column_weights;
    it->block_pixels = it->by_columns ? all : BLOCK_ROWS;
    it->blocks = (all + it->block_pixels - 1) / it->block_pixels;
    if (it->winograd) {
        it->looked_bytes = round_up(MAX_PARTS_OF_IMAGE, 64);
        it->step.own_bytes = winograd_scratch(it->winograd);
        it->step.phases[0] = (Phase){look_at_parts, MAX_PARTS_OF_IMAGE};
        it->step.phases[2] = (Phase){run_tame, winograd_blocks(it->winograd)};
    }
    if (it->pads) it->step.phases[1] = (Phase){pad_rows, (size_t)it->padded.height};
    it->step.phases[3] = (Phase){run_units, it->blocks * it->columns * groups};
    it->step.common_bytes = it->looked_bytes + (it->pads ? padded_numbers * sizeof(float) : 0);
    if (!it->output.passes_on || groups > 1) return;
    it->step.phases[2] = it->step.phases[3] = (Phase){0};
    it->step.make_rows = make_rows;
    it->step.rows_bytes = it->step.own_bytes;
    it->step.own_bytes = 0;
}

static const char *name_of(const ConvStep *it) { return it->winograd ? "Winograd or floats" : "floats"; }

static onebit_status add_again(onebit_net *net, const Step *step, int32_t input, const onebit_output *output) {
    const ConvStep *first = (const ConvStep *)step;
    if (!readable_as(net, input, first->shape.input)) return ONEBIT_INVALID;
    ConvStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = *first;
    it->step = (Step){.again = add_again};
    it->shape.input = input;
    if (first->winograd && !(it->winograd = winograd_of(net, first->winograd, input))) return no_memory(net);
    const onebit_status status = check_output(net, output, it->shape.outputs, it->shape.sizes, false, &it->output);
    if (!status) plan(it);
    return status ? status : add_step(net, &it->step, name_of(it), IN_TABLE);
}

onebit_status add_float_conv2d(onebit_net *net, const Convolution *wanted, const float *weight) {
    const Value *image = &net->values[wanted->input];
    const onebit_window *window = wanted->window;
    ConvStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = (ConvStep){.step.again = add_again,
                     .shape = shape_of(wanted, image),
                     .pads = window->padding[0] || window->padding[1] || window->padding[2] || window->padding[3]};
    it->padded = it->pads ? reach_of(window, it->shape.sizes) : (PaddedSize){image->height, image->width};
    onebit_status status = check_output(net, wanted->output, wanted->outputs, it->shape.sizes, false, &it->output);
    if (!status) status = fill_step(net, it, weight);
    if (!status && !wanted->keeps_zeros) it->winograd = new_winograd(net, &it->shape, weight);
    if (!status) plan(it);
    return status ? status : add_step(net, &it->step, name_of(it), IN_TABLE);
}

onebit_status onebit_add_conv2d(onebit_net *net, int32_t input, const onebit_window *window, int32_t outputs,
                                const float *weight, size_t n_weights, int keeps_zeros, const onebit_output *output) {
    const Value *image = readable(net, input, FLOATS);
    Convolution wanted = {
        .input = input, .outputs = outputs, .window = window, .output = output, .keeps_zeros = keeps_zeros != 0};
    if (!image || check_convolution(net, &wanted, image, n_weights)) return ONEBIT_INVALID;
    return is_depthwise(&wanted, image) ? add_depthwise(net, &wanted, weight) : add_float_conv2d(net, &wanted, weight);
}
