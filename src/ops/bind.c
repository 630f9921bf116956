/* bind.c -- arguments as given to arguments as the schema wants them.
 *
 * This is the one place that checks what users give: after it every argument is of the kind
 * that the schema says, lists have the length it says, and only optional ones are None.  Ops
 * need not look again; sizes, dtypes and values are theirs to check.
 *
 * Accepts what exported programs contain: numbers in Tensor slots of OP_NUMBERS stay numbers
 * (they promote differently from 0-d tensors), a tensor of one element where a number is
 * wanted is read, a single number spreads over int[2], an empty list takes the type the schema
 * says, trailing arguments fall back to their defaults.
 */
#include <stdio.h>
#include <string.h>

#include "ops/op.h"

/* "a Tensor", "an int[2]": what the schema wants. */
static const char *wanted(const Param *p, char *buf, size_t cap) {
  static const char *const names[] = {"Tensor",    "int",        "float",  "bool",         "Scalar",
                                      "str",       "ScalarType", "Layout", "MemoryFormat", "Device",
                                      "Generator", "Graph",      "Any"};
  const char *name = names[p->type];
  int n = snprintf(buf, cap, "%s %s%s", p->type == TYPE_INT || p->type == TYPE_ANY ? "an" : "a", name,
                   p->item_optional ? "?" : "");
  if (p->list && p->length > 1) snprintf(buf + n, cap - (size_t)n, "[%d]", p->length);
  else if (p->list) snprintf(buf + n, cap - (size_t)n, "[]");
  return buf;
}

static Status wrong(const Op *op, const Param *p, const Value *v) {
  char want[48];
  const char *kind = val_kind_name(v->kind);
  Status s = fail(ERR_FAIL, "%s: argument '%s' must be %s, not %s%s", op->schema.name, p->name,
                  wanted(p, want, sizeof want),
                  v->kind == VAL_NONE           ? ""
                  : strchr("aeiouAEIOU", *kind) ? "an "
                                                : "a ",
                  kind);
  if (p->type != TYPE_TENSOR || p->list || !val_is_number(v)) return s;
  return status_hint(s, "aten.scalar_tensor.default makes a tensor of a number");
}

static Status wrong_item(const Op *op, const Param *p, int i, const Value *item) {
  char want[48];
  return fail(ERR_FAIL, "%s: argument '%s' must be %s, but element %d is %s", op->schema.name, p->name,
              wanted(p, want, sizeof want), i, val_kind_name(item->kind));
}

/* May a number stand where the schema says Tensor?  In-place forms are as their functional ones,
 * but for what they write to. */
static bool takes_number(const Op *op, const Param *p) {
  if (p->mutated) return false;
  const Op *functional = op->def->inplace ? op_find(op->def->inplace) : NULL;
  return (functional ? functional : op)->def->flags & OP_NUMBERS;
}

/* A tensor of one element where the schema wants a number: its value, as ATen reads it. */
static void read_number(TypeKind type, Value *v) {
  if (v->kind != VAL_TENSOR || !v->tensor || !tensor_data(v->tensor) || tensor_numel(v->tensor) != 1) return;
  Value read = val_load(v->tensor->dtype, tensor_data(v->tensor));
  if (!val_is_number(&read)) return;
  *v = type == TYPE_INT ? val_int(val_as_int(&read)) : read;
}

/* A memory format may be given by its name. */
static bool read_format(Value *v) {
  static const char *const names[] = {[MEMORY_CONTIGUOUS] = "contiguous_format",
                                      [MEMORY_PRESERVE] = "preserve_format",
                                      [MEMORY_CHANNELS_LAST] = "channels_last",
                                      [MEMORY_CHANNELS_LAST_3D] = "channels_last_3d"};
  for (int i = 0; v->kind == VAL_STR && v->str && i < 4; i++)
    if (!strcmp(v->str, names[i])) *v = val_memory_format((MemoryFormat)i);
  return v->kind == VAL_MEMORY_FORMAT && (unsigned)v->memory_format <= MEMORY_CHANNELS_LAST_3D;
}

static bool is_dtype(Dtype d) { return d >= 0 && d < DT_COUNT; }

static bool fits(const Op *op, const Param *p, Value *v) {
  if (p->type == TYPE_INT || p->type == TYPE_FLOAT || p->type == TYPE_BOOL || p->type == TYPE_SCALAR)
    read_number(p->type, v);
  switch (p->type) {
    case TYPE_TENSOR:
      if (v->kind == VAL_TENSOR) return v->tensor && is_dtype(v->tensor->dtype);
      return val_is_number(v) && takes_number(op, p);
    case TYPE_INT:
      if (v->kind == VAL_BOOL) *v = val_int(v->b);
      return v->kind == VAL_INT;
    case TYPE_FLOAT:
      if (v->kind == VAL_INT || v->kind == VAL_BOOL) *v = val_float(val_as_float(v));
      return v->kind == VAL_FLOAT;
    case TYPE_BOOL:
      if (v->kind == VAL_INT) *v = val_bool(v->i != 0);
      return v->kind == VAL_BOOL;
    case TYPE_SCALAR: return val_is_number(v);
    case TYPE_STR: return v->kind == VAL_STR && v->str;
    case TYPE_DTYPE: return v->kind == VAL_DTYPE && is_dtype(v->dtype);
    case TYPE_LAYOUT: return v->kind == VAL_LAYOUT || v->kind == VAL_INT;
    case TYPE_MEMORY_FORMAT: return read_format(v);
    case TYPE_DEVICE: return v->kind == VAL_DEVICE || (v->kind == VAL_STR && v->str);
    case TYPE_GENERATOR: return false;
    case TYPE_GRAPH: return v->kind == VAL_GRAPH;
    case TYPE_ANY: return true;
  }
  return false;
}

static bool is_list(const Value *v) { return v->kind >= VAL_INTS && v->kind <= VAL_LIST; }

static Value list_item(const Value *v, int i) {
  switch (v->kind) {
    case VAL_INTS: return val_int(v->ints[i]);
    case VAL_FLOATS: return val_float(v->floats[i]);
    case VAL_BOOLS: return val_bool(v->bools[i]);
    case VAL_TENSORS: return val_tensor(v->tensors[i]);
    default: return v->list[i];
  }
}

/* One element in the form that lists of its type have; room is for v->n of them. */
static void store_item(TypeKind type, void *room, int i, const Value *item) {
  switch (type) {
    case TYPE_TENSOR: ((Tensor **)room)[i] = item->kind == VAL_TENSOR ? item->tensor : NULL; break;
    case TYPE_INT: ((int64_t *)room)[i] = item->i; break;
    case TYPE_FLOAT: ((double *)room)[i] = item->f; break;
    case TYPE_BOOL: ((bool *)room)[i] = item->b; break;
    default: ((Value *)room)[i] = *item;
  }
}

static ValueKind list_kind(TypeKind type) {
  static const ValueKind kinds[] = {
      [TYPE_TENSOR] = VAL_TENSORS, [TYPE_INT] = VAL_INTS, [TYPE_FLOAT] = VAL_FLOATS, [TYPE_BOOL] = VAL_BOOLS};
  return type <= TYPE_BOOL ? kinds[type] : VAL_LIST;
}

/* One element stands for all: 3 where int[2] is wanted, Tensor where Tensor[] is. */
static bool spreads(const Param *p, Value *v, const Op *op) {
  return !is_list(v) && p->type <= TYPE_BOOL && fits(op, p, v) && (p->type != TYPE_TENSOR || v->kind == VAL_TENSOR);
}

/* Elements converted one by one into a new list of n; a list of one is repeated. */
static Status convert_list(Arena *arena, const Op *op, const Param *p, int n, Value *v) {
  static const size_t width[] = {[TYPE_TENSOR] = sizeof(Tensor *),
                                 [TYPE_INT] = sizeof(int64_t),
                                 [TYPE_FLOAT] = sizeof(double),
                                 [TYPE_BOOL] = 1};
  void *room;
  TRY_NEW(room, arena_array(arena, (size_t)n, p->type <= TYPE_BOOL ? width[p->type] : sizeof(Value)));
  for (int i = 0; i < n; i++) {
    Value item = list_item(v, v->n == 1 ? 0 : i), given = item;
    bool none = item.kind == VAL_NONE && p->item_optional;
    if (!none &&
        (item.kind == VAL_NONE || !fits(op, p, &item) || (p->type == TYPE_TENSOR && item.kind != VAL_TENSOR)))
      return wrong_item(op, p, i, &given);
    store_item(p->type, room, i, &item);
  }
  *v = (Value){.kind = list_kind(p->type), .n = n, .list = room};
  return OK;
}

/* Every element is of the kind already: nothing to convert. */
static Status check_items(const Op *op, const Param *p, const Value *v) {
  for (int i = 0; p->type == TYPE_TENSOR && i < v->n; i++) {
    Value item = val_tensor(v->tensors[i]);
    if (item.kind == VAL_NONE ? !p->item_optional : !fits(op, p, &item)) return wrong_item(op, p, i, &item);
  }
  return OK;
}

static Status bind_list(Arena *arena, const Op *op, const Param *p, Value *v) {
  Value single;
  if (p->type != TYPE_ANY && spreads(p, v, op)) {
    single = *v;
    *v = (Value){.kind = VAL_LIST, .n = 1, .list = &single};
  }
  if (!is_list(v) || v->n < 0 || (v->n && !v->list)) return wrong(op, p, v);
  bool fixed = p->length > 1;
  if (v->n == 0 && (!fixed || p->type == TYPE_INT)) /* int[2]: "not given", as stride=[] of pools */
    return v->kind = list_kind(p->type), OK;
  int n = fixed && v->n == 1 ? p->length : v->n;
  if (fixed && n != p->length) {
    char want[48];
    return fail(ERR_FAIL, "%s: argument '%s' must be %s, not a list of %d", op->schema.name, p->name,
                wanted(p, want, sizeof want), v->n);
  }
  if (p->type == TYPE_ANY) return OK;
  if (n == v->n && v->kind == list_kind(p->type) && v->kind != VAL_LIST) return check_items(op, p, v);
  return convert_list(arena, op, p, n, v);
}

/* The default of what is not given; lists of numbers are written as int[] in all schemas. */
static Status bind_default(Arena *arena, const Op *op, const Param *p, Value *v) {
  *v = p->has_default ? p->value : val_none();
  return p->list && is_list(v) ? bind_list(arena, op, p, v) : OK;
}

static Status bind_one(Arena *arena, const Op *op, const Param *p, Value *v) {
  if (v->kind == VAL_NONE) {
    if (p->optional || p->type == TYPE_GENERATOR || p->type == TYPE_ANY) return OK;
    if (p->has_default) return bind_default(arena, op, p, v);
    return fail(ERR_FAIL, "%s: argument '%s' is missing", op->schema.name, p->name);
  }
  if (p->list) return bind_list(arena, op, p, v);
  return fits(op, p, v) ? OK : wrong(op, p, v);
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
      TRY(bind_default(arena, op, &s->params[i], &bound[i]));
      continue;
    }
    TRY(bind_one(arena, op, &s->params[i], &bound[i]));
  }
  return OK;
}
