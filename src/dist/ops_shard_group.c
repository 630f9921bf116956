/* ops_shard_group.c -- several redistributions as one collective: what programs with fully sharded parameters have.
 *
 *   tess.gather_group    shards of several tensors become the tensors, one behind the other in one buffer
 *   tess.scatter_group   partial tensors become this rank's shards of their sums, one behind the other
 *
 * Both start, and wait_tensor waits.  `moves` has a pair of placements per tensor ("S(0)>R;S(1)R>RR"), `shapes` the
 * number of dimensions and the sizes of each; all change the same axes of the mesh and have one dtype.  How
 * elements lie in the buffers is flat_group.h's.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/groups.h"
#include "dist/dist.h"
#include "dist/flat_group.h"
#include "kernels/copy.h"
#include "ops/geometry.h"

enum { ARG_MESH = 1, ARG_MOVES, ARG_SHAPES, ARG_SIZE, ARG_WHY };

/* What a call site keeps. */
typedef struct {
  Arena arena;
  Comm *comm;
  FlatGroup flat;
  FlatGather gather;
  int *sent_param; /* by box of gather.send */
  FlatScatter scatter;
  Dtype *dtype; /* of each tensor: all the same */
} Site;

static void site_free(void *site) {
  arena_free(&((Site *)site)->arena);
  free(site);
}

/* ---- reading the arguments -------------------------------------------------------------------------------- */

typedef struct {
  Placement from[MAX_AXES], to[MAX_AXES];
} Move;

static unsigned axes_changed(const Mesh *m, const Move *v) {
  unsigned axes = 0;
  for (int a = 0; a < m->naxes; a++)
    if (!placement_equal(&v->from[a], &v->to[a]) && is_s(&v->from[a]) != is_s(&v->to[a])) axes |= 1u << a;
  return axes;
}

/* Coordinates of the members of the group of these axes around this rank. */
static Status member_coords(Site *s, Mesh *m, unsigned axes, int **out) {
  int n = comm_size(s->comm);
  TRY_NEW(*out, arena_new_n(&s->arena, int, n * m->naxes + 1));
  for (int q = 0; q < n; q++) {
    int64_t rest = q;
    for (int a = m->naxes - 1; a >= 0; a--) {
      (*out)[q * m->naxes + a] = m->coord[a];
      if (!(axes >> a & 1)) continue;
      (*out)[q * m->naxes + a] = (int)(rest % m->axis[a]);
      rest /= m->axis[a];
    }
  }
  return OK;
}

static Status new_places(Site *s, const Mesh *m, const Placement *from, Placement **out) {
  TRY_NEW(*out, arena_new_n(&s->arena, Placement, m->naxes + 1));
  memcpy(*out, from, (size_t)m->naxes * sizeof **out);
  for (int a = 0; a < m->naxes; a++)
    if (is_p((*out) + a)) (*out)[a] = place_r(); /* every rank has the whole of a partial tensor */
  return OK;
}

/* The tensors as they are sharded and as they are whole; gathers: from shards. */
static Status read_params(const Call *c, Site *s, Mesh *m, bool gathers) {
  Ints shapes = in_ints(c, ARG_SHAPES);
  const char *text = in_str(c, ARG_MOVES);
  int n = c->arg[0].n, at = 0, naxes, *coords = NULL;
  FlatParam *param;
  TRY_NEW(param, arena_new_n(&s->arena, FlatParam, n + 1));
  TRY_NEW(s->dtype, arena_new_n(&s->arena, Dtype, n + 1));
  for (int p = 0; p < n; p++) {
    Move v;
    Placement *from, *to;
    int ndim = at < shapes.n ? (int)shapes.v[at] : -1;
    if (ndim < 0 || ndim > MAX_DIMS || at + ndim >= shapes.n)
      return op_fail(c, "the shapes do not fit the tensors");
    TRY(placements_parse_move(&text, ndim, v.from, v.to, &naxes));
    if (naxes != m->naxes) return op_fail(c, "'%.100s' is no list of moves on this mesh", in_str(c, ARG_MOVES));
    if (!p) {
      TRY(mesh_group(m, axes_changed(m, &v), &s->comm));
      TRY(member_coords(s, m, axes_changed(m, &v), &coords));
    }
    TRY(new_places(s, m, v.from, &from));
    TRY(new_places(s, m, v.to, &to));
    Layout l = {.ndim = ndim, .shape = shapes.v + at + 1, .naxes = m->naxes, .axis = m->axis, .place = from};
    Layout r = l;
    r.place = to;
    param[p] = (FlatParam){.whole = gathers ? r : l, .shard = gathers ? l : r, .coord = coords};
    s->dtype[p] = in_item(c, 0, p)->dtype;
    at += ndim + 1;
  }
  return flat_group_new(param, n, comm_size(s->comm), comm_rank(s->comm), &s->arena, &s->flat);
}

/* Which tensor each box of the flat shard is part of; its offset is from the tensor's beginning then. */
static Status split_boxes(Site *s) {
  const FlatGroup *g = &s->flat;
  int64_t *at, width = (int64_t)dtype_size(s->gather.as);
  TRY_NEW(at, arena_new_n(&s->arena, int64_t, g->n + 1));
  TRY_NEW(s->sent_param, arena_new_n(&s->arena, int, s->gather.send.n + 1));
  flat_places(g, flat_counts(g, g->me), s->dtype, NULL, at);
  for (int i = 0; i < s->gather.send.n; i++) {
    Box *b = &s->gather.send.v[i];
    int p = 0;
    while (p + 1 < g->n && b->offset * width >= at[p + 1]) p++;
    b->offset -= at[p] / width;
    s->sent_param[i] = p;
  }
  return OK;
}

static Status site_read(Call *c, Site *s, bool gathers) {
  Mesh *m;
  TRY(mesh_parse(c->ctx->dist, in_str(c, ARG_MESH), &m));
  TRY(read_params(c, s, m, gathers));
  if (!gathers) {
    int64_t(*strides)[MAX_DIMS];
    TRY_NEW(strides, arena_alloc(&s->arena, (size_t)(s->flat.n + 1) * sizeof *strides));
    for (int p = 0; p < s->flat.n; p++) memcpy(strides[p], in_item(c, 0, p)->stride, sizeof *strides);
    return flat_scatter(&s->flat, NULL, (const int64_t(*)[MAX_DIMS])strides, &s->arena, &s->scatter);
  }
  TRY(flat_gather(&s->flat, s->dtype, &s->arena, &s->gather));
  return split_boxes(s);
}

static Status site_find(Call *c, bool gathers, Site **out) {
  if (!c->ctx->dist)
    return status_hint(
        op_fail(c, "needs the ranks of the mesh %s, and there is only this one", in_str(c, ARG_MESH)),
        "run it with --mesh");
  if (c->state && *c->state) return *out = *c->state, OK;
  Site *s;
  TRY_NEW(s, calloc(1, sizeof *s));
  Status status = site_read(c, s, gathers);
  if (status) {
    site_free(s);
    return status;
  }
  if (c->state) {
    *c->state = s;
    *c->state_free = site_free;
  }
  *out = s;
  return OK;
}

/* ---- running --------------------------------------------------------------------------------------------------
 */

static Status group_infer(Call *c) {
  int64_t size = in_int(c, ARG_SIZE);
  if (c->arg[0].kind != VAL_TENSORS || c->arg[0].n < 1) return op_fail(c, "takes at least one tensor");
  for (int i = 1; i < c->arg[0].n; i++)
    if (in_item(c, 0, i)->dtype != in_item(c, 0, 0)->dtype) return op_fail(c, "takes tensors of one dtype");
  return out_new(c, in_item(c, 0, 0)->dtype, 1, &size);
}

static Status start(Call *c, const Site *s, const Coll *what) {
  Storage *writes = out_tensor(c, 0)->storage;
  if (c->ctx->groups && c->state) return groups_start(c->ctx->groups, s->comm, what, NULL, writes);
  return comm_run(s->comm, what);
}

/* Tensors are read from where they are: boxes count from the one with the lowest address. */
static char *lowest_address(const Call *c) {
  char *base = NULL;
  for (int p = 0; p < c->arg[0].n; p++) {
    Tensor *t = in_item(c, 0, p);
    if (tensor_numel(t) && (!base || (char *)tensor_data(t) < base)) base = tensor_data(t);
  }
  return base;
}

static int64_t distance(const Call *c, int p, const char *base, Dtype d) {
  return ((const char *)tensor_data(in_item(c, 0, p)) - base) / (int64_t)dtype_size(d);
}

static Status gather_run(Call *c) {
  Site *s;
  TRY(site_find(c, true, &s));
  const FlatGather *how = &s->gather;
  char *base = lowest_address(c);
  Box *send;
  TRY_NEW(send, malloc(((size_t)how->send.n + 1) * sizeof *send));
  for (int i = 0; i < how->send.n; i++) {
    send[i] = how->send.v[i];
    send[i].offset += distance(c, s->sent_param[i], base, how->as);
  }
  Coll what = {.kind = COLL_EXCHANGE,
               .dtype = how->as,
               .send = base,
               .recv = tensor_data(out_tensor(c, 0)),
               .send_box = send,
               .nsend = how->send.n,
               .recv_box = how->recv.v,
               .nrecv = how->recv.n,
               .why = in_str(c, ARG_WHY)};
  Status status = start(c, s, &what);
  free(send);
  if (!c->state) site_free(s);
  return status;
}

/* Gradients are read where they are, too. */
static Status scatter_run(Call *c) {
  Site *s;
  TRY(site_find(c, false, &s));
  const FlatScatter *how = &s->scatter;
  Dtype dtype = in_item(c, 0, 0)->dtype;
  char *base = lowest_address(c);
  Box *send;
  TRY_NEW(send, malloc(((size_t)how->from.n + 1) * sizeof *send));
  for (int i = 0; i < how->from.n; i++) {
    send[i] = how->from.v[i];
    send[i].offset += distance(c, how->param[i], base, dtype);
  }
  Coll what = {.kind = COLL_REDUCE_SCATTER,
               .dtype = dtype,
               .op = REDUCE_SUM,
               .send = base,
               .recv = tensor_data(out_tensor(c, 0)),
               .counts = how->counts,
               .send_box = send,
               .nsend = how->from.n,
               .why = in_str(c, ARG_WHY)};
  Status status = start(c, s, &what);
  free(send);
  if (!c->state) site_free(s);
  return status;
}

const OpDef ops_shard_group[] = {{.schema = "tess::gather_group(Tensor[] shards, str mesh, str moves, SymInt[] "
                                            "shapes, SymInt size, str why) -> Tensor",
                                  .infer = group_infer,
                                  .run = gather_run,
                                  .flags = OP_EFFECT | OP_STARTS},
                                 {.schema = "tess::scatter_group(Tensor[] parts, str mesh, str moves, SymInt[] "
                                            "shapes, SymInt size, str why) -> Tensor",
                                  .infer = group_infer,
                                  .run = scatter_run,
                                  .flags = OP_EFFECT | OP_STARTS},
                                 {0}};
