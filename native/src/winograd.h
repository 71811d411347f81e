/* Convolution of floats with fewer multiplications, by Winograd's minimal filtering (Lavin and Gray, 2016).

   A square of `made` x `made` outputs comes from a tile of 6 x 6 pixels: B' d B of the pixels, G g G' of the kernel's
   taps, their products place by place, summed over planes, and A' M A of those. The matrices belong to the points 0, 1,
   -1, 1/2, -2 and infinity, which keep rounding errors small. `taps` + `made` is 7. With a stride of s, the pixels of
   each of the s x s phases are planes of their own, and the stride is 1. */
#ifndef ONEBIT_WINOGRAD_H
#define ONEBIT_WINOGRAD_H

#include "convolution.h"
#include "output.h"

enum { WINOGRAD_SIDE = 6, WINOGRAD_PLACES = 36, WINOGRAD_PLANES = 8 /* at least */ };

typedef struct {
    ConvolutionShape shape;
    int32_t stride, taps, made;
    size_t planes;       /* of all phases */
    size_t across, down; /* tiles of an image */
    size_t strips;       /* rows of tiles that are done at a time, a block */
    size_t gathered_columns;
    size_t gathered_bytes, tiles_bytes, made_bytes; /* of scratch */
    float *weight; /* [outputs / TILE_COLUMNS][place][plane][TILE_COLUMNS], the last columns 0 */
} Winograd;

/* NULL if it would not be faster here, if weights are not tame, or if there is no memory left for it. */
Winograd *new_winograd(onebit_net *net, const ConvolutionShape *shape, const float *weight);
/* The same of another input, with the same weights. */
Winograd *winograd_of(onebit_net *net, const Winograd *first, int32_t input);
size_t winograd_scratch(const Winograd *it);

/* Tiles mix pixels, so rounding errors are relative to the largest pixel of a tile, which need not be in the window; one
   that is not finite would be seen in windows that don't hold it. Images with pixels of 512 and more go the plain way: bytes
   as floats still go this way, and what nets make of images is smaller. */
bool is_tame(const float *numbers, size_t count);
/* Blocks of rows of tiles from `first` to before `end`. */
size_t winograd_blocks(const Winograd *it);
void run_winograd(const Winograd *it, const Run *run, const Output *output, size_t first, size_t end);
/* Rows of outputs from `first` to before `end`, to `rows`. */
void pass_winograd(const Winograd *it, const Run *run, const Output *output, size_t first, size_t end, float *rows,
                   char *scratch);
#endif
