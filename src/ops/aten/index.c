/* index.c -- x[i, :, j] with index tensors and masks: reading and writing.
 *
 * Every entry of `indices` stands for one dimension of self (a mask of m dimensions for
 * m); None keeps a dimension.  The index tensors broadcast to one size; its dimensions
 * replace the indexed ones where these stood if they were neighbours, else they come
 * first.  How many places a mask names is known only when its elements are.
 */
#include <string.h>

#include "ops/aten/indexing.h"
#include "ops/rule_move.h"

typedef struct {
  const Tensor *self;
  int count;              /* index lists: masks give one per dimension */
  int dim[MAX_DIMS];      /* the dimension of self that each is for */
  Indices list[MAX_DIMS]; /* data only once they are prepared */
  int index_ndim;         /* what they broadcast to */
  int64_t index_size[MAX_DIMS];
  int place; /* where that goes among the dimensions that are kept */
  int ndim;  /* the result */
  int64_t size[MAX_DIMS];
} Indexing;

static bool is_mask(const Tensor *t) { return t->dtype == DT_BOOL || t->dtype == DT_U8; }

static Status add_mask(const Call *c, Indexing *p, const Tensor *mask, int dim, bool prepare) {
  const Tensor *self = p->self;
  char a[128], b[128];
  if (mask->ndim == 0 || dim + mask->ndim > self->ndim ||
      memcmp(mask->size, self->size + dim, (size_t)mask->ndim * sizeof *mask->size)) {
    return op_fail(c, "a mask of size %s does not fit %s at dimension %d",
                   shape_describe(mask->ndim, mask->size, a, sizeof a), tensor_describe(self, b, sizeof b), dim);
  }
  if (!prepare) return fail(ERR_DYNAMIC, "%s: the size of the result depends on a mask", c->op->schema.name);
  int64_t n = kernel_count_nonzero(tensor_view(mask)), *places;
  TRY_NEW(places, kern_scratch(&c->ctx->kern, (size_t)(n * mask->ndim) * sizeof *places));
  kernel_nonzero(tensor_view(mask), n, places, n, 1);
  for (int i = 0; i < mask->ndim; i++) {
    p->dim[p->count] = dim + i;
    p->list[p->count++] = (Indices){.data = places + i * n, .ndim = 1, .size = {n}, .stride = {1}};
  }
  return OK;
}

static Status add_index(const Call *c, Indexing *p, const Tensor *index, int dim, bool prepare) {
  Indices *list = &p->list[p->count];
  if (!dtype_is_int(index->dtype))
    return op_fail(c, "indices must be integers or masks, not %s", dtype_name(index->dtype));
  if (prepare) {
    TRY(indices_prepare(c, index, p->self->size[dim], dim, NEGATIVE_COUNTS_FROM_END, list));
  } else {
    list->ndim = index->ndim;
    memcpy(list->size, index->size, sizeof list->size);
  }
  p->dim[p->count++] = dim;
  return OK;
}

/* The index lists; without `prepare` no elements are read. */
static Status indexing_lists(const Call *c, Indexing *p, bool prepare) {
  int dim = 0;
  for (int i = 0; i < in_count(c, 1); i++) {
    const Tensor *t = in_item(c, 1, i);
    int covers = t && is_mask(t) ? t->ndim : 1;
    if (dim + covers > p->self->ndim)
      return op_fail(c, "too many indices for a tensor of %d dimensions", p->self->ndim);
    if (t) TRY(is_mask(t) ? add_mask(c, p, t, dim, prepare) : add_index(c, p, t, dim, prepare));
    dim += covers;
  }
  return OK;
}

static Status indexing_result(const Call *c, Indexing *p) {
  bool indexed[MAX_DIMS] = {false}, adjacent = true;
  for (int k = 0; k < p->count; k++) {
    TRY(broadcast_size(c, &p->index_ndim, p->index_size, p->list[k].ndim, p->list[k].size));
    indexed[p->dim[k]] = true;
    adjacent &= k == 0 || p->dim[k] == p->dim[k - 1] + 1;
  }
  p->place = p->count && adjacent ? p->dim[0] : 0;
  if (p->index_ndim + p->self->ndim - p->count > MAX_DIMS)
    return op_fail(c, "the result has more than %d dimensions", MAX_DIMS);
  for (int d = 0, kept = 0; d <= p->self->ndim; d++) {
    if (kept == p->place && p->ndim == kept) {
      memcpy(p->size + p->ndim, p->index_size, (size_t)p->index_ndim * sizeof *p->size);
      p->ndim += p->index_ndim;
    }
    if (d < p->self->ndim && !indexed[d]) p->size[p->ndim++] = p->self->size[d], kept++;
  }
  return OK;
}

static Status read_indexing(const Call *c, bool prepare, Indexing *p) {
  Tensor *self;
  *p = (Indexing){0};
  TRY(need_tensor(c, 0, &self));
  p->self = self;
  TRY(indexing_lists(c, p, prepare));
  return indexing_result(c, p);
}

/* far: the tensor that is indexed, with self's size. */
static void indexing_map(const Indexing *p, const Tensor *far, IndexMap *map) {
  *map = (IndexMap){.ndim = p->ndim, .nindex = p->count};
  memcpy(map->size, p->size, sizeof map->size);
  bool indexed[MAX_DIMS] = {false};
  for (int k = 0; k < p->count; k++) {
    IndexAxis *axis = &map->index[k];
    const Indices *list = &p->list[k];
    indexed[p->dim[k]] = true;
    axis->data = list->data;
    axis->step = far->stride[p->dim[k]];
    for (int i = 0; i < list->ndim; i++) {
      int at = p->place + p->index_ndim - list->ndim + i;
      axis->stride[at] = list->size[i] == 1 ? 0 : list->stride[i];
    }
  }
  for (int d = 0, at = 0; d < far->ndim; d++) {
    if (indexed[d]) continue;
    map->stride[at < p->place ? at : at + p->index_ndim] = far->stride[d];
    at++;
  }
}

/* ---- reading ------------------------------------------------------------------------- */

static Status index_infer(Call *c) {
  Indexing p;
  TRY(read_indexing(c, false, &p));
  return out_new(c, p.self->dtype, p.ndim, p.size);
}

static Status index_body(Call *c) {
  Indexing p;
  IndexMap map;
  TRY(read_indexing(c, true, &p));
  if (c->nout == 0) {
    TRY(out_new(c, p.self->dtype, p.ndim, p.size));
    TRY(tensor_materialize(out_tensor(c, 0)));
  }
  indexing_map(&p, p.self, &map);
  kernel_gather(&c->ctx->kern, &map, out_view_of(c, 0), tensor_data(p.self));
  return OK;
}

static Status index_run(Call *c) { return with_scratch(c, index_body); }

/* ---- writing ------------------------------------------------------------------------- */

static Status index_put_infer(Call *c) {
  Tensor *self;
  TRY(need_tensor(c, 0, &self));
  return out_like(c, self->dtype, self);
}

/* The values, repeated to the size of the places that are written. */
static Status values_view(const Call *c, const Indexing *p, const Working *w, NearStrides *strides, View *out) {
  int ndim = p->ndim;
  int64_t size[MAX_DIMS];
  memcpy(size, p->size, sizeof size);
  TRY(broadcast_size(c, &ndim, size, w->tensor.ndim, w->tensor.size));
  if (ndim != p->ndim || memcmp(size, p->size, (size_t)ndim * sizeof *size)) {
    char a[128], b[128];
    return op_fail(c, "values of size %s do not fit the %s places that are indexed",
                   shape_describe(w->tensor.ndim, w->tensor.size, a, sizeof a),
                   shape_describe(p->ndim, p->size, b, sizeof b));
  }
  broadcast_strides(&w->tensor, ndim, strides->stride);
  *out = (View){w->data, p->size, strides->stride, ndim, w->tensor.dtype};
  return OK;
}

static Status index_put_body(Call *c) {
  Tensor *out = out_tensor(c, 0), *values = in_tensor(c, 2);
  bool accumulate = in_bool(c, 3);
  Dtype dtype = accumulate ? sum_dtype(out->dtype) : out->dtype;
  Indexing p;
  IndexMap map;
  Working to, from;
  NearStrides strides;
  View near;
  char number[16];
  TRY(read_indexing(c, true, &p));
  copy_self(c, p.self);
  TRY(working_begin(c, out, dtype, &to));
  if (values) {
    TRY(working_begin(c, values, dtype, &from));
  } else {
    from = (Working){.tensor = {.dtype = dtype}, .data = number};
    val_store(&c->arg[2], dtype, number);
  }
  TRY(values_view(c, &p, &from, &strides, &near));
  indexing_map(&p, &to.tensor, &map);
  kernel_scatter(&c->ctx->kern, &map, to.data, near, accumulate ? SCATTER_ADD : SCATTER_ASSIGN);
  working_end(c, out, &to);
  return OK;
}

static Status index_put_run(Call *c) { return with_scratch(c, index_put_body); }

/* clang-format off */
/* ---- a cut dimension that is picked as it is --------------------------------------------------------
 * Masks of attention are read at [0, 1, 2 ...][:, None, None, None] and the like: along such
 * a dimension the result is the tensor itself, so its shards may stay where they are. */

/* The dimension of the broadcast indices (nb of them) along which t counts 0, 1, 2 ... n - 1; -1: not so. */
static int counting_dim(const Tensor *t, int64_t n, int nb) {
  int dim = -1;
  if (!t || t->spec || t->dtype != DT_I64 || tensor_numel(t) != n || !tensor_data(t)) return -1;
  for (int d = 0; d < t->ndim; d++)
    if (t->size[d] > 1) dim = dim < 0 ? d : MAX_DIMS;
  if (dim < 0 || dim == MAX_DIMS) return -1;
  const int64_t *at = tensor_data(t);
  for (int64_t i = 0; i < n; i++)
    if (at[i * t->stride[dim]] != i) return -1;
  return nb - t->ndim + dim;
}

/* Indices at the dimensions 0 to n - 1, all of numbers; nb: dimensions that they broadcast to. */
static bool leading_indices(const Value *v, int *n, int *nb) {
  *n = *nb = 0;
  for (int i = 0; i < v->n; i++) {
    const Tensor *t = v->tensors[i];
    if (!t) continue;
    if (i != *n || !dtype_is_int(t->dtype)) return false;
    ++*n;
    if (t->ndim > *nb) *nb = t->ndim;
  }
  return *n > 0;
}

static Status index_in_parts(Call *c, const Sharded *how, bool *done) {
  Tensor *self = in_tensor(c, 0), *x = self, *rest[MAX_DIMS] = {NULL};
  const Value *list = &c->arg[1];
  int n, nb, d = 0, at = -1;
  *done = false;
  if (list->kind != VAL_TENSORS || list->n > self->ndim || !leading_indices(list, &n, &nb)) return OK;
  for (; d < n; d++) {
    bool along[MAX_DIMS] = {false};
    along[d] = true;
    if (!sharded_along(how, c, 0, along)) continue;
    if ((at = counting_dim(list->tensors[d], self->size[d], nb)) >= 0) break;
  }
  if (d == n) return OK;
  int others = 0;
  for (int i = 0; i < n; i++) {
    const Tensor *t = list->tensors[i];
    int shift = nb - t->ndim;
    if (i == d) continue;
    if (at >= shift && t->size[at - shift] > 1) return OK;
    rest[1 + others++] = list->tensors[i];
  }
  /* dimension d first; then the indices' dimensions, without it: [n, ..., 1, ...] */
  TRY(OP(c, "aten.movedim.int", &x, val_tensor(x), val_int(d), val_int(0)));
  if (others) {
    Tensor *all[MAX_DIMS];
    for (int i = 1; i <= others; i++) {
      all[i] = rest[i];
      while (all[i]->ndim < nb) TRY(OP(c, "aten.unsqueeze.default", &all[i], val_tensor(all[i]), val_int(0)));
    }
    all[0] = NULL;
    TRY(OP(c, "aten.index.Tensor", &x, val_tensor(x), val_tensors(all, others + 1)));
  } else {
    for (int i = 0; i < nb; i++) TRY(OP(c, "aten.unsqueeze.default", &x, val_tensor(x), val_int(1)));
  }
  TRY(OP(c, "aten.squeeze.dim", &x, val_tensor(x), val_int(1 + at)));
  TRY(OP(c, "aten.movedim.int", &x, val_tensor(x), val_int(0), val_int(at)));
  *done = true;
  return out_value(c, val_tensor(x));
}

const OpDef ops_index[] = {
    {.schema = "aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", .infer = index_infer,
     .run = index_run, .shard.place = rule_index, .shard.compose_sharded = index_in_parts},
    {.schema = "aten::_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", .infer = index_infer,
     .run = index_run, .shard.place = rule_index, .shard.compose_sharded = index_in_parts},
    {.schema = "aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
     .infer = index_put_infer, .run = index_put_run, .shard.place = rule_index_put, .flags = OP_UPDATE},
    {.schema = "aten::_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> "
               "Tensor", .infer = index_put_infer, .run = index_put_run, .shard.place = rule_index_put,
                   .flags = OP_UPDATE},
    {0},
};
