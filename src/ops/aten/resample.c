/* resample.c -- upsample_*: images at other sizes, in 1 to 3 spatial dimensions.
 *
 *   .default  (self, output_size, [align_corners,] a scale or None for each dimension)
 *   .vec      (input, output_size or None, [align_corners,] scale_factors or None)
 *   backward  (grad_output, output_size, input_size, [align_corners,] scales)
 *
 * A scale that is given is used for the coordinates, even where the sizes say another.
 */
#include "kernels/resample.h"

#include <math.h>
#include <string.h>

#include "ops/rule.h"

typedef struct {
  int nd;
  ResampleMode mode;
  bool align; /* has an argument align_corners */
} Row;

typedef struct {
  ResampleScale scale[3]; /* the last nd of them; the others keep their size of 1 */
} Problem;

static Status read_problem(const Call *c, const int64_t *in, const int64_t *out, int align_arg,
                           const double *factor, Problem *p) {
  const Row *row = c->op->def->row;
  for (int d = 0; d < 3; d++) {
    int at = d - (3 - row->nd);
    p->scale[d] = at < 0 ? (ResampleScale){1, 1, 0, false}
                         : (ResampleScale){in[at], out[at], factor[at], row->align && in_bool(c, align_arg)};
    if (!isfinite(p->scale[d].factor)) return op_fail(c, "the scale of spatial dimension %d is not finite", at);
    if (p->scale[d].in < 1 || p->scale[d].out < 1 || p->scale[d].in > INT32_MAX || p->scale[d].out > INT32_MAX) {
      return op_fail(c, "cannot go from size %lld to %lld in spatial dimension %d", (long long)p->scale[d].in,
                     (long long)p->scale[d].out, at);
    }
  }
  return OK;
}

/* Optional floats from argument `first` on. */
static void read_scales(const Call *c, int first, int nd, double *factor) {
  for (int d = 0; d < nd; d++) factor[d] = in_none(c, first + d) ? 0 : in_float(c, first + d);
}

static Status problem(const Call *c, Problem *p) {
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 0);
  char a[96];
  int align = row->align;
  if (!x || x->ndim != row->nd + 2)
    return op_fail(c, "input %s needs %d dimensions", x ? tensor_describe(x, a, sizeof a) : "none", row->nd + 2);
  if (row->mode > RESAMPLE_NEAREST_EXACT && !dtype_is_float(x->dtype))
    return op_fail(c, "there is no interpolation of %s", dtype_name(x->dtype));
  double factor[3] = {0};
  int64_t out[3];
  bool vec = c->op->schema.nparams == 3 + align && c->op->schema.params[2 + align].list;
  Ints size = in_ints(c, 1);
  if (!vec) {
    read_scales(c, 2 + align, row->nd, factor);
  } else if (!in_none(c, 2 + align)) {
    const Value *f = &c->arg[2 + align];
    if (f->kind != VAL_FLOATS || f->n != row->nd) return op_fail(c, "scale_factors needs %d elements", row->nd);
    memcpy(factor, f->floats, (size_t)row->nd * sizeof *factor);
    if (!size.n) {
      for (int d = 0; d < row->nd; d++) out[d] = f64_to_i64((double)x->size[d + 2] * factor[d]);
      return read_problem(c, x->size + 2, out, 2, factor, p);
    }
    return op_fail(c, "takes either output_size or scale_factors");
  }
  if (size.n != row->nd) return op_fail(c, "output_size has %d elements, must have %d", size.n, row->nd);
  return read_problem(c, x->size + 2, size.v, 2, factor, p);
}

static Status resample_infer(Call *c) {
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 0);
  Problem p;
  TRY(problem(c, &p));
  int64_t size[5] = {x->size[0], x->size[1]}, stride[5];
  for (int d = 0; d < row->nd; d++) size[d + 2] = p.scale[3 - row->nd + d].out;
  if (row->nd == 1 || x->size[1] < 2 || x->stride[1] != 1 || tensor_is_contiguous(x))
    return out_new(c, x->dtype, x->ndim, size);
  int64_t n = size[1]; /* channels last in, channels last out */
  stride[1] = 1;
  for (int i = x->ndim - 1; i >= 2; i--) stride[i] = n, n *= size[i];
  stride[0] = n;
  return out_strided(c, x->dtype, x->ndim, size, stride);
}

/* (n, c, s...) with five dimensions. */
static View five(View v, int64_t *size, int64_t *stride) {
  for (int i = 0; i < 5; i++) size[i] = 1, stride[i] = 0;
  for (int i = 0; i < v.ndim; i++) {
    int to = i < 2 ? i : i + 5 - v.ndim;
    size[to] = v.size[i];
    stride[to] = v.stride[i];
  }
  return (View){v.data, size, stride, 5, v.dtype};
}

static Status make_axes(Call *c, const Problem *p, bool wide, ResampleAxis *axis) {
  const Row *row = c->op->def->row;
  for (int d = 0; d < 3; d++) {
    ResampleMode mode = d < 3 - row->nd ? RESAMPLE_NEAREST : row->mode; /* a dimension that is not there */
    TRY(resample_axis(&c->ctx->kern, mode, &p->scale[d], wide, &axis[d]));
  }
  return OK;
}

static Status run_with_axes(Call *c, const Problem *p, bool grad) {
  ResampleAxis axis[3];
  int64_t is[5], it[5], os[5], ot[5];
  View in = five(in_view(c, 0), is, it), out = five(out_view_of(c, 0), os, ot);
  TRY(make_axes(c, p, in.dtype == DT_F64, axis));
  return grad ? resample_grad(&c->ctx->kern, axis, in, out) : resample(&c->ctx->kern, axis, in, out);
}

static Status resample_body(Call *c) {
  Problem p;
  TRY(problem(c, &p));
  return run_with_axes(c, &p, false);
}
static Status resample_run(Call *c) { return with_scratch(c, resample_body); }

/* ---- gradients -------------------------------------------------------------- */

static Status grad_problem(const Call *c, Problem *p) {
  const Row *row = c->op->def->row;
  const Tensor *dy = in_tensor(c, 0);
  Ints out = in_ints(c, 1), in = in_ints(c, 2);
  double factor[3];
  if (!dy || dy->ndim != row->nd + 2 || out.n != row->nd || in.n != row->nd + 2 || !dtype_is_float(dy->dtype)) {
    return op_fail(c, "needs a gradient of floats with %d dimensions, and sizes to match", row->nd + 2);
  }
  if (memcmp(out.v, dy->size + 2, (size_t)row->nd * sizeof *out.v) || memcmp(in.v, dy->size, 2 * sizeof *in.v)) {
    char a[96];
    return op_fail(c, "gradient %s does not have the sizes that are given", tensor_describe(dy, a, sizeof a));
  }
  read_scales(c, 3 + row->align, row->nd, factor);
  return read_problem(c, in.v + 2, out.v, 3, factor, p);
}

static Status grad_infer(Call *c) {
  Problem p;
  TRY(grad_problem(c, &p));
  Ints in = in_ints(c, 2);
  return out_new(c, in_tensor(c, 0)->dtype, in.n, in.v);
}

static Status grad_body(Call *c) {
  Problem p;
  TRY(grad_problem(c, &p));
  return run_with_axes(c, &p, true);
}
static Status grad_run(Call *c) { return with_scratch(c, grad_body); }

/* input_size counts this rank's batch and channels. */
static Status localize_grad(Local *l) { return local_set_out_size(l, 2); }

/* ---- the table --------------------------------------------------------------- */

#define SCALES1 "float? scales=None"
#define SCALES2 "float? scales_h=None, float? scales_w=None"
#define SCALES3 "float? scales_d=None, float? scales_h=None, float? scales_w=None"
#define ALIGN "bool align_corners, "
/* clang-format off */
#define FORWARD(n, name, mode_, align_, text) \
  {.schema = "aten::" name "(Tensor self, SymInt[" #n "] output_size, " text SCALES##n ") -> Tensor", \
    .infer = resample_infer, .run = resample_run, .shard.rule = "0 1 s a", \
    .row = &(const Row){n, mode_, align_}}, {.schema = "aten::" name ".vec(Tensor input, SymInt[]? output_size, " text "float[]? scale_factors) -> Tensor", \
    .infer = resample_infer, .run = resample_run, .shard.rule = "0 1 s a", .row = &(const Row){n, mode_, align_}}
/* clang-format on */
#define BOTH(n, in_n, name, mode_, align_, text)                                                      \
  FORWARD(n, name, mode_, align_, text), {                                                            \
    .schema = "aten::" name "_backward(Tensor grad_output, SymInt[" #n "] output_size, SymInt[" #in_n \
              "] input_size, " text SCALES##n ") -> Tensor",                                          \
    .infer = grad_infer, .run = grad_run, .shard.rule = "0 1 s a", .shard.localize = localize_grad,   \
    .row = &(const Row) {                                                                             \
      n, mode_, align_                                                                                \
    }                                                                                                 \
  }

const OpDef ops_resample[] = {
    BOTH(1, 3, "upsample_nearest1d", RESAMPLE_NEAREST, false, ""),
    BOTH(2, 4, "upsample_nearest2d", RESAMPLE_NEAREST, false, ""),
    BOTH(3, 5, "upsample_nearest3d", RESAMPLE_NEAREST, false, ""),
    BOTH(1, 3, "_upsample_nearest_exact1d", RESAMPLE_NEAREST_EXACT, false, ""),
    BOTH(2, 4, "_upsample_nearest_exact2d", RESAMPLE_NEAREST_EXACT, false, ""),
    BOTH(3, 5, "_upsample_nearest_exact3d", RESAMPLE_NEAREST_EXACT, false, ""),
    BOTH(1, 3, "upsample_linear1d", RESAMPLE_LINEAR, true, ALIGN),
    BOTH(2, 4, "upsample_bilinear2d", RESAMPLE_LINEAR, true, ALIGN),
    BOTH(3, 5, "upsample_trilinear3d", RESAMPLE_LINEAR, true, ALIGN),
    BOTH(2, 4, "upsample_bicubic2d", RESAMPLE_CUBIC, true, ALIGN),
    BOTH(2, 4, "_upsample_bilinear2d_aa", RESAMPLE_LINEAR_AA, true, ALIGN),
    BOTH(2, 4, "_upsample_bicubic2d_aa", RESAMPLE_CUBIC_AA, true, ALIGN),
    {0},
};
