/* views.c -- see views.h. */
#include "passes/views.h"

#include <string.h>

/* ---- aliases -------------------------------------------------------------------------- */

/* Sizes and strides with every symbol replaced by a number: good enough to tell whether
 * dimensions merge, as symbols stand for sizes that do not happen to fit. */
static bool with_numbers(const Val *v, Tensor *t) {
  *t = (Tensor){.ndim = v->ndim, .dtype = v->dtype};
  if (v->type != TY_TENSOR || v->ndim < 0 || v->ndim > MAX_DIMS) return false;
  SymBinding room[32];
  SymBindings b = {room, 0, 32};
  static const int64_t primes[] = {101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179,
                                   181, 191, 193, 197, 199, 211, 223, 227, 229, 233, 239, 241, 251, 257, 263, 269};
  for (int pass = 0; pass < 2; pass++) {
    const Sym **list = pass ? v->stride : v->size;
    for (int d = 0; list && d < v->ndim; d++) {
      for (const Sym *s; (s = sym_first_unbound(list[d], &b)) && b.n < 32; b.n++)
        room[b.n] = (SymBinding){s->name, primes[b.n]};
      int64_t value;
      Status status = sym_eval(list[d], &b, &value);
      if (status) return status_free(status), false;
      (pass ? t->stride : t->size)[d] = value;
    }
  }
  int64_t numel;
  if (!checked_numel(v->ndim, t->size, &numel)) return false;
  if (!v->stride) contiguous_strides(v->ndim, t->size, t->stride);
  return checked_extent(v->ndim, t->size, t->stride);
}

static bool reshape_is_view(const Node *n) {
  Tensor from, to;
  int64_t stride[MAX_DIMS];
  return with_numbers(n->args[0].val, &from) && with_numbers(n->outs[0], &to) &&
         tensor_numel(&from) == tensor_numel(&to) && view_strides(&from, to.ndim, to.size, stride);
}

static bool arg_is_true(const Node *n, const char *name) {
  int i = schema_find(&n->op->schema, name);
  return i >= 0 && n->args[i].kind == ARG_BOOL && n->args[i].b;
}

static bool starts_with(const char *s, const char *prefix) { return !strncmp(s, prefix, strlen(prefix)); }

bool view_is_alias(const Node *n) {
  const Schema *s = &n->op->schema;
  if (s->nreturns == 0 || !s->returns[0].aliased || s->returns[0].mutated || !s->nparams || !s->params[0].aliased) {
    /* dropout that does nothing returns its argument */
    return node_is(n, "aten.dropout.default") && n->args[2].kind == ARG_BOOL && !n->args[2].b;
  }
  if (n->args[0].kind != ARG_VAL || n->nouts == 0) return false;
  const Val *in = n->args[0].val, *out = n->outs[0];
  if (starts_with(n->target, "aten.to.")) return in->dtype == out->dtype && !arg_is_true(n, "copy");
  if (node_is(n, "aten.contiguous.default")) return in->stride == NULL;
  if (starts_with(n->target, "aten.reshape") || starts_with(n->target, "aten.flatten")) return reshape_is_view(n);
  return true;
}

/* ---- inverses --------------------------------------------------------------------------- */

typedef Status InverseFn(const Node *view, int index, Val *parent, Val *part, Arg *args, int *nargs);

/* Same elements in another shape or under another name. */
static Status inverse_reshape(const Node *view, int index, Val *parent, Val *part, Arg *args, int *nargs) {
  (void)view, (void)index;
  args[0] = arg_val(part);
  args[1] = arg_val(parent);
  *nargs = 2;
  return OK;
}

static Status inverse_same(const Node *view, int index, Val *parent, Val *part, Arg *args, int *nargs) {
  (void)index, (void)parent;
  *nargs = view->nargs;
  memcpy(args, view->args, (size_t)view->nargs * sizeof *args);
  args[0] = arg_val(part);
  return OK;
}

static Status inverse_permute(const Node *view, int index, Val *parent, Val *part, Arg *args, int *nargs) {
  (void)index;
  const Arg *dims = &view->args[1];
  int n = parent->ndim;
  Arg *inverse;
  if (dims->kind != ARG_LIST || dims->n != n) return fail(ERR_FILE, "permute without its list of dimensions");
  TRY_NEW(inverse, arena_new_n(view->graph->arena, Arg, n));
  for (int i = 0; i < n; i++) {
    int64_t d = dims->list[i].i < 0 ? dims->list[i].i + n : dims->list[i].i;
    if (d < 0 || d >= n) return fail(ERR_FILE, "permute: dimension %lld of %d", (long long)d, n);
    inverse[d] = arg_int(i);
  }
  args[0] = arg_val(part);
  args[1] = arg_list(inverse, n);
  *nargs = 2;
  return OK;
}

/* slice(self, dim, start, end, step), select(self, dim, index), diagonal(self, offset, dim1,
 * dim2), as_strided(self, size, stride, offset): scatter(self, part, the same arguments). */
static Status inverse_scatter(const Node *view, int index, Val *parent, Val *part, Arg *args, int *nargs) {
  (void)index;
  *nargs = view->nargs + 1;
  args[0] = arg_val(parent);
  args[1] = arg_val(part);
  memcpy(args + 2, view->args + 1, (size_t)(view->nargs - 1) * sizeof *args);
  return OK;
}

static Status dim_argument(const Node *view, int at, int ndim, int64_t *dim) {
  const Arg *a = &view->args[at];
  *dim = a->kind == ARG_INT ? a->i : 0;
  if (*dim < 0) *dim += ndim;
  return *dim < 0 || *dim >= ndim ? fail(ERR_FILE, "%s: dimension %lld of %d", view->target, (long long)*dim, ndim)
                                  : OK;
}

/* Pieces of a split: where the i-th begins follows from the sizes of those before it. */
static Status inverse_split(const Node *view, int index, Val *parent, Val *part, Arg *args, int *nargs) {
  int64_t dim, start = 0, length = 0;
  TRY(dim_argument(view, 2, parent->ndim, &dim));
  for (int i = 0; i <= index; i++) {
    const Sym *size = view->outs[i]->size[dim];
    if (!sym_is_int(size))
      return fail(ERR_FAIL, "%s: a piece of symbolic size is written to; this is not supported", view->target);
    start += length;
    length = size->value;
  }
  args[0] = arg_val(parent);
  args[1] = arg_val(part);
  args[2] = arg_int(dim);
  args[3] = arg_int(start);
  args[4] = arg_int(start + length);
  *nargs = 5;
  return OK;
}

static Status inverse_unbind(const Node *view, int index, Val *parent, Val *part, Arg *args, int *nargs) {
  int64_t dim;
  TRY(dim_argument(view, 1, parent->ndim, &dim));
  args[0] = arg_val(parent);
  args[1] = arg_val(part);
  args[2] = arg_int(dim);
  args[3] = arg_int(index);
  *nargs = 4;
  return OK;
}

/*  view (prefix of the target)      the op that undoes it             its arguments      */
static const struct {
  const char *view, *op;
  InverseFn *fn;
} inverses[] = {
    /* clang-format off */
    {"aten.slice.Tensor",            "aten.slice_scatter.default",      inverse_scatter},
    {"aten.select.int",              "aten.select_scatter.default",     inverse_scatter},
    {"aten.diagonal.default",        "aten.diagonal_scatter.default",   inverse_scatter},
    {"aten.as_strided.default",      "aten.as_strided_scatter.default", inverse_scatter},
    {"aten.narrow.default",          "tess.narrow_scatter.default",     inverse_scatter},
    {"aten.split",                   "aten.slice_scatter.default",      inverse_split},
    {"aten.chunk.default",           "aten.slice_scatter.default",      inverse_split},
    {"aten.unbind.int",              "aten.select_scatter.default",     inverse_unbind},
    {"aten.transpose.int",           "aten.transpose.int",              inverse_same},
    {"aten.t.default",               "aten.t.default",                  inverse_same},
    {"aten.permute.default",         "aten.permute.default",            inverse_permute},
    {"aten.view_as_complex.default", "aten.view_as_real.default",       inverse_same},
    {"aten.view_as_real.default",    "aten.view_as_complex.default",    inverse_same},
    {"aten.numpy_T.default",         "aten.numpy_T.default",            inverse_same},
    {"aten.expand",                  NULL,                              NULL},
    {"aten.unfold",                  NULL,                              NULL},
    {"aten.",                        "aten.view_as.default",            inverse_reshape},
    /* clang-format on */
};

Status view_inverse(const Node *view, int index, Val *parent, Val *part, const char **op, Arg *args, int *nargs) {
  for (size_t i = 0; i < sizeof inverses / sizeof *inverses; i++) {
    if (!starts_with(view->target, inverses[i].view)) continue;
    if (!inverses[i].fn) break;
    *op = inverses[i].op;
    return inverses[i].fn(view, index, parent, part, args, nargs);
  }
  return fail(ERR_FAIL, "a view made by %s is written to: several of its elements are the same memory",
              view->target);
}

void views_relax(Graph *g) {
  const Op *reshape = op_find("aten.reshape.default");
  for (Node *n = g->first; n && reshape; n = n->next) {
    if (strcmp(n->target, "aten.view.default") != 0 && strcmp(n->target, "aten._unsafe_view.default") != 0)
      continue;
    n->op = reshape;
    n->target = reshape->schema.name;
  }
}
