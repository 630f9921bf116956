/* api_trainer.c -- public functions: trainers and their steps. */
#include <math.h>
#include <stdlib.h>

#include "api/trainer.h"
#include "pt2/read.h"
#include "train/find_nonfinite.h"
#include "train/loop.h"
#include "train/spread.h"

/* ---- opening ---------------------------------------------------------------------------------------- */

static TrainSettings settings_of(const TessTraining *how) {
  return (TrainSettings){.optim = how->optim,
                         .groups = how->groups,
                         .ngroups = how->ngroups,
                         .freeze = how->freeze,
                         .clip = how->clip,
                         .schedule = how->schedule,
                         .nonfinite = how->nonfinite,
                         .dtype = how->dtype,
                         .param_dtype = how->param_dtype,
                         .state_dtype = how->state_dtype,
                         .accumulate = how->accumulate};
}

static Status check(const TessTraining *how) {
  if (how->ngroups < 0 || (how->ngroups && !how->groups))
    return fail(ERR_USAGE, "%d groups are given", how->ngroups);
  for (int i = 0; i < how->ngroups; i++)
    if (!how->groups[i]) return fail(ERR_USAGE, "group %d is NULL", i);
  if (how->steps < 0) return fail(ERR_USAGE, "%lld steps", (long long)how->steps);
  return OK;
}

static Status list_states(TessTrainer *t) {
  int n = trainer_states(t->trainer, NULL);
  TRY_NEW(t->state, arena_new_n(&t->arena, TrainState, n + 1));
  trainer_states(t->trainer, t->state);
  for (int i = 0; i < n; i++)
    if (!t->state[i].is_temporary) t->state[t->nstates++] = t->state[i];
  return OK;
}

static SpreadSettings spread_of(const TessTraining *how) {
  return (SpreadSettings){.mesh = how->mesh,
                          .data_axis = how->data_axis,
                          .data_parallel = how->data_parallel,
                          .rank_rows = how->rank_rows,
                          .fsdp = how->fsdp,
                          .wrap = how->wrap,
                          .keep_gathered = how->keep_gathered != 0,
                          .prefetch = how->prefetch ? how->prefetch : -1,
                          .whole_updates = how->whole_updates != 0,
                          .reduce_dtype = how->reduce_dtype,
                          .bucket_mb = how->bucket_mb};
}

/* Of the ranks of the context's world, if there is a mesh. */
static Status open_spread(TessTrainer *t, Exported *e, TrainerPlan *plan, const SpreadSettings *spread) {
  Prepared *prepared;
  Dist *dist;
  Mesh *mesh = NULL;
  Status s = spread_plan(spread, t->plan, plan);
  if (!s && spread->mesh) s = api_dist(t->ctx, &dist);
  if (!s && spread->mesh) s = mesh_parse(dist, spread->mesh, &mesh);
  if (s) {
    exported_free(e);
    return s;
  }
  TRY(trainer_prepare(t->ctx, e, plan, &prepared));
  s = trainer_open_on(t->ctx, prepared, mesh, &t->trainer);
  prepared_unref(prepared);
  return s ? s : spread_apply(spread, &t->arena, t->trainer);
}

static Status open_trainer(TessTrainer *t, const char *path, const TessTraining *how) {
  const TrainSettings settings = settings_of(how);
  TrainerPlan plan = {.recipe = &t->recipe, .loss = how->loss};
  SpreadSettings spread;
  Exported *e;
  MemoryLimit limit;
  TRY(check(how));
  TRY(settings_recipe(&settings, &t->arena, &t->recipe));
  TRY(settings_nonfinite(&settings, &t->nonfinite));
  TRY(settings_schedule(&settings, how->steps, &t->schedule));
  if (how->memory) TRY(memory_limit_parse(how->memory, &limit));
  TRY_NEW(t->path, arena_printf(&t->arena, "%s", path));
  spread = spread_of(how);
  if (how->mesh || how->plan) TRY(api_read_plan(how->plan, &t->plan));
  if (t->plan && !spread.mesh) spread.mesh = t->plan->mesh;
  if (t->plan && !spread.mesh)
    return status_hint(fail(ERR_USAGE, "a plan needs a mesh, and '%s' tells none", how->plan), "mesh \"tp=2\"");
  t->writes = !spread.mesh || tess_rank(t->ctx) == 0;
  TRY(pt2_read(path, &e));
  TRY(open_spread(t, e, &plan, &spread));
  if (how->memory) session_limit_memory(trainer_session(t->trainer), limit);
  session_set_phase(trainer_session(t->trainer), PHASE_LOSS); /* of who runs tess_trainer_program() */
  t->check_finite = how->check_finite;
  t->rate = -1;
  t->program = (TessProgram){t->ctx, trainer_session(t->trainer), true};
  return list_states(t);
}

TessTrainer *tess_trainer_open(TessCtx *ctx, const char *path, const TessTraining *how) {
  static const TessTraining defaults;
  if (!API_BEGIN(ctx, GIVEN("the path", path))) return NULL;
  TessTrainer *t = calloc(1, sizeof *t);
  if (!t) {
    api_stick(ctx, fail_oom());
    return NULL;
  }
  t->ctx = ctx;
  if (!api_stick(ctx, open_trainer(t, path, how ? how : &defaults))) return t;
  tess_trainer_free(t);
  return NULL;
}

void tess_trainer_free(TessTrainer *t) {
  if (!t) return;
  data_free(t->data);
  run_folder_close(t->folder);
  free(t->folder_path);
  trainer_free(t->trainer);
  plan_file_free(t->plan);
  arena_free(&t->arena);
  free(t);
}

TessProgram *tess_trainer_program(TessTrainer *t) { return t ? &t->program : NULL; }
int64_t tess_trainer_steps(const TessTrainer *t) { return t ? t->step : 0; }

int tess_trainer_set_rate(TessTrainer *t, double factor) {
  if (!API_READY(TRAINER_CTX(t))) return -1;
  if (!(factor >= 0) || isinf(factor))
    return api_stick(t->ctx, fail(ERR_USAGE, "a learning rate cannot be %g times what the settings say", factor))
               ? -1
               : 0;
  t->rate = factor;
  return 0;
}

/* ---- steps ------------------------------------------------------------------------------------------ */

static void set_rate(TessTrainer *t) {
  trainer_set_rate(t->trainer, t->rate >= 0 ? t->rate : schedule_factor(&t->schedule, t->step + 1));
}

/* batch: the step's, if somebody wants to see it again. */
static Status finish_step(TessTrainer *t, const StepResult *r, uint64_t offset, BatchFn *batch, void *arg,
                          TessStep *out) {
  const Judge judge = {.what = t->nonfinite, .find = t->check_finite, .step = t->step + 1, .offset = offset};
  TRY(judge_step(t->trainer, &judge, r, batch, arg));
  t->step++;
  if (out)
    *out = (TessStep){.step = t->step,
                      .loss = r->loss,
                      .grad_norm = r->grad_norm,
                      .lr = trainer_rate(t->trainer),
                      .loss_scale = r->loss_scale,
                      .skipped = r->skipped};
  return OK;
}

static Status same_batch(void *arg, int i, Batch *out) {
  (void)i;
  *out = *(const Batch *)arg;
  return OK;
}

static Status feed(TessTrainer *t, const Batch *batch, TessStep *out, bool *done) {
  StepResult r;
  const uint64_t offset = t->ctx->offset;
  Batch again = *batch;
  set_rate(t);
  TRY(trainer_feed(t->trainer, batch, &r, done));
  if (batch->n && batch->inputs[0].kind == VAL_TENSOR && batch->inputs[0].tensor->ndim)
    t->samples += batch->inputs[0].tensor->size[0];
  return *done ? finish_step(t, &r, offset, same_batch, &again, out) : OK;
}

/* A step, or with `loss` an evaluation. */
static Status with_inputs(TessTrainer *t, const TessTensor *const *inputs, int n, TessStep *out, bool *done,
                          double *loss) {
  Arena arena = {0};
  Value *values = arena_new_n(&arena, Value, n + 1);
  Handler *tape = ctx_set_handler(t->ctx, LEVEL_TAPE, NULL);
  Status s = values ? api_gather_inputs(&t->program, inputs, n, values) : fail_oom();
  const Batch batch = {values, n};
  if (!s) s = loss ? trainer_loss(t->trainer, &batch, loss) : feed(t, &batch, out, done);
  ctx_set_handler(t->ctx, LEVEL_TAPE, tape);
  arena_free(&arena);
  return s;
}

int tess_trainer_step(TessTrainer *t, const TessTensor *const *inputs, int ninputs, TessStep *out) {
  bool done = false;
  if (!API_BEGIN(TRAINER_CTX(t), LISTED("the inputs", inputs, ninputs)) ||
      api_stick(t->ctx, with_inputs(t, inputs, ninputs, out, &done, NULL)))
    return -1;
  return done;
}

int tess_trainer_evaluate(TessTrainer *t, const TessTensor *const *inputs, int ninputs, double *loss) {
  if (!API_BEGIN(TRAINER_CTX(t), LISTED("the inputs", inputs, ninputs), GIVEN("the room for the loss", loss)))
    return -1;
  return api_stick(t->ctx, with_inputs(t, inputs, ninputs, NULL, NULL, loss)) ? -1 : 0;
}

/* ---- data ------------------------------------------------------------------------------------------- */

static Status open_data(const TessTrainer *t, const TessData *d, bool training, Data **out) {
  if (d->nfiles <= 0 || !d->files) return fail(ERR_USAGE, "no files of data are given");
  for (int i = 0; i < d->nfiles; i++)
    if (!d->files[i]) return fail(ERR_USAGE, "file %d of the data is NULL", i);
  if (d->batch < 0 || d->window < 0) return fail(ERR_USAGE, "--batch and --window must be positive");
  const DataOptions options = {.files = d->files,
                               .nfiles = d->nfiles,
                               .tokens = d->tokens,
                               .unshifted = d->unshifted != 0,
                               .window = d->window,
                               .token_dtype = d->token_dtype,
                               .batch = d->batch,
                               .batched = d->batched != 0,
                               .shuffle = training && !d->batched && !d->no_shuffle,
                               .drop_last = training && d->drop_last,
                               .seed = d->seed};
  return data_open(trainer_program(t->trainer), &options, out);
}

int tess_trainer_set_data(TessTrainer *t, const TessData *data) {
  Data *opened;
  if (!API_BEGIN(TRAINER_CTX(t), GIVEN("the data", data)) || api_stick(t->ctx, open_data(t, data, true, &opened)))
    return -1;
  data_free(t->data);
  t->data = opened;
  return 0;
}

static int64_t batch_number(const TessTrainer *t, int i) { return t->step * t->recipe.accumulate + i; }

static Status take_batch(void *arg, int i, Batch *out) {
  const TessTrainer *t = arg;
  return data_batch(t->data, batch_number(t, i), &out->inputs, &out->n);
}

static Status next_step(TessTrainer *t, TessStep *out) {
  StepResult r;
  int64_t samples = 0;
  const uint64_t offset = t->ctx->offset;
  if (!t->data) return status_hint(fail(ERR_USAGE, "the trainer has no data"), "tess_trainer_set_data() gives it");
  for (int i = 0; i < t->recipe.accumulate; i++) samples += data_batch_samples(t->data, batch_number(t, i));
  set_rate(t);
  TRY(trainer_step(t->trainer, take_batch, t, &r));
  TRY(finish_step(t, &r, offset, take_batch, t, out));
  t->samples += samples;
  return OK;
}

int tess_trainer_next(TessTrainer *t, TessStep *out) {
  if (!API_READY(TRAINER_CTX(t))) return -1;
  Handler *tape = ctx_set_handler(t->ctx, LEVEL_TAPE, NULL);
  bool failed = api_stick(t->ctx, next_step(t, out));
  ctx_set_handler(t->ctx, LEVEL_TAPE, tape);
  return failed ? -1 : 1;
}

int tess_trainer_evaluate_data(TessTrainer *t, const TessData *data, int64_t batches, double *loss) {
  Data *opened;
  if (!API_BEGIN(TRAINER_CTX(t), GIVEN("the data", data), GIVEN("the room for the loss", loss)) ||
      api_stick(t->ctx, open_data(t, data, false, &opened)))
    return -1;
  Handler *tape = ctx_set_handler(t->ctx, LEVEL_TAPE, NULL);
  bool failed = api_stick(t->ctx, loop_evaluate(t->trainer, opened, batches, loss));
  ctx_set_handler(t->ctx, LEVEL_TAPE, tape);
  data_free(opened);
  return failed ? -1 : 0;
}
