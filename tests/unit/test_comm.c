/* Collectives of thread ranks: the cases of comm_cases.h, and what happens when a rank does
 * something else, nothing, or fails. */
#include "comm_cases.h"

#include <unistd.h>

#include "unit.h"

/* ---- one collective of each kind ------------------------------------------------------- */

static const int rank_numbers[] = {1, 2, 3, 4, 8};

static void kinds_and_sizes(void **state) {
  (void)state;
  static const int64_t counts[] = {0, 1, 3, 1000, 1024, 5000, 40000};
  for (size_t r = 0; r < 5; r++) {
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
      for (int flags = 0; flags < 8; flags++) {
        Case k = {DT_F32, REDUCE_SUM, counts[i], flags & 1, flags & 2, flags & 4};
        if (rank_numbers[r] == 8 && counts[i] > 10000) continue;
        assert_ok(world_threads(rank_numbers[r], every_kind, &k, NULL));
      }
    }
  }
}

static void dtypes_and_ops(void **state) {
  (void)state;
  for (int n = 2; n <= 3; n++) {
    for (int i = 0; i < 4; i++) {
      Sweep sweep = {i < 2 ? 70 : 5000, i % 2};
      assert_ok(world_threads(n, every_type, &sweep, NULL));
    }
  }
}

static void types_without_arithmetic(void **state) {
  (void)state;
  assert_ok(world_threads(3, odd_types, NULL, NULL));
}

/* ---- groups -------------------------------------------------------------------------------- */

static void groups(void **state) {
  (void)state;
  assert_ok(world_threads(4, in_groups, NULL, NULL));
}

static void groups_do_not_wait_for_each_other(void **state) {
  (void)state;
  assert_ok(world_threads(3, crossed, NULL, NULL));
}

/* ---- start and wait --------------------------------------------------------------------------- */

static void start_and_wait(void **state) {
  (void)state;
  for (int n = 1; n <= 4; n++) {
    int64_t counts[] = {10, 100000};
    assert_ok(world_threads(n, overlapped, &counts[0], NULL));
    assert_ok(world_threads(n, overlapped, &counts[1], NULL));
  }
}

static void progress_while_computing(void **state) {
  (void)state;
  assert_ok(world_threads(2, progresses, NULL, NULL));
}

/* ---- the same bits -------------------------------------------------------------------------------- */

static void the_same_bits(void **state) {
  (void)state;
  enum { N = AWKWARD, RANKS = 5 };
  float *first = calloc((size_t)RANKS * N, sizeof *first), *again = calloc((size_t)RANKS * N, sizeof *again);
  assert_ok(world_threads(RANKS, awkward_sum, first, NULL));
  for (int r = 1; r < RANKS; r++) assert_memory_equal(first, first + (size_t)r * N, N * sizeof *first);
  for (int round = 0; round < 5; round++) {
    assert_ok(world_threads(RANKS, awkward_sum, again, NULL));
    assert_memory_equal(first, again, (size_t)RANKS * N * sizeof *first);
  }
  free(first);
  free(again);
}

/* ---- mistakes ---------------------------------------------------------------------------------------- */

static void mismatches(void **state) {
  (void)state;
  Mistake m;
  for (int i = 0; mistake_at(i, &m); i++) {
    for (int flags = 0; flags < 6; flags++) {
      const int n = 2 + flags / 2;
      mistake_at(i, &m);
      m.start = flags % 2;
      assert_error(world_threads(n, mistaken, &m, NULL), "rank 1");
      assert_int_equal(atomic_load(&m.errors), n);
    }
  }
}

static void mismatches_of_pairs(void **state) {
  (void)state;
  assert_error(world_threads(2, mistaken_boxes, NULL, NULL),
               "box 0 from rank 1 to rank 0 is [3] as sent, [4] as expected");
  assert_error(world_threads(2, mistaken_pair, NULL, NULL),
               "recv #1 (stage): f32[16], from 0, but rank 0 called send f32[8], to 1 (stage)");
}

/* Found long before the timeout. */
static void mistaken_groups(void **state) {
  (void)state;
  assert_error(world_threads(3, mistaken_group, &(int){0}, NULL), "they wait for each other");
  assert_error(world_threads(3, mistaken_group, &(int){1}, NULL), "they wait for each other");
}

static void bad_arguments(void **state) {
  (void)state;
  World *w;
  assert_ok(world_alone(&w));
  Comm *c = world_comm(w);
  float x[8];
  assert_error(
      comm_run(c,
               &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = x, .recv = x + 1, .count = 4, .why = "w"}),
      "rank 0 of 1: all_reduce (w): send and recv overlap");
  assert_error(comm_run(c, &(Coll){.kind = COLL_REDUCE_SCATTER, .dtype = DT_F32, .send = x, .recv = x, .count = 4}),
               "overlap");
  assert_error(comm_run(c, &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = NULL, .recv = x, .count = 4}),
               "send is NULL");
  assert_error(comm_run(c, &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = x, .recv = x, .count = -4}),
               "-4");
  assert_error(
      comm_run(c, &(Coll){.kind = COLL_BROADCAST, .dtype = DT_F32, .send = x, .recv = x, .count = 4, .root = 3}),
      "no member 3 of 1");
  assert_error(comm_run(c, &(Coll){.kind = COLL_SEND, .dtype = DT_F32, .send = x, .count = 4}), "itself");
  assert_error(comm_run(c, &(Coll){.kind = (CollKind)77}), "77");
  assert_ok(comm_run(c, &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = x, .recv = x, .count = 8}));
  world_free(w);
  assert_error(world_join(transport_find("mpi"), &w), "MPI");
  assert_error(world_threads(0, NULL, NULL, NULL), "0 ranks");
}

/* By name, and by what has started this process: nothing, or one of MPI's launchers. */
static void transports(void **state) {
  (void)state;
  const Transport *t;
  assert_ok(transport_choose(NULL, &t));
  assert_string_equal(transport_name(t), "threads");
  assert_null(transport_needs(t));
  assert_int_equal(launched_rank(), 0);
  assert_ok(world_launch(t, 3, brief, NULL, NULL));
  TextBuf names = {0};
  transport_list(&names, ", ", " and ");
  assert_non_null(strstr(names.text, "threads"));
  assert_null(strstr(names.text, "sim")); /* it moves no data */
  assert_error(transport_choose("sim", &t), names.text);
  assert_error(transport_choose("pigeons", &t), "--comm pigeons: there are threads");
  text_free(&names);
  setenv("PMI_RANK", "2", 1);
  assert_ok(transport_choose(NULL, &t));
  assert_string_equal(transport_name(t), "mpi");
  assert_true(transport_has_processes(t));
  assert_ptr_equal(t, transport_launched());
  assert_int_equal(launched_rank(), 2);
  unsetenv("PMI_RANK");
  assert_null(transport_launched());
  World *w;
  assert_error(world_join(transport_find("threads"), &w), "world_launch()");
}

/* ---- failing ------------------------------------------------------------------------------------------- */

static void a_rank_that_fails_or_leaves_releases_the_others(void **state) {
  (void)state;
  for (int flags = 0; flags < 8; flags++) {
    for (int n = 2; n <= 8; n *= 2) {
      Failing f = {.count = flags & 1 ? 50000 : 100, .after = 3, .error = flags & 2, .start = flags & 4};
      Status s = world_threads(n, fails_midway, &f, NULL);
      assert_non_null(s);
      if (f.error) assert_int_equal(status_code(s), ERR_FILE);
      assert_error(s, f.error ? "rank 1 of" : "rank 1 has left");
      if (atomic_load(&f.released) != n - 1)
        test_failed("%d of %d ranks were released; %s", atomic_load(&f.released), n - 1, f.other);
    }
  }
}

static void failures_at_any_time(void **state) {
  (void)state;
  for (unsigned seed = 0; seed < 160; seed += 3) {
    assert_error(world_threads(2 + (int)seed % 3, fails_some_time, &seed, NULL), "at ");
  }
}

static void the_watchdog_names_the_missing(void **state) {
  (void)state;
  for (int start = 0; start < 2; start++) {
    bool arg = start;
    Status s = world_threads(3, comes_late, &arg, NULL);
    assert_non_null(s);
    assert_int_equal(status_code(s), ERR_RANK);
    assert_non_null(strstr(status_message(s), "(late one): f32[1] sum: after 0.2 s ranks 0,1 are here"));
    assert_error(s, "missing: rank 2 (last seen after all_reduce #1 (sum_of): i32[1] sum)");
  }
}

/* Rank 1 goes; its started collective may be over or not, rank 0's blocking one cannot be. */
static void works_that_nobody_waits_for(void **state) {
  (void)state;
  for (int i = 0; i < 20; i++) assert_error(world_threads(2, does_not_wait, NULL, NULL), "left");
}

/* ---- records ------------------------------------------------------------------------------------------- */

static void flight_records(void **state) {
  (void)state;
  char folder[256], path[300], text[200];
  bool failing = false;
  make_folder(folder, sizeof folder);
  snprintf(path, sizeof path, "%s/flight.json", folder);
  assert_ok(world_threads(2, many, &failing, path));
  assert_int_not_equal(access(path, F_OK), 0);
  failing = true;
  assert_error(world_threads(2, many, &failing, path), "flight.json");
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  assert_non_null(fgets(text, sizeof text, f));
  assert_non_null(strstr(text, "{\"error\": \"rank 1 of 2: on purpose\""));
  fclose(f);
  remove_folder(folder);
}

static void watching(void **state) {
  (void)state;
  assert_ok(world_threads(2, watched, NULL, NULL));
}

/* ---- many ranks, many worlds ------------------------------------------------------------------------------ */

static void sixty_four_ranks(void **state) {
  (void)state;
  Case small = {DT_I32, REDUCE_SUM, 10, true, false, false}, large = {DT_F32, REDUCE_SUM, 3000, true, true, true};
  assert_ok(world_threads(64, every_kind, &small, NULL));
  assert_ok(world_threads(64, every_kind, &large, NULL));
}

static int64_t memory_pages(void) {
  long long size = 0, resident = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (!f) return 0;
  if (fscanf(f, "%lld %lld", &size, &resident) != 2) resident = 0;
  fclose(f);
  return resident;
}

/* Leaks themselves are found under the address sanitizer. */
static void a_thousand_worlds(void **state) {
  (void)state;
  int64_t before = 0;
  for (int i = 0; i < 1000; i++) {
    assert_ok(world_threads(2 + i % 2, brief, NULL, NULL));
    if (i == 200) before = memory_pages();
  }
#if !defined __SANITIZE_THREAD__ && !defined __SANITIZE_ADDRESS__
  int64_t grown = memory_pages() - before;
  if (grown > 1000) test_failed("%lld pages more after 800 worlds", (long long)grown);
#endif
  (void)before;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kinds_and_sizes),
      cmocka_unit_test(dtypes_and_ops),
      cmocka_unit_test(types_without_arithmetic),
      cmocka_unit_test(groups),
      cmocka_unit_test(groups_do_not_wait_for_each_other),
      cmocka_unit_test(start_and_wait),
      cmocka_unit_test(progress_while_computing),
      cmocka_unit_test(the_same_bits),
      cmocka_unit_test(mismatches),
      cmocka_unit_test(mismatches_of_pairs),
      cmocka_unit_test(mistaken_groups),
      cmocka_unit_test(bad_arguments),
      cmocka_unit_test(transports),
      cmocka_unit_test(a_rank_that_fails_or_leaves_releases_the_others),
      cmocka_unit_test(failures_at_any_time),
      cmocka_unit_test(the_watchdog_names_the_missing),
      cmocka_unit_test(works_that_nobody_waits_for),
      cmocka_unit_test(flight_records),
      cmocka_unit_test(watching),
      cmocka_unit_test(sixty_four_ranks),
      cmocka_unit_test(a_thousand_worlds),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
