/* call.c -- helpers that infer and run functions use; see op.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/groups.h"
#include "ops/tensors.h"

Status op_fail(const Call *c, const char *fmt, ...) {
  char text[1024];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return fail(ERR_FAIL, "%s: %s", c->op->schema.name, text);
}

Status with_scratch(Call *c, OpFn *body) {
  size_t mark = kern_mark(&c->ctx->kern);
  Status s = body(c);
  kern_release(&c->ctx->kern, mark);
  return s;
}

Status wrap_dim(const Call *c, int64_t dim, int ndim, int *out) {
  int n = ndim ? ndim : 1;
  if (dim < -n || dim >= n) {
    return op_fail(c, "dimension %lld is out of range for a tensor of %d dimension%s", (long long)dim, ndim,
                   ndim == 1 ? "" : "s");
  }
  *out = (int)(dim < 0 ? dim + n : dim);
  return OK;
}

Status wrap_dims(const Call *c, Ints dims, int ndim, bool *mask) {
  memset(mask, 0, MAX_DIMS * sizeof *mask);
  for (int i = 0; i < dims.n; i++) {
    int d = 0;
    TRY(wrap_dim(c, dims.v[i], ndim, &d));
    if (mask[d]) return op_fail(c, "dimension %d appears twice in the list of dimensions", d);
    mask[d] = true;
  }
  return OK;
}

Status out_value(Call *c, Value v) {
  TRY_NEW(c->out, arena_more(c->arena, c->out, c->nout, &c->out_cap));
  c->out[c->nout++] = v;
  return OK;
}

Status out_new(Call *c, Dtype d, int ndim, const int64_t *size) {
  Tensor *t;
  Status s = tensor_meta(c->scope, d, ndim, size, &t);
  if (s) return status_at(s, "%s", c->op->schema.name);
  return out_value(c, val_tensor(t));
}

Status out_strided(Call *c, Dtype d, int ndim, const int64_t *size, const int64_t *stride) {
  TRY(out_new(c, d, ndim, size));
  if (ndim) memcpy(c->out[c->nout - 1].tensor->stride, stride, (size_t)ndim * sizeof *stride);
  return OK;
}

/* True if t's elements fill a block of memory without gaps or repeats; order lists the
 * dimensions from the outermost stride to the innermost. */
static bool is_dense(const Tensor *t, int *order) {
  for (int i = 0; i < t->ndim; i++) {
    int j = i;
    for (; j > 0 && t->stride[order[j - 1]] < t->stride[i]; j--) order[j] = order[j - 1];
    order[j] = i;
  }
  int64_t expect = 1;
  for (int k = t->ndim - 1; k >= 0; k--) {
    int i = order[k];
    if (t->size[i] == 1) continue;
    if (t->stride[i] != expect) return false;
    expect *= t->size[i];
  }
  return true;
}

Status out_like(Call *c, Dtype d, const Tensor *t) {
  int order[MAX_DIMS];
  if (tensor_is_contiguous(t) || !is_dense(t, order)) return out_new(c, d, t->ndim, t->size);
  int64_t stride[MAX_DIMS], n = 1;
  for (int k = t->ndim - 1; k >= 0; k--) {
    stride[order[k]] = n;
    n *= t->size[order[k]] > 1 ? t->size[order[k]] : 1;
  }
  return out_strided(c, d, t->ndim, t->size, stride);
}

Status out_view(Call *c, const Tensor *t, int ndim, const int64_t *size, const int64_t *stride, int64_t offset) {
  Tensor *u;
  Status s = tensor_as_strided(c->scope, t, ndim, size, stride, offset, &u);
  if (s) return status_at(s, "%s", c->op->schema.name);
  return out_value(c, val_tensor(u));
}

Status out_alias(Call *c, const Tensor *t) {
  Tensor *u;
  TRY(tensor_handle(c->scope, t, &u));
  return out_value(c, val_tensor(u));
}

Status call_ready(const Call *c) {
  Groups *g = c->ctx->groups;
  if (!g || !groups_busy(g)) return OK;
  for (TensorWalk w = call_inputs(c); tensor_next(&w);)
    if (w.tensor->storage) TRY(groups_wait(g, w.tensor->storage));
  return OK;
}

double op_flops(const Call *c) {
  if (c->op->def->flops) return c->op->def->flops(c);
  double n = 0;
  for (int i = 0; i < c->nout; i++) {
    if (c->out[i].kind == VAL_TENSOR) n += (double)tensor_numel(c->out[i].tensor);
  }
  return n;
}

/* Elements that are there: those of an expanded tensor are not as many as its sizes say. */
static double read_bytes(const Tensor *t) {
  int64_t n = tensor_numel(t), extent = tensor_extent(t);
  return (double)(n < extent ? n : extent) * (double)dtype_size(t->dtype);
}

/* Ops that read only what they give of their first argument. */
static bool looks_up(const Call *c) {
  static const char *const names[] = {"aten.embedding.", "aten.index_select.", "aten.gather.", "aten.index.", NULL};
  for (const char *const *n = names; *n; n++)
    if (!strncmp(c->op->schema.name, *n, strlen(*n))) return true;
  return false;
}

double op_bytes(const Call *c) {
  double read = 0, written = 0;
  for (int i = 0; i < c->nout; i++) {
    const Tensor *t = out_tensor(c, i);
    if (t) written += (double)tensor_numel(t) * (double)dtype_size(t->dtype);
  }
  for (TensorWalk w = call_inputs(c); tensor_next(&w);)
    read += w.arg == 0 && looks_up(c) ? written : read_bytes(w.tensor);
  return read + written;
}
