/* test_fused_backward.c -- what the pass fuse_backward joins: the compiled program gives the bits that the
 * interpreter gives node by node, and needs no memory for tensors of zeros. */
#include <string.h>

#include "harness/rank_results.h"
#include "runtime/session.h"
#include "unit.h"

typedef struct {
  Ctx ctx;
  Scope scope;
  Arena arena;
  Value input[8];
  int n;
} Bench;

static void bench_begin(Bench *b) {
  *b = (Bench){0};
  ctx_init(&b->ctx, 2);
}

static void bench_end(Bench *b) {
  scope_clear(&b->scope);
  arena_free(&b->arena);
  ctx_free(&b->ctx);
}

/* Numbers from -2 to 2, or indices below `below`. */
static void add_input(Bench *b, Dtype d, int ndim, const int64_t *size, int64_t below) {
  Tensor *t;
  assert_ok(tensor_new(&b->scope, d, ndim, size, &t));
  for (int64_t i = 0; i < tensor_numel(t); i++) {
    int64_t k = i * 7919 % 1013;
    if (d == DT_I64) ((int64_t *)tensor_data(t))[i] = k % below;
    else if (d == DT_F64) ((double *)tensor_data(t))[i] = (double)k / 250 - 2;
    else ((float *)tensor_data(t))[i] = (float)k / 250 - 2;
  }
  b->input[b->n++] = val_tensor(t);
}

static uint64_t bits(Bench *b, const char *text, bool interpret, size_t *slab) {
  Exported *e;
  Session *s;
  Value *outs;
  Program *p;
  int n;
  uint64_t sum = 0;
  assert_ok(graph_parse(text, strlen(text), "test", &e));
  assert_ok(session_open(&b->ctx, e, &s));
  if (interpret) session_force_interpreter(s);
  assert_ok(session_prepare(s, b->input, b->n, &p));
  if (!interpret) *slab = p->slab_bytes;
  assert_ok(session_run(s, b->input, b->n, &b->scope, &b->arena, &outs, &n));
  for (int i = 0; i < n; i++) sum = sum * 31 + value_hash(&outs[i]);
  session_free(s);
  return sum;
}

enum { ROWS = 37, CLASSES = 2100 };

static void scores(void **state) {
  (void)state;
  static const struct {
    const char *dtype, *weight;
    int reduction, ignore;
  } cases[] = {{"f32", "None", 1, -100}, {"f32", "None", 2, 5},  {"f32", "%w", 1, 5},
               {"f64", "%w", 1, -100},   {"f32", "%w", 0, -100}, {"f64", "None", 1, 7}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Bench b;
    char text[2048];
    const char *d = cases[i].dtype;
    Dtype dtype = strcmp(d, "f32") ? DT_F64 : DT_F32;
    bool each = cases[i].reduction == 0;
    size_t slab = 0;
    snprintf(text, sizeof text,
             "graph(%%x: %s[37,2100] = user, %%t: i64[37] = user, %%w: %s[2100] = user, %%d: %s[%s] = user) {\n"
             "  %%h: %s[37,2100] = aten.mul.Tensor(%%x, 1.5)\n"
             "  %%y: %s[37,2100] = aten._log_softmax.default(%%h, 1, false)\n"
             "  %%l: %s[%s], %%n: %s[] = aten.nll_loss_forward.default(%%y, %%t, %s, %d, %d)\n"
             "  %%g: %s[37,2100] = aten.nll_loss_backward.default(%%d, %%y, %%t, %s, %d, %d, %%n)\n"
             "  %%s: %s[37,2100] = aten._log_softmax_backward_data.default(%%g, %%y, 1, %s)\n"
             "  %%o: %s[2100] = aten.sum.dim_IntList(%%s, [0])\n"
             "  return user %%l, user %%o, user %%s\n}\n",
             d, d, d, each ? "37" : "", d, d, d, each ? "37" : "", d, cases[i].weight, cases[i].reduction,
             cases[i].ignore, d, cases[i].weight, cases[i].reduction, cases[i].ignore, d, d, d);
    bench_begin(&b);
    add_input(&b, dtype, 2, (const int64_t[]){ROWS, CLASSES}, 0);
    add_input(&b, DT_I64, 1, (const int64_t[]){ROWS}, 11);
    add_input(&b, dtype, 1, (const int64_t[]){CLASSES}, 0);
    add_input(&b, dtype, each ? 1 : 0, (const int64_t[]){ROWS}, 0);
    assert_true(bits(&b, text, false, &slab) == bits(&b, text, true, NULL));
    assert_true(slab < ROWS * CLASSES * dtype_size(dtype)); /* all in the memory of the result */
    bench_end(&b);
  }
}

/* Rows that are looked up once have the bits of the sum; the zeros are never written out. */
static void table(void **state) {
  (void)state;
  static const char text[] = "graph(%a: f32[300,40] = user, %d: f32[6,5,40] = user, %i: i64[6,5] = user) {\n"
                             "  %w: f32[300,40] = aten.mul.Tensor(%a, 0.5)\n"
                             "  %r: f32[300,40] = aten.embedding_dense_backward.default(%d, %i, 300, 3, false)\n"
                             "  %s: f32[300,40] = aten.add.Tensor(%r, %w)\n"
                             "  return user %s\n}\n";
  Bench b;
  size_t slab = 1;
  bench_begin(&b);
  add_input(&b, DT_F32, 2, (const int64_t[]){300, 40}, 0);
  add_input(&b, DT_F32, 3, (const int64_t[]){6, 5, 40}, 0);
  add_input(&b, DT_I64, 2, (const int64_t[]){6, 5}, 300);
  int64_t *row = tensor_data(b.input[2].tensor);
  for (int64_t i = 0; i < 30; i++) row[i] = i * 9 % 300; /* each once; 3 is not among them */
  row[7] = 3;
  assert_true(bits(&b, text, false, &slab) == bits(&b, text, true, NULL));
  assert_int_equal(slab, 0);
  row[2] = 300;
  Exported *e;
  Session *s;
  Value *outs;
  int n;
  assert_ok(graph_parse(text, strlen(text), "test", &e));
  assert_ok(session_open(&b.ctx, e, &s));
  assert_error(session_run(s, b.input, b.n, &b.scope, &b.arena, &outs, &n), "300");
  session_free(s);
  bench_end(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(scores), cmocka_unit_test(table)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
