/* rule_fold.c -- rules that follow one input: results lie as it does, but for dimensions
 * that the op folds or needs whole; see rule.h. */
#include <string.h>

#include "ops/rule.h"

/* ---- what shards hold ------------------------------------------------------------------ */

/* Elements of the dimensions in mask that the first (bit a of ends: last) rank of every axis has. */
static void held(const Rules *r, int i, unsigned ends, const bool *mask, int64_t *size) {
  int coord[MAX_AXES];
  const Tensor *t = r->in[i];
  for (int a = 0; a < r->naxes; a++) coord[a] = ends >> a & 1 ? r->axis[a] - 1 : 0;
  Layout l = {.ndim = t->ndim, .shape = t->size, .naxes = r->naxes, .axis = r->axis, .place = rule_have(r, i, 0)};
  Status s = layout_local(&l, coord, size);
  for (int d = 0; d < t->ndim; d++)
    if (s || !mask[d]) size[d] = 1;
  status_free(s);
}

/* The last part of a cut is the smallest, but a large part may leave a rank empty that cuts it again
 * where a small one does not: all ends are asked. */
bool rule_has_empty(const Rules *r, int i, const bool *mask) {
  for (unsigned ends = 0; ends < 1u << r->naxes; ends++) {
    int64_t size[MAX_DIMS];
    held(r, i, ends, mask, size);
    for (int d = 0; d < r->in[i]->ndim; d++)
      if (size[d] == 0) return true;
  }
  return false;
}

bool rule_is_even(const Rules *r, int i, const bool *mask) {
  int64_t most[MAX_DIMS], least[MAX_DIMS];
  held(r, i, 0, mask, most);
  held(r, i, (1u << r->naxes) - 1u, mask, least);
  return !memcmp(most, least, (size_t)r->in[i]->ndim * sizeof *most);
}

/* ---- axis by axis ------------------------------------------------------------------------ */

Status rule_follow(Rules *r, AxisFn *fn, const void *arg) {
  int n = r->nout + r->nin;
  Placement *one, *all;
  TRY_NEW(one, arena_new_n(r->arena, Placement, n + 1));
  TRY_NEW(all, arena_new_n(r->arena, Placement, n * r->naxes + 1));
  for (int a = 0; a < r->naxes; a++) {
    for (int i = 0; i < n; i++) one[i] = place_r();
    TRY(fn(r, arg, a, one));
    for (int i = 0; i < n; i++) all[i * r->naxes + a] = one[i];
  }
  return rule_mesh(r, all, 0);
}

/* ---- folds --------------------------------------------------------------------------------- */

/* Where dimension d of the lead is in the results. */
static int fold_to(const Fold *f, int d) {
  int to = 0;
  for (int i = 0; i < d; i++) to += !f->whole[i] || !f->drops;
  return to;
}

static void put(const Rules *r, const Fold *f, const Placement *in, const Placement *out, Placement *p) {
  for (int i = 0; i < r->nout; i++) p[i] = *out;
  for (int i = 0; i < r->nin; i++) p[r->nout + i] = tensor_same_size(r->in[i], r->in[f->lead]) ? *in : place_r();
}

static bool passes(const Fold *f, const Placement *p) {
  return p->norm != 0 ? p->norm == f->norm : (f->passes >> p->op & 1) != 0;
}

static Status fold_axis(const Rules *r, const void *arg, int a, Placement *p) {
  const Fold *f = arg;
  Placement in = *rule_have(r, f->lead, a), out = in;
  if (is_p(&in) && !passes(f, &in)) in = out = place_r();
  if (is_s(&in)) {
    out.dim = fold_to(f, in.dim);
    if (f->whole[in.dim] && f->leaves_partial) out = f->partial;
    else if (f->whole[in.dim]) in = out = place_r();
  }
  put(r, f, &in, &out, p);
  return OK;
}

Status rule_fold(Rules *r, const Fold *f) {
  if (!f->any) return rule_follow(r, fold_axis, f);
  Placement *p;
  TRY_NEW(p, arena_new_n(r->arena, Placement, r->nout + r->nin));
  for (int d = 0; d < r->in[f->lead]->ndim; d++) {
    Placement in = place_s(d), out = place_s(fold_to(f, d));
    if (f->whole[d] && !f->leaves_partial) continue;
    if (f->whole[d]) out = f->partial;
    put(r, f, &in, &out, p);
    if (f->offers) TRY(rule_axis_exact(r, p));
    TRY(rule_axis(r, p));
  }
  for (ReduceOp op = REDUCE_SUM; op < REDUCE_OP_COUNT; op++) {
    Placement partial = place_p(op);
    if (!(f->passes >> op & 1)) continue;
    put(r, f, &partial, &partial, p);
    TRY(rule_axis(r, p));
  }
  return OK;
}

Status rule_dims(const Rules *r, bool *mask) {
  const Call *c = r->call;
  int i = schema_find(&c->op->schema, "dim"), ndim = r->in[0]->ndim;
  const Value *v = i < 0 ? NULL : &c->arg[i];
  if (v && v->kind == VAL_INT) return wrap_dims(c, (Ints){&v->i, 1}, ndim, mask);
  if (v && v->kind == VAL_INTS && v->n) return wrap_dims(c, in_ints(c, i), ndim, mask);
  for (int d = 0; d < MAX_DIMS; d++) mask[d] = true;
  return OK;
}

static Status fold_dims(Rules *r, bool any, bool offers) {
  Fold f = {.lead = 0, .any = any, .offers = offers};
  TRY(rule_dims(r, f.whole));
  f.drops = r->nout && r->out[0]->ndim < r->in[0]->ndim;
  return rule_fold(r, &f);
}

Status place_along(Rules *r) { return fold_dims(r, false, false); }
Status place_rows(Rules *r) { return fold_dims(r, true, false); }
Status place_rows_offered(Rules *r) { return fold_dims(r, true, true); }
