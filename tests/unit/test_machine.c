/* Machines: which link an axis has, what ops and collectives take. */
#include "report/machine.h"

#include <math.h>

#include "dist/mesh.h"
#include "unit.h"

static const char text[] =
    "{\"name\": \"m\", \"flops\": {\"f32\": 1e9, \"bf16\": 4e9}, \"memory_bandwidth\": 1e8, \"op_latency\": 1e-6, "
    "\"ranks_per_node\": 4,"
    " \"links\": {\"dp\": {\"bandwidth\": 1e6, \"latency\": 1e-3}, \"node\": {\"bandwidth\": 1e9, \"latency\": "
    "1e-6}, \"network\": {\"bandwidth\": 1e8, \"latency\": 1e-5}}}";

static void near(double got, double want) {
  if (fabs(got - want) > 1e-12 + 1e-9 * fabs(want)) test_failed("%.12g, expected %.12g", got, want);
}

static void links(void **state) {
  (void)state;
  Machine m;
  Dist *d;
  Mesh *mesh;
  assert_ok(machine_parse("m.json", text, sizeof text - 1, &m));
  assert_ok(dist_new(NULL, &d));
  assert_ok(mesh_parse(d, "dp=2,ep=8,tp=4", &mesh));
  assert_ok(machine_check(&m, mesh));
  assert_string_equal(machine_link(&m, mesh, 0)->name, "dp");
  assert_string_equal(machine_link(&m, mesh, 1)->name, "network"); /* spans 32 ranks */
  assert_string_equal(machine_link(&m, mesh, 2)->name, "node");
  near(machine_collective_seconds(&m, mesh, STEP_ALL_REDUCE, 1u << 2, 1000000), 2 * 2 * 1e-6 + 1e-3);
  near(machine_collective_seconds(&m, mesh, STEP_ALL_GATHER, 1u << 1, 1000000), 3 * 1e-5 + 1e-2);
  near(machine_collective_seconds(&m, mesh, STEP_REDUCE_SCATTER, 1u << 1 | 1u << 2, 1000000),
       5 * 1e-5 + 1e-2); /* the slower of both */
  dist_free(d);
}

static void ops(void **state) {
  (void)state;
  Machine m;
  assert_ok(machine_parse("m.json", text, sizeof text - 1, &m));
  near(machine_op_seconds(&m, DT_F32, 1e6, 1000, false), 1e-3);
  near(machine_op_seconds(&m, DT_BF16, 1e6, 1000, false), 0.25e-3);
  near(machine_op_seconds(&m, DT_F64, 1e6, 1000, false), 1e-3); /* as f32, where nothing else is told */
  near(machine_op_seconds(&m, DT_F32, 10, 1e6, false), 1e-2);
  near(machine_op_seconds(&m, DT_F32, 10, 1e6, true), 1e-2); /* as all memory, where nothing else is told */
  near(machine_op_seconds(&m, DT_F32, 10, 10, false), 1e-6);
  m.update_bandwidth = 4 * m.memory_bandwidth;
  near(machine_op_seconds(&m, DT_F32, 10, 1e6, true), 0.25e-2);
  near(machine_op_seconds(&m, DT_F32, 10, 1e6, false), 1e-2);
}

static void round_trip(void **state) {
  (void)state;
  static const char *const words[] = {"cpu2", "a100", "h100"};
  for (int i = 0; i < 3; i++) {
    Machine m, again;
    TextBuf b = {0};
    assert_ok(machine_find(words[i], &m));
    m.update_bandwidth = 3e9;
    machine_print(&b, &m);
    assert_ok(machine_parse("x", b.text, b.len, &again));
    assert_string_equal(m.name, again.name);
    near(again.memory_bandwidth, m.memory_bandwidth);
    near(again.update_bandwidth, 3e9);
    near(again.flops[DT_BF16], m.flops[DT_BF16]);
    assert_int_equal(again.nlinks, m.nlinks);
    near(again.link[0].latency, m.link[0].latency);
    text_free(&b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(links), cmocka_unit_test(ops), cmocka_unit_test(round_trip)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
