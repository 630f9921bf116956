/* rebatch_meet.c -- where the batch meets what has the program's own rows; see rebatch.h, I1. */
#include <string.h>

#include "runtime/rebatch_inside.h"

/* Dimension d, counted from the last one, of an operand that holds the batch; its size in the program, or 0.
 * ndim: of operands with so many dimensions; 0: of any. */
static int64_t batch_from_right(const Rebatch *r, const Node *n, int d, int ndim, int64_t *outer_there) {
  for (int i = 0; i < n->nargs; i++) {
    const Val *v = tensor_arg(n, i);
    const int64_t *outer = outer_of(r, v);
    if (!outer || v->ndim <= d || (ndim && v->ndim != ndim) || !outer[v->ndim - 1 - d]) continue;
    *outer_there = outer[v->ndim - 1 - d];
    return whole_size(v, v->ndim - 1 - d);
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

/* What the program has for its own rows, brought to those at hand: dimension `dim`, in which the batch stands
 * behind `outer` others. */
static Status fit_batch(const Rebatch *r, const Call *c, int dim, int64_t outer, Tensor **t) {
  const int ndim = (*t)->ndim;
  int64_t size[MAX_DIMS], whole = (*t)->size[dim];
  if (outer < 0 || whole % (outer * r->from)) return OK; /* the call will say so */
  memcpy(size, (*t)->size, sizeof size);
  size[dim] = now(r, whole);
  if (outer == 1) return fit_rows(c, dim, size[dim], t);
  int64_t split[MAX_DIMS + 1];
  Tensor *parts;
  if (ndim == MAX_DIMS) return OK;
  memcpy(split, (*t)->size, (size_t)dim * sizeof *split);
  memcpy(split + dim + 2, (*t)->size + dim + 1, (size_t)(ndim - dim - 1) * sizeof *split);
  split[dim] = outer;
  split[dim + 1] = whole / outer;
  TRY(OP(c, "aten.reshape.default", &parts, val_tensor(*t), val_ints(split, ndim + 1)));
  TRY(fit_rows(c, dim + 1, size[dim] / outer, &parts));
  if (parts->size[dim + 1] != size[dim] / outer) return OK;
  return OP(c, "aten.reshape.default", t, val_tensor(parts), val_ints(size, ndim));
}

/* The same of what may number rows: it goes on to count. */
static Status fit_numbers(const Rebatch *r, const Call *c, int dim, int64_t outer, Tensor **t) {
  int64_t size[MAX_DIMS], whole = (*t)->size[dim];
  if (outer != 1 || counting_dim(*t, whole) != dim) return fit_batch(r, c, dim, outer, t);
  memcpy(size, (*t)->size, sizeof size);
  size[dim] = now(r, whole);
  TRY(OP(c, "aten.arange.default", t, val_int(size[dim])));
  return OP(c, "aten.view.default", t, val_tensor(*t), val_ints(size, (*t)->ndim));
}

/* I1.  skip: dimensions from the right that are not matched with each other (those of a product's matrices). */
static Status cut_operands(const Rebatch *r, const Node *n, Value *bound, const Call *c, int skip) {
  for (int i = 0; i < n->nargs; i++) {
    const Val *v = tensor_arg(n, i);
    const int64_t *outer = outer_of(r, v);
    if (!v || bound[i].kind != VAL_TENSOR) continue;
    for (int d = skip; d < v->ndim; d++) {
      int dim = v->ndim - 1 - d;
      int64_t factor, whole = batch_from_right(r, n, d, 0, &factor);
      Tensor *t = bound[i].tensor;
      if (!whole || (outer && outer[dim]) || t->size[dim] != whole || whole == 1) continue;
      TRY(fit_batch(r, c, dim, factor, &t));
      bound[i] = val_tensor(t);
    }
  }
  return OK;
}

/* gather, scatter and their like: a tensor, an index and what is put there meet in all dimensions but one. */
static Status cut_indexed(const Rebatch *r, const Node *n, Value *bound, const Call *c) {
  const Val *self = tensor_arg(n, 0);
  if (!self || !self->ndim) return OK;
  const int along = dim_named(&bound[1], self->ndim);
  for (int i = 0; i < n->nargs; i++) {
    const Val *v = tensor_arg(n, i);
    const int64_t *outer = outer_of(r, v);
    if (!v || bound[i].kind != VAL_TENSOR || v->ndim != self->ndim) continue;
    for (int dim = 0; dim < v->ndim; dim++) {
      int64_t factor, whole = batch_from_right(r, n, v->ndim - 1 - dim, self->ndim, &factor);
      Tensor *t = bound[i].tensor;
      if (!whole || dim == along || (outer && outer[dim]) || t->size[dim] != whole) continue;
      TRY(fit_batch(r, c, dim, factor, &t));
      if (t->size[dim] != now(r, whole)) /* an index may have fewer rows: nobody else would say so */
        return fail(ERR_FAIL, "'%s' has rows of its own, which differ", v->name);
      bound[i] = val_tensor(t);
    }
  }
  return OK;
}

/* select_scatter(x, part, dim, index), where x has the program's own rows: the part lacks a dimension. */
static Status cut_around(const Rebatch *r, const Node *n, Value *bound, const Call *c) {
  const Val *x = tensor_arg(n, 0), *part = tensor_arg(n, 1);
  const int64_t *outer = outer_of(r, part);
  if (!x || !outer || outer_of(r, x) || bound[0].kind != VAL_TENSOR) return OK;
  const int along = dim_named(&bound[2], x->ndim);
  Tensor *t = bound[0].tensor;
  for (int d = 0; d < part->ndim; d++)
    if (outer[d] && t->size[d + (d >= along)] == whole_size(part, d))
      TRY(fit_batch(r, c, d + (d >= along), outer[d], &t));
  bound[0] = val_tensor(t);
  return OK;
}

/* The same where operands are matched from the first dimension on: labels with what they are of. */
static Status cut_labels(const Rebatch *r, const Node *n, Value *bound, const Call *c, int i) {
  const Val *first = tensor_arg(n, 0), *v = tensor_arg(n, i);
  const int64_t *outer = outer_of(r, first);
  Tensor *t = v && bound[i].kind == VAL_TENSOR ? bound[i].tensor : NULL;
  if (!outer || !first->ndim || !outer[0] || !t || !t->ndim || outer_of(r, v)) return OK;
  if (t->size[0] != whole_size(first, 0)) return OK;
  TRY(fit_numbers(r, c, 0, outer[0], &t));
  bound[i] = val_tensor(t);
  return OK;
}

/* States that a recurrent layer (batch_first, or NULL: a cell) begins with: their batch is before their width. */
static Status cut_states(const Rebatch *r, const Node *n, Value *bound, const Call *c, const Value *batch_first) {
  const Val *in = tensor_arg(n, 0);
  const int64_t *outer = outer_of(r, in);
  const Arg *a = &n->args[1];
  const int dim = batch_first && !(batch_first->kind == VAL_BOOL && batch_first->b);
  Tensor **list;
  if (!outer || !outer[dim]) return OK;
  const int count = a->kind == ARG_LIST ? a->n : 1;
  if (bound[1].kind != (a->kind == ARG_LIST ? VAL_TENSORS : VAL_TENSOR)) return OK;
  TRY_NEW(list, arena_new_n(r->arena, Tensor *, count + 1));
  for (int i = 0; i < count; i++) {
    const Arg *state = a->kind == ARG_LIST ? &a->list[i] : a;
    list[i] = a->kind == ARG_LIST ? bound[1].tensors[i] : bound[1].tensor;
    if (state->kind != ARG_VAL || outer_of(r, state->val) || !list[i] || list[i]->ndim < 2) continue;
    if (list[i]->size[list[i]->ndim - 2] != whole_size(in, dim)) continue;
    TRY(fit_batch(r, c, list[i]->ndim - 2, outer[dim], &list[i]));
  }
  bound[1] = a->kind == ARG_LIST ? val_tensors(list, count) : val_tensor(list[0]);
  return OK;
}

/* embedding_bag(table, indices, offsets): the bags of indices [rows, n], one behind the other. */
static Status count_bags(const Rebatch *r, const Node *n, Value *bound, const Call *c) {
  const Val *indices = tensor_arg(n, 1), *v = tensor_arg(n, 2);
  const int64_t *outer = outer_of(r, indices);
  if (!outer || indices->ndim != 1 || !outer[0] || !v || outer_of(r, v)) return OK;
  const Tensor *t = bound[2].tensor;
  const int64_t whole = whole_size(indices, 0), last = t->size[0] ? t->size[0] - 1 : 0;
  const int64_t bags = last && last % r->from == 0 ? last : t->size[0]; /* the last may be the end */
  const int64_t step = bags ? whole / bags : 0;
  bool regular = t->dtype == DT_I64 && tensor_data(t) && bags && bags % r->from == 0 && step * bags == whole;
  for (int64_t i = 0; regular && i < t->size[0]; i++)
    regular = ((const int64_t *)tensor_data(t))[i * t->stride[0]] == i * step;
  if (!regular) return fail(ERR_FAIL, "the offsets of bags do not depend on the batch");
  Tensor *counted;
  TRY(OP(c, "aten.arange.start_step", &counted, val_int(0), val_int((now(r, bags) + t->size[0] - bags) * step),
         val_int(step)));
  bound[2] = val_tensor(counted);
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
        TRY(fit_batch(r, c, d, outer[d], &fitted[j]));
      }
  }
  bound[0] = val_tensors(fitted, parts->n);
  return OK;
}

/* Batches that are joined one behind the other: the batch stands behind their number, if they are alike. */
static Status joined_rows(Rebatch *r, const Node *n, int dim) {
  const Arg *parts = &n->args[0];
  const Val *first = parts->kind == ARG_LIST && parts->n && parts->list[0].kind == ARG_VAL ? parts->list[0].val
                                                                                           : NULL;
  const int64_t *outer = outer_of(r, first);
  int64_t *there;
  if (!outer || dim >= first->ndim || !outer[dim] || first->ndim != n->outs[0]->ndim || parts->n < 2) return OK;
  TRY(outer_to_be(r, n->outs[0], &there));
  there[dim] = outer[dim] > 0 ? outer[dim] * parts->n : outer[dim];
  for (int i = 1; i < parts->n; i++) {
    const Val *v = parts->list[i].kind == ARG_VAL ? parts->list[i].val : NULL;
    const int64_t *own = outer_of(r, v);
    bool alike = own && own[dim] == outer[dim] && whole_size(v, dim) == whole_size(first, dim);
    if (!alike) there[dim] = UNKNOWN;
  }
  return OK;
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

/* Indices that pick elements together, x[arange(rows), columns], and what is put there, from the first dimension
 * on; rows of an x that has the program's own go with the numbers that count them. */
static Status cut_together(const Rebatch *r, const Node *n, Value *bound, const Call *c, bool puts) {
  const Arg *picks = &n->args[1];
  const Val *like = NULL, *x = tensor_arg(n, 0);
  Tensor **fitted;
  if (picks->kind != ARG_LIST || bound[1].kind != VAL_TENSORS || picks->n != bound[1].n) return OK;
  for (int i = 0; i < picks->n; i++)
    if (picks->list[i].kind == ARG_VAL && outer_of(r, picks->list[i].val)) like = picks->list[i].val;
  const int64_t *outer = outer_of(r, like);
  if (!like || like->dtype == DT_BOOL || !like->ndim || !outer[0] || !x) return OK;
  TRY_NEW(fitted, arena_new_n(r->arena, Tensor *, picks->n + 1));
  for (int i = 0; i < picks->n; i++) {
    Tensor *t = fitted[i] = bound[1].tensors[i];
    if (!t || picks->list[i].kind != ARG_VAL || outer_of(r, picks->list[i].val) || t->ndim != like->ndim) continue;
    if (t->size[0] != whole_size(like, 0)) continue;
    TRY(fit_numbers(r, c, 0, outer[0], &fitted[i]));
    if (!puts || i >= x->ndim || outer_of(r, x) || whole_size(x, i) != t->size[0] || counting_dim(t, t->size[0]))
      continue;
    Tensor *own = bound[0].tensor;
    TRY(fit_batch(r, c, i, outer[0], &own));
    bound[0] = val_tensor(own);
  }
  bound[1] = val_tensors(fitted, picks->n);
  const Val *v = puts ? tensor_arg(n, 2) : NULL;
  Tensor *t = v && bound[2].kind == VAL_TENSOR ? bound[2].tensor : NULL;
  if (!t || outer_of(r, v) || t->ndim < like->ndim || t->size[0] != whole_size(like, 0)) return OK;
  TRY(fit_numbers(r, c, 0, outer[0], &t));
  bound[2] = val_tensor(t);
  return OK;
}

static Status joined(Rebatch *r, const Node *n, Value *bound, const Call *c) {
  TRY(cut_parts(r, n, bound, c));
  return joined_rows(r, n, dim_named(&bound[1], n->outs[0]->ndim));
}

static Status picked(Rebatch *r, const Node *n, Value *bound, const Call *c, bool puts) {
  TRY(count_rows(r, n, bound, c));
  return cut_together(r, n, bound, c, puts);
}

enum { MATRIX_DIMS = 2, BATCH_FIRST = 8 /* of a recurrent layer */ };

Status rebatch_meet(Rebatch *r, const Node *n, Value *bound, const Call *c, Meeting how) {
  switch (how) {
    case MEETS_ALL: return cut_operands(r, n, bound, c, 0);
    case MEETS_MATRICES: return cut_operands(r, n, bound, c, MATRIX_DIMS);
    case MEETS_BUT_ONE: return cut_indexed(r, n, bound, c);
    case MEETS_AROUND: return cut_around(r, n, bound, c);
    case MEETS_LABELS: return cut_labels(r, n, bound, c, 1);
    case MEETS_LAST_LABELS: return cut_labels(r, n, bound, c, 2);
    case MEETS_STATES: return cut_states(r, n, bound, c, &bound[BATCH_FIRST]);
    case MEETS_CELL_STATES: return cut_states(r, n, bound, c, NULL);
    case JOINS: return joined(r, n, bound, c);
    case STACKS: return cut_parts(r, n, bound, c);
    case PICKS: return picked(r, n, bound, c, false);
    case PUTS: return picked(r, n, bound, c, true);
    case COUNTS_BAGS: return count_bags(r, n, bound, c);
    default: return OK;
  }
}
