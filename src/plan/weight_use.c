/* weight_use.c -- see weight_use.h. */
#include "plan/weight_use.h"

#include <string.h>

#include "plan/cutters.h"

/* Uses that are being found. */
typedef struct {
  WeightUse use[MAX_USES];
  int n;
} Found;

static WeightUse *use_at(Found *uses, const Node *n, const Val *weight) {
  for (int i = 0; i < uses->n; i++)
    if (uses->use[i].node == n) return &uses->use[i];
  if (uses->n == MAX_USES) return NULL;
  WeightUse *u = &uses->use[uses->n++];
  *u = (WeightUse){.node = n, .weight = weight};
  for (int d = 0; d < MAX_DIMS; d++) u->place[d] = u->out[d] = -1;
  return u;
}

/* What a weight meets at a node, besides itself. */
typedef struct {
  const Probe *p;
  const Val *self;
  bool numbers, indices; /* that the user gave */
  bool others;           /* numbers that the program has */
} Meeting;

static void meet(void *ctx, Val **ref) {
  Meeting *m = ctx;
  if (*ref == m->self || (*ref)->type != TY_TENSOR) return;
  if (!m->p->activation[(*ref)->id]) m->others |= !dtype_is_integral((*ref)->dtype);
  else if (dtype_is_integral((*ref)->dtype)) m->indices = true;
  else m->numbers = true;
}

/* A product of v with something else: a dimension of it is contracted. */
static Status is_contraction(Probe *p, const Node *n, const Val *v, bool *out) {
  const Tensor *t = probe_tensor(p, v);
  *out = false;
  for (int d = 0; t && d < t->ndim && !*out; d++) {
    Placement place[MAX_DIMS];
    bool free, known;
    TRY(probe_ask(p, n, &(Given){v, place_s(d)}, 1, place, &free, &known));
    *out = known && free && is_p(&place[0]);
  }
  return OK;
}

/* What is followed: [begin, end) of the parameter's `dim`, cut as `at` of v is.  That is no
 * plain shard where the dimension was flattened with others. */
typedef struct {
  int dim;
  Placement at;
  int64_t begin, end;
} Thread;

static Status follow(Probe *p, const Val *v, Thread t, bool constants, Found *uses, int depth);

/* Splits of a weight: each part goes its way. */
static Status follow_parts(Probe *p, const Node *n, const Val *v, Thread t, bool constants, Found *uses, int depth,
                           bool *done) {
  int dim;
  int64_t start[MAX_DIMS];
  *done = n->args[0].kind == ARG_VAL && n->args[0].val == v && is_plain_s(&t.at) &&
          cutter_parts(p, n, &dim, start) && dim == t.at.dim;
  for (int o = 0; *done && o < n->nouts; o++) {
    const Tensor *out = probe_tensor(p, n->outs[o]);
    Thread part = {t.dim, t.at, t.begin + start[o], t.begin + start[o]};
    if (out->ndim < probe_tensor(p, v)->ndim) continue; /* selected: the dimension is gone */
    part.end += out->size[t.at.dim];
    TRY(follow(p, n->outs[o], part, constants, uses, depth + 1));
  }
  return OK;
}

/* v's dimension has the parameter's elements and no others. */
static bool is_alone(const Probe *p, const Val *v, const Thread *t) {
  return is_plain_s(&t->at) && probe_tensor(p, v)->size[t->at.dim] == t->end - t->begin;
}

/* To every use.  constants: products with numbers that the program has count, too (tables
 * of positions). */
static Status follow(Probe *p, const Val *v, Thread t, bool constants, Found *uses, int depth) {
  int dim = t.dim;
  if (depth > 16) return OK;
  for (int k = p->first_user[v->id]; k < p->first_user[v->id + 1]; k++) {
    const Node *n = p->user[k];
    Placement out[MAX_DIMS];
    bool free, known;
    Meeting meeting = {.p = p, .self = v};
    if (!n || n->nouts == 0 || n->nouts > MAX_DIMS) continue;
    node_each_val((Node *)(uintptr_t)n, meet, &meeting);
    /* matrices that are picked by an index (experts) meet the numbers later */
    bool met = meeting.numbers || (meeting.indices && v->ndim < 3);
    if (!met && constants && meeting.others) TRY(is_contraction(p, n, v, &met));
    bool parts = false;
    if (!met) TRY(follow_parts(p, n, v, t, constants, uses, depth, &parts));
    if (parts) continue;
    WeightUse *u = met ? use_at(uses, n, v) : NULL;
    if (met && !u) continue;
    if (u) u->table = meeting.indices && !meeting.numbers;
    TRY(probe_ask(p, n, &(Given){v, t.at}, 1, out, &free, &known));
    if (u && u->weight == v && is_alone(p, v, &t)) u->place[dim] = t.at.dim;
    if (u && u->weight == v) u->begin[dim] = t.begin, u->end[dim] = t.end;
    if (!known || !free) continue;
    if (u && is_s(&out[0]) && u->role[dim] == DIM_OTHER) u->role[dim] = DIM_FEATURE, u->out[dim] = out[0].dim;
    if (u && is_p(&out[0])) u->role[dim] = DIM_CONTRACTED;
    for (int i = 0; !met && i < n->nouts; i++)
      if (is_s(&out[i]))
        TRY(follow(p, n->outs[i], (Thread){dim, out[i], t.begin, t.end}, constants, uses, depth + 1));
  }
  return OK;
}

Status weight_uses(Probe *p, const Val *v, const WeightUses **out) {
  const Tensor *t = probe_tensor(p, v);
  Found found;
  WeightUses **kept = &p->uses[v->index];
  *out = *kept;
  if (*kept) return OK;
  found.n = 0;
  for (int pass = 0; t && pass < 2 && !found.n; pass++)
    for (int d = 0; d < t->ndim; d++)
      if (t->size[d] > 1) TRY(follow(p, v, (Thread){d, place_s(d), 0, t->size[d]}, pass > 0, &found, 0));
  size_t bytes = (size_t)found.n * sizeof *found.use;
  TRY_NEW(*kept, arena_alloc(&p->arena, sizeof **kept + bytes));
  (*kept)->n = found.n;
  if (found.n) memcpy((*kept)->use, found.use, bytes);
  *out = *kept;
  return OK;
}

Status weight_partner(Probe *p, const WeightUse *use, int dim, const Val **val, int *val_dim) {
  const Node *n = use->node;
  *val = NULL;
  if (use->place[dim] < 0) return OK;
  for (int i = 0; i < n->nargs; i++) {
    const Val *v = n->args[i].kind == ARG_VAL ? n->args[i].val : NULL;
    const Tensor *t = v && v != use->weight ? probe_tensor(p, v) : NULL;
    if (!t || !p->activation[v->id] || dtype_is_integral(t->dtype)) continue;
    for (int d = t->ndim - 1; d >= 0; d--) {
      Given given[2] = {{use->weight, place_s(use->place[dim])}, {v, place_s(d)}};
      Placement out[MAX_DIMS];
      bool free, known;
      if (t->size[d] < 2 || n->nouts > MAX_DIMS) continue;
      TRY(probe_ask(p, n, given, 2, out, &free, &known));
      if (!known || !free || !is_p(&out[0])) continue;
      *val = v;
      *val_dim = d;
      return OK;
    }
  }
  return OK;
}
