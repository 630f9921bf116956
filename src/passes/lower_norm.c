/* lower_norm.c -- norms whose gradient PyTorch has for GPUs alone; see lower_torch.h. */
#include "ops/formula.h"
#include "passes/lower_torch.h"

bool norm_is_foreign(const Node *n) { return node_is(n, "aten._fused_rms_norm_backward.default"); }

/* aten._fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask) -> (input, weight):
 * with y = x rstd and d = g w, rstd (d - y mean(d y)) and the sum of g y over the rows; in f32 at least. */
Status lower_rms_norm_backward(Lower *l, const Node *n, Tensor **out) {
  Formula f = {.c = &l->call};
  Tensor *g, *x, *rstd, *weight;
  int64_t dims[MAX_DIMS];
  TRY(lower_tensor(l, n, 0, &g));
  TRY(lower_tensor(l, n, 1, &x));
  TRY(lower_tensor(l, n, 3, &rstd));
  TRY(lower_tensor(l, n, 4, &weight));
  int rows = x->ndim - (weight ? weight->ndim : n->args[2].n);
  for (int d = 0; d < x->ndim; d++) dims[d] = d;
  Tensor *wide = f_widen(&f, g), *scale = f_widen(&f, rstd), *y = f_mul(&f, f_widen(&f, x), scale);
  if (n->outs[0]->type == TY_TENSOR) {
    Tensor *d = weight ? f_mul(&f, wide, f_widen(&f, weight)) : wide;
    Tensor *mean = F_OP(&f, "aten.mean.dim", F_T(f_mul(&f, d, y)), val_ints(dims + rows, x->ndim - rows),
                        val_bool(true));
    out[0] = f_cast(&f, f_mul(&f, scale, f_sub(&f, d, f_mul(&f, y, mean))), x->dtype);
  }
  if (weight && n->outs[1]->type == TY_TENSOR) {
    Tensor *d = f_mul(&f, wide, y);
    out[1] = f_cast(&f, rows ? f_sum(&f, d, dims, rows, false) : d, weight->dtype);
  }
  return f.status;
}
