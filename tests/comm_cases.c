/* comm_cases.c -- see comm_cases.h. */
#include "comm_cases.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/combine.h"
#include "kernels/convert.h"

/* ---- values ------------------------------------------------------------------------- */

/* Element i of what rank r sends: small whole numbers, exact in every dtype. */
static double value_of(Dtype d, int rank, int64_t i) {
  int64_t v = (rank * 3 + i * 7 + i / 5) % 5;
  if (d == DT_BOOL) return v > 2;
  return (double)(d == DT_U8 ? v : v - 2);
}

static void *made(Dtype d, int rank, int64_t from, int64_t n) {
  double *x = malloc((size_t)(n + 1) * sizeof *x);
  for (int64_t i = 0; i < n; i++) x[i] = value_of(d, rank, from + i);
  void *out = calloc((size_t)n + 1, dtype_size(d));
  SIMD_CALL(ISA_BASE, convert_run)(out, d, x, DT_F64, n);
  free(x);
  return out;
}

/* An element of the reduction over ranks 0..n-1, as bytes of d. */
static void reduced(void *out, ReduceOp op, Dtype d, int n, int64_t i) {
  unsigned char bytes[MOST_RANKS][16];
  const void *src[MOST_RANKS];
  for (int r = 0; r < n; r++) {
    double x = value_of(d, r, i);
    SIMD_CALL(ISA_BASE, convert_run)(bytes[r], d, &x, DT_F64, 1);
    src[r] = bytes[r];
  }
  combine(ISA_BASE, op, d, out, src, n, 1);
}

static Status expect_bytes(World *w, const char *what, const void *got, const void *want, size_t bytes) {
  if (bytes && memcmp(got, want, bytes))
    return fail(ERR_DIFF, "%s: rank %d has other bytes than expected", what, world_rank(w));
  return OK;
}

/* ---- one collective of each kind ------------------------------------------------------- */

static int64_t part_of(const Case *k, int rank) {
  return k->uneven ? (rank % 3 == 1 ? 0 : k->count + rank * 5) : k->count;
}

static Status do_it(const Case *k, Comm *c, const Coll *what) {
  if (!k->start) return comm_run(c, what);
  CommWork *work;
  TRY(comm_start(c, what, &work));
  return comm_wait(work);
}

static Status reduce_case(World *w, const Case *k, CollKind kind, int root) {
  const int n = world_size(w), me = world_rank(w);
  const size_t width = dtype_size(k->dtype);
  char *send = made(k->dtype, me, 0, k->count),
       *recv = k->in_place && (kind == COLL_ALL_REDUCE || me == root) ? send : calloc((size_t)k->count + 1, width);
  Status s = do_it(k, world_comm(w),
                   &(Coll){.kind = kind,
                           .dtype = k->dtype,
                           .op = k->op,
                           .root = root,
                           .send = send,
                           .recv = recv,
                           .count = k->count,
                           .why = "test"});
  for (int64_t i = 0; i < k->count && !s && (kind == COLL_ALL_REDUCE || me == root); i++) {
    unsigned char want[16];
    reduced(want, k->op, k->dtype, n, i);
    s = expect_bytes(w, coll_kind_name(kind), recv + (size_t)i * width, want, width);
  }
  if (recv != send) free(recv);
  free(send);
  return s;
}

static Status reduce_scatter_case(World *w, const Case *k) {
  const int n = world_size(w), me = world_rank(w);
  const size_t width = dtype_size(k->dtype);
  int64_t counts[MOST_RANKS], total = 0, before = 0;
  for (int i = 0; i < n; i++) {
    if (i == me) before = total;
    total += counts[i] = part_of(k, i);
  }
  char *send = made(k->dtype, me, 0, total), *recv = calloc((size_t)counts[me] + 1, width);
  Status s = do_it(k, world_comm(w),
                   &(Coll){.kind = COLL_REDUCE_SCATTER,
                           .dtype = k->dtype,
                           .op = k->op,
                           .send = send,
                           .recv = recv,
                           .count = k->count,
                           .counts = k->uneven ? counts : NULL});
  for (int64_t i = 0; i < counts[me] && !s; i++) {
    unsigned char want[16];
    reduced(want, k->op, k->dtype, n, before + i);
    s = expect_bytes(w, "reduce_scatter", recv + (size_t)i * width, want, width);
  }
  free(send);
  free(recv);
  return s;
}

/* all_gather, gather and scatter: the whole is the parts of all ranks in order. */
static Status part_case(World *w, const Case *k, CollKind kind, int root) {
  const int n = world_size(w), me = world_rank(w);
  const size_t width = dtype_size(k->dtype);
  int64_t counts[MOST_RANKS], total = 0, before = 0;
  for (int i = 0; i < n; i++) {
    if (i == me) before = total;
    total += counts[i] = part_of(k, i);
  }
  char *whole = calloc((size_t)total + 1, width), *part = made(k->dtype, me, 0, counts[me]),
       *got = calloc((size_t)total + 1, width);
  for (int64_t i = 0, at = 0; i < n; i++) {
    char *p = made(k->dtype, (int)i, 0, counts[i]);
    memcpy(whole + (size_t)at * width, p, (size_t)counts[i] * width);
    at += counts[i];
    free(p);
  }
  Coll c = {.kind = kind,
            .dtype = k->dtype,
            .root = root,
            .count = k->count,
            .counts = k->uneven ? counts : NULL,
            .send = part,
            .recv = got};
  if (kind == COLL_SCATTER) c.send = whole;
  if (k->in_place && kind != COLL_SCATTER && (kind == COLL_ALL_GATHER || me == root)) {
    memcpy(got + (size_t)before * width, part, (size_t)counts[me] * width);
    c.send = got + (size_t)before * width;
  }
  Status s = do_it(k, world_comm(w), &c);
  if (!s && kind == COLL_SCATTER) s = expect_bytes(w, "scatter", got, part, (size_t)counts[me] * width);
  else if (!s && (kind == COLL_ALL_GATHER || me == root))
    s = expect_bytes(w, coll_kind_name(kind), got, whole, (size_t)total * width);
  free(whole);
  free(part);
  free(got);
  return s;
}

static Status broadcast_case(World *w, const Case *k, int root) {
  const size_t bytes = (size_t)k->count * dtype_size(k->dtype);
  char *want = made(k->dtype, root, 0, k->count), *send = made(k->dtype, world_rank(w), 0, k->count),
       *recv = calloc(bytes + 1, 1);
  bool place = k->in_place && world_rank(w) == root;
  Status s = do_it(k, world_comm(w),
                   &(Coll){.kind = COLL_BROADCAST,
                           .dtype = k->dtype,
                           .root = root,
                           .send = send,
                           .recv = place ? send : recv,
                           .count = k->count});
  if (!s) s = expect_bytes(w, "broadcast", place ? send : recv, want, bytes);
  free(want);
  free(send);
  free(recv);
  return s;
}

static int64_t sent_between(const Case *k, int from, int to) {
  return k->uneven ? k->count * ((from + 2 * to) % 3) : k->count;
}

static Status all_to_all_case(World *w, const Case *k) {
  const int n = world_size(w), me = world_rank(w);
  const size_t width = dtype_size(k->dtype);
  int64_t out[MOST_RANKS], in[MOST_RANKS], nout = 0, nin = 0;
  for (int i = 0; i < n; i++) {
    nout += out[i] = sent_between(k, me, i);
    nin += in[i] = sent_between(k, i, me);
  }
  char *send = made(k->dtype, me, 0, nout), *recv = calloc((size_t)nin + 1, width),
       *want = calloc((size_t)nin + 1, width);
  for (int64_t i = 0, at = 0; i < n; i++) {
    int64_t before = 0;
    for (int j = 0; j < me; j++) before += sent_between(k, (int)i, j);
    char *p = made(k->dtype, (int)i, before, in[i]);
    memcpy(want + (size_t)at * width, p, (size_t)in[i] * width);
    at += in[i];
    free(p);
  }
  Status s = do_it(k, world_comm(w),
                   &(Coll){.kind = COLL_ALL_TO_ALL,
                           .dtype = k->dtype,
                           .send = send,
                           .recv = recv,
                           .count = k->count,
                           .counts = k->uneven ? out : NULL,
                           .recv_counts = k->uneven ? in : NULL});
  if (!s) s = expect_bytes(w, "all_to_all", recv, want, (size_t)nin * width);
  free(send);
  free(recv);
  free(want);
  return s;
}

/* A matrix whose rows are shared out becomes one whose columns are: boxes. */
static Status exchange_case(World *w, const Case *k) {
  const int n = world_size(w), me = world_rank(w);
  const int64_t rows = 3, columns = 4 + k->count % 7;
  const size_t width = dtype_size(k->dtype);
  Box send[MOST_RANKS], recv[MOST_RANKS];
  for (int i = 0; i < n; i++) {
    send[i] = (Box){
        .peer = i, .ndim = 2, .offset = i * columns, .size = {rows, columns}, .stride = {n * columns, 1}};
    recv[i] = (Box){
        .peer = i, .ndim = 2, .offset = i * rows * columns, .size = {rows, columns}, .stride = {columns, 1}};
  }
  char *from = made(k->dtype, me, 0, rows * columns * n), *to = calloc((size_t)(rows * columns * n), width);
  Status s = do_it(k, world_comm(w),
                   &(Coll){.kind = COLL_EXCHANGE,
                           .dtype = k->dtype,
                           .send = from,
                           .recv = to,
                           .send_box = send,
                           .recv_box = recv,
                           .nsend = n,
                           .nrecv = n});
  for (int i = 0; i < n && !s; i++) {
    char *theirs = made(k->dtype, i, 0, rows * columns * n);
    for (int64_t r = 0; r < rows && !s; r++) {
      s = expect_bytes(w, "exchange", to + (size_t)((i * rows + r) * columns) * width,
                       theirs + (size_t)(r * n * columns + me * columns) * width, (size_t)columns * width);
    }
    free(theirs);
  }
  free(from);
  free(to);
  return s;
}

static Status ring_case(World *w, const Case *k) {
  const int n = world_size(w), me = world_rank(w), next = (me + 1) % n, before = (me + n - 1) % n;
  if (n == 1) return OK;
  const size_t bytes = (size_t)k->count * dtype_size(k->dtype);
  char *send = made(k->dtype, me, 0, k->count), *recv = calloc(bytes + 1, 1),
       *want = made(k->dtype, before, 0, k->count);
  CommWork *work = NULL;
  Coll out = {.kind = COLL_SEND, .dtype = k->dtype, .root = next, .send = send, .count = k->count},
       in = {.kind = COLL_RECV, .dtype = k->dtype, .root = before, .recv = recv, .count = k->count};
  Status s = comm_start(world_comm(w), k->start ? &in : &out, &work);
  if (!s) s = comm_run(world_comm(w), k->start ? &out : &in);
  if (work) {
    Status waited = comm_wait(work);
    if (s) status_free(waited);
    else s = waited;
  }
  if (!s) s = expect_bytes(w, "send and recv", recv, want, bytes);
  free(send);
  free(recv);
  free(want);
  return s;
}

Status every_kind(World *w, void *arg) {
  const Case *k = arg;
  const int last = world_size(w) - 1;
  TRY(reduce_case(w, k, COLL_ALL_REDUCE, 0));
  TRY(reduce_case(w, k, COLL_REDUCE, last));
  TRY(reduce_scatter_case(w, k));
  TRY(part_case(w, k, COLL_ALL_GATHER, 0));
  TRY(part_case(w, k, COLL_GATHER, last / 2));
  TRY(part_case(w, k, COLL_SCATTER, last));
  TRY(broadcast_case(w, k, last / 2));
  TRY(all_to_all_case(w, k));
  TRY(exchange_case(w, k));
  TRY(ring_case(w, k));
  return comm_barrier(world_comm(w), "the end");
}

Status every_type(World *w, void *arg) {
  const Sweep *sweep = arg;
  for (Dtype d = 0; d < DT_COUNT; d++) {
    for (ReduceOp op = 0; op < REDUCE_OP_COUNT; op++) {
      Status refused = combine_check(op, d);
      status_free(refused);
      Case k = {d, op, sweep->count, true, false, sweep->start};
      if (!refused && d != DT_C64) {
        TRY(reduce_case(w, &k, COLL_ALL_REDUCE, 0));
        TRY(reduce_case(w, &k, COLL_REDUCE, 0));
        TRY(reduce_scatter_case(w, &k));
      }
    }
    Case k = {d, REDUCE_SUM, sweep->count, true, false, sweep->start};
    if (!dtype_is_compute(d) || d == DT_C64) continue;
    TRY(part_case(w, &k, COLL_ALL_GATHER, 0));
    TRY(all_to_all_case(w, &k));
    TRY(exchange_case(w, &k));
  }
  return OK;
}

/* Bytes that have no arithmetic move all the same; complex sums. */
Status odd_types(World *w, void *arg) {
  (void)arg;
  const int n = world_size(w);
  uint8_t mine[16], all[MOST_RANKS * 16];
  memset(mine, world_rank(w) + 1, sizeof mine);
  TRY(comm_run(world_comm(w),
               &(Coll){.kind = COLL_ALL_GATHER, .dtype = DT_C128, .send = mine, .recv = all, .count = 1}));
  for (int i = 0; i < n * 16; i++) {
    if (all[i] != i / 16 + 1) return fail(ERR_DIFF, "c128");
  }
  float z[2] = {1, 2}, sum[2];
  TRY(comm_run(
      world_comm(w),
      &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_C64, .op = REDUCE_SUM, .send = z, .recv = sum, .count = 1}));
  if (sum[0] != (float)n || sum[1] != (float)(2 * n)) return fail(ERR_DIFF, "c64");
  Status s = comm_run(world_comm(w), &(Coll){.kind = COLL_ALL_REDUCE,
                                             .dtype = DT_C64,
                                             .op = REDUCE_MAX,
                                             .send = z,
                                             .recv = sum,
                                             .count = 1,
                                             .why = "top"});
  if (!s || !strstr(status_message(s), "all_reduce (top): max is not defined for c64"))
    return fail(ERR_DIFF, "max of c64: %s", s ? status_message(s) : "no error");
  status_free(s);
  return OK;
}

/* ---- groups -------------------------------------------------------------------------------- */

Status sum_of(Comm *c, int mine, int *out) {
  int32_t in = mine, sum = 0;
  Status s = comm_run(
      c, &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_I32, .send = &in, .recv = &sum, .count = 1, .why = "sum_of"});
  *out = sum;
  return s;
}

Status in_groups(World *w, void *arg) {
  (void)arg;
  const int me = world_rank(w), row[2] = {me / 2 * 2, me / 2 * 2 + 1}, column[2] = {me % 2 + 2, me % 2};
  Comm *a, *b, *again;
  int sum;
  for (int i = 0; i < 100; i++) {
    TRY(comm_group(w, row, 2, &a));
    TRY(comm_group(w, column, 2, &b));
    TRY(comm_group(w, row, 2, &again));
    if (a != again || comm_size(a) != 2 || comm_members(b)[comm_rank(b)] != me) return fail(ERR_DIFF, "groups");
    TRY(sum_of(a, me, &sum));
    if (sum != row[0] + row[1]) return fail(ERR_DIFF, "row");
    TRY(sum_of(b, me, &sum));
    if (sum != column[0] + column[1]) return fail(ERR_DIFF, "column");
    TRY(sum_of(world_comm(w), me, &sum));
    if (sum != 6) return fail(ERR_DIFF, "world");
  }
  static const int others[] = {1, 2}, twice[] = {0, 0}, none[] = {0, 9};
  Status s = me == 0 ? comm_group(w, others, 2, &a) : fail(ERR_FAIL, "not in");
  if (!s || !strstr(status_message(s), "not in")) return fail(ERR_DIFF, "a group without its maker");
  status_free(s);
  s = comm_group(w, twice, 2, &a);
  if (!s || !strstr(status_message(s), "twice")) return fail(ERR_DIFF, "a rank twice");
  status_free(s);
  s = comm_group(w, none, 2, &a);
  if (!s) return fail(ERR_DIFF, "a rank that is not there");
  status_free(s);
  return OK;
}

/* Started in two groups, in different orders on different ranks. */
Status crossed(World *w, void *arg) {
  (void)arg;
  static const int forth[] = {0, 1, 2}, back[] = {2, 1, 0};
  enum { N = 20000 };
  Comm *c[2];
  TRY(comm_group(w, forth, 3, &c[0]));
  TRY(comm_group(w, back, 3, &c[1]));
  for (int round = 0; round < 20; round++) {
    float *x[2], *y[2];
    CommWork *work[2];
    for (int k = 0; k < 2; k++) {
      int g = (k + world_rank(w)) % 2;
      x[g] = calloc(N, sizeof(float));
      y[g] = calloc(N, sizeof(float));
      for (int i = 0; i < N; i++) x[g][i] = (float)(world_rank(w) + i % 7 + g);
      TRY(comm_start(c[g],
                     &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = x[g], .recv = y[g], .count = N},
                     &work[g]));
    }
    int sum;
    TRY(sum_of(world_comm(w), 1, &sum));
    TRY(comm_wait(work[0]));
    TRY(comm_wait(work[1]));
    for (int g = 0; g < 2; g++) {
      for (int i = 0; i < N; i++) {
        if (y[g][i] != (float)(3 + 3 * (i % 7 + g))) return fail(ERR_DIFF, "crossed");
      }
      free(x[g]);
      free(y[g]);
    }
  }
  return OK;
}

/* ---- start and wait --------------------------------------------------------------------------- */

static void burn(double *x) {
  for (int i = 0; i < 200000; i++) *x = *x * 0.999 + 1;
}

/* Many at a time, waited for in another order, blocking ones in between. */
Status overlapped(World *w, void *arg) {
  const int64_t n = *(int64_t *)arg;
  enum { WORKS = 6 };
  CommWork *work[WORKS];
  float *x[WORKS];
  const int size = world_size(w);
  double busy = 1;
  for (int k = 0; k < WORKS; k++) {
    x[k] = calloc((size_t)n, sizeof(float));
    for (int64_t i = 0; i < n; i++) x[k][i] = (float)(k + world_rank(w) + i % 3);
    TRY(comm_start(
        world_comm(w),
        &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = x[k], .recv = x[k], .count = n, .why = "bucket"},
        &work[k]));
    burn(&busy);
    int sum;
    TRY(sum_of(world_comm(w), k, &sum));
    if (sum != k * size) return fail(ERR_DIFF, "a blocking one in between");
  }
  static const int order[WORKS] = {3, 0, 5, 1, 2, 4};
  for (int j = 0; j < WORKS; j++) {
    int k = order[j];
    TRY(comm_wait(work[k]));
    for (int64_t i = 0; i < n; i++) {
      if (x[k][i] != (float)(size * (k + i % 3) + size * (size - 1) / 2))
        return fail(ERR_DIFF, "started all_reduce %d", k);
    }
    free(x[k]);
  }
  return busy > 0 ? OK : fail(ERR_FAIL, "busy");
}

/* The communication thread moves the data while the rank does something else. */
Status progresses(World *w, void *arg) {
  (void)arg;
  enum { N = 50000 };
  int seen = 0, all = 0;
  float *x = calloc(N, sizeof *x), *y = calloc((size_t)(N / 2 * world_size(w)), sizeof *y);
  CommWork *work;
  for (int i = 0; i < N; i++) x[i] = 1;
  TRY(comm_barrier(world_comm(w), NULL));
  TRY(comm_start(world_comm(w),
                 &(Coll){.kind = COLL_ALL_GATHER, .dtype = DT_F32, .send = x, .recv = y, .count = N / 2}, &work));
  for (int tries = 0; tries < 2000; tries++) { /* no call into comm; the flight record is no progress */
    TextBuf text = {0};
    TRY(world_flight_json(w, &text));
    bool done = !strstr(text.text, "\"done_us\": null");
    text_free(&text);
    if (done) {
      seen = 1;
      break;
    }
    usleep(1000);
  }
  TRY(comm_wait(work));
  TRY(sum_of(world_comm(w), seen, &all));
  free(x);
  free(y);
  return all == world_size(w) ? OK : fail(ERR_DIFF, "no progress without the rank");
}

/* ---- the same bits -------------------------------------------------------------------------------- */

Status awkward_sum(World *w, void *arg) {
  enum { N = AWKWARD };
  float *out = arg, *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
  uint32_t seed = 77u + (uint32_t)world_rank(w);
  for (int i = 0; i < N; i++) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = ((float)(int32_t)seed) * (i % 3 ? 1e-3f : 1e7f);
  }
  TRY(comm_run(world_comm(w), &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = x, .recv = y, .count = N}));
  memcpy(out + (size_t)world_rank(w) * N, y, N * sizeof *y);
  /* and in pieces that take other ways */
  for (int64_t i = 0; i < N; i += 700) {
    int64_t m = N - i < 700 ? N - i : 700;
    TRY(comm_run(world_comm(w),
                 &(Coll){.kind = COLL_ALL_REDUCE, .dtype = DT_F32, .send = x + i, .recv = x + i, .count = m}));
  }
  Status s = memcmp(x, y, N * sizeof *y) ? fail(ERR_DIFF, "small and large differ") : OK;
  free(x);
  free(y);
  return s;
}
