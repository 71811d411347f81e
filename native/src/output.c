#include "output.h"

#include <math.h>
#include <string.h>

enum { SIGN_BIT = 31 };

static bool is_active(const onebit_activation *activation) {
    return activation->slope || activation->low != -INFINITY || activation->high != INFINITY;
}

static onebit_status copy_activation(onebit_net *net, const onebit_activation *from, int32_t channels,
                                     const float **slope, float *low, float *high, bool *clamps) {
    if (!(from->low <= from->high)) return invalid(net, "an activation's low is more than its high");
    *low = from->low;
    *high = from->high;
    *clamps = from->low != -INFINITY || from->high != INFINITY;
    *slope = NULL;
    if (!from->slope) return ONEBIT_OK;
    *slope = net_copy_floats(net, from->slope, (size_t)channels);
    return *slope ? ONEBIT_OK : no_memory(net);
}

static onebit_status copy_thresholds(onebit_net *net, const onebit_output *wanted, int32_t channels, Output *made) {
    const size_t count = (size_t)channels;
    bool all_zero = true;
    for (size_t n = 0; n < count; n++) all_zero &= wanted->thresholds[n] == 0 && !wanted->at_most[n];
    if (all_zero) return ONEBIT_OK;
    float *thresholds = net_copy_floats(net, wanted->thresholds, count);
    uint32_t *flips = net_alloc(net, count * sizeof *flips);
    if (!thresholds || !flips) return no_memory(net);
    for (size_t n = 0; n < count; n++)
        if (wanted->at_most[n]) {
            thresholds[n] = -thresholds[n];
            flips[n] = UINT32_C(1) << SIGN_BIT;
        }
    made->thresholds = thresholds;
    made->flips = flips;
    return ONEBIT_OK;
}

static onebit_status check_levels(onebit_net *net, const onebit_output *wanted, int32_t channels,
                                  const int32_t sizes[2], Output *made) {
    const Value *to = writable(net, wanted->levels_to, LEVELS);
    if (!to) return ONEBIT_INVALID;
    if (!has_shape(to, channels, sizes)) return invalid(net, "levels have another shape than what makes them");
    if (!(wanted->per_unit > 0 && isfinite(wanted->per_unit)) || wanted->high < 1 || wanted->high > 255 + to->low)
        return invalid(net, "levels are out of bounds");
    made->per_unit = wanted->per_unit;
    made->low = to->low;
    made->high = wanted->high;
    return ONEBIT_OK;
}

onebit_status check_output(onebit_net *net, const onebit_output *wanted, int32_t channels, const int32_t sizes[2],
                           bool can_make_sums, Output *made) {
    memset(made, 0, sizeof *made);
    if (wanted->channels != channels)
        return invalid(net, "an output has tensors of %d channels, not %d", wanted->channels, channels);
    made->channels = channels;
    made->residual = wanted->residual;
    made->numbers_to = wanted->numbers_to;
    made->bits_to = wanted->bits_to;
    made->levels_to = wanted->levels_to;
    if (!wanted->scale != !wanted->shift) return invalid(net, "an output has a scale without a shift");
    if (wanted->scale) {
        made->scale = net_copy_floats(net, wanted->scale, (size_t)channels);
        made->shift = net_copy_floats(net, wanted->shift, (size_t)channels);
        if (!made->scale || !made->shift) return no_memory(net);
    }
    onebit_status status = copy_activation(net, &wanted->first, channels, &made->first_slope, &made->first_low,
                                           &made->first_high, &made->first_clamps);
    if (!status)
        status = copy_activation(net, &wanted->second, channels, &made->second_slope, &made->second_low,
                                 &made->second_high, &made->second_clamps);
    if (status) return status;
    if (wanted->residual >= 0) {
        const Value *residual = readable(net, wanted->residual, FLOATS);
        if (!residual) return ONEBIT_INVALID;
        if (!has_shape(residual, channels, sizes)) return invalid(net, "a residual has another shape");
    }
    if (wanted->numbers_to < 0 && wanted->bits_to < 0 && wanted->levels_to < 0)
        return invalid(net, "an output goes nowhere");
    if (wanted->numbers_to >= 0) {
        const Value *to = writable_or_passed(net, wanted->numbers_to, FLOATS | SUMS);
        if (!to) return ONEBIT_INVALID;
        made->passes_on = to->is_passed;
        if (to->is_passed && (wanted->residual >= 0 || wanted->bits_to >= 0 || wanted->levels_to >= 0))
            return invalid(net, "value %d is passed on with others", wanted->numbers_to);
        if (!has_shape(to, channels, sizes)) return invalid(net, "an output has another shape than what makes it");
        made->makes_sums = to->kind == ONEBIT_SUMS;
        const bool changes =
            wanted->scale || wanted->residual >= 0 || is_active(&wanted->first) || is_active(&wanted->second);
        if (made->makes_sums && (changes || !can_make_sums)) return invalid(net, "sums are made of what are not sums");
    }
    if (wanted->bits_to >= 0) {
        const Value *to = writable(net, wanted->bits_to, BITS);
        if (!to) return ONEBIT_INVALID;
        if (!has_shape(to, channels, sizes)) return invalid(net, "bits have another shape than what makes them");
        if (!wanted->thresholds || !wanted->at_most) return invalid(net, "bits are wanted without thresholds");
        status = copy_thresholds(net, wanted, channels, made);
        if (status) return status;
    }
    return wanted->levels_to >= 0 ? check_levels(net, wanted, channels, sizes, made) : ONEBIT_OK;
}

bool makes_only_levels(const Output *output) {
    return output->levels_to >= 0 && output->numbers_to < 0 && output->bits_to < 0 && output->residual < 0 &&
           !output->scale && !output->first_slope && !output->first_clamps && !output->second_slope &&
           !output->second_clamps;
}

void aim(const Output *output, const Run *run, Pixels *pixels) {
    pixels->residual = output->residual >= 0 ? numbers(run, output->residual) : NULL;
    pixels->bits = output->bits_to >= 0 ? numbers(run, output->bits_to) : NULL;
    pixels->levels = output->levels_to >= 0 ? numbers(run, output->levels_to) : NULL;
    pixels->float_numbers = NULL;
    pixels->sum_numbers = NULL;
    if (output->numbers_to < 0) return;
    if (output->makes_sums)
        pixels->sum_numbers = numbers(run, output->numbers_to);
    else
        pixels->float_numbers = numbers(run, output->numbers_to);
}

static float activated(float v, const float *slope, int32_t channel, bool clamps, float low, float high) {
    if (slope && v < 0) v *= slope[channel];
    if (clamps) { /* written so that NaN stays NaN */
        if (v < low) v = low;
        if (v > high) v = high;
    }
    return v;
}

static bool passes(const Output *output, float v, int32_t channel) {
    if (!output->thresholds) return v >= 0;
    return (output->flips[channel] ? -v : v) >= output->thresholds[channel];
}

/* Sums are below 2^24; what a wrong plan lays over them is any float. */
static int32_t whole(float v) { return v > -0x1p31f && v < 0x1p31f ? (int32_t)v : 0; }

uint8_t level_of(const Output *output, float v) {
    const float x = v * output->per_unit, low = (float)output->low, high = (float)output->high;
    if (x != x) return (uint8_t)-output->low;
    return (uint8_t)((int32_t)nearbyintf(x < low    ? low
                                         : x > high ? high
                                                    : x) -
                     output->low); /* halves to the even one */
}

void finish_row_scalar(const Output *output, const Pixels *pixels, size_t row, int32_t from, int32_t to) {
    const size_t pixel = pixels->first + row;
    for (int32_t n = from; n < to; n++) {
        const int32_t channel = pixels->first_channel + n;
        const size_t at = pixel * (size_t)output->channels + (size_t)channel, raw = row * pixels->stride + (size_t)n;
        float v;
        if (pixels->counts)
            v = pixels->offsets[row][n] - 2 * (float)pixels->counts[raw]; /* whole numbers below 2^24: exact */
        else
            v = pixels->floats ? pixels->floats[raw] : (float)pixels->sums[raw];
        if (pixels->sum_numbers) pixels->sum_numbers[at] = pixels->sums ? pixels->sums[raw] : whole(v);
        if (output->scale) v = output->scale[channel] * v + output->shift[channel];
        v = activated(v, output->first_slope, channel, output->first_clamps, output->first_low, output->first_high);
        if (pixels->residual) v += pixels->residual[at];
        v = activated(v, output->second_slope, channel, output->second_clamps, output->second_low, output->second_high);
        if (pixels->float_numbers) pixels->float_numbers[at] = v;
        if (pixels->levels) pixels->levels[at] = level_of(output, v);
        if (!pixels->bits) continue;
        uint8_t *byte = pixels->bits + pixel * words_of(output->channels) * 8 + channel / 8;
        if (channel % 8 == 0) *byte = 0;
        *byte |= (uint8_t)(passes(output, v, channel) << channel % 8);
    }
    /* What is left of the last word of bits. */
    if (pixels->bits && pixels->first_channel + to == output->channels) {
        const size_t used = ((size_t)output->channels + 7) / 8, all = words_of(output->channels) * 8;
        memset(pixels->bits + pixel * all + used, 0, all - used);
    }
}

void finish_scalar(const Output *output, const Pixels *pixels) {
    for (size_t row = 0; row < pixels->count; row++) finish_row_scalar(output, pixels, row, 0, pixels->channels);
}
