/* lower_attention.c -- attention with its logsumexp, and its gradients, as PyTorch's kernels take them; see
 * lower_torch.h.
 *
 * Ours share key heads among query heads, take masks of bools and values of another size than queries, and give the
 * gradient of a mask; PyTorch's _scaled_dot_product_flash_attention_for_cpu has one key head per query head, masks
 * of the query's dtype, and one size of heads: zeros are added to the smaller, which change no sum. */
#include <math.h>

#include "ops/formula.h"
#include "passes/lower_torch.h"
#include "shard/layout.h"

typedef struct {
  Formula f;
  Tensor *q, *k, *v, *mask;
  Tensor *g, *y, *logsumexp; /* of a backward: what came back to the output, the output, its statistics */
  int64_t shared;            /* query heads that share a key head */
} Attention;

/* 0 where the mask holds, else -inf. */
static Tensor *float_mask(Formula *f, Tensor *mask, Dtype d) {
  if (!mask || mask->dtype != DT_BOOL) return mask;
  Tensor *zeros = F_OP(f, "aten.zeros_like.default", F_T(mask), val_dtype(d));
  Tensor *hidden = F_OP(f, "aten.logical_not.default", F_T(mask));
  return F_OP(f, "aten.masked_fill.Scalar", F_T(zeros), F_T(hidden), val_float(-INFINITY));
}

/* [B, H, T, D] with every head `times` times. */
static Tensor *repeat_heads(Formula *f, Tensor *x, int64_t times) {
  if (!x || times == 1) return x;
  const int64_t five[] = {x->size[0], x->size[1], times, x->size[2], x->size[3]},
                four[] = {x->size[0], x->size[1] * times, x->size[2], x->size[3]};
  Tensor *y = F_OP(f, "aten.unsqueeze.default", F_T(x), val_int(2));
  return f_view(f, F_OP(f, "aten.expand.default", F_T(y), val_ints(five, 5)), four, 4);
}

/* The sum over heads that were one. */
static Tensor *sum_heads(Formula *f, Tensor *x, int64_t times) {
  if (!x || times == 1) return x;
  const int64_t five[] = {x->size[0], x->size[1] / times, times, x->size[2], x->size[3]}, dim = 2;
  return f_sum(f, f_view(f, x, five, 5), &dim, 1, false);
}

/* Heads of `size` features: zeros are added behind, or what is too much is left out. */
static Tensor *resize_heads(Formula *f, Tensor *x, int64_t size) {
  if (!x || x->size[3] == size) return x;
  const int64_t zeros[2] = {0, size - x->size[3]};
  if (zeros[1] > 0) return F_OP(f, "aten.constant_pad_nd.default", F_T(x), val_ints(zeros, 2));
  return F_OP(f, "aten.slice.Tensor", F_T(x), val_int(3), val_int(0), val_int(size));
}

/* query, key and value from argument `first` on. */
static Status attention_of(Lower *l, const Node *n, int first, int mask, Attention *a) {
  *a = (Attention){.f = {&l->call, OK}};
  TRY(lower_tensor(l, n, first, &a->q));
  TRY(lower_tensor(l, n, first + 1, &a->k));
  TRY(lower_tensor(l, n, first + 2, &a->v));
  TRY(lower_tensor(l, n, mask, &a->mask));
  int64_t heads = a->k->size[1];
  a->shared = heads && a->q->size[1] > heads ? a->q->size[1] / heads : 1;
  return OK;
}

/* The same of a backward: (grad_out, query, key, value, out, logsumexp, ...). */
static Status backward_of(Lower *l, const Node *n, int mask, Attention *a) {
  TRY(attention_of(l, n, 1, mask, a));
  TRY(lower_tensor(l, n, 0, &a->g));
  TRY(lower_tensor(l, n, 4, &a->y));
  return lower_tensor(l, n, 5, &a->logsumexp);
}

static Value number(const Arg *a) {
  if (a->kind == ARG_FLOAT) return val_float(a->f);
  if (a->kind == ARG_INT) return val_int(a->i);
  return a->kind == ARG_BOOL ? val_bool(a->b) : val_none();
}
static Value number_or(const Arg *a, Value otherwise) { return a->kind == ARG_UNSET ? otherwise : number(a); }

static int64_t largest_head(const Attention *a) {
  return a->q->size[3] > a->v->size[3] ? a->q->size[3] : a->v->size[3];
}

/* That of the queries as they were, before zeros were added. */
static Value scale_of(const Attention *a, const Arg *given) {
  if (given->kind == ARG_FLOAT || given->kind == ARG_INT || a->q->size[3] == largest_head(a)) return number(given);
  return val_float(1 / sqrt((double)a->q->size[3]));
}

bool attention_is_foreign(const Node *n) {
  bool backward = node_is(n, "aten._scaled_dot_product_flash_attention_for_cpu_backward.default");
  if (!backward && !node_is(n, "aten._scaled_dot_product_flash_attention_for_cpu.default")) return false;
  const Val *q = n->args[backward].val, *k = n->args[backward + 1].val, *v = n->args[backward + 2].val;
  const Arg *mask = &n->args[backward ? 8 : 5];
  return (mask->kind == ARG_VAL && mask->val->dtype == DT_BOOL) || q->size[1] != k->size[1] ||
         q->size[3] != v->size[3];
}

/* (query, key, value, dropout_p, is_causal, attn_mask, scale) -> (output, logsumexp) */
Status lower_attention(Lower *l, const Node *n, Tensor **out) {
  Attention a;
  TRY(attention_of(l, n, 0, 5, &a));
  Formula *f = &a.f;
  int64_t head = largest_head(&a);
  Value arg[] = {F_T(resize_heads(f, a.q, head)),
                 F_T(resize_heads(f, repeat_heads(f, a.k, a.shared), head)),
                 F_T(resize_heads(f, repeat_heads(f, a.v, a.shared), head)),
                 number_or(&n->args[3], val_float(0)),
                 number_or(&n->args[4], val_bool(false)),
                 val_tensor(float_mask(f, a.mask, a.q->dtype)),
                 scale_of(&a, &n->args[6])};
  TRY(f->status);
  TRY(op_call(&l->call, n->target, out, 2, arg, 7));
  out[0] = resize_heads(f, out[0], a.v->size[3]);
  return f->status;
}

/* (grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale) */
Status lower_attention_backward(Lower *l, const Node *n, Tensor **out) {
  Attention a;
  TRY(backward_of(l, n, 8, &a));
  Formula *f = &a.f;
  int64_t head = largest_head(&a);
  Value arg[] = {F_T(resize_heads(f, a.g, head)),
                 F_T(resize_heads(f, a.q, head)),
                 F_T(resize_heads(f, repeat_heads(f, a.k, a.shared), head)),
                 F_T(resize_heads(f, repeat_heads(f, a.v, a.shared), head)),
                 F_T(resize_heads(f, a.y, head)),
                 F_T(a.logsumexp),
                 number(&n->args[6]),
                 number(&n->args[7]),
                 val_tensor(float_mask(f, a.mask, a.q->dtype)),
                 scale_of(&a, &n->args[9])};
  TRY(f->status);
  TRY(op_call(&l->call, n->target, out, 3, arg, 10));
  out[0] = resize_heads(f, out[0], a.q->size[3]);
  out[1] = sum_heads(f, resize_heads(f, out[1], a.q->size[3]), a.shared);
  out[2] = sum_heads(f, resize_heads(f, out[2], a.v->size[3]), a.shared);
  return f->status;
}

/* tess.attention_mask_backward(grad_out, query, key, value, out, logsumexp, attn_mask, is_causal, scale): the
 * gradient of the scores, summed to the mask's size. */
Status lower_mask_backward(Lower *l, const Node *n, Tensor **out) {
  Attention a;
  TRY(backward_of(l, n, 6, &a));
  Formula *f = &a.f;
  const int64_t last = -1;
  double scale = n->args[8].kind == ARG_FLOAT ? n->args[8].f : 1 / sqrt((double)a.q->size[3]);
  Tensor *k = F_OP(f, "aten.transpose.int", F_T(repeat_heads(f, a.k, a.shared)), val_int(-2), val_int(-1));
  Tensor *v = F_OP(f, "aten.transpose.int", F_T(repeat_heads(f, a.v, a.shared)), val_int(-2), val_int(-1));
  Tensor *scores = f_add(f, f_scale(f, F_OP(f, "aten.matmul.default", F_T(a.q), F_T(k)), scale), a.mask);
  Tensor *row = F_OP(f, "aten.unsqueeze.default", F_T(a.logsumexp), val_int(-1));
  Tensor *p = f_exp(f, f_sub(f, scores, row));
  if (n->args[7].kind == ARG_BOOL && n->args[7].b) p = F_OP(f, "aten.tril.default", F_T(p));
  Tensor *all = f_sum(f, f_mul(f, a.g, a.y), &last, 1, true);
  Tensor *d = f_mul(f, p, f_sub(f, F_OP(f, "aten.matmul.default", F_T(a.g), F_T(v)), all));
  int64_t dims[MAX_DIMS];
  int ndims = 0;
  TRY(f->status);
  int lead = d->ndim - a.mask->ndim;
  for (int i = 0; i < d->ndim; i++)
    if (i < lead || (a.mask->size[i - lead] == 1 && d->size[i] != 1)) dims[ndims++] = i;
  if (ndims) d = f_sum(f, d, dims, ndims, true);
  out[0] = f_cast(f, f_view(f, d, a.mask->size, a.mask->ndim), a.mask->dtype);
  return f->status;
}

/* ---- with dropout: PyTorch has no kernel of its own --------------------------------------------------------- */

/* The scores, in f32 at least; keys that are not seen have -inf. */
static Tensor *scores_of(Attention *a, const Arg *scale, bool causal) {
  Formula *f = &a->f;
  Tensor *k = F_OP(f, "aten.transpose.int", F_T(a->k), val_int(-2), val_int(-1));
  Tensor *scores = F_OP(f, "aten.matmul.default", F_T(a->q), F_T(k));
  scores = f_scale(f, scores, scale->kind == ARG_FLOAT ? scale->f : 1 / sqrt((double)a->q->size[3]));
  if (a->mask) scores = f_add(f, scores, float_mask(f, a->mask, a->q->dtype));
  if (!causal || !scores) return scores;
  Tensor *ones = F_OP(f, "aten.new_full.default", F_T(scores), val_ints(scores->size + 2, 2), val_bool(true),
                      val_dtype(DT_BOOL));
  Tensor *hidden = F_OP(f, "aten.logical_not.default", F_T(F_OP(f, "aten.tril.default", F_T(ones))));
  return F_OP(f, "aten.masked_fill.Scalar", F_T(scores), F_T(hidden), val_float(-INFINITY));
}

/* q, k and v in f32 at least, one key head per query head. */
static void widen(Attention *a) {
  a->q = f_widen(&a->f, a->q);
  a->k = repeat_heads(&a->f, f_widen(&a->f, a->k), a->shared);
  a->v = repeat_heads(&a->f, f_widen(&a->f, a->v), a->shared);
}

static bool is_true(const Arg *a) { return a->kind == ARG_BOOL && a->b; }

/* The same mask as one rank draws for all weights: batch, heads and queries as the output has them, and all keys.
 */
static Status drop_part(Lower *l, Formula *f, const Node *n, Tensor *weights, Tensor *drop[2]) {
  ShardOf of = *n->shard;
  double p = n->args[3].kind == ARG_INT ? (double)n->args[3].i : n->args[3].f;
  int64_t shape[4] = {of.layout.shape[0], of.layout.shape[1], of.layout.shape[2], weights->size[3]};
  Placement place[MAX_AXES];
  for (int a = 0; a < of.layout.naxes; a++) {
    place[a] = of.layout.place[a];
    if (is_s_of(&place[a], 3)) place[a] = place_r(); /* features of values: they share weights */
  }
  of.layout.shape = shape;
  of.layout.place = place;
  TRY(lower_drawn_mask(l, &of, weights, p, &drop[1]));
  drop[0] = f_scale(f, f_mul(f, weights, drop[1]), p < 1 ? 1 / (1 - p) : 0);
  return f->status;
}

/* tess.attention_dropout(query, key, value, dropout_p, is_causal, attn_mask, scale) -> (output, logsumexp, random):
 * what was drawn is told by which weights were kept. */
Status lower_attention_dropout(Lower *l, const Node *n, Tensor **out) {
  Attention a;
  TRY(attention_of(l, n, 0, 5, &a));
  Formula *f = &a.f;
  Dtype dtype = a.q->dtype;
  const int64_t last = -1;
  widen(&a);
  Tensor *scores = scores_of(&a, &n->args[6], is_true(&n->args[4])), *drop[2];
  Tensor *p = F_OP(f, "aten._safe_softmax.default", F_T(scores), val_int(-1));
  TRY(f->status);
  if (n->shard) TRY(drop_part(l, f, n, p, drop));
  else F_OPS(f, "aten.native_dropout.default", drop, 2, F_T(p), number(&n->args[3]), val_bool(true));
  out[0] = f_cast(f, F_OP(f, "aten.matmul.default", F_T(drop[0]), F_T(a.v)), dtype);
  out[1] = F_OP(f, "aten.logsumexp.default", F_T(scores), val_ints(&last, 1));
  out[2] = drop[1];
  return f->status;
}

/* (grad_out, query, key, value, out, logsumexp, random, dropout_p, is_causal, attn_mask, scale) */
Status lower_attention_dropout_backward(Lower *l, const Node *n, Tensor **out) {
  Attention a;
  Tensor *kept;
  TRY(backward_of(l, n, 9, &a));
  TRY(lower_tensor(l, n, 6, &kept));
  Formula *f = &a.f;
  Dtype dtype = a.q->dtype;
  const int64_t last = -1;
  double scale = n->args[10].kind == ARG_FLOAT ? n->args[10].f : 1 / sqrt((double)a.q->size[3]),
         dropout = n->args[7].kind == ARG_FLOAT ? n->args[7].f : 0;
  widen(&a);
  Tensor *g = f_widen(f, a.g), *y = a.y;
  Tensor *p = F_OP(f, "aten._safe_softmax.default", F_T(scores_of(&a, &n->args[10], is_true(&n->args[8]))),
                   val_int(-1));
  TRY(f->status);
  Tensor *factor = f_scale(f, f_cast(f, kept, p->dtype), dropout < 1 ? 1 / (1 - dropout) : 0);
  Tensor *v = F_OP(f, "aten.transpose.int", F_T(a.v), val_int(-2), val_int(-1));
  Tensor *dp = f_mul(f, F_OP(f, "aten.matmul.default", F_T(g), F_T(v)), factor);
  Tensor *all = f_sum(f, f_mul(f, g, f_widen(f, y)), &last, 1, true);
  Tensor *ds = f_scale(f, f_mul(f, p, f_sub(f, dp, all)), scale), *left = f_mul(f, p, factor);
  Tensor *dst = F_OP(f, "aten.transpose.int", F_T(ds), val_int(-2), val_int(-1));
  Tensor *turned = F_OP(f, "aten.transpose.int", F_T(left), val_int(-2), val_int(-1));
  out[0] = f_cast(f, F_OP(f, "aten.matmul.default", F_T(ds), F_T(a.k)), dtype);
  out[1] = f_cast(f, sum_heads(f, F_OP(f, "aten.matmul.default", F_T(dst), F_T(a.q)), a.shared), dtype);
  out[2] = f_cast(f, sum_heads(f, F_OP(f, "aten.matmul.default", F_T(turned), F_T(g)), a.shared), dtype);
  return f->status;
}
