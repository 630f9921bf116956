/* comm_mpi -- one process of a launch, of MPI or of another transport whose ranks are processes: the
 * cases of comm_cases.h.
 *
 *     mpirun -n 4 comm_mpi NAME [NUMBER] [started]
 *
 * 0 if this rank saw what it should.  A failure is final for its world, and a process has one
 * world: so each case that fails on purpose is a launch of its own (comm_mpi.sh).
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm_cases.h"

typedef struct {
  int number;
  bool started;
} Args;

/* s must be an error of code ERR_RANK with these words. */
static Status expect(World *w, Status s, const char *a, const char *b) {
  if (!s) return fail(ERR_DIFF, "rank %d: no error, expected '%s'", world_rank(w), a);
  bool right = status_code(s) == ERR_RANK && strstr(status_message(s), a) && strstr(status_message(s), b);
  Status wrong = right ? OK
                       : fail(ERR_DIFF, "rank %d got '%s', not '%s' and '%s'", world_rank(w), status_message(s), a,
                              b);
  status_free(s);
  return wrong;
}

/* ---- what works ------------------------------------------------------------------------------ */

static Status good(World *w, const Args *a) {
  (void)a;
  static const int64_t counts[] = {0, 1, 3, 900, 1024, 5000, 40000};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    for (int flags = 0; flags < 8; flags++)
      TRY(every_kind(w, &(Case){DT_F32, REDUCE_SUM, counts[i], flags & 1, flags & 2, flags & 4}));
  }
  /* several segments */
  TRY(every_kind(w, &(Case){DT_F32, REDUCE_SUM, 1500000, true, false, false}));
  TRY(every_kind(w, &(Case){DT_BF16, REDUCE_AVG, 3000001, false, true, true}));
  for (int i = 0; i < 4; i++) TRY(every_type(w, &(Sweep){i < 2 ? 70 : 5000, i % 2}));
  TRY(odd_types(w, NULL));
  if (world_size(w) == 4) TRY(in_groups(w, NULL));
  if (world_size(w) == 3) TRY(crossed(w, NULL));
  int64_t small = 10, large = 100000;
  TRY(overlapped(w, &small));
  TRY(overlapped(w, &large));
  TRY(progresses(w, NULL));
  if (world_size(w) == 2) TRY(watched(w, NULL));
  return comm_barrier(world_comm(w), "the end");
}

/* The bits of thread ranks. */
static Status same_bits(World *w, const Args *a) {
  (void)a;
  const size_t lines = (size_t)world_size(w) * AWKWARD, mine = (size_t)world_rank(w) * AWKWARD;
  float *threads = calloc(lines, sizeof *threads), *processes = calloc(lines, sizeof *processes);
  Status s = threads && processes ? world_threads(world_size(w), awkward_sum, threads, NULL) : fail_oom();
  if (!s) s = awkward_sum(w, processes);
  if (!s && memcmp(threads + mine, processes + mine, AWKWARD * sizeof *threads))
    s = fail(ERR_DIFF, "other bits than on threads");
  free(threads);
  free(processes);
  return s;
}

/* More bytes than an int counts: 2.2 GB from rank 0 to all, and between two (two ranks, 9 GB of
 * memory; not part of comm_mpi.sh). */
static Status huge(World *w, const Args *a) {
  (void)a;
  const int64_t n = 2200000000, step = 1000003;
  const int me = world_rank(w);
  unsigned char *x = malloc((size_t)n), *y = malloc((size_t)n);
  Status s = x && y ? OK : fail_oom();
  if (!s) memset(x, 0, (size_t)n);
  for (int64_t i = 0; !s && i < n; i += step) x[i] = (unsigned char)(i % 251 + me);
  if (!s)
    s = comm_run(world_comm(w),
                 &(Coll){.kind = COLL_BROADCAST, .dtype = DT_U8, .send = x, .recv = y, .count = n, .why = "huge"});
  for (int64_t i = 0; !s && i < n; i += step)
    s = y[i] == (unsigned char)(i % 251) ? OK : fail(ERR_DIFF, "broadcast: element %lld", (long long)i);
  if (!s && me < 2)
    s = comm_run(world_comm(w), &(Coll){.kind = me ? COLL_RECV : COLL_SEND,
                                        .dtype = DT_U8,
                                        .root = 1 - me,
                                        .send = x,
                                        .recv = y,
                                        .count = n,
                                        .why = "huge"});
  if (!s && me == 1 && (y[0] != 0 || y[step * 2000] != step * 2000 % 251)) s = fail(ERR_DIFF, "send and recv");
  if (!s)
    s = comm_run(world_comm(w), &(Coll){.kind = COLL_ALL_REDUCE,
                                        .dtype = DT_U8,
                                        .op = REDUCE_MAX,
                                        .send = x,
                                        .recv = y,
                                        .count = n,
                                        .why = "huge"});
  for (int64_t i = 0; !s && i < n; i += step)
    s = y[i] >= x[i] ? OK : fail(ERR_DIFF, "all_reduce: element %lld", (long long)i);
  free(x);
  free(y);
  return s;
}

/* ---- what fails ---------------------------------------------------------------------------------- */

static Status mistake(World *w, const Args *a) {
  Mistake m;
  if (!mistake_at(a->number, &m)) return fail(ERR_USAGE, "there is no mistake %d", a->number);
  m.start = a->started;
  Status s = mistaken(w, &m); /* a later call, after the error: the same */
  status_free(s);
  return s && m.errors == 1 ? OK : fail(ERR_DIFF, "rank %d: the mistake was not seen", world_rank(w));
}

static Status boxes(World *w, const Args *a) {
  (void)a;
  return expect(w, mistaken_boxes(w, NULL), "box 0 from rank 1 to rank 0 is [3] as sent, [4] as expected",
                "(boxes)");
}

static Status group(World *w, const Args *a) {
  int number = a->number;
  return expect(w, mistaken_group(w, &number), "but rank ", "they wait for each other");
}

static Status pair(World *w, const Args *a) {
  (void)a;
  return expect(w, mistaken_pair(w, NULL),
                "recv #1 (stage): f32[16], from 0, but rank 0 called send f32[8], to 1 (stage)", "");
}

/* Rank 1 fails (odd numbers) or leaves; small (0, 1) or large. */
static Status fails(World *w, const Args *a) {
  Failing f = {.count = a->number & 2 ? 50000 : 100, .after = 3, .error = a->number & 1, .start = a->started};
  Status s = fails_midway(w, &f);
  if (world_rank(w) == 1) {
    if (s) world_fail(w, s);
    status_free(s);
    return OK;
  }
  return expect(w, s, f.error ? "rank 1 of" : "rank 1 has left",
                f.error ? "the disk is full" : "its last collective was");
}

static Status some_time(World *w, const Args *a) {
  unsigned seed = (unsigned)a->number * 7;
  return expect(w, fails_some_time(w, &seed), "at ", "");
}

static Status late(World *w, const Args *a) {
  bool started = a->started;
  Status s = comes_late(w, &started);
  return expect(w, s, "(late one): f32[1] sum: after 0.2 s ranks 0,1",
                "rank 2 (last seen after all_reduce #1 (sum_of): i32[1] sum)");
}

static Status forgotten(World *w, const Args *a) {
  (void)a;
  Status s = does_not_wait(w, NULL);
  return world_rank(w) == 0 ? expect(w, s, "rank 1", "left") : s;
}

/* Rank 1 dies without a word.  The others say so and fail, if the launcher leaves them time. */
static Status killed(World *w, const Args *a) {
  float x[10] = {0};
  for (int i = 0; i < 5; i++) {
    if (world_rank(w) == 1 && i == 3) raise(SIGKILL);
    const Coll c = {.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = x, .recv = x, .count = 10, .why = "step"};
    CommWork *work;
    if (!a->started) {
      TRY(comm_run(world_comm(w), &c));
      continue;
    }
    TRY(comm_start(world_comm(w), &c, &work));
    TRY(comm_wait(work));
  }
  return OK;
}

static const struct {
  const char *name;
  Status (*run)(World *w, const Args *a);
} cases[] = {{"good", good},           {"same_bits", same_bits}, {"huge", huge},           {"mistake", mistake},
             {"boxes", boxes},         {"group", group},         {"pair", pair},           {"fails", fails},
             {"some_time", some_time}, {"late", late},           {"forgotten", forgotten}, {"killed", killed}};

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "good";
  Args a = {.number = argc > 2 ? atoi(argv[2]) : 0, .started = argc > 3};
  World *w = NULL;
  const Transport *t;
  Status s = transport_choose(NULL, &t); /* of what has started this process */
  if (!s) s = world_join(t, &w);
  for (size_t i = 0; !s && i < sizeof cases / sizeof *cases; i++) {
    if (strcmp(cases[i].name, name)) continue;
    s = cases[i].run(w, &a);
    if (s) world_fail(w, s);
  }
  if (s) fprintf(stderr, "comm_mpi %s: %s\n", name, status_message(s));
  world_free(w);
  int code = s ? (int)status_code(s) : 0;
  status_free(s);
  return code;
}
