/* lower_parts.c -- what a rank does of random tensors and batch norms, for PyTorch; see lower_torch.h.
 *
 * PyTorch's generator cannot begin in the middle: a rank draws the whole tensor, as one rank would, and keeps its
 * part.  Ranks that were seeded alike therefore have the same masks as one.
 */
#include "graph/resolve.h"
#include "ops/formula.h"
#include "passes/lower_torch.h"
#include "shard/layout.h"

/* ---- random numbers ----------------------------------------------------------------------------- */

/* What the rank holds of a whole tensor. */
static Status keep_part(Lower *l, const ShardOf *of, Tensor *whole, Tensor **out) {
  const Call *c = &l->call;
  for (int d = 0; d < of->layout.ndim; d++) {
    Runs runs;
    Tensor **piece;
    TRY(layout_runs(&of->layout, of->coord, d, c->arena, &runs));
    if (runs.size == whole->size[d]) continue;
    int n = runs.n ? runs.n : 1;
    TRY_NEW(piece, arena_new_n(c->arena, Tensor *, n));
    for (int i = 0; i < n; i++) {
      Run run = runs.n ? runs.run[i] : (Run){0, 0};
      TRY(OP(c, "aten.slice.Tensor", &piece[i], val_tensor(whole), val_int(d), val_int(run.begin),
             val_int(run.begin + run.size)));
    }
    if (n > 1) TRY(OP(c, "aten.cat.default", &whole, val_tensors(piece, n), val_int(d)));
    else whole = piece[0];
  }
  *out = whole;
  return OK;
}

static Status new_whole(Lower *l, const ShardOf *of, Tensor *like, Dtype dtype, Tensor **out) {
  return OP(&l->call, "aten.new_empty.default", out, val_tensor(like), val_ints(of->layout.shape, of->layout.ndim),
            val_dtype(dtype));
}

Status lower_drawn_mask(Lower *l, const ShardOf *of, Tensor *like, double p, Tensor **out) {
  Tensor *empty, *mask;
  TRY(new_whole(l, of, like, DT_BOOL, &empty));
  TRY(OP(&l->call, "aten.bernoulli.p", &mask, val_tensor(empty), val_float(1 - p)));
  return keep_part(l, of, mask, out);
}

/* native_dropout(input, p, train) -> (output, mask) */
static Status lower_dropout_part(Lower *l, const Node *n, Tensor **out) {
  Formula f = {&l->call, OK};
  Tensor *x;
  double p = n->args[1].kind == ARG_INT ? (double)n->args[1].i : n->args[1].f;
  TRY(lower_tensor(l, n, 0, &x));
  TRY(lower_drawn_mask(l, n->shard, x, p, &out[1]));
  out[0] = f_scale(&f, f_mul(&f, x, out[1]), p < 1 ? 1 / (1 - p) : 0);
  return f.status;
}

/* bernoulli(self) and bernoulli.Tensor(self, p): a number per element, below its probability. */
static Status lower_bernoulli_part(Lower *l, const Node *n, Tensor **out) {
  const Call *c = &l->call;
  Tensor *self, *p, *whole, *drawn;
  TRY(lower_tensor(l, n, 0, &self));
  TRY(lower_tensor(l, n, node_is(n, "aten.bernoulli.Tensor") ? 1 : 0, &p));
  TRY(new_whole(l, n->shard, p, p->dtype, &whole));
  TRY(OP(c, "aten.rand_like.default", &drawn, val_tensor(whole)));
  TRY(keep_part(l, n->shard, drawn, &drawn));
  TRY(OP(c, "aten.lt.Tensor", &drawn, val_tensor(drawn), val_tensor(p)));
  return OP(c, "aten.to.dtype", out, val_tensor(drawn), val_dtype(self->dtype));
}

/* rand_like(self, ...) and others that read nothing of self but its sizes. */
static Status lower_like_part(Lower *l, const Node *n, Tensor **out) {
  Tensor *self, *whole;
  Value arg[MAX_PARAMS];
  TRY(lower_tensor(l, n, 0, &self));
  TRY(new_whole(l, n->shard, self, self->dtype, &whole));
  int given = n->nargs;
  while (given && (n->args[given - 1].kind == ARG_UNSET || n->args[given - 1].kind == ARG_NONE)) given--;
  for (int i = 1; i < given; i++) TRY(arg_resolve(l->call.arena, NULL, &n->args[i], &arg[i]));
  arg[0] = val_tensor(whole);
  TRY(op_call(&l->call, n->target, &whole, 1, arg, given ? given : 1));
  return keep_part(l, n->shard, whole, out);
}

Status lower_numbered(Lower *l, const Node *n, Tensor **out) {
  if (node_is(n, "aten.native_dropout.default")) return lower_dropout_part(l, n, out);
  if (node_is(n, "aten.bernoulli.default") || node_is(n, "aten.bernoulli.Tensor"))
    return lower_bernoulli_part(l, n, out);
  return lower_like_part(l, n, out);
}

/* ---- batch norm ---------------------------------------------------------------------------------- */

/* All dimensions but that of channels. */
static int rows_of(const Tensor *x, int64_t *dims) {
  int n = 0;
  for (int d = 0; d < x->ndim; d++)
    if (d != 1) dims[n++] = d;
  return n;
}

/* Two vectors of sums over rows, one above the other. */
static Status stack_sums(Formula *f, const Tensor *a, const Tensor *b, Tensor **out) {
  int64_t dims[MAX_DIMS];
  if (f->status || !a || !b) return f->status;
  int n = rows_of(a, dims);
  Tensor *sums[2] = {f_sum(f, a, dims, n, false), f_sum(f, b, dims, n, false)};
  *out = F_OP(f, "aten.stack.default", val_tensors(sums, 2));
  return f->status;
}

Status lower_channel_moments(Lower *l, const Node *n, Tensor **out) {
  Formula f = {&l->call, OK};
  Tensor *x;
  TRY(lower_tensor(l, n, 0, &x));
  x = f_cast(&f, x, DT_F64);
  return stack_sums(&f, x, f_mul(&f, x, x), out);
}

/* (grad_out, input, mean, rstd) */
Status lower_channel_gradient_sums(Lower *l, const Node *n, Tensor **out) {
  Formula f = {&l->call, OK};
  Tensor *t[4];
  for (int i = 0; i < 4; i++) TRY(lower_tensor(l, n, i, &t[i]));
  int64_t size[MAX_DIMS];
  for (int d = 0; d < t[1]->ndim; d++) size[d] = d == 1 ? t[1]->size[1] : 1;
  for (int i = 0; i < 4; i++) t[i] = f_cast(&f, t[i], DT_F64);
  for (int i = 2; i < 4; i++) t[i] = f_view(&f, t[i], size, t[1] ? t[1]->ndim : 0);
  Tensor *h = f_mul(&f, f_sub(&f, t[1], t[2]), t[3]);
  return stack_sums(&f, t[0], f_mul(&f, t[0], h), out);
}
