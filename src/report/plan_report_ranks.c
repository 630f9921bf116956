/* plan_report_ranks.c -- what each rank holds of the state; see plan_collect.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/textbuf.h"
#include "report/plan_collect.h"
#include "runtime/program_walk.h"

/* ---- bytes of every rank ----------------------------------------------------------------------- */

typedef struct {
  int64_t bytes[3];
} Held;
enum { WEIGHTS, BUFFERS, OPTIMIZER };

/* Adds the shard of every rank to what it holds of a kind; *most: the largest, *without: ranks that have nothing of
 * it. */
static Status add_shards(const Collector *c, const Spec *spec, int kind, Held *held, int64_t *most, int *without) {
  const Mesh *m = c->mesh;
  Layout l = spec_layout(spec);
  int64_t last_bytes = 0;
  int last[MAX_AXES], coord[MAX_AXES];
  bool any = false;
  *most = 0;
  *without = 0;
  for (int r = 0; r < m->size; r++) {
    mesh_coord(m->axis, m->naxes, r, coord);
    for (int a = 0; a < m->naxes; a++)
      if (!is_s(&spec->place[a])) coord[a] = 0; /* alike along this axis */
    if (!any || memcmp(coord, last, (size_t)m->naxes * sizeof *coord)) {
      int64_t size[MAX_DIMS], n = 1;
      TRY(layout_local(&l, coord, size));
      for (int d = 0; d < spec->ndim; d++) n *= size[d];
      last_bytes = n * (int64_t)dtype_size(spec->dtype);
      memcpy(last, coord, sizeof last);
      any = true;
    }
    *without += !last_bytes && spec->numel;
    if (last_bytes > *most) *most = last_bytes;
    if (held) held[r].bytes[kind] += last_bytes;
  }
  return OK;
}

/* ---- weights and inputs --------------------------------------------------------------------------- */

static bool same_memory(const Tensor *a, const Tensor *b) {
  return a->storage && a->storage == b->storage && a->offset == b->offset && tensor_same_size(a, b) &&
         tensor_numel(a);
}

static Status describe_weight(Collector *c, int input, const Tensor *t, const char *name, PlanWeight *w) {
  const InputMark *mark = &c->marks->input[input];
  const Spec *spec;
  TRY(marked_input_spec(c->marks, input, t, &spec));
  *w = (PlanWeight){.kind = c->e->inputs[input].kind,
                    .bytes = spec->numel * (int64_t)dtype_size(t->dtype),
                    .cut = !spec->replicated};
  TRY(collect_text(c, name, &w->name));
  TRY(collect_type(c, t->dtype, t->ndim, t->size, &w->type));
  TRY(collect_place(c, spec, &w->place));
  return mark->why ? collect_text(c, mark->why, &w->why) : OK;
}

static Status add_state(Collector *c, int input, const StateEntry *s, int *first_of, Held *held, int *idle) {
  PlanReport *p = c->p;
  PlanWeight *w = &p->weight[p->nweights];
  const Spec *spec;
  int without;
  TRY(describe_weight(c, input, s->tensor, s->fqn, w));
  for (int i = 0; i < p->nweights && !w->tied; i++)
    if (same_memory(c->e->state[first_of[i]].tensor, s->tensor)) w->tied = p->weight[i].name;
  first_of[p->nweights++] = (int)(s - c->e->state);
  TRY(spec_new(c->mesh, s->tensor->dtype, s->tensor->ndim, s->tensor->size, NULL, c->marks->input[input].place,
               &spec));
  TRY(add_shards(c, spec, w->kind == IN_PARAMETER ? WEIGHTS : BUFFERS, w->tied ? NULL : held, &w->rank_bytes,
                 &without));
  if (without && !(*idle)++)
    TRY(collect_note(c,
                     "%d of the %d ranks hold nothing of '%s' %s, and of others like it: its pieces (heads, say) "
                     "do not go round",
                     without, c->mesh->size, w->name, w->place));
  return collect_layer_of(c, s->fqn, &w->layer);
}

/* What an optimizer keeps lies as its parameter does and is told of in sum. */
static Status add_optimizer_state(Collector *c, int input, const Tensor *t, Held *held) {
  const Spec *spec;
  int64_t most;
  int without;
  TRY(marked_input_spec(c->marks, input, t, &spec));
  return add_shards(c, spec, OPTIMIZER, held, &most, &without);
}

static Status add_user_inputs(Collector *c) {
  PlanReport *p = c->p;
  for (int i = 0, u = 0; i < c->e->graph->ninputs; i++) {
    if (c->e->inputs[i].kind != IN_USER) continue;
    const Value *v = &c->r->inputs[u++];
    if (v->kind != VAL_TENSOR) continue;
    PlanWeight *w = &p->weight[p->nweights++];
    const Spec *spec;
    int without;
    TRY(describe_weight(c, i, v->tensor, c->e->graph->inputs[i]->name, w));
    TRY(marked_input_spec(c->marks, i, v->tensor, &spec));
    TRY(add_shards(c, spec, WEIGHTS, NULL, &w->rank_bytes, &without));
    w->layer = -1;
  }
  return OK;
}

/* ---- classes ---------------------------------------------------------------------------------------- */

typedef struct {
  Held held;
  int rank;
} Ranked;

static int by_amount(const void *a, const void *b) {
  const Ranked *x = a, *y = b;
  int64_t p = 0, q = 0;
  for (int k = 0; k < 3; k++) p += x->held.bytes[k], q += y->held.bytes[k];
  if (p != q) return p < q ? 1 : -1;
  for (int k = 0; k < 3; k++)
    if (x->held.bytes[k] != y->held.bytes[k]) return x->held.bytes[k] < y->held.bytes[k] ? 1 : -1;
  return x->rank - y->rank;
}

/* "0-2,4" of sorted ranks. */
static Status print_ranks(Collector *c, const Ranked *r, int n, const char **out) {
  TextBuf b = {0};
  for (int i = 0; i < n;) {
    int k = i;
    while (k + 1 < n && r[k + 1].rank == r[k].rank + 1) k++;
    text_printf(&b, k > i ? "%s%d-%d" : "%s%d", i ? "," : "", r[i].rank, r[k].rank);
    i = k + 1;
  }
  Status s = b.text && !b.failed ? collect_text(c, b.text, out) : fail_oom();
  text_free(&b);
  return s;
}

static Status find_classes(Collector *c, const Held *held) {
  PlanReport *p = c->p;
  int n = c->mesh->size;
  Ranked *r;
  TRY_NEW(r, arena_new_n(&p->arena, Ranked, n));
  for (int i = 0; i < n; i++) r[i] = (Ranked){held[i], i};
  qsort(r, (size_t)n, sizeof *r, by_amount);
  TRY_NEW(p->rank_class, arena_new_n(&p->arena, RankClass, n));
  for (int i = 0; i < n;) {
    int k = i;
    while (k < n && !memcmp(&r[k].held, &r[i].held, sizeof r[i].held)) k++;
    RankClass *class = &p->rank_class[p->nclasses++];
    *class = (RankClass){.first = r[i].rank,
                         .count = k - i,
                         .weights = r[i].held.bytes[WEIGHTS],
                         .buffers = r[i].held.bytes[BUFFERS],
                         .optimizer = r[i].held.bytes[OPTIMIZER]};
    TRY(print_ranks(c, &r[i], k - i, &class->ranks));
    i = k;
  }
  return OK;
}

Status collect_weights(Collector *c) {
  PlanReport *p = c->p;
  const Exported *e = c->e;
  int *first_of, idle = 0;
  Held *held;
  TRY_NEW(p->weight, arena_new_n(&p->arena, PlanWeight, e->graph->ninputs + 1));
  TRY_NEW(first_of, arena_new_n(&p->arena, int, e->graph->ninputs + 1));
  TRY_NEW(held, arena_new_n(&p->arena, Held, c->mesh->size));
  for (int i = 0; i < e->graph->ninputs; i++) {
    const StateEntry *s = e->inputs[i].target ? exported_state(e, e->inputs[i].target) : NULL;
    if (!s || !s->tensor) continue;
    if (s->is_filled) TRY(add_optimizer_state(c, i, s->tensor, held));
    else TRY(add_state(c, i, s, first_of, held, &idle));
  }
  TRY(add_user_inputs(c));
  const int64_t *mine = held[c->r->rank].bytes;
  p->rank_total.weights = mine[WEIGHTS];
  p->rank_total.buffers += mine[BUFFERS];
  p->rank_total.optimizer = mine[OPTIMIZER];
  return find_classes(c, held);
}
