/* im2col.h -- windows of an image as columns of a matrix, and back. */
#ifndef TESS_KERNELS_IM2COL_H
#define TESS_KERNELS_IM2COL_H

#include "kernels/kernel.h"

typedef struct {
  int64_t k[2], stride[2], pad[2], dilation[2];
  int64_t out[2]; /* number of windows in each dimension */
} Windows;

/* x (c, h, w), any strides -> columns (c*kh*kw, oh*ow), contiguous; zero outside of x.
 * All dtypes. */
void im2col(Kern *k, const Windows *win, View x, void *columns);

/* columns (n, c*kh*kw, oh*ow), any strides -> x (n, c, h, w), any strides: the sum of all
 * the elements that im2col would have read there.  f32, f64, f16, bf16. */
Status col2im(Kern *k, const Windows *win, View columns, View x);

#endif
