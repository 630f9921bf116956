/* test_early_updates.c -- the pass early_updates: steps and norms go behind their gradients and behind the last
 * reader of what they write; effects stay. */
#include "graph/graph.h"
#include "passes/pass.h"
#include "unit.h"

/* Runs the pass on a program whose nodes from `first` on are the update; the results in order, with spaces. */
static const char *order(const char *text, const char *first, char *buf, size_t cap) {
  Exported *e;
  bool update = false;
  size_t len = 0;
  assert_ok(graph_parse(text, strlen(text), "test", &e));
  for (Node *n = e->graph->first; n; n = n->next) {
    update |= n->nouts && !strcmp(n->outs[0]->name, first);
    n->stage = update ? STAGE_UPDATE : STAGE_BACKWARD;
  }
  assert_ok(pass_early_updates(e, &(PassArgs){0}));
  assert_ok(graph_verify(e));
  for (const Node *n = e->graph->first; n; n = n->next)
    len += (size_t)snprintf(buf + len, cap - len, "%s%s", n->prev ? " " : "", n->outs[0]->name);
  exported_free(e);
  return buf;
}

static void moves(void **state) {
  (void)state;
  static const char text[] =
      "graph(%w0: f32[4,4] = parameter \"w0\", %w1: f32[4,4] = parameter \"w1\", %k: f32[] = buffer \"step\", "
      "%d: f32[4,4] = user) {\n"
      "  %g1: f32[4,4] = aten.mm.default(%d, %d)\n"
      "  %c: f32[4,4] = aten.mm.default(%d, %w1)\n"
      "  %g0: f32[4,4] = aten.mm.default(%c, %d)\n"
      "  %n0: f32[] = aten.linalg_vector_norm.default(%g0)\n"
      "  %n1: f32[] = aten.linalg_vector_norm.default(%g1)\n"
      "  %n: f32[] = aten.add.Tensor(%n0, %n1)\n"
      "  %s: f32[] = aten.add.Tensor(%k, 1)\n"
      "  %v0: f32[4,4] = aten.add.Tensor(%w0, %g0, alpha=-0.1)\n"
      "  %m1: f32[4,4] = aten.mul.Tensor(%g1, %s)\n"
      "  %v1: f32[4,4] = aten.add.Tensor(%w1, %m1, alpha=-0.1)\n"
      "  return parameter_mutation \"w0\" %v0, parameter_mutation \"w1\" %v1, buffer_mutation \"step\" %s, user "
      "%n\n"
      "}\n";
  char buf[256];
  /* %s needs nothing; %v1 would spoil %w1 for %c; the sum of the norms waits for the last. */
  assert_string_equal(order(text, "n0", buf, sizeof buf), "s g1 n1 m1 c v1 g0 n0 n v0");
}

static void effects_stay(void **state) {
  (void)state;
  static const char text[] = "graph(%d: f32[4,4] = user, %b: f32[4,4] = buffer \"b\") {\n"
                             "  %g: f32[4,4] = aten.mm.default(%d, %d)\n"
                             "  %h: f32[4,4] = aten.mm.default(%g, %d)\n"
                             "  %a: f32[4,4] = aten.abs.default(%g)\n"
                             "  %r: f32[4,4] = _c10d_functional.all_reduce.default(%a, \"sum\", \"0\")\n"
                             "  %q: f32[4,4] = _c10d_functional.wait_tensor.default(%r)\n"
                             "  %s: f32[4,4] = aten.neg.default(%q)\n"
                             "  return buffer_mutation \"b\" %s, user %h\n"
                             "}\n";
  char buf[256];
  assert_string_equal(order(text, "a", buf, sizeof buf), "g a h r q s");
  assert_string_equal(order(text, "nothing", buf, sizeof buf), "g h a r q s");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(moves), cmocka_unit_test(effects_stay)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
