/* Worlds without data: what is counted, and the formulas. */
#include "comm/sim.h"

#include <math.h>

#include "unit.h"

static const SimMachine plain = {2, {{4, 1e-6, 1e9}, {0, 5e-6, 1e8}}};

static void near(double got, double want) {
  if (fabs(got - want) > 1e-12 + 1e-9 * fabs(want)) test_failed("%.12g, expected %.12g", got, want);
}

static void formulas(void **state) {
  (void)state;
  const SimLevel *l = &plain.level[0];
  near(sim_seconds(l, COLL_ALL_GATHER, 4, 4000), 3e-6 + 3000e-9);
  near(sim_seconds(l, COLL_ALL_REDUCE, 4, 4000), 2 * (3e-6 + 3000e-9));
  near(sim_seconds(l, COLL_BROADCAST, 5, 4000), 3e-6 + 4000e-9);
  near(sim_seconds(l, COLL_BARRIER, 8, 0), 3e-6);
  near(sim_seconds(l, COLL_SEND, 4, 1000), 1e-6 + 1000e-9);
  near(sim_seconds(l, COLL_ALL_REDUCE, 1, 4000), 0);
}

static void counts(void **state) {
  (void)state;
  World *w;
  Comm *close, *far;
  CommWork *work;
  assert_ok(world_sim(4096, 5, &w));
  sim_set_machine(w, &plain);
  static const int here[] = {4, 5, 6, 7}, there[] = {1, 5};
  assert_ok(comm_group(w, here, 4, &close));
  assert_ok(comm_group(w, there, 2, &far));
  assert_ok(comm_run(close, &(Coll){.kind = COLL_ALL_GATHER, .dtype = DT_F32, .count = 250}));
  static const int64_t uneven[] = {100, 250, 0, 7};
  assert_ok(comm_start(close, &(Coll){.kind = COLL_REDUCE_SCATTER, .dtype = DT_F32, .counts = uneven}, &work));
  assert_ok(comm_wait(work));
  assert_ok(comm_run(far, &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_BF16, .count = 500}));
  assert_ok(comm_barrier(world_comm(w), NULL));
  assert_int_equal(sim_total(w, COLL_ALL_GATHER).bytes, 1000);
  near(sim_total(w, COLL_ALL_GATHER).seconds, 3e-6 + 3000e-9);
  assert_int_equal(sim_total(w, COLL_REDUCE_SCATTER).bytes, 357 * 4);
  near(sim_total(w, COLL_REDUCE_SCATTER).seconds, 3e-6 + 3000e-9);
  near(sim_total(w, COLL_ALL_REDUCE).seconds, 2 * (5e-6 + 500 / 1e8));
  near(sim_total(w, COLL_BARRIER).seconds, 12 * 5e-6);
  assert_int_equal(sim_total(w, COLL_KIND_COUNT).calls, 4);
  Box boxes[] = {{.peer = 0, .ndim = 1, .size = {100}},
                 {.peer = 2, .ndim = 1, .size = {50}},
                 {.peer = 1, .ndim = 1, .size = {500}}};
  sim_reset(w);
  assert_ok(comm_run(
      close,
      &(Coll){
          .kind = COLL_EXCHANGE, .dtype = DT_F64, .send_box = boxes, .nsend = 3, .recv_box = boxes, .nrecv = 1}));
  near(sim_total(w, COLL_EXCHANGE).seconds, 2e-6 + 150 * 8e-9); /* 1 is this rank itself */
  assert_error(comm_run(close, &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_C64, .op = REDUCE_MAX, .count = 1}),
               "max is not defined for c64");
  world_free(w);
  assert_error(world_sim(4, 4, &w), "no rank 4 of 4");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(formulas), cmocka_unit_test(counts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
