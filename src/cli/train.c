/* train.c -- `tessera train`: a program that returns a loss is trained. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "ckpt/save.h"
#include "cli/profile.h"
#include "cli/train_check.h"
#include "cli/train_output.h"
#include "dist/dispatch.h"
#include "harness/trace_save.h"
#include "runtime/ranks.h"
#include "train/peak.h"
#include "train/saving.h"
#include "train/starting_weights.h"

/* ---- signals ---------------------------------------------------------------------------------------- */

static volatile sig_atomic_t stop_asked; /* signals are the process's, not a rank's */

/* Ends the training after its step. */
static void ask_to_stop(int number) { stop_asked = number; }

/* The same; a second one ends the process, at once. */
static void ask_once(int number) {
  if (stop_asked) {
    signal(number, SIG_DFL);
    raise(number);
  }
  ask_to_stop(number);
}

/* A launcher may send SIGTERM more than once where another process has died, and this one is still to say whom it
 * waited for. */
static void watch_signals(bool launched) {
  struct sigaction once = {.sa_handler = ask_once, .sa_flags = SA_RESTART}, always = once;
  always.sa_handler = ask_to_stop;
  sigemptyset(&once.sa_mask);
  sigemptyset(&always.sa_mask);
  sigaction(SIGINT, &once, NULL);
  sigaction(SIGTERM, launched ? &always : &once, NULL);
}

/* ---- a rank ----------------------------------------------------------------------------------------- */

/* What ranks have in common: those that are threads share it and only read it. */
typedef struct {
  TrainCommand c;
  PlanFile *plan; /* NULL: one rank */
  Recipe recipe;
  NonFinite nonfinite;
  Prepared *prepared;
  atomic_bool failed; /* the training itself did, on some rank: a full disk, a loss that is not finite */
  bool unwritten;     /* -o is asked for, and not there yet, or older than the save */
  Arena arena;
} TrainJob;

typedef struct {
  const TrainJob *job;
  Ctx *ctx;
  World *world; /* NULL: one rank */
  bool writes;  /* this rank speaks, logs and saves for all */
  Trainer *trainer;
  TrainCheck check; /* --check */
  StepWatch watch;
  LoopOptions loop;
  RunFolder *folder; /* --save, of the rank that writes */
  int64_t done;      /* steps of the save that is resumed */
  LoopResult result;
  char *profile;    /* what is told at the end; malloc'ed */
  TraceTimes times; /* with --trace */
  Arena arena;
} Training;

static Status open_data(Training *t) {
  const TrainCommand *c = &t->job->c;
  const Exported *e = trainer_program(t->trainer);
  DataOptions data = train_data(c, false), eval = train_data(c, true);
  TRY(status_at(data_open(e, &data, &t->loop.data), "--data"));
  if (c->eval.n) TRY(status_at(data_open(e, &eval, &t->loop.eval), "--eval"));
  int64_t batches = data_batches(t->loop.data) / t->job->recipe.accumulate;
  t->loop.steps = c->steps != NOT_GIVEN ? c->steps : c->epochs * (batches ? batches : 1);
  const TrainSettings settings = train_settings(c);
  return settings_schedule(&settings, t->loop.steps, &t->loop.schedule);
}

static Status resume(Training *t) {
  Resumed r;
  TRY(trainer_resume(t->trainer, t->job->c.resume, &t->arena, &r));
  t->done = r.step;
  t->loop.samples = r.samples;
  if (r.note && t->writes) fprintf(stderr, "note: %s\n", r.note);
  return OK;
}

static Status open_trainer(Training *t, Mesh *mesh) {
  const TrainCommand *c = &t->job->c;
  t->loop.nonfinite = t->job->nonfinite;
  TRY(trainer_open_on(t->ctx, t->job->prepared, mesh, &t->trainer));
  if (c->memory) {
    MemoryLimit limit;
    TRY(memory_limit_parse(c->memory, &limit));
    session_limit_memory(trainer_session(t->trainer), limit);
  }
  session_set_profile(trainer_session(t->trainer), c->profile || c->trace);
  const SpreadSettings spread = train_spread(c);
  TRY(spread_apply(&spread, &t->arena, t->trainer));
  if (c->check) TRY(train_check_open(&t->check, t->job->prepared, t->trainer, c->check));
  const StartingWeights init = {c->init, c->init_rename.v, c->init_rename.n};
  if (c->init && !c->resume) TRY(status_at(trainer_load_weights(t->trainer, &init), "--init"));
  if (c->resume) TRY(resume(t));
  return open_data(t);
}

/* --profile and --trace: of steps, and so before an evaluation runs something else. */
static Status tell_times(void *arg) {
  Training *t = arg;
  const TrainCommand *c = &t->job->c;
  const Session *s = trainer_session(t->trainer);
  TraceFile f = {.path = c->trace, .program = c->program, .force = c->force};
  size_t size;
  if (c->trace) TRY(trace_save(&f, t->world, s, &t->times));
  if (!c->profile || !t->writes) return OK;
  FILE *text = open_memstream(&t->profile, &size);
  if (!text) return fail_oom();
  Status status = profile_print(text, s, false);
  if (fclose(text) && !status) status = fail_oom();
  return status;
}

static void tell(void *arg, const char *text) {
  const Training *t = arg;
  if (!t->writes) return;
  step_log_pause(t->loop.log);
  fprintf(stderr, "%s\n", text);
}

static Status open_files(Training *t) {
  const TrainCommand *c = &t->job->c;
  LoopOptions *o = &t->loop;
  StepLogOptions log = {.json = c->log,
                        .tensorboard = c->tensorboard,
                        .lines = c->quiet ? NULL : stdout,
                        .bar = c->quiet ? NULL : stderr,
                        .first = t->done + 1,
                        .last = o->steps,
                        .resumed = c->resume != NULL,
                        .force = c->force};
  if (!t->writes) return OK;
  if (c->save) {
    TRY(run_folder_open(c->save, &t->folder));
    TRY(run_folder_check_start(t->folder, t->done));
  }
  return step_log_open(&log, &o->log);
}

static Status open_saver(Training *t) {
  const TrainCommand *c = &t->job->c;
  SaverOptions o = {.keep = {(int)given_or(c->keep, 3), given_or(c->keep_every, 0)}, .beside = !c->save_sync};
  uint64_t most;
  TRY(option_bytes("--save-memory", c->save_memory, &most));
  o.most = (int64_t)most;
  return saver_open(t->trainer, t->folder, &o, &t->loop.save);
}

static Status open_records(Training *t) {
  const TrainCommand *c = &t->job->c;
  LoopOptions *o = &t->loop;
  TRY(open_files(t));
  if (c->save) TRY(open_saver(t));
  o->world = t->world;
  o->eval_every = given_or(c->eval_every, 0);
  o->eval_batches = given_or(c->eval_batches, 0);
  o->save_every = given_or(c->save_every, 0);
  o->find_nonfinite = c->check_finite;
  o->tell = tell;
  o->stop = &stop_asked;
  o->last_step = tell_times;
  t->watch = train_check_watch(&t->check);
  if (c->check) o->watch = &t->watch;
  o->arg = t;
  TRY(train_options_text(c, &t->arena, &o->argv, &o->argc));
  return measure_peak(t->ctx, &o->peak);
}

/* --trace on a mesh: what the last step waited for. */
static void tell_waits(const Training *t) {
  const TraceTimes *x = &t->times;
  char step[32], waited[32];
  if (!t->world || !t->writes || t->job->c.quiet || x->seconds <= 0) return;
  printf("exposed communication: %.1f %% of the last step (%s of %s; %.1f %% on the rank that waits most)\n",
         100 * x->waited / x->seconds, human_seconds(x->waited, waited, sizeof waited),
         human_seconds(x->seconds, step, sizeof step), 100 * x->most / x->seconds);
}

/* --profile: what saves cost the steps of this rank. */
static void tell_saves(const Training *t) {
  char waited[32], copied[32];
  if (!t->loop.save || !t->writes || !t->job->c.profile) return;
  const SaverCost cost = saver_cost(t->loop.save);
  printf("saves held up steps for %s in all; copies took %s at most\n",
         human_seconds(cost.waited, waited, sizeof waited),
         human_bytes((double)cost.copied, copied, sizeof copied));
}

/* What is left behind by the rank that writes; the others help to gather it. */
static Status finish(Training *t, Status s) {
  const TrainCommand *c = &t->job->c;
  if (t->writes) step_log_pause(t->loop.log);
  if (t->profile) fputs(t->profile, stdout);
  if (!s) tell_waits(t);
  if (!s) tell_saves(t);
  if (c->report && t->writes) {
    const char *ended = s ? status_message(s) : t->result.stopped ? "interrupted" : NULL;
    Status reported = train_write_report(t->trainer, c, &t->loop, &t->result, ended);
    if (s) status_free(reported);
    else s = reported;
  }
  if (s) return s;
  if (c->check && t->writes) train_check_tell(&t->check, stdout);
  TRY(train_write_output(t->trainer, c, t->writes));
  if (!t->result.stopped || !t->writes) return OK;
  fprintf(stderr, "stopped after step %lld of %lld by %s%s%s\n", (long long)(t->done + t->result.n),
          (long long)t->loop.steps, t->result.stopped == SIGTERM ? "SIGTERM" : "SIGINT",
          c->save ? "; go on with --resume " : "", c->save ? c->save : "");
  return OK;
}

static Status train_on(Training *t, Mesh *mesh) {
  TRY(open_trainer(t, mesh));
  if (t->done == t->loop.steps && t->job->unwritten) {
    /* Killed behind its last save: what it was to leave behind is still to be written. */
    if (t->writes)
      fprintf(stderr, "%s has made all of its steps; writing %s\n", t->job->c.resume, t->job->c.output);
    return train_write_output(t->trainer, &t->job->c, t->writes);
  }
  if (t->done >= t->loop.steps)
    return status_hint(fail(ERR_USAGE, "%s has made %lld steps, which is all that was asked for", t->job->c.resume,
                            (long long)t->done),
                       "ask for more: --steps N");
  TRY(open_records(t));
  return finish(t, loop_run(t->trainer, &t->loop, t->done + 1, &t->result));
}

static Status train_rank(Ctx *ctx, World *w, void *arg) {
  TrainJob *job = arg;
  Training t = {.job = job, .ctx = ctx, .world = w, .writes = !w || world_rank(w) == 0};
  Dist *dist = NULL;
  Mesh *mesh = NULL;
  Status s = w ? dist_new(w, &dist) : OK;
  if (dist) ctx_attach_dist(ctx, dist);
  ctx->seed = (uint64_t)given_or(job->c.seed, 0);
  if (dist) s = mesh_parse(dist, job->c.mesh, &mesh);
  if (!s) s = train_on(&t, mesh);
  if (s && status_code(s) == ERR_FAIL) atomic_store(&job->failed, true);
  step_log_close(t.loop.log);
  saver_free(t.loop.save);
  run_folder_close(t.folder);
  data_free(t.loop.data);
  data_free(t.loop.eval);
  train_check_close(&t.check);
  trainer_free(t.trainer);
  loop_result_free(&t.result);
  free(t.profile);
  arena_free(&t.arena);
  if (dist) ctx_detach_dist(ctx);
  dist_free(dist);
  return s;
}

/* ---- all of them ------------------------------------------------------------------------------------ */

/* Asked before the work, not after it. */
static Status check_outputs(const TrainCommand *c) {
  const char *const paths[] = {c->output, c->report, c->trace};
  for (int i = 0; i < 3; i++)
    if (paths[i]) TRY(output_check(paths[i], c->force));
  return OK;
}

/* Is what -o names still to be written by a run that is resumed: not there, or left behind by one that was stopped
 * before the newest save? */
static bool is_unwritten(const TrainCommand *c) {
  Arena arena = {0};
  struct stat output, save;
  const char *path;
  if (!c->output) return false;
  if (stat(c->output, &output)) return true;
  Status s = c->resume ? run_latest(c->resume, &arena, &path) : OK;
  bool older = c->resume && !s && !stat(path, &save) &&
               (output.st_mtim.tv_sec < save.st_mtim.tv_sec ||
                (output.st_mtim.tv_sec == save.st_mtim.tv_sec && output.st_mtim.tv_nsec < save.st_mtim.tv_nsec));
  status_free(s);
  arena_free(&arena);
  return older;
}

/* Read, prepared and marked once per process. */
static Status prepare_job(TrainJob *job) {
  Exported *e;
  Ctx ctx;
  const TrainCommand *c = &job->c;
  const TrainSettings settings = train_settings(c);
  TrainerPlan how = {.recipe = &job->recipe, .loss = c->loss};
  TRY(check_outputs(c));
  job->unwritten = is_unwritten(c);
  TRY(mesh_plan_read(&job->c.mesh, c->plan, &job->plan));
  const SpreadSettings spread = train_spread(c);
  TRY(spread_plan(&spread, job->plan, &how));
  if (c->check && !c->mesh)
    return status_hint(fail(ERR_USAGE, "--check compares a mesh's ranks with one rank"), "--mesh dp=2,tp=2");
  TRY(settings_recipe(&settings, &job->arena, &job->recipe));
  job->recipe.keep_gradients = c->check != NULL;
  TRY(settings_nonfinite(&settings, &job->nonfinite));
  TRY(program_load(c->program, NULL, &e));
  ctx_init(&ctx, 1);
  Status s = trainer_prepare(&ctx, e, &how, &job->prepared);
  ctx_free(&ctx);
  return s;
}

static Status train_on_ranks(TrainJob *job) {
  const RankOptions *ro = &job->c.ranks;
  Ranks ranks = {.threads = (int)given_or(job->c.threads, 0), .flight = ro->flight};
  TRY(transport_choose(ro->comm, &ranks.transport));
  TRY(mesh_count_ranks(job->c.mesh, ro, &ranks.n));
  if (ro->timeout != BY_DEFAULT) ranks.timeout = &ro->timeout;
  Status s = ranks_run(&ranks, train_rank, job);
  return atomic_load(&job->failed) ? ranks_plain_failure(s) : s;
}

static Status train_alone(TrainJob *job) {
  Ctx ctx;
  ctx_init(&ctx, threads_or_default(job->c.threads));
  Status s = train_rank(&ctx, NULL, job);
  ctx_free(&ctx);
  return s;
}

Status command_train(int argc, char **argv) {
  TrainJob job = {0};
  bool help;
  Status s = train_options_parse(argc, argv, &job.arena, &job.c, &help);
  if (!s && !help) s = prepare_job(&job);
  if (!s && !help) {
    watch_signals(transport_launched() != NULL);
    s = job.c.mesh ? train_on_ranks(&job) : train_alone(&job);
  }
  prepared_unref(job.prepared);
  plan_file_free(job.plan);
  arena_free(&job.arena);
  return s;
}
