/* conv.h -- convolutions, transposed or not, in 1 to 3 spatial dimensions.
 *
 *   x (n, ic, in...)   y (n, oc, out...)   bias (oc)
 *   w (oc, ic/g, k...) or, transposed, (ic, oc/g, k...)
 *
 *   y[n, o, i]  = bias[o] + sum_{c,k} w[o, c, k] * x[n, c, i*stride - pad + k*dilation]
 *   transposed: x[i] is spread over y[i*stride - pad + k*dilation] instead.
 *
 * What lies outside of the input is zero, so `pad` is the padding on the left; how much
 * there is on the right follows from the sizes.  Any strides; x, w, bias, y of one dtype:
 * f32 (oneDNN), f16 and bf16 (in f32, rounded once), f64 and integers (plain loops).
 */
#ifndef TESS_KERNELS_CONV_H
#define TESS_KERNELS_CONV_H

#include "kernels/kernel.h"

typedef struct {
  int nd; /* spatial dimensions, 1 to 3 */
  bool transposed;
  int64_t groups;
  int64_t stride[3], pad[3], dilation[3];
} ConvGeometry;

/* What one call site keeps between runs: primitives and packed weights. */
typedef struct ConvPlan ConvPlan;
void conv_plan_free(ConvPlan *p); /* NULL is fine */

/* bias.data may be NULL.  plan: where to keep the plan, or NULL.  w_fixed: the weights
 * are those of the last run with this plan. */
Status conv_forward(Kern *k, const ConvGeometry *g, View x, View w, View bias, View y, ConvPlan **plan,
                    bool w_fixed);

/* Gradient of the weights, dw; dy is the gradient of y.  (That of x is a conv_forward with
 * `transposed` flipped, of dy into dx.) */
Status conv_grad_weights(Kern *k, const ConvGeometry *g, View x, View dy, View dw);

/* db[c] = the sum of dy over all but dimension 1. */
Status conv_grad_bias(Kern *k, View dy, View db);

/* ---- conv_naive.c: the specification, and all dtypes but f32 ----------------- */

Status conv_naive(Kern *k, const ConvGeometry *g, View x, View w, View bias, View y);
Status conv_naive_grad_weights(Kern *k, const ConvGeometry *g, View x, View dy, View dw);

/* All sizes of a convolution with three spatial dimensions (leading ones are 1).
 * `small` and `big` are the spatial sizes of y and x, or of x and y when transposed:
 * element k of the window at small position s is at big position s*stride - pad + k*dilation. */
typedef struct {
  int64_t n, groups, ic, oc; /* channels of x and y in all groups */
  int64_t big[3], small[3], k[3], stride[3], pad[3], dilation[3];
} ConvSizes;
ConvSizes conv_sizes(const ConvGeometry *g, View x, View w, View y);

#endif
