/* random.c -- random tensors, dropout.
 *
 * Numbers come from the context's stream: key ctx->seed, next block ctx->offset
 * (kernels/random.h).  Every op moves the offset on by what its whole tensor takes
 * (.draws); an output that is the shard of a larger tensor (Call.shard) takes the numbers
 * of its elements there, so a tensor is the same however it is spread.
 */
#include <math.h>
#include <string.h>

#include "kernels/copy.h"
#include "kernels/random.h"
#include "kernels/sort.h"
#include "ops/geometry.h"
#include "ops/rule.h"

enum { NO = -1 };

/* Where the arguments are; NO: the op has none of this kind. */
typedef struct {
  RandomKind kind;
  int like, size, dtype, format;
  int a, b;      /* parameters of the distribution */
  int low, high; /* of integers */
} RandomRow;

static Status random_infer(Call *c) {
  const RandomRow *row = c->op->def->row;
  Tensor *like = NULL;
  Dtype dtype = row->kind == RANDOM_INTEGER ? DT_I64 : DT_F32;
  if (row->like != NO) {
    TRY(need_tensor(c, row->like, &like));
    dtype = like->dtype;
  }
  if (row->dtype != NO) dtype = in_dtype(c, row->dtype, dtype);
  bool any_dtype = row->kind == RANDOM_INTEGER || row->kind == RANDOM_BERNOULLI;
  if (!dtype_is_float(dtype) && !(any_dtype && dtype_is_integral(dtype)))
    return op_fail(c, "cannot make %s", dtype_name(dtype));
  if (like) return out_format(c, dtype, like, row->format == NO ? NULL : &c->arg[row->format]);
  return out_new(c, dtype, in_ints(c, row->size).n, in_ints(c, row->size).v);
}

/* ---- filling -------------------------------------------------------------------------------------- */

static void begin_draw(Call *c, Random *r) {
  r->seed = c->ctx->seed;
  r->offset = c->ctx->offset;
  c->ctx->offset += call_draws(c);
}

/* The elements of the whole that a shard holds.  The last dimension that is cut gives the
 * stretches; those behind it are whole, those before it are walked through. */
static Status part_of(const ShardOf *s, Arena *arena, int64_t *size, int64_t **at, RandomPart *part) {
  const Layout *l = &s->layout;
  Runs runs = {.n = 0};
  int cut = l->ndim;
  int64_t inner = 1, stride[MAX_DIMS];
  contiguous_strides(l->ndim, l->shape, stride);
  while (cut > 0) {
    TRY(layout_runs(l, s->coord, --cut, arena, &runs));
    inner = stride[cut];
    if (runs.size != l->shape[cut]) break;
  }
  RandomStretch *stretch;
  int64_t before = 0;
  TRY_NEW(stretch, arena_new_n(arena, RandomStretch, runs.n + 1));
  stretch[0] = (RandomStretch){0, 1, 0}; /* no dimensions: one element */
  for (int i = 0; i < runs.n; before += stretch[i++].n)
    stretch[i] = (RandomStretch){runs.run[i].begin * inner, runs.run[i].size * inner, before};
  for (int d = 0; d < cut; d++) {
    TRY(layout_indices(l, s->coord, d, arena, &at[d], &size[d]));
    for (int64_t i = 0; i < size[d]; i++) at[d][i] *= stride[d];
  }
  *part = (RandomPart){.ndim = cut, .size = size, .at = at, .stretch = stretch, .nstretches = l->ndim ? runs.n : 1};
  return OK;
}

static Status make_dense(Call *c, const Random *r, Dtype d, void *out, int64_t n) {
  const ShardOf *shard = c->shard;
  if (!shard) return kernel_random(&c->ctx->kern, r, d, out, 0, n), OK;
  Arena arena = {0};
  RandomPart part;
  int64_t size[MAX_DIMS], *at[MAX_DIMS];
  Status s = part_of(shard, &arena, size, at, &part);
  if (!s && n) kernel_random_part(&c->ctx->kern, r, d, out, &part);
  arena_free(&arena);
  return s;
}

/* Fills output 0; strided ones through scratch, in row-major order. */
static Status fill_random(Call *c, Random *r, Tensor *out) {
  Kern *k = &c->ctx->kern;
  int64_t n = tensor_numel(out);
  begin_draw(c, r);
  if (tensor_is_contiguous(out)) return make_dense(c, r, out->dtype, tensor_data(out), n);
  void *dense;
  int64_t stride[MAX_DIMS];
  contiguous_strides(out->ndim, out->size, stride);
  TRY_NEW(dense, kern_scratch(k, (size_t)n * dtype_size(out->dtype)));
  TRY(make_dense(c, r, out->dtype, dense, n));
  kernel_copy(k, tensor_view(out), (View){dense, out->size, stride, out->ndim, out->dtype});
  return OK;
}

static int64_t random_draws(const Call *c) {
  const RandomRow *row = c->op->def->row;
  return random_blocks(row->kind, out_tensor(c, 0)->dtype, tensor_numel(out_tensor(c, 0)));
}

/* The output lies as argument 0 does; whose elements are not read, so that nothing partial
 * needs to be reduced. */
static Status random_place(Rules *r) {
  Placement p[2];
  for (int d = 0; r->nin && d < r->out[0]->ndim; d++) {
    p[0] = p[1] = place_s(d);
    TRY(rule_axis(r, p));
  }
  for (int a = 0; r->nin && a < r->naxes; a++) {
    if (!is_p(rule_have(r, 0, a))) continue;
    p[0] = place_r();
    p[1] = *rule_have(r, 0, a);
    TRY(rule_axis_exact(r, p));
  }
  return OK;
}

/* ---- ops of one kind and two numbers ------------------------------------------------------------- */

/* Largest integer of random_(): all that the dtype holds exactly. */
static int64_t largest_of(Dtype d) {
  switch (d) {
    case DT_BOOL: return 1;
    case DT_U8: return UINT8_MAX;
    case DT_I8: return INT8_MAX;
    case DT_I16: return INT16_MAX;
    case DT_I32: return INT32_MAX;
    case DT_F16: return 1 << 11;
    case DT_BF16: return 1 << 8;
    case DT_F32: return 1 << 24;
    case DT_F64: return (int64_t)1 << 53;
    default: return INT64_MAX;
  }
}

static Status integer_range(const Call *c, const RandomRow *row, Dtype d, Random *r) {
  r->low = row->low == NO ? 0 : in_int(c, row->low);
  if (row->high == NO || in_none(c, row->high)) {
    r->range = (uint64_t)largest_of(d) - (uint64_t)r->low + 1;
    return OK;
  }
  int64_t high = in_int(c, row->high);
  if (high <= r->low)
    return op_fail(c, "there is no integer from %lld to below %lld", (long long)r->low, (long long)high);
  r->range = (uint64_t)high - (uint64_t)r->low;
  return OK;
}

static Status random_body(Call *c) {
  const RandomRow *row = c->op->def->row;
  Tensor *out = out_tensor(c, 0);
  Random r = {.kind = row->kind, .a = row->kind == RANDOM_EXPONENTIAL, .b = 1};
  if (row->a != NO) r.a = in_float(c, row->a);
  if (row->b != NO) r.b = in_float(c, row->b);
  if (row->kind == RANDOM_INTEGER) TRY(integer_range(c, row, out->dtype, &r));
  if (row->kind == RANDOM_BERNOULLI && !(r.a >= 0 && r.a <= 1)) return op_fail(c, "%g is not a probability", r.a);
  if (row->kind == RANDOM_NORMAL && !(r.b >= 0)) return op_fail(c, "%g is not a standard deviation", r.b);
  if (row->kind == RANDOM_UNIFORM && !(r.a <= r.b)) return op_fail(c, "from %g comes after to %g", r.a, r.b);
  if (row->kind == RANDOM_EXPONENTIAL && !(r.a > 0)) return op_fail(c, "the rate must be positive, not %g", r.a);
  return fill_random(c, &r, out);
}

static Status random_run(Call *c) { return with_scratch(c, random_body); }

/* ---- bernoulli with a probability per element: the row is p's argument ------------------------- */

static Status bernoulli_infer(Call *c) {
  Tensor *self, *p;
  TRY(need_tensor(c, 0, &self));
  TRY(need_tensor(c, *(const int *)c->op->def->row, &p));
  if (!dtype_is_float(p->dtype)) return op_fail(c, "probabilities are floats, not %s", dtype_name(p->dtype));
  int ndim = self->ndim;
  int64_t size[MAX_DIMS];
  memcpy(size, self->size, sizeof size);
  TRY(broadcast_size(c, &ndim, size, p->ndim, p->size));
  if (ndim != self->ndim || memcmp(size, self->size, (size_t)ndim * sizeof *size))
    return op_fail(c, "the probabilities have another size than self");
  return out_like(c, self->dtype, self);
}

static int64_t bernoulli_draws(const Call *c) {
  return random_blocks(RANDOM_BERNOULLI, out_tensor(c, 0)->dtype, tensor_numel(out_tensor(c, 0)));
}

static Status bernoulli_place(Rules *r) { return rule_pointwise(r, LINEAR_NO); }

static Status bernoulli_body(Call *c) {
  Tensor *p = in_tensor(c, *(const int *)c->op->def->row), *out = out_tensor(c, 0);
  int64_t n = tensor_numel(out), stride[MAX_DIMS];
  double *each;
  contiguous_strides(out->ndim, out->size, stride);
  TRY_NEW(each, kern_scratch(&c->ctx->kern, (size_t)n * sizeof *each));
  kernel_copy(&c->ctx->kern, (View){each, out->size, stride, out->ndim, DT_F64}, tensor_view(p));
  for (int64_t i = 0; i < n; i++) {
    if (!(each[i] >= 0 && each[i] <= 1)) return op_fail(c, "%g is not a probability", each[i]);
  }
  Random r = {.kind = RANDOM_BERNOULLI, .p = each};
  return fill_random(c, &r, out);
}

static Status bernoulli_run(Call *c) { return with_scratch(c, bernoulli_body); }

/* ---- permutations: random keys, sorted ----------------------------------------------------------- */

static Status randperm_infer(Call *c) {
  int64_t n = in_int(c, 0);
  if (n < 0) return op_fail(c, "a permutation of %lld elements", (long long)n);
  return out_new(c, in_dtype(c, 1, DT_I64), 1, &n);
}

static int64_t randperm_draws(const Call *c) { return random_blocks(RANDOM_INTEGER, DT_I64, in_int(c, 0)); }

static Status randperm_body(Call *c) {
  Tensor *out = out_tensor(c, 0);
  int64_t n = out->size[0], one = 1, *keys, *order;
  Random r = {.kind = RANDOM_INTEGER};
  begin_draw(c, &r);
  TRY_NEW(keys, kern_scratch(&c->ctx->kern, (size_t)n * sizeof *keys));
  TRY_NEW(order, kern_scratch(&c->ctx->kern, (size_t)n * sizeof *order));
  kernel_random(&c->ctx->kern, &r, DT_I64, keys, 0, n);
  View row = {keys, &n, &one, 1, DT_I64}, indices = {order, &n, &one, 1, DT_I64};
  if (!kernel_sort(&c->ctx->kern, row, 0, false, 0, n, (View){0}, indices)) return fail_oom();
  kernel_copy(&c->ctx->kern, tensor_view(out), indices);
  return OK;
}

static Status randperm_run(Call *c) { return with_scratch(c, randperm_body); }

/* ---- multinomial ------------------------------------------------------------------------------------ */

static Status multinomial_infer(Call *c) {
  Tensor *self;
  int64_t count = in_int(c, 1);
  TRY(need_tensor(c, 0, &self));
  if (self->ndim < 1 || self->ndim > 2 || !dtype_is_float(self->dtype))
    return op_fail(c, "expects one or two dimensions of floats");
  int64_t n = self->size[self->ndim - 1], size[2] = {self->ndim == 2 ? self->size[0] : count, count};
  if (count <= 0 || (!in_bool(c, 2) && count > n))
    return op_fail(c, "cannot draw %lld of %lld", (long long)count, (long long)n);
  return out_new(c, DT_I64, self->ndim, size);
}

/* With replacement every draw takes a number, without every weight. */
static int64_t multinomial_draws(const Call *c) {
  const Tensor *self = in_tensor(c, 0), *out = out_tensor(c, 0);
  return random_blocks(RANDOM_INTEGER, DT_I64, in_bool(c, 2) ? tensor_numel(out) : tensor_numel(self));
}

/* Rows are drawn from by themselves. */
static Status multinomial_place(Rules *r) {
  Placement p[2] = {place_s(0), place_s(0)};
  return r->in[0]->ndim == 2 ? rule_axis(r, p) : OK;
}

static Status multinomial_body(Call *c) {
  Tensor *self = in_tensor(c, 0);
  int64_t n = self->size[self->ndim - 1], rows = self->ndim == 2 ? self->size[0] : 1, count = in_int(c, 1),
          stride[MAX_DIMS];
  bool replacement = in_bool(c, 2);
  double *p;
  void *spare;
  contiguous_strides(self->ndim, self->size, stride);
  TRY_NEW(p, kern_scratch(&c->ctx->kern, (size_t)(rows * n) * sizeof *p));
  TRY_NEW(spare, kern_scratch(&c->ctx->kern, 2 * (size_t)n * sizeof(SortEntry)));
  kernel_copy(&c->ctx->kern, (View){p, self->size, stride, self->ndim, DT_F64}, tensor_view(self));
  for (int64_t row = 0; row < rows; row++) {
    double sum = 0;
    int64_t positive = 0;
    bool bad = false;
    for (int64_t i = 0; i < n; i++) {
      bad |= !(p[row * n + i] >= 0) || isinf(p[row * n + i]);
      positive += p[row * n + i] > 0;
      sum += p[row * n + i];
    }
    if (bad || !(sum > 0) || (!replacement && positive < count)) {
      return op_fail(c, "row %lld: weights must be finite, not negative, and enough of them positive",
                     (long long)row);
    }
  }
  Random r = {.kind = RANDOM_INTEGER};
  begin_draw(c, &r);
  Arena arena = {0};
  const ShardOf *shard = c->shard;
  int64_t *number = NULL, held;
  Status s = shard && self->ndim == 2 ? layout_indices(&shard->layout, shard->coord, 0, &arena, &number, &held)
                                      : OK;
  if (!s) kernel_multinomial(&r, p, rows, n, count, replacement, number, spare, tensor_data(out_tensor(c, 0)));
  arena_free(&arena);
  return s;
}

static Status multinomial_run(Call *c) { return with_scratch(c, multinomial_body); }

/* ---- normal with tensors: (mean, std), either may be a number --------------------------------------- */

static Status normal_compose(Call *c) {
  Tensor *mean = in_tensor(c, 0), *std = in_tensor(c, 1), *model = mean ? mean : std, *x;
  TRY(need_tensor(c, mean ? 0 : 1, &model));
  if (mean && std) {
    Tensor *both[2] = {mean, std}, **wide;
    int n;
    TRY(OP_LIST(c, "aten.broadcast_tensors.default", &wide, &n, val_tensors(both, 2)));
    model = wide[0];
  }
  TRY(OP(c, "aten.randn_like.default", &x, val_tensor(model)));
  TRY(OP(c, "aten.mul.Tensor", &x, val_tensor(x), c->arg[1]));
  TRY(OP(c, "aten.add.Tensor", &x, val_tensor(x), c->arg[0]));
  return out_value(c, val_tensor(x));
}

/* ---- dropout -------------------------------------------------------------------------------------------- */

static Status check_p(const Call *c, double p) {
  return p >= 0 && p <= 1 ? OK : op_fail(c, "p = %g is not a probability", p);
}

/* A mask of the given size, true where an element is kept. */
static Status draw_mask(Call *c, const Tensor *x, Ints size, double p, Tensor **mask) {
  Tensor *empty;
  bool whole = !memcmp(size.v, x->size, (size_t)size.n * sizeof *size.v);
  if (whole) TRY(OP(c, "aten.empty_like.default", &empty, val_tensor(x), val_dtype(DT_BOOL)));
  else TRY(OP(c, "aten.new_empty.default", &empty, val_tensor(x), val_ints(size.v, size.n), val_dtype(DT_BOOL)));
  return OP(c, "aten.bernoulli.p", mask, val_tensor(empty), val_float(1 - p));
}

/* The same, and x where it is kept, scaled. */
static Status drop(Call *c, const Tensor *x, Ints size, double p, Tensor **out, Tensor **mask) {
  Tensor *kept;
  TRY(draw_mask(c, x, size, p, mask));
  TRY(OP(c, "aten.mul.Tensor", &kept, val_tensor(x), val_tensor(*mask)));
  return OP(c, "aten.mul.Tensor", out, val_tensor(kept), val_float(p < 1 ? 1 / (1 - p) : 0));
}

static Status native_dropout_compose(Call *c) {
  Tensor *x, *out, *mask;
  double p = in_float(c, 1);
  bool train = in_none(c, 2) || in_bool(c, 2);
  TRY(need_tensor(c, 0, &x));
  TRY(check_p(c, p));
  if (train && p > 0) {
    TRY(drop(c, x, (Ints){x->size, x->ndim}, p, &out, &mask));
  } else {
    TRY(OP(c, "aten.clone.default", &out, val_tensor(x)));
    TRY(OP(c, "aten.ones_like.default", &mask, val_tensor(x), val_dtype(DT_BOOL)));
  }
  TRY(out_value(c, val_tensor(out)));
  return out_value(c, val_tensor(mask));
}

/* For placing: both results are like the input, and take its placement. */
static Status native_dropout_infer(Call *c) {
  Tensor *x;
  TRY(need_tensor(c, 0, &x));
  TRY(out_like(c, x->dtype, x));
  return out_like(c, DT_BOOL, x);
}

static Status native_dropout_place(Rules *r) { return rule_pointwise(r, LINEAR_NO); }

static int64_t native_dropout_draws(const Call *c) {
  bool train = in_none(c, 2) || in_bool(c, 2);
  return train && in_float(c, 1) > 0 ? random_blocks(RANDOM_BERNOULLI, DT_BOOL, tensor_numel(in_tensor(c, 0))) : 0;
}

static Status native_dropout_backward_compose(Call *c) {
  Tensor *kept, *out;
  TRY(OP(c, "aten.mul.Tensor", &kept, c->arg[0], c->arg[1]));
  TRY(OP(c, "aten.mul.Tensor", &out, val_tensor(kept), c->arg[2]));
  return out_value(c, val_tensor(out));
}

/* dropout; with a row, feature_dropout: whole channels [N, C] are dropped. */
static Status dropout_compose(Call *c) {
  Tensor *x, *out, *mask;
  double p = in_float(c, 1);
  TRY(need_tensor(c, 0, &x));
  TRY(check_p(c, p));
  if (!in_bool(c, 2) || p == 0 || tensor_numel(x) == 0) {
    TRY(OP(c, "aten.alias.default", &out, val_tensor(x)));
    return out_value(c, val_tensor(out));
  }
  int64_t size[MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) size[d] = c->op->def->row && d >= 2 ? 1 : x->size[d];
  if (c->op->def->row && x->ndim < 2) return op_fail(c, "needs a batch and a channel dimension");
  TRY(drop(c, x, (Ints){size, x->ndim}, p, &out, &mask));
  return out_value(c, val_tensor(out));
}

/* Forms that keep mean and variance of what selu gives: x where it is kept, else alpha', and then a line through
 * both; with a row, whole channels [N, C] are dropped. */
static Status alpha_dropout_compose(Call *c) {
  const double alpha = 1.7580993408473766; /* of selu, times its scale */
  Tensor *x, *noise, *mask, *kept, *shift, *out;
  double p = in_float(c, 1);
  TRY(need_tensor(c, 0, &x));
  TRY(check_p(c, p));
  if (!in_bool(c, 2) || p == 0 || p == 1 || tensor_numel(x) == 0) return dropout_compose(c);
  double a = 1 / sqrt((alpha * alpha * p + 1) * (1 - p));
  int64_t size[MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) size[d] = c->op->def->row && d >= 2 ? 1 : x->size[d];
  if (c->op->def->row && x->ndim < 2) return op_fail(c, "needs a batch and a channel dimension");
  TRY(draw_mask(c, x, (Ints){size, x->ndim}, p, &mask));
  TRY(OP(c, "aten.to.dtype", &noise, val_tensor(mask), val_dtype(x->dtype)));
  TRY(OP(c, "aten.mul.Scalar", &kept, val_tensor(noise), val_float(a)));
  TRY(OP(c, "aten.mul.Tensor", &kept, val_tensor(x), val_tensor(kept)));
  TRY(OP(c, "aten.add.Scalar", &shift, val_tensor(noise), val_float(-1)));
  TRY(OP(c, "aten.mul.Scalar", &shift, val_tensor(shift), val_float(alpha * a)));
  TRY(OP(c, "aten.add.Scalar", &shift, val_tensor(shift), val_float(alpha * a * p)));
  TRY(OP(c, "aten.add.Tensor", &out, val_tensor(kept), val_tensor(shift)));
  return out_value(c, val_tensor(out));
}

/* clang-format off */
#define RANDOM(text, ...) \
  {.schema = text, .infer = random_infer, .run = random_run, .flags = OP_RANDOM | OP_NUMBERED, .draws = random_draws, \
    .shard.place = random_place, .row = &(const RandomRow){__VA_ARGS__}}
#define BERNOULLI(text, p) \
  {.schema = text, .infer = bernoulli_infer, .run = bernoulli_run, .flags = OP_RANDOM | OP_NUMBERED, .draws = bernoulli_draws, \
    .shard.place = bernoulli_place, .row = &(const int){p}}
/* clang-format on */

/* clang-format off */
const OpDef ops_random[] = {
    /*     kind, like, size, dtype, format, a, b, low, high */
    RANDOM("aten::rand(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
           "pin_memory=None) -> Tensor",
           RANDOM_UNIFORM, NO, 0, 1, NO, NO, NO, NO, NO),
    RANDOM("aten::rand_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
           "bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
           RANDOM_UNIFORM, 0, NO, 1, 5, NO, NO, NO, NO),
    RANDOM("aten::uniform(Tensor self, float from=0., float to=1., *, Generator? generator=None) -> Tensor",
           RANDOM_UNIFORM, 0, NO, NO, NO, 1, 2, NO, NO),
    RANDOM("aten::randn(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
           "pin_memory=None) -> Tensor",
           RANDOM_NORMAL, NO, 0, 1, NO, NO, NO, NO, NO),
    RANDOM("aten::randn_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
           "bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
           RANDOM_NORMAL, 0, NO, 1, 5, NO, NO, NO, NO),
    RANDOM("aten::normal_functional(Tensor self, float mean=0., float std=1., *, Generator? generator=None) -> "
           "Tensor",
           RANDOM_NORMAL, 0, NO, NO, NO, 1, 2, NO, NO),
    RANDOM("aten::normal.float_float(float mean, float std, SymInt[] size, *, Generator? generator=None, "
           "ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
           RANDOM_NORMAL, NO, 2, 4, NO, 0, 1, NO, NO),
    RANDOM("aten::exponential(Tensor self, float lambd=1., *, Generator? generator=None) -> Tensor",
           RANDOM_EXPONENTIAL, 0, NO, NO, NO, 1, NO, NO, NO),
    RANDOM("aten::bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor",
           RANDOM_BERNOULLI, 0, NO, NO, NO, 1, NO, NO, NO),
    RANDOM("aten::randint(SymInt high, SymInt[] size, *, ScalarType? dtype=4, Layout? layout=None, Device? "
           "device=None, bool? pin_memory=None) -> Tensor",
           RANDOM_INTEGER, NO, 1, 2, NO, NO, NO, NO, 0),
    RANDOM("aten::randint.low(SymInt low, SymInt high, SymInt[] size, *, ScalarType? dtype=4, Layout? "
           "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
           RANDOM_INTEGER, NO, 2, 3, NO, NO, NO, 0, 1),
    RANDOM("aten::randint_like(Tensor self, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? "
           "device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
           RANDOM_INTEGER, 0, NO, 2, 6, NO, NO, NO, 1),
    RANDOM("aten::randint_like.low_dtype(Tensor self, SymInt low, SymInt high, *, ScalarType? dtype=None, Layout? "
           "layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
           RANDOM_INTEGER, 0, NO, 3, 7, NO, NO, 1, 2),
    RANDOM("aten::random(Tensor self, *, Generator? generator=None) -> Tensor",
           RANDOM_INTEGER, 0, NO, NO, NO, NO, NO, NO, NO),
    RANDOM("aten::random.from(Tensor self, int from, int? to, *, Generator? generator=None) -> Tensor",
           RANDOM_INTEGER, 0, NO, NO, NO, NO, NO, 1, 2),
    RANDOM("aten::random.to(Tensor self, int to, *, Generator? generator=None) -> Tensor",
           RANDOM_INTEGER, 0, NO, NO, NO, NO, NO, NO, 1),
    BERNOULLI("aten::bernoulli(Tensor self, *, Generator? generator=None) -> Tensor", 0),
    BERNOULLI("aten::bernoulli.Tensor(Tensor self, Tensor p, *, Generator? generator=None) -> Tensor", 1),
    {.schema = "aten::randperm(SymInt n, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? "
               "pin_memory=None) -> Tensor", .infer = randperm_infer, .run = randperm_run, .flags = OP_RANDOM,
                   .draws = randperm_draws},
    {.schema = "aten::multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? "
               "generator=None) -> Tensor", .infer = multinomial_infer, .run = multinomial_run, .flags = OP_RANDOM,
                   .draws = multinomial_draws, .shard.place = multinomial_place},
    {.schema = "aten::normal.Tensor_float(Tensor mean, float std=1., *, Generator? generator=None) -> Tensor",
     .compose = normal_compose},
    {.schema = "aten::normal.float_Tensor(float mean, Tensor std, *, Generator? generator=None) -> Tensor",
     .compose = normal_compose},
    {.schema = "aten::normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor",
     .compose = normal_compose},
    {.schema = "aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)",
     .infer = native_dropout_infer, .compose = native_dropout_compose, .shard.place = native_dropout_place,
         .flags = OP_NUMBERED, .draws = native_dropout_draws},
    {.schema = "aten::native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor",
     .compose = native_dropout_backward_compose},
    {.schema = "aten::dropout(Tensor input, float p, bool train) -> Tensor", .compose = dropout_compose, .moves = MOVES_COPY},
    {.schema = "aten::feature_dropout(Tensor input, float p, bool train) -> Tensor", .compose = dropout_compose, .row = ""},
    {.schema = "aten::alpha_dropout(Tensor input, float p, bool train) -> Tensor",
     .compose = alpha_dropout_compose},
    {.schema = "aten::feature_alpha_dropout(Tensor input, float p, bool train) -> Tensor",
     .compose = alpha_dropout_compose, .row = ""},
    {0},
};
