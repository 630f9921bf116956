/* pad.c -- gradients of paddings: what was repeated is added up where it came from. */
#include <stdio.h>
#include <string.h>

#include "ops/vjp.h"

/* constant_pad_nd(self, pad, value): the cotangent without the padding. */
static void vjp_constant(Vjp *v) {
  Ints pad = in_ints(v->forward, 1);
  int64_t back[2 * MAX_DIMS];
  for (int i = 0; i < pad.n; i++) back[i] = -pad.v[i];
  vjp_give(v, 0, F_OP(&v->f, "aten.constant_pad_nd.default", F_T(vjp_cotangent(v)), val_ints(back, pad.n)));
}

/* "aten.reflection_pad2d.default" and its gradient, ..._backward.default, by each other's names. */
static void vjp_by_backward(Vjp *v) {
  const char *name = v->forward->op->schema.name;
  const Tensor *x = vjp_arg(v, 0);
  char backward[96];
  snprintf(backward, sizeof backward, "%.*s_backward.default", (int)(strrchr(name, '.') - name), name);
  vjp_give(
      v, 0,
      F_OP(&v->f, backward, F_T(vjp_cotangent(v)), F_T(vjp_size(v, x->dtype, x->ndim, x->size)), vjp_value(v, 1)));
}

static void vjp_of_backward(Vjp *v) {
  const char *name = v->forward->op->schema.name;
  char forward[96];
  snprintf(forward, sizeof forward, "%.*s.default", (int)(strstr(name, "_backward") - name), name);
  vjp_give(v, 0, F_OP(&v->f, forward, F_T(vjp_cotangent(v)), vjp_value(v, 2)));
}

/* Elements [begin, end) of dimension d of g, in a tensor of zeros that has n there, from `at` on. */
static Tensor *moved(Vjp *v, const Tensor *g, int d, int64_t begin, int64_t end, int64_t at, int64_t n) {
  int64_t pad[2 * MAX_DIMS] = {0};
  int last = g->ndim - 1 - d;
  Tensor *part = F_OP(&v->f, "aten.slice.Tensor", F_T(g), val_int(d), val_int(begin), val_int(end), val_int(1));
  pad[2 * last] = at;
  pad[2 * last + 1] = n - at - (end - begin);
  if (!pad[2 * last] && !pad[2 * last + 1]) return part;
  return F_OP(&v->f, "aten.constant_pad_nd.default", F_T(part), val_ints(pad, 2 * (last + 1)));
}

/* _pad_circular(self, pad): negative padding first cuts; `before` of the end stand in front of what is left,
 * `after` of the beginning behind it. */
static void vjp_circular(Vjp *v) {
  const Tensor *x = vjp_arg(v, 0);
  Ints pad = in_ints(v->forward, 1);
  Tensor *g = vjp_cotangent(v);
  for (int i = 0; i < pad.n / 2; i++) {
    int d = x->ndim - 1 - i;
    int64_t before = pad.v[2 * i], after = pad.v[2 * i + 1], n = x->size[d];
    int64_t start = before < 0 ? -before : 0, left = n - start + (after < 0 ? after : 0);
    if (before < 0) before = 0;
    if (after < 0) after = 0;
    if (!g) return;
    Tensor *sum = moved(v, g, d, before, before + left, start, n);
    if (before) sum = f_add(&v->f, sum, moved(v, g, d, 0, before, start + left - before, n));
    if (after) sum = f_add(&v->f, sum, moved(v, g, d, before + left, before + left + after, start, n));
    g = sum;
  }
  vjp_give(v, 0, g);
}

const GradDef grads_pad[] = {
    GRAD("constant_pad_nd.default", vjp_constant, NULL),
    GRAD("reflection_pad1d.default reflection_pad2d.default reflection_pad3d.default replication_pad1d.default "
         "replication_pad2d.default replication_pad3d.default",
         vjp_by_backward, NULL),
    GRAD("reflection_pad1d_backward.default reflection_pad2d_backward.default reflection_pad3d_backward.default "
         "replication_pad1d_backward.default replication_pad2d_backward.default replication_pad3d_backward.default",
         vjp_of_backward, NULL),
    GRAD("_pad_circular.default", vjp_circular, NULL),
    {0},
};
