#ifndef ONEBIT_LEVELS_AVX2_H
#define ONEBIT_LEVELS_AVX2_H

#include "levels.h"

extern const LevelKernels signs_of_levels_avx2, bytes_of_levels_avx2;
#endif
