/* propagate.c -- see propagate.h.
 *
 * Strategies for one axis are combined over the axes: the product of the lists, axis 0
 * slowest.  The choice, in PyTorch's words: the cheapest; of free ones, the last that
 * moves nothing, else the first; negative extras win over all.
 */
#include "dist/propagate.h"

#include <math.h>
#include <string.h>

#include "dist/dist.h"

/* ---- inputs ------------------------------------------------------------------------------ */

static Status find_mesh(const Call *c, Tensor *const *in, int nin, Mesh **out) {
  *out = NULL;
  for (int i = 0; i < nin; i++) {
    if (!in[i]->spec) continue;
    if (*out && *out != in[i]->spec->mesh) {
      char a[256], b[256];
      return status_hint(op_fail(c, "its inputs lie on different meshes: %s and %s", mesh_print(*out, a, sizeof a),
                                 mesh_print(in[i]->spec->mesh, b, sizeof b)),
                         "redistribute one of them to the other's mesh first");
    }
    *out = in[i]->spec->mesh;
  }
  return *out ? OK : op_fail(c, "no input is a DTensor");
}

/* A plain tensor among DTensors counts as R if that cannot be a mistake. */
static Status input_spec(const Call *c, Mesh *m, const Tensor *t, const Spec **out) {
  *out = t->spec;
  if (t->spec) return OK;
  if (tensor_numel(t) != 1 && !m->dist->implicit_replication && !m->dist->loss_parallel) {
    char text[128];
    return status_hint(op_fail(c, "a plain tensor %s meets a DTensor", tensor_describe(t, text, sizeof text)),
                       "distribute it first, or allow implicit replication if every rank holds the same values");
  }
  Placement r[MAX_AXES] = {{.kind = PLACE_R}};
  return spec_new(m, t->dtype, t->ndim, t->size, t->stride, r, out);
}

/* ---- the list of one axis ------------------------------------------------------------------ */

enum { MAX_KINDS = 16 };

typedef struct {
  Placement kind[MAX_KINDS]; /* shards with dim 0: the refinements seen */
  int n;
} Kinds;

static void kinds_seen(const Rules *r, Kinds *k) {
  k->n = 0;
  for (int i = 0; i < r->nin * r->naxes; i++) {
    if (!is_s(&r->have[i]) || k->n == MAX_KINDS) continue;
    Placement kind = r->have[i];
    kind.dim = 0;
    int j = 0;
    while (j < k->n && !placement_equal(&k->kind[j], &kind)) j++;
    if (j == k->n) k->kind[k->n++] = kind;
  }
}

typedef struct {
  Placement **v; /* each nout + nin placements */
  int n, cap;
} AxisList;

static Status axis_list_add(AxisList *l, const Placement *p, int width, Arena *arena) {
  TRY_NEW(l->v, arena_more(arena, l->v, l->n, &l->cap));
  TRY_NEW(l->v[l->n], arena_new_n(arena, Placement, width ? width : 1));
  if (width) memcpy(l->v[l->n], p, (size_t)width * sizeof *p);
  l->n++;
  return OK;
}

static Status expand_kinds(const Rules *r, AxisList *out) {
  int width = r->nout + r->nin;
  Placement *p;
  Kinds kinds;
  kinds_seen(r, &kinds);
  TRY_NEW(p, arena_new_n(r->arena, Placement, width ? width : 1));
  for (int i = 0; i < width; i++) p[i] = place_r();
  if (!r->whole_last) TRY(axis_list_add(out, p, width, r->arena)); /* all R */
  for (int i = 0; i < r->one.n; i++) {
    const Strategy *s = &r->one.v[i];
    bool shards = false;
    for (int t = 0; t < width; t++) shards |= is_plain_s(&s->place[t]);
    if (s->exact || !shards) {
      TRY(axis_list_add(out, s->place, width, r->arena));
      continue;
    }
    for (int k = 0; k < kinds.n; k++) {
      for (int t = 0; t < width; t++) {
        p[t] = s->place[t];
        if (!is_plain_s(&p[t])) continue;
        p[t] = kinds.kind[k];
        p[t].dim = s->place[t].dim;
      }
      TRY(axis_list_add(out, p, width, r->arena));
    }
  }
  for (int i = 0; i < width; i++) p[i] = place_r();
  return r->whole_last ? axis_list_add(out, p, width, r->arena) : OK;
}

/* ---- weighing -------------------------------------------------------------------------------- */

/* How good a strategy is, before its cost is looked at. */
typedef enum { NOTHING, MINIMUM, FREE, UNMOVED, NEGATIVE } Class;

typedef struct {
  const Rules *r;
  const Spec *const *have; /* nin */
  const Placement *goal;   /* of output 0; NULL: any */
  int pinned;              /* input that must stay where it is (in place), and output 0 with it; -1 = none */
  Placement *now;          /* the strategy being weighed: tensor by tensor, naxes each */
  Placement *best;
  double best_cost;
  int best_moves; /* placements of inputs that it changes */
  int best_class; /* of Class */
  unsigned apart; /* Dist.apart */
  bool listed;    /* by the rule, for all axes */
  bool sparing;   /* of free strategies, the one that moves least */
} Weigh;

/* Each shard gets at least an element, as far as counts tell. */
static bool fills_shards(const Tensor *t, const Placement *p, const int *axis, int naxes) {
  int64_t shards[MAX_DIMS];
  for (int d = 0; d < t->ndim; d++) shards[d] = 1;
  for (int a = 0; a < naxes; a++) {
    if (!is_s(&p[a])) continue;
    if (p[a].dim >= t->ndim) return false;
    shards[p[a].dim] *= axis[a];
    int64_t pieces = shards[p[a].dim] * (p[a].nsegments ? p[a].nsegments : p[a].factor);
    if (t->size[p[a].dim] < pieces) return false;
  }
  return true;
}

/* No rank is without elements.  Of the parts that a cut makes the last is the smallest, but a part
 * of a large part can be smaller than one of a small part (4 and 3 among 3 ranks each: 2, 2, 0 and
 * 1, 1, 1): first and last of every axis are asked. */
static bool leaves_none_empty(const Rules *r, const Tensor *t, const Placement *p) {
  Layout l = {.ndim = t->ndim, .shape = t->size, .naxes = r->naxes, .axis = r->axis, .place = p};
  bool none = true;
  for (unsigned ends = 0; none && ends < 1u << r->naxes; ends++) {
    int coord[MAX_AXES];
    int64_t size[MAX_DIMS];
    for (int a = 0; a < r->naxes; a++) coord[a] = ends >> a & 1 ? r->axis[a] - 1 : 0;
    Status s = layout_local(&l, coord, size);
    none = !s;
    for (int d = 0; none && d < t->ndim; d++) none = size[d] > 0 || t->size[d] == 0;
    status_free(s);
  }
  return none;
}

/* Turns on a dimension: none, or all of them. */
static bool turns_agree(const Placement *p, int naxes) {
  for (int a = 0; a < naxes; a++) {
    if (!is_s(&p[a]) || !p[a].turn) continue;
    int cuts = 0;
    for (int b = 0; b < naxes; b++) {
      if (!is_s_of(&p[b], p[a].dim)) continue;
      if (!p[b].turn || (b != a && p[b].turn == p[a].turn)) return false;
      cuts++;
    }
    if (p[a].turn > cuts) return false;
  }
  return true;
}

/* Given segments that fit on every rank. */
static bool segments_fit(const Rules *r, const Tensor *t, const Placement *p) {
  bool given = false;
  for (int a = 0; a < r->naxes; a++) given |= is_s(&p[a]) && p[a].nsegments && p[a].dim < t->ndim;
  if (!given) return true;
  Layout l = {.ndim = t->ndim, .shape = t->size, .naxes = r->naxes, .axis = r->axis, .place = p};
  Status s = layout_check(&l);
  status_free(s);
  return !s;
}

/* Input i is whole and only sliced, to go with one that has empty shards where it lies. */
static bool joins_empty(const Weigh *w, int i) {
  const Rules *r = w->r;
  const Placement *want = w->now + (r->nout + i) * r->naxes, *have = w->have[i]->place;
  for (int a = 0; a < r->naxes; a++)
    if (!placement_equal(&want[a], &have[a]) && !is_r(&have[a])) return false;
  for (int j = 0; j < r->nin; j++) {
    const Placement *other = w->now + (r->nout + j) * r->naxes;
    if (j != i && placements_equal(other, w->have[j]->place, r->naxes) &&
        !fills_shards(r->in[j], other, r->axis, r->naxes))
      return true;
  }
  return false;
}

/* Ranks along this axis have values of their own under one name: none may be taken for a part of another's. */
static bool joins_apart(const Weigh *w, int axis) {
  const Rules *r = w->r;
  for (int i = 0; i < r->nin; i++)
    if (!is_r(rule_have(r, i, axis))) return false; /* gradients and their update, which are of all ranks */
  for (int t = 0; t < r->nout + r->nin; t++)
    if (!is_r(&w->now[t * r->naxes + axis])) return true;
  return false;
}

static bool admissible(const Weigh *w) {
  const Rules *r = w->r;
  bool partial = false;
  for (int a = 0; a < r->naxes; a++)
    if (w->apart >> a & 1 && joins_apart(w, a)) return false;
  for (int t = 0; t < r->nout + r->nin; t++)
    if (!placements_partial_alike(w->now + t * r->naxes, r->naxes) || !turns_agree(w->now + t * r->naxes, r->naxes))
      return false;
  for (int t = 0; t < r->nout + r->nin; t++)
    if (!segments_fit(r, t < r->nout ? r->out[t] : r->in[t - r->nout], w->now + t * r->naxes)) return false;
  for (int i = 0; i < r->nout * r->naxes; i++) partial |= is_p(&w->now[i]);
  if (w->goal && r->nout && !placements_equal(w->now, w->goal, r->naxes)) return false;
  if (w->pinned >= 0) {
    const Placement *self = w->have[w->pinned]->place;
    if (!placements_equal(w->now + (r->nout + w->pinned) * r->naxes, self, r->naxes)) return false;
    if (r->nout && !placements_equal(w->now, self, r->naxes)) return false;
  }
  for (int i = 0; i < r->nin; i++) {
    const Placement *want = w->now + (r->nout + i) * r->naxes;
    if (r->filled && !leaves_none_empty(r, r->in[i], want)) return false;
    if (fills_shards(r->in[i], want, r->axis, r->naxes)) continue;
    /* empty shards: fine where they are already there (or a rule knows what it does, or an
     * op in place has no choice) and no reduction meets them */
    if (!(r->uneven || !partial)) return false;
    if (!w->listed && w->pinned < 0 && !placements_equal(want, w->have[i]->place, r->naxes) && !joins_empty(w, i))
      return false;
  }
  return true;
}

/* Whole heads on every rank, whether the cut is told to fall between them or not: then it is a plain one, which is
 * what others call the same shards. */
static void drop_idle_units(const Rules *r, const Tensor *t, Placement *p) {
  for (int d = 0; d < t->ndim; d++) {
    int64_t left = t->size[d];
    bool idle = left > 0;
    for (int a = 0; idle && a < r->naxes; a++) {
      if (!is_s_of(&p[a], d)) continue;
      idle = p[a].factor == 1 && !p[a].nsegments && !p[a].turn && left % (p[a].unit * r->axis[a]) == 0;
      left /= r->axis[a];
    }
    for (int a = 0; idle && a < r->naxes; a++)
      if (is_s_of(&p[a], d)) p[a].unit = 1;
  }
}

/* As the rule has it, or the same shards by their plain name where nothing asks for another. */
static void name_plainly(Weigh *w) {
  const Rules *r = w->r;
  if (w->goal || w->pinned >= 0) return;
  for (int t = 0; t < r->nout + r->nin; t++) {
    Placement *p = w->now + t * r->naxes;
    if (t < r->nout || !placements_equal(p, w->have[t - r->nout]->place, r->naxes))
      drop_idle_units(r, t < r->nout ? r->out[t] : r->in[t - r->nout], p);
  }
}

static void weigh(Weigh *w, double extra) {
  const Rules *r = w->r;
  name_plainly(w);
  if (!admissible(w)) return;
  double cost = extra;
  int moves = 0;
  for (int i = 0; i < r->nin; i++) {
    const Placement *want = w->now + (r->nout + i) * r->naxes;
    for (int a = 0; a < r->naxes; a++) moves += !placement_equal(&want[a], &w->have[i]->place[a]);
    cost += redistribute_cost(w->have[i], want);
  }
  int rank = cost < 0 ? NEGATIVE : cost == 0 ? moves ? FREE : UNMOVED : MINIMUM;
  bool better = w->best_class == NOTHING || rank > w->best_class ||
                (rank == w->best_class &&
                 (rank == UNMOVED || ((rank == MINIMUM || rank == NEGATIVE) && cost < w->best_cost)));
  /* a compiled program slices no more than it must: a slice here would cost a gather later */
  if (w->sparing && rank == FREE && w->best_class == FREE) better = moves < w->best_moves;
  if (!better) return;
  w->best_class = rank;
  w->best_cost = cost;
  w->best_moves = moves;
  memcpy(w->best, w->now, (size_t)((r->nout + r->nin) * r->naxes) * sizeof *w->best);
}

static void take_axis(Weigh *w, int axis, const Placement *p) {
  const Rules *r = w->r;
  for (int t = 0; t < r->nout + r->nin; t++) w->now[t * r->naxes + axis] = p[t];
}

/* The last strategy of the list that finds every input where it wants it. */
static const Placement *unmoved(const Rules *r, const AxisList *list, int axis) {
  for (int i = list->n - 1; i >= 0; i--) {
    int t = 0;
    while (t < r->nin && placement_equal(&list->v[i][r->nout + t], rule_have(r, t, axis))) t++;
    if (t == r->nin) return list->v[i];
  }
  return NULL;
}

/* If every axis has one that moves nothing, no product needs to be tried. */
static bool weigh_unmoved(Weigh *w, const AxisList *list) {
  for (int a = 0; a < w->r->naxes; a++) {
    const Placement *p = unmoved(w->r, list, a);
    if (!p) return false;
    take_axis(w, a, p);
  }
  weigh(w, 0);
  return w->best_class != NOTHING;
}

enum { MOST_COMBINATIONS = 200000 };

/* Too many axes for the product: each axis by itself, the others as they are. */
static void weigh_axes_apart(Weigh *w, const AxisList *list) {
  const Rules *r = w->r;
  int pick[MAX_AXES] = {0};
  for (int a = 0; a < r->naxes; a++) take_axis(w, a, list->v[0]);
  for (int a = 0; a < r->naxes; a++) {
    double best = INFINITY;
    for (int i = 0; i < list->n; i++) {
      double cost = 0;
      for (int t = 0; t < r->nin; t++) {
        Placement want[MAX_AXES];
        memcpy(want, w->have[t]->place, sizeof want);
        want[a] = list->v[i][r->nout + t];
        cost += redistribute_cost(w->have[t], want);
      }
      if (cost < best) best = cost, pick[a] = i;
    }
    take_axis(w, a, list->v[pick[a]]);
  }
  weigh(w, 0);
}

static void weigh_product(Weigh *w, const AxisList *list) {
  int naxes = w->r->naxes, pick[MAX_AXES] = {0};
  double combinations = pow(list->n, naxes);
  if (combinations > MOST_COMBINATIONS) {
    weigh_axes_apart(w, list);
    if (w->best_class != NOTHING) return;
  }
  for (;;) {
    for (int a = 0; a < naxes; a++) take_axis(w, a, list->v[pick[a]]);
    weigh(w, 0);
    int a = naxes - 1;
    while (a >= 0 && ++pick[a] == list->n) pick[a--] = 0;
    if (a < 0) return;
  }
}

static void weigh_listed(Weigh *w) {
  const Rules *r = w->r;
  w->listed = true;
  for (int i = 0; i < r->all.n; i++) {
    memcpy(w->now, r->all.v[i].place, (size_t)((r->nout + r->nin) * r->naxes) * sizeof *w->now);
    weigh(w, r->all.v[i].extra);
  }
  w->listed = false;
}

/* ---- rules ------------------------------------------------------------------------------------- */

static Status list_strategies(Rules *r) {
  const OpDef *def = r->call->op->def;
  if (def->shard.place) return def->shard.place(r);
  if (def->shard.rule && !strchr(def->shard.rule, '>')) return rule_words(r, def->shard.rule);
  if (def->shard.rule) return rule_letters(r, def->shard.rule, def->shard.linear == LINEAR_MULTI);
  if (def->flags & OP_POINTWISE) return rule_pointwise(r, def->shard.linear);
  rule_why(r, "this op has no sharding rule");
  return OK;
}

static Status choose(Rules *r, const Spec *const *have, int pinned, const Placement *goal, Weigh *w) {
  size_t n = (size_t)((r->nout + r->nin) * r->naxes);
  const Dist *d = r->nin ? have[0]->mesh->dist : NULL;
  *w = (Weigh){.r = r,
               .have = have,
               .pinned = pinned,
               .goal = goal,
               .apart = d ? d->apart : 0,
               .sparing = d && d->keep_sharded};
  TRY_NEW(w->now, arena_new_n(r->arena, Placement, n ? n : 1));
  TRY_NEW(w->best, arena_new_n(r->arena, Placement, n ? n : 1));
  TRY(list_strategies(r));
  if (r->all.n) weigh_listed(w);
  AxisList list = {0};
  if (!r->all.n || w->best_class == NOTHING) {
    TRY(expand_kinds(r, &list));
    if (!weigh_unmoved(w, &list)) weigh_product(w, &list);
  }
  if (w->best_class != NOTHING) return OK;
  if (pinned < 0) return op_fail(r->call, "no placements of its inputs are possible");
  char text[256];
  return status_hint(op_fail(r->call, "in place on a tensor placed %s, which no strategy keeps",
                             placements_print(have[pinned]->place, r->naxes, text, sizeof text)),
                     "use the op that returns a new tensor, or redistribute first");
}

/* ---- the local call ------------------------------------------------------------------------------ */

/* Arguments that spell the sizes of output 0. */
static bool spells_sizes(const Param *p) {
  static const char *const names[] = {"size", "input_sizes", "self_sizes", "sizes"};
  if (p->type != TYPE_INT || !p->list) return false;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(p->name, names[i])) return true;
  return false;
}

static Status localize_sizes(Local *l) {
  const Schema *s = &l->call->op->schema;
  bool sharded = false;
  for (int a = 0; l->nout && a < l->naxes; a++) sharded |= is_s(&local_place_out(l, 0)[a]);
  if (!sharded) return OK;
  for (int i = 0; i < s->nparams; i++) {
    if (l->arg[i].kind != VAL_INTS || l->arg[i].n != l->out[0]->ndim) continue;
    if (spells_sizes(&s->params[i])) TRY(local_set_out_size(l, i));
    else if (!strcmp(s->params[i].name, "stride") && i > 0 && spells_sizes(&s->params[i - 1])) {
      int64_t size[MAX_DIMS], stride[MAX_DIMS];
      TRY(local_out_size(l, 0, size));
      local_strides(l->out[0]->ndim, size, l->out[0]->stride, stride);
      TRY(local_set_ints(l, i, stride, l->out[0]->ndim));
    }
  }
  return OK;
}

static Status localize(const Call *call, const Rules *r, const Placement *place, const int *coord, Arena *arena,
                       Decision *out) {
  int n = call->op->schema.nparams;
  TRY_NEW(out->arg, arena_new_n(arena, Value, MAX_PARAMS)); /* another op may take more */
  if (n) memcpy(out->arg, call->arg, (size_t)n * sizeof *out->arg);
  Local l = {.call = call,
             .def = r->call->op->def,
             .op = call->op,
             .arg = out->arg,
             .naxes = r->naxes,
             .axis = r->axis,
             .coord = coord,
             .nin = r->nin,
             .nout = r->nout,
             .in = r->in,
             .out = r->out,
             .place = place,
             .arena = arena};
  TRY(r->call->op->def->shard.localize ? r->call->op->def->shard.localize(&l) : localize_sizes(&l));
  out->op = l.op;
  out->rewritten = l.op != call->op || (n && memcmp(out->arg, call->arg, (size_t)n * sizeof *out->arg));
  return OK;
}

/* ---- all of it ------------------------------------------------------------------------------------- */

static Status infer_global(Call *f) {
  if (!f->op->def->infer) return op_fail(f, "has no sizes of its own to place"); /* dispatch takes them apart */
  return f->op->def->infer(f);
}

Status propagate(const Call *call, const int *coord, Arena *arena, Decision *out) {
  return propagate_for(call, coord, NULL, arena, out);
}

Status propagate_for(const Call *call, const int *coord, const Placement *goal, Arena *arena, Decision *out) {
  Value bound[MAX_PARAMS];
  Call f = *call;
  bool inplace = call->op->def->inplace != NULL;
  f.arena = arena;
  if (inplace) { /* placed as the op it stands for, its first argument pinned */
    Call written = f;
    TRY(op_functional(&written, bound, &f));
  }
  if (!f.nout) TRY(infer_global(&f));
  *out = (Decision){.nin = count_tensors(f.arg, f.op->schema.nparams), .nout = count_tensors(f.out, f.nout)};
  Rules r = {.call = &f, .nin = out->nin, .nout = out->nout, .arena = arena};
  TRY_NEW(r.in, arena_new_n(arena, Tensor *, r.nin ? r.nin : 1));
  TRY_NEW(r.out, arena_new_n(arena, Tensor *, r.nout ? r.nout : 1));
  for (TensorWalk t = call_inputs(&f); tensor_next(&t);) r.in[t.flat] = t.tensor;
  for (TensorWalk t = call_outputs(&f); tensor_next(&t);) r.out[t.flat] = t.tensor;
  TRY(find_mesh(call, r.in, r.nin, &out->mesh));
  r.naxes = out->mesh->naxes;
  r.axis = out->mesh->axis;
  TRY_NEW(out->have, arena_new_n(arena, const Spec *, r.nin));
  TRY_NEW(out->want, arena_new_n(arena, const Spec *, r.nin));
  TRY_NEW(out->out, arena_new_n(arena, const Spec *, r.nout ? r.nout : 1));
  Placement *have;
  TRY_NEW(have, arena_new_n(arena, Placement, r.nin * r.naxes + 1));
  for (int i = 0; i < r.nin; i++) {
    TRY(input_spec(call, out->mesh, r.in[i], &out->have[i]));
    memcpy(have + i * r.naxes, out->have[i]->place, (size_t)r.naxes * sizeof *have);
  }
  r.have = have;
  if (call->wanted && call->wanted->mesh == out->mesh) r.wanted = call->wanted->place;
  Weigh w;
  TRY(choose(&r, out->have, inplace && call->op->schema.params[0].mutated ? 0 : -1, goal, &w));
  out->cost = w.best_cost;
  out->draws = f.op->def->draws ? f.op->def->draws(&f) : 0;
  out->why = r.why;
  for (int i = 0; i < r.nin; i++) {
    TRY(spec_with(out->have[i], w.best + (r.nout + i) * r.naxes, &out->want[i]));
    out->moves |= out->want[i] != out->have[i];
  }
  for (int i = 0; i < r.nout; i++)
    TRY(spec_new(out->mesh, r.out[i]->dtype, r.out[i]->ndim, r.out[i]->size, r.out[i]->stride, w.best + i * r.naxes,
                 &out->out[i]));
  return localize(call, &r, w.best, coord ? coord : out->mesh->coord, arena, out);
}
