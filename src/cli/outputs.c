/* outputs.c -- see outputs.h. */
#include "cli/outputs.h"

#include <math.h>
#include <stdlib.h>

#include "base/textbuf.h"
#include "tensor/print.h"

Status outputs_save(const char *path, const OutputList *outs, bool force) {
  SafeItem *items = calloc((size_t)outs->n + 1, sizeof *items);
  char(*names)[16] = calloc((size_t)outs->n + 1, sizeof *names);
  Status s = items && names ? OK : fail_oom();
  int count = 0;
  for (int i = 0; i < outs->n && !s; i++) {
    if (outs->v[i].kind != VAL_TENSOR) continue;
    items[count] = (SafeItem){output_label(outs, i, names[count], sizeof names[count]), outs->v[i].tensor};
    count++;
  }
  if (!s) s = safetensors_save(path, items, count, NULL, 0, force ? FILE_OVERWRITE : 0);
  free(items);
  free(names);
  return s;
}

/* ---- text ------------------------------------------------------------------------------ */

static void text_value(TextBuf *b, const Value *v) {
  switch (v->kind) {
    case VAL_TENSOR: tensor_print(b, v->tensor, 1000); break;
    case VAL_INT: text_printf(b, "%lld", (long long)v->i); break;
    case VAL_BOOL: text_puts(b, v->b ? "true" : "false"); break;
    case VAL_FLOAT: text_printf(b, "%.9g", v->f); break;
    case VAL_STR: text_puts(b, v->str); break;
    default: text_puts(b, "None");
  }
}

/* ---- JSON ------------------------------------------------------------------------------ */

static void json_float(TextBuf *b, double f) {
  if (isnan(f)) text_puts(b, "\"NaN\"");
  else if (isinf(f)) text_puts(b, f < 0 ? "\"-Infinity\"" : "\"Infinity\"");
  else text_printf(b, "%.17g", f);
}

static void json_number(TextBuf *b, const Value *v) {
  switch (v->kind) {
    case VAL_INT: text_printf(b, "%lld", (long long)v->i); break;
    case VAL_BOOL: text_puts(b, v->b ? "true" : "false"); break;
    case VAL_FLOAT: json_float(b, v->f); break;
    case VAL_COMPLEX:
      text_puts(b, "[");
      json_float(b, v->complex_[0]);
      text_puts(b, ", ");
      json_float(b, v->complex_[1]);
      text_puts(b, "]");
      break;
    case VAL_STR: text_json(b, v->str); break;
    default: text_puts(b, "null");
  }
}

static void json_tensor(TextBuf *b, const Tensor *t, bool data) {
  int64_t at[MAX_DIMS] = {0}, n = tensor_numel(t);
  char size[256];
  text_printf(b, "\"dtype\": \"%s\", \"size\": %s", dtype_name(t->dtype),
              shape_describe(t->ndim, t->size, size, sizeof size));
  if (!data) return;
  text_puts(b, ", \"data\": [");
  for (int64_t i = 0; i < n && !b->failed; i++) {
    int64_t offset = 0;
    for (int d = 0; d < t->ndim; d++) offset += at[d] * t->stride[d];
    Value v = val_load(t->dtype, (const char *)tensor_data(t) + (size_t)offset * dtype_size(t->dtype));
    if (i) text_puts(b, ", ");
    json_number(b, &v);
    for (int d = t->ndim - 1; d >= 0 && ++at[d] == t->size[d]; d--) at[d] = 0;
  }
  text_puts(b, "]");
}

static void json_value(TextBuf *b, const OutputList *outs, int i, bool data) {
  const Value *v = &outs->v[i];
  text_printf(b, "{\"output\": %d, ", i);
  if (outs->gradient && outs->gradient[i]) {
    text_puts(b, "\"name\": ");
    text_json(b, outs->gradient[i]);
    text_puts(b, ", ");
  }
  if (v->kind == VAL_TENSOR) {
    json_tensor(b, v->tensor, data);
  } else {
    text_puts(b, "\"value\": ");
    json_number(b, v);
  }
  text_puts(b, "}");
}

/* ---- all of them ------------------------------------------------------------------------ */

static Status print_text(FILE *f, TextBuf *b) {
  Status s = b->failed ? fail_oom() : OK;
  if (!s) fputs(b->text, f);
  text_free(b);
  return s;
}

Status outputs_print(FILE *f, const OutputList *outs) {
  for (int i = 0; i < outs->n; i++) {
    TextBuf b = {0};
    char label[16];
    text_printf(&b, "%s: ", output_label(outs, i, label, sizeof label));
    text_value(&b, &outs->v[i]);
    text_puts(&b, "\n");
    TRY(print_text(f, &b));
  }
  return OK;
}

Status outputs_print_json(FILE *f, const OutputList *outs, bool data) {
  fputs("[", f);
  for (int i = 0; i < outs->n; i++) {
    TextBuf b = {0};
    if (i) text_puts(&b, ", ");
    json_value(&b, outs, i, data);
    TRY(print_text(f, &b));
  }
  fputs("]", f);
  return OK;
}

Status outputs_list(FILE *f, const OutputList *outs) {
  for (int i = 0; i < outs->n; i++) {
    TextBuf b = {0};
    const Value *v = &outs->v[i];
    char shape[256], label[16];
    text_printf(&b, "%s: ", output_label(outs, i, label, sizeof label));
    if (v->kind == VAL_TENSOR) text_puts(&b, tensor_describe(v->tensor, shape, sizeof shape));
    else text_value(&b, v);
    text_puts(&b, "\n");
    TRY(print_text(f, &b));
  }
  return OK;
}
