/* write_graph.c -- nodes and values of .pt2 files; see writer.h. */
#include <stdio.h>
#include <string.h>

#include "pt2/writer.h"

/* ---- names ------------------------------------------------------------------------------- */

static Status take_names(Writer *w, const Graph *g) {
  StrSlot *slot;
  for (int i = 0; i < g->ninputs; i++) TRY(strmap_slot(&w->names, &w->arena, g->inputs[i]->name, &slot));
  for (const Node *n = g->first; n; n = n->next) {
    for (int i = 0; i < n->nouts; i++) TRY(strmap_slot(&w->names, &w->arena, n->outs[i]->name, &slot));
  }
  return OK;
}

static bool gives_list(const Node *n) { return n->op ? n->op->schema.returns_list : n->outs_list; }

/* A node with one result is named after it; the others after their op: FX would make up a
 * name otherwise, and take one that a later value needs. */
static Status write_node_name(Writer *w, const Node *n) {
  StrSlot *slot;
  if (n->nouts == 1 && n->outs[0]->type != TY_NONE && !gives_list(n) && strncmp(n->target, "higher_order.", 13)) {
    text_json(&w->b, n->outs[0]->name);
    return OK;
  }
  const char *dot = strchr(n->target, '.'), *op = dot ? dot + 1 : n->target;
  int len = (int)strcspn(op, ".");
  for (int k = 0;; k++) {
    char *name;
    TRY_NEW(name,
            k ? arena_printf(&w->arena, "%.*s_%d", len, op, k) : arena_printf(&w->arena, "%.*s_call", len, op));
    size_t before = w->names.used;
    TRY(strmap_slot(&w->names, &w->arena, name, &slot));
    if (w->names.used == before) continue;
    text_json(&w->b, name);
    return OK;
  }
}

/* ---- nodes ------------------------------------------------------------------------------- */

/* Targets outside torch.ops stay as they are: _operator.add, math.trunc, torch.sym_max. */
static void write_target(Writer *w, const char *target) {
  static const char *const plain[] = {"_operator.", "math.", "torch.", "builtins."};
  bool prefix = true;
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
    prefix &= strncmp(target, plain[i], strlen(plain[i])) != 0;
  TextBuf full = {0};
  text_printf(&full, "%s%s", prefix ? "torch.ops." : "", target);
  w->b.failed |= full.failed;
  if (full.text) text_json(&w->b, full.text);
  text_free(&full);
}

/* with_effects calls an op that is its second argument. */
static bool is_operator(const Node *n, int i) {
  return i == 1 && n->args[i].kind == ARG_STR && node_is(n, "higher_order.with_effects");
}

/* Sub-graphs return tuples, but for the condition of a loop. */
static bool is_condition(const Node *n, int i) { return i == 0 && node_is(n, "higher_order.while_loop"); }

static Status write_inputs(Writer *w, const Node *n) {
  bool first = true, positional = true;
  text_puts(&w->b, "\"inputs\": [");
  for (int i = 0; i < n->nargs; i++) {
    const Param *param = n->op ? &n->op->schema.params[i] : NULL;
    const char *name = param ? param->name : n->arg_names[i];
    if (n->args[i].kind == ARG_UNSET) {
      positional = false;
      continue;
    }
    if (param && param->keyword) positional = false;
    if (!first) text_puts(&w->b, ", ");
    first = false;
    text_puts(&w->b, "{\"name\": ");
    text_json(&w->b, name ? name : "");
    text_puts(&w->b, ", \"arg\": ");
    if (is_operator(n, i)) {
      text_puts(&w->b, "{\"as_operator\": ");
      text_json(&w->b, n->args[i].str);
      text_puts(&w->b, "}");
    } else {
      w->alone = is_condition(n, i);
      TRY(write_arg(w, &n->args[i], param));
    }
    text_printf(&w->b, ", \"kind\": %d}", (param ? positional : !name) ? 1 : 2);
  }
  text_puts(&w->b, "]");
  return OK;
}

static void write_outputs(Writer *w, const Node *n) {
  bool list = gives_list(n);
  text_puts(&w->b, list ? ", \"outputs\": [{\"as_tensors\": [" : ", \"outputs\": [");
  for (int i = 0; i < n->nouts; i++) {
    if (i) text_puts(&w->b, ", ");
    if (!list) {
      write_val_ref(w, n->outs[i]);
      continue;
    }
    text_puts(&w->b, "{\"name\": ");
    text_json(&w->b, n->outs[i]->name);
    text_puts(&w->b, "}");
  }
  text_puts(&w->b, list ? "]}]" : "]");
}

static Status write_node(Writer *w, const Node *n) {
  text_puts(&w->b, "{\"target\": ");
  write_target(w, n->target);
  text_puts(&w->b, ", ");
  TRY(write_inputs(w, n));
  write_outputs(w, n);
  text_puts(&w->b, ", \"metadata\": {");
  for (int i = 0; i < n->nmeta; i++) {
    if (i) text_puts(&w->b, ", ");
    text_json(&w->b, n->meta[i].key);
    text_puts(&w->b, ": ");
    text_json(&w->b, n->meta[i].value);
  }
  /* Sub-graphs return tuples, so higher-order ops do. */
  text_printf(&w->b, "}, \"is_hop_single_tensor_return\": %s, \"name\": ",
              strncmp(n->target, "higher_order.", 13) ? "null" : "false");
  TRY(write_node_name(w, n));
  text_puts(&w->b, "}");
  return OK;
}

static Status at_node(Status s, const Node *n) {
  if (!s) return s;
  return status_at(s, "node %s (%s)", n->nouts ? n->outs[0]->name : "", n->target);
}

/* ---- values ------------------------------------------------------------------------------- */

static bool wants_grad(const Exported *root, int input) {
  if (!root || root->inputs[input].kind != IN_PARAMETER) return false;
  const StateEntry *state = exported_state(root, root->inputs[input].target);
  return !state || state->requires_grad;
}

static Status write_described(Writer *w, const Val *v, ValType type, bool requires_grad, bool *first) {
  if (v->type != type) return OK;
  if (!*first) text_puts(&w->b, ", ");
  *first = false;
  if (type == TY_TENSOR) return write_val_meta(w, v, requires_grad);
  if (!v->sym) return fail(ERR_FAIL, "the value %s cannot be written: its expression is not known", v->name);
  text_json(&w->b, v->name);
  text_puts(&w->b, ": ");
  write_sym(w, v->sym, type);
  return OK;
}

static Status write_values(Writer *w, const Graph *g, const Exported *root, const char *key, ValType type) {
  bool first = true;
  text_printf(&w->b, ", \"%s\": {", key);
  for (int i = 0; i < g->ninputs; i++) TRY(write_described(w, g->inputs[i], type, wants_grad(root, i), &first));
  for (const Node *n = g->first; n; n = n->next) {
    for (int i = 0; i < n->nouts; i++) TRY(at_node(write_described(w, n->outs[i], type, false, &first), n));
  }
  text_puts(&w->b, "}");
  return OK;
}

Status write_graph(Writer *w, const Graph *g, const Exported *root) {
  bool alone = w->alone;
  w->alone = false;
  TRY(take_names(w, g));
  text_puts(&w->b, "{\"inputs\": [");
  for (int i = 0; i < g->ninputs; i++) {
    if (i) text_puts(&w->b, ", ");
    if (root && root->inputs[i].kind == IN_CONSTANT) TRY(write_arg(w, &root->inputs[i].constant, NULL));
    else write_val_ref(w, g->inputs[i]);
  }
  text_puts(&w->b, "], \"outputs\": [");
  for (int i = 0; i < g->noutputs; i++) {
    if (i) text_puts(&w->b, ", ");
    TRY(status_at(write_arg(w, &g->outputs[i], NULL), "output %d", i));
  }
  text_puts(&w->b, "], \"nodes\": [");
  for (const Node *n = g->first; n; n = n->next) {
    if (n != g->first) text_puts(&w->b, ", ");
    TRY(at_node(write_node(w, n), n));
  }
  text_puts(&w->b, "]");
  TRY(write_values(w, g, root, "tensor_values", TY_TENSOR));
  TRY(write_values(w, g, root, "sym_int_values", TY_INT));
  TRY(write_values(w, g, root, "sym_bool_values", TY_BOOL));
  TRY(write_values(w, g, root, "sym_float_values", TY_FLOAT));
  text_printf(&w->b, ", \"is_single_tensor_return\": %s, \"custom_obj_values\": {}}", alone ? "true" : "false");
  return OK;
}
