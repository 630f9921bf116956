/* split.c -- ops that cut a dimension into a list of views.
 *
 * Each op says where the cuts are; piece() makes the view.  unsafe_* forms are the same,
 * as they are in ATen; *_copy forms clone the pieces.
 */
#include "ops/rule_move.h"

typedef struct {
  Tensor *self;
  int dim;
  int64_t size; /* of dim */
} Whole;

static Status whole_of(const Call *c, int dim_argument, Whole *w) {
  TRY(need_tensor(c, 0, &w->self));
  if (w->self->ndim == 0) return op_fail(c, "a 0-d tensor cannot be split");
  TRY(wrap_dim(c, in_int(c, dim_argument), w->self->ndim, &w->dim));
  w->size = w->self->size[w->dim];
  return OK;
}

/* The elements [from, to) of the dimension. */
static Status piece(Call *c, const Whole *w, int64_t from, int64_t to) {
  Geometry g = geometry_of(w->self);
  TRY(geometry_cut(c, &g, w->dim, from, to, 1));
  return out_geometry_view(c, w->self, &g);
}

static Status equal_pieces(Call *c, const Whole *w, int64_t length) {
  if (w->size == 0) return piece(c, w, 0, 0);
  for (int64_t from = 0; from < w->size; from += length) {
    TRY(piece(c, w, from, length < w->size - from ? from + length : w->size));
    if (length >= w->size - from) break;
  }
  return OK;
}

static Status split_infer(Call *c) {
  Whole w;
  TRY(whole_of(c, 2, &w));
  int64_t length = in_int(c, 1);
  if (length < 0 || (length == 0 && w.size > 0))
    return op_fail(c, "the pieces cannot have size %lld", (long long)length);
  return equal_pieces(c, &w, length);
}

static Status split_with_sizes_infer(Call *c) {
  Whole w;
  Ints sizes = in_ints(c, 1);
  TRY(whole_of(c, 2, &w));
  int64_t from = 0;
  for (int i = 0; i < sizes.n; i++) {
    if (sizes.v[i] < 0 || sizes.v[i] > w.size - from) break;
    TRY(piece(c, &w, from, from + sizes.v[i]));
    from += sizes.v[i];
  }
  if (c->nout == sizes.n && from == w.size) return OK;
  char buf[256];
  return op_fail(c, "the sizes %s do not add up to dimension %d of size %lld",
                 shape_describe(sizes.n, sizes.v, buf, sizeof buf), w.dim, (long long)w.size);
}

/* As many pieces as asked or fewer, all of the same size but the last. */
static Status chunk_infer(Call *c) {
  Whole w;
  TRY(whole_of(c, 2, &w));
  int64_t chunks = in_int(c, 1);
  if (chunks <= 0 || chunks > INT32_MAX) return op_fail(c, "cannot make %lld chunks", (long long)chunks);
  if (w.size > 0) return equal_pieces(c, &w, (w.size + chunks - 1) / chunks);
  for (int64_t i = 0; i < chunks; i++) TRY(piece(c, &w, 0, 0));
  return OK;
}

/* Exactly as many pieces as asked; the first ones are longer by one. */
static Status sections(Call *c, const Whole *w, int64_t n) {
  if (n <= 0 || n > INT32_MAX) return op_fail(c, "cannot make %lld sections", (long long)n);
  int64_t least = w->size / n, longer = w->size % n;
  for (int64_t i = 0, from = 0; i < n; i++) {
    int64_t to = from + least + (i < longer);
    TRY(piece(c, w, from, to));
    from = to;
  }
  return OK;
}

/* Cuts at the given indices, with Python's rules for slices. */
static Status at_indices(Call *c, const Whole *w, Ints cuts) {
  Value before = val_none();
  for (int i = 0; i <= cuts.n; i++) {
    Value end = i < cuts.n ? val_int(cuts.v[i]) : val_none();
    int64_t from, to;
    slice_bounds(&before, &end, w->size, &from, &to);
    TRY(piece(c, w, from, to));
    before = end;
  }
  return OK;
}

static Status tensor_split_sections_infer(Call *c) {
  Whole w;
  TRY(whole_of(c, 2, &w));
  return sections(c, &w, in_int(c, 1));
}

static Status tensor_split_indices_infer(Call *c) {
  Whole w;
  TRY(whole_of(c, 2, &w));
  return at_indices(c, &w, in_ints(c, 1));
}

/* hsplit, vsplit, dsplit: the row says which dimension, and how many there must be. */
typedef struct {
  int dim, least;
} NumpySplit;

static Status numpy_split_infer(Call *c) {
  const NumpySplit *row = c->op->def->row;
  Whole w;
  TRY(need_tensor(c, 0, &w.self));
  if (w.self->ndim < row->least)
    return op_fail(c, "needs at least %d dimensions, the tensor has %d", row->least, w.self->ndim);
  w.dim = w.self->ndim == 1 ? 0 : row->dim;
  w.size = w.self->size[w.dim];
  if (c->arg[1].kind == VAL_INTS) return at_indices(c, &w, in_ints(c, 1));
  int64_t n = in_int(c, 1);
  if (n <= 0 || w.size % n)
    return op_fail(c, "%lld elements cannot be cut into %lld equal sections", (long long)w.size, (long long)n);
  return sections(c, &w, n);
}

static Status unbind_infer(Call *c) {
  Whole w;
  TRY(whole_of(c, 1, &w));
  for (int64_t i = 0; i < w.size; i++) {
    Geometry g = geometry_of(w.self);
    TRY(geometry_cut(c, &g, w.dim, i, i + 1, 1));
    for (int d = w.dim; d < g.ndim - 1; d++) g.size[d] = g.size[d + 1], g.stride[d] = g.stride[d + 1];
    g.ndim--;
    TRY(out_geometry_view(c, w.self, &g));
  }
  return OK;
}

/* ---- how they shard ------------------------------------------------------------------- */

/* The dimension that is cut: an argument, or the row's. */
static Status cut_dim(const Call *c, const Tensor *self, int *dim) {
  const NumpySplit *row = c->op->def->row;
  if (row) return *dim = self->ndim == 1 ? 0 : row->dim, OK;
  return wrap_dim(c, in_int(c, c->op->schema.nparams - 1), self->ndim, dim);
}

static Status split_place(Rules *r) {
  int dim;
  TRY(cut_dim(r->call, r->in[0], &dim));
  return rule_pieces(r, dim);
}

static Status split_localize(Local *l) {
  int dim;
  TRY(cut_dim(l->call, l->in[0], &dim));
  return localize_pieces(l, dim);
}

static Status unbind_place(Rules *r) {
  int dim, to[MAX_DIMS];
  TRY(cut_dim(r->call, r->in[0], &dim));
  for (int d = 0; d < r->in[0]->ndim; d++) to[d] = d == dim ? -1 : d - (d > dim);
  return rule_renumber(r, to, PASS_ALL);
}

/* *_copy: the row is the name of the op that makes the views. */
static Status copies_compose(Call *c) {
  Tensor **views;
  int n;
  TRY(op_call_list(c, c->op->def->row, &views, &n, c->arg, c->op->schema.nparams));
  for (int i = 0; i < n; i++) {
    Tensor *copy;
    TRY(OP(c, "aten.clone.default", &copy, val_tensor(views[i]), val_memory_format(MEMORY_CONTIGUOUS)));
    TRY(out_value(c, val_tensor(copy)));
  }
  return OK;
}

#define SPLIT_ANY .shard.place = split_place, .shard.localize = split_localize
#define SPLIT SPLIT_ANY, .moves = MOVES_CUT

/* clang-format off */
const OpDef ops_split[] = {
    {.schema = "aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
     .infer = split_infer, SPLIT},
    {.schema = "aten::split.sizes(Tensor(a -> *) self, SymInt[] split_size, int dim=0) -> Tensor(a)[]",
     .infer = split_with_sizes_infer, SPLIT},
    {.schema = "aten::split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]",
     .infer = split_with_sizes_infer, SPLIT},
    {.schema = "aten::chunk(Tensor(a -> *) self, int chunks, int dim=0) -> Tensor(a)[]", .infer = chunk_infer,
     SPLIT},
    {.schema = "aten::unsafe_split.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]",
     .infer = split_infer, SPLIT},
    {.schema = "aten::unsafe_split_with_sizes(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]",
     .infer = split_with_sizes_infer, SPLIT},
    {.schema = "aten::unsafe_chunk(Tensor self, int chunks, int dim=0) -> Tensor[]", .infer = chunk_infer, SPLIT},
    {.schema = "aten::split_copy.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]", .compose = copies_compose, .moves = MOVES_CUT, .row = "aten.split.Tensor"},
    {.schema = "aten::split_with_sizes_copy(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]", .compose = copies_compose, .moves = MOVES_CUT, .row = "aten.split_with_sizes.default"},
    {.schema = "aten::tensor_split.sections(Tensor(a -> *) self, SymInt sections, int dim=0) -> Tensor(a)[]",
     .infer = tensor_split_sections_infer, SPLIT},
    {.schema = "aten::tensor_split.indices(Tensor(a -> *) self, SymInt[] indices, int dim=0) -> Tensor(a)[]",
     .infer = tensor_split_indices_infer, SPLIT_ANY},
    {.schema = "aten::hsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]", .infer = numpy_split_infer,
     SPLIT_ANY, .row = &(const NumpySplit){1, 1}},
    {.schema = "aten::hsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]", .infer = numpy_split_infer,
     SPLIT_ANY, .row = &(const NumpySplit){1, 1}},
    {.schema = "aten::vsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]", .infer = numpy_split_infer,
     SPLIT_ANY, .row = &(const NumpySplit){0, 2}},
    {.schema = "aten::vsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]", .infer = numpy_split_infer,
     SPLIT_ANY, .row = &(const NumpySplit){0, 2}},
    {.schema = "aten::dsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]", .infer = numpy_split_infer,
     SPLIT_ANY, .row = &(const NumpySplit){2, 3}},
    {.schema = "aten::dsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]", .infer = numpy_split_infer,
     SPLIT_ANY, .row = &(const NumpySplit){2, 3}},
    {.schema = "aten::unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]", .infer = unbind_infer,
     .shard.place = unbind_place, .moves = MOVES_CUT},
    {.schema = "aten::unbind_copy.int(Tensor self, int dim=0) -> Tensor[]", .compose = copies_compose, .moves = MOVES_CUT, .row = "aten.unbind.int"},
    {0},
};
