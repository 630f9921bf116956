/* tensor.c -- see tensor.h. */
#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool checked_numel(int ndim, const int64_t *size, int64_t *numel) {
  int64_t n = 1;
  bool overflow = false, empty = false;
  for (int i = 0; i < ndim; i++) {
    if (size[i] < 0) return false;
    if (size[i] == 0) empty = true;
    else overflow |= __builtin_mul_overflow(n, size[i], &n);
  }
  *numel = empty ? 0 : n;
  const int64_t largest_element = 16;
  overflow |= n > INT64_MAX / largest_element;
  return !overflow; /* also when empty: strides are products of the sizes, and counted in bytes somewhere */
}

bool checked_extent(int ndim, const int64_t *size, const int64_t *stride) {
  int64_t numel, last = 0, reach;
  if (!checked_numel(ndim, size, &numel)) return false;
  for (int d = 0; d < ndim; d++) {
    if (stride[d] < 0 || __builtin_mul_overflow(size[d], stride[d], &reach) ||
        __builtin_add_overflow(last, reach, &last))
      return false;
  }
  return last < INT64_MAX / 32; /* in bytes, too */
}

void contiguous_strides(int ndim, const int64_t *size, int64_t *stride) {
  int64_t n = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    stride[i] = n;
    n *= size[i] > 1 ? size[i] : 1;
  }
}

const char *shape_describe(int ndim, const int64_t *size, char *buf, size_t cap) {
  size_t n = 0;
  n += (size_t)snprintf(buf, cap, "[");
  for (int i = 0; i < ndim && n < cap; i++) {
    n += (size_t)snprintf(buf + n, cap - n, "%s%lld", i ? "," : "", (long long)size[i]);
  }
  if (n < cap) snprintf(buf + n, cap - n, "]");
  return buf;
}

const char *tensor_describe(const Tensor *t, char *buf, size_t cap) {
  int n = snprintf(buf, cap, "%s", dtype_name(t->dtype));
  if (n >= 0 && (size_t)n < cap) shape_describe(t->ndim, t->size, buf + n, cap - (size_t)n);
  return buf;
}

Status tensor_meta(Scope *s, Dtype d, int ndim, const int64_t *size, Tensor **out) {
  if (ndim < 0 || ndim > MAX_DIMS)
    return fail(ERR_FAIL, "a tensor of %d dimensions: at most %d are supported", ndim, MAX_DIMS);
  if (d < 0 || d >= DT_COUNT)
    return fail(ERR_FAIL, "a tensor needs a dtype, and there is none with number %d", (int)d);
  int64_t numel, bytes;
  if (!checked_numel(ndim, size, &numel) || __builtin_mul_overflow(numel, (int64_t)dtype_size(d), &bytes)) {
    char buf[256];
    return fail(ERR_FAIL, "impossible size %s for a tensor of %s", shape_describe(ndim, size, buf, sizeof buf),
                dtype_name(d));
  }
  Tensor *t;
  TRY_NEW(t, scope_tensor(s));
  t->dtype = d;
  t->ndim = ndim;
  if (ndim) memcpy(t->size, size, (size_t)ndim * sizeof *size);
  contiguous_strides(ndim, t->size, t->stride);
  *out = t;
  return OK;
}

Status tensor_materialize(Tensor *t) {
  if (t->storage) return OK;
  return storage_new((size_t)(t->offset + tensor_extent(t)) * dtype_size(t->dtype), &t->storage);
}

Status tensor_new(Scope *s, Dtype d, int ndim, const int64_t *size, Tensor **out) {
  TRY(tensor_meta(s, d, ndim, size, out));
  return tensor_materialize(*out);
}

Status tensor_alias(Scope *s, const Tensor *t, Tensor **out) {
  Tensor *u;
  TRY_NEW(u, scope_tensor(s));
  *u = *t;
  u->grad = u->family = NULL;
  u->grad_out = 0;
  u->seen = 0;
  storage_ref(u->storage);
  *out = u;
  return t->local ? tensor_alias(s, t->local, &u->local) : OK; /* the shard lives as long as its handle */
}

Status tensor_handle(Scope *s, const Tensor *t, Tensor **out) {
  TRY(tensor_alias(s, t, out));
  (*out)->grad = grad_ref(t->grad);
  (*out)->grad_out = t->grad_out;
  (*out)->family = grad_ref(t->family);
  (*out)->seen = t->seen;
  return OK;
}

GradNode *grad_ref(GradNode *n) {
  if (n) atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed);
  return n;
}

void grad_unref(GradNode *n) {
  if (n && atomic_fetch_sub_explicit(&n->refs, 1, memory_order_acq_rel) == 1) n->release(n);
}

Status tensor_as_strided(Scope *s, const Tensor *t, int ndim, const int64_t *size, const int64_t *stride,
                         int64_t offset, Tensor **out) {
  if (ndim > MAX_DIMS) return fail(ERR_FAIL, "a view of %d dimensions: at most %d are supported", ndim, MAX_DIMS);
  int64_t numel;
  char text[256];
  if (!checked_numel(ndim, size, &numel))
    return fail(ERR_FAIL, "impossible size %s for a view", shape_describe(ndim, size, text, sizeof text));
  Tensor *u;
  TRY_NEW(u, scope_tensor(s));
  u->storage = storage_ref(t->storage);
  u->dtype = t->dtype;
  u->ndim = ndim;
  u->offset = offset;
  if (ndim) {
    memcpy(u->size, size, (size_t)ndim * sizeof *size);
    memcpy(u->stride, stride, (size_t)ndim * sizeof *stride);
  }
  *out = u;
  return OK;
}

void tensor_drop(Tensor *t) {
  storage_unref(t->storage);
  grad_unref(t->grad);
  grad_unref(t->family);
  t->storage = NULL;
  t->grad = t->family = NULL;
}

int64_t tensor_numel(const Tensor *t) {
  int64_t n = 1;
  for (int i = 0; i < t->ndim; i++) n *= t->size[i];
  return n;
}

bool tensor_is_contiguous(const Tensor *t) {
  int64_t expect = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->size[i] == 0) return true;
    if (t->size[i] != 1 && t->stride[i] != expect) return false;
    expect *= t->size[i];
  }
  return true;
}

int64_t tensor_extent(const Tensor *t) {
  int64_t last = 0;
  for (int i = 0; i < t->ndim; i++) {
    if (t->size[i] == 0) return 0;
    last += (t->size[i] - 1) * t->stride[i];
  }
  return last + 1;
}

Status tensor_check_bounds(const Tensor *t, const char *what) {
  int64_t last = t->offset;
  bool empty = false, bad = t->offset < 0;
  for (int i = 0; i < t->ndim; i++) {
    int64_t reach;
    bad |= t->size[i] < 0 || t->stride[i] < 0;
    empty |= t->size[i] == 0;
    if (t->size[i] > 1) {
      bad |= __builtin_mul_overflow(t->size[i] - 1, t->stride[i], &reach);
      bad |= !bad && __builtin_add_overflow(last, reach, &last);
    }
  }
  int64_t have = t->storage ? (int64_t)(t->storage->size / dtype_size(t->dtype)) : 0;
  if (!bad && (empty || last < have)) return OK;
  char buf[256];
  return fail(ERR_FILE, "%s: %s at offset %lld reaches outside its storage of %lld elements", what,
              tensor_describe(t, buf, sizeof buf), (long long)t->offset, (long long)have);
}

bool tensor_same_size(const Tensor *a, const Tensor *b) {
  return a->ndim == b->ndim && (a->ndim == 0 || !memcmp(a->size, b->size, (size_t)a->ndim * sizeof *a->size));
}

bool tensor_same_view(const Tensor *a, const Tensor *b) {
  if (a->storage != b->storage || a->offset != b->offset || a->dtype != b->dtype || !tensor_same_size(a, b))
    return false;
  for (int i = 0; i < a->ndim; i++)
    if (a->size[i] > 1 && a->stride[i] != b->stride[i]) return false;
  return true;
}

bool tensor_overlaps_itself(const Tensor *t) {
  /* Sorted by stride, each dimension must step over all that the smaller ones reach. */
  int order[MAX_DIMS], n = 0;
  for (int i = 0; i < t->ndim; i++) {
    if (t->size[i] == 0) return false;
    if (t->size[i] > 1) {
      int j = n++;
      for (; j > 0 && t->stride[order[j - 1]] > t->stride[i]; j--) order[j] = order[j - 1];
      order[j] = i;
    }
  }
  int64_t reach = 0;
  for (int k = 0; k < n; k++) {
    int i = order[k];
    if (t->stride[i] <= reach) return true;
    reach += (t->size[i] - 1) * t->stride[i];
  }
  return false;
}

bool view_strides(const Tensor *t, int ndim, const int64_t *size, int64_t *stride) {
  int64_t numel = tensor_numel(t), wanted;
  if (!checked_numel(ndim, size, &wanted)) return false;
  if (numel == 0 || t->ndim == 0) {
    contiguous_strides(ndim, size, stride);
    return true;
  }
  /* Walk the old dimensions from the right in runs that are contiguous among
   * themselves; the new dimensions must fill each run exactly. */
  int v = ndim - 1;
  int64_t base = t->stride[t->ndim - 1], run = 1, filled = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    run *= t->size[i];
    bool run_ends = i == 0 || (t->size[i - 1] != 1 && t->stride[i - 1] != run * base);
    if (!run_ends) continue;
    while (v >= 0 && (filled < run || size[v] == 1)) {
      stride[v] = filled * base;
      filled *= size[v];
      v--;
    }
    if (filled != run) return false;
    if (i > 0) {
      base = t->stride[i - 1];
      run = filled = 1;
    }
  }
  return v == -1;
}
