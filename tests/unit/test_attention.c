/* Attention and its gradients: every route and instruction set against one query at a time,
 * on random sizes, layouts and masks. */
#include "kernel_cases.h"
#include "unit.h"

#include <float.h>
#include <math.h>

#include "kernels/attention.h"
#include "kernels/convert.h"

#ifdef __has_feature /* clang */
#if __has_feature(address_sanitizer)
enum { SHARE = 4 }; /* the naive kernels are slow there */
#else
enum { SHARE = 1 };
#endif
#else
enum { SHARE = 1 };
#endif
enum { CASES = 45 / SHARE };

/* (batch, heads, rows, columns), also laid out as (batch, rows, heads, columns). */
typedef struct {
  int64_t size[4], stride[4];
  View v;
} Array;

static int64_t numel(const Array *a) { return a->size[0] * a->size[1] * a->size[2] * a->size[3]; }

static void array_make(Array *a, Dtype d, int64_t b, int64_t h, int64_t t, int64_t e) {
  bool turned = pick(0, 1), gaps = pick(0, 3) == 0;
  int64_t col = gaps ? 2 : 1, row = turned ? h * e * col : e * col, head = turned ? e * col : t * e * col;
  memcpy(a->size, (int64_t[]){b, h, t, e}, sizeof a->size);
  memcpy(a->stride, (int64_t[]){h * t * e * col, head, row, col}, sizeof a->stride);
  int64_t n = numel(a) * col;
  a->v = (View){calloc((size_t)n + 1, dtype_size(d)), a->size, a->stride, 4, d};
  assert_non_null(a->v.data);
  for (int64_t i = 0; i < n; i++) {
    double x = d == DT_BOOL ? (double)(pick(0, 3) > 0) : (double)pick(-1500, 1500) / 1000;
    SIMD_CALL(ISA_BASE, convert_run)((char *)a->v.data + (size_t)i * dtype_size(d), d, &x, DT_F64, 1);
  }
}

static int64_t position(const Array *a, int64_t i) {
  int64_t at = 0;
  for (int d = 3; d >= 0; i /= a->size[d], d--) at += i % a->size[d] * a->stride[d];
  return at;
}

/* Every third row of a mask is the least f32: these queries attend to all keys alike. */
static void hide_rows(Array *mask) {
  for (int64_t i = 0; i < numel(mask); i++)
    if (i / mask->size[3] % 3 == 0) ((float *)mask->v.data)[position(mask, i)] = -FLT_MAX;
}

/* A logsumexp near the least f32 is only known to be there. */
static void forget_depths(Array *lse) {
  for (int64_t i = 0; i < numel(lse) && lse->v.dtype == DT_F32; i++) {
    float *x = (float *)lse->v.data + position(lse, i);
    if (*x < -FLT_MAX / 2) *x = -FLT_MAX;
  }
}

static void array_copy(Array *to, const Array *from) { /* the same layout, other memory */
  *to = *from;
  to->v.size = to->size, to->v.stride = to->stride;
  to->v.data = calloc((size_t)numel(from) * 2 + 1, dtype_size(from->v.dtype));
  assert_non_null(to->v.data);
}

static void compare(const Array *got, const Array *want, double tolerance, const char *what) {
  for (int64_t i = 0; i < numel(got); i++) {
    const int64_t at = position(got, i);
    double x, y;
    SIMD_CALL(ISA_BASE, convert_run)
    (&x, DT_F64, (char *)got->v.data + (size_t)at * dtype_size(got->v.dtype), got->v.dtype, 1);
    SIMD_CALL(ISA_BASE, convert_run)
    (&y, DT_F64, (char *)want->v.data + (size_t)at * dtype_size(got->v.dtype), got->v.dtype, 1);
    if (!(fabs(x - y) <= tolerance * (1 + fabs(y))))
      test_failed("%s: element %lld is %.9g, should be %.9g", what, (long long)i, x, y);
  }
}

typedef struct {
  Array q, k, v, out, want, mask, lse, lse_want;
  Attention a;
  char what[160];
} Case;

static void case_make(Case *c, const Kern *k, int number, bool grads) {
  static const Dtype dtypes[] = {DT_F32, DT_F32, DT_F32, DT_F16, DT_BF16, DT_F64};
  Dtype d = grads ? DT_F32 : dtypes[pick(0, 5)];
  bool many = grads && pick(0, 3) == 0; /* queries of one key head: they are divided */
  int64_t per_group = many ? 3 : pick(1, 3), groups = many ? 1 : pick(1, 3), b = pick(1, 2),
          t = pick(0, 2) ? pick(1, 40) : pick(60, 150);
  int64_t s = pick(0, 2) ? pick(1, 40) : pick(120, 500), depth = pick(0, 3) ? pick(1, 40) : 64,
          e = pick(0, 1) ? depth : pick(1, 50), h = groups * per_group;
  if (!grads && pick(0, 20) == 0) depth = 400;
  if (pick(0, 3) == 0) t = 1;
  if (many) t = pick(300, 420), s = pick(20, 60);
  array_make(&c->q, d, b, h, t, depth);
  array_make(&c->k, d, b, groups, s, depth);
  array_make(&c->v, d, b, groups, s, e);
  array_make(&c->out, d, b, h, t, e);
  array_copy(&c->want, &c->out);
  array_make(&c->lse, d == DT_F64 ? DT_F64 : DT_F32, b, h, t, 1);
  array_copy(&c->lse_want, &c->lse);
  array_make(&c->mask, pick(0, 1) ? DT_BOOL : DT_F32, pick(0, 1) ? b : 1, pick(0, 1) ? h : 1, pick(0, 1) ? t : 1,
             pick(0, 5) ? s : 1);
  if (c->mask.v.dtype == DT_F32 && number % 3 == 0) hide_rows(&c->mask);
  c->lse.v.ndim = c->lse_want.v.ndim = 3;
  c->a = (Attention){.q = c->q.v,
                     .k = c->k.v,
                     .v = c->v.v,
                     .out = c->out.v,
                     .logsumexp = &c->lse.v,
                     .scale = 0.4,
                     .causal = pick(0, 2) == 0};
  if (pick(0, 1)) c->a.mask = &c->mask.v;
  if (pick(0, 4) == 0) c->a.dropout = 0.3, c->a.seed = 5, c->a.offset = 7;
  snprintf(c->what, sizeof c->what,
           "case %d: %s, heads %lld of %lld, t %lld, s %lld, d %lld, e %lld, causal %d, mask %d, %s", number,
           dtype_name(d), (long long)h, (long long)groups, (long long)t, (long long)s, (long long)depth,
           (long long)e, c->a.causal, c->a.mask != NULL, isa_name(k->isa));
}

static void case_free(Case *c) {
  Array *all[] = {&c->q, &c->k, &c->v, &c->out, &c->want, &c->mask, &c->lse, &c->lse_want};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->v.data);
}

static void forward_case(Kern *k, int number) {
  static const double tolerance[DT_COUNT] = {[DT_F32] = 1e-5, [DT_F64] = 1e-12, [DT_F16] = 2e-3, [DT_BF16] = 1e-2};
  Case c;
  case_make(&c, k, number, false);
  assert_ok(attention(k, &c.a));
  c.a.out = c.want.v;
  c.a.logsumexp = &c.lse_want.v;
  assert_ok(attention_naive(k, &c.a));
  compare(&c.out, &c.want, tolerance[c.a.q.dtype], c.what);
  forget_depths(&c.lse);
  forget_depths(&c.lse_want);
  compare(&c.lse, &c.lse_want, 1e-5, c.what);
  case_free(&c);
}

static void grad_case(Kern *k, int number) {
  Case c;
  Array go, dq, dk, dv, want_q, want_k, want_v;
  case_make(&c, k, number, true);
  array_make(&go, DT_F32, c.out.size[0], c.out.size[1], c.out.size[2], c.out.size[3]);
  array_make(&dq, DT_F32, c.q.size[0], c.q.size[1], c.q.size[2], c.q.size[3]);
  array_make(&dk, DT_F32, c.k.size[0], c.k.size[1], c.k.size[2], c.k.size[3]);
  array_make(&dv, DT_F32, c.v.size[0], c.v.size[1], c.v.size[2], c.v.size[3]);
  array_copy(&want_q, &dq);
  array_copy(&want_k, &dk);
  array_copy(&want_v, &dv);
  assert_ok(attention_naive(k, &c.a));
  AttentionGrad g = {.forward = c.a, .grad_out = go.v, .grad_q = dq.v, .grad_k = dk.v, .grad_v = dv.v};
  assert_ok(attention_grad(k, &g));
  g.grad_q = want_q.v, g.grad_k = want_k.v, g.grad_v = want_v.v;
  assert_ok(attention_grad_naive(k, &g));
  compare(&dq, &want_q, 2e-5, c.what);
  compare(&dk, &want_k, 2e-5, c.what);
  compare(&dv, &want_v, 2e-5, c.what);
  Array *all[] = {&go, &dq, &dk, &dv, &want_q, &want_k, &want_v};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->v.data);
  case_free(&c);
}

static void mask_grad_case(Kern *k, int number) {
  Case c;
  Array go, dm, want;
  case_make(&c, k, number, true);
  if (c.mask.v.dtype == DT_F32) c.a.mask = &c.mask.v;
  array_make(&go, DT_F32, c.out.size[0], c.out.size[1], c.out.size[2], c.out.size[3]);
  array_make(&dm, DT_F32, c.mask.size[0], c.mask.size[1], c.mask.size[2], c.mask.size[3]);
  array_copy(&want, &dm);
  assert_ok(attention_naive(k, &c.a));
  AttentionGrad g = {.forward = c.a, .grad_out = go.v};
  assert_ok(attention_grad_mask(k, &g, dm.v));
  assert_ok(attention_grad_mask_naive(k, &g, want.v));
  compare(&dm, &want, 2e-5, c.what);
  Array *all[] = {&go, &dm, &want};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->v.data);
  case_free(&c);
}

static void routes_agree_with_the_naive_one(void **state) {
  (void)state;
  on_every_machine(forward_case, CASES);
}

static void gradients_agree_with_the_naive_ones(void **state) {
  (void)state;
  on_every_machine(grad_case, CASES / 4);
}

static void gradients_of_masks_agree_with_the_naive_ones(void **state) {
  (void)state;
  on_every_machine(mask_grad_case, CASES / 6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(routes_agree_with_the_naive_one),
      cmocka_unit_test(gradients_agree_with_the_naive_ones),
      cmocka_unit_test(gradients_of_masks_agree_with_the_naive_ones),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
