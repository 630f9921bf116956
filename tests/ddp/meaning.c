/* meaning.c -- what a program with gradient all-reduces computes, whichever way it is written.
 *
 * Every value gets a number made of the op and the numbers of its arguments.  What buckets are
 * made of is seen through: flatten and cat make a row of pieces, div and all_reduce work piece
 * by piece, split and reshape give the pieces back.  Memory that is written to has a version,
 * which is part of the number of whatever reads it; random ops are numbered.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "ddp.h"

typedef struct {
  uint64_t hash, shape;
  int64_t numel;
  Dtype dtype;
} Piece;

typedef struct {
  uint64_t hash;
  Piece *piece; /* NULL: not a row of pieces */
  int n;
} Meaning;

typedef struct {
  Arena *arena;
  const Order *o;
  Meaning *val;      /* by value id */
  uint64_t *version; /* by memory */
  uint64_t draws;    /* of random numbers so far */
} Reader;

static uint64_t of_val(const Reader *r, const Val *v) {
  uint64_t h = r->val[v->id].hash;
  uint64_t version = r->o->memory ? r->version[r->o->memory[v->id]] : 0;
  return version ? hash_mix(h, version) : h;
}

static uint64_t of_arg(const Reader *r, uint64_t h, const Arg *a) {
  double number = a->kind == ARG_FLOAT ? a->f : a->kind == ARG_INT ? (double)a->i : 0;
  uint64_t bits;
  switch (a->kind) {
    case ARG_VAL: return hash_mix(h, of_val(r, a->val));
    case ARG_INT:
    case ARG_FLOAT: memcpy(&bits, &number, sizeof bits); return hash_mix(h, bits); /* 2 divides like 2.0 */
    case ARG_BOOL: return hash_mix(h, a->b);
    case ARG_STR: return hash_mix(h, hash_text(a->str));
    case ARG_DTYPE: return hash_mix(h, (uint64_t)a->dtype);
    case ARG_LIST:
      for (int i = 0; i < a->n; i++) h = of_arg(r, hash_mix(h, (uint64_t)i), &a->list[i]);
      return h;
    default: return hash_mix(h, (uint64_t)a->kind);
  }
}

static uint64_t shape_hash(const Val *v) {
  uint64_t h = (uint64_t)v->ndim;
  for (int i = 0; i < v->ndim; i++) h = hash_mix(h, (uint64_t)v->size[i]->value);
  return h;
}

static int64_t numel_of(const Val *v) {
  int64_t n = 1;
  for (int i = 0; i < v->ndim; i++) n *= v->size[i]->value;
  return n;
}

static uint64_t of_row(const Piece *p, int n) {
  uint64_t h = 99;
  for (int i = 0; i < n; i++) h = hash_mix(hash_mix(h, p[i].hash), (uint64_t)p[i].numel);
  return h;
}

static Status new_row(const Reader *r, const Val *v, int n, Piece **out) {
  TRY_NEW(*out, arena_new_n(r->arena, Piece, n + 1));
  r->val[v->id] = (Meaning){.piece = *out, .n = n};
  return OK;
}

static void close_row(const Reader *r, const Val *v) {
  Meaning *m = &r->val[v->id];
  m->hash = of_row(m->piece, m->n);
}

static uint64_t divided(const Reader *r, uint64_t by_what, const Arg *divisor, Dtype to) {
  return hash_mix(of_arg(r, hash_mix(11, by_what), divisor), (uint64_t)to);
}

static uint64_t reduced(const Node *n, uint64_t what) {
  uint64_t h = hash_mix(13, what);
  for (const char *p = n->args[1].str; *p; p++) h = hash_mix(h, (uint64_t)(*p | 32));
  return hash_mix(h, hash_text(n->args[2].str));
}

/* ---- ops that are seen through ---------------------------------------------------------------------- */

static bool starts(const Node *n, const char *prefix) { return !strncmp(n->target, prefix, strlen(prefix)); }

static Status read_flatten(const Reader *r, const Node *n) {
  const Val *in = n->args[0].val;
  Piece *p;
  uint64_t h = of_val(r, in);
  TRY(new_row(r, n->outs[0], 1, &p));
  *p = (Piece){h, shape_hash(in), numel_of(in), in->dtype};
  close_row(r, n->outs[0]);
  return OK;
}

static Status read_cat(const Reader *r, const Node *n) {
  const Arg *list = &n->args[0];
  int count = 0, k = 0;
  Piece *p;
  for (int i = 0; i < list->n; i++) count += r->val[list->list[i].val->id].n;
  TRY(new_row(r, n->outs[0], count, &p));
  for (int i = 0; i < list->n; i++) {
    const Meaning *m = &r->val[list->list[i].val->id];
    for (int j = 0; j < m->n; j++, k++) {
      p[k] = m->piece[j];
      if (p[k].dtype != n->outs[0]->dtype) p[k].hash = hash_mix(17, p[k].hash), p[k].dtype = n->outs[0]->dtype;
    }
  }
  close_row(r, n->outs[0]);
  return OK;
}

/* div or all_reduce of a row. */
static Status read_piecewise(const Reader *r, const Node *n, bool is_div) {
  const Meaning *m = &r->val[n->args[0].val->id];
  Piece *p;
  TRY(new_row(r, n->outs[0], m->n, &p));
  for (int i = 0; i < m->n; i++) {
    p[i] = m->piece[i];
    p[i].dtype = n->outs[0]->dtype;
    p[i].hash = is_div ? divided(r, p[i].hash, &n->args[1], p[i].dtype) : reduced(n, p[i].hash);
  }
  close_row(r, n->outs[0]);
  return OK;
}

static Status read_split(const Reader *r, const Node *n) {
  const Meaning *m = &r->val[n->args[0].val->id];
  for (int i = 0; i < n->nouts; i++) {
    Piece *p;
    TRY(new_row(r, n->outs[i], 1, &p));
    *p = m->piece[i];
    if (p->numel != n->args[1].list[i].i) p->hash = hash_mix(23, (uint64_t)i);
    close_row(r, n->outs[i]);
  }
  return OK;
}

static bool row_of(const Reader *r, const Arg *a) { return a->kind == ARG_VAL && r->val[a->val->id].piece; }

static bool list_of_rows(const Reader *r, const Arg *a) {
  for (int i = 0; i < a->n; i++) {
    if (!row_of(r, &a->list[i])) return false;
  }
  return a->kind == ARG_LIST && a->n > 0;
}

static Status read_node(Reader *r, const Node *n);

static void read_plain(Reader *r, const Node *n) {
  uint64_t h = hash_text(n->target);
  if (n->op && (n->op->def->flags & OP_RANDOM)) h = hash_mix(h, ++r->draws);
  for (int i = 0; i < n->nargs; i++) h = of_arg(r, hash_mix(h, (uint64_t)i), &n->args[i]);
  for (int i = 0; i < n->nouts; i++)
    r->val[n->outs[i]->id] = (Meaning){.hash = hash_mix(hash_mix(h, (uint64_t)i), (uint64_t)n->outs[i]->dtype)};
}

static void write_arguments(Reader *r, const Node *n, uint64_t h) {
  if (!n->op || !r->o->memory) return;
  for (int i = 0; i < n->nargs; i++) {
    if (!n->op->schema.params[i].mutated || n->args[i].kind != ARG_VAL) continue;
    uint64_t *version = &r->version[r->o->memory[n->args[i].val->id]];
    *version = hash_mix(hash_mix(*version, h), 5);
  }
}

static Status read_node(Reader *r, const Node *n) {
  const Arg *a = n->args;
  bool all_reduce = node_is(n, "_c10d_functional.all_reduce.default") ||
                    node_is(n, "_c10d_functional.all_reduce_.default");
  bool is_div = node_is(n, "aten.div.Tensor");
  if (node_is(n, "_c10d_functional.wait_tensor.default")) {
    r->val[n->outs[0]->id] = r->val[a[0].val->id];
  } else if (node_is(n, "aten.flatten.using_ints") && a[0].val->ndim >= 0 && a[1].kind == ARG_UNSET) {
    return read_flatten(r, n);
  } else if (node_is(n, "aten.cat.default") && list_of_rows(r, &a[0])) {
    return read_cat(r, n);
  } else if ((is_div || all_reduce) && row_of(r, &a[0])) {
    return read_piecewise(r, n, is_div);
  } else if (is_div && a[0].kind == ARG_VAL) {
    r->val[n->outs[0]->id] = (Meaning){.hash = divided(r, of_val(r, a[0].val), &a[1], n->outs[0]->dtype)};
  } else if (all_reduce) {
    uint64_t h = reduced(n, of_val(r, a[0].val));
    if (n->op->schema.mutates) r->val[a[0].val->id] = (Meaning){.hash = hash_mix(h, 1)}; /* whoever reads it now */
    r->val[n->outs[0]->id] = (Meaning){.hash = h};
  } else if (node_is(n, "aten.split.sizes") && row_of(r, &a[0]) && r->val[a[0].val->id].n == n->nouts) {
    return read_split(r, n);
  } else if (node_is(n, "aten.reshape.default") && row_of(r, &a[0]) && r->val[a[0].val->id].n == 1 &&
             r->val[a[0].val->id].piece[0].shape == shape_hash(n->outs[0])) {
    r->val[n->outs[0]->id] = (Meaning){.hash = r->val[a[0].val->id].piece[0].hash};
  } else if (starts(n, "aten._foreach_div.") && a[0].kind == ARG_LIST) {
    for (int i = 0; i < n->nouts; i++)
      r->val[n->outs[i]->id] = (Meaning){.hash = divided(r, of_val(r, a[0].list[i].val), &a[1], n->outs[i]->dtype)};
  } else if (node_is(n, "_c10d_functional.all_reduce_coalesced.default")) {
    for (int i = 0; i < n->nouts; i++)
      r->val[n->outs[i]->id] = (Meaning){.hash = reduced(n, of_val(r, a[0].list[i].val))};
  } else {
    read_plain(r, n);
    uint64_t h = hash_text(n->target);
    for (int i = 1; i < n->nargs; i++) h = of_arg(r, h, &a[i]);
    write_arguments(r, n, h);
  }
  return OK;
}

static Status read_program(Arena *arena, Exported *e, uint64_t *out) {
  const Graph *g = e->graph;
  Order o;
  TRY(order_new(arena, e->graph, &o));
  Reader r = {.arena = arena, .o = &o};
  TRY_NEW(r.val, arena_new_n(arena, Meaning, g->nvals + 1));
  TRY_NEW(r.version, arena_new_n(arena, uint64_t, g->nvals + 1));
  for (int i = 0; i < g->ninputs; i++) r.val[g->inputs[i]->id].hash = hash_mix(7, (uint64_t)i);
  for (const Node *n = g->first; n; n = n->next) TRY(read_node(&r, n));
  uint64_t h = 3;
  for (int i = 0; i < g->noutputs; i++) h = of_arg(&r, hash_mix(h, (uint64_t)i), &g->outputs[i]);
  for (int i = 0; i < g->ninputs; i++) h = hash_mix(h, of_val(&r, g->inputs[i]));
  *out = h;
  return OK;
}

Status ddp_meaning(Exported *e, uint64_t *out) {
  Arena arena = {0};
  Status s = read_program(&arena, e, out);
  arena_free(&arena);
  return s;
}
