/* transformer.c -- see transformer.h. */
#include "fsdp/transformer.h"

#include <stdint.h>
#include <stdio.h>

static TessTensor *call_child(TessCtx *ctx, TessModule *m, const char *name, TessTensor *x) {
  TessTensor *out = NULL;
  return tess_module_call(ctx, tess_module_child(m, name), &x, 1, &out, 1) == 1 ? out : NULL;
}

/* [b, s, f] -> [b, heads, s, f / heads], as many heads as this rank has features of. */
static TessTensor *split_heads(TessCtx *ctx, TessTensor *x, int64_t head_dim) {
  if (!x) return NULL;
  int64_t size[] = {tess_size(x)[0], tess_size(x)[1], -1, head_dim};
  TessTensor *y = tess_call(ctx, "aten.view.default", tess_t(x), tess_ints(size, 4));
  return tess_call(ctx, "aten.transpose.int", tess_t(y), tess_i(1), tess_i(2));
}

/* What a module of attention is told: features of a head, and whether it is causal, as one number. */
static void *attention_arg(int64_t head_dim, int causal) {
  return (void *)(intptr_t)(head_dim * 2 + (causal != 0));
}

static int attention(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  const int64_t head_dim = (intptr_t)arg / 2, causal = (intptr_t)arg % 2;
  (void)n, (void)cap;
  TessTensor *q = split_heads(ctx, call_child(ctx, m, "wq", in[0]), head_dim);
  TessTensor *k = split_heads(ctx, call_child(ctx, m, "wk", in[0]), head_dim);
  TessTensor *v = split_heads(ctx, call_child(ctx, m, "wv", in[0]), head_dim);
  TessTensor *o = tess_call(ctx, "aten.scaled_dot_product_attention.default", tess_t(q), tess_t(k), tess_t(v),
                            tess_none(), tess_f(0), tess_b((int)causal));
  o = tess_call(ctx, "aten.transpose.int", tess_t(o), tess_i(1), tess_i(2));
  if (!o) return -1;
  int64_t size[] = {tess_size(in[0])[0], tess_size(in[0])[1], -1};
  o = tess_call(ctx, "aten.reshape.default", tess_t(o), tess_ints(size, 3));
  out[0] = o ? call_child(ctx, m, "wo", o) : NULL;
  return out[0] ? 1 : -1;
}

static int feed_forward(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  (void)n, (void)cap, (void)arg;
  TessTensor *h = tess_call(ctx, "aten.gelu.default", tess_t(call_child(ctx, m, "w1", in[0])));
  out[0] = h ? call_child(ctx, m, "w2", h) : NULL;
  return out[0] ? 1 : -1;
}

static int block(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  (void)n, (void)cap, (void)arg;
  TessTensor *h = call_child(ctx, m, "norm1", in[0]);
  h = h ? call_child(ctx, m, "attn", h) : NULL;
  TessTensor *x = h ? tess_call(ctx, "aten.add.Tensor", tess_t(in[0]), tess_t(h)) : NULL;
  h = x ? call_child(ctx, m, "norm2", x) : NULL;
  h = h ? call_child(ctx, m, "ffn", h) : NULL;
  out[0] = h ? tess_call(ctx, "aten.add.Tensor", tess_t(x), tess_t(h)) : NULL;
  return out[0] ? 1 : -1;
}

int transformer_blocks(TessModule *m) { return tess_module_child_count(tess_module_child(m, "blocks")); }

static TessTensor *loss_of(TessCtx *ctx, TessModule *m, TessTensor *h, TessTensor *y) {
  const int64_t one = 1, all = -1;
  if (tess_ndim(y) == 1) {
    h = tess_call(ctx, "aten.mean.dim", tess_t(h), tess_ints(&one, 1));
    h = h ? call_child(ctx, m, "head", h) : NULL;
  } else {
    h = call_child(ctx, m, "head", h);
    h = tess_call(ctx, "aten.flatten.using_ints", tess_t(h), tess_i(0), tess_i(1));
    y = tess_call(ctx, "aten.reshape.default", tess_t(y), tess_ints(&all, 1));
  }
  return h && y ? tess_call(ctx, "aten.cross_entropy_loss.default", tess_t(h), tess_t(y)) : NULL;
}

static int model(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  (void)cap, (void)arg;
  if (n != 2) return -1;
  TessTensor *at = tess_call(ctx, "aten.arange.default", tess_i(tess_size(in[0])[1]));
  TessTensor *tok = call_child(ctx, m, "tok", in[0]), *pos = at ? call_child(ctx, m, "pos", at) : NULL;
  TessTensor *h = tok && pos ? tess_call(ctx, "aten.add.Tensor", tess_t(tok), tess_t(pos)) : NULL;
  char name[32];
  for (int i = 0; i < transformer_blocks(m) && h; i++) {
    snprintf(name, sizeof name, "blocks.%d", i);
    h = call_child(ctx, m, name, h);
  }
  h = h ? call_child(ctx, m, "norm", h) : NULL;
  out[0] = h ? loss_of(ctx, m, h, in[1]) : NULL;
  return out[0] ? 1 : -1;
}

/* ---- making it ---------------------------------------------------------------------------------------------- */

typedef struct {
  TessCtx *ctx;
  const char *init;
  TransformerShape shape;
} Builder;

static int64_t size_of(const Builder *b, const char *name, int dim) {
  TessTensor *t = tess_load(b->ctx, b->init, name);
  return t && dim < tess_ndim(t) ? tess_size(t)[dim] : -1;
}

static int has(const Builder *b, const char *name) {
  int there = !tess_error(b->ctx) && tess_load(b->ctx, b->init, name) != NULL;
  if (!there && tess_error(b->ctx) == 3) tess_error_clear(b->ctx);
  return there;
}

/* The module under `name` of m, with the values of the file under `path`. */
static void put(const Builder *b, TessModule *m, const char *name, TessModule *child, const char *path) {
  char full[160];
  for (int i = 0; i < tess_module_tensor_count(child); i++) {
    const char *tensor = tess_module_tensor_name(child, i);
    snprintf(full, sizeof full, "%s.%s", path, tensor);
    TessTensor *t = tess_call(b->ctx, "aten.clone.default", tess_t(tess_load(b->ctx, b->init, full)));
    if (t) tess_set_requires_grad(b->ctx, t, 1);
    if (t) tess_module_set(b->ctx, child, tensor, t);
  }
  if (child && tess_module_add(b->ctx, m, name, child)) tess_module_free(child);
}

static void put_linear(const Builder *b, TessModule *m, const char *prefix, const char *name) {
  char path[128], weight[160], bias[160];
  snprintf(path, sizeof path, "%s%s", prefix, name);
  snprintf(weight, sizeof weight, "%s.weight", path);
  snprintf(bias, sizeof bias, "%s.bias", path);
  put(b, m, name, tess_linear(b->ctx, size_of(b, weight, 1), size_of(b, weight, 0), has(b, bias)), path);
}

static void put_norm(const Builder *b, TessModule *m, const char *prefix, const char *name) {
  char path[128], weight[160];
  snprintf(path, sizeof path, "%s%s", prefix, name);
  snprintf(weight, sizeof weight, "%s.weight", path);
  put(b, m, name, tess_layer_norm(b->ctx, size_of(b, weight, 0), 1e-5), path);
}

static void put_block(const Builder *b, TessModule *blocks, int i) {
  char path[64], inner[80], name[16];
  snprintf(name, sizeof name, "%d", i);
  snprintf(path, sizeof path, "blocks.%d.", i);
  TessModule *m = tess_module_new(b->ctx, block, NULL), *attn, *ffn;
  put_norm(b, m, path, "norm1");
  put_norm(b, m, path, "norm2");
  snprintf(inner, sizeof inner, "%sattn.wq.weight", path);
  attn = tess_module_new(b->ctx, attention, attention_arg(size_of(b, inner, 0) / b->shape.heads, b->shape.causal));
  ffn = tess_module_new(b->ctx, feed_forward, NULL);
  snprintf(inner, sizeof inner, "%sattn.", path);
  for (const char *const *w = (const char *[]){"wq", "wk", "wv", "wo", NULL}; *w; w++)
    put_linear(b, attn, inner, *w);
  snprintf(inner, sizeof inner, "%sffn.", path);
  for (const char *const *w = (const char *[]){"w1", "w2", NULL}; *w; w++) put_linear(b, ffn, inner, *w);
  tess_module_add(b->ctx, m, "attn", attn);
  tess_module_add(b->ctx, m, "ffn", ffn);
  tess_module_add(b->ctx, blocks, name, m);
}

TessModule *transformer_new(TessCtx *ctx, const char *init, const TransformerShape *shape) {
  TessScope *scope = tess_scope_begin(ctx);
  Builder b = {ctx, init, *shape};
  TessModule *m = tess_module_new(ctx, model, NULL), *blocks = tess_module_new(ctx, NULL, NULL);
  char name[64];
  put(&b, m, "tok", tess_embedding(ctx, size_of(&b, "tok.weight", 0), size_of(&b, "tok.weight", 1)), "tok");
  put(&b, m, "pos", tess_embedding(ctx, size_of(&b, "pos.weight", 0), size_of(&b, "pos.weight", 1)), "pos");
  tess_module_add(ctx, m, "blocks", blocks);
  for (int i = 0; !tess_error(ctx); i++) {
    snprintf(name, sizeof name, "blocks.%d.norm1.weight", i);
    if (!has(&b, name)) break;
    put_block(&b, blocks, i);
  }
  put_norm(&b, m, "", "norm");
  put_linear(&b, m, "", "head");
  tess_scope_end(ctx, scope);
  if (!tess_error(ctx)) return m;
  tess_module_free(m);
  return NULL;
}
