#ifndef ONEBIT_OUTPUT_AVX2_H
#define ONEBIT_OUTPUT_AVX2_H

#include "output.h"

void finish_avx2(const Output *output, const Pixels *pixels);
#endif
