/* value.c -- see value.h. */
#include "ops/value.h"

#include <string.h>

int64_t val_as_int(const Value *v) {
  if (v->kind == VAL_INT) return v->i;
  if (v->kind == VAL_BOOL) return v->b;
  return f64_to_i64(val_as_float(v));
}

void val_store(const Value *v, Dtype d, void *element) {
  double f = val_as_float(v);
  int64_t i = dtype_is_integral(d) ? val_as_int(v) : 0;
  switch (d) {
    case DT_BOOL: *(uint8_t *)element = v->kind == VAL_COMPLEX ? f != 0 || v->complex_[1] != 0 : f != 0; break;
    case DT_U8: *(uint8_t *)element = (uint8_t)i; break;
    case DT_I8: *(int8_t *)element = (int8_t)i; break;
    case DT_I16: *(int16_t *)element = (int16_t)i; break;
    case DT_I32: *(int32_t *)element = (int32_t)i; break;
    case DT_I64: *(int64_t *)element = i; break;
    case DT_F16: *(uint16_t *)element = f32_to_f16((float)f); break;
    case DT_BF16: *(uint16_t *)element = f32_to_bf16((float)f); break;
    case DT_F32: *(float *)element = (float)f; break;
    case DT_F64: *(double *)element = f; break;
    case DT_C64:
      ((float *)element)[0] = (float)f;
      ((float *)element)[1] = v->kind == VAL_COMPLEX ? (float)v->complex_[1] : 0;
      break;
    default: memset(element, 0, dtype_size(d));
  }
}

Value val_load(Dtype d, const void *e) {
  switch (d) {
    case DT_BOOL: return val_bool(*(const uint8_t *)e != 0);
    case DT_U8: return val_int(*(const uint8_t *)e);
    case DT_I8: return val_int(*(const int8_t *)e);
    case DT_I16: return val_int(*(const int16_t *)e);
    case DT_I32: return val_int(*(const int32_t *)e);
    case DT_I64: return val_int(*(const int64_t *)e);
    case DT_F16: return val_float((double)f16_to_f32(*(const uint16_t *)e));
    case DT_BF16: return val_float((double)bf16_to_f32(*(const uint16_t *)e));
    case DT_F32: return val_float((double)*(const float *)e);
    case DT_F64: return val_float(*(const double *)e);
    case DT_C64:
      return (Value){.kind = VAL_COMPLEX,
                     .complex_ = {(double)((const float *)e)[0], (double)((const float *)e)[1]}};
    default: return val_none();
  }
}

const char *val_kind_name(ValueKind k) {
  static const char *const names[] = {"None",    "Tensor",     "bool",     "int",          "float",  "complex",
                                      "str",     "ScalarType", "Layout",   "MemoryFormat", "Device", "int[]",
                                      "float[]", "bool[]",     "Tensor[]", "list",         "graph"};
  return names[k];
}

double val_round(Dtype d, double number) {
  _Alignas(16) char element[16];
  Value v = val_float(number);
  val_store(&v, d, element);
  v = val_load(d, element);
  return val_as_float(&v);
}

static size_t element_bytes(ValueKind k) {
  switch (k) {
    case VAL_INTS: return sizeof(int64_t);
    case VAL_FLOATS: return sizeof(double);
    case VAL_BOOLS: return sizeof(bool);
    case VAL_TENSORS: return sizeof(Tensor *);
    default: return 0;
  }
}

static size_t whole_words(size_t bytes) { return (bytes + 7) & ~(size_t)7; }

size_t val_list_bytes(const Value *v) {
  if (v->kind == VAL_STR || v->kind == VAL_DEVICE) return v->str ? whole_words(strlen(v->str) + 1) : 0;
  size_t bytes = whole_words(element_bytes(v->kind) * (size_t)v->n);
  for (int i = 0; v->kind == VAL_LIST && i < v->n; i++) bytes += sizeof(Value) + val_bytes(&v->list[i]);
  return bytes;
}

Value val_pack(const Value *v, char **room) {
  Value to = *v;
  void *here = *room;
  if (v->kind == VAL_LIST) {
    Value *list = here;
    *room += sizeof(Value) * (size_t)v->n;
    for (int i = 0; i < v->n; i++) list[i] = val_pack(&v->list[i], room);
    to.list = list;
    return to;
  }
  size_t bytes = val_bytes(v);
  if (!bytes) return to;
  bool text = v->kind == VAL_STR || v->kind == VAL_DEVICE;
  memcpy(here, text ? (const void *)v->str : v->ints,
         text ? strlen(v->str) + 1 : element_bytes(v->kind) * (size_t)v->n);
  if (text) to.str = here;
  else to.ints = here;
  *room += bytes;
  return to;
}

Status val_copy(Arena *arena, const Value *v, Value *out) {
  char *room;
  TRY_NEW(room, arena_alloc(arena, val_bytes(v) + 1));
  *out = val_pack(v, &room);
  return OK;
}
