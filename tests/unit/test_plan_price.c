/* Prices of plans: the same plan costs the same, whichever plans were priced before; with and without its backward.
 */
#include "plan/plan_file.h"
#include "runtime/plan_price.h"
#include "unit.h"

/* The features of the first product are added up and then needed: a sum over the ranks on the way. */
static const char program[] =
    "graph(%w: f32[8,6] = parameter \"up.weight\", %v: f32[5,6] = parameter \"other.weight\", "
    "%x: f32[4,6] = user) {\n"
    "  %a: f32[4,8] = aten.linear.default(%x, %w)\n"
    "  %s: f32[4] = aten.sum.dim_IntList(%a, [1])\n"
    "  %r: f32[4] = aten.relu.default(%s)\n"
    "  %b: f32[4,5] = aten.linear.default(%x, %v)\n"
    "  %t: f32[4,5] = aten.tanh.default(%b)\n"
    "  return user %r, user %t\n}";

static Price price_of(Marker *k, PlanPrice *prices, const bool *off) {
  Marks *marks;
  Price p;
  assert_ok(marker_marks(k, off, &marks));
  assert_ok(plan_price(prices, marks, &p));
  marker_take_back(k, marks);
  return p;
}

static void assert_same(Price a, Price b) {
  assert_int_equal(a.sent, b.sent);
  assert_int_equal(a.weights, b.weights);
  assert_true(a.flops == b.flops);
}

/* What prices of a program and a plan are asked for with. */
typedef struct {
  Exported *e;
  PlanFile *plan;
  Dist *dist;
  Probe probe;
  PlanPrice *prices;
  Marker *k;
  Arena arena;
} Trial;

static void trial_open(Trial *t, const char *text, const char *mesh_text, const char *plan, bool grad) {
  Mesh *mesh;
  GradRequest request;
  *t = (Trial){0};
  assert_ok(graph_parse(text, strlen(text), "case", &t->e));
  assert_ok(plan_file_parse("plan.json", plan, strlen(plan), &t->plan));
  assert_ok(dist_new(NULL, &t->dist));
  assert_ok(mesh_parse(t->dist, mesh_text, &mesh));
  if (grad) assert_ok(grad_request(t->e, &(GradOptions){.parameters = "*"}, &t->arena, &request));
  assert_ok(probe_open(&t->probe, t->e));
  assert_ok(plan_price_open(&t->probe, mesh, grad ? &request : NULL, &t->prices));
  assert_ok(marker_open(&t->probe, plan_price_mesh(t->prices), t->plan, NULL, &t->k));
}

static void trial_close(Trial *t) {
  marker_close(t->k);
  plan_price_close(t->prices);
  probe_close(&t->probe);
  dist_free(t->dist);
  plan_file_free(t->plan);
  exported_free(t->e);
  arena_free(&t->arena);
}

static void test_any_order(void **state) {
  (void)state;
  static const char plan[] = "{\"parallelize\": {\"up\": \"colwise\", \"other\": \"colwise_gather_output\"}}";
  static const bool first[] = {false, true}, second[] = {true, false}, neither[] = {true, true};
  Trial t;
  trial_open(&t, program, "tp=2", plan, false);
  Price both = price_of(t.k, t.prices, NULL), one = price_of(t.k, t.prices, first),
        other = price_of(t.k, t.prices, second), none = price_of(t.k, t.prices, neither);
  assert_int_equal(one.sent, 4 * 4); /* four partial sums */
  assert_true(other.sent > 0);
  assert_int_equal(both.sent, one.sent + other.sent);
  assert_int_equal(none.sent, 0);
  assert_int_equal(none.weights, 4 * (8 * 6 + 5 * 6));
  assert_int_equal(one.weights, 4 * (4 * 6 + 5 * 6));
  assert_same(price_of(t.k, t.prices, second), other);
  assert_same(price_of(t.k, t.prices, NULL), both);
  assert_same(price_of(t.k, t.prices, first), one);
  assert_same(price_of(t.k, t.prices, neither), none);
  trial_close(&t);
}

/* Two layers behind another; both products of one value are sharded by columns. */
static const char training[] =
    "graph(%w: f32[8,6] = parameter \"first.weight\", %u: f32[4,8] = parameter \"up.weight\", "
    "%v: f32[4,8] = parameter \"gate.weight\", %d: f32[8,4] = parameter \"down.weight\", %x: f32[4,6] = user) {\n"
    "  %a: f32[4,8] = aten.linear.default(%x, %w)\n"
    "  %h: f32[4,8] = aten.tanh.default(%a)\n"
    "  %b: f32[4,4] = aten.linear.default(%h, %u)\n"
    "  %c: f32[4,4] = aten.linear.default(%h, %v)\n"
    "  %g: f32[4,4] = aten.mul.Tensor(%b, %c)\n"
    "  %y: f32[4,8] = aten.linear.default(%g, %d)\n"
    "  %l: f32[] = aten.sum.default(%y)\n"
    "  return user %l\n}";

/* Each product has two in the backward, where it leads on to a parameter; the cotangent of %h is reduced once,
 * though both of its uses leave a partial sum; on a data axis all gradients are reduced. */
static void test_backward(void **state) {
  (void)state;
  static const char plan[] =
      "{\"parallelize\": {\"up\": \"colwise\", \"gate\": \"colwise\", \"down\": \"rowwise\"}}";
  Trial forward, both, data;
  trial_open(&forward, training, "tp=2", plan, false);
  trial_open(&both, training, "tp=2", plan, true);
  trial_open(&data, training, "dp=2", "{}", true);
  Price f = price_of(forward.k, forward.prices, NULL), b = price_of(both.k, both.prices, NULL),
        d = price_of(data.k, data.prices, NULL);
  double first = 2 * 4 * 6 * 8, each = 2 * 4 * 8 * 2; /* of a rank: the first product is whole */
  assert_true(f.flops == first + 3 * each);
  assert_true(b.flops == 2 * first + 9 * each); /* x has no gradient */
  assert_int_equal(f.sent, 4 * 4 * 8);
  assert_int_equal(b.sent, 2 * 4 * 4 * 8);
  assert_int_equal(b.weights, 2 * f.weights);
  assert_int_equal(d.sent, 4 * (8 * 6 + 3 * 4 * 8) + 4); /* and the loss */
  trial_close(&forward);
  trial_close(&both);
  trial_close(&data);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_order), cmocka_unit_test(test_backward)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
