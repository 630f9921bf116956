/* write_signature.c -- inputs, outputs and the root call of .pt2 files; see writer.h. */
#include <string.h>

#include "pt2/writer.h"

/* ---- inputs and outputs --------------------------------------------------------------------- */

static const struct {
  const char *tag, *target;
} input_kinds[] = {
    [IN_USER] = {"user_input", NULL},         [IN_PARAMETER] = {"parameter", "parameter_name"},
    [IN_BUFFER] = {"buffer", "buffer_name"},  [IN_TENSOR_CONSTANT] = {"tensor_constant", "tensor_constant_name"},
    [IN_CONSTANT] = {"constant_input", NULL}, [IN_TOKEN] = {"token", NULL},
};

static const struct {
  const char *tag, *target;
} output_kinds[] = {
    [OUT_USER] = {"user_output", NULL},
    [OUT_LOSS] = {"loss_output", NULL},
    [OUT_BUFFER_MUTATION] = {"buffer_mutation", "buffer_name"},
    [OUT_PARAMETER_MUTATION] = {"parameter_mutation", "parameter_name"},
    [OUT_GRADIENT_TO_PARAMETER] = {"gradient_to_parameter", "parameter_name"},
    [OUT_GRADIENT_TO_USER_INPUT] = {"gradient_to_user_input", "user_input_name"},
    [OUT_USER_INPUT_MUTATION] = {"user_input_mutation", "user_input_name"},
    [OUT_TOKEN] = {"token", NULL},
};

static void write_member(Writer *w, const char *key, const char *value) {
  text_printf(&w->b, ", \"%s\": ", key);
  text_json(&w->b, value);
}

static void write_name(Writer *w, const Val *v) {
  text_puts(&w->b, "{\"name\": ");
  text_json(&w->b, v->name);
  text_puts(&w->b, "}");
}

static void write_input_spec(Writer *w, int i) {
  const InputSpec *in = &w->e->inputs[i];
  const Val *v = w->e->graph->inputs[i];
  text_printf(&w->b, "{\"%s\": {", input_kinds[in->kind].tag);
  if (in->kind == IN_CONSTANT) {
    text_puts(&w->b, "\"name\": ");
    text_json(&w->b, v->name);
    text_puts(&w->b, ", \"value\": ");
    status_free(write_arg(w, &in->constant, NULL)); /* the graph's inputs were written with it */
  } else {
    text_puts(&w->b, "\"arg\": ");
    if (in->kind == IN_USER) write_val_ref(w, v);
    else write_name(w, v);
    if (in->target) write_member(w, input_kinds[in->kind].target, in->target);
    if (in->kind == IN_BUFFER) text_printf(&w->b, ", \"persistent\": %s", in->persistent ? "true" : "false");
  }
  text_puts(&w->b, "}}");
}

static void write_output_spec(Writer *w, int i) {
  const OutputSpec *out = &w->e->outputs[i];
  const Arg *a = &w->e->graph->outputs[i];
  text_printf(&w->b, "{\"%s\": {\"arg\": ", output_kinds[out->kind].tag);
  if (out->kind == OUT_USER) status_free(write_arg(w, a, NULL)); /* as in the graph's outputs */
  else if (a->kind == ARG_VAL) write_name(w, a->val);
  else text_puts(&w->b, "{\"name\": \"\"}");
  if (output_kinds[out->kind].target) write_member(w, output_kinds[out->kind].target, out->target);
  text_puts(&w->b, "}}");
}

void write_signature(Writer *w) {
  text_puts(&w->b, "{\"input_specs\": [");
  for (int i = 0; i < w->e->graph->ninputs; i++) {
    if (i) text_puts(&w->b, ", ");
    write_input_spec(w, i);
  }
  text_puts(&w->b, "], \"output_specs\": [");
  for (int i = 0; i < w->e->graph->noutputs; i++) {
    if (i) text_puts(&w->b, ", ");
    write_output_spec(w, i);
  }
  text_puts(&w->b, "]}");
}

/* ---- the root call ---------------------------------------------------------------------------- */

#define LEAF "{\"type\": null, \"context\": null, \"children_spec\": []}"
#define TUPLE "{\"type\": \"builtins.tuple\", \"context\": \"null\", \"children_spec\": ["
#define NO_KEYWORDS "{\"type\": \"builtins.dict\", \"context\": \"[]\", \"children_spec\": []}"

static int count_leaves(const char *spec) {
  static const char leaf[] = "\"type\": null";
  int n = 0;
  for (const char *p = spec; p && (p = strstr(p, leaf)); p += sizeof leaf - 1) n++;
  return n;
}

static void add_leaves(TextBuf *b, int n) {
  for (int i = 0; i < n; i++) text_puts(b, i ? ", " LEAF : LEAF);
}

/* The spec of the file, if the program still has that many inputs or outputs; else they
 * become a plain tuple. */
static void write_spec(Writer *w, const char *spec, bool input, int leaves) {
  if (spec && count_leaves(spec) == leaves) {
    text_json(&w->b, spec);
    return;
  }
  TextBuf made = {0};
  text_puts(&made, input ? "[1, " TUPLE TUPLE : "[1, " TUPLE);
  add_leaves(&made, leaves);
  text_puts(&made, input ? "]}, " NO_KEYWORDS "]}]" : "]}]");
  w->b.failed |= made.failed;
  if (made.text) text_json(&w->b, made.text);
  text_free(&made);
}

void write_root_call(Writer *w) {
  const Exported *e = w->e;
  int inputs = 0, outputs = 0;
  for (int i = 0; i < e->graph->ninputs; i++)
    inputs += e->inputs[i].kind == IN_USER || e->inputs[i].kind == IN_CONSTANT;
  for (int i = 0; i < e->graph->noutputs; i++)
    outputs += e->outputs[i].kind == OUT_USER || e->outputs[i].kind == OUT_LOSS;
  text_puts(&w->b, "[{\"fqn\": \"\", \"signature\": {\"inputs\": [], \"outputs\": [], \"in_spec\": ");
  bool kept = e->in_spec && count_leaves(e->in_spec) == inputs;
  write_spec(w, e->in_spec, true, inputs);
  text_puts(&w->b, ", \"out_spec\": ");
  write_spec(w, e->out_spec, false, outputs);
  text_puts(&w->b, ", \"forward_arg_names\": ");
  if (e->arg_names && kept) {
    text_puts(&w->b, "[");
    for (int i = 0; i < e->narg_names; i++) {
      if (i) text_puts(&w->b, ", ");
      text_json(&w->b, e->arg_names[i]);
    }
    text_puts(&w->b, "]");
  } else {
    text_puts(&w->b, "null");
  }
  text_puts(&w->b, "}}]");
}
