/* norm_twice.c -- gradients of the gradients of layer norm, rms norm, group norm and batch norm.
 *
 * With h = (x - mean) rstd and a = g w those are
 *     gx = J(a),  J(t) = rstd (t - mean of t - h * mean of t h);   gw = sum of g h;   gb = sum of g,
 * and J is symmetric.  u, cw and cb are the cotangents of gx, gw and gb:
 *     by g:  w J(u) + cw h + cb      by w:  sum of g J(u)
 *     by x:  J(g cw) - rstd (J(u) * mean of a h + J(a) * mean of u h + rstd h s)
 *     s = mean of u a - mean u * mean a - mean of u h * mean of a h
 * mean and rstd are functions of x here; rms norm has no mean, and with given statistics J(t) = rstd t, h' = rstd.
 */
#include "ops/vjp.h"

typedef struct {
  Formula *f;
  Tensor *g, *x, *w, *mean, *rstd; /* all as one shape broadcasts; w NULL: 1; mean NULL: rms norm */
  Tensor *u, *cw, *cb;             /* cotangents, NULL: zero; cw and cb broadcast like w */
  Tensor *h;
  const int64_t *dim; /* normalised dimensions */
  int n;
  bool given; /* statistics do not depend on x */
} Twice;

typedef struct {
  Tensor *g, *x, *w; /* the gradients; w not yet summed over the rows */
} Found;

static Tensor *average(const Twice *t, Tensor *x) {
  return F_OP(t->f, "aten.mean.dim", F_T(x), val_ints(t->dim, t->n), val_bool(true));
}

static Tensor *plus(Formula *f, Tensor *a, Tensor *b) { return !a ? b : !b ? a : f_add(f, a, b); }

static Tensor *apply_j(const Twice *t, Tensor *x) {
  Formula *f = t->f;
  if (t->given) return f_mul(f, x, t->rstd);
  Tensor *rest = f_sub(f, x, f_mul(f, t->h, average(t, f_mul(f, x, t->h))));
  if (t->mean) rest = f_sub(f, rest, average(t, x));
  return f_mul(f, rest, t->rstd);
}

/* By x, of u gx. */
static Tensor *by_input(const Twice *t, Tensor *a, Tensor *ju) {
  Formula *f = t->f;
  if (t->given) return NULL;
  Tensor *uh = average(t, f_mul(f, t->u, t->h)), *ah = average(t, f_mul(f, a, t->h));
  Tensor *s = f_sub(f, average(t, f_mul(f, t->u, a)), f_mul(f, uh, ah));
  if (t->mean) s = f_sub(f, s, f_mul(f, average(t, t->u), average(t, a)));
  Tensor *sum = f_add(f, f_mul(f, ju, ah), f_mul(f, apply_j(t, a), uh));
  sum = f_add(f, sum, f_mul(f, t->h, f_mul(f, t->rstd, s)));
  return f_neg(f, f_mul(f, t->rstd, sum));
}

static Found twice(Twice *t) {
  Formula *f = t->f;
  Found r = {NULL, NULL, NULL};
  Tensor *centred = t->mean ? f_sub(f, t->x, t->mean) : t->x;
  t->h = f_mul(f, centred, t->rstd);
  if (t->u) {
    Tensor *ju = apply_j(t, t->u), *a = t->w ? f_mul(f, t->g, t->w) : t->g;
    r.g = t->w ? f_mul(f, ju, t->w) : ju;
    r.w = f_mul(f, t->g, ju);
    r.x = by_input(t, a, ju);
  }
  if (t->cw) {
    r.g = plus(f, r.g, f_mul(f, t->h, t->cw));
    r.x = plus(f, r.x, apply_j(t, f_mul(f, t->g, t->cw)));
  }
  if (t->cb) r.g = plus(f, r.g, F_OP(f, "aten.expand_as.default", F_T(t->cb), F_T(t->g)));
  return r;
}

/* The cotangent of return number i, in f32 at least; NULL if that return is None, or zero. */
static Tensor *cotangent_of(Vjp *v, int i) {
  const Call *c = v->forward;
  int flat = 0;
  if (i >= c->nout || c->out[i].kind != VAL_TENSOR) return NULL;
  for (int k = 0; k < i; k++) flat += c->out[k].kind == VAL_TENSOR;
  return f_widen(&v->f, v->cotangent[flat]);
}

static Tensor *shaped(Formula *f, Tensor *t, const int64_t *size, int n) {
  return t ? f_view(f, f_widen(f, t), size, n) : NULL;
}

/* (grad_out, input, normalized_shape, [mean,] rstd, weight, [bias,] mask) */
static void give_rows(Vjp *v, int mean, int rstd, int weight) {
  Formula *f = &v->f;
  Ints shape = in_ints(v->forward, 2);
  int64_t dim[MAX_DIMS];
  for (int i = 0; i < shape.n; i++) dim[i] = i - shape.n;
  Twice t = {.f = f,
             .g = f_widen(f, vjp_arg(v, 0)),
             .x = f_widen(f, vjp_arg(v, 1)),
             .w = f_widen(f, vjp_arg(v, weight)),
             .mean = mean ? f_widen(f, vjp_arg(v, mean)) : NULL,
             .rstd = f_widen(f, vjp_arg(v, rstd)),
             .u = cotangent_of(v, 0),
             .cw = cotangent_of(v, 1),
             .cb = mean ? cotangent_of(v, 2) : NULL,
             .dim = dim,
             .n = shape.n};
  Found r = twice(&t);
  vjp_give(v, 0, r.g);
  vjp_give(v, 1, r.x);
  if (vjp_wants(v, weight)) vjp_give(v, weight, r.w);
}

static void vjp_layer_norm_backward(Vjp *v) { give_rows(v, 3, 4, 5); }
static void vjp_rms_norm_backward(Vjp *v) { give_rows(v, 0, 3, 4); }

/* (grad_out, input, mean, rstd, weight, N, C, HxW, group, mask), seen as (N, groups, C / groups, HxW) */
static void vjp_group_norm_backward(Vjp *v) {
  Formula *f = &v->f;
  const Tensor *x = v->in[1];
  int64_t n = in_int(v->forward, 5), c = in_int(v->forward, 6), groups = in_int(v->forward, 8);
  const int64_t size[4] = {n, groups, c / groups, in_int(v->forward, 7)}, stat[4] = {n, groups, 1, 1},
                affine[4] = {1, groups, c / groups, 1}, dim[2] = {2, 3};
  Twice t = {.f = f,
             .g = shaped(f, vjp_arg(v, 0), size, 4),
             .x = shaped(f, vjp_arg(v, 1), size, 4),
             .w = shaped(f, vjp_arg(v, 4), affine, 4),
             .mean = shaped(f, vjp_arg(v, 2), stat, 4),
             .rstd = shaped(f, vjp_arg(v, 3), stat, 4),
             .u = shaped(f, cotangent_of(v, 0), size, 4),
             .cw = shaped(f, cotangent_of(v, 1), affine, 4),
             .cb = shaped(f, cotangent_of(v, 2), affine, 4),
             .dim = dim,
             .n = 2};
  Found r = twice(&t);
  if (r.g) vjp_give(v, 0, f_view(f, r.g, x->size, x->ndim));
  if (r.x) vjp_give(v, 1, f_view(f, r.x, x->size, x->ndim));
  const int64_t rows[2] = {0, 3};
  if (r.w && vjp_wants(v, 4)) vjp_give(v, 4, f_view(f, f_sum(f, r.w, rows, 2, false), &c, 1));
}

/* (grad_out, input, weight, running mean and var, saved mean and invstd, train, eps, mask) */
static void vjp_batch_norm_backward(Vjp *v) {
  Formula *f = &v->f;
  const Tensor *x = v->in[1];
  bool train = in_bool(v->forward, 7);
  int64_t affine[MAX_DIMS], dim[MAX_DIMS];
  int count = 0;
  for (int d = 0; d < x->ndim; d++) {
    affine[d] = d == 1 ? x->size[1] : 1;
    if (d != 1) dim[count++] = d;
  }
  Tensor *rstd = train ? vjp_arg(v, 6) : f_rsqrt(f, f_shift(f, f_widen(f, vjp_arg(v, 4)), in_float(v->forward, 8)));
  Twice t = {.f = f,
             .g = f_widen(f, vjp_arg(v, 0)),
             .x = f_widen(f, vjp_arg(v, 1)),
             .w = shaped(f, vjp_arg(v, 2), affine, x->ndim),
             .mean = shaped(f, vjp_arg(v, train ? 5 : 3), affine, x->ndim),
             .rstd = shaped(f, rstd, affine, x->ndim),
             .u = cotangent_of(v, 0),
             .cw = shaped(f, cotangent_of(v, 1), affine, x->ndim),
             .cb = shaped(f, cotangent_of(v, 2), affine, x->ndim),
             .dim = dim,
             .n = count,
             .given = !train};
  Found r = twice(&t);
  vjp_give(v, 0, r.g);
  vjp_give(v, 1, r.x);
  if (r.w && vjp_wants(v, 2)) vjp_give(v, 2, f_sum(f, r.w, dim, count, false));
}

const GradDef grads_norm_twice[] = {
    GRAD("native_layer_norm_backward.default", vjp_layer_norm_backward, "grad_out input mean rstd weight"),
    GRAD("_fused_rms_norm_backward.default", vjp_rms_norm_backward, "grad_out input rstd weight"),
    GRAD("native_group_norm_backward.default", vjp_group_norm_backward, "grad_out input mean rstd weight"),
    GRAD("native_batch_norm_backward.default", vjp_batch_norm_backward,
         "grad_out input weight running_mean running_var save_mean save_invstd"),
    {0},
};
