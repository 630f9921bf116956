/* plan_memory.c -- see plan_memory.h. */
#include "cli/plan_memory.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/strmap.h"
#include "runtime/feed_sizes.h"
#include "runtime/memory_peak.h"
#include "runtime/session.h"

enum { GROUPS_SHOWN = 24 };

/* Equal values that are alive together, or nodes of equal modules that are computed again. */
typedef struct {
  const char *what;
  int count;
  double amount; /* bytes, or FLOPs */
} Group;

typedef struct {
  StrMap map;
  Group *v;
  int n, cap;
} Groups;

typedef struct {
  Arena arena;
  Groups alive; /* without the limit */
  const char *peak;
  Groups again;
  MemoryFit fit;
  MemoryStep *curve;
  int ncurve;
  bool trains;
  double weights, optimizer, gradients; /* trains: bytes */
  double shared; /* trains: of gradients and intermediate results that share memory, as without a limit */
} Findings;

static Status add(Arena *arena, Groups *g, const char *what, double amount) {
  intptr_t at = (intptr_t)strmap_get(&g->map, what);
  if (!at) {
    StrSlot *slot;
    const char *key;
    TRY_NEW(key, arena_strdup(arena, what));
    TRY_NEW(g->v, arena_more(arena, g->v, g->n, &g->cap));
    g->v[g->n] = (Group){.what = key};
    TRY(strmap_slot(&g->map, arena, key, &slot));
    slot->value = (void *)(at = ++g->n);
  }
  g->v[at - 1].count++;
  g->v[at - 1].amount += amount;
  return OK;
}

static int more_first(const void *a, const void *b) {
  const Group *x = a, *y = b;
  if (x->amount != y->amount) return x->amount < y->amount ? 1 : -1;
  return strcmp(x->what, y->what);
}

/* "h.3.mlp" -> "h.*.mlp" */
static const char *module_pattern(const Node *n, char *buf, size_t cap) {
  char *to = buf;
  node_module(n, buf, cap);
  for (const char *p = buf; *p;) {
    size_t len = strcspn(p, ".");
    bool number = len && strspn(p, "0123456789") == len;
    if (number) *to++ = '*';
    else memmove(to, p, len), to += len;
    p += len;
    if (*p) *to++ = *p++;
  }
  *to = 0;
  return *buf ? buf : "(no module)";
}

/* ---- finding out ------------------------------------------------------------------------------------------- */

static Status name_value(Arena *arena, const Val *v, const char **out) {
  char type[160], module[256];
  TRY_NEW(*out, arena_printf(arena, "%s %s of %s", v->node->target, tensor_describe(v->tensor, type, sizeof type),
                             module_pattern(v->node, module, sizeof module)));
  return OK;
}

static Status look_at_peak(Findings *f, const Program *p) {
  AliveValue *v;
  int at, n;
  f->gradients = (double)p->gradient_bytes;
  TRY(memory_peak(p, &at));
  const Node *node = p->graph->graph->first;
  for (int i = 1; i < at; i++) node = node->next;
  f->peak = node ? node->target : "";
  TRY(memory_alive_at(p, at, &v, &n));
  Status s = OK;
  for (int i = 0; i < n && !s; i++) {
    const char *name;
    s = name_value(&f->arena, v[i].value, &name);
    if (!s) s = add(&f->arena, &f->alive, name, (double)v[i].bytes);
  }
  free(v);
  if (!s && f->alive.n) qsort(f->alive.v, (size_t)f->alive.n, sizeof *f->alive.v, more_first);
  return s;
}

static Status look_at_copies(Findings *f, const Program *p) {
  char module[256];
  for (int i = 0; i < p->ninstrs; i++) {
    const Instr *in = &p->instrs[i];
    if (!in->node->again) continue;
    TRY(add(&f->arena, &f->again, module_pattern(in->node, module, sizeof module), op_flops(&in->call)));
  }
  if (f->again.n) qsort(f->again.v, (size_t)f->again.n, sizeof *f->again.v, more_first);
  return OK;
}

static Status look_at_sharing(Findings *f, const Program *p) {
  f->shared = (double)p->slab_bytes;
  return OK;
}

/* Plans the specialised program, which is then gone. */
static Status look_at_plan(Findings *f, Ctx *ctx, Exported *special, Status (*look)(Findings *, const Program *)) {
  Program *p;
  TRY(program_plan(ctx, special, &p));
  Status s = look(f, p);
  program_free(p);
  return s;
}

static Status look(Findings *f, Session *s, const Value *inputs, int n, MemoryLimit limit) {
  Ctx *ctx = session_ctx(s);
  Exported *special;
  TRY(session_specialize(s, inputs, n, &special));
  Status status = memory_curve(ctx, special, &f->curve, &f->ncurve);
  if (status) return exported_free(special), status;
  TRY(look_at_plan(f, ctx, special, look_at_peak));
  if (f->trains) {
    TRY(session_specialize(s, inputs, n, &special));
    special->graph->gradients_apart = false;
    TRY(look_at_plan(f, ctx, special, look_at_sharing));
  }
  TRY(session_specialize(s, inputs, n, &special));
  status = fit_memory(ctx, special, NULL, limit, &f->fit);
  if (status) return exported_free(special), status;
  return look_at_plan(f, ctx, special, look_at_copies);
}

/* ---- telling ----------------------------------------------------------------------------------------------- */

static void print_groups(const Groups *g, const char *(*human)(double, char *, size_t)) {
  char amount[32];
  for (int i = 0; i < g->n && i < GROUPS_SHOWN; i++)
    printf("  %12s  %4d x %s\n", human(g->v[i].amount, amount, sizeof amount), g->v[i].count, g->v[i].what);
  if (g->n > GROUPS_SHOWN) printf("  and %d more\n", g->n - GROUPS_SHOWN);
}

static const char *bytes_text(double x, char *buf, size_t cap) { return human_bytes(x, buf, cap); }
static const char *flops_text(double x, char *buf, size_t cap) { return human_flops(x, buf, cap); }

static void print_text(const Findings *f) {
  char a[32], b[32], c[32];
  const MemoryFit *fit = &f->fit;
  if (f->trains) {
    printf("weights: %s; optimizer state: %s; gradients: %s\n", human_bytes(f->weights, a, sizeof a),
           human_bytes(f->optimizer, b, sizeof b), human_bytes(f->gradients, c, sizeof c));
    printf("in all, with intermediate results: %s with the limit; %s without one, as gradients then share their "
           "memory\n",
           human_bytes(f->weights + f->optimizer + f->gradients + (double)fit->chosen.slab, a, sizeof a),
           human_bytes(f->weights + f->optimizer + f->shared, b, sizeof b));
  }
  printf("intermediate results: %s without a limit, %s with a limit of %s\n",
         human_bytes((double)fit->free_slab, a, sizeof a), human_bytes((double)fit->chosen.slab, b, sizeof b),
         human_bytes((double)fit->limit, c, sizeof c));
  printf("computed again: %d node%s, %s on top of %s (%.1f%%)\n", fit->chosen.recomputed,
         PLURAL(fit->chosen.recomputed), human_flops(fit->chosen.extra_flops, a, sizeof a),
         human_flops(fit->flops, b, sizeof b), 100 * fit->chosen.extra_flops / (fit->flops + 1e-9));
  print_groups(&f->again, flops_text);
  printf("alive at the height of memory without a limit (%s)\n", f->peak);
  print_groups(&f->alive, bytes_text);
  printf("%8s %12s %16s %8s %8s\n", "limit", "memory", "computed again", "more", "nodes");
  for (int share = 100; share > 0; share -= 10) {
    size_t limit = (size_t)((double)f->curve[0].slab * share / 100);
    const MemoryStep *s = memory_step_within(f->curve, f->ncurve, limit);
    if (!s) break;
    printf("%7d%% %12s %16s %7.1f%% %8d\n", share, human_bytes((double)s->slab, a, sizeof a),
           human_flops(s->extra_flops, b, sizeof b), 100 * s->extra_flops / (fit->flops + 1e-9), s->recomputed);
  }
  const MemoryStep *least = &f->curve[f->ncurve - 1];
  printf("%8s %12s %16s %7.1f%% %8d\n", "least", human_bytes((double)least->slab, a, sizeof a),
         human_flops(least->extra_flops, b, sizeof b), 100 * least->extra_flops / (fit->flops + 1e-9),
         least->recomputed);
}

static void put_step(TextBuf *b, const MemoryStep *s) {
  text_printf(b, "{\"memory\": %zu, \"extra_flops\": %.0f, \"extra_seconds\": %.6g, \"recomputed\": %d}", s->slab,
              s->extra_flops, s->extra_seconds, s->recomputed);
}

static void put_groups(TextBuf *b, const char *key, const Groups *g, const char *amount) {
  text_printf(b, ", \"%s\": [", key);
  for (int i = 0; i < g->n; i++) {
    text_printf(b, "%s{\"what\": ", i ? ", " : "");
    text_json(b, g->v[i].what);
    text_printf(b, ", \"count\": %d, \"%s\": %.0f}", g->v[i].count, amount, g->v[i].amount);
  }
  text_puts(b, "]");
}

static Status print_json(const Findings *f) {
  TextBuf b = {0};
  text_printf(&b, "{\"free_memory\": %zu, \"limit\": %zu, \"flops\": %.0f, \"chosen\": ", f->fit.free_slab,
              f->fit.limit, f->fit.flops);
  put_step(&b, &f->fit.chosen);
  if (f->trains)
    text_printf(&b, ", \"weights\": %.0f, \"optimizer_state\": %.0f, \"gradients\": %.0f, \"shared_memory\": %.0f",
                f->weights, f->optimizer, f->gradients, f->shared);
  put_groups(&b, "again", &f->again, "flops");
  put_groups(&b, "alive", &f->alive, "bytes");
  text_puts(&b, ", \"curve\": [");
  for (int i = 0; i < f->ncurve; i++) {
    if (i) text_puts(&b, ", ");
    put_step(&b, &f->curve[i]);
  }
  text_puts(&b, "]}\n");
  Status s = b.failed ? fail_oom() : OK;
  if (!s) print_plain(stdout, b.text);
  text_free(&b);
  return s;
}

/* ---- the command ------------------------------------------------------------------------------------------- */

static Status look_at_program(Findings *f, Session *s, const GradientWords *gradients, MemoryLimit limit) {
  GradOptions wanted = f->trains ? (GradOptions){0} : gradient_words_ask(gradients);
  const Exported *e = session_program(s);
  Scope scope = {0};
  SymBindings b;
  Value *inputs;
  int n;
  if (!f->trains) TRY(session_want_gradients(s, &wanted));
  TRY(feed_symbols(e, true, &b));
  Status status = feed_sizes(e, &b, &scope, &f->arena, &inputs, &n);
  free(b.v);
  if (!status) status = look(f, s, inputs, n, limit);
  scope_clear(&scope);
  return status;
}

/* ---- training ------------------------------------------------------------------------------------------- */

/* Bytes of what a training holds from step to step; names of one tensor count once. */
static void look_at_state(Findings *f, const Exported *e) {
  for (int i = 0; i < e->nstate; i++) {
    const StateEntry *s = &e->state[i];
    bool tied = false;
    for (int j = 0; j < i && !tied; j++) tied = state_is_tied(&e->state[j], s);
    if (!s->tensor || tied) continue;
    double bytes = (double)tensor_numel(s->tensor) * (double)dtype_size(s->tensor->dtype);
    *(s->is_filled ? &f->optimizer : &f->weights) += bytes;
  }
}

static Status open_training(Findings *f, Ctx *ctx, Exported *e, const char *optim, const char *loss,
                            Session **out) {
  Prepared *p;
  Recipe r;
  Status s = recipe_init(&r, &f->arena, *optim ? optim : "adamw");
  if (s) return exported_free(e), status_at(s, "--train");
  r.skip_nonfinite = true; /* as `tessera train` does unless it is told otherwise */
  TRY(prepare(ctx, e, &p));
  s = prepare_update(p, &r, loss);
  if (!s) {
    look_at_state(f, p->program);
    s = session_open_dry(ctx, p, out);
    if (!s) session_limit_memory(*out, (MemoryLimit){0});
  }
  prepared_unref(p);
  return s;
}

Status plan_memory(Exported *e, const GradientWords *gradients, const char *optim, MemoryLimit limit, bool json) {
  Findings f = {.trains = optim != NULL};
  Session *session = NULL;
  Ctx ctx;
  ctx_init(&ctx, 1);
  Status s = optim ? open_training(&f, &ctx, e, optim, gradients->loss, &session) : session_open(&ctx, e, &session);
  if (!s) s = look_at_program(&f, session, gradients, limit);
  if (!s && json) s = print_json(&f);
  else if (!s) print_text(&f);
  free(f.curve);
  arena_free(&f.arena);
  session_free(session);
  ctx_free(&ctx);
  return s;
}
