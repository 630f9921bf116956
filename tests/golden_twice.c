/* golden_twice.c -- see golden_twice.h. */
#include "golden_twice.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/copy.h"

static const double STEP = 1e-4, SHIFT = 1e-2, TOLERANCE = 1e-5;

/* Numbers per tensor argument; NULL where none are wanted. */
typedef struct {
  int64_t n[GOLDEN_TENSORS];
  double *v[GOLDEN_TENSORS];
} Numbers;

typedef struct {
  const char *family;
  yyjson_val *json;
  const SafeTensors *data;
  int threads;
  Arena *arena; /* of the numbers */
  bool unfit;   /* nothing to compare */
} Twice;

/* One of -1 .. 1, the same in every evaluation. */
static double number_of(int which, int64_t i) {
  uint64_t x = ((uint64_t)which << 32 ^ (uint64_t)i) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
  return (double)(int64_t)(x ^ x >> 32) / 9.3e18;
}

enum { COTANGENTS = 1000, SHIFTS = 2000 }; /* number_of() them from here on */

static Status random_like(Scope *scope, const Tensor *t, int which, Tensor **out) {
  TRY(tensor_new(scope, DT_F64, t->ndim, t->size, out));
  for (int64_t i = 0; i < tensor_numel(t); i++) ((double *)tensor_data(*out))[i] = number_of(which, i);
  return OK;
}

typedef struct {
  Twice *trial;
  GoldenCase *c;
  Ctx *ctx;
  double step;
} Widen;

/* f32 becomes f64.  If `at` is a tensor whose gradient is wanted, it is moved a little, so that it stands on no
 * bend, and a step on.  Steps of numbers that are very large lead nowhere. */
static Status widen(void *arg, int at, bool *wanted, Tensor **t) {
  const Widen *w = arg;
  Tensor *wide;
  *wanted &= (*t)->dtype == DT_F32;
  if ((*t)->dtype != DT_F32) return OK;
  TRY(tensor_new(&w->c->scope, DT_F64, (*t)->ndim, (*t)->size, &wide));
  kernel_copy(&w->ctx->kern, tensor_view(wide), tensor_view(*t));
  for (int64_t i = 0; *wanted && i < tensor_numel(wide); i++) {
    double *x = (double *)tensor_data(wide) + i;
    w->trial->unfit |= !(fabs(*x) < 1e6);
    *x += w->step * number_of(at, i) + SHIFT * number_of(SHIFTS + at, i);
  }
  *t = wide;
  return OK;
}

static Status require_arguments(Twice *t, GoldenCase *c, Ctx *ctx, Tape *tape, double step, Tensor **leaf) {
  for (int i = 0; i < c->nargs; i++) {
    Value *v = &c->args[i].value;
    if (v->kind == VAL_DTYPE && v->dtype == DT_F32) v->dtype = DT_F64;
  }
  return golden_require(c, tape, widen, &(Widen){t, c, ctx, step}, leaf);
}

static Status keep(Twice *t, const Tensor *g, const Tensor *like, int64_t *n, double **out) {
  *n = tensor_numel(like);
  TRY_NEW(*out, arena_new_n(t->arena, double, *n + 1));
  View to = {*out, NULL, NULL, 0, DT_F64};
  int64_t stride[MAX_DIMS], step = 1;
  for (int d = like->ndim - 1; d >= 0; d--) stride[d] = step, step *= like->size[d];
  to.size = like->size, to.stride = stride, to.ndim = like->ndim;
  Kern k = {0};
  if (g) kernel_copy(&k, to, tensor_view(g));
  return OK;
}

/* Gradients of the case under a tape, or the gradients of <those, v>. */
static Status differentiate(Twice *t, GoldenCase *c, Ctx *ctx, Tape *tape, double step, bool second, Numbers *out) {
  Value bound[MAX_PARAMS];
  Tensor *leaf[GOLDEN_TENSORS] = {0}, *output[GOLDEN_TENSORS], *cotangent[GOLDEN_TENSORS], *input[GOLDEN_TENSORS],
         *found[GOLDEN_TENSORS] = {0};
  int which[GOLDEN_TENSORS], n = 0, ninputs = 0, at = 0;
  const Backward how = {.create_graph = second, .allow_unused = true};
  TRY(require_arguments(t, c, ctx, tape, step, leaf));
  Call call = {.ctx = ctx, .op = op_find(c->op), .arg = bound, .scope = &c->scope, .arena = &c->arena};
  TRY(op_bind(&c->arena, call.op, c->args, c->nargs, bound));
  TRY(op_dispatch(&call));
  yyjson_val *cot = yyjson_obj_get(c->json, "cot");
  for (TensorWalk w = call_outputs(&call); tensor_next(&w); at++) {
    yyjson_val *one = yyjson_arr_get(cot, (size_t)at);
    if (!one || yyjson_is_null(one) || !w.tensor->grad) continue;
    t->unfit |= w.tensor->dtype != DT_F64;
    output[n] = w.tensor;
    TRY(random_like(&c->scope, w.tensor, COTANGENTS + at, &cotangent[n++]));
  }
  for (int i = 0; i < c->tensors; i++)
    if (leaf[i]) which[ninputs] = i, input[ninputs++] = leaf[i];
  if (t->unfit || n == 0 || ninputs == 0) return t->unfit = true, OK;
  TRY(tape_gradients(tape, output, cotangent, n, input, ninputs, &how, &c->scope, found));
  if (second) {
    n = 0;
    for (int i = 0; i < ninputs; i++) {
      if (!found[i] || !found[i]->grad) continue;
      output[n] = found[i];
      TRY(random_like(&c->scope, found[i], which[i], &cotangent[n++]));
    }
    memset(found, 0, sizeof found);
    if (n)
      TRY(tape_gradients(tape, output, cotangent, n, input, ninputs, &(Backward){.allow_unused = true}, &c->scope,
                         found));
  }
  for (int i = 0; i < ninputs; i++) TRY(keep(t, found[i], input[i], &out->n[which[i]], &out->v[which[i]]));
  return OK;
}

static Status evaluate(Twice *t, double step, bool second, Numbers *out) {
  GoldenCase c = {.family = t->family, .json = t->json, .data = t->data};
  Ctx ctx;
  Tape tape;
  if (t->unfit) return OK;
  ctx_init(&ctx, t->threads);
  tape_begin(&tape, &ctx);
  Status s = golden_case_read(&c);
  if (!s) s = differentiate(t, &c, &ctx, &tape, step, second, out);
  tape_end(&tape);
  golden_case_free(&c);
  ctx_free(&ctx);
  if (s && strstr(status_message(s), "no gradient is known")) {
    t->unfit = true;
    status_free(s);
    return OK;
  }
  return s;
}

/* ---- comparing --------------------------------------------------------------------------------------------- */

typedef struct {
  Numbers up, down, far_up, far_down, second;
} Found;

static bool is_near(double a, double b, double scale) { return fabs(a - b) <= TOLERANCE * (1 + scale); }

static Status compare(const Found *f) {
  for (int t = 0; t < GOLDEN_TENSORS; t++) {
    double scale = 0;
    for (int64_t i = 0; i < f->second.n[t]; i++) {
      double near = (f->up.v[t][i] - f->down.v[t][i]) / (2 * STEP);
      if (isfinite(near) && fabs(near) < 1e6) scale = fmax(scale, fabs(near));
    }
    for (int64_t i = 0; i < f->second.n[t]; i++) {
      double near = (f->up.v[t][i] - f->down.v[t][i]) / (2 * STEP),
             far = (f->far_up.v[t][i] - f->far_down.v[t][i]) / (4 * STEP), got = f->second.v[t][i];
      if (!isfinite(near) || !isfinite(far) || !is_near(near, far, scale)) continue;
      if (!isfinite(got) || !is_near(got, near, scale))
        return fail(ERR_DIFF, "the second derivative by tensor argument %d, element %lld, is %.9g, should be %.9g",
                    t, (long long)i, got, near);
    }
  }
  return OK;
}

static Status evaluate_all(Twice *t, Found *f) {
  TRY(evaluate(t, 0, true, &f->second));
  TRY(evaluate(t, STEP, false, &f->up));
  TRY(evaluate(t, -STEP, false, &f->down));
  TRY(evaluate(t, 2 * STEP, false, &f->far_up));
  TRY(evaluate(t, -2 * STEP, false, &f->far_down));
  return t->unfit ? OK : compare(f);
}

/* Gradients of norms get mean and deviation of their input beside it, and are differentiated as if they made them
 * themselves, as PyTorch does: a step of the input alone is another function. */
static bool takes_statistics(yyjson_val *json) {
  const char *op = yyjson_get_str(yyjson_obj_get(json, "op"));
  return strstr(op, "_norm_backward") != NULL;
}

Status golden_twice(const char *family, yyjson_val *json, const SafeTensors *data, int threads, bool *left_out) {
  Arena arena = {0};
  Twice t = {.family = family, .json = json, .data = data, .threads = threads, .arena = &arena};
  Found *f;
  t.unfit = yyjson_get_bool(yyjson_obj_get(json, "complex")) || takes_statistics(json);
  TRY_NEW(f, arena_new_n(&arena, Found, 1));
  Status s = evaluate_all(&t, f);
  *left_out = !s && t.unfit;
  arena_free(&arena);
  return s;
}
