#ifndef ONEBIT_OUTPUT_NEON_H
#define ONEBIT_OUTPUT_NEON_H

#include "output.h"

void finish_neon(const Output *output, const Pixels *pixels);
#endif
