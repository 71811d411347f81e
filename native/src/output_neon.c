/* What becomes of a layer's numbers, eight channels at a time: what makes a byte of bits. */
#include "output_neon.h"

#include <arm_neon.h>

typedef float32x4_t floats;

static inline floats number_at(const Pixels *pixels, size_t row, int32_t n) {
    const size_t at = row * pixels->stride + (size_t)n;
    if (pixels->floats) return vld1q_f32(pixels->floats + at);
    if (pixels->sums) return vcvtq_f32_s32(vld1q_s32(pixels->sums + at));
    const floats counts = vcvtq_f32_u32(vmovl_u16(vld1_u16(pixels->counts + at)));
    return vsubq_f32(vld1q_f32(pixels->offsets[row] + n), vaddq_f32(counts, counts)); /* whole, below 2^24: exact */
}

static inline int32x4_t sum_at(const Pixels *pixels, size_t row, int32_t n) {
    if (pixels->sums) return vld1q_s32(pixels->sums + row * pixels->stride + (size_t)n);
    return vcvtq_s32_f32(number_at(pixels, row, n));
}

/* Comparisons with NaN are false: NaN stays. */
static inline floats activated(floats v, const float *slope, bool clamps, float low, float high) {
    if (slope) v = vbslq_f32(vcltzq_f32(v), vmulq_f32(v, vld1q_f32(slope)), v);
    if (clamps) {
        v = vbslq_f32(vcltq_f32(v, vdupq_n_f32(low)), vdupq_n_f32(low), v);
        v = vbslq_f32(vcgtq_f32(v, vdupq_n_f32(high)), vdupq_n_f32(high), v);
    }
    return v;
}

static inline const float *from(const float *numbers, int32_t channel) { return numbers ? numbers + channel : NULL; }

/* Four channels from n on: all but the bits, of which it returns the lanes. */
static inline uint32x4_t finish_four(const Output *o, const Pixels *p, size_t row, int32_t n) {
    const int32_t c = p->first_channel + n;
    const size_t at = (p->first + row) * (size_t)o->channels + (size_t)c;
    floats v = number_at(p, row, n);
    if (p->sum_numbers) vst1q_s32(p->sum_numbers + at, sum_at(p, row, n));
    /* Rounded twice, as in plain C: bits must not depend on the kernels. */
    if (o->scale) v = vaddq_f32(vmulq_f32(v, vld1q_f32(o->scale + c)), vld1q_f32(o->shift + c));
    v = activated(v, from(o->first_slope, c), o->first_clamps, o->first_low, o->first_high);
    if (p->residual) v = vaddq_f32(v, vld1q_f32(p->residual + at));
    v = activated(v, from(o->second_slope, c), o->second_clamps, o->second_low, o->second_high);
    if (p->float_numbers) vst1q_f32(p->float_numbers + at, v);
    if (!o->thresholds) return vcgezq_f32(v);
    const uint32x4_t flipped = veorq_u32(vreinterpretq_u32_f32(v), vld1q_u32(o->flips + c));
    return vcgeq_f32(vreinterpretq_f32_u32(flipped), vld1q_f32(o->thresholds + c));
}

/* The lowest bit of each lane, the first lane's in the lowest bit. */
static inline uint8_t byte_of(uint32x4_t low, uint32x4_t high) {
    static const uint8_t PLACES[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint16x8_t lanes = vcombine_u16(vmovn_u32(low), vmovn_u32(high));
    return vaddv_u8(vand_u8(vmovn_u16(lanes), vld1_u8(PLACES)));
}

void finish_neon(const Output *output, const Pixels *pixels) {
    const Output o = *output; /* copies, which no store of a byte can change */
    const Pixels p = *pixels;
    const int32_t whole = p.levels ? 0 : p.channels / 8 * 8; /* levels are made in plain C */
    const size_t row_bytes = words_of(o.channels) * 8;
    for (size_t row = 0; row < p.count; row++) {
        for (int32_t n = 0; n < whole; n += 8) {
            const uint32x4_t low = finish_four(&o, &p, row, n), high = finish_four(&o, &p, row, n + 4);
            if (p.bits) p.bits[(p.first + row) * row_bytes + (size_t)(p.first_channel + n) / 8] = byte_of(low, high);
        }
        /* The channels that are left over, and what is left of the last word of bits. */
        finish_row_scalar(output, pixels, row, whole, p.channels);
    }
}
