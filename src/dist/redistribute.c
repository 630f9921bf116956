/* redistribute.c -- see redistribute.h.  One function per kind of step. */
#include "dist/redistribute.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "dist/boxes.h"
#include "dist/dist.h"
#include "kernels/copy.h"

/* What a step works on. */
typedef struct {
  Ctx *ctx;
  Mesh *mesh;
  const Spec *spec; /* shape and dtype */
  const Step *step;
  const char *why;
  Scope *scope;
  Arena arena; /* for the step */
  Tensor *in, *out;
  Tensor *into; /* where the last step's result goes; NULL: new memory */
  Comm *group;  /* a step that communicates leaves its collective here */
  Coll coll;
} Job;

static Layout layout_with(const Job *j, const Placement *p) {
  return (Layout){
      .ndim = j->spec->ndim, .shape = j->spec->shape, .naxes = j->mesh->naxes, .axis = j->mesh->axis, .place = p};
}

static Status new_result(Job *j, int ndim, const int64_t *size, Tensor **out) {
  if (j->into) return *out = j->into, OK;
  return tensor_new(j->scope, j->spec->dtype, ndim, size, out);
}

static Status new_local(Job *j, const Placement *p, Tensor **out) {
  int64_t size[MAX_DIMS];
  Layout l = layout_with(j, p);
  TRY(layout_local(&l, j->mesh->coord, size));
  return new_result(j, j->spec->ndim, size, out);
}

static View box_view(void *data, Dtype dtype, const Box *b) {
  return (View){(char *)data + b->offset * (int64_t)dtype_size(dtype), b->size, b->stride, b->ndim, dtype};
}

/* ---- local steps --------------------------------------------------------------------------- */

static Status do_slice(Job *j) {
  Layout before = layout_with(j, j->step->before), after = layout_with(j, j->step->after);
  Region have, want;
  TRY(region_of(&before, j->mesh->coord, &j->arena, &have));
  TRY(region_of(&after, j->mesh->coord, &j->arena, &want));
  TRY(new_local(j, j->step->after, &j->out));
  BoxList from = {0}, into = {0};
  TRY(boxes_shared(&have, j->in->stride, &want, j->out->stride, 0, &j->arena, &from, &into));
  for (int i = 0; i < from.n; i++)
    kernel_copy(&j->ctx->kern, box_view(tensor_data(j->out), j->out->dtype, &into.v[i]),
                box_view(tensor_data(j->in), j->in->dtype, &from.v[i]));
  return OK;
}

/* What ranks other than the first of an axis hold so that the reduction gives the value
 * back, bit for bit (x + -0.0 is x, also for -0.0);
 * the ops that forgive repetition keep the value everywhere. */
static const struct {
  bool everywhere;
  double other;
} split_of[REDUCE_OP_COUNT] = {
    [REDUCE_SUM] = {false, -0.0}, [REDUCE_AVG] = {true, 0},   [REDUCE_MIN] = {true, 0},
    [REDUCE_MAX] = {true, 0},     [REDUCE_BAND] = {true, 0},  [REDUCE_PRODUCT] = {false, 1},
    [REDUCE_BOR] = {true, 0},     [REDUCE_BXOR] = {false, 0},
};

bool partition_keeps(const Mesh *m, const Step *step, double *other) {
  for (int a = 0; a < m->naxes; a++) {
    const Placement *p = &step->after[a];
    if (!(step->changed >> a & 1) || split_of[p->op].everywhere || m->coord[a] == 0) continue;
    *other = split_of[p->op].other;
    return false;
  }
  return true;
}

static Status do_partition(Job *j) {
  double other;
  j->out = j->in;
  if (partition_keeps(j->mesh, j->step, &other)) return OK;
  TRY(tensor_new(j->scope, j->spec->dtype, j->in->ndim, j->in->size, &j->out));
  kernel_copy(&j->ctx->kern, tensor_view(j->out), (View){&other, NULL, NULL, 0, DT_F64});
  return OK;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Member q of the group of `axes` around this rank. */
static void member_coord(const Mesh *m, unsigned axes, int64_t q, int *coord) {
  memcpy(coord, m->coord, sizeof m->coord);
  for (int a = m->naxes - 1; a >= 0; a--) {
    if (!(axes >> a & 1)) continue;
    coord[a] = (int)(q % m->axis[a]);
    q /= m->axis[a];
  }
}

/* Of several that hold the same elements, a rank takes them from the one that differs
 * least from it. */
static bool gives_to(const Mesh *m, unsigned axes, const Placement *before, const int *giver, const int *taker) {
  for (int a = 0; a < m->naxes; a++)
    if (axes >> a & 1 && !is_s(&before[a]) && giver[a] != taker[a]) return false;
  return true;
}

static Status do_move(Job *j) {
  const Step *s = j->step;
  Mesh *m = j->mesh;
  TRY(mesh_group(m, s->axes, &j->group));
  Layout before = layout_with(j, s->before), after = layout_with(j, s->after);
  Region mine, wanted, other;
  TRY(region_of(&before, m->coord, &j->arena, &mine));
  TRY(region_of(&after, m->coord, &j->arena, &wanted));
  TRY(new_local(j, s->after, &j->out));
  BoxList send = {0}, recv = {0};
  int64_t stride[MAX_DIMS] = {0}; /* of the other side: unknown, and not needed */
  for (int q = 0; q < comm_size(j->group); q++) {
    int coord[MAX_AXES];
    member_coord(m, s->axes, q, coord);
    if (gives_to(m, s->axes, s->before, m->coord, coord)) {
      TRY(region_of(&after, coord, &j->arena, &other));
      TRY(boxes_shared(&mine, j->in->stride, &other, stride, q, &j->arena, &send, NULL));
    }
    if (gives_to(m, s->axes, s->before, coord, m->coord)) {
      TRY(region_of(&before, coord, &j->arena, &other));
      TRY(boxes_shared(&other, stride, &wanted, j->out->stride, q, &j->arena, NULL, &recv));
    }
  }
  j->coll = (Coll){.kind = COLL_EXCHANGE,
                   .dtype = j->spec->dtype,
                   .send = tensor_data(j->in),
                   .recv = tensor_data(j->out),
                   .send_box = send.v,
                   .nsend = send.n,
                   .recv_box = recv.v,
                   .nrecv = recv.n,
                   .where = j->mesh->hash,
                   .why = j->why};
  return OK;
}

/* ---- reducing --------------------------------------------------------------------------------- */

static Status contiguous_of(Job *j, Tensor *t, Tensor **out) {
  *out = t;
  if (tensor_is_contiguous(t)) return OK;
  TRY(tensor_new(j->scope, t->dtype, t->ndim, t->size, out));
  kernel_copy(&j->ctx->kern, tensor_view(*out), tensor_view(t));
  return OK;
}

/* Partial norms are sums of powers. */
static Status raise(Job *j, Tensor *t, double exponent, Tensor **out) {
  Call c = {.ctx = j->ctx, .scope = j->scope, .arena = &j->arena};
  Tensor *positive;
  TRY(OP(&c, "aten.abs.default", &positive, val_tensor(t)));
  return OP(&c, "aten.pow.Tensor_Scalar", out, val_tensor(positive), val_float(exponent));
}

static Status do_all_reduce(Job *j) {
  Tensor *in;
  TRY(mesh_group(j->mesh, j->step->axes, &j->group));
  TRY(contiguous_of(j, j->in, &in));
  TRY(new_result(j, in->ndim, in->size, &j->out));
  j->coll = (Coll){.kind = COLL_ALL_REDUCE,
                   .dtype = in->dtype,
                   .op = step_reduction(j->mesh, j->step).op,
                   .send = tensor_data(in),
                   .recv = tensor_data(j->out),
                   .count = tensor_numel(in),
                   .where = j->mesh->hash,
                   .why = j->why};
  return OK;
}

/* Every member's part, one behind the other, as the collective wants it. */
static Status pack_parts(Job *j, int members, int64_t *counts, Tensor **out) {
  Layout before = layout_with(j, j->step->before), after = layout_with(j, j->step->after);
  Region mine, part;
  TRY(region_of(&before, j->mesh->coord, &j->arena, &mine));
  int64_t numel = tensor_numel(j->in), at = 0;
  TRY(tensor_new(j->scope, j->in->dtype, 1, &numel, out));
  for (int q = 0; q < members; q++) {
    int coord[MAX_AXES];
    int64_t size[MAX_DIMS], stride[MAX_DIMS];
    member_coord(j->mesh, j->step->axes, q, coord);
    TRY(region_of(&after, coord, &j->arena, &part));
    counts[q] = 1;
    for (int d = 0; d < part.ndim; d++) size[d] = part.dim[d].size, counts[q] *= size[d];
    contiguous_strides(part.ndim, size, stride);
    BoxList from = {0}, into = {0};
    TRY(boxes_shared(&mine, j->in->stride, &part, stride, q, &j->arena, &from, &into));
    if (!from.n) continue;
    char *base = (char *)tensor_data(*out) + at * (int64_t)dtype_size(j->in->dtype);
    for (int i = 0; i < from.n; i++)
      kernel_copy(&j->ctx->kern, box_view(base, j->in->dtype, &into.v[i]),
                  box_view(tensor_data(j->in), j->in->dtype, &from.v[i]));
    at += counts[q];
  }
  return OK;
}

static Status do_reduce_scatter(Job *j) {
  int64_t *counts;
  Tensor *packed;
  TRY(mesh_group(j->mesh, j->step->axes, &j->group));
  TRY_NEW(counts, arena_new_n(&j->arena, int64_t, comm_size(j->group)));
  TRY(pack_parts(j, comm_size(j->group), counts, &packed));
  TRY(new_local(j, j->step->after, &j->out));
  j->coll = (Coll){.kind = COLL_REDUCE_SCATTER,
                   .dtype = j->spec->dtype,
                   .op = step_reduction(j->mesh, j->step).op,
                   .send = tensor_data(packed),
                   .recv = tensor_data(j->out),
                   .counts = counts,
                   .where = j->mesh->hash,
                   .why = j->why};
  return OK;
}

static bool reduces(const Job *j) {
  return j->step->kind == STEP_ALL_REDUCE || j->step->kind == STEP_REDUCE_SCATTER;
}

static Status do_reduce(Job *j) {
  double norm = step_reduction(j->mesh, j->step).norm;
  if (norm != 0) TRY(raise(j, j->in, norm, &j->in));
  return j->step->kind == STEP_ALL_REDUCE ? do_all_reduce(j) : do_reduce_scatter(j);
}

static Status finish_reduce(Job *j) {
  StepReduction how = step_reduction(j->mesh, j->step);
  Call c = {.ctx = j->ctx, .scope = j->scope, .arena = &j->arena};
  if (how.factor != 1) TRY(OP(&c, "aten.mul.Scalar", &j->out, val_tensor(j->out), val_float(how.factor)));
  return how.norm != 0 ? raise(j, j->out, 1 / how.norm, &j->out) : OK;
}

/* ---- steps in turn ------------------------------------------------------------------------------ */

static Status log_event(Dist *d, CommEvent e) {
  if (e.why) TRY_NEW(e.why, arena_strdup(&d->arena, e.why));
  else e.why = "";
  if (d->rule) TRY_NEW(e.rule, arena_strdup(&d->arena, d->rule));
  for (CommLog *log = d->log; log; log = log->outer) {
    TRY_ROOM(log->event, log->n, log->cap);
    log->event[log->n++] = e;
    log->count[e.kind]++;
  }
  return OK;
}

Status dist_log(Dist *d, StepKind kind, unsigned axes, int64_t bytes, const char *why) {
  return d->log ? log_event(d, (CommEvent){.kind = kind, .bytes = bytes, .axes = axes, .why = why}) : OK;
}

Status dist_log_step(const Spec *spec, const Step *step, const char *why) {
  CommEvent e = {.kind = step->kind, .bytes = step->bytes, .axes = step->axes, .why = why};
  if (!spec->mesh->dist->log) return OK;
  TRY(spec_with(spec, step->before, &e.from));
  TRY(spec_with(spec, step->after, &e.to));
  return log_event(spec->mesh->dist, e);
}

static bool group_is_one(const Mesh *m, unsigned axes) {
  for (int a = 0; a < m->naxes; a++)
    if (axes >> a & 1 && m->axis[a] > 1) return false;
  return true;
}

/* Local steps are done; others leave j->group and j->coll. */
static Status prepare_step(Job *j) {
  j->group = NULL;
  switch (j->step->kind) {
    case STEP_SLICE: return do_slice(j);
    case STEP_PARTITION: return do_partition(j);
    case STEP_ALL_GATHER:
    case STEP_ALL_TO_ALL:
    case STEP_EXCHANGE: return do_move(j);
    case STEP_REDUCE_SCATTER:
    case STEP_ALL_REDUCE: return do_reduce(j);
    case STEP_SCATTER:
    case STEP_KIND_COUNT: break;
  }
  return OK;
}

static Status finish_step(Job *j) { return reduces(j) ? finish_reduce(j) : OK; }

/* A step that would talk to nobody leaves the layout as it is. */
static bool is_idle(const Job *j) {
  return step_communicates(j->step->kind) && group_is_one(j->mesh, j->step->axes);
}

/* Prepares step i; the result of the last step that was not idle is its input. */
static Status begin_step(Job *j, const Route *route, int i) {
  j->step = &route->step[i];
  j->in = j->out;
  if (is_idle(j)) return OK;
  if (step_communicates(j->step->kind))
    TRY(dist_log(j->mesh->dist, j->step->kind, j->step->axes, j->step->bytes, j->why));
  return prepare_step(j);
}

static Status run_steps(Job *j, const Route *route, int begin, int end) {
  Status s = OK;
  for (int i = begin; i < end && !s; i++) {
    s = begin_step(j, route, i);
    if (!s && !is_idle(j) && j->group) s = comm_run(j->group, &j->coll);
    if (!s && !is_idle(j)) s = finish_step(j);
    arena_free(&j->arena);
  }
  return s;
}

static Status run_plan(Ctx *ctx, const Spec *from, const Route *route, Tensor *local, const char *why, Scope *scope,
                       Tensor **out) {
  Job j = {.ctx = ctx, .mesh = from->mesh, .spec = from, .why = why, .scope = scope, .in = local, .out = local};
  Status s = run_steps(&j, route, 0, route->n);
  *out = j.out;
  return s;
}

/* ---- started, and waited for later ------------------------------------------------------------ */

struct Redistribution {
  Scope scope; /* of all tensors on the way */
  Arena arena; /* of the route */
  Route route;
  Job job;
  int next; /* first step that is not begun */
  CommWork *work;
};

static void redistribution_free(Redistribution *r) {
  arena_free(&r->job.arena);
  arena_free(&r->arena);
  scope_clear(&r->scope);
  free(r);
}

/* The last step that communicates: what comes after it is local. */
static int last_collective(const Redistribution *r) {
  int last = r->route.n;
  while (last > 0 && (!step_communicates(r->route.step[last - 1].kind) ||
                      group_is_one(r->job.mesh, r->route.step[last - 1].axes)))
    last--;
  return last - 1;
}

static Status start_plan(Redistribution *r, const Spec *from, const Spec *to) {
  TRY(route_find(from, to, &r->arena, &r->route));
  int last = last_collective(r);
  r->next = last + 1;
  if (last < 0) return OK;
  TRY(run_steps(&r->job, &r->route, 0, last));
  TRY(begin_step(&r->job, &r->route, last));
  return comm_start(r->job.group, &r->job.coll, &r->work);
}

Status redistribute_start(Ctx *ctx, const Spec *from, const Spec *to, const Tensor *local, const char *why,
                          Redistribution **out) {
  if (from->mesh != to->mesh)
    return fail(ERR_USAGE, "only a redistribution within one mesh can be started and waited for");
  Redistribution *r;
  TRY_NEW(r, calloc(1, sizeof *r));
  r->job = (Job){.ctx = ctx, .mesh = from->mesh, .spec = from, .why = why, .scope = &r->scope};
  Status s = tensor_alias(&r->scope, local, &r->job.out);
  if (!s && from->mesh->inside && from != to) s = start_plan(r, from, to);
  if (s) redistribution_free(r);
  else *out = r;
  return s;
}

Status redistribute_wait(Redistribution *r, Scope *scope, Tensor **out) {
  Status s = r->work ? comm_wait(r->work) : OK;
  if (!s && r->work) s = finish_step(&r->job);
  arena_free(&r->job.arena);
  if (!s) s = run_steps(&r->job, &r->route, r->next, r->route.n);
  if (!s) s = tensor_alias(scope, r->job.out, out);
  redistribution_free(r);
  return s;
}

/* ---- from one mesh to another ------------------------------------------------------------------- */

/* Which rank gives to `taker`: on axes that do not cut, holders are spread by position. */
static bool gives_across(const Mesh *m, const Placement *place, const int *giver, int64_t taker) {
  for (int a = m->naxes - 1; a >= 0; a--) {
    if (is_s(&place[a])) continue;
    if (giver[a] != (int)(taker % m->axis[a])) return false;
    taker /= m->axis[a];
  }
  return true;
}

static Status exchange_across(Ctx *ctx, const Spec *from, const Spec *to, Tensor *local, const char *why,
                              Tensor *out, Arena *arena) {
  World *w = from->mesh->dist->world;
  Comm *all = world_comm(w);
  int me = world_rank(w);
  Layout before = spec_layout(from), after = spec_layout(to);
  int64_t stride[MAX_DIMS] = {0};
  int mine[MAX_AXES], theirs[MAX_AXES];
  Region have, want, other;
  BoxList send = {0}, recv = {0};
  bool giver = mesh_coord_of(from->mesh, me, mine);
  if (giver) TRY(region_of(&before, mine, arena, &have));
  for (int i = 0; giver && i < to->mesh->size; i++) {
    mesh_coord(to->mesh->axis, to->mesh->naxes, i, theirs);
    if (!gives_across(from->mesh, from->place, mine, i)) continue;
    TRY(region_of(&after, theirs, arena, &other));
    TRY(boxes_shared(&have, local->stride, &other, stride, to->mesh->rank[i], arena, &send, NULL));
  }
  bool taker = mesh_coord_of(to->mesh, me, mine);
  if (taker) TRY(region_of(&after, mine, arena, &want));
  for (int i = 0; taker && i < from->mesh->size; i++) {
    mesh_coord(from->mesh->axis, from->mesh->naxes, i, theirs);
    if (!gives_across(from->mesh, from->place, theirs, mesh_position(to->mesh->axis, to->mesh->naxes, mine)))
      continue;
    TRY(region_of(&before, theirs, arena, &other));
    TRY(boxes_shared(&other, stride, &want, out->stride, from->mesh->rank[i], arena, NULL, &recv));
  }
  Coll c = {.kind = COLL_EXCHANGE,
            .dtype = from->dtype,
            .send = tensor_data(local),
            .recv = tensor_data(out),
            .send_box = send.v,
            .nsend = send.n,
            .recv_box = recv.v,
            .nrecv = recv.n,
            .why = why};
  TRY(dist_log(from->mesh->dist, STEP_EXCHANGE, 0, to->local_numel * (int64_t)dtype_size(to->dtype), why));
  (void)ctx;
  return comm_run(all, &c);
}

static Status redistribute_across(Ctx *ctx, const Spec *from, const Spec *to, Tensor *local, const char *why,
                                  Scope *scope, Tensor **out) {
  Placement reduced[MAX_AXES], arrive[MAX_AXES];
  for (int a = 0; a < from->mesh->naxes; a++) reduced[a] = is_p(&from->place[a]) ? place_r() : from->place[a];
  for (int a = 0; a < to->mesh->naxes; a++) arrive[a] = is_p(&to->place[a]) ? place_r() : to->place[a];
  const Spec *whole, *landed;
  TRY(spec_with(from, reduced, &whole));
  TRY(spec_with(to, arrive, &landed));
  if (from->mesh->inside) TRY(redistribute_local(ctx, from, whole, local, why, scope, &local));
  Tensor *there;
  TRY(tensor_new(scope, to->dtype, landed->local_ndim, landed->local, &there));
  Arena arena = {0};
  Status s = exchange_across(ctx, whole, landed, local, why, there, &arena);
  arena_free(&arena);
  TRY(s);
  *out = there;
  return to->mesh->inside ? redistribute_local(ctx, landed, to, there, why, scope, out) : OK;
}

Status redistribute_local(Ctx *ctx, const Spec *from, const Spec *to, Tensor *local, const char *why, Scope *scope,
                          Tensor **out) {
  *out = local;
  if (from == to) return OK;
  if (from->mesh != to->mesh) return redistribute_across(ctx, from, to, local, why, scope, out);
  if (!from->mesh->inside) return OK;
  if (ctx_is_recording(ctx)) return redistribute_emit(ctx, from, to, local, why, scope, out);
  Arena arena = {0};
  Route route;
  Status s = route_find(from, to, &arena, &route);
  if (!s) s = run_plan(ctx, from, &route, local, why, scope, out);
  arena_free(&arena);
  return s;
}

/* Is the result of the last step's collective the result? */
static bool ends_with_collective(const Mesh *m, const Route *p) {
  StepReduction how = step_reduction(m, &p->step[p->n - 1]);
  return how.norm == 0 && how.factor == 1;
}

Status redistribute_into(Ctx *ctx, const Spec *from, const Route *route, Tensor *local, const char *why,
                         Tensor *out) {
  Scope scope = {0};
  Job j = {.ctx = ctx, .mesh = from->mesh, .spec = from, .why = why, .scope = &scope, .in = local, .out = local};
  int last = route->n ? route->n - 1 : 0;
  Status s = run_steps(&j, route, 0, last);
  bool direct = route->n > 0 && tensor_is_contiguous(out) && ends_with_collective(j.mesh, route);
  j.into = direct ? out : NULL;
  if (!s) s = run_steps(&j, route, last, route->n);
  if (!s && j.out != out) kernel_copy(&ctx->kern, tensor_view(out), tensor_view(j.out));
  scope_clear(&scope);
  return s;
}

/* ---- logs ------------------------------------------------------------------------------------------ */

void comm_log_begin(Dist *d, CommLog *log) {
  *log = (CommLog){0};
  comm_log_resume(d, log);
}

void comm_log_resume(Dist *d, CommLog *log) {
  log->outer = d->log;
  d->log = log;
}

void comm_log_end(Dist *d, CommLog *log) { d->log = log->outer; }

void comm_log_free(CommLog *log) {
  free(log->event);
  *log = (CommLog){0};
}

ImplicitMode dist_set_implicit(Dist *d, ImplicitMode mode) {
  ImplicitMode former = d->implicit;
  d->implicit = mode;
  return former;
}
