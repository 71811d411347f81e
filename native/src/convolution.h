/* What convolutions share. */
#ifndef ONEBIT_CONVOLUTION_H
#define ONEBIT_CONVOLUTION_H

#include "net.h"

/* A convolution that is to be added; `sizes`, rows and columns of what it makes, are known once it is checked. */
typedef struct {
    int32_t input, outputs;
    const onebit_window *window;
    const onebit_output *output;
    bool keeps_zeros; /* see onebit_add_conv2d */
    int32_t sizes[2];
} Convolution;

/* What a step of a convolution keeps of it. */
typedef struct {
    int32_t input, channels, height, width; /* the image */
    int32_t outputs;                        /* of all groups */
    int32_t sizes[2];
    onebit_window window;
} ConvolutionShape;

static inline ConvolutionShape shape_of(const Convolution *convolution, const Value *image) {
    return (ConvolutionShape){convolution->input,  image->channels,      image->height,
                              image->width,        convolution->outputs, {convolution->sizes[0], convolution->sizes[1]},
                              *convolution->window};
}

/* Whether a convolution of this image with so many weights is sound. */
onebit_status check_convolution(onebit_net *net, Convolution *convolution, const Value *image, size_t n_weights);

/* Where a tap of the window at `place` lies along an axis of the image; outside of it, too. */
static inline int32_t tap_at(const onebit_window *window, int axis, int32_t place, int32_t tap) {
    return place * window->stride[axis] - window->padding[2 * axis] + tap * window->dilation[axis];
}

/* Products in one number that a convolution makes. */
static inline int64_t taps_of_output(const Value *image, const onebit_window *window) {
    return (int64_t)image->channels / window->groups * window->kernel[0] * window->kernel[1];
}

/* Of floats. */
onebit_status add_float_conv2d(onebit_net *net, const Convolution *convolution, const float *weight);

/* Of bits or levels, with any weights whose sums fit 32 bits; slow. */
onebit_status add_wide_conv2d(onebit_net *net, const Convolution *convolution, const int8_t *weights);

/* Of floats, one kernel for each channel. */
bool is_depthwise(const Convolution *convolution, const Value *image);
onebit_status add_depthwise(onebit_net *net, const Convolution *convolution, const float *weight);

/* The image with zeros around it, as far as windows reach: [padded height][padded width][channels]. */
typedef struct {
    int32_t height, width;
} PaddedSize;

static inline PaddedSize reach_of(const onebit_window *window, const int32_t sizes[2]) {
    return (PaddedSize){(sizes[0] - 1) * window->stride[0] + window->dilation[0] * (window->kernel[0] - 1) + 1,
                        (sizes[1] - 1) * window->stride[1] + window->dilation[1] * (window->kernel[1] - 1) + 1};
}

/* Copies an image of pixels of `pixel_bytes` into its padded place; bytes around it are 0. Makes rows from `first` to before
   `end` of the padded image. */
void pad_with_zeros(const void *image, int32_t height, int32_t width, size_t pixel_bytes, const onebit_window *window,
                    PaddedSize size, int32_t first, int32_t end, void *padded);
#endif
