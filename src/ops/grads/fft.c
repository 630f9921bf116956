/* fft.c -- gradients of Fourier transforms.
 *
 * The conjugate transpose of a transform is the transform in the other direction, with the same factor.  A real
 * tensor stands for its spectrum's first half: frequencies that are left out count once more. */
#include "ops/vjp.h"

static Tensor *padded(Vjp *v, const Tensor *t, int dim, int64_t before, int64_t after) {
  int64_t pad[2 * MAX_DIMS] = {0};
  int last = t ? t->ndim - 1 - dim : 0;
  pad[2 * last] = before;
  pad[2 * last + 1] = after;
  return before || after ? F_OP(&v->f, "aten.constant_pad_nd.default", F_T(t), val_ints(pad, 2 * (last + 1)))
                         : (Tensor *)(uintptr_t)t;
}

/* _fft_c2c(self, dim, normalization, forward) */
static void vjp_c2c(Vjp *v) {
  const Value *a = v->forward->arg;
  vjp_give(
      v, 0,
      F_OP(&v->f, "aten._fft_c2c.default", F_T(vjp_cotangent(v)), a[1], a[2], val_bool(!in_bool(v->forward, 3))));
}

/* The dimension that is halved: the last one that is named. */
static int halved(const Vjp *v, const Tensor *t) {
  Ints dims = in_ints(v->forward, 1);
  int64_t d = dims.n ? dims.v[dims.n - 1] : -1;
  return (int)(d < 0 ? d + t->ndim : d);
}

/* _fft_r2c(self, dim, normalization, onesided): the part of the spectrum that is there, back to the signal. */
static void vjp_r2c(Vjp *v) {
  const Value *a = v->forward->arg;
  const Tensor *x = vjp_arg(v, 0);
  Tensor *g = vjp_cotangent(v);
  int d = halved(v, x);
  if (in_bool(v->forward, 3)) g = padded(v, g, d, 0, x->size[d] - g->size[d]);
  vjp_give(v, 0, F_OP(&v->f, "aten._fft_c2c.default", F_T(g), a[1], a[2], val_bool(false)));
}

/* _fft_c2r(self, dim, normalization, last_dim_size): all frequencies but the first, and the middle of an even
 * number of them, stand for two. */
static void vjp_c2r(Vjp *v) {
  const Value *a = v->forward->arg;
  const Tensor *x = vjp_arg(v, 0);
  Tensor *g = F_OP(&v->f, "aten._fft_r2c.default", F_T(vjp_cotangent(v)), a[1], a[2], val_bool(true));
  int d = halved(v, x);
  int64_t twice = in_int(v->forward, 3) - x->size[d];
  if (twice > 0 && g) {
    Tensor *part = F_OP(&v->f, "aten.slice.Tensor", F_T(g), val_int(d), val_int(1), val_int(1 + twice), val_int(1));
    g = f_add(&v->f, g, padded(v, part, d, 1, g->size[d] - 1 - twice));
  }
  vjp_give(v, 0, g);
}

const GradDef grads_fft[] = {
    GRAD("_fft_c2c.default", vjp_c2c, NULL),
    GRAD("_fft_r2c.default", vjp_r2c, NULL),
    GRAD("_fft_c2r.default", vjp_c2r, NULL),
    {0},
};
