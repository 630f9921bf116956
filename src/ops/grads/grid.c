/* grid.c -- gradients of grid sampling and of affine grids. */
#include "ops/vjp.h"

/* grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners) */
static void vjp_sampler(Vjp *v) {
  const Value *a = v->forward->arg;
  bool mask[2] = {vjp_wants(v, 0), vjp_wants(v, 1)};
  Tensor *grad[2];
  const char *name = vjp_arg(v, 0)->ndim == 5 ? "aten.grid_sampler_3d_backward.default"
                                              : "aten.grid_sampler_2d_backward.default";
  F_OPS(&v->f, name, grad, 2, F_T(vjp_cotangent(v)), a[0], a[1], a[2], a[3], a[4], val_bools(mask, 2));
  for (int i = 0; i < 2; i++) vjp_give(v, i, grad[i]);
}

/* affine_grid_generator(theta, size, align_corners): every point of the grid is theta times (x, y[, z], 1).  The
 * points are themselves the grid of a theta that changes nothing. */
static void vjp_affine(Vjp *v) {
  const Tensor *theta = vjp_arg(v, 0);
  Tensor *g = vjp_cotangent(v);
  Ints size = in_ints(v->forward, 1);
  int nd = size.n - 2;
  int64_t n = size.v[0], points = 1, one[MAX_DIMS], unit[3] = {1, nd, nd + 1}, flat[3];
  for (int d = 0; d < size.n; d++) one[d] = d ? size.v[d] : 1, points *= d > 1 ? size.v[d] : 1;
  Tensor *zeros = vjp_zeros(v, theta->dtype, 3, unit), *ones;
  ones = f_shift(&v->f, vjp_zeros(v, theta->dtype, 2, (int64_t[]){1, nd}), 1);
  Tensor *still = F_OP(&v->f, "aten.diagonal_scatter.default", F_T(zeros), F_T(ones), val_int(0), val_int(1),
                       val_int(2));
  Tensor *base = F_OP(&v->f, "aten.affine_grid_generator.default", F_T(still), val_ints(one, size.n),
                      vjp_value(v, 2));
  flat[0] = points, flat[1] = nd;
  base = f_view(&v->f, base, flat, 2);
  Tensor *last = f_shift(&v->f, vjp_zeros(v, theta->dtype, 2, (int64_t[]){points, 1}), 1);
  Tensor *const parts[] = {base, last};
  base = F_OP(&v->f, "aten.cat.default", val_tensors(parts, 2), val_int(1));
  flat[0] = n, flat[1] = points, flat[2] = nd;
  g = F_OP(&v->f, "aten.transpose.int", F_T(f_view(&v->f, g, flat, 3)), val_int(1), val_int(2));
  vjp_give(v, 0, F_OP(&v->f, "aten.matmul.default", F_T(g), F_T(base)));
}

const GradDef grads_grid[] = {
    GRAD("grid_sampler.default grid_sampler_2d.default grid_sampler_3d.default", vjp_sampler, "input grid"),
    GRAD("affine_grid_generator.default", vjp_affine, NULL),
    {0},
};
