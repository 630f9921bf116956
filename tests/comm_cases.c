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
  convert_run_base(out, d, x, DT_F64, n);
  free(x);
  return out;
}

/* An element of the reduction over ranks 0..n-1, as bytes of d. */
static void reduced(void *out, ReduceOp op, Dtype d, int n, int64_t i) {
  unsigned char bytes[MOST_RANKS][16];
  const void *src[MOST_RANKS];
  for (int r = 0; r < n; r++) {
    double x = value_of(d, r, i);
    convert_run_base(bytes[r], d, &x, DT_F64, 1);
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

static Status sum_of(Comm *c, int mine, int *out) {
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
