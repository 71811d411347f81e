/* What the files for AVX2 share. */
#ifndef ONEBIT_AVX2_H
#define ONEBIT_AVX2_H

#include <immintrin.h>

typedef __m256 floats;
#define INLINE static inline __attribute__((always_inline))
#endif
