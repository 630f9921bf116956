/* ops_dtensor.c -- ops that make, move and open DTensors.  They stand here and not in ops/, because they
 * know meshes; the registry finds them like any family.
 *
 *   tess.redistribute             one step of a route, as the program of one rank has it: plain shards
 *   tess.dtensor_from_local       a shard that every rank holds becomes a DTensor
 *   tess.dtensor_redistribute     a DTensor, placed otherwise
 *   tess.dtensor_to_local         its shard
 *
 * The last three are how dtensor.h's functions reach the dispatcher, so that whoever stands in the line
 * of handlers sees them as it sees any op.  Their specs are values of kind VAL_SPEC: they are never part
 * of a program.
 */
#include <stdlib.h>

#include "dist/dist.h"
#include "dist/run_sharded.h"
#include "ops/geometry.h"

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

const OpDef ops_dtensor[] = {
    {.schema =
         "tess::redistribute(Tensor self, str mesh, str src, str dst, SymInt[] shape, SymInt[] size, str why) "
         "-> Tensor",
     .infer = redistribute_infer,
     .run = redistribute_run,
     .flags = OP_RANDOM},
    {.schema = "tess::dtensor_from_local(Tensor self, Any spec) -> Tensor",
     .run = from_local_run,
     .flags = OP_DTENSOR},
    {.schema = "tess::dtensor_redistribute(Tensor self, Any spec, str why, bool lazy=False) -> Tensor",
     .run = dtensor_redistribute_run,
     .flags = OP_DTENSOR},
    {.schema = "tess::dtensor_to_local(Tensor self, Any grad_spec=None) -> Tensor",
     .run = to_local_run,
     .flags = OP_DTENSOR},
    {0}};
