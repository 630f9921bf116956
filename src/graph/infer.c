/* infer.c -- see infer.h. */
#include "graph/infer.h"

#include "graph/builder.h"
#include "graph/resolve.h"
#include "graph/walk.h"

static Status input_tensor(Exported *e, int i) {
  Val *v = e->graph->inputs[i];
  const InputSpec *spec = &e->inputs[i];
  if (v->type != TY_TENSOR) return OK;
  const StateEntry *state = spec->target ? exported_state(e, spec->target) : NULL;
  if (state && state->tensor) {
    v->tensor = state->tensor;
    v->constant = spec->kind != IN_BUFFER || v->constant;
    return OK;
  }
  int64_t size[MAX_DIMS];
  if (v->ndim < 0 || v->ndim > MAX_DIMS) return fail(ERR_FILE, "input '%s' has no known size", v->name);
  for (int d = 0; d < v->ndim; d++) {
    if (!sym_is_int(v->size[d]))
      return fail(ERR_USAGE, "input '%s': dimension %d is a symbol; sizes must be numbers here", v->name, d);
    size[d] = v->size[d]->value;
  }
  TRY(tensor_meta(&e->scope, v->dtype, v->ndim, size, &v->tensor));
  TRY(tensor_reserve(v->tensor));
  v->tensor->storage->owner = v;
  return OK;
}

static Status infer_node(Ctx *ctx, Exported *e, Node *n, InferredFn *each, void *arg) {
  if (!n->op) return fail(ERR_FAIL, "'%s' cannot be planned", n->target);
  const OpDef *def = n->op->def;
  Value *bound;
  TRY_NEW(bound, arena_new_n(&e->arena, Value, n->op->schema.nparams));
  TRY(node_resolve(&e->arena, NULL, n, bound));
  Call c = {.ctx = ctx,
            .op = n->op,
            .arg = bound,
            .scope = &e->scope,
            .arena = &e->arena,
            .shard = n->shard,
            .draws = n->draws};
  if (def->infer) TRY(def->infer(&c));
  else if (!(def->flags & OP_EFFECT))
    return fail(ERR_DYNAMIC, "%s: its sizes are not known before it runs", n->target);
  if (c.nout < n->nouts)
    return fail(ERR_FAIL, "%s gives %d results, the program takes %d", n->target, c.nout, n->nouts);
  for (int i = 0; i < c.nout; i++) {
    Tensor *t = out_tensor(&c, i);
    if (t) TRY(tensor_reserve(t));
    if (i < n->nouts) n->outs[i]->tensor = t;
  }
  if (each) each(arg, n, &c);
  return OK;
}

Status graph_infer_each(Ctx *ctx, Exported *e, InferredFn *each, void *arg) {
  for (int i = 0; i < e->graph->ninputs; i++) TRY(input_tensor(e, i));
  for (Node *n = e->graph->first; n; n = n->next) {
    Status s = infer_node(ctx, e, n, each, arg);
    if (s) return status_at_node(s, n);
  }
  return OK;
}

Status graph_infer(Ctx *ctx, Exported *e) { return graph_infer_each(ctx, e, NULL, NULL); }
