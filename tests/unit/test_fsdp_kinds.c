/* test_fsdp_kinds.c -- fully sharded modules of all kinds, beyond PyTorch's recorded runs (golden_fsdp): meta and
 * offloaded parameters, tied, ignored and unused ones, several dtypes, meshes of more axes, settings. */
#include "fsdp_model.h"

/* ---- parameters of all sorts -------------------------------------------------------------------------- */

/* Sizes without values, filled shard by shard; or replaced by whole tensors. */
static int meta(TessCtx *ctx, void *arg) {
  SETUP;
  TessTensor *loss;
  TessModule *source = new_model(ctx);
  for (int i = 0; i < LAYERS; i++)
    for (int k = 0; k < 2; k++) {
      char name[16];
      snprintf(name, sizeof name, "%d.%s", i, k ? "bias" : "weight");
      const TessTensor *t = tess_module_get(m, name);
      tess_module_set(ctx, m, name, tess_tensor_meta(ctx, TESS_F32, tess_ndim(t), tess_size(t)));
    }
  CHECK(!shard(ctx, m, NULL, NULL));
  CHECK(forward(ctx, m, x, &loss) && !told(ctx, "has sizes and no values"));
  CHECK(!tess_fsdp_materialize(ctx, tess_module_child(m, "0")));
  for (int i = 0; i < LAYERS; i++)
    for (int k = 0; k < 2; k++) {
      char name[16], place[32];
      snprintf(name, sizeof name, "%d.%s", i, k ? "bias" : "weight");
      TessTensor *from = tess_module_get(source, name), *to = tess_module_get(m, name);
      if (i) { /* whole tensors: each rank takes its part */
        CHECK(!tess_module_set(ctx, m, name, from));
        continue;
      }
      from = tess_distribute_tensor(ctx, from, tess_mesh_of(to), tess_placements(to, place, sizeof place), -1);
      tess_no_grad_begin(ctx);
      CHECK(tess_call(ctx, "aten.copy_.default", tess_t(to), tess_t(from)));
      tess_no_grad_end(ctx);
    }
  CHECK(!there_and_back(ctx, m, x) && !same_gradients(ctx, m, 1));
  tess_module_free(source);
  tess_module_free(m);
  return 0;
}

static int offloaded(TessCtx *ctx, void *arg) {
  SETUP;
  TessFsdpOptions o = {.offload = "/tmp"}, bad = {.offload = "/nowhere"};
  TessModule *l = tess_module_child(m, "0");
  CHECK(tess_fully_shard(ctx, &l, 1, NULL, &bad) && !told(ctx, "'/nowhere'"));
  CHECK(!shard(ctx, m, NULL, &o) && !there_and_back(ctx, m, x) && !same_gradients(ctx, m, 1));
  tess_module_free(m);
  return 0;
}

/* Two names of one weight, in one group; in two, which is refused. */
static int tied(TessCtx *ctx, void *arg) {
  SETUP;
  TessTensor *loss, *w = filled(ctx, 2, (int64_t[]){FEATURES, FEATURES}, 3),
                    *b = filled(ctx, 1, (int64_t[]){FEATURES}, 4);
  TessModule *tree = tess_module_new(ctx, model, NULL), *l[2];
  char name[2] = "0";
  for (int i = 0; i < 2; i++, name[0]++) {
    l[i] = tess_module_new(ctx, layer, NULL);
    tess_module_set(ctx, l[i], "weight", w);
    tess_module_set(ctx, l[i], "bias", filled(ctx, 1, (int64_t[]){FEATURES}, i));
    tess_module_add(ctx, tree, name, l[i]);
  }
  CHECK(!tess_fully_shard(ctx, l, 2, NULL, NULL) && !tess_fully_shard(ctx, &tree, 1, NULL, NULL));
  char *json = tess_fsdp_json(ctx, l[0]);
  CHECK(json && strstr(json, "0.weight") && !strstr(json, "1.weight") && strstr(json, "1.bias"));
  tess_free(json);
  CHECK(!there_and_back(ctx, tree, x));
  float is[36], want[36];
  CHECK(!gradient(ctx, tree, "0.weight", is) && !gradient(ctx, tree, "1.weight", want) &&
        !memcmp(is, want, sizeof is));
  tess_module_free(tree);
  tess_module_set(ctx, m, "0.bias", b);
  tess_module_set(ctx, m, "0.weight", w); /* held by two modules that are sharded apart */
  tess_module_set(ctx, tess_module_child(m, "1"), "bias", b);
  CHECK(!shard(ctx, m, NULL, NULL) && forward(ctx, m, x, &loss) && !told(ctx, "is also 'bias' of group '0'"));
  tess_module_free(m);
  return 0;
}

typedef struct {
  int64_t gathered, reduced, all_reduced;
  int gathers, reduces, all_reduces;
} Traffic;

static void add_traffic(const TessFsdpEvent *e, void *arg) {
  Traffic *t = arg;
  if (!strcmp(e->event, "all_gather")) t->gathers++, t->gathered += e->bytes;
  if (!strcmp(e->event, "reduce_scatter")) t->reduces++, t->reduced += e->bytes;
  if (!strcmp(e->event, "all_reduce")) t->all_reduces++, t->all_reduced += e->bytes;
}

/* Frozen, ignored and unused parameters. */
static int left_out(TessCtx *ctx, void *arg) {
  SETUP;
  const char *ignored[] = {"bias"};
  TessFsdpOptions o = {.ignored = ignored, .nignored = 1};
  TessModule *l = tess_module_child(m, "0");
  Traffic t = {0};
  tess_module_set(ctx, m, "2.unused", filled(ctx, 1, (int64_t[]){5}, 0));
  tess_module_set_requires_grad(ctx, m, "1.weight", 0);
  CHECK(!tess_fully_shard(ctx, &l, 1, NULL, &o) && !tess_is_dtensor(tess_module_get(l, "bias")));
  for (int i = 1; i < LAYERS; i++) {
    l = tess_module_child_at(m, i);
    CHECK(!tess_fully_shard(ctx, &l, 1, NULL, NULL));
  }
  const char *left[] = {"0.bias"};
  o.ignored = left;
  CHECK(!tess_fully_shard(ctx, &m, 1, NULL, &o) && !tess_is_dtensor(tess_module_get(m, "0.bias")));
  tess_fsdp_watch(ctx, m, add_traffic, &t);
  CHECK(!there_and_back(ctx, m, x));
  CHECK(t.gathers == 2 * LAYERS && t.reduces == LAYERS);
  CHECK(t.reduced == 4 * (7 * 6 + 5 + 3 * 5 + 3)); /* without the frozen, ignored and unused ones */
  CHECK(!tess_grad_of(ctx, tess_module_get(m, "1.weight")) && !tess_grad_of(ctx, tess_module_get(m, "2.unused")));
  tess_fsdp_set(ctx, m, TESS_FSDP_REDUCE_UNUSED, 1, 1);
  float g[5];
  CHECK(!there_and_back(ctx, m, x) && !gradient(ctx, m, "2.unused", g));
  for (int i = 0; i < 5; i++) CHECK(g[i] == 0);
  tess_module_free(m);
  return 0;
}

static void parameters(void **state) {
  (void)state;
  on_ranks(1, meta);
  on_ranks(3, meta);
  on_ranks(2, offloaded);
  on_ranks(2, tied);
  on_ranks(2, left_out);
}

/* ---- dtypes
 * -------------------------------------------------------------------------------------------------------- */

/* Parameters of several dtypes in one group are gathered as bytes; only one dtype may have gradients. */
static int several_dtypes(TessCtx *ctx, void *arg) {
  SETUP;
  TessTensor *loss;
  TessModule *l = tess_module_child(m, "1");
  tess_module_set(ctx, l, "wide",
                  tess_call(ctx, "aten.to.dtype", tess_t(filled(ctx, 1, (int64_t[]){3}, 0)), tess_d(TESS_F64)));
  tess_module_set(ctx, l, "short",
                  tess_call(ctx, "aten.to.dtype", tess_t(filled(ctx, 2, (int64_t[]){2, 5}, 0)), tess_d(TESS_BF16)));
  CHECK(!shard(ctx, m, NULL, NULL));
  CHECK(forward(ctx, m, x, &loss) && !told(ctx, "its gradients are reduced together"));
  tess_module_set_requires_grad(ctx, l, "wide", 0);
  tess_module_set_requires_grad(ctx, l, "short", 0);
  CHECK(!there_and_back(ctx, m, x) && !same_gradients(ctx, m, 1));
  CHECK(!tess_fsdp_unshard(ctx, l, 1));
  double is[3];
  float want[3];
  CHECK(!tess_read(ctx, tess_module_get(l, "wide"), is) &&
        !tess_read(ctx, filled(ctx, 1, (int64_t[]){3}, 0), want));
  for (int i = 0; i < 3; i++) CHECK(is[i] == (double)want[i]);
  tess_module_free(m);
  return 0;
}

/* Inputs are cast, or not; outputs are. */
static int half(TessCtx *ctx, void *arg) {
  SETUP;
  TessTensor *loss;
  TessFsdpOptions o = {.param_dtype = TESS_BF16, .reduce_dtype = TESS_F32, .output_dtype = TESS_F64};
  CHECK(!shard(ctx, m, NULL, &o) && !forward(ctx, m, x, &loss) && tess_dtype(loss) == TESS_F64);
  CHECK(!tess_backward(ctx, &loss, NULL, 1, 0));
  CHECK(tess_dtype(tess_grad_of(ctx, tess_module_get(m, "0.weight"))) == TESS_F32);
  TessModule *other = new_model(ctx);
  o.keep_inputs = 1;
  CHECK(!shard(ctx, other, NULL, &o));
  TessTensor *small = tess_call(ctx, "aten.to.dtype", tess_t(x), tess_d(TESS_BF16));
  CHECK(forward(ctx, other, x, &loss)); /* f32 rows meet bf16 weights */
  tess_error_clear(ctx);
  CHECK(!tess_fsdp_reset(ctx, other));
  TessModule *first = tess_module_child(other, "0");
  CHECK(!tess_fsdp_unshard(ctx, first, 1) && tess_dtype(tess_module_get(first, "weight")) == TESS_BF16);
  CHECK(tess_module_call(ctx, first, &small, 1, &loss, 1) == 1 && tess_dtype(loss) == TESS_F64);
  tess_module_free(other);
  tess_module_free(m);
  return 0;
}

static void dtypes(void **state) {
  (void)state;
  on_ranks(1, several_dtypes);
  on_ranks(3, several_dtypes);
  on_ranks(2, half);
}

/* ---- meshes
 * ---------------------------------------------------------------------------------------------------------- */

static int dim_one(TessCtx *ctx, const char *name, const TessTensor *param, int *dim, TessMesh **mesh, void *arg) {
  (void)ctx, (void)name, (void)mesh, (void)arg;
  *dim = -1;
  return tess_ndim(param) > 2;
}

/* Uneven along the last dimension, which PyTorch refuses. */
static int other_dimension(TessCtx *ctx, void *arg) {
  SETUP;
  TessFsdpOptions o = {.placement = dim_one};
  Traffic t = {0};
  CHECK(!shard(ctx, m, NULL, &o));
  tess_fsdp_watch(ctx, m, add_traffic, &t);
  CHECK(!there_and_back(ctx, m, x) && !same_gradients(ctx, m, 1));
  CHECK(t.gathered == 2 * t.reduced); /* nothing is padded; the root has none of its own */
  CHECK(t.reduced == 4 * (7 * 6 + 7 + 5 * 7 + 5 + 3 * 5 + 3));
  tess_module_free(m);
  return 0;
}

/* Replicas only, by tess_fully_shard() itself. */
static int replicas_only(TessCtx *ctx, void *arg) {
  SETUP;
  TessFsdpOptions o = {.replicate = 1};
  Traffic t = {0};
  CHECK(!shard(ctx, m, NULL, &o));
  tess_fsdp_watch(ctx, m, add_traffic, &t);
  CHECK(!there_and_back(ctx, m, x) && !same_gradients(ctx, m, 1));
  CHECK(!t.gathers && !t.reduces && t.all_reduces == LAYERS);
  tess_module_free(m);
  return 0;
}

/* A mesh of replicas, two axes that shard, and parameters that are DTensors on all of it. */
static int part_of_larger(TessCtx *ctx, void *arg) {
  SETUP;
  const char *names[] = {"r", "a", "b"};
  TessMesh *mesh = tess_init_device_mesh(ctx, 3, (int[]){2, 2, 1}, names);
  TessFsdpOptions o = {.shard_axes = "a,b", .replicate_axes = "r"}, one = {.shard_axes = "a"};
  TessModule *other = new_model(ctx);
  for (int i = 0; i < LAYERS; i++)
    for (int k = 0; k < 2; k++) {
      char name[16];
      snprintf(name, sizeof name, "%d.%s", i, k ? "bias" : "weight");
      tess_module_set(ctx, m, name, tess_distribute_tensor(ctx, tess_module_get(m, name), mesh, "RRR", -1));
      tess_module_set(ctx, other, name,
                      tess_distribute_tensor(ctx, tess_module_get(other, name), mesh, "RRS(0)", -1));
    }
  CHECK(!shard(ctx, m, mesh, &o));
  (void)x;
  CHECK(tess_mesh_ndim(tess_mesh_of(tess_module_get(m, "0.weight"))) == 2);
  CHECK(!tess_fsdp_unshard(ctx, tess_module_child(m, "0"), 1));
  CHECK(tess_is_dtensor(tess_module_get(m, "0.weight")) && tess_mesh_of(tess_module_get(m, "0.weight")) == mesh);
  CHECK(!shard(ctx, other, mesh, &one));
  char text[64];
  CHECK(!strcmp(tess_placements(tess_module_get(other, "0.weight"), text, sizeof text), "RS(0)S(0)"));
  tess_module_free(other);
  tess_module_free(m);
  return 0;
}

/* Biases lie on another mesh than weights: two groups of one module. */
static TessMesh *other_mesh(TessCtx *ctx) {
  int ranks[2] = {tess_rank(ctx) / 2 * 2, tess_rank(ctx) / 2 * 2 + 1}, two = 2;
  return tess_mesh_from_ranks(ctx, 1, &two, NULL, ranks);
}

static int two_meshes(TessCtx *ctx, const char *name, const TessTensor *param, int *dim, TessMesh **mesh,
                      void *arg) {
  (void)name, (void)dim, (void)arg;
  if (tess_ndim(param) == 1) *mesh = other_mesh(ctx);
  return 0;
}

static int groups_of_meshes(TessCtx *ctx, void *arg) {
  SETUP;
  TessFsdpOptions o = {.placement = two_meshes};
  Traffic t = {0};
  CHECK(!shard(ctx, m, NULL, &o));
  tess_fsdp_watch(ctx, m, add_traffic, &t);
  CHECK(!there_and_back(ctx, m, x));
  CHECK(t.gathers == 2 * 2 * LAYERS && t.reduces == 2 * LAYERS);
  tess_module_free(m);
  return 0;
}

static void meshes(void **state) {
  (void)state;
  for (int n = 2; n <= 4; n++) on_ranks(n, other_dimension);
  on_ranks(3, replicas_only);
  on_ranks(4, part_of_larger);
  on_ranks(4, groups_of_meshes);
}

/* ---- settings
 * ------------------------------------------------------------------------------------------------------- */

static int halve(TessCtx *ctx, TessTensor *flat, void *arg) {
  ++*(int *)arg;
  return tess_call(ctx, "aten.mul_.Scalar", tess_t(flat), tess_f(0.5)) ? 0 : -1;
}

static int settings_of_all(TessCtx *ctx, void *arg) {
  SETUP;
  int calls = 0;
  CHECK(!shard(ctx, m, NULL, NULL));
  for (int i = 0; i < LAYERS; i++)
    CHECK(!tess_fsdp_all_reduce_hook(ctx, tess_module_child_at(m, i), halve, &calls));
  tess_fsdp_set(ctx, m, TESS_FSDP_MOST_REDUCTIONS, 3, 1);
  CHECK(!there_and_back(ctx, m, x) && calls == LAYERS && !same_gradients(ctx, m, 0.5));
  for (int i = 0; i < LAYERS; i++) tess_fsdp_all_reduce_hook(ctx, tess_module_child_at(m, i), NULL, NULL);
  zero(ctx, m);
  tess_fsdp_set(ctx, m, TESS_FSDP_DIVIDE_FACTOR, 5, 1);
  tess_fsdp_set(ctx, m, TESS_FSDP_FORCE_SUM, 1, 1);
  CHECK(!there_and_back(ctx, m, x) && !same_gradients(ctx, m, tess_world_size(ctx) / 5.0));
  zero(ctx, m);
  tess_fsdp_set(ctx, m, TESS_FSDP_DIVIDE_FACTOR, 0, 1);
  tess_fsdp_set(ctx, m, TESS_FSDP_RESHARD_AFTER_FORWARD, 0, 1);
  Traffic t = {0};
  tess_fsdp_watch(ctx, m, add_traffic, &t);
  CHECK(!there_and_back(ctx, m, x) && !same_gradients(ctx, m, 1));
  CHECK(t.gathers == (tess_world_size(ctx) > 1 ? LAYERS : 0));
  CHECK(tess_fsdp_set(ctx, m, TESS_FSDP_MOST_REDUCTIONS, 0, 1) && !told(ctx, "1 to 1024"));
  CHECK(tess_fsdp_set(ctx, m, TESS_FSDP_DIVIDE_FACTOR, -1, 1) && !told(ctx, "divided by -1"));
  CHECK(tess_fsdp_set(ctx, m, (TessFsdpSetting)99, 1, 1) && !told(ctx, "no setting 99"));
  tess_module_free(m);
  return 0;
}

static void settings(void **state) {
  (void)state;
  on_ranks(1, settings_of_all);
  on_ranks(3, settings_of_all);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(parameters), cmocka_unit_test(dtypes),
                                     cmocka_unit_test(meshes), cmocka_unit_test(settings)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
