/* test_program_memory.c -- where values of a compiled program lie: parts of a concatenation
 * inside it, results in place of what they were made of, and never where a started collective
 * still reads. */
#include <stdlib.h>
#include <string.h>

#include "kernels/copy.h"
#include "runtime/ranks.h"
#include "runtime/session.h"
#include "unit.h"

/* Ranks are threads: what is not so there is an error, which ends up in the test's. */
#define NEED(what)                                                      \
  do {                                                                  \
    if (!(what)) return fail(ERR_DIFF, "line %d: %s", __LINE__, #what); \
  } while (0)

/* One program, compiled and interpreted on the same inputs: i-th element of input k is
 * (i % 7 - 3 + k) / 4. */
typedef struct {
  Session *compiled, *plain;
  Program *program;
  Scope scope;
  Arena arena;
  Value *inputs;
  int ninputs;
} Subject;

static Status open_text(Ctx *ctx, const char *text, Session **out) {
  Exported *e;
  TRY(graph_parse(text, strlen(text), "test", &e));
  return session_open(ctx, e, out);
}

static Status subject_open(Ctx *ctx, const char *text, Subject *s) {
  *s = (Subject){0};
  TRY(open_text(ctx, text, &s->compiled));
  TRY(open_text(ctx, text, &s->plain));
  session_force_interpreter(s->plain);
  const Exported *e = session_program(s->compiled);
  TRY_NEW(s->inputs, arena_new_n(&s->arena, Value, e->graph->ninputs));
  for (int i = 0; i < e->graph->ninputs; i++) {
    const Val *v = e->graph->inputs[i];
    int64_t size[MAX_DIMS];
    Tensor *t;
    for (int d = 0; d < v->ndim; d++) size[d] = v->size[d]->value;
    TRY(tensor_new(&s->scope, v->dtype, v->ndim, size, &t));
    float *x = tensor_data(t);
    for (int64_t k = 0; k < tensor_numel(t); k++) x[k] = (float)(k % 7 - 3 + i) / 4;
    s->inputs[s->ninputs++] = val_tensor(t);
  }
  TRY(session_prepare(s->compiled, s->inputs, s->ninputs, &s->program));
  NEED(s->program);
  return OK;
}

static void subject_free(Subject *s) {
  session_free(s->compiled);
  session_free(s->plain);
  scope_clear(&s->scope);
  arena_free(&s->arena);
}

/* Both ways of running give the same bits, also the second time. */
static Status runs_alike(Subject *s) {
  for (int round = 0; round < 2; round++) {
    Scope scope = {0};
    Arena arena = {0};
    Value *a, *b;
    int na, nb;
    TRY(session_run(s->compiled, s->inputs, s->ninputs, &scope, &arena, &a, &na));
    TRY(session_run(s->plain, s->inputs, s->ninputs, &scope, &arena, &b, &nb));
    NEED(na == nb);
    for (int i = 0; i < na; i++) {
      const Tensor *x = a[i].tensor, *y = b[i].tensor;
      NEED(tensor_same_size(x, y));
      NEED(tensor_is_contiguous(x) && tensor_is_contiguous(y));
      NEED(!memcmp(tensor_data(x), tensor_data(y), (size_t)tensor_numel(x) * dtype_size(x->dtype)));
    }
    scope_clear(&scope);
    arena_free(&arena);
  }
  return OK;
}

static int count_calls(const Program *p, const char *target) {
  int n = 0;
  for (int i = 0; i < p->ninstrs; i++) n += node_is(p->instrs[i].node, target);
  return n;
}

/* Passes may have made it "a_1", of another "a_1" on the way: the last is meant. */
static const Tensor *value(const Program *p, const char *name) {
  size_t len = strlen(name);
  const Tensor *last = NULL;
  for (const Node *n = p->graph->graph->first; n; n = n->next) {
    for (int i = 0; i < n->nouts; i++) {
      const char *is = n->outs[i]->name;
      if (!strncmp(is, name, len) && (!is[len] || is[len] == '_')) last = n->outs[i]->tensor;
    }
  }
  return last;
}

/* ---- concatenation ------------------------------------------------------------------------- */

/* Bytes that the cats of a program copy in one run. */
static int64_t bytes_copied(const Program *p) {
  int64_t bytes = 0;
  for (int i = 0; i < p->ninstrs; i++) {
    const Call *c = &p->instrs[i].call;
    if (!node_is(p->instrs[i].node, "aten.cat.default")) continue;
    const Tensor *out = out_tensor(c, 0);
    for (int j = 0; j < in_count(c, 0); j++) {
      const Tensor *t = in_item(c, 0, j);
      if (t->storage != out->storage) bytes += tensor_numel(t) * (int64_t)dtype_size(t->dtype);
    }
  }
  return bytes;
}

static void expect_copied(const char *text, int64_t bytes, int cats) {
  Ctx ctx;
  Subject s;
  ctx_init(&ctx, 1);
  assert_ok(subject_open(&ctx, text, &s));
  assert_int_equal(bytes_copied(s.program), bytes);
  assert_int_equal(count_calls(s.program, "aten.cat.default"), cats);
  assert_ok(runs_alike(&s));
  subject_free(&s);
  ctx_free(&ctx);
}

static void parts_are_made_in_place(void **state) {
  (void)state;
  expect_copied("graph(%x: f32[3,5] = user, %y: f32[5,4] = user) {\n"
                "  %a: f32[3,4] = aten.mm.default(%x, %y)\n"
                "  %b: f32[5] = aten.sum.dim_IntList(%x, [0])\n"
                "  %fa: f32[12] = aten.flatten.using_ints(%a)\n"
                "  %c: f32[17] = aten.cat.default([%fa, %b])\n"
                "  return user %c\n}\n",
                0, 0);
}

static void chains_of_concatenations(void **state) {
  (void)state;
  expect_copied("graph(%x: f32[3,5] = user, %y: f32[5,4] = user) {\n"
                "  %a: f32[3,4] = aten.mm.default(%x, %y)\n"
                "  %b: f32[3,4] = aten.relu.default(%a)\n"
                "  %s: f32[4] = aten.sum.dim_IntList(%b, [0])\n"
                "  %u: f32[1,4] = aten.view.default(%s, [1, 4])\n"
                "  %c: f32[4,4] = aten.cat.default([%b, %u])\n"
                "  %v: f32[1,4] = aten.sum.dim_IntList(%c, [0], true)\n"
                "  %d: f32[5,4] = aten.cat.default([%v, %c])\n"
                "  return user %d\n}\n",
                0, 0);
}

static void parts_that_stay(void **state) {
  (void)state;
  /* an input of 20 elements, the rest in place */
  expect_copied("graph(%x: f32[5,4] = user, %y: f32[8,5] = user) {\n"
                "  %a: f32[8,4] = aten.mm.default(%y, %x)\n"
                "  %c: f32[13,4] = aten.cat.default([%a, %x])\n"
                "  return user %c\n}\n",
                80, 1);
  /* too small a part to keep the memory of all for so long */
  expect_copied("graph(%x: f32[5,4] = user, %y: f32[1,5] = user) {\n"
                "  %a: f32[1,4] = aten.mm.default(%y, %x)\n"
                "  %c: f32[6,4] = aten.cat.default([%a, %x])\n"
                "  return user %c\n}\n",
                96, 1);
  /* the same part twice: the second is a copy of the first */
  expect_copied("graph(%x: f32[5,4] = user, %y: f32[2,5] = user) {\n"
                "  %a: f32[2,4] = aten.mm.default(%y, %x)\n"
                "  %c: f32[4,4] = aten.cat.default([%a, %a])\n"
                "  return user %c\n}\n",
                0, 1);
  /* not contiguous in the whole */
  expect_copied("graph(%x: f32[5,4] = user, %y: f32[2,5] = user) {\n"
                "  %a: f32[2,4] = aten.mm.default(%y, %x)\n"
                "  %b: f32[2,4] = aten.neg.default(%a)\n"
                "  %c: f32[2,8] = aten.cat.default([%a, %b], 1)\n"
                "  return user %c\n}\n",
                64, 1);
  /* an output of the caller */
  expect_copied("graph(%x: f32[5,4] = user, %y: f32[2,5] = user) {\n"
                "  %a: f32[2,4] = aten.mm.default(%y, %x)\n"
                "  %b: f32[2,4] = aten.mm.default(%y, %x)\n"
                "  %c: f32[4,4] = aten.cat.default([%a, %b])\n"
                "  return user %c, user %a\n}\n",
                64, 1);
}

/* The whole is divided in its own memory, and %a is read after that. */
static void parts_that_are_used_later(void **state) {
  (void)state;
  expect_copied("graph(%x: f32[5,4] = user, %y: f32[2,5] = user) {\n"
                "  %a: f32[2,4] = aten.mm.default(%y, %x)\n"
                "  %b: f32[4] = aten.sum.dim_IntList(%x, [0])\n"
                "  %fa: f32[8] = aten.view.default(%a, [8])\n"
                "  %c: f32[12] = aten.cat.default([%fa, %b])\n"
                "  %d: f32[12] = aten.div.Tensor(%c, 2)\n"
                "  %e: f32[2] = aten.sum.dim_IntList(%a, [1])\n"
                "  return user %d, user %e\n}\n",
                48, 1);
}

/* ---- collectives ----------------------------------------------------------------------------- */

static const char bucket[] = "graph(%x: f32[3,5] = user, %y: f32[5,4] = user) {\n"
                             "  %a: f32[3,4] = aten.mm.default(%x, %y)\n"
                             "  %b: f32[5] = aten.sum.dim_IntList(%x, [0])\n"
                             "  %fa: f32[12] = aten.flatten.using_ints(%a)\n"
                             "  %fb: f32[5] = aten.flatten.using_ints(%b)\n"
                             "  %c: f32[17] = aten.cat.default([%fa, %fb])\n"
                             "  %d: f32[17] = aten.div.Tensor(%c, 2)\n"
                             "  %r: f32[17] = _c10d_functional.all_reduce.default(%d, \"sum\", \"0\")\n"
                             "  %w: f32[17] = _c10d_functional.wait_tensor.default(%r)\n"
                             "  %p0: f32[12], %p1: f32[5] = aten.split.sizes(%w, [12, 5])\n"
                             "  %g0: f32[3,4] = aten.reshape.default(%p0, [3, 4])\n"
                             "  %g1: f32[5] = aten.reshape.default(%p1, [5])\n"
                             "  return user %g0, user %g1\n}\n";

/* Gradients are made in the bucket, divided and reduced there, and results are views of it:
 * no copy, one memory, and that is the caller's. */
static Status bucket_on_rank(Ctx *ctx, World *w, void *arg) {
  (void)w, (void)arg;
  Subject s;
  TRY(subject_open(ctx, bucket, &s));
  const Storage *memory = value(s.program, "g0")->storage;
  static const char *const all[] = {"a", "b", "c", "d", "r", "w", "p0", "p1", "g0", "g1"};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    const Tensor *t = value(s.program, all[i]);
    if (t) NEED(t->storage == memory); /* else specialising has found it to be another */
  }
  NEED(s.program->ninstrs == 5); /* mm, sum, div, all_reduce, wait */
  NEED(s.program->slab_bytes == 0);
  TRY(runs_alike(&s));
  subject_free(&s);
  return OK;
}

static void buckets_are_not_copied(void **state) {
  (void)state;
  assert_ok(ranks_run(&(Ranks){.n = 2, .threads = 1}, bucket_on_rank, NULL));
}

/* %a is read by the collective until its wait: neither %n may be made in its memory, nor may
 * %m take its place, though both come after the last node that names it. */
static const char overlapping[] =
    "graph(%x: f32[64,64] = user, %y: f32[64,64] = user) {\n"
    "  %a: f32[64,64] = aten.mm.default(%x, %y)\n"
    "  %r: f32[128,64] = _c10d_functional.all_gather_into_tensor.default(%a, 2, \"0\")\n"
    "  %n: f32[64,64] = aten.neg.default(%a)\n"
    "  %m: f32[64,64] = aten.mm.default(%n, %y)\n"
    "  %k: f32[64,64] = aten.mm.default(%m, %y)\n"
    "  %w: f32[128,64] = _c10d_functional.wait_tensor.default(%r)\n"
    "  %s: f32[128,64] = aten.relu.default(%w)\n"
    "  return user %s, user %k\n}\n";

static bool overlap(const Tensor *a, const Tensor *b) {
  const char *x = a->storage->data, *y = b->storage->data;
  return x && y && x < y + b->storage->size && y < x + a->storage->size;
}

static Status overlapping_on_rank(Ctx *ctx, World *w, void *arg) {
  (void)w, (void)arg;
  Subject s;
  TRY(subject_open(ctx, overlapping, &s));
  const Tensor *a = value(s.program, "a");
  static const char *const others[] = {"r", "n", "m"};
  NEED(a);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    const Tensor *other = value(s.program, others[i]);
    NEED(other);
    NEED(!overlap(a, other));
  }
  for (int i = 0; i < 20; i++) TRY(runs_alike(&s));
  subject_free(&s);
  return OK;
}

static void what_a_collective_reads_stays(void **state) {
  (void)state;
  assert_ok(ranks_run(&(Ranks){.n = 2, .threads = 1}, overlapping_on_rank, NULL));
}

/* Nobody waits for %r, and %q is read without a wait: both are done when the call ends. */
static const char unwaited[] = "graph(%x: f32[33] = user) {\n"
                               "  %a: f32[33] = aten.neg.default(%x)\n"
                               "  %r: f32[33] = _c10d_functional.all_reduce.default(%a, \"sum\", \"0\")\n"
                               "  %b: f32[33] = aten.exp.default(%x)\n"
                               "  %q: f32[33] = _c10d_functional.all_reduce.default(%b, \"max\", \"0\")\n"
                               "  %c: f32[33] = aten.neg.default(%q)\n"
                               "  %u: f32[33] = _c10d_functional.all_reduce.default(%c, \"max\", \"0\")\n"
                               "  %o: f32[33] = aten.abs.default(%x)\n"
                               "  return user %o, user %c, user %r\n}\n";

static Status unwaited_on_rank(Ctx *ctx, World *w, void *arg) {
  (void)w, (void)arg;
  Subject s;
  TRY(subject_open(ctx, unwaited, &s));
  NEED(count_calls(s.program, "_c10d_functional.all_reduce.default") == 3);
  for (int i = 0; i < 20; i++) TRY(runs_alike(&s));
  NEED(!groups_busy(ctx->groups));
  subject_free(&s);
  return OK;
}

static void what_nobody_waits_for_ends(void **state) {
  (void)state;
  assert_ok(ranks_run(&(Ranks){.n = 3, .threads = 1}, unwaited_on_rank, NULL));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parts_are_made_in_place),
      cmocka_unit_test(chains_of_concatenations),
      cmocka_unit_test(parts_that_stay),
      cmocka_unit_test(parts_that_are_used_later),
      cmocka_unit_test(buckets_are_not_copied),
      cmocka_unit_test(what_a_collective_reads_stays),
      cmocka_unit_test(what_nobody_waits_for_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
