/* train.c -- `tessera train`: a program that returns a loss is trained. */
#include <signal.h>
#include <stdlib.h>

#include "cli/profile.h"
#include "cli/train_output.h"
#include "harness/trace_save.h"
#include "train/peak.h"
#include "train/saving.h"

/* ---- signals ---------------------------------------------------------------------------------------- */

static volatile sig_atomic_t stop_asked;

/* The first ends the training after its step; a second one the process, at once. */
static void ask_to_stop(int number) {
  if (stop_asked) {
    signal(number, SIG_DFL);
    raise(number);
  }
  stop_asked = number;
}

static void watch_signals(void) {
  struct sigaction a = {.sa_handler = ask_to_stop, .sa_flags = SA_RESTART};
  sigemptyset(&a.sa_mask);
  sigaction(SIGINT, &a, NULL);
  sigaction(SIGTERM, &a, NULL);
}

/* ---- the run ---------------------------------------------------------------------------------------- */

typedef struct {
  TrainCommand c;
  Ctx ctx;
  Recipe recipe;
  Trainer *trainer;
  LoopOptions loop;
  int64_t done; /* steps of the save that is resumed */
  LoopResult result;
  char *profile; /* what is told at the end; malloc'ed */
  Arena arena;
} Training;

/* Asked before the work, not after it. */
static Status check_outputs(const TrainCommand *c) {
  const char *const paths[] = {c->output, c->report, c->trace};
  for (int i = 0; i < 3; i++)
    if (paths[i]) TRY(output_check(paths[i], c->force));
  return OK;
}

static Status open_data(Training *t) {
  const Exported *e = trainer_program(t->trainer);
  DataOptions data = train_data(&t->c, false), eval = train_data(&t->c, true);
  TRY(status_at(data_open(e, &data, &t->loop.data), "--data"));
  if (t->c.eval.n) TRY(status_at(data_open(e, &eval, &t->loop.eval), "--eval"));
  int64_t batches = data_batches(t->loop.data) / t->recipe.accumulate;
  t->loop.steps = t->c.steps != NOT_GIVEN ? t->c.steps : t->c.epochs * (batches ? batches : 1);
  const TrainSettings settings = train_settings(&t->c);
  return settings_schedule(&settings, t->loop.steps, &t->loop.schedule);
}

static Status open_trainer(Training *t) {
  Exported *e;
  const TrainCommand *c = &t->c;
  const TrainSettings settings = train_settings(c);
  TRY(settings_recipe(&settings, &t->arena, &t->recipe));
  TRY(settings_nonfinite(&settings, &t->loop.nonfinite));
  TRY(program_load(c->program, NULL, &e));
  TRY(trainer_open(&t->ctx, e, &t->recipe, c->loss, &t->trainer));
  if (c->memory) {
    MemoryLimit limit;
    TRY(memory_limit_parse(c->memory, &limit));
    session_limit_memory(trainer_session(t->trainer), limit);
  }
  session_set_profile(trainer_session(t->trainer), c->profile || c->trace);
  if (c->init && !c->resume) TRY(status_at(trainer_load_weights(t->trainer, c->init), "--init"));
  if (c->resume) TRY(trainer_resume(t->trainer, c->resume, &t->done, &t->loop.samples));
  return open_data(t);
}

/* --profile and --trace: of steps, and so before an evaluation runs something else. */
static Status tell_times(void *arg) {
  Training *t = arg;
  const Session *s = trainer_session(t->trainer);
  TraceFile f = {.path = t->c.trace, .program = t->c.program, .force = t->c.force};
  size_t size;
  if (t->c.trace) TRY(trace_save(&f, NULL, s));
  if (!t->c.profile) return OK;
  FILE *text = open_memstream(&t->profile, &size);
  if (!text) return fail_oom();
  Status status = profile_print(text, s, false);
  if (fclose(text) && !status) status = fail_oom();
  return status;
}

static void tell(void *arg, const char *text) {
  const Training *t = arg;
  step_log_pause(t->loop.log);
  fprintf(stderr, "%s\n", text);
}

static Status open_records(Training *t) {
  const TrainCommand *c = &t->c;
  LoopOptions *o = &t->loop;
  StepLogOptions log = {.json = c->log,
                        .tensorboard = c->tensorboard,
                        .lines = c->quiet ? NULL : stdout,
                        .bar = c->quiet ? NULL : stderr,
                        .first = t->done + 1,
                        .last = o->steps,
                        .resumed = c->resume != NULL,
                        .force = c->force};
  if (c->save) {
    TRY(run_folder_open(c->save, &o->save));
    TRY(run_folder_check_start(o->save, t->done));
  }
  TRY(step_log_open(&log, &o->log));
  o->eval_every = given_or(c->eval_every, 0);
  o->eval_batches = given_or(c->eval_batches, 0);
  o->save_every = given_or(c->save_every, 0);
  o->keep.last = (int)given_or(c->keep, 3);
  o->find_nonfinite = c->check_finite;
  o->tell = tell;
  o->stop = &stop_asked;
  o->last_step = tell_times;
  o->arg = t;
  TRY(train_options_text(c, &t->arena, &o->argv, &o->argc));
  return measure_peak(&t->ctx, &o->peak);
}

static Status train(Training *t) {
  if (t->done >= t->loop.steps)
    return status_hint(
        fail(ERR_USAGE, "%s has made %lld steps, which is all that was asked for", t->c.resume, (long long)t->done),
        "ask for more: --steps N");
  watch_signals();
  Status s = loop_run(t->trainer, &t->loop, t->done + 1, &t->result);
  step_log_pause(t->loop.log);
  if (t->profile) fputs(t->profile, stdout);
  if (t->c.report) {
    Status reported = train_write_report(t->trainer, &t->c, &t->loop, &t->result,
                                         s                   ? status_message(s)
                                         : t->result.stopped ? "interrupted"
                                                             : NULL);
    if (s) status_free(reported);
    else s = reported;
  }
  if (s) return s;
  TRY(train_write_output(t->trainer, &t->c));
  if (!t->result.stopped) return OK;
  fprintf(stderr, "stopped after step %lld of %lld by %s%s%s\n", (long long)(t->done + t->result.n),
          (long long)t->loop.steps, stop_asked == SIGINT ? "SIGINT" : "SIGTERM",
          t->c.save ? "; go on with --resume " : "", t->c.save ? t->c.save : "");
  return OK;
}

static Status run(Training *t) {
  TRY(check_outputs(&t->c));
  TRY(open_trainer(t));
  TRY(open_records(t));
  return train(t);
}

Status command_train(int argc, char **argv) {
  Training t = {0};
  bool help;
  Status s = train_options_parse(argc, argv, &t.arena, &t.c, &help);
  if (!s && !help) {
    ctx_init(&t.ctx, threads_or_default(t.c.threads));
    t.ctx.seed = (uint64_t)given_or(t.c.seed, 0);
    s = run(&t);
    step_log_close(t.loop.log);
    run_folder_close(t.loop.save);
    data_free(t.loop.data);
    data_free(t.loop.eval);
    trainer_free(t.trainer);
    loop_result_free(&t.result);
    free(t.profile);
    ctx_free(&t.ctx);
  }
  arena_free(&t.arena);
  return s;
}
