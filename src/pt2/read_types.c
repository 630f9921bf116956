/* read_types.c -- sizes, dtypes and tensor metadata of .pt2 files; see reader.h. */
#include <math.h>
#include <string.h>

#include "pt2/reader.h"

enum { LAYOUT_STRIDED = 7 };

Status read_dtype(yyjson_val *v, Dtype *out) {
  int64_t code;
  if (!json_as_int64(v, &code))
    return fail(ERR_FILE, "a dtype must be a number, it is %s", yyjson_get_type_desc(v));
  *out = code > 0 && code < 1000 ? dtype_from_pt2((int)code) : DT_NONE;
  if (*out == DT_NONE) return fail(ERR_FILE, "the dtype number %lld is not known", (long long)code);
  return OK;
}

Status read_float(yyjson_val *v, double *out) {
  static const struct {
    const char *text;
    double value;
  } words[] = {{"Infinity", INFINITY}, {"-Infinity", -INFINITY}, {"NaN", NAN}};
  *out = yyjson_get_num(v);
  if (yyjson_is_num(v)) return OK;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (yyjson_equals_str(v, words[i].text)) return *out = words[i].value, OK;
  }
  return fail(ERR_FILE, "expected a float, found %s", yyjson_get_type_desc(v));
}

/* Remembers the value of a symbol, from that of an expression with no other unknown. */
static Status note_hint(Reader *r, const Sym *s, yyjson_val *hint) {
  int64_t number, value;
  SymBindings *b = &r->hints;
  const Sym *symbol = sym_single_unbound(s, b);
  if (!symbol || !json_as_int64(yyjson_obj_get(hint, "as_int"), &number)) return OK;
  if (!sym_solve(s, symbol, b, number, &value)) return OK;
  TRY_NEW(b->v, arena_more(&r->e->arena, b->v, b->n, &b->cap));
  b->v[b->n++] = (SymBinding){symbol->name, value};
  return OK;
}

/* {"as_int": 4}, {"as_expr": {"expr_str": "...", "hint": {"as_int": 16}}} */
Status read_sym(Reader *r, yyjson_val *v, const Sym **out) {
  const char *tag, *text;
  yyjson_val *value;
  int64_t i;
  double f;
  TRY(read_union(v, &tag, &value));
  if (!strcmp(tag, "as_int")) {
    if (!json_as_int64(value, &i)) return fail(ERR_FILE, "a size must be an integer of 64 bits");
    TRY_NEW(*out, sym_int(&r->e->syms, i));
  } else if (!strcmp(tag, "as_expr")) {
    TRY(json_string(value, "expr_str", "symbolic size", &text));
    TRY(sym_parse_srepr(&r->e->syms, text, out));
    TRY(note_hint(r, *out, yyjson_obj_get(value, "hint")));
  } else if (!strcmp(tag, "as_bool")) {
    TRY_NEW(*out, sym_int(&r->e->syms, yyjson_is_true(value)));
  } else if (!strcmp(tag, "as_float")) {
    TRY(read_float(value, &f));
    TRY_NEW(*out, sym_float(&r->e->syms, f));
  } else {
    return fail(ERR_FILE, "a size of the unknown kind '%s'", tag);
  }
  return OK;
}

static Status check_layout(yyjson_val *meta) {
  yyjson_val *layout = yyjson_obj_get(meta, "layout");
  int64_t code = LAYOUT_STRIDED;
  if (layout && !yyjson_is_null(layout) && (!json_as_int64(layout, &code) || code != LAYOUT_STRIDED)) {
    return fail(ERR_FILE, "the tensor layout number %lld is not supported: only dense tensors are",
                (long long)code);
  }
  return OK;
}

static Status read_syms(Reader *r, yyjson_val *array, int n, const Sym ***out) {
  size_t i, max;
  yyjson_val *v;
  const Sym **syms;
  TRY_NEW(syms, arena_new_n(&r->e->arena, const Sym *, n));
  if (array) yyjson_arr_foreach(array, i, max, v) {
      TRY(read_sym(r, v, &syms[i]));
      if (sym_is_int(syms[i]) && syms[i]->value < 0)
        return fail(ERR_FILE, "the size or stride %lld is negative", (long long)syms[i]->value);
      if (syms[i]->kind == SYM_FLOAT) return fail(ERR_FILE, "a size or stride is not an integer");
    }
  *out = syms;
  return OK;
}

/* Row-major strides, as expressions; the most frequent case is kept as NULL. */
static Status drop_contiguous(Reader *r, Val *v) {
  const Sym *expect;
  SymTable *t = &r->e->syms;
  TRY_NEW(expect, sym_int(t, 1));
  for (int i = v->ndim - 1; i >= 0; i--) {
    if (v->stride[i] != expect) return OK;
    bool tiny = sym_is_int(v->size[i]) && v->size[i]->value <= 1;
    if (!tiny) TRY_NEW(expect, sym_mul(t, expect, v->size[i]));
  }
  v->stride = NULL;
  return OK;
}

Status read_tensor_meta(Reader *r, yyjson_val *meta, Val *out) {
  yyjson_val *dtype, *sizes, *strides;
  TRY(json_member(meta, "dtype", "tensor", &dtype));
  TRY(json_array(meta, "sizes", "tensor", &sizes));
  TRY(json_array(meta, "strides", "tensor", &strides));
  TRY(check_layout(meta));
  TRY(read_dtype(dtype, &out->dtype));
  size_t n = yyjson_arr_size(sizes);
  if (n > MAX_DIMS) return fail(ERR_FILE, "a tensor of %zu dimensions: at most %d are supported", n, MAX_DIMS);
  if (yyjson_arr_size(strides) != n)
    return fail(ERR_FILE, "a tensor of %zu sizes and %zu strides", n, yyjson_arr_size(strides));
  out->ndim = (int)n;
  TRY(read_syms(r, sizes, out->ndim, &out->size));
  TRY(read_syms(r, strides, out->ndim, &out->stride));
  return drop_contiguous(r, out);
}

/* {"as_int": 4}, or the number itself */
static Status read_count(yyjson_val *v, const char *what, int64_t *out) {
  if (yyjson_is_obj(v)) v = yyjson_obj_get(v, "as_int");
  if (!json_as_int64(v, out) || *out < 0) return fail(ERR_FILE, "its %s must be numbers of 0 or more", what);
  return OK;
}

static Status read_counts(yyjson_val *meta, const char *key, int *n, int64_t *out) {
  yyjson_val *array, *v;
  size_t i, max;
  TRY(json_array(meta, key, "tensor_meta", &array));
  if (yyjson_arr_size(array) > MAX_DIMS)
    return fail(ERR_FILE, "it has %zu dimensions: at most %d are supported", yyjson_arr_size(array), MAX_DIMS);
  *n = (int)yyjson_arr_size(array);
  if (array) yyjson_arr_foreach(array, i, max, v) TRY(read_count(v, key, &out[i]));
  return OK;
}

Status read_payload_meta(yyjson_val *meta, PayloadMeta *out) {
  yyjson_val *dtype, *offset;
  int nstrides;
  TRY(json_member(meta, "dtype", "tensor_meta", &dtype));
  TRY(read_dtype(dtype, &out->dtype));
  TRY(check_layout(meta));
  TRY(read_counts(meta, "sizes", &out->ndim, out->size));
  TRY(read_counts(meta, "strides", &nstrides, out->stride));
  if (nstrides != out->ndim) return fail(ERR_FILE, "it has %d sizes and %d strides", out->ndim, nstrides);
  TRY(json_member(meta, "storage_offset", "tensor_meta", &offset));
  TRY(read_count(offset, "storage_offset", &out->offset));
  int64_t numel, bytes;
  if (!checked_numel(out->ndim, out->size, &numel) ||
      __builtin_mul_overflow(numel, (int64_t)dtype_size(out->dtype), &bytes)) {
    char buf[256];
    return fail(ERR_FILE, "its size %s is impossible", shape_describe(out->ndim, out->size, buf, sizeof buf));
  }
  if (numel == 0) out->offset = 0;
  out->requires_grad = yyjson_is_true(yyjson_obj_get(meta, "requires_grad"));
  return OK;
}
