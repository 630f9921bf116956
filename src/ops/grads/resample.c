/* resample.c -- gradients of upsample_*, im2col and col2im: linear maps, each with an op that turns it around. */
#include <stdio.h>
#include <string.h>

#include "ops/vjp.h"

enum { MOST_ARGS = 8 };

static void call_with(Vjp *v, const char *name, const Value *arg, int n) {
  vjp_give(v, 0, formula_op(&v->f, name, arg, n));
}

/* upsample_X(self, output_size, [align_corners,] a scale or None for each dimension), or .vec with a list of
 * scale factors: X_backward(grad_output, output_size, input_size, [align_corners,] scales). */
static void vjp_upsample(Vjp *v) {
  const Schema *s = &v->forward->op->schema;
  const Value *a = v->forward->arg;
  const Tensor *x = vjp_arg(v, 0), *g = vjp_cotangent(v);
  int nd = x->ndim - 2, n = 0, align = schema_find(s, "align_corners") >= 0,
      factors = schema_find(s, "scale_factors");
  Value arg[MOST_ARGS];
  char name[96];
  snprintf(name, sizeof name, "%.*s_backward.default", (int)(strrchr(s->name, '.') - s->name), s->name);
  arg[n++] = F_T(g);
  arg[n++] = val_ints(g->size + 2, nd);
  arg[n++] = val_ints(x->size, nd + 2);
  if (align) arg[n++] = a[2];
  for (int d = 0; d < nd; d++) {
    if (factors < 0) arg[n++] = a[2 + align + d];
    else arg[n++] = a[factors].kind == VAL_FLOATS ? val_float(a[factors].floats[d]) : val_none();
  }
  call_with(v, name, arg, n);
}

/* The gradient of that is upsample_X of the cotangent. */
static void vjp_upsample_backward(Vjp *v) {
  const Schema *s = &v->forward->op->schema;
  const Value *a = v->forward->arg;
  Value arg[MOST_ARGS];
  char name[96];
  snprintf(name, sizeof name, "%.*s.default", (int)(strstr(s->name, "_backward") - s->name), s->name);
  arg[0] = F_T(vjp_cotangent(v));
  arg[1] = a[1];
  for (int i = 3; i < s->nparams; i++) arg[i - 1] = a[i];
  call_with(v, name, arg, s->nparams - 1);
}

/* im2col(self, kernel_size, dilation, padding, stride) */
static void vjp_im2col(Vjp *v) {
  const Value *a = v->forward->arg;
  const Tensor *x = vjp_arg(v, 0);
  vjp_give(v, 0,
           F_OP(&v->f, "aten.col2im.default", F_T(vjp_cotangent(v)), val_ints(x->size + x->ndim - 2, 2), a[1], a[2],
                a[3], a[4]));
}

/* col2im(self, output_size, kernel_size, dilation, padding, stride) */
static void vjp_col2im(Vjp *v) {
  const Value *a = v->forward->arg;
  vjp_give(v, 0, F_OP(&v->f, "aten.im2col.default", F_T(vjp_cotangent(v)), a[2], a[3], a[4], a[5]));
}

#define UPSAMPLE(name) name ".default " name ".vec "

const GradDef grads_resample[] = {
    GRAD(UPSAMPLE("upsample_nearest1d") UPSAMPLE("upsample_nearest2d") UPSAMPLE("upsample_nearest3d")
             UPSAMPLE("_upsample_nearest_exact1d") UPSAMPLE("_upsample_nearest_exact2d")
                 UPSAMPLE("_upsample_nearest_exact3d") UPSAMPLE("upsample_linear1d") UPSAMPLE("upsample_bilinear2d")
                     UPSAMPLE("upsample_trilinear3d") UPSAMPLE("upsample_bicubic2d")
                         UPSAMPLE("_upsample_bilinear2d_aa") UPSAMPLE("_upsample_bicubic2d_aa"),
         vjp_upsample, NULL),
    GRAD("upsample_nearest1d_backward.default upsample_nearest2d_backward.default "
         "upsample_nearest3d_backward.default _upsample_nearest_exact1d_backward.default "
         "_upsample_nearest_exact2d_backward.default _upsample_nearest_exact3d_backward.default "
         "upsample_linear1d_backward.default upsample_bilinear2d_backward.default "
         "upsample_trilinear3d_backward.default upsample_bicubic2d_backward.default "
         "_upsample_bilinear2d_aa_backward.default _upsample_bicubic2d_aa_backward.default",
         vjp_upsample_backward, NULL),
    GRAD("im2col.default", vjp_im2col, NULL),
    GRAD("col2im.default", vjp_col2im, NULL),
    {0},
};
