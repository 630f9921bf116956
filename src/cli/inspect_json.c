/* inspect_json.c -- the same facts for programs; see inspect.h. */
#include "base/json.h"
#include "cli/inspect.h"

typedef yyjson_mut_doc Doc;
typedef yyjson_mut_val Json;

static Json *member(Doc *d, Json *object, const char *key, Json *value) {
  yyjson_mut_obj_add_val(d, object, key, value);
  return value;
}

static Json *val_json(Doc *d, const Val *v) {
  TextBuf b = {0};
  describe_val(&b, v);
  Json *o = yyjson_mut_obj(d);
  yyjson_mut_obj_add_strcpy(d, o, "type", b.text ? b.text : "");
  if (v->type == TY_TENSOR && v->ndim >= 0) {
    yyjson_mut_obj_add_str(d, o, "dtype", dtype_name(v->dtype));
    Json *size = member(d, o, "size", yyjson_mut_arr(d)); /* numbers, and expressions as strings */
    for (int i = 0; i < v->ndim; i++) {
      if (sym_is_int(v->size[i])) {
        yyjson_mut_arr_add_int(d, size, v->size[i]->value);
        continue;
      }
      b.len = 0;
      sym_print(&b, v->size[i]);
      yyjson_mut_arr_add_strcpy(d, size, b.text ? b.text : "");
    }
  }
  text_free(&b);
  return o;
}

static void add_signature(Doc *d, Json *root, const Exported *e) {
  Json *inputs = member(d, root, "inputs", yyjson_mut_arr(d));
  for (int i = 0; i < e->graph->ninputs; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    Json *o = val_json(d, e->graph->inputs[i]);
    yyjson_mut_obj_add_strcpy(d, o, "name", e->graph->inputs[i]->name);
    yyjson_mut_arr_append(inputs, o);
  }
  Json *outputs = member(d, root, "outputs", yyjson_mut_arr(d));
  for (int i = 0; i < e->graph->noutputs; i++) {
    const Arg *a = &e->graph->outputs[i];
    Json *o = a->kind == ARG_VAL ? val_json(d, a->val) : yyjson_mut_obj(d);
    yyjson_mut_obj_add_str(d, o, "kind", output_kind_name(e->outputs[i].kind));
    if (e->outputs[i].target) yyjson_mut_obj_add_strcpy(d, o, "target", e->outputs[i].target);
    yyjson_mut_arr_append(outputs, o);
  }
  Json *symbols = member(d, root, "symbols", yyjson_mut_arr(d));
  for (int i = 0; i < e->nranges; i++) {
    const SymRange *r = &e->ranges[i];
    Json *o = yyjson_mut_arr_add_obj(d, symbols);
    yyjson_mut_obj_add_strcpy(d, o, "name", r->symbol);
    member(d, o, "min", r->min == INT64_MIN ? yyjson_mut_null(d) : yyjson_mut_int(d, r->min));
    member(d, o, "max", r->max == INT64_MAX ? yyjson_mut_null(d) : yyjson_mut_int(d, r->max));
    member(d, o, "hint", r->hint < 0 ? yyjson_mut_null(d) : yyjson_mut_int(d, r->hint));
  }
}

static void add_state(Doc *d, Json *root, const Exported *e) {
  Json *list = member(d, root, "state", yyjson_mut_arr(d));
  for (int i = 0; i < e->nstate; i++) {
    const StateEntry *s = &e->state[i];
    Json *o = yyjson_mut_arr_add_obj(d, list);
    yyjson_mut_obj_add_strcpy(d, o, "name", s->fqn);
    yyjson_mut_obj_add_str(d, o, "kind", s->is_parameter ? "parameter" : s->is_constant ? "constant" : "buffer");
    if (s->record) yyjson_mut_obj_add_strcpy(d, o, "record", s->record);
    if (!s->tensor) continue;
    yyjson_mut_obj_add_str(d, o, "dtype", dtype_name(s->tensor->dtype));
    Json *size = member(d, o, "size", yyjson_mut_arr(d));
    for (int k = 0; k < s->tensor->ndim; k++) yyjson_mut_arr_add_int(d, size, s->tensor->size[k]);
    yyjson_mut_obj_add_int(d, o, "bytes", tensor_numel(s->tensor) * (int64_t)dtype_size(s->tensor->dtype));
  }
}

static Json *module_json(Doc *d, const Module *m, bool flops) {
  Json *o = yyjson_mut_obj(d);
  yyjson_mut_obj_add_strcpy(d, o, "name", m->name);
  yyjson_mut_obj_add_strcpy(d, o, "class", m->type);
  yyjson_mut_obj_add_int(d, o, "parameters", m->parameters);
  yyjson_mut_obj_add_int(d, o, "bytes", m->bytes);
  yyjson_mut_obj_add_int(d, o, "nodes", m->nodes);
  if (flops) yyjson_mut_obj_add_real(d, o, "flops", m->flops);
  if (!m->children) return o;
  Json *children = member(d, o, "children", yyjson_mut_arr(d));
  for (const Module *c = m->children; c; c = c->next) yyjson_mut_arr_append(children, module_json(d, c, flops));
  return o;
}

static void add_cost(Doc *d, Json *root, const Facts *f) {
  if (!f->has_cost) {
    yyjson_mut_obj_add_null(d, root, "flops");
    yyjson_mut_obj_add_strcpy(d, root, "no_cost", f->no_cost);
    return;
  }
  yyjson_mut_obj_add_strcpy(d, root, "at", f->at);
  yyjson_mut_obj_add_real(d, root, "flops", f->flops);
  yyjson_mut_obj_add_int(d, root, "steps", f->instructions);
  yyjson_mut_obj_add_uint(d, root, "intermediate_bytes", f->slab_bytes);
  yyjson_mut_obj_add_int(d, root, "output_bytes", f->output_bytes);
}

Status inspect_print_json(FILE *out, const Facts *f) {
  Doc *d = yyjson_mut_doc_new(NULL);
  if (!d) return fail_oom();
  Json *root = yyjson_mut_obj(d);
  yyjson_mut_doc_set_root(d, root);
  yyjson_mut_obj_add_strcpy(d, root, "file", f->path);
  yyjson_mut_obj_add_strcpy(d, root, "torch_version", f->e->torch_version);
  yyjson_mut_obj_add_strcpy(d, root, "dialect", f->e->dialect);
  add_signature(d, root, f->e);
  yyjson_mut_obj_add_int(d, root, "parameters", f->root->parameters);
  yyjson_mut_obj_add_int(d, root, "weight_bytes", f->root->bytes);
  yyjson_mut_obj_add_int(d, root, "nodes", f->nodes);
  Json *ops = member(d, root, "ops", yyjson_mut_arr(d));
  for (int i = 0; i < f->nops; i++) {
    Json *o = yyjson_mut_arr_add_obj(d, ops);
    yyjson_mut_obj_add_strcpy(d, o, "op", f->ops[i].target);
    yyjson_mut_obj_add_int(d, o, "count", f->ops[i].count);
    yyjson_mut_obj_add_bool(d, o, "supported", f->ops[i].known);
  }
  add_cost(d, root, f);
  member(d, root, "modules", module_json(d, f->root, f->has_cost));
  add_state(d, root, f->e);
  return json_print(out, d);
}
