#include "border.h"

#include <stdlib.h>
#include <string.h>

/* Taps from `first` to before `end` of an axis of the window are inside of the image. */
typedef struct {
    int32_t first, end;
} Inside;

/* The class of each place along one axis, and what is inside in each class; returns how many there are. As places go on,
   taps come in from the left and leave on the right, one after another: there are fewer classes than 2 * kernel + 2. */
static size_t classify(const onebit_window *window, int axis, int32_t side, int32_t places, uint16_t *class_of,
                       Inside *inside) {
    size_t classes = 0;
    for (int32_t place = 0; place < places; place++) {
        Inside here = {0, window->kernel[axis]};
        while (here.first < here.end && tap_at(window, axis, place, here.first) < 0) here.first++;
        while (here.end > here.first && tap_at(window, axis, place, here.end - 1) >= side) here.end--;
        if (!classes || here.first != inside[classes - 1].first || here.end != inside[classes - 1].end)
            inside[classes++] = here;
        class_of[place] = (uint16_t)(classes - 1);
    }
    return classes;
}

/* Ones of a kernel in the taps above and to the left of each tap, [kernel height + 1][kernel width + 1]. */
static void sum_ones(const Bconv2d *conv, const int8_t *signs, int32_t *sums) {
    const size_t rows = (size_t)conv->window.kernel[0], columns = (size_t)conv->window.kernel[1],
                 row_sums = columns + 1;
    memset(sums, 0, (rows + 1) * row_sums * sizeof *sums);
    for (size_t plane = 0; plane < (size_t)conv->planes; plane++)
        for (size_t y = 0; y < rows; y++)
            for (size_t x = 0; x < columns; x++) sums[(y + 1) * row_sums + x + 1] += *signs++ > 0;
    for (size_t y = 1; y <= rows; y++)
        for (size_t x = 1; x <= columns; x++)
            sums[y * row_sums + x] +=
                sums[(y - 1) * row_sums + x] + sums[y * row_sums + x - 1] - sums[(y - 1) * row_sums + x - 1];
}

static int32_t ones_within(const int32_t *sums, size_t row_sums, Inside rows, Inside columns) {
    const int32_t *above = sums + (size_t)rows.first * row_sums, *last = sums + (size_t)rows.end * row_sums;
    return last[columns.end] - last[columns.first] - above[columns.end] + above[columns.first];
}

onebit_status make_border(onebit_net *net, const Bconv2d *conv, const int8_t *signs, Border *made) {
    const size_t outputs = (size_t)conv->outputs, row_sums = (size_t)conv->window.kernel[1] + 1;
    made->row_class = net_alloc(net, (size_t)conv->out_height * sizeof *made->row_class);
    made->column_class = net_alloc(net, (size_t)conv->out_width * sizeof *made->column_class);
    Inside *rows = malloc((size_t)conv->out_height * sizeof *rows),
           *columns = malloc((size_t)conv->out_width * sizeof *columns);
    int32_t *sums = malloc(((size_t)conv->window.kernel[0] + 1) * row_sums * sizeof *sums);
    onebit_status status = ONEBIT_NO_MEMORY;
    if (!made->row_class || !made->column_class || !rows || !columns || !sums) goto done;

    const size_t row_classes = classify(&conv->window, 0, conv->height, conv->out_height, made->row_class, rows);
    made->column_classes = classify(&conv->window, 1, conv->width, conv->out_width, made->column_class, columns);
    made->stride = outputs;
    made->offsets = net_alloc(net, row_classes * made->column_classes * made->stride * sizeof *made->offsets);
    if (!made->offsets) goto done;

    for (size_t n = 0; n < outputs; n++) {
        float *offset = made->offsets + n;
        sum_ones(conv, signs + n * (size_t)conv->planes * taps_of(conv), sums);
        const int32_t all_ones = sums[(size_t)conv->window.kernel[0] * row_sums + row_sums - 1];
        for (size_t row = 0; row < row_classes; row++)
            for (size_t column = 0; column < made->column_classes; column++, offset += made->stride) {
                const int32_t taps = (rows[row].end - rows[row].first) * (columns[column].end - columns[column].first);
                const int32_t outside = all_ones - ones_within(sums, row_sums, rows[row], columns[column]);
                *offset = (float)(conv->planes * taps + 2 * outside); /* at most 2 * MAX_TAPS: exact */
            }
    }
    status = ONEBIT_OK;
done:
    free(rows);
    free(columns);
    free(sums);
    return status ? no_memory(net) : ONEBIT_OK;
}
