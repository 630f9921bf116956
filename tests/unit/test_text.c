/* The text form: every construct prints as it was read, and errors say where. */
#include "base/textbuf.h"
#include "graph/graph.h"
#include "unit.h"

/* Canonical text: parse and print give it back. */
static const char everything[] =
    "program \"all\" torch \"2.13.0\" dialect TRAINING\n"
    "symbol s0 in [2, 1024] hint 16\n"
    "symbol u0 in [-inf, inf]\n"
    "graph(\n"
    "  %p_w: f32[4,3] = parameter \"w\",\n"
    "  %p_v: bf16[4,s0]{1,4} = parameter \"v.weight\" frozen,\n"
    "  %b: bool[2,2] = buffer \"mask\" non_persistent,\n"
    "  %n: i64[] = buffer \"count\",\n"
    "  %c: f64[0,3] = tensor_constant \"c_0\",\n"
    "  %x: f32[s0,2*s0 + 1,s0 // 2] = user,\n"
    "  %k: int(s0) = user,\n"
    "  %three: none = constant 3,\n"
    "  %mode: none = constant \"a \\\"quoted\\\" name\\n\",\n"
    "  %token: f32[0] = token\n"
    ") {\n"
    "  %\"odd name\": tensor = my.op.default(%x, 1, -2, 2.5, 1e-05, inf, -inf, nan, true, false, None)\n"
    "  %a: f32[2,8]{16,1}, %d: f32[2,8]{16,1} = my.split(%x, [1, [2, 3], []], name=\"text\", \"odd key\"=f16)\n"
    "  %i: int(max(s0, 3)), %f: float, %t: bool(s0 > 2), %none: none = my.numbers(strided, channels_last, "
    "contiguous)\n"
    "  my.effect(device(\"cuda:0\"), (1.0-2.5j), (0.0+infj))\n"
    "  \"return\"()\n"
    "  [%l0: f32[2], %l1: f32[2]] = my.chunk(%x)\n"
    "  [] = my.chunk(%x)\n"
    "  %y: f32[3] = higher_order.cond(%t, graph(%q: f32[3], %r: int) {\n"
    "    %s: f32[3] = my.sin(%q)\n"
    "    return %s\n"
    "  }, graph() {\n"
    "    return\n"
    "  }, [%x])\n"
    "  return buffer_mutation \"count\" %a, user %y, user %y, user None, user 3, loss %d, token %token\n"
    "}\n";

static const char with_meta[] = "program \"m\"\n"
                                "in_spec \"[1, {}]\"\n"
                                "out_spec \"[1]\"\n"
                                "namedtuples \"{\\\"P\\\":{}}\"\n"
                                "arg_names [\"x\", \"y\"]\n"
                                "graph(\n"
                                "  %x: f32[2] = user\n"
                                ") {\n"
                                "  %y: f32[2] = my.op(%x) !{\"stack_trace\": \"File \\\"a.py\\\", line 3, in "
                                "forward\\n    x + 1\", \"torch_fn\": \"\"}\n"
                                "  return user %y\n"
                                "}\n";

static void check_same(const char *text, PrintOptions o) {
  Exported *e;
  TextBuf b = {0};
  assert_ok(graph_parse(text, strlen(text), "t.txt", &e));
  assert_ok(graph_verify(e));
  graph_print(&b, e, o);
  assert_string_equal(b.text, text);
  text_free(&b);
  exported_free(e);
}

static void round_trip(void **state) {
  (void)state;
  check_same(everything, (PrintOptions){0});
  check_same(with_meta, (PrintOptions){.meta = true});
  check_same("program \"empty\"\ngraph() {\n  return\n}\n", (PrintOptions){0});
}

static void comments_and_space(void **state) {
  (void)state;
  static const char text[] =
      "# a comment\nprogram\"x\"graph(%a :f32[ 2 , 3 ]= user)# more\n{return user %a}  # end";
  Exported *e;
  TextBuf b = {0};
  assert_ok(graph_parse(text, strlen(text), "t.txt", &e));
  graph_print(&b, e, (PrintOptions){0});
  assert_string_equal(b.text, "program \"x\"\ngraph(\n  %a: f32[2,3] = user\n) {\n  return user %a\n}\n");
  assert_int_equal(e->graph->ninputs, 1);
  text_free(&b);
  exported_free(e);
}

/* The state of a text program is known by name, without tensors. */
static void state_entries(void **state) {
  (void)state;
  Exported *e;
  assert_ok(graph_parse(everything, strlen(everything), "t.txt", &e));
  assert_int_equal(e->nstate, 5);
  const StateEntry *v = exported_state(e, "v.weight");
  assert_non_null(v);
  assert_true(v->is_parameter && !v->requires_grad && !v->tensor);
  assert_true(exported_state(e, "mask")->is_constant);
  assert_false(exported_state(e, "count")->is_constant);
  exported_free(e);
}

static void errors_say_where(void **state) {
  (void)state;
#define HEAD "program \"p\"\ngraph(%x: f32[2] = user) {\n"
  static const char *const cases[][2] = {
      {"", "t.txt:1:1: expected graph, found the end"},
      {"program \"p\"\ngraph(\n  %x f32[2] = user)", "t.txt:3:6: expected ':', found 'f32'"},
      {"program \"p\" graph(%x: g32[2] = user) {return}", "this dtype is not known"},
      {"program \"p\" graph(%x: f32[2 = user) {return}", "expected ',' between sizes"},
      {"program \"p\" graph(%x: f32[2]{1,2} = user) {return}", "as many strides as sizes"},
      {"program \"p\" graph(%x: f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1] = user) {return}", "too many dimensions"},
      {"program \"p\" graph(%x: f32[spam(2)] = user) {return}", "unknown function 'spam'"},
      {"program \"p\" graph(%x: f32[2] = spam) {return}", "expected what the input is"},
      {"program \"p\" graph(%x: none = constant %x) {return}", "is not defined above"},
      {"program \"p\" graph(%x: none = constant [1]) {return}", "must be a constant"},
      {"program \"p\" graph(%x: f32[2] = user, %x: f32[2] = user) {return}", "of this name is defined above"},
      {"program \"p\" symbol s0 in [3, 2]\ngraph() {return}", "range of this symbol is empty"},
      {HEAD "  %y: f32[2] = a.b(%z)\n  return user %y\n}", "t.txt:3:20: this value is not defined above"},
      {HEAD "  %x: f32[2] = a.b(%x)\n  return user %x\n}", "of this name is defined above"},
      {HEAD "  %y: f32[2] = a.b(%y)\n  return user %y\n}", "this value is not defined above"},
      {HEAD "  a.b(%x\n  return user %x\n}", "t.txt:4:3: expected ',' or ')', found 'return'"},
      {HEAD "  a.b(spam)\n  return\n}", "this argument is not known"},
      {HEAD "  a.b(99999999999999999999)\n  return\n}", "does not fit in 64 bits"},
      {HEAD "  a.b(\"abc)\n  return\n}", "the string has no end"},
      {HEAD "  a.b(\"\\q\")\n  return\n}", "this escape is not known"},
      {HEAD "  a.b(\"\\u0000\")\n  return\n}", "cannot stand in a string"},
      {HEAD "}", "expected return, found '}'"},
      {HEAD "  return user %x\n} more", "expected the end, found 'more'"},
      {HEAD "  return spam %x\n}", "expected what the output is"},
      {HEAD "  return buffer_mutation %x\n}", "expected a string"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Exported *e = NULL;
    assert_error(graph_parse(cases[i][0], strlen(cases[i][0]), "t.txt", &e), cases[i][1]);
  }
}

static void depth_is_bounded(void **state) {
  (void)state;
  enum { N = 200000 };
  static const char *const nests[] = {"[", "a.b(graph() {a.b(", "graph() { a.b("};
  for (size_t k = 0; k < 3; k++) {
    TextBuf b = {0};
    Exported *e;
    text_puts(&b, HEAD "a.b(");
    for (int i = 0; i < N; i++) text_puts(&b, nests[k]);
    Status s = graph_parse(b.text, b.len, "t.txt", &e);
    assert_non_null(s);
    status_free(s);
    text_free(&b);
  }
}

/* Floats keep every bit. */
static void floats_are_exact(void **state) {
  (void)state;
  static const double values[] = {
      0.1, 1.0 / 3, 1e300, 5e-324, -0.0, 123456789.123456789, 1e16, 0x1.fffffffffffffp1023, 1.0};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    TextBuf b = {0};
    Exported *e;
    text_puts(&b, HEAD "  a.b(");
    text_float(&b, values[i]);
    text_puts(&b, ")\n  return\n}");
    assert_ok(graph_parse(b.text, b.len, "t.txt", &e));
    assert_int_equal(e->graph->first->args[0].kind, ARG_FLOAT);
    assert_memory_equal(&e->graph->first->args[0].f, &values[i], sizeof values[i]);
    exported_free(e);
    text_free(&b);
  }
}

static void verifier_finds(void **state) {
  (void)state;
  Exported *e;
  static const char text[] = HEAD "  %y: f32[2] = a.b(%x)\n  %z: f32[2] = a.c(%y)\n  return user %z\n}";
  assert_ok(graph_parse(text, strlen(text), "t.txt", &e));
  Node *first = e->graph->first, *last = e->graph->last;
  assert_ok(graph_verify(e));
  node_move_before(last, first);
  assert_error(graph_verify(e), "uses the value y before it is defined");
  node_move_before(first, last);
  assert_ok(graph_verify(e));
  node_remove(first);
  assert_error(graph_verify(e), "uses the value y, which is not of its graph");
  exported_free(e);
}

static void unknown_ops_are_listed(void **state) {
  (void)state;
  Exported *e;
  static const char text[] = HEAD
      "  %y: f32[2] = my.first(%x) !{\"stack_trace\": \"  File \\\"/a/model.py\\\", line 7, in forward\\n\"}\n"
      "  %z: f32[2] = my.second(%y, graph() {my.third() return})\n"
      "  %w: f32[2] = my.first(%z)\n"
      "  %c: f32[2] = higher_order.cond(%z)\n"
      "  return user %w\n}";
  assert_ok(graph_parse(text, strlen(text), "t.txt", &e));
  Status s = graph_check_ops(e);
  assert_non_null(s);
  assert_int_equal(status_code(s), ERR_FILE);
  assert_non_null(strstr(status_message(s), "3 operators"));
  assert_non_null(strstr(status_message(s), "my.first: 2 nodes, first y at model.py:7 in forward"));
  assert_non_null(strstr(status_message(s), "my.second: 1 node, z"));
  assert_non_null(strstr(status_message(s), "my.third: 1 node"));
  assert_null(strstr(status_message(s), "higher_order"));
  status_free(s);
  exported_free(e);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      /* clang-format off */
      cmocka_unit_test(round_trip),       cmocka_unit_test(comments_and_space), cmocka_unit_test(state_entries),
      cmocka_unit_test(errors_say_where), cmocka_unit_test(depth_is_bounded),   cmocka_unit_test(floats_are_exact),
      cmocka_unit_test(verifier_finds),   cmocka_unit_test(unknown_ops_are_listed),
      /* clang-format on */
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
