/* Prices of plans: the same plan costs the same, whichever plans were priced before. */
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

static void test_any_order(void **state) {
  (void)state;
  static const char text[] = "{\"parallelize\": {\"up\": \"colwise\", \"other\": \"colwise_gather_output\"}}";
  static const bool first[] = {false, true}, second[] = {true, false}, neither[] = {true, true};
  Exported *e;
  PlanFile *plan;
  Dist *dist;
  Mesh *mesh;
  Probe probe;
  PlanPrice *prices;
  Marker *k;
  assert_ok(graph_parse(program, strlen(program), "case", &e));
  assert_ok(plan_file_parse("plan.json", text, strlen(text), &plan));
  assert_ok(dist_new(NULL, &dist));
  assert_ok(mesh_parse(dist, "tp=2", &mesh));
  assert_ok(probe_open(&probe, e));
  assert_ok(plan_price_open(&probe, mesh, &prices));
  assert_ok(marker_open(&probe, plan_price_mesh(prices), plan, NULL, &k));
  Price both = price_of(k, prices, NULL), one = price_of(k, prices, first), other = price_of(k, prices, second),
        none = price_of(k, prices, neither);
  assert_int_equal(one.sent, 4 * 4); /* four partial sums */
  assert_true(other.sent > 0);
  assert_int_equal(both.sent, one.sent + other.sent);
  assert_int_equal(none.sent, 0);
  assert_int_equal(none.weights, 4 * (8 * 6 + 5 * 6));
  assert_int_equal(one.weights, 4 * (4 * 6 + 5 * 6));
  assert_same(price_of(k, prices, second), other);
  assert_same(price_of(k, prices, NULL), both);
  assert_same(price_of(k, prices, first), one);
  assert_same(price_of(k, prices, neither), none);
  marker_close(k);
  plan_price_close(prices);
  probe_close(&probe);
  dist_free(dist);
  plan_file_free(plan);
  exported_free(e);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_order)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
