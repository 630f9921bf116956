/* promote.c -- see promote.h. */
#include "ops/promote.h"

#include <string.h>

/* promote_types with "nothing yet" on either side. */
static Dtype meet(Dtype a, Dtype b) { return a == DT_NONE ? b : b == DT_NONE ? a : dtype_promote(a, b); }

/* What a lower tier adds to a higher one. */
static Dtype combine(Dtype high, Dtype low) {
  if (high == DT_NONE || low == DT_NONE) return high == DT_NONE ? low : high;
  DtypeKind h = dtype_kind(high), l = dtype_kind(low);
  if (h >= l) return high;
  if (l == KIND_COMPLEX) return high == DT_F64 ? DT_NONE : DT_C64;
  return h == KIND_BOOL || l == KIND_FLOAT ? dtype_promote(high, low) : high;
}

static Dtype number_dtype(const Value *v) {
  static const Dtype of_kind[] = {
      [KIND_BOOL] = DT_BOOL, [KIND_INT] = DT_I64, [KIND_FLOAT] = DT_F32, [KIND_COMPLEX] = DT_C64};
  return of_kind[val_number_kind(v)];
}

/* DT_NONE if there is no such dtype here. */
static Dtype promote_values(const Value *const *values, int n) {
  Dtype tier[3] = {DT_NONE, DT_NONE, DT_NONE}; /* with dimensions, 0-d, numbers */
  for (int i = 0; i < n; i++) {
    const Value *v = values[i];
    bool is_tensor = v->kind == VAL_TENSOR;
    if (!is_tensor && !val_is_number(v)) continue;
    Dtype d = is_tensor ? v->tensor->dtype : number_dtype(v);
    if (!dtype_is_compute(d)) return DT_NONE;
    Dtype *t = &tier[is_tensor ? v->tensor->ndim == 0 : 2];
    *t = meet(*t, d);
    if (*t == DT_NONE) return DT_NONE;
  }
  return combine(combine(tier[0], tier[1]), tier[2]);
}

Status promote_with(const Call *c, Dtype a, Dtype b, Dtype *out) {
  *out = dtype_promote(a, b);
  return *out == DT_NONE ? op_fail(c, "there is no result dtype for operands %s, %s", dtype_name(a), dtype_name(b))
                         : OK;
}

Status promote_args(const Call *c, unsigned args, Dtype *out) {
  const Value *values[MAX_PARAMS] = {NULL};
  int n = 0;
  for (int i = 0; i < c->op->schema.nparams; i++) {
    if (args >> i & 1) values[n++] = &c->arg[i];
  }
  *out = promote_values(values, n);
  if (*out != DT_NONE) return OK;
  char text[160] = "";
  size_t used = 0;
  for (int i = 0; i < n && used + 24 < sizeof text; i++) {
    const char *name = values[i]->kind == VAL_TENSOR ? dtype_name(values[i]->tensor->dtype)
                                                     : val_kind_name(values[i]->kind);
    size_t len = strlen(name);
    if (i) memcpy(text + used, ", ", 2), used += 2;
    memcpy(text + used, name, len + 1), used += len;
  }
  return op_fail(c, "there is no result dtype for operands %s", text);
}

Status broadcast_args(const Call *c, unsigned args, int *ndim, int64_t *size) {
  int n = 0;
  for (int i = 0; i < c->op->schema.nparams; i++) {
    const Tensor *t = args >> i & 1 ? in_tensor(c, i) : NULL;
    if (!t) continue;
    for (; n < t->ndim; n++) { /* one more dimension in front */
      memmove(size + 1, size, (size_t)n * sizeof *size);
      size[0] = 1;
    }
    for (int d = 0; d < t->ndim; d++) {
      int64_t *s = &size[n - t->ndim + d];
      if (t->size[d] == *s || t->size[d] == 1) continue;
      if (*s != 1) {
        char a[128], b[128];
        return op_fail(c, "%s does not broadcast to %s", tensor_describe(t, a, sizeof a),
                       shape_describe(n, size, b, sizeof b));
      }
      *s = t->size[d];
    }
  }
  *ndim = n;
  return OK;
}

/* Should dimension a be outside of b?  Positive: yes, negative: no, 0: the operands do not care.
 * The first operand that has both dimensions decides. */
static int compare_dims(const Tensor *const *t, int n, const int64_t *size, int ndim, int a, int b) {
  for (int k = 0; k < n; k++) {
    int da = a - (ndim - t[k]->ndim), db = b - (ndim - t[k]->ndim);
    int64_t sa = da < 0 || (t[k]->size[da] == 1 && size[a] != 1) ? 0 : t[k]->stride[da];
    int64_t sb = db < 0 || (t[k]->size[db] == 1 && size[b] != 1) ? 0 : t[k]->stride[db];
    if (sa == 0 || sb == 0) continue;
    if (sa != sb) return sa > sb ? 1 : -1;
    if (size[a] > size[b]) return 1;
  }
  return 0;
}

/* order[0] is the innermost dimension. */
static bool order_dims(const Tensor *const *t, int n, const int64_t *size, int ndim, int *order) {
  for (int i = 0; i < ndim; i++) order[i] = ndim - 1 - i;
  bool moved = false;
  for (int i = 1; i < ndim; i++) {
    int at = i;
    for (int j = i - 1; j >= 0; j--) {
      int c = compare_dims(t, n, size, ndim, order[j], order[at]);
      if (c < 0) break;
      if (c == 0) continue;
      int swap = order[j];
      order[j] = order[at], order[at] = swap;
      at = j;
      moved = true;
    }
  }
  return moved;
}

Status out_broadcast(Call *c, Dtype d, unsigned args) {
  int ndim = 0, n = 0, order[MAX_DIMS];
  int64_t size[MAX_DIMS + 1], stride[MAX_DIMS];
  TRY(broadcast_args(c, args, &ndim, size));
  const Tensor *t[MAX_PARAMS];
  bool plain = true;
  for (int i = 0; i < c->op->schema.nparams; i++) {
    const Tensor *x = args >> i & 1 ? in_tensor(c, i) : NULL;
    if (!x) continue;
    t[n++] = x;
    plain = plain && x->ndim == ndim && tensor_is_contiguous(x);
  }
  if (plain || !order_dims(t, n, size, ndim, order)) return out_new(c, d, ndim, size);
  int64_t step = 1;
  for (int i = 0; i < ndim; i++) {
    stride[order[i]] = step;
    step *= size[order[i]] > 1 ? size[order[i]] : 1;
  }
  return out_strided(c, d, ndim, size, stride);
}
