/* vision.h -- boxes and sampling at fractions of pixels; f32 and f64, contiguous.
 *
 * A box is x1, y1, x2, y2.  Coordinates are computed in the elements' dtype, which decides at
 * borders and thresholds.
 */
#ifndef TESS_KERNELS_VISION_H
#define TESS_KERNELS_VISION_H

#include "kernels/kernel.h"

/* boxes (n, 4) in the order of `order`, best first: keeps each that overlaps no kept one by more
 * than `threshold` (intersection over union).  Writes their numbers to keep, returns how many.
 * gone: room for n bytes. */
int64_t kernel_nms(Dtype d, const void *boxes, const int64_t *order, int64_t n, double threshold, uint8_t *gone,
                   int64_t *keep);

/* x (n, c, h, w); rois (k, 5): the image's number and a box; y (k, c, ph, pw): means of bilinear
 * samples in a grid of cells.  sampling <= 0: as many per cell as it has pixels.  Fails on an
 * image that is not there. */
typedef struct {
  int64_t size[4]; /* of x */
  int64_t rois, ph, pw, sampling;
  double scale;
  bool aligned;
} RoiAlign;
Status kernel_roi_align(Kern *k, Dtype d, const RoiAlign *r, const void *x, const void *rois, void *y);
/* Adds the gradient of x for gy, that of y. */
Status kernel_roi_align_grad(Kern *k, Dtype d, const RoiAlign *r, const void *gy, const void *rois, void *gx);

/* The columns of a convolution whose taps are moved: x (c, h, w), offset (groups, kh kw, 2, oh, ow)
 * as (dy, dx), mask (groups, kh kw, oh, ow) or NULL, columns (c, kh kw, oh ow).  Channels are
 * `groups` equal parts with an offset each. */
typedef struct {
  int64_t c, h, w, kh, kw, oh, ow, groups;
  int64_t stride[2], pad[2], dilation[2];
} DeformColumns;
void kernel_deform_columns(Kern *k, Dtype d, const DeformColumns *g, const void *x, const void *offset,
                           const void *mask, void *columns);
/* Gradients for that of the columns: x's is added to, the others are written.  gmask: NULL if there is no mask. */
void kernel_deform_columns_grad(Kern *k, Dtype d, const DeformColumns *g, const void *x, const void *offset,
                                const void *mask, const void *gcolumns, void *gx, void *goffset, void *gmask);

#endif
