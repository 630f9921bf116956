/* test_fsdp.c -- calls of fully sharded modules beyond PyTorch's recorded runs (golden_fsdp): in which order, by
 * hand, and after failures. */
#include "fsdp_model.h"

/* ---- several forwards and backwards ------------------------------------------------------------------------- */

/* Two forwards, then backwards in any order; a forward of which there is no backward. */
static int several_forwards(TessCtx *ctx, void *arg) {
  SETUP;
  TessTensor *a, *b, *c, *both;
  CHECK(!shard(ctx, m, NULL, NULL));
  CHECK(!forward(ctx, m, x, &a) && !forward(ctx, m, x, &b));
  both = tess_call(ctx, "aten.add.Tensor", tess_t(a), tess_t(b));
  CHECK(!tess_backward(ctx, &both, NULL, 1, 0) && !same_gradients(ctx, m, 2));
  zero(ctx, m);
  CHECK(!forward(ctx, m, x, &a) && !forward(ctx, m, x, &c)); /* c has no backward */
  tess_fsdp_set(ctx, m, TESS_FSDP_LAST_BACKWARD, 0, 0);
  CHECK(!forward(ctx, m, x, &b) && !tess_backward(ctx, &b, NULL, 1, 0));
  tess_fsdp_set(ctx, m, TESS_FSDP_LAST_BACKWARD, 1, 0);
  CHECK(!tess_backward(ctx, &a, NULL, 1, 0) && !same_gradients(ctx, m, 2));
  tess_no_grad_begin(ctx);
  CHECK(!forward(ctx, m, x, &a) && !tess_requires_grad(a));
  tess_no_grad_end(ctx);
  zero(ctx, m);
  CHECK(!there_and_back(ctx, m, x) && !same_gradients(ctx, m, 1));
  tess_module_free(m);
  return 0;
}

/* Gradients by an input add to nothing, and leave everything as it was. */
static int by_inputs(TessCtx *ctx, void *arg) {
  SETUP;
  TessTensor *loss, *dx;
  CHECK(!shard(ctx, m, NULL, NULL));
  tess_set_requires_grad(ctx, x, 1);
  CHECK(!forward(ctx, m, x, &loss) && !tess_grad(ctx, &loss, NULL, 1, &x, 1, &dx, 0));
  CHECK(tess_numel(dx) == tess_numel(x));
  CHECK(!tess_grad_of(ctx, tess_module_get(m, "0.weight")));
  CHECK(!there_and_back(ctx, m, x) && !same_gradients(ctx, m, 1));
  tess_module_free(m);
  return 0;
}

static void order(void **state) {
  (void)state;
  for (int n = 1; n <= 4; n++) on_ranks(n, several_forwards);
  on_ranks(3, by_inputs);
}

/* ---- by hand
 * ------------------------------------------------------------------------------------------------------ */

static int by_hand(TessCtx *ctx, void *arg) {
  SETUP;
  CHECK(!shard(ctx, m, NULL, NULL));
  TessModule *l = tess_module_child(m, "0");
  CHECK(tess_is_fully_sharded(l) && tess_is_dtensor(tess_module_get(l, "weight")));
  CHECK(!tess_fsdp_unshard(ctx, l, 0) && tess_is_dtensor(tess_module_get(l, "weight")));
  CHECK(!tess_fsdp_wait(ctx, l) && !tess_is_dtensor(tess_module_get(l, "weight")));
  TessTensor *whole = tess_keep(ctx, tess_module_get(l, "weight"));
  float is[64], want[64];
  CHECK(!tess_read(ctx, whole, is) && !tess_read(ctx, filled(ctx, 2, (int64_t[]){7, FEATURES}, 0), want));
  CHECK(!memcmp(is, want, 7 * FEATURES * sizeof *is));
  CHECK(!tess_fsdp_reshard(ctx, l) && tess_is_dtensor(tess_module_get(l, "weight")));
  tess_call(ctx, "aten.neg.default", tess_t(whole)); /* its memory is gone, unless one rank has all */
  CHECK(tess_world_size(ctx) == 1 || !told(ctx, "has no memory"));
  CHECK(!tess_fsdp_unshard(ctx, l, 1) && !there_and_back(ctx, m, x) && !same_gradients(ctx, m, 1));
  tess_module_free(m);
  return 0;
}

static void unshard(void **state) {
  (void)state;
  on_ranks(1, by_hand);
  on_ranks(3, by_hand);
}

/* ---- failures
 * ------------------------------------------------------------------------------------------------------- */

typedef struct {
  int at; /* how many calls until it fails */
} Bomb;

static int explode(TessCtx *ctx, TessModule *m, TessTensor **t, int n, TessMesh *mesh, void *arg) {
  (void)ctx, (void)m, (void)t, (void)n, (void)mesh;
  return ((Bomb *)arg)->at-- == 0;
}

static int explode_backward(TessCtx *ctx, TessTensor *g, TessTensor **replacement, void *arg) {
  (void)ctx, (void)g, (void)replacement;
  return ((Bomb *)arg)->at-- == 0;
}

static int after_failures(TessCtx *ctx, void *arg) {
  SETUP;
  Bomb bomb = {0};
  TessTensor *loss;
  CHECK(!shard(ctx, m, NULL, NULL));
  int hook = tess_module_hook(ctx, tess_module_child(m, "1"), TESS_BEFORE_FORWARD, explode, &bomb);
  CHECK(forward(ctx, m, x, &loss) && !told(ctx, "module '1' failed"));
  bomb.at = 100;
  CHECK(forward(ctx, m, x, &loss) && !told(ctx, "group '1' (in forward, gathered) is called while"));
  CHECK(tess_fsdp_reset(ctx, tess_module_child(m, "1")) && !told(ctx, "only the root"));
  CHECK(!tess_fsdp_reset(ctx, m) && tess_is_dtensor(tess_module_get(m, "0.weight")));
  tess_module_unhook(tess_module_child(m, "1"), hook);
  CHECK(!there_and_back(ctx, m, x) && !same_gradients(ctx, m, 1));
  zero(ctx, m);
  bomb.at = 0; /* in the middle of a backward */
  TessTensor *h = x;
  CHECK(!forward(ctx, m, x, &loss));
  TessHook *on_loss = tess_register_hook(ctx, loss, explode_backward, &bomb, NULL);
  CHECK(tess_backward(ctx, &loss, NULL, 1, 0) && !told(ctx, "hook"));
  tess_forget_hook(on_loss);
  CHECK(!tess_fsdp_reset(ctx, m) && !there_and_back(ctx, m, h) && !same_gradients(ctx, m, 1));
  tess_module_free(m);
  return 0;
}

/* Parameters that the backward needs and was told not to gather: an error, not a crash. */
static int needed_after_all(TessCtx *ctx, void *arg) {
  SETUP;
  TessTensor *loss;
  TessFsdpOptions o = {.reshard = TESS_RESHARD_ALWAYS};
  CHECK(!shard(ctx, m, NULL, &o));
  tess_fsdp_set(ctx, m, TESS_FSDP_UNSHARD_IN_BACKWARD, 0, 1);
  CHECK(!forward(ctx, m, x, &loss) && tess_backward(ctx, &loss, NULL, 1, 0));
  CHECK(!told(ctx, "has been freed since"));
  tess_fsdp_set(ctx, m, TESS_FSDP_UNSHARD_IN_BACKWARD, 1, 1);
  CHECK(!tess_fsdp_reset(ctx, m) && !there_and_back(ctx, m, x) && !same_gradients(ctx, m, 1));
  tess_module_free(m);
  return 0;
}

/* The module goes before its backward. */
static int gone_too_soon(TessCtx *ctx, void *arg) {
  SETUP;
  TessTensor *loss;
  TessFsdpOptions o = {.reshard = TESS_RESHARD_ALWAYS};
  CHECK(!shard(ctx, m, NULL, &o) && !forward(ctx, m, x, &loss));
  tess_module_free(m);
  CHECK(tess_backward(ctx, &loss, NULL, 1, 0) && !told(ctx, "has been freed since"));
  return 0;
}

static int refused(TessCtx *ctx, void *arg) {
  SETUP;
  TessModule *l = tess_module_child(m, "0"), *nothing = tess_module_new(ctx, NULL, NULL);
  TessFsdpOptions o = {.reshard = TESS_RESHARD_TO, .reshard_ranks = 2};
  CHECK(tess_fully_shard(ctx, &l, 1, NULL, &o) && !told(ctx, "divides the 3 of their group, not 2"));
  CHECK(tess_fully_shard(ctx, &nothing, 1, NULL, NULL) && !told(ctx, "no forward function"));
  CHECK(tess_fully_shard(ctx, &l, 0, NULL, NULL) && !told(ctx, "no module is given"));
  o = (TessFsdpOptions){.param_dtype = TESS_I64};
  CHECK(tess_fully_shard(ctx, &l, 1, NULL, &o) && !told(ctx, "param_dtype"));
  o = (TessFsdpOptions){.shard_axes = "dp"};
  CHECK(tess_fully_shard(ctx, &l, 1, NULL, &o) && !told(ctx, "no axis 'dp'"));
  CHECK(tess_fsdp_reshard(ctx, l) && !told(ctx, "'0' is not fully sharded"));
  CHECK(!tess_fully_shard(ctx, &l, 1, NULL, NULL));
  CHECK(tess_fully_shard(ctx, &l, 1, NULL, NULL) && !told(ctx, "fully sharded already"));
  TessModule *scalar = tess_module_new(ctx, layer, NULL);
  tess_module_set(ctx, scalar, "s", filled(ctx, 0, NULL, 0));
  CHECK(tess_fully_shard(ctx, &scalar, 1, NULL, NULL) && !told(ctx, "'s' is a scalar"));
  TessTensor *y, *in = rows(ctx, 0, 1); /* an inner module that runs by itself is a root of its own */
  CHECK(tess_module_call(ctx, l, &in, 1, &y, 1) == 1 && !tess_fully_shard(ctx, &m, 1, NULL, NULL));
  CHECK(forward(ctx, m, x, &y) && !told(ctx, "has run forward by itself"));
  tess_module_free(scalar);
  tess_module_free(nothing);
  tess_module_free(m);
  return 0;
}

static void failures(void **state) {
  (void)state;
  on_ranks(2, after_failures);
  on_ranks(2, needed_after_all);
  on_ranks(2, gone_too_soon);
  on_ranks(3, refused);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(order), cmocka_unit_test(unshard),
                                     cmocka_unit_test(failures)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
