/* Worlds without data: what is counted, and the formulas. */
#include "comm/launch.h"
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

/* The ranks of a launch come one after the other; each sees all, and a failure ends it. */
static Status come_in_turn(World *w, void *arg) {
  int *next = arg;
  if (world_size(w) != 3 || world_rank(w) != *next) return fail(ERR_FAIL, "not rank %d of 3", *next);
  ++*next;
  TRY(comm_run(world_comm(w), &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .count = 100}));
  if (sim_total(w, COLL_ALL_REDUCE).bytes != 400) return fail(ERR_FAIL, "bytes");
  return *next == 3 ? fail(ERR_FAIL, "the last") : OK;
}

static void launches(void **state) {
  (void)state;
  int next = 0;
  const Transport *sim = transport_find("sim");
  assert_non_null(sim);
  assert_false(transport_has_processes(sim));
  assert_error(world_launch(sim, 3, come_in_turn, &next, NULL), "the last");
  assert_int_equal(next, 3);
  assert_error(world_launch(sim, 0, come_in_turn, &next, NULL), "0 ranks");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(formulas), cmocka_unit_test(counts),
                                     cmocka_unit_test(launches)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
