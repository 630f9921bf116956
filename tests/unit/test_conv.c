/* test_conv.c -- every route of a convolution against conv_naive, plans, gradients. */
#include "kernels/conv.h"

#include <math.h>
#include <stdlib.h>

#include "unit.h"

typedef struct {
  const char *what;
  bool transposed;
  int nd;
  int64_t n, ic, oc, groups, in[3], k[3], stride[3], pad[3], dilation[3],
      extra; /* extra rows of a transposed output */
} Shape;

/* One for each route, and what might trip it. */
static const Shape shapes[] = {
    {"3x3", false, 2, 2, 16, 24, 1, {9, 11}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0},
    {"surplus input, strides", false, 2, 1, 8, 8, 1, {10, 12}, {3, 2}, {2, 3}, {0, 1}, {1, 1}, 0},
    {"first layer", false, 2, 1, 3, 16, 1, {21, 20}, {7, 7}, {2, 2}, {3, 3}, {1, 1}, 0},
    {"pointwise", false, 2, 2, 12, 20, 1, {5, 7}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 0},
    {"pointwise, stride", false, 2, 1, 12, 20, 1, {5, 7}, {1, 1}, {2, 2}, {0, 0}, {1, 1}, 0},
    {"groups", false, 2, 1, 12, 8, 4, {6, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0},
    {"depthwise", false, 2, 2, 6, 6, 6, {13, 37}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 0},
    {"depthwise, stride 2", false, 2, 1, 5, 10, 5, {14, 19}, {3, 5}, {2, 2}, {1, 2}, {1, 1}, 0},
    {"depthwise, stride 3, dilation", false, 2, 1, 4, 4, 4, {20, 70}, {2, 3}, {3, 3}, {0, 1}, {2, 2}, 0},
    {"depthwise 7x7", false, 2, 1, 8, 8, 8, {9, 9}, {7, 7}, {1, 1}, {3, 3}, {1, 1}, 0},
    {"depthwise in time", false, 1, 2, 8, 8, 8, {50}, {4}, {1}, {3}, {1}, 0},
    {"1-d, dilation", false, 1, 2, 5, 7, 1, {30}, {3}, {1}, {4}, {4}, 0},
    {"3-d", false, 3, 1, 4, 6, 2, {4, 5, 6}, {2, 3, 3}, {1, 2, 1}, {1, 1, 1}, {1, 1, 1}, 0},
    {"transposed", true, 2, 2, 8, 6, 1, {5, 6}, {4, 4}, {2, 2}, {1, 1}, {1, 1}, 0},
    {"transposed, apart", true, 2, 2, 8, 6, 1, {5, 6}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, 0},
    {"transposed, gaps and padding", true, 2, 1, 8, 6, 1, {5, 6}, {2, 2}, {3, 3}, {1, 1}, {1, 1}, 2},
    {"transposed, groups, output padding", true, 2, 1, 8, 6, 2, {5, 6}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1},
    {"transposed 1-d", true, 1, 1, 4, 4, 1, {9}, {5}, {3}, {2}, {1}, 0},
    {"transposed 3-d", true, 3, 1, 4, 2, 2, {3, 4, 3}, {3, 3, 2}, {2, 1, 2}, {1, 0, 0}, {1, 1, 1}, 0},
};

typedef struct {
  int64_t size[5], stride[5];
  float *data;
  int64_t n;
} Array;

static void array_make(Array *a, int ndim, const int64_t *size, bool channels_last) {
  a->n = 1;
  for (int i = 0; i < ndim; i++) a->size[i] = size[i], a->n *= size[i];
  contiguous_strides(ndim, size, a->stride);
  if (channels_last) {
    int64_t step = size[1];
    a->stride[1] = 1;
    for (int i = ndim - 1; i >= 2; i--) a->stride[i] = step, step *= size[i];
    a->stride[0] = step;
  }
  a->data = aligned_alloc(64, ((size_t)a->n * sizeof(float) + 63) / 64 * 64 + 64);
  assert_non_null(a->data);
  for (int64_t i = 0; i < a->n; i++) a->data[i] = (float)(rand() % 2001 - 1000) / 1000;
}

static View view(const Array *a, int ndim) { return (View){a->data, a->size, a->stride, ndim, DT_F32}; }

typedef struct {
  ConvGeometry g;
  Array x, w, b, y, want;
} Problem;

static void problem_make(Problem *p, const Shape *s, bool channels_last) {
  int nd = s->nd;
  p->g = (ConvGeometry){.nd = nd, .transposed = s->transposed, .groups = s->groups};
  int64_t x[5] = {s->n, s->ic}, y[5] = {s->n, s->oc};
  int64_t w[5] = {s->transposed ? s->ic : s->oc, (s->transposed ? s->oc : s->ic) / s->groups};
  for (int d = 0; d < nd; d++) {
    p->g.stride[d] = s->stride[d], p->g.pad[d] = s->pad[d], p->g.dilation[d] = s->dilation[d];
    int64_t reach = s->dilation[d] * (s->k[d] - 1) + 1;
    x[d + 2] = s->in[d], w[d + 2] = s->k[d];
    y[d + 2] = s->transposed ? (s->in[d] - 1) * s->stride[d] - 2 * s->pad[d] + reach + s->extra
                             : (s->in[d] + 2 * s->pad[d] - reach) / s->stride[d] + 1;
  }
  array_make(&p->x, nd + 2, x, channels_last);
  array_make(&p->w, nd + 2, w, false);
  array_make(&p->b, 1, &s->oc, false);
  array_make(&p->y, nd + 2, y, channels_last);
  array_make(&p->want, nd + 2, y, channels_last);
}

static void problem_free(Problem *p) {
  free(p->x.data), free(p->w.data), free(p->b.data), free(p->y.data), free(p->want.data);
}

static void check_close(const Array *got, const Array *want, double scale, const char *what) {
  for (int64_t i = 0; i < got->n; i++) {
    double d = fabs((double)got->data[i] - (double)want->data[i]);
    if (!(d <= 2e-5 * scale))
      test_failed("%s: element %lld is %g, should be %g", what, (long long)i, (double)got->data[i],
                  (double)want->data[i]);
  }
}

static void routes_agree(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 2);
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    for (int variant = 0; variant < 8; variant++) { /* channels last, bias, fixed weights */
      Problem p;
      problem_make(&p, &shapes[i], variant & 1);
      int n = p.g.nd + 2;
      View bias = variant & 2 ? view(&p.b, 1) : (View){0};
      ConvPlan *plan = NULL;
      assert_ok(conv_naive(&k, &p.g, view(&p.x, n), view(&p.w, n), bias, view(&p.want, n)));
      for (int run = 0; run < 2; run++) {
        assert_ok(conv_forward(&k, &p.g, view(&p.x, n), view(&p.w, n), bias, view(&p.y, n),
                               variant & 4 ? &plan : NULL, variant & 4));
        check_close(&p.y, &p.want, 10, shapes[i].what);
      }
      conv_plan_free(plan);
      problem_free(&p);
    }
  }
  kern_free(&k);
}

/* A plan that was made for one problem is right for the next, and weights that are not
 * fixed are read again. */
static void plans_follow(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 1);
  ConvPlan *plan = NULL;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    Problem p;
    problem_make(&p, &shapes[i], false);
    int n = p.g.nd + 2;
    for (int run = 0; run < 2; run++) {
      for (int64_t e = 0; e < p.w.n; e++) p.w.data[e] *= -0.5f;
      assert_ok(conv_naive(&k, &p.g, view(&p.x, n), view(&p.w, n), (View){0}, view(&p.want, n)));
      assert_ok(conv_forward(&k, &p.g, view(&p.x, n), view(&p.w, n), (View){0}, view(&p.y, n), &plan, false));
      check_close(&p.y, &p.want, 10, shapes[i].what);
    }
    problem_free(&p);
  }
  conv_plan_free(plan);
  kern_free(&k);
}

static void gradients_agree(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 2);
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    Problem p;
    problem_make(&p, &shapes[i], false);
    int n = p.g.nd + 2;
    Array dw, want;
    array_make(&dw, n, p.w.size, false);
    array_make(&want, n, p.w.size, false);
    assert_ok(conv_grad_weights(&k, &p.g, view(&p.x, n), view(&p.y, n), view(&dw, n)));
    assert_ok(conv_naive_grad_weights(&k, &p.g, view(&p.x, n), view(&p.y, n), view(&want, n)));
    check_close(&dw, &want, 50, shapes[i].what);
    /* <conv(x), y> = <x, conv'(y)> = <w, dw>: the three are one number. */
    double by_weights = 0, by_input = 0;
    for (int64_t e = 0; e < dw.n; e++) by_weights += (double)dw.data[e] * (double)p.w.data[e];
    ConvGeometry back = p.g;
    back.transposed = !back.transposed;
    Array dx;
    array_make(&dx, n, p.x.size, false);
    assert_ok(conv_forward(&k, &back, view(&p.y, n), view(&p.w, n), (View){0}, view(&dx, n), NULL, false));
    for (int64_t e = 0; e < dx.n; e++) by_input += (double)dx.data[e] * (double)p.x.data[e];
    assert_true(fabs(by_weights - by_input) <= 1e-3 * (1 + fabs(by_weights)));
    assert_ok(conv_grad_bias(&k, view(&p.y, n), view(&p.b, 1)));
    free(dw.data), free(want.data), free(dx.data);
    problem_free(&p);
  }
  kern_free(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(routes_agree),
      cmocka_unit_test(plans_follow),
      cmocka_unit_test(gradients_agree),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
