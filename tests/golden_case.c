/* golden_case.c -- see golden_case.h. */
#include "golden_case.h"

#include <math.h>
#include <string.h>

static Status read_ints(yyjson_val *array, int64_t *out, int *n) {
  size_t i, max;
  yyjson_val *v;
  if (!yyjson_is_arr(array) || yyjson_arr_size(array) > MAX_DIMS) return fail(ERR_FILE, "not a list of sizes");
  yyjson_arr_foreach(array, i, max, v) {
    if (!json_as_int64(v, &out[i])) return fail(ERR_FILE, "not a list of integers");
  }
  *n = (int)yyjson_arr_size(array);
  return OK;
}

Status golden_tensor(GoldenCase *c, yyjson_val *v, Tensor **out) {
  const char *dtype, *key = yyjson_get_str(yyjson_obj_get(v, "t"));
  TRY(json_string(v, "dtype", c->id, &dtype));
  Tensor *t, *flat;
  TRY_NEW(t, scope_tensor(&c->scope));
  t->dtype = dtype_parse(dtype);
  if (t->dtype == DT_NONE) return fail(ERR_FILE, "unknown dtype '%s'", dtype);
  int strides = 0;
  TRY(read_ints(yyjson_obj_get(v, "size"), t->size, &t->ndim));
  TRY(read_ints(yyjson_obj_get(v, "stride"), t->stride, &strides));
  TRY(json_int64(v, "offset", c->id, &t->offset));
  *out = t;
  if (!key) return OK;
  TRY(safetensors_get(c->data, key, &c->scope, &flat));
  size_t bytes = (size_t)tensor_numel(flat) * dtype_size(flat->dtype);
  TRY(storage_new(bytes, &t->storage));
  if (bytes) memcpy(t->storage->data, tensor_data(flat), bytes);
  return tensor_check_bounds(t, key);
}

static Status argument_tensor(GoldenCase *c, yyjson_val *v, Tensor **out) {
  TRY(golden_tensor(c, v, out));
  if (c->tensors == GOLDEN_TENSORS) return fail(ERR_FILE, "%s: too many tensors", c->id);
  Storage *now = (*out)->storage, *before;
  if (!now) return fail(ERR_FILE, "%s: an argument has no data", c->id);
  TRY(storage_new(now->size, &before));
  if (now->size) memcpy(before->data, now->data, now->size);
  c->tensor[c->tensors] = *out;
  c->before[c->tensors++] = before;
  return OK;
}

static bool number_from_text(const char *s, double *out) {
  *out = !strcmp(s, "nan") ? (double)NAN : !strcmp(s, "inf") ? (double)INFINITY : -(double)INFINITY;
  return !strcmp(s, "nan") || !strcmp(s, "inf") || !strcmp(s, "-inf");
}

static Status read_special(const char *kind, yyjson_val *v, Value *out) {
  static const char *const formats[] = {[MEMORY_CONTIGUOUS] = "contiguous_format",
                                        [MEMORY_PRESERVE] = "preserve_format",
                                        [MEMORY_CHANNELS_LAST] = "channels_last",
                                        [MEMORY_CHANNELS_LAST_3D] = "channels_last_3d"};
  const char *text = yyjson_get_str(v);
  if (!strcmp(kind, "complex")) {
    *out = (Value){.kind = VAL_COMPLEX,
                   .complex_ = {yyjson_get_num(yyjson_arr_get(v, 0)), yyjson_get_num(yyjson_arr_get(v, 1))}};
    return OK;
  }
  if (!text) return fail(ERR_FILE, "cannot read a value of kind '%s'", kind);
  if (!strcmp(kind, "dtype")) return *out = val_dtype(dtype_parse(text)), OK;
  if (!strcmp(kind, "device")) return *out = (Value){.kind = VAL_DEVICE, .str = text}, OK;
  if (!strcmp(kind, "layout")) return *out = (Value){.kind = VAL_LAYOUT}, OK;
  for (int i = 0; !strcmp(kind, "memory_format") && i < 4; i++) {
    if (!strcmp(text, formats[i])) return *out = val_memory_format((MemoryFormat)i), OK;
  }
  return fail(ERR_FILE, "cannot read %s '%s'", kind, text);
}

static Status read_value(GoldenCase *c, yyjson_val *v, Value *out);

/* A list of one kind becomes a typed list; mixed numbers stay Values. */
static Status read_list(GoldenCase *c, yyjson_val *array, Value *out) {
  int n = (int)yyjson_arr_size(array), kinds[VAL_GRAPH + 1] = {0};
  Value *item;
  TRY_NEW(item, arena_new_n(&c->arena, Value, n));
  size_t at, max;
  yyjson_val *v;
  yyjson_arr_foreach(array, at, max, v) {
    TRY(read_value(c, v, &item[at]));
    kinds[item[at].kind]++;
  }
  *out = (Value){.kind = VAL_LIST, .n = n, .list = item};
  if (kinds[VAL_INT] == n) {
    int64_t *list;
    TRY_NEW(list, arena_new_n(&c->arena, int64_t, n));
    for (int i = 0; i < n; i++) list[i] = item[i].i;
    *out = val_ints(list, n);
  } else if (kinds[VAL_FLOAT] == n) {
    double *list;
    TRY_NEW(list, arena_new_n(&c->arena, double, n));
    for (int i = 0; i < n; i++) list[i] = item[i].f;
    *out = val_floats(list, n);
  } else if (kinds[VAL_BOOL] == n) {
    bool *list;
    TRY_NEW(list, arena_new_n(&c->arena, bool, n));
    for (int i = 0; i < n; i++) list[i] = item[i].b;
    *out = val_bools(list, n);
  } else if (kinds[VAL_TENSOR] + kinds[VAL_NONE] == n) {
    Tensor **list;
    TRY_NEW(list, arena_new_n(&c->arena, Tensor *, n));
    for (int i = 0; i < n; i++) list[i] = item[i].kind == VAL_TENSOR ? item[i].tensor : NULL;
    *out = val_tensors(list, n);
  }
  return OK;
}

static Status read_value(GoldenCase *c, yyjson_val *v, Value *out) {
  double f;
  int64_t i;
  *out = val_none();
  if (yyjson_is_null(v)) return OK;
  if (yyjson_is_bool(v)) return *out = val_bool(yyjson_get_bool(v)), OK;
  if (json_as_int64(v, &i)) return *out = val_int(i), OK;
  if (yyjson_is_num(v)) return *out = val_float(yyjson_get_num(v)), OK;
  if (yyjson_is_str(v)) {
    const char *s = yyjson_get_str(v);
    return *out = number_from_text(s, &f) ? val_float(f) : val_str(s), OK;
  }
  if (yyjson_is_arr(v)) return read_list(c, v, out);
  if (yyjson_obj_get(v, "size")) {
    Tensor *t;
    TRY(argument_tensor(c, v, &t));
    return *out = val_tensor(t), OK;
  }
  yyjson_obj_iter it = yyjson_obj_iter_with(v);
  yyjson_val *key = yyjson_obj_iter_next(&it);
  if (!key) return fail(ERR_FILE, "%s: an empty object is no value", c->id);
  return read_special(yyjson_get_str(key), yyjson_obj_iter_get_val(key), out);
}

Status golden_case_read(GoldenCase *c) {
  yyjson_val *args, *kwargs, *key, *v;
  size_t i, max;
  TRY(json_string(c->json, "id", c->family, &c->id));
  TRY(json_string(c->json, "op", c->id, &c->op));
  TRY(json_array(c->json, "args", c->id, &args));
  TRY(json_object(c->json, "kwargs", c->id, &kwargs));
  if (yyjson_arr_size(args) + yyjson_obj_size(kwargs) > MAX_PARAMS)
    return fail(ERR_FILE, "%s: too many arguments", c->id);
  yyjson_arr_foreach(args, i, max, v) TRY(read_value(c, v, &c->args[c->nargs++].value));
  yyjson_obj_foreach(kwargs, i, max, key, v) {
    c->args[c->nargs].name = yyjson_get_str(key);
    TRY(read_value(c, v, &c->args[c->nargs++].value));
  }
  return OK;
}

void golden_case_free(GoldenCase *c) {
  for (int i = 0; i < c->tensors; i++) storage_unref(c->before[i]);
  scope_clear(&c->scope);
  arena_free(&c->arena);
}

Value golden_argument(const GoldenCase *c, const char *name) {
  const Op *op = op_find(c->op);
  for (int i = 0; op && i < c->nargs; i++) {
    const char *is = c->args[i].name ? c->args[i].name : i < op->schema.nparams ? op->schema.params[i].name : "";
    if (!strcmp(is, name)) return c->args[i].value;
  }
  return val_none();
}
