/* search.c -- where values stand in sorted rows, how often they occur.
 *
 * Values of different dtypes are compared as i64 if both are integers, else as f64.
 * A nan equals nothing, not even itself.
 */
#include <string.h>

#include "kernels/copy.h"
#include "kernels/count.h"
#include "kernels/fill.h"
#include "kernels/sort.h"
#include "ops/aten/indexing.h"
#include "ops/rule.h"

/* An argument (tensor or number) as a contiguous array of i64 or f64. */
static Status flat(const Call *c, int argument, Dtype d, void **out, int64_t *n) {
  const Tensor *t = in_tensor(c, argument);
  *n = t ? tensor_numel(t) : 1;
  TRY_NEW(*out, kern_scratch(&c->ctx->kern, (size_t)*n * dtype_size(d)));
  if (!t) return val_store(&c->arg[argument], d, *out), OK;
  int64_t stride[MAX_DIMS];
  contiguous_strides(t->ndim, t->size, stride);
  kernel_copy(&c->ctx->kern, (View){*out, t->size, stride, t->ndim, d}, tensor_view(t));
  return OK;
}

static Dtype compare_dtype(const Call *c, int a, int b) {
  bool ints = true;
  for (int i = 0; i < 2; i++) {
    const Value *v = &c->arg[i ? b : a];
    ints &= v->kind == VAL_TENSOR ? dtype_is_integral(v->tensor->dtype) : v->kind <= VAL_INT;
  }
  return ints ? DT_I64 : DT_F64;
}

/* ---- searchsorted(sorted, self, out_int32, right, side, sorter), bucketize(self, boundaries, ...) ---- */

typedef struct {
  int sorted, find; /* argument numbers */
} SearchRow;

static bool search_right(const Call *c) {
  const char *side = c->op->schema.nparams > 4 ? in_str(c, 4) : NULL;
  return in_bool(c, 3) || (side && !strcmp(side, "right"));
}

static Status search_infer(Call *c) {
  const SearchRow *row = c->op->def->row;
  Tensor *sorted, *find = in_tensor(c, row->find);
  TRY(need_tensor(c, row->sorted, &sorted));
  if (sorted->ndim == 0) return op_fail(c, "the sorted values must have a dimension");
  if (row->sorted == 1 && sorted->ndim != 1)
    return op_fail(c, "the boundaries must have one dimension, not %d", sorted->ndim);
  bool rows = sorted->ndim > 1;
  if (rows && (!find || find->ndim != sorted->ndim ||
               memcmp(find->size, sorted->size, (size_t)(sorted->ndim - 1) * sizeof *find->size))) {
    return op_fail(c, "sorted rows and values must agree in all dimensions but the last");
  }
  return out_new(c, in_bool(c, 2) ? DT_I32 : DT_I64, find ? find->ndim : 0, find ? find->size : NULL);
}

/* One row for all: the values' dimensions, or the row itself (each rank counts in its part).
 * A row for each: the dimensions that they share. */
static Status search_place(Rules *r) {
  const SearchRow *row = r->call->op->def->row;
  int sorted = rule_input(r, row->sorted, 0), find = rule_input(r, row->find, 0), sorter = r->nin > 2 ? 2 : -1;
  const Tensor *of = r->in[sorted];
  Placement p[4] = {{.kind = PLACE_R}};
  for (int d = 0; find >= 0 && d < r->in[find]->ndim; d++) {
    bool rows = of->ndim > 1 && d < of->ndim - 1;
    p[0] = p[1 + find] = place_s(d);
    p[1 + sorted] = rows ? place_s(d) : place_r();
    if (sorter >= 0) p[1 + sorter] = p[1 + sorted];
    TRY(rule_axis(r, p));
  }
  if (sorter >= 0 || of->ndim > 1) return OK;
  p[0] = place_p(REDUCE_SUM);
  p[1 + sorted] = place_s(0);
  if (find >= 0) p[1 + find] = place_r();
  TRY(rule_axis(r, p));
  for (ReduceOp op = REDUCE_MAX;; op = REDUCE_MIN) { /* grows with the value */
    p[0] = place_p(op);
    p[1 + sorted] = place_r();
    if (find >= 0) p[1 + find] = place_p(op);
    if (find >= 0) TRY(rule_axis(r, p));
    if (op == REDUCE_MIN) return OK;
  }
}

static Status search_body(Call *c) {
  const SearchRow *row = c->op->def->row;
  Tensor *sorted = in_tensor(c, row->sorted), *out = out_tensor(c, 0),
         *sorter = c->op->schema.nparams > 5 ? in_tensor(c, 5) : NULL;
  Dtype d = compare_dtype(c, row->sorted, row->find);
  void *values, *find;
  int64_t all, count, n = sorted->size[sorted->ndim - 1], *places, stride[MAX_DIMS];
  TRY(flat(c, row->sorted, d, &values, &all));
  TRY(flat(c, row->find, d, &find, &count));
  if (sorter) { /* the values in the order that it says */
    Indices order;
    IndexMap map;
    TRY(indices_prepare(c, sorter, n, sorted->ndim - 1, NEGATIVE_FAILS, &order));
    if (!tensor_same_size(sorter, sorted)) return op_fail(c, "the sorter must have the size of the sorted values");
    Tensor shape = *sorted;
    contiguous_strides(shape.ndim, shape.size, shape.stride);
    gather_map(&shape, shape.ndim - 1, &order, &map);
    void *ordered;
    TRY_NEW(ordered, kern_scratch(&c->ctx->kern, (size_t)all * dtype_size(d)));
    kernel_gather(&c->ctx->kern, &map, (View){ordered, shape.size, shape.stride, shape.ndim, d}, values);
    values = ordered;
  }
  TRY_NEW(places, kern_scratch(&c->ctx->kern, (size_t)count * sizeof *places));
  int64_t rows = sorted->ndim > 1 && n ? all / n : 1, each = rows ? count / rows : 0;
  for (int64_t r = 0; r < rows; r++) {
    size_t item = dtype_size(d);
    kernel_search_sorted(d, (char *)values + (size_t)(r * n) * item, n, (char *)find + (size_t)(r * each) * item,
                         each, search_right(c), places + r * each);
  }
  if (sorted->ndim > 1 && n == 0) memset(places, 0, (size_t)count * sizeof *places);
  contiguous_strides(out->ndim, out->size, stride);
  kernel_copy(&c->ctx->kern, tensor_view(out), (View){places, out->size, stride, out->ndim, DT_I64});
  return OK;
}

static Status search_run(Call *c) { return with_scratch(c, search_body); }

/* ---- isin ------------------------------------------------------------------------------------------ */

static Status isin_infer(Call *c) {
  Tensor *elements = in_tensor(c, 0);
  return out_new(c, DT_BOOL, elements ? elements->ndim : 0, elements ? elements->size : NULL);
}

/* A value is there if the places to its left and right in the sorted list differ. */
static Status isin_body(Call *c) {
  Dtype d = compare_dtype(c, 0, 1);
  void *elements, *given, *tests;
  int64_t n, m, *left, *right, one = 1;
  TRY(flat(c, 0, d, &elements, &n));
  TRY(flat(c, 1, d, &given, &m));
  TRY_NEW(tests, kern_scratch(&c->ctx->kern, (size_t)m * dtype_size(d)));
  if (!kernel_sort(&c->ctx->kern, (View){given, &m, &one, 1, d}, 0, false, 0, m, (View){tests, &m, &one, 1, d},
                   (View){0}))
    return fail_oom();
  TRY_NEW(left, kern_scratch(&c->ctx->kern, (size_t)n * sizeof *left));
  TRY_NEW(right, kern_scratch(&c->ctx->kern, (size_t)n * sizeof *right));
  while (m > 0 && d == DT_F64 && ((double *)tests)[m - 1] != ((double *)tests)[m - 1]) m--; /* nan equals nothing */
  kernel_search_sorted(d, tests, m, elements, n, false, left);
  kernel_search_sorted(d, tests, m, elements, n, true, right);
  bool *out = tensor_data(out_tensor(c, 0)), invert = in_bool(c, 3);
  for (int64_t i = 0; i < n; i++) out[i] = (left[i] != right[i]) != invert;
  return OK;
}

static Status isin_run(Call *c) { return with_scratch(c, isin_body); }

/* ---- histc, bincount ---------------------------------------------------------------------------------- */

static Status histc_infer(Call *c) {
  Tensor *self;
  int64_t bins = in_int(c, 1);
  TRY(need_tensor(c, 0, &self));
  if (bins <= 0 || !dtype_is_float(self->dtype))
    return op_fail(c, "needs floats and at least one bin, not %s and %lld", dtype_name(self->dtype),
                   (long long)bins);
  return out_new(c, self->dtype, 1, &bins);
}

static Status histc_body(Call *c) {
  Tensor *self = in_tensor(c, 0), *out = out_tensor(c, 0);
  Dtype d = sum_dtype(self->dtype);
  void *x;
  int64_t n, bins = out->size[0], one = 1, *count;
  Value min, max;
  TRY(in_number(c, 2, &min));
  TRY(in_number(c, 3, &max));
  double low = val_as_float(&min), high = val_as_float(&max);
  TRY(flat(c, 0, d, &x, &n));
  if (low == high && n && !kernel_finite_range(d, x, n, &low, &high))
    return op_fail(c, "the range of the data is not finite");
  if (low == high) low -= 1, high += 1;
  if (!(low < high)) return op_fail(c, "max %g must be larger than min %g", high, low);
  TRY_NEW(count, kern_scratch(&c->ctx->kern, (size_t)bins * sizeof *count));
  kernel_histogram(d, x, n, bins, low, high, count);
  kernel_copy(&c->ctx->kern, tensor_view(out), (View){count, out->size, &one, 1, DT_I64});
  return OK;
}

static Status histc_run(Call *c) { return with_scratch(c, histc_body); }

/* Bins that are given: every rank counts its own. */
static Status histc_place(Rules *r) {
  Fold f = {.lead = 0,
            .any = true,
            .offers = true,
            .leaves_partial = in_float(r->call, 2) != in_float(r->call, 3),
            .partial = place_p(REDUCE_SUM)};
  for (int d = 0; d < r->in[0]->ndim; d++) f.whole[d] = true;
  if (!f.leaves_partial) rule_why(r, "the range of the bins is that of all elements");
  r->uneven = true;
  return rule_fold(r, &f);
}

static Status bincount_body(Call *c) {
  Tensor *self, *weights = in_tensor(c, 1), *out;
  int64_t least, most, minlength = in_int(c, 2), n, *x;
  TRY(need_tensor(c, 0, &self));
  if (self->ndim != 1 || !dtype_is_integral(self->dtype)) return op_fail(c, "expects one dimension of integers");
  if (weights && !tensor_same_size(weights, self)) return op_fail(c, "expects a weight for every element");
  TRY(flat(c, 0, DT_I64, (void **)&x, &n));
  int64_t one = 1;
  kernel_min_max_i64((View){x, &n, &one, 1, DT_I64}, &least, &most);
  if (least < 0 || minlength < 0) return op_fail(c, "elements and minlength must not be negative");
  int64_t size = n && most + 1 > minlength ? most + 1 : minlength;
  TRY(out_now(c, !weights ? DT_I64 : weights->dtype == DT_F32 ? DT_F32 : DT_F64, 1, &size));
  out = out_tensor(c, 0);
  const char zero[16] = {0};
  kernel_fill(&c->ctx->kern, tensor_view(out), zero);
  Working from;
  NearStrides strides;
  int64_t unit = 1, none = 0;
  IndexMap map = {.ndim = 1, .size = {n}, .nindex = 1, .index = {{.data = x, .stride = {1}, .step = 1}}};
  if (weights) TRY(working_begin(c, weights, out->dtype, &from));
  View near = weights ? near_view(&from, &map, &strides) : (View){&unit, map.size, &none, 1, DT_I64};
  kernel_scatter(&c->ctx->kern, &map, tensor_data(out), near, SCATTER_ADD);
  return OK;
}

static Status bincount_run(Call *c) { return with_scratch(c, bincount_body); }

/* ---- repeat_interleave: the index of every repeat ------------------------------------------------------------ */

static Status repeats_infer(Call *c) {
  Tensor *repeats;
  TRY(need_tensor(c, 0, &repeats));
  if (repeats->ndim != 1 || !dtype_is_int(repeats->dtype)) return op_fail(c, "expects one dimension of integers");
  if (in_none(c, 1))
    return fail(ERR_DYNAMIC, "%s: the size of the result is the sum of the repeats", c->op->schema.name);
  int64_t size = in_int(c, 1);
  return out_new(c, DT_I64, 1, &size);
}

static Status repeats_body(Call *c) {
  int64_t n, *count, total = 0;
  TRY(flat(c, 0, DT_I64, (void **)&count, &n));
  for (int64_t i = 0; i < n; i++) {
    if (count[i] < 0 || __builtin_add_overflow(total, count[i], &total))
      return op_fail(c, "cannot repeat %lld times", (long long)count[i]);
  }
  if (c->nout == 0) TRY(out_now(c, DT_I64, 1, &total));
  Tensor *out = out_tensor(c, 0);
  if (out->size[0] != total)
    return op_fail(c, "output_size is %lld, the repeats add up to %lld", (long long)out->size[0], (long long)total);
  int64_t *index = tensor_data(out);
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < count[i]; j++) *index++ = i;
  }
  return OK;
}

static Status repeats_run(Call *c) { return with_scratch(c, repeats_body); }

static Status repeat_interleave_compose(Call *c) {
  Tensor *self, *repeats, *index, *result;
  int dim = 0;
  TRY(need_tensor(c, 0, &self));
  TRY(need_tensor(c, 1, &repeats));
  if (in_none(c, 2)) TRY(OP(c, "aten.ravel.default", &self, val_tensor(self)));
  else TRY(wrap_dim(c, in_int(c, 2), self->ndim, &dim));
  if (self->ndim == 0) TRY(OP(c, "aten.unsqueeze.default", &self, val_tensor(self), val_int(0)));
  int64_t size = self->size[dim];
  if (tensor_numel(repeats) == 1) { /* one number for all */
    int64_t one = 1;
    TRY(OP(c, "aten.reshape.default", &repeats, val_tensor(repeats), val_ints(&one, 1)));
    TRY(OP(c, "aten.expand.default", &repeats, val_tensor(repeats), val_ints(&size, 1)));
  }
  if (repeats->ndim != 1 || repeats->size[0] != size)
    return op_fail(c, "needs a repeat for each of the %lld elements of dimension %d", (long long)size, dim);
  TRY(OP(c, "aten.repeat_interleave.Tensor", &index, val_tensor(repeats), c->arg[3]));
  TRY(OP(c, "aten.index_select.default", &result, val_tensor(self), val_int(dim), val_tensor(index)));
  return out_value(c, val_tensor(result));
}

/* clang-format off */
#define SEARCH_OP(text, ...) \
  {.schema = text, .infer = search_infer, .run = search_run, .shard.place = search_place, \
    .row = &(const SearchRow){__VA_ARGS__}}
#define ISIN(text) {.schema = text, .infer = isin_infer, .run = isin_run}
/* clang-format on */

/* clang-format off */
const OpDef ops_search[] = {
    SEARCH_OP("aten::searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool "
              "right=False, str? side=None, Tensor? sorter=None) -> Tensor", 0, 1),
    SEARCH_OP("aten::searchsorted.Scalar(Tensor sorted_sequence, Scalar self, *, bool out_int32=False, bool "
              "right=False, str? side=None, Tensor? sorter=None) -> Tensor", 0, 1),
    SEARCH_OP("aten::bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) "
              "-> Tensor", 1, 0),
    SEARCH_OP("aten::bucketize.Scalar(Scalar self, Tensor boundaries, *, bool out_int32=False, bool right=False) "
              "-> Tensor", 1, 0),
    ISIN("aten::isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool "
         "invert=False) -> Tensor"),
    ISIN("aten::isin.Tensor_Scalar(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool "
         "invert=False) -> Tensor"),
    ISIN("aten::isin.Scalar_Tensor(Scalar element, Tensor test_elements, *, bool assume_unique=False, bool "
         "invert=False) -> Tensor"),
    {.schema = "aten::histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor",
     .infer = histc_infer, .run = histc_run, .shard.place = histc_place},
    {.schema = "aten::bincount(Tensor self, Tensor? weights=None, SymInt minlength=0) -> Tensor",
     .run = bincount_run, .flags = OP_DYNAMIC},
    {.schema = "aten::repeat_interleave.Tensor(Tensor repeats, *, SymInt? output_size=None) -> Tensor",
     .infer = repeats_infer, .run = repeats_run},
    {.schema = "aten::repeat_interleave.self_Tensor(Tensor self, Tensor repeats, int? dim=None, *, SymInt? "
               "output_size=None) -> Tensor", .compose = repeat_interleave_compose},
    {0},
};
