/* cutters.c -- see cutters.h. */
#include "plan/cutters.h"

bool arg_number(const Probe *p, const Arg *a, int64_t otherwise, int64_t *out) {
  *out = otherwise;
  if (a->kind == ARG_INT) *out = a->i;
  else if (a->kind == ARG_VAL && p->env[a->val->id].kind == VAL_INT) *out = p->env[a->val->id].i;
  else return a->kind == ARG_UNSET || a->kind == ARG_NONE;
  return true;
}

/* The argument of that name; `otherwise` also where the op has none. */
static bool named_number(const Probe *p, const Node *n, const char *name, int64_t otherwise, int64_t *out) {
  int at = schema_find(&n->op->schema, name);
  *out = otherwise;
  return at < 0 || at >= n->nargs || arg_number(p, &n->args[at], otherwise, out);
}

bool cutter_steps(const Probe *p, const Node *n, int64_t *dim, int64_t *start, int64_t *step) {
  if (!n->op || n->op->def->moves != MOVES_CUT || n->args[0].kind != ARG_VAL) return false;
  const Tensor *in = probe_tensor(p, n->args[0].val);
  if (!in || !named_number(p, n, "dim", 0, dim) || !named_number(p, n, "step", 1, step)) return false;
  const char *from = schema_find(&n->op->schema, "index") < 0 ? "start" : "index";
  if (*dim < 0) *dim += in->ndim;
  if (*dim < 0 || *dim >= in->ndim || !named_number(p, n, from, 0, start)) return false;
  if (*start < 0) *start += in->size[*dim];
  return true;
}

bool cutter_parts(const Probe *p, const Node *n, int *dim, int64_t *start) {
  int64_t d, next, step;
  if (!cutter_steps(p, n, &d, &next, &step) || step != 1) return false;
  const Tensor *in = probe_tensor(p, n->args[0].val);
  *dim = (int)d;
  for (int o = 0; o < n->nouts; o++) {
    const Tensor *out = probe_tensor(p, n->outs[o]);
    if (!out) return false;
    start[o] = next;
    next += out->ndim < in->ndim ? 1 : out->size[d];
  }
  return true;
}
