/* Routes of redistributions: which steps, and that carrying them out gives the right shards. */
#include "comm/comm.h"
#include "dist/dispatch.h"
#include "dist/dist.h"
#include "dist/dtensor.h"
#include "unit.h"

typedef struct {
  int axis[2];
  int64_t shape[2];
  const char *from, *to;
  int steps, collectives;
  StepKind kind; /* of the first step */
} RouteCase;

static const RouteCase cases[] = {
    /* strided shards of uneven sizes: every rank holds what it needs */
    {{2, 4}, {3, 16}, "R,S(1)", "_S(1,4),S(1)", 1, 0, STEP_SLICE},
    {{2, 4}, {3, 13}, "R,S(1)", "_S(1,4),S(1)", 1, 0, STEP_SLICE},
    {{3, 2}, {5, 17}, "R,S(1)", "_S(1,2),S(1)", 1, 0, STEP_SLICE},
    {{2, 3}, {7, 4}, "R,S(0)", "_S(0,3),S(0)", 1, 0, STEP_SLICE},
    {{2, 2}, {7, 5}, "R,S(0)", "S(0),S(0)", 2, 1, STEP_ALL_GATHER}, /* no slice: the outer cut comes first */
    /* averages over one axis and sums over another */
    {{2, 2}, {4, 6}, "P(avg),P(sum)", "R,R", 1, 1, STEP_ALL_REDUCE},
    {{2, 3}, {5, 6}, "P(sum),P(avg)", "R,R", 1, 1, STEP_ALL_REDUCE},
    {{2, 2}, {5, 6}, "P(sum),P(avg)", "S(0),S(1)", 1, 1, STEP_REDUCE_SCATTER},
};
enum { CASES = sizeof cases / sizeof *cases };

static Status route_of(Mesh *m, const RouteCase *c, Arena *arena, Route *out) {
  Placement from[MAX_AXES], to[MAX_AXES];
  const Spec *a, *b;
  int n;
  TRY(placements_parse(c->from, 2, from, &n));
  TRY(placements_parse(c->to, 2, to, &n));
  TRY(spec_new(m, DT_F32, 2, c->shape, NULL, from, &a));
  TRY(spec_with(a, to, &b));
  return route_find(a, b, arena, out);
}

static void test_steps(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    Dist *d;
    Mesh *m;
    Arena arena = {0};
    Route route;
    char text[256];
    assert_ok(dist_new(NULL, &d));
    assert_ok(mesh_new(d, cases[i].axis, 2, NULL, NULL, &m));
    assert_ok(route_of(m, &cases[i], &arena, &route));
    if (route.collectives != cases[i].collectives || route.n != cases[i].steps ||
        route.step[0].kind != cases[i].kind)
      test_failed("%s to %s: %s", cases[i].from, cases[i].to, route_print(&route, 2, text, sizeof text));
    arena_free(&arena);
    dist_free(d);
  }
}

/* The whole is the same before and after. */
static Status carry_out(Ctx *ctx, Dist *d, const RouteCase *c, Scope *scope) {
  float data[200];
  Placement from[MAX_AXES], to[MAX_AXES];
  Tensor *t, *x, *y, *got;
  Mesh *m;
  int n;
  TRY(placements_parse(c->from, 2, from, &n));
  TRY(placements_parse(c->to, 2, to, &n));
  for (int i = 0; i < 200; i++) data[i] = (float)(i % 17) - 5;
  TRY(mesh_new(d, c->axis, 2, NULL, NULL, &m));
  TRY(tensor_new(scope, DT_F32, 2, c->shape, &t));
  memcpy(tensor_data(t), data, (size_t)tensor_numel(t) * sizeof *data);
  TRY(dtensor_distribute(ctx, scope, t, m, from, 0, &x));
  TRY(dtensor_redistribute(ctx, scope, x, NULL, to, DT_NONE, &y));
  TRY(dtensor_full(ctx, scope, y, &got));
  for (int64_t i = 0; i < tensor_numel(t); i++) {
    float a = data[i], b = ((float *)tensor_data(got))[i];
    if (a - b > 1e-5f || b - a > 1e-5f)
      return fail(ERR_DIFF, "%s to %s: element %lld is %g instead of %g", c->from, c->to, (long long)i, (double)b,
                  (double)a);
  }
  return OK;
}

static Status on_rank(World *w, void *arg) {
  const RouteCase *c = arg;
  Ctx ctx;
  Dist *d;
  Scope scope = {0};
  ctx_init(&ctx, 1);
  TRY(dist_new(w, &d));
  ctx_attach_dist(&ctx, d);
  Status s = carry_out(&ctx, d, c, &scope);
  scope_clear(&scope);
  ctx_free(&ctx);
  dist_free(d);
  return s;
}

static void test_carried_out(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++)
    assert_ok(world_threads(cases[i].axis[0] * cases[i].axis[1], on_rank, (void *)(uintptr_t)&cases[i], NULL));
}

/* Ranks 0 to 5 on 2 x 3 owe their numbers: averages over the first axis of sums over the second. */
static Status add_and_average(Ctx *ctx, Dist *d, int rank, Scope *scope) {
  int axis[2] = {2, 3};
  int64_t one = 1;
  Placement owed[2] = {place_p(REDUCE_AVG), place_p(REDUCE_SUM)};
  Tensor *t, *x, *whole;
  Mesh *m;
  TRY(mesh_new(d, axis, 2, NULL, NULL, &m));
  TRY(tensor_new(scope, DT_F32, 1, &one, &t));
  *(float *)tensor_data(t) = (float)rank;
  TRY(dtensor_from_local(ctx, scope, t, m, owed, &(FromLocal){0}, &x));
  TRY(dtensor_full(ctx, scope, x, &whole));
  float got = *(float *)tensor_data(whole), want = (0 + 1 + 2 + 3 + 4 + 5) / 2.0f;
  return got - want < 1e-5f && want - got < 1e-5f ? OK
                                                  : fail(ERR_DIFF, "%g instead of %g", (double)got, (double)want);
}

static Status owe_on_rank(World *w, void *arg) {
  Ctx ctx;
  Dist *d;
  Scope scope = {0};
  (void)arg;
  ctx_init(&ctx, 1);
  TRY(dist_new(w, &d));
  ctx_attach_dist(&ctx, d);
  Status s = add_and_average(&ctx, d, world_rank(w), &scope);
  scope_clear(&scope);
  ctx_free(&ctx);
  dist_free(d);
  return s;
}

static void test_average_of_sums(void **state) {
  (void)state;
  assert_ok(world_threads(6, owe_on_rank, NULL, NULL));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps), cmocka_unit_test(test_carried_out),
                                     cmocka_unit_test(test_average_of_sums)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
