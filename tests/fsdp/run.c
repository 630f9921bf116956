/* run.c -- a recorded run, done again; see case.h. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/case.h"
#include "fsdp/transformer.h"

void note_trouble(FsdpCase *c, int rank, const char *format, ...) {
  char line[512];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  text_printf(&c->rank[rank].trouble, "    rank %d: %s\n", rank, line);
}

/* ---- what the case says ------------------------------------------------------------------------------------- */

static bool flag(const FsdpCase *c, const char *key) { return yyjson_get_bool(yyjson_obj_get(c->what, key)); }
static const char *text(const FsdpCase *c, const char *key) { return yyjson_get_str(yyjson_obj_get(c->what, key)); }

/* "{'param_dtype': torch.bfloat16, 'reduce_dtype': torch.float32}" */
static TessDtype policy_dtype(const FsdpCase *c, const char *key) {
  static const struct {
    const char *name;
    TessDtype dtype;
  } table[] = {{"bfloat16", TESS_BF16}, {"float16", TESS_F16}, {"float32", TESS_F32}, {"float64", TESS_F64}};
  const char *policy = text(c, "mp"), *at = policy ? strstr(policy, key) : NULL;
  at = at ? strstr(at, "torch.") : NULL;
  for (size_t i = 0; at && i < sizeof table / sizeof *table; i++)
    if (!strncmp(at + 6, table[i].name, strlen(table[i].name))) return table[i].dtype;
  return TESS_BOOL;
}

static int cut_dim(TessCtx *ctx, const char *name, const TessTensor *param, int *dim, TessMesh **mesh, void *arg) {
  (void)ctx, (void)name, (void)mesh;
  int wanted = *(const int *)arg;
  *dim = wanted < tess_ndim(param) ? wanted : 0;
  return 0;
}

static TessFsdpOptions options_of(const FsdpCase *c, bool root, int *shard_dim) {
  yyjson_val *reshard = yyjson_obj_get(c->what, "reshard");
  const char *output = root ? text(c, "root_output") : NULL;
  TessFsdpOptions o = {.param_dtype = policy_dtype(c, "param_dtype"),
                       .reduce_dtype = policy_dtype(c, "reduce_dtype"),
                       .output_dtype = output ? TESS_F32 : TESS_BOOL};
  if (yyjson_is_bool(reshard)) o.reshard = yyjson_get_bool(reshard) ? TESS_RESHARD_ALWAYS : TESS_RESHARD_NEVER;
  else if (yyjson_is_int(reshard)) o.reshard = TESS_RESHARD_TO, o.reshard_ranks = yyjson_get_int(reshard);
  *shard_dim = yyjson_get_int(yyjson_obj_get(c->json, "shard_dim"));
  if (*shard_dim) o.placement = cut_dim, o.placement_arg = shard_dim;
  return o;
}

/* ---- the model ---------------------------------------------------------------------------------------------- */

static TransformerShape shape_of(const FsdpCase *c) {
  const char *model = yyjson_get_str(yyjson_obj_get(c->json, "model"));
  return (TransformerShape){model && !strcmp(model, "gpt") ? 4 : 2, model && !strncmp(model, "gpt", 3)};
}

static int freeze(TessCtx *ctx, const char *path, TessModule *m, void *arg) {
  const FsdpCase *c = arg;
  char name[256];
  size_t i, n;
  yyjson_val *prefix;
  for (int k = 0; k < tess_module_tensor_count(m); k++) {
    snprintf(name, sizeof name, "%s%s%s", path, *path ? "." : "", tess_module_tensor_name(m, k));
    yyjson_arr_foreach(yyjson_obj_get(c->what, "frozen"), i, n,
                       prefix) if (!strncmp(name, yyjson_get_str(prefix), yyjson_get_len(prefix)))
        tess_module_set_requires_grad(ctx, m, tess_module_tensor_name(m, k), 0);
  }
  return 0;
}

static TessModule *new_model(TessCtx *ctx, const FsdpCase *c) {
  char init[1200];
  TransformerShape shape = shape_of(c);
  snprintf(init, sizeof init, "%s/init.safetensors", c->train);
  TessModule *m = transformer_new(ctx, init, &shape);
  if (m) tess_module_walk(ctx, m, freeze, (void *)(uintptr_t)c);
  return m;
}

static int shard_one(TessCtx *ctx, TessModule *m, const char *path, TessMesh *mesh, const TessFsdpOptions *o) {
  TessModule *child = tess_module_child(m, path);
  return tess_fully_shard(ctx, &child, 1, mesh, o);
}

/* From the inside out: what "wrap" says. */
static int wrap(TessCtx *ctx, const FsdpCase *c, TessModule *m, TessMesh *mesh) {
  int dim;
  TessFsdpOptions inner = options_of(c, false, &dim), root = options_of(c, true, &dim);
  const char *how = text(c, "wrap") ? text(c, "wrap") : "blocks";
  char path[64];
  if (!strcmp(how, "embed")) shard_one(ctx, m, "tok", mesh, &inner);
  for (int i = 0; i < transformer_blocks(m) && strcmp(how, "root"); i++) {
    for (const char *const *part = (const char *[]){"attn", "ffn", NULL}; *part && !strcmp(how, "layers"); part++) {
      snprintf(path, sizeof path, "blocks.%d.%s", i, *part);
      shard_one(ctx, m, path, mesh, &inner);
    }
    snprintf(path, sizeof path, "blocks.%d", i);
    shard_one(ctx, m, path, mesh, &inner);
  }
  if (!strcmp(how, "tail")) {
    TessModule *tail[] = {tess_module_child(m, "norm"), tess_module_child(m, "head")};
    tess_fully_shard(ctx, tail, 2, mesh, &inner);
  }
  return tess_fully_shard(ctx, &m, 1, mesh, &root);
}

static void set_up(TessCtx *ctx, const FsdpCase *c, TessModule *m) {
  char path[64];
  int n = transformer_blocks(m);
  TessModule *block[64], *reversed[64];
  if (yyjson_obj_get(c->what, "divide"))
    tess_fsdp_set(ctx, m, TESS_FSDP_DIVIDE_FACTOR, yyjson_get_num(yyjson_obj_get(c->what, "divide")), 1);
  if (flag(c, "force_sum")) tess_fsdp_set(ctx, m, TESS_FSDP_FORCE_SUM, 1, 0);
  if (flag(c, "no_unshard_in_backward"))
    tess_fsdp_set(ctx, tess_module_child(m, "tok"), TESS_FSDP_UNSHARD_IN_BACKWARD, 0, 0);
  for (int i = 0; i < n && i < 64; i++) {
    snprintf(path, sizeof path, "blocks.%d", i);
    block[i] = reversed[n - 1 - i] = tess_module_child(m, path);
  }
  if (!flag(c, "prefetch")) return;
  tess_fsdp_prefetch(ctx, m, 0, block, 1);
  for (int i = 0; i + 1 < n; i++) tess_fsdp_prefetch(ctx, block[i], 0, &block[i + 1], 1);
  tess_fsdp_prefetch(ctx, m, 1, reversed, n);
}

/* ---- meshes ------------------------------------------------------------------------------------------------- */

/* The mesh that shards, and this rank's place among those that have rows of their own. */
static TessMesh *dp_mesh(TessCtx *ctx, const FsdpCase *c, TessModule *m, int *place, int *places) {
  static const TessPlanEntry plan[] = {
      {.path = "blocks.*.attn.wq", .style = TESS_COLWISE}, {.path = "blocks.*.attn.wk", .style = TESS_COLWISE},
      {.path = "blocks.*.attn.wv", .style = TESS_COLWISE}, {.path = "blocks.*.attn.wo", .style = TESS_ROWWISE},
      {.path = "blocks.*.ffn.w1", .style = TESS_COLWISE},  {.path = "blocks.*.ffn.w2", .style = TESS_ROWWISE}};
  yyjson_val *sizes = yyjson_obj_get(c->what, "mesh");
  int n = (int)yyjson_arr_size(sizes), size[4] = {1, 1, 1, 1}, ranks[FSDP_MAX_RANKS], coord[4];
  const bool tp = flag(c, "tp");
  const char *one[] = {"dp"}, *replicas[] = {"replicate", "shard"}, *with_tp[] = {"dp", "tp"};
  const char *const *names = n == 1 ? one : tp ? with_tp : replicas;
  for (int i = 0; i < n && i < 4; i++) size[i] = yyjson_get_int(yyjson_arr_get(sizes, (size_t)i));
  for (int i = 0; i < c->world; i++) ranks[i] = i;
  TessMesh *mesh = tess_mesh_from_ranks(ctx, n, size, names, ranks);
  if (!mesh || tess_mesh_coordinate(mesh, coord)) return NULL;
  *place = tp ? coord[0] : tess_rank(ctx);
  *places = tp ? size[0] : c->world;
  if (!tp) return mesh;
  TessMesh *inner = tess_mesh_sub(ctx, mesh, &with_tp[1], 1);
  if (tess_parallelize_module(ctx, m, inner, plan, (int)(sizeof plan / sizeof *plan), -1)) return NULL;
  return tess_mesh_sub(ctx, mesh, &with_tp[0], 1);
}

/* ---- steps
 * -------------------------------------------------------------------------------------------------------- */

static LoggedEvent *new_event(FsdpCase *c) {
  if (c->nevents == c->event_cap) {
    c->event_cap = c->event_cap * 2 + 64;
    c->event = realloc(c->event, (size_t)c->event_cap * sizeof *c->event);
  }
  LoggedEvent *e = &c->event[c->nevents++];
  memset(e, 0, sizeof *e);
  return e;
}

static void watch(const TessFsdpEvent *event, void *arg) {
  static const char *const dtypes[] = {"bool", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "c64"};
  FsdpCase *c = arg;
  if (!c->logging) return;
  LoggedEvent *e = new_event(c);
  snprintf(e->event, sizeof e->event, "%s", event->event);
  snprintf(e->group, sizeof e->group, "%s", event->group);
  snprintf(e->op, sizeof e->op, "%s", event->op);
  snprintf(e->dtype, sizeof e->dtype, "%s", dtypes[event->dtype]);
  size_t at = 0;
  for (int i = 0; i < event->nranks && at < sizeof e->ranks - 8; i++)
    at += (size_t)snprintf(e->ranks + at, sizeof e->ranks - at, "%s%d", i ? "," : "", event->ranks[i]);
  e->bytes = event->bytes;
}

static void phase(FsdpCase *c, int rank, const char *name, int batch, int batches) {
  if (rank || !c->logging) return;
  LoggedEvent *e = new_event(c);
  if (batches > 1) snprintf(e->event, sizeof e->event, "-- %s %d", name, batch);
  else snprintf(e->event, sizeof e->event, "-- %s", name);
}

/* Rows of batch number i that belong to this place. */
static TessTensor *rows(TessCtx *ctx, const FsdpCase *c, const char *name, int i, int place, int places) {
  char path[1200];
  snprintf(path, sizeof path, "%s/batches.safetensors", c->train);
  TessTensor *t = tess_call(ctx, "aten.select.int", tess_t(tess_load(ctx, path, name)), tess_i(0), tess_i(i));
  if (!t) return NULL;
  int64_t n = tess_size(t)[0];
  return tess_call(ctx, "aten.slice.Tensor", tess_t(t), tess_i(0), tess_i(place * n / places),
                   tess_i((place + 1) * n / places));
}

static double number(TessCtx *ctx, TessTensor *t) {
  double v = 0;
  t = tess_call(ctx, "aten.to.dtype", tess_t(t), tess_d(TESS_F64));
  if (t) tess_read(ctx, t, &v);
  return v;
}

typedef struct {
  TessCtx *ctx;
  FsdpCase *c;
  TessModule *m;
  RankLog *log;
  bool sharded;
  int place, places;
  int batches; /* per step */
  double scale;
} Training;

static int one_batch(Training *t, int batch, int i) {
  TessCtx *ctx = t->ctx;
  const bool last = i + 1 == t->batches;
  int rank = t->sharded ? tess_rank(ctx) : 1;
  TessTensor *in[] = {rows(ctx, t->c, "x", batch, t->place, t->places),
                      rows(ctx, t->c, "y", batch, t->place, t->places)};
  TessTensor *loss = NULL, *scaled;
  if (t->sharded && t->batches > 1) {
    tess_fsdp_set(ctx, t->m, flag(t->c, "partial_only") ? TESS_FSDP_ALL_REDUCE : TESS_FSDP_GRADIENT_SYNC, last, 1);
    if (flag(t->c, "keep_unsharded")) tess_fsdp_set(ctx, t->m, TESS_FSDP_RESHARD_AFTER_BACKWARD, last, 1);
  }
  phase(t->c, rank, "forward", i, t->batches);
  if (!in[0] || !in[1] || tess_module_call(ctx, t->m, in, 2, &loss, 1) != 1) return -1;
  t->log->loss[t->log->nlosses++] = number(ctx, loss);
  scaled = tess_call(ctx, "aten.mul.Scalar", tess_t(loss), tess_f(t->scale / t->batches));
  if (t->batches == 1 && t->scale == 1) scaled = loss;
  phase(t->c, rank, "backward", i, t->batches);
  return scaled ? tess_backward(ctx, &scaled, NULL, 1, 0) : -1;
}

static int clip(Training *t, TessTensor *const *params, int n) {
  yyjson_val *how = yyjson_obj_get(t->c->what, "clip");
  if (!how) return 0;
  double type = strtod(yyjson_get_str(yyjson_arr_get(how, 1)), NULL), norm;
  if (tess_clip_grad_norm(t->ctx, params, n, yyjson_get_num(yyjson_arr_get(how, 0)), type, &norm)) return -1;
  t->log->norm[t->log->nnorms++] = norm;
  return 0;
}

static TessOptimizer *new_optimizer(const Training *t, TessTensor *const *params, int n) {
  yyjson_val *o = yyjson_obj_get(t->c->json, "optimizer"), *key, *value;
  TextBuf b = {0};
  size_t i, count;
  for (const char *p = yyjson_get_str(yyjson_arr_get(o, 0)); *p; p++) text_printf(&b, "%c", *p | 32);
  yyjson_obj_foreach(yyjson_arr_get(o, 1), i, count, key, value)
      text_printf(&b, ",%s=%.17g", yyjson_get_str(key), yyjson_get_num(value));
  TessOptimizer *made = tess_optimizer_new(t->ctx, b.text, params, n);
  text_free(&b);
  return made;
}

static int train(Training *t) {
  TessTensor *borrowed[256], *params[256];
  int n = tess_module_parameters(t->ctx, t->m, borrowed, 256), failed = 0;
  int steps = yyjson_get_int(yyjson_obj_get(t->c->json, "steps"));
  for (int i = 0; i < n; i++) params[i] = tess_hold(t->ctx, borrowed[i]); /* modules replace theirs */
  TessOptimizer *o = n > 0 ? new_optimizer(t, params, n) : NULL;
  for (int step = 0; o && step < steps && !failed; step++) {
    TessScope *scope = tess_scope_begin(t->ctx);
    if (t->sharded && !tess_rank(t->ctx)) t->c->logging = step + 1 == steps;
    for (int i = 0; i < t->batches && !failed; i++) failed = one_batch(t, step * t->batches + i, i);
    if (yyjson_obj_get(t->c->what, "clip")) phase(t->c, t->sharded ? tess_rank(t->ctx) : 1, "clip", 0, 1);
    if (t->sharded && !tess_rank(t->ctx)) t->c->logging = false;
    failed = failed || clip(t, params, n) || tess_optimizer_step(o) || tess_optimizer_zero_grad(o);
    tess_scope_end(t->ctx, scope);
  }
  tess_optimizer_free(o);
  for (int i = 0; i < n; i++) tess_release(params[i]);
  return o && !failed && !tess_error(t->ctx) ? 0 : -1;
}

static Training training_of(TessCtx *ctx, FsdpCase *c) {
  int batches = yyjson_get_int(yyjson_obj_get(c->what, "accumulate"));
  return (Training){.ctx = ctx, .c = c, .batches = batches ? batches : 1, .places = 1, .scale = 1};
}

TessModule *fsdp_case_reference(TessCtx *ctx, const FsdpCase *c, double scale, RankLog *out) {
  Training t = training_of(ctx, (FsdpCase *)(uintptr_t)c);
  t.m = new_model(ctx, c);
  t.log = out;
  t.scale = scale;
  if (t.m && !train(&t)) return t.m;
  tess_module_free(t.m);
  return NULL;
}

/* A run that PyTorch refuses is compared with training in one process; what half precision costs is measured by it.
 */
static TessModule *reference_of(TessCtx *ctx, FsdpCase *c) {
  RankLog log = {0};
  double divide = yyjson_get_num(yyjson_obj_get(c->what, "divide"));
  if (yyjson_is_null(yyjson_obj_get(c->json, "error")) && !c->half) return NULL;
  TessModule *m = fsdp_case_reference(ctx, c, divide > 0 ? c->world / divide : 1, &log);
  RankLog *mine = &c->rank[tess_rank(ctx)];
  for (int i = 0; i < log.nnorms && !c->half; i++)
    if (!fsdp_close(mine->norm[i], log.norm[i], log.norm[i], fsdp_tolerance(c)))
      note_trouble(c, tess_rank(ctx), "norm %d is %.9g, in one process %.9g", i, mine->norm[i], log.norm[i]);
  return m;
}

int fsdp_case_run(TessCtx *ctx, FsdpCase *c) {
  TessScope *scope = tess_scope_begin(ctx);
  Training t = training_of(ctx, c);
  int failed = -1;
  t.sharded = true;
  t.log = &c->rank[tess_rank(ctx)];
  t.m = new_model(ctx, c);
  TessMesh *mesh = t.m ? dp_mesh(ctx, c, t.m, &t.place, &t.places) : NULL;
  if (mesh && !wrap(ctx, c, t.m, mesh)) {
    set_up(ctx, c, t.m);
    if (!tess_rank(ctx)) tess_fsdp_watch(ctx, t.m, watch, c);
    fsdp_case_compare_shards(ctx, c, t.m);
    failed = train(&t);
    if (!tess_rank(ctx)) tess_fsdp_watch(ctx, t.m, NULL, NULL);
    if (!failed) {
      TessModule *reference = reference_of(ctx, c);
      fsdp_case_compare_final(ctx, c, t.m, reference);
      tess_module_free(reference);
    }
  }
  tess_module_free(t.m);
  tess_scope_end(ctx, scope);
  return failed || tess_error(ctx) ? -1 : 0;
}
