#include "border.h"

#include <stdlib.h>
#include <string.h>

/* The class of each place along one axis, and a place of each class; returns how many there are. As places go on, taps
   come in from the left and leave on the right, one after another: there are fewer classes than 2 * kernel + 2. */
static size_t classify(const onebit_window *window, int axis, int32_t side, int32_t places, uint16_t *class_of,
                       int32_t *example) {
    size_t classes = 0;
    int32_t last_first = -1, last_end = -1;
    for (int32_t place = 0; place < places; place++) {
        /* Taps `first` to `end` are inside: neighbours that differ in neither are alike. */
        int32_t first = 0, end = window->kernel[axis];
        while (first < end && tap_at(window, axis, place, first) < 0) first++;
        while (end > first && tap_at(window, axis, place, end - 1) >= side) end--;
        if (first != last_first || end != last_end) {
            example[classes++] = place;
            last_first = first;
            last_end = end;
        }
        class_of[place] = (uint16_t)(classes - 1);
    }
    return classes;
}

static bool is_inside(const onebit_window *window, int axis, int32_t side, int32_t place, int32_t tap) {
    const int32_t at = tap_at(window, axis, place, tap);
    return at >= 0 && at < side;
}

onebit_status make_border(onebit_net *net, const Bconv2d *conv, const int8_t *signs, Border *made) {
    const onebit_window *window = &conv->window;
    const size_t kernel_taps = taps_of(conv), outputs = (size_t)conv->outputs;
    made->row_class = net_alloc(net, (size_t)conv->out_height * sizeof *made->row_class);
    made->column_class = net_alloc(net, (size_t)conv->out_width * sizeof *made->column_class);
    int32_t *rows = malloc((size_t)conv->out_height * sizeof *rows),
            *columns = malloc((size_t)conv->out_width * sizeof *columns);
    int32_t *ones = malloc(outputs * kernel_taps * sizeof *ones); /* of each tap of each kernel */
    onebit_status status = ONEBIT_NO_MEMORY;
    if (!made->row_class || !made->column_class || !rows || !columns || !ones) goto done;

    const size_t row_classes = classify(window, 0, conv->height, conv->out_height, made->row_class, rows);
    made->column_classes = classify(window, 1, conv->width, conv->out_width, made->column_class, columns);
    made->stride = outputs;
    made->offsets = net_alloc(net, row_classes * made->column_classes * made->stride * sizeof *made->offsets);
    if (!made->offsets) goto done;

    memset(ones, 0, outputs * kernel_taps * sizeof *ones);
    for (size_t n = 0; n < outputs; n++)
        for (size_t plane = 0; plane < (size_t)conv->planes; plane++)
            for (size_t tap = 0; tap < kernel_taps; tap++)
                ones[n * kernel_taps + tap] += signs[(n * (size_t)conv->planes + plane) * kernel_taps + tap] > 0;

    float *offsets = made->offsets;
    for (size_t row = 0; row < row_classes; row++)
        for (size_t column = 0; column < made->column_classes; column++, offsets += made->stride)
            for (size_t tap = 0; tap < kernel_taps; tap++) {
                const int32_t y = (int32_t)tap / window->kernel[1], x = (int32_t)tap % window->kernel[1];
                const bool inside = is_inside(window, 0, conv->height, rows[row], y) &&
                                    is_inside(window, 1, conv->width, columns[column], x);
                for (size_t n = 0; n < outputs; n++)
                    offsets[n] += inside ? (float)conv->planes : 2 * (float)ones[n * kernel_taps + tap];
            }
    status = ONEBIT_OK;
done:
    free(rows);
    free(columns);
    free(ones);
    return status ? no_memory(net) : ONEBIT_OK;
}
