/* Symbolic sizes: normal form, arithmetic, both notations. */
#include "base/textbuf.h"
#include "graph/sym.h"
#include "unit.h"

typedef struct {
  Arena arena;
  SymTable table;
} Fixture;

static void begin(Fixture *f) {
  *f = (Fixture){0};
  symtable_init(&f->table, &f->arena);
}

static const Sym *read_text(Fixture *f, const char *text) {
  const Sym *s = NULL;
  const char *end;
  Status status = sym_parse_text(&f->table, text, &end, &s);
  if (status) test_failed("%s: %s", text, status_message(status));
  assert_string_equal(end, "");
  return s;
}

static const Sym *read_srepr(Fixture *f, const char *text) {
  const Sym *s = NULL;
  Status status = sym_parse_srepr(&f->table, text, &s);
  if (status) test_failed("%s: %s", text, status_message(status));
  return s;
}

/* What an expression is written as in normal form. */
static void normal_forms(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"s1 + s0", "s0 + s1"},
      {"s0 + s0", "2*s0"},
      {"3 + s0 + 4", "s0 + 7"},
      {"s0 - s0", "0"},
      {"s0*2*s1*3", "6*s0*s1"},
      {"s0*s0*s0", "s0**3"},
      {"2*(s0 + 1)", "2*s0 + 2"},
      {"s0*(s1 + 1)", "s0*(s1 + 1)"},
      {"0*s0", "0"},
      {"-s0 - 2*s1", "-s0 - 2*s1"},
      {"1 - s0", "-s0 + 1"},
      {"(2*s0)**2", "4*s0**2"},
      {"(6*s0 + 4) // 2", "3*s0 + 2"},
      {"s0*s1 // s1", "s0"},
      {"s0**3 // s0", "s0**2"},
      {"s0 // 2", "s0 // 2"},
      {"7 // 2", "3"},
      {"-7 // 2", "-4"},
      {"-7 % 2", "1"},
      {"4*s0 % 2", "0"},
      {"(s0 // 2)*3", "3*(s0 // 2)"},
      {"s0*3 // 2", "3*s0 // 2"},
      {"s0 // 2 // 3", "s0 // 2 // 3"},
      {"max(3, s0, 5, s0)", "max(s0, 5)"},
      {"min(4, 2)", "2"},
      {"ceil_div(7, 2)", "4"},
      {"floor(s0 / 2)", "s0 // 2"},
      {"floor(s0*(3 / 4))", "3*s0 // 4"},
      {"ceil(s0 / 2)", "ceil_div(s0, 2)"},
      {"floor(s0)", "s0"},
      {"s0*s1**-1", "s0 / s1"},
      {"s0 == s0", "1"},
      {"3 < 2", "0"},
      {"and(s0 > 2, 1)", "s0 > 2"},
      {"or(s0 > 2, 1)", "1"},
      {"where(1, s0, s1)", "s0"},
      {"2**10", "1024"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"9223372036854775807 + s0 + 1", "9223372036854775807 + s0 + 1"}, /* does not fit: unfolded */
      {"float(s0)*0.5", "0.5*float(s0)"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Fixture f;
    TextBuf b = {0};
    begin(&f);
    const Sym *s = read_text(&f, cases[i][0]);
    sym_print(&b, s);
    assert_string_equal(b.text, cases[i][1]);
    assert_ptr_equal(read_text(&f, b.text), s);
    text_free(&b);
    arena_free(&f.arena);
  }
}

static void srepr_both_ways(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"Symbol('s77', positive=True, integer=True)", "s77"},
      {"Symbol('u0', integer=True)", "u0"},
      {"Integer(-4)", "-4"},
      {"Add(Mul(Integer(32), Symbol('u0', integer=True)), Mul(Integer(32), Symbol('u1', integer=True)))",
       "32*u0 + 32*u1"},
      {"Mul(Integer(8), Pow(Symbol('s53', positive=True, integer=True), Integer(2)))", "8*s53**2"},
      {"FloorDiv(Add(Symbol('s0', positive=True, integer=True), Integer(1)), Integer(2))", "(s0 + 1) // 2"},
      {"torch.utils._sympy.functions.FloorDiv(Symbol('s0', positive=True, integer=True), Integer(3))", "s0 // 3"},
      {"GreaterThan(Symbol('u15', integer=True), Integer(0))", "u15 >= 0"},
      {"floor(Mul(Rational(1, 2), Symbol('s0', positive=True, integer=True)))", "s0 // 2"},
      {"Float('1.5', precision=53)", "1.5"},
      {"Max(Integer(2), Symbol('s0'))", "max(s0, 2)"},
      {"true", "1"},
      {"Symbol('zuf0')", "zuf0"},
      {"Piecewise(ExprCondPair(Integer(1), Equality(Symbol('u2', integer=True), Integer(1))), "
       "ExprCondPair(Integer(0), "
       "true))",
       "where(u2 == 1, 1, 0)"},
      {"Piecewise(ExprCondPair(Integer(3), StrictLessThan(Symbol('u0'), Integer(1))), ExprCondPair(Integer(2), "
       "StrictLessThan(Symbol('u0'), Integer(5))), ExprCondPair(Symbol('u1'), true))",
       "where(u0 < 1, 3, where(u0 < 5, 2, u1))"},
      {"Piecewise(ExprCondPair(Symbol('u1'), true))", "u1"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Fixture f;
    TextBuf ours = {0}, again = {0};
    begin(&f);
    const Sym *s = read_srepr(&f, cases[i][0]);
    sym_print(&ours, s);
    assert_string_equal(ours.text, cases[i][1]);
    sym_print_srepr(&again, s);
    assert_ptr_equal(read_srepr(&f, again.text), s);
    text_free(&ours);
    text_free(&again);
    arena_free(&f.arena);
  }
}

static void errors_say_what(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"RoundDecimal(Symbol('s0'), Integer(2))", "RoundDecimal is not supported"},
      {"Mod(Integer(2))", "Mod does not take 1 arguments"},
      {"Integer(99999999999999999999)", "does not fit in 64 bits"},
      {"Symbol('a b')", "cannot be a symbol"},
      {"Symbol('s0'", "expected"},
      {"Add(Integer(1)", "expected"},
      {"int_oo", "expected '('"},
      {"", "expected a function"},
      {"Piecewise()", "expected ExprCondPair("},
      {"Piecewise(Integer(1))", "expected ExprCondPair("},
      {"Piecewise(ExprCondPair(Integer(1), Symbol('u0')))", "must hold always"},
      {"Piecewise(ExprCondPair(Integer(1), true)", "expected ',' or ')'"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Fixture f;
    const Sym *s;
    begin(&f);
    Status status = sym_parse_srepr(&f.table, cases[i].text, &s);
    assert_non_null(status);
    assert_int_equal(status_code(status), ERR_FILE);
    if (!strstr(status_message(status), cases[i].message)) test_failed("%s", status_message(status));
    status_free(status);
    arena_free(&f.arena);
  }
}

/* Nesting is bounded in both notations. */
static void depth_is_bounded(void **state) {
  (void)state;
  enum { N = 100000 };
  static const char *const nests[] = {"Abs(", "(", "-", "s0**", "max("};
  char *text = malloc(N * 5 + 1);
  for (size_t k = 0; k < 5; k++) {
    Fixture f;
    const Sym *s;
    const char *end;
    size_t len = strlen(nests[k]);
    begin(&f);
    for (size_t i = 0; i < N; i++) memcpy(text + i * len, nests[k], len);
    text[N * len] = 0;
    Status status = k == 0 ? sym_parse_srepr(&f.table, text, &s) : sym_parse_text(&f.table, text, &end, &s);
    assert_non_null(status);
    assert_non_null(strstr(status_message(status), "deep"));
    status_free(status);
    arena_free(&f.arena);
  }
  free(text);
}

static void evaluates(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int64_t value;
  } cases[] = {
      {"2*s0 + s1", 17},
      {"s0 // 2", 2},
      {"(0 - s0) // 2", -3},
      {"(0 - s0) % 3", 1},
      {"s0 / s0", 1},
      {"ceil_div(s0, 2)", 3},
      {"s0**2", 25},
      {"max(s0, s1)", 7},
      {"min(s0, s1, 3)", 3},
      {"s0 < s1", 1},
      {"not(s0 < s1)", 0},
      {"mod_index(s1, 2, 2)", 1},
      {"round(s0 / 2)", 2},
      {"trunc(-s0 / 2)", -2},
      {"abs(-s0)", 5},
      {"sqrt(s0 + 4)", 3},
      {"where(s0 == 5, s1, 0)", 7},
      {"and(s0, s1 == 7)", 1},
      {"float_pow(s0, 2)", 25},
      {"floor(49*s0 / 49)", 5},
  };
  SymBinding values[] = {{"s0", 5}, {"s1", 7}};
  SymBindings b = {values, 2, 2};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Fixture f;
    begin(&f);
    int64_t value = 0;
    Status status = sym_eval(read_text(&f, cases[i].text), &b, &value);
    if (status) test_failed("%s: %s", cases[i].text, status_message(status));
    if (value != cases[i].value) test_failed("%s: %lld", cases[i].text, (long long)value);
    arena_free(&f.arena);
  }
  static const char *const failures[][2] = {
      {"s0 + s9", "s9 has no value"}, {"s0 // (s1 - 7)", "division by zero"},
      {"s0 / 2", "not an integer"},   {"9223372036854775807*s0", "too large"},
      {"s0**s0**s0", "too large"},
  };
  for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
    Fixture f;
    begin(&f);
    int64_t value;
    Status status = sym_eval(read_text(&f, failures[i][0]), &b, &value);
    assert_non_null(status);
    if (!strstr(status_message(status), failures[i][1])) test_failed("%s", status_message(status));
    status_free(status);
    arena_free(&f.arena);
  }
}

static void solves(void **state) {
  (void)state;
  Fixture f;
  begin(&f);
  SymBinding values[] = {{"s1", 4}};
  SymBindings b = {values, 1, 1};
  const Sym *x = read_text(&f, "s0");
  int64_t v = 0;
  assert_ptr_equal(sym_single_unbound(read_text(&f, "2*s0*s1 + 1"), &b), x);
  assert_null(sym_single_unbound(read_text(&f, "s0 + s2"), &b));
  assert_null(sym_single_unbound(read_text(&f, "s1 + 3"), &b));
  assert_true(sym_solve(read_text(&f, "2*s0*s1 + 1"), x, &b, 25, &v));
  assert_int_equal(v, 3);
  assert_true(sym_solve(read_text(&f, "s1*(s0 + 2)"), x, &b, 20, &v));
  assert_int_equal(v, 3);
  assert_true(sym_solve(read_text(&f, "10 - s0"), x, &b, 3, &v));
  assert_int_equal(v, 7);
  assert_false(sym_solve(read_text(&f, "2*s0"), x, &b, 5, &v));
  assert_false(sym_solve(read_text(&f, "s0**2"), x, &b, 4, &v));
  assert_false(sym_solve(read_text(&f, "s0 // 2"), x, &b, 4, &v));
  assert_false(sym_solve(read_text(&f, "s1"), x, &b, 4, &v));
  arena_free(&f.arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      /* clang-format off */
      cmocka_unit_test(normal_forms),     cmocka_unit_test(srepr_both_ways), cmocka_unit_test(errors_say_what),
      cmocka_unit_test(depth_is_bounded), cmocka_unit_test(evaluates),       cmocka_unit_test(solves),
      /* clang-format on */
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
