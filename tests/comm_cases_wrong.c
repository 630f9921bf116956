/* comm_cases_wrong.c -- ranks that call something else, come late, fail or are watched; see comm_cases.h. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm_cases.h"

/* ---- mistakes ---------------------------------------------------------------------------------------- */

static const int64_t threes[] = {3, 3, 3, 3}, uneven[] = {3, 4, 3, 3};

#define SUM(d, o, n) \
  { .kind = COLL_ALL_REDUCE, .dtype = d, .op = o, .count = n, .why = "mlp.down_proj" }
static const Mistake mistakes[] = {
    {.want = {"f32[1024] sum", "f32[512] sum"},
     .normal = SUM(DT_F32, REDUCE_SUM, 1024),
     .odd = SUM(DT_F32, REDUCE_SUM, 512)},
    {.want = {"f32[1024] sum", "f32[8000] sum"},
     .normal = SUM(DT_F32, REDUCE_SUM, 1024),
     .odd = SUM(DT_F32, REDUCE_SUM, 8000)}, /* one small, one large */
    {.want = {"f32[1024] sum", "bf16[1024] sum"},
     .normal = SUM(DT_F32, REDUCE_SUM, 1024),
     .odd = SUM(DT_BF16, REDUCE_SUM, 1024)},
    {.want = {"f32[1024] sum", "f32[1024] max"},
     .normal = SUM(DT_F32, REDUCE_SUM, 1024),
     .odd = SUM(DT_F32, REDUCE_MAX, 1024)},
    {.want = {"(mlp.down_proj)", "(embed)"},
     .normal = SUM(DT_F32, REDUCE_SUM, 1024),
     .odd = {.kind = COLL_ALL_GATHER, .dtype = DT_F32, .count = 256, .why = "embed"}},
    {.want = {"all_reduce", "barrier"}, .normal = SUM(DT_F32, REDUCE_SUM, 1024), .odd = {.kind = COLL_BARRIER}},
    {.want = {"root 0", "root 1"},
     .normal = {.kind = COLL_BROADCAST, .dtype = DT_I64, .count = 3, .root = 0},
     .odd = {.kind = COLL_BROADCAST, .dtype = DT_I64, .count = 3, .root = 1}},
    {.want = {"i64[3]", "i64[4 of"},
     .normal = {.kind = COLL_ALL_GATHER, .dtype = DT_I64, .counts = threes},
     .odd = {.kind = COLL_ALL_GATHER, .dtype = DT_I64, .counts = uneven}},
    {.want = {"all_to_all", "expects 3"},
     .normal = {.kind = COLL_ALL_TO_ALL, .dtype = DT_I64, .count = 5},
     .odd = {.kind = COLL_ALL_TO_ALL, .dtype = DT_I64, .count = 5, .recv_counts = threes}},
    {.want = {"f32[1024] sum", "the tensors lie on different meshes"},
     .normal = {.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .count = 1024, .where = 7},
     .odd = {.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .count = 1024, .where = 8}},
};
#undef SUM

bool mistake_at(int i, Mistake *out) {
  if (i < 0 || i >= (int)(sizeof mistakes / sizeof *mistakes)) return false;
  *out = mistakes[i];
  return true;
}

static char buffer[MOST_RANKS][2][1 << 16];

Status mistaken(World *w, void *arg) {
  Mistake *m = arg;
  Coll c = world_rank(w) == 1 ? m->odd : m->normal;
  c.send = buffer[world_rank(w)][0];
  c.recv = buffer[world_rank(w)][1];
  CommWork *work;
  int sum;
  TRY(sum_of(world_comm(w), 1, &sum));
  Status s = m->start ? comm_start(world_comm(w), &c, &work) : comm_run(world_comm(w), &c);
  if (m->start && !s) s = comm_wait(work);
  if (!s) return OK;
  const char *text = status_message(s);
  bool named = strstr(text, m->want[0]) && strstr(text, m->want[1]);
  if (status_code(s) == ERR_RANK && named) atomic_fetch_add(&m->errors, 1);
  else fprintf(stderr, "rank %d got '%s'\n", world_rank(w), text);
  status_free(s);
  s = sum_of(world_comm(w), 1, &sum); /* final */
  return s ? s : fail(ERR_DIFF, "the world goes on after an error");
}

Status mistaken_boxes(World *w, void *arg) {
  (void)arg;
  float x[16] = {0}, y[16];
  Box out = {.peer = 1 - world_rank(w), .ndim = 1, .size = {world_rank(w) ? 3 : 4}, .stride = {1}},
      in = {.peer = 1 - world_rank(w), .ndim = 1, .size = {4}, .stride = {1}};
  return comm_run(world_comm(w), &(Coll){.kind = COLL_EXCHANGE,
                                         .dtype = DT_F32,
                                         .send = x,
                                         .recv = y,
                                         .send_box = &out,
                                         .recv_box = &in,
                                         .nsend = 1,
                                         .nrecv = 1,
                                         .why = "boxes"});
}

Status mistaken_group(World *w, void *arg) {
  const int *kind = arg; /* 0: another list of members, 1: the same in another order */
  int sum, n = world_size(w), others[MOST_RANKS];
  Comm *group;
  float x[4] = {0};
  TRY(sum_of(world_comm(w), 1, &sum));
  for (int i = 0; i < n; i++) others[i] = *kind ? n - 1 - i : i;
  if (world_rank(w) != 1)
    return comm_run(
        world_comm(w),
        &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = x, .recv = x, .count = 4, .why = "step"});
  TRY(comm_group(w, others, *kind ? n : 2, &group));
  return comm_run(
      group, &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = x, .recv = x, .count = 4, .why = "step"});
}

Status mistaken_pair(World *w, void *arg) {
  (void)arg;
  float x[16] = {0};
  CollKind kind = world_rank(w) ? COLL_RECV : COLL_SEND;
  return comm_run(world_comm(w), &(Coll){.kind = kind,
                                         .root = 1 - world_rank(w),
                                         .dtype = DT_F32,
                                         .send = x,
                                         .recv = x,
                                         .count = world_rank(w) ? 16 : 8,
                                         .why = "stage"});
}

/* ---- failing ------------------------------------------------------------------------------------------- */

Status fails_midway(World *w, void *arg) {
  Failing *f = arg;
  float *x = calloc((size_t)f->count, sizeof *x), *y = calloc((size_t)f->count, sizeof *y);
  Status s = OK;
  for (int i = 0; i < f->after + 3 && !s; i++) {
    if (world_rank(w) == 1 && i == f->after) {
      if (f->error) s = fail(ERR_FILE, "the disk is full");
      break;
    }
    Coll c = {.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = x, .recv = y, .count = f->count, .why = "step"};
    CommWork *work;
    s = f->start ? comm_start(world_comm(w), &c, &work) : comm_run(world_comm(w), &c);
    if (!s && f->start) s = comm_wait(work);
  }
  if (s && world_rank(w) != 1 && status_code(s) == ERR_RANK &&
      strstr(status_message(s), f->error ? "rank 1 of" : "rank 1 has left"))
    atomic_fetch_add(&f->released, 1);
  else if (world_rank(w) != 1 && !atomic_flag_test_and_set(&f->told))
    snprintf(f->other, sizeof f->other, "rank %d: %s", world_rank(w), s ? status_message(s) : "no error");
  free(x); /* nobody is at them any more, also after a failure */
  free(y);
  return s;
}

/* Failures at any moment, from outside of the collectives: never a hang, never a touch
 * of freed buffers. */
Status fails_some_time(World *w, void *arg) {
  const unsigned *seed = arg;
  unsigned when = *seed % 40, who = *seed / 40 % (unsigned)world_size(w);
  Status s = OK;
  for (unsigned i = 0; i < 60 && !s; i++) {
    size_t n = i % 2 ? 3000 : 10;
    float *x = calloc(n * (size_t)world_size(w), sizeof *x), *y = calloc(n * (size_t)world_size(w), sizeof *y);
    if (i == when && who == (unsigned)world_rank(w)) {
      Status mine = fail(ERR_FAIL, "at %u", when);
      world_fail(w, mine);
      status_free(mine);
    }
    CommWork *work = NULL;
    if (i % 5 == 0)
      s = comm_start(world_comm(w),
                     &(Coll){.kind = COLL_ALL_TO_ALL, .dtype = DT_F32, .send = x, .recv = y, .count = (int64_t)n},
                     &work);
    float *z = calloc(n, sizeof *z);
    if (!s)
      s = comm_run(world_comm(w),
                   &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = z, .recv = z, .count = (int64_t)n});
    free(z);
    if (work) {
      Status waited = comm_wait(work);
      if (s) status_free(waited);
      else s = waited;
    }
    free(x);
    free(y);
  }
  return s;
}

Status comes_late(World *w, void *arg) {
  const bool start = *(bool *)arg;
  int sum;
  CommWork *work;
  float x = 0, y;
  world_set_timeout(w, world_rank(w) == 2 ? 0 : 0.2);
  TRY(sum_of(world_comm(w), 1, &sum));
  if (world_rank(w) == 2) usleep(500000);
  const Coll c = {.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = &x, .recv = &y, .count = 1, .why = "late one"};
  if (!start) return comm_run(world_comm(w), &c);
  TRY(comm_start(world_comm(w), &c, &work));
  return comm_wait(work);
}

Status does_not_wait(World *w, void *arg) {
  (void)arg;
  static float x[2][50000];
  CommWork *work;
  int sum;
  TRY(comm_start(world_comm(w),
                 &(Coll){.kind = COLL_ALL_REDUCE,
                         .dtype = DT_F32,
                         .send = x[world_rank(w)],
                         .recv = x[world_rank(w)],
                         .count = 50000,
                         .why = "forgotten"},
                 &work));
  if (world_rank(w) == 0) return sum_of(world_comm(w), 1, &sum);
  return OK;
}

/* ---- records ------------------------------------------------------------------------------------------- */

Status many(World *w, void *arg) {
  int sum;
  for (int i = 0; i < 2100; i++) TRY(sum_of(world_comm(w), i, &sum));
  TextBuf text = {0};
  TRY(world_flight_json(w, &text));
  bool right = strstr(text.text, "\"sequence\": 2100,") && strstr(text.text, "\"sequence\": 101,") &&
               !strstr(text.text, "\"sequence\": 100,") && strstr(text.text, "\"why\": \"sum_of\"") &&
               strstr(text.text, "\"group\": [0, 1]");
  text_free(&text);
  if (!right) return fail(ERR_DIFF, "the flight record");
  return *(bool *)arg && world_rank(w) == 1 ? fail(ERR_FAIL, "on purpose") : OK;
}

typedef struct {
  int calls;
  int64_t bytes;
} Watched;

static void watcher(void *arg, const Comm *c, const Coll *what, int64_t bytes) {
  Watched *w = arg;
  (void)what;
  if (comm_size(c) == 2) w->calls++;
  w->bytes += bytes;
}

Status watched(World *w, void *arg) {
  (void)arg;
  Watched seen = {0};
  float x[8] = {0}, y[16];
  CommWork *work;
  world_watch(w, watcher, &seen);
  TRY(comm_run(world_comm(w), &(Coll){.kind = COLL_ALL_GATHER, .dtype = DT_F32, .send = x, .recv = y, .count = 8}));
  TRY(comm_start(world_comm(w), &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = x, .recv = y, .count = 4},
                 &work));
  TRY(comm_wait(work));
  TRY(comm_run(world_comm(w),
               &(Coll){.kind = COLL_BROADCAST, .dtype = DT_F32, .send = x, .recv = y, .count = 2, .root = 1}));
  world_watch(w, NULL, NULL);
  TRY(comm_barrier(world_comm(w), NULL));
  return seen.calls == 3 && seen.bytes == 32 + 16 + (world_rank(w) == 1 ? 8 : 0)
             ? OK
             : fail(ERR_DIFF, "%d calls, %lld bytes", seen.calls, (long long)seen.bytes);
}

/* ---- many ranks, many worlds ------------------------------------------------------------------------------ */

Status brief(World *w, void *arg) {
  (void)arg;
  int sum;
  CommWork *work;
  float x = 1, y;
  TRY(sum_of(world_comm(w), 1, &sum));
  TRY(comm_start(world_comm(w),
                 &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = &x, .recv = &y, .count = 1}, &work));
  return comm_wait(work);
}
