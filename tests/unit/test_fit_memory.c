/* test_fit_memory.c -- limits of memory for joint programs: how they are written, that random numbers are drawn
 * again as they were, that collectives and outputs are left alone, and the error. */
#include "base/textbuf.h"
#include "harness/rank_results.h"
#include "runtime/estimate.h"
#include "runtime/fit_memory.h"
#include "runtime/saved.h"
#include "runtime/session.h"
#include "unit.h"

static void amounts(void **state) {
  (void)state;
  const struct {
    const char *text;
    double amount;
    bool share;
  } good[] = {{"600M", 600. * (1 << 20), false},
              {"1.5G", 1.5 * (1 << 30), false},
              {"70%", .7, true},
              {"100%", 1, true},
              {"4096", 4096, false},
              {"12k", 12. * 1024, false},
              {"2GiB", 2. * (1 << 30), false},
              {"3KB", 3. * 1024, false}};
  const char *const bad[] = {"", "M", "-3", "0", "101%", "3X", "3MM", "nan", "inf", "1e30", "70%x", "0%"};
  MemoryLimit l;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    assert_ok(memory_limit_parse(good[i].text, &l));
    assert_true(l.share == good[i].share && l.amount > good[i].amount * .999999 &&
                l.amount < good[i].amount * 1.000001);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_error(memory_limit_parse(bad[i], &l), "is no amount of memory");
}

enum { BLOCKS = 10 };

/* Blocks of a product, an activation and a dropout; the loss of the last. */
static char *dropouts(void) {
  TextBuf b = {0};
  text_puts(&b, "graph(%x: f32[64,64] = user, %w: f32[64,64] = user) {\n");
  for (int i = 0; i < BLOCKS; i++) {
    char from[16];
    snprintf(from, sizeof from, i ? "c%d" : "x", i - 1);
    text_printf(&b, "  %%a%d: f32[64,64] = aten.mm.default(%%%s, %%w)\n", i, from);
    text_printf(&b, "  %%b%d: f32[64,64] = aten.tanh.default(%%a%d)\n", i, i);
    text_printf(&b, "  %%c%d: f32[64,64] = aten.dropout.default(%%b%d, %s, true)\n", i, i, i % 2 ? "0.25" : "0.5");
  }
  text_printf(&b, "  %%l: f32[] = aten.sum.default(%%c%d)\n  return user %%l\n}\n", BLOCKS - 1);
  assert_false(b.failed);
  return b.text;
}

typedef struct {
  Ctx ctx;
  Scope scope;
  Arena arena;
  Session *session;
  Value input[2];
} Subject;

static void subject_open(Subject *s, MemoryLimit limit) {
  Exported *e;
  char *text = dropouts();
  *s = (Subject){0};
  ctx_init(&s->ctx, 1);
  s->ctx.seed = 7, s->ctx.offset = 11;
  assert_ok(graph_parse(text, strlen(text), "test", &e));
  free(text);
  assert_ok(session_open(&s->ctx, e, &s->session));
  session_limit_memory(s->session, limit);
  assert_ok(session_want_gradients(s->session, &(GradOptions){.inputs = true}));
  for (int i = 0; i < 2; i++) {
    const int64_t size[] = {64, 64};
    Tensor *t;
    assert_ok(tensor_new(&s->scope, DT_F32, 2, size, &t));
    for (int64_t k = 0; k < 64 * 64; k++) ((float *)tensor_data(t))[k] = (float)((k * (i + 3)) % 29 - 14) / 60;
    s->input[i] = val_tensor(t);
  }
}

static void subject_free(Subject *s) {
  session_free(s->session);
  scope_clear(&s->scope);
  arena_free(&s->arena);
  ctx_free(&s->ctx);
}

/* Bits of all results of two calls, and where the stream of random numbers stands then. */
static uint64_t bits_of(Subject *s) {
  uint64_t bits = 0;
  for (int call = 0; call < 2; call++) {
    Value *outs;
    int n;
    assert_ok(session_run(s->session, s->input, 2, &s->scope, &s->arena, &outs, &n));
    assert_int_equal(n, 3);
    for (int i = 0; i < n; i++) bits = bits * 31 + value_hash(&outs[i]);
  }
  return bits * 31 + s->ctx.offset;
}

static int repeated(const Program *p) {
  int n = 0;
  for (int i = 0; i < p->ninstrs; i++) n += p->instrs[i].again != NULL;
  return n;
}

static void draws_again(void **state) {
  (void)state;
  Subject s;
  Program *p;
  subject_open(&s, (MemoryLimit){0});
  uint64_t whole = bits_of(&s);
  assert_ok(session_prepare(s.session, s.input, 2, &p));
  size_t slab = p->slab_bytes;
  int most = 0;
  subject_free(&s);
  for (int share = 100; share >= 55; share -= 5) {
    subject_open(&s, (MemoryLimit){share / 100., true});
    assert_true(bits_of(&s) == whole);
    assert_ok(session_prepare(s.session, s.input, 2, &p));
    assert_true((double)p->slab_bytes <= (double)slab * share / 100);
    if (repeated(p) > most) most = repeated(p);
    subject_free(&s);
  }
  assert_true(most > 0); /* masks, too, were made again */
}

static void smallest(void **state) {
  (void)state;
  Subject s;
  Exported *special;
  MemoryStep *steps;
  MemoryFit fit;
  int n;
  subject_open(&s, (MemoryLimit){0});
  assert_ok(session_specialize(s.session, s.input, 2, &special));
  assert_ok(memory_curve(&s.ctx, special, &steps, &n));
  assert_true(n > 1 && steps[0].recomputed == 0 && steps[0].extra_flops == 0);
  for (int i = 1; i < n; i++)
    assert_true(steps[i].slab < steps[i - 1].slab && steps[i].extra_flops >= steps[i - 1].extra_flops);
  assert_null(memory_step_within(steps, n, steps[n - 1].slab - 1));
  assert_ptr_equal(memory_step_within(steps, n, steps[0].slab), &steps[0]);
  char words[64];
  snprintf(words, sizeof words, "--memory %zu,", steps[n - 1].slab);
  assert_error(fit_memory(&s.ctx, special, NULL, (MemoryLimit){.amount = 100}, &fit), words);
  assert_ok(fit_memory(&s.ctx, special, NULL, (MemoryLimit){.amount = (double)steps[n - 1].slab}, &fit));
  assert_int_equal(fit.chosen.slab, steps[n - 1].slab);
  assert_int_equal(fit.free_slab, steps[0].slab);
  assert_ok(graph_verify(special));
  free(steps);
  Program *p;
  assert_ok(program_plan(&s.ctx, special, &p));
  assert_int_equal(p->slab_bytes, fit.chosen.slab);
  assert_true(program_flops(p) == fit.flops + fit.chosen.extra_flops);
  program_free(p);
  subject_free(&s);
}

/* What a collective gave is not asked for twice; what is made of it is computed again from it. */
static void leaves_collectives(void **state) {
  (void)state;
  static const char text[] = "graph(%x: f32[64,64] = user, %w: f32[64,64] = user) {\n"
                             "  %a: f32[64,64] = aten.mm.default(%x, %w)\n"
                             "  %r: f32[64,64] = _c10d_functional.all_reduce.default(%a, \"sum\", \"0\")\n"
                             "  %q: f32[64,64] = _c10d_functional.wait_tensor.default(%r)\n"
                             "  %s: f32[64,64] = aten.mm.default(%q, %w)\n"
                             "  %l: f32[] = aten.sum.default(%s)\n"
                             "  %t: f32[64,64] = aten.mm.default(%s, %q)\n"
                             "  return loss %l, gradient_to_user_input \"x\" %t\n"
                             "}\n";
  Ctx ctx;
  Exported *e;
  Saved s;
  ctx_init(&ctx, 1);
  assert_ok(graph_parse(text, strlen(text), "test", &e));
  assert_ok(saved_find(&ctx, e, &s));
  bool *again = calloc((size_t)s.nhomes + 1, sizeof *again);
  int saved = 0;
  for (int h = 0; h < s.nhomes; h++) {
    saved += s.home[h].saved;
    again[h] = true;
  }
  assert_int_equal(saved, 2); /* of %q, which is the memory of %r, and %s */
  assert_ok(saved_compute_again(&s, again, e->graph));
  int reduces = 0, products = 0;
  for (const Node *n = e->graph->first; n; n = n->next) {
    reduces += node_is(n, "_c10d_functional.all_reduce.default");
    products += node_is(n, "aten.mm.default");
  }
  assert_int_equal(reduces, 1);
  assert_int_equal(products, 4); /* %s once more */
  assert_ok(graph_verify(e));
  free(again);
  saved_free(&s);
  exported_free(e);
  ctx_free(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(amounts), cmocka_unit_test(draws_again),
                                     cmocka_unit_test(smallest), cmocka_unit_test(leaves_collectives)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
