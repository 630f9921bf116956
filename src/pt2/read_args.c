/* read_args.c -- arguments of .pt2 files: {"as_tensor": {"name": "x"}}; see reader.h. */
#include <string.h>

#include "pt2/reader.h"

Status read_union(yyjson_val *v, const char **tag, yyjson_val **value) {
  yyjson_obj_iter it;
  if (yyjson_obj_size(v) != 1 || !yyjson_obj_iter_init(v, &it))
    return fail(ERR_FILE, "expected an object with one member, its kind");
  yyjson_val *key = yyjson_obj_iter_next(&it);
  *tag = yyjson_get_str(key);
  *value = yyjson_obj_iter_get_val(key);
  return OK;
}

Status read_name(yyjson_val *v, const char **out) {
  *out = json_as_string(yyjson_obj_get(v, "name"));
  return *out && **out ? OK : fail(ERR_FILE, "expected the name of a value");
}

typedef Status ArgFn(GraphReader *g, yyjson_val *v, Arg *out);

/* ---- one of a kind -------------------------------------------------------------------- */

static Status read_none(GraphReader *g, yyjson_val *v, Arg *out) {
  (void)g, (void)v;
  *out = (Arg){.kind = ARG_NONE};
  return OK;
}

static Status read_tensor(GraphReader *g, yyjson_val *v, Arg *out) {
  const char *name;
  TRY(read_name(v, &name));
  out->kind = ARG_VAL;
  return graph_find_val(g, name, &out->val);
}

static Status read_int(GraphReader *g, yyjson_val *v, Arg *out) {
  (void)g;
  out->kind = ARG_INT;
  return json_as_int64(v, &out->i)
             ? OK
             : fail(ERR_FILE, "expected an integer of 64 bits, found %s", yyjson_get_type_desc(v));
}

static Status read_float_arg(GraphReader *g, yyjson_val *v, Arg *out) {
  (void)g;
  out->kind = ARG_FLOAT;
  return read_float(v, &out->f);
}

static Status read_bool(GraphReader *g, yyjson_val *v, Arg *out) {
  (void)g;
  *out = arg_bool(yyjson_get_bool(v));
  return yyjson_is_bool(v) ? OK : fail(ERR_FILE, "expected true or false, found %s", yyjson_get_type_desc(v));
}

static Status read_string(GraphReader *g, yyjson_val *v, Arg *out) {
  (void)g;
  *out = arg_str(json_as_string(v));
  return out->str ? OK : fail(ERR_FILE, "expected a string, found %s", yyjson_get_type_desc(v));
}

static Status read_complex(GraphReader *g, yyjson_val *v, Arg *out) {
  (void)g;
  out->kind = ARG_COMPLEX;
  TRY(read_float(yyjson_obj_get(v, "real"), &out->complex_[0]));
  return read_float(yyjson_obj_get(v, "imag"), &out->complex_[1]);
}

static Status read_scalar_type(GraphReader *g, yyjson_val *v, Arg *out) {
  (void)g;
  out->kind = ARG_DTYPE;
  return read_dtype(v, &out->dtype);
}

static Status read_memory_format(GraphReader *g, yyjson_val *v, Arg *out) {
  static const MemoryFormat formats[] = {MEMORY_CONTIGUOUS, MEMORY_CHANNELS_LAST, MEMORY_CHANNELS_LAST_3D,
                                         MEMORY_PRESERVE};
  int64_t code;
  (void)g;
  if (!json_as_int64(v, &code) || code < 1 || code > 4) return fail(ERR_FILE, "unknown memory format");
  *out = (Arg){.kind = ARG_MEMORY_FORMAT, .memory_format = formats[code - 1]};
  return OK;
}

static Status read_layout(GraphReader *g, yyjson_val *v, Arg *out) {
  int64_t code;
  (void)g;
  if (!json_as_int64(v, &code) || code != 7)
    return fail(ERR_FILE, "a layout that is not strided: only dense tensors are supported");
  out->kind = ARG_LAYOUT;
  return OK;
}

/* {"type": "cuda", "index": 0} -> cuda:0 */
static Status read_device(GraphReader *g, yyjson_val *v, Arg *out) {
  const char *type;
  int64_t index;
  TRY(json_string(v, "type", "device", &type));
  out->kind = ARG_DEVICE;
  out->str = type;
  yyjson_val *number = yyjson_obj_get(v, "index");
  if (!number || yyjson_is_null(number)) return OK;
  if (!json_as_int64(number, &index)) return fail(ERR_FILE, "the index of a device must be a number");
  TRY_NEW(out->str, arena_printf(g->g->arena, "%s:%lld", type, (long long)index));
  return OK;
}

/* {"as_name": "sym_size"}, or a constant */
static Status read_sym_arg(GraphReader *g, yyjson_val *v, Arg *out) {
  const char *tag;
  yyjson_val *value;
  TRY(read_union(v, &tag, &value));
  if (!strcmp(tag, "as_int")) return read_int(g, value, out);
  if (!strcmp(tag, "as_float")) return read_float_arg(g, value, out);
  if (!strcmp(tag, "as_bool")) return read_bool(g, value, out);
  const char *name = json_as_string(value);
  if (strcmp(tag, "as_name") || !name) return fail(ERR_FILE, "a symbolic number of the unknown kind '%s'", tag);
  out->kind = ARG_VAL;
  return graph_find_val(g, name, &out->val);
}

static Status read_optional_tensor(GraphReader *g, yyjson_val *v, Arg *out) {
  const char *tag;
  yyjson_val *value;
  TRY(read_union(v, &tag, &value));
  if (!strcmp(tag, "as_none")) return read_none(g, v, out);
  if (!strcmp(tag, "as_tensor")) return read_tensor(g, value, out);
  return fail(ERR_FILE, "an optional tensor of the unknown kind '%s'", tag);
}

static Status read_sub_graph(GraphReader *g, yyjson_val *v, Arg *out) {
  yyjson_val *json;
  if (g->depth == MAX_GRAPH_DEPTH)
    return fail(ERR_FILE, "sub-graphs nest more than %d levels deep", MAX_GRAPH_DEPTH);
  TRY(json_object(v, "graph", "sub-graph", &json));
  out->kind = ARG_GRAPH;
  TRY(graph_new(g->g->arena, g->g->syms, &out->graph));
  return read_graph(g->r, json, NULL, g->depth + 1, out->graph);
}

static Status refuse_object(GraphReader *g, yyjson_val *v, Arg *out) {
  (void)g, (void)v, (void)out;
  return status_hint(fail(ERR_FILE, "it takes a custom object, which is Python or C++ code of its own"),
                     "export the model without TorchBind objects (quantised or custom classes)");
}

/* ---- lists ------------------------------------------------------------------------------- */

static Status read_list(GraphReader *g, yyjson_val *v, ArgFn *item, Arg *out) {
  size_t i, max;
  yyjson_val *x;
  if (!yyjson_is_arr(v)) return fail(ERR_FILE, "expected a list, found %s", yyjson_get_type_desc(v));
  if (yyjson_arr_size(v) > INT32_MAX) return fail(ERR_FILE, "a list is too long");
  *out = arg_list(NULL, (int)yyjson_arr_size(v));
  TRY_NEW(out->list, arena_new_n(g->g->arena, Arg, out->n));
  if (v) yyjson_arr_foreach(v, i, max, x) TRY(item(g, x, &out->list[i]));
  return OK;
}

static Status read_ints(GraphReader *g, yyjson_val *v, Arg *out) { return read_list(g, v, read_int, out); }
static Status read_floats(GraphReader *g, yyjson_val *v, Arg *out) { return read_list(g, v, read_float_arg, out); }
static Status read_bools(GraphReader *g, yyjson_val *v, Arg *out) { return read_list(g, v, read_bool, out); }
static Status read_strings(GraphReader *g, yyjson_val *v, Arg *out) { return read_list(g, v, read_string, out); }
static Status read_tensors(GraphReader *g, yyjson_val *v, Arg *out) { return read_list(g, v, read_tensor, out); }
static Status read_sym_args(GraphReader *g, yyjson_val *v, Arg *out) { return read_list(g, v, read_sym_arg, out); }
static Status read_optional_tensors(GraphReader *g, yyjson_val *v, Arg *out) {
  return read_list(g, v, read_optional_tensor, out);
}
static Status read_int_lists(GraphReader *g, yyjson_val *v, Arg *out) { return read_list(g, v, read_ints, out); }
static Status read_float_lists(GraphReader *g, yyjson_val *v, Arg *out) {
  return read_list(g, v, read_floats, out);
}
static Status read_nested_tensors(GraphReader *g, yyjson_val *v, Arg *out) {
  return read_list(g, v, read_tensors, out);
}

/* The most frequent kinds first. */
static const struct {
  const char *tag;
  ArgFn *read;
} kinds[] = {
    {"as_tensor", read_tensor},
    {"as_int", read_int},
    {"as_ints", read_ints},
    {"as_scalar_type", read_scalar_type},
    {"as_device", read_device},
    {"as_layout", read_layout},
    {"as_bool", read_bool},
    {"as_none", read_none},
    {"as_float", read_float_arg},
    {"as_tensors", read_tensors},
    {"as_memory_format", read_memory_format},
    {"as_string", read_string},
    {"as_operator", read_string}, /* the op that with_effects calls */
    {"as_sym_int", read_sym_arg},
    {"as_sym_ints", read_sym_args},
    {"as_sym_bool", read_sym_arg},
    {"as_sym_bools", read_sym_args},
    {"as_sym_float", read_sym_arg},
    {"as_sym_floats", read_sym_args},
    {"as_graph", read_sub_graph},
    {"as_optional_tensors", read_optional_tensors},
    {"as_optional_tensor", read_optional_tensor},
    {"as_floats", read_floats},
    {"as_bools", read_bools},
    {"as_strings", read_strings},
    {"as_complex", read_complex},
    {"as_int_lists", read_int_lists},
    {"as_float_lists", read_float_lists},
    {"as_nested_tensors", read_nested_tensors},
    {"as_custom_obj", refuse_object},
};

Status read_arg(GraphReader *g, yyjson_val *v, Arg *out) {
  const char *tag;
  yyjson_val *value;
  TRY(read_union(v, &tag, &value));
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (!strcmp(tag, kinds[i].tag)) return kinds[i].read(g, value, out);
  }
  return fail(ERR_FILE, "an argument of the kind '%.60s' is not supported", tag);
}

Status read_constant(Reader *r, yyjson_val *v, Arg *out) {
  static const char *const allowed[] = {"as_none", "as_int", "as_float", "as_bool", "as_string"};
  GraphReader none = {.r = r, .g = r->e->graph};
  const char *tag;
  yyjson_val *value;
  TRY(read_union(v, &tag, &value));
  for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
    if (!strcmp(tag, allowed[i])) return read_arg(&none, v, out);
  }
  return fail(ERR_FILE, "a constant of the kind '%.60s' is not supported", tag);
}
