/* find_nonfinite.c -- see find_nonfinite.h. */
#include "train/find_nonfinite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/tensors.h"

/* Infinities are common where something is masked: they count only if no nan comes at all. */
typedef struct {
  bool infinite; /* look for infinities, too */
  Status found;  /* once it is set, the run is over */
} Search;

typedef struct {
  int64_t nans, infinities;
} Counts;

static double element(const Tensor *t, int64_t offset) {
  Value v = val_load(t->dtype, (const char *)tensor_data(t) + (size_t)offset * dtype_size(t->dtype));
  return val_as_float(&v);
}

static Counts count(const Tensor *t) {
  Counts c = {0};
  int64_t at[MAX_DIMS] = {0}, offset = 0;
  if (!dtype_is_float(t->dtype) || !tensor_data(t)) return c;
  for (int64_t n = tensor_numel(t); n > 0; n--) {
    double x = element(t, offset);
    c.nans += isnan(x);
    c.infinities += isinf(x) != 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
      offset += t->stride[d];
      if (++at[d] < t->size[d]) break;
      offset -= at[d] * t->stride[d];
      at[d] = 0;
    }
  }
  return c;
}

static bool counts(const Search *s, const Tensor *t) {
  Counts c = count(t);
  return c.nans || (s->infinite && c.infinities);
}

static Status describe(const Instr *i, const Tensor *t) {
  char module[256], source[256], text[128];
  Counts c = count(t);
  const Node *n = i->node;
  node_module(n, module, sizeof module);
  node_source(n, source, sizeof source);
  return fail(ERR_FAIL, "node '%s' (%s)%s%s%s%s is the first to give such values: %lld nan and %lld infinite in %s",
              n->nouts ? n->outs[0]->name : "-", n->target, *module ? " in " : "", module, *source ? ", " : "",
              source, (long long)c.nans, (long long)c.infinities, tensor_describe(t, text, sizeof text));
}

/* The first result that is not finite though all arguments are. */
static Status look(void *arg, const Instr *i) {
  Search *s = arg;
  for (TensorWalk w = call_inputs(&i->call); tensor_next(&w);)
    if (counts(s, w.tensor)) return OK;
  for (TensorWalk w = call_outputs(&i->call); tensor_next(&w);) {
    if (!counts(s, w.tensor)) continue;
    s->found = describe(i, w.tensor);
    return fail(ERR_FAIL, "found");
  }
  return OK;
}

/* Makes the step again, up to a call that something is found at; its last instructions are an update that skips
 * itself. */
static Status search(Trainer *t, BatchFn *batch, void *arg, Search *s) {
  Session *session = trainer_session(t);
  Status status = OK;
  for (int i = 0, n = trainer_recipe(t)->accumulate; i < n && !status && !s->found; i++) {
    Scope scope = {0};
    Arena arena = {0};
    Batch b;
    Program *p;
    Value *out;
    int nout;
    session_set_phase(session, trainer_phase(t, i));
    TRY(batch(arg, i, &b));
    TRY(session_prepare(session, b.inputs, b.n, &p));
    if (!p) return OK;
    p->watch = look;
    p->watch_arg = s;
    status = session_run(session, b.inputs, b.n, &scope, &arena, &out, &nout);
    p->watch = NULL;
    scope_clear(&scope);
    arena_free(&arena);
  }
  if (!s->found) return status;
  status_free(status);
  return OK;
}

/* ---- what the step was given ---------------------------------------------------------------------------- */

static void look_at_given(Search *s, const char *what, const char *name, const Tensor *t) {
  char text[128];
  if (s->found || !counts(s, t)) return;
  Counts c = count(t);
  s->found = fail(ERR_FAIL, "%s '%s' has %lld nan and %lld infinite values (%s) before the step", what, name,
                  (long long)c.nans, (long long)c.infinities, tensor_describe(t, text, sizeof text));
}

static void look_at_state(const Trainer *t, TrainState *state, Search *s) {
  int n = trainer_states(t, state);
  for (int i = 0; i < n; i++)
    if (state[i].is_model)
      look_at_given(s, state[i].is_parameter ? "parameter" : "buffer", state[i].name, state[i].tensor);
}

static Status look_at_batches(const Trainer *t, BatchFn *batch, void *arg, Search *s) {
  const Exported *e = trainer_program(t);
  for (int i = 0, n = trainer_recipe(t)->accumulate; i < n && !s->found; i++) {
    Batch b;
    TRY(batch(arg, i, &b));
    for (int k = 0, at = 0; k < e->graph->ninputs && at < b.n; k++) {
      if (e->inputs[k].kind != IN_USER) continue;
      const Value *v = &b.inputs[at++];
      if (v->kind == VAL_TENSOR) look_at_given(s, "input", e->graph->inputs[k]->name, v->tensor);
    }
  }
  return OK;
}

static Status search_given(Trainer *t, BatchFn *batch, void *arg, Search *s) {
  TrainState *state;
  TRY_NEW(state, malloc(((size_t)trainer_states(t, NULL) + 1) * sizeof *state));
  look_at_state(t, state, s);
  free(state);
  return look_at_batches(t, batch, arg, s);
}

Status find_nonfinite(Trainer *t, BatchFn *batch, void *arg) {
  Search s = {0};
  Ctx *ctx = session_ctx(trainer_session(t));
  uint64_t offset = ctx->offset;
  TRY(search_given(t, batch, arg, &s));
  for (int turn = 0; turn < 2 && !s.found; turn++) {
    s.infinite = turn == 1;
    ctx->offset = offset;
    TRY(search(t, batch, arg, &s));
  }
  if (!s.found) TRY(search_given(t, batch, arg, &s));
  return s.found;
}
