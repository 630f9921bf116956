/* attention_grad.c -- gradients of attention, from its logsumexp.
 *
 *   _scaled_dot_product_flash_attention_for_cpu_backward    of query, key and value
 *   tess.attention_dropout_backward                         of these, with dropout
 *   tess.attention_mask_backward                            of a mask of floats
 *
 * As many key heads as query heads, or one for several neighbouring ones, whose gradients it gets. */
#include "ops/aten/attention.h"

/* (grad_out, query, key, value, out, logsumexp, ...) of both gradients: sizes and dtypes that go together. */
static Status check_gradients(const Call *c, int mask) {
  char a[128], b[128];
  const Tensor *q = in_tensor(c, 1), *k = in_tensor(c, 2), *v = in_tensor(c, 3);
  for (int i = 0; i < 6; i++) {
    const Tensor *t = in_tensor(c, i);
    const char *name = c->op->schema.params[i].name;
    if (!t || t->ndim != (i == 5 ? 3 : 4))
      return op_fail(c, "'%s' must be a tensor of %d dimensions", name, i == 5 ? 3 : 4);
    bool key = i == 2 || i == 3;
    int64_t heads = t->size[1], rows = t->size[2], want = key ? k->size[2] : q->size[2];
    bool fits = key ? heads == k->size[1] && (heads ? q->size[1] % heads == 0 : q->size[1] == 0)
                    : heads == q->size[1];
    if (t->size[0] != q->size[0] || !fits || rows != want) {
      return op_fail(c, "'%s' %s does not go with the query %s", name, tensor_describe(t, a, sizeof a),
                     tensor_describe(q, b, sizeof b));
    }
    if (i < 5 && (t->dtype != q->dtype || !dtype_is_float(t->dtype)))
      return op_fail(c, "'%s' is %s, the query %s", name, dtype_name(t->dtype), dtype_name(q->dtype));
  }
  if (k->size[3] != q->size[3] || in_tensor(c, 0)->size[3] != v->size[3] ||
      in_tensor(c, 4)->size[3] != v->size[3]) {
    return op_fail(c, "the last dimensions of its tensors do not go together");
  }
  if (in_tensor(c, 5)->dtype != (q->dtype == DT_F64 ? DT_F64 : DT_F32))
    return op_fail(c, "the logsumexp cannot be %s", dtype_name(in_tensor(c, 5)->dtype));
  AttnSizes z = {.nbatch = 2, .batch = {q->size[0], q->size[1]}, .t = q->size[2], .s = k->size[2]};
  return attn_check_mask(c, mask, &z);
}

/* What both gradients start from; m and l have room for views. */
static AttentionGrad gradients_of(const Call *c, int mask, int causal, int scale, AttnView *m, View *l) {
  const Tensor *q = in_tensor(c, 1);
  AttnSizes z = {.nbatch = 2, .batch = {q->size[0], q->size[1]}};
  *l = in_view(c, 5);
  return (AttentionGrad){.forward = {.q = in_view(c, 1),
                                     .k = in_view(c, 2),
                                     .v = in_view(c, 3),
                                     .out = in_view(c, 4),
                                     .logsumexp = l,
                                     .mask = attn_mask_view(in_tensor(c, mask), &z, NULL, m),
                                     .scale = attn_scale(c, scale, q->size[3]),
                                     .causal = in_bool(c, causal)},
                         .grad_out = in_view(c, 0)};
}

/* (grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask, scale) */
static Status grad_infer(Call *c) {
  TRY(check_gradients(c, 8));
  if (in_float(c, 6) != 0) return op_fail(c, "dropout_p is %g; only 0 is supported", in_float(c, 6));
  for (int i = 1; i <= 3; i++) TRY(out_like(c, in_tensor(c, 1)->dtype, in_tensor(c, i)));
  return OK;
}

static Status grad_run(Call *c) {
  AttnView m;
  View l;
  AttentionGrad g = gradients_of(c, 8, 7, 9, &m, &l);
  g.grad_q = out_view_of(c, 0);
  g.grad_k = out_view_of(c, 1);
  g.grad_v = out_view_of(c, 2);
  return attention_grad(&c->ctx->kern, &g);
}

/* (grad_out, query, key, value, out, logsumexp, random, dropout_p, is_causal, *, attn_mask, scale) */
static Status dropout_grad_infer(Call *c) {
  const Tensor *random = in_tensor(c, 6);
  TRY(check_gradients(c, 9));
  if (random->dtype != DT_I64 || random->ndim != 1 || random->size[0] != 2)
    return op_fail(c, "'random' must be i64[2]: seed and offset");
  if (!(in_float(c, 7) >= 0 && in_float(c, 7) <= 1))
    return op_fail(c, "dropout_p is %g, must be between 0 and 1", in_float(c, 7));
  for (int i = 1; i <= 3; i++) TRY(out_like(c, in_tensor(c, 1)->dtype, in_tensor(c, i)));
  return OK;
}

static Status dropout_grad_numbered(Call *c, Arena *arena) {
  AttnView m;
  View l, state = in_view(c, 6);
  const Tensor *q = in_tensor(c, 1), *k = in_tensor(c, 2);
  AttnSizes z = {.nbatch = 2, .batch = {q->size[0], q->size[1]}, .t = q->size[2], .s = k->size[2]};
  int64_t *number[3];
  AttentionGrad g = gradients_of(c, 9, 8, 10, &m, &l);
  TRY(attn_number_weights(c, &z, arena, number));
  for (int i = 0; i < 3; i++) g.forward.number[i] = number[i];
  g.forward.dropout = in_float(c, 7);
  g.forward.seed = (uint64_t)((const int64_t *)state.data)[0];
  g.forward.offset = (uint64_t)((const int64_t *)state.data)[state.stride[0]];
  g.grad_q = out_view_of(c, 0);
  g.grad_k = out_view_of(c, 1);
  g.grad_v = out_view_of(c, 2);
  return attention_grad(&c->ctx->kern, &g);
}

static Status dropout_grad_run(Call *c) {
  Arena arena = {0};
  Status s = dropout_grad_numbered(c, &arena);
  arena_free(&arena);
  return s;
}

/* (grad_out, query, key, value, out, logsumexp, attn_mask, is_causal, *, scale) */
static Status mask_grad_infer(Call *c) {
  const Tensor *m = in_tensor(c, 6);
  if (!dtype_is_float(m->dtype)) return op_fail(c, "a mask of %s has no gradient", dtype_name(m->dtype));
  if (m->ndim > 4) return op_fail(c, "the mask has %d dimensions, must have at most 4", m->ndim);
  TRY(check_gradients(c, 6));
  return out_new(c, m->dtype, m->ndim, m->size);
}

static Status mask_grad_run(Call *c) {
  AttnView m, to;
  View l;
  AttentionGrad g = gradients_of(c, 6, 7, 8, &m, &l);
  const Tensor *q = in_tensor(c, 1);
  AttnSizes z = {.nbatch = 2, .batch = {q->size[0], q->size[1]}};
  return attention_grad_mask(&c->ctx->kern, &g, *attn_mask_view(out_tensor(c, 0), &z, NULL, &to));
}

static double mask_grad_flops(const Call *c) {
  const Tensor *q = in_tensor(c, 1), *k = in_tensor(c, 2), *v = in_tensor(c, 3);
  double scores = (double)q->size[0] * (double)q->size[1] * (double)q->size[2] * (double)k->size[2];
  return 2 * scores * (double)(q->size[3] + v->size[3]);
}

/* Five products where forward has two. */
static double grad_flops(const Call *c) {
  const Tensor *q = in_tensor(c, 1), *k = in_tensor(c, 2), *v = in_tensor(c, 3);
  if (!q || !k || !v || q->ndim != 4 || k->ndim != 4 || v->ndim != 4) return 0;
  double scores = (double)q->size[0] * (double)q->size[1] * (double)q->size[2] * (double)k->size[2];
  return 2 * scores * (3 * (double)q->size[3] + 2 * (double)v->size[3]);
}

/* ---- sharding ------------------------------------------------------------------------------------- */

static Status place_attention_grad(Rules *r) {
  return attn_place_heads(r, 1, in_tensor(r->call, schema_find(&r->call->op->schema, "attn_mask")) != NULL);
}

/* Dimension d of the scores; where the mask is broadcast along it, ranks have parts of the sum. */
static Status place_mask_grad(Rules *r) {
  const Tensor *query = r->in[1], *m = r->in[6];
  for (int d = 0; d < 3; d++) {
    Placement p[8], mask = attn_place_mask(m, d, 4, 1);
    bool heads = d == 1 && r->in[2]->size[1] != query->size[1];
    if (heads || (d == 2 && in_bool(r->call, 7))) continue;
    p[0] = is_s(&mask) ? mask : place_p(REDUCE_SUM);
    for (int i = 0; i < 6; i++) p[1 + i] = d == 2 && (i == 2 || i == 3) ? place_r() : place_s(d);
    p[7] = mask;
    TRY(rule_axis(r, p));
  }
  return OK;
}

const OpDef ops_attention_grad[] = {
    {.schema = "aten::_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor "
               "key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? "
               "attn_mask=None, float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
     .infer = grad_infer,
     .run = grad_run,
     .flags = OP_SHARES,
     .shard.place = place_attention_grad,
     .flops = grad_flops},
    {.schema =
         "tess::attention_dropout_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, "
         "Tensor logsumexp, Tensor random, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? "
         "scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
     .infer = dropout_grad_infer,
     .run = dropout_grad_run,
     .flags = OP_SHARES | OP_NUMBERED,
     .shard.place = place_attention_grad,
     .flops = grad_flops},
    {.schema = "tess::attention_mask_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, "
               "Tensor logsumexp, Tensor attn_mask, bool is_causal, *, float? scale=None) -> Tensor",
     .infer = mask_grad_infer,
     .run = mask_grad_run,
     .shard.place = place_mask_grad,
     .flops = mask_grad_flops},
    {0}};
