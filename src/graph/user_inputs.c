/* user_inputs.c -- see user_inputs.h. */
#include "graph/user_inputs.h"

#include <string.h>

#include "base/json.h"
#include "base/textbuf.h"

static bool are_leaves(yyjson_val *spec, size_t *count) {
  size_t i, max;
  yyjson_val *children = yyjson_obj_get(spec, "children_spec"), *child;
  if (!yyjson_is_arr(children)) return false;
  yyjson_arr_foreach(children, i, max, child) {
    if (!yyjson_is_null(yyjson_obj_get(child, "type"))) return false;
  }
  *count += yyjson_arr_size(children);
  return true;
}

/* Arguments and inputs are the same one by one if every argument of forward, by position or by name, is a tensor
 * or a number: no list, no dictionary.  in_spec: [1, (positional ..., {name: ...})]. */
static Status one_by_one(const Exported *e, bool *out) {
  size_t leaves = 0, inputs = 0;
  yyjson_doc *doc;
  *out = false;
  if (!e->arg_names || !e->in_spec) return OK;
  for (int i = 0; i < e->graph->ninputs; i++)
    inputs += e->inputs[i].kind == IN_USER || e->inputs[i].kind == IN_CONSTANT;
  Status s = json_parse("in_spec", e->in_spec, strlen(e->in_spec), 0, &doc);
  if (s && status_code(s) == ERR_FILE) { /* not of a kind that we know */
    status_free(s);
    return OK;
  }
  if (s) return s;
  yyjson_val *halves = yyjson_obj_get(yyjson_arr_get(yyjson_doc_get_root(doc), 1), "children_spec");
  bool plain = yyjson_arr_size(halves) == 2 && are_leaves(yyjson_arr_get(halves, 0), &leaves) &&
               are_leaves(yyjson_arr_get(halves, 1), &leaves);
  yyjson_doc_free(doc);
  *out = plain && leaves == inputs && leaves == (size_t)e->narg_names;
  return OK;
}

Status user_inputs(const Exported *e, Arena *arena, UserInput **out) {
  bool named;
  UserInput *next;
  TRY(one_by_one(e, &named));
  TRY_NEW(*out, arena_new_n(arena, UserInput, exported_user_inputs(e)));
  next = *out;
  for (int i = 0, argument = 0; i < e->graph->ninputs; i++) {
    InputKind kind = e->inputs[i].kind;
    if (kind != IN_USER && kind != IN_CONSTANT) continue;
    const char *name = named ? e->arg_names[argument++] : NULL;
    if (kind == IN_USER) *next++ = (UserInput){e->graph->inputs[i], name};
  }
  return OK;
}

const UserInput *user_input_find(const UserInput *inputs, int n, const char *name) {
  for (int i = 0; i < n; i++) {
    if (!strcmp(inputs[i].val->name, name)) return &inputs[i];
  }
  for (int i = 0; i < n; i++) {
    if (inputs[i].argument && !strcmp(inputs[i].argument, name)) return &inputs[i];
  }
  return NULL;
}

Status user_inputs_hint(Status s, const Exported *e) {
  TextBuf b = {0};
  int n = 0;
  for (int i = 0; i < e->graph->ninputs; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    if (n++) text_puts(&b, ", ");
    val_describe(&b, e->graph->inputs[i]);
  }
  if (n && b.text) s = status_hint(s, "the program takes %s", b.text);
  else s = status_hint(s, "the program takes no inputs");
  text_free(&b);
  return s;
}
