/* Kernels for x86-64 with AVX-512 and its count of ones: 1-bit convolution is of its own, but for shapes that the AVX2 kernel does
   in less time; all else is as with AVX2. */
#include "bconv2d_avx2.h"
#include "bconv2d_avx512.h"
#include "kernels_avx2.h"
#include "levels_avx2.h"
#include "output_avx2.h"
#include "shared_avx2.h"
#include "winograd_avx2.h"

/* Whether the AVX2 kernel, which looks nibbles up, is expected to take less time. Times are in look-ups of a nibble, measured on
   Zen 4 (docs/decisions/0016-more-cpus.md). */
static bool looks_up(const Bconv2d *conv) {
    enum { GATHERED_WORD = 512 };  /* of a window, for all channels together */
    if (conv->shared) return true; /* only the AVX2 kernel can */
    const Runs runs = runs_of(conv);
    const Words words = words_in_window(conv);
    size_t nibbles = runs.count * runs.nibbles;
    if (runs.gathers) nibbles += GATHERED_WORD * taps_of(conv) * words.pixel_words / (size_t)conv->outputs;
    /* Four instructions of counting take as long as so many look-ups: narrow tiles of those are slower. */
    const int32_t width = tile_width_avx2(conv->outputs);
    const size_t of_four = width == 16 ? 8 : width == 32 ? 16 : width == 64 ? 18 : 19;
    return 4 * nibbles < of_four * n_instructions(words.triples, words.singles);
}

static size_t packed_bytes(const Bconv2d *conv) {
    return looks_up(conv) ? packed_bytes_avx2(conv) : packed_bytes_avx512(conv);
}

static void pack(const Bconv2d *conv, const int8_t *signs, void *packed) {
    (looks_up(conv) ? pack_avx2 : pack_avx512)(conv, signs, packed);
}

static size_t prepared_bytes(const Bconv2d *conv) {
    return looks_up(conv) ? prepared_bytes_avx2(conv) : prepared_bytes_avx512(conv);
}

static size_t row_bytes(const Bconv2d *conv) { return looks_up(conv) ? row_bytes_avx2(conv) : row_bytes_avx512(conv); }

static void prepare(const Bconv2d *conv, const uint64_t *bits, int32_t first, int32_t end, void *prepared, void *row) {
    (looks_up(conv) ? prepare_avx2 : prepare_avx512)(conv, bits, first, end, prepared, row);
}

static size_t block_bytes(const Bconv2d *conv) { return looks_up(conv) ? block_bytes_avx2(conv) : 0; }

/* Common: which kernel it is, for those that are called for every block, and from the next word on what is common for that. */
typedef struct {
    size_t looks_up;
} Choice;

static size_t common_bytes(const Bconv2d *conv) {
    return sizeof(Choice) + (looks_up(conv) ? common_bytes_avx2(conv) : common_bytes_avx512(conv));
}

static void put_common(const Bconv2d *conv, void *common) {
    Choice *choice = common;
    choice->looks_up = looks_up(conv);
    (choice->looks_up ? put_common_avx2 : put_common_avx512)(conv, choice + 1);
}

/* A block as the chosen kernel gets it. */
static Block inner_block(const Block *block) {
    Block inner = *block;
    inner.common = (const Choice *)block->common + 1;
    return inner;
}

static bool is_looked_up(const Block *block) { return ((const Choice *)block->common)->looks_up; }

static void prepare_block(const Bconv2d *conv, const Block *block) {
    if (!is_looked_up(block)) return; /* the image is all it takes */
    const Block inner = inner_block(block);
    prepare_block_avx2(conv, &inner);
}

static void count(const Bconv2d *conv, const Block *block, uint16_t *counts) {
    const Block inner = inner_block(block);
    (is_looked_up(block) ? count_avx2 : count_avx512)(conv, &inner, counts);
}

const Kernels kernels_avx512 = {
    .name = "avx512",
    .shares = shares_avx2,
    .block_width = block_width_avx2,
    .common_bytes = common_bytes,
    .put_common = put_common,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .prepared_bytes = prepared_bytes,
    .row_bytes = row_bytes,
    .prepare = prepare,
    .block_bytes = block_bytes,
    .prepare_block = prepare_block,
    .count = count,
    .signs_of_levels = &signs_of_levels_avx2,
    .bytes_of_levels = &bytes_of_levels_avx2,
    .multiply = multiply_avx2,
    .multiply_row = multiply_row_avx2,
    .transform_pixels = transform_pixels_avx2,
    .multiply_places = multiply_places_avx2,
    .transform_products = transform_products_avx2,
    .least_finished = 8,
    .finish = finish_avx2,
    .least_pooled = 32,
    .maximum = maximum_avx2,
    .mean = mean_avx2,
    .least_added = 8,
    .multiply_add = multiply_add_avx2,
};
