/* schema.c -- see schema.h.  The grammar is ATen's; texts are our own constants, so an
 * error here is a mistake in an op's definition and names the text. */
#include "ops/schema.h"

#include <stdlib.h>
#include <string.h>

#include "base/scan.h"
#include "base/textbuf.h"

typedef struct {
  Arena *arena;
  const char *text, *p;
} Parser;

static Status bad(Parser *s, const char *what) {
  return fail(ERR_FAIL, "schema '%s': expected %s at '%s'", s->text, what, s->p);
}
static const char *word(Parser *s) {
  scan_skip(&s->p);
  const char *begin = s->p;
  while (scan_is_word(*s->p)) s->p++;
  return s->p == begin ? NULL : arena_strndup(s->arena, begin, (size_t)(s->p - begin));
}

static const struct {
  const char *name;
  TypeKind type;
} type_names[] = {
    {"Tensor", TYPE_TENSOR}, {"SymInt", TYPE_INT},
    {"int", TYPE_INT},       {"float", TYPE_FLOAT},
    {"bool", TYPE_BOOL},     {"Scalar", TYPE_SCALAR},
    {"str", TYPE_STR},       {"ScalarType", TYPE_DTYPE},
    {"Layout", TYPE_LAYOUT}, {"MemoryFormat", TYPE_MEMORY_FORMAT},
    {"Device", TYPE_DEVICE}, {"Generator", TYPE_GENERATOR},
    {"Graph", TYPE_GRAPH},   {"Any", TYPE_ANY},
};

/* Tensor(a!)[]?  int[2]  Tensor?[]  Tensor(a -> *) */
static Status parse_type(Parser *s, Param *out) {
  const char *name = word(s);
  bool found = false;
  for (size_t i = 0; name && i < sizeof type_names / sizeof *type_names; i++) {
    if (!strcmp(name, type_names[i].name)) out->type = type_names[i].type, found = true;
  }
  if (!found) return bad(s, "a type");
  for (;;) {
    if (*s->p == '(') {
      out->aliased = true;
      for (; *s->p && *s->p != ')'; s->p++) out->mutated |= *s->p == '!';
      if (*s->p) s->p++;
    } else if (*s->p == '[') {
      out->list = true;
      out->item_optional = out->optional;
      out->optional = false;
      out->length = (int)strtol(s->p + 1, (char **)(uintptr_t)&s->p, 10);
      if (*s->p++ != ']') return bad(s, "]");
    } else if (*s->p == '?') {
      out->optional = true;
      s->p++;
    } else {
      return OK;
    }
  }
}

/* Defaults of these kinds are numbers of c10's enums, not of the .pt2 format. */
static const Dtype c10_dtype[] = {DT_U8, DT_I8, DT_I16, DT_I32, DT_I64, DT_F16, DT_F32, DT_F64};
static const MemoryFormat c10_memory_format[] = {MEMORY_CONTIGUOUS, MEMORY_PRESERVE, MEMORY_CHANNELS_LAST,
                                                 MEMORY_CHANNELS_LAST_3D};

static Value number(Parser *s, TypeKind type) {
  char *end_int;
  const char *end_float;
  long long i = strtoll(s->p, &end_int, 10);
  double f = text_to_float(s->p, &end_float);
  bool is_int = end_int == end_float;
  s->p = end_float;
  if (type == TYPE_DTYPE) return val_dtype(c10_dtype[i & 7]);
  if (type == TYPE_MEMORY_FORMAT) return val_memory_format(c10_memory_format[i & 3]);
  if (type == TYPE_FLOAT || !is_int) return val_float(f);
  return val_int(i);
}

static Status parse_default(Parser *s, Param *out) {
  out->has_default = true;
  if (scan_take(&s->p, "None")) return out->value = val_none(), OK;
  if (scan_take(&s->p, "True")) return out->value = val_bool(true), OK;
  if (scan_take(&s->p, "False")) return out->value = val_bool(false), OK;
  if (scan_take(&s->p, "\"")) {
    const char *begin = s->p;
    while (*s->p && *s->p != '"') s->p++;
    out->value = val_str(arena_strndup(s->arena, begin, (size_t)(s->p - begin)));
    return scan_take(&s->p, "\"") ? OK : bad(s, "\"");
  }
  if (scan_take(&s->p, "[")) {
    int64_t *list;
    TRY_NEW(list, arena_new_n(s->arena, int64_t, 8));
    int n = 0;
    while (!scan_take(&s->p, "]")) {
      if (n == 8) return bad(s, "at most 8 numbers");
      list[n++] = number(s, TYPE_INT).i;
      scan_take(&s->p, ",");
    }
    out->value = val_ints(list, n);
    return OK;
  }
  Value v = number(s, out->type);
  if (!out->list) return out->value = v, OK;
  int64_t *list; /* int[2] padding=0 */
  int n = out->length ? out->length : 1;
  TRY_NEW(list, arena_new_n(s->arena, int64_t, n));
  for (int i = 0; i < n; i++) list[i] = v.i;
  out->value = val_ints(list, n);
  return OK;
}

static Status parse_params(Parser *s, Schema *out) {
  bool keyword = false;
  TRY_NEW(out->params, arena_new_n(s->arena, Param, MAX_PARAMS));
  while (!scan_take(&s->p, ")")) {
    if (scan_take(&s->p, "*")) {
      keyword = true;
    } else {
      if (out->nparams == MAX_PARAMS) return bad(s, "fewer parameters");
      Param *a = &out->params[out->nparams++];
      TRY(parse_type(s, a));
      a->name = word(s);
      if (!a->name) return bad(s, "a parameter name");
      a->keyword = keyword;
      out->mutates |= a->mutated;
      if (scan_take(&s->p, "=")) TRY(parse_default(s, a));
    }
    if (!scan_take(&s->p, ",")) {
      if (*s->p != ')') return bad(s, ", or )");
    }
  }
  return OK;
}

static Status parse_returns(Parser *s, Schema *out) {
  if (!scan_take(&s->p, "->")) return bad(s, "->");
  TRY_NEW(out->returns, arena_new_n(s->arena, Param, 8));
  bool many = scan_take(&s->p, "(");
  if (many && scan_take(&s->p, ")")) return OK;
  do {
    if (out->nreturns == 8) return bad(s, "at most 8 results");
    Param *r = &out->returns[out->nreturns++];
    TRY(parse_type(s, r));
    r->name = word(s);
  } while (many && scan_take(&s->p, ","));
  out->returns_list = out->nreturns == 1 && out->returns[0].list;
  return many && !scan_take(&s->p, ")") ? bad(s, ")") : OK;
}

/* Namespaces whose targets have no overload in .pt2 files. */
static bool has_no_overload(const char *space) {
  return !strcmp(space, "_operator") || !strcmp(space, "math") || !strcmp(space, "torch") ||
         !strcmp(space, "higher_order");
}

Status schema_parse(Arena *arena, const char *text, Schema *out) {
  Parser s = {arena, text, text};
  *out = (Schema){0};
  const char *space = word(&s);
  if (!space || !scan_take(&s.p, "::")) return bad(&s, "namespace::");
  const char *name = word(&s), *overload = NULL;
  if (!name) return bad(&s, "an op name");
  if (scan_take(&s.p, ".")) overload = word(&s);
  if (overload) TRY_NEW(out->name, arena_printf(arena, "%s.%s.%s", space, name, overload));
  else if (has_no_overload(space)) TRY_NEW(out->name, arena_printf(arena, "%s.%s", space, name));
  else TRY_NEW(out->name, arena_printf(arena, "%s.%s.default", space, name));
  if (!scan_take(&s.p, "(")) return bad(&s, "(");
  TRY(parse_params(&s, out));
  TRY(parse_returns(&s, out));
  return *s.p ? bad(&s, "the end") : OK;
}

int schema_find(const Schema *s, const char *param) {
  for (int i = 0; i < s->nparams; i++) {
    if (!strcmp(s->params[i].name, param)) return i;
  }
  return -1;
}
