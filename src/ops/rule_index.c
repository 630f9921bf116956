/* rule_index.c -- sharding rules of ops that join, pick and put elements; see rule_move.h.
 *
 * Most list one strategy per dimension that the op does not look into.  The order is
 * PyTorch's: dimensions, then what is partial.
 */
#include <string.h>

#include "ops/rule_move.h"
#include "shard/view_calculus.h"

/* One axis: every input R and every output as told; then single inputs are set. */
static Status blank(const Rules *r, Placement out, Placement **p) {
  TRY_NEW(*p, arena_new_n(r->arena, Placement, r->nout + r->nin + 1));
  for (int i = 0; i < r->nout; i++) (*p)[i] = out;
  for (int i = 0; i < r->nin; i++) (*p)[r->nout + i] = place_r();
  return OK;
}

static Placement *input_of(const Rules *r, Placement *p, int i) { return &p[r->nout + i]; }

/* Also where no input is cut like that. */
static Status rule_axis_offered(Rules *r, const Placement *p) {
  TRY(rule_axis_exact(r, p));
  return rule_axis(r, p);
}

/* Output and input 0 are partial alike, the others are R. */
static Status pass_owed(Rules *r, ReduceOp first, ReduceOp last) {
  for (ReduceOp op = first; op <= last; op++) {
    Placement *p;
    TRY(blank(r, place_p(op), &p));
    *input_of(r, p, 0) = place_p(op);
    TRY(rule_axis(r, p));
  }
  return OK;
}

/* ---- cat ---------------------------------------------------------------------------------- */

static bool joins_anything(const Tensor *t) { return t->ndim == 1 && t->size[0] == 0; }

/* All inputs as input `model` is; shards of the joined dimension dissolved, or kept and
 * told with segments.  A strategy of that kind is listed only if it can be told. */
static Status cat_like(Rules *r, int model, int dim, bool keep) {
  Placement *p;
  Axes m = {r->naxes, r->axis};
  bool cuts = false;
  TRY_NEW(p, arena_new_n(r->arena, Placement, (r->nout + r->nin) * r->naxes + 1));
  for (int t = 0; t < r->nin; t++) {
    for (int a = 0; a < r->naxes; a++) {
      Placement *to = &p[(r->nout + t) * r->naxes + a];
      const Placement *own = rule_have(r, t, a);
      *to = r->in[t]->ndim == r->out[0]->ndim ? *rule_have(r, model, a) : *own;
      if (r->in[t]->ndim != r->out[0]->ndim || !is_s_of(to, dim)) continue;
      cuts = true;
      if (!keep) *to = place_r();
      else if (is_s_of(own, dim)) *to = *own;
      else *to = place_s(dim), to->unit = rule_have(r, model, a)->unit;
    }
  }
  if (!keep || !cuts) {
    if (keep) return OK;
    memcpy(p, p + (r->nout + model) * r->naxes, (size_t)r->naxes * sizeof *p);
    return rule_mesh(r, p, 0);
  }
  int64_t size[MAX_JOINED];
  int bad;
  if (r->nin > MAX_JOINED) return OK;
  for (int t = 0; t < r->nin; t++) {
    if (joins_anything(r->in[t]) && r->out[0]->ndim > 1) return OK;
    size[t] = r->in[t]->size[dim];
  }
  if (!view_join(&m, dim, size, r->nin, p + r->nout * r->naxes, p, &bad)) return OK;
  return rule_mesh(r, p, 0);
}

Status rule_cat(Rules *r) {
  int dim;
  TRY(wrap_dim(r->call, in_int(r->call, 1), r->out[0]->ndim, &dim));
  r->uneven = true;
  for (int keep = 0; keep < 2; keep++) {
    for (int t = 0; t < r->nin; t++) {
      bool seen = false;
      for (int before = 0; before < t; before++)
        seen |= placements_equal(rule_have(r, before, 0), rule_have(r, t, 0), r->naxes);
      if (!seen && r->in[t]->ndim == r->out[0]->ndim) TRY(cat_like(r, t, dim, keep));
    }
  }
  return OK;
}

/* ---- picking ------------------------------------------------------------------------------------ */

Status rule_index_select(Rules *r) {
  Placement *p;
  int dim;
  TRY(wrap_dim(r->call, in_int(r->call, 1), r->in[0]->ndim, &dim));
  for (int d = 0; d < r->in[0]->ndim; d++) {
    if (d == dim) continue;
    TRY(blank(r, place_s(d), &p));
    *input_of(r, p, 0) = place_s(d);
    TRY(rule_axis(r, p));
  }
  if (r->in[0]->ndim && r->in[1]->ndim) {
    TRY(blank(r, place_s(dim), &p));
    *input_of(r, p, 1) = place_s(0);
    TRY(rule_axis(r, p));
  }
  return pass_owed(r, REDUCE_SUM, REDUCE_PRODUCT);
}

/* n rows and the first m of them: does every rank that has some of the m have the same
 * first row of both, whichever axes from a on cut them? */
static bool rows_meet(const Rules *r, int a, int64_t n, int64_t m) {
  if (n == m || a == r->naxes || m == 0) return true;
  if (!rows_meet(r, a + 1, n, m)) return false;
  int k = r->axis[a];
  for (int i = 0; i < k; i++) {
    int64_t at, size, other_at, other;
    chunk_of(n, k, i, 1, &at, &size);
    chunk_of(m, k, i, 1, &other_at, &other);
    if (other && (at != other_at || size < other || !rows_meet(r, a + 1, size, other))) return false;
  }
  return true;
}

Status rule_gather(Rules *r) {
  Placement *p;
  int dim;
  const Tensor *self = r->in[0], *index = r->in[1];
  TRY(wrap_dim(r->call, in_int(r->call, 1), self->ndim, &dim));
  if (!self->ndim || self->ndim != index->ndim) return pass_owed(r, REDUCE_SUM, REDUCE_PRODUCT);
  if (index->size[dim] == 1 && self->dtype != DT_BOOL) { /* each rank gives what it has, else 0 */
    TRY(blank(r, place_p(REDUCE_SUM), &p));
    *input_of(r, p, 0) = place_s(dim);
    TRY(rule_axis_exact(r, p));
  }
  TRY(blank(r, place_s(dim), &p)); /* each index by itself */
  *input_of(r, p, 1) = place_s(dim);
  TRY(rule_axis_offered(r, p));
  for (int d = 0; d < self->ndim; d++) {
    if (d == dim || !rows_meet(r, 0, self->size[d], index->size[d]))
      continue; /* else their shards are of other rows */
    TRY(blank(r, place_s(d), &p));
    *input_of(r, p, 0) = *input_of(r, p, 1) = place_s(d);
    TRY(rule_axis_exact(r, p));
    if (self->size[d] == index->size[d]) TRY(rule_axis(r, p));
  }
  return pass_owed(r, REDUCE_SUM, REDUCE_PRODUCT);
}

/* take(self, index): self is whole. */
Status rule_take(Rules *r) {
  for (int d = 0; d < r->out[0]->ndim; d++) {
    Placement *p;
    TRY(blank(r, place_s(d), &p));
    *input_of(r, p, 1) = place_s(d);
    TRY(rule_axis(r, p));
  }
  return pass_owed(r, REDUCE_SUM, REDUCE_PRODUCT);
}

/* x[i, :, j]: which dimensions have an index, what the indices broadcast to, and where
 * that stands in the result.  A mask is a list of places in as many dimensions as it has. */
typedef struct {
  bool indexed[MAX_DIMS];
  int count, ndim, place;
} Indexed;

static Indexed indexed_dims(const Call *c) {
  Indexed x = {.count = 0};
  int last = -1;
  bool adjacent = true;
  for (int i = 0, dim = 0; i < in_count(c, 1); i++) {
    const Tensor *t = in_item(c, 1, i);
    bool mask = t && (t->dtype == DT_BOOL || t->dtype == DT_U8);
    int covers = mask ? t->ndim : 1, lists = mask ? 1 : t ? t->ndim : 0;
    if (lists > x.ndim) x.ndim = lists;
    for (int end = dim + covers; dim < end && dim < MAX_DIMS; dim++) {
      if (!t) continue;
      x.indexed[dim] = true;
      adjacent &= last < 0 || dim == last + 1;
      if (last < 0) x.place = dim;
      last = dim;
      x.count++;
    }
  }
  if (!adjacent) x.place = 0;
  return x;
}

/* Where dimension d of self, not indexed, is in the result. */
static int kept_at(const Indexed *x, int d) {
  int at = 0;
  for (int i = 0; i < d; i++) at += !x->indexed[i];
  return at < x->place ? at : at + x->ndim;
}

Status rule_index(Rules *r) {
  const Call *c = r->call;
  Placement *p;
  Indexed x = indexed_dims(c);
  for (int d = 0; d < r->in[0]->ndim; d++) {
    if (x.indexed[d]) continue;
    TRY(blank(r, place_s(kept_at(&x, d)), &p));
    *input_of(r, p, 0) = place_s(d);
    TRY(rule_axis(r, p));
  }
  for (int d = 0; d < x.ndim; d++) { /* a dimension of the indices */
    bool any = false;
    TRY(blank(r, place_s(x.place + d), &p));
    for (int i = 1; i < r->nin; i++) {
      int at = d - (x.ndim - r->in[i]->ndim);
      if (at < 0 || r->in[i]->size[at] == 1) continue;
      *input_of(r, p, i) = place_s(at);
      any = true;
    }
    if (any) TRY(rule_axis(r, p));
  }
  return pass_owed(r, REDUCE_SUM, REDUCE_PRODUCT);
}

/* ---- putting ----------------------------------------------------------------------------------------- */

/* What is added up may come in parts: each rank adds its indices' values to a partial sum, of which self is one
 * addend.  So the gradient of a table that is read at the rows of a batch needs no other rank's rows. */
static Status add_in_parts(Rules *r, const Indexed *x, int values, int result) {
  for (int i = 1; i < values; i++)
    if (!dtype_is_int(r->in[i]->dtype) || r->in[i]->dtype == DT_U8) return OK; /* a mask: who knows how many? */
  for (int d = 0; d < x->ndim; d++) {
    Placement *p;
    bool any = false;
    TRY(blank(r, place_p(REDUCE_SUM), &p));
    *input_of(r, p, 0) = place_p(REDUCE_SUM);
    for (int i = 1; i < r->nin; i++) {
      int at = i == values ? x->place + d - (result - r->in[i]->ndim) : d - (x->ndim - r->in[i]->ndim);
      if (at < 0 || r->in[i]->size[at] == 1) continue;
      *input_of(r, p, i) = place_s(at);
      any |= i != values;
    }
    if (any) TRY(rule_axis(r, p));
  }
  return OK;
}

Status rule_index_put(Rules *r) {
  const Call *c = r->call;
  Placement *p;
  Indexed x = indexed_dims(c);
  int values = rule_input(r, 2, 0);
  int result = x.ndim + r->in[0]->ndim - x.count;
  for (int d = 0; d < r->in[0]->ndim; d++) {
    if (x.indexed[d]) continue;
    TRY(blank(r, place_s(d), &p));
    *input_of(r, p, 0) = place_s(d);
    const Tensor *v = values < 0 ? NULL : r->in[values];
    int at = v ? kept_at(&x, d) - (result - v->ndim) : -1;
    if (at >= 0 && v->size[at] != 1) *input_of(r, p, values) = place_s(at);
    TRY(rule_axis(r, p));
  }
  if (values < 0) return OK;
  if (in_bool(c, 3) && r->out[0]->dtype != DT_BOOL) TRY(add_in_parts(r, &x, values, result));
  TRY(blank(r, place_p(REDUCE_SUM), &p)); /* self and values partial, in one go */
  *input_of(r, p, 0) = *input_of(r, p, values) = place_p(REDUCE_SUM);
  return rule_axis(r, p);
}

/* Another dimension than the indexed one, where all operands have the same size. */
Status rule_scatter(Rules *r) {
  int dim;
  const Tensor *self = r->in[0];
  TRY(wrap_dim(r->call, in_int(r->call, 1), self->ndim, &dim));
  for (int d = 0; d < self->ndim; d++) {
    bool same = d != dim;
    Placement *p;
    TRY(blank(r, place_s(d), &p));
    for (int i = 0; i < r->nin; i++) {
      same = same && r->in[i]->ndim == self->ndim && r->in[i]->size[d] == self->size[d];
      *input_of(r, p, i) = place_s(d);
    }
    if (same) TRY(rule_axis_offered(r, p));
  }
  return OK;
}

/* index_add is linear in self and source, index_copy moves both; index_fill writes one
 * value on every rank, or a partial one. */
Status rule_index_dim(Rules *r) {
  Placement *p;
  int dim, source = rule_input(r, 3, 0);
  TRY(wrap_dim(r->call, in_int(r->call, 1), r->in[0]->ndim, &dim));
  for (int d = 0; d < r->in[0]->ndim; d++) {
    if (d == dim) continue;
    TRY(blank(r, place_s(d), &p));
    *input_of(r, p, 0) = place_s(d);
    if (source >= 0 && r->in[source]->ndim > d) *input_of(r, p, source) = place_s(d);
    TRY(rule_axis(r, p));
  }
  bool adds = r->call->op->def->shard.linear == LINEAR_JOINT;
  if (adds && r->in[1]->ndim == 1 && r->in[source]->ndim > dim && r->out[0]->dtype != DT_BOOL) {
    TRY(blank(r, place_p(REDUCE_SUM), &p)); /* each rank adds its own, as in add_in_parts */
    *input_of(r, p, 0) = place_p(REDUCE_SUM), *input_of(r, p, 1) = place_s(0);
    *input_of(r, p, source) = place_s(dim);
    TRY(rule_axis(r, p));
  }
  ReduceOp last = adds ? REDUCE_AVG : REDUCE_PRODUCT;
  for (ReduceOp op = REDUCE_SUM; op <= last; op++) {
    Placement partial = place_p(op);
    if (source < 0 && !pass_partial(PASS_EQUAL, &partial)) continue;
    TRY(blank(r, partial, &p));
    *input_of(r, p, 0) = partial;
    if (source >= 0) *input_of(r, p, source) = partial;
    TRY(rule_axis(r, p));
  }
  return OK;
}

/* ---- the part that a view shows ------------------------------------------------------------------------ */

/* One input leads, the other follows; dimensions that the view cuts are whole. */
static Status scatter_led(Rules *r, const int *to, int lead) {
  Placement *p;
  TRY_NEW(p, arena_new_n(r->arena, Placement, 3 * r->naxes + 1));
  for (int a = 0; a < r->naxes; a++) {
    Placement self = *rule_have(r, lead, a), src = self;
    if (is_s(&self) && lead == 0) src.dim = to[self.dim];
    for (int d = 0; is_s(&src) && lead == 1 && d <= r->in[0]->ndim; d++) {
      self.dim = d < r->in[0]->ndim ? d : -1;
      if (d < r->in[0]->ndim && to[d] == src.dim) break;
    }
    if (is_s(&self) && (self.dim < 0 || src.dim < 0)) self = src = place_r();
    p[a] = p[r->naxes + a] = self;
    p[2 * r->naxes + a] = src;
  }
  return rule_mesh(r, p, 0);
}

Status rule_view_scatter(Rules *r, GeometryFn *view) {
  int to[MAX_DIMS];
  TRY(follow_geometry(r, view, 2, r->in[0], to));
  r->uneven = true;
  TRY(scatter_led(r, to, 0));
  return scatter_led(r, to, 1);
}

Status rule_view_backward(Rules *r, GeometryFn *view) {
  int to[MAX_DIMS], back[MAX_DIMS];
  TRY(follow_geometry(r, view, 2, r->out[0], to));
  for (int d = 0; d < r->in[0]->ndim; d++) back[d] = -1;
  for (int d = 0; d < r->out[0]->ndim; d++)
    if (to[d] >= 0) back[to[d]] = d;
  return rule_renumber(r, back,
                       view == geometry_unfold ? PASS_LINEAR : PASS_ALL); /* windows that overlap are added up */
}
