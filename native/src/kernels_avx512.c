/* Kernels for x86-64 with AVX-512 and its count of ones: 1-bit convolution is of its own, all else is as with AVX2. */
#include "bconv2d_avx2.h"
#include "bconv2d_avx512.h"
#include "kernels_avx2.h"
#include "levels_avx2.h"
#include "output_avx2.h"
#include "winograd_avx2.h"

const Kernels kernels_avx512 = {
    .name = "avx512",
    .block_width = block_width_avx2,
    .common_bytes = common_bytes_avx512,
    .put_common = put_common_avx512,
    .packed_bytes = packed_bytes_avx512,
    .pack = pack_avx512,
    .prepared_bytes = prepared_bytes_avx512,
    .row_bytes = row_bytes_avx512,
    .prepare = prepare_avx512,
    .block_bytes = block_bytes_avx512,
    .prepare_block = prepare_block_avx512,
    .count = count_avx512,
    .signs_of_levels = &signs_of_levels_avx2,
    .bytes_of_levels = &bytes_of_levels_avx2,
    .multiply = multiply_avx2,
    .multiply_row = multiply_row_avx2,
    .transform_pixels = transform_pixels_avx2,
    .multiply_places = multiply_places_avx2,
    .transform_products = transform_products_avx2,
    .least_finished = 8,
    .finish = finish_avx2,
    .least_pooled = 32,
    .maximum = maximum_avx2,
    .mean = mean_avx2,
    .least_added = 8,
    .multiply_add = multiply_add_avx2,
};
