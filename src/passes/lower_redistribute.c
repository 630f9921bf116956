/* lower_redistribute.c -- tess.redistribute as PyTorch's functional collectives.
 *
 *   P -> R   all_reduce                               of any sizes
 *   S -> R   all_gather_into_tensor                   shards padded to the largest, then cut out
 *                                                     and put in global order
 *   P -> S   reduce_scatter_tensor                    everybody's part padded to the largest
 *   others   all_to_all_single                        of flat pieces, exact
 *
 * Nothing is padded, cut or joined where the collective's own order is the right one.  All
 * ranks make the same collectives with the same sizes, also those whose shard is empty.
 *
 * A dimension whose shards repeat with a period (heads of every batch row, packed weights) is
 * seen as two, times and period, so that there is one cut and not one per repetition.
 *
 * A *piece* is a tensor and the global indices that its rows, columns ... stand for; what a
 * rank wants is put together from pieces, dimension by dimension.
 */
#include <string.h>

#include "dist/boxes.h"
#include "dist/dist.h"
#include "dist/route.h"
#include "passes/lower_runs.h"
#include "passes/lower_torch.h"

typedef struct {
  Tensor *t;
  Region held; /* global indices, in the order of the tensor's elements */
} Piece;

struct Move {
  Lower *l;
  const Call *c;
  const Mesh *m;
  const Spec *spec; /* shape and dtype */
  const Step *step;
  char group[256];
  int k; /* members of the group */
  int (*coord)[MAX_AXES];
  Region *before, *after; /* per member */
  int me;
  bool folded; /* dimensions are opened: see unfold() */
  Tensor *in;
};

/* ---- tensors ------------------------------------------------------------------------------------- */

static Status slice(const Move *v, Tensor *t, int dim, Run run, Tensor **out) {
  *out = t;
  if (run.begin == 0 && run.size == t->size[dim]) return OK;
  return OP(v->c, "aten.slice.Tensor", out, val_tensor(t), val_int(dim), val_int(run.begin),
            val_int(run.begin + run.size));
}

static Status join(const Move *v, Tensor **piece, int n, int dim, Tensor **out) {
  if (n == 1) return *out = piece[0], OK;
  return OP(v->c, "aten.cat.default", out, val_tensors(piece, n), val_int(dim));
}

/* The runs of t along dim, one behind the other. */
static Status cut(const Move *v, Tensor *t, int dim, const Runs *local, Tensor **out) {
  Tensor **piece;
  int n = local->n ? local->n : 1;
  TRY_NEW(piece, arena_new_n(v->c->arena, Tensor *, n));
  for (int i = 0; i < n; i++) TRY(slice(v, t, dim, local->n ? local->run[i] : (Run){0, 0}, &piece[i]));
  return join(v, piece, n, dim, out);
}

/* What `have` and `want` share, of a tensor that holds `have`, in want's order. */
static Status cut_shared(const Move *v, Tensor *t, const Region *have, const Region *want, Tensor **out) {
  for (int d = 0; d < have->ndim; d++) {
    Runs local;
    TRY(runs_shared(&have->dim[d], &want->dim[d], true, v->c->arena, &local));
    TRY(cut(v, t, d, &local, &t));
  }
  *out = t;
  return OK;
}

/* Zeros behind the elements, up to `size` in every dimension. */
static Status pad(const Move *v, Tensor *t, const int64_t *size, Tensor **out) {
  int64_t *amount;
  int n = 0;
  *out = t;
  TRY_NEW(amount, arena_new_n(v->c->arena, int64_t, 2 * t->ndim + 1));
  for (int d = t->ndim - 1, at = 0; d >= 0; d--, at += 2) {
    amount[at] = 0;
    amount[at + 1] = size[d] - t->size[d];
    if (amount[at + 1]) n = at + 2;
  }
  return n ? OP(v->c, "aten.constant_pad_nd.default", out, val_tensor(t), val_ints(amount, n)) : OK;
}

/* t with the sizes of the region. */
static Status resize(const Move *v, Tensor *t, const Region *r, Tensor **out) {
  int64_t size[MAX_DIMS];
  for (int d = 0; d < r->ndim; d++) size[d] = r->dim[d].size;
  return OP(v->c, "aten.reshape.default", out, val_tensor(t), val_ints(size, r->ndim));
}

static Status flat(const Move *v, Tensor *t, Tensor **out) {
  int64_t n = tensor_numel(t);
  *out = t;
  return t->ndim == 1 ? OK : OP(v->c, "aten.reshape.default", out, val_tensor(t), val_ints(&n, 1));
}

static Status finish(const Move *v, Tensor *t, Tensor **out) {
  return OP(v->c, "_c10d_functional.wait_tensor.default", out, val_tensor(t));
}

/* ---- putting together -------------------------------------------------------------------------------- */

static bool holds(const Piece *p, int dim, int64_t i) {
  int64_t local, left;
  return runs_find(&p->held.dim[dim], i, &local, &left);
}

static Status no_piece(void) { return fail(ERR_FAIL, "a part of a redistributed tensor is nowhere"); }

/* Dimensions from dim on of what is wanted; box has the local runs of those before. */
static Status assemble(const Move *v, const Region *want, int dim, Piece *const *piece, int n, Run *box,
                       Tensor **out) {
  if (!n) return no_piece();
  if (dim == want->ndim) {
    Tensor *t = piece[0]->t;
    for (int d = 0; d < dim; d++) TRY(slice(v, t, d, box[d], &t));
    return *out = t, OK;
  }
  const Runs *w = &want->dim[dim];
  if (w->size == 0) {
    box[dim] = (Run){0, 0};
    return assemble(v, want, dim + 1, piece, n, box, out);
  }
  Tensor **part;
  Piece **some;
  int nparts = 0, cap = 0;
  for (int q = 0; q < n; q++) cap += piece[q]->held.dim[dim].n;
  TRY_NEW(part, arena_new_n(v->c->arena, Tensor *, (cap + 1) * (w->n + 1)));
  TRY_NEW(some, arena_new_n(v->c->arena, Piece *, n));
  for (int r = 0; r < w->n; r++) {
    for (int64_t at = w->run[r].begin, end = at + w->run[r].size; at < end;) {
      int m = 0;
      int64_t local = 0, left = 0;
      for (int q = 0; q < n; q++)
        if (holds(piece[q], dim, at)) some[m++] = piece[q];
      if (!m) return no_piece();
      runs_find(&some[0]->held.dim[dim], at, &local, &left);
      box[dim] = (Run){local, left < end - at ? left : end - at};
      at += box[dim].size;
      TRY(assemble(v, want, dim + 1, some, m, box, &part[nparts++]));
    }
  }
  return join(v, part, nparts, dim, out);
}

static Status assemble_all(const Move *v, const Region *want, Piece *pieces, int n, Tensor **out) {
  Piece **list;
  Run box[MAX_DIMS];
  TRY_NEW(list, arena_new_n(v->c->arena, Piece *, n));
  for (int q = 0; q < n; q++) list[q] = &pieces[q];
  return assemble(v, want, 0, list, n, box, out);
}

/* ---- collectives ------------------------------------------------------------------------------------- */

/* What all_gather_into_tensor takes of this rank, and what its result means. */
static Status pack_gather(const Move *v, Tensor **out) {
  int64_t size[MAX_DIMS];
  regions_largest(v->before, v->k, size);
  return pad(v, v->in, size, out);
}

static Status unpack_gather(const Move *v, Tensor *all, Tensor **out) {
  Tensor **row;
  Piece *piece;
  int n;
  const Region *want = &v->after[v->me];
  if (regions_in_rows(v->before, v->k, want, true)) return slice(v, all, 0, (Run){0, want->dim[0].size}, out);
  if (tensor_numel(all) == 0) return resize(v, all, want, out);
  TRY(OP_LIST(v->c, "aten.split.Tensor", &row, &n, val_tensor(all), val_int(all->size[0] / v->k), val_int(0)));
  TRY_NEW(piece, arena_new_n(v->c->arena, Piece, v->k));
  for (int q = 0; q < v->k; q++) piece[q] = (Piece){row[q], v->before[q]};
  return assemble_all(v, want, piece, v->k, out);
}

static Status all_gather(const Move *v, Tensor **out) {
  Tensor *all;
  TRY(pack_gather(v, &all));
  TRY(OP(v->c, "_c10d_functional.all_gather_into_tensor.default", &all, val_tensor(all), val_int(v->k),
         val_str(v->group)));
  TRY(finish(v, all, &all));
  return unpack_gather(v, all, out);
}

/* What reduce_scatter_tensor takes, everybody's part one behind the other, and what its result means. */
static Status pack_scatter(const Move *v, Tensor **out) {
  int64_t size[MAX_DIMS];
  Tensor **part;
  const Region *mine = &v->before[v->me];
  *out = v->in;
  regions_largest(v->after, v->k, size);
  if (regions_in_rows(v->after, v->k, mine, false)) return OK;
  if (regions_in_rows(v->after, v->k, mine, true)) {
    size[0] *= v->k;
    return pad(v, v->in, size, out);
  }
  TRY_NEW(part, arena_new_n(v->c->arena, Tensor *, v->k));
  for (int q = 0; q < v->k; q++) {
    TRY(cut_shared(v, v->in, mine, &v->after[q], &part[q]));
    TRY(pad(v, part[q], size, &part[q]));
  }
  return join(v, part, v->k, 0, out);
}

static Status unpack_scatter(const Move *v, Tensor *got, Tensor **out) {
  const Region *want = &v->after[v->me];
  *out = got;
  for (int d = 0; d < want->ndim; d++) TRY(slice(v, *out, d, (Run){0, want->dim[d].size}, out));
  return OK;
}

static Status reduce_scatter(const Move *v, const char *op, Tensor **out) {
  TRY(pack_scatter(v, out));
  TRY(OP(v->c, "_c10d_functional.reduce_scatter_tensor.default", out, val_tensor(*out), val_str(op), val_int(v->k),
         val_str(v->group)));
  TRY(finish(v, *out, out));
  return unpack_scatter(v, *out, out);
}

/* Of several that hold the same elements, a rank takes them from the one that differs least
 * from it. */
static bool gives(const Move *v, const int *giver, const int *taker) {
  for (int a = 0; a < v->m->naxes; a++)
    if (v->step->axes >> a & 1 && !is_s(&v->step->before[a]) && giver[a] != taker[a]) return false;
  return true;
}

static int64_t region_shared(const Move *v, const Region *have, const Region *want, Region *out, Status *s) {
  int64_t n = 1;
  out->ndim = have->ndim;
  for (int d = 0; d < have->ndim && !*s; d++) {
    *s = runs_shared(&have->dim[d], &want->dim[d], false, v->c->arena, &out->dim[d]);
    n *= out->dim[d].size;
  }
  return n;
}

static Status exchange(Move *v, Tensor **out) {
  Tensor **part, *all, *got;
  Piece *piece;
  int64_t *go, *come;
  int k = v->k, nparts = 0, npieces = 0;
  Region *have = v->before, *want = v->after;
  Status s = OK;
  TRY_NEW(part, arena_new_n(v->c->arena, Tensor *, k));
  TRY_NEW(piece, arena_new_n(v->c->arena, Piece, k));
  TRY_NEW(go, arena_new_n(v->c->arena, int64_t, k));
  TRY_NEW(come, arena_new_n(v->c->arena, int64_t, k));
  for (int q = 0; q < k; q++) {
    Region shared;
    if (gives(v, v->coord[v->me], v->coord[q])) go[q] = region_shared(v, &have[v->me], &want[q], &shared, &s);
    if (gives(v, v->coord[q], v->coord[v->me]))
      come[q] = region_shared(v, &have[q], &want[v->me], &piece[q].held, &s);
    TRY(s);
    if (!go[q]) continue;
    TRY(cut_shared(v, v->in, &have[v->me], &want[q], &part[nparts]));
    TRY(flat(v, part[nparts], &part[nparts]));
    nparts++;
  }
  if (nparts) TRY(join(v, part, nparts, 0, &all));
  else TRY(OP(v->c, "aten.new_zeros.default", &all, val_tensor(v->in), val_ints((int64_t[]){0}, 1)));
  TRY(OP(v->c, "_c10d_functional.all_to_all_single.default", &got, val_tensor(all), val_ints(come, k),
         val_ints(go, k), val_str(v->group)));
  TRY(finish(v, got, &got));
  int64_t at = 0;
  for (int q = 0; q < k; q++) {
    if (!come[q]) continue;
    Piece p = piece[q];
    TRY(slice(v, got, 0, (Run){at, come[q]}, &p.t));
    TRY(resize(v, p.t, &p.held, &p.t));
    at += come[q];
    piece[npieces++] = p;
  }
  if (!npieces) return resize(v, got, &want[v->me], out);
  return assemble_all(v, &want[v->me], piece, npieces, out);
}

/* ---- debts --------------------------------------------------------------------------------------------- */

/* Norms are owed as sums of powers. */
static Status raise_to(const Move *v, Tensor *t, double exponent, Tensor **out) {
  TRY(OP(v->c, "aten.abs.default", out, val_tensor(t)));
  return OP(v->c, "aten.pow.Tensor_Scalar", out, val_tensor(*out), val_float(exponent));
}

static Status reduce(Move *v, Tensor **out) {
  StepReduction how = step_reduction(v->m, v->step);
  const char *op = reduce_op_name(how.op);
  if (how.norm != 0) TRY(raise_to(v, v->in, how.norm, &v->in));
  if (v->step->kind == STEP_REDUCE_SCATTER) TRY(reduce_scatter(v, op, out));
  else {
    TRY(OP(v->c, "_c10d_functional.all_reduce.default", out, val_tensor(v->in), val_str(op), val_str(v->group)));
    TRY(finish(v, *out, out));
  }
  if (how.factor != 1) TRY(OP(v->c, "aten.mul.Scalar", out, val_tensor(*out), val_float(how.factor)));
  return how.norm != 0 ? raise_to(v, *out, 1 / how.norm, out) : OK;
}

static Status partition(Move *v, Tensor **out) {
  double other;
  *out = v->in;
  if (partition_keeps(v->m, v->step, &other)) return OK;
  return OP(v->c, "aten.full_like.default", out, val_tensor(v->in),
            dtype_kind(v->in->dtype) < KIND_FLOAT ? val_int((int64_t)other) : val_float(other));
}

/* ---- the members -------------------------------------------------------------------------------------------- */

static Status describe(Move *v) {
  int *ranks;
  const Mesh *m = v->m;
  Layout before = {.ndim = v->spec->ndim,
                   .shape = v->spec->shape,
                   .naxes = m->naxes,
                   .axis = m->axis,
                   .place = v->step->before},
         after = before;
  after.place = v->step->after;
  TRY_NEW(ranks, arena_new_n(v->c->arena, int, m->size));
  v->k = mesh_group_ranks(m, v->step->axes, m->coord, ranks);
  TRY_NEW(v->coord, arena_alloc(v->c->arena, (size_t)v->k * sizeof *v->coord));
  TRY_NEW(v->before, arena_new_n(v->c->arena, Region, v->k));
  TRY_NEW(v->after, arena_new_n(v->c->arena, Region, v->k));
  for (int q = 0; q < v->k; q++) {
    if (!mesh_coord_of(m, ranks[q], v->coord[q]))
      return fail(ERR_FAIL, "rank %d is outside of its own group", ranks[q]);
    if (ranks[q] == v->l->rank) v->me = q;
    TRY(region_of(&before, v->coord[q], v->c->arena, &v->before[q]));
    TRY(region_of(&after, v->coord[q], v->c->arena, &v->after[q]));
  }
  mesh_group_name(m, v->step->axes, v->group, sizeof v->group);
  return OK;
}

/* ---- periods ------------------------------------------------------------------------------------------------ */

/* The runs of one period of p, if all f of them are alike. */
static Status one_period(const Runs *r, int64_t f, int64_t p, Arena *arena, Runs *out, bool *alike) {
  Runs again = {0};
  *out = (Runs){0};
  TRY_NEW(out->run, arena_new_n(arena, Run, r->n + 1));
  for (int i = 0; i < r->n; i++) {
    int64_t begin = r->run[i].begin, end = begin + r->run[i].size;
    if (begin < p) runs_add(out, (Run){begin, (end < p ? end : p) - begin});
  }
  *alike = out->size * f == r->size && (r->size == 0 || (f <= INT32_MAX / (out->n + 1)));
  if (!*alike || r->size == 0) return OK;
  TRY_NEW(again.run, arena_new_n(arena, Run, (int)f * out->n + 1));
  for (int64_t i = 0; i < f; i++)
    for (int k = 0; k < out->n; k++) runs_add(&again, (Run){out->run[k].begin + i * p, out->run[k].size});
  *alike = runs_equal(&again, r);
  return OK;
}

static void open_dim(Region *r, int dim, int64_t f, Run *times, Runs one) {
  memmove(&r->dim[dim + 1], &r->dim[dim], (size_t)(r->ndim - dim) * sizeof *r->dim);
  *times = (Run){0, f};
  r->dim[dim] = (Runs){.run = times, .n = 1, .size = f};
  r->dim[dim + 1] = one;
  r->ndim++;
}

/* Sees dimension dim as f times a period, if all members' shards are so. */
static Status unfold(Move *v, int dim, int64_t f) {
  int64_t n = v->spec->shape[dim], p = n / f;
  Runs *one;
  Run *times;
  bool alike = v->before[0].ndim < MAX_DIMS && n % f == 0 && p > 0;
  TRY_NEW(one, arena_new_n(v->c->arena, Runs, 2 * v->k));
  TRY_NEW(times, arena_new_n(v->c->arena, Run, 2 * v->k));
  for (int i = 0; i < 2 * v->k && alike; i++) {
    const Region *r = i < v->k ? &v->before[i] : &v->after[i - v->k];
    TRY(one_period(&r->dim[dim], f, p, v->c->arena, &one[i], &alike));
  }
  if (!alike) return OK;
  for (int i = 0; i < 2 * v->k; i++)
    open_dim(i < v->k ? &v->before[i] : &v->after[i - v->k], dim, f, &times[i], one[i]);
  v->folded = true;
  return OK;
}

/* How often a dimension repeats, as the placements of the step say. */
static int64_t times_of(const Move *v, int dim) {
  int64_t f = 1;
  for (int a = 0; a < v->m->naxes; a++) {
    const Placement *p[2] = {&v->step->before[a], &v->step->after[a]};
    for (int i = 0; i < 2; i++)
      if (is_s_of(p[i], dim) && !p[i]->nsegments && p[i]->factor > f) f = p[i]->factor;
  }
  return f;
}

static Status unfold_all(Move *v) {
  if (v->step->kind == STEP_PARTITION || v->step->kind == STEP_ALL_REDUCE) return OK;
  for (int d = v->spec->ndim - 1; d >= 0; d--)
    if (times_of(v, d) > 1) TRY(unfold(v, d, times_of(v, d)));
  return v->folded ? resize(v, v->in, &v->before[v->me], &v->in) : OK;
}

/* ---- one step ---------------------------------------------------------------------------------------------- */

static Status carry_out(Move *v, Tensor **out) {
  switch (v->step->kind) {
    case STEP_SLICE: return assemble_all(v, &v->after[v->me], &(Piece){v->in, v->before[v->me]}, 1, out);
    case STEP_PARTITION: return partition(v, out);
    case STEP_ALL_GATHER: return all_gather(v, out);
    case STEP_ALL_TO_ALL:
    case STEP_EXCHANGE: return exchange(v, out);
    case STEP_REDUCE_SCATTER:
    case STEP_ALL_REDUCE: return reduce(v, out);
    case STEP_SCATTER:
    case STEP_KIND_COUNT: break;
  }
  return fail(ERR_FAIL, "a step %s in a program", step_kind_name(v->step->kind));
}

/* Dimensions that were opened are closed again. */
static Status fold(const Move *v, Tensor **t) {
  int64_t size[MAX_DIMS];
  Layout after = {.ndim = v->spec->ndim,
                  .shape = v->spec->shape,
                  .naxes = v->m->naxes,
                  .axis = v->m->axis,
                  .place = v->step->after};
  if (!v->folded) return OK;
  TRY(layout_local(&after, v->m->coord, size));
  return OP(v->c, "aten.reshape.default", t, val_tensor(*t), val_ints(size, v->spec->ndim));
}

static Status lower_step(Move *v, Tensor **out) {
  TRY(describe(v));
  TRY(unfold_all(v));
  TRY(carry_out(v, out));
  return fold(v, out);
}

static Status find_mesh(Lower *l, const char *text, Mesh **out) {
  TRY(mesh_parse(l->dist, text, out));
  if (!mesh_coord_of(*out, l->rank, (*out)->coord))
    return fail(ERR_USAGE, "rank %d is outside of the mesh %s", l->rank, text);
  (*out)->inside = true;
  return OK;
}

/* redistribute(self, mesh, src, dst, shape, size, why) */
Status lower_redistribute(Lower *l, const Node *n, Tensor **out) {
  Mesh *mesh;
  Placement place[MAX_AXES];
  int64_t shape[MAX_DIMS];
  const Spec *from, *to;
  Route plan;
  int naxes, ndim = n->args[4].n;
  for (int d = 0; d < ndim; d++) shape[d] = n->args[4].list[d].i;
  TRY(lower_tensor(l, n, 0, out));
  TRY(find_mesh(l, n->args[1].str, &mesh));
  TRY(placements_parse(n->args[2].str, ndim, place, &naxes));
  TRY(spec_new(mesh, (*out)->dtype, ndim, shape, NULL, place, &from));
  TRY(placements_parse(n->args[3].str, ndim, place, &naxes));
  TRY(spec_with(from, place, &to));
  TRY(route_find(from, to, l->call.arena, &plan));
  for (int i = 0; i < plan.n; i++) {
    Move v = {.l = l, .c = &l->call, .m = mesh, .spec = from, .step = &plan.step[i], .in = *out};
    TRY(lower_log(l, plan.step[i].kind, plan.step[i].axes, plan.step[i].bytes, n->args[6].str));
    TRY(lower_step(&v, out));
  }
  return OK;
}

/* ---- one of several that a collective moves ------------------------------------------------------------------ */

Status move_new(Lower *l, const char *mesh_text, const MoveText *what, Tensor *in, Move **out) {
  Mesh *mesh;
  Step *step;
  Move *v;
  TRY_NEW(v, arena_new(l->call.arena, Move));
  TRY_NEW(step, arena_new(l->call.arena, Step));
  TRY(find_mesh(l, mesh_text, &mesh));
  memcpy(step->before, what->from, sizeof step->before);
  memcpy(step->after, what->to, sizeof step->after);
  step->changed = step->axes = placements_exchange(what->from, what->to, mesh->naxes);
  step->kind = what->gathers ? STEP_ALL_GATHER : STEP_REDUCE_SCATTER;
  *v = (Move){.l = l, .c = &l->call, .m = mesh, .step = step, .in = in};
  TRY(spec_new(mesh, in->dtype, what->ndim, what->shape, NULL, what->from, &v->spec));
  TRY(describe(v));
  *out = v;
  return unfold_all(v);
}

const char *move_group(const Move *v, int *members, unsigned *axes) {
  *members = v->k;
  *axes = v->step->axes;
  return v->group;
}

Status move_pack(const Move *v, Tensor **out) {
  return v->step->kind == STEP_ALL_GATHER ? pack_gather(v, out) : pack_scatter(v, out);
}

Status move_unpack(const Move *v, Tensor *got, Tensor **out) {
  TRY(v->step->kind == STEP_ALL_GATHER ? unpack_gather(v, got, out) : unpack_scatter(v, got, out));
  return fold(v, out);
}
