/* cut_dynamic.c -- a rank's program whose sizes stay symbols.
 *
 * Cutting works on numbers.  So the program is cut several times, with different numbers for
 * the symbols, and what differs becomes expressions again (passes/generalize.h).
 *
 *   cut symbols     some value is cut along a dimension of that size: only multiples are
 *                   tried, because uneven shards make other programs
 *   local symbols   some input of that size is cut: in the rank's file the symbol is the size
 *                   of the smallest part, others are multiples of it.  (PyTorch solves 2*s for
 *                   s, but not s // 2.)
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "passes/generalize.h"
#include "rank_files/partition_worker.h"

enum { VARIANTS = 4, WINDOW = 16, ATTEMPTS = 200, MOST_SIZES = 4096 };

typedef struct {
  const char *name;
  int64_t min, max, hint;
  int64_t multiple; /* of what its values must be */
  int64_t local;    /* ranks that share it: in the file it is 1/local of the whole */
  int64_t value[VARIANTS];
} Symbol;

typedef struct {
  Worker *w;
  const Exported *e; /* the whole program */
  Symbol *symbol;
  int n;
} Dynamic;

/* ---- which symbols are cut --------------------------------------------------------------------------- */

static Symbol *find(Dynamic *d, const char *name) {
  for (int i = 0; i < d->n; i++)
    if (!strcmp(d->symbol[i].name, name)) return &d->symbol[i];
  return NULL;
}

static int64_t gcd(int64_t a, int64_t b) {
  while (b) {
    int64_t r = a % b;
    a = b;
    b = r;
  }
  return a;
}

static int64_t lcm(int64_t a, int64_t b) { return a / gcd(a, b) * b; }

/* A number among the factors (heads) takes its share of the ranks. */
static void note_cut(Dynamic *d, const Sym *size, int64_t ranks) {
  for (int i = 0; size->kind == SYM_MUL && i < size->nargs; i++)
    if (sym_is_int(size->args[i]) && size->args[i]->value > 0) ranks /= gcd(ranks, size->args[i]->value);
  if (size->kind == SYM_SYMBOL) {
    Symbol *s = find(d, size->name);
    if (s) s->multiple = lcm(s->multiple, ranks);
  }
  for (int i = 0; i < size->nargs; i++) note_cut(d, size->args[i], ranks);
}

static int64_t number_in(const Sym *size) {
  for (int i = 0; size->kind == SYM_MUL && i < size->nargs; i++)
    if (sym_is_int(size->args[i])) return size->args[i]->value;
  return 1;
}

/* Of a dimension that repeats, only what repeats is cut: heads of every batch row. */
static bool cuts_number(const Spec *spec, int dim, const Sym *size) {
  for (int a = 0; a < spec->mesh->naxes; a++) {
    const Placement *p = &spec->place[a];
    int64_t period = is_s_of(p, dim) && p->factor > 1 ? spec->shape[dim] / p->factor : 0;
    if (is_s_of(p, dim) && (period == 0 || number_in(size) % period)) return false;
  }
  return true;
}

/* Ranks that cut dimension dim. */
static int64_t shares(const Mesh *m, const Placement *place, int dim) {
  int64_t n = 1;
  for (int a = 0; a < m->naxes; a++)
    if (is_s_of(&place[a], dim)) n *= m->axis[a];
  return n;
}

static void note_value(Dynamic *d, const Val *v, const Spec *spec) {
  for (int k = 0; k < v->ndim && k < spec->ndim; k++) {
    int64_t n = shares(spec->mesh, spec->place, k);
    if (n > 1 && !sym_is_int(v->size[k]) && !cuts_number(spec, k, v->size[k])) note_cut(d, v->size[k], n);
  }
}

static Status saw_input(void *arg, int i, const Value *v) {
  Dynamic *d = arg;
  if (v->kind == VAL_TENSOR && v->tensor->spec) note_value(d, d->e->graph->inputs[i], v->tensor->spec);
  return OK;
}

static Status saw_before(void *arg, const Node *n) { return (void)arg, (void)n, OK; }

static Status saw_node(void *arg, const Node *n, const Value *outs, int nouts, const Exported *to) {
  (void)to;
  for (int i = 0; i < n->nouts && i < nouts; i++)
    if (outs[i].kind == VAL_TENSOR && outs[i].tensor->spec && n->outs[i]->type == TY_TENSOR)
      note_value(arg, n->outs[i], outs[i].tensor->spec);
  return OK;
}

static Status saw_output(void *arg, int i, const Tensor *t, const Exported *to) {
  Dynamic *d = arg;
  const Arg *out = &d->e->graph->outputs[i];
  (void)to;
  if (t && t->spec && out->kind == ARG_VAL && out->val->type == TY_TENSOR) note_value(d, out->val, t->spec);
  return OK;
}

/* Of the plain symbol in every input; not at all if it is a number that is given. */
static void find_local(Dynamic *d) {
  const Graph *g = d->e->graph;
  for (int i = 0; i < g->ninputs; i++) {
    const Val *v = g->inputs[i];
    for (int k = 0; d->e->inputs[i].kind == IN_USER && v->type == TY_TENSOR && k < v->ndim; k++) {
      Symbol *s = v->size[k]->kind == SYM_SYMBOL ? find(d, v->size[k]->name) : NULL;
      int64_t n = shares(d->w->marks.mesh, d->w->marks.input[i].place, k);
      if (s) s->local = lcm(s->local, n);
    }
  }
  for (int i = 0; i < g->ninputs; i++) {
    const Val *v = g->inputs[i];
    Symbol *s = v->type == TY_INT && v->sym && v->sym->kind == SYM_SYMBOL ? find(d, v->sym->name) : NULL;
    if (s) s->local = 1;
  }
}

/* ---- numbers to try ------------------------------------------------------------------------------------ */

/* One of the two tells the other's values: expressions would be mixed up. */
static bool related(const Symbol *a, const Symbol *b) {
  int64_t da = a->value[1] - a->value[0], db = b->value[1] - b->value[0];
  for (int i = 2; i < VARIANTS; i++)
    if (da * (b->value[i] - b->value[0]) != db * (a->value[i] - a->value[0])) return false;
  return true;
}

static bool distinct(const Symbol *s) {
  for (int i = 0; i < VARIANTS; i++)
    for (int j = 0; j < i; j++)
      if (s->value[i] == s->value[j]) return false;
  return true;
}

/* Multiples near the hint (rules weigh sizes: far from it they might decide otherwise), neither
 * 0 nor 1, which ops treat otherwise. */
static Status choose_values(Dynamic *d, Symbol *s, uint64_t *random) {
  int64_t least = s->min < 2 ? 2 : s->min, m = s->multiple;
  int64_t low = (least + m - 1) / m, high = s->max / m;
  int64_t count = high - low + 1, middle = s->hint > 0 ? s->hint / m : low;
  if (count < VARIANTS)
    return status_hint(fail(ERR_USAGE, "the symbol %s has too few sizes: multiples of %lld from %lld to %lld",
                            s->name, (long long)m, (long long)s->min, (long long)s->max),
                       "give it a fixed size: --size %s=%lld", s->name, (long long)(low * m));
  int64_t window = count < WINDOW ? count : WINDOW, from = middle - window / 2;
  if (from < low) from = low;
  if (from + window - 1 > high) from = high - window + 1;
  for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
    for (int i = 0; i < VARIANTS; i++) s->value[i] = (from + (int64_t)(random_bits(random) % (uint64_t)window)) * m;
    bool good = distinct(s);
    for (Symbol *o = d->symbol; o < s && good; o++) good = !related(o, s);
    if (good) return OK;
  }
  return distinct(s) ? OK : fail(ERR_FAIL, "no sizes for the symbol %s", s->name);
}

static Status choose_all(Dynamic *d) {
  uint64_t random = 1;
  for (int i = 0; i < d->n; i++) TRY(choose_values(d, &d->symbol[i], &random));
  return OK;
}

/* ---- the file's symbols ------------------------------------------------------------------------------------ */

/* What the whole program's symbols are in terms of the file's. */
static Status map_symbols(const Dynamic *d, Exported *to, StrMap *map) {
  StrSlot *slot;
  const Sym *s;
  for (int i = 0; i < d->n; i++) {
    TRY_NEW(s,
            sym_mul(&to->syms, sym_symbol(&to->syms, d->symbol[i].name), sym_int(&to->syms, d->symbol[i].local)));
    TRY(strmap_slot(map, &to->arena, d->symbol[i].name, &slot));
    slot->value = (void *)(uintptr_t)s;
  }
  for (int i = 0; i < d->w->cut->fixed.n; i++) {
    TRY_NEW(s, sym_int(&to->syms, d->w->cut->fixed.v[i].value));
    TRY(strmap_slot(map, &to->arena, d->w->cut->fixed.v[i].name, &slot));
    slot->value = (void *)(uintptr_t)s;
  }
  return OK;
}

static Val *input_named(const Graph *g, const char *name) {
  for (int i = 0; i < g->ninputs; i++)
    if (!strcmp(g->inputs[i]->name, name)) return g->inputs[i];
  return NULL;
}

static Status describe_input(const Dynamic *d, int i, Exported *to, const StrMap *map) {
  const Val *from = d->e->graph->inputs[i];
  Val *v = input_named(to->graph, from->name);
  bool varies = false;
  if (!v) return OK;
  if (from->type == TY_INT && from->sym) return sym_rebuild(&to->syms, from->sym, map, &v->sym);
  for (int k = 0; from->type == TY_TENSOR && k < from->ndim; k++) {
    const Sym *size;
    int64_t n = shares(d->w->marks.mesh, d->w->marks.input[i].place, k);
    TRY(sym_rebuild(&to->syms, from->size[k], map, &size));
    if (sym_is_int(size)) continue; /* a number already */
    if (n > 1)
      TRY_NEW(size, sym_apply(&to->syms, SYM_FLOORDIV, (const Sym *const[]){size, sym_int(&to->syms, n)}, 2));
    v->size[k] = size;
    varies = true;
  }
  if (varies) v->stride = NULL, v->tensor = NULL;
  return OK;
}

static Status describe_inputs(const Dynamic *d, Exported *to, const StrMap *map) {
  for (int i = 0; i < d->e->graph->ninputs; i++)
    if (d->e->inputs[i].kind == IN_USER) TRY(describe_input(d, i, to, map));
  TRY_NEW(to->ranges, arena_new_n(&to->arena, SymRange, d->n));
  for (int i = 0; i < d->n; i++) {
    const Symbol *s = &d->symbol[i];
    to->ranges[to->nranges++] = (SymRange){.symbol = s->name,
                                           .min = s->min == INT64_MIN ? s->min : (s->min + s->local - 1) / s->local,
                                           .max = s->max == INT64_MAX ? s->max : s->max / s->local,
                                           .hint = s->hint >= 0 ? s->hint / s->local : -1};
  }
  return OK;
}

/* ---- sizes that numbers are made of -------------------------------------------------------------------------- */

typedef struct {
  const Sym **v;
  int n;
  unsigned char *seen; /* by id in the whole program's table */
} Sizes;

static int weight(const Sym *s) {
  int n = 1;
  for (int i = 0; i < s->nargs; i++) n += weight(s->args[i]);
  return n;
}

static int by_weight(const void *a, const void *b) {
  const Sym *x = *(const Sym *const *)a, *y = *(const Sym *const *)b;
  int d = weight(x) - weight(y);
  return d ? d : x->id - y->id;
}

static void add_size(Sizes *z, const Sym *s) {
  if (!s || sym_is_int(s) || s->kind == SYM_FLOAT || z->seen[s->id] || z->n >= MOST_SIZES) return;
  z->seen[s->id] = 1;
  z->v[z->n++] = s;
  for (int i = 0; i < s->nargs; i++) add_size(z, s->args[i]);
}

static void add_sizes(Sizes *z, const Val *v) {
  for (int d = 0; v->type == TY_TENSOR && d < v->ndim; d++) add_size(z, v->size[d]);
  if (v->type == TY_INT) add_size(z, v->sym);
}

/* Products of two symbols: a batch of sequences as the rows of one matrix, which gradients of weights make. */
static Status add_products(const Dynamic *d, Exported *to, const StrMap *map, Sizes *z) {
  for (int i = 0; i < d->n; i++) {
    for (int j = 0; j < i; j++) {
      const Sym *a = strmap_get(map, d->symbol[i].name), *b = strmap_get(map, d->symbol[j].name), *product;
      TRY_NEW(product, sym_mul(&to->syms, a, b));
      z->v[z->n++] = product;
    }
  }
  return OK;
}

static Status collect_sizes(const Dynamic *d, Exported *to, const StrMap *map, Sizes *z) {
  const Graph *g = d->e->graph;
  int count = d->e->syms.count + 1 + d->n * d->n;
  TRY_NEW(z->v, arena_new_n(&to->arena, const Sym *, count));
  TRY_NEW(z->seen, arena_new_n(&to->arena, unsigned char, count));
  for (int i = 0; i < g->ninputs; i++) add_sizes(z, g->inputs[i]);
  for (const Node *n = g->first; n; n = n->next)
    for (int i = 0; i < n->nouts; i++) add_sizes(z, n->outs[i]);
  for (int i = 0; i < z->n; i++) TRY(sym_rebuild(&to->syms, z->v[i], map, &z->v[i]));
  if (d->w->cut->wants_grad) TRY(add_products(d, to, map, z));
  qsort(z->v, (size_t)z->n, sizeof *z->v, by_weight);
  return OK;
}

/* Products of mesh axes, 1 first. */
static int list_divisors(const Mesh *m, int64_t *out, int cap) {
  int n = 0;
  for (unsigned set = 0; set < 1u << m->naxes; set++) {
    int64_t product = 1;
    bool known = false;
    for (int a = 0; a < m->naxes; a++)
      if (set >> a & 1) product *= m->axis[a];
    for (int i = 0; i < n; i++) known |= out[i] == product;
    if (!known && n < cap) out[n++] = product;
  }
  return n;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

static Status list_symbols(Dynamic *d, const SymBindings *hints) {
  TRY_NEW(d->symbol, arena_new_n(&d->w->arena, Symbol, hints->n));
  for (int i = 0; i < hints->n; i++) {
    Symbol s = {
        .name = hints->v[i].name, .min = 0, .max = INT64_MAX, .hint = hints->v[i].value, .multiple = 1, .local = 1};
    if (partition_fixed_size(d->w->cut, s.name)) continue;
    for (int r = 0; r < d->e->nranges; r++)
      if (!strcmp(d->e->ranges[r].symbol, s.name)) s.min = d->e->ranges[r].min, s.max = d->e->ranges[r].max;
    d->symbol[d->n++] = s;
  }
  return OK;
}

/* Values of variant k, of the whole or as the file has them. */
static Status bind(const Dynamic *d, int k, bool local, SymBindings *out) {
  const SymBindings *fixed = &d->w->cut->fixed;
  TRY_NEW(out->v, arena_new_n(&d->w->arena, SymBinding, d->n + fixed->n));
  for (int i = 0; i < d->n; i++)
    out->v[out->n++] = (SymBinding){d->symbol[i].name, d->symbol[i].value[k] / (local ? d->symbol[i].local : 1)};
  for (int i = 0; i < fixed->n && !local; i++) out->v[out->n++] = fixed->v[i];
  return OK;
}

static Status join(Dynamic *d, Generalize *g) {
  Exported *to = g->program[0];
  StrMap map = {0};
  Sizes sizes = {0};
  int64_t divisor[1 << MAX_AXES];
  TRY(map_symbols(d, to, &map));
  TRY(describe_inputs(d, to, &map));
  TRY(collect_sizes(d, to, &map, &sizes));
  g->size = sizes.v;
  g->nsizes = sizes.n;
  g->divisor = divisor;
  g->ndivisors = list_divisors(d->w->marks.mesh, divisor, 1 << MAX_AXES);
  return generalize(g);
}

static Status cut_variants(Dynamic *d, CommLog *log, Exported **out) {
  Generalize g = {0};
  Status s = choose_all(d);
  for (int k = 0; k < VARIANTS && !s; k++) {
    SymBindings whole = {0};
    s = bind(d, k, false, &whole);
    if (!s) s = bind(d, k, true, &g.at[k]);
    if (!s) s = worker_program(d->w, &whole, k == 0 ? log : NULL, NULL, &g.program[k]);
    if (!s) g.n++;
  }
  if (!s) s = join(d, &g);
  for (int k = s ? 0 : 1; k < g.n; k++) exported_free(g.program[k]);
  if (!s) *out = g.program[0];
  return s;
}

/* ---- what is asked of sizes ---------------------------------------------------------------------------- */

static Status add_number(Exported *e, Node *before, const char *target, Arg a, Arg b, ValType type, const Sym *sym,
                         Val **out) {
  Node *n;
  const char *dot = strchr(target, '.');
  TRY(graph_emit_like(e->graph, before, NULL, target, (Arg[]){a, b}, 2, &n));
  if (!out) return OK;
  TRY(node_add_out(n, dot + 1, type, out));
  (*out)->sym = sym;
  return OK;
}

/* The file's own check: where the symbol is the whole size, sharing it must go evenly. */
static Status check_multiple(const Symbol *s, Exported *e) {
  int64_t m = s->multiple / s->local;
  const Sym *symbol, *rest, *even;
  char *message;
  Val *size = NULL, *mod, *eq;
  if (m <= 1) return OK;
  TRY_NEW(symbol, sym_symbol(&e->syms, s->name));
  for (int i = 0; i < e->graph->ninputs && !size; i++) {
    Val *v = e->graph->inputs[i];
    for (int d = 0; e->inputs[i].kind == IN_USER && v->type == TY_TENSOR && d < v->ndim && !size; d++)
      if (v->size[d] == symbol)
        TRY(add_number(e, e->graph->first, "aten.sym_size.int", arg_val(v), arg_int(d), TY_INT, symbol, &size));
  }
  if (!size) return OK;
  Node *before = size->node->next;
  TRY_NEW(rest, sym_apply(&e->syms, SYM_MOD, (const Sym *const[]){symbol, sym_int(&e->syms, m)}, 2));
  TRY_NEW(even, sym_apply(&e->syms, SYM_EQ, (const Sym *const[]){rest, sym_int(&e->syms, 0)}, 2));
  TRY_NEW(message,
          arena_printf(&e->arena, "the ranks share a dimension of size %s evenly: it must be a multiple of %lld",
                       s->name, (long long)m));
  TRY(add_number(e, before, "_operator.mod", arg_val(size), arg_int(m), TY_INT, rest, &mod));
  TRY(add_number(e, before, "_operator.eq", arg_val(mod), arg_int(0), TY_BOOL, even, &eq));
  return add_number(e, before, "aten._assert_scalar.default", arg_val(eq), arg_str(message), TY_NONE, NULL, NULL);
}

/* For whoever writes about the files. */
static Status tell_multiples(const Dynamic *d) {
  Partition *c = d->w->cut;
  for (int i = 0; i < d->n; i++) {
    StrSlot *slot;
    int64_t *m;
    if (d->symbol[i].multiple == 1) continue;
    TRY(strmap_slot(&c->multiple, &c->arena, d->symbol[i].name, &slot));
    TRY_NEW(m, arena_new(&c->arena, int64_t));
    *m = d->symbol[i].multiple;
    slot->value = m;
  }
  return OK;
}

Status worker_dynamic(Worker *w, const SymBindings *hints, CommLog *log, Exported **out) {
  Dynamic d = {.w = w, .e = w->cut->program};
  WalkWatch watch = {.arg = &d, .input = saw_input, .before = saw_before, .after = saw_node, .output = saw_output};
  Exported *first;
  TRY(list_symbols(&d, hints));
  TRY(hint_dynamic(worker_program(w, hints, NULL, &watch, &first)));
  exported_free(first);
  find_local(&d);
  Status s = cut_variants(&d, log, out);
  if (s && status_code(s) == ERR_DYNAMIC) { /* once more, with sizes that all ranks can share */
    status_free(s);
    for (int i = 0; i < d.n; i++) d.symbol[i].multiple = w->marks.mesh->size;
    comm_log_free(log);
    s = cut_variants(&d, log, out);
    if (s && status_code(s) == ERR_DYNAMIC)
      s = status_hint(s, "rules decide by the sizes here: fix them with --size NAME=VALUE");
  }
  TRY(s);
  for (int i = 0; i < d.n && !s; i++) s = check_multiple(&d.symbol[i], *out);
  pthread_mutex_lock(&w->cut->lock);
  if (!s) s = tell_multiples(&d);
  pthread_mutex_unlock(&w->cut->lock);
  if (s) exported_free(*out);
  return s;
}
