/* cost.c -- the cost model and PyTorch's greedy route; see route.h.
 *
 * Microseconds = 6.6 per collective + hops * latency + bytes over the slowest link.
 */
#include <math.h>
#include <string.h>

#include "dist/route_steps.h"

static const double START = 6.6, FAST_BANDWIDTH = 87.7, FAST_LATENCY = 0.6, SLOW_SHARE = 0.22, SLOW_LATENCY = 2.7;

Links mesh_links(const Mesh *m) {
  Links l;
  int64_t ranks = 1;
  for (int a = m->naxes - 1; a >= 0; a--) {
    ranks *= m->axis[a];
    bool fast = ranks <= m->devices_per_host;
    l.latency[a] = fast ? FAST_LATENCY : SLOW_LATENCY;
    l.bandwidth[a] = fast ? FAST_BANDWIDTH : FAST_BANDWIDTH * SLOW_SHARE;
  }
  return l;
}

double collective_cost(double gib, double n, int rounds, double latency, double bandwidth) {
  double hops = rounds * (n - 1);
  return START + hops * latency + gib * hops / n / bandwidth * 1e6;
}

/* One axis, as PyTorch counts it; *gib is a rank's share before and after. */
static double one_step(const Links *l, int axis, int n, const Placement *from, const Placement *to, double *gib) {
  if (placement_equal(from, to)) return 0;
  double lat = l->latency[axis], bw = l->bandwidth[axis], cost;
  bool from_s = is_plain_s(from), to_s = is_plain_s(to);
  if (from_s && is_r(to)) {
    *gib *= n;
    return collective_cost(*gib, n, 1, lat, bw);
  }
  if (from_s && to_s) return collective_cost(*gib, n, 1, lat, bw) + 1;
  if (is_p(from) && is_r(to)) return collective_cost(*gib, n, 2, lat, bw);
  if (is_p(from) && to_s) {
    cost = collective_cost(*gib, n, 1, lat, bw);
    *gib /= n;
    return cost;
  }
  if ((from_s || is_p(from)) && is_p(to)) return INFINITY;
  if (is_r(from) && to_s) *gib /= n;
  return 0;
}

/* GiB that a rank holds, if shards were equal. */
static double spec_gib(const Spec *s) {
  return (double)dtype_size(s->dtype) * (double)s->numel / (double)spec_shards(s) / 1024 / 1024 / 1024;
}

/* ---- greedy ---------------------------------------------------------------------------- */

/* Do the axes before `axis` cut the dimension the same way in both? */
static bool same_cuts_before(const Placement *a, const Placement *b, int axis, int dim) {
  for (int i = 0; i < axis; i++)
    if ((is_plain_s(&a[i]) && a[i].dim == dim) != (is_plain_s(&b[i]) && b[i].dim == dim)) return false;
  return true;
}

typedef struct {
  int axis;
  Placement from, to;
} Move;

/* Inner axes first where shards must be dissolved, then outer to inner for the rest. */
static int greedy_moves(const Placement *from, const Placement *to, int naxes, bool sharded, Move *out) {
  Placement now[MAX_AXES];
  int n = 0;
  memcpy(now, from, (size_t)naxes * sizeof *now);
  if (naxes == 1) sharded = false;
  for (int a = naxes - 1; sharded && a >= 0; a--) {
    Placement target = to[a];
    if (is_plain_s(&target) && !same_cuts_before(now, to, a, target.dim)) target = place_r();
    if (placement_equal(&now[a], &target)) continue;
    out[n++] = (Move){a, now[a], target};
    now[a] = target;
  }
  for (int a = 0; a < naxes; a++)
    if (!placement_equal(&now[a], &to[a])) out[n++] = (Move){a, now[a], to[a]};
  return n;
}

/* Units and segments, which PyTorch does not have, and strided shards by themselves, which cost
 * infinitely much there, cost as plain shards do; from one kind to another of the same dimension
 * as to another dimension. */
static bool without_kinds(const Placement *p, int n, Placement *out) {
  bool any = false;
  memcpy(out, p, (size_t)n * sizeof *out);
  for (int a = 0; a < n; a++) {
    if (!is_s(&p[a]) || is_plain_s(&p[a])) continue;
    out[a] = place_s(p[a].dim);
    any = true;
  }
  return any;
}

static double cost_of_kinds(const Spec *from, const Placement *to) {
  const Mesh *m = from->mesh;
  Placement a[MAX_AXES], b[MAX_AXES];
  bool any = without_kinds(from->place, m->naxes, a);
  any |= without_kinds(to, m->naxes, b);
  if (!any) return INFINITY;
  Move move[2 * MAX_AXES];
  int n = greedy_moves(a, b, m->naxes, spec_shards(from) > 1, move);
  Links l = mesh_links(m);
  double gib = spec_gib(from), cost = 0;
  for (int i = 0; i < m->naxes; i++)
    if (placement_equal(&a[i], &b[i]) && !placement_equal(&from->place[i], &to[i]))
      cost += collective_cost(gib, m->axis[i], 1, l.latency[i], l.bandwidth[i]) + 1;
  for (int i = 0; i < n; i++)
    cost += one_step(&l, move[i].axis, m->axis[move[i].axis], &move[i].from, &move[i].to, &gib);
  return cost;
}

double redistribute_cost(const Spec *from, const Placement *to) {
  const Mesh *m = from->mesh;
  if (from->replicated || placements_equal(from->place, to, m->naxes)) return 0;
  Placement order[MAX_AXES];
  if (!strided_to_order(from->place, m->axis, m->naxes, order) || !strided_to_order(to, m->axis, m->naxes, order))
    return cost_of_kinds(from, to);
  Move move[2 * MAX_AXES];
  int n = greedy_moves(from->place, to, m->naxes, spec_shards(from) > 1, move);
  Links l = mesh_links(m);
  double gib = spec_gib(from), cost = 0;
  for (int i = 0; i < n; i++)
    cost += one_step(&l, move[i].axis, m->axis[move[i].axis], &move[i].from, &move[i].to, &gib);
  return cost;
}

static StepKind kind_of(const Placement *from, const Placement *to) {
  static const StepKind kind[3][3] = {
      /* clang-format off */
      /* from \ to     R                S                    P              */
      [PLACE_R] = {STEP_SLICE,      STEP_SLICE,          STEP_PARTITION},
      [PLACE_S] = {STEP_ALL_GATHER, STEP_ALL_TO_ALL,     STEP_EXCHANGE},
      [PLACE_P] = {STEP_ALL_REDUCE, STEP_REDUCE_SCATTER, STEP_ALL_REDUCE},
      /* clang-format on */
  };
  return kind[from->kind][to->kind];
}

Status route_greedy(const Spec *from, const Spec *to, Arena *arena, Route *out) {
  const Mesh *m = from->mesh;
  Move move[2 * MAX_AXES];
  int n = greedy_moves(from->place, to->place, m->naxes, spec_shards(from) > 1, move);
  *out = (Route){.n = n};
  TRY_NEW(out->step, arena_new_n(arena, Step, n ? n : 1));
  Links l = mesh_links(m);
  double gib = spec_gib(from);
  Placement now[MAX_AXES];
  memcpy(now, from->place, sizeof now);
  for (int i = 0; i < n; i++) {
    Step *s = &out->step[i];
    int a = move[i].axis;
    s->kind = kind_of(&move[i].from, &move[i].to);
    s->changed = 1u << a;
    s->axes = step_communicates(s->kind) ? s->changed : 0;
    memcpy(s->before, now, sizeof now);
    now[a] = move[i].to;
    memcpy(s->after, now, sizeof now);
    double before = gib;
    s->cost = one_step(&l, a, m->axis[a], &move[i].from, &move[i].to, &gib);
    s->bytes = (int64_t)(received_gib(s->kind, before, gib, m->axis[a]) * 1073741824.0);
    out->cost += s->cost;
    out->bytes += s->bytes;
    out->collectives += step_communicates(s->kind) && m->axis[a] > 1;
  }
  return OK;
}
