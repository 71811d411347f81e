#include "classes.h"

#include <stdlib.h>

static uint16_t flips_of(int32_t projections, const int8_t *masks, size_t taps, size_t tap) {
    uint16_t flips = 0;
    if (masks)
        for (int32_t j = 1; j < projections; j++)
            if ((masks[(size_t)j * taps + tap] > 0) != (masks[tap] > 0)) flips |= (uint16_t)(1u << j);
    return flips;
}

onebit_status make_classes(onebit_net *net, int32_t projections, const int8_t *masks, size_t planes, size_t taps,
                           Classes *made) {
    *made = (Classes){.projections = projections};
    if (projections > MOST_SHARED) return ONEBIT_OK;
    made->class_of = net_alloc(net, taps);
    if (!made->class_of) return no_memory(net);
    for (size_t tap = 0; tap < taps; tap++) {
        const uint16_t flips = flips_of(projections, masks, taps, tap);
        size_t c = 0;
        while (c < made->count && made->flips[c] != flips) c++;
        if (c == MOST_CLASSES) {
            made->count = 0;
            return ONEBIT_OK;
        }
        if (c == made->count) made->flips[made->count++] = flips;
        made->class_of[tap] = (uint8_t)c;
        made->taps[c]++;
        for (int32_t j = 0; j < projections; j++)
            if (flips >> j & 1) made->flipped[j] = (uint16_t)(made->flipped[j] + planes);
    }
    return ONEBIT_OK;
}

int8_t *written_out(const int8_t *kernels, size_t n_kernels, int32_t projections, const int8_t *masks, size_t planes,
                    size_t taps) {
    int8_t *signs = malloc(n_kernels * (size_t)projections * planes * taps), *at = signs;
    if (!signs) return NULL;
    for (size_t o = 0; o < n_kernels; o++)
        for (size_t j = 0; j < (size_t)projections; j++)
            for (size_t plane = 0; plane < planes; plane++)
                for (size_t tap = 0; tap < taps; tap++) {
                    const bool is_flipped = masks && masks[j * taps + tap] <= 0;
                    *at++ = (kernels[(o * planes + plane) * taps + tap] > 0) != is_flipped ? 1 : -1;
                }
    return signs;
}
