/* estimate.c -- see estimate.h. */
#include "runtime/estimate.h"

#include "passes/pass.h"
#include "runtime/prepared.h"
#include "runtime/specialize.h"

/* Handles of the same size on storages that have no data and belong to nobody's plan. */
static Status forget_data(Exported *e) {
  for (int i = 0; i < e->nstate; i++) {
    const Tensor *t = e->state[i].tensor;
    Tensor *empty;
    if (!t) continue;
    TRY_NEW(empty, scope_tensor(&e->scope));
    *empty = *t;
    empty->grad = empty->family = NULL;
    empty->storage = NULL;
    TRY(storage_borrow(NULL, t->storage ? t->storage->size : 0, NULL, e, &empty->storage));
    e->state[i].tensor = empty;
  }
  return OK;
}

Status estimate_program(Ctx *ctx, Exported *e, const Value *inputs, int ninputs, Program **out) {
  Exported *special;
  TRY(graph_verify(e));
  TRY(graph_check_ops(e));
  TRY(forget_data(e));
  TRY(pass_run_list(e, passes_once, ctx, NULL));
  TRY(specialize(ctx, e, &(Specialize){0}, inputs, ninputs, &special));
  Status s = pass_run_list(special, passes_specialized, ctx, NULL);
  if (s) {
    exported_free(special);
    return s;
  }
  return program_plan(ctx, special, out);
}

double program_flops(const Program *p) {
  double flops = 0;
  for (int i = 0; i < p->ninstrs; i++) flops += op_flops(&p->instrs[i].call);
  return flops;
}
