/* verify.c -- graph_verify: the invariants of graph.h, checked after every pass.
 *
 * Linear: each node is numbered (its mark), and a value may be used by a node with a
 * larger number, or by the outputs.
 */
#include <string.h>

#include "base/strmap.h"
#include "graph/resolve.h"

enum { MAX_DEPTH = 64 };

typedef struct {
  const Exported *e;
  const Graph *g;
  Arena *arena;         /* of the check */
  Value *env;           /* by Val.id: something of the value's kind */
  const Tensor *tensor; /* that something, for tensors: one element, which may be read as a number */
  int depth;
} Check;

static Status verify_graph(const Check *outer, const Graph *g);

static Status wrong(const Check *c, const char *where, const char *what) {
  return fail(ERR_FAIL, "%s: the graph is not well formed: %s: %s", c->e->name, where, what);
}

/* The fault of the program's author, not of a pass. */
static Status refuse(const Check *c, const char *where, const char *what) {
  return fail(ERR_FILE, "%s: %s: %s", c->e->name, where, what);
}

static bool is_linked(const Graph *g, const Node *n) {
  return n->graph == g && (n->prev ? n->prev->next == n : g->first == n) &&
         (n->next ? n->next->prev == n : g->last == n);
}

/* I1, I2: v belongs to this graph and is defined before node number `at`. */
static Status verify_use(const Check *c, const Val *v, int at, const char *where) {
  if (!v) return wrong(c, where, "a value is missing");
  const Node *n = v->node;
  bool ours = n ? is_linked(c->g, n) && v->index >= 0 && v->index < n->nouts && n->outs[v->index] == v
                : v->index >= 0 && v->index < c->g->ninputs && c->g->inputs[v->index] == v;
  if (!ours)
    return fail(ERR_FAIL, "%s: %s uses the value %s, which is not of its graph", c->e->name, where, v->name);
  if (n && n->mark >= at)
    return fail(ERR_FAIL, "%s: %s uses the value %s before it is defined", c->e->name, where, v->name);
  return OK;
}

static Status verify_arg(const Check *c, const Arg *a, int at, const char *where, int depth) {
  switch (a->kind) {
    case ARG_VAL: return verify_use(c, a->val, at, where);
    case ARG_STR:
    case ARG_DEVICE: return a->str ? OK : wrong(c, where, "a string is missing");
    case ARG_DTYPE: return a->dtype >= 0 && a->dtype < DT_COUNT ? OK : wrong(c, where, "an argument is no dtype");
    case ARG_GRAPH: return a->graph ? verify_graph(c, a->graph) : wrong(c, where, "a sub-graph is missing");
    case ARG_LIST:
      if (depth > MAX_DEPTH) return wrong(c, where, "lists nest too deeply");
      for (int i = 0; i < a->n; i++) TRY(verify_arg(c, &a->list[i], at, where, depth + 1));
      return OK;
    default: return OK;
  }
}

/* Sizes and strides that are numbers are possible ones; symbols count as 1. */
static bool is_possible(const Val *v) {
  int64_t size[MAX_DIMS], stride[MAX_DIMS], numel;
  for (int d = 0; d < v->ndim; d++) {
    size[d] = sym_is_int(v->size[d]) ? v->size[d]->value : 1;
    stride[d] = v->stride && sym_is_int(v->stride[d]) ? v->stride[d]->value : 1;
  }
  return checked_numel(v->ndim, size, &numel) && numel < INT64_MAX / 32 && checked_extent(v->ndim, size, stride);
}

static Status verify_val(const Check *c, const Val *v, StrMap *names) {
  StrSlot *slot;
  if (!v || !v->name || !*v->name) return wrong(c, "a value", "it has no name");
  TRY(strmap_slot(names, c->arena, v->name, &slot));
  if (slot->value) return wrong(c, v->name, "two values have this name");
  slot->value = (void *)(uintptr_t)v;
  if (v->id < 0 || v->id >= c->g->nvals) return wrong(c, v->name, "its number is off");
  if (v->type != TY_TENSOR || v->ndim < 0) return OK;
  if (v->dtype < 0 || v->dtype >= DT_COUNT) return wrong(c, v->name, "its dtype is not known");
  if (v->ndim > MAX_DIMS || (v->ndim > 0 && !v->size)) return wrong(c, v->name, "its sizes are missing");
  for (int i = 0; i < v->ndim; i++) {
    if (!v->size[i] || (v->stride && !v->stride[i])) return wrong(c, v->name, "a size or stride is missing");
  }
  return is_possible(v) ? OK : refuse(c, v->name, "its sizes and strides are not possible");
}

/* Tensors where the schema says so, numbers where it says that. */
static Status verify_results(const Check *c, const Node *n) {
  const Schema *s = &n->op->schema;
  if (!s->returns_list && n->nouts > s->nreturns)
    return refuse(c, n->target, "it has more results than its schema");
  for (int i = 0; i < n->nouts; i++) {
    TypeKind type = s->returns[s->returns_list ? 0 : i].type;
    ValType got = n->outs[i] ? n->outs[i]->type : TY_NONE;
    if (got == TY_NONE || type == TYPE_ANY) continue;
    if ((got == TY_TENSOR) != (type == TYPE_TENSOR))
      return refuse(c, n->target,
                    got == TY_TENSOR ? "a result is a tensor, which the schema has as a number"
                                     : "a result is a number, which the schema has as a tensor");
  }
  return OK;
}

/* I3 */
static Status verify_call(const Check *c, const Node *n) {
  if (!n->op)
    return n->nargs == 0 || n->arg_names ? OK : wrong(c, n->target, "an unknown op without argument names");
  const Schema *s = &n->op->schema;
  if (n->nargs != s->nparams) return wrong(c, n->target, "its arguments are not in schema order");
  TRY(verify_results(c, n));
  for (int i = 0; i < n->nargs; i++) {
    if (n->args[i].kind == ARG_UNSET && !s->params[i].has_default) {
      return fail(ERR_FILE, "%s: %s: the argument '%s' is missing", c->e->name, n->target, s->params[i].name);
    }
  }
  return OK;
}

/* Something of the kind that a value will be: arguments are checked by binding them, as a call does. */
static Value example_of(const Check *c, ValType type) {
  switch (type) {
    case TY_TENSOR: return val_tensor(c->tensor);
    case TY_INT: return val_int(1);
    case TY_FLOAT: return val_float(1);
    case TY_BOOL: return val_bool(true);
    case TY_NONE: break;
  }
  return val_none();
}

/* Kinds of arguments and lengths of lists are what the schema says.  The fault of the program's author. */
static Status verify_kinds(const Check *c, const Node *n) {
  Value bound[MAX_PARAMS];
  Status s = n->op ? node_resolve(c->arena, c->env, n, bound) : OK;
  if (!s) return OK;
  Status said = fail(ERR_FILE, "%s: %s", c->e->name, status_message(s));
  status_free(s);
  return said;
}

static Status verify_node(const Check *c, const Node *n, StrMap *names) {
  if (!n->target) return wrong(c, "a node", "it has no target");
  TRY(verify_call(c, n));
  for (int i = 0; i < n->nargs; i++) TRY(verify_arg(c, &n->args[i], n->mark, n->target, 0));
  TRY(verify_kinds(c, n));
  for (int i = 0; i < n->nouts; i++) {
    if (n->outs[i] && (n->outs[i]->node != n || n->outs[i]->index != i))
      return wrong(c, n->target, "a result is not its own");
    TRY(verify_val(c, n->outs[i], names));
    c->env[n->outs[i]->id] = example_of(c, n->outs[i]->type);
  }
  return OK;
}

static Status at_node(Status s, const Node *n) {
  char source[256], module[256];
  if (!s) return s;
  node_source(n, source, sizeof source);
  node_module(n, module, sizeof module);
  if (n->nouts && n->outs[0] && n->outs[0]->name) s = status_at(s, "node %s (%s)", n->outs[0]->name, n->target);
  return *source ? status_at(s, "%s%s%s", source, *module ? ", module " : "", module) : s;
}

static Status verify_graph(const Check *outer, const Graph *g) {
  Check c = *outer;
  c.g = g;
  if (++c.depth > MAX_DEPTH) return wrong(&c, "sub-graph", "sub-graphs nest too deeply");
  StrMap names = {0};
  TRY(strmap_reserve(&names, c.arena, (size_t)g->ninputs + (size_t)g->nnodes));
  TRY_NEW(c.env, arena_new_n(c.arena, Value, g->nvals + 1));
  for (int i = 0; i < g->ninputs; i++) {
    TRY(verify_val(&c, g->inputs[i], &names));
    if (g->inputs[i]->node || g->inputs[i]->index != i)
      return wrong(&c, g->inputs[i]->name, "an input that is not in its place");
    c.env[g->inputs[i]->id] = example_of(&c, g->inputs[i]->type);
  }
  int count = 0;
  for (Node *n = g->first; n; n = n->next) {
    n->mark = count++;
    if (!is_linked(g, n)) return wrong(&c, n->target, "the list of nodes is broken");
  }
  if (count != g->nnodes) return wrong(&c, "graph", "the number of nodes is off");
  for (const Node *n = g->first; n; n = n->next) TRY(at_node(verify_node(&c, n, &names), n));
  for (int i = 0; i < g->noutputs; i++) TRY(verify_arg(&c, &g->outputs[i], count, "an output", 0));
  return OK;
}

/* What each input and output is must go with its value. */
static Status verify_signature(const Check *c) {
  const Exported *e = c->e;
  for (int i = 0; i < e->graph->ninputs; i++) {
    const InputSpec *in = &e->inputs[i];
    const Val *v = e->graph->inputs[i];
    bool state = in->kind == IN_PARAMETER || in->kind == IN_BUFFER || in->kind == IN_TENSOR_CONSTANT;
    if (state && (!in->target || v->type != TY_TENSOR))
      return refuse(c, v->name, "an input from the state must be a tensor with a name");
    if (in->kind == IN_CONSTANT && in->constant.kind == ARG_VAL)
      return refuse(c, v->name, "a constant input must be a constant");
  }
  for (int i = 0; i < e->graph->noutputs; i++) {
    const OutputSpec *out = &e->outputs[i];
    bool targets = out->kind != OUT_USER && out->kind != OUT_LOSS && out->kind != OUT_TOKEN;
    if (targets && !out->target) return refuse(c, "an output", "what it writes to has no name");
    if (targets && e->graph->outputs[i].kind != ARG_VAL)
      return refuse(c, out->target, "what is written must be a value");
  }
  return OK;
}

Status graph_verify(const Exported *e) {
  Arena arena = {0};
  int32_t zero = 0;
  Storage number = {.data = &zero, .size = sizeof zero};
  Tensor tensor = {.storage = &number, .dtype = DT_I32};
  Check c = {.e = e, .g = e->graph, .arena = &arena, .tensor = &tensor};
  Status s = OK;
  if ((e->graph->ninputs && !e->inputs) || (e->graph->noutputs && !e->outputs))
    s = wrong(&c, "graph", "the signature is missing");
  if (!s) s = verify_graph(&c, e->graph);
  if (!s) s = verify_signature(&c);
  arena_free(&arena);
  return s;
}
