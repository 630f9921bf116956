/* group.c -- parameters become shards of a group, and what is put in their places later is taken in; see fsdp.h. */
#include <stdlib.h>
#include <string.h>

#include "dist/dtensor.h"
#include "dist/run_sharded.h"
#include "fsdp/fsdp_inside.h"
#include "kernels/copy.h"

View fsdp_box_view(void *base, Dtype dtype, const Box *b) {
  return (View){(char *)base + b->offset * (int64_t)dtype_size(dtype), b->size, b->stride, b->ndim, dtype};
}

static const Tensor *held_by(const Tensor *t) { return t->spec ? t->local : t; }
static bool has_data(const Tensor *t) { return held_by(t) && held_by(t)->storage && held_by(t)->storage->data; }

/* ---- layout --------------------------------------------------------------------------------------------- */

/* Coordinates of the members: this rank's, but for the axis along which they differ. */
static Status member_coords(const Mesh *m, int axis, int members, Arena *arena, const int **out) {
  int *coord;
  TRY_NEW(coord, arena_new_n(arena, int, members * m->naxes + 1));
  for (int i = 0; i < members; i++)
    for (int a = 0; a < m->naxes; a++) coord[i * m->naxes + a] = a == axis ? i : m->coord[a];
  *out = coord;
  return OK;
}

static Status place_param(FsdpGroup *g, FsdpParam *p, int dim, FlatParam *flat) {
  const Tensor *t = g->unit->slots->get(&p->slot[0]);
  DpPlace place;
  Placement cut[MAX_AXES], *whole;
  if (!t) return fail(ERR_USAGE, "there is no parameter '%s'", p->name);
  if (!t->ndim)
    return status_hint(fail(ERR_USAGE, "parameter '%s' is a scalar, which cannot be sharded", p->name),
                       "make it a tensor of one element");
  if (dim < -t->ndim || dim >= t->ndim)
    return fail(ERR_USAGE, "parameter '%s' of %d dimensions cannot be sharded along dimension %d", p->name, t->ndim,
                dim);
  if (dim < 0) dim += t->ndim;
  TRY(status_at(dp_place(&g->mesh, t->spec, &place), "parameter '%s'", p->name));
  if (!place.mesh->inside) return fail(ERR_USAGE, "this rank is outside of the mesh of parameter '%s'", p->name);
  TRY_NEW(whole, arena_new_n(&g->arena, Placement, MAX_AXES));
  memcpy(whole, place.whole, sizeof place.whole);
  memcpy(cut, place.whole, sizeof cut);
  if (place.shard >= 0) TRY(dp_cut(place.mesh, whole, t->ndim, t->size, place.shard, dim, cut));
  TRY(spec_new(place.mesh, t->dtype, t->ndim, t->size, NULL, cut, &p->spec));
  p->whole = t->spec;
  p->dtype = t->dtype;
  p->ndim = t->ndim;
  p->dim = dim;
  p->shard_axis = place.shard;
  flat->shard = spec_layout(p->spec);
  flat->whole = flat->shard;
  flat->whole.place = whole;
  return member_coords(place.mesh, place.shard, dp_shard_size(&g->mesh), &g->arena, &flat->coord);
}

/* The records of a way to shard: of dtypes as they are, or as they are gathered. */
static Status finish_shards(FsdpGroup *g, FsdpShards *s, bool gathered) {
  TRY_NEW(s->dtype, arena_new_n(&g->arena, Dtype, g->n + 1));
  TRY_NEW(s->at, arena_new_n(&g->arena, int64_t, g->n + 1));
  TRY_NEW(s->cast_at, arena_new_n(&g->arena, int64_t, g->n + 1));
  for (int p = 0; p < g->n; p++) s->dtype[p] = gathered ? g->param[p].gathered : g->param[p].dtype;
  s->bytes = flat_places(&s->flat, flat_counts(&s->flat, s->flat.me), s->dtype, NULL, s->at);
  return OK;
}

static Status lay_out(FsdpGroup *g, const FsdpParamGiven *given) {
  FlatParam *flat;
  TRY_NEW(flat, arena_new_n(&g->arena, FlatParam, g->n + 1));
  for (int p = 0; p < g->n; p++) TRY(place_param(g, &g->param[p], given[p].dim, &flat[p]));
  int members = dp_shard_size(&g->mesh), me = g->mesh.shard < 0 ? 0 : g->mesh.mesh->coord[g->mesh.shard];
  TRY(flat_group_new(flat, g->n, members, me, &g->arena, &g->shards.flat));
  for (int p = 0; p < g->n; p++) TRY(flat_whole_size(&g->shards.flat, p, g->param[p].size));
  if (members > 1) TRY(mesh_group(g->mesh.mesh, 1u << g->mesh.shard, &g->shards.comm));
  if (dp_replicate_size(&g->mesh) > 1) TRY(mesh_group(g->mesh.mesh, 1u << g->mesh.replicate, &g->replicas));
  return finish_shards(g, &g->shards, false);
}

/* Shards of k ranks: the axis of the shard group is two, of which the second cuts. */
static Status lay_out_post(FsdpGroup *g, int k) {
  FlatParam *flat;
  Mesh *split;
  TRY_NEW(flat, arena_new_n(&g->arena, FlatParam, g->n + 1));
  TRY(dp_split_axis(g->mesh.mesh, g->mesh.shard, k, &split));
  TRY(mesh_group(split, 1u << (g->mesh.shard + 1), &g->post.comm));
  for (int i = 0; i < g->n; i++) {
    FsdpParam *p = &g->param[i];
    const Placement *before = g->shards.flat.param[i].whole.place;
    Placement *whole, cut[MAX_AXES];
    Mesh *mesh;
    TRY_NEW(whole, arena_new_n(&g->arena, Placement, MAX_AXES));
    TRY(dp_split_axis(p->spec->mesh, p->shard_axis, k, &mesh));
    for (int a = 0; a < mesh->naxes; a++) whole[a] = before[a > p->shard_axis ? a - 1 : a];
    TRY(dp_cut(mesh, whole, p->ndim, p->spec->shape, p->shard_axis + 1, p->dim, cut));
    TRY(spec_new(mesh, p->gathered, p->ndim, p->spec->shape, NULL, cut, &p->post_spec));
    flat[i].shard = flat[i].whole = spec_layout(p->post_spec);
    flat[i].whole.place = whole;
    TRY(member_coords(mesh, p->shard_axis + 1, k, &g->arena, &flat[i].coord));
  }
  TRY(flat_group_new(flat, g->n, k, comm_rank(g->post.comm), &g->arena, &g->post.flat));
  TRY(finish_shards(g, &g->post, true));
  return flat_gather(&g->post.flat, g->post.dtype, &g->arena, &g->post.gather);
}

Status fsdp_group_set_reshard(FsdpGroup *g, Reshard how, int ranks) {
  TRY(dp_reshard(&g->mesh, how, ranks, &g->reshard));
  if (g->reshard == RESHARD_DEFAULT) g->reshard = RESHARD_ALWAYS;
  g->options.reshard = how;
  g->options.reshard_ranks = ranks;
  return OK;
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* Parameter p's shard in the flat one, as a DTensor. */
static Status shard_tensor(const FsdpShards *from, int p, const Spec *spec, Scope *scope, Tensor **out) {
  Tensor *local;
  TRY(tensor_meta(scope, spec->dtype, spec->ndim, spec->local, &local));
  local->storage = storage_ref(from->storage);
  local->offset = from->storage ? from->at[p] / (int64_t)dtype_size(spec->dtype) : 0;
  return dtensor_wrap(scope, spec, local, out);
}

/* The handle that the group itself keeps of a parameter's shard. */
static Status hold_sharded(FsdpGroup *g, int i) {
  FsdpParam *p = &g->param[i];
  Scope scope = {0};
  Tensor *t, *held = NULL;
  Status s = shard_tensor(&g->shards, i, p->spec, &scope, &t);
  if (!s && p->sharded) { /* its leaf stays the same */
    t->grad = grad_ref(p->sharded->grad);
    t->grad_out = p->sharded->grad_out;
  }
  if (!s) s = tensor_hold(t, &held);
  if (!s) {
    tensor_release(p->sharded);
    p->sharded = held;
  }
  scope_clear(&scope);
  return s;
}

/* Memory for the flat shard, cleared. */
static Status new_shards(FsdpGroup *g) {
  TRY(fsdp_shard_storage((size_t)g->shards.bytes, g->options.offload, &g->shards.storage));
  memset(g->shards.storage->data, 0, (size_t)g->shards.bytes);
  for (int p = 0; p < g->n; p++) TRY(hold_sharded(g, p));
  return OK;
}

Status fsdp_group_materialize(FsdpGroup *g) {
  if (!g->shards.storage) TRY(new_shards(g));
  for (int p = 0; p < g->n; p++) g->param[p].meta = false;
  return g->state == FSDP_SHARDED ? fsdp_group_put(g, false) : OK;
}

static void forget_original(FsdpParam *p) {
  storage_unref(p->original);
  p->original = NULL;
}

void fsdp_forget_originals(FsdpGroup *g) {
  for (int p = 0; p < g->n; p++) forget_original(&g->param[p]);
}

/* This rank's part of the whole that t is. */
static Status copy_part(FsdpGroup *g, int p, const Tensor *t) {
  const Tensor *whole = held_by(t);
  Arena arena = {0};
  BoxList from = {0}, into = {0};
  Status s = flat_part(&g->shards.flat, g->shards.flat.me, p, whole->stride, &arena, &from, &into);
  char *base = (char *)g->shards.storage->data + g->shards.at[p];
  for (int i = 0; i < from.n && !s; i++)
    kernel_copy(&g->ctx->kern, fsdp_box_view(base, t->dtype, &into.v[i]),
                fsdp_box_view(tensor_data(whole), t->dtype, &from.v[i]));
  arena_free(&arena);
  return s;
}

static Status first_values(FsdpGroup *g) {
  bool some = false;
  for (int p = 0; p < g->n; p++) some |= has_data(g->unit->slots->get(&g->param[p].slot[0]));
  if (some) TRY(new_shards(g));
  for (int p = 0; p < g->n; p++) {
    const Tensor *t = g->unit->slots->get(&g->param[p].slot[0]);
    g->param[p].meta = !has_data(t);
    if (!g->param[p].meta) TRY(copy_part(g, p, t));
    g->param[p].original = storage_ref(held_by(t)->storage);
    g->param[p].original_at = held_by(t)->offset;
    if (!some) TRY(hold_sharded(g, p));
  }
  return OK;
}

/* Another tensor was put in the parameter's place: its values, as a shard. */
static Status as_shard(FsdpGroup *g, const FsdpParam *p, Tensor *t, Scope *scope, Tensor **out) {
  char is[160], want[160];
  if (t->dtype != p->dtype || t->ndim != p->ndim ||
      memcmp(t->size, p->spec->shape, (size_t)t->ndim * sizeof *t->size))
    return fail(ERR_USAGE, "group '%s': %s was put in the place of parameter '%s', which is %s", g->name,
                tensor_describe(t, is, sizeof is), p->name, spec_print(p->spec, want, sizeof want));
  TRY(tensor_alias(scope, t, &t));
  if (!t->spec) return dtensor_distribute(g->ctx, scope, t, p->spec->mesh, p->spec->place, -1, out);
  return t->spec == p->spec ? (*out = t, OK)
                            : dtensor_redistribute(g->ctx, scope, t, p->spec->mesh, p->spec->place, DT_NONE, out);
}

static Status take_in(FsdpGroup *g, int i, Tensor *t) {
  FsdpParam *p = &g->param[i];
  Scope scope = {0};
  Tensor *shard;
  Status s = as_shard(g, p, t, &scope, &shard);
  if (!s && !g->shards.storage) s = new_shards(g);
  if (!s && shard->local->storage) {
    View to = tensor_view(p->sharded->local);
    kernel_copy(&g->ctx->kern, to, tensor_view(shard->local));
    p->sharded->local->storage->version++;
  }
  scope_clear(&scope);
  return s;
}

/* What the slots hold is taken into the flat shard: values that were put there since. */
static Status adopt(FsdpGroup *g) {
  bool changed = false;
  for (int i = 0; i < g->n; i++) {
    FsdpParam *p = &g->param[i];
    Tensor *t = g->unit->slots->get(&p->slot[0]);
    if (!t) return fail(ERR_USAGE, "group '%s': parameter '%s' is gone from its module", g->name, p->name);
    if (t->spec == p->spec && (!has_data(t) || tensor_same_view(t->local, p->sharded->local))) continue;
    bool was_meta = p->meta;
    TRY(take_in(g, i, t));
    p->meta = was_meta && !has_data(t);
    changed = true;
  }
  return changed ? fsdp_group_put(g, false) : OK;
}

/* ---- slots ------------------------------------------------------------------------------------------------- */

Status fsdp_put_slots(const FsdpGroup *g, const FsdpParam *p, const Tensor *t) {
  for (int i = 0; i < p->nslots; i++) TRY(g->unit->slots->put(&p->slot[i], t));
  return OK;
}

/* The flag of the module is what counts, also if it was changed later. */
static Status sync_flag(FsdpGroup *g, FsdpParam *p) {
  p->requires_grad = g->unit->slots->requires_grad(&p->slot[0]);
  if (tensor_requires_grad(p->sharded) == p->requires_grad) return OK;
  return tape_set_required(g->unit->tape(g->ctx), p->sharded, p->requires_grad);
}

Status fsdp_group_put(FsdpGroup *g, bool post_forward) {
  for (int i = 0; i < g->n; i++) {
    FsdpParam *p = &g->param[i];
    Scope scope = {0};
    Tensor *t = p->sharded;
    TRY(sync_flag(g, p));
    t = p->sharded;
    Status s = post_forward ? shard_tensor(&g->post, i, p->post_spec, &scope, &t) : OK;
    if (!s) s = fsdp_put_slots(g, p, t);
    scope_clear(&scope);
    TRY(s);
  }
  return OK;
}

/* ---- before the first forward ----------------------------------------------------------------------------- */

static Status check_values(const FsdpGroup *g) {
  for (int i = 0; i < g->n; i++)
    if (g->param[i].meta)
      return status_hint(
          fail(ERR_USAGE, "group '%s': parameter '%s' has sizes and no values", g->name, g->param[i].name),
          "materialize the group and fill its shards, or load a state_dict, before training");
  return OK;
}

/* Gradients of a group are one buffer: of one dtype. */
static Status check_dtypes(const FsdpGroup *g) {
  const FsdpParam *first = NULL;
  for (int i = 0; i < g->n; i++) {
    const FsdpParam *p = &g->param[i];
    if (!p->requires_grad) continue;
    if (!first) first = p;
    if (p->dtype != first->dtype || p->reduced != first->reduced)
      return status_hint(fail(ERR_USAGE,
                              "group '%s': parameter '%s' is %s and '%s' is %s; its gradients are reduced together",
                              g->name, first->name, dtype_name(first->dtype), p->name, dtype_name(p->dtype)),
                         "put parameters of one dtype into a group, or freeze the others");
  }
  return OK;
}

/* dtypes follow from the policy. */
static Status set_dtypes(FsdpGroup *g) {
  for (int i = 0; i < g->n; i++) {
    FsdpParam *p = &g->param[i];
    Dtype param = g->options.precision.param, reduce = g->options.precision.reduce;
    dp_dtypes(p->dtype, &param, &reduce);
    p->gathered = param == DT_NONE ? p->dtype : param;
    p->reduced = reduce == DT_NONE ? p->gathered : reduce;
    g->gathered_dtype[i] = p->gathered;
    if (!p->whole) continue;
    TRY(spec_new(p->whole->mesh, p->gathered, p->ndim, p->whole->shape, NULL, p->whole->place, &p->whole));
  }
  g->whole_bytes = flat_places(&g->shards.flat, g->shards.flat.numel, g->gathered_dtype, NULL, g->whole_at);
  return flat_gather(&g->shards.flat, g->gathered_dtype, &g->arena, &g->shards.gather);
}

Status fsdp_group_init(FsdpGroup *g) {
  TRY(adopt(g));
  TRY(check_values(g));
  for (int i = 0; i < g->n; i++) TRY(sync_flag(g, &g->param[i]));
  TRY(check_dtypes(g));
  if (g->reshard == RESHARD_TO && !g->post.comm) TRY(lay_out_post(g, g->options.reshard_ranks));
  return fsdp_gathered_init(g);
}

/* ---- making and freeing -------------------------------------------------------------------------------------- */

static Status copy_given(FsdpGroup *g, const FsdpParamGiven *given) {
  TRY_NEW(g->param, arena_new_n(&g->arena, FsdpParam, g->n + 1));
  TRY_NEW(g->whole_at, arena_new_n(&g->arena, int64_t, g->n + 1));
  TRY_NEW(g->gathered_dtype, arena_new_n(&g->arena, Dtype, g->n + 1));
  for (int i = 0; i < g->n; i++) {
    FsdpParam *p = &g->param[i];
    TRY_NEW(p->name, arena_strdup(&g->arena, given[i].name));
    TRY_NEW(p->slot, arena_new_n(&g->arena, FsdpSlot, given[i].nslots));
    p->nslots = given[i].nslots;
    for (int s = 0; s < p->nslots; s++) {
      p->slot[s].module = given[i].slot[s].module;
      TRY_NEW(p->slot[s].name, arena_strdup(&g->arena, given[i].slot[s].name));
    }
  }
  return OK;
}

static Status fill(FsdpGroup *g, const FsdpParamGiven *given) {
  TRY(copy_given(g, given));
  TRY(lay_out(g, given));
  TRY(fsdp_group_set_reshard(g, g->options.reshard, g->options.reshard_ranks));
  if (g->options.offload) TRY_NEW(g->options.offload, arena_strdup(&g->arena, g->options.offload));
  TRY(set_dtypes(g));
  TRY(first_values(g));
  TRY(fsdp_group_put(g, false));
  for (int p = 0; p < g->n; p++)
    if (g->param[p].original && atomic_load(&g->param[p].original->refs) == 1) forget_original(&g->param[p]);
  return OK;
}

Status fsdp_group_new(FsdpUnit *unit, const DpMesh *mesh, const FsdpOptions *options, const FsdpParamGiven *given,
                      int n, FsdpGroup **out) {
  FsdpGroup *g;
  TRY_NEW(g, calloc(1, sizeof *g));
  *g = (FsdpGroup){.ctx = unit->ctx,
                   .unit = unit,
                   .mesh = *mesh,
                   .options = *options,
                   .n = n,
                   .reduce_grads = true,
                   .all_reduce_grads = true,
                   .reshard_after_backward = true,
                   .unshard_in_backward = true};
  Status s = fill(g, given);
  if (s) fsdp_group_free(g);
  else *out = g;
  return s;
}

void fsdp_group_free(FsdpGroup *g) {
  if (!g) return;
  fsdp_drop_gradients(g);
  for (int i = 0; g->param && i < g->n; i++) tensor_release(g->param[i].sharded);
  if (g->param) fsdp_forget_originals(g);
  storage_unref(g->shards.storage);
  storage_unref(g->post.storage);
  storage_unref(g->gathered);
  storage_unref(g->sent);
  free(g->order);
  free(g->name);
  arena_free(&g->arena);
  free(g);
}
