/* bucket_size_mb=auto: as many gradients go together as the machine is done with first. */
#include "base/textbuf.h"
#include "passes/pass.h"
#include "unit.h"

enum { GRADIENTS = 16 };

/* A chain of gradients of 1 MiB; each takes 2 MiB of memory traffic to make. */
static void write_program(TextBuf *b) {
  text_puts(b, "graph(%g0: f32[262144] = user) {\n");
  for (int i = 1; i <= GRADIENTS; i++) {
    text_printf(b, "  %%g%d: f32[262144] = aten.relu.default(%%g%d)\n", i, i - 1);
    text_printf(b, "  %%d%d: f32[262144] = aten.div.Tensor(%%g%d, 2)\n", i, i);
    text_printf(b, "  %%r%d: f32[262144] = _c10d_functional.all_reduce.default(%%d%d, \"sum\", \"0\")\n", i, i);
    text_printf(b, "  %%w%d: f32[262144] = _c10d_functional.wait_tensor.default(%%r%d)\n", i, i);
  }
  text_puts(b, "  return ");
  for (int i = 1; i <= GRADIENTS; i++) text_printf(b, "%suser %%w%d", i > 1 ? ", " : "", i);
  text_puts(b, "\n}\n");
}

/* All-reduces that are left with this machine. */
static int count_with(const char *machine) {
  TextBuf text = {0}, passes = {0};
  Exported *e;
  Ctx ctx;
  int n = 0;
  write_program(&text);
  text_printf(&passes, "fuse_ddp_with_concat_op(bucket_size_mb=auto,%s)", machine);
  ctx_init(&ctx, 1);
  assert_ok(graph_parse(text.text, text.len, "case", &e));
  assert_ok(pass_run_list(e, passes.text, &ctx, NULL));
  for (const Node *node = e->graph->first; node; node = node->next)
    n += node_is(node, "_c10d_functional.all_reduce.default");
  exported_free(e);
  ctx_free(&ctx);
  text_free(&text);
  text_free(&passes);
  return n;
}

static void test_sizes(void **state) {
  (void)state;
  /* 2 ms to make and divide a gradient, 1 ms to reduce it.  Calls cost nearly nothing: what is reduced last is
   * small enough to be hidden, 2 MiB. */
  assert_int_equal(count_with("memory_gb=2,link_gb=1,latency_us=1,overlap=1"), 9);
  /* A call costs as much as all data: two at most. */
  assert_true(count_with("memory_gb=2,link_gb=4,latency_us=8000,overlap=1") <= 2);
  /* Nothing is hidden and calls are cheap: it does not matter, so 4 MiB, the first one 1 MiB. */
  assert_int_equal(count_with("memory_gb=2,link_gb=4,latency_us=0.5"), 5);
  /* The same with calls that cost something: one, and the first one. */
  assert_true(count_with("memory_gb=2,link_gb=4,latency_us=500") <= 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
