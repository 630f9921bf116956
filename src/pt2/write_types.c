/* write_types.c -- sizes and tensor metadata of .pt2 files; see writer.h. */
#include <math.h>
#include <string.h>

#include "pt2/writer.h"

void write_float(Writer *w, double f) {
  if (isfinite(f)) text_float(&w->b, f);
  else text_puts(&w->b, isnan(f) ? "\"NaN\"" : f > 0 ? "\"Infinity\"" : "\"-Infinity\"");
}

/* {"as_int": 4}, or {"as_expr": {"expr_str": "Symbol(...)", "hint": {"as_int": 16}}}.  The
 * hint is what the expression was on export, where all its symbols have one. */
void write_sym(Writer *w, const Sym *s, ValType type) {
  if (s->kind == SYM_INT && type == TY_BOOL) {
    text_printf(&w->b, "{\"as_bool\": %s}", s->value ? "true" : "false");
    return;
  }
  if (s->kind == SYM_FLOAT || (s->kind == SYM_INT && type == TY_FLOAT)) {
    text_puts(&w->b, "{\"as_float\": ");
    write_float(w, s->kind == SYM_FLOAT ? s->number : (double)s->value);
    text_puts(&w->b, "}");
    return;
  }
  if (s->kind == SYM_INT) {
    text_puts(&w->b, "{\"as_int\": ");
    text_int(&w->b, s->value);
    text_puts(&w->b, "}");
    return;
  }
  TextBuf expr = {0};
  int64_t hint;
  sym_print_srepr(&expr, s);
  w->b.failed |= expr.failed;
  text_puts(&w->b, "{\"as_expr\": {\"expr_str\": ");
  if (expr.text) text_json(&w->b, expr.text);
  text_free(&expr);
  Status unknown = type == TY_INT ? sym_eval(s, &w->hints, &hint) : fail_oom();
  if (unknown) text_puts(&w->b, ", \"hint\": null}}");
  else text_printf(&w->b, ", \"hint\": {\"as_int\": %lld}}}", (long long)hint);
  status_free(unknown);
}

static void write_numbers(Writer *w, const int64_t *v, int n) {
  text_puts(&w->b, "[");
  for (int i = 0; i < n; i++) {
    text_puts(&w->b, i ? ", {\"as_int\": " : "{\"as_int\": ");
    text_int(&w->b, v[i]);
    text_puts(&w->b, "}");
  }
  text_puts(&w->b, "]");
}

static void begin_meta(Writer *w, Dtype d) { text_printf(&w->b, "{\"dtype\": %d, \"sizes\": ", dtype_info[d].pt2); }

static void grad_and_device(Writer *w, bool requires_grad) {
  text_printf(&w->b, ", \"requires_grad\": %s, \"device\": {\"type\": \"cpu\", \"index\": null}, \"strides\": ",
              requires_grad ? "true" : "false");
}

static void end_meta(Writer *w, int64_t offset) {
  text_printf(&w->b, ", \"storage_offset\": {\"as_int\": %lld}, \"layout\": %d}", (long long)offset,
              LAYOUT_STRIDED);
}

void write_tensor_meta(Writer *w, const Tensor *t, const int64_t *stride, int64_t offset, bool requires_grad) {
  begin_meta(w, t->dtype);
  write_numbers(w, t->size, t->ndim);
  grad_and_device(w, requires_grad);
  write_numbers(w, stride, t->ndim);
  end_meta(w, offset);
}

static void write_syms(Writer *w, const Sym *const *s, int n) {
  text_puts(&w->b, "[");
  for (int i = 0; i < n; i++) {
    if (i) text_puts(&w->b, ", ");
    write_sym(w, s[i], TY_INT);
  }
  text_puts(&w->b, "]");
}

/* Row-major strides as expressions. */
static Status contiguous_syms(Writer *w, const Val *v, const Sym **out) {
  const Sym *step;
  TRY_NEW(step, sym_int(&w->syms, 1));
  for (int i = v->ndim - 1; i >= 0; i--) {
    out[i] = step;
    bool tiny = sym_is_int(v->size[i]) && v->size[i]->value <= 1;
    if (!tiny) TRY_NEW(step, sym_mul(&w->syms, step, v->size[i]));
  }
  return OK;
}

Status write_val_meta(Writer *w, const Val *v, bool requires_grad) {
  text_json(&w->b, v->name);
  text_puts(&w->b, ": ");
  if (v->ndim < 0 || v->dtype == DT_NONE) {
    if (!v->tensor) return fail(ERR_FAIL, "the value %s cannot be written: its sizes are not known", v->name);
    write_tensor_meta(w, v->tensor, v->tensor->stride, 0, requires_grad);
    return OK;
  }
  const Sym *contiguous[MAX_DIMS];
  if (!v->stride) TRY(contiguous_syms(w, v, contiguous));
  begin_meta(w, v->dtype);
  write_syms(w, v->size, v->ndim);
  grad_and_device(w, requires_grad);
  write_syms(w, v->stride ? v->stride : contiguous, v->ndim);
  end_meta(w, 0);
  return OK;
}
