/* reduce.c -- sums, products, extremes, logic, variances and norms over dimensions.
 *
 * One infer and one run for all; a row says what is folded, where the arguments stand
 * and which dtype comes out.  Positions of extremes are in argreduce.c.
 *
 * An empty list of dimensions means all of them, as a rule; `any.dims` and `all.dims`
 * take it at its word.
 *
 * Sharding: a shard of a folded dimension leaves a partial fold; a mean
 * over equal shards is the mean of means (P(avg)).
 */
#include <math.h>
#include <string.h>

#include "kernels/copy.h"
#include "kernels/reduce.h"
#include "ops/aten/reduce_parts.h"
#include "ops/rule.h"

/* The dtype of the result, unless a dtype argument says otherwise. */
typedef enum {
  GIVES_SAME,    /* the input's */
  GIVES_TOTAL,   /* i64 for bools and integers, else the input's */
  GIVES_FLOAT,   /* the input's, which must be a float */
  GIVES_FLOATED, /* f32 for bools and integers, else the input's */
  GIVES_TRUTH,   /* bool, but u8 for u8 */
  GIVES_COUNT,   /* i64 */
} Gives;

typedef struct {
  Reduction r;
  Gives gives;
  /* Positions of arguments; 0 (which is self) means there is none. */
  int dim, keepdim, dtype;
  int unbiased, correction; /* var and std */
  int ord;                  /* norms */
  int count;                /* mean_part: what to divide by */
  bool empty_is_none;       /* dim=[] reduces nothing */
  bool needs_elements;      /* has no identity */
} Row;

typedef struct {
  Reduction r;
  Dtype as, out;
  bool mask[MAX_DIMS];
  bool keepdim;
} Request;

/* ---- arguments --------------------------------------------------------------------- */

static Status read_dims(const Call *c, const Row *row, const Tensor *x, bool *mask) {
  const Value *v = row->dim ? &c->arg[row->dim] : NULL;
  memset(mask, 0, MAX_DIMS * sizeof *mask);
  bool all = !v || v->kind == VAL_NONE || (v->kind == VAL_INTS && v->n == 0 && !row->empty_is_none);
  if (all) {
    for (int d = 0; d < x->ndim; d++) mask[d] = true;
    return OK;
  }
  if (v->kind == VAL_INT) return wrap_dims(c, (Ints){&v->i, 1}, x->ndim, mask);
  return wrap_dims(c, in_ints(c, row->dim), x->ndim, mask);
}

static Status read_dtype(const Call *c, const Row *row, const Tensor *x, Dtype *out) {
  char text[128];
  Dtype d = x->dtype;
  bool adds = row->r.kind == FOLD_SUM && !row->ord && (row->gives == GIVES_TOTAL || row->gives == GIVES_FLOAT);
  if (d == DT_C64 && adds && (!row->dtype || in_none(c, row->dtype) || in_dtype(c, row->dtype, d) == d))
    return *out = d, OK;
  if (dtype_kind(d) > KIND_FLOAT) return op_fail(c, "%s is not supported", tensor_describe(x, text, sizeof text));
  bool given = row->dtype && !in_none(c, row->dtype);
  if (given) d = in_dtype(c, row->dtype, d);
  if (dtype_kind(d) > KIND_FLOAT) return op_fail(c, "there are no such sums of %s", dtype_name(d));
  switch (row->gives) {
    case GIVES_SAME: break;
    case GIVES_TOTAL:
      if (!given && dtype_is_integral(d)) d = DT_I64;
      break;
    case GIVES_FLOAT:
      if (!dtype_is_float(d)) {
        return op_fail(c, "%s: the input or the dtype argument must be a float",
                       tensor_describe(x, text, sizeof text));
      }
      break;
    case GIVES_FLOATED:
      if (!given && dtype_is_integral(d)) d = DT_F32;
      break;
    case GIVES_TRUTH: d = d == DT_U8 ? DT_U8 : DT_BOOL; break;
    case GIVES_COUNT: d = DT_I64; break;
  }
  *out = d;
  return OK;
}

static Reduction norm_reduction(double ord) {
  if (ord == 0) return (Reduction){FOLD_COUNT, FINISH_NONE, 0};
  if (ord == 1) return (Reduction){FOLD_ABSSUM, FINISH_NONE, 0};
  if (ord == 2) return (Reduction){FOLD_SQUARES, FINISH_SQRT, 0};
  if (isinf(ord)) return (Reduction){ord > 0 ? FOLD_ABSMAX : FOLD_ABSMIN, FINISH_NONE, 0};
  return (Reduction){FOLD_POWERS, FINISH_ROOT, ord};
}

/* In which type elements are folded.  Bytes fit f32 exactly, except as factors. */
static Dtype fold_type(const Row *row, const Request *p, Dtype in) {
  Dtype d = row->gives == GIVES_TRUTH || row->gives == GIVES_COUNT ? in : p->out;
  if (d == DT_F64) return DT_F64;
  if (dtype_is_float(d) || d == DT_C64) return DT_F32;
  bool same = d == in || row->gives == GIVES_TOTAL;
  return same && dtype_size(in) == 1 && p->r.kind != FOLD_PROD ? DT_F32 : DT_I64;
}

static Status read_request(const Call *c, Request *p) {
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 0);
  if (!x) return op_fail(c, "the input is not a tensor");
  p->r = row->r;
  p->keepdim = row->keepdim && in_bool(c, row->keepdim);
  TRY(read_dims(c, row, x, p->mask));
  TRY(read_dtype(c, row, x, &p->out));
  if (row->ord) p->r = norm_reduction(in_none(c, row->ord) ? 2 : in_float(c, row->ord));
  if (row->count) p->r.param = in_float(c, row->count);
  if (row->unbiased) p->r.param = in_bool(c, row->unbiased);
  if (row->correction) p->r.param = in_none(c, row->correction) ? 1 : in_float(c, row->correction);
  if (dtype_is_integral(p->out) && p->r.kind == FOLD_NANSUM) p->r.kind = FOLD_SUM;
  if (p->out == DT_BOOL && p->r.kind == FOLD_SUM) p->r.kind = FOLD_ANY;
  if (p->out == DT_BOOL && p->r.kind == FOLD_PROD) p->r.kind = FOLD_ALL;
  p->as = fold_type(row, p, x->dtype);
  bool undefined = row->needs_elements || p->r.kind == FOLD_ABSMAX || p->r.kind == FOLD_ABSMIN;
  for (int d = 0; undefined && d < x->ndim; d++) {
    char text[128];
    if (p->mask[d] && x->size[d] == 0) {
      return op_fail(c, "%s has no elements along dimension %d and the reduction no identity",
                     tensor_describe(x, text, sizeof text), d);
    }
  }
  return OK;
}

/* ---- infer and run ----------------------------------------------------------------- */

static Status reduce_infer(Call *c) {
  Request p;
  TRY(read_request(c, &p));
  const Tensor *x = in_tensor(c, 0);
  int64_t size[MAX_DIMS];
  int n = 0;
  for (int d = 0; d < x->ndim; d++) {
    if (!p.mask[d]) size[n++] = x->size[d];
    else if (p.keepdim) size[n++] = 1;
  }
  return out_new(c, p.out, n, size);
}

/* Complex numbers as pairs of real ones, along a last dimension. */
static View pairs(View v, int64_t *size, int64_t *stride) {
  for (int d = 0; d < v.ndim; d++) size[d] = v.size[d], stride[d] = 2 * v.stride[d];
  size[v.ndim] = 2, stride[v.ndim] = 1;
  return (View){v.data, size, stride, v.ndim + 1, DT_F32};
}

/* Sums of complex numbers: out has x's dimensions, with stride 0 where they are folded. */
static Status sum_pairs(Call *c, const Request *p, View out, View x) {
  int64_t size[2][MAX_DIMS + 1], stride[2][MAX_DIMS + 1];
  bool mask[MAX_DIMS] = {0};
  if (x.ndim == MAX_DIMS) return op_fail(c, "sums of complex numbers have at most %d dimensions", MAX_DIMS - 1);
  memcpy(mask, p->mask, (size_t)x.ndim * sizeof *mask);
  out.size = x.size, out.ndim = x.ndim;
  kernel_reduce(&c->ctx->kern, p->r, p->as, pairs(out, size[0], stride[0]), pairs(x, size[1], stride[1]), mask);
  return OK;
}

static Status reduce_run(Call *c) {
  Request p;
  TRY(read_request(c, &p));
  Kern *k = &c->ctx->kern;
  View x = in_view(c, 0), out = out_view_of(c, 0);
  int64_t stride[MAX_DIMS], scratch_stride[MAX_DIMS];
  for (int d = 0, o = 0; d < x.ndim; d++) {
    stride[d] = p.mask[d] ? 0 : out.stride[o];
    o += !p.mask[d] || p.keepdim;
  }
  out.stride = stride;
  if (x.dtype == DT_C64) return sum_pairs(c, &p, out, x);
  size_t mark = kern_mark(k);
  /* A dtype argument converts the elements first; to the 16-bit floats that rounds. */
  const Row *row = c->op->def->row;
  bool rounds = row->dtype && x.dtype != p.out && (p.out == DT_F16 || p.out == DT_BF16);
  if (rounds) {
    View half = {.size = x.size, .stride = scratch_stride, .ndim = x.ndim, .dtype = p.out};
    contiguous_strides(x.ndim, x.size, scratch_stride);
    TRY_NEW(half.data, kern_scratch(k, (size_t)tensor_numel(in_tensor(c, 0)) * 2));
    kernel_copy(k, half, x);
    x = half;
  }
  kernel_reduce(k, p.r, p.as, out, x, p.mask);
  kern_release(k, mark);
  return OK;
}

/* Two results of the same sizes. */
static Status pair_infer(Call *c) {
  TRY(reduce_infer(c));
  return reduce_infer(c);
}

/* ---- sharding -------------------------------------------------------------------------- */

/* What a shard of a folded dimension leaves partial, and which partial values pass; false:
 * such dimensions must be whole. */
static bool find_partial(const Rules *r, const Request *p, Fold *f) {
  const Tensor *x = r->in[0];
  bool truth = x->dtype == DT_BOOL;
  enum { SUM = 1 << REDUCE_SUM, AVG = 1 << REDUCE_AVG };
  switch (p->r.kind) {
    case FOLD_SUM:
      f->passes = (truth ? 0 : SUM) | (dtype_is_integral(x->dtype) ? 0 : AVG);
      f->partial = place_p(p->r.finish == FINISH_MEAN && rule_is_even(r, 0, p->mask) ? REDUCE_AVG : REDUCE_SUM);
      return true;
    case FOLD_PROD: f->passes = truth ? 0 : 1 << REDUCE_PRODUCT, f->partial = place_p(REDUCE_PRODUCT); return true;
    case FOLD_MAX: f->passes = 1 << REDUCE_MAX, f->partial = place_p(REDUCE_MAX); return true;
    case FOLD_MIN: f->passes = 1 << REDUCE_MIN, f->partial = place_p(REDUCE_MIN); return true;
    case FOLD_ANY: /* a sum of bools is their `or` */
      f->passes = truth ? SUM | 1 << REDUCE_MAX : 0;
      f->partial = place_p(p->out == DT_BOOL ? REDUCE_SUM : REDUCE_MAX);
      return true;
    case FOLD_ALL:
      f->passes = truth ? 1 << REDUCE_PRODUCT | 1 << REDUCE_MIN : 0, f->partial = place_p(REDUCE_PRODUCT);
      return true;
    case FOLD_NANSUM:
    case FOLD_COUNT: f->partial = place_p(REDUCE_SUM); return true;
    case FOLD_ABSMAX: f->partial = place_p(REDUCE_MAX); return true;
    case FOLD_ABSMIN: f->partial = place_p(REDUCE_MIN); return true;
    case FOLD_ABSSUM: f->norm = 1; break;
    case FOLD_SQUARES: f->norm = 2; break;
    case FOLD_POWERS: f->norm = p->r.param; break;
    default: return false;
  }
  f->partial = (Placement){.kind = PLACE_P, .op = REDUCE_SUM, .norm = f->norm};
  return true;
}

static Status place_reduce(Rules *r) {
  const Row *row = r->call->op->def->row;
  Request p;
  Fold f = {.lead = 0};
  TRY(read_request(r->call, &p));
  bool undefined = row->needs_elements || p.r.kind == FOLD_ABSMAX || p.r.kind == FOLD_ABSMIN;
  memcpy(f.whole, p.mask, sizeof f.whole);
  f.drops = !p.keepdim;
  /* Collectives add no complex numbers. */
  f.leaves_partial = p.out != DT_C64 && find_partial(r, &p, &f) && !(undefined && rule_has_empty(r, 0, p.mask));
  r->uneven = !undefined;
  return rule_fold(r, &f);
}

/* Variances, their pairs with a mean, logsumexp along a dimension that is cut. */
static Status fold_in_parts(Call *c, const Sharded *how, bool *done) {
  Request p;
  TRY(read_request(c, &p));
  *done = (p.r.kind == FOLD_VARIANCE || p.r.kind == FOLD_EXPSUM) && sharded_along(how, c, 0, p.mask);
  if (!*done) return OK;
  if (c->op->def->compose) return c->op->def->compose(c);
  const PartsRequest parts = {p.mask, p.keepdim, p.out, p.r.param, p.r.finish == FINISH_STD};
  return p.r.kind == FOLD_VARIANCE ? variance_in_parts(c, &parts) : logsumexp_in_parts(c, &parts);
}

/* aminmax: folded shards leave the smallest of the first result, the largest of the second. */
static Status place_extremes(Rules *r) {
  Request p;
  Placement place[3];
  TRY(read_request(r->call, &p));
  r->whole_last = true;
  bool empty = rule_has_empty(r, 0, p.mask); /* a shard of no elements has no extremes */
  for (int d = 0, to = 0; d < r->in[0]->ndim; d++) {
    if (p.mask[d] && empty) {
      to += p.keepdim;
      continue;
    }
    place[2] = place_s(d);
    place[0] = p.mask[d] ? place_p(REDUCE_MIN) : place_s(to);
    place[1] = p.mask[d] ? place_p(REDUCE_MAX) : place_s(to);
    to += !p.mask[d] || p.keepdim;
    TRY(rule_axis(r, place));
  }
  return OK;
}

/* A mean over shards of several sizes: each rank divides its sum by the number of all. */
static Status localize_mean(Local *l) {
  Request p;
  double count = 1;
  bool cut = false;
  TRY(read_request(l->call, &p));
  for (int a = 0; a < l->naxes; a++)
    cut |= is_s(&local_place_in(l, 0)[a]) && p.mask[local_place_in(l, 0)[a].dim] &&
           local_place_out(l, 0)[a].op == REDUCE_SUM;
  if (!cut) return OK;
  for (int d = 0; d < l->in[0]->ndim; d++) count *= p.mask[d] ? (double)l->in[0]->size[d] : 1;
  const Row *row = l->def->row;
  Value dim = row->dim ? l->arg[row->dim] : val_none(), dtype = l->arg[row->dtype];
  l->op = op_find("tess.mean_part.default");
  l->arg[1] = dim;
  l->arg[2] = val_bool(p.keepdim);
  l->arg[3] = val_float(count);
  l->arg[4] = dtype;
  return OK;
}

/* ---- written with other ops --------------------------------------------------------- */

static Status pair(Call *c, Tensor *a, Tensor *b) {
  TRY(out_value(c, val_tensor(a)));
  return out_value(c, val_tensor(b));
}

/* var_mean, std_mean: (self, dim, correction or unbiased, keepdim) where the overload has them. */
static Status with_mean(Call *c, const char *variance, Value dim, Value correction, Value keepdim) {
  Tensor *v, *m, *x = in_tensor(c, 0);
  TRY(OP(c, variance, &v, val_tensor(x), dim, correction, keepdim));
  TRY(OP(c, "aten.mean.dim", &m, val_tensor(x), dim, keepdim));
  return pair(c, v, m);
}

static const char *variance_name(const Call *c) {
  return strstr(c->op->schema.name, ".std_mean") ? "aten.std.correction" : "aten.var.correction";
}

static Status mean_default(Call *c) {
  return with_mean(c, variance_name(c), val_none(), val_int(in_bool(c, 1)), val_bool(false));
}
static Status mean_dim(Call *c) {
  return with_mean(c, variance_name(c), c->arg[1], val_int(in_bool(c, 2)), val_bool(in_bool(c, 3)));
}
static Status mean_correction(Call *c) {
  return with_mean(c, variance_name(c), c->arg[1], c->arg[2], val_bool(in_bool(c, 3)));
}

static Status aminmax(Call *c) {
  Tensor *low, *high, *x = in_tensor(c, 0);
  int64_t dim = in_none(c, 1) ? 0 : in_int(c, 1);
  Value dims = val_ints(&dim, in_none(c, 1) ? 0 : 1), keepdim = val_bool(in_bool(c, 2));
  TRY(OP(c, "aten.amin.default", &low, val_tensor(x), dims, keepdim));
  TRY(OP(c, "aten.amax.default", &high, val_tensor(x), dims, keepdim));
  return pair(c, low, high);
}

static Status nanmean(Call *c) {
  Tensor *x = in_tensor(c, 0), *sum, *nan, *number, *count, *mean;
  TRY(OP(c, "aten.nansum.default", &sum, val_tensor(x), c->arg[1], c->arg[2], c->arg[3]));
  TRY(OP(c, "aten.isnan.default", &nan, val_tensor(x)));
  TRY(OP(c, "aten.logical_not.default", &number, val_tensor(nan)));
  TRY(OP(c, "aten.sum.dim_IntList", &count, val_tensor(number), c->arg[1], c->arg[2]));
  TRY(OP(c, "aten.div.Tensor", &mean, val_tensor(sum), val_tensor(count)));
  return out_value(c, val_tensor(mean));
}

static Status other(Call *c, const char *name) {
  Tensor *y;
  TRY(OP(c, name, &y, c->arg[0], c->arg[1]));
  return out_value(c, val_tensor(y));
}
static Status max_other(Call *c) { return other(c, "aten.maximum.default"); }
static Status min_other(Call *c) { return other(c, "aten.minimum.default"); }

/* linalg_norm: a vector norm, unless ord asks for a matrix norm that is not Frobenius'. */
static Status linalg_norm(Call *c) {
  const Tensor *x = in_tensor(c, 0);
  Tensor *y;
  bool matrix = !in_none(c, 1) && ((in_none(c, 2) && x->ndim == 2) || in_ints(c, 2).n == 2);
  const char *word = in_str(c, 1);
  if ((word && strcmp(word, "fro") != 0) || (matrix && !word)) {
    return op_fail(c, "matrix norms other than 'fro' are not supported");
  }
  Value ord = word || in_none(c, 1) ? val_float(2) : c->arg[1];
  TRY(OP(c, "aten.linalg_vector_norm.default", &y, val_tensor(x), ord, c->arg[2], c->arg[3], c->arg[4]));
  return out_value(c, val_tensor(y));
}

static Status matrix_norm(Call *c) {
  Tensor *y;
  if (strcmp(in_str(c, 1), "fro") != 0) return op_fail(c, "matrix norms other than 'fro' are not supported");
  TRY(OP(c, "aten.linalg_vector_norm.default", &y, c->arg[0], val_float(2), c->arg[2], c->arg[3], c->arg[4]));
  return out_value(c, val_tensor(y));
}

/* ---- the table ---------------------------------------------------------------------- */

/* clang-format off */
#define REDUCE(text, ...) \
  {.schema = "aten::" text, .infer = reduce_infer, .run = reduce_run, .shard.place = place_reduce, \
    .row = &(const Row){__VA_ARGS__}}
#define PARTED(text, ...) \
  {.schema = "aten::" text, .infer = reduce_infer, .run = reduce_run, .shard.place = place_reduce, \
    .shard.compose_sharded = fold_in_parts, .row = &(const Row){__VA_ARGS__}}
#define MEAN(text, ...) \
  {.schema = text, .infer = reduce_infer, .run = reduce_run, .shard.place = place_reduce, \
    .shard.localize = localize_mean, .row = &(const Row){FOLD(SUM, MEAN), __VA_ARGS__}}
#define PAIR(text, fn, placed, ...) \
  {.schema = "aten::" text, .compose = fn, .infer = pair_infer, .shard.place = placed, \
    .shard.compose_sharded = fold_in_parts, .row = &(const Row){__VA_ARGS__}}
#define COMPOSE(text, fn) {.schema = "aten::" text, .compose = fn}
/* clang-format on */
#define FOLD(kind, finish) .r = {FOLD_##kind, FINISH_##finish, 0}

/* clang-format off */
const OpDef ops_reduce[] = {
    REDUCE("sum(Tensor self, *, ScalarType? dtype=None) -> Tensor",
           FOLD(SUM, NONE), .gives = GIVES_TOTAL, .dtype = 1),
    REDUCE("sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
           FOLD(SUM, NONE), .gives = GIVES_TOTAL, .dim = 1, .keepdim = 2, .dtype = 3),
    REDUCE("nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
           FOLD(NANSUM, NONE), .gives = GIVES_TOTAL, .dim = 1, .keepdim = 2, .dtype = 3),
    MEAN("aten::mean(Tensor self, *, ScalarType? dtype=None) -> Tensor", .gives = GIVES_FLOAT, .dtype = 1),
    MEAN("aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
         .gives = GIVES_FLOAT, .dim = 1, .keepdim = 2, .dtype = 3),
    MEAN("tess::mean_part(Tensor self, int[1]? dim, bool keepdim, float count, *, ScalarType? dtype=None) -> "
         "Tensor",
         .gives = GIVES_FLOAT, .dim = 1, .keepdim = 2, .dtype = 4, .count = 3),
    REDUCE("prod(Tensor self, *, ScalarType? dtype=None) -> Tensor",
           FOLD(PROD, NONE), .gives = GIVES_TOTAL, .dtype = 1),
    REDUCE("prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
           FOLD(PROD, NONE), .gives = GIVES_TOTAL, .dim = 1, .keepdim = 2, .dtype = 3),
    REDUCE("count_nonzero(Tensor self, int? dim=None) -> Tensor", FOLD(COUNT, NONE), .gives = GIVES_COUNT,
        .dim = 1),
    REDUCE("count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor", FOLD(COUNT, NONE), .gives = GIVES_COUNT,
        .dim = 1),

    REDUCE("amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor",
           FOLD(MAX, NONE), .dim = 1, .keepdim = 2, .needs_elements = true),
    REDUCE("amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor",
           FOLD(MIN, NONE), .dim = 1, .keepdim = 2, .needs_elements = true),
    REDUCE("max(Tensor self) -> Tensor", FOLD(MAX, NONE), .needs_elements = true),
    REDUCE("min(Tensor self) -> Tensor", FOLD(MIN, NONE), .needs_elements = true),

    REDUCE("any(Tensor self) -> Tensor", FOLD(ANY, NONE), .gives = GIVES_TRUTH),
    REDUCE("any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor",
           FOLD(ANY, NONE), .gives = GIVES_TRUTH, .dim = 1, .keepdim = 2),
    REDUCE("any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
           FOLD(ANY, NONE), .gives = GIVES_TRUTH, .dim = 1, .keepdim = 2, .empty_is_none = true),
    REDUCE("all(Tensor self) -> Tensor", FOLD(ALL, NONE), .gives = GIVES_TRUTH),
    REDUCE("all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor",
           FOLD(ALL, NONE), .gives = GIVES_TRUTH, .dim = 1, .keepdim = 2),
    REDUCE("all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
           FOLD(ALL, NONE), .gives = GIVES_TRUTH, .dim = 1, .keepdim = 2, .empty_is_none = true),
    REDUCE("_is_all_true(Tensor self) -> Tensor", FOLD(ALL, NONE), .gives = GIVES_TRUTH),
    REDUCE("_is_any_true(Tensor self) -> Tensor", FOLD(ANY, NONE), .gives = GIVES_TRUTH),

    PARTED("var(Tensor self, bool unbiased=True) -> Tensor", FOLD(VARIANCE, VAR), .gives = GIVES_FLOAT,
        .unbiased = 1),
    PARTED("var.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor",
           FOLD(VARIANCE, VAR), .gives = GIVES_FLOAT, .dim = 1, .unbiased = 2, .keepdim = 3),
    PARTED("var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> "
           "Tensor",
           FOLD(VARIANCE, VAR), .gives = GIVES_FLOAT, .dim = 1, .correction = 2, .keepdim = 3),
    PARTED("std(Tensor self, bool unbiased=True) -> Tensor", FOLD(VARIANCE, STD), .gives = GIVES_FLOAT,
        .unbiased = 1),
    PARTED("std.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor",
           FOLD(VARIANCE, STD), .gives = GIVES_FLOAT, .dim = 1, .unbiased = 2, .keepdim = 3),
    PARTED("std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> "
           "Tensor",
           FOLD(VARIANCE, STD), .gives = GIVES_FLOAT, .dim = 1, .correction = 2, .keepdim = 3),
    PARTED("logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor",
           FOLD(EXPSUM, LOG), .gives = GIVES_FLOATED, .dim = 1, .keepdim = 2),

    REDUCE("linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? "
           "dtype=None) -> Tensor",
           .gives = GIVES_FLOAT, .ord = 1, .dim = 2, .keepdim = 3, .dtype = 4),
    REDUCE("norm.Scalar(Tensor self, Scalar p=2) -> Tensor", .gives = GIVES_FLOAT, .ord = 1),
    REDUCE("norm.ScalarOpt_dtype(Tensor self, Scalar? p, *, ScalarType dtype) -> Tensor",
           .gives = GIVES_FLOAT, .ord = 1, .dtype = 2),
    REDUCE("norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor",
           .gives = GIVES_FLOAT, .ord = 1, .dim = 2, .keepdim = 3),
    REDUCE("norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype) -> "
           "Tensor",
           .gives = GIVES_FLOAT, .ord = 1, .dim = 2, .keepdim = 3, .dtype = 4),
    REDUCE("frobenius_norm.dim(Tensor self, int[1] dim, bool keepdim=False) -> Tensor",
           FOLD(SQUARES, SQRT), .gives = GIVES_FLOAT, .dim = 1, .keepdim = 2),

    PAIR("var_mean(Tensor self, bool unbiased=True) -> (Tensor, Tensor)", mean_default, place_reduce,
        FOLD(VARIANCE, VAR), .gives = GIVES_FLOAT),
    PAIR("var_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)",
        mean_dim, place_reduce,
         FOLD(VARIANCE, VAR), .gives = GIVES_FLOAT, .dim = 1, .keepdim = 3),
    PAIR("var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> "
         "(Tensor, Tensor)",
         mean_correction, place_reduce, FOLD(VARIANCE, VAR), .gives = GIVES_FLOAT, .dim = 1, .keepdim = 3),
    PAIR("std_mean(Tensor self, bool unbiased=True) -> (Tensor, Tensor)", mean_default, place_reduce,
        FOLD(VARIANCE, VAR), .gives = GIVES_FLOAT),
    PAIR("std_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)",
        mean_dim, place_reduce,
         FOLD(VARIANCE, VAR), .gives = GIVES_FLOAT, .dim = 1, .keepdim = 3),
    PAIR("std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> "
         "(Tensor, Tensor)",
         mean_correction, place_reduce, FOLD(VARIANCE, VAR), .gives = GIVES_FLOAT, .dim = 1, .keepdim = 3),
    PAIR("aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)", aminmax,
        place_extremes,
         FOLD(MIN, NONE), .dim = 1, .keepdim = 2, .needs_elements = true),
    COMPOSE("nanmean(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        nanmean),
    COMPOSE("max.other(Tensor self, Tensor other) -> Tensor", max_other),
    COMPOSE("min.other(Tensor self, Tensor other) -> Tensor", min_other),
    COMPOSE("linalg_norm(Tensor self, Scalar? ord=None, int[1]? dim=None, bool keepdim=False, *, ScalarType? "
            "dtype=None) -> Tensor",
            linalg_norm),
    COMPOSE("linalg_norm.ord_str(Tensor self, str ord, int[1]? dim=None, bool keepdim=False, *, ScalarType? "
            "dtype=None) -> Tensor",
            linalg_norm),
    COMPOSE("linalg_matrix_norm.str_ord(Tensor self, str ord=\"fro\", int[] dim=[-2,-1], bool keepdim=False, *, "
            "ScalarType? dtype=None) -> Tensor",
            matrix_norm),
    {0}};
/* clang-format on */
