#include "convolution.h"

#include <string.h>

static const int64_t MAX_PADDED = INT64_C(1) << 31;

onebit_status check_convolution(onebit_net *net, Convolution *convolution, const Value *image, size_t n_weights) {
    const onebit_window *window = convolution->window;
    const int32_t outputs = convolution->outputs;
    const onebit_status status = check_window(net, window, image, convolution->sizes);
    if (status) return status;
    if (outputs < 1 || window->groups < 1 || image->channels % window->groups || outputs % window->groups)
        return invalid(net, "%d groups of %d and %d channels", window->groups, image->channels, outputs);
    if (convolution->output->bits_to >= 0 && window->groups > 1)
        return invalid(net, "bits are wanted of a convolution in groups");
    const PaddedSize reach = reach_of(window, convolution->sizes);
    if ((int64_t)reach.height * reach.width > MAX_PADDED / image->channels)
        return invalid(net, "a padded image has too many numbers");
    const size_t taps = (size_t)taps_of_output(image, window);
    if (n_weights / taps != (size_t)outputs || n_weights % taps)
        return invalid(net, "a convolution has %zu weights", n_weights);
    return ONEBIT_OK;
}

void pad_with_zeros(const void *image, int32_t height, int32_t width, size_t pixel_bytes, const onebit_window *window,
                    PaddedSize size, int32_t first, int32_t end, void *padded) {
    const int32_t top = window->padding[0], left = window->padding[2] < size.width ? window->padding[2] : size.width;
    const int32_t columns = size.width - left < width ? size.width - left : width;
    const size_t row_bytes = (size_t)size.width * pixel_bytes, before = (size_t)left * pixel_bytes;
    const size_t copied = (size_t)columns * pixel_bytes;
    for (int32_t y = first; y < end; y++) {
        char *row = (char *)padded + (size_t)y * row_bytes;
        if (y < top || y - top >= height) {
            memset(row, 0, row_bytes);
            continue;
        }
        memset(row, 0, before);
        memcpy(row + before, (const char *)image + (size_t)(y - top) * (size_t)width * pixel_bytes, copied);
        memset(row + before + copied, 0, row_bytes - before - copied);
    }
}
