/* What zero padding takes away from the counts of a 1-bit convolution. */
#ifndef ONEBIT_BORDER_H
#define ONEBIT_BORDER_H

#include "bconv2d.h"

/* Pixels whose windows leave the image in the same taps are of one class. */
typedef struct {
    uint16_t *row_class, *column_class; /* of each row and each column of the output */
    size_t column_classes, stride;
    float *offsets; /* [row class][column class][output] */
} Border;

/* The sum of a window is offset - 2 * count. Of the taps inside of the image, each plane adds 1 - 2 * differs; of those
   outside, whose bits `count` took for 0, what differs is the ones of the kernel, and has to be given back:
       sum = planes * inside - 2 * (count - ones outside)  =>  offset = planes * inside + 2 * ones outside */
onebit_status make_border(onebit_net *net, const Bconv2d *conv, const int8_t *signs, Border *made);

static inline const float *offsets_of(const Border *border, size_t row, size_t column) {
    const size_t which = border->row_class[row] * border->column_classes + border->column_class[column];
    return border->offsets + which * border->stride;
}
#endif
