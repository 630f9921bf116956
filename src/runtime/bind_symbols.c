/* bind_symbols.c -- what each symbol is for given inputs; see specialize.h. */
#include <stdio.h>
#include <stdlib.h>

#include "base/grow.h"
#include "base/textbuf.h"
#include "runtime/specialize.h"

static Status bind(SymBindings *b, const char *name, int64_t value) {
  TRY_ROOM(b->v, b->n, b->cap);
  b->v[b->n++] = (SymBinding){name, value};
  return OK;
}

static Status check_input(const Val *v, const Value *given) {
  char buf[128];
  if (v->type == TY_TENSOR) {
    if (given->kind != VAL_TENSOR)
      return fail(ERR_FILE, "input '%s' must be a tensor, a %s was given", v->name, val_kind_name(given->kind));
    const Tensor *t = given->tensor;
    if (t->dtype != v->dtype) {
      return status_hint(fail(ERR_FILE, "input '%s' is %s, the program wants %s", v->name,
                              tensor_describe(t, buf, sizeof buf), dtype_name(v->dtype)),
                         "convert it before saving: x.to(torch.%s)", dtype_info[v->dtype].torch);
    }
    if (t->ndim != v->ndim)
      return fail(ERR_FILE, "input '%s' is %s, the program wants %d dimensions", v->name,
                  tensor_describe(t, buf, sizeof buf), v->ndim);
    return OK;
  }
  if (v->type != TY_NONE && !val_is_number(given)) {
    return fail(ERR_FILE, "input '%s' must be a number, a %s was given", v->name, val_kind_name(given->kind));
  }
  return OK;
}

/* Plain symbols first (pass 0), then what one unknown can be solved for (pass 1). */
static Status bind_size(SymBindings *b, const Sym *s, int64_t value, int pass) {
  if (s->kind == SYM_SYMBOL) return sym_lookup(b, s->name) ? OK : bind(b, s->name, value);
  if (pass == 0) return OK;
  const Sym *unknown = sym_single_unbound(s, b);
  int64_t solved;
  return unknown && sym_solve(s, unknown, b, value, &solved) ? bind(b, unknown->name, solved) : OK;
}

static Status size_differs(const Val *v, int dim, const Tensor *t, const Sym *s, const SymBindings *b,
                           int64_t want) {
  char buf[128];
  TextBuf expr = {0};
  sym_print(&expr, s);
  Status e = sym_is_int(s)
                 ? fail(ERR_FILE, "input '%s' is %s: dimension %d must be %lld", v->name,
                        tensor_describe(t, buf, sizeof buf), dim, (long long)want)
                 : fail(ERR_FILE, "input '%s' is %s: dimension %d must be %s = %lld", v->name,
                        tensor_describe(t, buf, sizeof buf), dim, expr.text ? expr.text : "?", (long long)want);
  for (int i = 0; i < b->n && !sym_is_int(s); i++)
    e = status_at(e, "%s = %lld", b->v[i].name, (long long)b->v[i].value);
  text_free(&expr);
  return e;
}

static Status check_sizes(const Val *v, const Tensor *t, const SymBindings *b) {
  for (int d = 0; d < v->ndim; d++) {
    int64_t want;
    Status s = sym_eval(v->size[d], b, &want);
    if (s) return status_at(s, "input '%s', dimension %d", v->name, d);
    if (want != t->size[d]) return size_differs(v, d, t, v->size[d], b, want);
  }
  return OK;
}

static Status check_ranges(const Exported *e, const SymBindings *b) {
  for (int i = 0; i < e->nranges; i++) {
    const SymRange *r = &e->ranges[i];
    const int64_t *value = sym_lookup(b, r->symbol);
    if (!value || (*value >= r->min && *value <= r->max)) continue;
    char low[32], high[32];
    snprintf(low, sizeof low, "%lld", (long long)r->min);
    snprintf(high, sizeof high, "%lld", (long long)r->max);
    return status_hint(
        fail(ERR_FILE, "symbol %s is %lld, outside its range [%s, %s]", r->symbol, (long long)*value,
             r->min == INT64_MIN ? "-inf" : low, r->max == INT64_MAX ? "inf" : high),
        "the program was exported for that range; give inputs inside it or export it with a wider Dim");
  }
  return OK;
}

Status specialize_bind(const Exported *e, const Value *user, int ninputs, SymBindings *b) {
  const Graph *g = e->graph;
  *b = (SymBindings){0};
  if (ninputs != exported_user_inputs(e)) {
    return fail(ERR_FILE, "the program takes %d input%s, %d given", exported_user_inputs(e),
                exported_user_inputs(e) == 1 ? "" : "s", ninputs);
  }
  for (int pass = 0; pass < 2; pass++) {
    for (int i = 0, u = 0; i < g->ninputs; i++) {
      const Val *v = g->inputs[i];
      if (e->inputs[i].kind != IN_USER) continue;
      const Value *given = &user[u++];
      TRY(check_input(v, given));
      for (int d = 0; v->type == TY_TENSOR && d < v->ndim; d++)
        TRY(bind_size(b, v->size[d], given->tensor->size[d], pass));
      if (v->type == TY_INT && v->sym) TRY(bind_size(b, v->sym, val_as_int(given), pass));
    }
  }
  TRY(check_ranges(e, b));
  for (int i = 0, u = 0; i < g->ninputs; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    if (g->inputs[i]->type == TY_TENSOR) TRY(check_sizes(g->inputs[i], user[u].tensor, b));
    u++;
  }
  return OK;
}
