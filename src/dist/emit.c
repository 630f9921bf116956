/* emit.c -- redistributions of a program that is being recorded; see redistribute.h.
 *
 * Nothing is sent: the route's steps become calls of ops on shards that have sizes and no
 * elements yet.
 *
 *   slice       aten.slice per dimension that is cut; with several runs, their cat
 *   partition   nothing, or aten.full_like
 *   all-reduce  _c10d_functional.all_reduce and wait_tensor, if they are to be two nodes
 *   others      one tess.redistribute
 *
 * What was redistributed once is not redistributed again: the recorder's memory of
 * (shard, target) is the Dist's, see dist_record().
 */
#include <stdlib.h>
#include <string.h>

#include "comm/groups.h"
#include "dist/dist.h"

/* ---- what was redistributed already ------------------------------------------------------- */

enum { MOVED_BUCKETS = 512 };

struct Recording {
  Arena arena;
  Moved *bucket[MOVED_BUCKETS];
};

static Moved **bucket_of(struct Recording *r, const Tensor *local, const Spec *to) {
  uint64_t h = ((uint64_t)(uintptr_t)local * 0x9e3779b97f4a7c15u) ^ ((uint64_t)(uintptr_t)to >> 4);
  return &r->bucket[(h ^ h >> 32) % MOVED_BUCKETS];
}

Status dist_record(Dist *d, struct Recording **outer) {
  *outer = d->recording;
  TRY_NEW(d->recording, calloc(1, sizeof *d->recording));
  return OK;
}

void dist_record_end(Dist *d, struct Recording *outer) {
  if (d->recording) arena_free(&d->recording->arena);
  free(d->recording);
  d->recording = outer;
}

/* ---- slices -------------------------------------------------------------------------------- */

/* The runs of `want`, as positions among the elements of `have`; neighbours joined.  Every
 * run of want lies in runs of have. */
static Status runs_within(const Runs *have, const Runs *want, Arena *arena, Runs *out) {
  *out = (Runs){0};
  TRY_NEW(out->run, arena_new_n(arena, Run, have->n + want->n + 1));
  for (int w = 0; w < want->n; w++) {
    int64_t at = want->run[w].begin, end = at + want->run[w].size;
    while (at < end) {
      int64_t base = 0;
      int h = 0;
      while (h < have->n && !(at >= have->run[h].begin && at < have->run[h].begin + have->run[h].size))
        base += have->run[h++].size;
      if (h == have->n) return fail(ERR_FAIL, "a slice of elements that are not here");
      int64_t stop = have->run[h].begin + have->run[h].size, n = (end < stop ? end : stop) - at,
              begin = base + at - have->run[h].begin;
      Run *last = out->n ? &out->run[out->n - 1] : NULL;
      if (last && last->begin + last->size == begin) last->size += n;
      else out->run[out->n++] = (Run){begin, n};
      at += n;
    }
  }
  return OK;
}

/* The same stretch of every one of n equal parts of the dimension? */
static bool is_periodic(const Runs *part, int64_t size) {
  int64_t period = part->n ? size / part->n : 0;
  if (part->n < 2 || period * part->n != size || part->run[0].begin + part->run[0].size > period) return false;
  for (int i = 1; i < part->n; i++)
    if (part->run[i].size != part->run[0].size || part->run[i].begin != part->run[0].begin + i * period)
      return false;
  return true;
}

static Status emit_cut_periodic(const Call *c, Tensor *t, int dim, const Runs *part, Tensor **out) {
  int64_t opened[MAX_DIMS], closed[MAX_DIMS];
  for (int d = 0; d < t->ndim; d++) opened[d < dim ? d : d + 1] = closed[d] = t->size[d];
  opened[dim] = part->n;
  opened[dim + 1] = t->size[dim] / part->n;
  closed[dim] = part->n * part->run[0].size;
  Run run = part->run[0];
  TRY(OP(c, "aten.reshape.default", &t, val_tensor(t), val_ints(opened, t->ndim + 1)));
  TRY(OP(c, "aten.slice.Tensor", &t, val_tensor(t), val_int(dim + 1), val_int(run.begin),
         val_int(run.begin + run.size)));
  return OP(c, "aten.reshape.default", out, val_tensor(t), val_ints(closed, t->ndim - 1));
}

static Status emit_cut(const Call *c, Tensor *t, int dim, const Runs *part, Tensor **out) {
  Tensor **piece;
  int n = part->n ? part->n : 1;
  if (t->ndim < MAX_DIMS && is_periodic(part, t->size[dim])) return emit_cut_periodic(c, t, dim, part, out);
  TRY_NEW(piece, arena_new_n(c->arena, Tensor *, n));
  for (int i = 0; i < n; i++) {
    Run run = part->n ? part->run[i] : (Run){0, 0};
    TRY(OP(c, "aten.slice.Tensor", &piece[i], val_tensor(t), val_int(dim), val_int(run.begin),
           val_int(run.begin + run.size)));
  }
  if (n == 1) return *out = piece[0], OK;
  return OP(c, "aten.cat.default", out, val_tensors(piece, n), val_int(dim));
}

static Status emit_slice(const Call *c, const Spec *spec, const Step *step, Tensor *t, Tensor **out) {
  const Mesh *m = spec->mesh;
  Layout before = {.ndim = spec->ndim,
                   .shape = spec->shape,
                   .naxes = m->naxes,
                   .axis = m->axis,
                   .place = step->before},
         after = before;
  after.place = step->after;
  for (int d = 0; d < spec->ndim; d++) {
    Runs have, want, part;
    bool cut = false;
    for (int a = 0; a < m->naxes; a++) cut |= step->changed >> a & 1 && is_s_of(&step->after[a], d);
    if (!cut) continue;
    TRY(layout_runs(&before, m->coord, d, c->arena, &have));
    TRY(layout_runs(&after, m->coord, d, c->arena, &want));
    TRY(runs_within(&have, &want, c->arena, &part));
    TRY(emit_cut(c, t, d, &part, &t));
  }
  *out = t;
  return OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static Status emit_partition(const Call *c, const Spec *spec, const Step *step, Tensor *t, Tensor **out) {
  double other;
  *out = t;
  if (partition_keeps(spec->mesh, step, &other)) return OK;
  return OP(c, "aten.full_like.default", out, val_tensor(t),
            dtype_kind(t->dtype) < KIND_FLOAT ? val_int((int64_t)other) : val_float(other));
}

static Status text_of(const Call *c, const char *text, Value *out) {
  TRY_NEW(text, arena_strdup(c->arena, text));
  *out = val_str(text);
  return OK;
}

static Status emit_move(const Call *c, const Spec *spec, const Step *step, const char *why, Tensor *t,
                        Tensor **out) {
  const Mesh *m = spec->mesh;
  char text[1024];
  int64_t size[MAX_DIMS];
  int64_t *shape, *local;
  Value mesh, src, dst, reason;
  Layout after = {
      .ndim = spec->ndim, .shape = spec->shape, .naxes = m->naxes, .axis = m->axis, .place = step->after};
  TRY(layout_local(&after, m->coord, size));
  TRY_NEW(shape, arena_new_n(c->arena, int64_t, spec->ndim + 1));
  TRY_NEW(local, arena_new_n(c->arena, int64_t, spec->ndim + 1));
  memcpy(shape, spec->shape, (size_t)spec->ndim * sizeof *shape);
  memcpy(local, size, (size_t)spec->ndim * sizeof *local);
  TRY(text_of(c, mesh_text(m, text, sizeof text), &mesh));
  TRY(text_of(c, placements_print(step->before, m->naxes, text, sizeof text), &src));
  TRY(text_of(c, placements_print(step->after, m->naxes, text, sizeof text), &dst));
  TRY(text_of(c, why ? why : "", &reason));
  return OP(c, "tess.redistribute.default", out, val_tensor(t), mesh, src, dst, val_ints(shape, spec->ndim),
            val_ints(local, spec->ndim), reason);
}

static const char *const reduce_words[REDUCE_OP_COUNT] = {
    [REDUCE_SUM] = "sum", [REDUCE_AVG] = "avg", [REDUCE_MIN] = "min", [REDUCE_MAX] = "max"};

/* Programs call groups by name, and a context without groups has no names: there, all-reduces are not started. */
static bool is_started(const Call *c, const Spec *spec, const Step *step) {
  const Dist *d = spec->mesh->dist;
  if (!d->start_reductions || step->kind != STEP_ALL_REDUCE || (d->world && !c->ctx->groups)) return false;
  StepReduction how = step_reduction(spec->mesh, step);
  return how.factor == 1 && how.norm == 0 && reduce_words[how.op];
}

static Status emit_started(const Call *c, const Spec *spec, const Step *step, Tensor *t, Tensor **out) {
  char name[256];
  Value group;
  const char *bound = mesh_group_name(spec->mesh, step->axes, name, sizeof name);
  if (c->ctx->groups) {
    Comm *comm;
    TRY(mesh_group(spec->mesh, step->axes, &comm));
    TRY(groups_name(c->ctx->groups, name, comm, &bound));
  }
  TRY(text_of(c, bound, &group));
  TRY(OP(c, "_c10d_functional.all_reduce.default", &t, val_tensor(t),
         val_str(reduce_words[step_reduction(spec->mesh, step).op]), group));
  return OP(c, "_c10d_functional.wait_tensor.default", out, val_tensor(t));
}

static bool talks_to_nobody(const Mesh *m, const Step *s) {
  for (int a = 0; a < m->naxes; a++)
    if (s->axes >> a & 1 && m->axis[a] > 1) return false;
  return step_communicates(s->kind);
}

static Status emit_route(const Call *c, const Spec *from, const Route *route, const char *why, Tensor *t,
                         Tensor **out) {
  for (int i = 0; i < route->n; i++) {
    const Step *s = &route->step[i];
    if (talks_to_nobody(from->mesh, s)) continue;
    if (s->kind == STEP_SLICE) TRY(emit_slice(c, from, s, t, &t));
    else if (s->kind == STEP_PARTITION) TRY(emit_partition(c, from, s, t, &t));
    else {
      TRY(dist_log_step(from, s, why));
      TRY(is_started(c, from, s) ? emit_started(c, from, s, t, &t) : emit_move(c, from, s, why, t, &t));
    }
  }
  *out = t;
  return OK;
}

Status redistribute_emit(Ctx *ctx, const Spec *from, const Spec *to, Tensor *local, const char *why, Scope *scope,
                         Tensor **out) {
  Dist *d = from->mesh->dist;
  Moved **bucket = d->recording ? bucket_of(d->recording, local, to) : NULL;
  for (Moved *m = bucket ? *bucket : NULL; m; m = m->next)
    if (m->local == local && m->from == from && m->to == to) {
      *out = m->result;
      return d->moved ? d->moved(d->moved_arg, m) : OK;
    }
  Arena *arena = d->recording ? &d->recording->arena : &d->arena;
  Call c = {
      .ctx = ctx, .op = op_find("tess.redistribute.default"), .scope = scope, .arena = arena, .level = LEVEL_EMIT};
  Route route;
  TRY(route_find(from, to, arena, &route));
  TRY(emit_route(&c, from, &route, why, local, out));
  if (!bucket) return OK;
  Moved *m;
  TRY_NEW(m, arena_new(arena, Moved));
  *m = (Moved){.next = *bucket, .local = local, .from = from, .to = to, .result = *out, .bytes = route.bytes};
  *bucket = m;
  return d->moved ? d->moved(d->moved_arg, m) : OK;
}
