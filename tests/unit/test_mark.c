/* Plans: files, patterns, and the placements that programs get from them. */
#include "base/textbuf.h"
#include "dist/dispatch.h"
#include "plan/mark.h"
#include "plan/probe.h"
#include "unit.h"

/* ---- plan files ------------------------------------------------------------------------- */

static Status parse(const char *text, PlanFile **out) {
  return plan_file_parse("plan.json", text, strlen(text), out);
}

static void test_patterns(void **state) {
  (void)state;
  static const struct {
    const char *pattern, *name;
    bool anywhere, matches;
  } cases[] = {
      {"a.*.b", "a.0.b", false, true},
      {"a.*.b", "a.0.1.b", false, false},
      {"a.**.b", "a.0.1.b", false, true},
      {"a.*", "a.10", false, true},
      {"a", "a.0", false, false},
      {"l.*.q", "model.l.3.q", true, true},
      {"l.*.q", "model.l.3.q", false, false},
      {"h.?.q", "h.1.q", false, true},
      {"*", "x", false, true},
      {"**", "a.b", false, true},
      {"***.b", "a.b", false, true},
      {"*?a*c", "xa.ac", false, true},
      {"a*", "a", false, true},
      {"a**", "ab.c", false, true},
      {"*a", "b.a", false, false},
      {"**.*.q", "h.0.q", false, true},
      {"**.*.q", "h.q", false, false},
      {"*ab", "aab", false, true},
      {"*a*b.c", "xayab.c", false, true},
      {"a*b.c", "ab.bc", false, false},
      {"a*b*c", "abxc", false, true},
      {"a*b*c", "axc", false, false},
      {"a.*", "a.", false, true},
      {"a.*.", "a.b", false, false},
      {"*.b*.d", "a.bcb.d", false, true},
      {"*a", "a.a", false, false},
      {"", "", false, true},
      {"****a****a****a****a****a****a****a****ab",
       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    PlanEntry e = {.pattern = cases[i].pattern, .anywhere = cases[i].anywhere};
    if (pattern_matches(&e, cases[i].name) != cases[i].matches)
      test_failed("'%s' and '%s'", cases[i].pattern, cases[i].name);
  }
}

static void test_words(void **state) {
  (void)state;
  Style s;
  assert_ok(style_parse("colwise", &s));
  assert_int_equal(s, STYLE_COLWISE);
  assert_ok(style_parse("colwise_rep", &s));
  assert_int_equal(s, STYLE_COLWISE_GATHER_OUTPUT);
  assert_ok(style_parse("embedding_colwise", &s));
  assert_int_equal(s, STYLE_COLWISE_GATHER_OUTPUT);
  assert_error(style_parse("colwize", &s), "did you mean 'colwise'");
}

static void test_bad_files(void **state) {
  (void)state;
  PlanFile *p;
  assert_error(parse("[1]", &p), "a plan is a JSON object");
  assert_error(parse("{\"paralelize\": {}}", &p), "did you mean \"parallelize\"");
  assert_error(parse("{\"parallelize\": {\"a\": \"diagonal\"}}", &p), "'diagonal' is no style");
  assert_error(parse("{\"packed\": {\"a\": 0}}", &p), "is no count");
  assert_error(parse("{\"model_type\": \"x\"}", &p), "no base_model_tp_plan");
  assert_error(parse("{\"model_type\": \"x\"}", &p), "json.dump(model.tp_plan, file)");
  assert_error(parse("{\"base_model_tp_plan\": null}", &p), "no base_model_tp_plan");
  assert_error(parse("{\"base_model_tp_plan\": [1]}", &p), "\"base_model_tp_plan\" is no object");
  assert_error(parse("{\"parallelize\": {\"a\": []}}", &p), "the list of 'a' is to hold placements");
  assert_error(parse("{\"parallelize\": {\"a\": [1]}}", &p), "the list of 'a' is to hold placements");
  assert_error(parse("{\"parallelize\": {\"a\": 1}}", &p), "is to be a style");
  assert_error(parse("{\"parallelize\": {\"a\": \"colwise\", \"a\": \"rowwise\"}}", &p), "occurs twice");
  assert_error(parse("{\"parallelize\": {\"a\": {\"style\": \"colwise\", \"axsi\": \"tp\"}}}", &p),
               "unknown key \"axsi\"");
  assert_error(parse("{\"mesh\": {\"tp\": 1.5}}", &p), "\"mesh\" is an object of axes and sizes");
  assert_error(parse("{\"packed\": [3]}", &p), "patterns and counts");
}

static void test_bare(void **state) {
  (void)state;
  PlanFile *p;
  assert_ok(parse("{\"x.*.q\": \"colwise\", \"x.*.o\": \"rowwise\"}", &p));
  assert_int_equal(p->nentries, 2);
  assert_int_equal(p->entry[1].style, STYLE_ROWWISE);
  plan_file_free(p);
  assert_error(parse("{\"x.*.q\": \"colwize\"}", &p), "did you mean 'colwise'");
  assert_error(parse("{\"x.*.q\": \"colwise\", \"packed\": {}}", &p), "unknown key \"x.*.q\"");
}

static void test_round_trip(void **state) {
  (void)state;
  PlanFile *p, *q;
  TextBuf a = {0}, b = {0};
  assert_ok(parse(
      "{\"mesh\": {\"dp\": 2, \"tp\": 4}, \"parallelize\": {\"x.*\": {\"style\": \"colwise\", \"axis\": \"tp\"}},"
      " \"params\": {\"w\": [\"R\", \"S(0)\"]}, \"packed\": {\"x.*\": 3}, \"inputs\": {\"0\": \"S(0),R\"}, "
      "\"outputs\": [\"R\"]}",
      &p));
  assert_string_equal(p->mesh, "dp=2,tp=4");
  assert_int_equal(p->nentries, 2);
  plan_file_print(&a, p, NULL);
  assert_ok(plan_file_parse("again", a.text, a.len, &q));
  plan_file_print(&b, q, NULL);
  assert_string_equal(a.text, b.text);
  text_free(&a);
  text_free(&b);
  plan_file_free(p);
  plan_file_free(q);
}

/* ---- marks -------------------------------------------------------------------------------- */

typedef struct {
  Exported *e;
  Dist *dist;
  PlanFile *plan;
  Marks *marks;
} Marked;

static Status mark_text(const char *graph, const char *mesh, const char *plan, Marked *m) {
  Mesh *on;
  *m = (Marked){0};
  assert_ok(graph_parse(graph, strlen(graph), "case", &m->e));
  assert_ok(dist_new(NULL, &m->dist));
  assert_ok(mesh_parse(m->dist, mesh, &on));
  assert_ok(parse(plan, &m->plan));
  Probe probe;
  Status s = probe_open(&probe, m->e);
  if (!s) s = mark(&probe, on, m->plan, NULL, &m->marks);
  probe_close(&probe);
  return s;
}

static void unmark(Marked *m) {
  marks_free(m->marks);
  plan_file_free(m->plan);
  exported_free(m->e);
  dist_free(m->dist);
}

/* The placements of an input, by the name of its weight or its own. */
static void assert_placed(const Marked *m, const char *name, const char *want) {
  char text[256];
  for (int i = 0; i < m->e->graph->ninputs; i++) {
    const char *target = m->e->inputs[i].target;
    if (strcmp(target ? target : m->e->graph->inputs[i]->name, name)) continue;
    placements_print(m->marks->input[i].place, m->marks->mesh->naxes, text, sizeof text);
    if (strcmp(text, want)) test_failed("%s is %s instead of %s", name, text, want);
    return;
  }
  test_failed("no input %s", name);
}

static const char mlp[] = "graph(%w1: f32[8,6] = parameter \"up.weight\", %b1: f32[8] = parameter \"up.bias\", "
                          "%w2: f32[6,8] = parameter \"down.weight\",\n"
                          "      %b2: f32[6] = parameter \"down.bias\", %x: f32[4,6] = user) {\n"
                          "  %a: f32[4,8] = aten.linear.default(%x, %w1, %b1)\n"
                          "  %r: f32[4,8] = aten.relu.default(%a)\n"
                          "  %y: f32[4,6] = aten.linear.default(%r, %w2, %b2)\n"
                          "  return user %y\n}";

static void test_pair(void **state) {
  (void)state;
  Marked m;
  assert_ok(mark_text(mlp, "dp=2,tp=2", "{\"parallelize\": {\"up\": \"colwise\", \"down\": \"rowwise\"}}", &m));
  assert_placed(&m, "up.weight", "RS(0)");
  assert_placed(&m, "up.bias", "RS(0)");
  assert_placed(&m, "down.weight", "RS(1)");
  assert_placed(&m, "down.bias", "RR");
  assert_placed(&m, "x", "S(0)R");
  unmark(&m);
  assert_ok(mark_text(mlp, "tp=2", "{\"parallelize\": {\"up\": \"S(0)\"}, \"params\": {\"down\": \"S(1)\"}}",
                      &m)); /* placements of modules */
  assert_placed(&m, "up.weight", "S(0)");
  assert_placed(&m, "up.bias", "S(0)");
  assert_placed(&m, "down.weight", "S(1)");
  assert_placed(&m, "down.bias", "R");
  unmark(&m);
}

static void test_refusals(void **state) {
  (void)state;
  static const struct {
    const char *plan, *says;
  } cases[] = {
      {"{\"parallelize\": {\"upp\": \"colwise\"}}", "did you mean 'up'"},
      {"{\"parallelize\": {\"layers.*.q\": \"colwise\"}}", "its parameters: up.weight"},
      {"{\"parallelize\": {\"bias\": \"replicate\"}}", "it has 'up.bias': write '**.bias'"},
      {"{\"parallelize\": {\"up.bias\": \"rowwise\"}}", "no op uses it in a way that allows it"},
      {"{\"params\": {\"up.weight\": \"S(2)\"}}", "S(2)"},
      {"{\"params\": {\"up.weight\": \"P(sum)\"}}", "cannot be placed P"},
      {"{\"params\": {\"up.weight\": \"S(0),R,R\"}}", "3 placements for a mesh of 1 axis"},
      {"{\"parallelize\": {\"up\": {\"style\": \"colwise\", \"axis\": \"pp\"}}}", "names the axis 'pp'"},
      {"{\"parallelize\": {\"up\": \"packed_colwise\"}, \"packed\": {\"up\": 3}}",
       "not a multiple of the 3 packed parts"},
      {"{\"packed\": {\"upp\": 2}}", "did you mean 'up'"},
      {"{\"inputs\": {\"y\": \"S(0)\"}}", "no input 'y'"},
      {"{\"inputs\": {\"y\": \"S(0)\"}}", "or by name: x"},
      {"{\"outputs\": {\"1\": \"S(0)\"}}", "no output '1'"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Marked m;
    assert_error(mark_text(mlp, "tp=2", cases[i].plan, &m), cases[i].says);
    unmark(&m);
  }
}

/* Weights kept [in, out], q, k and v in one, 3 heads of 2. */
static const char fused[] = "graph(%w: f32[6,18] = parameter \"attn.weight\", %b: f32[18] = parameter "
                            "\"attn.bias\", %o: f32[6,6] = parameter \"proj.weight\", %x: f32[2,4,6] = user) {\n"
                            "  %f: f32[8,6] = aten.view.default(%x, [8, 6])\n"
                            "  %p: f32[8,18] = aten.addmm.default(%b, %f, %w)\n"
                            "  %v: f32[2,4,18] = aten.view.default(%p, [2, 4, 18])\n"
                            "  %q: f32[2,4,6], %k: f32[2,4,6], %u: f32[2,4,6] = aten.split.Tensor(%v, 6, 2)\n"
                            "  %q1: f32[2,4,3,2] = aten.view.default(%q, [2, 4, 3, 2])\n"
                            "  %k1: f32[2,4,3,2] = aten.view.default(%k, [2, 4, 3, 2])\n"
                            "  %u1: f32[2,4,3,2] = aten.view.default(%u, [2, 4, 3, 2])\n"
                            "  %q2: f32[2,3,4,2] = aten.transpose.int(%q1, 1, 2)\n"
                            "  %k2: f32[2,3,4,2] = aten.transpose.int(%k1, 1, 2)\n"
                            "  %u2: f32[2,3,4,2] = aten.transpose.int(%u1, 1, 2)\n"
                            "  %s: f32[2,3,4,2] = aten.scaled_dot_product_attention.default(%q2, %k2, %u2)\n"
                            "  %t: f32[2,4,3,2] = aten.transpose.int(%s, 1, 2)\n"
                            "  %r: f32[2,4,6] = aten.reshape.default(%t, [2, 4, 6])\n"
                            "  %y: f32[2,4,6] = aten.matmul.default(%r, %o)\n"
                            "  return user %y\n}";

static void test_fused_heads(void **state) {
  (void)state;
  static const struct {
    const char *mesh, *weight, *bias, *proj;
  } cases[] = {
      {"tp=3", "_S(1, 3)", "_S(0, 3)", "S(0)"},
      {"tp=2", "S(1; factor 3; unit 2)", "S(0; factor 3; unit 2)", "S(0; unit 2)"}, /* whole heads: 2 and 1 */
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Marked m;
    assert_ok(
        mark_text(fused, cases[i].mesh, "{\"parallelize\": {\"attn\": \"colwise\", \"proj\": \"rowwise\"}}", &m));
    assert_placed(&m, "attn.weight", cases[i].weight);
    assert_placed(&m, "attn.bias", cases[i].bias);
    assert_placed(&m, "proj.weight", cases[i].proj);
    unmark(&m);
  }
}

/* 4 heads on 2 of key and value. */
static const char grouped[] = "graph(%wq: f32[8,8] = parameter \"q.weight\", %wk: f32[4,8] = parameter "
                              "\"k.weight\", %wo: f32[8,8] = parameter \"o.weight\",\n"
                              "      %cache: f32[1,2,3,2] = buffer \"cache\", %x: f32[1,3,8] = user) {\n"
                              "  %q: f32[1,3,8] = aten.linear.default(%x, %wq)\n"
                              "  %k: f32[1,3,4] = aten.linear.default(%x, %wk)\n"
                              "  %q1: f32[1,3,4,2] = aten.view.default(%q, [1, 3, 4, 2])\n"
                              "  %k1: f32[1,3,2,2] = aten.view.default(%k, [1, 3, 2, 2])\n"
                              "  %q2: f32[1,4,3,2] = aten.transpose.int(%q1, 1, 2)\n"
                              "  %k2: f32[1,2,3,2] = aten.transpose.int(%k1, 1, 2)\n"
                              "  %k3: f32[1,2,3,2] = aten.add.Tensor(%cache, %k2)\n"
                              "  %k4: f32[1,2,1,3,2] = aten.unsqueeze.default(%k3, 2)\n"
                              "  %k5: f32[1,2,2,3,2] = aten.expand.default(%k4, [1, 2, 2, 3, 2])\n"
                              "  %k6: f32[1,4,3,2] = aten.reshape.default(%k5, [1, 4, 3, 2])\n"
                              "  %s: f32[1,4,3,2] = aten.scaled_dot_product_attention.default(%q2, %k6, %k6)\n"
                              "  %t: f32[1,3,4,2] = aten.transpose.int(%s, 1, 2)\n"
                              "  %r: f32[1,3,8] = aten.reshape.default(%t, [1, 3, 8])\n"
                              "  %y: f32[1,3,8] = aten.linear.default(%r, %wo)\n"
                              "  return buffer_mutation \"cache\" %k3, user %y\n}";

static void test_grouped_heads(void **state) {
  (void)state;
  static const struct {
    const char *mesh, *q, *k, *cache, *o;
  } cases[] = {
      {"tp=2", "S(0)", "S(0)", "S(1)", "S(1)"}, {"tp=4", "S(0)", "R", "R", "S(1)"}, /* fewer KV heads than ranks */
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Marked m;
    assert_ok(mark_text(grouped, cases[i].mesh,
                        "{\"parallelize\": {\"q\": \"colwise\", \"k\": \"colwise\", \"o\": \"rowwise\"}}", &m));
    assert_placed(&m, "q.weight", cases[i].q);
    assert_placed(&m, "k.weight", cases[i].k);
    assert_placed(&m, "cache", cases[i].cache);
    assert_placed(&m, "o.weight", cases[i].o);
    unmark(&m);
  }
}

/* Entries for layers that a model of this kind may have, and this one has not. */
static void test_other_layers(void **state) {
  (void)state;
  static const char layers[] = "graph(%w1: f32[8,6] = parameter \"l.0.up.weight\", %w2: f32[6,8] = parameter "
                               "\"l.0.down.weight\", %x: f32[4,6] = user) {\n"
                               "  %a: f32[4,8] = aten.linear.default(%x, %w1)\n"
                               "  %y: f32[4,6] = aten.linear.default(%a, %w2)\n"
                               "  return user %y\n}";
  Marked m;
  assert_error(mark_text(layers, "tp=2",
                         "{\"parallelize\": {\"l.*.up\": \"colwise\", \"l.*.down\": \"rowwise\", "
                         "\"l.*.router_gate\": \"colwise\"}}",
                         &m),
               "matches no module");
  unmark(&m);
  assert_ok(mark_text(layers, "tp=2",
                      "{\"base_model_tp_plan\": {\"l.*.up\": \"colwise\", \"l.*.down\": \"rowwise\", "
                      "\"l.*.router_gate\": \"colwise\"}}",
                      &m));
  assert_placed(&m, "l.0.up.weight", "S(0)");
  unmark(&m);
  assert_ok(mark_text(layers, "tp=2",
                      "{\"parallelize\": {\"l.*.up\": \"colwise\", \"l.*.down\": \"rowwise\", "
                      "\"l.*.experts.up_down\": \"colwise\"}}",
                      &m));
  unmark(&m);
  assert_error(
      mark_text(layers, "tp=2", "{\"parallelize\": {\"l.*.up\": \"colwise\", \"l.*.7\": \"rowwise\"}}", &m),
      "matches no module");
  unmark(&m);
  assert_error(
      mark_text(layers, "tp=2", "{\"parallelize\": {\"l.*.up\": \"colwise\", \"l.*.dwon\": \"rowwise\"}}", &m),
      "did you mean 'l.0.down'");
  unmark(&m);
  assert_error(mark_text(layers, "tp=2", "{\"parallelize\": {\"l.*.router_gate\": \"colwise\"}}", &m),
               "matches no module");
  unmark(&m);
}

/* One key head that is rotated in part: put together again it is one head still, which all ranks need. */
static void test_part_of_a_head(void **state) {
  (void)state;
  static const char head[] = "graph(%wq: f32[16,16] = parameter \"q.weight\", %wk: f32[4,16] = parameter "
                             "\"k.weight\", %wo: f32[16,16] = parameter \"o.weight\", %x: f32[2,3,16] = user) {\n"
                             "  %q: f32[2,3,16] = aten.linear.default(%x, %wq)\n"
                             "  %k: f32[2,3,4] = aten.linear.default(%x, %wk)\n"
                             "  %q1: f32[2,3,4,4] = aten.view.default(%q, [2, 3, 4, 4])\n"
                             "  %k1: f32[2,3,1,4] = aten.view.default(%k, [2, 3, 1, 4])\n"
                             "  %q2: f32[2,4,3,4] = aten.transpose.int(%q1, 1, 2)\n"
                             "  %k2: f32[2,1,3,4] = aten.transpose.int(%k1, 1, 2)\n"
                             "  %a: f32[2,1,3,2] = aten.slice.Tensor(%k2, 3, 0, 2)\n"
                             "  %b: f32[2,1,3,2] = aten.slice.Tensor(%k2, 3, 2, 4)\n"
                             "  %c: f32[2,1,3,2] = aten.neg.default(%a)\n"
                             "  %k3: f32[2,1,3,4] = aten.cat.default([%c, %b], -1)\n"
                             "  %k4: f32[2,4,3,4] = aten.repeat_interleave.self_int(%k3, 4, 1)\n"
                             "  %s: f32[2,4,3,4] = aten.scaled_dot_product_attention.default(%q2, %k4, %k4)\n"
                             "  %t: f32[2,3,4,4] = aten.transpose.int(%s, 1, 2)\n"
                             "  %r: f32[2,3,16] = aten.reshape.default(%t, [2, 3, 16])\n"
                             "  %y: f32[2,3,16] = aten.linear.default(%r, %wo)\n"
                             "  return user %y\n}";
  Marked m;
  assert_ok(mark_text(head, "tp=2",
                      "{\"parallelize\": {\"q\": \"colwise\", \"k\": \"colwise\", \"o\": \"rowwise\"}}", &m));
  assert_placed(&m, "q.weight", "S(0)");
  assert_placed(&m, "k.weight", "R");
  assert_placed(&m, "o.weight", "S(1)");
  unmark(&m);
}

/* What is called an input embedding need not be a table. */
static void test_no_table(void **state) {
  (void)state;
  static const char patches[] =
      "graph(%w: f32[8,6] = parameter \"embed.patches.up.weight\", %x: f32[4,6] = user) {\n"
      "  %a: f32[4,8] = aten.linear.default(%x, %w)\n"
      "  return user %a\n}";
  Marked m;
  assert_ok(mark_text(
      patches, "tp=2",
      "{\"parallelize\": {\"embed.patches\": \"embedding_rowwise\", \"embed.patches.up\": \"colwise\"}}", &m));
  assert_placed(&m, "embed.patches.up.weight", "S(0)");
  unmark(&m);
  assert_error(mark_text(patches, "tp=2", "{\"parallelize\": {\"embed.patches\": \"colwise\"}}", &m),
               "no weights of its own");
  unmark(&m);
}

/* A weight of which no dimension is contracted. */
static void test_never_cut(void **state) {
  (void)state;
  static const char scale[] = "graph(%w: f32[6] = parameter \"scale.weight\", %x: f32[4,6] = user) {\n"
                              "  %y: f32[4,6] = aten.mul.Tensor(%x, %w)\n"
                              "  return user %y\n}";
  Marked m;
  assert_error(mark_text(scale, "tp=2", "{\"parallelize\": {\"scale\": \"rowwise\"}}", &m),
               "no op uses it in a way that allows it");
  unmark(&m);
}

/* Tables that are looked up in bags. */
static void test_bags(void **state) {
  (void)state;
  static const char bag[] =
      "graph(%w: f32[9,6] = parameter \"bag.weight\", %i: i64[8] = user, %o: i64[4] = user) {\n"
      "  %y: f32[4,6], %a: i64[0], %b: i64[4], %c: i64[4] = aten.embedding_bag.padding_idx(%w, %i, %o, false, 0, "
      "false, None, false, None)\n"
      "  return user %y\n}";
  Marked m;
  assert_ok(mark_text(bag, "tp=2", "{\"parallelize\": {\"bag\": \"embedding_rowwise\"}}", &m));
  assert_placed(&m, "bag.weight", "S(0)");
  unmark(&m);
  assert_ok(mark_text(bag, "tp=2", "{\"parallelize\": {\"bag\": \"colwise\"}}", &m));
  assert_placed(&m, "bag.weight", "S(1)");
  unmark(&m);
}

/* Heads that are rotated as a whole leave a rest of no elements. */
static const char whole_rotation[] = "graph(%w: f32[24,8] = parameter \"q.weight\", %o: f32[8,24] = parameter "
                                     "\"o.weight\", %x: f32[2,3,8] = user) {\n"
                                     "  %a: f32[2,3,24] = aten.linear.default(%x, %w)\n"
                                     "  %h: f32[2,3,3,8] = aten.view.default(%a, [2, 3, 3, 8])\n"
                                     "  %r: f32[2,3,3,8] = aten.slice.Tensor(%h, 3, 0, 8)\n"
                                     "  %s: f32[2,3,3,0] = aten.slice.Tensor(%h, 3, 8, 9223372036854775807)\n"
                                     "  %g: f32[2,3,3,8] = aten.gelu.default(%r)\n"
                                     "  %t: f32[2,3,3,0] = aten.gelu.default(%s)\n"
                                     "  %c: f32[2,3,3,8] = aten.cat.default([%g, %t], -1)\n"
                                     "  %f: f32[2,3,24] = aten.view.default(%c, [2, 3, 24])\n"
                                     "  %y: f32[2,3,8] = aten.linear.default(%f, %o)\n"
                                     "  return user %y\n}";

static void test_empty_rest(void **state) {
  (void)state;
  Marked m;
  assert_ok(mark_text(whole_rotation, "tp=2", "{\"parallelize\": {\"q\": \"colwise\", \"o\": \"rowwise\"}}", &m));
  assert_placed(&m, "q.weight", "S(0; unit 8)");
  assert_placed(&m, "o.weight", "S(1; unit 8)");
  unmark(&m);
}

/* einsum(btd,edf->btef), taken apart: dimensions of the weight are flattened. */
static const char flattened[] =
    "graph(%w: f32[5,16,22] = parameter \"up\", %v: f32[5,22,16] = parameter \"down\", %x: f32[12,16] = user) {\n"
    "  %p: f32[16,5,22]{22,352,1} = aten.permute.default(%w, [1, 0, 2])\n"
    "  %c: f32[16,5,22] = aten.clone.default(%p, memory_format=contiguous)\n"
    "  %m: f32[16,110] = aten.view.default(%c, [16, 110])\n"
    "  %a: f32[12,110] = aten.mm.default(%x, %m)\n"
    "  %n: f32[110,16] = aten.view.default(%v, [110, 16])\n"
    "  %y: f32[12,16] = aten.mm.default(%a, %n)\n"
    "  return user %y\n}";

static void test_flattened(void **state) {
  (void)state;
  Marked m;
  assert_ok(mark_text(flattened, "tp=2", "{\"parallelize\": {\"up\": \"colwise\", \"down\": \"rowwise\"}}", &m));
  assert_placed(&m, "up", "S(2)");
  assert_placed(&m, "down", "S(1)");
  unmark(&m);
}

/* "f.*.*" names the module f.0.0, and not the weight of the module f.0. */
static void test_containers(void **state) {
  (void)state;
  static const char text[] =
      "graph(%a: f32[6,8] = parameter \"f.1.weight\", %b: f32[8,6] = parameter \"f.0.0.weight\", "
      "%x: f32[2,8] = user) {\n"
      "  %h: f32[2,6] = aten.linear.default(%x, %a)\n"
      "  %y: f32[2,8] = aten.linear.default(%h, %b)\n"
      "  return user %y\n}";
  Marked m;
  assert_ok(mark_text(text, "tp=2", "{\"parallelize\": {\"f.1\": \"colwise\", \"f.*.*\": \"rowwise\"}}", &m));
  assert_placed(&m, "f.1.weight", "S(0)");
  assert_placed(&m, "f.0.0.weight", "S(1)");
  unmark(&m);
  assert_ok(mark_text(text, "tp=2", "{\"params\": {\"f.*.*.*\": \"S(0)\"}}", &m)); /* no module is called so */
  assert_placed(&m, "f.0.0.weight", "S(0)");
  unmark(&m);
}

/* A sum that leads to a sequence-parallel norm through a copy of a view is cut along the sequence, too. */
static void test_sequence_copies(void **state) {
  (void)state;
  static const char text[] =
      "graph(%a: f32[6,8] = parameter \"down.weight\", %n: f32[6] = parameter \"norm.weight\", "
      "%x: f32[8,8] = user) {\n"
      "  %h: f32[8,6] = aten.linear.default(%x, %a)\n"
      "  %v: f32[2,4,6] = aten.view_copy.default(%h, [2, 4, 6])\n"
      "  %y: f32[2,4,6] = aten.rms_norm.default(%v, [6], %n) !{\"nn_module_stack\": \"n,norm,RMSNorm\"}\n"
      "  return user %y\n}";
  Marked m;
  assert_ok(
      mark_text(text, "tp=2", "{\"parallelize\": {\"down\": \"rowwise\", \"norm\": \"sequence_parallel\"}}", &m));
  const Val *h = m.e->graph->first->outs[0];
  if (!m.marks->after[h->id] || !is_s(&m.marks->after[h->id]->place[0])) test_failed("the sum is whole");
  unmark(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      /* clang-format off */
      cmocka_unit_test(test_patterns),   cmocka_unit_test(test_words),       cmocka_unit_test(test_bad_files),
      cmocka_unit_test(test_bare),
      cmocka_unit_test(test_round_trip), cmocka_unit_test(test_pair),        cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_fused_heads), cmocka_unit_test(test_grouped_heads), cmocka_unit_test(test_empty_rest),
      cmocka_unit_test(test_flattened),   cmocka_unit_test(test_other_layers), cmocka_unit_test(test_never_cut), cmocka_unit_test(test_bags),
      cmocka_unit_test(test_containers), cmocka_unit_test(test_sequence_copies),
            cmocka_unit_test(test_part_of_a_head),
      /* clang-format on */
      cmocka_unit_test(test_no_table),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
