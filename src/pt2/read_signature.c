/* read_signature.c -- what the inputs and outputs of a program are; see reader.h. */
#include <string.h>

#include "pt2/reader.h"

/* A parameter's value has the sizes of its weight; the weight's strides are the true ones. */
static Status match_state(Reader *r, Val *v, const char *fqn) {
  const StateEntry *entry = strmap_get(&r->state, fqn);
  Exported *e = r->e;
  if (!entry) return fail(ERR_FILE, "'%s' is not among the weights and constants of the file", fqn);
  const Tensor *t = entry->tensor;
  bool same = v->type == TY_TENSOR && v->dtype == t->dtype && v->ndim == t->ndim;
  for (int i = 0; same && i < t->ndim; i++) same = sym_is_int(v->size[i]) && v->size[i]->value == t->size[i];
  if (!same) {
    char buf[256];
    return fail(ERR_FILE, "'%s' is stored as %s, but the graph says otherwise", fqn,
                tensor_describe(t, buf, sizeof buf));
  }
  v->stride = NULL;
  if (tensor_is_contiguous(t)) return OK;
  TRY_NEW(v->stride, arena_new_n(&e->arena, const Sym *, t->ndim));
  for (int i = 0; i < t->ndim; i++) TRY_NEW(v->stride[i], sym_int(&e->syms, t->stride[i]));
  return OK;
}

/* ---- inputs --------------------------------------------------------------------------------- */

static const struct {
  const char *tag;
  InputKind kind;
  const char *target; /* the member that names the state */
} input_kinds[] = {
    {"parameter", IN_PARAMETER, "parameter_name"},
    {"buffer", IN_BUFFER, "buffer_name"},
    {"user_input", IN_USER, NULL},
    {"tensor_constant", IN_TENSOR_CONSTANT, "tensor_constant_name"},
    {"constant_input", IN_CONSTANT, NULL},
    {"token", IN_TOKEN, NULL},
};

/* The name in an argument of a spec: {"name": "x"}, or the same inside a tag. */
static const char *spec_name(yyjson_val *arg) {
  yyjson_obj_iter it;
  const char *name = json_as_string(yyjson_obj_get(arg, "name"));
  if (name || yyjson_obj_size(arg) != 1 || !yyjson_obj_iter_init(arg, &it)) return name;
  yyjson_val *inner = yyjson_obj_iter_get_val(yyjson_obj_iter_next(&it));
  name = json_as_string(yyjson_obj_get(inner, "name"));
  return name ? name : json_as_string(yyjson_obj_get(inner, "as_name"));
}

static Status read_input_spec(Reader *r, yyjson_val *json, yyjson_val *graph_input, Val *v, InputSpec *out) {
  const char *tag;
  yyjson_val *spec;
  size_t k = 0, nkinds = sizeof input_kinds / sizeof *input_kinds;
  TRY(read_union(json, &tag, &spec));
  if (!strcmp(tag, "custom_obj")) {
    return status_hint(fail(ERR_FILE, "it is a custom object, which is Python or C++ code of its own"),
                       "export the model without TorchBind objects (quantised or custom classes)");
  }
  while (k < nkinds && strcmp(tag, input_kinds[k].tag)) k++;
  if (k == nkinds) return fail(ERR_FILE, "an input of the kind '%.60s' is not supported", tag);
  out->kind = input_kinds[k].kind;
  if (v->type == TY_NONE) { /* the graph's input is a constant */
    if (out->kind != IN_USER && out->kind != IN_CONSTANT) return fail(ERR_FILE, "a %s must be a tensor", tag);
    out->kind = IN_CONSTANT;
    return read_constant(r, graph_input, &out->constant);
  }
  if (out->kind == IN_CONSTANT) return fail(ERR_FILE, "the signature calls the input '%s' a constant", v->name);
  const char *name = spec_name(yyjson_obj_get(spec, "arg")), *given = spec_name(graph_input);
  if (!name || !given || strcmp(name, given))
    return fail(ERR_FILE, "the signature calls it '%s'", name ? name : "?");
  if (!input_kinds[k].target) return OK;
  TRY(json_string(spec, input_kinds[k].target, tag, &out->target));
  out->persistent = out->kind == IN_BUFFER && !yyjson_is_false(yyjson_obj_get(spec, "persistent"));
  return match_state(r, v, out->target);
}

static Status read_inputs(Reader *r, yyjson_val *signature, yyjson_val *graph_inputs) {
  Exported *e = r->e;
  yyjson_val *specs, *v;
  yyjson_arr_iter it;
  size_t i, max;
  TRY(json_array(signature, "input_specs", "signature", &specs)); /* as many as inputs: read_graph */
  TRY_NEW(e->inputs, arena_new_n(&e->arena, InputSpec, e->graph->ninputs));
  yyjson_arr_iter_init(graph_inputs, &it);
  if (specs) yyjson_arr_foreach(specs, i, max, v) {
      Val *val = e->graph->inputs[i];
      TRY(status_at(read_input_spec(r, v, yyjson_arr_iter_next(&it), val, &e->inputs[i]), "input %zu, %s", i,
                    val->name));
    }
  return OK;
}

/* ---- outputs ---------------------------------------------------------------------------------- */

static const struct {
  const char *tag;
  OutputKind kind;
  const char *target;
} output_kinds[] = {
    {"user_output", OUT_USER, NULL},
    {"buffer_mutation", OUT_BUFFER_MUTATION, "buffer_name"},
    {"parameter_mutation", OUT_PARAMETER_MUTATION, "parameter_name"},
    {"user_input_mutation", OUT_USER_INPUT_MUTATION, "user_input_name"},
    {"loss_output", OUT_LOSS, NULL},
    {"gradient_to_parameter", OUT_GRADIENT_TO_PARAMETER, "parameter_name"},
    {"gradient_to_user_input", OUT_GRADIENT_TO_USER_INPUT, "user_input_name"},
    {"token", OUT_TOKEN, NULL},
};

/* What an output writes to is an input of the program. */
static Status check_target(const Exported *e, const OutputSpec *out) {
  for (int i = 0; i < e->graph->ninputs; i++) {
    const InputSpec *in = &e->inputs[i];
    bool user = out->kind == OUT_USER_INPUT_MUTATION || out->kind == OUT_GRADIENT_TO_USER_INPUT;
    const char *name = user ? (in->kind == IN_USER ? e->graph->inputs[i]->name : NULL) : in->target;
    if (name && !strcmp(name, out->target)) return OK;
  }
  return fail(ERR_FILE, "it writes to '%s', which is no input of the program", out->target);
}

static Status read_output_spec(Reader *r, yyjson_val *json, yyjson_val *graph_output, OutputSpec *out) {
  const char *tag;
  yyjson_val *spec;
  size_t k = 0, nkinds = sizeof output_kinds / sizeof *output_kinds;
  TRY(read_union(json, &tag, &spec));
  while (k < nkinds && strcmp(tag, output_kinds[k].tag)) k++;
  if (k == nkinds) return fail(ERR_FILE, "an output of the kind '%.60s' is not supported", tag);
  out->kind = output_kinds[k].kind;
  const char *name = spec_name(yyjson_obj_get(spec, "arg")), *given = spec_name(graph_output);
  if ((name || given) && (!name || !given || strcmp(name, given))) {
    return fail(ERR_FILE, "the signature calls it '%s', the graph '%s'", name ? name : "?", given ? given : "?");
  }
  if (!output_kinds[k].target) return OK;
  TRY(json_string(spec, output_kinds[k].target, tag, &out->target));
  return check_target(r->e, out);
}

static Status read_outputs(Reader *r, yyjson_val *signature, yyjson_val *graph_outputs) {
  Exported *e = r->e;
  yyjson_val *specs, *v;
  yyjson_arr_iter it;
  size_t i, max;
  TRY(json_array(signature, "output_specs", "signature", &specs));
  if (yyjson_arr_size(specs) != (size_t)e->graph->noutputs) {
    return fail(ERR_FILE, "the graph has %d outputs, its signature %zu", e->graph->noutputs,
                yyjson_arr_size(specs));
  }
  TRY_NEW(e->outputs, arena_new_n(&e->arena, OutputSpec, e->graph->noutputs));
  yyjson_arr_iter_init(graph_outputs, &it);
  if (specs) yyjson_arr_foreach(specs, i, max, v) {
      TRY(status_at(read_output_spec(r, v, yyjson_arr_iter_next(&it), &e->outputs[i]), "output %zu", i));
    }
  return OK;
}

Status read_signature(Reader *r) {
  yyjson_val *module = yyjson_obj_get(r->program, "graph_module"), *graph = yyjson_obj_get(module, "graph"),
             *signature;
  TRY(json_object(module, "signature", "graph_module", &signature));
  TRY(read_inputs(r, signature, yyjson_obj_get(graph, "inputs")));
  return read_outputs(r, signature, yyjson_obj_get(graph, "outputs"));
}

/* ---- ranges of symbols ----------------------------------------------------------------------- */

Status read_ranges(Reader *r) {
  Exported *e = r->e;
  yyjson_val *ranges = yyjson_obj_get(r->program, "range_constraints"), *key, *value;
  size_t i, max, count = yyjson_obj_size(ranges);
  if (count == 0) return OK;
  if (count > INT32_MAX) return fail(ERR_FILE, "too many range constraints");
  TRY_NEW(e->ranges, arena_new_n(&e->arena, SymRange, count));
  if (ranges) yyjson_obj_foreach(ranges, i, max, key, value) {
      SymRange *range = &e->ranges[e->nranges];
      *range = (SymRange){json_as_string(key), INT64_MIN, INT64_MAX, -1};
      yyjson_val *least = yyjson_obj_get(value, "min_val"), *most = yyjson_obj_get(value, "max_val");
      if (!range->symbol) return fail(ERR_FILE, "a range constraint without a symbol");
      if (yyjson_is_num(least) && !json_as_int64(least, &range->min)) range->min = INT64_MIN;
      if (yyjson_is_num(most) && !json_as_int64(most, &range->max)) range->max = INT64_MAX;
      if (range->min > range->max) {
        return fail(ERR_FILE, "the symbol %s has the empty range [%lld, %lld]", range->symbol,
                    (long long)range->min, (long long)range->max);
      }
      e->nranges++;
    }
  return OK;
}

/* ---- the root call ------------------------------------------------------------------------------ */

static Status read_arg_names(Reader *r, yyjson_val *names) {
  Exported *e = r->e;
  size_t i, max, count = yyjson_arr_size(names);
  yyjson_val *v;
  const char **out;
  if (!yyjson_is_arr(names) || count > INT32_MAX) return OK;
  TRY_NEW(out, arena_new_n(&e->arena, const char *, count));
  if (names) yyjson_arr_foreach(names, i, max, v) {
      if (!(out[i] = json_as_string(v))) return fail(ERR_FILE, "forward_arg_names must hold names");
    }
  e->arg_names = out;
  e->narg_names = (int)count;
  return OK;
}

Status read_root_call(Reader *r) {
  yyjson_val *calls = yyjson_obj_get(yyjson_obj_get(r->program, "graph_module"), "module_call_graph"), *v;
  size_t i, max;
  if (calls) yyjson_arr_foreach(calls, i, max, v) {
      const char *fqn = json_as_string(yyjson_obj_get(v, "fqn"));
      yyjson_val *call = yyjson_obj_get(v, "signature");
      if (!fqn || *fqn || !yyjson_is_obj(call)) continue;
      r->e->in_spec = json_as_string(yyjson_obj_get(call, "in_spec"));
      r->e->out_spec = json_as_string(yyjson_obj_get(call, "out_spec"));
      return read_arg_names(r, yyjson_obj_get(call, "forward_arg_names"));
    }
  return OK;
}
