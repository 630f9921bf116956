/* grid.h -- images sampled where a grid says, and affine grids. */
#ifndef TESS_KERNELS_GRID_H
#define TESS_KERNELS_GRID_H

#include "kernels/kernel.h"

typedef enum { GRID_LINEAR, GRID_NEAREST, GRID_CUBIC } GridMode; /* ATen's numbers */
typedef enum { GRID_ZEROS, GRID_BORDER, GRID_REFLECTION } GridPadding;

/* x (n, c, [d,] h, w), grid (n, [od,] oh, ow, 2 or 3: x, y, z from -1 to 1), y (n, c,
 * [od,] oh, ow); any strides, one dtype: f32, f64, f16, bf16 (positions in f64).
 * GRID_CUBIC: two spatial dimensions only. */
Status grid_sample(Kern *k, GridMode mode, GridPadding padding, bool align_corners, View x, View grid, View y);

/* Gradients of x and grid (NULL: not wanted) for gy, that of y.  Beyond the edges a position that is moved back
 * does not depend on the grid. */
Status grid_sample_grad(Kern *k, GridMode mode, GridPadding padding, bool align_corners, View x, View grid, View gy,
                        View *grad_x, View *grad_grid);

/* theta (n, nd, nd+1), grid (n, [d,] h, w, nd); any strides, one dtype. */
Status grid_affine(Kern *k, bool align_corners, View theta, View grid);

#endif
