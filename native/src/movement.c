/* Operations that only move numbers. */
#include <string.h>

#include "net.h"

typedef struct {
    Step step;
    int32_t input, output;
    int32_t from, to, channels; /* of a copy */
    int32_t padding[4];
    onebit_padding mode;
} MovementStep;

static onebit_status add_movement(onebit_net *net, MovementStep wanted) {
    const Value *in = &net->values[wanted.input], *out = &net->values[wanted.output];
    if (in->low != out->low) return invalid(net, "value %d has other levels than %d", wanted.output, wanted.input);
    if (in->offset < out->offset + out->bytes && out->offset < in->offset + in->bytes)
        return invalid(net, "value %d would be moved over value %d", wanted.input, wanted.output);
    MovementStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = wanted;
    return add_step(net, &it->step, "copy", IN_PLAIN_C);
}

/* Channels. */

static void copy_bits(const uint64_t *from, int32_t first, uint64_t *to, int32_t to_first, int32_t count) {
    for (int32_t c = 0; c < count; c++) {
        const int32_t source = first + c, target = to_first + c;
        const uint64_t mask = UINT64_C(1) << target % 64, bit = from[source / 64] >> source % 64 & 1;
        to[target / 64] = (to[target / 64] & ~mask) | bit << target % 64;
    }
}

/* Units: pixels. */
static void run_copy(const Step *step, const Run *run, size_t first, size_t end) {
    const MovementStep *it = (const MovementStep *)step;
    const Value *in = &run->net->values[it->input], *out = &run->net->values[it->output];
    if (in->kind == ONEBIT_BITS) {
        const size_t words_in = words_of(in->channels), words = words_of(out->channels);
        const uint64_t *from = (const uint64_t *)numbers(run, it->input) + first * words_in;
        uint64_t *to = (uint64_t *)numbers(run, it->output) + first * words;
        for (size_t pixel = first; pixel < end; pixel++, from += words_in, to += words) {
            if (it->to == 0) memset(to, 0, words * sizeof *to); /* the first of several copies */
            copy_bits(from, it->from, to, it->to, it->channels);
        }
        return;
    }
    const size_t size = number_bytes(in->kind), in_pixel = (size_t)in->channels * size,
                 out_pixel = (size_t)out->channels * size;
    const char *from = (const char *)numbers(run, it->input) + first * in_pixel + (size_t)it->from * size;
    char *to = (char *)numbers(run, it->output) + first * out_pixel + (size_t)it->to * size;
    for (size_t pixel = first; pixel < end; pixel++, from += in_pixel, to += out_pixel)
        memcpy(to, from, (size_t)it->channels * size);
}

onebit_status onebit_add_copy(onebit_net *net, int32_t input, int32_t from, int32_t output, int32_t to,
                              int32_t channels) {
    const Value *in = readable(net, input, FLOATS | BITS | SUMS | LEVELS);
    const Value *out = in ? writable(net, output, 1 << in->kind) : NULL;
    if (!out) return ONEBIT_INVALID;
    if (in->height != out->height || in->width != out->width || from < 0 || to < 0 || channels < 1 ||
        channels > in->channels || from > in->channels - channels || channels > out->channels ||
        to > out->channels - channels)
        return invalid(net, "%d channels can't be copied from %d to %d", channels, from, to);
    return add_movement(net, (MovementStep){.step = {.phases = {{run_copy, pixels_of(in)}}},
                                            .input = input,
                                            .output = output,
                                            .from = from,
                                            .to = to,
                                            .channels = channels});
}

/* Rows and columns around an image. */

/* Where the number at `place` before or behind the image comes from; -1: it is 0. */
static int32_t source_of(onebit_padding mode, int32_t place, int32_t side) {
    if (place >= 0 && place < side) return place;
    switch (mode) {
        case ONEBIT_REFLECT: return place < 0 ? -place : 2 * (side - 1) - place;
        case ONEBIT_REPLICATE: return place < 0 ? 0 : side - 1;
        case ONEBIT_CIRCULAR: return place < 0 ? place + side : place - side;
        default: return -1;
    }
}

/* Units: rows that are made. */
static void run_pad(const Step *step, const Run *run, size_t first, size_t end) {
    const MovementStep *it = (const MovementStep *)step;
    const Value *in = &run->net->values[it->input], *out = &run->net->values[it->output];
    const size_t bytes = in->bytes / pixels_of(in);
    const char *from = numbers(run, it->input);
    char *to = (char *)numbers(run, it->output) + first * (size_t)out->width * bytes;
    for (int32_t row = (int32_t)first; row < (int32_t)end; row++)
        for (int32_t column = 0; column < out->width; column++, to += bytes) {
            const int32_t y = source_of(it->mode, row - it->padding[0], in->height);
            const int32_t x = source_of(it->mode, column - it->padding[2], in->width);
            if (y < 0 || x < 0)
                memset(to, -in->low, bytes); /* floats and sums have no `low` */
            else
                memcpy(to, from + ((size_t)y * (size_t)in->width + (size_t)x) * bytes, bytes);
        }
}

onebit_status onebit_add_pad(onebit_net *net, int32_t input, int32_t output, const int32_t padding[4],
                             onebit_padding mode) {
    const Value *in = readable(net, input, FLOATS | BITS | LEVELS);
    const Value *out = in ? writable(net, output, 1 << in->kind) : NULL;
    if (!out) return ONEBIT_INVALID;
    if ((int)mode < ONEBIT_ZEROS || (int)mode > ONEBIT_CIRCULAR || (mode == ONEBIT_ZEROS && in->kind == ONEBIT_BITS))
        return invalid(net, "a pad of unknown mode");
    for (int side = 0; side < 4; side++) {
        const int32_t size = side < 2 ? in->height : in->width;
        const int32_t room = mode == ONEBIT_REFLECT ? size - 1 : mode == ONEBIT_CIRCULAR ? size : 1 << 10;
        if (padding[side] < 0 || padding[side] > room) return invalid(net, "a pad of %d", padding[side]);
    }
    if (out->channels != in->channels || out->height != in->height + padding[0] + padding[1] ||
        out->width != in->width + padding[2] + padding[3])
        return invalid(net, "a pad makes another shape");
    MovementStep wanted = {
        .step = {.phases = {{run_pad, (size_t)out->height}}}, .input = input, .output = output, .mode = mode};
    memcpy(wanted.padding, padding, sizeof wanted.padding);
    return add_movement(net, wanted);
}

/* Other shapes. */

static void run_reshape(const Step *step, const Run *run, size_t first, size_t end) {
    (void)first, (void)end; /* one unit */
    const MovementStep *it = (const MovementStep *)step;
    const Value *in = &run->net->values[it->input], *out = &run->net->values[it->output];
    const size_t in_pixels = pixels_of(in), out_pixels = pixels_of(out);
    const float *from = numbers(run, it->input);
    float *to = numbers(run, it->output);
    size_t channel = 0, pixel = 0; /* of the output, in order of channels, rows, columns */
    for (size_t c = 0; c < (size_t)in->channels; c++)
        for (size_t p = 0; p < in_pixels; p++) {
            to[pixel * (size_t)out->channels + channel] = from[p * (size_t)in->channels + c];
            if (++pixel == out_pixels) pixel = 0, channel++;
        }
}

onebit_status onebit_add_reshape(onebit_net *net, int32_t input, int32_t output) {
    const Value *in = readable(net, input, FLOATS), *out = in ? writable(net, output, FLOATS) : NULL;
    if (!out) return ONEBIT_INVALID;
    if (in->bytes != out->bytes) return invalid(net, "a reshape of %zu bytes to %zu", in->bytes, out->bytes);
    return add_movement(net, (MovementStep){.step = {.phases = {{run_reshape, 1}}}, .input = input, .output = output});
}
