/* marks.c -- how the backward tells where it is: hooks on the inputs and outputs of a forward; see fsdp.h.
 *
 * An input becomes an alias of itself; the backward visits calls in the reverse of their order, so that everything
 * the module computed has been visited when the first alias of a forward is reached.
 */
#include <stdlib.h>

#include "fsdp/fsdp_inside.h"

/* Of one forward; its hooks share it. */
typedef struct {
  atomic_int refs;
  FsdpUnit *unit; /* held */
  FsdpGroup *group;
  bool done;
} Mark;

static Status mark_new(FsdpUnit *u, FsdpGroup *g, Mark **out) {
  TRY_NEW(*out, calloc(1, sizeof **out));
  atomic_init(&(*out)->refs, 1);
  (*out)->unit = fsdp_unit_ref(u);
  (*out)->group = g;
  return OK;
}

static void mark_unref(void *arg) {
  Mark *m = arg;
  if (atomic_fetch_sub(&m->refs, 1) > 1) return;
  fsdp_unit_unref(m->unit);
  free(m);
}

static Status hook(Tape *tape, Tensor *t, TapeHookFn *fn, Mark *m) {
  TapeHook *h;
  atomic_fetch_add(&m->refs, 1);
  Status s = tape_hook(tape, t, fn, m, mark_unref, &h);
  if (s) mark_unref(m);
  else tape_unhook(h, false);
  return s;
}

static Status leaves_module(void *arg, Ctx *ctx, Tensor *gradient, Scope *scope, Tensor **out) {
  Mark *m = arg;
  (void)ctx, (void)gradient, (void)scope, (void)out;
  if (m->done || !m->unit->ctx || !m->unit->run) return OK;
  m->done = true;
  fsdp_expect_end(m->unit);
  return fsdp_post_backward(m->group);
}

Status fsdp_mark_inputs(FsdpGroup *g, Scope *scope, Tensor **inputs, int n) {
  Tape *tape = g->unit->tape(g->ctx);
  if (tape->paused) return OK;
  Arena arena = {0};
  Call c = {.ctx = g->ctx, .scope = scope, .arena = &arena, .level = LEVEL_TAPE};
  Mark *m;
  TRY(mark_new(g->unit, g, &m));
  Status s = OK;
  for (int i = 0; i < n && !s; i++) {
    if (!inputs[i] || !tensor_requires_grad(inputs[i])) continue;
    s = OP(&c, "aten.alias.default", &inputs[i], val_tensor(inputs[i]));
    if (!s) s = hook(tape, inputs[i], leaves_module, m);
  }
  mark_unref(m);
  arena_free(&arena);
  return s;
}

static Status enters_module(void *arg, Ctx *ctx, Tensor *gradient, Scope *scope, Tensor **out) {
  Mark *m = arg;
  (void)ctx, (void)gradient, (void)scope, (void)out;
  return m->unit->ctx && m->unit->run ? fsdp_pre_backward(m->unit) : OK;
}

Status fsdp_mark_outputs(FsdpUnit *u, Tensor *const *outputs, int n) {
  Tape *tape = u->tape(u->ctx);
  if (tape->paused) return OK;
  Mark *m;
  TRY(mark_new(u, NULL, &m));
  Status s = OK;
  for (int i = 0; i < n && !s; i++)
    if (outputs[i] && tensor_requires_grad(outputs[i])) s = hook(tape, outputs[i], enters_module, m);
  mark_unref(m);
  return s;
}

void fsdp_expect_end(FsdpUnit *u) { u->run->end_expected = true; }

Status fsdp_told_end(void *arg, Status s) {
  FsdpRun *run = arg;
  if (!run->end_expected || run->tape->under_way) return s; /* not ours, or inside of another */
  if (!s) return fsdp_end_of_backward(run);
  run->end_expected = false;
  return s;
}
