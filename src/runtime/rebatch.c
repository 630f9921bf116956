/* rebatch.c -- see rebatch.h. */
#include "runtime/rebatch.h"

#include <string.h>

/* ---- which batch ---------------------------------------------------------------------------------------- */

static bool has_rows(const Val *v) { return v->type == TY_TENSOR && v->ndim > 0 && sym_is_int(v->size[0]); }

/* Inputs that have the batch in front, like the first that can have it. */
static bool has_batch(const Val *v, int64_t from) { return has_rows(v) && v->size[0]->value == from; }

static Status note_input(Rebatch *r, const Val *v) {
  TRY_NEW(r->outer[v->id], arena_new_n(r->arena, int64_t, v->ndim));
  r->outer[v->id][0] = 1;
  return OK;
}

static Status other_rows(const Rebatch *r, const Val *v, const Tensor *t) {
  char text[128];
  return fail(ERR_FILE, "input '%s' is %s: the batch has %lld rows, as the other inputs tell", v->name,
              tensor_describe(t, text, sizeof text), (long long)r->to);
}

static Status as_program_has_it(const Val *v, const Tensor *given, Scope *scope, Value *out) {
  int64_t size[MAX_DIMS];
  Tensor *t;
  memcpy(size, given->size, sizeof size);
  size[0] = v->size[0]->value;
  TRY(tensor_meta(scope, given->dtype, given->ndim, size, &t));
  *out = val_tensor(t);
  return OK;
}

static Status note_inputs(Rebatch *r, const Exported *e, const Value *user, Scope *scope, Value *as_exported) {
  const Graph *g = e->graph;
  TRY_NEW(r->outer, arena_new_n(r->arena, int64_t *, g->nvals + 1));
  r->nvals = g->nvals;
  for (int i = 0, u = 0; i < g->ninputs; i++) {
    const Val *v = g->inputs[i];
    if (e->inputs[i].kind != IN_USER) continue;
    const Value *given = &user[u];
    as_exported[u++] = *given;
    if (!has_batch(v, r->from) || given->kind != VAL_TENSOR || given->tensor->ndim != v->ndim) continue;
    if (given->tensor->size[0] != r->to) return other_rows(r, v, given->tensor);
    TRY(note_input(r, v));
    TRY(as_program_has_it(v, given->tensor, scope, &as_exported[u - 1]));
  }
  return OK;
}

Status rebatch_find(const Exported *e, const Value *user, int n, Scope *scope, Arena *arena, Rebatch *out,
                    const Value **as_exported) {
  const Graph *g = e->graph;
  Value *own;
  *out = (Rebatch){.arena = arena};
  *as_exported = user;
  if (n != exported_user_inputs(e)) return OK; /* told by whoever binds them */
  for (int i = 0, u = 0; i < g->ninputs && !out->from; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    const Value *given = &user[u++];
    if (given->kind != VAL_TENSOR || !has_rows(g->inputs[i]) || !given->tensor->ndim) continue;
    if (given->tensor->size[0] == g->inputs[i]->size[0]->value) return OK;
    out->from = g->inputs[i]->size[0]->value;
    out->to = given->tensor->size[0];
  }
  if (!out->from) return OK;
  TRY_NEW(own, arena_new_n(arena, Value, n + 1));
  *as_exported = own;
  return note_inputs(out, e, user, scope, own);
}

/* ---- what is known of values ------------------------------------------------------------------------------ */

static const int64_t *outer_of(const Rebatch *r, const Val *v) {
  return v && v->id < r->nvals ? r->outer[v->id] : NULL;
}

static const Val *tensor_arg(const Node *n, int i) {
  const Arg *a = i < n->nargs ? &n->args[i] : NULL;
  return a && a->kind == ARG_VAL && a->val->type == TY_TENSOR ? a->val : NULL;
}

static int64_t whole_size(const Val *v, int d) { return sym_is_int(v->size[d]) ? v->size[d]->value : -1; }

/* ---- sizes that are spelled out ---------------------------------------------------------------------------- */

/* The dimension of `out` that holds the batch of dimension `dim` of `in`, and its outer factor there: row-major
 * order stays, so the batch is where as many elements stand before it. */
static bool find_split(const Val *in, int dim, int64_t outer, const Val *out, int *at, int64_t *outer_there) {
  int64_t before = outer, seen = 1;
  for (int d = 0; d < dim; d++) before *= whole_size(in, d);
  for (int d = 0; d < out->ndim; d++) {
    int64_t size = whole_size(out, d);
    if (size <= 0) return false;
    if (seen * size > before) {
      *at = d;
      *outer_there = before / seen;
      return before % seen == 0;
    }
    seen *= size;
  }
  return false;
}

/* reshape and its like: what is put into the result is put down for rebatch_results(). */
static Status reshape_sizes(Rebatch *r, const Node *n, const Val *in, Value *sizes) {
  const int64_t *outer = outer_of(r, in);
  const Val *out = n->outs[0];
  int64_t *list, *there;
  if (!outer || sizes->kind != VAL_INTS || sizes->n != out->ndim) return OK;
  TRY_NEW(list, arena_new_n(r->arena, int64_t, sizes->n + 1));
  TRY_NEW(there, arena_new_n(r->arena, int64_t, out->ndim + 1));
  for (int d = 0; d < sizes->n; d++) list[d] = sizes->ints[d];
  for (int d = 0; d < in->ndim; d++) {
    int at;
    int64_t factor;
    if (!outer[d] || !find_split(in, d, outer[d], out, &at, &factor)) continue;
    if (whole_size(out, at) % (factor * r->from)) continue;
    there[at] = factor;
    if (list[at] >= 0) list[at] = list[at] / r->from * r->to;
  }
  *sizes = val_ints(list, sizes->n);
  if (out->id < r->nvals) r->outer[out->id] = there;
  return OK;
}

/* expand(x, sizes): dimensions of x that hold the batch are told as they are now; new ones stay. */
static Status expand_sizes(const Rebatch *r, const Val *in, Value *sizes) {
  const int64_t *outer = outer_of(r, in);
  int64_t *list;
  if (!outer || sizes->kind != VAL_INTS || sizes->n < in->ndim) return OK;
  TRY_NEW(list, arena_new_n(r->arena, int64_t, sizes->n + 1));
  for (int d = 0; d < sizes->n; d++) {
    int from = d - (sizes->n - in->ndim);
    list[d] = sizes->ints[d];
    if (from >= 0 && outer[from] && list[d] > 0) list[d] = list[d] / r->from * r->to;
  }
  *sizes = val_ints(list, sizes->n);
  return OK;
}

/* ---- where the batch meets what has the program's own rows ------------------------------------------------- */

/* Dimension d, counted from the last one, of an operand that holds the batch; its size in the program, or 0. */
static int64_t batch_from_right(const Rebatch *r, const Node *n, int d) {
  for (int i = 0; i < n->nargs; i++) {
    const Val *v = tensor_arg(n, i);
    const int64_t *outer = outer_of(r, v);
    if (outer && v->ndim > d && outer[v->ndim - 1 - d]) return whole_size(v, v->ndim - 1 - d);
  }
  return 0;
}

/* Do all rows of a tensor, which may be a constant, hold the same? */
static bool rows_are_alike(const Tensor *t, int dim) {
  const size_t width = dtype_size(t->dtype);
  int64_t at[MAX_DIMS] = {0}, offset = 0;
  int d = 0;
  if (!t->stride[dim]) return true;
  if (t->spec || !tensor_data(t) || !tensor_numel(t)) return false;
  while (d >= 0) {
    const char *first = (const char *)tensor_data(t) + offset * (int64_t)width;
    for (int64_t row = 1; row < t->size[dim]; row++)
      if (memcmp(first, first + row * t->stride[dim] * (int64_t)width, width) != 0) return false;
    for (d = t->ndim - 1; d >= 0; d--) { /* the next element of a row */
      if (d == dim) continue;
      offset += t->stride[d];
      if (++at[d] < t->size[d]) break;
      offset -= at[d] * t->stride[d];
      at[d] = 0;
    }
  }
  return true;
}

/* So many rows of a tensor that has others: its first ones, or more of them if they are all the same one. */
static Status fit_rows(const Call *c, int dim, int64_t rows, Tensor **t) {
  int64_t size[MAX_DIMS], kept = (*t)->size[dim] < rows ? 1 : rows;
  if (kept != rows && !rows_are_alike(*t, dim)) return OK; /* the call will say so */
  TRY(OP(c, "aten.slice.Tensor", t, val_tensor(*t), val_int(dim), val_int(0), val_int(kept)));
  if (kept == rows) return OK;
  for (int d = 0; d < (*t)->ndim; d++) size[d] = d == dim ? rows : (*t)->size[d];
  return OP(c, "aten.expand.default", t, val_tensor(*t), val_ints(size, (*t)->ndim));
}

/* I1.  skip: dimensions from the right that are not matched with each other (those of a product's matrices). */
static Status cut_operands(const Rebatch *r, const Node *n, Value *bound, const Call *c, int skip) {
  for (int i = 0; i < n->nargs; i++) {
    const Val *v = tensor_arg(n, i);
    const int64_t *outer = outer_of(r, v);
    if (!v || bound[i].kind != VAL_TENSOR) continue;
    for (int d = skip; d < v->ndim; d++) {
      int dim = v->ndim - 1 - d;
      int64_t whole = batch_from_right(r, n, d);
      Tensor *t = bound[i].tensor;
      if (!whole || (outer && outer[dim]) || t->size[dim] != whole || whole == 1) continue;
      TRY(fit_rows(c, dim, whole / r->from * r->to, &t));
      bound[i] = val_tensor(t);
    }
  }
  return OK;
}

/* The same where operands are matched from the first dimension on: labels with what they are of. */
static Status cut_rows(const Rebatch *r, const Node *n, Value *bound, const Call *c) {
  const Val *first = tensor_arg(n, 0);
  const int64_t *outer = outer_of(r, first);
  for (int i = 1; i < n->nargs && outer && first->ndim && outer[0]; i++) {
    const Val *v = tensor_arg(n, i);
    Tensor *t = v && bound[i].kind == VAL_TENSOR ? bound[i].tensor : NULL;
    if (!t || !t->ndim || outer_of(r, v) || t->size[0] != whole_size(first, 0)) continue;
    TRY(fit_rows(c, 0, t->size[0] / r->from * r->to, &t));
    bound[i] = val_tensor(t);
  }
  return OK;
}

/* The same among tensors that are joined: in the dimensions that they have in common. */
static Status cut_parts(const Rebatch *r, const Node *n, Value *bound, const Call *c) {
  const Arg *parts = &n->args[0];
  Tensor **fitted;
  if (parts->kind != ARG_LIST || bound[0].kind != VAL_TENSORS || parts->n != bound[0].n) return OK;
  TRY_NEW(fitted, arena_new_n(r->arena, Tensor *, parts->n + 1));
  for (int i = 0; i < parts->n; i++) fitted[i] = bound[0].tensors[i];
  for (int i = 0; i < parts->n; i++) {
    const Val *like = parts->list[i].kind == ARG_VAL ? parts->list[i].val : NULL;
    const int64_t *outer = outer_of(r, like);
    for (int j = 0; j < parts->n && outer; j++)
      for (int d = 0; d < like->ndim && fitted[j] && fitted[j]->ndim == like->ndim; d++) {
        const Val *v = parts->list[j].kind == ARG_VAL ? parts->list[j].val : NULL;
        const int64_t *own = outer_of(r, v);
        if (!outer[d] || !v || (own && own[d]) || fitted[j]->size[d] != whole_size(like, d)) continue;
        TRY(fit_rows(c, d, whole_size(like, d) / r->from * r->to, &fitted[j]));
      }
  }
  bound[0] = val_tensors(fitted, parts->n);
  return OK;
}

/* The dimension along which t counts 0, 1, ... rows - 1, the others being of size 1; -1: it does not. */
static int counting_dim(const Tensor *t, int64_t rows) {
  int dim = -1;
  for (int d = 0; d < t->ndim; d++)
    if (t->size[d] != 1) dim = dim < 0 && t->size[d] == rows ? d : t->ndim;
  if (dim < 0 || dim >= t->ndim || t->dtype != DT_I64 || !tensor_data(t)) return -1;
  for (int64_t i = 0; i < rows; i++)
    if (((const int64_t *)tensor_data(t))[i * t->stride[dim]] != i) return -1;
  return dim;
}

/* Numbers of rows, arange(rows), that pick rows of what has the batch: x[arange(rows)[:, None], columns]. */
static Status count_rows(const Rebatch *r, const Node *n, Value *bound, const Call *c) {
  const Val *x = tensor_arg(n, 0);
  const int64_t *outer = outer_of(r, x);
  const Arg *picks = &n->args[1];
  Tensor **fitted;
  if (!outer || picks->kind != ARG_LIST || bound[1].kind != VAL_TENSORS || picks->n != bound[1].n) return OK;
  TRY_NEW(fitted, arena_new_n(r->arena, Tensor *, picks->n + 1));
  for (int i = 0; i < picks->n; i++) {
    Tensor *t = fitted[i] = bound[1].tensors[i];
    if (i >= x->ndim || !outer[i] || !t || picks->list[i].kind != ARG_VAL || outer_of(r, picks->list[i].val))
      continue;
    const int dim = counting_dim(t, whole_size(x, i));
    int64_t size[MAX_DIMS];
    if (dim < 0) continue;
    memcpy(size, t->size, sizeof size);
    size[dim] = whole_size(x, i) / r->from * r->to;
    TRY(OP(c, "aten.arange.default", &t, val_int(size[dim])));
    TRY(OP(c, "aten.view.default", &fitted[i], val_tensor(t), val_ints(size, fitted[i]->ndim)));
  }
  bound[1] = val_tensors(fitted, picks->n);
  return OK;
}

/* How the arguments of an op tell sizes, or meet each other. */
typedef enum {
  MEETS_NOTHING,
  SPELLS_RESHAPE,
  SPELLS_EXPAND,
  MEETS_ALL,
  MEETS_MATRICES,
  MEETS_ROWS,
  JOINS,
  COUNTS_ROWS,
} Meeting;

static Meeting meeting_of(const Node *n) {
  static const struct {
    const char *op;
    Meeting how;
  } rows[] = {
      {"aten.view.default", SPELLS_RESHAPE},
      {"aten.reshape.default", SPELLS_RESHAPE},
      {"aten._unsafe_view.default", SPELLS_RESHAPE},
      {"aten.view_copy.default", SPELLS_RESHAPE},
      {"aten.expand.default", SPELLS_EXPAND},
      {"aten.expand_copy.default", SPELLS_EXPAND},
      {"aten.copy.default", MEETS_ALL},
      {"aten.slice_scatter.default", MEETS_ALL},
      {"aten.matmul.default", MEETS_MATRICES},
      {"aten.bmm.default", MEETS_MATRICES},
      {"aten.baddbmm.default", MEETS_MATRICES},
      {"aten.scaled_dot_product_attention.default", MEETS_MATRICES},
      {"aten.cross_entropy_loss.default", MEETS_ROWS},
      {"aten.nll_loss_nd.default", MEETS_ROWS},
      {"aten.nll_loss_forward.default", MEETS_ROWS},
      {"aten.nll_loss.default", MEETS_ROWS},
      {"aten.cat.default", JOINS},
      {"aten.index.Tensor", COUNTS_ROWS},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (node_is(n, rows[i].op)) return rows[i].how;
  return n->op && n->op->def->flags & OP_POINTWISE ? MEETS_ALL : MEETS_NOTHING;
}

enum { MATRIX_DIMS = 2, SIZES = 1 /* the argument that spells them */ };

Status rebatch_arguments(Rebatch *r, const Node *n, Value *bound, Call *c) {
  const Val *in = tensor_arg(n, 0);
  switch (meeting_of(n)) {
    case SPELLS_RESHAPE: return in && n->nouts == 1 ? reshape_sizes(r, n, in, &bound[SIZES]) : OK;
    case SPELLS_EXPAND: return in ? expand_sizes(r, in, &bound[SIZES]) : OK;
    case MEETS_ALL: return cut_operands(r, n, bound, c, 0);
    case MEETS_MATRICES: return cut_operands(r, n, bound, c, MATRIX_DIMS);
    case MEETS_ROWS: return cut_rows(r, n, bound, c);
    case JOINS: return cut_parts(r, n, bound, c);
    case COUNTS_ROWS: return count_rows(r, n, bound, c);
    case MEETS_NOTHING: break;
  }
  return OK;
}

/* ---- results ------------------------------------------------------------------------------------------------ */

typedef struct {
  const Rebatch *r;
  int64_t size, outer; /* asked for; found */
} Inherit;

static void look_at_argument(void *arg, Val **ref) {
  Inherit *h = arg;
  const int64_t *outer = outer_of(h->r, *ref);
  for (int d = 0; outer && d < (*ref)->ndim; d++)
    if (outer[d] && whole_size(*ref, d) == h->size) h->outer = outer[d];
}

/* The outer factor of a dimension that is in proportion: that of an argument's dimension of the same size. */
static int64_t inherited(const Rebatch *r, const Node *n, int64_t size) {
  Inherit h = {r, size, 1};
  node_each_val((Node *)(uintptr_t)n, look_at_argument, &h);
  return h.outer;
}

static Status not_in_proportion(const Rebatch *r, const Val *v, const Tensor *t) {
  char text[128];
  return status_hint(
      fail(ERR_FILE,
           "the program is for %lld rows and cannot be run with %lld: '%s' would be %s, which is neither "
           "what it was exported with nor in proportion",
           (long long)r->from, (long long)r->to, v->name, tensor_describe(t, text, sizeof text)),
      "export it with a dynamic batch (torch.export.Dim)");
}

static Status note_result(Rebatch *r, const Node *n, const Val *v, const Tensor *t) {
  if (v->id >= r->nvals || v->type != TY_TENSOR || v->ndim != t->ndim) return OK;
  int64_t *outer = r->outer[v->id];
  for (int d = 0; d < t->ndim; d++) {
    int64_t size = whole_size(v, d);
    if (size == t->size[d] || size < 0) continue;
    if (size % r->from || size / r->from * r->to != t->size[d]) return not_in_proportion(r, v, t);
    if (!outer) TRY_NEW(outer, arena_new_n(r->arena, int64_t, t->ndim + 1));
    if (!outer[d]) outer[d] = inherited(r, n, size);
  }
  r->outer[v->id] = outer;
  return OK;
}

Status rebatch_results(Rebatch *r, const Node *n, const Value *outs, int nouts) {
  for (int i = 0; i < nouts && i < n->nouts; i++)
    if (outs[i].kind == VAL_TENSOR && outs[i].tensor) TRY(note_result(r, n, n->outs[i], outs[i].tensor));
  return OK;
}

/* Ranks that fail and sizes that depend on data have nothing to do with it. */
Status rebatch_explain(const Rebatch *r, Status s) {
  if (status_code(s) != ERR_FAIL && status_code(s) != ERR_USAGE) return s;
  Status other = fail(ERR_FILE, "the program is for %lld rows and cannot be run with %lld: %s", (long long)r->from,
                      (long long)r->to, status_message(s));
  status_free(s);
  return status_hint(other, "export it with a dynamic batch (torch.export.Dim)");
}
