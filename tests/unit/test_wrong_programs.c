/* Programs that say wrong things of themselves, as a fuzzer of .pt2 files made them: each is an
 * error or is taken as well as it goes, never more.  Means most under the sanitizers. */
#include "graph/graph.h"
#include "passes/pass.h"
#include "report/plan_report.h"
#include "runtime/feed_sizes.h"
#include "unit.h"

static Exported *parse(const char *text) {
  Exported *e;
  assert_ok(graph_parse(text, strlen(text), "t.txt", &e));
  return e;
}

/* ---- what the verifier refuses ----------------------------------------------------------------- */

static const struct {
  const char *text, *message;
} refused[] = {
    {"graph(%x: f32[2,9223372036854775807] = user) { return user %x }", "not possible"},
    {"graph(%x: f32[4611686018427387904,4] = user) { return user %x }", "not possible"},
    {"graph(%x: f32[2,2]{4611686018427387904,4611686018427387904} = user) { return user %x }", "not possible"},
    {"graph(%x: f32[2] = user) {\n  %y: int = aten.relu.default(%x)\n  return user %y\n}",
     "a result is a number, which the schema has as a tensor"},
    {"graph(%x: f32[2] = user) {\n  %y: f32[] = aten.sym_size.int(%x, 0)\n  return user %y\n}",
     "a result is a tensor, which the schema has as a number"},
    {"graph(%x: f32[2] = user) {\n  [%a: f32[1], %b: int] = aten.split.Tensor(%x, 1)\n  return user %a\n}",
     "a result is a number, which the schema has as a tensor"},
};

static void verifier_refuses(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    Exported *e = parse(refused[i].text);
    Status s = graph_verify(e);
    if (s) assert_int_equal(status_code(s), ERR_FILE);
    assert_error(s, refused[i].message);
    exported_free(e);
  }
}

/* ---- values whose type is not told ---------------------------------------------------------------- */

static const struct {
  const char *passes, *text;
} untold[] = {
    /* the collective's result */
    {"fuse_ddp_with_concat_op", "graph(%g: f32[4] = user) {\n"
                                "  %d: f32[4] = aten.div.Tensor(%g, 2)\n"
                                "  %r: tensor = _c10d_functional.all_reduce.default(%d, \"sum\", \"0\")\n"
                                "  %w: f32[4] = _c10d_functional.wait_tensor.default(%r)\n"
                                "  return user %w\n}"},
    /* what is written to */
    {"functionalize", "graph(%x: f32[4] = user) {\n"
                      "  %y: tensor = aten.relu.default(%x)\n"
                      "  %z: tensor = aten.add_.Tensor(%y, %x)\n"
                      "  return user %z\n}"},
    /* a factor of a product, or what is normalised */
    {"recompose", "graph(%x: f32[2,4] = user, %w: f32[4,8] = user) {\n"
                  "  %t: tensor = aten.relu.default(%w)\n"
                  "  %y: f32[2,8] = aten.mm.default(%x, %t)\n"
                  "  return user %y\n}"},
    {"recompose", "graph(%x: f32[] = user, %w: f32[4] = user) {\n"
                  "  %p: f32[] = aten.pow.Tensor_Scalar(%x, 2)\n"
                  "  %m: f32[1] = aten.mean.dim(%p, [-1], true)\n"
                  "  %a: f32[1] = aten.add.Tensor(%m, 1e-05)\n"
                  "  %r: f32[1] = aten.rsqrt.default(%a)\n"
                  "  %n: f32[1] = aten.mul.Tensor(%x, %r)\n"
                  "  %y: f32[4] = aten.mul.Tensor(%w, %n)\n"
                  "  return user %y\n}"},
    /* sizes that are possible at no numbers */
    {"functionalize", "symbol s0 in [2, 1000] hint 3\n"
                      "graph(%x: f32[4611686018427387904*s0,4] = user) {\n"
                      "  %y: f32[s0] = aten.reshape.default(%x, [-1])\n"
                      "  %z: f32[s0] = aten.add_.Tensor(%y, 1)\n"
                      "  return user %z\n}"},
};

static void passes_take_what_is_not_told(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof untold / sizeof *untold; i++) {
    Exported *e = parse(untold[i].text);
    Ctx ctx;
    ctx_init(&ctx, 1);
    assert_ok(graph_verify(e));
    assert_ok(pass_run_list(e, untold[i].passes, &ctx, NULL));
    exported_free(e);
    ctx_free(&ctx);
  }
}

/* ---- plans of programs that tell sizes wrong --------------------------------------------------------- */

static const char *const planned[] = {
    /* a product with more dimensions than it is said to have, or with unknown ones */
    "graph(%w: f32[8,4] = parameter \"w\", %v: f32[4,8] = parameter \"v\", %x: f32[2,4] = user) {\n"
    "  %t: f32[4] = aten.t.default(%w)\n"
    "  %y: tensor = aten.mm.default(%x, %t)\n"
    "  %z: f32[2,4] = aten.linear.default(%y, %v)\n"
    "  return user %z\n}",
    "graph(%w: f32[8,4] = parameter \"w\", %x: f32[2,4] = user) {\n"
    "  %t: tensor = aten.t.default(%w)\n"
    "  %u: tensor = aten.relu.default(%t)\n"
    "  %y: f32[2,8] = aten.mm.default(%x, %u)\n"
    "  return user %y\n}",
    "symbol s0 in [2, 9223372036854775807] hint 4611686018427387904\n"
    "graph(%w: f32[8,4] = parameter \"w\", %x: f32[s0,4] = user) {\n"
    "  %y: f32[s0,8] = aten.linear.default(%x, %w)\n"
    "  return user %y\n}",
};

static void plans_take_wrong_sizes(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof planned / sizeof *planned; i++) {
    Exported *e = parse(planned[i]);
    PlanFile *plan;
    PlanReport *r = NULL;
    Scope scope = {0};
    Arena arena = {0};
    SymBindings b = {0};
    Value *inputs = NULL;
    PlanRequest request = {.mesh = "tp=2"};
    Ctx ctx;
    ctx_init(&ctx, 1);
    assert_ok(plan_file_read("auto", &plan));
    request.plan = plan;
    Status s = plan_report_prepare(&ctx, e);
    if (!s) s = feed_symbols(e, true, &b);
    if (!s) s = feed_sizes(e, &b, &scope, &arena, &inputs, &request.ninputs);
    request.inputs = inputs;
    if (!s) s = plan_report(e, &request, &r);
    status_free(s); /* either is fine */
    free(b.v);
    plan_report_free(r);
    plan_file_free(plan);
    scope_clear(&scope);
    arena_free(&arena);
    exported_free(e);
    ctx_free(&ctx);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(verifier_refuses),
      cmocka_unit_test(passes_take_what_is_not_told),
      cmocka_unit_test(plans_take_wrong_sizes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
