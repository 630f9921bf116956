/* train_output.c -- see train_output.h. */
#include "cli/train_output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "train/output.h"
#include "train/step_log.h"
#include "train/train_report.h"

Status train_write_output(Trainer *t, const TrainCommand *c, bool writes) {
  const char *path = writes ? c->output : NULL;
  Exported *e;
  if (!c->output) return OK;
  if (!output_is_program(c->output)) return trainer_write_weights(t, path, c->force);
  TRY(program_load(c->program, NULL, &e));
  return trainer_write_program(t, e, path, c->force);
}

/* ---- the page ---------------------------------------------------------------------------------------- */

enum { MAX_FACTS = 16, MAX_KINDS = 4 };

static int64_t bytes_of(const Tensor *t) { return tensor_numel(t) * (int64_t)dtype_size(t->dtype); }

/* Weights, what the optimizer keeps, and the memory of a step. */
static int list_memory(const Trainer *t, int64_t slab, TrainMemory *m, int64_t *parameters) {
  int count = trainer_states(t, NULL), n = 0;
  TrainState *state = malloc(((size_t)count + 1) * sizeof *state);
  int64_t model = 0, optim = 0;
  if (!state) return 0;
  trainer_states(t, state);
  for (int i = 0; i < count; i++) {
    bool tied = false; /* to one that is counted */
    for (int j = 0; j < i && !tied; j++) tied = state[j].tensor->storage == state[i].tensor->storage;
    if (tied) continue;
    *(state[i].is_model ? &model : &optim) += bytes_of(state[i].tensor);
    if (state[i].is_parameter) *parameters += tensor_numel(state[i].tensor);
  }
  free(state);
  m[n++] = (TrainMemory){"weights", model};
  m[n++] = (TrainMemory){"optimizer state", optim};
  m[n++] = (TrainMemory){"gradients, saved values, workspace", slab};
  return n;
}

static void add_fact(TrainFact *f, int *n, const char *name, const char *value) {
  if (value) f[(*n)++] = (TrainFact){name, value};
}

/* A run that was resumed has its first steps in the log alone. */
static Status whole_course(const TrainCommand *c, TrainReport *page, StepRecord **read) {
  if (!c->resume || !c->log || !file_exists(c->log) || !page->nsteps) return OK;
  int64_t n, last = page->step[page->nsteps - 1].step;
  double samples = 0, tokens = 0, seconds = 0;
  TRY(step_log_read(c->log, read, &n));
  if (!n || (*read)[n - 1].step != last) return OK; /* not this run's */
  for (int64_t i = 0; i < n; i++) {
    seconds += (*read)[i].seconds;
    samples += (*read)[i].samples_per_s * (*read)[i].seconds;
    tokens += (*read)[i].tokens_per_s * (*read)[i].seconds;
  }
  page->step = *read;
  page->nsteps = n;
  page->seconds = seconds;
  page->samples = llround(samples);
  page->tokens = llround(tokens);
  return OK;
}

Status train_write_report(Trainer *t, const TrainCommand *c, const LoopOptions *o, const LoopResult *r,
                          const char *ended) {
  TrainMemory memory[MAX_KINDS];
  TrainFact facts[MAX_FACTS];
  TextBuf command = {0};
  int n = 0;
  int64_t parameters = 0;
  text_puts(&command, "tessera");
  for (int i = 0; i < o->argc; i++) text_printf(&command, " %s", o->argv[i]);
  add_fact(facts, &n, "optimizer", c->optim ? c->optim : "adamw");
  for (int i = 0; i < c->groups.n && n < MAX_FACTS - 6; i++) add_fact(facts, &n, "group", c->groups.v[i]);
  add_fact(facts, &n, "schedule", c->schedule);
  add_fact(facts, &n, "clipping", c->clip);
  add_fact(facts, &n, "products in", c->dtype);
  add_fact(facts, &n, "parameters in", c->param_dtype);
  TrainReport page = {.program = c->program,
                      .command = command.text,
                      .ended = ended,
                      .fact = facts,
                      .nfacts = n,
                      .memory = memory,
                      .nmemory = list_memory(t, r->slab, memory, &parameters),
                      .step = r->record,
                      .nsteps = r->n,
                      .planned = o->steps,
                      .seconds = r->seconds,
                      .samples = r->samples,
                      .tokens = r->tokens,
                      .parameters = parameters};
  StepRecord *read = NULL;
  Status s = whole_course(c, &page, &read);
  if (!s) s = train_report_html(&page, c->report);
  free(read);
  text_free(&command);
  return s;
}
