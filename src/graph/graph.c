/* graph.c -- building and walking the IR; see graph.h. */
#include "graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* ---- names: an open-addressing set of strings ---------------------------------- */

typedef struct {
  const char *name; /* NULL: free */
  uint32_t hash;
  int last; /* name_1 ... name_last are taken */
} NameSlot;

typedef struct NameSet {
  NameSlot *slots;
  int cap, used; /* cap is a power of two */
} NameSet;

static NameSlot *names_slot(NameSet *n, const char *name, uint32_t hash) {
  for (uint32_t i = hash;; i++) {
    NameSlot *slot = &n->slots[i & (uint32_t)(n->cap - 1)];
    if (!slot->name || (slot->hash == hash && !strcmp(slot->name, name))) return slot;
  }
}

static Status names_grow(Graph *g) {
  NameSet *n = g->names, bigger = {.cap = n->cap ? n->cap * 2 : 64};
  TRY_NEW(bigger.slots, arena_new_n(g->arena, NameSlot, bigger.cap));
  for (int i = 0; i < n->cap; i++) {
    uint32_t at = n->slots[i].hash;
    if (!n->slots[i].name) continue;
    while (bigger.slots[at & (uint32_t)(bigger.cap - 1)].name) at++;
    bigger.slots[at & (uint32_t)(bigger.cap - 1)] = n->slots[i];
    bigger.used++;
  }
  *n = bigger;
  return OK;
}

/* "_12" behind a name: snprintf() would take most of the time of adding a value. */
static void append_number(char *to, int number) {
  char digits[12];
  int n = 0;
  do digits[n++] = (char)('0' + number % 10);
  while ((number /= 10));
  *to++ = '_';
  while (n) *to++ = digits[--n];
  *to = 0;
}

/* A free name made from `wish`; it is taken from now on. */
static Status names_take(Graph *g, const char *wish, const char **out) {
  NameSet *n = g->names;
  if (n->used * 2 >= n->cap) TRY(names_grow(g));
  if (!wish || !*wish) wish = "v";
  uint32_t hash = (uint32_t)hash_text(wish);
  NameSlot *slot = names_slot(n, wish, hash);
  char *name = NULL;
  if (!slot->name) {
    TRY_NEW(name, arena_strdup(g->arena, wish));
  } else {
    size_t len = strlen(wish);
    NameSlot *wished = slot;
    TRY_NEW(name, arena_alloc(g->arena, len + 16));
    memcpy(name, wish, len);
    while (slot->name) {
      append_number(name + len, ++wished->last);
      hash = (uint32_t)hash_text(name);
      slot = names_slot(n, name, hash);
    }
  }
  *slot = (NameSlot){name, hash, 0};
  *out = name;
  n->used++;
  return OK;
}

/* ---- building -------------------------------------------------------------------- */

Status graph_new(Arena *arena, SymTable *syms, Graph **out) {
  Graph *g;
  TRY_NEW(g, arena_new(arena, Graph));
  TRY_NEW(g->names, arena_new(arena, NameSet));
  g->arena = arena;
  g->syms = syms;
  *out = g;
  return OK;
}

static Status val_new(Graph *g, const char *name, ValType type, Val **out) {
  Val *v;
  TRY_NEW(v, arena_new(g->arena, Val));
  TRY(names_take(g, name, &v->name));
  v->type = type;
  v->dtype = DT_NONE;
  v->ndim = -1;
  v->id = g->nvals++;
  *out = v;
  return OK;
}

/* Room for one more item in an arena array that doubles. */
#define GROW(arena, array, count, cap, T)                             \
  do {                                                                \
    if ((count) == (cap)) {                                           \
      int grown_ = (cap) ? (cap)*2 : 8;                               \
      T *more_;                                                       \
      TRY_NEW(more_, arena_new_n((arena), T, grown_));                \
      if (count) memcpy(more_, (array), (size_t)(count) * sizeof(T)); \
      (array) = more_;                                                \
      (cap) = grown_;                                                 \
    }                                                                 \
  } while (0)

Status graph_add_input(Graph *g, const char *name, ValType type, Val **out) {
  GROW(g->arena, g->inputs, g->ninputs, g->inputs_cap, Val *);
  TRY(val_new(g, name, type, out));
  (*out)->index = g->ninputs;
  g->inputs[g->ninputs++] = *out;
  return OK;
}

Status graph_add_output(Graph *g, Arg a) {
  GROW(g->arena, g->outputs, g->noutputs, g->outputs_cap, Arg);
  g->outputs[g->noutputs++] = a;
  return OK;
}

static void link_before(Graph *g, Node *n, Node *before) {
  n->next = before;
  n->prev = before ? before->prev : g->last;
  *(n->prev ? &n->prev->next : &g->first) = n;
  *(before ? &before->prev : &g->last) = n;
  g->nnodes++;
}

static void unlink_node(Node *n) {
  *(n->prev ? &n->prev->next : &n->graph->first) = n->next;
  *(n->next ? &n->next->prev : &n->graph->last) = n->prev;
  n->graph->nnodes--;
}

Status graph_add_node(Graph *g, Node *before, const char *target, Node **out) {
  Node *n;
  TRY_NEW(n, arena_new(g->arena, Node));
  n->graph = g;
  n->op = op_find(target);
  if (n->op) n->target = n->op->schema.name;
  else TRY_NEW(n->target, arena_strdup(g->arena, target));
  link_before(g, n, before);
  *out = n;
  return OK;
}

Status graph_emit_like(Graph *g, Node *before, const Node *like, const char *target, const Arg *args, int nargs,
                       Node **out) {
  TRY(graph_add_node(g, before, target, out));
  if (!(*out)->op) return fail(ERR_FAIL, "'%s' is not in the registry", target);
  if (like) node_take_meta(*out, like);
  return node_set_args(*out, args, NULL, nargs);
}

Status node_add_out(Node *n, const char *name, ValType type, Val **out) {
  /* Powers of two: the array is full exactly when the count is one. */
  if ((n->nouts & (n->nouts - 1)) == 0) {
    Val **more;
    TRY_NEW(more, arena_new_n(n->graph->arena, Val *, n->nouts ? n->nouts * 2 : 1));
    if (n->nouts) memcpy(more, n->outs, (size_t)n->nouts * sizeof *more);
    n->outs = more;
  }
  TRY(val_new(n->graph, name, type, out));
  (*out)->node = n;
  (*out)->index = n->nouts;
  n->outs[n->nouts++] = *out;
  return OK;
}

Status node_set_args(Node *n, const Arg *args, const char *const *names, int nargs) {
  Arena *arena = n->graph->arena;
  if (!n->op) {
    n->nargs = nargs;
    TRY_NEW(n->args, arena_new_n(arena, Arg, nargs));
    TRY_NEW(n->arg_names, arena_new_n(arena, const char *, nargs));
    for (int i = 0; i < nargs; i++) {
      n->args[i] = args[i];
      if (names && names[i] && *names[i]) TRY_NEW(n->arg_names[i], arena_strdup(arena, names[i]));
    }
    return OK;
  }
  const Schema *s = &n->op->schema;
  n->nargs = s->nparams;
  TRY_NEW(n->args, arena_new_n(arena, Arg, s->nparams)); /* zeroed: ARG_UNSET */
  for (int i = 0; i < nargs; i++) {
    int at = names && names[i] && *names[i] ? schema_find(s, names[i]) : i;
    if (at < 0) return fail(ERR_FILE, "%s has no argument '%s'", s->name, names[i]);
    if (at >= s->nparams) return fail(ERR_FILE, "%s takes %d arguments, %d are given", s->name, s->nparams, nargs);
    if (n->args[at].kind != ARG_UNSET)
      return fail(ERR_FILE, "%s: argument '%s' is given twice", s->name, s->params[at].name);
    n->args[at] = args[i];
  }
  return OK;
}

void node_remove(Node *n) { unlink_node(n); }

void node_move_before(Node *n, Node *before) {
  if (n == before) return;
  unlink_node(n);
  link_before(n->graph, n, before);
}

Status val_copy_meta(Val *to, const Val *from) {
  to->type = from->type;
  to->dtype = from->dtype;
  to->ndim = from->ndim;
  to->size = from->size;
  to->stride = from->stride;
  to->sym = from->sym;
  return OK;
}

/* Lists are copied: passes change references in place. */
static Status arg_copy(Arena *arena, const Arg *from, Arg *to) {
  *to = *from;
  if (from->kind != ARG_LIST) return OK;
  TRY_NEW(to->list, arena_new_n(arena, Arg, from->n));
  for (int i = 0; i < from->n; i++) TRY(arg_copy(arena, &from->list[i], &to->list[i]));
  return OK;
}

Status node_add_out_like(Node *n, const char *name, const Val *like, Val **out) {
  TRY(node_add_out(n, name, like->type, out));
  return val_copy_meta(*out, like);
}

Status node_add_tensor(Node *n, const char *name, Dtype dtype, int ndim, const Sym *const *size, Val **out) {
  TRY(node_add_out(n, name, TY_TENSOR, out));
  (*out)->dtype = dtype;
  (*out)->ndim = ndim;
  TRY_NEW((*out)->size, arena_new_n(n->graph->arena, const Sym *, ndim + 1));
  if (ndim) memcpy((*out)->size, size, (size_t)ndim * sizeof *size);
  return OK;
}

Status graph_emit_value(Graph *g, Node *before, const Node *origin, const char *target, const Arg *args, int nargs,
                        const Val *like, Val **out) {
  Node *n;
  TRY(graph_emit_like(g, before, origin, target, args, nargs, &n));
  return node_add_out_like(n, origin->nouts ? origin->outs[0]->name : NULL, like, out);
}

Status node_clone(const Node *n, Node *before, Node **out) {
  TRY(graph_add_node(n->graph, before, n->target, out));
  Node *c = *out;
  Arena *arena = n->graph->arena;
  c->nargs = n->nargs;
  TRY_NEW(c->args, arena_new_n(arena, Arg, n->nargs));
  for (int i = 0; i < n->nargs; i++) TRY(arg_copy(arena, &n->args[i], &c->args[i]));
  c->arg_names = n->arg_names;
  c->shard = n->shard;
  c->draws = n->draws;
  node_take_meta(c, n);
  for (int i = 0; i < n->nouts; i++) {
    Val *v;
    TRY(node_add_out(c, n->outs[i]->name, n->outs[i]->type, &v));
    TRY(val_copy_meta(v, n->outs[i]));
  }
  return OK;
}

/* ---- splicing ------------------------------------------------------------------------ */

/* References to the sub-graph's inputs (numbered by index) become the given arguments,
 * which need not be values. */
static void substitute(const Graph *sub, Arg *a, const Arg *args) {
  if (a->kind == ARG_VAL && !a->val->node && a->val->index < sub->ninputs && sub->inputs[a->val->index] == a->val) {
    *a = args[a->val->index];
    return;
  }
  for (int i = 0; a->kind == ARG_LIST && i < a->n; i++) substitute(sub, &a->list[i], args);
}

Status graph_splice(Graph *g, Node *before, Graph *sub, const Arg *args, int nargs, Arg *outs) {
  if (nargs != sub->ninputs)
    return fail(ERR_FILE, "a sub-graph of %d inputs gets %d arguments", sub->ninputs, nargs);
  for (Node *n = sub->first, *next; n; n = next) {
    next = n->next;
    for (int i = 0; i < n->nargs; i++) substitute(sub, &n->args[i], args);
    unlink_node(n);
    n->graph = g;
    link_before(g, n, before);
    for (int i = 0; i < n->nouts; i++) {
      TRY(names_take(g, n->outs[i]->name, &n->outs[i]->name));
      n->outs[i]->id = g->nvals++;
    }
  }
  for (int i = 0; i < sub->noutputs; i++) {
    outs[i] = sub->outputs[i];
    substitute(sub, &outs[i], args);
  }
  return OK;
}

/* ---- walking ---------------------------------------------------------------------- */

void arg_each_val(Arg *a, ValRefFn *fn, void *ctx) {
  if (a->kind == ARG_VAL) fn(ctx, &a->val);
  if (a->kind == ARG_LIST) {
    for (int i = 0; i < a->n; i++) arg_each_val(&a->list[i], fn, ctx);
  }
}

void node_each_val(Node *n, ValRefFn *fn, void *ctx) {
  for (int i = 0; i < n->nargs; i++) arg_each_val(&n->args[i], fn, ctx);
}

void graph_each_val(Graph *g, ValRefFn *fn, void *ctx) {
  for (Node *n = g->first; n; n = n->next) node_each_val(n, fn, ctx);
  for (int i = 0; i < g->noutputs; i++) arg_each_val(&g->outputs[i], fn, ctx);
}

static void clear_mark(Graph *g) {
  for (int i = 0; i < g->ninputs; i++) g->inputs[i]->mark = 0;
  for (Node *n = g->first; n; n = n->next) {
    for (int i = 0; i < n->nouts; i++) n->outs[i]->mark = 0;
  }
}

static void count_use(void *ctx, Val **ref) {
  (void)ctx;
  (*ref)->mark++;
}

int graph_number_nodes(Graph *g, int first) {
  for (Node *n = g->first; n; n = n->next) {
    n->mark = first++;
    for (int a = 0; a < n->nargs; a++)
      if (n->args[a].kind == ARG_GRAPH) first = graph_number_nodes(n->args[a].graph, first);
  }
  return first;
}

void graph_count_uses(Graph *g) {
  clear_mark(g);
  graph_each_val(g, count_use, NULL);
}

static void follow(void *ctx, Val **ref) {
  (void)ctx;
  Val *v = *ref;
  while (v->forward) v = v->forward;
  *ref = v;
}

void arg_forward(Arg *a) { arg_each_val(a, follow, NULL); }

void node_forward(Node *n) { node_each_val(n, follow, NULL); }

bool graph_is_functional(const Graph *g) {
  for (const Node *n = g->first; n; n = n->next) {
    if (n->op && n->op->schema.mutates) return false;
  }
  return true;
}

void graph_forward(Graph *g) {
  graph_each_val(g, follow, NULL);
  for (int i = 0; i < g->ninputs; i++) g->inputs[i]->forward = NULL;
  for (Node *n = g->first; n; n = n->next) {
    for (int i = 0; i < n->nouts; i++) n->outs[i]->forward = NULL;
  }
}

bool arg_equal(const Arg *a, const Arg *b) {
  if (a->kind != b->kind) return false;
  switch (a->kind) {
    case ARG_UNSET:
    case ARG_NONE:
    case ARG_LAYOUT: return true;
    case ARG_VAL: return a->val == b->val;
    case ARG_BOOL: return a->b == b->b;
    case ARG_INT: return a->i == b->i;
    case ARG_FLOAT: return !memcmp(&a->f, &b->f, sizeof a->f);
    case ARG_COMPLEX: return !memcmp(a->complex_, b->complex_, sizeof a->complex_);
    case ARG_STR:
    case ARG_DEVICE: return !strcmp(a->str, b->str);
    case ARG_DTYPE: return a->dtype == b->dtype;
    case ARG_MEMORY_FORMAT: return a->memory_format == b->memory_format;
    case ARG_GRAPH: return a->graph == b->graph;
    case ARG_LIST:
      if (a->n != b->n) return false;
      for (int i = 0; i < a->n; i++) {
        if (!arg_equal(&a->list[i], &b->list[i])) return false;
      }
      return true;
  }
  return false;
}

const char *node_meta(const Node *n, const char *key) {
  for (int i = 0; i < n->nmeta; i++) {
    if (!strcmp(n->meta[i].key, key)) return n->meta[i].value;
  }
  return NULL;
}

/* The innermost frame of a Python stack trace:
 *     File "/x/modeling_llama.py", line 176, in forward            */
const char *node_source(const Node *n, char *buf, size_t cap) {
  const char *trace = node_meta(n, "stack_trace"), *last = NULL;
  buf[0] = 0;
  for (const char *p = trace; p && (p = strstr(p, "File \"")); p++) last = p;
  if (!last) return buf;
  const char *path = last + 6, *quote = strchr(path, '"');
  if (!quote) return buf;
  const char *base = path;
  for (const char *p = path; p < quote; p++) {
    if (*p == '/') base = p + 1;
  }
  int line = 0;
  char function[128] = "";
  if (sscanf(quote, "\", line %d, in %127[^\n]", &line, function) < 1) return buf;
  snprintf(buf, cap, "%.*s:%d%s%s", (int)(quote - base), base, line, *function ? " in " : "", function);
  return buf;
}

/* nn_module_stack: entries "key,path,type" joined by ';'; the last one is the innermost. */
const char *node_module(const Node *n, char *buf, size_t cap) {
  const char *stack = node_meta(n, "nn_module_stack");
  buf[0] = 0;
  if (!stack) return buf;
  const char *last = strrchr(stack, ';');
  const char *path = strchr(last ? last + 1 : stack, ',');
  if (!path) return buf;
  path++;
  size_t len = strcspn(path, ",;");
  snprintf(buf, cap, "%.*s", (int)len, path);
  /* "L['self'].layers.0.mlp" or "layers.0.mlp" */
  if (!strncmp(buf, "L['self'].", 10)) memmove(buf, buf + 10, strlen(buf + 10) + 1);
  else if (!strcmp(buf, "L['self']")) buf[0] = 0;
  return buf;
}
