/* train_output.c -- see train_output.h. */
#include "cli/train_output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "pt2/write.h"
#include "train/step_log.h"
#include "train/train_report.h"

/* ---- weights ---------------------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *end) {
  size_t n = strlen(s), m = strlen(end);
  return n >= m && !strcmp(s + n - m, end);
}

/* Parameters and buffers that a state_dict has. */
static bool is_in_state_dict(const Exported *e, const char *fqn) {
  for (int i = 0; i < e->graph->ninputs; i++)
    if (e->inputs[i].target && !strcmp(e->inputs[i].target, fqn))
      return e->inputs[i].kind == IN_PARAMETER || e->inputs[i].persistent;
  return true;
}

static Status write_weights(const Trainer *t, const char *path, bool force) {
  int count = trainer_states(t, NULL), n = 0;
  TrainState *state = malloc(((size_t)count + 1) * sizeof *state);
  SafeItem *items = malloc(((size_t)count + 1) * sizeof *items);
  Status s = state && items ? OK : fail_oom();
  if (!s) trainer_states(t, state);
  for (int i = 0; i < count && !s; i++)
    if (state[i].is_model && is_in_state_dict(trainer_program(t), state[i].name))
      items[n++] = (SafeItem){state[i].name, state[i].tensor};
  if (!s) s = safetensors_save(path, items, n, NULL, 0, force ? FILE_OVERWRITE : 0);
  free(items);
  free(state);
  return s;
}

/* The program as it was read, with other weights. */
static Status write_program(Trainer *t, const char *from, const char *path, bool force) {
  Exported *e;
  TRY(program_load(from, NULL, &e));
  Status s = OK;
  for (int i = 0; i < e->nstate && !s; i++) {
    Tensor *trained = session_state(trainer_session(t), e->state[i].fqn);
    if (trained && e->state[i].tensor && trained->dtype != e->state[i].tensor->dtype)
      s = status_hint(fail(ERR_USAGE, "'%s' was trained as %s, the program has it as %s", e->state[i].fqn,
                           dtype_name(trained->dtype), dtype_name(e->state[i].tensor->dtype)),
                      "write the weights alone: -o weights.safetensors");
    else if (trained) s = tensor_alias(&e->scope, trained, &e->state[i].tensor);
  }
  if (!s) s = pt2_write(e, path, force);
  exported_free(e);
  return s;
}

Status train_write_output(Trainer *t, const TrainCommand *c) {
  if (!c->output) return OK;
  return ends_with(c->output, ".pt2") ? write_program(t, c->program, c->output, c->force)
                                      : write_weights(t, c->output, c->force);
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
