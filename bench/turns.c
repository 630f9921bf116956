/* turns.c -- runs a program when it is told to, so that bench/forward and
 * bench/tensor_parallel can let several libraries take turns within seconds.
 *
 *     turns PROGRAM INPUTS [--threads T] [--mesh tp=2 --plan plan.json] [--grad|--train]
 *
 * With a mesh its ranks are threads of T threads each, and a run is over when the last is.
 *
 * Prints one JSON object when it has warmed up, and for each line that it reads the seconds
 * of one run, on the wall and of the processor: [1.5, 1.5].  Ends with its input.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dist/dispatch.h"
#include "harness/feed.h"
#include "pt2/read.h"
#include "runtime/ranks.h"
#include "runtime/session.h"

enum { WARMUP = 3 }; /* weights are packed on their second use */

static double read_clock(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static double now(void) { return read_clock(CLOCK_MONOTONIC); }

static Status run_once(Session *session, const Value *inputs, int n, double *wall, double *cpu) {
  Scope scope = {0};
  Arena arena = {0};
  Value *outs;
  int nouts;
  double start = now(), start_cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID);
  Status s = session_run(session, inputs, n, &scope, &arena, &outs, &nouts);
  *cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID) - start_cpu;
  *wall = now() - start;
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

typedef struct {
  const char *program, *inputs, *mesh, *plan;
  int threads;
  bool grad;  /* the gradients of the loss by all parameters, too */
  bool train; /* a step of AdamW with clipping */
} Options;

static Status open_training(Ctx *ctx, Exported *e, Session **session) {
  Prepared *p;
  Recipe r;
  TRY(recipe_init(&r, &ctx->arena, "adamw,lr=1e-4,weight_decay=0.01"));
  TRY(recipe_clip(&r, "1.0"));
  TRY(prepare(ctx, e, &p));
  Status s = prepare_update(p, &r, NULL);
  if (!s) s = session_open_prepared(ctx, p, NULL, session);
  prepared_unref(p);
  return s;
}

static Status open_session(Ctx *ctx, const Options *o, Session **session) {
  Exported *e;
  Mesh *mesh;
  PlanFile *plan;
  TRY(pt2_read(o->program, &e));
  if (o->train) return open_training(ctx, e, session);
  if (!o->mesh) return session_open(ctx, e, session);
  TRY(mesh_parse(ctx->dist, o->mesh, &mesh));
  TRY(plan_file_read(o->plan, &plan));
  Status s = session_open_on_mesh(ctx, e, mesh, plan, session);
  plan_file_free(plan);
  return s;
}

/* Rank 0 reads; all know whether there is another turn. */
static Status another_turn(World *w, bool *more) {
  int64_t go = 0;
  if (!w || world_rank(w) == 0) {
    int c = getchar();
    while (c != '\n' && c != EOF) c = getchar();
    go = c == '\n';
  }
  if (w)
    TRY(comm_run(world_comm(w),
                 &(Coll){.kind = COLL_BROADCAST, .dtype = DT_I64, .send = &go, .recv = &go, .count = 1}));
  *more = go;
  return OK;
}

static Status timed(World *w, Session *session, const Value *inputs, int n, double *wall, double *cpu) {
  if (w) TRY(comm_barrier(world_comm(w), "turn"));
  double start = now(), start_cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID);
  TRY(run_once(session, inputs, n, wall, cpu));
  if (w) TRY(comm_barrier(world_comm(w), "turn"));
  *cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID) - start_cpu;
  *wall = now() - start;
  return OK;
}

static Status take_turns(Ctx *ctx, World *w, const Options *o, Scope *scope, Arena *arena, Session **session) {
  Value *inputs;
  Program *compiled;
  int n;
  bool more, speaks = !w || world_rank(w) == 0;
  double start = now(), wall, cpu;
  TRY(open_session(ctx, o, session));
  if (o->grad) TRY(session_want_gradients(*session, &(GradOptions){0}));
  double open = now() - start;
  TRY(feed_from_file(session_program(*session), o->inputs, scope, arena, &inputs, &n));
  start = now();
  TRY(session_prepare(*session, inputs, n, &compiled));
  double compile = now() - start;
  for (int i = 0; i < WARMUP; i++) TRY(timed(w, *session, inputs, n, &wall, &cpu));
  if (speaks) printf("{\"open\": %.6f, \"compile\": %.6f}\n", open, compile);
  fflush(stdout);
  for (;;) {
    TRY(another_turn(w, &more));
    if (!more) return OK;
    TRY(timed(w, *session, inputs, n, &wall, &cpu));
    if (speaks) printf("[%.6f, %.6f]\n", wall, cpu);
    fflush(stdout);
  }
}

static Status on_rank(Ctx *ctx, World *w, void *arg) {
  Session *session = NULL;
  Scope scope = {0};
  Arena arena = {0};
  Dist *dist = NULL;
  Status s = w ? dist_new(w, &dist) : OK;
  if (dist) ctx_attach_dist(ctx, dist);
  if (!s) s = take_turns(ctx, w, arg, &scope, &arena, &session);
  session_free(session);
  scope_clear(&scope);
  arena_free(&arena);
  if (dist) ctx_detach_dist(ctx);
  dist_free(dist);
  return s;
}

static Status run(int argc, char **argv) {
  Options o = {.threads = 1, .plan = "auto"};
  if (argc < 3)
    return fail(ERR_USAGE, "usage: turns PROGRAM INPUTS [--threads T] [--mesh tp=2 --plan plan.json] "
                           "[--grad|--train]");
  o.program = argv[1];
  o.inputs = argv[2];
  for (int i = 3; i < argc; i++) {
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (!strcmp(argv[i], "--threads")) o.threads = atoi(value);
    if (!strcmp(argv[i], "--mesh")) o.mesh = value;
    if (!strcmp(argv[i], "--plan")) o.plan = value;
    if (!strcmp(argv[i], "--grad")) o.grad = true;
    if (!strcmp(argv[i], "--train")) o.train = true;
  }
  if (o.mesh) {
    Ranks ranks = {.threads = o.threads};
    TRY(mesh_text_ranks(o.mesh, &ranks.n));
    return ranks_run(&ranks, on_rank, &o);
  }
  Ctx ctx;
  ctx_init(&ctx, o.threads);
  Status s = on_rank(&ctx, NULL, &o);
  ctx_free(&ctx);
  return s;
}

int main(int argc, char **argv) {
  Status s = run(argc, argv);
  if (!s) return 0;
  fprintf(stderr, "error: %s\n", status_message(s));
  int code = (int)status_code(s);
  status_free(s);
  return code;
}
