/* read_graph.c -- nodes and values of .pt2 files; see reader.h.
 *
 * One pass: tensor_values and sym_*_values go into a hash table, then inputs, nodes and
 * outputs are read in order.  A name is known once it is defined, so what is read is in
 * topological order and in SSA form, or refused.
 */
#include <string.h>

#include "pt2/reader.h"

/* ---- names ------------------------------------------------------------------------------- */

/* What a name stands for; made if it is new. */
static Status take_name(GraphReader *g, const char *name, Named **out) {
  StrSlot *slot;
  if (!name || !*name) return fail(ERR_FILE, "a value has no name");
  TRY(strmap_slot(&g->names, g->g->arena, name, &slot));
  if (!slot->value) {
    Named *named;
    TRY_NEW(named, arena_new(g->g->arena, Named));
    named->name = name;
    slot->value = named;
  }
  *out = slot->value;
  return OK;
}

Status graph_find_val(GraphReader *g, const char *name, Val **out) {
  const Named *named = strmap_get(&g->names, name);
  *out = named ? named->val : NULL;
  return *out ? OK : fail(ERR_FILE, "the value '%.200s' is used before it is defined", name);
}

/* tensor_values, sym_int_values ... : what is known about each name. */
static const struct {
  const char *key;
  ValType type;
} tables[] = {{"tensor_values", TY_TENSOR},
              {"sym_int_values", TY_INT},
              {"sym_bool_values", TY_BOOL},
              {"sym_float_values", TY_FLOAT}};
enum { TABLES = sizeof tables / sizeof *tables };

static Status read_tables(GraphReader *g, yyjson_val *json) {
  size_t count = 0, i, max;
  for (int k = 0; k < TABLES; k++) count += yyjson_obj_size(yyjson_obj_get(json, tables[k].key));
  TRY(strmap_reserve(&g->names, g->g->arena, count));
  for (int k = 0; k < TABLES; k++) {
    yyjson_val *key, *value, *table = yyjson_obj_get(json, tables[k].key);
    if (!table) continue;
    yyjson_obj_foreach(table, i, max, key, value) {
      Named *named;
      const char *name = json_as_string(key);
      TRY(take_name(g, name, &named));
      if (named->meta) return fail(ERR_FILE, "the value '%s' is described twice", name);
      named->type = tables[k].type;
      named->meta = value;
    }
  }
  return OK;
}

/* Fills a new value from its slot and makes the name known. */
static Status define(GraphReader *g, Named *named, ValType type, Val *v) {
  named->val = v;
  if (!named->meta)
    return type == TY_TENSOR && !v->node ? fail(ERR_FILE, "the input '%s' is not in tensor_values", v->name) : OK;
  if (named->type != type) return fail(ERR_FILE, "the value '%s' is described as another kind of value", v->name);
  Status s = type == TY_TENSOR ? read_tensor_meta(g->r, named->meta, v) : read_sym(g->r, named->meta, &v->sym);
  return status_at(s, "value '%s'", v->name);
}

static Status check_new(const Named *named) {
  return named->val ? fail(ERR_FILE, "the value '%s' is defined twice", named->name) : OK;
}

/* ---- inputs ------------------------------------------------------------------------------- */

/* {"as_tensor": {"name": "x"}}, {"as_sym_int": {"as_name": "n"}}: kind and name of a
 * value; *name stays NULL for constants. */
static Status value_name(yyjson_val *v, ValType *type, const char **name) {
  static const struct {
    const char *tag;
    ValType type;
  } kinds[] = {{"as_sym_int", TY_INT}, {"as_sym_bool", TY_BOOL}, {"as_sym_float", TY_FLOAT}};
  const char *tag;
  yyjson_val *value;
  *name = NULL;
  *type = TY_NONE;
  TRY(read_union(v, &tag, &value));
  if (!strcmp(tag, "as_tensor")) {
    *type = TY_TENSOR;
    return read_name(value, name);
  }
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (strcmp(tag, kinds[i].tag)) continue;
    *type = kinds[i].type;
    *name = json_as_string(yyjson_obj_get(value, "as_name"));
    if (!*name) *type = TY_NONE; /* a constant */
  }
  return OK;
}

static Status read_input(GraphReader *g, yyjson_val *v, yyjson_val *spec) {
  ValType type;
  const char *name, *tag;
  yyjson_val *value;
  Val *val;
  TRY(value_name(v, &type, &name));
  TRY(read_union(v, &tag, &value));
  if (!strcmp(tag, "as_custom_obj")) {
    return status_hint(fail(ERR_FILE,
                            "the input '%.100s' is a custom object, which is Python or C++ code of its own",
                            json_as_string(yyjson_obj_get(value, "name"))),
                       "export the model without TorchBind objects (quantised or custom classes)");
  }
  if (name) {
    Named *named;
    TRY(take_name(g, name, &named));
    TRY(check_new(named));
    TRY(graph_add_input(g->g, named->name, type, &val));
    return define(g, named, type, val);
  }
  Arg constant;
  TRY(read_constant(g->r, v, &constant)); /* refuses what is no constant */
  yyjson_val *named = yyjson_obj_get(yyjson_obj_get(spec, "constant_input"), "name");
  return graph_add_input(g->g, json_as_string(named), TY_NONE, &val);
}

static Status read_inputs(GraphReader *g, yyjson_val *json, yyjson_val *specs) {
  yyjson_val *inputs, *v;
  size_t i, max;
  TRY(json_array(json, "inputs", "graph", &inputs));
  if (specs && yyjson_arr_size(specs) != yyjson_arr_size(inputs)) {
    return fail(ERR_FILE, "the graph has %zu inputs, its signature %zu", yyjson_arr_size(inputs),
                yyjson_arr_size(specs));
  }
  yyjson_arr_iter it = {0};
  if (specs) yyjson_arr_iter_init(specs, &it);
  if (inputs) yyjson_arr_foreach(inputs, i, max, v) {
      TRY(status_at(read_input(g, v, specs ? yyjson_arr_iter_next(&it) : NULL), "input %zu", i));
    }
  return OK;
}

/* ---- nodes -------------------------------------------------------------------------------- */

static Status add_out(GraphReader *g, Node *n, ValType type, const char *name) {
  Named *named;
  Val *val;
  if (type == TY_NONE) return node_add_out(n, "none", TY_NONE, &val);
  TRY(take_name(g, name, &named));
  TRY(check_new(named));
  TRY(node_add_out(n, named->name, type, &val));
  return define(g, named, type, val);
}

/* One output argument: a value, None, a constant number, or a list of values (flat). */
static Status read_node_out(GraphReader *g, Node *n, yyjson_val *v) {
  const char *tag, *name;
  yyjson_val *value, *x;
  ValType type;
  size_t i, max;
  TRY(read_union(v, &tag, &value));
  if (!strcmp(tag, "as_tensors")) {
    n->outs_list = true;
    if (value) yyjson_arr_foreach(value, i, max, x) {
        TRY(read_name(x, &name));
        TRY(add_out(g, n, TY_TENSOR, name));
      }
    return OK;
  }
  if (!strcmp(tag, "as_sym_ints")) {
    if (value)
      yyjson_arr_foreach(value, i, max, x) TRY(add_out(g, n, TY_INT, json_as_string(yyjson_obj_get(x, "as_name"))));
    return OK;
  }
  if (!strcmp(tag, "as_optional_tensors")) {
    if (value) yyjson_arr_foreach(value, i, max, x) {
        TRY(value_name(x, &type, &name));
        TRY(add_out(g, n, type, name));
      }
    return OK;
  }
  if (!strcmp(tag, "as_optional_tensor")) v = value;
  TRY(value_name(v, &type, &name));
  if (type == TY_NONE && strcmp(tag, "as_none") && strcmp(tag, "as_optional_tensor")) {
    return fail(ERR_FILE, "a result of the kind '%.60s' is not supported", tag);
  }
  return add_out(g, n, type, name);
}

static Status read_node_args(GraphReader *g, Node *n, yyjson_val *inputs) {
  size_t count = yyjson_arr_size(inputs), i, max;
  yyjson_val *v;
  enum { FEW = 32 };
  Arg few[FEW], *args = few;
  const char *few_names[FEW], **names = few_names;
  if (count > FEW) {
    if (count > INT32_MAX) return fail(ERR_FILE, "it has too many arguments");
    TRY_NEW(args, arena_new_n(g->g->arena, Arg, count));
    TRY_NEW(names, arena_new_n(g->g->arena, const char *, count));
  }
  if (inputs) yyjson_arr_foreach(inputs, i, max, v) {
      args[i] = (Arg){0};
      names[i] = json_as_string(yyjson_obj_get(v, "name"));
      yyjson_val *arg = yyjson_obj_get(v, "arg");
      if (!arg) return fail(ERR_FILE, "argument %zu has no value", i);
      TRY(status_at(read_arg(g, arg, &args[i]), "argument %zu%s%s", i, names[i] && *names[i] ? ", " : "",
                    names[i] ? names[i] : ""));
    }
  return node_set_args(n, args, names, (int)count);
}

/* Strings stay in the JSON document. */
static Status read_metadata(GraphReader *g, Node *n, yyjson_val *meta) {
  size_t i, max;
  yyjson_val *key, *value;
  if (yyjson_obj_size(meta) == 0) return OK;
  TRY_NEW(n->meta, arena_new_n(g->g->arena, MetaEntry, yyjson_obj_size(meta)));
  if (meta) yyjson_obj_foreach(meta, i, max, key, value) {
      MetaEntry e = {json_as_string(key), json_as_string(value)};
      if (e.key && e.value) n->meta[n->nmeta++] = e;
    }
  return OK;
}

static Status read_node(GraphReader *g, yyjson_val *v) {
  static const char prefix[] = "torch.ops.";
  const char *target;
  yyjson_val *inputs, *outputs, *x;
  size_t i, max;
  Node *n;
  TRY(json_string(v, "target", "node", &target));
  TRY(json_array(v, "inputs", "node", &inputs));
  TRY(json_array(v, "outputs", "node", &outputs));
  if (!strncmp(target, prefix, sizeof prefix - 1)) target += sizeof prefix - 1;
  if (!*target) return fail(ERR_FILE, "a node without an operator: its target is empty");
  TRY(graph_add_node(g->g, NULL, target, &n));
  TRY(read_metadata(g, n, yyjson_obj_get(v, "metadata")));
  TRY(read_node_args(g, n, inputs));
  if (outputs) yyjson_arr_foreach(outputs, i, max, x) TRY(read_node_out(g, n, x));
  return OK;
}

/* "node 12, add_1 (torch.ops.aten.add.Tensor)" */
static Status at_node(Status s, yyjson_val *v, size_t i) {
  if (!s) return s;
  const char *name = yyjson_get_str(yyjson_obj_get(v, "name")),
             *target = yyjson_get_str(yyjson_obj_get(v, "target"));
  return status_at(s, "node %zu%s%.100s (%.100s)", i, name ? ", " : "", name ? name : "",
                   target ? target : "no target");
}

Status read_graph(Reader *r, yyjson_val *json, yyjson_val *input_specs, int depth, Graph *graph) {
  GraphReader g = {.r = r, .g = graph, .depth = depth};
  yyjson_val *nodes, *outputs, *v;
  size_t i, max;
  TRY(read_tables(&g, json));
  TRY(read_inputs(&g, json, input_specs));
  TRY(json_array(json, "nodes", "graph", &nodes));
  TRY(json_array(json, "outputs", "graph", &outputs));
  if (nodes) yyjson_arr_foreach(nodes, i, max, v) {
      Status s = read_node(&g, v);
      if (s) return at_node(s, v, i);
    }
  if (outputs) yyjson_arr_foreach(outputs, i, max, v) {
      Arg a = {0};
      TRY(status_at(read_arg(&g, v, &a), "output %zu", i));
      TRY(graph_add_output(graph, a));
    }
  return OK;
}
