/* golden_compare.c -- see golden_compare.h. */
#include "golden_compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tolerances ------------------------------------------------------------- */

static const Tolerance by_dtype[DT_COUNT] = {
    [DT_F64] = {.rtol = 1e-9, .atol = 1e-9},    [DT_F32] = {.rtol = 2e-5, .atol = 1e-5},
    [DT_C64] = {.rtol = 2e-5, .atol = 1e-5},    [DT_F16] = {.rtol = 2e-3, .atol = 1e-3},
    [DT_BF16] = {.rtol = 1.6e-2, .atol = 1e-2},
};

/* How far ATen itself strays from the exact result, in multiples of the table above; gradient: from the exact
 * gradient, if that is more. */
static const struct {
  const char *op;
  Dtype dtype;
  double multiple, gradient;
} stray[] = {
    {"aten.native_layer_norm.default", DT_F32, 5.4, 12},         /* row with mean 1000, which is given in f32 */
    {"aten.native_layer_norm_backward.default", DT_F32, 8.8, 0}, /* row of one element */
    {"aten.grid_sampler_2d.default", DT_BF16, 47, 0},            /* ATen works in half precision here and below */
    {"aten.grid_sampler_2d.default", DT_F16, 47, 0},
    {"aten.conv_transpose2d.input", DT_F16, 6.1, 0},
    {"aten.convolution.default", DT_F16, 2.1, 0},
    {"aten.native_batch_norm.default", DT_F16, 1.6, 0},
    {"aten._native_batch_norm_legit.default", DT_F16, 1.2, 0},
    {"aten.addr.default", DT_F16, 1.2, 0},
};

/* ATen doubles before it halves: beyond half the largest f32 these are inf (or inf * 0 =
 * nan) in vector lanes and finite in scalar ones.  The finite values are right. */
static bool overflows_early(const GoldenCase *c) {
  return !strcmp(c->op, "aten.gelu.default") || !strcmp(c->op, "aten.cosh.default") ||
         !strcmp(c->op, "aten.sinh.default");
}

/* Long sums in another order than ATen's. */
static bool sums_products(const GoldenCase *c) {
  static const char *const prefixes[] = {"aten.conv", "aten.lstm", "aten.gru"};
  if (!strcmp(c->family, "attention") || !strcmp(c->family, "matmul")) return true;
  for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
    if (!strncmp(c->op, prefixes[i], strlen(prefixes[i]))) return true;
  }
  return false;
}

static Tolerance tolerance(const GoldenCase *c, Dtype d, bool gradient) {
  Tolerance t = by_dtype[d];
  if (d == DT_F32 && sums_products(c)) t = (Tolerance){.rtol = 5e-5, .atol = 5e-5};
  t.overflows_early = overflows_early(c);
  for (size_t i = 0; i < sizeof stray / sizeof *stray; i++) {
    if (d != stray[i].dtype || strcmp(c->op, stray[i].op)) continue;
    double multiple = gradient && stray[i].gradient > 0 ? stray[i].gradient : stray[i].multiple;
    t.rtol *= multiple + 1; /* ATen's error and ours */
    t.atol *= multiple + 1;
  }
  return t;
}

Tolerance golden_tolerance(const GoldenCase *c, Dtype d) { return tolerance(c, d, false); }
Tolerance golden_gradient_tolerance(const GoldenCase *c, Dtype d) { return tolerance(c, d, true); }

/* ---- values ----------------------------------------------------------------- */

static bool close_enough(double got, double want, Tolerance t) {
  if (t.overflows_early && !isfinite(want) && (got == 0 || fabs(got) > 1.7e38)) return true;
  if (isnan(got) || isnan(want)) return isnan(got) && isnan(want);
  if (isinf(got) || isinf(want)) return got == want;
  double atol = fabs(want) > 1e4 ? 0 : t.atol;
  return fabs(got - want) <= atol + t.rtol * fabs(want);
}

static bool same_number(Value got, Value want, Tolerance t) {
  if (got.kind != want.kind) return false;
  switch (got.kind) {
    case VAL_BOOL: return got.b == want.b;
    case VAL_INT: return got.i == want.i;
    case VAL_FLOAT: return close_enough(got.f, want.f, t);
    case VAL_COMPLEX:
      return close_enough(got.complex_[0], want.complex_[0], t) &&
             close_enough(got.complex_[1], want.complex_[1], t);
    default: return false;
  }
}

static const char *number_text(Value v, char *buf, size_t cap) {
  if (v.kind == VAL_COMPLEX) snprintf(buf, cap, "%.9g%+.9gi", v.complex_[0], v.complex_[1]);
  else if (v.kind == VAL_FLOAT) snprintf(buf, cap, "%.9g", v.f);
  else snprintf(buf, cap, "%lld", (long long)val_as_int(&v));
  return buf;
}

static const char *element(const Tensor *t, const int64_t *index) {
  int64_t at = 0;
  for (int i = 0; i < t->ndim; i++) at += index[i] * t->stride[i];
  return (const char *)tensor_data(t) + (size_t)at * dtype_size(t->dtype);
}

/* Counts index up through size; false after the last one. */
static bool next_index(int ndim, const int64_t *size, int64_t *index) {
  for (int d = ndim - 1; d >= 0; d--) {
    if (++index[d] < size[d]) return true;
    index[d] = 0;
  }
  return false;
}

Status golden_compare_values(const Tensor *got, const Tensor *want, Tolerance tol, const char *what) {
  int64_t index[MAX_DIMS] = {0}, wrong = 0, total = tensor_numel(want);
  char first[256] = "", a[64], b[64], at[128];
  if (total == 0) return OK;
  if (!tensor_data(got)) return fail(ERR_DIFF, "%s has no data", what);
  do {
    const char *p = element(got, index);
    Value g = val_load(got->dtype, p), w = val_load(want->dtype, element(want, index));
    bool bad_bool = got->dtype == DT_BOOL && *(const unsigned char *)p > 1;
    if (!bad_bool && same_number(g, w, tol)) continue;
    if (wrong++ == 0) {
      snprintf(first, sizeof first, "%s is %s%s, should be %s", shape_describe(want->ndim, index, at, sizeof at),
               number_text(g, a, sizeof a), bad_bool ? " (a byte above 1)" : "", number_text(w, b, sizeof b));
    }
  } while (next_index(want->ndim, want->size, index));
  if (!wrong) return OK;
  return fail(ERR_DIFF, "%s: %lld of %lld elements differ; %s", what, (long long)wrong, (long long)total, first);
}

/* ---- tensors ---------------------------------------------------------------- */

static Status compare_strides(const Tensor *got, const Tensor *want, const char *what) {
  if (tensor_numel(want) == 0) return OK;
  for (int i = 0; i < want->ndim; i++) {
    if (want->size[i] > 1 && got->stride[i] != want->stride[i]) {
      char a[128], b[128];
      return fail(ERR_DIFF, "%s: strides are %s, should be %s", what,
                  shape_describe(got->ndim, got->stride, a, sizeof a),
                  shape_describe(want->ndim, want->stride, b, sizeof b));
    }
  }
  return OK;
}

static bool strides_count(const GoldenCase *c) {
  return !strcmp(c->op, "aten.empty_strided.default") || !strcmp(c->op, "aten.empty_permuted.default") ||
         golden_argument(c, "memory_format").kind != VAL_NONE;
}

/* A view must be of the argument that ATen's is of; a copy of none. */
static Status compare_storage(const GoldenCase *c, const Tensor *got, const Tensor *want, yyjson_val *alias,
                              const char *what) {
  int64_t of = -1;
  if (alias && (!json_as_int64(alias, &of) || of < 0 || of >= c->tensors))
    return fail(ERR_FILE, "bad alias in the case");
  if (alias) {
    if (got->storage != c->tensor[of]->storage)
      return fail(ERR_DIFF, "%s: is not a view of tensor argument %lld", what, (long long)of);
    if (got->offset != want->offset && tensor_numel(want)) {
      return fail(ERR_DIFF, "%s: begins at %lld of its storage, should at %lld", what, (long long)got->offset,
                  (long long)want->offset);
    }
    return compare_strides(got, want, what);
  }
  for (int i = 0; i < c->tensors; i++) {
    if (tensor_numel(want) && got->storage && got->storage->size && got->storage == c->tensor[i]->storage) {
      return fail(ERR_DIFF, "%s: shares the memory of tensor argument %d, should be a copy", what, i);
    }
  }
  return strides_count(c) ? compare_strides(got, want, what) : OK;
}

static Status compare_kind(const Tensor *got, const Tensor *want, const char *what) {
  char a[128], b[128];
  if (got->dtype == want->dtype && tensor_same_size(got, want)) return OK;
  return fail(ERR_DIFF, "%s is %s, should be %s", what, tensor_describe(got, a, sizeof a),
              tensor_describe(want, b, sizeof b));
}

static Status compare_number(Value got, yyjson_val *want, const char *what) {
  int64_t i;
  Value w = val_none();
  char a[64], b[64];
  if (yyjson_is_bool(want)) w = val_bool(yyjson_get_bool(want));
  else if (json_as_int64(want, &i)) w = val_int(i);
  else if (yyjson_is_num(want)) w = val_float(yyjson_get_num(want));
  else if (yyjson_is_str(want)) w = val_float(strtod(yyjson_get_str(want), NULL));
  if (w.kind != VAL_NONE && same_number(got, w, (Tolerance){.rtol = 1e-7, .atol = 1e-9})) return OK;
  if (w.kind == VAL_NONE && got.kind == VAL_NONE) return OK;
  if (!val_is_number(&got) || !val_is_number(&w))
    return fail(ERR_DIFF, "%s is a %s, should be a %s", what, val_kind_name(got.kind), val_kind_name(w.kind));
  return fail(ERR_DIFF, "%s is %s %s, should be %s %s", what, val_kind_name(got.kind),
              number_text(got, a, sizeof a), val_kind_name(w.kind), number_text(w, b, sizeof b));
}

static Status compare_output(GoldenCase *c, Value got, yyjson_val *want, const char *what) {
  Tensor *w, *g = got.kind == VAL_TENSOR ? got.tensor : NULL;
  if (!yyjson_is_obj(want)) return compare_number(got, want, what);
  TRY(golden_tensor(c, want, &w));
  if (!g) return fail(ERR_DIFF, "%s is a %s, should be a Tensor", what, val_kind_name(got.kind));
  TRY(compare_kind(g, w, what));
  TRY(tensor_check_bounds(g, what));
  TRY(compare_storage(c, g, w, yyjson_obj_get(want, "alias"), what));
  return w->storage ? golden_compare_values(g, w, golden_tolerance(c, w->dtype), what) : OK;
}

/* ---- topk without order ----------------------------------------------------- */

static int64_t *row_index(const Tensor *t, int64_t base, int dim, int64_t i) {
  return (int64_t *)t->storage->data + base + i * t->stride[dim];
}

/* Puts each row of a topk result in ascending order of its indices. */
static void sort_rows(Tensor *values, Tensor *indices, int dim) {
  int64_t index[MAX_DIMS] = {0}, outer[MAX_DIMS] = {0}, n = indices->size[dim];
  size_t item = dtype_size(values->dtype);
  memcpy(outer, indices->size, sizeof outer);
  outer[dim] = 1;
  do {
    int64_t ibase = indices->offset;
    for (int d = 0; d < indices->ndim; d++) ibase += index[d] * indices->stride[d];
    char *v = (char *)(uintptr_t)element(values, index);
    size_t step = (size_t)values->stride[dim] * item;
    for (int64_t i = 1; i < n; i++) {
      for (int64_t j = i; j > 0; j--) {
        int64_t *x = row_index(indices, ibase, dim, j - 1), *y = row_index(indices, ibase, dim, j), swap = *x;
        char *p = v + (size_t)(j - 1) * step, *q = p + step, tmp[16];
        if (*x <= *y) break;
        *x = *y, *y = swap;
        memcpy(tmp, p, item), memcpy(p, q, item), memcpy(q, tmp, item);
      }
    }
  } while (next_index(indices->ndim, outer, index));
}

static Status compare_unsorted_topk(GoldenCase *c, const Value *out, int nout) {
  yyjson_val *want = yyjson_obj_get(c->json, "out");
  Tensor *w[2], *g[2];
  if (nout != 2) return fail(ERR_DIFF, "%d outputs, should be 2", nout);
  for (int i = 0; i < 2; i++) {
    char what[32];
    snprintf(what, sizeof what, "output %d", i);
    TRY(golden_tensor(c, yyjson_arr_get(want, (size_t)i), &w[i]));
    if (out[i].kind != VAL_TENSOR) return fail(ERR_DIFF, "%s is no tensor", what);
    g[i] = out[i].tensor;
    TRY(compare_kind(g[i], w[i], what));
    TRY(tensor_check_bounds(g[i], what));
  }
  Value given = golden_argument(c, "dim");
  int64_t dim = given.kind == VAL_INT ? given.i : -1;
  if (w[1]->ndim && tensor_numel(w[1])) {
    if (dim < 0) dim += w[1]->ndim;
    sort_rows(w[0], w[1], (int)dim);
    sort_rows(g[0], g[1], (int)dim);
  }
  TRY(golden_compare_values(g[0], w[0], golden_tolerance(c, w[0]->dtype), "output 0"));
  return golden_compare_values(g[1], w[1], (Tolerance){.rtol = 0, .atol = 0}, "output 1");
}

/* ---- a case ----------------------------------------------------------------- */

/* ATen's record lists what changed: everything else must be as it was, to the bit. */
static Status compare_arguments(GoldenCase *c) {
  yyjson_val *mutated = yyjson_obj_get(c->json, "mutated");
  for (int i = 0; i < c->tensors; i++) {
    char key[16], what[32];
    snprintf(key, sizeof key, "%d", i);
    snprintf(what, sizeof what, "tensor argument %d", i);
    yyjson_val *want = yyjson_obj_get(mutated, key);
    const Tensor *t = c->tensor[i];
    if (!want) {
      bool same = t->storage && t->storage->size == c->before[i]->size &&
                  (t->storage->size == 0 || !memcmp(t->storage->data, c->before[i]->data, t->storage->size));
      if (!same && !yyjson_get_bool(yyjson_obj_get(c->json, "unspecified")))
        return fail(ERR_DIFF, "%s was changed", what);
      continue;
    }
    Tensor *w;
    TRY(golden_tensor(c, want, &w));
    TRY(compare_kind(t, w, what));
    if (w->storage) TRY(golden_compare_values(t, w, golden_tolerance(c, w->dtype), what));
  }
  return OK;
}

Status golden_compare(GoldenCase *c, const Value *out, int nout) {
  yyjson_val *want = yyjson_obj_get(c->json, "out"), *v, *item;
  size_t i, max, j, jmax;
  int at = 0;
  char what[32];
  Value sorted = golden_argument(c, "sorted");
  if (!strncmp(c->op, "aten.topk.", 10) && sorted.kind == VAL_BOOL && !sorted.b)
    return compare_unsorted_topk(c, out, nout);
  yyjson_arr_foreach(want, i, max, v) {
    int n = yyjson_is_arr(v) ? (int)yyjson_arr_size(v) : 1;
    if (at + n > nout) return fail(ERR_DIFF, "%d outputs are too few", nout);
    snprintf(what, sizeof what, "output %d", at);
    if (!yyjson_is_arr(v)) {
      TRY(compare_output(c, out[at++], v, what));
      continue;
    }
    yyjson_arr_foreach(v, j, jmax, item) {
      snprintf(what, sizeof what, "output %d", at);
      TRY(compare_output(c, out[at++], item, what));
    }
  }
  if (at != nout) return fail(ERR_DIFF, "%d outputs, should be %d", nout, at);
  return compare_arguments(c);
}
