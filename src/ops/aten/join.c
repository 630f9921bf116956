/* join.c -- several tensors into one, and one tensor several times.
 *
 * cat is the only one that copies by itself; the others are views around it or around
 * one clone of an expanded view.
 */
#include <string.h>

#include "kernels/copy.h"
#include "ops/promote.h"
#include "ops/rule_move.h"

/* ---- cat ---------------------------------------------------------------------------- */

/* A 1-d tensor without elements joins anything: old code starts its lists with one. */
static bool joins_anything(const Tensor *t) { return t->ndim == 1 && t->size[0] == 0; }

static Status cat_sizes_differ(const Call *c, const Tensor *a, const Tensor *b, int dim) {
  char one[128], two[128];
  return op_fail(c, "%s and %s differ in more than dimension %d", tensor_describe(a, one, sizeof one),
                 tensor_describe(b, two, sizeof two), dim);
}

static Status cat_infer(Call *c) {
  int n = in_count(c, 0), dim = 0;
  const Tensor *model = NULL;
  Dtype dtype = DT_NONE;
  int64_t size[MAX_DIMS] = {0};
  if (n == 0) return op_fail(c, "needs at least one tensor");
  for (int i = 0; i < n; i++) {
    const Tensor *t = in_item(c, 0, i);
    if (!t) return op_fail(c, "tensor %d of the list is None", i);
    if (t->ndim == 0) return op_fail(c, "tensor %d of the list has no dimensions", i);
    TRY(promote_with(c, i ? dtype : t->dtype, t->dtype, &dtype));
    if (joins_anything(t)) continue;
    if (!model) {
      TRY(wrap_dim(c, in_int(c, 1), t->ndim, &dim));
      memcpy(size, t->size, (size_t)t->ndim * sizeof *size);
      size[dim] = 0;
      model = t;
    }
    if (t->ndim != model->ndim) return cat_sizes_differ(c, model, t, dim);
    for (int d = 0; d < t->ndim; d++) {
      if (d != dim && t->size[d] != size[d]) return cat_sizes_differ(c, model, t, dim);
    }
    if (__builtin_add_overflow(size[dim], t->size[dim], &size[dim])) return cat_sizes_differ(c, model, t, dim);
  }
  return out_new(c, dtype, model ? model->ndim : 1, size);
}

static Status cat_run(Call *c) {
  Tensor *out = out_tensor(c, 0);
  int dim;
  int64_t at = 0;
  TRY(wrap_dim(c, in_int(c, 1), out->ndim, &dim));
  for (int i = 0; i < in_count(c, 0); i++) {
    const Tensor *t = in_item(c, 0, i);
    if (joins_anything(t)) continue;
    Geometry part = geometry_of(out);
    TRY(geometry_cut(c, &part, dim, at, at + t->size[dim], 1));
    View to = geometry_view(&part, out), from = tensor_view(t);
    if (to.data != from.data) kernel_copy(&c->ctx->kern, to, from); /* else the plan has put it in place */
    at += t->size[dim];
  }
  return OK;
}

/* ---- around cat ---------------------------------------------------------------------- */

static Status cat(Call *c, Tensor **list, int n, int64_t dim) {
  Tensor *joined;
  TRY(OP(c, "aten.cat.default", &joined, val_tensors(list, n), val_int(dim)));
  return out_value(c, val_tensor(joined));
}

static Status concat_compose(Call *c) {
  Tensor *joined;
  TRY(OP(c, "aten.cat.default", &joined, c->arg[0], c->arg[1]));
  return out_value(c, val_tensor(joined));
}

static Status stack_compose(Call *c) {
  int n = in_count(c, 0), dim;
  if (n == 0 || !in_item(c, 0, 0)) return op_fail(c, "needs at least one tensor");
  const Tensor *first = in_item(c, 0, 0);
  Tensor **list;
  TRY(wrap_dim(c, in_int(c, 1), first->ndim + 1, &dim));
  TRY_NEW(list, arena_new_n(c->arena, Tensor *, n));
  for (int i = 0; i < n; i++) {
    const Tensor *t = in_item(c, 0, i);
    if (!t || !tensor_same_size(t, first))
      return op_fail(c, "tensor %d of the list has another size than the first", i);
    TRY(OP(c, "aten.unsqueeze.default", &list[i], val_tensor(t), val_int(dim)));
  }
  return cat(c, list, n, dim);
}

/* hstack, vstack, dstack: every tensor with at least `least` dimensions, then cat along
 * `dim`; 1-d tensors go along dimension 0. */
typedef struct {
  const char *atleast;
  int dim;
} StackRow;

static Status numpy_stack_compose(Call *c) {
  const StackRow *row = c->op->def->row;
  Tensor **list;
  int n;
  TRY(OP_LIST(c, row->atleast, &list, &n, c->arg[0]));
  if (n == 0) return op_fail(c, "needs at least one tensor");
  return cat(c, list, n, list[0]->ndim == 1 ? 0 : row->dim);
}

static Status column_stack_compose(Call *c) {
  int n = in_count(c, 0);
  Tensor **list;
  TRY_NEW(list, arena_new_n(c->arena, Tensor *, n));
  for (int i = 0; i < n; i++) {
    Tensor *t = list[i] = in_item(c, 0, i);
    if (!t) return op_fail(c, "tensor %d of the list is None", i);
    int64_t column[2] = {tensor_numel(t), 1};
    if (t->ndim < 2) TRY(OP(c, "aten.reshape.default", &list[i], val_tensor(t), val_ints(column, 2)));
  }
  return cat(c, list, n, 1);
}

/* ---- repeated -------------------------------------------------------------------------- */

/* Dimension i is there repeats[i] times: seen as (repeats, size), expanded, copied once. */
static Status repeat(Call *c, Tensor *t, Ints repeats) {
  int64_t split[2 * MAX_DIMS], wide[2 * MAX_DIMS], size[MAX_DIMS];
  int n = 0, fresh = repeats.n - t->ndim;
  if (fresh < 0 || repeats.n > MAX_DIMS)
    return op_fail(c, "%d repeats for a tensor of %d dimensions", repeats.n, t->ndim);
  for (int i = 0; i < repeats.n; i++) {
    int64_t have = i < fresh ? 1 : t->size[i - fresh];
    if (repeats.v[i] < 0 || __builtin_mul_overflow(have, repeats.v[i], &size[i]))
      return op_fail(c, "cannot repeat %lld times", (long long)repeats.v[i]);
    if (repeats.v[i] != 1 && have != 1) split[n] = 1, wide[n++] = repeats.v[i];
    split[n] = have;
    wide[n++] = have == 1 ? repeats.v[i] : have;
  }
  Tensor *seen = t, *expanded, *copy, *result;
  for (int i = 0; i < fresh; i++) TRY(OP(c, "aten.unsqueeze.default", &seen, val_tensor(seen), val_int(0)));
  if (n > repeats.n) TRY(OP(c, "aten.view.default", &seen, val_tensor(seen), val_ints(split, n)));
  TRY(OP(c, "aten.expand.default", &expanded, val_tensor(seen), val_ints(wide, n)));
  TRY(OP(c, "aten.clone.default", &copy, val_tensor(expanded), val_memory_format(MEMORY_CONTIGUOUS)));
  if (n == repeats.n) return out_value(c, val_tensor(copy));
  TRY(OP(c, "aten.view.default", &result, val_tensor(copy), val_ints(size, repeats.n)));
  return out_value(c, val_tensor(result));
}

static Status repeat_compose(Call *c) {
  Tensor *self;
  TRY(need_tensor(c, 0, &self));
  return repeat(c, self, in_ints(c, 1));
}

static Status tile_compose(Call *c) {
  Tensor *self;
  Ints dims = in_ints(c, 1);
  int64_t repeats[MAX_DIMS];
  TRY(need_tensor(c, 0, &self));
  if (dims.n >= self->ndim) return repeat(c, self, dims);
  for (int i = 0; i < self->ndim; i++) repeats[i] = i < self->ndim - dims.n ? 1 : dims.v[i - (self->ndim - dims.n)];
  return repeat(c, self, (Ints){repeats, self->ndim});
}

/* Every element of dim n times in a row: (h, n) with stride 0, copied, flattened. */
static Status repeat_interleave_int_compose(Call *c) {
  Tensor *self;
  int dim = 0;
  int64_t n = in_int(c, 1), everything = -1;
  TRY(need_tensor(c, 0, &self));
  if (n < 0) return op_fail(c, "cannot repeat %lld times", (long long)n);
  if (in_none(c, 2)) {
    if (tensor_numel(self) == 0) everything = 0;
    TRY(OP(c, "aten.reshape.default", &self, val_tensor(self), val_ints(&everything, 1)));
  } else {
    TRY(wrap_dim(c, in_int(c, 2), self->ndim, &dim));
    if (self->ndim == 0) TRY(OP(c, "aten.unsqueeze.default", &self, val_tensor(self), val_int(0)));
  }
  int64_t wide[MAX_DIMS + 1], size[MAX_DIMS];
  for (int i = 0; i < self->ndim; i++) wide[i + (i > dim)] = size[i] = self->size[i];
  wide[dim + 1] = n;
  if (__builtin_mul_overflow(size[dim], n, &size[dim])) return op_fail(c, "cannot repeat %lld times", (long long)n);
  Tensor *seen, *expanded, *copy, *result;
  TRY(OP(c, "aten.unsqueeze.default", &seen, val_tensor(self), val_int(dim + 1)));
  TRY(OP(c, "aten.expand.default", &expanded, val_tensor(seen), val_ints(wide, self->ndim + 1)));
  TRY(OP(c, "aten.clone.default", &copy, val_tensor(expanded), val_memory_format(MEMORY_CONTIGUOUS)));
  TRY(OP(c, "aten.view.default", &result, val_tensor(copy), val_ints(size, self->ndim)));
  return out_value(c, val_tensor(result));
}

/* ---- broadcasting lists ------------------------------------------------------------------ */

static Status broadcast_tensors_infer(Call *c) {
  int ndim = 0;
  int64_t size[MAX_DIMS], stride[MAX_DIMS];
  for (int i = 0; i < in_count(c, 0); i++) {
    const Tensor *t = in_item(c, 0, i);
    if (!t) return op_fail(c, "tensor %d of the list is None", i);
    TRY(broadcast_size(c, &ndim, size, t->ndim, t->size));
  }
  for (int i = 0; i < in_count(c, 0); i++) {
    const Tensor *t = in_item(c, 0, i);
    broadcast_strides(t, ndim, stride);
    for (int d = 0; d < ndim; d++) { /* what is not repeated keeps its stride */
      int own = d - (ndim - t->ndim);
      if (own >= 0 && t->size[own] == size[d]) stride[d] = t->stride[own];
    }
    TRY(out_view(c, t, ndim, size, stride, t->offset));
  }
  return OK;
}

/* Output i has input i along dimension i; "xy" swaps the first two dimensions. */
static Status meshgrid_infer(Call *c) {
  int n = in_count(c, 0);
  int64_t size[MAX_DIMS];
  const char *indexing = c->op->schema.nparams > 1 ? in_str(c, 1) : "ij";
  if (!indexing || (strcmp(indexing, "ij") && strcmp(indexing, "xy")))
    return op_fail(c, "indexing must be 'ij' or 'xy'");
  if (n == 0 || n > MAX_DIMS) return op_fail(c, "needs 1 to %d tensors, not %d", MAX_DIMS, n);
  for (int i = 0; i < n; i++) {
    const Tensor *t = in_item(c, 0, i);
    if (!t || t->ndim > 1) return op_fail(c, "tensor %d of the list must have at most one dimension", i);
    size[i] = t->ndim ? t->size[0] : 1;
  }
  bool swap = !strcmp(indexing, "xy") && n >= 2;
  if (swap) {
    int64_t first = size[0];
    size[0] = size[1], size[1] = first;
  }
  for (int i = 0; i < n; i++) {
    const Tensor *t = in_item(c, 0, i);
    int64_t stride[MAX_DIMS] = {0};
    stride[swap && i < 2 ? 1 - i : i] = t->ndim ? t->stride[0] : 1;
    TRY(out_view(c, t, n, size, stride, t->offset));
  }
  return OK;
}

/* As if the operands met in a sum, which no operand enters. */
static Status broadcast_place(Rules *r) { return rule_pointwise(r, LINEAR_JOINT); }

/* Along dimension d only input d has more than one element; all results are cut there. */
static Status meshgrid_place(Rules *r) {
  const char *indexing = r->call->op->schema.nparams > 1 ? in_str(r->call, 1) : "ij";
  bool swap = !strcmp(indexing, "xy") && r->nin >= 2;
  Placement p[2 * MAX_DIMS];
  for (int d = 0; d < r->nin && r->nin == r->nout; d++) {
    if (!r->in[d]->ndim) continue;
    for (int i = 0; i < r->nout; i++) p[i] = place_s(swap && d < 2 ? 1 - d : d);
    for (int i = 0; i < r->nin; i++) p[r->nout + i] = i == d ? place_s(0) : place_r();
    TRY(rule_axis(r, p));
  }
  return OK;
}

/* atleast_*d: where the dimensions of a 0-, 1- and 2-d tensor go, -1 = a new one. */
typedef struct {
  int ndim;
  int from[3][3];
} AtLeast;

static const AtLeast at_least[] = {
    {1, {{-1}, {0}, {0}}},
    {2, {{-1, -1}, {-1, 0}, {0, 1}}},
    {3, {{-1, -1, -1}, {-1, 0, -1}, {0, 1, -1}}},
};

static Status at_least_one(Call *c, const Tensor *t, const AtLeast *row) {
  if (t->ndim >= row->ndim) return out_alias(c, t);
  int64_t size[3], stride[3];
  for (int i = row->ndim - 1; i >= 0; i--) {
    int d = row->from[t->ndim][i];
    size[i] = d < 0 ? 1 : t->size[d];
    stride[i] = d >= 0 ? t->stride[d] : i + 1 < row->ndim ? size[i + 1] * stride[i + 1] : 1;
  }
  return out_view(c, t, row->ndim, size, stride, t->offset);
}

static Status at_least_infer(Call *c) {
  if (c->arg[0].kind != VAL_TENSORS) {
    Tensor *self;
    TRY(need_tensor(c, 0, &self));
    return at_least_one(c, self, c->op->def->row);
  }
  for (int i = 0; i < in_count(c, 0); i++) {
    if (!in_item(c, 0, i)) return op_fail(c, "tensor %d of the list is None", i);
    TRY(at_least_one(c, in_item(c, 0, i), c->op->def->row));
  }
  return OK;
}

/* Each by itself: its dimensions keep their shards, wherever they go. */
static Status at_least_place(Rules *r) {
  const AtLeast *row = r->call->op->def->row;
  Placement *p;
  size_t n = (size_t)(r->nin * r->naxes);
  TRY_NEW(p, arena_new_n(r->arena, Placement, 2 * n + 1));
  memcpy(p, r->have, n * sizeof *p);
  memcpy(p + n, r->have, n * sizeof *p);
  for (int i = 0; i < r->nin * r->naxes; i++) {
    int ndim = r->in[i / r->naxes]->ndim, to = 0;
    if (!is_s(&p[i]) || ndim >= row->ndim) continue;
    while (row->from[ndim][to] != p[i].dim) to++;
    p[i].dim = to;
  }
  r->uneven = true;
  return rule_mesh(r, p, 0);
}

/* ---- blocks on a diagonal -------------------------------------------------------------------- */

static Status block_diag_infer(Call *c) {
  int64_t size[2] = {0, 0};
  Dtype dtype = DT_F32;
  for (int i = 0; i < in_count(c, 0); i++) {
    const Tensor *t = in_item(c, 0, i);
    if (!t || t->ndim > 2) return op_fail(c, "tensor %d of the list must have at most two dimensions", i);
    TRY(promote_with(c, i ? dtype : t->dtype, t->dtype, &dtype));
    if (__builtin_add_overflow(size[0], t->ndim == 2 ? t->size[0] : 1, &size[0]) ||
        __builtin_add_overflow(size[1], t->ndim ? t->size[t->ndim - 1] : 1, &size[1]))
      return op_fail(c, "the blocks are too large together");
  }
  if (in_count(c, 0) == 0) size[0] = 1;
  return out_new(c, dtype, 2, size);
}

static Status block_diag_run(Call *c) {
  Tensor *out = out_tensor(c, 0);
  int64_t row = 0, column = 0;
  const char zero[16] = {0};
  kernel_fill(&c->ctx->kern, tensor_view(out), zero);
  for (int i = 0; i < in_count(c, 0); i++) {
    const Tensor *t = in_item(c, 0, i);
    int64_t rows = t->ndim == 2 ? t->size[0] : 1, columns = t->ndim ? t->size[t->ndim - 1] : 1;
    Geometry g = geometry_of(out);
    TRY(geometry_cut(c, &g, 0, row, row + rows, 1));
    TRY(geometry_cut(c, &g, 1, column, column + columns, 1));
    kernel_copy(&c->ctx->kern, geometry_view(&g, out), tensor_view(t));
    row += rows, column += columns;
  }
  return OK;
}

/* clang-format off */
const OpDef ops_join[] = {
    {.schema = "aten::cat(Tensor[] tensors, int dim=0) -> Tensor", .infer = cat_infer, .run = cat_run,
     .shard.place = rule_cat},
    {.schema = "aten::concat(Tensor[] tensors, int dim=0) -> Tensor", .compose = concat_compose},
    {.schema = "aten::concatenate(Tensor[] tensors, int dim=0) -> Tensor", .compose = concat_compose},
    {.schema = "aten::stack(Tensor[] tensors, int dim=0) -> Tensor", .compose = stack_compose},
    {.schema = "aten::hstack(Tensor[] tensors) -> Tensor", .compose = numpy_stack_compose, .row = &(const StackRow){"aten.atleast_1d.Sequence", 1}},
    {.schema = "aten::vstack(Tensor[] tensors) -> Tensor", .compose = numpy_stack_compose, .row = &(const StackRow){"aten.atleast_2d.Sequence", 0}},
    {.schema = "aten::row_stack(Tensor[] tensors) -> Tensor", .compose = numpy_stack_compose, .row = &(const StackRow){"aten.atleast_2d.Sequence", 0}},
    {.schema = "aten::dstack(Tensor[] tensors) -> Tensor", .compose = numpy_stack_compose, .row = &(const StackRow){"aten.atleast_3d.Sequence", 2}},
    {.schema = "aten::column_stack(Tensor[] tensors) -> Tensor", .compose = column_stack_compose},
    {.schema = "aten::repeat(Tensor self, SymInt[] repeats) -> Tensor", .compose = repeat_compose},
    {.schema = "aten::tile(Tensor self, SymInt[] dims) -> Tensor", .compose = tile_compose},
    {.schema = "aten::repeat_interleave.self_int(Tensor self, SymInt repeats, int? dim=None, *, SymInt? "
               "output_size=None) -> Tensor", .compose = repeat_interleave_int_compose},
    {.schema = "aten::broadcast_tensors(Tensor[] tensors) -> Tensor[]", .infer = broadcast_tensors_infer,
     .shard.place = broadcast_place},
    {.schema = "aten::meshgrid(Tensor[] tensors) -> Tensor[]", .infer = meshgrid_infer,
     .shard.place = meshgrid_place},
    {.schema = "aten::meshgrid.indexing(Tensor[] tensors, *, str indexing) -> Tensor[]", .infer = meshgrid_infer,
     .shard.place = meshgrid_place},
    {.schema = "aten::atleast_1d(Tensor self) -> Tensor", .infer = at_least_infer, .shard.place = at_least_place,
     .row = &at_least[0]},
    {.schema = "aten::atleast_1d.Sequence(Tensor[] tensors) -> Tensor[]", .infer = at_least_infer,
     .shard.place = at_least_place, .row = &at_least[0]},
    {.schema = "aten::atleast_2d(Tensor self) -> Tensor", .infer = at_least_infer, .shard.place = at_least_place,
     .row = &at_least[1]},
    {.schema = "aten::atleast_2d.Sequence(Tensor[] tensors) -> Tensor[]", .infer = at_least_infer,
     .shard.place = at_least_place, .row = &at_least[1]},
    {.schema = "aten::atleast_3d(Tensor self) -> Tensor", .infer = at_least_infer, .shard.place = at_least_place,
     .row = &at_least[2]},
    {.schema = "aten::atleast_3d.Sequence(Tensor[] tensors) -> Tensor[]", .infer = at_least_infer,
     .shard.place = at_least_place, .row = &at_least[2]},
    {.schema = "aten::block_diag(Tensor[] tensors) -> Tensor", .infer = block_diag_infer, .run = block_diag_run},
    {0},
};
