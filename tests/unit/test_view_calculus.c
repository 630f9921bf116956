/* Shards through reshapes: the calculus against its definition, and rule by rule. */
#include "drawn_layouts.h"
#include "shard/view_calculus.h"

static int64_t from_held[MOST], to_held[MOST];

static void same_elements(const Layout *from, const Layout *to) {
  int coord[MAX_AXES] = {0};
  char a[256], b[256], x[128], y[128];
  do {
    Arena arena = {0};
    int64_t n = held(from, coord, &arena, from_held), m = held(to, coord, &arena, to_held);
    if (n != m || memcmp(from_held, to_held, (size_t)n * sizeof *to_held))
      test_failed("%s of %s is not %s of %s", placements_print(from->place, from->naxes, a, sizeof a),
                  shape_describe(from->ndim, from->shape, x, sizeof x),
                  placements_print(to->place, to->naxes, b, sizeof b),
                  shape_describe(to->ndim, to->shape, y, sizeof y));
    arena_free(&arena);
  } while (next_coord(from->axis, from->naxes, coord));
}

static void reshapes_keep_elements(void **state) {
  (void)state;
  uint64_t seed = 7;
  int told = 0, tries = 0;
  for (int i = 0; i < 20000; i++) {
    int64_t from[MAX_DIMS], to[MAX_DIMS];
    int axis[MAX_AXES], naxes = draw_mesh(&seed, axis), ndim = draw_shape(&seed, from),
                        n = draw_reshape(&seed, ndim, from, to), bad;
    Placement in[MAX_AXES], out[MAX_AXES];
    for (int a = 0; a < naxes; a++) in[a] = draw_place(&seed, ndim, from);
    Layout l = {.ndim = ndim, .shape = from, .naxes = naxes, .axis = axis, .place = in};
    if (!fits_everywhere(&l)) continue;
    tries++;
    Axes m = {naxes, axis};
    if (!view_reshape(&m, ndim, from, n, to, in, out, &bad)) {
      assert_true(bad >= 0 && bad < naxes && is_s(&in[bad]));
      continue;
    }
    told++;
    same_elements(&l, &(Layout){.ndim = n, .shape = to, .naxes = naxes, .axis = axis, .place = out});
  }
  assert_true(told > tries / 2);
}

/* ---- the rules, one by one ------------------------------------------------------------------ */

typedef struct {
  const char *mesh, *from, *in, *to, *out; /* out NULL: cannot be told */
} Rule;

static int read_numbers(const char *text, int64_t *out) {
  int n = 0;
  for (char *at = (char *)(uintptr_t)text; *at;) {
    out[n++] = strtoll(at, &at, 10);
    if (*at) at++;
  }
  return n;
}

static const Rule rules[] = {
    /* clang-format off */
    /* mesh  from        placed               to            gives */
    {"2",    "4,6",      "S(0)",              "24",         "S(0)"},
    {"2",    "4,6",      "S(1)",              "24",         "_S(0, 4)"},
    {"2",    "24",       "_S(0, 4)",          "4,6",        "S(1)"},
    {"2",    "3,4",      "S(0)",              "12",         "S(0; unit 4)"},
    {"2",    "12",       "S(0; unit 4)",      "3,4",        "S(0)"},
    {"2",    "12",       "S(0)",              "3,4",        NULL},
    {"4",    "2,16,8",   "S(1)",              "32,8",       "_S(0, 2)"},
    {"4",    "32,8",     "_S(0, 2)",          "2,16,8",     "S(1)"},
    {"3",    "5,28",     "S(1; unit 4)",      "5,7,4",      "S(1)"},
    {"3",    "5,7,4",    "S(1)",              "5,28",       "S(1; unit 4)"},
    {"2",    "96",       "S(0; segments 64,16,16; unit 16)", "6,16", "S(0; segments 4,1,1)"},
    {"2",    "5,24",     "_S(1, 3)",          "5,3,2,4",    "S(2)"},
    {"2",    "5,24",     "_S(1, 3)",          "5,6,4",      "_S(1, 3)"},
    {"2,2",  "8",        "S(0)S(0)",          "2,4",        "S(0)S(1)"},
    {"2,2",  "4,6",      "S(0)S(1)",          "24",         "S(0)_S(0, 2)"},
    {"2,2",  "4,6",      "S(1)S(0)",          "24",         "_S(0, 4)S(0)"},
    {"2,2",  "24",       "_S(0, 4)S(0)",      "4,6",        "S(1)S(0)"},
    {"2",    "2,1,3",    "S(1)",              "6",          "S(0; factor 2; unit 3)"},
    {"4",    "1,6",      "S(0)",              "6,1",        "S(0; unit 6)"},
    /* clang-format on */
};

static void rules_of_the_calculus(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    int64_t mesh[MAX_AXES], from[MAX_DIMS], to[MAX_DIMS];
    int naxes = read_numbers(rules[i].mesh, mesh), ndim = read_numbers(rules[i].from, from),
        n = read_numbers(rules[i].to, to), axis[MAX_AXES], count, bad;
    Placement in[MAX_AXES], out[MAX_AXES];
    char text[256] = "nothing";
    for (int a = 0; a < naxes; a++) axis[a] = (int)mesh[a];
    assert_ok(placements_parse(rules[i].in, ndim, in, &count));
    if (view_reshape(&(Axes){naxes, axis}, ndim, from, n, to, in, out, &bad))
      placements_print(out, naxes, text, sizeof text);
    if (strcmp(text, rules[i].out ? rules[i].out : "nothing"))
      test_failed("%s of [%s] as [%s] on %s: %s", rules[i].in, rules[i].from, rules[i].to, rules[i].mesh, text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reshapes_keep_elements),
      cmocka_unit_test(rules_of_the_calculus),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
