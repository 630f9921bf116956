/* route.c -- the exact planner: Dijkstra over lists of placements; see route.h.
 *
 * An axis is at its source, at R, or at its target, so a state is a number in base 3 and
 * there are at most 3^naxes of them.  From a state:
 *
 *   free      every R axis whose target is S (or P), where that is a local cut (and no other
 *             kind of partial value is there)
 *   reduce    P axes of one op, or sums and averages, one by one or all together, to R or to their
 *             targets
 *   gather    S axes to R, one by one or all together
 *   move      S axes to their targets, one by one, or all that differ in one exchange
 *
 * A step of axes X on a dimension is exact within the group of X if no axis outside X cuts
 * that dimension *after* one of X, before or after the step: then each rank's new part lies
 * in what its group holds.  Where it does not, the group is made larger (exchange), or the
 * step is left out (slice, reduce).  A slice is also taken where every rank is found to hold what
 * it needs, run by run: uneven strided shards may, for all their order.
 */
#include "dist/route.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dist/route_steps.h"

const char *step_kind_name(StepKind k) {
  static const char *const name[] = {
#define X(id, text) text,
    STEP_KINDS(X)
#undef X
  };
  return name[k];
}

enum { AT_SOURCE, AT_R, AT_TARGET, WHERE };

typedef struct {
  double cost;
  int from; /* state before; -1 = none */
  unsigned changed, axes;
  StepKind kind;
  double step_cost;
  int64_t bytes;
  bool done;
} Node;

typedef struct {
  const Spec *from, *to;
  Placement source[MAX_AXES], target[MAX_AXES]; /* theirs, alike in spelling where they are in meaning */
  int naxes;
  Links links;
  double gib;     /* the whole tensor */
  double penalty; /* per collective */
  Node *node;
  int nstates, start, goal;
  int state; /* being left */
  Placement now[MAX_AXES];
} Search;

static int digit(int state, int axis) {
  while (axis--) state /= WHERE;
  return state % WHERE;
}

static const Placement R = {.kind = PLACE_R};

static const Placement *place_at(const Search *s, int where, int axis) {
  return where == AT_SOURCE ? &s->source[axis] : where == AT_R ? &R : &s->target[axis];
}

/* The canonical state of a list of placements: the same list is one state. */
static int canonical(const Search *s, const Placement *p) {
  int state = 0;
  for (int a = s->naxes - 1; a >= 0; a--) {
    int where = placement_equal(&p[a], &s->target[a]) ? AT_TARGET : is_r(&p[a]) ? AT_R : AT_SOURCE;
    state = state * WHERE + where;
  }
  return state;
}

/* Position of each axis in the order of cuts of its dimension; -1 = no shard. */
static void cut_order(const Search *s, const Placement *p, int *position) {
  Layout l = {
      .ndim = s->from->ndim, .shape = s->from->shape, .naxes = s->naxes, .axis = s->from->mesh->axis, .place = p};
  for (int a = 0; a < s->naxes; a++) position[a] = -1;
  for (int d = 0; d < l.ndim; d++) {
    int axes[MAX_AXES], n = layout_cuts(&l, d, axes);
    for (int i = 0; i < n; i++) position[axes[i]] = i;
  }
}

/* Axes that must belong to the group for the step to be exact. */
static unsigned close_group(const Search *s, const Placement *before, const Placement *after, unsigned axes) {
  int was[MAX_AXES], will[MAX_AXES];
  cut_order(s, before, was);
  cut_order(s, after, will);
  for (bool grew = true; grew;) {
    grew = false;
    for (int a = 0; a < s->naxes; a++) {
      if (!(axes >> a & 1)) continue;
      for (int b = 0; b < s->naxes; b++) {
        if (axes >> b & 1) continue;
        bool later = (was[a] >= 0 && was[b] > was[a] && before[a].dim == before[b].dim) ||
                     (will[a] >= 0 && will[b] > will[a] && after[a].dim == after[b].dim);
        /* a cut that stays may lie elsewhere once an earlier one has changed */
        if (later) axes |= 1u << b, grew = true;
      }
    }
  }
  return axes;
}

/* Every run of `want` lies in runs of `have`. */
static bool runs_hold(const Runs *have, const Runs *want) {
  for (int w = 0; w < want->n; w++) {
    int64_t at = want->run[w].begin, end = at + want->run[w].size;
    while (at < end) {
      int h = 0;
      while (h < have->n && (at < have->run[h].begin || at >= have->run[h].begin + have->run[h].size)) h++;
      if (h == have->n) return false;
      at = have->run[h].begin + have->run[h].size;
    }
  }
  return true;
}

enum { MOST_CHECKED = 4096 }; /* ranks that differ in how they hold a dimension */

/* Does every rank hold the part of dimension d that it is to have?  false: no, or not known. */
static bool is_held(const Search *s, const Placement *before, const Placement *after, int d) {
  const int *axis = s->from->mesh->axis;
  Layout was = {.ndim = s->from->ndim, .shape = s->from->shape, .naxes = s->naxes, .axis = axis, .place = before};
  Layout will = was;
  will.place = after;
  int64_t n = 1;
  for (int a = 0; a < s->naxes; a++)
    if (is_s_of(&before[a], d) || is_s_of(&after[a], d)) n *= axis[a];
  bool held = n <= MOST_CHECKED;
  Arena arena = {0};
  for (int64_t i = 0; held && i < n; i++) {
    int coord[MAX_AXES] = {0};
    Runs have, want;
    int64_t rest = i;
    for (int a = 0; a < s->naxes; a++) {
      if (!is_s_of(&before[a], d) && !is_s_of(&after[a], d)) continue;
      coord[a] = (int)(rest % axis[a]);
      rest /= axis[a];
    }
    Status status = layout_runs(&was, coord, d, &arena, &have);
    if (!status) status = layout_runs(&will, coord, d, &arena, &want);
    held = !status && runs_hold(&have, &want);
    status_free(status);
  }
  arena_free(&arena);
  return held;
}

/* Axes `cut` go from R to shards: is that a slice of what each rank has? */
static bool is_slice(const Search *s, const Placement *before, const Placement *after, unsigned cut) {
  if (close_group(s, before, after, cut) == cut) return true;
  for (int d = 0; d < s->from->ndim; d++) {
    bool changes = false;
    for (int a = 0; a < s->naxes; a++) changes |= cut >> a & 1 && is_s_of(&after[a], d);
    if (changes && !is_held(s, before, after, d)) return false;
  }
  return true;
}

static double group_size(const Search *s, unsigned axes) {
  double n = 1;
  for (int a = 0; a < s->naxes; a++)
    if (axes >> a & 1) n *= s->from->mesh->axis[a];
  return n;
}

static double share(const Search *s, const Placement *p) {
  double gib = s->gib;
  for (int a = 0; a < s->naxes; a++)
    if (is_s(&p[a])) gib /= s->from->mesh->axis[a];
  return gib;
}

static double step_price(const Search *s, StepKind kind, unsigned axes, const Placement *before,
                         const Placement *after, double *gib) {
  double n = group_size(s, axes), latency = 0, bandwidth = INFINITY;
  for (int a = 0; a < s->naxes; a++) {
    if (!(axes >> a & 1) || s->from->mesh->axis[a] == 1) continue;
    latency = fmax(latency, s->links.latency[a]);
    bandwidth = fmin(bandwidth, s->links.bandwidth[a]);
  }
  *gib = 0;
  if (!step_communicates(kind) || n == 1) return 0;
  double volume = kind == STEP_REDUCE_SCATTER || kind == STEP_ALL_REDUCE ? share(s, before) : share(s, after);
  int rounds = kind == STEP_ALL_REDUCE ? 2 : 1;
  *gib = received_gib(kind, share(s, before), share(s, after), n);
  return collective_cost(volume, n, rounds, latency, bandwidth) + s->penalty;
}

static void relax(Search *s, StepKind kind, unsigned changed, unsigned axes, const Placement *after) {
  double gib;
  double price = step_price(s, kind, axes, s->now, after, &gib);
  int next = canonical(s, after);
  double cost = s->node[s->state].cost + price;
  /* local steps of equal cost: fewer steps win, because they are tried in that order */
  if (next == s->state || s->node[next].done || cost >= s->node[next].cost) return;
  s->node[next] = (Node){.cost = cost,
                         .from = s->state,
                         .changed = changed,
                         .axes = axes,
                         .kind = kind,
                         .step_cost = price - (price > 0 ? s->penalty : 0),
                         .bytes = (int64_t)(gib * 1073741824.0)};
}

/* R -> S and R -> P, all that can go; then one by one. */
static void try_local(Search *s) {
  Placement after[MAX_AXES];
  memcpy(after, s->now, sizeof after);
  unsigned cut = 0, partial = 0;
  for (int a = 0; a < s->naxes; a++) {
    if (!is_r(&s->now[a]) || is_r(&s->target[a])) continue;
    if (is_p(&s->target[a])) {
      partial |= 1u << a;
      continue;
    }
    after[a] = s->target[a];
    if (is_slice(s, s->now, after, cut | 1u << a)) cut |= 1u << a;
    else after[a] = s->now[a];
  }
  if (cut) relax(s, STEP_SLICE, cut, 0, after);
  for (int a = 0; a < s->naxes; a++) { /* fewer cuts can be right where all together are not wanted */
    if (!(cut >> a & 1)) continue;
    memcpy(after, s->now, sizeof after);
    after[a] = s->target[a];
    if (is_slice(s, s->now, after, 1u << a)) relax(s, STEP_SLICE, 1u << a, 0, after);
  }
  if (!partial) return;
  memcpy(after, s->now, sizeof after);
  for (int a = 0; a < s->naxes; a++)
    if (partial >> a & 1) after[a] = s->target[a];
  if (placements_partial_alike(after, s->naxes)) /* else what is partial is reduced first */
    relax(s, STEP_PARTITION, partial, 0, after);
}

static void try_reduce(Search *s, unsigned axes, bool to_target) {
  Placement after[MAX_AXES];
  memcpy(after, s->now, sizeof after);
  for (int a = 0; a < s->naxes; a++) {
    if (!(axes >> a & 1)) continue;
    const Placement *target = &s->target[a];
    if (to_target && !is_s(target)) return;
    after[a] = to_target ? *target : R;
  }
  if (to_target && close_group(s, s->now, after, axes) != axes) return;
  relax(s, to_target ? STEP_REDUCE_SCATTER : STEP_ALL_REDUCE, axes, axes, after);
}

/* Can the partial values of two axes be reduced in one go?  Sums of whole numbers are not averaged. */
static bool reduce_together(const Search *s, const Placement *a, const Placement *b) {
  if (placement_equal(a, b)) return true;
  bool sums = a->norm == 0 && b->norm == 0 && dtype_is_float(s->from->dtype);
  return sums && (a->op == REDUCE_SUM || a->op == REDUCE_AVG) && (b->op == REDUCE_SUM || b->op == REDUCE_AVG);
}

static void try_reductions(Search *s) {
  unsigned partial = 0, same = 0;
  int first = -1;
  for (int a = 0; a < s->naxes; a++) {
    if (!is_p(&s->now[a]) || placement_equal(&s->now[a], &s->target[a])) continue;
    partial |= 1u << a;
    if (first < 0) first = a;
    if (reduce_together(s, &s->now[a], &s->now[first])) same |= 1u << a;
  }
  if (!partial) return;
  unsigned to_shards = 0;
  for (int a = 0; a < s->naxes; a++)
    if (same >> a & 1 && is_s(&s->target[a])) to_shards |= 1u << a;
  if (same & (same - 1)) {
    try_reduce(s, same, true);
    try_reduce(s, same, false);
  }
  if (to_shards && to_shards != same && to_shards & (to_shards - 1)) try_reduce(s, to_shards, true);
  for (int a = 0; a < s->naxes; a++) {
    if (!(partial >> a & 1)) continue;
    try_reduce(s, 1u << a, true);
    try_reduce(s, 1u << a, false);
  }
}

static void try_move(Search *s, unsigned changed, bool to_target) {
  Placement after[MAX_AXES];
  memcpy(after, s->now, sizeof after);
  bool gathers = true;
  for (int a = 0; a < s->naxes; a++) {
    if (!(changed >> a & 1)) continue;
    after[a] = to_target && !is_p(&s->target[a]) ? s->target[a] : R;
    gathers &= is_r(&after[a]);
  }
  unsigned axes = close_group(s, s->now, after, changed);
  for (int a = 0; a < s->naxes; a++)
    if (axes >> a & 1 && is_p(&s->now[a])) return; /* partial values are not moved about */
  bool one = !(axes & (axes - 1));
  relax(s,
        gathers && axes == changed ? STEP_ALL_GATHER
        : one                      ? STEP_ALL_TO_ALL
                                   : STEP_EXCHANGE,
        changed, axes, after);
}

static void try_moves(Search *s) {
  unsigned sharded = 0, differ = 0;
  for (int a = 0; a < s->naxes; a++) {
    if (is_s(&s->now[a])) sharded |= 1u << a; /* also one that is where it should be: others may be in its way */
    if (is_p(&s->now[a]) || placement_equal(&s->now[a], &s->target[a])) continue;
    if (is_s(&s->now[a]) || is_s(&s->target[a])) differ |= 1u << a;
  }
  if (!sharded || !differ) return;
  try_move(s, differ, true);
  if (sharded & (sharded - 1)) try_move(s, sharded, false);
  for (int a = 0; a < s->naxes; a++) {
    if (!(sharded >> a & 1)) continue;
    try_move(s, 1u << a, false);
    if (differ >> a & 1 && is_s(&s->target[a])) try_move(s, 1u << a, true);
  }
}

static void run_search(Search *s) {
  for (int i = 0; i < s->nstates; i++) s->node[i] = (Node){.cost = INFINITY, .from = -1};
  s->node[s->start].cost = 0;
  for (;;) {
    int best = -1;
    for (int i = 0; i < s->nstates; i++)
      if (!s->node[i].done && s->node[i].cost < INFINITY && (best < 0 || s->node[i].cost < s->node[best].cost))
        best = i;
    if (best < 0) return;
    s->node[best].done = true;
    if (best == s->goal) return;
    s->state = best;
    for (int a = 0; a < s->naxes; a++) s->now[a] = *place_at(s, digit(best, a), a);
    try_local(s);
    try_reductions(s);
    try_moves(s);
  }
}

static Status read_back(const Search *s, Arena *arena, Route *out) {
  int n = 0;
  for (int at = s->goal; at != s->start; at = s->node[at].from) n++;
  *out = (Route){.n = n};
  TRY_NEW(out->step, arena_new_n(arena, Step, n ? n : 1));
  for (int at = s->goal; at != s->start; at = s->node[at].from) {
    const Node *node = &s->node[at];
    Step *step = &out->step[--n];
    *step = (Step){.kind = node->kind,
                   .axes = node->axes,
                   .changed = node->changed,
                   .cost = node->step_cost,
                   .bytes = node->bytes};
    for (int a = 0; a < s->naxes; a++) {
      step->before[a] = *place_at(s, digit(node->from, a), a);
      step->after[a] = *place_at(s, digit(at, a), a);
    }
    out->cost += step->cost;
    out->bytes += step->bytes;
    out->collectives += step_communicates(step->kind) && group_size(s, step->axes) > 1;
  }
  return OK;
}

/* A turn says nothing where no other axis cuts the dimension: the axis takes the other side's. */
static void take_turns(const Spec *spec, const Placement *other, Placement *out) {
  memcpy(out, spec->place, (size_t)spec->mesh->naxes * sizeof *out);
  for (int a = 0; a < spec->mesh->naxes; a++) {
    Placement turned = spec->place[a];
    bool alone = is_s(&turned);
    for (int b = 0; b < spec->mesh->naxes; b++) alone &= b == a || !is_s_of(&spec->place[b], turned.dim);
    turned.turn = other[a].turn;
    if (alone && placement_equal(&turned, &other[a])) out[a] = turned;
  }
}

static Status check_pair(const Spec *from, const Spec *to) {
  char a[600], b[600];
  bool same = from->ndim == to->ndim && from->dtype == to->dtype &&
              !memcmp(from->shape, to->shape, (size_t)from->ndim * sizeof *from->shape);
  if (!same)
    return fail(ERR_USAGE, "%s cannot be redistributed as %s", spec_print(from, a, sizeof a),
                spec_print(to, b, sizeof b));
  if (from->mesh != to->mesh)
    return fail(ERR_USAGE, "a route is made within one mesh: %s, %s", spec_print(from, a, sizeof a),
                spec_print(to, b, sizeof b));
  return OK;
}

/* Collectives of the greedy route when PyTorch may merge equal neighbours (it does so over
 * a flattened mesh, if the user has made one), and sums and averages as well. */
static int merged_collectives(const Search *s, const Route *greedy) {
  int n = 0;
  const Placement *from = NULL, *to = NULL; /* of the collective before */
  for (int i = 0; i < greedy->n; i++) {
    const Step *step = &greedy->step[i];
    int a = 0;
    while (!(step->changed >> a & 1)) a++;
    if (!step_communicates(step->kind) || s->from->mesh->axis[a] == 1) continue;
    const Placement *before = &step->before[a];
    bool alike = from &&
                 (is_p(from) && is_p(before) ? reduce_together(s, from, before) : placement_equal(from, before));
    if (!alike || !placement_equal(to, &step->after[a])) n++;
    from = &step->before[a];
    to = &step->after[a];
  }
  return n;
}

Status route_find(const Spec *from, const Spec *to, Arena *arena, Route *out) {
  TRY(check_pair(from, to));
  Search s = {.from = from, .to = to, .naxes = from->mesh->naxes, .links = mesh_links(from->mesh), .nstates = 1};
  s.gib = (double)dtype_size(from->dtype) * (double)from->numel / 1073741824.0;
  for (int a = 0; a < s.naxes; a++) s.nstates *= WHERE;
  take_turns(from, to->place, s.source);
  take_turns(to, s.source, s.target);
  TRY_NEW(s.node, malloc((size_t)s.nstates * sizeof *s.node));
  s.start = canonical(&s, s.source);
  s.goal = canonical(&s, s.target);
  Route greedy;
  Status status = route_greedy(from, to, arena, &greedy);
  for (int attempt = 0; !status && attempt < 2; attempt++) {
    run_search(&s);
    if (s.node[s.goal].cost == INFINITY) {
      char a[600], b[600];
      status = fail(ERR_FAIL, "no way from %s to %s", spec_print(from, a, sizeof a), spec_print(to, b, sizeof b));
      break;
    }
    status = read_back(&s, arena, out);
    if (out->collectives <= merged_collectives(&s, &greedy)) break;
    s.penalty = 1e9; /* I2: as few as possible */
  }
  free(s.node);
  return status;
}

StepReduction step_reduction(const Mesh *m, const Step *s) {
  StepReduction d = {.op = REDUCE_SUM, .factor = 1};
  bool first = true, mixed = false;
  for (int a = 0; a < m->naxes; a++) {
    if (!(s->changed >> a & 1) || !is_p(&s->before[a])) continue;
    if (first) d.op = s->before[a].op, d.norm = s->before[a].norm;
    else mixed |= s->before[a].op != d.op;
    first = false;
  }
  for (int a = 0; mixed && a < m->naxes; a++) /* an average of everything: no sum is larger than the result */
    if (s->changed >> a & 1 && is_p(&s->before[a]) && s->before[a].op == REDUCE_SUM) d.factor *= m->axis[a];
  if (mixed) d.op = REDUCE_AVG;
  return d;
}

const char *route_print(const Route *p, int naxes, char *buf, size_t cap) {
  if (!cap) return "";
  buf[0] = 0;
  if (!p->n) return buf;
  placements_print(p->step[0].before, naxes, buf, cap);
  for (int i = 0; i < p->n; i++) {
    size_t at = strlen(buf);
    if (at + 3 >= cap) break;
    memcpy(buf + at, "->", 3);
    placements_print(p->step[i].after, naxes, buf + at + 2, cap - at - 2);
  }
  return buf;
}
