/* fft.c -- the three transforms of core ATen, and torch.fft written with them.
 *
 *   _fft_c2c(self, dim, normalization, forward)
 *   _fft_r2c(self, dim, normalization, onesided)        real along the last of dim
 *   _fft_c2r(self, dim, normalization, last_dim_size)   real along the last of dim
 *
 * normalization: 0 nothing, 1 by the root of the number of elements, 2 by the number.
 * f32 and c64 only: f64 would give complex128, which is refused by name.
 */
#include "kernels/fft.h"

#include <math.h>
#include <string.h>

#include "kernels/copy.h"
#include "ops/op.h"

typedef struct {
  int n;
  int dim[MAX_DIMS];
} Dims;

static Status read_dims(const Call *c, const Tensor *x, Ints list, Dims *out) {
  bool seen[MAX_DIMS];
  TRY(wrap_dims(c, list, x->ndim, seen));
  out->n = list.n;
  for (int i = 0; i < list.n; i++) TRY(wrap_dim(c, list.v[i], x->ndim, &out->dim[i]));
  return OK;
}

static Status check_dtype(const Call *c, const Tensor *x, Dtype want) {
  if (x && x->dtype == want && x->ndim > 0) return OK;
  Status s = op_fail(c, "input is %s, must be %s with at least one dimension", x ? dtype_name(x->dtype) : "none",
                     dtype_name(want));
  return x && x->dtype == DT_F64
             ? status_hint(s, "transforms of f64 would give complex128, which is not supported: convert to f32")
             : s;
}

static double scale_of(int64_t normalization, const Tensor *all, const Dims *d) {
  double n = 1;
  for (int i = 0; i < d->n; i++) n *= (double)all->size[d->dim[i]];
  return normalization == 0 || n == 0 ? 1 : normalization == 1 ? 1 / sqrt(n) : 1 / n;
}

static Status c2c_infer(Call *c) {
  const Tensor *x = in_tensor(c, 0);
  Dims d;
  TRY(check_dtype(c, x, DT_C64));
  TRY(read_dims(c, x, in_ints(c, 1), &d));
  return out_new(c, DT_C64, x->ndim, x->size);
}

static Status c2c_run(Call *c) {
  const Tensor *x = in_tensor(c, 0);
  Kern *k = &c->ctx->kern;
  Dims d;
  TRY(read_dims(c, x, in_ints(c, 1), &d));
  View from = in_view(c, 0), to = out_view_of(c, 0);
  double scale = scale_of(in_int(c, 2), x, &d);
  if (d.n == 0) kernel_copy(k, to, from);
  for (int i = d.n - 1; i >= 0; i--, from = to, scale = 1)
    TRY(fft_c2c(k, from, to, d.dim[i], in_bool(c, 3), scale));
  return OK;
}

static Status r2c_infer(Call *c) {
  const Tensor *x = in_tensor(c, 0);
  Dims d;
  int64_t size[MAX_DIMS];
  TRY(check_dtype(c, x, DT_F32));
  TRY(read_dims(c, x, in_ints(c, 1), &d));
  if (d.n == 0) return op_fail(c, "needs at least one dimension to transform");
  memcpy(size, x->size, sizeof size);
  int last = d.dim[d.n - 1];
  if (in_bool(c, 3)) size[last] = size[last] / 2 + 1;
  return out_new(c, DT_C64, x->ndim, size);
}

static Status r2c_run(Call *c) {
  const Tensor *x = in_tensor(c, 0);
  Dims d;
  TRY(read_dims(c, x, in_ints(c, 1), &d));
  View y = out_view_of(c, 0);
  TRY(fft_r2c(&c->ctx->kern, in_view(c, 0), y, d.dim[d.n - 1], scale_of(in_int(c, 2), x, &d)));
  for (int i = d.n - 2; i >= 0; i--) TRY(fft_c2c(&c->ctx->kern, y, y, d.dim[i], true, 1));
  return OK;
}

static Status c2r_infer(Call *c) {
  const Tensor *x = in_tensor(c, 0);
  Dims d;
  int64_t size[MAX_DIMS], n = in_int(c, 3);
  TRY(check_dtype(c, x, DT_C64));
  TRY(read_dims(c, x, in_ints(c, 1), &d));
  if (d.n == 0) return op_fail(c, "needs at least one dimension to transform");
  int last = d.dim[d.n - 1];
  if (n < 1 || x->size[last] < n / 2 + 1) {
    return op_fail(c, "a result of %lld elements needs %lld of the input, dimension %d has %lld", (long long)n,
                   (long long)(n / 2 + 1), last, (long long)x->size[last]);
  }
  memcpy(size, x->size, sizeof size);
  size[last] = n;
  return out_new(c, DT_F32, x->ndim, size);
}

static Status c2r_run(Call *c) {
  const Tensor *x = in_tensor(c, 0);
  Kern *k = &c->ctx->kern;
  Dims d;
  TRY(read_dims(c, x, in_ints(c, 1), &d));
  View from = in_view(c, 0);
  int64_t stride[MAX_DIMS];
  size_t mark = kern_mark(k);
  if (d.n > 1) { /* the outer dimensions first, in memory of our own */
    contiguous_strides(x->ndim, x->size, stride);
    View between = {kern_scratch(k, (size_t)tensor_numel(x) * 8 + 8), x->size, stride, x->ndim, DT_C64};
    Status s = between.data ? OK : fail_oom();
    for (int i = d.n - 2; i >= 0 && !s; i--, from = between) s = fft_c2c(k, from, between, d.dim[i], false, 1);
    if (s) return kern_release(k, mark), s;
  }
  Status s = fft_c2r(k, from, out_view_of(c, 0), d.dim[d.n - 1], scale_of(in_int(c, 2), out_tensor(c, 0), &d));
  kern_release(k, mark);
  return s;
}

static double fft_flops(const Call *c) {
  const Tensor *x = in_tensor(c, 0);
  Ints dims = in_ints(c, 1);
  double n = 1;
  for (int i = 0; i < dims.n; i++) {
    int64_t d = dims.v[i] < 0 ? dims.v[i] + x->ndim : dims.v[i];
    n *= (double)x->size[d];
  }
  return 5 * (double)tensor_numel(x) * log2(n > 1 ? n : 2);
}

/* ---- torch.fft ---------------------------------------------------------------- */

typedef enum { ANY_TO_C, REAL_TO_C, C_TO_REAL } Kind;

typedef struct {
  Kind kind;
  bool forward;
  bool many; /* (self, s, dim, norm); else (self, n, dim, norm) */
} Row;

static Status read_norm(const Call *c, int arg, bool forward, int64_t *out) {
  const char *norm = in_str(c, arg) ? in_str(c, arg) : "backward";
  if (!strcmp(norm, "ortho")) *out = 1;
  else if (!strcmp(norm, "backward")) *out = forward ? 0 : 2;
  else if (!strcmp(norm, "forward")) *out = forward ? 2 : 0;
  else return op_fail(c, "norm is '%s'; it can be 'backward', 'ortho' or 'forward'", norm);
  return OK;
}

/* Which dimensions, and the sizes to bring them to (-1: as they are). */
static Status read_sizes(const Call *c, const Tensor *x, bool many, Dims *d, int64_t *size) {
  if (!many) {
    d->n = 1;
    size[0] = in_none(c, 1) ? -1 : in_int(c, 1);
    return wrap_dim(c, in_int(c, 2), x->ndim, &d->dim[0]);
  }
  Ints s = in_ints(c, 1), dims = in_ints(c, 2);
  bool has_s = !in_none(c, 1), has_dims = !in_none(c, 2);
  if (has_dims) TRY(read_dims(c, x, dims, d));
  if (!has_dims) { /* all of them, or the last so many */
    d->n = has_s ? s.n : x->ndim;
    if (d->n > x->ndim) return op_fail(c, "%d sizes for a tensor of %d dimensions", s.n, x->ndim);
    for (int i = 0; i < d->n; i++) d->dim[i] = x->ndim - d->n + i;
  }
  if (has_s && s.n != d->n) return op_fail(c, "%d sizes for %d dimensions", s.n, d->n);
  for (int i = 0; i < d->n; i++) size[i] = has_s ? s.v[i] : -1;
  return OK;
}

/* Cut or filled up with zeros to `size` along dim. */
static Status resize(const Call *c, Tensor **x, int dim, int64_t size) {
  int64_t have = (*x)->size[dim], pad[2 * MAX_DIMS] = {0};
  if (size < 0 || size == have) return OK;
  if (size < 1) return op_fail(c, "cannot transform %lld elements", (long long)size);
  if (size < have)
    return OP(c, "aten.slice.Tensor", x, val_tensor(*x), val_int(dim), val_int(0), val_int(size), val_int(1));
  int from_last = (*x)->ndim - 1 - dim;
  pad[2 * from_last + 1] = size - have;
  return OP(c, "aten.constant_pad_nd.default", x, val_tensor(*x), val_ints(pad, 2 * (from_last + 1)), val_float(0));
}

/* Real input as f32, or any input as c64. */
static Status as_dtype(const Call *c, Tensor **x, Dtype d) {
  if ((*x)->dtype == d) return OK;
  if ((*x)->dtype == DT_F64 || (*x)->dtype == DT_C128) return check_dtype(c, *x, d);
  return OP(c, "aten._to_copy.default", x, val_tensor(*x), val_dtype(d));
}

static Status fft_compose(Call *c) {
  const Row *row = c->op->def->row;
  Tensor *x = in_tensor(c, 0), *y;
  Dims d;
  int64_t size[MAX_DIMS], dims[MAX_DIMS], norm = 0;
  if (!x || x->ndim == 0) return op_fail(c, "input must be a tensor with at least one dimension");
  TRY(read_norm(c, 3, row->forward, &norm));
  TRY(read_sizes(c, x, row->many, &d, size));
  if (d.n == 0) return op_fail(c, "needs at least one dimension to transform");
  int64_t last = size[d.n - 1];
  if (row->kind == C_TO_REAL) { /* the last size is that of the result */
    if (last < 0) last = 2 * (x->size[d.dim[d.n - 1]] - 1);
    if (last < 1) return op_fail(c, "cannot make %lld elements", (long long)last);
    size[d.n - 1] = last / 2 + 1;
  }
  bool real = row->kind == REAL_TO_C ||
              (row->kind == ANY_TO_C && dtype_kind(x->dtype) != KIND_COMPLEX && row->forward);
  if (row->kind == REAL_TO_C && dtype_kind(x->dtype) == KIND_COMPLEX)
    return op_fail(c, "input must be real, it is %s", dtype_name(x->dtype));
  TRY(as_dtype(c, &x, real ? DT_F32 : DT_C64));
  for (int i = 0; i < d.n; i++) {
    TRY(resize(c, &x, d.dim[i], size[i]));
    dims[i] = d.dim[i];
  }
  Value list = val_ints(dims, d.n);
  if (row->kind == C_TO_REAL)
    TRY(OP(c, "aten._fft_c2r.default", &y, val_tensor(x), list, val_int(norm), val_int(last)));
  else if (real)
    TRY(OP(c, "aten._fft_r2c.default", &y, val_tensor(x), list, val_int(norm), val_bool(row->kind == REAL_TO_C)));
  else TRY(OP(c, "aten._fft_c2c.default", &y, val_tensor(x), list, val_int(norm), val_bool(row->forward)));
  return out_value(c, val_tensor(y));
}

/* ---- frequencies and shifts ----------------------------------------------------- */

static Status freq_infer(Call *c) {
  int64_t n = in_int(c, 0), size = c->op->def->row ? n / 2 + 1 : n;
  Dtype d = in_dtype(c, 2, DT_F32);
  if (n < 1) return op_fail(c, "n is %lld, must be positive", (long long)n);
  if (!dtype_is_float(d)) return op_fail(c, "frequencies cannot be %s", dtype_name(d));
  return out_new(c, d, 1, &size);
}

static Status freq_run(Call *c) {
  int64_t n = in_int(c, 0), size = out_tensor(c, 0)->size[0], one = 1;
  Kern *k = &c->ctx->kern;
  size_t mark = kern_mark(k);
  double *v, step = 1 / ((double)n * in_float(c, 1));
  TRY_NEW(v, kern_scratch(k, (size_t)size * sizeof *v));
  for (int64_t i = 0; i < size; i++) v[i] = (double)(!c->op->def->row && i > (n - 1) / 2 ? i - n : i) * step;
  kernel_copy(k, out_view_of(c, 0), (View){v, &size, &one, 1, DT_F64});
  kern_release(k, mark);
  return OK;
}

/* Half a turn; row: the inverse. */
static Status shift_compose(Call *c) {
  Tensor *x = in_tensor(c, 0), *y;
  Dims d = {.n = x->ndim};
  int64_t shifts[MAX_DIMS], dims[MAX_DIMS];
  for (int i = 0; i < x->ndim; i++) d.dim[i] = i;
  if (!in_none(c, 1)) TRY(read_dims(c, x, in_ints(c, 1), &d));
  for (int i = 0; i < d.n; i++) {
    int64_t n = x->size[d.dim[i]];
    dims[i] = d.dim[i];
    shifts[i] = c->op->def->row ? (n + 1) / 2 : n / 2;
  }
  TRY(OP(c, "aten.roll.default", &y, val_tensor(x), val_ints(shifts, d.n), val_ints(dims, d.n)));
  return out_value(c, val_tensor(y));
}

/* clang-format off */
#define ONE(name, kind_, forward_) \
  {.schema = "aten::fft_" name "(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor", \
    .compose = fft_compose, .row = &(const Row){kind_, forward_, false}}
#define MANY(name, dims, kind_, forward_) \
  {.schema = "aten::fft_" name "(Tensor self, SymInt[1]? s=None, " dims ", str? norm=None) -> Tensor", \
    .compose = fft_compose, .row = &(const Row){kind_, forward_, true}}
/* clang-format on */
#define LAST_TWO "int[1] dim=[-2,-1]"
#define ALL_DIMS "int[1]? dim=None"
#define FREQ_TAIL                                                                                    \
  "(int n, float d=1.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? " \
  "pin_memory=None) -> Tensor"

static const bool yes = true; /* a row that says no more than that */

const OpDef ops_fft[] = {
    {.schema = "aten::_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor",
     .infer = c2c_infer,
     .run = c2c_run,
     .flops = fft_flops},
    {.schema = "aten::_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor",
     .infer = r2c_infer,
     .run = r2c_run,
     .flops = fft_flops},
    {.schema = "aten::_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor",
     .infer = c2r_infer,
     .run = c2r_run,
     .flops = fft_flops},
    ONE("fft", ANY_TO_C, true),
    ONE("ifft", ANY_TO_C, false),
    ONE("rfft", REAL_TO_C, true),
    ONE("irfft", C_TO_REAL, false),
    MANY("fft2", LAST_TWO, ANY_TO_C, true),
    MANY("ifft2", LAST_TWO, ANY_TO_C, false),
    MANY("rfft2", LAST_TWO, REAL_TO_C, true),
    MANY("irfft2", LAST_TWO, C_TO_REAL, false),
    MANY("fftn", ALL_DIMS, ANY_TO_C, true),
    MANY("ifftn", ALL_DIMS, ANY_TO_C, false),
    MANY("rfftn", ALL_DIMS, REAL_TO_C, true),
    MANY("irfftn", ALL_DIMS, C_TO_REAL, false),
    {.schema = "aten::fft_fftfreq" FREQ_TAIL, .infer = freq_infer, .run = freq_run},
    {.schema = "aten::fft_rfftfreq" FREQ_TAIL, .infer = freq_infer, .run = freq_run, .row = &yes},
    {.schema = "aten::fft_fftshift(Tensor self, int[1]? dim=None) -> Tensor", .compose = shift_compose},
    {.schema = "aten::fft_ifftshift(Tensor self, int[1]? dim=None) -> Tensor",
     .compose = shift_compose,
     .row = &yes},
    {0},
};
