/* The inner loops of 1-bit convolution with AVX2: counts of a part of the window. */
#ifndef ONEBIT_TILES_AVX2_H
#define ONEBIT_TILES_AVX2_H

#include "bconv2d.h"

/* Neighbouring nibbles of a window: in the prepared image they lie from offsets[pair][run] + first on. */
typedef struct {
    size_t run, first, nibbles;
} Piece;

/* What is counted before counts are widened: pieces of this many nibbles together. */
enum { NIBBLES_OF_PART = 63 };

/* Counts of a part of the window for all pairs of a block, some pairs at a time (the last tile may be filled up with
   pairs that nobody asked for). */
typedef struct {
    const uint8_t *weights; /* of the part: [nibble][byte_of channel] */
    const uint16_t *places;
    const size_t *offsets; /* [pair][run] */
    size_t n_pairs, runs;
    const Piece *pieces; /* of the part */
    size_t n_pieces;
    bool is_first;    /* else they are added to what was counted before */
    uint16_t *counts; /* [pixel][channel] */
    const uint8_t *next_weights;
    size_t fetched_by_pair; /* bytes */
} Tiles;

/* width: 16, 32, 64 or 128 channels. */
void count_tiles_avx2(const Tiles *tiles, size_t width);

/* Where channel n of a tile is among its bytes: the even bytes of a vector are the first half of its channels. */
static inline size_t byte_of(int32_t n, int32_t width) {
    const int32_t lane = width < 32 ? 16 : 32, in_lane = n % lane;
    return (size_t)(n - in_lane + (in_lane < lane / 2 ? 2 * in_lane : 2 * in_lane - lane + 1));
}

/* Large weights come from far: while wide tiles are counted, those of the next part are fetched, a share by each pair. */
static inline size_t fetched_by_pair(size_t weight_bytes, size_t width, size_t n_pairs) {
    enum { NEAR_BYTES = 1 << 14 }; /* of weights that stay in the first cache beside all else */
    return weight_bytes > NEAR_BYTES ? round_up(NIBBLES_OF_PART * width / n_pairs, 64) : 0;
}
#endif
