/* rule_view.c -- sharding rules of views; see rule_move.h. */
#include <string.h>

#include "ops/rule_move.h"
#include "shard/view_calculus.h"

bool pass_partial(Pass pass, const Placement *p) {
  switch (pass) {
    case PASS_NONE: return false;
    case PASS_LINEAR: return p->norm == 0 && p->op <= REDUCE_AVG;
    case PASS_EQUAL: return p->norm == 0 && (p->op == REDUCE_AVG || p->op == REDUCE_MAX || p->op == REDUCE_MIN);
    case PASS_ALL: return true;
  }
  return false;
}

static Axes axes_of(const Rules *r) { return (Axes){r->naxes, r->axis}; }

/* The placements of a strategy, inputs as they come and outputs R. */
static Status start(const Rules *r, Placement **out) {
  size_t nout = (size_t)(r->nout * r->naxes), nin = (size_t)(r->nin * r->naxes);
  TRY_NEW(*out, arena_new_n(r->arena, Placement, nout + nin + 1));
  for (size_t i = 0; i < nout; i++) (*out)[i] = place_r();
  memcpy(*out + nout, r->have, nin * sizeof **out);
  return OK;
}

static Placement *of_output(const Rules *r, Placement *p, int i) { return p + i * r->naxes; }
static Placement *of_input(const Rules *r, Placement *p, int i) { return p + (r->nout + i) * r->naxes; }

static void why_whole(Rules *r, const Placement *p, const char *because) {
  char text[128];
  const char *why = arena_printf(r->arena, "%s of input 0 is gathered: %s", placement_print(p, text, sizeof text),
                                 because);
  if (why) rule_why(r, why);
}

/* ---- dimensions that go somewhere ---------------------------------------------------------- */

Status rule_renumber(Rules *r, const int *to, Pass pass) {
  Placement *p;
  TRY(start(r, &p));
  r->uneven = true;
  for (int a = 0; a < r->naxes; a++) {
    Placement *in = &of_input(r, p, 0)[a], out = *in;
    if (is_s(in)) out.dim = to[in->dim];
    if (is_s(in) ? out.dim < 0 : is_p(in) && !pass_partial(pass, in)) {
      why_whole(r, in, is_s(in) ? "the op needs that dimension whole" : "the op is not linear in partial values");
      *in = out = place_r();
    }
    for (int i = 0; i < r->nout; i++) of_output(r, p, i)[a] = out;
  }
  return rule_mesh(r, p, 0);
}

Status rule_all_but(Rules *r, const bool *whole, Pass pass) {
  int to[MAX_DIMS];
  for (int d = 0; d < r->in[0]->ndim; d++) to[d] = whole[d] ? -1 : d;
  return rule_renumber(r, to, pass);
}

/* The view of a tensor with strides that tell its dimensions apart.  A new dimension of
 * size 1 takes the stride of the one behind it, so the last that fits is meant. */
Status follow_geometry(const Rules *r, GeometryFn *view, int first, const Tensor *whole, int *to) {
  enum { MARK = 1 << 20 };
  Geometry g = {.dtype = whole->dtype, .ndim = whole->ndim};
  for (int d = 0; d < whole->ndim; d++) {
    g.size[d] = whole->size[d];
    g.stride[d] = MARK + d;
    to[d] = -1;
  }
  TRY(view(r->call, first, &g));
  for (int i = 0; i < g.ndim; i++) {
    int64_t d = g.stride[i] - MARK;
    if (d >= 0 && d < whole->ndim && g.size[i] == whole->size[d]) to[d] = i;
  }
  if (view == geometry_unfold) { /* windows may show all and still be longer than a part */
    int dim;
    TRY(wrap_dim(r->call, in_int(r->call, first), whole->ndim, &dim));
    if (whole->ndim) to[dim] = -1;
  }
  return OK;
}

Status rule_same_dims(Rules *r) {
  int to[MAX_DIMS];
  const Tensor *in = r->in[0], *out = r->out[0];
  for (int d = 0; d < in->ndim; d++) to[d] = d < out->ndim && in->size[d] == out->size[d] ? d : -1;
  return rule_renumber(r, to, r->call->op->def->shard.linear == LINEAR_UNARY ? PASS_LINEAR : PASS_NONE);
}

Status rule_alias(Rules *r) {
  bool none[MAX_DIMS] = {false};
  return rule_all_but(r, none, PASS_ALL);
}

/* ---- other sizes ------------------------------------------------------------------------------ */

static void why_reshape(Rules *r, int i, const Placement *p) {
  char text[128], from[128], to[128];
  const char *why = arena_printf(r->arena, "%s of %s is gathered: its cuts are no cuts along one dimension of %s",
                                 placement_print(p, text, sizeof text),
                                 shape_describe(r->in[i]->ndim, r->in[i]->size, from, sizeof from),
                                 shape_describe(r->out[i]->ndim, r->out[i]->size, to, sizeof to));
  if (why) rule_why(r, why);
}

Status rule_reshape(Rules *r) {
  Placement *p;
  Axes m = axes_of(r);
  TRY(start(r, &p));
  r->uneven = true;
  for (int i = 0; i < r->nout; i++) {
    const Tensor *from = r->in[i], *to = r->out[i];
    Placement *in = of_input(r, p, i);
    int bad;
    while (!view_reshape(&m, from->ndim, from->size, to->ndim, to->size, in, of_output(r, p, i), &bad)) {
      why_reshape(r, i, &in[bad]);
      in[bad] = place_r();
    }
  }
  return rule_mesh(r, p, 0);
}

/* ---- parts of a dimension ------------------------------------------------------------------------ */

/* Output i is [begin[i], end[i]) of dimension dim. */
static Status rule_parts(Rules *r, int dim, const int64_t *begin, const int64_t *end) {
  Placement *p;
  Axes m = axes_of(r);
  TRY(start(r, &p));
  r->uneven = true;
  for (int i = 0; i < r->nout; i++) {
    Placement *in = of_input(r, p, 0);
    int bad;
    if (view_cut(&m, dim, r->in[0]->size[dim], begin[i], end[i], in, of_output(r, p, i), &bad)) continue;
    why_whole(r, &in[bad], "the op cuts inside its segments");
    in[bad] = place_r();
    i = -1; /* from the start */
  }
  return rule_mesh(r, p, 0);
}

Status rule_pieces(Rules *r, int dim) {
  int64_t *begin, *end, at = 0;
  TRY_NEW(begin, arena_new_n(r->arena, int64_t, r->nout + 1));
  TRY_NEW(end, arena_new_n(r->arena, int64_t, r->nout + 1));
  for (int i = 0; i < r->nout; i++) {
    begin[i] = at;
    end[i] = at += r->out[i]->size[dim];
  }
  if (at == r->in[0]->size[dim]) return rule_parts(r, dim, begin, end);
  bool whole[MAX_DIMS] = {[0] = false};
  whole[dim] = true;
  return rule_all_but(r, whole, PASS_ALL);
}

/* Does every axis keep what it has: no cut of dim but equal ones of both halves, nothing partial? */
static bool halves_alike(const Rules *r, int dim, const Placement *in, Placement *out) {
  Placement second[MAX_AXES];
  Axes m = axes_of(r);
  int64_t n = r->in[0]->size[dim];
  int bad;
  for (int a = 0; a < r->naxes; a++)
    if (is_p(&in[a])) return false;
  return view_cut(&m, dim, n, 0, n / 2, in, out, &bad) && view_cut(&m, dim, n, n / 2, n, in, second, &bad) &&
         placements_equal(out, second, r->naxes);
}

Status rule_halves(Rules *r, int dim) {
  Placement *p;
  TRY(start(r, &p));
  r->uneven = true;
  if (halves_alike(r, dim, of_input(r, p, 0), p)) return rule_mesh(r, p, 0);
  r->whole_last = true; /* of equally cheap strategies one that shards */
  for (int d = 0; d < r->in[0]->ndim; d++) {
    Placement one[2] = {place_s(d), place_s(d)};
    if (d == dim) continue;
    TRY(rule_axis_exact(r, one));
    TRY(rule_axis(r, one));
  }
  rule_why(r, "each rank needs the same part of both halves");
  return OK;
}

/* Every step-th element of all of a dimension: the dimension as (n / step, step), of which
 * one column is taken. */
static bool columns_of(const Rules *r, int dim, int64_t begin, int64_t end, int64_t step, const Placement *in,
                       Placement *out) {
  const Tensor *t = r->in[0];
  int64_t size[MAX_DIMS + 1];
  Axes m = axes_of(r);
  int bad, n = 0;
  if (begin >= step || end != t->size[dim] || end % step || t->ndim == MAX_DIMS) return false;
  for (int d = 0; d < t->ndim; d++) {
    size[n++] = d == dim ? t->size[d] / step : t->size[d];
    if (d == dim) size[n++] = step;
  }
  if (!view_reshape(&m, t->ndim, t->size, n, size, in, out, &bad)) return false;
  for (int a = 0; a < r->naxes; a++) {
    if (is_p(&in[a]) || (is_s(&out[a]) && out[a].dim == dim + 1)) return false;
    if (is_s(&out[a]) && out[a].dim > dim + 1) out[a].dim--;
  }
  return true;
}

/* dim, start and end as geometry.h understands them. */
static Status part_of(Rules *r, int dim, int64_t begin, int64_t end, int64_t step) {
  if (step == 1) return rule_parts(r, dim, &begin, &end);
  Placement *p;
  TRY(start(r, &p));
  bool cut = false;
  for (int a = 0; a < r->naxes; a++) cut |= is_s_of(&of_input(r, p, 0)[a], dim);
  if (cut && columns_of(r, dim, begin, end, step, of_input(r, p, 0), p)) {
    r->uneven = true;
    return rule_mesh(r, p, 0);
  }
  bool whole[MAX_DIMS] = {[0] = false};
  whole[dim] = true;
  return rule_all_but(r, whole, PASS_ALL);
}

static void slice_of(const Call *c, const Tensor *t, int dim, int64_t *begin, int64_t *end) {
  slice_bounds(&c->arg[2], &c->arg[3], t->size[dim], begin, end);
  if (*end < *begin) *end = *begin;
}

Status rule_slice(Rules *r) {
  int dim;
  int64_t begin, end;
  TRY(wrap_dim(r->call, in_int(r->call, 1), r->in[0]->ndim, &dim));
  slice_of(r->call, r->in[0], dim, &begin, &end);
  return part_of(r, dim, begin, end, in_int(r->call, 4));
}

static int64_t narrow_start(const Call *c, const Tensor *t, int dim) {
  int64_t start = in_int(c, 2);
  return start < 0 ? start + t->size[dim] : start;
}

Status rule_narrow(Rules *r) {
  int dim;
  TRY(wrap_dim(r->call, in_int(r->call, 1), r->in[0]->ndim, &dim));
  int64_t begin = narrow_start(r->call, r->in[0], dim);
  return part_of(r, dim, begin, begin + in_int(r->call, 3), 1);
}

/* ---- as_strided: understood where it names the tensor's own dimensions ------------------------------ */

/* order[i]: the dimension of t that is dimension i of the result; false if it is no permutation. */
static bool strided_order(const Call *c, const Tensor *t, int64_t *order) {
  Ints size = in_ints(c, 1), stride = in_ints(c, 2);
  bool used[MAX_DIMS] = {false}, own = size.n == t->ndim && stride.n == t->ndim;
  if (c->op->schema.nparams > 3 && !in_none(c, 3)) own &= in_int(c, 3) == t->offset;
  for (int i = 0; own && i < size.n; i++) {
    int d = 0;
    while (d < t->ndim && (used[d] || t->size[d] != size.v[i] || (t->stride[d] != stride.v[i] && size.v[i] > 1)))
      d++;
    own = d < t->ndim;
    if (own) used[d] = true, order[i] = d;
  }
  return own;
}

Status rule_as_strided(Rules *r) {
  int64_t order[MAX_DIMS];
  int to[MAX_DIMS];
  bool own = strided_order(r->call, r->in[0], order);
  for (int d = 0; d < r->in[0]->ndim; d++) to[d] = -1;
  for (int i = 0; own && i < r->in[0]->ndim; i++) to[order[i]] = i;
  return rule_renumber(r, to, PASS_ALL);
}

Status localize_as_strided(Local *l) {
  int64_t order[MAX_DIMS];
  bool sharded = false;
  for (int a = 0; a < l->naxes; a++) sharded |= is_s(&local_place_in(l, 0)[a]);
  if (!sharded || !strided_order(l->call, l->in[0], order)) return OK;
  l->op = op_find("aten.permute.default");
  return local_set_ints(l, 1, order, l->in[0]->ndim);
}

/* ---- the local call --------------------------------------------------------------------------------- */

static bool is_sharded(const Local *l, const Placement *p) {
  for (int a = 0; a < l->naxes; a++)
    if (is_s(&p[a])) return true;
  return false;
}

static Status as_op(Local *l, const char *name) {
  l->op = op_find(name);
  return l->op ? OK : op_fail(l->call, "there is no op %s", name);
}

Status localize_view(Local *l) {
  const Schema *s = &l->call->op->schema;
  bool spells = s->nparams == 2 && s->params[1].type == TYPE_INT; /* view itself: its own sizes */
  if (!is_sharded(l, local_place_out(l, 0))) {
    if (spells || s->nparams == 1 || l->call->arg[1].kind != VAL_TENSOR) return OK;
  }
  if (!spells) TRY(as_op(l, "aten.view.default"));
  return local_set_out_size(l, 1);
}

Status localize_expand(Local *l) {
  if (l->call->arg[1].kind == VAL_TENSOR) TRY(as_op(l, "aten.broadcast_to.default"));
  else if (!is_sharded(l, local_place_out(l, 0))) return OK;
  return local_set_out_size(l, 1);
}

Status localize_squeeze(Local *l) {
  const Tensor *in = l->in[0];
  const Call *c = l->call;
  int64_t dims[MAX_DIMS];
  int n = 0, named = c->op->schema.nparams == 1 ? in->ndim : c->arg[1].kind == VAL_INTS ? c->arg[1].n : 1;
  for (int i = 0, d; i < named; i++) {
    int64_t given = c->op->schema.nparams == 1 ? i : c->arg[1].kind == VAL_INTS ? c->arg[1].ints[i] : in_int(c, 1);
    TRY(wrap_dim(c, given, in->ndim, &d));
    if (in->ndim && in->size[d] == 1) dims[n++] = d;
  }
  TRY(as_op(l, c->op->schema.mutates ? "aten.squeeze_.dims"
               : c->op->def->run     ? "aten.squeeze_copy.dims"
                                     : "aten.squeeze.dims"));
  return local_set_ints(l, 1, dims, n);
}

/* How many of this rank's indices of dimension dim come before `limit`; they are in
 * ascending order. */
static Status held_before(const Local *l, int dim, int64_t limit, int64_t *out) {
  Layout at = {.ndim = l->in[0]->ndim,
               .shape = l->in[0]->size,
               .naxes = l->naxes,
               .axis = l->axis,
               .place = local_place_in(l, 0)};
  Runs runs;
  TRY(layout_runs(&at, l->coord, dim, l->arena, &runs));
  *out = 0;
  for (int i = 0; i < runs.n && runs.run[i].begin < limit; i++) {
    int64_t left = limit - runs.run[i].begin;
    *out += left < runs.run[i].size ? left : runs.run[i].size;
  }
  return OK;
}

static bool dim_is_sharded(const Local *l, int dim) {
  for (int a = 0; a < l->naxes; a++)
    if (is_s_of(&local_place_in(l, 0)[a], dim)) return true;
  return false;
}

Status localize_slice(Local *l) {
  int dim;
  int64_t begin, end;
  TRY(wrap_dim(l->call, in_int(l->call, 1), l->in[0]->ndim, &dim));
  if (!dim_is_sharded(l, dim)) return OK;
  slice_of(l->call, l->in[0], dim, &begin, &end);
  if (begin == 0 && end == l->in[0]->size[dim]) return OK; /* all of it: clamped to what is there */
  if (in_int(l->call, 4) > 1) return OK;                   /* whole steps, from the same one on */
  TRY(held_before(l, dim, begin, &begin));
  TRY(held_before(l, dim, end, &end));
  l->arg[2] = val_int(begin);
  l->arg[3] = val_int(end);
  return OK;
}

Status localize_narrow(Local *l) {
  int dim;
  TRY(wrap_dim(l->call, in_int(l->call, 1), l->in[0]->ndim, &dim));
  if (!dim_is_sharded(l, dim)) return OK;
  int64_t begin = narrow_start(l->call, l->in[0], dim), end = begin + in_int(l->call, 3);
  TRY(held_before(l, dim, begin, &begin));
  TRY(held_before(l, dim, end, &end));
  l->arg[2] = val_int(begin);
  l->arg[3] = val_int(end - begin);
  return OK;
}

Status localize_pieces(Local *l, int dim) {
  if (!dim_is_sharded(l, dim)) return OK;
  int64_t *sizes, local[MAX_DIMS];
  TRY_NEW(sizes, arena_new_n(l->arena, int64_t, l->nout + 1));
  for (int i = 0; i < l->nout; i++) {
    TRY(local_out_size(l, i, local));
    sizes[i] = local[dim];
  }
  TRY(as_op(l, "aten.split_with_sizes.default"));
  l->arg[2] = val_int(dim);
  return local_set_ints(l, 1, sizes, l->nout);
}
