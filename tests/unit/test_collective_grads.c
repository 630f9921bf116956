/* test_collective_grads.c -- gradients of collectives that programs call.
 *
 * Collectives are linear maps A of what all ranks have together, and their gradients the transposed ones: the sum
 * over ranks of <A x, g> is that of <x, gradient>, whatever x and g are.  Numbers are small and whole, so that sums
 * are exact. */
#include "comm/groups.h"
#include "grad/tape.h"
#include "runtime/ranks.h"
#include "unit.h"

enum { RANKS = 4, ROWS = 8, COLUMNS = 3 };

typedef struct {
  const char *op;
  Value rest[4]; /* behind the operand */
  int nrest, noperands;
  int64_t rows;
} Collective;

/* Whole numbers from -4 to 4, others on every rank and in every place. */
static Status numbers(Scope *scope, int ndim, const int64_t *size, int rank, uint64_t seed, Tensor **out) {
  uint64_t x = seed * 977 + (uint64_t)rank * 131 + 7;
  TRY(tensor_new(scope, DT_F32, ndim, size, out));
  float *data = tensor_data(*out);
  for (int64_t i = 0; i < tensor_numel(*out); i++) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    data[i] = (float)((int)(x >> 40) % 9 - 4);
  }
  return OK;
}

static double dot(const Tensor *a, const Tensor *b) {
  double sum = 0;
  for (int64_t i = 0; i < tensor_numel(a); i++)
    sum += (double)((const float *)tensor_data(a))[i] * (double)((const float *)tensor_data(b))[i];
  return sum;
}

/* Added up over the ranks. */
static Status on_all_ranks(Call *c, double *sum) {
  int64_t one = 1;
  Tensor *t;
  TRY(tensor_new(c->scope, DT_F64, 1, &one, &t));
  *(double *)tensor_data(t) = *sum;
  TRY(OP(c, "_c10d_functional.all_reduce.default", &t, val_tensor(t), val_str("sum"), val_str("0")));
  TRY(OP(c, "_c10d_functional.wait_tensor.default", &t, val_tensor(t)));
  *sum = *(double *)tensor_data(t);
  return OK;
}

static Status call_it(Call *c, const Collective *what, Tensor **x, Tensor **y) {
  Value args[5];
  int n = 1;
  args[0] = what->noperands > 1 ? val_tensors(x, what->noperands) : val_tensor(x[0]);
  memcpy(args + 1, what->rest, sizeof what->rest);
  if (what->noperands > 1) {
    Tensor **list;
    TRY(op_call_list(c, what->op, &list, &n, args, 1 + what->nrest));
    for (int i = 0; i < n; i++) y[i] = list[i];
  } else {
    TRY(op_call(c, what->op, y, 1, args, 1 + what->nrest));
  }
  for (int i = 0; i < n; i++) TRY(OP(c, "_c10d_functional.wait_tensor.default", &y[i], val_tensor(y[i])));
  return OK;
}

static Status compare_both_ways(Call *c, Tape *tape, World *w, const Collective *what, uint64_t seed) {
  Tensor *x[2], *y[2], *g[2], *dx[2];
  double there = 0, back = 0;
  for (int i = 0; i < what->noperands; i++) {
    int64_t size[] = {what->rows, COLUMNS + i};
    TRY(numbers(c->scope, 2, size, world_rank(w), seed + (uint64_t)i, &x[i]));
    TRY(tape_require(tape, c->scope, x[i], &x[i]));
  }
  TRY(call_it(c, what, x, y));
  for (int i = 0; i < what->noperands; i++)
    TRY(numbers(c->scope, y[i]->ndim, y[i]->size, world_rank(w), seed + 50 + (uint64_t)i, &g[i]));
  TRY(tape_gradients(tape, y, g, what->noperands, x, what->noperands, &(Backward){0}, c->scope, dx));
  for (int i = 0; i < what->noperands; i++) there += dot(y[i], g[i]), back += dot(x[i], dx[i]);
  TRY(on_all_ranks(c, &there));
  TRY(on_all_ranks(c, &back));
  return there == back ? OK : fail(ERR_DIFF, "%s: %g one way, %g the other", what->op, there, back);
}

static Status transposes(Ctx *ctx, Tape *tape, World *w, const Collective *what, uint64_t seed) {
  Scope scope = {0};
  Arena arena = {0};
  Call c = {.ctx = ctx, .scope = &scope, .arena = &arena, .op = op_find(what->op)};
  Status s = compare_both_ways(&c, tape, w, what, seed);
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

#define C10D "_c10d_functional."
static Status all_on_rank(Ctx *ctx, World *w, void *arg) {
  (void)arg;
  const Value group = val_str("0"), sum = val_str("sum"), avg = val_str("avg"), n = val_int(RANKS);
  int64_t go[RANKS], come[RANKS], sent = 0;
  for (int i = 0; i < RANKS; i++) {
    go[i] = (world_rank(w) + 2 * i) % 5;
    come[i] = (i + 2 * world_rank(w)) % 5;
    sent += go[i];
  }
  const Value to = val_ints(go, RANKS), from = val_ints(come, RANKS), equal = val_ints(NULL, 0);
  const Collective all[] = {
      {C10D "all_reduce.default", {sum, group}, 2, 1, ROWS},
      {C10D "all_reduce.default", {avg, group}, 2, 1, ROWS},
      {C10D "all_reduce_coalesced.default", {sum, group}, 2, 2, ROWS},
      {C10D "all_gather_into_tensor.default", {n, group}, 2, 1, ROWS},
      {C10D "all_gather_into_tensor_coalesced.default", {n, group}, 2, 2, ROWS},
      {C10D "reduce_scatter_tensor.default", {sum, n, group}, 3, 1, ROWS},
      {C10D "reduce_scatter_tensor.default", {avg, n, group}, 3, 1, ROWS},
      {C10D "reduce_scatter_tensor_coalesced.default", {sum, n, group}, 3, 2, ROWS},
      {C10D "reduce_scatter_tensor_coalesced.default", {avg, n, group}, 3, 2, ROWS},
      {C10D "all_to_all_single.default", {from, to, group}, 3, 1, sent},
      {C10D "all_to_all_single.default", {equal, equal, group}, 3, 1, ROWS},
      {C10D "broadcast.default", {val_int(2), group}, 2, 1, ROWS},
      {"_c10d_functional_autograd.all_gather_into_tensor.default", {n, group}, 2, 1, ROWS},
      {"_c10d_functional_autograd.reduce_scatter_tensor.default", {sum, n, group}, 3, 1, ROWS},
      {"_c10d_functional_autograd.all_to_all_single.default", {from, to, group}, 3, 1, sent},
  };
  Tape tape;
  tape_begin(&tape, ctx);
  Status s = OK;
  for (int i = 0; !s && i < (int)(sizeof all / sizeof *all); i++)
    for (uint64_t seed = 1; !s && seed < 4; seed++) s = transposes(ctx, &tape, w, &all[i], seed * 100);
  tape_end(&tape);
  return s;
}

static void gradients_are_transposed(void **state) {
  (void)state;
  assert_ok(ranks_run(&(Ranks){.n = RANKS, .threads = 1}, all_on_rank, NULL));
}

static Status largest_on_rank(Ctx *ctx, World *w, void *arg) {
  (void)arg;
  const Collective max = {C10D "all_reduce.default", {val_str("max"), val_str("0")}, 2, 1, ROWS};
  Tape tape;
  tape_begin(&tape, ctx);
  Status s = transposes(ctx, &tape, w, &max, 1);
  tape_end(&tape);
  return s;
}

static void extremes_have_none(void **state) {
  (void)state;
  assert_error(ranks_run(&(Ranks){.n = 2, .threads = 1}, largest_on_rank, NULL),
               "the gradient of a reduction by 'max' is not known");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_are_transposed),
      cmocka_unit_test(extremes_have_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
