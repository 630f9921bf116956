/* find_nonfinite.c -- see find_nonfinite.h.
 *
 * Infinities are common where something is masked, so a nan is what is looked for: the first node that gives one.
 * If it was made of an infinity, the node that gave that one is named instead, unless it was told to (a number that
 * is infinite, a mask that came from outside).  The forward is interpreted, so that nodes are those of the program;
 * the backward is looked at as it is compiled.
 */
#include "train/find_nonfinite.h"

#include <math.h>
#include <stdlib.h>

#include "base/textbuf.h"
#include "ops/tensors.h"

/* ---- tensors -------------------------------------------------------------------------------------------- */

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

static Status describe(const Node *n, const Tensor *t) {
  char module[256], source[256], text[128];
  Counts c = count(t);
  node_module(n, module, sizeof module);
  node_source(n, source, sizeof source);
  return fail(ERR_FAIL, "node '%s' (%s)%s%s%s%s is the first to give such values: %lld nan and %lld infinite in %s",
              n->nouts ? n->outs[0]->name : "-", n->target, *module ? " in " : "", module, *source ? ", " : "",
              source, (long long)c.nans, (long long)c.infinities, tensor_describe(t, text, sizeof text));
}

static bool is_finite(const Tensor *t) {
  Counts c = count(t);
  return !c.nans && !c.infinities;
}

/* ---- the forward ------------------------------------------------------------------------------------------ */

enum { NOWHERE = -1 };

typedef struct {
  const Graph *graph;
  bool *infinite; /* by value: has infinite elements */
  int *origin;    /* by value: where they come from, a place in `made`, or NOWHERE that would be to blame */
  Status *made;   /* what is to be said of nodes that gave infinities, in order */
  int nmade;
  Status found;
} ForwardSearch;

typedef struct {
  const ForwardSearch *f;
  bool infinite;
  int origin;
} Arguments;

static void take_argument(void *arg, Val **v) {
  Arguments *a = arg;
  if (!a->f->infinite[(*v)->id]) return;
  a->infinite = true;
  if (a->origin == NOWHERE) a->origin = a->f->origin[(*v)->id];
}

static Arguments arguments_of(const ForwardSearch *f, const Node *n) {
  Arguments a = {.f = f, .origin = NOWHERE};
  node_each_val((Node *)n, take_argument, &a);
  for (int i = 0; i < n->nargs; i++) a.infinite |= n->args[i].kind == ARG_FLOAT && isinf(n->args[i].f);
  return a;
}

static Status blame(ForwardSearch *f, int origin, const Node *n, const Tensor *t) {
  if (origin == NOWHERE) f->found = describe(n, t);
  else {
    f->found = f->made[origin];
    f->made[origin] = OK;
  }
  return fail(ERR_FAIL, "found");
}

static Status look_at_node(void *arg, const Node *n, const Value *outs, int nouts) {
  ForwardSearch *f = arg;
  if (n->graph != f->graph) return OK;
  Arguments a = arguments_of(f, n);
  for (int i = 0; i < nouts && i < n->nouts; i++) {
    if (outs[i].kind != VAL_TENSOR) continue;
    Counts c = count(outs[i].tensor);
    if (c.nans) return blame(f, a.origin, n, outs[i].tensor);
    if (!c.infinities) continue;
    f->infinite[n->outs[i]->id] = true;
    f->origin[n->outs[i]->id] = a.origin;
    if (a.infinite) continue;
    f->origin[n->outs[i]->id] = f->nmade;
    f->made[f->nmade++] = describe(n, outs[i].tensor);
  }
  return OK;
}

/* What comes from outside: a nan is the answer, an infinity nobody's fault. */
static void look_at_inputs(ForwardSearch *f, Trainer *t, const Batch *b) {
  const Exported *e = trainer_program(t);
  char text[128];
  for (int i = 0, user = 0; i < e->graph->ninputs && !f->found; i++) {
    bool given = e->inputs[i].kind == IN_USER;
    const char *name = given ? e->graph->inputs[i]->name : e->inputs[i].target;
    const char *what = given ? "input" : e->inputs[i].kind == IN_PARAMETER ? "parameter" : "buffer";
    const Tensor *x = NULL;
    if (given && user < b->n) {
      x = b->inputs[user].kind == VAL_TENSOR ? b->inputs[user].tensor : NULL;
      user++;
    } else if (!given && !exported_state(e, name)->is_filled) x = session_state(trainer_session(t), name);
    if (!x) continue;
    Counts c = count(x);
    f->infinite[e->graph->inputs[i]->id] = c.infinities > 0;
    if (c.nans)
      f->found = fail(ERR_FAIL, "%s '%s' has %lld nan and %lld infinite values (%s) before the step", what, name,
                      (long long)c.nans, (long long)c.infinities, tensor_describe(x, text, sizeof text));
  }
}

static Status run_forward(Trainer *t, const Batch *b, ForwardSearch *f) {
  Session *session = trainer_session(t);
  double loss = 0;
  bool before = session_interpret(session, true);
  session_watch_nodes(session, look_at_node, f);
  Status s = trainer_loss(t, b, &loss);
  session_watch_nodes(session, NULL, NULL);
  session_interpret(session, before);
  if (f->found) {
    status_free(s);
    return OK;
  }
  if (!s && isinf(loss) && f->nmade) status_free(blame(f, f->nmade - 1, NULL, NULL));
  return s;
}

/* ---- the backward ----------------------------------------------------------------------------------------- */

typedef struct {
  bool clean; /* all arguments of the instruction that runs are finite */
  Status found;
} BackwardSearch;

/* The first result that is not finite though all arguments were. */
static Status look_at_instr(void *arg, const Instr *i, bool done) {
  BackwardSearch *s = arg;
  if (i->node->stage == STAGE_FORWARD) return OK;
  if (!done) {
    s->clean = true;
    for (TensorWalk w = call_inputs(&i->call); s->clean && tensor_next(&w);) s->clean = is_finite(w.tensor);
    return OK;
  }
  for (TensorWalk w = call_outputs(&i->call); s->clean && tensor_next(&w);) {
    if (is_finite(w.tensor)) continue;
    s->found = describe(i->node, w.tensor);
    return fail(ERR_FAIL, "found");
  }
  return OK;
}

/* The step, whose update skips itself; cut short when something is found. */
static Status run_backward(Session *session, const Batch *b, BackwardSearch *f) {
  Scope scope = {0};
  Arena arena = {0};
  Program *p;
  Value *out;
  int n;
  TRY(session_prepare(session, b->inputs, b->n, &p));
  if (p) {
    p->watch = look_at_instr;
    p->watch_arg = f;
  }
  Status status = session_run(session, b->inputs, b->n, &scope, &arena, &out, &n);
  if (p) p->watch = NULL;
  scope_clear(&scope);
  arena_free(&arena);
  if (!f->found) return status;
  status_free(status);
  return OK;
}

/* ---- both ------------------------------------------------------------------------------------------------- */

static Status search_batch(Trainer *t, const Batch *b, Phase phase, ForwardSearch *f) {
  BackwardSearch back = {0};
  look_at_inputs(f, t, b);
  if (!f->found) TRY(run_forward(t, b, f));
  if (f->found) return OK;
  session_set_phase(trainer_session(t), phase);
  TRY(run_backward(trainer_session(t), b, &back));
  if (back.found) f->found = back.found;
  else if (f->nmade) status_free(blame(f, 0, NULL, NULL));
  return OK;
}

static Status search(Trainer *t, const Batch *b, Phase phase, Status *found) {
  Arena arena = {0};
  const Graph *g = trainer_program(t)->graph;
  ForwardSearch f = {.graph = g,
                     .infinite = arena_new_n(&arena, bool, g->nvals + 1),
                     .origin = arena_new_n(&arena, int, g->nvals + 1),
                     .made = arena_new_n(&arena, Status, g->nvals + 1)};
  Status s = f.infinite && f.origin && f.made ? OK : fail_oom();
  for (int i = 0; i < g->nvals && !s; i++) f.origin[i] = NOWHERE;
  if (!s) s = search_batch(t, b, phase, &f);
  for (int i = 0; i < f.nmade; i++) status_free(f.made[i]);
  *found = f.found;
  arena_free(&arena);
  return s;
}

/* Looks at what the step was given, then makes it again, node by node; the recipe must skip steps that are not
 * finite, so that nothing changes.  Gives an error that names the node, the parameter or the input, or OK if there
 * is none.  Of programs that are interpreted the forward alone is looked at. */
static Status find_nonfinite(Trainer *t, BatchFn *batch, void *arg) {
  Status found = OK;
  for (int i = 0; i < trainer_recipe(t)->accumulate && !found; i++) {
    Batch b;
    TRY(batch(arg, i, &b));
    TRY(search(t, &b, trainer_phase(t, i), &found));
  }
  return found;
}

/* ---- what becomes of the step --------------------------------------------------------------------------- */

static Status not_finite(const Judge *j, const StepResult *r, Status found) {
  Status s = fail(ERR_FAIL,
                  "step %lld: the loss is %g and the norm of the gradients %g; the parameters are those "
                  "before the step",
                  (long long)j->step, r->loss, r->grad_norm);
  if (found) return status_at(s, "%s", status_message(found));
  return status_hint(s,
                     "%s--nonfinite skip leaves such steps out; a smaller learning rate or --clip may prevent it",
                     j->find ? "" : "--check-finite finds the first node that gives such a value; ");
}

Status judge_step(Trainer *t, const Judge *j, const StepResult *r, BatchFn *batch, void *arg) {
  Status found = OK, s = OK;
  if (isfinite(r->loss) && (isfinite(r->grad_norm) || r->loss_scale > 1)) return OK; /* a smaller scale is next */
  if (j->find && j->what != NONFINITE_GO) {
    SetAside aside;
    found = trainer_set_aside(t, &aside);
    session_ctx(trainer_session(t))->offset = j->offset; /* the same random numbers */
    if (!found) found = find_nonfinite(t, batch, arg);
    trainer_put_back(t, &aside);
    session_set_phase(trainer_session(t), PHASE_LOSS);
  }
  if (j->what == NONFINITE_STOP) s = not_finite(j, r, found);
  else if (found && j->tell) {
    TextBuf b = {0};
    text_printf(&b, "step %lld: %s", (long long)j->step, status_message(found));
    if (b.text) j->tell(j->arg, b.text);
    text_free(&b);
  }
  status_free(found);
  return s;
}
