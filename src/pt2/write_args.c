/* write_args.c -- arguments of .pt2 files; see writer.h. */
#include <stdlib.h>
#include <string.h>

#include "pt2/writer.h"

void write_val_ref(Writer *w, const Val *v) {
  static const char *const open[] = {
      [TY_TENSOR] = "{\"as_tensor\": {\"name\": ",
      [TY_INT] = "{\"as_sym_int\": {\"as_name\": ",
      [TY_FLOAT] = "{\"as_sym_float\": {\"as_name\": ",
      [TY_BOOL] = "{\"as_sym_bool\": {\"as_name\": ",
  };
  if (v->type == TY_NONE) {
    text_puts(&w->b, "{\"as_none\": true}");
    return;
  }
  text_puts(&w->b, open[v->type]);
  text_json(&w->b, v->name);
  text_puts(&w->b, "}}");
}

/* cuda:1 -> {"type": "cuda", "index": 1} */
static void write_device(Writer *w, const char *device) {
  const char *colon = strchr(device, ':');
  char type[64];
  size_t n = colon ? (size_t)(colon - device) : strlen(device);
  if (n >= sizeof type) n = sizeof type - 1;
  memcpy(type, device, n);
  type[n] = 0;
  text_puts(&w->b, "{\"type\": ");
  text_json(&w->b, type);
  if (colon) text_printf(&w->b, ", \"index\": %ld}", strtol(colon + 1, NULL, 10));
  else text_puts(&w->b, ", \"index\": null}");
}

/* ---- lists ------------------------------------------------------------------------------ */

/* What a list's items are decides its tag.  Bits, so that a mixture is their union. */
enum {
  HAS_INT = 1,
  HAS_FLOAT = 2,
  HAS_BOOL = 4,
  HAS_STR = 8,
  HAS_TENSOR = 16,
  HAS_NONE = 32,
  HAS_SYM = 64,
  HAS_LIST = 128,
  HAS_OTHER = 256
};

static unsigned item_kind(const Arg *a) {
  switch (a->kind) {
    case ARG_INT: return HAS_INT;
    case ARG_FLOAT: return HAS_FLOAT;
    case ARG_BOOL: return HAS_BOOL;
    case ARG_STR: return HAS_STR;
    case ARG_NONE: return HAS_NONE;
    case ARG_LIST: return HAS_LIST;
    case ARG_VAL: return a->val->type == TY_TENSOR ? HAS_TENSOR : a->val->type == TY_NONE ? HAS_NONE : HAS_SYM;
    default: return HAS_OTHER;
  }
}

static unsigned list_kinds(const Arg *a) {
  unsigned kinds = 0;
  for (int i = 0; i < a->n; i++) kinds |= item_kind(&a->list[i]);
  return kinds;
}

/* Of an empty list the schema knows what it would hold. */
static const char *empty_tag(const Param *p) {
  if (!p) return "as_ints";
  switch (p->type) {
    case TYPE_TENSOR: return p->item_optional ? "as_optional_tensors" : "as_tensors";
    case TYPE_FLOAT: return "as_floats";
    case TYPE_BOOL: return "as_bools";
    case TYPE_STR: return "as_strings";
    default: return "as_ints";
  }
}

/* as_sym_ints and its sisters go by what the values are; numbers take what is left. */
static const char *symbolic_tag(const Arg *a) {
  for (int i = 0; i < a->n; i++) {
    if (a->list[i].kind != ARG_VAL) continue;
    if (a->list[i].val->type == TY_FLOAT) return "as_sym_floats";
    if (a->list[i].val->type == TY_BOOL) return "as_sym_bools";
  }
  return "as_sym_ints";
}

static const char *list_tag(const Arg *a, const Param *param) {
  unsigned kinds = list_kinds(a);
  if (a->n == 0) return empty_tag(param);
  if (kinds == HAS_INT && param && param->type == TYPE_FLOAT) return "as_floats";
  if (kinds == HAS_INT) return "as_ints";
  if (!(kinds & ~(unsigned)(HAS_INT | HAS_FLOAT))) return "as_floats";
  if (kinds == HAS_BOOL) return "as_bools";
  if (kinds == HAS_STR) return "as_strings";
  if (kinds == HAS_TENSOR) return "as_tensors";
  if (!(kinds & ~(unsigned)(HAS_TENSOR | HAS_NONE))) return "as_optional_tensors";
  if (!(kinds & ~(unsigned)(HAS_SYM | HAS_INT | HAS_FLOAT | HAS_BOOL))) return symbolic_tag(a);
  return NULL;
}

/* Lists of lists: all of one kind. */
static const char *nested_tag(const Arg *a) {
  unsigned kinds = 0;
  for (int i = 0; i < a->n; i++) kinds |= a->list[i].kind == ARG_LIST ? list_kinds(&a->list[i]) : HAS_OTHER;
  if (kinds == 0 || kinds == HAS_INT) return "as_int_lists";
  if (!(kinds & ~(unsigned)(HAS_INT | HAS_FLOAT))) return "as_float_lists";
  return kinds == HAS_TENSOR ? "as_nested_tensors" : NULL;
}

/* An item without its tag, as lists hold it. */
static void write_item(Writer *w, const Arg *a, bool as_float, bool symbolic, bool optional) {
  switch (a->kind) {
    case ARG_LIST:
      text_puts(&w->b, "[");
      for (int i = 0; i < a->n; i++) {
        if (i) text_puts(&w->b, ", ");
        write_item(w, &a->list[i], as_float, false, false);
      }
      text_puts(&w->b, "]");
      break;
    case ARG_INT:
      if (as_float) write_float(w, (double)a->i);
      else text_printf(&w->b, symbolic ? "{\"as_int\": %lld}" : "%lld", (long long)a->i);
      break;
    case ARG_FLOAT:
      if (symbolic) text_puts(&w->b, "{\"as_float\": ");
      write_float(w, a->f);
      if (symbolic) text_puts(&w->b, "}");
      break;
    case ARG_BOOL: text_printf(&w->b, symbolic ? "{\"as_bool\": %s}" : "%s", a->b ? "true" : "false"); break;
    case ARG_STR: text_json(&w->b, a->str); break;
    case ARG_NONE: text_puts(&w->b, "{\"as_none\": true}"); break;
    default: /* ARG_VAL: list_tag let nothing else through */
      if (a->val->type == TY_NONE || optional) {
        write_val_ref(w, a->val);
        break;
      }
      text_puts(&w->b, symbolic ? "{\"as_name\": " : "{\"name\": ");
      text_json(&w->b, a->val->name);
      text_puts(&w->b, "}");
  }
}

static Status write_list(Writer *w, const Arg *a, const Param *param) {
  bool nested = a->n && a->list[0].kind == ARG_LIST;
  const char *tag = nested ? nested_tag(a) : list_tag(a, param);
  if (!tag) return fail(ERR_FAIL, "a list of mixed items cannot be written to a .pt2 file");
  bool symbolic = !strncmp(tag, "as_sym", 6), as_float = strstr(tag, "float") != NULL && !symbolic;
  bool optional = !strcmp(tag, "as_optional_tensors");
  text_printf(&w->b, "{\"%s\": [", tag);
  for (int i = 0; i < a->n; i++) {
    if (i) text_puts(&w->b, ", ");
    write_item(w, &a->list[i], as_float, symbolic, optional);
  }
  text_puts(&w->b, "]}");
  return OK;
}

/* ---- any argument ----------------------------------------------------------------------- */

static Status write_sub_graph(Writer *w, const Graph *g) {
  text_printf(&w->b, "{\"as_graph\": {\"name\": \"submod_%d\", \"graph\": ", w->subgraphs++);
  TRY(write_graph(w, g, NULL));
  text_puts(&w->b, "}}");
  return OK;
}

Status write_arg(Writer *w, const Arg *a, const Param *param) {
  static const int formats[] = {
      [MEMORY_CONTIGUOUS] = 1, [MEMORY_CHANNELS_LAST] = 2, [MEMORY_CHANNELS_LAST_3D] = 3, [MEMORY_PRESERVE] = 4};
  switch (a->kind) {
    case ARG_UNSET:
    case ARG_NONE: text_puts(&w->b, "{\"as_none\": true}"); return OK;
    case ARG_VAL: write_val_ref(w, a->val); return OK;
    case ARG_BOOL: text_printf(&w->b, "{\"as_bool\": %s}", a->b ? "true" : "false"); return OK;
    case ARG_INT: text_printf(&w->b, "{\"as_int\": %lld}", (long long)a->i); return OK;
    case ARG_DTYPE: text_printf(&w->b, "{\"as_scalar_type\": %d}", dtype_info[a->dtype].pt2); return OK;
    case ARG_LAYOUT: text_printf(&w->b, "{\"as_layout\": %d}", LAYOUT_STRIDED); return OK;
    case ARG_MEMORY_FORMAT: text_printf(&w->b, "{\"as_memory_format\": %d}", formats[a->memory_format]); return OK;
    case ARG_LIST: return write_list(w, a, param);
    case ARG_GRAPH: return write_sub_graph(w, a->graph);
    case ARG_FLOAT:
      text_puts(&w->b, "{\"as_float\": ");
      write_float(w, a->f);
      break;
    case ARG_COMPLEX:
      text_puts(&w->b, "{\"as_complex\": {\"real\": ");
      write_float(w, a->complex_[0]);
      text_puts(&w->b, ", \"imag\": ");
      write_float(w, a->complex_[1]);
      text_puts(&w->b, "}");
      break;
    case ARG_STR:
      text_puts(&w->b, "{\"as_string\": ");
      text_json(&w->b, a->str);
      break;
    case ARG_DEVICE:
      text_puts(&w->b, "{\"as_device\": ");
      write_device(w, a->str);
      break;
  }
  text_puts(&w->b, "}");
  return OK;
}
