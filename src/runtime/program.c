/* program.c -- see program.h. */
#include "runtime/program.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/ptrmap.h"
#include "comm/groups.h"
#include "graph/infer.h"
#include "graph/walk.h"
#include "kernels/copy.h"
#include "ops/tensors.h"
#include "passes/assign_memory.h"
#include "runtime/reuse.h"
#include "runtime/specialize.h"

/* ---- building --------------------------------------------------------------------- */

typedef struct {
  Program *p;
  int cap;
  bool trains; /* a joint program: weights change between its runs, so that packed copies of them are not kept */
  Status status;
} Lowering;

/* All results are views: nothing to run.  (A result shares an argument's storage
 * exactly when infer said so.) */
static bool only_views(const Call *c) {
  bool fresh = c->nout == 0 || c->op->def->flags & OP_EFFECT;
  for (int i = 0; i < c->nout; i++) {
    Tensor *t = out_tensor(c, i);
    if (!t) continue;
    bool shared = false;
    for (TensorWalk w = call_inputs(c); !shared && tensor_next(&w);) shared = w.tensor->storage == t->storage;
    fresh |= !shared;
  }
  return !fresh;
}

static void lower_node(void *arg, Node *n, const Call *c) {
  Lowering *l = arg;
  Program *p = l->p;
  if (l->status || !c->op->def->run || only_views(c)) return;
  if (p->ninstrs == l->cap) {
    int cap = l->cap ? l->cap * 2 : 128;
    Instr *more = realloc(p->instrs, (size_t)cap * sizeof *more);
    if (!more) {
      l->status = fail_oom();
      return;
    }
    p->instrs = more;
    l->cap = cap;
  }
  Instr *i = &p->instrs[p->ninstrs++];
  *i = (Instr){.call = *c, .node = n};
  for (int a = 0; a < c->op->schema.nparams && a < 32 && !l->trains; a++) {
    const Value *v = &c->arg[a];
    if (v->kind == VAL_TENSOR && v->tensor->storage && v->tensor->storage->frozen) i->call.fixed |= 1u << a;
  }
}

/* Storages whose memory comes with each run have an owner: assign_memory leaves them. */
static bool is_reserved(const Storage *s) { return s && !s->data && !s->release && s->size; }

static Status list_inputs(Program *p) {
  Exported *e = p->graph;
  TRY_NEW(p->inputs, arena_new_n(&p->arena, BoundInput, e->graph->ninputs));
  for (int i = 0; i < e->graph->ninputs; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    Val *v = e->graph->inputs[i];
    BoundInput *in = &p->inputs[p->ninputs++];
    in->tensor = v->type == TY_TENSOR ? v->tensor : NULL;
    for (int o = 0; o < e->graph->noutputs; o++) {
      in->mutated |= e->outputs[o].kind == OUT_USER_INPUT_MUTATION && !strcmp(e->outputs[o].target, v->name);
    }
  }
  return OK;
}

static Val *input_named(Exported *e, const char *name) {
  for (int i = 0; i < e->graph->ninputs; i++) {
    if (e->inputs[i].kind == IN_USER && !strcmp(e->graph->inputs[i]->name, name)) return e->graph->inputs[i];
  }
  return NULL;
}

static Status list_outputs(Program *p) {
  Exported *e = p->graph;
  Graph *g = e->graph;
  TRY_NEW(p->outputs, arena_new_n(&p->arena, Value, g->noutputs));
  TRY_NEW(p->output_memory, arena_new_n(&p->arena, Storage *, g->noutputs));
  TRY_NEW(p->write_backs, arena_new_n(&p->arena, WriteBack, g->noutputs));
  for (int i = 0; i < g->noutputs; i++) {
    const Arg *a = &g->outputs[i];
    OutputKind kind = e->outputs[i].kind;
    if (output_is_mutation(kind)) {
      const char *target = e->outputs[i].target;
      const StateEntry *state = kind == OUT_USER_INPUT_MUTATION ? NULL : exported_state(e, target);
      Val *input = kind == OUT_USER_INPUT_MUTATION ? input_named(e, target) : NULL;
      Tensor *to = state ? state->tensor : input ? input->tensor : NULL;
      if (!to || a->kind != ARG_VAL)
        return fail(ERR_FILE, "output %d writes to '%s', which is not there", i, target);
      p->write_backs[p->nwrite_backs++] = (WriteBack){to, a->val->tensor};
      continue;
    }
    if (kind == OUT_TOKEN) continue;
    Value *out = &p->outputs[p->noutputs++];
    switch (a->kind) {
      case ARG_VAL: *out = a->val->type == TY_TENSOR ? val_tensor(a->val->tensor) : a->val->number; break;
      case ARG_INT: *out = val_int(a->i); break;
      case ARG_FLOAT: *out = val_float(a->f); break;
      case ARG_BOOL: *out = val_bool(a->b); break;
      case ARG_STR: *out = val_str(a->str); break;
      default: *out = val_none();
    }
  }
  return OK;
}

/* Results for the caller have memory of their own (I2). */
static void mark_outputs(Program *p) {
  for (int i = 0; i < p->noutputs; i++) {
    if (p->outputs[i].kind != VAL_TENSOR) continue;
    Storage *s = p->outputs[i].tensor->storage;
    if (is_reserved(s) && !s->owner) s->owner = p;
  }
}

/* Several results may lie in one storage. */
static Status find_shared_outputs(Program *p) {
  TRY_NEW(p->output_first, arena_new_n(&p->arena, int, p->noutputs));
  PtrMap seen = {0};
  Status status = OK;
  for (int i = 0; i < p->noutputs && !status; i++) {
    int64_t *first;
    p->output_first[i] = i;
    if (p->outputs[i].kind != VAL_TENSOR) continue;
    status = ptrmap_slot(&seen, p->outputs[i].tensor->storage, i, &first);
    if (!status) p->output_first[i] = (int)*first;
  }
  ptrmap_free(&seen);
  return status;
}

static Status plan(Ctx *ctx, Program *p) {
  Lowering l = {.p = p, .trains = exported_is_joint(p->graph)};
  TRY(graph_infer_each(ctx, p->graph, lower_node, &l));
  TRY(l.status);
  TRY(list_inputs(p));
  TRY(list_outputs(p));
  mark_outputs(p);
  TRY(reuse_memory(p));
  TRY(find_shared_outputs(p));
  MemoryLayout memory;
  TRY(assign_memory(p->graph->graph, &memory));
  p->slab_bytes = memory.slab;
  p->gradient_bytes = memory.gradients;
  return OK;
}

/* Random ops that are computed again (Node.again). */
static void find_repeated(Program *p) {
  for (int i = 0; i < p->ninstrs; i++) {
    Instr *in = &p->instrs[i];
    if (!in->node->again || !(in->call.op->def->flags & OP_RANDOM)) continue;
    for (int j = 0; j < i && !in->again; j++)
      if (p->instrs[j].node == in->node->again) in->again = &p->instrs[j];
  }
}

static Status list_written_state(const Exported *e, PtrMap *out) {
  for (int i = 0; i < e->graph->noutputs; i++) {
    OutputKind kind = e->outputs[i].kind;
    int64_t *slot;
    if (!output_is_mutation(kind) || kind == OUT_USER_INPUT_MUTATION) continue;
    TRY(ptrmap_slot(out, exported_state(e, e->outputs[i].target)->tensor->storage, i, &slot));
  }
  return OK;
}

/* Results that reuse_memory() has put there; the others are copied at the end. */
static Status find_state_writes(Program *p) {
  PtrMap written = {0};
  Status s = list_written_state(p->graph, &written);
  for (int i = 0; i < p->ninstrs && !s; i++) {
    Instr *in = &p->instrs[i];
    for (int o = 0; o < in->call.nout; o++)
      if (in->call.out[o].kind == VAL_TENSOR)
        in->writes_state |= ptrmap_find(&written, in->call.out[o].tensor->storage) != NULL;
  }
  ptrmap_free(&written);
  return s;
}

static Status build(Ctx *ctx, Program *p) {
  TRY(plan(ctx, p));
  find_repeated(p);
  TRY(find_state_writes(p));
  size_t bytes = p->slab_bytes + p->gradient_bytes;
  if (bytes && !(p->slab = memory_alloc(bytes)))
    return fail(ERR_FAIL, "cannot allocate %zu bytes for the program's intermediate results", bytes);
  for (Node *n = p->graph->graph->first; n; n = n->next) {
    for (int i = 0; i < n->nouts; i++) {
      Storage *s = n->outs[i]->tensor ? n->outs[i]->tensor->storage : NULL;
      if (s && !s->data && s->slab_offset >= 0) s->data = (char *)p->slab + s->slab_offset;
    }
  }
  for (int i = 0; i < p->ninstrs; i++) {
    p->instrs[i].call.state = &p->instrs[i].state;
    p->instrs[i].call.state_free = &p->instrs[i].state_free;
  }
  return OK;
}

static Status make(Ctx *ctx, Exported *specialized, Status (*how)(Ctx *, Program *), Program **out) {
  Program *p = calloc(1, sizeof *p);
  if (!p) {
    exported_free(specialized);
    return fail_oom();
  }
  p->graph = specialized;
  Status s = how(ctx, p);
  if (s) program_free(p);
  else *out = p;
  return s;
}

Status program_build(Ctx *ctx, Exported *specialized, Program **out) { return make(ctx, specialized, build, out); }
Status program_plan(Ctx *ctx, Exported *specialized, Program **out) { return make(ctx, specialized, plan, out); }

void program_forget_times(Program *p) {
  for (int i = 0; i < p->ninstrs; i++) p->instrs[i].seconds = p->instrs[i].begun = p->instrs[i].ended = 0;
  p->runs = 0;
}

void program_free(Program *p) {
  if (!p) return;
  for (int i = 0; i < p->ninstrs; i++) {
    if (p->instrs[i].state_free) p->instrs[i].state_free(p->instrs[i].state);
  }
  for (int i = 0; i < p->noutputs && p->output_memory; i++) storage_unref(p->output_memory[i]);
  free(p->instrs);
  exported_free(p->graph);
  scope_clear(&p->scope);
  arena_free(&p->arena);
  free(p->slab);
  free(p);
}

/* ---- running ----------------------------------------------------------------------- */

/* The given tensor's data, or a contiguous copy where its strides differ. */
static Status bind_input(Ctx *ctx, BoundInput *in, const Value *given, Scope *scope) {
  if (!in->tensor) return OK;
  Tensor *t = given->tensor;
  if (!tensor_same_size(t, in->tensor) || t->dtype != in->tensor->dtype)
    return fail(ERR_FAIL, "an input does not have the size that the program was built for");
  if (!tensor_is_contiguous(t)) {
    Tensor *copy;
    TRY(tensor_new(scope, t->dtype, t->ndim, t->size, &copy));
    kernel_copy(&ctx->kern, tensor_view(copy), tensor_view(t));
    t = copy;
  }
  in->tensor->storage->data = tensor_data(t);
  return OK;
}

/* Fresh pages are slow to touch: memory that nobody else holds any more is taken again. */
static Status output_storage(Program *p, int i, size_t bytes, Storage **out) {
  Storage **kept = &p->output_memory[i];
  if (*kept && atomic_load(&(*kept)->refs) > 1) {
    storage_unref(*kept);
    *kept = NULL;
  }
  if (!*kept) TRY(storage_new(bytes, kept));
  *out = storage_ref(*kept);
  return OK;
}

/* Memory for the results, and handles for the caller.  An output that shares memory with
 * an input, a weight or a buffer is handed out as a copy: it must not change later. */
static Status make_outputs(Program *p, Scope *scope, Value *outputs) {
  for (int i = 0; i < p->noutputs; i++) {
    outputs[i] = p->outputs[i];
    if (outputs[i].kind != VAL_TENSOR) continue;
    Tensor *t = p->outputs[i].tensor, *h;
    TRY_NEW(h, scope_tensor(scope));
    *h = *t;
    h->grad = h->family = NULL;
    h->storage = NULL;
    h->tag = NULL;
    outputs[i] = val_tensor(h);
    if (t->storage->owner != p) {
      h->offset = 0;
      contiguous_strides(h->ndim, h->size, h->stride);
      TRY(tensor_materialize(h));
      continue;
    }
    if (p->output_first[i] < i) h->storage = storage_ref(outputs[p->output_first[i]].tensor->storage);
    else TRY(output_storage(p, i, t->storage->size, &h->storage));
    t->storage->data = h->storage->data;
  }
  return OK;
}

static Status run_instr(Instr *in) {
  Ctx *ctx = in->call.ctx;
  uint64_t next = ctx->offset;
  TRY(call_ready(&in->call));
  if (in->again) ctx->offset = in->again->drawn;
  in->drawn = ctx->offset;
  Status s = in->call.op->def->run(&in->call);
  if (in->again) ctx->offset = next;
  return s;
}

static void tell_guard(const WriteGuard *g, const Call *c) {
  for (int o = 0; o < c->nout; o++)
    if (c->out[o].kind == VAL_TENSOR) g->before_write(g->arg, c->out[o].tensor->storage);
}

static Status run_instrs(Program *p) {
  double start = p->profile ? clock_now() : 0;
  for (int i = 0; i < p->ninstrs; i++) {
    Instr *in = &p->instrs[i];
    if (p->watch) TRY(p->watch(p->watch_arg, in, false));
    if (p->guard && in->writes_state) tell_guard(p->guard, &in->call);
    Status s = run_instr(in);
    if (s) return status_at_node(s, in->node);
    if (p->watch) TRY(p->watch(p->watch_arg, in, true));
    progress_add(p->progress, 1);
    if (p->profile) {
      double t = clock_now();
      in->seconds += t - start;
      in->begun = start;
      in->ended = start = t;
    }
  }
  return OK;
}

static void forget_pointers(Program *p) {
  for (int i = 0; i < p->ninputs; i++) {
    if (p->inputs[i].tensor) p->inputs[i].tensor->storage->data = NULL;
  }
  for (int i = 0; i < p->noutputs; i++) {
    if (p->outputs[i].kind == VAL_TENSOR && p->outputs[i].tensor->storage->owner == p)
      p->outputs[i].tensor->storage->data = NULL;
  }
}

static Status run_bound(Ctx *ctx, Program *p, Scope *scope, Value *outputs) {
  TRY(make_outputs(p, scope, outputs));
  Status s = run_instrs(p);
  TRY(ctx->groups ? groups_end(ctx->groups, s) : s);
  for (int i = 0; i < p->noutputs; i++) {
    if (outputs[i].kind == VAL_TENSOR && p->outputs[i].tensor->storage->owner != p) {
      kernel_copy(&ctx->kern, tensor_view(outputs[i].tensor), tensor_view(p->outputs[i].tensor));
    }
  }
  for (int i = 0; i < p->nwrite_backs; i++) {
    if (p->guard) p->guard->before_write(p->guard->arg, p->write_backs[i].to->storage);
    kernel_copy(&ctx->kern, tensor_view(p->write_backs[i].to), tensor_view(p->write_backs[i].from));
  }
  p->runs++;
  return OK;
}

Status program_run(Ctx *ctx, Program *p, const Value *inputs, Scope *scope, Value *outputs) {
  Status s = OK;
  for (int i = 0; i < p->ninputs && !s; i++) s = bind_input(ctx, &p->inputs[i], &inputs[i], scope);
  if (!s) s = run_bound(ctx, p, scope, outputs);
  forget_pointers(p);
  return s;
}
