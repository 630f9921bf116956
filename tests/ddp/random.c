/* random.c -- programs made at random, with everything that passes on collectives must respect:
 * values that share memory and are written to, quotients that are reduced twice or in place,
 * results that feed later gradients, several kinds of all-reduce, waits far from their starts,
 * dead nodes, random ops.  All tensors are f32[4]. */
#include <stdlib.h>
#include <string.h>

#include "ddp.h"

enum { MOST = 256 };

typedef struct {
  int id[MOST];
  int n;
} Pool;

typedef struct {
  uint64_t state;
  TextBuf *out;
  int next;
  Pool vals, quotients, started, waited, results;
} Maker;

static unsigned draw(Maker *m, unsigned below) {
  m->state = m->state * 6364136223846793005u + 1442695040888963407u;
  return (unsigned)(m->state >> 33) % below;
}

static bool chance(Maker *m, unsigned percent) { return draw(m, 100) < percent; }

static void add(Pool *p, int id) {
  if (p->n < MOST) p->id[p->n++] = id;
}

/* Mostly one of the latest. */
static int pick(Maker *m, const Pool *p) {
  int from = p->n > 6 && chance(m, 70) ? p->n - 6 : 0;
  return p->id[from + (int)draw(m, (unsigned)(p->n - from))];
}

/* Takes it out, mostly. */
static int take(Maker *m, Pool *p, unsigned keep_percent) {
  int at = (int)draw(m, (unsigned)p->n), id = p->id[at];
  if (!chance(m, keep_percent)) p->id[at] = p->id[--p->n];
  return id;
}

static int node(Maker *m, const char *name) {
  text_printf(m->out, "  %%%s%d: f32[4] = ", name, m->next);
  return m->next++;
}

/* Names say which values follow a wait: v5 does not, alias5 does; references need them whole. */
static const char *name_of(int id) { return id & 1 << 20 ? "alias" : "v"; }

static void reference(Maker *m, int id) { text_printf(m->out, "%%%s%d", name_of(id), id & ~(1 << 20)); }

static int call(Maker *m, const char *target, int arg, const char *rest, bool follows) {
  int id = node(m, follows ? "alias" : "v") | (follows ? 1 << 20 : 0);
  text_printf(m->out, "%s(", target);
  reference(m, arg);
  text_printf(m->out, "%s)\n", rest);
  return id;
}

static int call2(Maker *m, const char *target, int a, int b) {
  int id = node(m, "v");
  text_printf(m->out, "%s(", target);
  reference(m, a);
  text_puts(m->out, ", ");
  reference(m, b);
  text_puts(m->out, ")\n");
  return id;
}

static void compute(Maker *m) {
  switch (draw(m, 7)) {
    case 0: add(&m->vals, call2(m, "aten.add.Tensor", pick(m, &m->vals), pick(m, &m->vals))); break;
    case 1: add(&m->vals, call(m, "aten.alias.default", pick(m, &m->vals), "", chance(m, 50))); break;
    case 2: add(&m->vals, call(m, "aten.view.default", pick(m, &m->vals), ", [4]", false)); break;
    case 3: add(&m->vals, call(m, "aten.mul_.Tensor", pick(m, &m->vals), ", 3.0", false)); break;
    case 4: add(&m->vals, call(m, "aten.rand_like.default", pick(m, &m->vals), "", false)); break;
    default: add(&m->vals, call(m, "aten.neg.default", pick(m, &m->vals), "", false)); break;
  }
}

static void divide(Maker *m) {
  static const char *const divisors[] = {", 2", ", 2", ", 2", ", 2.0", ", 4"};
  add(&m->quotients, call(m, "aten.div.Tensor", pick(m, &m->vals), divisors[draw(m, 5)], false));
}

static void start(Maker *m) {
  static const char *const how[] = {", \"sum\", \"0\"", ", \"sum\", \"0\"", ", \"sum\", \"0\"", ", \"max\", \"0\"",
                                    ", \"sum\", \"1\""};
  int quotient = take(m, &m->quotients, 10);
  const char *target = chance(m, 25) ? "_c10d_functional.all_reduce_.default"
                                     : "_c10d_functional.all_reduce.default";
  add(&m->started, call(m, target, quotient, how[draw(m, 5)], false));
  if (chance(m, 10)) add(&m->vals, quotient);
}

static void finish(Maker *m) {
  add(&m->waited, call(m, "_c10d_functional.wait_tensor.default", take(m, &m->started, 5), "", false));
}

static void use(Maker *m) {
  int reduced = take(m, &m->waited, 7);
  if (chance(m, 50)) {
    add(&m->results, reduced);
  } else if (chance(m, 70)) {
    int copied = call2(m, "aten.copy_.default", pick(m, &m->vals), reduced);
    if (chance(m, 50)) add(&m->vals, copied);
    if (chance(m, 50)) add(&m->results, copied);
  } else {
    add(&m->vals, call(m, "aten.neg.default", reduced, "", false));
  }
}

static void step(Maker *m) {
  unsigned kind = draw(m, 100);
  if (kind < 38) compute(m);
  else if (kind < 56) divide(m);
  else if (kind < 71 && m->quotients.n) start(m);
  else if (kind < 86 && m->started.n) finish(m);
  else if (m->waited.n) use(m);
}

Status ddp_random_text(uint64_t seed, TextBuf *out) {
  Maker m = {.state = seed * 0x9e3779b97f4a7c15u + 1, .out = out};
  int inputs = 2 + (int)draw(&m, 4), steps = 5 + (int)draw(&m, 70);
  text_puts(out, "graph(");
  for (int i = 0; i < inputs; i++) {
    text_printf(out, "%s%%v%d: f32[4] = user", i ? ", " : "", m.next);
    add(&m.vals, m.next++);
  }
  text_puts(out, ") {\n");
  while (steps--) step(&m);
  while (m.started.n) finish(&m);
  for (int i = 0; i < m.waited.n; i++) {
    if (chance(&m, 80)) add(&m.results, m.waited.id[i]);
  }
  for (int i = 0; i < m.vals.n; i++) {
    if (chance(&m, 30)) add(&m.results, m.vals.id[i]);
  }
  text_puts(out, "  return");
  for (int i = 0; m.results.n; i++) {
    text_puts(out, i ? ", user " : " user ");
    reference(&m, take(&m, &m.results, 0));
  }
  text_puts(out, "\n}\n");
  return out->failed ? fail_oom() : OK;
}
