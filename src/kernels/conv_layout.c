/* conv_layout.c -- see conv_layout.h. */
#include "kernels/conv_layout.h"

#include <string.h>

#include "kernels/copy.h"

int64_t view_numel(View v) {
  int64_t n = 1;
  for (int i = 0; i < v.ndim; i++) n *= v.size[i];
  return n;
}

/* Strides with dimension 1 innermost. */
static void channels_last_strides(int ndim, const int64_t *size, int64_t *stride) {
  int64_t n = size[1];
  stride[1] = 1;
  for (int i = ndim - 1; i >= 2; i--) {
    stride[i] = n;
    n *= size[i];
  }
  stride[0] = n;
}

static bool same_layout(View v, const int64_t *stride) {
  for (int i = 0; i < v.ndim; i++) {
    if (v.size[i] > 1 && v.stride[i] != stride[i]) return false;
  }
  return true;
}

Operand operand_of(View v) {
  Operand o = {.v = v};
  bool f32 = v.dtype == DT_F32;
  contiguous_strides(v.ndim, v.size, o.stride);
  o.direct = f32 && same_layout(v, o.stride);
  if (o.direct || v.ndim < 3) return o;
  channels_last_strides(v.ndim, v.size, o.stride);
  o.direct = f32 && same_layout(v, o.stride);
  if (!o.direct) contiguous_strides(v.ndim, v.size, o.stride);
  return o;
}

View operand_view(const Operand *o, void *data) { return (View){data, o->v.size, o->stride, o->v.ndim, DT_F32}; }

Status operand_room(Kern *k, const Operand *o, void **data) {
  *data = o->v.data;
  if (!o->direct) TRY_NEW(*data, kern_scratch(k, (size_t)view_numel(o->v) * sizeof(float)));
  return OK;
}

Status operand_read(Kern *k, const Operand *o, void **data) {
  TRY(operand_room(k, o, data));
  if (!o->direct) kernel_copy(k, operand_view(o, *data), o->v);
  return OK;
}

void operand_store(Kern *k, const Operand *o, void *data) {
  if (!o->direct) kernel_copy(k, o->v, operand_view(o, data));
}

bool operand_is_contiguous(const Operand *o) {
  int64_t stride[CONV_DIMS];
  contiguous_strides(o->v.ndim, o->v.size, stride);
  return !memcmp(stride, o->stride, (size_t)o->v.ndim * sizeof *stride);
}

Status operand_desc(const Operand *o, bool any, OnednnDesc *out) {
  return onednn_desc(out, DT_F32, o->v.ndim, o->v.size, any ? NULL : o->stride);
}

Status weights_desc(const ConvGeometry *g, const Operand *w, bool any, OnednnDesc *out) {
  int64_t size[CONV_DIMS], stride[CONV_DIMS];
  const int64_t *ws = w->v.size;
  int n = 0, first = g->transposed ? 1 : 0;
  if (g->groups > 1) size[n] = g->groups, stride[n++] = ws[0] / g->groups * w->stride[0];
  for (int i = 0; i < 2; i++) {
    int d = i == 0 ? first : 1 - first;
    size[n] = d == 0 ? ws[0] / g->groups : ws[1];
    stride[n++] = w->stride[d];
  }
  for (int i = 2; i < w->v.ndim; i++) size[n] = ws[i], stride[n++] = w->stride[i];
  return onednn_desc(out, DT_F32, n, size, any ? NULL : stride);
}

void right_padding(const ConvGeometry *g, const int64_t *x, const int64_t *w, const int64_t *y, int64_t *right) {
  for (int d = 0; d < g->nd; d++) {
    int64_t big = (g->transposed ? y : x)[d + 2], small = (g->transposed ? x : y)[d + 2];
    int64_t need = (small - 1) * g->stride[d] - g->pad[d] + (w[d + 2] - 1) * g->dilation[d] + 1 - big;
    right[d] = need > 0 || need <= -g->stride[d] ? need : 0;
  }
}

Status reorder_for(const OnednnPrim *prim, int arg, const OnednnDesc *ours, bool back, size_t *bytes,
                   OnednnPrim **out) {
  OnednnDesc theirs;
  TRY(onednn_prim_desc(prim, arg, &theirs));
  *bytes = onednn_desc_bytes(&theirs);
  Status s = OK;
  if (!onednn_desc_equal(ours, &theirs))
    s = back ? onednn_reorder_new(&theirs, ours, out) : onednn_reorder_new(ours, &theirs, out);
  onednn_desc_free(&theirs);
  return s;
}

Status reorder_run(Kern *k, OnednnPrim *reorder, size_t bytes, void **data) {
  if (!reorder) return OK;
  void *to;
  TRY_NEW(to, kern_scratch(k, bytes));
  TRY(onednn_prim_run(k, reorder, (void *[]){*data, to}));
  *data = to;
  return OK;
}
