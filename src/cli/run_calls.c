/* run_calls.c -- see run_calls.h.
 *
 * Ranks whose outputs are the same bits speak with one voice: rank 0 saves, prints and
 * compares.  Else each does, and rank 0 prints what they say, one after the other.
 *
 * With --json all of it is one document: {"program": ..., "calls": [{"times": ..., "check": ...,
 * "profile": ..., "outputs": [...], "expect": [...]}]}, where ranks that differ have outputs and
 * expect each, in "ranks".  A call that fails is there as far as it came. */
#include "cli/run_calls.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/progress.h"
#include "cli/outputs.h"
#include "cli/profile.h"
#include "cli/rank_files.h"
#include "cli/run_check.h"
#include "dist/dispatch.h"
#include "harness/compare.h"
#include "harness/feed.h"
#include "harness/rank_results.h"
#include "harness/trace_save.h"

typedef struct {
  Ctx *ctx;
  World *world; /* NULL: alone */
  int rank, ranks;
  Session *session;
  const RunOptions *o;
  Scope scope;   /* inputs */
  Scope results; /* outputs of the last run */
  Arena arena, results_arena;
  Progress bar;  /* over the steps of all runs */
  double *times; /* seconds of each repetition */
  double open_seconds;
  Ctx alone; /* of the reference, with --check */
  RunCheck check;
  const char **gradient; /* names by output, with --grad; else NULL */
  Arena names;
  FILE *out; /* what this rank says of the present call */
  char *said;
  size_t nsaid;
  int members;  /* of the call's JSON object so far */
  TextBuf json; /* rank 0: the calls so far */
} RunState;

/* ---- saying ----------------------------------------------------------------------------------- */

static Status begin_call(RunState *r) {
  r->members = 0;
  TRY_NEW(r->out, open_memstream(&r->said, &r->nsaid));
  return OK;
}

/* Also of a call that failed. */
static void end_call(RunState *r) {
  if (!r->out) return;
  bool failed = fclose(r->out);
  r->out = NULL;
  if (r->rank == 0 && !r->o->json && !failed) fwrite(r->said, 1, r->nsaid, stdout);
  if (r->rank == 0 && r->o->json) {
    text_puts(&r->json, r->json.len ? ",\n  {" : "{");
    text_write(&r->json, r->said ? r->said : "", r->nsaid);
    text_puts(&r->json, "}");
    r->json.failed |= failed;
  }
  free(r->said);
  r->said = NULL;
}

/* The next member of the call's object. */
static void json_key(RunState *r, FILE *f, const char *key) {
  if (r->o->json) fprintf(f, "%s\"%s\": ", r->members++ ? ", " : "", key);
}

static Status print_document(const RunState *r) {
  TextBuf b = {0};
  if (!r->json.len) return OK;
  text_puts(&b, "{\"program\": ");
  text_json(&b, r->o->path);
  if (r->world) text_printf(&b, ", \"ranks\": %d", r->ranks);
  text_printf(&b, ", \"calls\": [\n  %s\n]}\n", r->json.text);
  Status s = b.failed || r->json.failed ? fail_oom() : OK;
  if (!s) fputs(b.text, stdout);
  text_free(&b);
  return s;
}

int run_count_calls(const RunOptions *o) { return o->random || o->inputs.n == 0 ? 1 : o->inputs.n; }
static int64_t timed_runs(const RunOptions *o) { return o->repeat == NOT_GIVEN ? 1 : o->repeat; }

static Status feed(RunState *r, int call, Value **inputs, int *n) {
  const RunOptions *o = r->o;
  const Exported *e = session_program(r->session);
  const char *path = call < o->inputs.n ? o->inputs.v[call] : NULL;
  if (o->random) return feed_random(e, (uint64_t)o->seed + (uint64_t)call, false, &r->scope, &r->arena, inputs, n);
  bool whole = r->world && o->cuts && path && rank_input_is_common(path);
  if (r->world && path) TRY(rank_input(&r->arena, path, r->rank, r->ranks, &path));
  TRY(feed_from_file(e, path, &r->scope, &r->arena, inputs, n));
  return whole ? folder_inputs_shard(o->cuts, &r->ctx->kern, r->rank, &r->scope, *inputs, *n) : OK;
}

/* Stateful programs must not run more often than asked: repetitions are timed runs. */
static Status timed(RunState *r, const Value *inputs, int ninputs, Value **outs, int *nouts) {
  for (int64_t k = -r->o->warmup; k < timed_runs(r->o); k++) {
    scope_clear(&r->results);
    arena_free(&r->results_arena);
    if (k == 0) session_forget_times(r->session); /* a profile is of the runs that are timed */
    if (r->world && r->o->repeat != NOT_GIVEN) TRY(comm_barrier(world_comm(r->world), "run"));
    double start = clock_now();
    TRY(session_run(r->session, inputs, ninputs, &r->results, &r->results_arena, outs, nouts));
    if (k >= 0) r->times[k] = clock_now() - start;
  }
  return OK;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Of ranks, the slowest counts. */
static Status print_times(RunState *r, double compile) {
  int64_t n = r->o->repeat;
  double open = r->open_seconds * 1e3;
  if (r->world) TRY(rank_results_slowest(r->world, r->times, n));
  if (r->rank) return OK;
  qsort(r->times, (size_t)n, sizeof *r->times, by_value);
  double least = r->times[0] * 1e3, median = r->times[n / 2] * 1e3;
  if (r->o->json) {
    json_key(r, r->out, "times");
    fprintf(r->out,
            "{\"runs\": %lld, \"min_ms\": %.4f, \"median_ms\": %.4f, \"open_ms\": %.4f, \"compile_ms\": %.4f}",
            (long long)n, least, median, open, compile * 1e3);
    return OK;
  }
  fprintf(r->out, "%lld run%s", (long long)n, PLURAL(n));
  if (r->world) fprintf(r->out, " on %d rank%s", r->ranks, PLURAL(r->ranks));
  fprintf(r->out, ": min %.3f ms, median %.3f ms (open %.1f ms, compile %.1f ms)\n", least, median, open,
          compile * 1e3);
  return OK;
}

/* What a call gave, as the values of all ranks (alone) or of this one among others. */
typedef struct {
  RunState *run;
  int call;
  const Value *inputs;
  int ninputs;
  OutputList outs;
  bool agree; /* with all ranks, or alone */
} Report;

static Status save(const Report *p) {
  const RunState *r = p->run;
  const RunOptions *o = r->o;
  if (p->call >= o->outputs.n) return OK;
  const char *path = o->outputs.v[p->call];
  bool own = r->world && (!p->agree || rank_output_is_own(path));
  if (own) TRY(rank_output(&p->run->arena, path, r->rank, &path));
  Status s = own || r->rank == 0 ? outputs_save(path, &p->outs, o->force) : OK;
  if (s && o->unwritten) atomic_store(o->unwritten, true);
  return s;
}

static Status save_trace(const Report *p) {
  const RunState *r = p->run;
  TraceFile f = {.path = r->o->trace, .program = r->o->path, .force = r->o->force};
  Status s = trace_save(&f, r->world, r->session, NULL);
  if (s && r->rank == 0 && r->o->unwritten) atomic_store(r->o->unwritten, true);
  return s;
}

static Status show_expected(const Report *p, FILE *f) {
  const RunState *r = p->run;
  const RunOptions *o = r->o;
  const char *expect = o->expect.v[p->call];
  if (r->world) TRY(rank_input(&p->run->arena, expect, r->rank, r->ranks, &expect));
  if (o->json) fputs(", \"expect\": [", f);
  Status s = compare_with_file(f, expect, &p->outs, o->rtol, o->atol, o->json);
  if (o->json) fputs("]", f);
  return s;
}

/* The outputs as one rank has them. */
static Status show(const Report *p, FILE *f) {
  const RunState *r = p->run;
  const RunOptions *o = r->o;
  bool expected = p->call < o->expect.n;
  if (o->json) {
    fputs("\"outputs\": ", f);
    TRY(outputs_print_json(f, &p->outs, o->print_outputs));
  } else {
    if (!p->agree && (o->print_outputs || expected || o->nothing_asked)) fprintf(f, "rank %d:\n", r->rank);
    if (o->print_outputs) TRY(outputs_print(f, &p->outs));
    if (o->nothing_asked) TRY(outputs_list(f, &p->outs));
  }
  return expected ? show_expected(p, f) : OK;
}

/* Of all ranks, which differ: rank 0 says it. */
static Status show_all(const Report *p) {
  RunState *r = p->run;
  char *text = NULL;
  size_t size = 0;
  TextBuf all = {0};
  FILE *f = open_memstream(&text, &size);
  if (!f) return fail_oom(); /* which ends the run on all */
  if (r->o->json) fprintf(f, "%s{\"rank\": %d, ", r->rank ? ", " : "", r->rank);
  Status mine = show(p, f);
  if (r->o->json) fputs("}", f);
  Status s = fclose(f) ? fail_oom() : rank_results_texts(r->world, text, size, &all);
  if (!s && all.failed) s = fail_oom();
  if (!s && r->rank == 0) {
    json_key(r, r->out, "ranks");
    if (r->o->json) fprintf(r->out, "[%s]", all.text ? all.text : "");
    else fputs(all.text ? all.text : "", r->out);
  }
  free(text);
  text_free(&all);
  if (mine) status_free(s);
  return mine ? mine : s;
}

static Status report(Report *p) {
  RunState *r = p->run;
  const RunOptions *o = r->o;
  p->agree = true;
  if (r->world) TRY(rank_results_agree(r->world, p->outs.v, p->outs.n, &p->agree));
  TRY(save(p));
  if (o->profile && r->rank == 0) {
    json_key(r, r->out, "profile");
    TRY(profile_print(r->out, r->session, o->json));
  }
  if (o->trace && p->call + 1 == run_count_calls(o)) TRY(save_trace(p));
  bool expects_own = p->call < o->expect.n && r->world && !rank_input_is_common(o->expect.v[p->call]);
  p->agree &= !expects_own;
  if (!p->agree) return show_all(p);
  if (r->rank) return OK;
  if (r->o->json && r->members++) fputs(", ", r->out);
  return show(p, r->out);
}

/* The call itself, and whether its nodes gave what one rank's give. */
static Status run_call(RunState *r, const Value *inputs, int ninputs, Value **outs, int *nouts) {
  bool nodes = r->o->check && *r->o->check;
  if (r->o->check) TRY(run_check_begin(&r->check, inputs, ninputs));
  Status s = timed(r, inputs, ninputs, outs, nouts);
  progress_end(&r->bar);
  if (!s && r->gradient) s = session_gather_gradients(r->session, inputs, &r->results, *outs, *nouts);
  if (!s && r->gradient && nodes) s = run_check_gradients(&r->check, &(OutputList){*outs, *nouts, r->gradient});
  if (nodes && r->rank == 0) {
    json_key(r, r->out, "check");
    run_check_nodes(&r->check, s, r->out);
  }
  TRY(s);
  if (!r->o->check || nodes) return OK;
  FILE *f = r->rank == 0 ? r->out : fopen("/dev/null", "w"); /* what differs elsewhere is its rank's error */
  if (!f) return fail(ERR_FAIL, "cannot open /dev/null");
  if (r->rank == 0) json_key(r, f, "check");
  s = run_check_outputs(&r->check, inputs, ninputs, &(OutputList){*outs, *nouts, r->gradient}, f);
  if (r->rank) fclose(f);
  return s;
}

static Status one_call(RunState *r, int call) {
  const RunOptions *o = r->o;
  Value *inputs, *outs;
  int ninputs, nouts = 0;
  int64_t steps;
  TRY(feed(r, call, &inputs, &ninputs));
  double start_compile = clock_now();
  TRY(session_steps(r->session, inputs, ninputs, &steps));
  double compile = clock_now() - start_compile;
  r->bar.total = r->bar.done + (run_count_calls(o) - call) * (o->warmup + timed_runs(o)) * steps;
  TRY(begin_call(r));
  TRY(run_call(r, inputs, ninputs, &outs, &nouts));
  if (o->repeat != NOT_GIVEN) TRY(print_times(r, compile));
  TRY(report(
      &(Report){.run = r, .call = call, .inputs = inputs, .ninputs = ninputs, .outs = {outs, nouts, r->gradient}}));
  scope_clear(&r->results);
  scope_clear(&r->scope);
  arena_free(&r->results_arena);
  arena_free(&r->arena);
  return OK;
}

/* --grad: the session gives them behind its outputs; --memory limits what it keeps for them. */
static Status want_gradients(const RunState *r, Session *s) {
  MemoryLimit limit;
  if (r->o->memory) {
    TRY(memory_limit_parse(r->o->memory, &limit));
    session_limit_memory(s, limit);
  }
  if (!r->o->gradients.names) return OK;
  GradOptions wanted = gradient_words_ask(&r->o->gradients);
  return session_want_gradients(s, &wanted);
}

/* "grad/layers.0.weight" for each. */
static Status name_gradients(RunState *r) {
  const GradRequest *g = session_gradients(r->session);
  const Exported *e = session_program(r->session);
  int n = 0;
  if (!g) return OK;
  for (int i = 0; i < e->graph->noutputs; i++) n += output_is_returned(e->outputs[i].kind);
  TRY_NEW(r->gradient, arena_new_n(&r->names, const char *, n + g->n));
  for (int k = 0; k < g->n; k++) {
    const char *of = grad_output(e, g, e->graph->noutputs + k).target;
    TRY_NEW(r->gradient[n + k], arena_printf(&r->names, "grad/%s", of));
  }
  return OK;
}

/* On the mesh: the world has as many ranks. */
static Status open_on_mesh(RunState *r, Prepared *p) {
  Mesh *mesh;
  TRY(mesh_parse(r->ctx->dist, r->o->mesh, &mesh));
  if (mesh->size != r->ranks)
    return status_hint(fail(ERR_USAGE, "the mesh %s has %d ranks, but there %s %d", r->o->mesh, mesh->size,
                            r->ranks == 1 ? "is" : "are", r->ranks),
                       "start as many processes as the mesh has ranks");
  TRY(session_open_prepared(r->ctx, p, mesh, &r->session));
  TRY(want_gradients(r, r->session));
  if (!r->o->check) return OK;
  r->check.rtol = r->o->rtol;
  r->check.atol = r->o->atol;
  r->check.json = r->o->json;
  TRY(run_check_open(&r->check, &r->alone, p, r->session, r->o->check));
  return r->check.alone ? want_gradients(r, r->check.alone) : OK;
}

static Status open_and_call(RunState *r, Prepared *p) {
  const RunOptions *o = r->o;
  double start = clock_now();
  TRY(o->mesh ? open_on_mesh(r, p) : session_open_prepared(r->ctx, p, NULL, &r->session));
  if (!o->mesh) TRY(want_gradients(r, r->session));
  TRY(name_gradients(r));
  r->open_seconds += clock_now() - start;
  if (o->interpret) session_force_interpreter(r->session);
  session_set_profile(r->session, o->profile || o->trace);
  session_set_progress(r->session, &r->bar);
  progress_begin(&r->bar, r->rank ? NULL : stderr, "running", 0, PROGRESS_SHARE);
  int calls = run_count_calls(o);
  for (int i = 0; i < calls; i++) {
    Status s = one_call(r, i);
    end_call(r);
    if (s) return calls > 1 ? status_at(s, "call %d of %d", i + 1, calls) : s;
  }
  return OK;
}

Status run_calls(Ctx *ctx, World *w, Prepared *p, const RunOptions *o, double load_seconds) {
  RunState r = {.ctx = ctx,
                .world = w,
                .rank = w ? world_rank(w) : 0,
                .ranks = w ? world_size(w) : 1,
                .o = o,
                .open_seconds = load_seconds};
  Dist *dist = NULL;
  r.times = calloc((size_t)timed_runs(o), sizeof *r.times);
  Status s = r.times ? OK : fail_oom();
  ctx_init(&r.alone, ctx->kern.threads);
  if (!s && o->mesh) s = dist_new(w, &dist);
  if (dist) ctx_attach_dist(ctx, dist);
  if (!s) s = open_and_call(&r, p);
  progress_end(&r.bar);
  if (r.rank == 0) {
    Status told = print_document(&r);
    if (s) status_free(told);
    else s = told;
  }
  text_free(&r.json);
  arena_free(&r.names);
  scope_clear(&r.results);
  scope_clear(&r.scope);
  arena_free(&r.results_arena);
  arena_free(&r.arena);
  run_check_close(&r.check);
  session_free(r.session);
  ctx_free(&r.alone);
  if (dist) ctx_detach_dist(ctx);
  dist_free(dist);
  free(r.times);
  return s;
}
