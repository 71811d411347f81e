/* 1-bit convolution with AVX2, outputs one by one: tiles of channels and pairs of pixels. */
#include "bconv2d_avx2.h"

#include "tiles_avx2.h"

int32_t tile_width_avx2(int32_t channels) { return channels > 96 ? 128 : channels > 48 ? 64 : channels > 16 ? 32 : 16; }

static int32_t block_width(const Bconv2d *conv, int32_t left) {
    (void)conv;
    return tile_width_avx2(left);
}

/* Packed: weights, [block][nibble of the window][channel]. */
static size_t channels_packed(const Bconv2d *conv) {
    int32_t first = 0;
    while (first < conv->outputs) first += tile_width_avx2(conv->outputs - first);
    return (size_t)first;
}

static size_t packed_bytes(const Bconv2d *conv) {
    const Runs runs = runs_of(conv);
    return channels_packed(conv) * runs.count * runs.nibbles;
}

static void pack(const Bconv2d *conv, const int8_t *signs, void *packed) {
    const Runs runs = runs_of(conv);
    const size_t taps = taps_of(conv), planes = (size_t)conv->planes, nibbles = runs.count * runs.nibbles;
    int32_t width;
    for (int32_t first = 0; first < conv->outputs; first += width) {
        width = tile_width_avx2(conv->outputs - first);
        uint8_t *block = (uint8_t *)packed + (size_t)first * nibbles;
        for (int32_t n = 0; n < width && first + n < conv->outputs; n++)
            for (size_t plane = 0; plane < planes; plane++)
                for (size_t tap = 0; tap < taps; tap++) {
                    const bool is_one = signs[((size_t)(first + n) * planes + plane) * taps + tap] > 0;
                    const size_t nibble = tap * runs.pixel_nibbles + plane / 4;
                    block[nibble * (size_t)width + byte_of(n, width)] |= (uint8_t)(is_one << plane % 4);
                }
    }
}

/* All nibbles of a window: runs as they lie, cut into parts. */
static void count(const Bconv2d *conv, const Block *block, uint16_t *counts) {
    const Runs runs = runs_of(conv);
    const size_t width = (size_t)block->width, all_nibbles = runs.count * runs.nibbles;
    const uint8_t *weights = (const uint8_t *)block->packed + (size_t)block->first_channel * all_nibbles;
    const size_t n_pairs = (block->pixels + 1) / 2;
    Piece pieces[NIBBLES_OF_PART / 3];
    Tiles tiles = {.places = block->prepared,
                   .offsets = (const size_t *)block->common + block->first_pixel / 2 * runs.count,
                   .n_pairs = n_pairs,
                   .fetched_by_pair = fetched_by_pair(all_nibbles * width, width, n_pairs),
                   .runs = runs.count,
                   .pieces = pieces,
                   .is_first = true,
                   .counts = counts};
    for (Part part = first_part(&runs); part.runs; part = next_part(&runs, part)) {
        for (size_t i = 0; i < part.runs; i++) pieces[i] = (Piece){part.run + i, part.first, part.nibbles};
        tiles.n_pieces = part.runs;
        tiles.weights = weights;
        weights += part.runs * part.nibbles * width;
        tiles.next_weights = weights;
        count_tiles_avx2(&tiles, width);
        tiles.is_first = false;
    }
}

const Way ONE_BY_ONE = {.block_width = block_width,
                        .common_bytes = offsets_bytes_avx2,
                        .put_common = put_offsets_avx2,
                        .packed_bytes = packed_bytes,
                        .pack = pack,
                        .prepared_bytes = pairs_bytes_avx2,
                        .row_bytes = pairs_row_bytes_avx2,
                        .prepare = prepare_pairs_avx2,
                        .block_bytes = pairs_block_bytes_avx2,
                        .prepare_block = prepare_pairs_of_block_avx2,
                        .count = count};
