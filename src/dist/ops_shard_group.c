/* ops_shard_group.c -- several redistributions as one collective: what programs with fully sharded parameters have.
 *
 *   tess.gather_group    shards of several tensors become the tensors, one behind the other in one buffer
 *   tess.scatter_group   partial tensors become this rank's shards of their sums, one behind the other
 *   tess.gather_each     shards of several tensors become the tensors, each in memory of its own; where a shard
 *                        stands in that memory already, only the others' parts are moved
 *
 * All start, and wait_tensor waits.  `moves` has a pair of placements per tensor ("S(0)>R;S(1)R>RR"), `shapes` the
 * number of dimensions and the sizes of each; `sizes` has this rank's sizes of the results; all change the same
 * axes of the mesh and have one dtype.  How elements lie in the buffers is flat_group.h's.
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
  int *sent_param, *got_param; /* by box of gather.send and gather.recv */
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
      unsigned axes = placements_exchange(v.from, v.to, m->naxes);
      TRY(mesh_group(m, axes, &s->comm));
      TRY(member_coords(s, m, axes, &coords));
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

/* Which tensor each box of a flat buffer is part of; its offset is from the tensor's beginning then. */
static Status split_boxes(Site *s, BoxList *boxes, const int64_t *count, int **param) {
  const FlatGroup *g = &s->flat;
  int64_t *at, width = (int64_t)dtype_size(s->gather.as);
  TRY_NEW(at, arena_new_n(&s->arena, int64_t, g->n + 1));
  TRY_NEW(*param, arena_new_n(&s->arena, int, boxes->n + 1));
  flat_places(g, count, s->dtype, NULL, at);
  for (int i = 0; i < boxes->n; i++) {
    Box *b = &boxes->v[i];
    int p = 0;
    while (p + 1 < g->n && b->offset * width >= at[p + 1]) p++;
    b->offset -= at[p] / width;
    (*param)[i] = p;
  }
  return OK;
}

/* Those to and from others. */
static void drop_own(BoxList *boxes, int me) {
  int kept = 0;
  for (int i = 0; i < boxes->n; i++)
    if (boxes->v[i].peer != me) boxes->v[kept++] = boxes->v[i];
  boxes->n = kept;
}

typedef enum { GATHER_FLAT, GATHER_EACH, SCATTER } GroupKind;

static Status site_read(Call *c, Site *s, GroupKind kind) {
  bool gathers = kind != SCATTER;
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
  if (kind == GATHER_EACH) {
    drop_own(&s->gather.send, s->flat.me);
    drop_own(&s->gather.recv, s->flat.me);
    TRY(split_boxes(s, &s->gather.recv, s->flat.numel, &s->got_param));
  }
  return split_boxes(s, &s->gather.send, flat_counts(&s->flat, s->flat.me), &s->sent_param);
}

static Status check_size(const Call *c, const char *what, const Tensor *t, const int64_t *size, int ndim) {
  bool fits = t->ndim == ndim;
  for (int d = 0; fits && d < ndim; d++) fits = t->size[d] == size[d];
  if (fits) return OK;
  char has[200], wants[200];
  return op_fail(c, "%s %s, and by the shapes and moves it would be %s here", what,
                 shape_describe(t->ndim, t->size, has, sizeof has),
                 shape_describe(ndim, size, wants, sizeof wants));
}

/* Boxes are made of the shapes and moves: tensors that are others would be read and written out of their bounds. */
static Status check_sizes(const Call *c, const Site *s, GroupKind kind) {
  int64_t size[MAX_DIMS], total = 0;
  const FlatGroup *g = &s->flat;
  for (int p = 0; p < g->n; p++) {
    const Tensor *in = in_item(c, 0, p);
    int ndim = g->param[p].whole.ndim;
    TRY(kind == SCATTER ? flat_whole_size(g, p, size) : flat_shard_size(g, g->me, p, size));
    TRY(check_size(c, "takes a tensor", in, size, ndim));
    if (kind != SCATTER && !tensor_is_contiguous(in)) return op_fail(c, "takes shards that are dense");
    if (kind == GATHER_EACH) {
      TRY(flat_whole_size(g, p, size));
      TRY(check_size(c, "gives a tensor", out_tensor(c, p), size, ndim));
    }
    total += kind == SCATTER ? flat_counts(g, g->me)[p] : g->numel[p];
  }
  return kind == GATHER_EACH ? OK : check_size(c, "gives a tensor", out_tensor(c, 0), &total, 1);
}

static Status site_find(Call *c, GroupKind kind, Site **out) {
  if (!c->ctx->dist)
    return status_hint(
        op_fail(c, "needs the ranks of the mesh %s, and there is only this one", in_str(c, ARG_MESH)),
        "run it with --mesh");
  if (c->state && *c->state) return *out = *c->state, OK;
  Site *s;
  TRY_NEW(s, calloc(1, sizeof *s));
  Status status = site_read(c, s, kind);
  if (!status) status = check_sizes(c, s, kind);
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

/* ---- running ------------------------------------------------------------------------------------------------ */

static Status check_tensors(const Call *c) {
  if (c->arg[0].kind != VAL_TENSORS || c->arg[0].n < 1) return op_fail(c, "takes at least one tensor");
  for (int i = 1; i < c->arg[0].n; i++)
    if (in_item(c, 0, i)->dtype != in_item(c, 0, 0)->dtype) return op_fail(c, "takes tensors of one dtype");
  return OK;
}

static Status group_infer(Call *c) {
  int64_t size = in_int(c, ARG_SIZE);
  TRY(check_tensors(c));
  return out_new(c, in_item(c, 0, 0)->dtype, 1, &size);
}

static Status start(Call *c, const Site *s, const Coll *what) {
  Storage **writes;
  if (!c->ctx->groups || !c->state) return comm_run(s->comm, what);
  TRY_NEW(writes, malloc((size_t)c->nout * sizeof *writes));
  for (int i = 0; i < c->nout; i++) writes[i] = out_tensor(c, i)->storage;
  Status status = groups_start_many(c->ctx->groups, s->comm, what, NULL, writes, c->nout);
  free(writes);
  return status;
}

/* Tensors are read, and written, where they are: boxes count from the one with the lowest address. */
typedef Tensor *NthTensor(const Call *c, int p);
static Tensor *nth_in(const Call *c, int p) { return in_item(c, 0, p); }
static Tensor *nth_out(const Call *c, int p) { return out_tensor(c, p); }

static char *lowest_address(const Call *c, NthTensor *nth) {
  char *base = NULL;
  for (int p = 0; p < c->arg[0].n; p++) {
    Tensor *t = nth(c, p);
    if (tensor_numel(t) && (!base || (char *)tensor_data(t) < base)) base = tensor_data(t);
  }
  return base;
}

/* Box i of tensor param[i] as one of memory from *base on; malloc'ed. */
static Status boxes_in_memory(const Call *c, const BoxList *boxes, const int *param, NthTensor *nth, Dtype as,
                              char **base, Box **out) {
  *base = lowest_address(c, nth);
  TRY_NEW(*out, malloc(((size_t)boxes->n + 1) * sizeof **out));
  for (int i = 0; i < boxes->n; i++) {
    (*out)[i] = boxes->v[i];
    (*out)[i].offset += ((char *)tensor_data(nth(c, param[i])) - *base) / (int64_t)dtype_size(as);
  }
  return OK;
}

/* Bytes of a group that will not stay in the caches until they are read, one group later. */
enum { FAR = 4 << 20 };

static int64_t bytes_of(const Tensor *t) { return tensor_numel(t) * (int64_t)dtype_size(t->dtype); }

static Status gather_with(Call *c, const Site *s) {
  const FlatGather *how = &s->gather;
  char *base;
  Box *send;
  TRY(boxes_in_memory(c, &how->send, s->sent_param, nth_in, how->as, &base, &send));
  Coll what = {.kind = COLL_EXCHANGE,
               .dtype = how->as,
               .send = base,
               .recv = tensor_data(out_tensor(c, 0)),
               .send_box = send,
               .nsend = how->send.n,
               .recv_box = how->recv.v,
               .nrecv = how->recv.n,
               .unread = bytes_of(out_tensor(c, 0)) >= FAR,
               .why = in_str(c, ARG_WHY)};
  Status status = start(c, s, &what);
  free(send);
  return status;
}

static Status scatter_with(Call *c, const Site *s) {
  const FlatScatter *how = &s->scatter;
  Dtype dtype = in_item(c, 0, 0)->dtype;
  char *base;
  Box *send;
  TRY(boxes_in_memory(c, &how->from, how->param, nth_in, dtype, &base, &send));
  Coll what = {.kind = COLL_REDUCE_SCATTER,
               .dtype = dtype,
               .op = REDUCE_SUM,
               .send = base,
               .recv = tensor_data(out_tensor(c, 0)),
               .counts = how->counts,
               .unread = true, /* before all gradients are there */
               .send_box = send,
               .nsend = how->from.n,
               .why = in_str(c, ARG_WHY)};
  Status status = start(c, s, &what);
  free(send);
  return status;
}

static Status run_at_site(Call *c, GroupKind kind, Status (*run)(Call *c, const Site *s)) {
  Site *s = NULL;
  TRY(site_find(c, kind, &s));
  Status status = run(c, s);
  if (!c->state) site_free(s);
  return status;
}

static Status gather_run(Call *c) { return run_at_site(c, GATHER_FLAT, gather_with); }
static Status scatter_run(Call *c) { return run_at_site(c, SCATTER, scatter_with); }

/* ---- each in memory of its own ------------------------------------------------------------------------------ */

static Status each_infer(Call *c) {
  Ints shapes = in_ints(c, ARG_SHAPES), sizes = in_ints(c, ARG_SIZE);
  TRY(check_tensors(c));
  for (int p = 0, at = 0, size = 0; p < c->arg[0].n; p++) {
    int ndim = at < shapes.n ? (int)shapes.v[at] : -1;
    if (ndim < 0 || ndim > MAX_DIMS || at + ndim >= shapes.n || size + ndim > sizes.n)
      return op_fail(c, "the shapes do not fit the tensors");
    TRY(out_new(c, in_item(c, 0, p)->dtype, ndim, sizes.v + size));
    at += ndim + 1;
    size += ndim;
  }
  return OK;
}

static View view_of_box(const Tensor *t, const Box *b) {
  return (View){.data = (char *)tensor_data(t) + b->offset * (int64_t)dtype_size(t->dtype),
                .dtype = t->dtype,
                .ndim = b->ndim,
                .size = b->size,
                .stride = b->stride};
}

/* This rank's own part of each, where it is not made there. */
static Status copy_own(Call *c, const Site *s, Arena *arena) {
  for (int p = 0; p < s->flat.n; p++) {
    BoxList whole = {0}, shard = {0};
    TRY(flat_part(&s->flat, s->flat.me, p, NULL, arena, &whole, &shard));
    for (int i = 0; i < whole.n; i++) {
      View from = view_of_box(in_item(c, 0, p), &shard.v[i]), to = view_of_box(out_tensor(c, p), &whole.v[i]);
      if (from.data != to.data) kernel_copy(&c->ctx->kern, to, from);
    }
  }
  return OK;
}

static Status each_with(Call *c, const Site *s) {
  const FlatGather *how = &s->gather;
  Arena arena = {0};
  char *from, *into;
  Box *send = NULL, *recv = NULL;
  Status status = copy_own(c, s, &arena);
  arena_free(&arena);
  if (!status) status = boxes_in_memory(c, &how->send, s->sent_param, nth_in, how->as, &from, &send);
  if (!status) status = boxes_in_memory(c, &how->recv, s->got_param, nth_out, how->as, &into, &recv);
  if (!status) {
    const Coll what = {.kind = COLL_EXCHANGE,
                       .dtype = how->as,
                       .send = from,
                       .recv = into,
                       .send_box = send,
                       .nsend = how->send.n,
                       .recv_box = recv,
                       .nrecv = how->recv.n,
                       .unread = true, /* before the next step */
                       .why = in_str(c, ARG_WHY)};
    status = start(c, s, &what);
  }
  free(send);
  free(recv);
  return status;
}

static Status each_run(Call *c) { return run_at_site(c, GATHER_EACH, each_with); }

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
                                 {.schema = "tess::gather_each(Tensor[] shards, str mesh, str moves, SymInt[] "
                                            "shapes, SymInt[] sizes, str why) -> Tensor[]",
                                  .infer = each_infer,
                                  .run = each_run,
                                  .flags = OP_EFFECT | OP_STARTS},
                                 {0}};
