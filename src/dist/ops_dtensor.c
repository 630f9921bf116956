/* ops_dtensor.c -- ops that make, move and open DTensors.  They stand here and not in ops/, because they
 * know meshes; the registry finds them like any family.
 *
 *   tess.redistribute             one step of a route, as the program of one rank has it: plain shards
 *   tess.dtensor_from_local       a shard that every rank holds becomes a DTensor
 *   tess.dtensor_redistribute     a DTensor, placed otherwise
 *   tess.dtensor_to_local         its shard
 *   tess.dtensor_distribute       a plain tensor that all ranks have becomes a DTensor
 *
 * The last four are how dtensor.h's functions reach the dispatcher, so that whoever stands in the line
 * of handlers sees them as it sees any op.  Their specs are values of kind VAL_SPEC: they are never part
 * of a program.
 */
#include <stdlib.h>
#include <string.h>

#include "dist/dist.h"
#include "dist/dtensor.h"
#include "dist/run_sharded.h"
#include "ops/geometry.h"
#include "ops/vjp.h"

/* ---- one step of a recorded program -------------------------------------------------------------- */

/* redistribute(self, mesh, src, dst, shape, size, why): this rank's shard (`size`) of a
 * tensor of `shape` placed dst, from its shard as src has it.  Every rank of the mesh calls
 * it.  Not a function of its arguments: what the others have is in the result. */
static Status redistribute_infer(Call *c) {
  Tensor *self;
  Ints size = in_ints(c, 5);
  TRY(need_tensor(c, 0, &self));
  return out_new(c, self->dtype, size.n, size.v);
}

/* What a call site keeps: its route, of one step. */
typedef struct {
  Arena arena;
  const Spec *from;
  Route route;
} Site;

static void site_free(void *site) {
  arena_free(&((Site *)site)->arena);
  free(site);
}

static Status site_read(Call *c, Site *site) {
  Dist *d = c->ctx->dist;
  Ints shape = in_ints(c, 4);
  Placement place[MAX_AXES];
  const Spec *to;
  Mesh *mesh;
  int n;
  TRY(mesh_parse(d, in_str(c, 1), &mesh));
  if (!mesh->inside) return op_fail(c, "this rank is outside of the mesh %s", in_str(c, 1));
  TRY(placements_parse(in_str(c, 2), shape.n, place, &n));
  TRY(spec_new(mesh, in_tensor(c, 0)->dtype, shape.n, shape.v, NULL, place, &site->from));
  TRY(placements_parse(in_str(c, 3), shape.n, place, &n));
  TRY(spec_with(site->from, place, &to));
  return route_find(site->from, to, &site->arena, &site->route);
}

static Status site_find(Call *c, Site **out) {
  if (c->state && *c->state) return *out = *c->state, OK;
  Site *site;
  TRY_NEW(site, calloc(1, sizeof *site));
  Status s = site_read(c, site);
  if (s) {
    site_free(site);
    return s;
  }
  if (c->state) {
    *c->state = site;
    *c->state_free = site_free;
  }
  *out = site;
  return OK;
}

static Status redistribute_run(Call *c) {
  Site *site;
  if (!c->ctx->dist)
    return status_hint(op_fail(c, "needs the ranks of the mesh %s, and there is only this one", in_str(c, 1)),
                       "run it with --mesh");
  TRY(site_find(c, &site));
  Status s = redistribute_into(c->ctx, site->from, &site->route, in_tensor(c, 0), in_str(c, 6), out_tensor(c, 0));
  if (!c->state) site_free(site);
  return s;
}

/* ---- DTensors ------------------------------------------------------------------------------------- */

static Status need_dtensor(const Call *c, Tensor **out) {
  TRY(need_tensor(c, 0, out));
  return (*out)->spec ? OK : op_fail(c, "takes a DTensor, not a plain tensor");
}

static Status need_spec(const Call *c, const Spec **out) {
  if (c->arg[1].kind != VAL_SPEC) return op_fail(c, "argument 'spec' is no spec of a DTensor");
  *out = c->arg[1].spec;
  return OK;
}

static Status give_dtensor(Call *c, const Spec *spec, Tensor *local) {
  Tensor *t;
  TRY(dtensor_wrap(c->scope, spec, local, &t));
  return out_value(c, val_tensor(t));
}

static Status from_local_run(Call *c) {
  Tensor *local;
  const Spec *spec = NULL;
  TRY(need_tensor(c, 0, &local));
  TRY(need_spec(c, &spec));
  TRY(tensor_alias(c->scope, local, &local));
  return give_dtensor(c, spec, local);
}

static Status dtensor_redistribute_run(Call *c) {
  Tensor *self;
  const Spec *to = NULL;
  TRY(need_dtensor(c, &self));
  TRY(need_spec(c, &to));
  if (to->dtype != self->dtype) TRY(OP(c, "aten._to_copy.default", &self, val_tensor(self), val_dtype(to->dtype)));
  Tensor *local = self->local;
  if (local) {
    TRY(redistribute_local(c->ctx, self->spec, to, local, in_str(c, 2), c->scope, &local));
    TRY(tensor_alias(c->scope, local, &local));
  }
  return give_dtensor(c, to, local);
}

static Status to_local_run(Call *c) {
  Tensor *self;
  TRY(need_dtensor(c, &self));
  if (!self->local) return op_fail(c, "a DTensor on a mesh without ranks has no shard");
  return out_alias(c, self->local);
}

static Status distribute_run(Call *c) {
  Tensor *self, *local;
  const Spec *to = NULL;
  TRY(need_tensor(c, 0, &self));
  TRY(need_spec(c, &to));
  TRY(dtensor_cut(c->ctx, c->scope, self, to, (int)in_int(c, 2), &local));
  return give_dtensor(c, to, local);
}

const OpDef ops_dtensor[] = {
    {.schema =
         "tess::redistribute(Tensor self, str mesh, str src, str dst, SymInt[] shape, SymInt[] size, str why) "
         "-> Tensor",
     .infer = redistribute_infer,
     .run = redistribute_run,
     .flags = OP_RANDOM},
    {.schema = "tess::dtensor_from_local(Tensor self, Any spec, Any grad_spec=None) -> Tensor",
     .run = from_local_run,
     .flags = OP_DTENSOR},
    {.schema = "tess::dtensor_redistribute(Tensor self, Any spec, str why, bool lazy=False, ScalarType? "
               "backward_dtype=None) -> Tensor",
     .run = dtensor_redistribute_run,
     .flags = OP_DTENSOR},
    {.schema = "tess::dtensor_distribute(Tensor self, Any spec, int src) -> Tensor",
     .run = distribute_run,
     .flags = OP_DTENSOR},
    {.schema = "tess::dtensor_to_local(Tensor self, Any grad_spec=None) -> Tensor",
     .run = to_local_run,
     .flags = OP_DTENSOR},
    {0}};

/* ---- gradients -------------------------------------------------------------------------------------- */

static Value value_of(const Spec *spec) { return (Value){.kind = VAL_SPEC, .spec = spec}; }

/* g on its way to where `place` has it; of: what it is the cotangent of, or why that was moved. */
static Tensor *bring(Vjp *v, Tensor *g, const Placement *place, const char *of, bool lazy) {
  const Spec *to;
  if (v->f.status) return NULL;
  v->f.status = spec_with_some(g->spec, place, &to);
  if (v->f.status || to == g->spec) return g;
  const char *why = arena_printf(v->f.c->arena, "cotangent of %s", of);
  if (!why) v->f.status = fail_oom();
  if (!why) return NULL;
  return F_OP(&v->f, "tess.dtensor_redistribute.default", F_T(g), value_of(to), val_str(why), val_bool(lazy));
}

static bool is_dtensor(Vjp *v, const Tensor *g, const char *what) {
  if (!v->f.status && !g->spec)
    v->f.status = fail(ERR_USAGE, "the cotangent of %s is a plain tensor, not a DTensor", what);
  return !v->f.status;
}

/* Back to where the tensor was.  Values are never made partial again: what was partial gets its gradient whole,
 * or partial as it comes.  Lazily (dtensor_place) the gradient of what was replicated stays where it is: what is
 * done with it next decides.  It is sent in the dtype that the tensor had before it was cast, or in the one asked
 * for. */
static void vjp_redistribute(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  const Spec *from = vjp_arg(v, 0)->spec;
  bool lazy = in_bool(v->forward, 3);
  if (!is_dtensor(v, g, "redistribute")) return;
  Dtype sent = in_dtype(v->forward, 4, vjp_arg(v, 0)->dtype);
  if (g->dtype != sent) g = F_OP(&v->f, "aten._to_copy.default", F_T(g), val_dtype(sent));
  if (!g) return;
  Placement place[MAX_AXES];
  for (int a = 0; a < from->mesh->naxes; a++) {
    const Placement *was = &from->place[a], *is = &g->spec->place[a];
    if (is_p(was)) place[a] = is_s(is) ? place_r() : *is;
    else if (is_r(was) && lazy) place[a] = *is;
    else place[a] = *was;
  }
  vjp_give(v, 0, bring(v, g, place, in_str(v->forward, 2), lazy));
}

/* Partial gradients become whole: a shard's gradient is the gradient of what it stands for. */
static void without_partial(const Spec *spec, Placement *place) {
  for (int a = 0; a < spec->mesh->naxes; a++) place[a] = is_p(&spec->place[a]) ? place_r() : spec->place[a];
}

static const Spec *grad_spec(const Vjp *v, int arg) {
  return v->forward->arg[arg].kind == VAL_SPEC ? v->forward->arg[arg].spec : NULL;
}

/* Are shards of the same size under both, on every rank? */
static Status check_fits(const Spec *shards, const Spec *gradient) {
  const Mesh *m = shards->mesh;
  Layout l = spec_layout(shards), g = spec_layout(gradient);
  int coord[MAX_AXES];
  int64_t want[MAX_DIMS], is[MAX_DIMS];
  char a[200], b[200];
  for (int i = 0; i < m->size; i++) {
    mesh_coord(m->axis, m->naxes, i, coord);
    TRY(layout_local(&l, coord, want));
    TRY(layout_local(&g, coord, is));
    if (memcmp(want, is, (size_t)shards->ndim * sizeof *is))
      return status_hint(fail(ERR_USAGE,
                              "from_local: grad_placements give rank %d a gradient of size %s for its shard %s",
                              m->rank[i], shape_describe(shards->ndim, is, a, sizeof a),
                              shape_describe(shards->ndim, want, b, sizeof b)),
                         "take placements under which shards are of the same size");
  }
  return OK;
}

static void vjp_from_local(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  const Spec *asked = grad_spec(v, 2), *own = v->forward->arg[1].spec;
  Placement place[MAX_AXES];
  if (!is_dtensor(v, g, "from_local")) return;
  if (asked && (v->f.status = check_fits(own, asked))) return;
  without_partial(own, place);
  g = bring(v, g, asked ? asked->place : place, "from_local", false);
  vjp_give(v, 0, F_OP(&v->f, "tess.dtensor_to_local.default", F_T(g)));
}

/* What all ranks had gets its gradient whole. */
static void vjp_distribute(Vjp *v) {
  const Placement whole[MAX_AXES] = {{.kind = PLACE_R}};
  Tensor *g = vjp_cotangent(v);
  if (!is_dtensor(v, g, "distribute_tensor")) return;
  g = bring(v, g, whole, "distribute_tensor", false);
  vjp_give(v, 0, F_OP(&v->f, "tess.dtensor_to_local.default", F_T(g)));
}

static void vjp_to_local(Vjp *v) {
  const Spec *own = vjp_arg(v, 0)->spec, *asked = grad_spec(v, 1);
  Placement place[MAX_AXES];
  without_partial(own, place);
  if (!asked && !v->f.status) v->f.status = spec_with(own, place, &asked);
  vjp_give(v, 0, F_OP(&v->f, "tess.dtensor_from_local.default", F_T(vjp_cotangent(v)), value_of(asked)));
}

const GradDef grads_dtensor[] = {
    GRAD("tess.dtensor_redistribute.default", vjp_redistribute, NULL),
    GRAD("tess.dtensor_from_local.default", vjp_from_local, NULL),
    GRAD("tess.dtensor_to_local.default", vjp_to_local, NULL),
    GRAD("tess.dtensor_distribute.default", vjp_distribute, NULL),
    {0},
};
