/* generalize.c -- see generalize.h. */
#include "passes/generalize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/textbuf.h"
#include "graph/walk.h"

/* ---- numbers ---------------------------------------------------------------------------------- */

/* The same place of every program. */
typedef struct {
  int64_t v[MAX_VARIANTS];
} Numbers;

typedef struct Known {
  struct Known *next;
  Numbers at;
  const Sym *sym; /* NULL: not explained */
} Known;

enum { BUCKETS = 1024 };

typedef struct {
  const Generalize *g;
  Exported *e;
  SymTable *syms;
  Arena arena;
  Numbers *size; /* of g->size */
  bool *usable;  /* could be evaluated everywhere, and varies */
  Known *bucket[BUCKETS];
  Node *first;    /* computed sizes go before it */
  Val **computed; /* by Sym.id */
  int ncomputed;
} Work;

static bool all_equal(const Work *w, const Numbers *n) {
  for (int i = 1; i < w->g->n; i++)
    if (n->v[i] != n->v[0]) return false;
  return true;
}

static uint64_t hash_numbers(const Work *w, const Numbers *n) {
  uint64_t h = 1;
  for (int i = 0; i < w->g->n; i++) h = hash_mix(h, (uint64_t)n->v[i]);
  return h;
}

/* x / q everywhere, if that goes evenly. */
static bool divided(const Work *w, const Numbers *x, int64_t q, Numbers *out) {
  for (int i = 0; i < w->g->n; i++) {
    if (x->v[i] % q) return false;
    out->v[i] = x->v[i] / q;
  }
  return true;
}

/* n = factor * x + offset everywhere. */
static bool solve(const Work *w, const Numbers *n, const Numbers *x, int64_t *factor, int64_t *offset) {
  int j = 1;
  while (j < w->g->n && x->v[j] == x->v[0]) j++;
  if (j == w->g->n) return false;
  int64_t dx = x->v[j] - x->v[0], dn;
  if (__builtin_sub_overflow(n->v[j], n->v[0], &dn) || dn % dx) return false;
  *factor = dn / dx;
  if (*factor == 0) return false;
  *offset = n->v[0] - *factor * x->v[0];
  for (int i = 0; i < w->g->n; i++) {
    int64_t product, sum;
    if (__builtin_mul_overflow(*factor, x->v[i], &product) || __builtin_add_overflow(product, *offset, &sum) ||
        sum != n->v[i])
      return false;
  }
  return true;
}

/* The lower the better: sizes themselves, then multiples of them, then sums. */
static int plainness(int64_t factor, int64_t offset, int64_t divisor) {
  if (factor == 1 && offset == 0) return divisor == 1 ? 0 : 1;
  return offset == 0 ? 2 : factor == 1 ? 3 : 4;
}

static Status build(const Work *w, const Sym *size, int64_t divisor, int64_t factor, int64_t offset,
                    const Sym **out) {
  const Sym *s = size;
  if (divisor != 1) s = sym_apply(w->syms, SYM_FLOORDIV, (const Sym *const[]){s, sym_int(w->syms, divisor)}, 2);
  if (factor != 1) s = sym_mul(w->syms, s, sym_int(w->syms, factor));
  if (offset) s = sym_add(w->syms, s, sym_int(w->syms, offset));
  TRY_NEW(*out, s);
  return OK;
}

static Status look_for(const Work *w, const Numbers *n, const Sym **out) {
  int best = INT32_MAX;
  *out = NULL;
  for (int k = 0; k < w->g->nsizes; k++) {
    for (int d = 0; w->usable[k] && d < w->g->ndivisors; d++) {
      Numbers x;
      int64_t factor, offset;
      if (!divided(w, &w->size[k], w->g->divisor[d], &x) || !solve(w, n, &x, &factor, &offset)) continue;
      int p = plainness(factor, offset, w->g->divisor[d]);
      if (p >= best) continue;
      best = p;
      TRY(build(w, w->g->size[k], w->g->divisor[d], factor, offset, out));
      if (p == 0) return OK;
    }
  }
  return OK;
}

/* NULL in *out: not explained. */
static Status explain(Work *w, const Numbers *n, const Sym **out) {
  if (all_equal(w, n)) {
    TRY_NEW(*out, sym_int(w->syms, n->v[0]));
    return OK;
  }
  Known **bucket = &w->bucket[hash_numbers(w, n) % BUCKETS], *k = *bucket;
  while (k && memcmp(&k->at, n, sizeof *n)) k = k->next;
  if (!k) {
    TRY_NEW(k, arena_new(&w->arena, Known));
    *k = (Known){.next = *bucket, .at = *n};
    TRY(look_for(w, n, &k->sym));
    *bucket = k;
  }
  *out = k->sym;
  return OK;
}

static Status unexplained(const Work *w, const Numbers *n, const char *what) {
  TextBuf b = {0};
  for (int i = 0; i < w->g->n; i++) {
    text_printf(&b, "%s%lld where ", i ? ", " : "", (long long)n->v[i]);
    for (int s = 0; s < w->g->at[i].n; s++)
      text_printf(&b, "%s%s=%lld", s ? " " : "", w->g->at[i].v[s].name, (long long)w->g->at[i].v[s].value);
  }
  Status s = fail(ERR_FAIL, "%s is %s: no expression in the sizes of the inputs is known for it", what,
                  b.text ? b.text : "");
  text_free(&b);
  return status_hint(s, "give that symbol a fixed size: --size %s=%lld",
                     w->g->at[0].n ? w->g->at[0].v[0].name : "s0",
                     w->g->at[0].n ? (long long)w->g->at[0].v[0].value : 2LL);
}

/* ---- sizes that are computed ---------------------------------------------------------------------- */

static Status add_int(Work *w, const char *target, const Arg *args, int nargs, const Sym *sym, Val **out) {
  Node *n;
  const char *dot = strrchr(target, '.');
  TRY(graph_emit_like(w->e->graph, w->first, NULL, target, args, nargs, &n));
  TRY(node_add_out(n,
                   nargs == 2 && args[0].kind == ARG_VAL && args[0].val->type == TY_TENSOR ? "sym_size_int"
                   : dot                                                                   ? dot + 1
                                                                                           : target,
                   TY_INT, out));
  (*out)->sym = sym;
  return OK;
}

static Val **slot_of(Work *w, const Sym *s) { return s->id < w->ncomputed ? &w->computed[s->id] : NULL; }

static Status grow_slots(Work *w) {
  int n = w->syms->count + 256;
  Val **more;
  TRY_NEW(more, arena_new_n(&w->arena, Val *, n));
  if (w->ncomputed) memcpy(more, w->computed, (size_t)w->ncomputed * sizeof *more);
  w->computed = more;
  w->ncomputed = n;
  return OK;
}

/* A symbol is the size of an input, or an input itself. */
static Status find_symbol(Work *w, const Sym *s, Val **out) {
  const Graph *g = w->e->graph;
  *out = NULL;
  for (int i = 0; i < g->ninputs && !*out; i++) {
    Val *v = g->inputs[i];
    if (w->e->inputs[i].kind != IN_USER) continue;
    if (v->type == TY_INT && v->sym == s) *out = v;
    for (int d = 0; v->type == TY_TENSOR && d < v->ndim && !*out; d++)
      if (v->size[d] == s) TRY(add_int(w, "aten.sym_size.int", (Arg[]){arg_val(v), arg_int(d)}, 2, s, out));
  }
  return *out ? OK
              : status_hint(fail(ERR_FAIL, "the symbol %s is the size of no input by itself", s->name),
                            "give it a fixed size: --size %s=%lld", s->name, 2LL);
}

static const struct {
  SymKind kind;
  const char *target;
} operators[] = {
    {SYM_ADD, "_operator.add"},           {SYM_MUL, "_operator.mul"}, {SYM_FLOORDIV, "_operator.floordiv"},
    {SYM_CLEANDIV, "_operator.floordiv"}, {SYM_MOD, "_operator.mod"}, {SYM_PYMOD, "_operator.mod"},
    {SYM_MAX, "torch.sym_max"},           {SYM_MIN, "torch.sym_min"}, {SYM_POW, "_operator.pow"},
    {SYM_POW2, "_operator.pow"},
};

static Status compute(Work *w, const Sym *s, Arg *out);

/* A function of two; sums and products of more are taken one after the other. */
static Status compute_function(Work *w, const Sym *s, Val **out) {
  const char *target = NULL;
  for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
    if (operators[i].kind == s->kind) target = operators[i].target;
  if (!target || s->nargs < 2) {
    TextBuf b = {0};
    sym_print(&b, s);
    Status status = fail(ERR_FAIL, "the size %s cannot be computed in a program", b.text ? b.text : "");
    text_free(&b);
    return status;
  }
  Arg args[2];
  TRY(compute(w, s->args[0], &args[0]));
  const Sym *so_far = s->args[0];
  for (int i = 1; i < s->nargs; i++) {
    TRY(compute(w, s->args[i], &args[1]));
    TRY_NEW(so_far, sym_apply(w->syms, s->kind, (const Sym *const[]){so_far, s->args[i]}, 2));
    if (so_far->id >= w->ncomputed) TRY(grow_slots(w));
    Val **have = slot_of(w, so_far);
    if (!*have) TRY(add_int(w, target, args, 2, so_far, have));
    args[0] = arg_val(*slot_of(w, so_far));
  }
  *out = args[0].val;
  return OK;
}

static Status compute(Work *w, const Sym *s, Arg *out) {
  if (sym_is_int(s)) return *out = arg_int(s->value), OK;
  if (s->id >= w->ncomputed) TRY(grow_slots(w));
  if (!*slot_of(w, s)) {
    Val *v;
    if (s->kind == SYM_SYMBOL) TRY(find_symbol(w, s, &v));
    else TRY(compute_function(w, s, &v));
    *slot_of(w, s) = v;
  }
  *out = arg_val(*slot_of(w, s));
  return OK;
}

/* ---- comparing programs ----------------------------------------------------------------------------- */

static Status differs(const char *what) {
  return fail(ERR_DYNAMIC, "programs of different sizes differ in %s", what);
}

static Status generalize_arg(Work *w, Arg *a, const Arg *const *other);

static Status generalize_list(Work *w, Arg *a, const Arg *const *other) {
  Arg *copy;
  TRY_NEW(copy, arena_new_n(&w->e->arena, Arg, a->n)); /* lists may be shared */
  for (int k = 0; k < a->n; k++) {
    const Arg *item[MAX_VARIANTS];
    copy[k] = a->list[k];
    for (int i = 1; i < w->g->n; i++) item[i] = &other[i]->list[k];
    TRY(generalize_arg(w, &copy[k], item));
  }
  a->list = copy;
  return OK;
}

static Status generalize_int(Work *w, Arg *a, const Arg *const *other) {
  Numbers n = {{a->i}};
  const Sym *s;
  for (int i = 1; i < w->g->n; i++) n.v[i] = other[i]->i;
  TRY(explain(w, &n, &s));
  return s ? compute(w, s, a) : unexplained(w, &n, "an argument");
}

/* A count that is told as a float. */
static Status generalize_float(Work *w, Arg *a, const Arg *const *other) {
  Numbers n = {{(int64_t)a->f}};
  bool same = true, whole = (double)n.v[0] == a->f;
  const Sym *s;
  for (int i = 1; i < w->g->n; i++) {
    n.v[i] = (int64_t)other[i]->f;
    same &= !memcmp(&other[i]->f, &a->f, sizeof a->f);
    whole &= (double)n.v[i] == other[i]->f;
  }
  if (same) return OK;
  if (!whole) return unexplained(w, &n, "an argument that is no whole number");
  TRY(explain(w, &n, &s));
  return s ? compute(w, s, a) : unexplained(w, &n, "an argument");
}

static Status generalize_arg(Work *w, Arg *a, const Arg *const *other) {
  for (int i = 1; i < w->g->n; i++) {
    if (other[i]->kind != a->kind || (a->kind == ARG_LIST && other[i]->n != a->n))
      return differs("the kind of an argument");
    if (a->kind == ARG_VAL && strcmp(other[i]->val->name, a->val->name)) return differs("what an argument is");
    if (a->kind == ARG_STR && strcmp(other[i]->str, a->str)) return differs("a word");
    if (a->kind == ARG_BOOL && other[i]->b != a->b) return differs("a truth value");
    if (a->kind == ARG_DTYPE && other[i]->dtype != a->dtype) return differs("a dtype");
  }
  if (a->kind == ARG_LIST) return generalize_list(w, a, other);
  if (a->kind == ARG_INT) return generalize_int(w, a, other);
  if (a->kind == ARG_FLOAT) return generalize_float(w, a, other);
  return OK;
}

/* Row-major in some order of the dimensions: products of sizes.  Others are not told. */
static Status stride_syms(const Work *w, Val *v) {
  int order[MAX_DIMS], n = v->ndim;
  for (int d = 0; d < n; d++) order[d] = d;
  for (int i = 1; i < n; i++)
    for (int j = i; j > 0 && v->stride[order[j]]->value > v->stride[order[j - 1]]->value; j--) {
      int t = order[j];
      order[j] = order[j - 1];
      order[j - 1] = t;
    }
  const Sym *step, **stride;
  TRY_NEW(step, sym_int(w->syms, 1));
  TRY_NEW(stride, arena_new_n(&w->e->arena, const Sym *, n));
  for (int i = n - 1; i >= 0; i--) {
    stride[order[i]] = step;
    TRY_NEW(step, sym_mul(w->syms, step, v->size[order[i]]));
  }
  v->stride = stride;
  return OK;
}

static Status generalize_val(Work *w, Val *v, Val *const *other) {
  bool varies = false;
  const Sym **size;
  for (int i = 1; i < w->g->n; i++)
    if (other[i]->type != v->type || other[i]->ndim != v->ndim || other[i]->dtype != v->dtype)
      return differs("what a value is");
  if (v->type != TY_TENSOR) return OK;
  TRY_NEW(size, arena_new_n(&w->e->arena, const Sym *, v->ndim));
  for (int d = 0; d < v->ndim; d++) {
    Numbers n = {{v->size[d]->value}};
    char what[128];
    for (int i = 1; i < w->g->n; i++) n.v[i] = other[i]->size[d]->value;
    TRY(explain(w, &n, &size[d]));
    snprintf(what, sizeof what, "dimension %d of '%.80s'", d, v->name);
    if (!size[d]) return unexplained(w, &n, what);
    varies |= !all_equal(w, &n);
  }
  if (!varies) return OK;
  v->size = size;
  v->tensor = NULL; /* its sizes were numbers */
  return v->stride ? stride_syms(w, v) : OK;
}

static Status generalize_node(Work *w, Node *n, Node *const *other) {
  for (int i = 1; i < w->g->n; i++)
    if (!other[i] || strcmp(other[i]->target, n->target) || other[i]->nargs != n->nargs ||
        other[i]->nouts != n->nouts)
      return differs("their nodes");
  for (int k = 0; k < n->nargs; k++) {
    const Arg *arg[MAX_VARIANTS];
    for (int i = 1; i < w->g->n; i++) arg[i] = &other[i]->args[k];
    TRY(generalize_arg(w, &n->args[k], arg));
  }
  for (int k = 0; k < n->nouts; k++) {
    Val *out[MAX_VARIANTS];
    for (int i = 1; i < w->g->n; i++) out[i] = other[i]->outs[k];
    TRY(generalize_val(w, n->outs[k], out));
  }
  return OK;
}

/* State and constants are the same in all; user inputs have their symbols. */
static Status check_inputs(const Work *w) {
  const Graph *g = w->e->graph;
  for (int i = 1; i < w->g->n; i++) {
    const Graph *o = w->g->program[i]->graph;
    if (o->ninputs != g->ninputs || o->noutputs != g->noutputs) return differs("their inputs");
    for (int k = 0; k < g->ninputs; k++) {
      const Val *a = g->inputs[k], *b = o->inputs[k];
      if (w->e->inputs[k].kind == IN_USER || a->type != TY_TENSOR) continue;
      if (a->ndim != b->ndim) return differs("a constant");
      for (int d = 0; d < a->ndim; d++)
        if (a->size[d]->value != b->size[d]->value) return differs("a constant");
    }
  }
  return OK;
}

static Status generalize_nodes(Work *w) {
  Node *other[MAX_VARIANTS] = {0};
  for (int i = 1; i < w->g->n; i++) other[i] = w->g->program[i]->graph->first;
  for (Node *n = w->first; n; n = n->next) {
    Status s = generalize_node(w, n, other);
    if (s) return status_at_node(s, n);
    for (int i = 1; i < w->g->n; i++) other[i] = other[i]->next;
  }
  for (int i = 1; i < w->g->n; i++)
    if (other[i]) return differs("their nodes");
  for (int k = 0; k < w->e->graph->noutputs; k++) {
    const Arg *out[MAX_VARIANTS];
    for (int i = 1; i < w->g->n; i++) out[i] = &w->g->program[i]->graph->outputs[k];
    TRY(generalize_arg(w, &w->e->graph->outputs[k], out));
  }
  return OK;
}

static Status evaluate_sizes(Work *w) {
  const Generalize *g = w->g;
  TRY_NEW(w->size, arena_new_n(&w->arena, Numbers, g->nsizes + 1));
  TRY_NEW(w->usable, arena_new_n(&w->arena, bool, g->nsizes + 1));
  for (int k = 0; k < g->nsizes; k++) {
    w->usable[k] = true;
    for (int i = 0; i < g->n && w->usable[k]; i++) {
      Status s = sym_eval(g->size[k], &g->at[i], &w->size[k].v[i]);
      w->usable[k] = !s;
      status_free(s);
    }
    w->usable[k] = w->usable[k] && !all_equal(w, &w->size[k]);
  }
  return OK;
}

Status generalize(const Generalize *g) {
  Exported *e = g->program[0];
  Work w = {.g = g, .e = e, .syms = &e->syms, .first = e->graph->first};
  Status s = evaluate_sizes(&w);
  if (!s) s = check_inputs(&w);
  if (!s) s = generalize_nodes(&w);
  arena_free(&w.arena);
  return s;
}

Status sym_rebuild(SymTable *t, const Sym *s, const StrMap *map, const Sym **out) {
  const Sym **args;
  if (s->kind == SYM_SYMBOL) {
    const Sym *other = strmap_get(map, s->name);
    TRY_NEW(*out, other ? other : sym_symbol(t, s->name));
    return OK;
  }
  if (s->kind == SYM_INT || s->kind == SYM_FLOAT) {
    TRY_NEW(*out, s->kind == SYM_INT ? sym_int(t, s->value) : sym_float(t, s->number));
    return OK;
  }
  TRY_NEW(args, arena_new_n(t->arena, const Sym *, s->nargs));
  for (int i = 0; i < s->nargs; i++) TRY(sym_rebuild(t, s->args[i], map, &args[i]));
  TRY_NEW(*out, sym_apply(t, s->kind, args, s->nargs));
  return OK;
}
