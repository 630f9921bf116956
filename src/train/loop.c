/* loop.c -- see loop.h. */
#include "train/loop.h"

#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/textbuf.h"
#include "ckpt/save.h"
#include "train/find_nonfinite.h"

typedef struct {
  Trainer *t;
  const LoopOptions *o;
  LoopResult *result;
  int64_t step;
  bool looked;
  double flops; /* of a step; 0: not known */
} Loop;

void loop_result_free(LoopResult *r) {
  free(r->record);
  *r = (LoopResult){0};
}

/* ---- saving ----------------------------------------------------------------------------------------- */

/* What outlives a step, under the names that saves know. */
static Status list_items(const Trainer *t, Arena *arena, SafeItem **out, int *n) {
  TrainState *state;
  int count = trainer_states(t, NULL);
  TRY_NEW(state, arena_new_n(arena, TrainState, count + 1));
  TRY_NEW(*out, arena_new_n(arena, SafeItem, count + 1));
  trainer_states(t, state);
  *n = 0;
  for (int i = 0; i < count; i++) {
    if (state[i].is_temporary) continue;
    SafeItem *item = &(*out)[(*n)++];
    item->tensor = state[i].tensor;
    TRY_NEW(item->name, arena_printf(arena, "%s%s", state[i].is_model ? "model." : "", state[i].name));
  }
  return OK;
}

static Status save(Loop *l, int64_t step) {
  unsigned char random[RANDOM_STATE_BYTES];
  Arena arena = {0};
  SafeItem *items;
  int n;
  Ctx *ctx = session_ctx(trainer_session(l->t));
  ctx_random_state(ctx, random);
  SaveFacts facts = {.step = step,
                     .seed = ctx->seed,
                     .random = random,
                     .random_bytes = sizeof random,
                     .batches = step * trainer_recipe(l->t)->accumulate,
                     .samples = l->result->samples,
                     .argv = l->o->argv,
                     .argc = l->o->argc,
                     .program = trainer_program(l->t)->name};
  Status s = list_items(l->t, &arena, &items, &n);
  if (!s) s = run_folder_save(l->o->save, &facts, items, n, &l->o->keep);
  arena_free(&arena);
  return s;
}

static Status restore(Trainer *t, const Save *s, Arena *arena, int64_t *step) {
  SafeItem *items;
  int n;
  Ctx *ctx = session_ctx(trainer_session(t));
  TRY(list_items(t, arena, &items, &n));
  TRY(save_restore(s, items, n, ctx->kern.threads));
  if (s->m.facts.random_bytes == RANDOM_STATE_BYTES) ctx_set_random_state(ctx, s->m.facts.random);
  *step = s->m.facts.step;
  return OK;
}

Status loop_resume(Trainer *t, const char *folder, int64_t *step) {
  Arena arena = {0};
  const char *path;
  Save *s = NULL;
  Status status = run_latest(folder, &arena, &path);
  if (!status) status = save_open(path, &s);
  if (!status) status = restore(t, s, &arena, step);
  save_close(s);
  arena_free(&arena);
  return status;
}

/* ---- numbers for people ----------------------------------------------------------------------------- */

static Status take_batch(void *arg, int i, Batch *out);

/* Floating-point operations and memory of a step, from its program; unknown if it is interpreted. */
static Status look_at_step(Loop *l) {
  Program *p;
  Batch batch;
  int n = trainer_recipe(l->t)->accumulate;
  l->looked = true;
  TRY(take_batch(l, 0, &batch));
  session_set_phase(trainer_session(l->t), n == 1 ? PHASE_STEP : PHASE_LAST);
  TRY(session_prepare(trainer_session(l->t), batch.inputs, batch.n, &p));
  for (int i = 0; p && i < p->ninstrs; i++) l->flops += op_flops(&p->instrs[i].call) * n;
  l->result->slab = p ? (int64_t)p->slab_bytes : 0;
  return OK;
}

static int64_t memory_now(void) {
  struct rusage u;
  return getrusage(RUSAGE_SELF, &u) ? 0 : (int64_t)u.ru_maxrss * 1024;
}

static double rate_of(const Trainer *t, double factor) {
  const Recipe *r = trainer_recipe(t);
  return factor * optim_number(&r->group[r->ngroups - 1].optim, "lr", 0);
}

static Status keep_record(LoopResult *r, const StepRecord *record) {
  if (r->n == r->cap) {
    int64_t cap = r->cap ? 2 * r->cap : 256;
    StepRecord *more;
    TRY_NEW(more, realloc(r->record, (size_t)cap * sizeof *more));
    r->record = more;
    r->cap = cap;
  }
  r->record[r->n++] = *record;
  return OK;
}

/* ---- one step --------------------------------------------------------------------------------------- */

/* I1. */
static int64_t batch_number(const Loop *l, int i) { return (l->step - 1) * trainer_recipe(l->t)->accumulate + i; }

static Status take_batch(void *arg, int i, Batch *out) {
  const Loop *l = arg;
  return data_batch(l->o->data, batch_number(l, i), &out->inputs, &out->n);
}

static Status evaluate(Loop *l, double *out) {
  int64_t n = data_batches(l->o->eval), samples = 0;
  double sum = 0, loss;
  if (l->o->eval_batches && l->o->eval_batches < n) n = l->o->eval_batches;
  for (int64_t i = 0; i < n; i++) {
    Batch b;
    TRY(data_batch(l->o->eval, i, &b.inputs, &b.n));
    TRY(trainer_loss(l->t, &b, &loss));
    int64_t each = data_batch_samples(l->o->eval, i);
    sum += loss * (double)each;
    samples += each;
  }
  *out = samples ? sum / (double)samples : NAN;
  return OK;
}

static void fill_speed(const Loop *l, StepRecord *r, int64_t samples, int64_t tokens) {
  if (!(r->seconds > 0)) return;
  r->samples_per_s = (double)samples / r->seconds;
  r->tokens_per_s = (double)tokens / r->seconds;
  r->tflops = l->flops / r->seconds * 1e-12;
  r->share_of_peak = l->o->peak > 0 ? l->flops / r->seconds / l->o->peak : 0;
}

static Status not_finite(const Loop *l, const StepRecord *r, Status found) {
  Status s = fail(ERR_FAIL,
                  "step %lld: the loss is %g and the norm of the gradients %g; the parameters are those "
                  "before the step",
                  (long long)r->step, r->loss, r->grad_norm);
  if (found) return status_at(s, "%s", status_message(found));
  return status_hint(s,
                     "%s--nonfinite skip leaves such steps out; a smaller learning rate or --clip may prevent it",
                     l->o->find_nonfinite ? "" : "--check-finite finds the first node that gives such a value; ");
}

/* What is not finite: an error, unless it was asked to go on. */
static Status judge(Loop *l, const StepRecord *r, uint64_t offset) {
  const LoopOptions *o = l->o;
  Status found = OK, s = OK;
  if (isfinite(r->loss) && (isfinite(r->grad_norm) || r->loss_scale > 1)) return OK; /* a smaller scale is next */
  if (o->find_nonfinite && o->nonfinite != NONFINITE_GO) {
    SetAside aside;
    found = trainer_set_aside(l->t, &aside);
    session_ctx(trainer_session(l->t))->offset = offset; /* the same random numbers */
    if (!found) found = find_nonfinite(l->t, take_batch, l);
    trainer_put_back(l->t, &aside);
  }
  if (o->nonfinite == NONFINITE_STOP) s = not_finite(l, r, found);
  else if (found && o->tell) {
    TextBuf b = {0};
    text_printf(&b, "step %lld: %s", (long long)r->step, status_message(found));
    if (b.text) o->tell(o->arg, b.text);
    text_free(&b);
  }
  status_free(found);
  return s;
}

static Status one_step(Loop *l, int64_t step, StepRecord *r) {
  int batches = trainer_recipe(l->t)->accumulate;
  int64_t samples = 0, tokens = 0;
  StepResult result;
  double begin = clock_now(), factor = schedule_factor(&l->o->schedule, step);
  uint64_t offset = session_ctx(trainer_session(l->t))->offset;
  l->step = step;
  for (int i = 0; i < batches; i++) {
    samples += data_batch_samples(l->o->data, batch_number(l, i));
    tokens += data_batch_tokens(l->o->data, batch_number(l, i));
  }
  if (!l->looked) TRY(look_at_step(l));
  trainer_set_rate(l->t, factor);
  TRY(trainer_step(l->t, take_batch, l, &result));
  *r = (StepRecord){.step = step,
                    .loss = result.loss,
                    .grad_norm = result.grad_norm,
                    .lr = rate_of(l->t, factor),
                    .seconds = clock_now() - begin,
                    .memory = memory_now(),
                    .skipped = result.skipped,
                    .loss_scale = result.loss_scale};
  fill_speed(l, r, samples, tokens);
  l->result->samples += samples;
  l->result->tokens += tokens;
  return judge(l, r, offset);
}

/* A run that is asked to stop saves at once: there may be little time. */
static Status after_step(Loop *l, int64_t step, StepRecord *r) {
  const LoopOptions *o = l->o;
  bool last = step == o->steps, ends = last || l->result->stopped;
  if (ends && o->last_step) TRY(o->last_step(o->arg));
  if (o->eval && (last || (o->eval_every && step % o->eval_every == 0))) {
    r->has_eval = true;
    TRY(evaluate(l, &r->eval_loss));
  }
  TRY(keep_record(l->result, r));
  if (o->log) TRY(step_log_write(o->log, r));
  bool saves = o->save && (ends || (o->save_every && step % o->save_every == 0));
  return saves ? status_at(save(l, step), "saving step %lld", (long long)step) : OK;
}

static Status run_steps(Loop *l, int64_t first) {
  const LoopOptions *o = l->o;
  for (int64_t step = first; step <= o->steps; step++) {
    StepRecord r = {0};
    TRY(one_step(l, step, &r));
    l->result->stopped = o->stop && *o->stop;
    TRY(after_step(l, step, &r));
    if (l->result->stopped) break;
  }
  return OK;
}

Status loop_run(Trainer *t, const LoopOptions *o, int64_t first, LoopResult *out) {
  Loop l = {.t = t, .o = o, .result = out};
  double begin = clock_now();
  *out = (LoopResult){0};
  Status s = run_steps(&l, first);
  out->seconds = clock_now() - begin;
  return s;
}
