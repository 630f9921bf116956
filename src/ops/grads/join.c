/* join.c -- gradients of what cuts a tensor into a list of tensors, and of what joins a list.
 *
 * The gradient of a cut is the join of the cotangents, with zeros for those that have not come; of a join, the
 * cuts of the cotangent. */
#include "ops/geometry.h"
#include "ops/vjp.h"

#include <string.h>

static int wrapped(int64_t dim, int ndim) { return (int)(dim < 0 ? dim + (ndim ? ndim : 1) : dim); }

/* ---- cuts ---------------------------------------------------------------------------------------------- */

/* The dimension that is cut: an argument, or the one that hsplit, vsplit and dsplit have from the name. */
static int cut_dim(const Vjp *v) {
  const Schema *s = &v->forward->op->schema;
  const Tensor *x = v->in[0];
  int last = s->nparams - 1;
  if (!strcmp(s->params[last].name, "dim")) return wrapped(in_int(v->forward, last), x->ndim);
  for (int d = 0; d < x->ndim; d++)
    for (int i = 0; i < v->nout; i++)
      if (v->out[i]->size[d] != x->size[d]) return d;
  return 0;
}

/* Where result i begins.  Cuts at indices follow Python's rules for slices: they may go back. */
static int64_t piece_begin(const Vjp *v, int dim, int i) {
  const Schema *s = &v->forward->op->schema;
  int64_t begin = 0, end;
  if (!strcmp(s->params[1].name, "indices")) {
    Value from = i ? val_int(in_ints(v->forward, 1).v[i - 1]) : val_none(), none = val_none();
    slice_bounds(&from, &none, v->in[0]->size[dim], &begin, &end);
    return begin;
  }
  for (int k = 0; k < i; k++) begin += v->out[k]->size[dim];
  return begin;
}

static Tensor *piece_among_zeros(Vjp *v, int dim, int i) {
  const Tensor *x = v->in[0];
  int64_t begin = piece_begin(v, dim, i);
  return F_OP(&v->f, "aten.slice_backward.default", F_T(v->cotangent[i]), val_ints(x->size, x->ndim), val_int(dim),
              val_int(begin), val_int(begin + v->out[i]->size[dim]), val_int(1));
}

/* How many cotangents have come; one of them. */
static int arrived(const Vjp *v, int *which) {
  int n = 0;
  for (int i = 0; i < v->nout; i++)
    if (v->cotangent[i]) n++, *which = i;
  return n;
}

/* All cotangents one behind the other, or NULL. */
static Tensor *join(Vjp *v, const char *op, int dim) {
  Tensor **all = arena_new_n(v->f.c->arena, Tensor *, v->nout + 1);
  if (!all) {
    if (!v->f.status) v->f.status = fail_oom();
    return NULL;
  }
  for (int i = 0; i < v->nout; i++) all[i] = vjp_cotangent_or_zeros(v, i);
  return F_OP(&v->f, op, val_tensors(all, v->nout), val_int(dim));
}

static void vjp_split(Vjp *v) {
  int dim = cut_dim(v), which = 0;
  int64_t together = 0;
  for (int i = 0; i < v->nout; i++) together += v->out[i]->size[dim];
  if (arrived(v, &which) == 1) {
    vjp_give(v, 0, piece_among_zeros(v, dim, which));
  } else if (together == v->in[0]->size[dim]) {
    vjp_give(v, 0, join(v, "aten.cat.default", dim));
  } else { /* pieces that overlap, or leave something out */
    Tensor *sum = NULL;
    for (int i = 0; i < v->nout; i++) {
      if (!v->cotangent[i]) continue;
      Tensor *one = piece_among_zeros(v, dim, i);
      sum = sum ? f_add(&v->f, sum, one) : one;
    }
    vjp_give(v, 0, sum);
  }
}

static void vjp_unbind(Vjp *v) {
  const Tensor *x = v->in[0];
  int dim = cut_dim(v), which = 0;
  if (arrived(v, &which) > 1) vjp_give(v, 0, join(v, "aten.stack.default", dim));
  else
    vjp_give(v, 0,
             F_OP(&v->f, "aten.select_backward.default", F_T(v->cotangent[which]), val_ints(x->size, x->ndim),
                  val_int(dim), val_int(which)));
}

/* ---- joins ----------------------------------------------------------------------------------------------- */

static Tensor *cut(Vjp *v, Tensor *g, int dim, int64_t begin, int64_t n) {
  return F_OP(&v->f, "aten.slice.Tensor", F_T(g), val_int(dim), val_int(begin), val_int(begin + n));
}

static void vjp_cat(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  int dim = wrapped(in_int(v->forward, 1), g->ndim);
  int64_t begin = 0;
  for (int i = 0; i < v->nin; i++) {
    const Tensor *x = v->in[i];
    bool nothing = x->ndim == 1 && x->size[0] == 0 && g->ndim != 1; /* joins with anything */
    if (nothing) continue;
    if (vjp_wants_item(v, 0, i)) vjp_give_item(v, 0, i, cut(v, g, dim, begin, x->size[dim]));
    begin += x->size[dim];
  }
}

static void vjp_stack(Vjp *v) {
  for (int i = 0; i < v->nin; i++)
    if (vjp_wants_item(v, 0, i))
      vjp_give_item(v, 0, i, F_OP(&v->f, "aten.select.int", F_T(vjp_cotangent(v)), vjp_value(v, 1), val_int(i)));
}

static void vjp_block_diag(Vjp *v) {
  int64_t row = 0, column = 0;
  for (int i = 0; i < v->nin; i++) {
    const Tensor *x = v->in[i];
    int64_t rows = x->ndim == 2 ? x->size[0] : 1, columns = x->ndim ? x->size[x->ndim - 1] : 1;
    if (vjp_wants_item(v, 0, i)) {
      Tensor *block = cut(v, cut(v, vjp_cotangent(v), 0, row, rows), 1, column, columns);
      vjp_give_item(v, 0, i, f_view(&v->f, block, x->size, x->ndim));
    }
    row += rows, column += columns;
  }
}

/* Result i has tensor i along one dimension, and the same along all others. */
static void vjp_meshgrid(Vjp *v) {
  const Schema *s = &v->forward->op->schema;
  bool swap = s->nparams > 1 && !strcmp(in_str(v->forward, 1), "xy") && v->nin >= 2;
  for (int i = 0; i < v->nin; i++) {
    const Tensor *x = v->in[i];
    Tensor *g = v->cotangent[i];
    int64_t others[MAX_DIMS];
    int n = 0, own = swap && i < 2 ? 1 - i : i;
    if (!g || !vjp_wants_item(v, 0, i)) continue;
    for (int d = 0; d < g->ndim; d++)
      if (d != own) others[n++] = d;
    if (n) g = f_sum(&v->f, g, others, n, false);
    vjp_give_item(v, 0, i, f_view(&v->f, g, x->size, x->ndim));
  }
}

const GradDef grads_join[] = {
    GRAD("split.Tensor split.sizes split_with_sizes.default chunk.default unsafe_split.Tensor "
         "unsafe_split_with_sizes.default unsafe_chunk.default tensor_split.sections tensor_split.indices "
         "hsplit.int hsplit.array vsplit.int vsplit.array dsplit.int dsplit.array",
         vjp_split, NULL),
    GRAD("split_copy.Tensor split_with_sizes_copy.default", vjp_split, NULL),
    GRAD("unbind.int unbind_copy.int", vjp_unbind, NULL),
    GRAD("cat.default concat.default concatenate.default", vjp_cat, NULL),
    GRAD("stack.default", vjp_stack, NULL),
    GRAD("block_diag.default", vjp_block_diag, NULL),
    GRAD("meshgrid.default meshgrid.indexing", vjp_meshgrid, NULL),
    {0},
};
