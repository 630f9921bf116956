/* parallel_transformer.c -- a small transformer, trained on four ranks: tensor parallel over two, data parallel
 * over two.
 *
 *     cc parallel_transformer.c $(pkg-config --cflags --libs tessera) -o parallel_transformer &&
 * ./parallel_transformer
 *
 * It learns sequences in which every token follows from the one before.  Each data-parallel rank has sequences of
 * its own; each tensor-parallel rank has its part of every large weight.
 */
#include <stdio.h>

#include "tessera.h"

enum {
  VOCABULARY = 32,
  LENGTH = 12,
  BATCH = 8,
  DIM = 32,
  HEAD = 8,
  HIDDEN = 64,
  LAYERS = 2,
  STEPS = 60,
  MOST = 64
};

/* ---- the model ------------------------------------------------------------------------------------------ */

/* The result of the child of that name. */
static TessTensor *apply(TessCtx *ctx, TessModule *m, const char *child, TessTensor *x) {
  TessTensor *y = NULL;
  return x && tess_module_call(ctx, tess_module_child(m, child), &x, 1, &y, 1) == 1 ? y : NULL;
}

static TessTensor *add(TessCtx *ctx, TessTensor *a, TessTensor *b) {
  return tess_call(ctx, "aten.add.Tensor", tess_t(a), tess_t(b));
}

/* [batch, length, features] as [batch, heads, length, HEAD]; as many heads as this rank has. */
static TessTensor *heads(TessCtx *ctx, TessTensor *x) {
  TessTensor *cut = tess_call(ctx, "aten.view.default", tess_t(x),
                              tess_ints((int64_t[]){BATCH, LENGTH, -1, HEAD}, 4));
  return tess_call(ctx, "aten.transpose.int", tess_t(cut), tess_i(1), tess_i(2));
}

static TessTensor *attend(TessCtx *ctx, TessModule *m, TessTensor *x) {
  TessTensor *q = heads(ctx, apply(ctx, m, "wq", x)), *k = heads(ctx, apply(ctx, m, "wk", x)),
             *v = heads(ctx, apply(ctx, m, "wv", x));
  TessTensor *y = tess_call(ctx, "aten.scaled_dot_product_attention.default", tess_t(q), tess_t(k), tess_t(v),
                            tess_none(), tess_f(0), tess_b(1));
  y = tess_call(ctx, "aten.transpose.int", tess_t(y), tess_i(1), tess_i(2));
  y = tess_call(ctx, "aten.reshape.default", tess_t(y), tess_ints((int64_t[]){BATCH, LENGTH, -1}, 3));
  return apply(ctx, m, "wo", y);
}

static int block(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  (void)n, (void)cap, (void)arg;
  TessTensor *x = add(ctx, in[0], attend(ctx, m, apply(ctx, m, "norm1", in[0])));
  TessTensor *hidden = tess_call(ctx, "aten.gelu.default", tess_t(apply(ctx, m, "w1", apply(ctx, m, "norm2", x))));
  out[0] = add(ctx, x, apply(ctx, m, "w2", hidden));
  return out[0] ? 1 : -1;
}

static int transformer(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  char name[16];
  (void)n, (void)cap, (void)arg;
  TessTensor *x = apply(ctx, m, "embedding", in[0]);
  for (int i = 0; i < LAYERS; i++) {
    snprintf(name, sizeof name, "layer%d", i);
    x = apply(ctx, m, name, x);
  }
  out[0] = apply(ctx, m, "output", apply(ctx, m, "norm", x));
  return out[0] ? 1 : -1;
}

static TessModule *make_block(TessCtx *ctx) {
  TessModule *m = tess_module_new(ctx, block, NULL);
  tess_module_add(ctx, m, "norm1", tess_rms_norm(ctx, DIM, 1e-6));
  tess_module_add(ctx, m, "wq", tess_linear(ctx, DIM, DIM, 0));
  tess_module_add(ctx, m, "wk", tess_linear(ctx, DIM, DIM, 0));
  tess_module_add(ctx, m, "wv", tess_linear(ctx, DIM, DIM, 0));
  tess_module_add(ctx, m, "wo", tess_linear(ctx, DIM, DIM, 0));
  tess_module_add(ctx, m, "norm2", tess_rms_norm(ctx, DIM, 1e-6));
  tess_module_add(ctx, m, "w1", tess_linear(ctx, DIM, HIDDEN, 1));
  tess_module_add(ctx, m, "w2", tess_linear(ctx, HIDDEN, DIM, 1));
  return m;
}

static TessModule *make_model(TessCtx *ctx) {
  char name[16];
  TessModule *m = tess_module_new(ctx, transformer, NULL);
  tess_module_add(ctx, m, "embedding", tess_embedding(ctx, VOCABULARY, DIM));
  for (int i = 0; i < LAYERS; i++) {
    snprintf(name, sizeof name, "layer%d", i);
    tess_module_add(ctx, m, name, make_block(ctx));
  }
  tess_module_add(ctx, m, "norm", tess_rms_norm(ctx, DIM, 1e-6));
  tess_module_add(ctx, m, "output", tess_linear(ctx, DIM, VOCABULARY, 0));
  return m;
}

/* ---- training --------------------------------------------------------------------------------------------- */

static const char *const whole[] = {"R"};
static const TessPlanEntry plan[] = {
    {.path = "embedding", .style = TESS_ROWWISE, .inputs = whole, .ninputs = 1},
    {.path = "layer*.w[qkv1]", .style = TESS_COLWISE},
    {.path = "layer*.w[o2]", .style = TESS_ROWWISE},
    {.path = "output", .style = TESS_COLWISE, .seen_outputs = TESS_SPREAD}, /* logits stay sharded */
};

/* Sequences of this data-parallel rank: token t is followed by 5 t + 3. */
static TessTensor *tokens(TessCtx *ctx, int replica, int step, int shift) {
  int64_t data[BATCH][LENGTH];
  for (int row = 0; row < BATCH; row++) {
    int64_t t = (replica * 17 + step * BATCH + row) % VOCABULARY;
    for (int i = -shift; i < LENGTH; i++, t = (5 * t + 3) % VOCABULARY)
      if (i >= 0) data[row][i] = t;
  }
  return tess_tensor_from(ctx, TESS_I64, 2, (int64_t[]){BATCH, LENGTH}, data);
}

static double train_step(TessCtx *ctx, TessModule *model, TessOptimizer *optimizer, int replica, int step) {
  TessTensor *x = tokens(ctx, replica, step, 0), *y = tokens(ctx, replica, step, 1), *logits, *params[MOST];
  if (tess_module_call(ctx, model, &x, 1, &logits, 1) != 1) return -1;
  logits = tess_call(ctx, "aten.transpose.int", tess_t(logits), tess_i(1), tess_i(2)); /* classes second */
  tess_loss_parallel(ctx, 1);
  TessTensor *loss = tess_call(ctx, "aten.cross_entropy_loss.default", tess_t(logits), tess_t(y));
  tess_backward(ctx, &loss, NULL, 1, 0); /* averages gradients over dp on the way */
  tess_loss_parallel(ctx, 0);
  tess_clip_grad_norm(ctx, params, tess_module_parameters(ctx, model, params, MOST), 1.0, 2, NULL);
  tess_optimizer_step(optimizer);
  tess_optimizer_zero_grad(optimizer);
  TessTensor *told = loss ? tess_full_tensor(ctx, tess_detach(ctx, loss)) : NULL;
  return told ? *(const float *)tess_data(told) : -1;
}

static int work(TessCtx *ctx, void *arg) {
  (void)arg;
  TessTensor *params[MOST];
  TessMesh *mesh = tess_init_device_mesh(ctx, 2, (int[]){2, 2}, (const char *const[]){"dp", "tp"});
  TessMesh *dp = tess_mesh_sub(ctx, mesh, (const char *const[]){"dp"}, 1);
  TessMesh *tp = tess_mesh_sub(ctx, mesh, (const char *const[]){"tp"}, 1);
  int replica = 0;
  tess_mesh_coordinate(dp, &replica);
  TessModule *model = make_model(ctx);
  tess_parallelize_module(ctx, model, tp, plan, sizeof plan / sizeof *plan, 0);
  TessDataParallel *replicas = tess_data_parallel(ctx, model, dp, NULL);
  int n = tess_module_parameters(ctx, model, params, MOST);
  TessOptimizer *optimizer = tess_optimizer_new(ctx, "adamw,lr=1e-2", params, n);
  for (int step = 1; step <= STEPS && !tess_error(ctx); step++) {
    TessScope *scope = tess_scope_begin(ctx);
    double loss = train_step(ctx, model, optimizer, replica, step);
    if (tess_rank(ctx) == 0 && step % 20 == 0) printf("step %d  loss %.4f\n", step, loss);
    tess_scope_end(ctx, scope);
  }
  tess_optimizer_free(optimizer);
  tess_data_parallel_free(replicas);
  tess_module_free(model);
  return tess_error(ctx); /* the context's error says why, for all ranks */
}

int main(void) {
  char error[1024];
  int code = tess_run_ranks(4, 1, work, NULL, error, sizeof error);
  if (code) fprintf(stderr, "error: %s\n", error);
  return code;
}
