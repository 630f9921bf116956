/* test_grad.c -- gradients through the public header: leaves, accumulation, writes in place, views, hooks,
 * gradients of gradients, failures. */
#include <math.h>

#include "tessera.h"
#include "unit.h"

/* ---- small words -------------------------------------------------------------------------------------- */

static TessTensor *vector(TessCtx *ctx, int n, const float *v) {
  return tess_tensor_from(ctx, TESS_F32, 1, (int64_t[]){n}, v);
}
static TessTensor *leaf(TessCtx *ctx, int n, const float *v) {
  TessTensor *t = vector(ctx, n, v);
  assert_int_equal(tess_set_requires_grad(ctx, t, 1), 0);
  return t;
}
static TessTensor *one(TessCtx *ctx, const char *op, TessTensor *a) { return tess_call(ctx, op, tess_t(a)); }
static TessTensor *two(TessCtx *ctx, const char *op, TessTensor *a, TessTensor *b) {
  return tess_call(ctx, op, tess_t(a), tess_t(b));
}
static TessTensor *times(TessCtx *ctx, TessTensor *a, double k) {
  return tess_call(ctx, "aten.mul.Scalar", tess_t(a), tess_f(k));
}
static TessTensor *item(TessCtx *ctx, TessTensor *a, int i) {
  return tess_call(ctx, "aten.select.int", tess_t(a), tess_i(0), tess_i(i));
}
static TessTensor *total(TessCtx *ctx, TessTensor *a) { return one(ctx, "aten.sum.default", a); }

static void back(TessCtx *ctx, TessTensor *loss) {
  if (tess_backward(ctx, &loss, NULL, 1, 0)) test_failed("%s", tess_error_message(ctx));
}
static void assert_values(TessCtx *ctx, const TessTensor *t, int n, const float *want) {
  float got[64];
  if (tess_error(ctx)) test_failed("%s", tess_error_message(ctx));
  assert_non_null(t);
  assert_int_equal(tess_numel(t), n);
  assert_int_equal(tess_read(ctx, t, got), 0);
  for (int i = 0; i < n; i++)
    if (fabsf(got[i] - want[i]) > 1e-5f * (1 + fabsf(want[i])))
      test_failed("element %d is %g, not %g", i, (double)got[i], (double)want[i]);
}
static void assert_refused(TessCtx *ctx, const char *part) {
  assert_int_not_equal(tess_error(ctx), 0);
  if (!strstr(tess_error_message(ctx), part)) test_failed("'%s' does not say '%s'", tess_error_message(ctx), part);
  tess_error_clear(ctx);
}
#define VALUES(...) \
  (int)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float)), (const float[]) { __VA_ARGS__ }

/* ---- leaves ----------------------------------------------------------------------------------------------- */

static void accumulates(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2, 3)), *c = vector(ctx, VALUES(1, 1, 1));
  assert_true(tess_requires_grad(x) && tess_is_leaf(x) && tess_is_leaf(c) && !tess_requires_grad(c));
  assert_null(tess_grad_of(ctx, x));
  TessTensor *y = two(ctx, "aten.mul.Tensor", x, x);
  assert_true(tess_requires_grad(y) && !tess_is_leaf(y));
  back(ctx, total(ctx, y));
  TessTensor *first = tess_grad_of(ctx, x);
  assert_values(ctx, first, VALUES(2, 4, 6));
  back(ctx, total(ctx, times(ctx, x, 3)));
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(5, 7, 9));
  assert_values(ctx, first, VALUES(5, 7, 9)); /* the same tensor */
  assert_null(tess_grad_of(ctx, y));
  assert_int_equal(tess_set_grad(ctx, x, NULL), 0);
  assert_null(tess_grad_of(ctx, x));
  back(ctx, total(ctx, x));
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(1, 1, 1));
  TessTensor *wrong = vector(ctx, VALUES(1, 2));
  assert_int_equal(tess_set_grad(ctx, x, wrong), -1);
  assert_refused(ctx, "cannot be the gradient");
  TessTensor *number = tess_call(ctx, "aten.arange.default", tess_i(3));
  assert_int_equal(tess_set_requires_grad(ctx, number, 1), -1);
  assert_refused(ctx, "floating-point");
  assert_int_equal(tess_set_requires_grad(ctx, two(ctx, "aten.add.Tensor", x, c), 0), -1);
  assert_refused(ctx, "only a leaf");
  tess_ctx_free(ctx);
}

/* A gradient is nobody else's memory, and dense. */
static void owns_gradients(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2)), *g = vector(ctx, VALUES(5, 6));
  TessTensor *y = tess_call(ctx, "aten.view.default", tess_t(x), tess_ints((int64_t[]){2}, 1));
  assert_int_equal(tess_backward(ctx, &y, &g, 1, 0), 0);
  TessTensor *dx = tess_grad_of(ctx, x);
  assert_ptr_not_equal(tess_data(dx), tess_data(g));
  TessTensor *a = leaf(ctx, VALUES(1, 2)), *s = total(ctx, a);
  back(ctx, s);
  assert_int_equal(tess_stride(tess_grad_of(ctx, a))[0], 1); /* not an expanded one */
  back(ctx, total(ctx, a));
  assert_values(ctx, tess_grad_of(ctx, a), VALUES(2, 2));
  tess_ctx_free(ctx);
}

static void asks_without_accumulating(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2)), *w = leaf(ctx, VALUES(3, 4)), *unused = leaf(ctx, VALUES(0, 0)), *g[3];
  TessTensor *h = two(ctx, "aten.mul.Tensor", x, w), *loss = total(ctx, two(ctx, "aten.mul.Tensor", h, h));
  TessTensor *in[] = {x, h, unused};
  assert_int_equal(tess_grad(ctx, &loss, NULL, 1, in, 2, g, TESS_RETAIN_GRAPH), 0);
  assert_values(ctx, g[0], VALUES(2 * 3 * 3, 2 * 8 * 4));
  assert_values(ctx, g[1], VALUES(6, 16));
  assert_null(tess_grad_of(ctx, x));
  assert_null(tess_grad_of(ctx, w));
  assert_int_equal(tess_grad(ctx, &loss, NULL, 1, in, 3, g, TESS_RETAIN_GRAPH), -1);
  assert_refused(ctx, "do not depend on input 2");
  assert_int_equal(tess_grad(ctx, &loss, NULL, 1, in, 3, g, TESS_ALLOW_UNUSED | TESS_RETAIN_GRAPH), 0);
  assert_null(g[2]);
  /* By h alone: what made h keeps what it needs. */
  assert_int_equal(tess_grad(ctx, &loss, NULL, 1, &h, 1, g, 0), 0);
  TessTensor *ones = vector(ctx, VALUES(1, 1));
  assert_int_equal(tess_backward(ctx, &h, &ones, 1, 0), 0);
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(3, 4));
  TessTensor *plain = vector(ctx, VALUES(1, 1));
  assert_int_equal(tess_grad(ctx, &loss, NULL, 1, &plain, 1, g, 0), -1);
  assert_refused(ctx, "input 0 does not require");
  tess_ctx_free(ctx);
}

static void once_unless_retained(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2)), *loss = total(ctx, two(ctx, "aten.mul.Tensor", x, x));
  assert_int_equal(tess_backward(ctx, &loss, NULL, 1, TESS_RETAIN_GRAPH), 0);
  assert_int_equal(tess_backward(ctx, &loss, NULL, 1, 0), 0);
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(4, 8));
  assert_int_equal(tess_backward(ctx, &loss, NULL, 1, 0), -1);
  assert_refused(ctx, "has been here before");
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(4, 8)); /* all or none */
  TessTensor *y = two(ctx, "aten.mul.Tensor", x, x);
  assert_int_equal(tess_backward(ctx, &y, NULL, 1, 0), -1);
  assert_refused(ctx, "cotangent");
  TessTensor *c = vector(ctx, VALUES(1));
  assert_int_equal(tess_backward(ctx, &c, NULL, 1, 0), -1);
  assert_refused(ctx, "does not depend");
  tess_ctx_free(ctx);
}

static void modes(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2));
  assert_true(tess_grad_enabled(ctx));
  assert_int_equal(tess_no_grad_begin(ctx), 0);
  assert_false(tess_requires_grad(times(ctx, x, 2)));
  assert_int_equal(tess_enable_grad_begin(ctx), 0);
  assert_true(tess_requires_grad(times(ctx, x, 2)));
  tess_enable_grad_end(ctx);
  assert_false(tess_requires_grad(times(ctx, x, 2)));
  TessTensor *same = tess_call(ctx, "aten.mul_.Scalar", tess_t(x), tess_f(3)); /* an optimiser's step */
  assert_true(tess_requires_grad(same) && tess_is_leaf(same) && tess_is_leaf(x));
  tess_no_grad_end(ctx);
  back(ctx, total(ctx, two(ctx, "aten.mul.Tensor", same, same)));
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(6, 12));
  TessTensor *cut = tess_detach(ctx, times(ctx, x, 2));
  assert_false(tess_requires_grad(cut));
  assert_int_equal(tess_set_grad_enabled(ctx, 0), 1);
  assert_int_equal(tess_set_grad_enabled(ctx, 1), 0);
  tess_ctx_free(ctx);
}

/* ---- writes in place --------------------------------------------------------------------------------------- */

static void refuses_writes_to_leaves(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2));
  assert_null(tess_call(ctx, "aten.mul_.Scalar", tess_t(x), tess_f(2)));
  assert_refused(ctx, "a leaf that requires a gradient");
  assert_null(tess_call(ctx, "aten.mul_.Scalar", tess_t(item(ctx, x, 0)), tess_f(2)));
  assert_refused(ctx, "a view of a leaf");
  TessTensor *h = times(ctx, x, 1), *y = one(ctx, "aten.exp.default", h), *z = two(ctx, "aten.mul.Tensor", y, h);
  tess_call(ctx, "aten.add_.Scalar", tess_t(h), tess_i(1));
  TessTensor *loss = total(ctx, z);
  assert_int_equal(tess_backward(ctx, &loss, NULL, 1, 0), -1);
  assert_non_null(strstr(tess_error_message(ctx), "aten.mul.Tensor"));
  assert_refused(ctx, "its other was kept for the gradient and has been written to");
  tess_ctx_free(ctx);
}

static void writes_in_place(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2)), *h = times(ctx, x, 3);
  TessTensor *kept = tess_hold(ctx, h);
  TessTensor *same = two(ctx, "aten.mul_.Tensor", h, h); /* 9 x^2 */
  back(ctx, total(ctx, same));
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(18, 36));
  assert_true(tess_requires_grad(kept));
  tess_set_grad(ctx, x, NULL);
  h = times(ctx, x, 3);
  TessTensor *before = tess_keep(ctx, h);
  tess_call(ctx, "aten.mul_.Scalar", tess_t(h), tess_f(5));
  back(ctx, total(ctx, before)); /* another handle of the same tensor knows */
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(15, 15));
  tess_release(kept);
  tess_ctx_free(ctx);
}

static void writes_through_views(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *w = leaf(ctx, VALUES(1, 2, 3)), *x = times(ctx, w, 2);
  TessTensor *y = item(ctx, x, 0),
             *tail = tess_call(ctx, "aten.slice.Tensor", tess_t(x), tess_i(0), tess_i(0), tess_i(2));
  tess_call(ctx, "aten.mul_.Scalar", tess_t(y), tess_f(10)); /* x = 20 w0, 2 w1, 2 w2 */
  TessTensor *ones = vector(ctx, VALUES(1, 1, 1));
  assert_int_equal(tess_backward(ctx, &x, &ones, 1, TESS_RETAIN_GRAPH), 0);
  assert_values(ctx, tess_grad_of(ctx, w), VALUES(20, 2, 2));
  tess_set_grad(ctx, w, NULL);
  assert_int_equal(tess_backward(ctx, &y, NULL, 1, TESS_RETAIN_GRAPH), 0);
  assert_values(ctx, tess_grad_of(ctx, w), VALUES(20, 0, 0));
  tess_set_grad(ctx, w, NULL);
  TessTensor *two_ones = vector(ctx, VALUES(1, 1));
  assert_int_equal(tess_backward(ctx, &tail, &two_ones, 1, TESS_RETAIN_GRAPH), 0); /* another view */
  assert_values(ctx, tess_grad_of(ctx, w), VALUES(20, 2, 0));
  tess_set_grad(ctx, w, NULL);
  tess_call(ctx, "aten.mul_.Scalar", tess_t(x), tess_f(3)); /* the whole again, then a view of it */
  assert_int_equal(tess_backward(ctx, &tail, &two_ones, 1, 0), 0);
  assert_values(ctx, tess_grad_of(ctx, w), VALUES(60, 6, 0));
  tess_ctx_free(ctx);
}

/* Tensors without a gradient get one through their parts. */
static void fills_parts(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *w = leaf(ctx, VALUES(3)), *out = vector(ctx, VALUES(1, 1, 1));
  TessTensor *cut = tess_detach(ctx, out);
  TessScope *scope = tess_scope_begin(ctx);
  TessTensor *part = tess_call(ctx, "aten.slice.Tensor", tess_t(out), tess_i(0), tess_i(1), tess_i(2));
  two(ctx, "aten.copy_.default", part, two(ctx, "aten.mul.Tensor", w, w));
  tess_scope_end(ctx, scope);
  assert_true(tess_requires_grad(out));
  assert_false(tess_requires_grad(cut));
  assert_values(ctx, out, VALUES(1, 9, 1));
  back(ctx, total(ctx, two(ctx, "aten.mul.Tensor", out, out))); /* d/dw w^4 */
  assert_values(ctx, tess_grad_of(ctx, w), VALUES(4 * 27));
  tess_set_grad(ctx, w, NULL);
  TessTensor *h = times(ctx, w, 2);
  tess_no_grad_begin(ctx);
  TessTensor *view = tess_call(ctx, "aten.view.default", tess_t(h), tess_ints((int64_t[]){1, 1}, 2));
  tess_no_grad_end(ctx);
  assert_false(tess_requires_grad(view));
  tess_call(ctx, "aten.mul_.Scalar", tess_t(view), tess_f(5)); /* h = 10 w all the same */
  back(ctx, total(ctx, h));
  assert_values(ctx, tess_grad_of(ctx, w), VALUES(10));
  tess_ctx_free(ctx);
}

/* ---- gradients of gradients ---------------------------------------------------------------------------------- */

static void differentiates_twice(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2)), *g, *gg, *ggg;
  TessTensor *cube = two(ctx, "aten.mul.Tensor", two(ctx, "aten.mul.Tensor", x, x), x), *loss = total(ctx, cube);
  assert_int_equal(tess_grad(ctx, &loss, NULL, 1, &x, 1, &g, TESS_CREATE_GRAPH), 0);
  assert_values(ctx, g, VALUES(3, 12));
  assert_true(tess_requires_grad(g));
  TessTensor *s = total(ctx, g);
  assert_int_equal(tess_grad(ctx, &s, NULL, 1, &x, 1, &gg, TESS_CREATE_GRAPH), 0);
  assert_values(ctx, gg, VALUES(6, 12));
  s = total(ctx, gg);
  assert_int_equal(tess_grad(ctx, &s, NULL, 1, &x, 1, &ggg, 0), 0);
  assert_values(ctx, ggg, VALUES(6, 6));
  TessTensor *e = one(ctx, "aten.exp.default", x), *se = total(ctx, e); /* keeps its result */
  assert_int_equal(tess_grad(ctx, &se, NULL, 1, &x, 1, &g, TESS_CREATE_GRAPH), 0);
  s = total(ctx, g);
  assert_int_equal(tess_grad(ctx, &s, NULL, 1, &x, 1, &gg, 0), 0);
  assert_values(ctx, gg, VALUES(expf(1), expf(2)));
  tess_ctx_free(ctx);
}

/* ---- hooks --------------------------------------------------------------------------------------------------- */

typedef struct {
  int calls, released;
  float seen;
} Watch;

static int watch(TessCtx *ctx, TessTensor *g, TessTensor **out, void *arg) {
  (void)out;
  Watch *w = arg;
  w->calls++;
  return tess_read(ctx, total(ctx, g), &w->seen);
}
static int doubled(TessCtx *ctx, TessTensor *g, TessTensor **out, void *arg) {
  (void)arg;
  *out = times(ctx, g, 2);
  return 0;
}
static int too_large(TessCtx *ctx, TessTensor *g, TessTensor **out, void *arg) {
  (void)arg;
  *out = two(ctx, "aten.cat.default", NULL, NULL);
  tess_error_clear(ctx);
  *out = vector(ctx, VALUES(1, 2, 3, 4, 5));
  (void)g;
  return 0;
}
static int failing(TessCtx *ctx, TessTensor *g, TessTensor **out, void *arg) {
  (void)ctx, (void)g, (void)out, (void)arg;
  return 7;
}
static void released(void *arg) { ((Watch *)arg)->released++; }

static void calls_hooks(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  Watch w = {0}, at_leaf = {0};
  TessTensor *x = leaf(ctx, VALUES(1, 2)), *h = times(ctx, x, 3),
             *loss = total(ctx, two(ctx, "aten.mul.Tensor", h, h));
  TessHook *a = tess_register_hook(ctx, h, watch, &w, released),
           *b = tess_register_hook(ctx, h, doubled, NULL, NULL);
  TessHook *c = tess_register_hook(ctx, x, watch, &at_leaf, NULL);
  assert_int_equal(tess_retain_grad(ctx, h), 0);
  assert_int_equal(tess_backward(ctx, &loss, NULL, 1, TESS_RETAIN_GRAPH), 0);
  assert_int_equal(w.calls, 1); /* complete: both of h's uses */
  assert_true(w.seen == 2 * 3 + 2 * 6);
  assert_true(at_leaf.seen == 2 * 3 * w.seen);
  assert_values(ctx, tess_grad_of(ctx, h), VALUES(12, 24));
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(36, 72));
  tess_remove_hook(b);
  tess_forget_hook(a);
  assert_int_equal(w.released, 0);
  assert_int_equal(tess_backward(ctx, &loss, NULL, 1, TESS_RETAIN_GRAPH), 0);
  assert_int_equal(w.calls, 2);
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(54, 108));
  tess_remove_hook(c);
  TessHook *d = tess_register_hook(ctx, h, failing, NULL, NULL);
  assert_int_equal(tess_backward(ctx, &loss, NULL, 1, TESS_RETAIN_GRAPH), -1);
  assert_refused(ctx, "code 7");
  tess_remove_hook(d);
  d = tess_register_hook(ctx, h, too_large, NULL, NULL);
  assert_int_equal(tess_backward(ctx, &loss, NULL, 1, TESS_RETAIN_GRAPH), -1);
  assert_refused(ctx, "a hook replaced a gradient f32[2] by f32[5]");
  tess_forget_hook(d);
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(54, 108));
  assert_null(tess_register_hook(ctx, vector(ctx, VALUES(1)), watch, &w, NULL));
  assert_refused(ctx, "requires no gradient");
  tess_ctx_free(ctx);
  assert_int_equal(w.released, 1);
}

/* ---- what is freed ------------------------------------------------------------------------------------------- */

/* Handles outlive contexts; graphs that were never gone back through are freed with their last handle. */
static void outlives_the_context(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2)), *h = times(ctx, x, 2);
  for (int i = 0; i < 1000; i++) h = one(ctx, "aten.sin.default", h);
  one(ctx, "aten.relu_.default", h);
  TessTensor *held = tess_hold(ctx, h);
  tess_ctx_free(ctx);
  assert_true(tess_requires_grad(held));
  tess_release(held);
}

/* A backward that fails half-way leaves nothing behind, and the leaves as they were. */
static void fails_half_way(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2)), *h = one(ctx, "aten.sin.default", times(ctx, x, 3));
  TessTensor *f = tess_call(ctx, "aten.nextafter.default", tess_t(h), tess_t(h));
  TessTensor *loss = total(ctx, one(ctx, "aten.exp.default", f ? f : h));
  tess_error_clear(ctx);
  TessHook *d = tess_register_hook(ctx, h, failing, NULL, NULL);
  assert_int_equal(tess_backward(ctx, &loss, NULL, 1, 0), -1);
  tess_error_clear(ctx);
  assert_null(tess_grad_of(ctx, x));
  tess_forget_hook(d);
  tess_ctx_free(ctx);
}

/* A call that its op lets through although its arguments do not belong together. */
static void refuses_what_does_not_fit(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2, 3, 4)), *z = two(ctx, "aten.complex.default", x, x);
  TessTensor *y = tess_call(ctx, "aten._fft_c2r.default", tess_t(z), tess_ints((const int64_t[]){0}, 1), tess_i(0),
                            tess_i(1)); /* one element, of one frequency of four */
  TessTensor *loss = total(ctx, y);
  assert_int_not_equal(tess_backward(ctx, &loss, NULL, 1, 0), 0);
  assert_refused(ctx, "of self, which is c64[4], it is c64[1]");
  assert_null(tess_grad_of(ctx, x));
  tess_call(ctx, "aten.scaled_dot_product_attention.default", tess_t(x), tess_t(x), tess_t(x));
  assert_refused(ctx, "they need two dimensions or more"); /* as without gradients */
  loss = total(ctx, tess_call(ctx, "aten.polygamma.default", tess_i(INT64_MAX), tess_t(x)));
  assert_int_not_equal(tess_backward(ctx, &loss, NULL, 1, 0), 0);
  assert_refused(ctx, "so high an order");
  tess_ctx_free(ctx);
}

/* The exponent minus one is no integer: as a float it is the exponent. */
static void takes_the_least_exponent(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2, 4));
  back(ctx, total(ctx, tess_call(ctx, "aten.pow.Tensor_Scalar", tess_t(x), tess_i(INT64_MIN))));
  assert_values(ctx, tess_grad_of(ctx, x), VALUES((float)INT64_MIN, 0, 0));
  tess_ctx_free(ctx);
}

/* Shifts that cannot be negated, and more of them than dimensions. */
static void rolls_back(void **state) {
  (void)state;
  enum { MANY = 21 };
  int64_t shifts[MANY], dims[MANY];
  for (int i = 0; i < MANY; i++) shifts[i] = i == 0 ? INT64_MIN : 1, dims[i] = i % 2 ? 0 : -1;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *x = leaf(ctx, VALUES(1, 2, 3, 4, 5)), *w = vector(ctx, VALUES(1, 10, 100, 1000, 10000));
  TessTensor *y = tess_call(ctx, "aten.roll.default", tess_t(x), tess_ints(shifts, MANY), tess_ints(dims, MANY));
  back(ctx, total(ctx, two(ctx, "aten.mul.Tensor", y, w)));
  /* -2^63 + 20 is 2 more than a multiple of 5: x[i] is at i + 2. */
  assert_values(ctx, y, VALUES(4, 5, 1, 2, 3));
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(100, 1000, 10000, 1, 10));
  y = tess_call(ctx, "aten.roll.default", tess_t(x), tess_ints(shifts, 1));
  assert_int_equal(tess_set_grad(ctx, x, NULL), 0);
  back(ctx, total(ctx, two(ctx, "aten.mul.Tensor", y, w)));
  assert_values(ctx, tess_grad_of(ctx, x), VALUES(100, 1000, 10000, 1, 10));
  tess_ctx_free(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(accumulates),
      cmocka_unit_test(owns_gradients),
      cmocka_unit_test(asks_without_accumulating),
      cmocka_unit_test(once_unless_retained),
      cmocka_unit_test(modes),
      cmocka_unit_test(refuses_writes_to_leaves),
      cmocka_unit_test(writes_in_place),
      cmocka_unit_test(writes_through_views),
      cmocka_unit_test(fills_parts),
      cmocka_unit_test(differentiates_twice),
      cmocka_unit_test(calls_hooks),
      cmocka_unit_test(outlives_the_context),
      cmocka_unit_test(fails_half_way),
      cmocka_unit_test(refuses_what_does_not_fit),
      cmocka_unit_test(takes_the_least_exponent),
      cmocka_unit_test(rolls_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
