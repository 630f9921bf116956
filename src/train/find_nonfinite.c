/* find_nonfinite.c -- see find_nonfinite.h. */
#include "train/find_nonfinite.h"

#include <math.h>
#include <stdio.h>

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

/* One run of a program whose last instructions are an update that skips itself; cut short when something is found.
 */
static Status search(Trainer *t, BatchFn *batch, void *arg, Search *s) {
  Scope scope = {0};
  Arena arena = {0};
  Batch b;
  Program *p;
  Value *out;
  int n, last = trainer_recipe(t)->accumulate - 1;
  Session *session = trainer_session(t);
  session_set_phase(session, last ? PHASE_LAST : PHASE_STEP);
  TRY(batch(arg, last, &b));
  TRY(session_prepare(session, b.inputs, b.n, &p));
  if (!p) return OK;
  p->watch = look;
  p->watch_arg = s;
  Status status = session_run(session, b.inputs, b.n, &scope, &arena, &out, &n);
  p->watch = NULL;
  scope_clear(&scope);
  arena_free(&arena);
  if (!s->found) return status;
  status_free(status);
  return OK;
}

Status find_nonfinite(Trainer *t, BatchFn *batch, void *arg) {
  Search s = {0};
  uint64_t offset = session_ctx(trainer_session(t))->offset;
  TRY(search(t, batch, arg, &s));
  if (s.found) return s.found;
  s.infinite = true;
  session_ctx(trainer_session(t))->offset = offset;
  TRY(search(t, batch, arg, &s));
  return s.found;
}
