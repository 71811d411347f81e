#include "winograd.h"

#include <string.h>

#include "kernels.h"

enum { FEWEST_TILES = 24, FEWEST_BLOCKS = 8 /* for threads to share */ };
static const size_t TILES_BYTES = 600 << 10;       /* of a block: they are read once for every column of weights */
static const size_t MOST_TILES_BYTES = 2400 << 10; /* of one row of tiles, which is the smallest block */
static const size_t MOST_WEIGHT = 3 << 20;         /* bytes: with more, reading them takes longer than what they save */

static size_t divided_up(size_t n, size_t by) { return (n + by - 1) / by; }

/* Numbers of TILE_ROWS transformed tiles; of the weights of TILE_COLUMNS outputs. */
static size_t group_numbers(const Winograd *it) { return WINOGRAD_PLACES * TILE_ROWS * it->planes; }
static size_t column_weights(const Winograd *it) { return WINOGRAD_PLACES * it->planes * TILE_COLUMNS; }

/* G g: the value of the polynomial with coefficients g at each point, over that of the one with roots at the others. */
static void transform_taps(const double g[4], int32_t taps, double made[WINOGRAD_SIDE]) {
    static const double points[] = {0, 1, -1, 0.5, -2};
    enum { FINITE = 5 };
    for (int i = 0; i < FINITE; i++) {
        double sum = 0, power = 1, divisor = 1;
        for (int32_t tap = 0; tap < taps; tap++, power *= points[i]) sum += g[tap] * power;
        for (int j = 0; j < FINITE; j++) divisor *= j == i ? 1 : points[i] - points[j];
        made[i] = sum / divisor;
    }
    made[FINITE] = g[taps - 1];
}

/* G g G', of the taps of one phase of one kernel. */
static void transform_kernel(const Winograd *it, const float *kernel, int32_t phase_row, int32_t phase_column,
                             double made[WINOGRAD_SIDE][WINOGRAD_SIDE]) {
    const int32_t *size = it->shape.window.kernel;
    double rows[4][WINOGRAD_SIDE];
    for (int32_t y = 0; y < it->taps; y++) {
        double taps[4] = {0};
        for (int32_t x = 0; x < it->taps; x++) {
            const int32_t dy = y * it->stride + phase_row, dx = x * it->stride + phase_column;
            if (dy < size[0] && dx < size[1]) taps[x] = (double)kernel[dy * size[1] + dx];
        }
        transform_taps(taps, it->taps, rows[y]);
    }
    for (int j = 0; j < WINOGRAD_SIDE; j++) {
        double column[4] = {0}, transformed[WINOGRAD_SIDE];
        for (int32_t y = 0; y < it->taps; y++) column[y] = rows[y][j];
        transform_taps(column, it->taps, transformed);
        for (int i = 0; i < WINOGRAD_SIDE; i++) made[i][j] = transformed[i];
    }
}

static void pack_weight(const Winograd *it, const float *weight) {
    const size_t channels = (size_t)it->shape.channels, stride = (size_t)it->stride;
    const size_t taps = (size_t)it->shape.window.kernel[0] * (size_t)it->shape.window.kernel[1];
    for (size_t n = 0; n < (size_t)it->shape.outputs; n++)
        for (size_t plane = 0; plane < it->planes; plane++) {
            const size_t channel = plane % channels, phase = plane / channels;
            double made[WINOGRAD_SIDE][WINOGRAD_SIDE];
            transform_kernel(it, weight + (n * channels + channel) * taps, (int32_t)(phase / stride),
                             (int32_t)(phase % stride), made);
            float *column = it->weight + n / TILE_COLUMNS * column_weights(it);
            for (size_t place = 0; place < WINOGRAD_PLACES; place++)
                column[(place * it->planes + plane) * TILE_COLUMNS + n % TILE_COLUMNS] =
                    (float)made[place / WINOGRAD_SIDE][place % WINOGRAD_SIDE];
        }
}

static size_t bytes_of_tiles(const Winograd *it, size_t strips) {
    return divided_up(strips * it->across, TILE_ROWS) * group_numbers(it) * sizeof(float);
}

static bool suits(const Winograd *it) {
    const onebit_window *window = &it->shape.window;
    const bool is_square = window->kernel[0] == window->kernel[1] && window->stride[0] == window->stride[1];
    return is_square && window->groups == 1 && window->dilation[0] == 1 && window->dilation[1] == 1 &&
           it->stride <= 2 && (it->taps == 3 || it->taps == 4);
}

/* Transforms cost about as much as is saved if there are not half as many products: tiles of low images are mostly empty. */
static bool pays(const Winograd *it, size_t weight_bytes) {
    const size_t tiles = it->across * it->down, taps = (size_t)it->shape.window.kernel[0];
    const size_t products = tiles * WINOGRAD_PLACES * it->planes,
                 pixels = (size_t)it->shape.sizes[0] * (size_t)it->shape.sizes[1],
                 plain_products = pixels * taps * taps * (size_t)it->shape.channels;
    return it->planes >= WINOGRAD_PLANES && it->shape.outputs >= TILE_COLUMNS && tiles >= FEWEST_TILES &&
           2 * products <= plain_products && weight_bytes <= MOST_WEIGHT && bytes_of_tiles(it, 1) <= MOST_TILES_BYTES;
}

Winograd *new_winograd(onebit_net *net, const ConvolutionShape *shape, const float *weight) {
    const int32_t stride = shape->window.stride[0], taps = (shape->window.kernel[0] - 1) / stride + 1;
    Winograd plan = {.shape = *shape, .stride = stride, .taps = taps, .made = 7 - taps};
    if (!net->kernels->transform_pixels || !suits(&plan)) return NULL;
    plan.planes = (size_t)(stride * stride) * (size_t)shape->channels;
    plan.down = divided_up((size_t)shape->sizes[0], (size_t)plan.made);
    plan.across = divided_up((size_t)shape->sizes[1], (size_t)plan.made);
    const size_t columns = divided_up((size_t)shape->outputs, TILE_COLUMNS);
    const size_t weight_bytes = columns * column_weights(&plan) * sizeof(float);
    const size_t taps_of_all = (size_t)shape->outputs * (size_t)shape->channels * (size_t)shape->window.kernel[0] *
                               (size_t)shape->window.kernel[1];
    if (!pays(&plan, weight_bytes) || !is_tame(weight, taps_of_all)) return NULL;
    const size_t most = divided_up(plan.down, FEWEST_BLOCKS);
    for (plan.strips = 1; plan.strips < most && bytes_of_tiles(&plan, plan.strips + 1) <= TILES_BYTES;) plan.strips++;
    const size_t rows = plan.strips * (size_t)plan.made;
    plan.gathered_columns = plan.across * (size_t)plan.made + (size_t)taps - 1;
    plan.gathered_bytes = round_up((rows + (size_t)taps - 1) * plan.gathered_columns * plan.planes * sizeof(float), 64);
    plan.tiles_bytes = round_up(bytes_of_tiles(&plan, plan.strips), 64);
    plan.made_bytes = rows * plan.across * (size_t)plan.made * TILE_COLUMNS * sizeof(float);
    Winograd *it = net_alloc(net, sizeof *it);
    plan.weight = net_alloc(net, weight_bytes);
    if (!it || !plan.weight) return NULL;
    *it = plan;
    pack_weight(it, weight);
    return it;
}

Winograd *winograd_of(onebit_net *net, const Winograd *first, int32_t input) {
    Winograd *it = net_alloc(net, sizeof *it);
    if (!it) return NULL;
    *it = *first;
    it->shape.input = input;
    return it;
}

size_t winograd_scratch(const Winograd *it) { return it->gathered_bytes + it->tiles_bytes + it->made_bytes; }

bool is_tame(const float *numbers, size_t count) {
    static const uint32_t MAGNITUDE = 0x7fffffff, LARGE = 0x44000000; /* of 512 */
    uint32_t is_wild = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, numbers + i, sizeof bits);
        is_wild |= (bits & MAGNITUDE) >= LARGE;
    }
    return !is_wild;
}

/* Pixels of a row of the image, zeros around it, `stride` of them in each column: `run` numbers of its planes. */
static void gather_row(const Winograd *it, const float *row, float *gathered) {
    const ptrdiff_t channels = it->shape.channels, run = it->stride * channels, end = it->shape.width * channels;
    const ptrdiff_t columns = (ptrdiff_t)it->gathered_columns, planes = (ptrdiff_t)it->planes;
    ptrdiff_t at = -it->shape.window.padding[2] * channels;
    for (ptrdiff_t x = 0; x < columns; x++, at += run, gathered += planes) {
        if (at < 0 || at + run > end) {
            for (ptrdiff_t i = 0; i < run; i++) gathered[i] = at + i >= 0 && at + i < end ? row[at + i] : 0;
        } else if (run == planes) { /* all columns that are inside lie together */
            const ptrdiff_t whole = (end - at) / run < columns - x ? (end - at) / run : columns - x;
            memcpy(gathered, row + at, (size_t)(whole * run) * sizeof *row);
            x += whole - 1, at += (whole - 1) * run, gathered += (whole - 1) * planes;
        } else {
            for (ptrdiff_t i = 0; i < run; i += 2) memcpy(gathered + i, row + at + i, 2 * sizeof *row); /* it is even */
        }
    }
}

/* The pixels that tiles of outputs from row `first` on see: [row][column][phase][channel]. */
static void gather(const Winograd *it, const float *image, size_t first, size_t strips, float *gathered) {
    const size_t rows = strips * (size_t)it->made + (size_t)it->taps - 1;
    const size_t run = (size_t)it->stride * (size_t)it->shape.channels;
    for (size_t row = 0; row < rows; row++)
        for (int32_t phase = 0; phase < it->stride; phase++) {
            const int64_t y = (int64_t)(first + row) * it->stride + phase - it->shape.window.padding[0];
            float *to = gathered + row * it->gathered_columns * it->planes + (size_t)phase * run;
            if (y >= 0 && y < it->shape.height)
                gather_row(it, image + y * it->shape.width * it->shape.channels, to);
            else
                for (size_t x = 0; x < it->gathered_columns; x++) memset(to + x * it->planes, 0, run * sizeof *to);
        }
}

/* Rows of tiles that are done at a time, and where everything about them lies. */
typedef struct {
    size_t first, end; /* rows of outputs */
    size_t strips, tiles;
    float *gathered, *transformed, *made; /* [row][column][plane]; [group][place][tile][plane]; [row][column][output] */
} Strips;

static void transform_tiles(const Winograd *it, const Kernels *kernels, const Strips *these) {
    const size_t made = (size_t)it->made, row_step = it->gathered_columns * it->planes;
    for (size_t tile = 0; tile < these->tiles; tile++) {
        const size_t row = tile / it->across * made, column = tile % it->across * made;
        const size_t group = tile / TILE_ROWS, within = tile % TILE_ROWS;
        kernels->transform_pixels(these->gathered + row * row_step + column * it->planes, row_step, it->planes,
                                  these->transformed + group * group_numbers(it) + within * it->planes);
    }
}

/* TILE_COLUMNS outputs of all tiles. Products of rows behind the last tile are of whatever was there. */
static void make_columns(const Winograd *it, const Kernels *kernels, const Strips *these, const float *weight) {
    float products[WINOGRAD_PLACES * TILE_ROWS * TILE_COLUMNS] __attribute__((aligned(64)));
    const size_t made = (size_t)it->made, row_step = it->across * made * TILE_COLUMNS;
    const float *group = these->transformed;
    for (size_t first = 0; first < these->tiles; first += TILE_ROWS, group += group_numbers(it)) {
        kernels->multiply_places(group, it->planes, weight, products);
        for (size_t r = 0; r < TILE_ROWS && first + r < these->tiles; r++) {
            const size_t row = (first + r) / it->across * made, column = (first + r) % it->across * made;
            kernels->transform_products(products + r * TILE_COLUMNS, it->made,
                                        these->made + row * row_step + column * TILE_COLUMNS, row_step);
        }
    }
}

/* What becomes of them; of tiles that reach beyond the last row, only what is before it. */
static void finish_rows(const Winograd *it, const Kernels *kernels, const Strips *these, const Output *output,
                        Pixels *pixels, size_t first_pixel) {
    const size_t width = (size_t)it->shape.sizes[1];
    pixels->floats = these->made;
    for (size_t row = these->first; row < these->end; row++) {
        pixels->first = row * width - first_pixel;
        kernels->finish(output, pixels);
        pixels->floats += it->across * (size_t)it->made * TILE_COLUMNS;
    }
}

/* Rows of outputs from `first` to before `end`, to where `pixels` aims, which begins at `first_pixel`. */
static void make_rows(const Winograd *it, const Run *run, const Output *output, size_t first, size_t end,
                      size_t first_pixel, Pixels pixels, char *scratch) {
    const Kernels *kernels = run->net->kernels;
    const size_t made = (size_t)it->made;
    Strips these = {.first = first, .gathered = (float *)scratch};
    these.transformed = (float *)(scratch + it->gathered_bytes);
    these.made = (float *)(scratch + it->gathered_bytes + it->tiles_bytes);
    pixels.stride = TILE_COLUMNS;
    pixels.count = (size_t)it->shape.sizes[1];
    for (; these.first < end; these.first = these.end) {
        const size_t left = divided_up(end - these.first, made);
        these.strips = left < it->strips ? left : it->strips;
        these.end = these.first + these.strips * made < end ? these.first + these.strips * made : end;
        these.tiles = these.strips * it->across;
        gather(it, numbers(run, it->shape.input), these.first, these.strips, these.gathered);
        transform_tiles(it, kernels, &these);
        const float *weight = it->weight;
        for (int32_t n = 0; n < it->shape.outputs; n += TILE_COLUMNS, weight += column_weights(it)) {
            make_columns(it, kernels, &these, weight);
            pixels.first_channel = n;
            pixels.channels = it->shape.outputs - n < TILE_COLUMNS ? it->shape.outputs - n : TILE_COLUMNS;
            finish_rows(it, kernels, &these, output, &pixels, first_pixel);
        }
    }
}

size_t winograd_blocks(const Winograd *it) { return divided_up(it->down, it->strips); }

void run_winograd(const Winograd *it, const Run *run, const Output *output, size_t first, size_t end) {
    const size_t block = it->strips * (size_t)it->made, height = (size_t)it->shape.sizes[0];
    Pixels pixels = {0};
    aim(output, run, &pixels);
    make_rows(it, run, output, first * block, end * block < height ? end * block : height, 0, pixels, run->own);
}

void pass_winograd(const Winograd *it, const Run *run, const Output *output, size_t first, size_t end, float *rows,
                   char *scratch) {
    const Pixels pixels = {.float_numbers = rows};
    make_rows(it, run, output, first, end, first * (size_t)it->shape.sizes[1], pixels, scratch);
}
