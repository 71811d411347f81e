/* Pools: the largest or the mean of windows. Channels go side by side. Large windows that overlap go by axes: for a row of
   windows, the rows of the image under it become one, and then its columns; a window of k x k is looked at as k + k. */
#include "convolution.h"
#include "kernels.h"

/* By axes: if windows would be looked at so many times as often. Small ones stay as they are, also in how means are rounded. */
enum { PAYS_BY_AXES = 4 };

enum { MAX_PARTS_OF_SIDE = 1 << 16, FEWEST_BANDS = 8, BAND_BYTES = 1 << 19 };

typedef struct {
    Step step;
    int32_t input;
    int32_t sizes[2]; /* rows and columns of windows */
    Output output;
    onebit_window window;
    onebit_pool pool;
    bool adapts;  /* windows are parts of the image, not of the window's size */
    bool by_axes; /* a row of the image's width lies behind what a row of windows makes */
    /* If the image is passed on: who makes its rows, how many rows of windows are made of them at a time, and how many rows of
       the image that takes at the most. */
    const Step *maker;
    size_t band, band_rows;
} PoolStep;

typedef struct {
    int32_t first, end, by; /* places inside of the image */
    int32_t counted;        /* that a mean divides by */
} Span;

/* What the window at `place` covers along an axis. */
static Span span_of(const PoolStep *it, int axis, int32_t place, int32_t side) {
    const int32_t places = it->sizes[axis];
    if (it->adapts) {
        const int32_t first = (int32_t)((int64_t)place * side / places);
        const int32_t end = (int32_t)(((int64_t)(place + 1) * side + places - 1) / places);
        return (Span){first, end, 1, end - first};
    }
    const onebit_window *window = &it->window;
    const int32_t before = window->padding[2 * axis], dilation = window->dilation[axis];
    const int32_t start = place * window->stride[axis] - before;
    int32_t end = start + dilation * window->kernel[axis];
    const int32_t counted_end = side + window->padding[2 * axis + 1]; /* what is behind the padding never counts */
    Span it_covers = {start, end < side ? end : side, dilation, (end < counted_end ? end : counted_end) - start};
    while (it_covers.first < 0) it_covers.first += dilation;
    if (it->pool != ONEBIT_MEAN_PADDED)
        it_covers.counted = it_covers.end - it_covers.first; /* means have no dilation */
    return it_covers;
}

static void maximum_of_sums(const Taps *taps, int32_t *made, size_t channels) {
    for (size_t c = 0; c < channels; c++) {
        int32_t most = INT32_MIN;
        for (size_t row = 0; row < taps->rows; row++)
            for (size_t column = 0; column < taps->columns; column++) {
                const int32_t v = ((const int32_t *)taps->first)[row * taps->row_step + column * taps->column_step + c];
                if (v > most) most = v;
            }
        made[c] = most;
    }
}

/* What one row of windows makes. */
static size_t row_numbers_made(const PoolStep *it, const Value *in) {
    return (size_t)it->sizes[1] * (size_t)in->channels;
}

/* With what is made on the way. */
static size_t row_made_numbers(const PoolStep *it, const Value *in) {
    return row_numbers_made(it, in) + (it->by_axes ? (size_t)in->width * (size_t)in->channels : 0);
}

static size_t length_of(Span span) { return (size_t)((span.end - span.first + span.by - 1) / span.by); }

/* Whether it pays to go by axes; what is looked at is counted by channel, for the largest row of windows. */
static bool pays_by_axes(const PoolStep *it, const Value *in) {
    const int32_t whole =
        it->adapts ? (in->height - 1) / it->sizes[0] + 2 : it->window.kernel[0]; /* no window has more */
    size_t rows = 0, columns = 0;
    for (int32_t place = 0; place < it->sizes[0] && rows < (size_t)whole; place++) {
        const size_t here = length_of(span_of(it, 0, place, in->height));
        if (here > rows) rows = here;
    }
    if (rows <= PAYS_BY_AXES) return false;
    for (int32_t place = 0; place < it->sizes[1]; place++) columns += length_of(span_of(it, 1, place, in->width));
    return rows * columns > PAYS_BY_AXES * (rows * (size_t)in->width + columns);
}

/* The largest, or the sum over the divisor, of some taps. */
static void combine(const PoolStep *it, const Run *run, const Taps *taps, float divisor, float *made, size_t numbers) {
    if (it->pool != ONEBIT_MAX)
        run->net->kernels->mean(taps, divisor, made, numbers);
    else if (run->net->values[it->input].kind == ONEBIT_SUMS)
        maximum_of_sums(taps, (int32_t *)made, numbers);
    else
        run->net->kernels->maximum(taps, made, numbers);
}

/* Rows of windows from `first` to before `end`, of an image whose row `origin` is the first in memory. */
static void pool_rows(const PoolStep *it, const Run *run, const float *image, size_t origin, size_t first, size_t end,
                      float *row_made) {
    const Value *in = &run->net->values[it->input];
    const size_t channels = (size_t)in->channels, row_step = (size_t)in->width * channels;
    Pixels pixels = {.stride = channels, .count = (size_t)it->sizes[1], .channels = in->channels};
    if (in->kind == ONEBIT_SUMS)
        pixels.sums = (const int32_t *)row_made;
    else
        pixels.floats = row_made;
    aim(&it->output, run, &pixels);
    for (int32_t row = (int32_t)first; row < (int32_t)end; row++) {
        const Span rows = span_of(it, 0, row, in->height);
        const float *under = image + ((size_t)rows.first - origin) * row_step;
        size_t tap_rows = length_of(rows);
        float *made = row_made;
        if (it->by_axes) {
            float *folded = row_made + row_numbers_made(it, in);
            combine(it, run, &(Taps){under, tap_rows, 1, (size_t)rows.by * row_step, 0}, 1, folded, row_step);
            under = folded;
            tap_rows = 1;
        }
        for (int32_t column = 0; column < it->sizes[1]; column++, made += channels) {
            const Span columns = span_of(it, 1, column, in->width);
            const Taps taps = {under + (size_t)columns.first * channels, tap_rows, length_of(columns),
                               (size_t)rows.by * row_step, (size_t)columns.by * channels};
            combine(it, run, &taps, (float)rows.counted * (float)columns.counted, made, channels);
        }
        pixels.first = (size_t)row * pixels.count;
        run->net->kernels->finish(&it->output, &pixels);
    }
}

/* Units: rows of windows. */
static void run_pool(const Step *step, const Run *run, size_t first, size_t end) {
    const PoolStep *it = (const PoolStep *)step;
    pool_rows(it, run, numbers(run, it->input), 0, first, end, (float *)run->own);
}

/* The rows of the image that windows in rows from `first` to before `end` reach to. (Of dilated windows at a border, it need
   not be the first one that has the highest tap inside, nor the last one that has the lowest.) */
static Span rows_under(const PoolStep *it, size_t first, size_t end, int32_t height) {
    const int32_t above = tap_at(&it->window, 0, (int32_t)first, 0),
                  below = tap_at(&it->window, 0, (int32_t)end - 1, it->window.kernel[0] - 1) + 1;
    return (Span){.first = above < 0 ? 0 : above, .end = below < height ? below : height};
}

/* Units: bands of rows of windows. Rows of the image that two bands cover are made twice. */
static void run_bands(const Step *step, const Run *run, size_t first, size_t end) {
    const PoolStep *it = (const PoolStep *)step;
    const Value *in = &run->net->values[it->input];
    const size_t row_numbers = (size_t)in->width * (size_t)in->channels, all = (size_t)it->sizes[0];
    float *rows = (float *)run->own, *row_made = rows + it->band_rows * row_numbers;
    char *scratch = run->own + round_up((it->band_rows * row_numbers + row_made_numbers(it, in)) * sizeof *rows, 64);
    for (size_t band = first; band < end; band++) {
        const size_t from = band * it->band, to = from + it->band < all ? from + it->band : all;
        const Span under = rows_under(it, from, to, in->height);
        it->maker->make_rows(it->maker, run, (size_t)under.first, (size_t)under.end, rows, scratch);
        pool_rows(it, run, rows, (size_t)under.first, from, to, row_made);
    }
}

/* As many rows of windows at a time as leave what lies between the two in the second cache, and work for some threads. */
static void cut_into_bands(PoolStep *it, const Value *in) {
    const size_t all = (size_t)it->sizes[0], row_bytes = (size_t)in->width * (size_t)in->channels * sizeof(float);
    const size_t stride = (size_t)it->window.stride[0], room = BAND_BYTES / row_bytes,
                 reach = (size_t)it->window.dilation[0] * (size_t)(it->window.kernel[0] - 1) + 1;
    const size_t fitting = room > reach ? (room - reach) / stride + 1 : 1,
                 most = (all + FEWEST_BANDS - 1) / FEWEST_BANDS;
    it->band = fitting < most ? fitting : most;
    it->band_rows = (it->band - 1) * stride + reach;
    if (it->band_rows > (size_t)in->height) it->band_rows = (size_t)in->height;
    it->step.phases[0] = (Phase){run_bands, (all + it->band - 1) / it->band};
    it->step.own_bytes =
        round_up(it->band_rows * row_bytes + row_made_numbers(it, in) * sizeof(float), 64) + it->maker->rows_bytes;
}

static bool has_taps(const PoolStep *it, int axis, int32_t place, int32_t side) {
    const Span covered = span_of(it, axis, place, side);
    return covered.first < covered.end && covered.counted >= 1;
}

/* Every window must have a tap inside of the image, or there is nothing to pool. One that begins inside has: only those before
   the image, and the last, need a look, for there may be a million windows. */
static bool all_have_taps(const PoolStep *it, const Value *in) {
    for (int axis = 0; axis < 2; axis++) {
        const int32_t side = axis ? in->width : in->height, last = it->sizes[axis] - 1;
        const int32_t before = it->adapts ? 0 : it->window.padding[2 * axis] / it->window.stride[axis];
        for (int32_t place = 0; place <= before && place < last; place++)
            if (!has_taps(it, axis, place, side)) return false;
        if (!has_taps(it, axis, last, side)) return false;
    }
    return true;
}

static onebit_status add_pool(onebit_net *net, PoolStep wanted, const onebit_output *output) {
    const Value *in = &net->values[wanted.input];
    if (wanted.sizes[0] < 1 || wanted.sizes[1] < 1 || !all_have_taps(&wanted, in))
        return invalid(net, "one of a pool's windows has no tap within the image");
    PoolStep *it = net_alloc(net, sizeof *it);
    if (!it) return no_memory(net);
    *it = wanted;
    it->by_axes = pays_by_axes(it, in);
    it->step =
        (Step){.phases = {{run_pool, (size_t)it->sizes[0]}}, .own_bytes = row_made_numbers(it, in) * sizeof(float)};
    if (it->maker) cut_into_bands(it, in);
    const onebit_status status =
        check_output(net, output, in->channels, it->sizes, in->kind == ONEBIT_SUMS, &it->output);
    const bool is_in_table = in->kind == ONEBIT_FLOAT && in->channels >= net->kernels->least_pooled;
    return status ? status : add_step(net, &it->step, "pool", is_in_table ? IN_TABLE : IN_PLAIN_C);
}

onebit_status onebit_add_pool(onebit_net *net, int32_t input, const onebit_window *window, onebit_pool pool,
                              const int32_t sizes[2], const onebit_output *output) {
    if ((int)pool < ONEBIT_MAX || (int)pool > ONEBIT_MEAN_PADDED) return invalid(net, "an unknown pool");
    const bool is_passed = input >= 0 && (size_t)input < net->n_values && net->values[input].is_passed;
    const Step *maker = is_passed ? maker_of_passed(net, input) : NULL;
    const Value *in = is_passed ? (maker ? &net->values[input] : NULL)
                                : readable(net, input, pool == ONEBIT_MAX ? FLOATS | SUMS : FLOATS);
    int32_t fitting[2];
    if (!in || check_window(net, window, in, fitting)) return ONEBIT_INVALID;
    if (pool != ONEBIT_MAX && (window->dilation[0] > 1 || window->dilation[1] > 1))
        return invalid(net, "a mean with dilation");
    for (int axis = 0; axis < 2; axis++) /* with ceil_mode there may be one more window than fits */
        if (sizes[axis] != fitting[axis] && sizes[axis] != fitting[axis] + 1)
            return invalid(net, "a pool makes %d places of an image's side", sizes[axis]);
    return add_pool(
        net, (PoolStep){.input = input, .window = *window, .pool = pool, .sizes = {sizes[0], sizes[1]}, .maker = maker},
        output);
}

onebit_status onebit_add_adaptive_mean(onebit_net *net, int32_t input, const int32_t sizes[2],
                                       const onebit_output *output) {
    if (!readable(net, input, FLOATS)) return ONEBIT_INVALID;
    if (sizes[0] > MAX_PARTS_OF_SIDE || sizes[1] > MAX_PARTS_OF_SIDE)
        return invalid(net, "an image is cut into too many parts");
    return add_pool(net, (PoolStep){.input = input, .pool = ONEBIT_MEAN, .adapts = true, .sizes = {sizes[0], sizes[1]}},
                    output);
}
