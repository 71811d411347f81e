/* Projections that share their work, by pairs of pixels: tiles of kernels as in bconv2d_avx2.c, class by class. */
#include "shared_avx2.h"

#include "bconv2d_avx2.h"
#include "tiles_avx2.h"

/* The widest tile whose outputs and counts of classes fit. */
static int32_t kernels_at_a_time(const Bconv2d *conv, int32_t kernels) {
    int32_t width = tile_width_avx2(kernels);
    while (width > 16 &&
           (width * conv->shared->projections > MAX_BLOCK_WIDTH || (size_t)width * conv->shared->count > CLASS_COUNTS))
        width /= 2;
    return width;
}

static int32_t block_width(const Bconv2d *conv, int32_t left) {
    const int32_t J = conv->shared->projections;
    return J * kernels_at_a_time(conv, left / J);
}

/* Nibbles of one class that are counted before counts are widened. */
typedef struct {
    size_t class_index, first_piece, pieces, nibbles;
    bool is_first; /* of its class */
} ClassPart;

/* A plan: this, then the parts, then the pieces. */
typedef struct {
    size_t parts, pieces;
} Plan;

/* Where the nibbles of a tap begin in the prepared image. */
static Piece piece_of_tap(const Bconv2d *conv, const Runs *runs, size_t tap) {
    const size_t columns = runs->gathers ? taps_of(conv) : (size_t)conv->window.kernel[1];
    return (Piece){tap / columns, tap % columns * runs->pixel_nibbles, runs->pixel_nibbles};
}

/* All classes, each tap by tap; pieces that lie together become one. With null pointers, only says how much it is. */
static Plan lay_out(const Bconv2d *conv, ClassPart *parts, Piece *pieces) {
    const Classes *classes = conv->shared;
    const Runs runs = runs_of(conv);
    Plan plan = {0, 0};
    for (size_t c = 0; c < classes->count; c++) {
        const size_t most = nibbles_of_part(classes->taps[c] * runs.pixel_nibbles);
        ClassPart part = {.class_index = c, .first_piece = plan.pieces, .is_first = true};
        Piece last = {0};
        for (size_t tap = 0; tap < taps_of(conv); tap++) {
            if (classes->class_of[tap] != c) continue;
            for (Piece rest = piece_of_tap(conv, &runs, tap); rest.nibbles;) {
                size_t taken = most - part.nibbles;
                taken = taken < rest.nibbles ? taken - taken % 3 : rest.nibbles;
                if (!taken) { /* the part is full */
                    if (parts) parts[plan.parts] = part;
                    plan.parts++;
                    part = (ClassPart){.class_index = c, .first_piece = plan.pieces};
                    continue;
                }
                const bool goes_on = part.pieces && last.run == rest.run && last.first + last.nibbles == rest.first;
                if (!goes_on) {
                    last = (Piece){rest.run, rest.first, 0};
                    part.pieces++;
                    plan.pieces++;
                }
                last.nibbles += taken;
                if (pieces) pieces[plan.pieces - 1] = last;
                part.nibbles += taken;
                rest.first += taken;
                rest.nibbles -= taken;
            }
        }
        if (parts) parts[plan.parts] = part;
        plan.parts++;
    }
    return plan;
}

static size_t plan_bytes(const Bconv2d *conv) {
    const Plan plan = lay_out(conv, NULL, NULL);
    return sizeof plan + plan.parts * sizeof(ClassPart) + plan.pieces * sizeof(Piece);
}

static const ClassPart *parts_of(const Plan *plan) { return (const ClassPart *)(plan + 1); }
static const Piece *pieces_of(const Plan *plan) { return (const Piece *)(parts_of(plan) + plan->parts); }

static void put_plan(const Bconv2d *conv, void *plan) {
    *(Plan *)plan = lay_out(conv, NULL, NULL);
    lay_out(conv, (ClassPart *)parts_of(plan), (Piece *)pieces_of(plan));
}

static size_t common_bytes(const Bconv2d *conv) { return offsets_bytes_avx2(conv) + plan_bytes(conv); }

static void put_common(const Bconv2d *conv, void *common) {
    put_offsets_avx2(conv, common);
    put_plan(conv, (char *)common + offsets_bytes_avx2(conv));
}

/* Packed: mask_0 times kernel, [block][nibble, as the plan has them][slot_of kernel]. */
static size_t packed_bytes(const Bconv2d *conv) {
    const int32_t kernels = conv->outputs / conv->shared->projections;
    int32_t first = 0;
    while (first < kernels) first += kernels_at_a_time(conv, kernels - first);
    return (size_t)first * taps_of(conv) * runs_of(conv).pixel_nibbles;
}

/* signs: of all outputs. Those of o*J are mask_0 times kernel o. */
static void pack(const Bconv2d *conv, const int8_t *signs, void *packed) {
    const Classes *classes = conv->shared;
    const int32_t J = classes->projections, kernels = conv->outputs / J;
    const size_t taps = taps_of(conv), planes = (size_t)conv->planes, pixel_nibbles = runs_of(conv).pixel_nibbles;
    uint8_t *weights = packed;
    int32_t width;
    for (int32_t first = 0; first < kernels; first += width) {
        width = kernels_at_a_time(conv, kernels - first);
        for (size_t c = 0; c < classes->count; c++)
            for (size_t tap = 0; tap < taps; tap++) {
                if (classes->class_of[tap] != c) continue;
                for (int32_t n = 0; n < width && first + n < kernels; n++) {
                    const int8_t *kernel = signs + (size_t)(first + n) * (size_t)J * planes * taps;
                    const size_t byte = byte_of(slot_of(n, J), width);
                    for (size_t plane = 0; plane < planes; plane++) {
                        const bool is_one = kernel[plane * taps + tap] > 0;
                        weights[plane / 4 * (size_t)width + byte] |= (uint8_t)(is_one << plane % 4);
                    }
                }
                weights += pixel_nibbles * (size_t)width;
            }
    }
}

static void count(const Bconv2d *conv, const Block *block, uint16_t *counts) {
    uint16_t of_classes[CLASS_COUNTS * BLOCK_PIXELS] __attribute__((aligned(64)));
    const Runs runs = runs_of(conv);
    const int32_t J = conv->shared->projections;
    const Plan *plan = (const Plan *)((const char *)block->common + offsets_bytes_avx2(conv));
    const Piece *pieces = pieces_of(plan);
    const size_t width = (size_t)(block->width / J), n_pairs = (block->pixels + 1) / 2;
    const size_t all_nibbles = taps_of(conv) * runs.pixel_nibbles;
    const uint8_t *weights = (const uint8_t *)block->packed + (size_t)(block->first_channel / J) * all_nibbles;
    Tiles tiles = {.places = block->prepared,
                   .offsets = (const size_t *)block->common + block->first_pixel / 2 * runs.count,
                   .n_pairs = n_pairs,
                   .fetched_by_pair = fetched_by_pair(all_nibbles * width, width, n_pairs),
                   .runs = runs.count};
    for (const ClassPart *part = parts_of(plan); part < parts_of(plan) + plan->parts; part++) {
        tiles.pieces = pieces + part->first_piece;
        tiles.n_pieces = part->pieces;
        tiles.weights = weights;
        weights += part->nibbles * width;
        tiles.next_weights = weights;
        tiles.is_first = part->is_first;
        tiles.counts = of_classes + part->class_index * BLOCK_PIXELS * width;
        count_tiles_avx2(&tiles, width);
    }
    combine_avx2(conv, of_classes, width, block->pixels, counts);
}

const Way SHARED_BY_PAIRS = {.block_width = block_width,
                             .common_bytes = common_bytes,
                             .put_common = put_common,
                             .packed_bytes = packed_bytes,
                             .pack = pack,
                             .prepared_bytes = pairs_bytes_avx2,
                             .row_bytes = pairs_row_bytes_avx2,
                             .prepare = prepare_pairs_avx2,
                             .block_bytes = pairs_block_bytes_avx2,
                             .prepare_block = prepare_pairs_of_block_avx2,
                             .count = count};
