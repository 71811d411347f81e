/* What convolutions share. */
#ifndef ONEBIT_CONVOLUTION_H
#define ONEBIT_CONVOLUTION_H

#include "net.h"

/* Whether a convolution of this image with so many weights is sound; sizes: rows and columns of what it makes. */
onebit_status check_convolution(onebit_net *net, const onebit_window *window, const Value *image, int32_t outputs,
                                size_t n_weights, int32_t sizes[2]);

/* Of floats; or of levels with weights of +-1 whose sums stay below 2^24, so that floats hold them exactly. */
onebit_status add_float_conv2d(onebit_net *net, int32_t input, const onebit_window *window, int32_t outputs,
                               const float *weight, const onebit_output *output);

/* 1-bit convolution of levels, and of bits with more taps than counts of 16 bits can hold. */
onebit_status add_wide_bconv2d(onebit_net *net, int32_t input, const onebit_window *window, int32_t outputs,
                               const int8_t *signs, const onebit_output *output);

/* Of floats, one kernel for each channel. */
bool is_depthwise(const onebit_window *window, const Value *image, int32_t outputs);
onebit_status add_depthwise(onebit_net *net, int32_t input, const onebit_window *window, const float *weight,
                            const onebit_output *output);

/* The image with zeros around it, as far as windows reach: [padded height][padded width][channels]. */
typedef struct {
    int32_t height, width;
} PaddedSize;

static inline PaddedSize reach_of(const onebit_window *window, const int32_t sizes[2]) {
    return (PaddedSize){(sizes[0] - 1) * window->stride[0] + window->dilation[0] * (window->kernel[0] - 1) + 1,
                        (sizes[1] - 1) * window->stride[1] + window->dilation[1] * (window->kernel[1] - 1) + 1};
}

/* Copies an image of pixels of `pixel_bytes` into its padded place; bytes around it are 0. */
void pad_with_zeros(const void *image, int32_t height, int32_t width, size_t pixel_bytes, const onebit_window *window,
                    PaddedSize size, void *padded);
#endif
