/* attention.c -- gradients of attention.
 *
 * scaled_dot_product_attention is trained as the op that also gives the logsumexp: neither direction holds all
 * the scores.  A float mask whose gradient is wanted gets it from an op of its own, which does not hold more
 * than that gradient.  With dropout there is a form that also tells which random numbers were drawn, the same as
 * without gradients; only where a mask's gradient is wanted besides, the weights are a tensor, as in PyTorch.
 */
#include <string.h>

#include "ops/vjp.h"

enum { QUERY, KEY, VALUE };

/* x with four dimensions: sizes that it lacks or that are broadcast become those of the batch, but heads that
 * several queries share stay; batch dimensions before the heads become one. */
static Tensor *four_dims(Formula *f, const Tensor *x, const int64_t *batch, int nbatch, bool own_heads) {
  int64_t size[MAX_DIMS + 2], four[4] = {1, 1, x->size[x->ndim - 2], x->size[x->ndim - 1]};
  bool same = x->ndim == nbatch + 2;
  for (int i = 0; i < nbatch; i++) {
    int d = i + x->ndim - 2 - nbatch;
    size[i] = i == nbatch - 1 && own_heads && d >= 0 ? x->size[d] : batch[i];
    same = same && x->size[d] == size[i];
    if (i == nbatch - 1) four[1] = size[i];
    else four[0] *= size[i];
  }
  size[nbatch] = four[2];
  size[nbatch + 1] = four[3];
  Tensor *to = (Tensor *)(uintptr_t)x;
  if (!same) to = F_OP(f, "aten.expand.default", F_T(to), val_ints(size, nbatch + 2));
  return nbatch == 2 || !to ? to : f_view(f, to, four, 4);
}

/* A mask that is broadcast to the scores, with four dimensions or fewer. */
static Tensor *mask_of_four(Formula *f, const Tensor *m, const int64_t *batch, int nbatch) {
  Tensor *to = (Tensor *)(uintptr_t)m;
  if (!m || m->ndim <= 3 || nbatch == 2) return to;
  int64_t size[MAX_DIMS + 2], four[4] = {1, m->size[m->ndim - 3], m->size[m->ndim - 2], m->size[m->ndim - 1]};
  bool shared = true;
  for (int d = 0; d < m->ndim - 3; d++) shared = shared && m->size[d] == 1;
  if (!shared) {
    memcpy(size, batch, (size_t)nbatch * sizeof *size);
    memcpy(size + nbatch - 1, four + 1, 3 * sizeof *size);
    to = F_OP(f, "aten.expand.default", F_T(m), val_ints(size, nbatch + 2));
    for (int d = 0; d < nbatch - 1; d++) four[0] *= batch[d];
  }
  return f_view(f, to, four, 4);
}

/* Dropout and the gradient of a mask together need the weights as a tensor. */
static bool needs_weights(const Call *c) {
  const Tensor *mask = in_tensor(c, 3);
  return in_float(c, 4) > 0 && mask && mask->grad;
}

static Tensor *train_four(Formula *f, const Tensor *q, const Tensor *k, const Tensor *v, const Tensor *m) {
  const Value *a = f->c->arg;
  Value mask = m ? F_T(m) : val_none();
  if (in_float(f->c, 4) > 0)
    return F_OP(f, "tess.attention_dropout.default", F_T(q), F_T(k), F_T(v), a[4], a[5], mask, a[6]);
  return F_OP(f, "aten._scaled_dot_product_flash_attention_for_cpu.default", F_T(q), F_T(k), F_T(v), val_float(0),
              a[5], mask, a[6]);
}

/* scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa) */
static Status sdpa_training(Call *c) {
  Formula f = {c, OK};
  const Tensor *t[3] = {in_tensor(c, QUERY), in_tensor(c, KEY), in_tensor(c, VALUE)};
  if (needs_weights(c))
    return formula_give(&f, F_OP(&f, "aten._scaled_dot_product_attention_math.default", c->arg[0], c->arg[1],
                                 c->arg[2], c->arg[3], c->arg[4], c->arg[5], val_none(), c->arg[6], c->arg[7]));
  int64_t batch[MAX_DIMS], whole[MAX_DIMS + 2];
  int nbatch = 0;
  for (int i = 0; i < 3; i++) nbatch = t[i]->ndim - 2 > nbatch ? t[i]->ndim - 2 : nbatch;
  for (int b = 0; b < nbatch; b++) {
    batch[b] = 1;
    for (int i = 0; i < 3; i++) {
      int d = b + t[i]->ndim - 2 - nbatch;
      if (d >= 0 && t[i]->size[d] != 1 && (i == 0 || batch[b] == 1)) batch[b] = t[i]->size[d];
    }
  }
  bool shared = in_bool(c, 7);
  Tensor *q = four_dims(&f, t[QUERY], batch, nbatch, false), *k = four_dims(&f, t[KEY], batch, nbatch, shared),
         *v = four_dims(&f, t[VALUE], batch, nbatch, shared), *m = mask_of_four(&f, in_tensor(c, 3), batch, nbatch);
  Tensor *y = train_four(&f, q, k, v, m);
  memcpy(whole, batch, (size_t)nbatch * sizeof *whole);
  whole[nbatch] = t[QUERY]->size[t[QUERY]->ndim - 2];
  whole[nbatch + 1] = t[VALUE]->size[t[VALUE]->ndim - 1];
  return formula_give(&f, nbatch == 2 ? y : f_view(&f, y, whole, nbatch + 2));
}

/* (query, key, value, dropout_p, is_causal, *, attn_mask, scale) -> (output, logsumexp) */
static void vjp_flash(Vjp *v) {
  Tensor *g = v->cotangent[0], *out = v->out[0], *logsumexp = v->out[1], *grad[3];
  if (!g) return; /* the logsumexp has none */
  const Value *a = v->forward->arg;
  if (vjp_wants(v, QUERY) || vjp_wants(v, KEY) || vjp_wants(v, VALUE)) {
    F_OPS(&v->f, "aten._scaled_dot_product_flash_attention_for_cpu_backward.default", grad, 3, F_T(g), a[QUERY],
          a[KEY], a[VALUE], F_T(out), F_T(logsumexp), a[3], a[4], a[5], a[6]);
    for (int i = QUERY; i <= VALUE; i++) vjp_give(v, i, grad[i]);
  }
  if (vjp_wants(v, 5))
    vjp_give(v, 5,
             F_OP(&v->f, "tess.attention_mask_backward.default", F_T(g), a[QUERY], a[KEY], a[VALUE], F_T(out),
                  F_T(logsumexp), a[5], a[4], a[6]));
}

/* tess.attention_dropout(query, key, value, dropout_p, is_causal, *, attn_mask, scale) -> (output, logsumexp,
 * random) */
static void vjp_dropout(Vjp *v) {
  const Value *a = v->forward->arg;
  Tensor *g = v->cotangent[0], *grad[3];
  if (!g) return;
  F_OPS(&v->f, "tess.attention_dropout_backward.default", grad, 3, F_T(g), a[QUERY], a[KEY], a[VALUE],
        F_T(v->out[0]), F_T(v->out[1]), F_T(v->out[2]), a[3], a[4], a[5], a[6]);
  for (int i = QUERY; i <= VALUE; i++) vjp_give(v, i, grad[i]);
}

const GradDef grads_attention[] = {
    TRAINS_AS("scaled_dot_product_attention.default", sdpa_training),
    GRAD("_scaled_dot_product_flash_attention_for_cpu.default", vjp_flash,
         "query key value attn_mask result result1"),
    GRAD("tess.attention_dropout.default", vjp_dropout, "query key value attn_mask result result1 result2"),
    {0},
};
