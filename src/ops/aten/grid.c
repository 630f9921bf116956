/* grid.c -- grid_sampler (in two and three dimensions) and affine_grid_generator. */
#include "kernels/grid.h"

#include "ops/op.h"

/* (input, grid, interpolation_mode, padding_mode, align_corners) */
static Status sampler_infer(Call *c) {
  const Tensor *x = in_tensor(c, 0), *grid = in_tensor(c, 1);
  char a[96], b[96];
  if (!x || !grid || x->ndim < 4 || x->ndim > 5 || grid->ndim != x->ndim ||
      grid->size[x->ndim - 1] != x->ndim - 2 || grid->size[0] != x->size[0]) {
    return op_fail(c, "input %s and grid %s: needs [n,c,h,w] and [n,oh,ow,2], or [n,c,d,h,w] and [n,od,oh,ow,3]",
                   x ? tensor_describe(x, a, sizeof a) : "none",
                   grid ? tensor_describe(grid, b, sizeof b) : "none");
  }
  if (x->dtype != grid->dtype || !dtype_is_float(x->dtype)) {
    return op_fail(c, "input is %s, grid %s: they must be floats of one dtype", dtype_name(x->dtype),
                   dtype_name(grid->dtype));
  }
  int64_t mode = in_int(c, 2), padding = in_int(c, 3), size[5] = {x->size[0], x->size[1]};
  if (mode < 0 || mode > 2 || padding < 0 || padding > 2 || (mode == GRID_CUBIC && x->ndim == 5)) {
    return op_fail(c, "interpolation mode %lld with padding mode %lld is not known in %d dimensions",
                   (long long)mode, (long long)padding, x->ndim - 2);
  }
  for (int d = 2; d < x->ndim; d++) {
    if (x->size[d] == 0)
      return op_fail(c, "input %s has an empty spatial dimension", tensor_describe(x, a, sizeof a));
    size[d] = grid->size[d - 1];
  }
  return out_new(c, x->dtype, x->ndim, size);
}

static Status sampler_run(Call *c) {
  return grid_sample(&c->ctx->kern, (GridMode)in_int(c, 2), (GridPadding)in_int(c, 3), in_bool(c, 4), in_view(c, 0),
                     in_view(c, 1), out_view_of(c, 0));
}

/* (grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask) */
static Status sampler_grad_infer(Call *c) {
  const Tensor *gy = in_tensor(c, 0), *x = in_tensor(c, 1), *grid = in_tensor(c, 2);
  char a[96], b[96], y[96];
  bool fits = (x->ndim == 4 || x->ndim == 5) && grid->ndim == x->ndim && gy->ndim == x->ndim &&
              grid->size[x->ndim - 1] == x->ndim - 2 && grid->size[0] == x->size[0] && gy->size[0] == x->size[0] &&
              gy->size[1] == x->size[1];
  for (int d = 2; fits && d < x->ndim; d++) fits = gy->size[d] == grid->size[d - 1] && x->size[d] > 0;
  if (!fits || x->dtype != grid->dtype || x->dtype != gy->dtype || !dtype_is_float(x->dtype))
    return op_fail(c, "gradient %s, input %s and grid %s do not belong together", tensor_describe(gy, y, sizeof y),
                   tensor_describe(x, a, sizeof a), tensor_describe(grid, b, sizeof b));
  int64_t mode = in_int(c, 3), padding = in_int(c, 4);
  if (mode < 0 || mode > 2 || padding < 0 || padding > 2 || (mode == GRID_CUBIC && x->ndim == 5))
    return op_fail(c, "interpolation mode %lld with padding mode %lld is not known in %d dimensions",
                   (long long)mode, (long long)padding, x->ndim - 2);
  const bool *mask = c->arg[6].bools;
  TRY(mask[0] ? out_new(c, x->dtype, x->ndim, x->size) : out_value(c, val_none()));
  return mask[1] ? out_new(c, grid->dtype, grid->ndim, grid->size) : out_value(c, val_none());
}

static Status sampler_grad_run(Call *c) {
  View grad[2] = {{0}, {0}};
  for (int i = 0; i < 2; i++)
    if (out_tensor(c, i)) grad[i] = out_view_of(c, i);
  return grid_sample_grad(&c->ctx->kern, (GridMode)in_int(c, 3), (GridPadding)in_int(c, 4), in_bool(c, 5),
                          in_view(c, 1), in_view(c, 2), in_view(c, 0), out_tensor(c, 0) ? &grad[0] : NULL,
                          out_tensor(c, 1) ? &grad[1] : NULL);
}

/* (theta, size, align_corners) */
static Status affine_infer(Call *c) {
  const Tensor *theta = in_tensor(c, 0);
  Ints size = in_ints(c, 1);
  int nd = size.n - 2;
  char a[96];
  if (!theta || !dtype_is_float(theta->dtype) || nd < 2 || nd > 3 || theta->ndim != 3 ||
      theta->size[0] != size.v[0] || theta->size[1] != nd || theta->size[2] != nd + 1) {
    return op_fail(
        c, "theta %s does not fit a size of %d numbers: needs [n,2,3] and [n,c,h,w], or [n,3,4] and [n,c,d,h,w]",
        theta ? tensor_describe(theta, a, sizeof a) : "none", size.n);
  }
  int64_t out[5] = {size.v[0]};
  for (int d = 0; d < nd; d++) out[d + 1] = size.v[d + 2];
  out[nd + 1] = nd;
  return out_new(c, theta->dtype, nd + 2, out);
}

static Status affine_run(Call *c) {
  return grid_affine(&c->ctx->kern, in_bool(c, 2), in_view(c, 0), out_view_of(c, 0));
}

/* clang-format off */
#define SAMPLER(name) \
  {.schema = "aten::" name "(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor", \
    .infer = sampler_infer, .run = sampler_run}
#define SAMPLER_GRAD(name) \
  {.schema = "aten::" name "_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)", \
    .infer = sampler_grad_infer, .run = sampler_grad_run}
/* clang-format on */

const OpDef ops_grid[] = {
    SAMPLER("grid_sampler"),
    SAMPLER("grid_sampler_2d"),
    SAMPLER("grid_sampler_3d"),
    SAMPLER_GRAD("grid_sampler_2d"),
    SAMPLER_GRAD("grid_sampler_3d"),
    {.schema = "aten::affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor",
     .infer = affine_infer,
     .run = affine_run},
    {0},
};
