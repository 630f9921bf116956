/* functionalize.c -- turns writes into new values.
 *
 *   before:  %s = slice(%buf, 0, 2, 3)  %w = copy_(%s, %x)  %y = sum(%buf)   return user %y
 *   after:   %s = slice(%buf, 0, 2, 3)  %w = copy(%s, %x)
 *            %b = slice_scatter(%buf, %w, 0, 2, 3)  %y = sum(%b)
 *            return buffer_mutation "buf" %b, user %y
 *
 * Programs as exported contain in-place ops, on tensors and on views of them.  The pass
 * walks the nodes once and keeps, for every value of the old program, the value of the
 * new one that holds its present contents.
 *
 * F1  Values form trees: a view hangs on the value it is a view of; the root owns the
 *     memory.  A write to a view changes the root, and with it every other view.
 * F2  A write computes the new view, carries it up to the root (inverse views: scatter
 *     ops), and counts the root's version up.  Views of an older version are made anew
 *     from the root when next used, by repeating their node.
 * F3  A root that is an input and was written to becomes a mutation output, in front
 *     of the others, in the order of the inputs.
 */
#include <stdlib.h>
#include <string.h>

#include "passes/pass.h"
#include "passes/views.h"

typedef struct {
  Val *parent; /* the value this is a view of; NULL: a root */
  Node *view;  /* the node that makes the view; NULL: the same tensor under another name */
  Val *now;    /* present contents in the new program */
  int version; /* roots: number of writes; views: the root's version that `now` is from */
} Track;

typedef struct {
  Graph *g;
  Track *track; /* by Val.id, for the values of the old program */
  int ntrack;
  int writes;
} State;

/* The values of one argument, as the program gave them. */
typedef struct {
  Val **v, *one[1];
  int n;
} Given;

static Track *track_of(State *s, const Val *v) { return v->id < s->ntrack ? &s->track[v->id] : NULL; }

static Val *root_of(State *s, Val *v) {
  while (track_of(s, v)->parent) v = track_of(s, v)->parent;
  return v;
}

/* ---- reading (F2, second half) -------------------------------------------------------- */

static Status present(State *s, Val *v, Node *before, Val **out) {
  Track *t = track_of(s, v);
  if (!t) return *out = v, OK; /* made by this pass */
  int version = track_of(s, root_of(s, v))->version;
  if (!t->parent || t->version == version) return *out = t->now, OK;
  Val *parent;
  TRY(present(s, t->parent, before, &parent));
  t->version = version;
  if (!t->view) return *out = t->now = parent, OK;
  Node *again;
  TRY(node_clone(t->view, before, &again));
  again->args[0] = arg_val(parent);
  *out = t->now = again->outs[v->index];
  return OK;
}

typedef struct {
  State *s;
  Node *before;
  Status status;
} ReadArgs;

static void read_ref(void *ctx, Val **ref) {
  ReadArgs *r = ctx;
  Val *now = NULL;
  if (r->status) return;
  r->status = present(r->s, *ref, r->before, &now);
  if (!r->status) *ref = now;
}

/* ---- writing (F2, first half) ----------------------------------------------------------- */

/* v's contents are now `contents`. */
static Status write(State *s, Node *before, Val *v, Val *contents) {
  Track *t = track_of(s, v);
  Val *root = root_of(s, v), *w = contents;
  s->writes++;
  for (Val *at = v; at != root; at = track_of(s, at)->parent) {
    Track *a = track_of(s, at);
    if (!a->view) continue;
    Val *parent, *whole;
    TRY(present(s, a->parent, before, &parent));
    Arg args[8];
    int nargs;
    const char *op;
    TRY(view_inverse(a->view, at->index, parent, w, &op, args, &nargs));
    TRY(graph_emit_value(s->g, before, a->view, op, args, nargs, parent, &whole));
    w = whole;
  }
  Track *r = track_of(s, root);
  r->now = w;
  r->version++;
  t->now = contents;
  if (v != root) t->version = r->version;
  return OK;
}

/* The functional result in v's dtype: in-place ops keep it, functional ones promote. */
static Status in_dtype_of(State *s, Node *n, Val *v, Val *result, Val **out) {
  for (int i = 0; i < n->nargs; i++) {
    const Val *a = n->args[i].kind == ARG_VAL && n->args[i].val->type == TY_TENSOR ? n->args[i].val : NULL;
    bool decides = a && (a->ndim > 0 || v->ndim == 0 || dtype_kind(a->dtype) > dtype_kind(v->dtype));
    if (decides && dtype_promote(result->dtype, a->dtype) != DT_NONE)
      result->dtype = dtype_promote(result->dtype, a->dtype);
  }
  if (result->dtype == v->dtype) return *out = result, OK;
  Arg args[2] = {arg_val(result), arg_dtype(v->dtype)};
  return graph_emit_value(s->g, n, n, "aten.to.dtype", args, 2, v, out);
}

/* Result `out` of f, the functional form of n, is what v now holds; n may have returned v. */
static Status write_result(State *s, Node *n, Node *f, int out, Val *v) {
  Val *fresh, *result;
  Val *returned = out < n->nouts ? n->outs[out] : NULL;
  TRY(node_add_out(f, n->nouts ? n->outs[out < n->nouts ? out : 0]->name : NULL, TY_TENSOR, &fresh));
  TRY(val_copy_meta(fresh, v));
  TRY(in_dtype_of(s, n, v, fresh, &result));
  if (returned) *track_of(s, returned) = (Track){.parent = v};
  TRY(write(s, n, v, result));
  if (!returned) return OK;
  Track *t = track_of(s, returned);
  t->now = result;
  t->version = track_of(s, root_of(s, v))->version;
  return OK;
}

/* x.add_(y): the first result of the functional op goes to the first written argument,
 * and so on.  n's arguments have been read already; `given` are the original values. */
static Status replace_inplace(State *s, Node *n, const Given *given) {
  const Op *functional = op_find(n->op->def->inplace);
  Node *f;
  int nargs = functional && functional->schema.nparams < n->nargs ? functional->schema.nparams : n->nargs, out = 0;
  TRY(graph_emit_like(s->g, n, n, n->op->def->inplace, n->args, nargs, &f));
  for (int i = 0; i < n->nargs; i++) {
    if (!n->op->schema.params[i].mutated) continue;
    if (!given[i].n) return fail(ERR_FAIL, "%s: nothing to write to", n->target);
    for (int j = 0; j < given[i].n; j++) TRY(write_result(s, n, f, out++, given[i].v[j]));
  }
  return OK;
}

/* Norms that write their running statistics in training mode though their schema does not say so, and what they are
 * without writing.  Arguments: input, weight, bias, running_mean, running_var, training, momentum, eps; the last
 * two results of the functional op are the new statistics. */
static const struct {
  const char *target, *functional;
  int results;
} norms[] = {
    {"aten.batch_norm.default", "aten._native_batch_norm_legit_functional.default", 5},
    {"aten.native_batch_norm.default", "aten._native_batch_norm_legit_functional.default", 5},
    {"aten._native_batch_norm_legit.default", "aten._native_batch_norm_legit_functional.default", 5},
    {"aten.instance_norm.default", "tess.instance_norm_functional.default", 3},
};

/* The row of a norm that writes; -1: it is none. */
static int training_norm(const Node *n) {
  for (int i = 0; i < (int)(sizeof norms / sizeof *norms); i++)
    if (node_is(n, norms[i].target))
      return n->args[5].kind == ARG_BOOL && n->args[5].b && n->args[3].kind == ARG_VAL && n->args[4].kind == ARG_VAL
                 ? i
                 : -1;
  return -1;
}

static Status replace_norm(State *s, Node *n, const Given *given, int row) {
  enum { NARGS = 8, MEAN = 3 };
  Node *f;
  Val *outs[5];
  int total = norms[row].results, running = total - 2; /* the first of the new statistics */
  TRY(graph_emit_like(s->g, n, n, norms[row].functional, n->args, NARGS, &f));
  for (int i = 0; i < total; i++) {
    const char *name = i < n->nouts ? n->outs[i]->name : i < running ? NULL : given[MEAN + i - running].v[0]->name;
    TRY(node_add_out(f, name, TY_TENSOR, &outs[i]));
    if (i < n->nouts) TRY(val_copy_meta(outs[i], n->outs[i]));
  }
  for (int i = 0; i < 2; i++) {
    Val *old = given[MEAN + i].v[0];
    TRY(val_copy_meta(outs[running + i], old));
    TRY(write(s, n, old, outs[running + i]));
  }
  for (int i = 0; i < n->nouts; i++) track_of(s, n->outs[i])->now = outs[i];
  return OK;
}

/* detach_, unsqueeze_, transpose_ ...: nothing is written, the tensor is only seen another
 * way.  The node becomes its twin without the underscore, a view. */
static const Op *view_twin(const Op *op) {
  char name[128];
  const char *end = strrchr(op->schema.name, '.');
  if (op->def->inplace || !end || end[-1] != '_' || strlen(op->schema.name) >= sizeof name) return NULL;
  size_t n = (size_t)(end - op->schema.name) - 1;
  memcpy(name, op->schema.name, n);
  strcpy(name + n, end);
  const Op *twin = op_find(name);
  return twin && !twin->schema.mutates && twin->schema.nreturns && twin->schema.returns[0].aliased ? twin : NULL;
}

/* ---- the walk ------------------------------------------------------------------------------ */

static void hang_view(State *s, Node *n, Val *parent) {
  for (int i = 0; i < n->nouts; i++) {
    *track_of(s, n->outs[i]) = (Track){
        .parent = parent, .view = n, .now = n->outs[i], .version = track_of(s, root_of(s, parent))->version};
  }
}

/* wait_tensor returns its argument, whose contents are there from now on. */
static Status settle(State *s, Node *n, Val *v) {
  Val *root = root_of(s, v), *waited = n->outs[0];
  bool whole = true;
  for (Val *at = v; at != root; at = track_of(s, at)->parent) whole &= track_of(s, at)->view == NULL;
  if (whole && (root->node || track_of(s, root)->version)) TRY(write(s, n, v, waited));
  *track_of(s, waited) = (Track){.parent = v, .now = waited, .version = track_of(s, root)->version};
  return OK;
}

static Status list_given(State *s, const Node *n, Given *given) {
  for (int i = 0; i < n->nargs && i < MAX_PARAMS; i++) {
    const Arg *a = &n->args[i];
    bool list = a->kind == ARG_LIST && n->op && n->op->schema.params[i].mutated;
    int count = list ? a->n : a->kind == ARG_VAL;
    given[i].v = given[i].one;
    if (count > 1) TRY_NEW(given[i].v, arena_new_n(s->g->arena, Val *, count));
    for (int j = 0; j < count; j++) {
      const Arg *item = list ? &a->list[j] : a;
      if (item->kind == ARG_VAL) given[i].v[given[i].n++] = item->val;
    }
  }
  return OK;
}

static Status visit(State *s, Node *n) {
  Given given[MAX_PARAMS] = {{0}};
  TRY(list_given(s, n, given));
  Val *first = given[0].n == 1 ? given[0].v[0] : NULL;
  ReadArgs r = {s, n, OK};
  node_each_val(n, read_ref, &r);
  TRY(r.status);
  for (int i = 0; i < n->nouts; i++) track_of(s, n->outs[i])->now = n->outs[i];
  if (n->op && n->op->def->inplace && n->op->schema.mutates) {
    TRY(replace_inplace(s, n, given));
    node_remove(n);
  } else if (n->op && training_norm(n) >= 0) {
    TRY(replace_norm(s, n, given, training_norm(n)));
    node_remove(n);
  } else if (n->op && n->op->schema.mutates && view_twin(n->op)) {
    n->op = view_twin(n->op);
    n->target = n->op->schema.name;
    if (first) hang_view(s, n, first);
  } else if (n->op && n->op->schema.mutates) {
    return fail(ERR_FAIL, "%s writes to its arguments in a way this pass does not know", n->target);
  } else if (n->op && first && node_is(n, "_c10d_functional.wait_tensor.default")) {
    return settle(s, n, first);
  } else if (n->op && first && view_is_alias(n)) {
    hang_view(s, n, first);
  }
  return OK;
}

static bool has_writes(const Graph *g) {
  for (const Node *n = g->first; n; n = n->next) {
    if (n->op && (n->op->schema.mutates || training_norm(n) >= 0)) return true;
  }
  return false;
}

static Status functionalize_graph(Graph *g, State *s) {
  *s = (State){.g = g, .ntrack = g->nvals};
  TRY_NEW(s->track, calloc((size_t)g->nvals + 1, sizeof *s->track));
  for (int i = 0; i < g->ninputs; i++) s->track[g->inputs[i]->id].now = g->inputs[i];
  for (Node *n = g->first, *next; n; n = next) {
    next = n->next;
    TRY(visit(s, n));
  }
  ReadArgs r = {s, NULL, OK};
  for (int i = 0; i < g->noutputs; i++) arg_each_val(&g->outputs[i], read_ref, &r);
  return r.status;
}

/* F3 */
static Status add_mutations(Exported *e, State *s) {
  Graph *g = e->graph;
  int n = 0;
  Arg *outputs;
  OutputSpec *specs;
  TRY_NEW(outputs, arena_new_n(&e->arena, Arg, g->noutputs + g->ninputs));
  TRY_NEW(specs, arena_new_n(&e->arena, OutputSpec, g->noutputs + g->ninputs));
  for (int i = 0; i < g->ninputs; i++) {
    Track *t = track_of(s, g->inputs[i]);
    if (t->version == 0 || t->now == g->inputs[i]) continue;
    /* A lifted tensor that is written to is no constant; mutations name buffers. */
    if (e->inputs[i].kind == IN_TENSOR_CONSTANT) e->inputs[i].kind = IN_BUFFER, e->inputs[i].persistent = false;
    InputKind k = e->inputs[i].kind;
    OutputKind kind = k == IN_USER        ? OUT_USER_INPUT_MUTATION
                      : k == IN_PARAMETER ? OUT_PARAMETER_MUTATION
                                          : OUT_BUFFER_MUTATION;
    outputs[n] = arg_val(t->now);
    specs[n++] = (OutputSpec){kind, k == IN_USER ? g->inputs[i]->name : e->inputs[i].target};
  }
  for (int i = 0; i < g->noutputs; i++, n++) outputs[n] = g->outputs[i], specs[n] = e->outputs[i];
  g->outputs = outputs;
  g->outputs_cap = g->noutputs + g->ninputs;
  g->noutputs = n;
  e->outputs = specs;
  return OK;
}

static Status functionalize_inner(Graph *g) {
  for (Node *n = g->first; n; n = n->next) {
    for (int i = 0; i < n->nargs; i++) {
      if (n->args[i].kind != ARG_GRAPH) continue;
      Graph *sub = n->args[i].graph;
      TRY(functionalize_inner(sub));
      if (!has_writes(sub)) continue;
      State s;
      Status status = functionalize_graph(sub, &s);
      for (int j = 0; !status && j < sub->ninputs; j++) {
        if (s.track[sub->inputs[j]->id].version)
          status = fail(ERR_FILE, "a sub-graph of %s writes to its argument %d", n->target, j);
      }
      free(s.track);
      TRY(status);
    }
  }
  return OK;
}

Status pass_functionalize(Exported *e, const PassArgs *args) {
  State s = {0};
  TRY(functionalize_inner(e->graph));
  if (!has_writes(e->graph)) return OK;
  Status status = functionalize_graph(e->graph, &s);
  if (!status) status = add_mutations(e, &s);
  free(s.track);
  if (!status && args->stats) text_printf(args->stats, "functionalize: %d writes\n", s.writes);
  return status;
}
