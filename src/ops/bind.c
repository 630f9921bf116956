/* bind.c -- arguments as given to arguments as the schema wants them.
 *
 * Accepts what exported programs contain: numbers in Tensor slots stay numbers (they
 * promote differently from 0-d tensors), a single number spreads over int[2], an empty
 * list takes the type the schema says, trailing arguments fall back to their defaults.
 */
#include <string.h>

#include "ops/op.h"

static Status wrong(const Op *op, const Param *p, const Value *v) {
  return fail(ERR_FAIL, "%s: argument '%s' cannot be a %s", op->schema.name, p->name, val_kind_name(v->kind));
}

/* A tensor of one element where the schema wants a number: its value, as ATen reads it. */
static void read_number(TypeKind type, Value *v) {
  if (v->kind != VAL_TENSOR || !tensor_data(v->tensor) || tensor_numel(v->tensor) != 1) return;
  *v = val_load(v->tensor->dtype, tensor_data(v->tensor));
  if (type == TYPE_INT && val_is_number(v)) *v = val_int(val_as_int(v));
}

/* A memory format may be given by its name. */
static bool read_format(Value *v) {
  static const char *const names[] = {[MEMORY_CONTIGUOUS] = "contiguous_format",
                                      [MEMORY_PRESERVE] = "preserve_format",
                                      [MEMORY_CHANNELS_LAST] = "channels_last",
                                      [MEMORY_CHANNELS_LAST_3D] = "channels_last_3d"};
  for (int i = 0; v->kind == VAL_STR && i < 4; i++)
    if (!strcmp(v->str, names[i])) *v = val_memory_format((MemoryFormat)i);
  return v->kind == VAL_MEMORY_FORMAT;
}

static bool scalar_fits(const Param *p, Value *v) {
  if (p->type == TYPE_INT || p->type == TYPE_FLOAT || p->type == TYPE_BOOL) read_number(p->type, v);
  switch (p->type) {
    case TYPE_TENSOR: return v->kind == VAL_TENSOR || val_is_number(v);
    case TYPE_INT:
      if (v->kind == VAL_BOOL) *v = val_int(v->b);
      return v->kind == VAL_INT;
    case TYPE_FLOAT:
      if (v->kind == VAL_INT || v->kind == VAL_BOOL) *v = val_float(val_as_float(v));
      return v->kind == VAL_FLOAT;
    case TYPE_BOOL:
      if (v->kind == VAL_INT) *v = val_bool(v->i != 0);
      return v->kind == VAL_BOOL;
    case TYPE_SCALAR: return val_is_number(v) || v->kind == VAL_TENSOR; /* a 0-d tensor: read by the op */
    case TYPE_STR: return v->kind == VAL_STR;
    case TYPE_DTYPE: return v->kind == VAL_DTYPE;
    case TYPE_LAYOUT: return v->kind == VAL_LAYOUT || v->kind == VAL_INT;
    case TYPE_MEMORY_FORMAT: return read_format(v);
    case TYPE_DEVICE: return v->kind == VAL_DEVICE || v->kind == VAL_STR;
    case TYPE_GENERATOR: return false;
    case TYPE_GRAPH: return v->kind == VAL_GRAPH;
    case TYPE_ANY: return true;
  }
  return false;
}

static Status bind_list(Arena *arena, const Op *op, const Param *p, Value *v) {
  static const ValueKind kinds[] = {
      [TYPE_TENSOR] = VAL_TENSORS, [TYPE_INT] = VAL_INTS, [TYPE_FLOAT] = VAL_FLOATS, [TYPE_BOOL] = VAL_BOOLS};
  ValueKind want = p->type <= TYPE_BOOL ? kinds[p->type] : VAL_LIST;
  bool is_list = v->kind >= VAL_INTS && v->kind <= VAL_LIST;
  if (v->kind == want) return OK;
  if (is_list && v->n == 0) return v->kind = want, OK;
  if (want == VAL_INTS && (v->kind == VAL_INT || v->kind == VAL_BOOL)) {
    int n = p->length ? p->length : 1;
    int64_t *list;
    TRY_NEW(list, arena_new_n(arena, int64_t, n));
    for (int i = 0; i < n; i++) list[i] = val_as_int(v);
    *v = val_ints(list, n);
    return OK;
  }
  if (want == VAL_FLOATS && (v->kind == VAL_INTS || val_is_number(v))) {
    int n = v->kind == VAL_INTS ? v->n : p->length ? p->length : 1;
    double *list;
    TRY_NEW(list, arena_new_n(arena, double, n));
    for (int i = 0; i < n; i++) list[i] = v->kind == VAL_INTS ? (double)v->ints[i] : val_as_float(v);
    *v = val_floats(list, n);
    return OK;
  }
  if (want == VAL_BOOLS && (v->kind == VAL_BOOL || v->kind == VAL_INTS)) {
    int n = v->kind == VAL_INTS ? v->n : p->length ? p->length : 1;
    bool *list;
    TRY_NEW(list, arena_new_n(arena, bool, n));
    for (int i = 0; i < n; i++) list[i] = v->kind == VAL_INTS ? v->ints[i] != 0 : v->b;
    *v = val_bools(list, n);
    return OK;
  }
  if (want == VAL_TENSORS && v->kind == VAL_TENSOR) {
    Tensor **list;
    TRY_NEW(list, arena_new_n(arena, Tensor *, 1));
    list[0] = v->tensor;
    *v = val_tensors(list, 1);
    return OK;
  }
  if (want == VAL_LIST && is_list) { /* Scalar[]: keep the numbers, one Value each */
    Value *list;
    TRY_NEW(list, arena_new_n(arena, Value, v->n));
    for (int i = 0; i < v->n; i++) {
      list[i] = v->kind == VAL_INTS     ? val_int(v->ints[i])
                : v->kind == VAL_FLOATS ? val_float(v->floats[i])
                : v->kind == VAL_BOOLS  ? val_bool(v->bools[i])
                                        : val_tensor(v->tensors[i]);
    }
    *v = (Value){.kind = VAL_LIST, .n = v->n, .list = list};
    return OK;
  }
  return wrong(op, p, v);
}

/* int[2] stride=[2]: one element stands for all of them. */
static Status repeat_single(Arena *arena, const Param *p, Value *v) {
  if (p->type != TYPE_INT || v->n != 1 || p->length <= 1) return OK;
  int64_t *list;
  TRY_NEW(list, arena_new_n(arena, int64_t, p->length));
  for (int i = 0; i < p->length; i++) list[i] = v->ints[0];
  *v = val_ints(list, p->length);
  return OK;
}

static Status bind_one(Arena *arena, const Op *op, const Param *p, Value *v) {
  if (v->kind == VAL_NONE) {
    if (p->optional || p->type == TYPE_GENERATOR || p->type == TYPE_ANY) return OK;
    if (p->has_default) return *v = p->value, OK;
    return fail(ERR_FAIL, "%s: argument '%s' is missing", op->schema.name, p->name);
  }
  if (!p->list) return scalar_fits(p, v) ? OK : wrong(op, p, v);
  TRY(bind_list(arena, op, p, v));
  return repeat_single(arena, p, v);
}

Status op_bind(Arena *arena, const Op *op, const NamedValue *args, int nargs, Value *bound) {
  const Schema *s = &op->schema;
  bool given[MAX_PARAMS] = {false};
  for (int i = 0; i < nargs; i++) {
    int at = args[i].name ? schema_find(s, args[i].name) : i;
    if (at < 0) return fail(ERR_FAIL, "%s: has no argument '%s'", s->name, args[i].name);
    if (at >= s->nparams)
      return fail(ERR_FAIL, "%s: takes %d arguments, %d were given", s->name, s->nparams, nargs);
    if (given[at]) return fail(ERR_FAIL, "%s: argument '%s' is given twice", s->name, s->params[at].name);
    given[at] = true;
    bound[at] = args[i].value;
  }
  for (int i = 0; i < s->nparams; i++) {
    if (!given[i]) {
      if (!s->params[i].has_default && !s->params[i].optional && s->params[i].type != TYPE_ANY) {
        return fail(ERR_FAIL, "%s: argument '%s' is missing", s->name, s->params[i].name);
      }
      bound[i] = s->params[i].has_default ? s->params[i].value : val_none();
      continue;
    }
    TRY(bind_one(arena, op, &s->params[i], &bound[i]));
  }
  return OK;
}
