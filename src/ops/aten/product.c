/* product.c -- see product.h. */
#include "ops/aten/product.h"

#include <string.h>

/* A view with room for its own geometry. */
typedef struct {
  int64_t size[MAX_DIMS + 1], stride[MAX_DIMS + 1];
  View v;
} Shaped;

static void shaped_of(const Tensor *t, Shaped *s) {
  for (int d = 0; d < t->ndim; d++) {
    s->size[d] = t->size[d];
    s->stride[d] = t->stride[d];
  }
  s->v = (View){tensor_data(t), s->size, s->stride, t->ndim, t->dtype};
}

static void insert_dim(Shaped *s, int at) {
  for (int d = s->v.ndim; d > at; d--) {
    s->size[d] = s->size[d - 1];
    s->stride[d] = s->stride[d - 1];
  }
  s->size[at] = s->stride[at] = 1;
  s->v.ndim++;
}

static void swap_last(Shaped *s) {
  int d = s->v.ndim - 1;
  int64_t size = s->size[d], stride = s->stride[d];
  s->size[d] = s->size[d - 1];
  s->stride[d] = s->stride[d - 1];
  s->size[d - 1] = size;
  s->stride[d - 1] = stride;
}

/* left and right with two dimensions or more, right as (..., k, n). */
static void operands(const Call *c, const Product *p, Shaped *a, Shaped *b) {
  shaped_of(in_tensor(c, p->left), a);
  shaped_of(in_tensor(c, p->right), b);
  if (a->v.ndim == 1) insert_dim(a, 0);
  if (p->transposed && b->v.ndim == 1) insert_dim(b, 0);
  else if (b->v.ndim == 1) insert_dim(b, 1);
  if (p->transposed) swap_last(b);
}

static Status disagree(const Call *c, const Tensor *a, const Tensor *b, const char *why) {
  char x[128], y[128];
  return op_fail(c, "cannot multiply %s and %s: %s", tensor_describe(a, x, sizeof x),
                 tensor_describe(b, y, sizeof y), why);
}

static Status check_operands(const Call *c, const Product *p) {
  const int at[2] = {p->left, p->right}, rank[2] = {p->left_rank, p->right_rank};
  for (int i = 0; i < 2; i++) {
    const Tensor *t = in_tensor(c, at[i]);
    const char *name = c->op->schema.params[at[i]].name;
    char text[128];
    if (!t) return op_fail(c, "'%s' is not a tensor", name);
    if (rank[i] ? t->ndim != rank[i] : t->ndim == 0) {
      return op_fail(c, "'%s' is %s, it must have %s%d dimension%s", name, tensor_describe(t, text, sizeof text),
                     rank[i] ? "" : "at least ", rank[i] ? rank[i] : 1, rank[i] > 1 ? "s" : "");
    }
    if (!dtype_is_compute(t->dtype) || t->dtype == DT_BOOL)
      return op_fail(c, "there are no products of %s", dtype_name(t->dtype));
  }
  const Tensor *a = in_tensor(c, p->left), *b = in_tensor(c, p->right);
  if (a->dtype != b->dtype) return disagree(c, a, b, "their dtypes differ");
  if (p->transposed && b->ndim > 2) return disagree(c, a, b, "the weight has more than two dimensions");
  return OK;
}

/* add or residual must broadcast to the result. */
static Status check_addend(const Call *c, int arg, const Tensor *out, Dtype dtype) {
  const Tensor *t = in_tensor(c, arg);
  char x[128], y[128];
  if (!t) return OK;
  bool fits = t->ndim <= out->ndim;
  for (int d = 0; fits && d < t->ndim; d++) {
    int64_t n = t->size[t->ndim - 1 - d];
    fits = n == 1 || n == out->size[out->ndim - 1 - d];
  }
  if (!fits) {
    return op_fail(c, "'%s' is %s, which does not broadcast to the result %s", c->op->schema.params[arg].name,
                   tensor_describe(t, x, sizeof x), tensor_describe(out, y, sizeof y));
  }
  if (t->dtype != out->dtype && t->dtype != dtype) {
    return op_fail(c, "'%s' is %s, the result is %s: the dtypes differ", c->op->schema.params[arg].name,
                   tensor_describe(t, x, sizeof x), tensor_describe(out, y, sizeof y));
  }
  return OK;
}

Status product_infer(Call *c, const Product *p) {
  Shaped a, b;
  TRY(check_operands(c, p));
  const Tensor *left = in_tensor(c, p->left), *right = in_tensor(c, p->right);
  operands(c, p, &a, &b);
  int an = a.v.ndim, bn = b.v.ndim, batch = (an > bn ? an : bn) - 2, n = 0;
  int64_t size[MAX_DIMS + 2];
  if (a.size[an - 1] != b.size[bn - 2]) return disagree(c, left, right, "the summed dimensions differ");
  for (int d = 0; d < batch; d++) {
    int i = d - (batch - (an - 2)), j = d - (batch - (bn - 2));
    int64_t x = i < 0 ? 1 : a.size[i], y = j < 0 ? 1 : b.size[j];
    if (x != y && ((x != 1 && y != 1) || p->right_rank))
      return disagree(c, left, right, "the batch dimensions differ");
    size[n++] = x == 1 ? y : x;
  }
  if (left->ndim > 1) size[n++] = a.size[an - 2];
  if (right->ndim > 1) size[n++] = b.size[bn - 1];
  if (n > MAX_DIMS) return disagree(c, left, right, "too many dimensions");
  TRY(out_new(c, p->out == DT_NONE ? left->dtype : p->out, n, size));
  if (p->add != NO_ARG) TRY(check_addend(c, p->add, out_tensor(c, 0), left->dtype));
  if (p->residual != NO_ARG) TRY(check_addend(c, p->residual, out_tensor(c, 0), out_tensor(c, 0)->dtype));
  return OK;
}

/* The result, or something that is broadcast to it, with the dimensions that a vector operand lacks. */
static const View *result_view(const Tensor *t, const Tensor *left, const Tensor *right, bool whole, Shaped *s) {
  if (!t) return NULL;
  shaped_of(t, s);
  if (right->ndim == 1) insert_dim(s, s->v.ndim);
  if (left->ndim == 1 && whole) insert_dim(s, s->v.ndim - 1);
  if (left->ndim == 1 && !whole && s->v.ndim > 1) insert_dim(s, s->v.ndim - 1);
  return &s->v;
}

static void pack_free(void *p) { gemm_pack_free(p); }

Status product_run(Call *c, const Product *p, GemmAct act) {
  const Tensor *left = in_tensor(c, p->left), *right = in_tensor(c, p->right);
  Shaped a, b, out, add, residual;
  operands(c, p, &a, &b);
  Gemm g = {.a = a.v,
            .b = b.v,
            .c = *result_view(out_tensor(c, 0), left, right, true, &out),
            .alpha = 1,
            .beta = 1,
            .act = act};
  if (p->add != NO_ARG) g.add = result_view(in_tensor(c, p->add), left, right, false, &add);
  if (p->residual != NO_ARG) g.residual = result_view(in_tensor(c, p->residual), left, right, false, &residual);
  if (p->alpha != NO_ARG) g.alpha = in_float(c, p->alpha);
  if (p->beta != NO_ARG) g.beta = in_float(c, p->beta);
  if (!c->state || !in_fixed(c, p->right)) return gemm(&c->ctx->kern, &g);
  GemmPack *pack = *c->state;
  g.pack = &pack;
  Status s = gemm(&c->ctx->kern, &g);
  *c->state = pack;
  *c->state_free = pack_free;
  return s;
}

double product_flops(const Call *c, const Product *p) {
  const Tensor *left = in_tensor(c, p->left), *out = c->nout ? out_tensor(c, 0) : NULL;
  return out && left->ndim ? 2.0 * (double)tensor_numel(out) * (double)left->size[left->ndim - 1] : 0;
}

/* ---- how it shards ---------------------------------------------------------------------- */

typedef struct {
  Rules *r;
  const Product *p;
  int left, right; /* flat numbers of the inputs */
} Sharding;

/* What is added: where the result is cut, if it is not broadcast there; partial with it. */
static Placement addend_place(const Tensor *t, const Tensor *out, Placement result) {
  if (!is_s(&result)) return result;
  int at = result.dim - (out->ndim - t->ndim);
  return at < 0 || t->size[at] == 1 ? place_r() : place_s(at);
}

/* One strategy; dim < 0: R. */
static Status add_strategy(const Sharding *s, Placement result, Placement left, Placement right) {
  Rules *r = s->r;
  const int addends[2] = {s->p->add, s->p->residual};
  Placement p[8];
  p[0] = result;
  p[1 + s->left] = left;
  p[1 + s->right] = right;
  for (int i = 0; i < 2; i++) {
    int at = addends[i] == NO_ARG ? -1 : rule_input(r, addends[i], 0);
    if (at >= 0) p[1 + at] = addend_place(r->in[at], r->out[0], result);
  }
  if (r->out[0]->ndim < 2) TRY(rule_axis_exact(r, p)); /* vectors: also where nothing is cut */
  return rule_axis(r, p);
}

/* S of a dimension that is there and not repeated. */
static Placement shard_at(const Tensor *t, int dim, int64_t size) {
  return dim >= 0 && t->size[dim] == size ? place_s(dim) : place_r();
}

/* In PyTorch's order: batch, summed, left, right, then what is partial. */
Status product_place(Rules *r, const Product *p, bool linear) {
  Sharding s = {r, p, rule_input(r, p->left, 0), rule_input(r, p->right, 0)};
  const Tensor *a = r->in[s.left], *b = r->in[s.right], *out = r->out[0];
  int an = a->ndim, bn = b->ndim, rows = an > 1, columns = bn > 1;
  int batch = out->ndim - rows - columns;
  r->uneven = true; /* a sum of nothing is 0 */
  for (int d = 0; d < batch; d++) {
    int i = d - (batch - (an - 2)), j = d - (batch - (bn - 2));
    TRY(add_strategy(&s, place_s(d), shard_at(a, an > 2 ? i : -1, out->size[d]),
                     shard_at(b, bn > 2 ? j : -1, out->size[d])));
  }
  if (rows && !columns) { /* mv: rather rows than all R, rather that than the rest */
    r->whole_last = true;
    TRY(add_strategy(&s, place_s(batch), place_s(an - 2), place_r()));
    TRY(add_strategy(&s, place_r(), place_r(), place_r()));
  }
  int summed = p->transposed ? bn - 1 : columns ? bn - 2 : 0, free = p->transposed ? 0 : bn - 1;
  if (linear) TRY(add_strategy(&s, place_p(REDUCE_SUM), place_s(an - 1), place_s(summed)));
  if (rows && columns) TRY(add_strategy(&s, place_s(batch), place_s(an - 2), place_r()));
  if (columns) TRY(add_strategy(&s, place_s(batch + rows), place_r(), place_s(free)));
  for (ReduceOp op = REDUCE_SUM; linear && op <= REDUCE_AVG; op++) {
    TRY(add_strategy(&s, place_p(op), place_p(op), place_r()));
    TRY(add_strategy(&s, place_p(op), place_r(), place_p(op)));
  }
  return OK;
}

Status product_act(const Call *c, const char *name, GemmAct *out) {
  static const char *const names[] = {
#define X(id, text) text,
    GEMM_ACTS(X)
#undef X
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (name && !strcmp(name, names[i])) return *out = (GemmAct)i, OK;
  }
  return op_fail(c, "there is no activation '%s'; there are none, relu, gelu, gelu_tanh, silu, tanh and sigmoid",
                 name ? name : "");
}
