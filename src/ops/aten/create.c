/* create.c -- tensors made of numbers: constants, ranges, one-hot rows.
 *
 * The dtype, if the call gives none, is that of the tensor to be like; else a full()
 * takes it from its number (an int makes i64), and everything else is f32.
 */
#include <math.h>
#include <string.h>

#include "kernels/copy.h"
#include "kernels/fill.h"
#include "ops/rule_move.h"

/* ---- filled with one number ----------------------------------------------------------- */

enum { NO = -1 };
typedef enum { NOT, WITH_0, WITH_1, WITH_VALUE } Fill;

/* Where the arguments are; NO: the op has none of this kind. */
typedef struct {
  int like, size, dtype, format, value;
  Fill fill;
} CreateRow;

static Dtype dtype_of_number(const Value *v) {
  static const Dtype of_kind[] = {
      [KIND_BOOL] = DT_BOOL, [KIND_INT] = DT_I64, [KIND_FLOAT] = DT_F32, [KIND_COMPLEX] = DT_C64};
  return v->kind == VAL_TENSOR ? v->tensor->dtype : of_kind[val_number_kind(v)];
}

static Status create_infer(Call *c) {
  const CreateRow *row = c->op->def->row;
  Tensor *like = NULL;
  Dtype dtype = DT_F32;
  if (row->like != NO) {
    TRY(need_tensor(c, row->like, &like));
    dtype = like->dtype;
  } else if (row->value != NO && row->size != NO) {
    dtype = dtype_of_number(&c->arg[row->value]);
  }
  if (row->dtype != NO) dtype = in_dtype(c, row->dtype, dtype);
  if (like && row->size == NO) return out_format(c, dtype, like, row->format == NO ? NULL : &c->arg[row->format]);
  Ints size = row->size == NO ? (Ints){NULL, 0} : in_ints(c, row->size);
  TRY(out_new(c, dtype, size.n, size.v));
  if (row->format == NO || c->arg[row->format].kind != VAL_MEMORY_FORMAT) return OK;
  Tensor *t = out_tensor(c, 0);
  MemoryFormat format = c->arg[row->format].memory_format;
  return format_strides(c, format == MEMORY_PRESERVE ? MEMORY_CONTIGUOUS : format, t, t->stride);
}

static Status create_run(Call *c) {
  const CreateRow *row = c->op->def->row;
  Value value = val_int(row->fill == WITH_1);
  char element[16];
  if (row->fill == NOT) return OK;
  if (row->fill == WITH_VALUE) TRY(in_number(c, row->value, &value));
  View out = out_view_of(c, 0);
  val_store(&value, out.dtype, element);
  kernel_fill(&c->ctx->kern, out, element);
  return OK;
}

/* The tensor to be like is not read: it stays as it is.  The result follows its shards;
 * what is partial may stay so, if every rank fills in what gives the same in the end. */
static bool may_be_partial(const Call *c, const CreateRow *row, const Placement *p) {
  const Value *v = row->value == NO ? NULL : &c->arg[row->value];
  bool zero = row->fill == WITH_0 || (v && v->kind != VAL_TENSOR && v->kind != VAL_COMPLEX && val_as_float(v) == 0);
  return row->fill == NOT || zero || pass_partial(PASS_EQUAL, p);
}

static Status like_place(Rules *r, const CreateRow *row, bool partial) {
  Placement p[4 * MAX_AXES];
  double extra = row->size == NO ? 0 : -0.1; /* new_*: rather like its model than R */
  bool cut = row->size == NO || row->fill == NOT;
  for (int a = 0; a < r->naxes; a++) {
    const Placement *have = rule_have(r, 0, a);
    cut |= is_s(have);
    p[a] = is_p(have) && !(partial && may_be_partial(r->call, row, have)) ? place_r() : *have;
    for (int i = 0; i < r->nin; i++) p[(1 + i) * r->naxes + a] = i ? place_r() : *have;
  }
  if (row->size != NO && !(cut && tensor_same_size(r->in[0], r->out[0])))
    for (int a = 0; a < r->naxes; a++) p[a] = place_r();
  r->uneven = true;
  return rule_mesh(r, p, extra);
}

static Status create_place(Rules *r) {
  const CreateRow *row = r->call->op->def->row;
  if (row->like == NO) return OK;
  return like_place(r, row, row->size != NO || row->fill == NOT || r->call->op->def->flags & OP_UPDATE);
}

static Status new_empty_strided_place(Rules *r) {
  return like_place(r, &(const CreateRow){.size = 1, .dtype = NO, .format = NO, .value = NO, .fill = NOT}, true);
}

/* ---- empty, in a given order of memory -------------------------------------------------- */

static Status empty_strided(Call *c, Dtype dtype, Ints size, Ints stride) {
  if (size.n != stride.n) return op_fail(c, "%d sizes and %d strides", size.n, stride.n);
  int64_t reach = 0, step;
  for (int i = 0; i < stride.n; i++) {
    bool bad = stride.v[i] < 0 || (size.v[i] > 1 && __builtin_mul_overflow(size.v[i] - 1, stride.v[i], &step));
    if (bad || (size.v[i] > 1 && __builtin_add_overflow(reach, step, &reach)) || reach > INT64_MAX / 16) {
      return op_fail(c, "stride %lld of dimension %d is not possible", (long long)stride.v[i], i);
    }
  }
  return out_strided(c, dtype, size.n, size.v, stride.v);
}

static Status empty_strided_infer(Call *c) {
  return empty_strided(c, in_dtype(c, 2, DT_F32), in_ints(c, 0), in_ints(c, 1));
}

static Status new_empty_strided_infer(Call *c) {
  Tensor *self;
  TRY(need_tensor(c, 0, &self));
  return empty_strided(c, in_dtype(c, 3, self->dtype), in_ints(c, 1), in_ints(c, 2));
}

/* physical_layout lists the dimensions from the outermost to the innermost. */
static Status empty_permuted_infer(Call *c) {
  Ints size = in_ints(c, 0), layout = in_ints(c, 1);
  bool seen[MAX_DIMS];
  if (layout.n != size.n || size.n > MAX_DIMS)
    return op_fail(c, "%d sizes, and %d dimensions in the physical layout", size.n, layout.n);
  TRY(wrap_dims(c, layout, size.n, seen));
  TRY(out_new(c, in_dtype(c, 2, DT_F32), size.n, size.v));
  Tensor *t = out_tensor(c, 0);
  int64_t n = 1;
  for (int i = size.n - 1; i >= 0; i--) {
    int64_t d = layout.v[i] < 0 ? layout.v[i] + size.n : layout.v[i];
    t->stride[d] = n;
    n *= size.v[d] > 1 ? size.v[d] : 1;
  }
  return OK;
}

static Status empty_run(Call *c) { return (void)c, OK; }

/* ---- ranges -------------------------------------------------------------------------------- */

/* arange(end), (start, end), (start, end, step): the row is the number of numbers. */
typedef struct {
  Value start, end, step;
  int given;
} Range;

static Status range_of(const Call *c, Range *r) {
  r->given = *(const int *)c->op->def->row;
  r->start = val_int(0);
  r->step = val_int(1);
  if (r->given > 1) TRY(in_number(c, 0, &r->start));
  TRY(in_number(c, r->given > 1, &r->end));
  if (r->given > 2) TRY(in_number(c, 2, &r->step));
  return OK;
}

static Status range_length(const Call *c, const Range *r, Dtype d, int64_t *length) {
  double start = val_as_float(&r->start), end = val_as_float(&r->end), step = val_as_float(&r->step);
  if (!(step > 0 || step < 0) || !isfinite(start) || !isfinite(end) || (end - start) * step < 0) {
    return op_fail(c, "no way from %g to %g in steps of %g", start, end, step);
  }
  if (d == DT_I64) { /* exact beyond 2^53 */
    int64_t a = val_as_int(&r->start), b = val_as_int(&r->end), by = val_as_int(&r->step), span;
    if (by == 0 || __builtin_sub_overflow(b, a, &span))
      return op_fail(c, "no way from %g to %g in steps of %g", start, end, step);
    *length = span / by + (span % by != 0);
    return OK;
  }
  double n = ceil((end - start) / step);
  if (!(n < 0x1p62)) return op_fail(c, "%g elements are too many", n);
  *length = (int64_t)n;
  return OK;
}

static Status arange_infer(Call *c) {
  Range r;
  int64_t length;
  TRY(range_of(c, &r));
  bool ints = r.start.kind <= VAL_INT && r.end.kind <= VAL_INT && r.step.kind <= VAL_INT;
  Dtype dtype = in_dtype(c, r.given, ints ? DT_I64 : DT_F32);
  TRY(range_length(c, &r, dtype, &length));
  return out_new(c, dtype, 1, &length);
}

static Status arange_run(Call *c) {
  Range r;
  TRY(range_of(c, &r));
  if (dtype_is_integral(out_tensor(c, 0)->dtype)) {
    kernel_arange_int(&c->ctx->kern, out_view_of(c, 0), val_as_int(&r.start), val_as_int(&r.step));
  } else {
    kernel_arange_float(&c->ctx->kern, out_view_of(c, 0), val_as_float(&r.start), val_as_float(&r.step));
  }
  return OK;
}

/* linspace(start, end, steps), logspace(start, end, steps, base): the row tells dtype's place. */
static Status linspace_infer(Call *c) {
  int64_t steps = in_int(c, 2);
  Dtype given = in_dtype(c, *(const int *)c->op->def->row, DT_F32);
  if (steps < 0) return op_fail(c, "the number of steps is negative: %lld", (long long)steps);
  return out_new(c, given, 1, &steps);
}

static Status linspace_run(Call *c) {
  Value start, end;
  bool log = *(const int *)c->op->def->row == 4;
  TRY(in_number(c, 0, &start));
  TRY(in_number(c, 1, &end));
  if (dtype_is_integral(out_tensor(c, 0)->dtype))
    start = val_int(val_as_int(&start)), end = val_int(val_as_int(&end));
  kernel_linspace(&c->ctx->kern, out_view_of(c, 0), val_as_float(&start), val_as_float(&end),
                  log ? in_float(c, 3) : 0);
  return OK;
}

/* ---- identity and one-hot --------------------------------------------------------------------- */

static Status eye_infer(Call *c) {
  bool wide = *(const int *)c->op->def->row;
  int64_t size[2] = {in_int(c, 0), in_int(c, wide ? 1 : 0)};
  return out_new(c, in_dtype(c, wide ? 2 : 1, DT_F32), 2, size);
}

static Status eye_run(Call *c) {
  Tensor *out = out_tensor(c, 0);
  char zero[16] = {0}, one[16];
  Value number = val_int(1);
  val_store(&number, out->dtype, one);
  kernel_fill(&c->ctx->kern, tensor_view(out), zero);
  int64_t n = out->size[0] < out->size[1] ? out->size[0] : out->size[1], stride = out->stride[0] + out->stride[1];
  kernel_fill(&c->ctx->kern, (View){tensor_data(out), &n, &stride, 1, out->dtype}, one);
  return OK;
}

static Status one_hot_size(const Call *c, const Tensor *self, int64_t classes, int64_t *size) {
  if (self->dtype != DT_I64) return op_fail(c, "expects i64 class numbers, not %s", dtype_name(self->dtype));
  if (self->ndim == MAX_DIMS) return op_fail(c, "the result has more than %d dimensions", MAX_DIMS);
  memcpy(size, self->size, sizeof self->size);
  size[self->ndim] = classes;
  return OK;
}

static Status one_hot_infer(Call *c) {
  Tensor *self;
  int64_t size[MAX_DIMS + 1], classes = in_int(c, 1);
  TRY(need_tensor(c, 0, &self));
  if (classes < 0) return fail(ERR_DYNAMIC, "%s: the number of classes depends on data", c->op->schema.name);
  TRY(one_hot_size(c, self, classes, size));
  return out_new(c, DT_I64, self->ndim + 1, size);
}

static Status one_hot_run(Call *c) {
  Tensor *self;
  TRY(need_tensor(c, 0, &self));
  int64_t least, most, classes = in_int(c, 1), room[MAX_DIMS + 1];
  TRY(one_hot_size(c, self, classes, room));
  kernel_min_max_i64(tensor_view(self), &least, &most);
  if (classes < 0) { /* as many as the data needs */
    int64_t size[MAX_DIMS + 1];
    if (tensor_numel(self) == 0) return op_fail(c, "an empty tensor does not tell the number of classes");
    if (most == INT64_MAX) return op_fail(c, "class %lld is too large", (long long)most);
    classes = most + 1;
    TRY(one_hot_size(c, self, classes, size));
    TRY(out_new(c, DT_I64, self->ndim + 1, size));
    TRY(tensor_materialize(out_tensor(c, 0)));
  }
  if (least < 0 || (most >= classes && tensor_numel(self))) {
    return op_fail(c, "class %lld is not one of %lld", (long long)(least < 0 ? least : most), (long long)classes);
  }
  kernel_one_hot(&c->ctx->kern, out_view_of(c, 0), in_view(c, 0));
  return OK;
}

/* ---- filling what is there ------------------------------------------------------------------- */

/* What is filled stays as it lies; a tensor with the number is partial where that is. */
static Status fill_axis(const Rules *r, const void *unused, int a, Placement *p) {
  (void)unused;
  p[0] = p[1] = *rule_have(r, 0, a);
  if (r->nin > 1 && is_p(&p[0])) p[2] = p[0];
  return OK;
}

static Status fill_place(Rules *r) {
  r->uneven = true;
  return rule_follow(r, fill_axis, NULL);
}

/* The number belongs to the first rank of a partial sum, the others hold nothing. */
static Status fill_localize(Local *l) {
  const CreateRow *row = l->def->row;
  if (row->fill != WITH_VALUE || l->nin > 1) return OK;
  for (int a = 0; a < l->naxes; a++) {
    const Placement *p = local_place_out(l, 0) + a;
    if (!is_p(p) || l->coord[a] == 0) continue;
    if (p->op == REDUCE_SUM || p->op == REDUCE_BXOR) l->arg[row->value] = val_int(0);
    if (p->op == REDUCE_PRODUCT) l->arg[row->value] = val_int(1);
  }
  return OK;
}

/* ---- complex numbers of two parts ---------------------------------------------------------------- */

static Status complex_infer(Call *c) {
  Tensor *real, *imag;
  int ndim = 0;
  int64_t size[MAX_DIMS];
  TRY(need_tensor(c, 0, &real));
  TRY(need_tensor(c, 1, &imag));
  if (real->dtype != DT_F32 || imag->dtype != DT_F32)
    return op_fail(c, "expects two f32 tensors, not %s and %s", dtype_name(real->dtype), dtype_name(imag->dtype));
  TRY(broadcast_size(c, &ndim, size, real->ndim, real->size));
  TRY(broadcast_size(c, &ndim, size, imag->ndim, imag->size));
  return out_new(c, DT_C64, ndim, size);
}

static Status complex_run(Call *c) {
  for (int part = 0; part < 2; part++) {
    Geometry g = geometry_of(out_tensor(c, 0));
    TRY(geometry_view_as_real(c, 0, &g));
    g.ndim--;
    g.offset += part;
    kernel_copy(&c->ctx->kern, geometry_view(&g, out_tensor(c, 0)), in_view(c, part));
  }
  return OK;
}

/* clang-format off */
#define CREATE(text, ...) \
  {.schema = text, .infer = create_infer, .run = create_run, .shard.place = create_place, \
    .row = &(const CreateRow){__VA_ARGS__}}
#define UPDATE(text, ...) \
  {.schema = text, .infer = create_infer, .run = create_run, .shard.place = fill_place, \
    .shard.localize = fill_localize, .row = &(const CreateRow){__VA_ARGS__}, .flags = OP_UPDATE}
#define BARE(text, ...) \
  {.schema = text, .infer = create_infer, .run = create_run, .shard.place = create_place, .flags = OP_EMPTY, \
    .row = &(const CreateRow){__VA_ARGS__, NOT}}
#define EMPTY(text, fn, placed) \
  {.schema = text, .infer = fn##_infer, .run = empty_run, .shard.place = placed, .flags = OP_EMPTY}
#define WITH(text, fn, number) {.schema = text, .infer = fn##_infer, .run = fn##_run, .row = &(const int){number}}
/* clang-format on */

/* clang-format off */
const OpDef ops_create[] = {
    /*     like, size, dtype, format, value, fill */
    CREATE("aten::zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
           "pin_memory=None) -> Tensor",
           NO, 0, 1, NO, NO, WITH_0),
    CREATE("aten::ones(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
           "pin_memory=None) -> Tensor",
           NO, 0, 1, NO, NO, WITH_1),
    CREATE("aten::full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? "
           "device=None, bool? pin_memory=None) -> Tensor",
           NO, 0, 2, NO, 1, WITH_VALUE),
    BARE("aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? "
           "device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
           NO, 0, 1, 5, NO),
    CREATE("aten::scalar_tensor(Scalar s, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
           "bool? pin_memory=None) -> Tensor",
           NO, NO, 1, NO, 0, WITH_VALUE),
    CREATE("aten::_make_dep_token(*, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
           "pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
           NO, NO, 0, NO, NO, WITH_0),
    CREATE("aten::zeros_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
           "bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
           0, NO, 1, 5, NO, WITH_0),
    CREATE("aten::ones_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
           "bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
           0, NO, 1, 5, NO, WITH_1),
    CREATE("aten::full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, "
           "Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
           0, NO, 2, 6, 1, WITH_VALUE),
    BARE("aten::empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
           "bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
           0, NO, 1, 5, NO),
    CREATE("aten::new_zeros(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? "
           "device=None, bool? pin_memory=None) -> Tensor",
           0, 1, 2, NO, NO, WITH_0),
    CREATE("aten::new_ones(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? "
           "device=None, bool? pin_memory=None) -> Tensor",
           0, 1, 2, NO, NO, WITH_1),
    CREATE("aten::new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? "
           "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
           0, 1, 3, NO, 2, WITH_VALUE),
    BARE("aten::new_empty(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? "
           "device=None, bool? pin_memory=None) -> Tensor",
           0, 1, 2, NO, NO),
    UPDATE("aten::fill.Scalar(Tensor self, Scalar value) -> Tensor",
           0, NO, NO, NO, 1, WITH_VALUE),
    UPDATE("aten::fill.Tensor(Tensor self, Tensor value) -> Tensor",
           0, NO, NO, NO, 1, WITH_VALUE),
    UPDATE("aten::zero(Tensor self) -> Tensor",
           0, NO, NO, NO, NO, WITH_0),

    EMPTY("aten::empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, "
          "Device? device=None, bool? pin_memory=None) -> Tensor", empty_strided, NULL),
    EMPTY("aten::new_empty_strided(Tensor self, SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, "
          "Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor", new_empty_strided,
          new_empty_strided_place),
    EMPTY("aten::empty_permuted(SymInt[] size, int[] physical_layout, *, ScalarType? dtype=None, Layout? "
          "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor", empty_permuted, NULL),

    WITH("aten::arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
         "pin_memory=None) -> Tensor", arange, 1),
    WITH("aten::arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? "
         "device=None, bool? pin_memory=None) -> Tensor", arange, 2),
    WITH("aten::arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? "
         "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor", arange, 3),
    WITH("aten::linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, "
         "Device? device=None, bool? pin_memory=None) -> Tensor", linspace, 3),
    WITH("aten::logspace(Scalar start, Scalar end, int steps, float base=10., *, ScalarType? dtype=None, Layout? "
         "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor", linspace, 4),
    WITH("aten::eye(SymInt n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
         "pin_memory=None) -> Tensor", eye, false),
    WITH("aten::eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
         "bool? pin_memory=None) -> Tensor", eye, true),
    {.schema = "aten::one_hot(Tensor self, int num_classes=-1) -> Tensor", .infer = one_hot_infer,
     .run = one_hot_run, .shard.place = rule_same_dims},
    {.schema = "aten::complex(Tensor real, Tensor imag) -> Tensor", .infer = complex_infer, .run = complex_run},
    {0},
};
