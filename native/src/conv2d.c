/* Convolution of floats: a matrix product whose rows are windows of the image, read where they lie.

   A window is a few runs of numbers that lie together (a row of the kernel, or a tap if the kernel is dilated or in
   groups), each at the same distance from the window's first pixel, whichever window it is. */
#include <stdlib.h>
#include <string.h>

#include "convolution.h"
#include "kernels.h"
#include "winograd.h"

/* Of packed weights: with no more, they stay in the second cache while blocks of pixels go by. */
enum { SMALL_WEIGHT = 1 << 18, BLOCK_ROWS = 16 * TILE_ROWS };

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
    Winograd *winograd;                   /* null: images always go the plain way */
} ConvStep;

/* Pixels from `first` to `end` with one column of weights: tiles of a block, then what becomes of them. */
static void run_tiles(const ConvStep *it, const Kernels *kernels, const float *image, const float *weight, size_t first,
                      size_t end, Pixels *pixels) {
    float tiles[BLOCK_ROWS * TILE_COLUMNS] __attribute__((aligned(64)));
    const size_t width = (size_t)it->shape.sizes[1];
    const ptrdiff_t pixel_step = (ptrdiff_t)it->shape.channels * it->shape.window.stride[1];
    const ptrdiff_t row_step = (ptrdiff_t)it->shape.channels * it->padded.width * it->shape.window.stride[0];
    size_t row = first / width, column = first % width;
    pixels->floats = tiles;
    pixels->stride = TILE_COLUMNS;
    for (; first < end; first += BLOCK_ROWS) {
        pixels->first = first;
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

static void run_conv2d(const Step *step, const Run *run) {
    const ConvStep *it = (const ConvStep *)step;
    const float *image = numbers(run, it->shape.input);
    if (it->winograd &&
        is_tame(image, (size_t)it->shape.height * (size_t)it->shape.width * (size_t)it->shape.channels)) {
        run_winograd(it->winograd, run, &it->output);
        return;
    }
    if (it->pads) {
        pad_with_zeros(image, it->shape.height, it->shape.width, (size_t)it->shape.channels * sizeof *image,
                       &it->shape.window, it->padded, run->scratch);
        image = (const float *)run->scratch;
    }
    const size_t all = (size_t)it->shape.sizes[0] * (size_t)it->shape.sizes[1];
    const int32_t group_outputs = it->shape.outputs / it->shape.window.groups,
                  planes = it->shape.channels / it->shape.window.groups;
    /* Large weights are read once, from end to end; small ones again for each block of pixels. */
    const size_t block = it->group_weights * sizeof(float) > SMALL_WEIGHT ? all : BLOCK_ROWS;
    Pixels pixels = {0};
    aim(&it->output, run, &pixels);
    for (int32_t group = 0; group < it->shape.window.groups; group++)
        for (size_t first = 0; first < all; first += block) {
            const size_t end = all - first < block ? all : first + block;
            const float *weight = it->weight + (size_t)group * it->group_weights;
            for (int32_t n = 0; n < group_outputs; n += TILE_COLUMNS, weight += it->column_weights) {
                pixels.first_channel = group * group_outputs + n;
                pixels.channels = group_outputs - n < TILE_COLUMNS ? group_outputs - n : TILE_COLUMNS;
                run_tiles(it, run->net->kernels, image + group * planes, weight, first, end, &pixels);
            }
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

onebit_status add_float_conv2d(onebit_net *net, const Convolution *wanted, const float *weight) {
    const Value *image = &net->values[wanted->input];
    const onebit_window *window = wanted->window;
    ConvStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = (ConvStep){.step = {.run = run_conv2d},
                     .shape = shape_of(wanted, image),
                     .pads = window->padding[0] || window->padding[1] || window->padding[2] || window->padding[3]};
    it->padded = it->pads ? reach_of(window, it->shape.sizes) : (PaddedSize){image->height, image->width};
    const size_t padded_numbers = (size_t)it->padded.height * (size_t)it->padded.width * (size_t)it->shape.channels;
    it->step.scratch_bytes = it->pads ? padded_numbers * sizeof(float) : 0;
    onebit_status status = check_output(net, wanted->output, wanted->outputs, it->shape.sizes, false, &it->output);
    if (!status) status = fill_step(net, it, weight);
    if (!status && !wanted->keeps_zeros) it->winograd = new_winograd(net, &it->shape, weight);
    if (it->winograd && winograd_scratch(it->winograd) > it->step.scratch_bytes)
        it->step.scratch_bytes = winograd_scratch(it->winograd);
    return status ? status : add_step(net, &it->step, it->winograd ? "Winograd or floats" : "floats", IN_TABLE);
}

onebit_status onebit_add_conv2d(onebit_net *net, int32_t input, const onebit_window *window, int32_t outputs,
                                const float *weight, size_t n_weights, int keeps_zeros, const onebit_output *output) {
    const Value *image = readable(net, input, FLOATS);
    Convolution wanted = {
        .input = input, .outputs = outputs, .window = window, .output = output, .keeps_zeros = keeps_zeros != 0};
    if (!image || check_convolution(net, &wanted, image, n_weights)) return ONEBIT_INVALID;
    return is_depthwise(&wanted, image) ? add_depthwise(net, &wanted, weight) : add_float_conv2d(net, &wanted, weight);
}
