/* cutters.c -- see cutters.h. */
#include "plan/cutters.h"

/* Ops that keep a part of one dimension.  start < 0: the results follow each other. */
static const struct {
  const char *name;
  int dim, start;
} cutters[] = {
    {"aten.slice.Tensor", 1, 2},
    {"aten.narrow.default", 1, 2},
    {"aten.select.int", 1, 2},
    {"aten.split.Tensor", 2, -1},
    {"aten.split.sizes", 2, -1},
    {"aten.split_with_sizes.default", 2, -1},
    {"aten.chunk.default", 2, -1},
    {"aten.unbind.int", 1, -1},
    {"aten.tensor_split.sections", 2, -1},
    {"aten.split_copy.Tensor", 2, -1},
    {"aten.split_with_sizes_copy.default", 2, -1},
    {"aten.unsafe_split.Tensor", 2, -1},
};
enum { CUTTERS = sizeof cutters / sizeof *cutters };

static int row_of(const Node *n) {
  for (int i = 0; i < CUTTERS; i++)
    if (node_is(n, cutters[i].name)) return i;
  return -1;
}

bool is_cutter(const Node *n) { return row_of(n) >= 0; }

bool arg_number(const Probe *p, const Arg *a, int64_t otherwise, int64_t *out) {
  *out = otherwise;
  if (a->kind == ARG_INT) *out = a->i;
  else if (a->kind == ARG_VAL && p->env[a->val->id].kind == VAL_INT) *out = p->env[a->val->id].i;
  else return a->kind == ARG_UNSET || a->kind == ARG_NONE;
  return true;
}

bool cutter_parts(const Probe *p, const Node *n, int *dim, int64_t *start) {
  int row = row_of(n);
  const Tensor *in = row >= 0 && n->args[0].kind == ARG_VAL ? probe_tensor(p, n->args[0].val) : NULL;
  int64_t d, next = 0;
  if (!in || !arg_number(p, &n->args[cutters[row].dim], 0, &d)) return false;
  if (d < 0) d += in->ndim;
  if (d < 0 || d >= in->ndim) return false;
  *dim = (int)d;
  if (cutters[row].start >= 0 && !arg_number(p, &n->args[cutters[row].start], 0, &next)) return false;
  if (next < 0) next += in->size[d];
  int64_t step = 1;
  if (node_is(n, "aten.slice.Tensor") && (!arg_number(p, &n->args[4], 1, &step) || step != 1)) return false;
  for (int o = 0; o < n->nouts; o++) {
    const Tensor *out = probe_tensor(p, n->outs[o]);
    if (!out) return false;
    start[o] = next;
    next += out->ndim < in->ndim ? 1 : out->size[d];
  }
  return true;
}
