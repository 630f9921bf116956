/* loop.c -- see loop.h. */
#include "train/loop.h"

#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/grow.h"
#include "comm/comm.h"
#include "train/find_nonfinite.h"

typedef struct {
  Trainer *t;
  const LoopOptions *o;
  LoopResult *result;
  int64_t step;
  int64_t samples, tokens; /* of the step */
  bool looked;
  double flops; /* of a step on all ranks; 0: not known */
  double peak;  /* FLOP/s of all ranks */
} Loop;

void loop_result_free(LoopResult *r) {
  free(r->record);
  *r = (LoopResult){0};
}

/* ---- ranks -------------------------------------------------------------------------------------------- */

/* Sums over the ranks, or what it is on the one that has the most. */
static Status over_ranks(const Loop *l, ReduceOp op, double *v, int n) {
  Coll c = {.kind = COLL_ALL_REDUCE, .dtype = DT_F64, .op = op, .send = v, .recv = v, .count = n};
  c.why = "numbers of a training step";
  return l->o->world ? comm_run(world_comm(l->o->world), &c) : OK;
}

/* Some rank has read another batch than the first: which, and what. */
static Status refuse_batches(const Loop *l) {
  int n = world_size(l->o->world), other = 0;
  double *all;
  TRY_NEW(all, calloc(2 * (size_t)n, sizeof *all));
  all[2 * world_rank(l->o->world)] = (double)l->samples;
  all[2 * world_rank(l->o->world) + 1] = (double)l->tokens;
  Status s = over_ranks(l, REDUCE_SUM, all, 2 * n);
  while (other < n - 1 && all[2 * other] == all[0] && all[2 * other + 1] == all[1]) other++;
  bool tokens = all[2 * other] == all[0];
  if (!s)
    s = status_hint(
        fail(ERR_RANK, "rank %d has read %.0f %s, rank 0 %.0f", other, all[2 * other + tokens],
             tokens ? "tokens" : "samples", all[tokens]),
        "all ranks are given the same data and options: a batch is that of all ranks, each takes its part");
  free(all);
  return s;
}

/* All ranks stop after the same step, whichever of them was asked to; they have made it with the same batches; and
 * a save goes on to its next part when all have done theirs. */
static Status agree(const Loop *l, int *stopped) {
  Saver *save = l->o->save;
  double samples = (double)l->samples, tokens = (double)l->tokens;
  double v[] = {l->o->stop ? *l->o->stop : 0, samples, -samples, tokens, -tokens, save && !saver_is_idle(save)};
  TRY(over_ranks(l, REDUCE_MAX, v, 6));
  *stopped = (int)v[0];
  if (v[1] != -v[2] || v[3] != -v[4]) return refuse_batches(l);
  return save && saver_is_saving(save) && v[5] == 0 ? saver_advance(save) : OK;
}

/* An error that every rank finds: they wait for each other, or those that are late would see a rank that failed.
 * The save that is under way is of a step before it. */
static Status found_by_all(const Loop *l, Status s) {
  double nothing = 0;
  if (!s) return OK;
  status_free(over_ranks(l, REDUCE_MAX, &nothing, 1));
  if (l->o->save) status_free(saver_wait(l->o->save));
  return s;
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
  TRY(trainer_program_of(l->t, n == 1 ? PHASE_STEP : PHASE_LAST, &batch, &p));
  for (int i = 0; p && i < p->ninstrs; i++) l->flops += op_flops(&p->instrs[i].call) * n;
  l->result->slab = p ? (int64_t)(p->slab_bytes + p->gradient_bytes) : 0;
  double sums[] = {l->flops, l->o->peak};
  TRY(over_ranks(l, REDUCE_SUM, sums, 2));
  l->flops = sums[0];
  l->peak = sums[1];
  return OK;
}

static int64_t memory_now(void) {
  struct rusage u;
  return getrusage(RUSAGE_SELF, &u) ? 0 : (int64_t)u.ru_maxrss * 1024;
}

static Status keep_record(LoopResult *r, const StepRecord *record) {
  TRY_ROOM(r->record, r->n, r->cap);
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

/* The same for a step that somebody may look on at. */
static Status next_batch(void *arg, int i, Batch *out) {
  const Loop *l = arg;
  TRY(take_batch(arg, i, out));
  return l->o->watch ? l->o->watch->takes(l->o->watch->arg, out) : OK;
}

static Status make_step(Loop *l, StepResult *result) {
  const StepWatch *watch = l->o->watch;
  if (watch) TRY(watch->begins(watch->arg));
  Status s = trainer_step(l->t, next_batch, l, result);
  if (s && status_code(s) != ERR_RANK) return status_at(s, "step %lld", (long long)l->step); /* see run_steps */
  TRY(s);
  return watch ? watch->made(watch->arg, l->step, result) : OK;
}

Status loop_evaluate(Trainer *t, Data *data, int64_t batches, double *out) {
  int64_t n = data_batches(data), samples = 0;
  double sum = 0, loss;
  if (batches && batches < n) n = batches;
  for (int64_t i = 0; i < n; i++) {
    Batch b;
    TRY(data_batch(data, i, &b.inputs, &b.n));
    TRY(trainer_loss(t, &b, &loss));
    int64_t each = data_batch_samples(data, i);
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
  r->share_of_peak = l->peak > 0 ? l->flops / r->seconds / l->peak : 0;
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
  Status made = make_step(l, &result);
  if (made && status_code(made) == ERR_DIFF) return found_by_all(l, made);
  TRY(made);
  *r = (StepRecord){.step = step,
                    .loss = result.loss,
                    .grad_norm = result.grad_norm,
                    .lr = trainer_rate(l->t),
                    .seconds = clock_now() - begin,
                    .memory = memory_now(),
                    .skipped = result.skipped,
                    .loss_scale = result.loss_scale};
  l->samples = samples;
  l->tokens = tokens;
  fill_speed(l, r, samples, tokens);
  l->result->samples += samples;
  l->result->tokens += tokens;
  const Judge judge = {l->o->nonfinite, l->o->find_nonfinite, step, offset, l->o->tell, l->o->arg};
  return found_by_all(l, judge_step(l->t, &judge, &result, take_batch, l));
}

/* A run that is asked to stop saves at once: there may be little time. */
static Status after_step(Loop *l, int64_t step, StepRecord *r) {
  const LoopOptions *o = l->o;
  bool last = step == o->steps, ends = last || l->result->stopped;
  if (ends && o->last_step) TRY(o->last_step(o->arg));
  if (o->eval && (last || (o->eval_every && step % o->eval_every == 0))) {
    r->has_eval = true;
    TRY(loop_evaluate(l->t, o->eval, o->eval_batches, &r->eval_loss));
  }
  TRY(keep_record(l->result, r));
  if (o->log) TRY(step_log_write(o->log, r));
  if (!o->save || !(ends || (o->save_every && step % o->save_every == 0))) return OK;
  const SaveFacts facts = {
      .step = step, .samples = o->samples + l->result->samples, .argv = o->argv, .argc = o->argc};
  TRY(saver_save(o->save, &facts));
  return ends ? saver_wait(o->save) : OK;
}

static Status step_and_after(Loop *l, int64_t step) {
  StepRecord r = {0};
  TRY(one_step(l, step, &r));
  TRY(agree(l, &l->result->stopped));
  return after_step(l, step, &r);
}

static Status run_steps(Loop *l, int64_t first) {
  for (int64_t step = first; step <= l->o->steps && !l->result->stopped; step++) {
    Status s = step_and_after(l, step);
    if (s && status_code(s) == ERR_RANK) return status_at(s, "step %lld", (long long)step);
    TRY(s);
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
