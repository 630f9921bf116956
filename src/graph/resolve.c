/* resolve.c -- see resolve.h. */
#include "graph/resolve.h"

#include <string.h>

static Status resolve_val(const Value *env, const Val *v, Value *out) {
  if (env) {
    *out = env[v->id];
    if (v->type == TY_TENSOR && out->kind == VAL_NONE)
      return fail(ERR_FAIL, "value '%s' is used before it is there", v->name);
  } else if (v->type == TY_TENSOR) {
    if (!v->tensor) return fail(ERR_FAIL, "value '%s' is used before it is there", v->name);
    *out = val_tensor(v->tensor);
  } else {
    *out = v->number;
  }
  return OK;
}

/* The elements are resolved one by one; if all are of one kind the list takes the
 * compact form of that kind.  A number in a list of tensors does not occur. */
static Status resolve_list(Arena *arena, const Value *env, const Arg *a, Value *out) {
  Value *items;
  TRY_NEW(items, arena_new_n(arena, Value, a->n));
  unsigned kinds = 0;
  for (int i = 0; i < a->n; i++) {
    TRY(arg_resolve(arena, env, &a->list[i], &items[i]));
    kinds |= 1u << items[i].kind;
  }
  const unsigned ints = 1u << VAL_INT, bools = 1u << VAL_BOOL, floats = 1u << VAL_FLOAT, tensors = 1u << VAL_TENSOR,
                 none = 1u << VAL_NONE;
  *out = (Value){.kind = VAL_LIST, .n = a->n, .list = items};
  if (kinds && !(kinds & ~(tensors | none))) {
    Tensor **list;
    TRY_NEW(list, arena_new_n(arena, Tensor *, a->n));
    for (int i = 0; i < a->n; i++) list[i] = items[i].kind == VAL_TENSOR ? items[i].tensor : NULL;
    *out = val_tensors(list, a->n);
  } else if (kinds == bools) {
    bool *list;
    TRY_NEW(list, arena_new_n(arena, bool, a->n));
    for (int i = 0; i < a->n; i++) list[i] = items[i].b;
    *out = val_bools(list, a->n);
  } else if (kinds && !(kinds & ~(ints | bools))) {
    int64_t *list;
    TRY_NEW(list, arena_new_n(arena, int64_t, a->n));
    for (int i = 0; i < a->n; i++) list[i] = val_as_int(&items[i]);
    *out = val_ints(list, a->n);
  } else if (kinds && !(kinds & ~(ints | bools | floats))) {
    double *list;
    TRY_NEW(list, arena_new_n(arena, double, a->n));
    for (int i = 0; i < a->n; i++) list[i] = val_as_float(&items[i]);
    *out = val_floats(list, a->n);
  }
  return OK;
}

Status arg_resolve(Arena *arena, const Value *env, const Arg *a, Value *out) {
  switch (a->kind) {
    case ARG_UNSET:
    case ARG_NONE: *out = val_none(); return OK;
    case ARG_VAL: return resolve_val(env, a->val, out);
    case ARG_BOOL: *out = val_bool(a->b); return OK;
    case ARG_INT: *out = val_int(a->i); return OK;
    case ARG_FLOAT: *out = val_float(a->f); return OK;
    case ARG_COMPLEX: *out = (Value){.kind = VAL_COMPLEX, .complex_ = {a->complex_[0], a->complex_[1]}}; return OK;
    case ARG_STR: *out = val_str(a->str); return OK;
    case ARG_DTYPE: *out = val_dtype(a->dtype); return OK;
    case ARG_LAYOUT: *out = (Value){.kind = VAL_LAYOUT}; return OK;
    case ARG_MEMORY_FORMAT: *out = val_memory_format(a->memory_format); return OK;
    case ARG_DEVICE: *out = (Value){.kind = VAL_DEVICE, .str = a->str}; return OK;
    case ARG_GRAPH: *out = (Value){.kind = VAL_GRAPH, .graph = a->graph}; return OK;
    case ARG_LIST: return resolve_list(arena, env, a, out);
  }
  return fail(ERR_FAIL, "an argument of an unknown kind");
}

Status node_resolve(Arena *arena, const Value *env, const Node *n, Value *bound) {
  NamedValue given[MAX_PARAMS];
  int count = 0;
  for (int i = 0; i < n->nargs; i++) {
    if (n->args[i].kind == ARG_UNSET) continue;
    given[count].name = n->op->schema.params[i].name;
    TRY(arg_resolve(arena, env, &n->args[i], &given[count++].value));
  }
  return op_bind(arena, n->op, given, count, bound);
}

Status value_to_arg(Arena *arena, const Value *v, ValOfFn *val_of, void *ctx, Arg *out) {
  *out = (Arg){.kind = ARG_NONE};
  switch (v->kind) {
    case VAL_NONE: return OK;
    case VAL_TENSOR: out->kind = ARG_VAL; return val_of(ctx, v->tensor, &out->val);
    case VAL_BOOL: *out = arg_bool(v->b); return OK;
    case VAL_INT: *out = arg_int(v->i); return OK;
    case VAL_FLOAT: *out = arg_float(v->f); return OK;
    case VAL_COMPLEX: *out = (Arg){.kind = ARG_COMPLEX, .complex_ = {v->complex_[0], v->complex_[1]}}; return OK;
    case VAL_STR: {
      const char *text = arena_strdup(arena, v->str);
      if (!text) return fail_oom();
      *out = arg_str(text);
      return OK;
    }
    case VAL_DEVICE: {
      const char *text = arena_strdup(arena, v->str ? v->str : "cpu");
      if (!text) return fail_oom();
      *out = (Arg){.kind = ARG_DEVICE, .str = text};
      return OK;
    }
    case VAL_DTYPE: *out = arg_dtype(v->dtype); return OK;
    case VAL_LAYOUT: *out = (Arg){.kind = ARG_LAYOUT}; return OK;
    case VAL_MEMORY_FORMAT: *out = (Arg){.kind = ARG_MEMORY_FORMAT, .memory_format = v->memory_format}; return OK;
    case VAL_GRAPH: *out = (Arg){.kind = ARG_GRAPH, .graph = v->graph}; return OK;
    case VAL_SPEC: return fail(ERR_FAIL, "the spec of a DTensor cannot be part of a program");
    case VAL_INTS:
    case VAL_FLOATS:
    case VAL_BOOLS:
    case VAL_TENSORS:
    case VAL_LIST: break;
  }
  Arg *list;
  TRY_NEW(list, arena_new_n(arena, Arg, v->n));
  for (int i = 0; i < v->n; i++) {
    Value item = v->kind == VAL_INTS      ? val_int(v->ints[i])
                 : v->kind == VAL_FLOATS  ? val_float(v->floats[i])
                 : v->kind == VAL_BOOLS   ? val_bool(v->bools[i])
                 : v->kind == VAL_TENSORS ? val_tensor(v->tensors[i])
                                          : v->list[i];
    TRY(value_to_arg(arena, &item, val_of, ctx, &list[i]));
  }
  *out = arg_list(list, v->n);
  return OK;
}

Status val_set_tensor(Graph *g, Val *v, Tensor *t) {
  v->type = TY_TENSOR;
  v->dtype = t->dtype;
  v->ndim = t->ndim;
  v->tensor = t;
  TRY_NEW(v->size, arena_new_n(g->arena, const Sym *, t->ndim));
  v->stride = NULL;
  if (!tensor_is_contiguous(t)) TRY_NEW(v->stride, arena_new_n(g->arena, const Sym *, t->ndim));
  for (int i = 0; i < t->ndim; i++) {
    TRY_NEW(v->size[i], sym_int(g->syms, t->size[i]));
    if (v->stride) TRY_NEW(v->stride[i], sym_int(g->syms, t->stride[i]));
  }
  return OK;
}
