/* renorm.c -- rows that are longer than allowed are scaled down: embedding_renorm_. */
#include "ops/formula.h"
#include "ops/geometry.h"

/* max_norm / norm where that is below 1, else 1.  The norm of narrow rows is rounded to their
 * dtype, what it scales is not; 1e-7 keeps the quotient below its bound. */
static Tensor *shrink(Formula *f, Tensor *norm, double max_norm) {
  norm = f_widen(f, norm);
  if (!norm) return NULL;
  Tensor *limit = F_OP(f, "aten.full_like.default", F_T(norm), val_float(max_norm)),
         *one = F_OP(f, "aten.ones_like.default", F_T(norm));
  Tensor *longer = F_OP(f, "aten.gt.Scalar", F_T(norm), val_float(max_norm));
  return f_where(f, longer, f_div(f, limit, f_shift(f, norm, 1e-7)), one);
}

/* (self (n, m), indices, max_norm, norm_type): the rows that indices name, each once. */
static Status embedding_renorm(Call *c) {
  Formula f = {.c = c};
  Tensor *self, *indices;
  char a[96];
  TRY(need_tensor(c, 0, &self));
  TRY(need_tensor(c, 1, &indices));
  if (self->ndim != 2 || !dtype_is_float(self->dtype))
    return op_fail(c, "the table %s must be a matrix of floats", tensor_describe(self, a, sizeof a));
  if (indices->dtype != DT_I64 && indices->dtype != DT_I32)
    return op_fail(c, "indices %s must be i64 or i32", tensor_describe(indices, a, sizeof a));
  const int64_t n = tensor_numel(indices), last = 1;
  Tensor *flat = f_cast(&f, f_view(&f, indices, &n, 1), DT_I64);
  Tensor *rows = F_OP(&f, "aten.index_select.default", F_T(self), val_int(0), F_T(flat));
  Tensor *norm = F_OP(&f, "aten.linalg_vector_norm.default", F_T(rows), c->arg[3], val_ints(&last, 1),
                      val_bool(true));
  Tensor *scaled = f_mul(&f, f_widen(&f, rows), shrink(&f, norm, in_float(c, 2)));
  scaled = f_cast(&f, scaled, self->dtype);
  if (!scaled) return formula_give(&f, NULL);
  /* An index that occurs twice writes the same row twice. */
  return formula_give(&f, F_OP(&f, "aten.index_put.default", F_T(self), val_tensors(&flat, 1), F_T(scaled)));
}

const OpDef ops_renorm[] = {
    {.schema = "aten::embedding_renorm(Tensor self, Tensor indices, float max_norm, float norm_type) -> Tensor",
     .compose = embedding_renorm},
    {.schema = "aten::embedding_renorm_(Tensor(a!) self, Tensor indices, float max_norm, float norm_type) -> "
               "Tensor(a!)",
     .inplace = "aten.embedding_renorm.default"},
    {0}};
