#ifndef ONEBIT_WINOGRAD_AVX2_H
#define ONEBIT_WINOGRAD_AVX2_H

#include "winograd.h"

void transform_pixels_avx2(const float *pixels, size_t row_step, size_t planes, float *tile);
void multiply_places_avx2(const float *tiles, size_t planes, const float *weight, float *products);
void transform_products_avx2(const float *products, int32_t made, float *y, size_t row_step);
#endif
