/* same.c -- are two graphs the same up to the names of values?  See ddp.h. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "ddp.h"

/* Values go by a number that two graphs give alike: val[id]. */
static uint64_t hash_arg(uint64_t h, const Arg *a, const uint64_t *val) {
  uint64_t bits = 0;
  h = hash_mix(h, (uint64_t)a->kind);
  switch (a->kind) {
    case ARG_VAL: return hash_mix(h, val[a->val->id]);
    case ARG_BOOL: return hash_mix(h, a->b);
    case ARG_INT: return hash_mix(h, (uint64_t)a->i);
    case ARG_STR:
    case ARG_DEVICE: return hash_mix(h, hash_text(a->str));
    case ARG_DTYPE: return hash_mix(h, (uint64_t)a->dtype);
    case ARG_MEMORY_FORMAT: return hash_mix(h, (uint64_t)a->memory_format);
    case ARG_FLOAT: memcpy(&bits, &a->f, sizeof bits); return hash_mix(h, bits);
    case ARG_LIST:
      h = hash_mix(h, (uint64_t)a->n);
      for (int i = 0; i < a->n; i++) h = hash_arg(h, &a->list[i], val);
      return h;
    default: return h;
  }
}

/* Arguments that were not given count as nothing. */
static uint64_t hash_node(const Node *n, const uint64_t *val) {
  uint64_t h = hash_text(n->target);
  for (int i = 0; i < n->nargs; i++) {
    if (n->args[i].kind != ARG_UNSET) h = hash_arg(hash_mix(h, (uint64_t)i), &n->args[i], val);
  }
  return hash_mix(h, (uint64_t)n->nouts);
}

static uint64_t hash_type(uint64_t h, const Val *v) {
  h = hash_mix(hash_mix(h, (uint64_t)v->dtype), (uint64_t)v->ndim);
  for (int i = 0; i < v->ndim; i++)
    h = hash_mix(h, sym_is_int(v->size[i]) ? (uint64_t)v->size[i]->value : v->size[i]->hash);
  return h;
}

typedef struct {
  uint64_t *val;  /* by value id */
  uint64_t *node; /* in order */
  int n;
} Hashes;

static Status hash_graph(Arena *arena, const Graph *g, Hashes *out) {
  TRY_NEW(out->val, arena_new_n(arena, uint64_t, g->nvals + 1));
  TRY_NEW(out->node, arena_new_n(arena, uint64_t, g->nnodes + 1));
  for (int i = 0; i < g->ninputs; i++) out->val[g->inputs[i]->id] = hash_mix(7, (uint64_t)i);
  for (const Node *n = g->first; n; n = n->next) {
    uint64_t h = hash_node(n, out->val);
    for (int i = 0; i < n->nouts; i++) {
      out->val[n->outs[i]->id] = hash_mix(h, (uint64_t)i);
      h = hash_type(h, n->outs[i]);
    }
    out->node[out->n++] = h;
  }
  return OK;
}

static int compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static const char *name_of(const Graph *g, int index) {
  const Node *n = g->first;
  while (index-- && n) n = n->next;
  return !n ? "" : n->nouts ? n->outs[0]->name : n->target;
}

static bool same_hashes(Arena *arena, const Graph *a, const Graph *b, bool any_order, TextBuf *why) {
  Hashes x = {0}, y = {0};
  if (hash_graph(arena, a, &x) || hash_graph(arena, b, &y)) abort();
  if (any_order) {
    qsort(x.node, (size_t)x.n, sizeof *x.node, compare);
    qsort(y.node, (size_t)y.n, sizeof *y.node, compare);
  }
  for (int i = 0; i < x.n; i++) {
    if (x.node[i] == y.node[i]) continue;
    if (any_order) text_puts(why, "some nodes differ");
    else text_printf(why, "node %d: %s is not %s", i, name_of(a, i), name_of(b, i));
    return false;
  }
  for (int i = 0; i < a->noutputs; i++) {
    if (hash_arg(0, &a->outputs[i], x.val) == hash_arg(0, &b->outputs[i], y.val)) continue;
    text_printf(why, "output %d differs", i);
    return false;
  }
  return true;
}

bool ddp_same_graph(const Exported *a, const Exported *b, bool any_order, TextBuf *why) {
  const Graph *g = a->graph, *h = b->graph;
  Arena arena = {0};
  bool same = false;
  if (g->nnodes != h->nnodes) text_printf(why, "%d nodes, not %d", g->nnodes, h->nnodes);
  else if (g->ninputs != h->ninputs || g->noutputs != h->noutputs)
    text_puts(why, "inputs or outputs differ in number");
  else same = same_hashes(&arena, g, h, any_order, why);
  arena_free(&arena);
  return same;
}

bool ddp_mixes_dtypes(const Exported *e) {
  for (const Node *n = e->graph->first; n; n = n->next) {
    if (!node_is(n, "_c10d_functional.all_reduce_coalesced.default")) continue;
    for (int i = 1; i < n->nouts; i++) {
      if (n->outs[i]->dtype != n->outs[0]->dtype) return true;
    }
  }
  return false;
}
