/* bench_collectives.c -- `tessera bench allreduce` and its sisters: how fast ranks talk,
 * in the table of nccl-tests.
 *
 * size   bytes of the whole buffer: what is reduced, what is gathered, what a rank sends
 * count  elements that a rank sends (to each, for alltoall)
 * time   of one call, median over rounds, of the slowest rank
 * algbw  size / time;  busbw: algbw times what a link carries per byte of the buffer,
 *        2(n-1)/n for allreduce, (n-1)/n for the others, 1 for broadcast
 *
 * Send buffers are written anew before every call, receive buffers before the last, whose
 * results are compared element by element.  Writing is not timed.
 *
 * Values: element i of rank r in round k is element i % BLOCK of a block that depends on
 * (r, k); so writing is copying, and what must come out is known without another rank.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "comm/launch.h"
#include "kernels/combine.h"
#include "kernels/convert.h"

enum { BLOCK = 1024, MOST_RANKS = 256, MOST_ROUNDS = 1000000, BATCH_BYTES = 1 << 16, MOST_BATCH = 200 };

typedef struct {
  const char *begin, *end, *dtype, *op, *comm;
  int64_t factor, ranks, rounds, warmup;
  bool in_place, json;
  double timeout;
  const char *flight;
} Options;

typedef struct {
  CollKind kind;
  Dtype dtype;
  ReduceOp op;
  bool in_place, json;
  int64_t first, last, factor; /* bytes */
  int rounds, warmup, ranks;   /* ranks 0: as many as were launched */
  const Transport *transport;
  double timeout; /* seconds */
  /* rank 0 only */
  double busbw_sum;
  int64_t all_wrong;
  int rows;
} Bench;

static const struct {
  const char *name;
  CollKind kind;
} kinds[] = {
    {"allreduce", COLL_ALL_REDUCE}, {"allgather", COLL_ALL_GATHER}, {"reducescatter", COLL_REDUCE_SCATTER},
    {"alltoall", COLL_ALL_TO_ALL},  {"broadcast", COLL_BROADCAST},
};

static bool reduces(CollKind kind) { return kind == COLL_ALL_REDUCE || kind == COLL_REDUCE_SCATTER; }
static bool in_parts(CollKind kind) { return kind != COLL_ALL_REDUCE && kind != COLL_BROADCAST; }

/* ---- values ------------------------------------------------------------------------------- */

/* Small whole numbers: every dtype holds them, and sums are exact. */
static void make_block(void *block, Dtype d, int rank, int round) {
  double x[BLOCK];
  for (uint32_t i = 0; i < BLOCK; i++) x[i] = ((i * 2654435761u >> 16) + (uint32_t)rank * 3 + (uint32_t)round) % 5;
  SIMD_CALL(ISA_BASE, convert_run)(block, d, x, DT_F64, BLOCK);
}

/* buffer[i] = block[(first + i) % BLOCK] */
static void write_block(char *buffer, const char *block, size_t width, int64_t first, int64_t n) {
  for (int64_t i = 0; i < n;) {
    int64_t from = (first + i) % BLOCK, m = BLOCK - from < n - i ? BLOCK - from : n - i;
    memcpy(buffer + (size_t)i * width, block + (size_t)from * width, (size_t)m * width);
    i += m;
  }
}

static int64_t count_wrong(const char *buffer, const char *block, size_t width, int64_t first, int64_t n) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < n;) {
    int64_t from = (first + i) % BLOCK, m = BLOCK - from < n - i ? BLOCK - from : n - i;
    const char *got = buffer + (size_t)i * width, *want = block + (size_t)from * width;
    if (memcmp(got, want, (size_t)m * width)) {
      for (int64_t k = 0; k < m; k++)
        wrong += memcmp(got + (size_t)k * width, want + (size_t)k * width, width) != 0;
    }
    i += m;
  }
  return wrong;
}

/* ---- one size, on one rank ------------------------------------------------------------------ */

typedef struct {
  Bench *bench;
  World *world;
  int n, me;
  size_t width;
  int64_t count;     /* per part, or of the whole where there are no parts */
  int64_t sent, got; /* elements of the buffers */
  char *send, *recv, *block, *other;
  double *times; /* [rounds] seconds per call */
  int64_t wrong;
  Coll coll;
} Job;

static Status job_init(Job *j, Bench *b, World *w, int64_t bytes) {
  const int n = world_size(w), me = world_rank(w);
  const bool parts = in_parts(b->kind), gather = b->kind == COLL_ALL_GATHER;
  *j = (Job){.bench = b, .world = w, .n = n, .me = me, .width = dtype_size(b->dtype)};
  j->count = bytes / (int64_t)j->width / (parts ? n : 1);
  if (j->count < 1) j->count = 1;
  j->sent = parts && !gather ? j->count * n : j->count;
  j->got = b->kind == COLL_ALL_GATHER || b->kind == COLL_ALL_TO_ALL ? j->count * n : j->count;
  TRY_NEW(j->recv, aligned_alloc(64, ((size_t)j->got * j->width + 63) & ~(size_t)63));
  char *send = NULL;
  if (!b->in_place) TRY_NEW(send, aligned_alloc(64, ((size_t)j->sent * j->width + 63) & ~(size_t)63));
  j->send = b->in_place ? j->recv + (gather ? (size_t)(me * j->count) * j->width : 0) : send;
  TRY_NEW(j->block, malloc(BLOCK * j->width));
  TRY_NEW(j->other, malloc(BLOCK * j->width));
  TRY_NEW(j->times, calloc((size_t)b->rounds, sizeof *j->times));
  memset(j->recv, 0, (size_t)j->got * j->width);
  j->coll = (Coll){.kind = b->kind,
                   .dtype = b->dtype,
                   .op = b->op,
                   .send = j->send,
                   .recv = j->recv,
                   .count = j->count,
                   .why = "bench"};
  return OK;
}

static void job_free(Job *j) {
  if (!j->bench->in_place) free(j->send);
  free(j->recv);
  free(j->block);
  free(j->other);
  free(j->times);
}

/* The block that the reduction of all ranks' must give. */
static Status expected_sum(Job *j, int round) {
  const size_t bytes = BLOCK * j->width;
  const void *sources[MOST_RANKS];
  char *all;
  TRY_NEW(all, malloc(bytes * (size_t)j->n));
  for (int r = 0; r < j->n; r++) {
    make_block(all + (size_t)r * bytes, j->bench->dtype, r, round);
    sources[r] = all + (size_t)r * bytes;
  }
  combine(ISA_BASE, j->bench->op, j->bench->dtype, j->other, sources, j->n, BLOCK);
  free(all);
  return OK;
}

static Status verify(Job *j, int round, int64_t *wrong) {
  *wrong = 0;
  switch (j->bench->kind) {
    case COLL_ALL_REDUCE:
    case COLL_REDUCE_SCATTER:
      TRY(expected_sum(j, round));
      *wrong = count_wrong(j->recv, j->other, j->width,
                           j->bench->kind == COLL_REDUCE_SCATTER ? j->me * j->count : 0, j->got);
      return OK;
    case COLL_BROADCAST:
      make_block(j->other, j->bench->dtype, 0, round);
      *wrong = count_wrong(j->recv, j->other, j->width, 0, j->got);
      return OK;
    default:
      for (int r = 0; r < j->n; r++) {
        make_block(j->other, j->bench->dtype, r, round);
        *wrong += count_wrong(j->recv + (size_t)(r * j->count) * j->width, j->other, j->width,
                              j->bench->kind == COLL_ALL_TO_ALL ? j->me * j->count : 0, j->count);
      }
      return OK;
  }
}

static int batch_of(const Job *j) {
  int64_t bytes = (j->sent > j->got ? j->sent : j->got) * (int64_t)j->width, batch = BATCH_BYTES / bytes;
  return batch < 1 ? 1 : batch > MOST_BATCH ? MOST_BATCH : (int)batch;
}

static Status run_round(Job *j, int round, bool last, double *seconds) {
  const int batch = batch_of(j);
  double sum = 0;
  make_block(j->block, j->bench->dtype, j->me, round);
  if (last && !j->bench->in_place) memset(j->recv, 0xa5, (size_t)j->got * j->width);
  for (int i = 0; i < batch; i++) {
    write_block(j->send, j->block, j->width, 0, j->sent);
    if (batch == 1) TRY(comm_barrier(world_comm(j->world), "bench"));
    double start = clock_now();
    TRY(comm_run(world_comm(j->world), &j->coll));
    sum += clock_now() - start;
  }
  *seconds = sum / batch;
  return OK;
}

static Status run_job(Job *j) {
  Bench *b = j->bench;
  double unused;
  for (int i = 0; i < b->warmup; i++) TRY(run_round(j, i, false, &unused));
  for (int i = 0; i < b->rounds; i++) TRY(run_round(j, i, i == b->rounds - 1, &j->times[i]));
  return verify(j, b->rounds - 1, &j->wrong);
}

/* ---- the table -------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double bus_factor(CollKind kind, int n) {
  if (kind == COLL_BROADCAST) return 1;
  return (kind == COLL_ALL_REDUCE ? 2.0 : 1.0) * (n - 1) / n;
}

static void print_head(const Bench *b, int ranks) {
  if (b->json) {
    printf(
        "{\"collective\": \"%s\", \"comm\": \"%s\", \"ranks\": %d, \"in_place\": %s, \"rounds\": %d, \"rows\": [",
        coll_kind_name(b->kind), transport_name(b->transport), ranks, b->in_place ? "true" : "false", b->rounds);
    return;
  }
  printf("# %s, %d ranks (%s), %s, median of %d rounds\n", coll_kind_name(b->kind), ranks,
         transport_name(b->transport), b->in_place ? "in place" : "out of place", b->rounds);
  printf("#%11s %12s %6s %7s %10s %8s %8s %6s\n", "size", "count", "type", "redop", "time", "algbw", "busbw",
         "#wrong");
  printf("#%11s %12s %6s %7s %10s %8s %8s %6s\n", "(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)", "");
}

/* By rank 0.  slowest: of each round; becomes sorted. */
static void print_row(Bench *b, const Job *j, double *slowest, int64_t wrong) {
  qsort(slowest, (size_t)b->rounds, sizeof *slowest, by_value);
  const int64_t bytes = (j->sent > j->got ? j->sent : j->got) * (int64_t)j->width;
  const double seconds = slowest[b->rounds / 2], algbw = (double)bytes / seconds * 1e-9,
               busbw = algbw * bus_factor(b->kind, j->n);
  const char *op = reduces(b->kind) ? reduce_op_name(b->op) : "none";
  if (b->json) {
    printf("%s\n  {\"size\": %lld, \"count\": %lld, \"type\": \"%s\", \"redop\": \"%s\", \"time_us\": %.3f, "
           "\"min_us\": %.3f, \"algbw\": %.4f, \"busbw\": %.4f, \"wrong\": %lld}",
           b->rows ? "," : "", (long long)bytes, (long long)j->count, dtype_name(b->dtype), op, seconds * 1e6,
           slowest[0] * 1e6, algbw, busbw, (long long)wrong);
  } else {
    printf("%12lld %12lld %6s %7s %10.2f %8.3f %8.3f %6lld\n", (long long)bytes, (long long)j->count,
           dtype_name(b->dtype), op, seconds * 1e6, algbw, busbw, (long long)wrong);
  }
  fflush(stdout);
  b->busbw_sum += busbw;
  b->all_wrong += wrong;
  b->rows++;
}

/* What counts is the slowest rank. */
static Status sum_up(Job *j) {
  Bench *b = j->bench;
  Comm *all = world_comm(j->world);
  double *slowest = NULL;
  int64_t wrong = 0;
  if (j->me == 0) TRY_NEW(slowest, malloc((size_t)b->rounds * sizeof *slowest));
  Status s = comm_run(all, &(Coll){.kind = COLL_REDUCE,
                                   .dtype = DT_F64,
                                   .op = REDUCE_MAX,
                                   .send = j->times,
                                   .recv = slowest,
                                   .count = b->rounds,
                                   .why = "bench"});
  if (!s)
    s = comm_run(all, &(Coll){.kind = COLL_REDUCE,
                              .dtype = DT_I64,
                              .op = REDUCE_SUM,
                              .send = &j->wrong,
                              .recv = &wrong,
                              .count = 1,
                              .why = "bench"});
  if (!s && j->me == 0) print_row(b, j, slowest, wrong);
  free(slowest);
  return s;
}

static Status run_sizes(Bench *b, World *w) {
  for (int64_t bytes = b->first; bytes <= b->last;
       bytes = bytes > INT64_MAX / b->factor ? INT64_MAX : bytes * b->factor) {
    Job j;
    Status s = job_init(&j, b, w, bytes);
    if (!s) s = run_job(&j);
    if (!s) s = sum_up(&j);
    job_free(&j);
    TRY(s);
    TRY(comm_barrier(world_comm(w), "bench"));
  }
  return OK;
}

static Status measure_on_rank(World *w, void *arg) {
  Bench *b = arg;
  const int n = world_size(w);
  world_set_timeout(w, b->timeout);
  if (n > MOST_RANKS) return fail(ERR_USAGE, "%d ranks were launched; at most %d are measured", n, MOST_RANKS);
  if (world_rank(w)) return run_sizes(b, w);
  print_head(b, n);
  Status s = run_sizes(b, w);
  if (b->json) printf("]}\n");
  else if (!s)
    printf("# wrong values: %lld, average busbw: %.4f GB/s\n", (long long)b->all_wrong, b->busbw_sum / b->rows);
  fflush(stdout);
  return s ? s : b->all_wrong ? fail(ERR_DIFF, "%lld values are wrong", (long long)b->all_wrong) : OK;
}

/* ---- options ------------------------------------------------------------------------------------ */

/* "8", "64K", "128M", "1G" */
static Status parse_bytes(const char *name, const char *text, int64_t *out) {
  static const char units[] = "kmg";
  char *end;
  long long n = strtoll(text, &end, 10);
  const char *unit = *end ? strchr(units, *end | 0x20) : NULL;
  int64_t scale = unit ? (int64_t)1 << (10 * (unit - units + 1)) : 1;
  if (end == text || (*end && (!unit || end[1])) || n < 1 || n > (INT64_MAX >> 32) / scale * 2) {
    return fail(ERR_USAGE, "%s takes a number of bytes (8, 64K, 128M), '%s' is none", name, text);
  }
  *out = n * scale;
  return OK;
}

static Status check_options(const Options *o, Bench *b) {
  TRY(parse_bytes("-b", o->begin, &b->first));
  TRY(parse_bytes("-e", o->end, &b->last));
  if (b->last < b->first) return fail(ERR_USAGE, "-e %s is less than -b %s", o->end, o->begin);
  TRY(option_between("--factor", o->factor, 2, 1 << 20));
  TRY(transport_choose(o->comm, &b->transport));
  if (o->ranks != NOT_GIVEN) TRY(option_between("--ranks", o->ranks, 1, MOST_RANKS));
  TRY(option_between("--rounds", o->rounds, 1, MOST_ROUNDS));
  TRY(option_between("--warmup", o->warmup, 0, MOST_ROUNDS));
  b->dtype = dtype_parse(o->dtype);
  if (b->dtype == DT_NONE || !dtype_is_compute(b->dtype))
    return fail(ERR_USAGE, "--dtype %s: not a dtype that can be computed with", o->dtype);
  if (!reduce_op_parse(o->op, &b->op))
    return fail(ERR_USAGE, "--op %s: not a reduction; there are sum avg min max product band bor bxor", o->op);
  if (reduces(b->kind)) TRY(combine_check(b->op, b->dtype));
  if (o->in_place && (b->kind == COLL_REDUCE_SCATTER || b->kind == COLL_ALL_TO_ALL || b->kind == COLL_BROADCAST)) {
    return fail(ERR_USAGE, "%s is not done in place", coll_kind_name(b->kind));
  }
  b->factor = o->factor;
  b->ranks = o->ranks != NOT_GIVEN ? (int)o->ranks : transport_has_processes(b->transport) ? 0 : 2;
  b->rounds = (int)o->rounds;
  b->warmup = (int)o->warmup;
  b->in_place = o->in_place;
  b->json = o->json;
  b->timeout = o->timeout;
  if (!(o->timeout >= 0)) return fail(ERR_USAGE, "--timeout takes a number of seconds from 0 (never) on");
  return OK;
}

static const char examples[] = "  tessera COMMAND -b 8 -e 128M -f 2 -n 4\n"
                               "  mpirun -n 4 tessera COMMAND -e 1M\n";

static const Option options[] = {
    {"--begin", 'b', OPT_TEXT, offsetof(Options, begin), "BYTES", "smallest size (default 8)"},
    {"--end", 'e', OPT_TEXT, offsetof(Options, end), "BYTES", "largest size (default 128M)"},
    {"--factor", 'f', OPT_INT, offsetof(Options, factor), "N", "from one size to the next (default 2)"},
    {"--ranks", 'n', OPT_INT, offsetof(Options, ranks), "N",
     "number of ranks (default 2; all that mpirun started)"},
    {"--comm", 0, OPT_TEXT | TAKES_COMM, offsetof(Options, comm), "HOW",
     "threads, or mpi: ranks are the processes of an MPI launch (default there)"},
    {"--dtype", 'd', OPT_TEXT | TAKES_DTYPE, offsetof(Options, dtype), "TYPE", "of the elements (default f32)"},
    {"--op", 'o', OPT_TEXT | TAKES_REDUCTION, offsetof(Options, op), "OP", "reduction (default sum)"},
    {"--rounds", 'r', OPT_INT, offsetof(Options, rounds), "N", "timed rounds per size (default 20)"},
    {"--warmup", 'w', OPT_INT, offsetof(Options, warmup), "N", "rounds before those (default 3)"},
    {"--in-place", 0, OPT_FLAG, offsetof(Options, in_place), NULL,
     "results go where the inputs are (allreduce, allgather)"},
    {"--timeout", 0, OPT_FLOAT, offsetof(Options, timeout), "SECONDS",
     "a rank that waits longer names who is missing and ends the run (default 1800; 0: never)"},
    {"--flight", 0, OPT_TEXT | TAKES_FILE, offsetof(Options, flight), "FILE",
     "on failure, the last collectives of all ranks as JSON (mpi: FILE.RANK each)"},
    {"--json", 0, OPT_FLAG, offsetof(Options, json), NULL, "results as JSON"},
};
const CommandSpec spec_bench_collective = {
    .usage = "[options]", .examples = examples, .words = TAKES_ANYTHING, OPTIONS(options)};

Status bench_collective(const char *name, int argc, char **argv) {
  Options o = {.begin = "8",
               .end = "128M",
               .dtype = "f32",
               .op = "sum",
               .factor = 2,
               .ranks = NOT_GIVEN,
               .rounds = 20,
               .warmup = 3,
               .timeout = 1800};
  char command[64];
  snprintf(command, sizeof command, "bench %s", name);
  TextList words;
  bool help;
  TRY(options_parse(command, &spec_bench_collective, &o, argc, argv, &words, &help));
  if (help) return OK;
  if (words.n) return fail(ERR_USAGE, "bench %s takes options only, not '%s'", name, words.v[0]);
  Bench b = {0};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (!strcmp(name, kinds[i].name)) b.kind = kinds[i].kind;
  }
  TRY(check_options(&o, &b));
  return world_launch(b.transport, b.ranks, measure_on_rank, &b, o.flight);
}
