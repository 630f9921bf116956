/* scatter.c -- self with elements replaced or combined at places that an index names.
 *
 * Two shapes of index: scatter* has one index per element of the source; index_* has a
 * list that names whole slices.  Reductions in f16 and bf16 go through f32 and round once.
 */
#include <math.h>
#include <string.h>

#include "kernels/copy.h"
#include "ops/aten/indexing.h"
#include "ops/rule_move.h"

static Status like_self_infer(Call *c) {
  Tensor *self, *index;
  int dim;
  TRY(need_tensor(c, 0, &self));
  TRY(need_tensor(c, 2, &index));
  TRY(wrap_dim(c, in_int(c, 1), self->ndim, &dim));
  return out_like(c, self->dtype, self);
}

static Status size_mismatch(const Call *c, const char *what, const Tensor *a, const char *of, const Tensor *b) {
  char one[128], two[128];
  return op_fail(c, "%s of size %s does not fit %s of size %s", what,
                 shape_describe(a->ndim, a->size, one, sizeof one), of,
                 shape_describe(b->ndim, b->size, two, sizeof two));
}

/* Everything that a write needs: the places and the memory to write to. */
typedef struct {
  Tensor *self, *out;
  int dim;
  Indices index;
  IndexMap map;
  Working to; /* out, or an f32 copy of it */
  Working from;
  char number[16]; /* from, if it is one number */
  NearStrides strides;
  View near;
} Write;

static Status write_begin(Call *c, Write *w, bool sums) {
  TRY(need_tensor(c, 0, &w->self));
  w->out = out_tensor(c, 0);
  TRY(wrap_dim(c, in_int(c, 1), w->self->ndim, &w->dim));
  TRY(indices_prepare(c, in_tensor(c, 2), w->self->ndim ? w->self->size[w->dim] : 1, w->dim, NEGATIVE_FAILS,
                      &w->index));
  copy_self(c, w->self);
  return working_begin(c, w->out, sums ? sum_dtype(w->out->dtype) : w->out->dtype, &w->to);
}

/* The source (argument 3): a tensor, or a number that is written everywhere. */
static Status write_source(const Call *c, Write *w, const Tensor *source) {
  Dtype dtype = w->to.tensor.dtype;
  if (source) {
    TRY(working_begin(c, source, dtype, &w->from));
  } else {
    Value number;
    TRY(in_number(c, 3, &number));
    w->from = (Working){.tensor = {.dtype = dtype}, .data = w->number};
    val_store(&number, dtype, w->number);
  }
  w->near = near_view(&w->from, &w->map, &w->strides);
  return OK;
}

/* ---- scatter: an index per element -------------------------------------------------------- */

static Status scatter_check(const Call *c, const Tensor *self, const Tensor *index, const Tensor *source, int dim) {
  int ndim = self->ndim ? self->ndim : 1;
  bool fits = (index->ndim ? index->ndim : 1) == ndim;
  for (int d = 0; fits && d < index->ndim; d++)
    fits = d == dim || index->size[d] <= (self->ndim ? self->size[d] : 1);
  if (tensor_numel(index) && !fits) return size_mismatch(c, "an index", index, "self", self);
  if (!source || tensor_numel(index) == 0) return OK;
  fits = (source->ndim ? source->ndim : 1) == ndim;
  for (int d = 0; fits && d < index->ndim; d++) fits = index->size[d] <= (source->ndim ? source->size[d] : 1);
  fits = fits && tensor_numel(source) > 0;
  return fits ? OK : size_mismatch(c, "a source", source, "an index", index);
}

static Status scatter_begin(Call *c, Write *w, bool sums) {
  const Tensor *source = c->op->schema.params[3].type == TYPE_SCALAR ? NULL : in_tensor(c, 3);
  TRY(write_begin(c, w, sums));
  TRY(scatter_check(c, w->self, in_tensor(c, 2), source, w->dim));
  gather_map(&w->to.tensor, w->dim, &w->index, &w->map);
  return write_source(c, w, source);
}

static Status scatter_with(Call *c, ScatterOp op) {
  Write w;
  TRY(scatter_begin(c, &w, op != SCATTER_ASSIGN));
  kernel_scatter(&c->ctx->kern, &w.map, w.to.data, w.near, op);
  working_end(c, w.out, &w.to);
  return OK;
}

static Status scatter_body(Call *c) { return scatter_with(c, SCATTER_ASSIGN); }
static Status scatter_add_body(Call *c) { return scatter_with(c, SCATTER_ADD); }

static Status scatter_reduce_argument_body(Call *c) {
  const char *reduce = in_str(c, 4);
  if (reduce && !strcmp(reduce, "add")) return scatter_with(c, SCATTER_ADD);
  if (reduce && !strcmp(reduce, "multiply")) return scatter_with(c, SCATTER_MUL);
  return op_fail(c, "reduce must be 'add' or 'multiply', not '%s'", reduce ? reduce : "None");
}

/* ---- scatter_reduce -------------------------------------------------------------------------- */

typedef enum { FROM_ZERO, FROM_ONE, FROM_LOWEST, FROM_HIGHEST } Start;

static const struct {
  const char *name;
  ScatterOp op;
  Start start; /* what a place holds before the first element, if self does not count */
} reductions[] = {
    {"sum", SCATTER_ADD, FROM_ZERO},    {"mean", SCATTER_ADD, FROM_ZERO},    {"prod", SCATTER_MUL, FROM_ONE},
    {"amax", SCATTER_MAX, FROM_LOWEST}, {"amin", SCATTER_MIN, FROM_HIGHEST},
};

static void store_start(Start start, Dtype d, char *element) {
  static const int64_t lowest[] = {[DT_BOOL] = 0,        [DT_U8] = 0,          [DT_I8] = INT8_MIN,
                                   [DT_I16] = INT16_MIN, [DT_I32] = INT32_MIN, [DT_I64] = INT64_MIN};
  static const int64_t highest[] = {[DT_BOOL] = 1,        [DT_U8] = UINT8_MAX,  [DT_I8] = INT8_MAX,
                                    [DT_I16] = INT16_MAX, [DT_I32] = INT32_MAX, [DT_I64] = INT64_MAX};
  bool ints = dtype_is_integral(d);
  Value v = val_int(start == FROM_ONE);
  if (start == FROM_LOWEST) v = ints ? val_int(lowest[d]) : val_float(-INFINITY);
  if (start == FROM_HIGHEST) v = ints ? val_int(highest[d]) : val_float(INFINITY);
  val_store(&v, d, element);
}

/* Divides every element by how many went into it. */
static Status divide_by_counts(Call *c, Write *w, bool include_self) {
  Tensor *t = &w->to.tensor, shape = *t;
  int64_t n = tensor_numel(t), *counts, one = 1, none[MAX_DIMS] = {0};
  IndexMap map;
  void *flat;
  TRY_NEW(counts, kern_scratch(&c->ctx->kern, (size_t)n * sizeof *counts));
  TRY_NEW(flat, kern_scratch(&c->ctx->kern, (size_t)n * dtype_size(t->dtype)));
  for (int64_t i = 0; i < n; i++) counts[i] = include_self;
  contiguous_strides(shape.ndim, shape.size, shape.stride);
  gather_map(&shape, w->dim, &w->index, &map);
  kernel_scatter(&c->ctx->kern, &map, counts, (View){&one, map.size, none, map.ndim, DT_I64}, SCATTER_ADD);
  View sums = {w->to.data, t->size, t->stride, t->ndim, t->dtype},
       dense = {flat, t->size, shape.stride, t->ndim, t->dtype};
  kernel_copy(&c->ctx->kern, dense, sums);
  kernel_flat_divide(t->dtype, flat, counts, n);
  kernel_copy(&c->ctx->kern, sums, dense);
  return OK;
}

static Status scatter_reduce_body(Call *c) {
  const char *reduce = in_str(c, 4);
  bool include_self = in_bool(c, 5);
  Write w;
  size_t r = 0, count = sizeof reductions / sizeof *reductions;
  while (r < count && (!reduce || strcmp(reduce, reductions[r].name))) r++;
  if (r == count)
    return op_fail(c, "reduce must be sum, prod, mean, amax or amin, not '%s'", reduce ? reduce : "None");
  TRY(scatter_begin(c, &w, true));
  if (!include_self) {
    char start[16];
    int64_t none[MAX_DIMS] = {0};
    store_start(reductions[r].start, w.near.dtype, start);
    kernel_scatter(&c->ctx->kern, &w.map, w.to.data, (View){start, w.map.size, none, w.map.ndim, w.near.dtype},
                   SCATTER_ASSIGN);
  }
  kernel_scatter(&c->ctx->kern, &w.map, w.to.data, w.near, reductions[r].op);
  if (!strcmp(reductions[r].name, "mean")) TRY(divide_by_counts(c, &w, include_self));
  working_end(c, w.out, &w.to);
  return OK;
}

/* ---- index_*: a list of slices ----------------------------------------------------------------- */

/* There is a row for index_fill: one number, given as such or as a 0-d tensor. */
static Status index_begin(Call *c, Write *w, bool sums) {
  const Tensor *index = in_tensor(c, 2), *source = c->op->def->row ? NULL : in_tensor(c, 3);
  if (index->ndim > 1) return op_fail(c, "the index must have at most one dimension, not %d", index->ndim);
  TRY(write_begin(c, w, sums));
  select_map(&w->to.tensor, w->dim, &w->index, &w->map);
  if (source) {
    bool fits = (source->ndim ? source->ndim : 1) == w->map.ndim;
    for (int d = 0; fits && d < source->ndim; d++) fits = source->size[d] == w->map.size[d];
    if (!fits || (source->ndim == 0 && w->map.size[0] != 1))
      return size_mismatch(c, "a source", source, "self", w->self);
  }
  return write_source(c, w, source);
}

static Status index_assign_body(Call *c) {
  Write w;
  TRY(index_begin(c, &w, false));
  kernel_scatter(&c->ctx->kern, &w.map, w.to.data, w.near, SCATTER_ASSIGN);
  return OK;
}

/* alpha times the source is made in scratch, contiguous. */
static Status scale_source(Call *c, Write *w, const Value *alpha) {
  const Tensor *t = &w->from.tensor;
  int64_t n = tensor_numel(t), stride[MAX_DIMS] = {0};
  void *scaled;
  contiguous_strides(t->ndim, t->size, stride);
  TRY_NEW(scaled, kern_scratch(&c->ctx->kern, (size_t)n * dtype_size(t->dtype)));
  kernel_copy(&c->ctx->kern, (View){scaled, t->size, stride, t->ndim, t->dtype},
              (View){w->from.data, t->size, t->stride, t->ndim, t->dtype});
  kernel_flat_scale(t->dtype, scaled, n, val_as_float(alpha), val_as_int(alpha));
  w->from.data = scaled;
  memcpy(w->from.tensor.stride, stride, sizeof stride);
  w->near = near_view(&w->from, &w->map, &w->strides);
  return OK;
}

static Status index_add_body(Call *c) {
  Write w;
  Value alpha;
  TRY(index_begin(c, &w, true));
  TRY(in_number(c, 4, &alpha));
  if (val_as_float(&alpha) != 1) TRY(scale_source(c, &w, &alpha));
  kernel_scatter(&c->ctx->kern, &w.map, w.to.data, w.near, SCATTER_ADD);
  working_end(c, w.out, &w.to);
  return OK;
}

#define RUN(name) \
  static Status name##_run(Call *c) { return with_scratch(c, name##_body); }
RUN(scatter)
RUN(scatter_add)
RUN(scatter_reduce_argument)
RUN(scatter_reduce)
RUN(index_assign)
RUN(index_add)

/* clang-format off */
#define SCATTER(text, fn) \
  {.schema = text, .infer = like_self_infer, .run = fn##_run, .flags = OP_UPDATE, .shard.place = rule_scatter}
#define INDEXED(text, fn, ...) \
  {.schema = text, .infer = like_self_infer, .run = fn##_run, .flags = OP_UPDATE, \
    .shard.place = rule_index_dim, __VA_ARGS__}
#define FILL(text, fn) \
  {.schema = text, .infer = like_self_infer, .run = fn##_run, .flags = OP_UPDATE, .row = "", \
    .shard.place = rule_index_dim}
/* clang-format on */

/* clang-format off */
const OpDef ops_scatter[] = {
    SCATTER("aten::scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", scatter),
    SCATTER("aten::scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor", scatter),
    SCATTER("aten::scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor",
        scatter_reduce_argument),
    SCATTER("aten::scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor", scatter_reduce_argument),
    SCATTER("aten::scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", scatter_add),
    SCATTER("aten::scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool "
            "include_self=True) -> Tensor", scatter_reduce),
    INDEXED("aten::index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor", index_assign,
        .shard.linear = LINEAR_NO),
    INDEXED("aten::index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor",
        index_add, .shard.linear = LINEAR_JOINT),
    FILL("aten::index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor", index_assign),
    FILL("aten::index_fill.int_Tensor(Tensor self, int dim, Tensor index, Tensor value) -> Tensor", index_assign),
    {0},
};
