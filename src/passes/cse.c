/* cse.c -- merges nodes that compute the same thing.
 *
 *   before:  %a = cos(%x)  %b = cos(%x)  return %a, %b
 *   after:   %a = cos(%x)  return %a, %a
 *
 * One walk with a hash table of the nodes seen.  Left alone: random ops, ops that write
 * or have an effect, higher-order ops, and anything in a program that is not functional
 * (a write between two reads makes equal text mean different values).
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#include "passes/pass.h"

static uint64_t hash_arg(uint64_t h, const Arg *a) {
  h = hash_mix(h, (uint64_t)a->kind);
  switch (a->kind) {
    case ARG_VAL: return hash_mix(h, (uint64_t)(uintptr_t)a->val);
    case ARG_BOOL: return hash_mix(h, a->b);
    case ARG_INT: return hash_mix(h, (uint64_t)a->i);
    case ARG_DTYPE: return hash_mix(h, (uint64_t)a->dtype);
    case ARG_FLOAT: {
      uint64_t bits;
      memcpy(&bits, &a->f, sizeof bits);
      return hash_mix(h, bits);
    }
    case ARG_LIST:
      for (int i = 0; i < a->n; i++) h = hash_arg(h, &a->list[i]);
      return h;
    default: return h;
  }
}

static bool same_node(const Node *a, const Node *b) {
  if (a->op != b->op || a->nouts != b->nouts) return false;
  for (int i = 0; i < a->nargs; i++) {
    if (!arg_equal(&a->args[i], &b->args[i])) return false;
  }
  return true;
}

static bool is_candidate(const Node *n) {
  if (!n->op || n->nouts == 0 || n->op->schema.mutates || (n->op->def->flags & (OP_RANDOM | OP_EFFECT)))
    return false;
  for (int i = 0; i < n->nargs; i++) {
    if (n->args[i].kind == ARG_GRAPH) return false;
  }
  return true;
}

Status pass_cse(Exported *e, const PassArgs *args) {
  Graph *g = e->graph;
  int merged = 0;
  if (!graph_is_functional(g)) return OK;
  size_t cap = 64;
  while (cap < (size_t)g->nnodes * 2) cap *= 2;
  Node **table;
  TRY_NEW(table, calloc(cap, sizeof *table));
  for (Node *n = g->first, *next; n; n = next) {
    next = n->next;
    node_forward(n);
    if (!is_candidate(n)) continue;
    uint64_t h = hash_mix(0, (uint64_t)n->op->id);
    for (int i = 0; i < n->nargs; i++) h = hash_arg(h, &n->args[i]);
    size_t slot = (size_t)(h ^ (h >> 32)) & (cap - 1);
    while (table[slot] && !same_node(table[slot], n)) slot = (slot + 1) & (cap - 1);
    if (!table[slot]) {
      table[slot] = n;
      continue;
    }
    for (int i = 0; i < n->nouts; i++) n->outs[i]->forward = table[slot]->outs[i];
    node_remove(n);
    merged++;
  }
  free(table);
  graph_forward(g);
  if (args->stats) text_printf(args->stats, "cse: %d nodes merged\n", merged);
  return OK;
}
