/* Kernels of 1-bit convolution, with every buffer against a page that can't be read or written: what assembly touches, no
   sanitizer sees. Counts of all tables that the machine can run must be those of the scalar one.

       guard_pages SEED CONVOLUTIONS */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/kernels.h"
#ifdef ONEBIT_AVX2
#include "../src/shared_avx2.h"
#else
enum { BY_PAIRS, BY_COLUMNS }; /* tables that do not share take no notice */
#endif

enum { GARBAGE = 0xE7 };

/* Memory that ends at a forbidden page, at most `alignment` bytes before it, full of garbage. */
typedef struct {
    char *base, *data;
    size_t length;
} Area;

static Area new_area(size_t bytes, size_t alignment) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), usable = round_up(bytes, page) + page;
    Area area = {.length = usable + page};
    area.base = mmap(NULL, area.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area.base == MAP_FAILED || mprotect(area.base + usable, page, PROT_NONE)) exit(2);
    memset(area.base, GARBAGE, usable);
    area.data = area.base + (usable - bytes) / alignment * alignment;
    return area;
}

static void free_area(Area area) { munmap(area.base, area.length); }

static int32_t between(int32_t low, int32_t high) { return low + rand() % (high - low + 1); }

/* Mostly as nets have them, sometimes far from it; false if the window does not fit. */
static bool draw(Bconv2d *conv) {
    static const int32_t PLANES[] = {1, 3, 4, 5, 8, 13, 16, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 193, 260};
    const int32_t n_planes = sizeof PLANES / sizeof *PLANES;
    *conv = (Bconv2d){.planes = PLANES[between(0, n_planes - 1)], .height = between(1, 10), .width = between(1, 12)};
    conv->window.groups = 1;
    const int32_t sides[2] = {conv->height, conv->width};
    int32_t sizes[2];
    for (int axis = 0; axis < 2; axis++) {
        onebit_window *window = &conv->window;
        window->kernel[axis] = between(0, 2) ? between(1, 5) : between(1, 13);
        window->stride[axis] = between(0, 2) ? between(1, 3) : between(1, 40);
        window->dilation[axis] = between(0, 2) ? 1 : between(1, 6);
        for (int side = 0; side < 2; side++)
            window->padding[2 * axis + side] = between(0, 2) ? between(0, 3) : between(0, 40);
        const int32_t room = sides[axis] + window->padding[2 * axis] + window->padding[2 * axis + 1] -
                             window->dilation[axis] * (window->kernel[axis] - 1) - 1;
        if (room < 0) return false;
        sizes[axis] = room / window->stride[axis] + 1;
    }
    conv->out_height = sizes[0];
    conv->out_width = sizes[1];
    conv->padded = reach_of(&conv->window, sizes);
    const size_t taps = (size_t)conv->planes * taps_of(conv);
    return taps <= MAX_TAPS && (size_t)sizes[0] * (size_t)sizes[1] * taps < 300000;
}

/* Outputs of 1 to 16 projections, whose masks are all the same, differ in some taps, or anyhow. The scalar kernel knows nothing of
   them: signs are those of all outputs. They share their work in either way, also where that is no faster. */
static int8_t *draw_signs(onebit_net *net, Bconv2d *conv, Classes *classes) {
    const int32_t J = between(0, 2) ? between(1, 4) : between(5, MOST_SHARED);
    const int32_t kernels = between(0, 1) ? between(1, 20) : between(1, 300 / J), rarity = 1 << between(0, 6);
    const size_t taps = taps_of(conv), n_signs = (size_t)kernels * (size_t)conv->planes * taps;
    int8_t *drawn = malloc(n_signs), *masks = malloc((size_t)J * taps);
    for (size_t i = 0; i < n_signs; i++) drawn[i] = rand() & 64 ? 1 : -1;
    for (size_t i = 0; i < (size_t)J * taps; i++) masks[i] = between(1, rarity) == 1 ? -1 : 1;
    int8_t *signs = written_out(drawn, (size_t)kernels, J, masks, (size_t)conv->planes, taps);
    conv->outputs = kernels * J;
    if (J > 1 && make_classes(net, J, masks, (size_t)conv->planes, taps, classes)) exit(2);
    conv->shared = J > 1 && classes->count ? classes : NULL;
    classes->way = between(0, 1) ? BY_PAIRS : BY_COLUMNS;
    free(drawn);
    free(masks);
    return signs;
}

static Area draw_bits(const Bconv2d *conv) {
    const size_t n_pixels = (size_t)conv->height * (size_t)conv->width, words = words_of(conv->planes);
    Area area = new_area(n_pixels * words * sizeof(uint64_t), sizeof(uint64_t));
    uint64_t *bits = (uint64_t *)area.data;
    for (size_t i = 0; i < n_pixels * words; i++) {
        bits[i] = (uint64_t)rand() << 42 ^ (uint64_t)rand() << 21 ^ (uint64_t)rand();
        if (i % words == words - 1 && conv->planes % 64) bits[i] &= (UINT64_C(1) << conv->planes % 64) - 1;
    }
    return area;
}

typedef struct {
    const Kernels *kernels;
    Area common, packed, prepared, row, counts;
} Side;

static Side new_side(const Kernels *kernels, const Bconv2d *conv, const int8_t *signs, const uint64_t *bits) {
    const size_t block_bytes = kernels->block_bytes(conv);
    Side side = {kernels,
                 new_area(kernels->common_bytes(conv), 8),
                 new_area(kernels->packed_bytes(conv), 64),
                 new_area(block_bytes ? block_bytes : kernels->prepared_bytes(conv), 2),
                 new_area(kernels->row_bytes(conv), 1),
                 new_area(BLOCK_PIXELS * MAX_BLOCK_WIDTH * sizeof(uint16_t), 64)};
    memset(side.packed.data, 0, kernels->packed_bytes(conv)); /* as net_alloc gives it */
    kernels->put_common(conv, side.common.data);
    kernels->pack(conv, signs, side.packed.data);
    if (block_bytes) return side;
    for (int32_t row = conv->padded.height - 1; row >= 0; row--) /* in any order */
        kernels->prepare(conv, bits, row, row + 1, side.prepared.data, side.row.data);
    return side;
}

static const uint16_t *count(Side *side, const Bconv2d *conv, Block block) {
    block.common = side->common.data;
    block.packed = side->packed.data;
    block.prepared = side->prepared.data;
    free_area(side->counts); /* exactly as many rows as a block may have, of this width */
    side->counts = new_area(BLOCK_PIXELS * (size_t)block.width * sizeof(uint16_t), 64);
    side->kernels->prepare_block(conv, &block);
    side->kernels->count(conv, &block, (uint16_t *)side->counts.data);
    return (const uint16_t *)side->counts.data;
}

static void free_side(Side side) {
    free_area(side.common);
    free_area(side.packed);
    free_area(side.prepared);
    free_area(side.row);
    free_area(side.counts);
}

static bool agree(const Kernels *kernels, const Bconv2d *conv, const int8_t *signs, const uint64_t *bits) {
    Side fast = new_side(kernels, conv, signs, bits), plain = new_side(&kernels_scalar, conv, signs, bits);
    const size_t all = (size_t)conv->out_height * (size_t)conv->out_width;
    bool same = true;
    for (Block block = {.bits = bits}; block.first_pixel < all && same; block.first_pixel += BLOCK_PIXELS) {
        block.pixels = all - block.first_pixel < BLOCK_PIXELS ? all - block.first_pixel : BLOCK_PIXELS;
        for (int32_t first = 0, width; first < conv->outputs && same; first += width) {
            const int32_t left = conv->outputs - first;
            width = kernels->block_width(conv, left);
            block.first_channel = first;
            block.width = width;
            const uint16_t *found = count(&fast, conv, block);
            block.width = left < width ? left : width;
            const uint16_t *expected = count(&plain, conv, block);
            for (size_t r = 0; r < block.pixels; r++)
                same &= !memcmp(found + r * (size_t)width, expected + r * (size_t)block.width,
                                (size_t)block.width * sizeof *found);
        }
    }
    free_side(fast);
    free_side(plain);
    return same;
}

int main(int n_words, char **words) {
    if (n_words != 3) return 2;
    srand((unsigned)atoi(words[1]));
    const int wanted = atoi(words[2]);
    static const char *const ISAS[] = {"avx2", "avx512", "neon"};
    enum { N_ISAS = sizeof ISAS / sizeof *ISAS };
    int shared[2] = {0, 0};
    for (int done = 0; done < wanted;) {
        Bconv2d conv;
        Classes classes;
        if (!draw(&conv)) continue;
        onebit_net *net = onebit_net_new("scalar");
        int8_t *signs = draw_signs(net, &conv, &classes);
        if (conv.shared) shared[classes.way]++;
        const Area bits = draw_bits(&conv);
        for (int i = 0; i < N_ISAS; i++) {
            const Kernels *kernels = kernels_of(ISAS[i]);
            if (!kernels || agree(kernels, &conv, signs, (const uint64_t *)bits.data)) continue;
            printf("convolution %d of seed %s: counts differ with %s\n", done, words[1], ISAS[i]);
            return 1;
        }
        free_area(bits);
        free(signs);
        onebit_net_free(net);
        done++;
    }
    printf("shared: %d by pairs, %d by columns\n%d passed, 0 failed\n", shared[BY_PAIRS], shared[BY_COLUMNS], wanted);
    return 0;
}
