/* How near the kernels of 1-bit convolution come to what the core could do at most: `count` alone, without what comes
   before and after it in a layer, beside loops of nothing but its instructions, all in one run.

       count            (benchmarks/engine.py builds and runs this)
       count shapes     the kernels of AVX2 and AVX-512, whole, for shapes on both sides of the rule that chooses between them */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../src/bconv2d_avx2.h"
#include "../src/bconv2d_avx512.h"
#include "../src/kernels.h"

enum { ROUNDS = 201, LOOPS = 10000, MACS_OF_LOOK_UP = 32 * 2 * 4, MACS_OF_WORD = 8 * 64 };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Limits: what each kernel needs, from registers alone; no result is waited for. They return how many multiply-adds that is. */
/* clang-format off */
#define LOOK_UPS(a, b, c) "vpshufb %%ymm0, %%ymm1, %%" #a "\nvpshufb %%ymm0, %%ymm1, %%" #b "\nvpshufb %%ymm0, %%ymm1, %%" #c "\n"
#define SUMS(a, b, c, S, T) "vpaddb %%" #b ", %%" #a ", %%" #a "\nvpaddb %%" #c ", %%" #a ", %%" #a "\n"          \
    "vpaddb %%" #a ", %%" #S ", %%" #S "\nvpsrlw $4, %%" #a ", %%" #a "\nvpaddb %%" #a ", %%" #T ", %%" #T "\n"
#define CLOBBERED "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11", "ymm12"
static double look_ups(void) {
    for (int i = 0; i < LOOPS; i++)
        __asm__ volatile(LOOK_UPS(ymm2, ymm3, ymm4) SUMS(ymm2, ymm3, ymm4, ymm11, ymm12)
                         LOOK_UPS(ymm5, ymm6, ymm7) SUMS(ymm5, ymm6, ymm7, ymm11, ymm12)
                         LOOK_UPS(ymm8, ymm9, ymm10) SUMS(ymm8, ymm9, ymm10, ymm11, ymm12)
                         LOOK_UPS(ymm2, ymm3, ymm4) SUMS(ymm2, ymm3, ymm4, ymm11, ymm12) ::: CLOBBERED);
    return 12.0 * LOOPS * MACS_OF_LOOK_UP;
}

#define COUNT(x, sum) "vpopcntq %%" #x ", %%" #x "\nvpaddq %%" #x ", %%" #sum ", %%" #sum "\n"
#define SINGLE(x, sum) "vpxorq %%zmm0, %%zmm1, %%" #x "\n" COUNT(x, sum)
#define TRIPLE(x, y, sum, sum2) "vpxorq %%zmm0, %%zmm1, %%" #x "\nvpternlogq $0x60, %%zmm0, %%zmm1, %%" #x               \
    "\nvpternlogq $0x96, %%zmm0, %%zmm1, %%" #x "\n" COUNT(x, sum) SINGLE(y, sum2)
static double triples(void) {
    for (int i = 0; i < LOOPS; i++)
        __asm__ volatile(TRIPLE(zmm2, zmm3, zmm8, zmm9) TRIPLE(zmm4, zmm5, zmm10, zmm11)
                         TRIPLE(zmm6, zmm7, zmm8, zmm9) TRIPLE(zmm2, zmm3, zmm10, zmm11) ::: CLOBBERED);
    return 12.0 * LOOPS * MACS_OF_WORD;
}

static double singles(void) {
    for (int i = 0; i < LOOPS; i++)
        __asm__ volatile(SINGLE(zmm2, zmm8) SINGLE(zmm3, zmm9) SINGLE(zmm4, zmm10) SINGLE(zmm5, zmm11)
                         SINGLE(zmm6, zmm8) SINGLE(zmm7, zmm9) SINGLE(zmm2, zmm10) SINGLE(zmm3, zmm11) ::: CLOBBERED);
    return 8.0 * LOOPS * MACS_OF_WORD;
}
/* clang-format on */

typedef struct {
    int32_t planes, outputs, side, kernel[2], dilation;
} Shape;

/* With a border, so that what comes out has the same sides. */
typedef struct {
    const Kernels *kernels;
    Bconv2d conv;
    Block block;
    void *row; /* while rows are prepared */
    uint16_t counts[BLOCK_PIXELS * MAX_BLOCK_WIDTH] __attribute__((aligned(64)));
} Layer;

static void *aligned(size_t bytes) {
    void *found = aligned_alloc(64, round_up(bytes, 64));
    if (!found) exit(2);
    memset(found, 0, bytes);
    return found;
}

static Layer *new_layer(const Kernels *kernels, Shape shape) {
    Layer *layer = aligned(sizeof *layer);
    const int32_t side = shape.side, sizes[2] = {side, side};
    const int32_t reach[2] = {shape.dilation * (shape.kernel[0] - 1), shape.dilation * (shape.kernel[1] - 1)};
    layer->kernels = kernels;
    layer->conv = (Bconv2d){.planes = shape.planes, .height = side, .width = side, .outputs = shape.outputs};
    layer->conv.out_height = layer->conv.out_width = side;
    layer->conv.window = (onebit_window){{shape.kernel[0], shape.kernel[1]},
                                         {1, 1},
                                         {shape.dilation, shape.dilation},
                                         {reach[0] / 2, reach[0] - reach[0] / 2, reach[1] / 2, reach[1] - reach[1] / 2},
                                         1};
    layer->conv.padded = reach_of(&layer->conv.window, sizes);
    const size_t n_signs = (size_t)shape.outputs * (size_t)shape.planes * taps_of(&layer->conv);
    const size_t n_words = (size_t)side * (size_t)side * words_of(shape.planes);
    int8_t *signs = aligned(n_signs);
    uint64_t *bits = aligned(n_words * sizeof *bits);
    for (size_t i = 0; i < n_signs; i++) signs[i] = rand() & 64 ? 1 : -1;
    const uint64_t used = shape.planes % 64 ? (UINT64_C(1) << shape.planes % 64) - 1 : ~UINT64_C(0);
    for (size_t i = 0; i < n_words; i++)
        bits[i] = ((uint64_t)rand() << 42 ^ (uint64_t)rand() << 21 ^ (uint64_t)rand()) & used;
    void *packed = aligned(kernels->packed_bytes(&layer->conv)),
         *prepared = aligned(kernels->prepared_bytes(&layer->conv)),
         *common = aligned(kernels->common_bytes(&layer->conv));
    kernels->put_common(&layer->conv, common);
    kernels->pack(&layer->conv, signs, packed);
    layer->row = aligned(kernels->row_bytes(&layer->conv));
    kernels->prepare(&layer->conv, bits, 0, layer->conv.padded.height, prepared, layer->row);
    layer->block = (Block){.common = common, .packed = packed, .bits = bits, .prepared = prepared};
    return layer;
}

/* Returns the number of multiply-adds. */
static double count_all(Layer *layer) {
    const Kernels *kernels = layer->kernels;
    const size_t all = (size_t)layer->conv.out_height * (size_t)layer->conv.out_width;
    for (Block block = layer->block; block.first_pixel < all; block.first_pixel += BLOCK_PIXELS) {
        block.pixels = all - block.first_pixel < BLOCK_PIXELS ? all - block.first_pixel : BLOCK_PIXELS;
        kernels->prepare_block(&layer->conv, &block);
        for (block.first_channel = 0; block.first_channel < layer->conv.outputs; block.first_channel += block.width) {
            block.width = kernels->block_width(&layer->conv, layer->conv.outputs - block.first_channel);
            kernels->count(&layer->conv, &block, layer->counts);
        }
    }
    return (double)(taps_of(&layer->conv) * all) * layer->conv.planes * layer->conv.outputs;
}

static int by_size(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* A row of the table: a limit, or a layer, of the table `isa`; `limit` is the row that it is compared with. */
typedef struct {
    const char *isa;
    double (*loop)(void);
    Layer *layer;
    int limit;
    char name[80];
    double speeds[ROUNDS], shares[ROUNDS]; /* multiply-adds a nanosecond, and of the limit's */
} Row;

enum { MOST_ROWS = 40 };
static Row rows[MOST_ROWS];
static int n_rows;

static Row *add_row(const char *isa, int limit, const char *name) {
    if (n_rows == MOST_ROWS) exit(2);
    Row *row = &rows[n_rows++];
    row->isa = isa;
    row->limit = limit;
    snprintf(row->name, sizeof row->name, "%s", name);
    return row;
}

static void add_layers(const char *isa, int limit) {
    static const int32_t SHAPES[][2] = {{16, 32}, {32, 16}, {64, 8}, {64, 56}, {128, 28}, {256, 14}, {512, 7}};
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        char name[80];
        snprintf(name, sizeof name, "%d channels at %d x %d", SHAPES[i][0], SHAPES[i][1], SHAPES[i][1]);
        add_row(isa, limit, name)->layer =
            new_layer(kernels_of(isa), (Shape){SHAPES[i][0], SHAPES[i][0], SHAPES[i][1], {3, 3}, 1});
    }
}

static void no_block(const Bconv2d *conv, const Block *block) { (void)conv, (void)block; }

/* The kernel of AVX-512 for any shape. */
static const Kernels COUNTING = {.block_width = block_width_avx2,
                                 .common_bytes = common_bytes_avx512,
                                 .put_common = put_common_avx512,
                                 .packed_bytes = packed_bytes_avx512,
                                 .pack = pack_avx512,
                                 .prepared_bytes = prepared_bytes_avx512,
                                 .row_bytes = row_bytes_avx512,
                                 .prepare = prepare_avx512,
                                 .prepare_block = no_block,
                                 .count = count_avx512};

/* Microseconds of what comes before it, and of all counts. */
static double time_of(Layer *layer) {
    const double start = seconds();
    layer->kernels->prepare(&layer->conv, layer->block.bits, 0, layer->conv.padded.height, layer->block.prepared,
                            layer->row);
    count_all(layer);
    return 1e6 * (seconds() - start);
}

static void compare(Shape shape) {
    enum { LOOKING_UP, COUNTING_ONES, CHOSEN, WAYS };
    const Kernels *const kernels[WAYS] = {&kernels_avx2, &COUNTING, &kernels_avx512};
    static double times[WAYS][ROUNDS], ratios[WAYS][ROUNDS];
    Layer *layers[WAYS];
    for (int i = 0; i < WAYS; i++) layers[i] = new_layer(kernels[i], shape);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < WAYS; i++) times[i][round] = time_of(layers[i]);
        for (int i = 0; i < WAYS; i++) ratios[i][round] = times[LOOKING_UP][round] / times[i][round];
    }
    for (int i = 0; i < WAYS; i++) {
        qsort(times[i], ROUNDS, sizeof(double), by_size);
        qsort(ratios[i], ROUNDS, sizeof(double), by_size);
    }
    printf("%4d planes, %3d outputs, %d x %d, dilation %d: %8.1f us, %8.1f us, %5.2f; chosen: %5.2f\n", shape.planes,
           shape.outputs, shape.kernel[0], shape.kernel[1], shape.dilation, times[LOOKING_UP][ROUNDS / 2],
           times[COUNTING_ONES][ROUNDS / 2], ratios[COUNTING_ONES][ROUNDS / 2], ratios[CHOSEN][ROUNDS / 2]);
}

static void compare_shapes(void) {
    static const int32_t PLANES[] = {3, 8, 16, 24, 32, 43, 64, 80, 92, 128, 136, 160, 256},
                         OUTPUTS[] = {16, 32, 64, 128};
    static const int32_t WINDOWS[][3] = {{1, 1, 1}, {3, 1, 1}, {5, 5, 1}, {3, 3, 2}}; /* rows, columns, dilation */
    enum { N = sizeof PLANES / sizeof *PLANES, SIDE = 14 };
    printf("AVX2, AVX-512, how many times as fast; the same of what the rule chooses\n");
    for (int i = 0; i < N; i++)
        for (size_t k = 0; k < sizeof OUTPUTS / sizeof *OUTPUTS; k++)
            compare((Shape){PLANES[i], OUTPUTS[k], SIDE, {3, 3}, 1});
    for (int i = 0; i < N; i += 2)
        for (size_t k = 0; k < sizeof WINDOWS / sizeof *WINDOWS; k++)
            compare((Shape){PLANES[i], 128, SIDE, {WINDOWS[k][0], WINDOWS[k][1]}, WINDOWS[k][2]});
}

int main(int n_words, char **words) {
    if (n_words == 2 && !strcmp(words[1], "shapes") && kernels_of("avx512")) {
        compare_shapes();
        return 0;
    }
    if (kernels_of("avx2")) {
        const int limit = n_rows;
        add_row("avx2", limit, "limit: look-ups, shifts and additions")->loop = look_ups;
        add_layers("avx2", limit);
    }
    if (kernels_of("avx512")) {
        const int limit = n_rows;
        add_row("avx512", limit, "limit: three words at a time")->loop = triples;
        add_row("avx512", limit, "words one by one")->loop = singles;
        add_layers("avx512", limit);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (Row *row = rows; row < rows + n_rows; row++) {
            const double start = seconds(), macs = row->layer ? count_all(row->layer) : row->loop();
            row->speeds[round] = macs / (seconds() - start) / 1e9;
        }
        for (Row *row = rows; row < rows + n_rows; row++)
            row->shares[round] = row->speeds[round] / rows[row->limit].speeds[round];
    }
    printf("%-8s %-40s %18s %16s\n", "", "", "multiply-adds a ns", "of the limit");
    for (Row *row = rows; row < rows + n_rows; row++) {
        qsort(row->speeds, ROUNDS, sizeof(double), by_size);
        qsort(row->shares, ROUNDS, sizeof(double), by_size);
        printf("%-8s %-40s %8.0f (p90 %.0f) %15.0f %%\n", row->isa, row->name, row->speeds[ROUNDS / 2],
               row->speeds[ROUNDS * 9 / 10], 100 * row->shares[ROUNDS / 2]);
    }
    return 0;
}
