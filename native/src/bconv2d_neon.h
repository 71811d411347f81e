#ifndef ONEBIT_BCONV2D_NEON_H
#define ONEBIT_BCONV2D_NEON_H

#include "bconv2d.h"

int32_t block_width_neon(const Bconv2d *conv, int32_t left);
size_t common_bytes_neon(const Bconv2d *conv);
void put_common_neon(const Bconv2d *conv, void *common);
size_t packed_bytes_neon(const Bconv2d *conv);
void pack_neon(const Bconv2d *conv, const int8_t *signs, void *packed);
size_t prepared_bytes_neon(const Bconv2d *conv);
size_t no_bytes_neon(const Bconv2d *conv);
void prepare_neon(const Bconv2d *conv, const uint64_t *bits, int32_t first, int32_t end, void *prepared, void *row);
void prepare_block_neon(const Bconv2d *conv, const Block *block);
void count_neon(const Bconv2d *conv, const Block *block, uint16_t *counts);
#endif
