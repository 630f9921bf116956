/* formula.c -- see formula.h. */
#include "ops/formula.h"

Tensor *formula_op(Formula *f, const char *name, const Value *args, int nargs) {
  Tensor *t = NULL;
  if (!f->status) f->status = op_call(f->c, name, &t, 1, args, nargs);
  return f->status ? NULL : t;
}

void formula_ops(Formula *f, const char *name, Tensor **out, int n, const Value *args, int nargs) {
  for (int i = 0; i < n; i++) out[i] = NULL;
  if (!f->status) f->status = op_call(f->c, name, out, n, args, nargs);
  for (int i = 0; f->status && i < n; i++) out[i] = NULL;
}

Status formula_give(Formula *f, const Tensor *t) {
  if (!f->status) f->status = out_value(f->c, val_tensor(t));
  Status s = f->status;
  f->status = OK;
  return s;
}

Tensor *f_cast(Formula *f, const Tensor *t, Dtype d) {
  if (!t || t->dtype == d) return (Tensor *)(uintptr_t)t;
  return F_OP(f, "aten._to_copy.default", val_tensor(t), val_dtype(d));
}

Tensor *f_widen(Formula *f, const Tensor *t) {
  bool half = t && (t->dtype == DT_F16 || t->dtype == DT_BF16);
  return f_cast(f, t, half ? DT_F32 : t ? t->dtype : DT_F32);
}

void f_align(Formula *f, Tensor **t, int n) {
  Tensor *list[8], **out;
  int count = 0, got;
  bool sharded = false;
  for (int i = 0; i < n && n <= 8; i++) {
    if (!t[i]) continue;
    sharded |= t[i]->spec != NULL;
    list[count++] = t[i];
  }
  if (f->status || !sharded) return;
  f->status = OP_LIST(f->c, "tess.align.default", &out, &got, val_tensors(list, count));
  for (int i = 0, k = 0; !f->status && i < n; i++)
    if (t[i]) t[i] = out[k++];
}
