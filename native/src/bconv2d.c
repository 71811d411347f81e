/* 1-bit convolution: checks, and the walk over groups, blocks of channels and blocks of pixels. */
#include "bconv2d.h"

#include <stdlib.h>
#include <string.h>

#include "border.h"
#include "convolution.h"
#include "kernels.h"

typedef struct {
    Step step;
    int32_t input;
    Bconv2d conv; /* of one group */
    int32_t groups;
    Output output;
    void *common;  /* to all groups */
    void **packed; /* of each group */
    Border *borders;
    size_t bits_bytes, prepared_bytes; /* of scratch: a group's bits (if there are groups), and what `prepare` makes */
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

/* All channels of a block of pixels. */
static void run_block(const BconvStep *it, const Run *run, int32_t group, Block block, Pixels *pixels) {
    const Kernels *kernels = run->net->kernels;
    const size_t width = (size_t)it->conv.out_width;
    uint16_t counts[BLOCK_PIXELS * MAX_BLOCK_WIDTH] __attribute__((aligned(64)));
    const float *offsets[BLOCK_PIXELS];
    pixels->counts = counts;
    pixels->offsets = offsets;
    pixels->first = block.first_pixel;
    pixels->count = block.pixels;
    for (block.first_channel = 0; block.first_channel < it->conv.outputs; block.first_channel += block.width) {
        const int32_t left = it->conv.outputs - block.first_channel;
        block.width = kernels->block_width(left);
        size_t row = block.first_pixel / width, column = block.first_pixel % width;
        for (size_t r = 0; r < block.pixels; r++) {
            offsets[r] = offsets_of(&it->borders[group], row, column) + block.first_channel;
            if (++column == width) column = 0, row++;
        }
        kernels->count(&it->conv, &block, counts);
        pixels->stride = (size_t)block.width;
        pixels->first_channel = group * it->conv.outputs + block.first_channel;
        pixels->channels = left < block.width ? left : block.width;
        kernels->finish(&it->output, pixels);
    }
}

static void run_bconv2d(const Step *step, const Run *run) {
    const BconvStep *it = (const BconvStep *)step;
    const Kernels *kernels = run->net->kernels;
    const size_t all = (size_t)it->conv.out_height * (size_t)it->conv.out_width;
    const uint64_t *bits = numbers(run, it->input);
    uint64_t *taken = (uint64_t *)run->scratch;
    Pixels pixels = {0};
    aim(&it->output, run, &pixels);
    for (int32_t group = 0; group < it->groups; group++) {
        Block block = {
            .common = it->common, .packed = it->packed[group], .bits = bits, .prepared = run->scratch + it->bits_bytes};
        if (it->groups > 1) {
            take_group(bits, it->conv.planes * it->groups, group * it->conv.planes, &it->conv, taken);
            block.bits = taken;
        }
        kernels->prepare(&it->conv, block.bits, block.prepared);
        for (block.first_pixel = 0; block.first_pixel < all; block.first_pixel += BLOCK_PIXELS) {
            block.pixels = all - block.first_pixel < BLOCK_PIXELS ? all - block.first_pixel : BLOCK_PIXELS;
            kernels->prepare_block(&it->conv, &block);
            run_block(it, run, group, block, &pixels);
        }
    }
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
    const size_t group_words = (size_t)it->conv.height * (size_t)it->conv.width * words_of(it->conv.planes);
    it->bits_bytes = it->groups > 1 ? round_up(group_words * 8, 64) : 0;
    it->prepared_bytes = net->kernels->prepared_bytes(&it->conv);
    it->step.scratch_bytes = it->bits_bytes + it->prepared_bytes;
    return ONEBIT_OK;
}

onebit_status onebit_add_bconv2d(onebit_net *net, int32_t input, const onebit_window *window, int32_t outputs,
                                 const int8_t *signs, size_t n_signs, const onebit_output *output) {
    const Value *image = readable(net, input, BITS | LEVELS);
    Convolution wanted = {.input = input, .outputs = outputs, .window = window, .output = output};
    if (!image || check_convolution(net, &wanted, image, n_signs)) return ONEBIT_INVALID;
    for (size_t i = 0; i < n_signs; i++)
        if (signs[i] != 1 && signs[i] != -1) return invalid(net, "a sign is %d", signs[i]);
    if (image->kind == ONEBIT_LEVELS) return add_level_conv2d(net, &wanted, signs, true);
    if (taps_of_output(image, window) > MAX_TAPS) return add_wide_conv2d(net, &wanted, signs);
    BconvStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    it->step.run = run_bconv2d;
    it->input = input;
    it->groups = window->groups;
    it->conv = (Bconv2d){.planes = image->channels / window->groups,
                         .height = image->height,
                         .width = image->width,
                         .outputs = outputs / window->groups,
                         .out_height = wanted.sizes[0],
                         .out_width = wanted.sizes[1],
                         .window = *window,
                         .padded = reach_of(window, wanted.sizes)};
    onebit_status status = check_output(net, output, outputs, wanted.sizes, true, &it->output);
    if (!status) status = fill_step(net, it, signs);
    return status ? status : add_step(net, &it->step, it->groups > 1 ? "bits in groups" : "bits", IN_TABLE);
}
