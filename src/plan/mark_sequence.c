/* mark_sequence.c -- see mark_sequence.h. */
#include "plan/mark_sequence.h"

#include <string.h>

#include "shard/view_calculus.h"

/* Sums and differences, and copies of them: cut like their arguments. */
static bool adds_or_copies(const OpDef *def) {
  return def->moves == MOVES_COPY || (def->flags & OP_POINTWISE && def->shard.linear == LINEAR_JOINT);
}

/* Values that lead to v by sums and views. */
static void spread_back(Marks *m, Probe *p, const Val *v, int axis, Placement place, int depth) {
  if (depth > 200 || is_s(&m->sequence[v->id])) return;
  m->sequence[v->id] = place;
  const Node *n = v->node;
  if (!n || !n->op) return;
  const Tensor *out = probe_tensor(p, v);
  bool same = adds_or_copies(n->op->def), view = n->op->def->moves == MOVES_RESHAPE;
  for (int i = 0; out && (same || view) && i < n->nargs; i++) {
    const Val *a = n->args[i].kind == ARG_VAL ? n->args[i].val : NULL;
    const Tensor *in = a ? probe_tensor(p, a) : NULL;
    if (!in || !p->activation[a->id]) continue;
    if (same && tensor_same_size(in, out)) spread_back(m, p, a, axis, place, depth + 1);
    if (!view || i > 0) continue;
    Axes axes = {1, &m->mesh->axis[axis]};
    Placement back;
    int bad;
    if (view_reshape(&axes, out->ndim, out->size, in->ndim, in->size, &place, &back, &bad))
      spread_back(m, p, a, axis, back, depth + 1);
  }
}

/* [batch, time, features], or [time, features]. */
static int sequence_dim(const Tensor *t) { return t->ndim >= 3 ? 1 : 0; }

Status sequence_mark(Marks *m, Probe *p, const PlanEntry *e, int axis) {
  char module[256], other[256];
  for (const Node *n = p->e->graph->first; n; n = n->next) {
    node_module(n, module, sizeof module);
    if (!*module || !pattern_matches(e, module) || n->nouts == 0) continue;
    for (int i = 0; i < n->nargs; i++) {
      const Val *v = n->args[i].kind == ARG_VAL ? n->args[i].val : NULL;
      const Tensor *t = v ? probe_tensor(p, v) : NULL;
      bool inside = v && v->node && !strcmp(node_module(v->node, other, sizeof other), module);
      if (!t || inside || !p->activation[v->id] || t->ndim < 2) continue;
      Placement place = place_s(sequence_dim(t));
      TRY(marks_want_before(m, n, v, axis, place, "sequence_parallel"));
      spread_back(m, p, v, axis, place, 0);
    }
  }
  return OK;
}

void sequence_place(const Marks *m, const Val *v, Placement *place) {
  if (m->sequence && is_s(&m->sequence[v->id])) *place = m->sequence[v->id];
}
