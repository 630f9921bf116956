/* feed_sizes.c -- see feed_sizes.h. */
#include "runtime/feed_sizes.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

static int64_t choose_value(const Exported *e, const char *symbol, bool hints) {
  int64_t value = 2;
  for (int r = 0; r < e->nranges; r++) {
    const SymRange *range = &e->ranges[r];
    if (strcmp(range->symbol, symbol)) continue;
    if (hints && range->hint >= 0) value = range->hint;
    if (value < range->min) value = range->min;
    if (value > range->max) value = range->max;
  }
  return value;
}

static Status choose_symbols(const Exported *e, const Sym *size, bool hints, SymBindings *b) {
  for (const Sym *s; (s = sym_first_unbound(size, b));) {
    TRY_ROOM(b->v, b->n, b->cap);
    b->v[b->n++] = (SymBinding){s->name, choose_value(e, s->name, hints)};
  }
  return OK;
}

Status feed_symbols(const Exported *e, bool hints, SymBindings *out) {
  Status status = OK;
  *out = (SymBindings){0};
  for (int i = 0; i < e->graph->ninputs && !status; i++) {
    const Val *v = e->graph->inputs[i];
    for (int d = 0; v->type == TY_TENSOR && d < v->ndim && !status; d++)
      status = choose_symbols(e, v->size[d], hints, out);
    if (v->type == TY_INT && v->sym && !status) status = choose_symbols(e, v->sym, hints, out);
  }
  if (status) {
    free(out->v);
    *out = (SymBindings){0};
  }
  return status;
}

static Status make_number(const Val *v, const SymBindings *b, Value *out) {
  int64_t i = 2;
  if (v->type == TY_INT && v->sym) TRY(sym_eval(v->sym, b, &i));
  *out = v->type == TY_FLOAT ? val_float(1) : v->type == TY_BOOL ? val_bool(true) : val_int(i);
  return OK;
}

Status feed_sizes(const Exported *e, const SymBindings *b, Scope *scope, Arena *arena, Value **inputs, int *n) {
  TRY_NEW(*inputs, arena_new_n(arena, Value, exported_user_inputs(e)));
  *n = 0;
  for (int i = 0; i < e->graph->ninputs; i++) {
    const Val *v = e->graph->inputs[i];
    if (e->inputs[i].kind != IN_USER) continue;
    Value *out = &(*inputs)[(*n)++];
    if (v->type != TY_TENSOR) {
      TRY(make_number(v, b, out));
      continue;
    }
    int64_t size[MAX_DIMS];
    Tensor *t;
    if (v->ndim < 0 || v->ndim > MAX_DIMS) return fail(ERR_FILE, "input '%s' has no known size", v->name);
    for (int d = 0; d < v->ndim; d++) TRY(sym_eval(v->size[d], b, &size[d]));
    TRY(tensor_meta(scope, v->dtype, v->ndim, size, &t));
    *out = val_tensor(t);
  }
  return OK;
}
