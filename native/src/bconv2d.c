/* 1-bit convolution: checks, and the walk over groups, blocks of channels and blocks of pixels. */
#include "bconv2d.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "border.h"
#include "classes.h"
#include "convolution.h"
#include "kernels.h"

typedef struct {
    Step step;
    int32_t input;
    Bconv2d conv;    /* of one group */
    Classes classes; /* of projections, if they share their work */
    char name[40];
    int32_t groups;
    Output output;
    void *common;  /* to all groups */
    void **packed; /* of each group */
    Border *borders;
    int32_t *first_channels; /* of blocks of channels */
    size_t pixel_blocks, channel_blocks;
    size_t bits_bytes, prepared_bytes,
        row_bytes; /* of a group's scratch: its bits, what `prepare` makes of them and with */
    bool by_block; /* windows are prepared block by block */
} BconvStep;

/* A group's channels of an image of bits, as an image of their own. */
static void take_group(const uint64_t *bits, int32_t channels, int32_t first, const Bconv2d *conv, uint64_t *taken) {
    const size_t words = words_of(channels), words_taken = words_of(conv->planes);
    const size_t n_pixels = (size_t)conv->height * (size_t)conv->width;
    memset(taken, 0, n_pixels * words_taken * sizeof *taken);
    for (size_t pixel = 0; pixel < n_pixels; pixel++, bits += words, taken += words_taken)
        for (int32_t plane = 0; plane < conv->planes; plane++) {
            const int32_t channel = first + plane;
            taken[plane / 64] |= (bits[channel / 64] >> channel % 64 & 1) << plane % 64;
        }
}

/* A block of pixels and channels. */
static void run_block(const BconvStep *it, const Run *run, int32_t group, Block block, Pixels *pixels) {
    const size_t width = (size_t)it->conv.out_width;
    uint16_t counts[BLOCK_PIXELS * MAX_BLOCK_WIDTH] __attribute__((aligned(64)));
    const float *offsets[BLOCK_PIXELS];
    size_t row = block.first_pixel / width, column = block.first_pixel % width;
    for (size_t r = 0; r < block.pixels; r++) {
        offsets[r] = offsets_of(&it->borders[group], row, column) + block.first_channel;
        if (++column == width) column = 0, row++;
    }
    run->net->kernels->count(&it->conv, &block, counts);
    const int32_t left = it->conv.outputs - block.first_channel;
    pixels->counts = counts;
    pixels->offsets = offsets;
    pixels->first = block.first_pixel;
    pixels->count = block.pixels;
    pixels->stride = (size_t)block.width;
    pixels->first_channel = group * it->conv.outputs + block.first_channel;
    pixels->channels = left < block.width ? left : block.width;
    run->net->kernels->finish(&it->output, pixels);
}

/* Blocks of channels from `first` to before `end` of block `index` of pixels. */
static void run_blocks(const BconvStep *it, const Run *run, int32_t group, Block block, size_t index, size_t first,
                       size_t end, Pixels *pixels) {
    const size_t all = (size_t)it->conv.out_height * (size_t)it->conv.out_width;
    block.first_pixel = index * BLOCK_PIXELS;
    block.pixels = all - block.first_pixel < BLOCK_PIXELS ? all - block.first_pixel : BLOCK_PIXELS;
    if (it->by_block) run->net->kernels->prepare_block(&it->conv, &block);
    for (size_t i = first; i < end; i++) {
        block.first_channel = it->first_channels[i];
        block.width = run->net->kernels->block_width(&it->conv, it->conv.outputs - block.first_channel);
        run_block(it, run, group, block, pixels);
    }
}

/* Units: rows of the padded image. */
static void prepare_rows(const Step *step, const Run *run, size_t first, size_t end) {
    const BconvStep *it = (const BconvStep *)step;
    run->net->kernels->prepare(&it->conv, numbers(run, it->input), (int32_t)first, (int32_t)end, run->common, run->own);
}

/* Units: blocks of pixels if each is prepared by itself, else blocks of pixels and channels, the channels inside. */
static void count_blocks(const Step *step, const Run *run, size_t first, size_t end) {
    const BconvStep *it = (const BconvStep *)step;
    const Block block = {.common = it->common,
                         .packed = it->packed[0],
                         .bits = numbers(run, it->input),
                         .prepared = it->by_block ? run->own : run->common};
    Pixels pixels = {0};
    aim(&it->output, run, &pixels);
    const size_t each = it->by_block ? 1 : it->channel_blocks;
    while (first < end) {
        const size_t index = first / each, from = first % each, left = end - first;
        const size_t to = each - from < left ? each : from + left;
        run_blocks(it, run, 0, block, index, from, it->by_block ? it->channel_blocks : to, &pixels);
        first += to - from;
    }
}

/* Units: groups. */
static void run_groups(const Step *step, const Run *run, size_t first, size_t end) {
    const BconvStep *it = (const BconvStep *)step;
    uint64_t *taken = (uint64_t *)run->own;
    char *prepared = run->own + it->bits_bytes, *row = prepared + it->prepared_bytes;
    Pixels pixels = {0};
    aim(&it->output, run, &pixels);
    for (int32_t group = (int32_t)first; group < (int32_t)end; group++) {
        const Block block = {.common = it->common, .packed = it->packed[group], .bits = taken, .prepared = prepared};
        take_group(numbers(run, it->input), it->conv.planes * it->groups, group * it->conv.planes, &it->conv, taken);
        if (!it->by_block) run->net->kernels->prepare(&it->conv, taken, 0, it->conv.padded.height, prepared, row);
        for (size_t index = 0; index < it->pixel_blocks; index++)
            run_blocks(it, run, group, block, index, 0, it->channel_blocks, &pixels);
    }
}

/* Which part of the work is done when, and in what memory. */
static void plan(const Kernels *kernels, BconvStep *it) {
    const size_t block_bytes = kernels->block_bytes(&it->conv);
    const size_t group_words = (size_t)it->conv.height * (size_t)it->conv.width * words_of(it->conv.planes);
    it->by_block = block_bytes > 0;
    it->prepared_bytes = round_up(it->by_block ? block_bytes : kernels->prepared_bytes(&it->conv), 64);
    it->row_bytes = kernels->row_bytes(&it->conv);
    if (it->groups > 1) {
        it->bits_bytes = round_up(group_words * 8, 64);
        it->step.phases[0] = (Phase){run_groups, (size_t)it->groups};
        it->step.own_bytes = it->bits_bytes + it->prepared_bytes + it->row_bytes;
    } else if (it->by_block) {
        it->step.phases[0] = (Phase){count_blocks, it->pixel_blocks};
        it->step.own_bytes = it->prepared_bytes;
    } else {
        it->step.phases[0] = (Phase){prepare_rows, (size_t)it->conv.padded.height};
        it->step.phases[1] = (Phase){count_blocks, it->pixel_blocks * it->channel_blocks};
        it->step.common_bytes = it->prepared_bytes;
        it->step.own_bytes = it->row_bytes;
    }
}

static onebit_status cut_into_blocks(onebit_net *net, BconvStep *it) {
    const size_t all = (size_t)it->conv.out_height * (size_t)it->conv.out_width;
    it->pixel_blocks = (all + BLOCK_PIXELS - 1) / BLOCK_PIXELS;
    for (int32_t n = 0; n < it->conv.outputs; n += net->kernels->block_width(&it->conv, it->conv.outputs - n))
        it->channel_blocks++;
    it->first_channels = net_alloc(net, it->channel_blocks * sizeof *it->first_channels);
    if (!it->first_channels) return no_memory(net);
    for (size_t i = 1; i < it->channel_blocks; i++) {
        const int32_t before = it->first_channels[i - 1];
        it->first_channels[i] = before + net->kernels->block_width(&it->conv, it->conv.outputs - before);
    }
    return ONEBIT_OK;
}

/* Decides whether projections share their work. Those of one kernel are in one group, as outputs o*J to o*J + J - 1, if J divides
   the outputs of a group. */
static onebit_status share(onebit_net *net, BconvStep *it, const onebit_projections *projections) {
    const int32_t J = projections->count;
    if (J == 1 || it->conv.outputs % J || !net->kernels->shares) return ONEBIT_OK;
    const onebit_status status =
        make_classes(net, J, projections->masks, (size_t)it->conv.planes, taps_of(&it->conv), &it->classes);
    if (!status && it->classes.count && net->kernels->shares(&it->conv, &it->classes)) it->conv.shared = &it->classes;
    return status;
}

/* How it runs, in words. */
static const char *name_of(BconvStep *it) {
    const char *name = it->groups > 1 ? "bits in groups" : "bits";
    if (!it->conv.shared) return name;
    snprintf(it->name, sizeof it->name, "%s, shared by %d", name, it->classes.projections);
    return it->name;
}

static onebit_status fill_step(onebit_net *net, BconvStep *it, const int8_t *signs) {
    const size_t signs_of_group = (size_t)it->conv.outputs * (size_t)it->conv.planes * taps_of(&it->conv);
    it->packed = net_alloc(net, (size_t)it->groups * sizeof *it->packed);
    it->borders = net_alloc(net, (size_t)it->groups * sizeof *it->borders);
    it->common = net_alloc(net, net->kernels->common_bytes(&it->conv));
    if (!it->packed || !it->borders || !it->common) return no_memory(net);
    net->kernels->put_common(&it->conv, it->common);
    for (int32_t group = 0; group < it->groups; group++) {
        const int8_t *group_signs = signs + (size_t)group * signs_of_group;
        it->packed[group] = net_alloc(net, net->kernels->packed_bytes(&it->conv));
        if (!it->packed[group]) return no_memory(net);
        net->kernels->pack(&it->conv, group_signs, it->packed[group]);
        const onebit_status status = make_border(net, &it->conv, group_signs, &it->borders[group]);
        if (status) return status;
    }
    const onebit_status status = cut_into_blocks(net, it);
    if (!status) plan(net->kernels, it);
    return status;
}

static onebit_status add_again(onebit_net *net, const Step *step, int32_t input, const onebit_output *output) {
    const BconvStep *first = (const BconvStep *)step;
    const int32_t sizes[2] = {first->conv.out_height, first->conv.out_width};
    if (!readable_as(net, input, first->input)) return ONEBIT_INVALID;
    BconvStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = *first; /* classes of projections, too, stay where they are in the first */
    it->step = (Step){.again = add_again};
    it->input = input;
    const onebit_status status = check_output(net, output, it->groups * it->conv.outputs, sizes, true, &it->output);
    if (!status) plan(net->kernels, it);
    return status ? status : add_step(net, &it->step, name_of(it), IN_TABLE);
}

/* A layer of bits; signs: of all outputs. */
static onebit_status add_bits(onebit_net *net, const Convolution *wanted, const onebit_projections *projections,
                              const int8_t *signs) {
    const Value *image = &net->values[wanted->input];
    const onebit_window *window = wanted->window;
    BconvStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    it->step.again = add_again;
    it->input = wanted->input;
    it->groups = window->groups;
    it->conv = (Bconv2d){.planes = image->channels / window->groups,
                         .height = image->height,
                         .width = image->width,
                         .outputs = wanted->outputs / window->groups,
                         .out_height = wanted->sizes[0],
                         .out_width = wanted->sizes[1],
                         .window = *window,
                         .padded = reach_of(window, wanted->sizes)};
    onebit_status status = check_output(net, wanted->output, wanted->outputs, wanted->sizes, true, &it->output);
    if (!status) status = share(net, it, projections);
    if (!status) status = fill_step(net, it, signs);
    return status ? status : add_step(net, &it->step, name_of(it), IN_TABLE);
}

/* Of a window that is sound. */
static onebit_status check_masks(onebit_net *net, const onebit_window *window, const onebit_projections *given) {
    const size_t taps = (size_t)window->kernel[0] * (size_t)window->kernel[1];
    const bool fits = given->masks ? given->n_masks / taps == (size_t)given->count && given->n_masks % taps == 0
                                   : given->n_masks == 0;
    return fits ? ONEBIT_OK : invalid(net, "%d projections have masks of %zu signs", given->count, given->n_masks);
}

onebit_status onebit_add_bconv2d(onebit_net *net, int32_t input, const onebit_window *window, int32_t outputs,
                                 const int8_t *kernels, size_t n_signs, const onebit_projections *projections,
                                 const onebit_output *output) {
    const Value *image = readable(net, input, BITS | LEVELS);
    Convolution wanted = {.input = input, .outputs = outputs, .window = window, .output = output};
    if (!image) return ONEBIT_INVALID;
    const int32_t J = projections->count;
    if (J < 1 || outputs % J || n_signs > SIZE_MAX / (size_t)J)
        return invalid(net, "%d outputs of %d projections, with %zu weights", outputs, J, n_signs);
    if (check_convolution(net, &wanted, image, n_signs * (size_t)J) || check_masks(net, window, projections))
        return ONEBIT_INVALID;
    for (size_t i = 0; i < n_signs; i++)
        if (kernels[i] != 1 && kernels[i] != -1) return invalid(net, "a sign is %d", kernels[i]);
    const size_t planes = (size_t)(image->channels / window->groups);
    const size_t taps = (size_t)window->kernel[0] * (size_t)window->kernel[1];
    int8_t *signs = written_out(kernels, (size_t)(outputs / J), J, projections->masks, planes, taps);
    if (!signs) return no_memory(net);
    const onebit_status status = image->kind == ONEBIT_LEVELS ? add_level_conv2d(net, &wanted, signs, true)
                                 : taps_of_output(image, window) > MAX_TAPS
                                     ? add_wide_conv2d(net, &wanted, signs)
                                     : add_bits(net, &wanted, projections, signs);
    free(signs);
    return status;
}
