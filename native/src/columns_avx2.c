/* With few kernels a row of the table, picked by the nibbles of two pixels, is looked up for half a vector of them: most of the
   time goes into fetching rows. Here the row is that of the nibbles of two kernels, written out when the net is made, and the
   places are the nibbles of 32 pixels, one after the other as they come out. Each row does for 32 pixels, and four rows
   for the same places: 8 kernels and 32 pixels at a time.

   Prepared: [copy][row modulo the stride][nibble][row][column], a byte each. For any tap, the nibbles of pixels that follow
   each other in the output do so here, too. If a block of pixels can go on in the next row, or if there is a stride, that
   takes a copy for each column of the window, with the columns that this one meets; else all share one copy of the padded
   image. */
#include "bconv2d_avx2.h"

#include <string.h>

#include "avx2.h"
#include "look_ups_avx2.h"
#include "shared_avx2.h"
#include "tiles_avx2.h"

enum { TILE_KERNELS = 8, TILE_BYTES = 64, SLACK = 32 };

typedef struct {
    size_t pixel_nibbles;
    size_t copies, stride;    /* the rows' stride */
    size_t rows, columns;     /* of a copy, for each rest of rows modulo the stride */
    size_t plane, rest, copy; /* bytes of one nibble, of all nibbles of a rest, and of all rests */
} Columns;

static Columns columns_of(const Bconv2d *conv) {
    const onebit_window *window = &conv->window;
    const bool is_one = window->stride[1] == 1 && conv->out_width % BLOCK_PIXELS == 0;
    Columns of = {.pixel_nibbles = ((size_t)conv->planes + 3) / 4,
                  .copies = is_one ? 1 : (size_t)window->kernel[1],
                  .stride = (size_t)window->stride[0],
                  .columns = (size_t)(is_one ? conv->padded.width : conv->out_width)};
    of.rows = ((size_t)conv->padded.height + of.stride - 1) / of.stride;
    of.plane = of.rows * of.columns;
    of.rest = of.plane * of.pixel_nibbles;
    of.copy = of.rest * of.stride;
    return of;
}

/* Where the first nibble of a tap begins, for the first pixel. */
static size_t tap_offset(const Bconv2d *conv, const Columns *of, size_t tap) {
    const size_t row = tap / (size_t)conv->window.kernel[1] * (size_t)conv->window.dilation[0],
                 column = tap % (size_t)conv->window.kernel[1];
    return row % of->stride * of->rest + row / of->stride * of->columns +
           column * (of->copies > 1 ? of->copy : (size_t)conv->window.dilation[1]);
}

size_t copies_avx2(const Bconv2d *conv) { return columns_of(conv).copies; }

/* Offsets are 32 bits wide, and so are columns with what a last row of 16 goes beyond them. */
bool can_be_columns_avx2(const Bconv2d *conv) {
    enum { MOST_COPIES = 8, MOST_STRIDE = 4 }; /* the image is so many times as large */
    const onebit_window *window = &conv->window;
    const Columns of = columns_of(conv);
    return window->kernel[1] <= MOST_COPIES && window->stride[0] <= MOST_STRIDE && window->stride[1] < 1 << 24 &&
           conv->padded.width < 1 << 24 && of.copies * of.copy < 1u << 31;
}

static size_t prepared_bytes(const Bconv2d *conv) {
    const Columns of = columns_of(conv);
    return of.copies * of.copy + SLACK;
}

/* Kernels at a time: whole tiles of them. */
static int32_t block_width(const Bconv2d *conv, int32_t left) {
    const int32_t J = conv->shared->projections;
    int32_t tiles = (left / J + TILE_KERNELS - 1) / TILE_KERNELS;
    const int32_t for_outputs = MAX_BLOCK_WIDTH / (J * TILE_KERNELS);
    const int32_t for_classes = CLASS_COUNTS / ((int32_t)conv->shared->count * TILE_KERNELS);
    if (tiles > for_outputs) tiles = for_outputs;
    if (tiles > for_classes) tiles = for_classes;
    return tiles * TILE_KERNELS * J;
}

/* Nibbles of one class that are counted before counts are widened. */
typedef struct {
    uint32_t class_index, nibbles;
    bool is_first; /* of its class */
} ClassPart;

/* Common: this, then the parts of all classes, then the offsets of their nibbles, in the order in which they are counted. */
typedef struct {
    size_t parts;
} Plan;

static const ClassPart *parts_of(const Plan *plan) { return (const ClassPart *)(plan + 1); }
static const uint32_t *offsets_of_parts(const Plan *plan) { return (const uint32_t *)(parts_of(plan) + plan->parts); }

static size_t parts_of_class(const Bconv2d *conv, size_t c) {
    const size_t nibbles = conv->shared->taps[c] * columns_of(conv).pixel_nibbles;
    return (nibbles + nibbles_of_part(nibbles) - 1) / nibbles_of_part(nibbles);
}

static Plan plan_of(const Bconv2d *conv) {
    Plan plan = {0};
    for (size_t c = 0; c < conv->shared->count; c++) plan.parts += parts_of_class(conv, c);
    return plan;
}

static size_t common_bytes(const Bconv2d *conv) {
    return sizeof(Plan) + plan_of(conv).parts * sizeof(ClassPart) +
           taps_of(conv) * columns_of(conv).pixel_nibbles * sizeof(uint32_t);
}

static void put_common(const Bconv2d *conv, void *common) {
    const Columns of = columns_of(conv);
    Plan *plan = common;
    *plan = plan_of(conv);
    ClassPart *part = (ClassPart *)parts_of(plan);
    uint32_t *offset = (uint32_t *)offsets_of_parts(plan);
    for (size_t c = 0; c < conv->shared->count; c++) {
        const size_t nibbles = conv->shared->taps[c] * of.pixel_nibbles, most = nibbles_of_part(nibbles);
        for (size_t done = 0; done < nibbles; done += most) {
            const size_t left = nibbles - done;
            *part++ = (ClassPart){(uint32_t)c, (uint32_t)(left < most ? left : most), done == 0};
        }
        for (size_t tap = 0; tap < taps_of(conv); tap++)
            for (size_t nibble = 0; conv->shared->class_of[tap] == c && nibble < of.pixel_nibbles; nibble++)
                *offset++ = (uint32_t)(tap_offset(conv, &of, tap) + nibble * of.plane);
    }
}

/* Packed: rows of pairs of kernels, [8 kernels][nibble][pair][16]. */
static size_t packed_bytes(const Bconv2d *conv) {
    const size_t kernels = (size_t)(conv->outputs / conv->shared->projections);
    return (kernels + TILE_KERNELS - 1) / TILE_KERNELS * taps_of(conv) * columns_of(conv).pixel_nibbles * TILE_BYTES;
}

/* Four planes of mask_0 times kernel o; those of output o*J. */
static uint8_t nibble_of(const Bconv2d *conv, const int8_t *signs, size_t o, size_t tap, size_t nibble) {
    const size_t J = (size_t)conv->shared->projections, planes = (size_t)conv->planes, taps = taps_of(conv);
    uint8_t bits = 0;
    if (o * J >= (size_t)conv->outputs) return 0;
    for (size_t plane = 4 * nibble; plane < planes && plane < 4 * nibble + 4; plane++)
        if (signs[(o * J * planes + plane) * taps + tap] > 0) bits |= (uint8_t)(1 << plane % 4);
    return bits;
}

static void pack(const Bconv2d *conv, const int8_t *signs, void *packed) {
    const Classes *classes = conv->shared;
    const size_t kernels = (size_t)(conv->outputs / classes->projections);
    uint8_t *row = packed;
    for (size_t first = 0; first < kernels; first += TILE_KERNELS)
        for (size_t c = 0; c < classes->count; c++)
            for (size_t tap = 0; tap < taps_of(conv); tap++) {
                if (classes->class_of[tap] != c) continue;
                for (size_t nibble = 0; nibble < columns_of(conv).pixel_nibbles; nibble++)
                    for (size_t o = first; o < first + TILE_KERNELS; o += 2, row += 16)
                        memcpy(row,
                               ROWS_OF_PAIRS[nibble_of(conv, signs, o, tap, nibble) |
                                             nibble_of(conv, signs, o + 1, tap, nibble) << 4],
                               16);
            }
}

/* Vector i gets byte i of the words of 16 pixels, for i below 8. Putting the first half of all bytes between the second
   moves the highest bit of a byte's number (7 bits: pixel, byte) to its end; four times that exchanges pixel and byte. */
INLINE void exchange(const uint64_t *const words[16], __m128i v[8]) {
    __m128i made[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        v[i] = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)words[2 * i]),
                                  _mm_loadl_epi64((const __m128i *)words[2 * i + 1]));
#pragma GCC unroll 4
    for (int round = 0; round < 4; round++) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            made[2 * i] = _mm_unpacklo_epi8(v[i], v[i + 4]);
            made[2 * i + 1] = _mm_unpackhi_epi8(v[i], v[i + 4]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) v[i] = made[i];
    }
}

/* Up to 16 pixels of a row, up to 16 nibbles of a word; to: those of the first nibble. */
INLINE void put_pixels(const uint64_t *const words[16], size_t pixels, size_t nibbles, size_t plane, uint8_t *to) {
    const __m128i low = _mm_set1_epi8(15);
    __m128i v[8];
    exchange(words, v);
#pragma GCC unroll 16
    for (size_t n = 0; n < 16; n++, to += plane) {
        if (n == nibbles) break;
        const __m128i nibble = _mm_and_si128(n % 2 ? _mm_srli_epi16(v[n / 2], 4) : v[n / 2], low);
        if (pixels == 16)
            _mm_storeu_si128((__m128i *)to, nibble);
        else
            memcpy(to, &nibble, pixels);
    }
}

/* A row of one copy, from a row of the image; first: where that meets its first column. */
static void put_row(const Bconv2d *conv, const Columns *of, const uint64_t *row, int32_t first, uint8_t *to) {
    static const uint64_t OUTSIDE = 0;
    const size_t n_words = words_of(conv->planes);
    for (size_t x = 0; x < of->columns; x += 16) {
        const size_t pixels = of->columns - x < 16 ? of->columns - x : 16;
        for (size_t word = 0; word < n_words; word++) {
            const size_t left = of->pixel_nibbles - 16 * word;
            uint8_t *to_word = to + 16 * word * of->plane + x;
            const uint64_t *words[16];
            for (int32_t i = 0; i < 16; i++) {
                const int32_t at = first + ((int32_t)x + i) * conv->window.stride[1];
                const bool is_inside = at >= 0 && at < conv->width;
                words[i] = is_inside ? row + (size_t)at * n_words + word : &OUTSIDE;
            }
            if (pixels == 16 && left >= 16)
                put_pixels(words, 16, 16, of->plane, to_word);
            else
                put_pixels(words, pixels, left < 16 ? left : 16, of->plane, to_word);
        }
    }
}

static size_t no_bytes(const Bconv2d *conv) {
    (void)conv;
    return 0;
}

static void prepare(const Bconv2d *conv, const uint64_t *bits, int32_t first_row, int32_t end_row, void *prepared,
                    void *row) {
    (void)row;
    const Columns of = columns_of(conv);
    const onebit_window *window = &conv->window;
    const size_t row_words = (size_t)conv->width * words_of(conv->planes);
    for (size_t r = (size_t)first_row; r < (size_t)end_row; r++) {
        const int32_t y = (int32_t)r - window->padding[0];
        uint8_t *to = (uint8_t *)prepared + r % of.stride * of.rest + r / of.stride * of.columns;
        for (size_t copy = 0; copy < of.copies; copy++, to += of.copy) {
            const int32_t first = (int32_t)copy * window->dilation[1] - window->padding[2];
            if (y >= 0 && y < conv->height)
                put_row(conv, &of, bits + (size_t)y * row_words, first, to);
            else
                for (size_t n = 0; n < of.pixel_nibbles; n++) memset(to + n * of.plane, 0, of.columns);
        }
    }
}

static void prepare_block(const Bconv2d *conv, const Block *block) {
    (void)conv, (void)block; /* the image is all it takes */
}

/* clang-format off */
#define PIXELS(q) "movl 4*" #q "(%[x0],%[k],4), %k[r]\n" "vmovdqu (%[x1],%[r]), %%ymm14\n"
#define KERNELS(look, q, i, row, sum) "vbroadcasti128 64*" #q "+16*" #i "(%[weights]), %%" #row "\n" look("%%ymm14", row, sum)
#define ROUND_PIXELS(look, q)                                                                                          \
    PIXELS(q) KERNELS(look, q, 0, ymm12, ymm8) KERNELS(look, q, 1, ymm13, ymm9)                                        \
    KERNELS(look, q, 2, ymm12, ymm10) KERNELS(look, q, 3, ymm13, ymm11)
/* clang-format on */

/* Adds the counts of 8 kernels and 32 pixels, [kernel][pixel: the even ones first]. */
static const uint8_t *count_tile(const uint8_t *weights, const uint32_t *offsets, size_t nibbles, const uint8_t *pixels,
                                 bool is_first, uint16_t *counts) {
    vector S[4] = ZEROS, T[4] = ZEROS;
    const size_t left = nibbles % 3, threes = nibbles - left;
    const uint32_t *end = offsets + threes;
    intptr_t k = -(intptr_t)threes;
    uintptr_t r;
    if (k) __asm__ volatile(THREES(ROUND_PIXELS, 64) : CHANGED : [x0] "r"(end), [x1] "r"(pixels) : CLOBBERED);
    if (left == 1) __asm__ volatile(ONE(ROUND_PIXELS, 64) : CHANGED : [x0] "r"(end), [x1] "r"(pixels) : CLOBBERED);
    if (left == 2) __asm__ volatile(TWO(ROUND_PIXELS, 64) : CHANGED : [x0] "r"(end), [x1] "r"(pixels) : CLOBBERED);
    for (int i = 0; i < 4; i++) put_fields(S[i], T[i], counts + 64 * i, counts + 64 * i + 32, is_first);
    return weights;
}

static void count(const Bconv2d *conv, const Block *block, uint16_t *counts) {
    uint16_t of_classes[CLASS_COUNTS * BLOCK_PIXELS] __attribute__((aligned(64)));
    const Plan *plan = block->common;
    const ClassPart *parts = parts_of(plan);
    const Columns of = columns_of(conv);
    const size_t J = (size_t)conv->shared->projections, nibbles = taps_of(conv) * of.pixel_nibbles;
    const size_t out_width = (size_t)conv->out_width, row = block->first_pixel / out_width;
    const size_t width = (size_t)block->width / J, first = (size_t)block->first_channel / J,
                 kernels = (size_t)conv->outputs / J - first,
                 counted = kernels < width ? round_up(kernels, TILE_KERNELS) : width;
    const uint8_t *pixels = (const uint8_t *)block->prepared + row * of.columns + block->first_pixel % out_width;
    const uint8_t *weights = (const uint8_t *)block->packed + first / TILE_KERNELS * nibbles * TILE_BYTES;
    for (size_t o = 0; o < counted; o += TILE_KERNELS) {
        const uint32_t *offsets = offsets_of_parts(plan);
        for (const ClassPart *part = parts; part < parts + plan->parts; part++) {
            uint16_t *to = of_classes + (part->class_index * width + o) * BLOCK_PIXELS;
            weights = count_tile(weights, offsets, part->nibbles, pixels, part->is_first, to);
            offsets += part->nibbles;
        }
    }
    combine_columns_avx2(conv, of_classes, width, counted, counts);
}

const Way SHARED_BY_COLUMNS = {.block_width = block_width,
                               .common_bytes = common_bytes,
                               .put_common = put_common,
                               .packed_bytes = packed_bytes,
                               .pack = pack,
                               .prepared_bytes = prepared_bytes,
                               .row_bytes = no_bytes,
                               .prepare = prepare,
                               .block_bytes = no_bytes,
                               .prepare_block = prepare_block,
                               .count = count};
