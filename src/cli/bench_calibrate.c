/* bench_calibrate.c -- `tessera bench calibrate`: this machine as a few numbers, for
 * `tessera plan --machine`.
 *
 * All ranks measure at the same time, as they will work at the same time; the slowest
 * counts.  Of repeated measurements the best counts.  What is measured:
 *
 *   flops             three products, 512 by 512 by 512, by dtype
 *   memory_bandwidth  memcpy of 64 MiB: bytes read and written
 *   update_bandwidth  a step of AdamW over 32 MiB of parameters: bytes read and written
 *   op_latency        an addition of 16 elements
 *   links             all-reduce over all ranks: of 8 bytes (2 ceil(log2 n) latencies), of 16 MiB
 *
 * The products are those of a linear layer in a training step (y = x w^T, dx = dy w, dw = dy^T x): as large as
 * those of models are, of operands that were not used a moment ago, and short enough that some are disturbed by
 * nobody.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "comm/launch.h"
#include "kernels/optim.h"
#include "ops/op.h"
#include "report/machine.h"

enum {
  SIDE = 512,
  OPERANDS = 24, /* matrices that take turns: together more than caches hold */
  COPY_BYTES = 64 << 20,
  UPDATE_BYTES = 32 << 20,
  REDUCE_BYTES = 16 << 20,
  SMALL_CALLS = 200,
  SMALL_ROUNDS = 20,
  MOST_RANKS = 256
};
static const Dtype dtypes[] = {DT_F32, DT_F64, DT_BF16, DT_F16};
enum { DTYPES_MEASURED = sizeof dtypes / sizeof *dtypes };

typedef struct {
  const char *output, *name, *comm;
  int64_t ranks, threads;
  double seconds; /* of each measurement */
  bool force, json;
  const Transport *transport;
  Machine machine; /* rank 0's result */
  bool measured;   /* in this process */
} Calibration;

typedef struct {
  Calibration *o;
  World *world;
  Ctx ctx;
  Scope scope; /* inputs */
  double flops[DTYPES_MEASURED], memory, update, op, latency, bandwidth;
} Rank;

/* ---- one op ------------------------------------------------------------------------------------ */

static Status call_op(Rank *r, const char *name, Tensor *x, Tensor *w) {
  Scope scope = {0};
  Arena arena = {0};
  Tensor *y;
  Call c = {.ctx = &r->ctx, .op = op_find(name), .scope = &scope, .arena = &arena};
  Status s = OP(&c, name, &y, val_tensor(x), val_tensor(w));
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

/* Seconds of op(x, w), the best of calls in o->seconds; `batch` calls are timed together. */
static Status time_op(Rank *r, const char *name, Tensor *x, Tensor *w, int batch, double *best) {
  double begun = clock_now();
  *best = INFINITY;
  do {
    double start = clock_now();
    for (int i = 0; i < batch; i++) TRY(call_op(r, name, x, w));
    *best = fmin(*best, (clock_now() - start) / batch);
  } while (clock_now() - begun < r->o->seconds);
  return OK;
}

/* Seconds of one product, the best of calls with operands that take turns. */
static Status time_product(Rank *r, const char *name, Tensor *const *x, Tensor *const *w, double *best) {
  double begun = clock_now();
  *best = INFINITY;
  for (int i = 0; clock_now() - begun < r->o->seconds || i < 2; i++) {
    double start = clock_now();
    TRY(call_op(r, name, x[i % OPERANDS], w[(i + 1) % OPERANDS]));
    *best = fmin(*best, clock_now() - start);
  }
  return OK;
}

static Status new_ones(Rank *r, Dtype d, int ndim, const int64_t *size, Tensor **out) {
  Value one = val_float(1);
  TRY(tensor_new(&r->scope, d, ndim, size, out));
  char *data = tensor_data(*out);
  for (int64_t i = 0; i < tensor_numel(*out); i++) val_store(&one, d, data + (size_t)i * dtype_size(d));
  return OK;
}

static Status transposed(Rank *r, const Tensor *t, Tensor **out) {
  const int64_t size[2] = {t->size[1], t->size[0]}, stride[2] = {t->stride[1], t->stride[0]};
  return tensor_as_strided(&r->scope, t, 2, size, stride, t->offset, out);
}

static Status measure_products(Rank *r, Dtype d, double *flops) {
  const int64_t size[2] = {SIDE, SIDE};
  Tensor *plain[OPERANDS], *turned[OPERANDS];
  double forward, back, weight;
  for (int i = 0; i < OPERANDS; i++) {
    TRY(new_ones(r, d, 2, size, &plain[i]));
    TRY(transposed(r, plain[i], &turned[i]));
  }
  TRY(comm_barrier(world_comm(r->world), "calibrate"));
  TRY(time_product(r, "aten.linear.default", plain, plain, &forward));
  TRY(time_product(r, "aten.matmul.default", plain, plain, &back));
  TRY(time_product(r, "aten.matmul.default", turned, plain, &weight));
  *flops = 3 * 2.0 * SIDE * SIDE * SIDE / (forward + back + weight);
  return OK;
}

static Status measure_flops(Rank *r) {
  for (int i = 0; i < DTYPES_MEASURED; i++) {
    TRY(measure_products(r, dtypes[i], &r->flops[i]));
    scope_clear(&r->scope);
  }
  return OK;
}

static Status measure_op(Rank *r) {
  const int64_t size[1] = {16};
  Tensor *x, *w;
  TRY(new_ones(r, DT_F32, 1, size, &x));
  TRY(new_ones(r, DT_F32, 1, size, &w));
  Status s = time_op(r, "aten.add.Tensor", x, w, 1000, &r->op);
  scope_clear(&r->scope);
  return s;
}

static Status measure_memory(Rank *r) {
  char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
  Status s = from && to ? OK : fail_oom();
  if (!s) {
    memset(from, 1, COPY_BYTES);
    memset(to, 2, COPY_BYTES);
    s = comm_barrier(world_comm(r->world), "calibrate");
  }
  double best = INFINITY, begun = clock_now();
  while (!s && clock_now() - begun < r->o->seconds) {
    double start = clock_now();
    memcpy(to, from, COPY_BYTES);
    best = fmin(best, clock_now() - start);
    from[(unsigned char)to[COPY_BYTES / 2]]++; /* the copy is needed */
  }
  r->memory = 2.0 * COPY_BYTES / best;
  free(from);
  free(to);
  return s;
}

/* A parameter, its gradient and two states; the gradient alone is not written. */
static Status measure_update(Rank *r) {
  enum { ARRAYS = 4, READ_AND_WRITTEN = 2 * ARRAYS - 1 };
  const Optim adamw = {.kind = OPTIM_ADAM,
                       .lr = 1e-3,
                       .eps = 1e-8,
                       .unscale = 1,
                       .beta1 = 0.9,
                       .beta2 = 0.999,
                       .step = 1,
                       .decoupled = true};
  const Dtype f32[OPTIM_ARRAYS] = {DT_F32, DT_F32, DT_F32, DT_F32, DT_F32};
  const int64_t size[1] = {UPDATE_BYTES / (int64_t)sizeof(float)};
  void *data[OPTIM_ARRAYS] = {NULL};
  for (int i = 0; i < ARRAYS; i++) {
    Tensor *t;
    TRY(new_ones(r, DT_F32, 1, size, &t));
    data[i] = tensor_data(t);
  }
  TRY(comm_barrier(world_comm(r->world), "calibrate"));
  double best = INFINITY, begun = clock_now();
  do {
    double start = clock_now();
    kernel_optim_step(&r->ctx.kern, &adamw, f32, data, size[0]);
    best = fmin(best, clock_now() - start);
  } while (clock_now() - begun < r->o->seconds);
  r->update = (double)READ_AND_WRITTEN * UPDATE_BYTES / best;
  scope_clear(&r->scope);
  return OK;
}

/* ---- collectives -------------------------------------------------------------------------------- */

static Status time_reduce(Rank *r, float *send, float *recv, int64_t count, int calls, double *seconds) {
  Coll c = {.kind = COLL_ALL_REDUCE,
            .dtype = DT_F32,
            .op = REDUCE_SUM,
            .send = send,
            .recv = recv,
            .count = count,
            .why = "calibrate"};
  Comm *all = world_comm(r->world);
  TRY(comm_run(all, &c));
  TRY(comm_barrier(all, "calibrate"));
  double start = clock_now();
  for (int i = 0; i < calls; i++) TRY(comm_run(all, &c));
  *seconds = (clock_now() - start) / calls;
  return OK;
}

static Status measure_links(Rank *r) {
  const double n = world_size(r->world), hops = 2 * ceil(log2(n));
  float *send = calloc(1, REDUCE_BYTES), *recv = calloc(1, REDUCE_BYTES);
  Status s = send && recv ? OK : fail_oom();
  double small = INFINITY, large = INFINITY, seconds = 0;
  for (int i = 0; i < SMALL_ROUNDS && !s && n > 1; i++) {
    s = time_reduce(r, send, recv, 2, SMALL_CALLS, &seconds);
    small = fmin(small, seconds);
    if (!s) s = time_reduce(r, send, recv, REDUCE_BYTES / (int64_t)sizeof *send, 1, &seconds);
    large = fmin(large, seconds);
  }
  free(send);
  free(recv);
  if (n < 2) return s;
  r->latency = small / hops;
  r->bandwidth = 2 * (n - 1) / n * REDUCE_BYTES / fmax(large - small, 1e-9);
  return s;
}

/* ---- all of it ------------------------------------------------------------------------------------- */

/* What the slowest rank has; times as their reciprocals. */
static Status slowest(Rank *r) {
  enum { NUMBERS = DTYPES_MEASURED + 5 };
  double mine[NUMBERS], all[NUMBERS];
  memcpy(mine, r->flops, sizeof r->flops);
  mine[DTYPES_MEASURED] = r->memory;
  mine[DTYPES_MEASURED + 1] = r->bandwidth;
  mine[DTYPES_MEASURED + 2] = 1 / r->op;
  mine[DTYPES_MEASURED + 3] = r->latency > 0 ? 1 / r->latency : 0;
  mine[DTYPES_MEASURED + 4] = r->update;
  TRY(comm_run(world_comm(r->world), &(Coll){.kind = COLL_ALL_REDUCE,
                                             .dtype = DT_F64,
                                             .op = REDUCE_MIN,
                                             .send = mine,
                                             .recv = all,
                                             .count = NUMBERS,
                                             .why = "calibrate"}));
  Machine *m = &r->o->machine;
  if (world_rank(r->world)) return OK;
  r->o->measured = true;
  for (int i = 0; i < DTYPES_MEASURED; i++) m->flops[dtypes[i]] = all[i];
  m->memory_bandwidth = all[DTYPES_MEASURED];
  m->op_latency = 1 / all[DTYPES_MEASURED + 2];
  m->update_bandwidth = all[DTYPES_MEASURED + 4];
  m->memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE) / world_size(r->world);
  if (world_size(r->world) < 2) return OK;
  m->nlinks = 1;
  m->link[0] = (MachineLink){"default", all[DTYPES_MEASURED + 1], 1 / all[DTYPES_MEASURED + 3]};
  return OK;
}

static Status measure_on_rank(World *w, void *arg) {
  Rank r = {.o = arg, .world = w};
  ctx_init(&r.ctx, r.o->threads == NOT_GIVEN ? 1 : (int)r.o->threads);
  Status s = measure_flops(&r);
  if (!s) s = measure_memory(&r);
  if (!s) s = measure_update(&r);
  if (!s) s = measure_op(&r);
  if (!s) s = measure_links(&r);
  if (!s) s = slowest(&r);
  scope_clear(&r.scope);
  ctx_free(&r.ctx);
  return s;
}

static void print_summary(const Calibration *o) {
  const Machine *m = &o->machine;
  char x[32], y[32];
  printf("a rank of '%s'\n", m->name);
  for (int i = 0; i < DTYPES_MEASURED; i++)
    printf("  %-18s %s/s %s\n", i ? "" : "arithmetic", human_flops(m->flops[dtypes[i]], x, sizeof x),
           dtype_name(dtypes[i]));
  printf("  %-18s %.2f GB/s copied, %.2f by optimizers\n  %-18s %s\n", "memory", m->memory_bandwidth * 1e-9,
         m->update_bandwidth * 1e-9, "an op, at least", human_seconds(m->op_latency, x, sizeof x));
  if (m->nlinks)
    printf("  %-18s %.2f GB/s, %s\n", "to other ranks", m->link[0].bandwidth * 1e-9,
           human_seconds(m->link[0].latency, y, sizeof y));
}

static Status tell(const Calibration *o) {
  TextBuf b = {0};
  machine_print(&b, &o->machine);
  Status s = b.failed ? fail_oom() : OK;
  if (!s && o->output) s = file_write_all(o->output, b.text, b.len, o->force ? FILE_OVERWRITE : 0);
  if (!s && o->output && !o->json) print_summary(o);
  else if (!s) fputs(b.text, stdout);
  text_free(&b);
  return s;
}

static Status check_options(Calibration *o) {
  TRY(option_between("--ranks", o->ranks, 1, MOST_RANKS));
  TRY(option_between("--threads", o->threads, 1, MOST_THREADS));
  if (!(o->seconds > 0 && o->seconds <= 60)) return fail(ERR_USAGE, "--seconds must be above 0 and at most 60");
  TRY(transport_choose(o->comm, &o->transport));
  snprintf(o->machine.name, sizeof o->machine.name, "%s", o->name);
  return o->output ? output_check(o->output, o->force) : OK;
}

static const char examples[] = "  tessera bench calibrate -o machine.json\n"
                               "  tessera bench calibrate --ranks 4 --threads 2 -o machine.json\n"
                               "  mpirun -n 8 tessera bench calibrate -o machine.json\n"
                               "  tessera plan model.pt2 --mesh tp=2 --plan plan.json --machine machine.json\n";

static const Option options[] = {
    {"--output", 'o', OPT_TEXT | TAKES_FILE, offsetof(Calibration, output), "FILE",
     "write the machine there (JSON; default: to standard output)"},
    {"--ranks", 'n', OPT_INT, offsetof(Calibration, ranks), "N",
     "thread ranks that work at the same time (default 2)"},
    {"--threads", 't', OPT_INT, offsetof(Calibration, threads), "T", "threads of each rank (default 1)"},
    {"--name", 0, OPT_TEXT, offsetof(Calibration, name), "NAME", "of the machine (default: calibrated)"},
    {"--seconds", 0, OPT_FLOAT, offsetof(Calibration, seconds), "S", "for each measurement (default 0.3)"},
    {"--comm", 0, OPT_TEXT | TAKES_COMM, offsetof(Calibration, comm), "HOW",
     "threads, or mpi: ranks are the processes of an MPI launch (default there)"},
    {"--json", 0, OPT_FLAG, offsetof(Calibration, json), NULL,
     "with -o: the machine to standard output, too, instead of a summary"},
    {"--force", 'f', OPT_FLAG, offsetof(Calibration, force), NULL, "overwrite FILE"},
};
const CommandSpec spec_bench_calibrate = {
    .usage = "[options]", .examples = examples, .words = TAKES_ANYTHING, OPTIONS(options)};

Status bench_calibrate(const char *name, int argc, char **argv) {
  (void)name;
  Calibration o = {.name = "calibrated", .ranks = NOT_GIVEN, .threads = NOT_GIVEN, .seconds = 0.3};
  TextList words;
  bool help;
  TRY(options_parse("bench calibrate", &spec_bench_calibrate, &o, argc, argv, &words, &help));
  if (help) return OK;
  if (words.n) return fail(ERR_USAGE, "bench calibrate takes options only, not '%s'", words.v[0]);
  TRY(check_options(&o));
  int ranks = o.ranks != NOT_GIVEN ? (int)o.ranks : transport_has_processes(o.transport) ? 0 : 2;
  TRY(world_launch(o.transport, ranks, measure_on_rank, &o, NULL));
  return o.measured ? tell(&o) : OK;
}
