/* order.h -- which orders of the nodes mean the same program, and putting them in one.
 *
 * A node must stand behind those whose values it uses.  Where values are written to it
 * must also stay behind (or before) whoever shares memory with it: a read stays on its side
 * of every write, writes stay in order.  Random ops draw in the order they were written.
 *
 * I1  A position is a node's number in the order that order_new() found, and its mark; it
 *     stays the node's name while nodes are moved.  Nodes that are added get the numbers
 *     behind.
 * I2  Everything is linear in nodes, arguments and results.
 */
#ifndef TESS_PASSES_ORDER_H
#define TESS_PASSES_ORDER_H

#include "graph/graph.h"

/* One walk over the graph fills it; what looks at neighbours then goes by numbers alone. */
typedef struct {
  Graph *graph;
  int n;                 /* nodes; as a position: the program's outputs */
  Node **node;           /* by position */
  int *arg_start;        /* by position, the outputs included */
  int *arg;              /* value ids that a node uses, in order */
  int *out_start;        /* by position */
  int *out;              /* value ids that it defines */
  int *producer;         /* by value id: position; -1: an input */
  int *use_start;        /* by value id */
  int *use;              /* positions of users, ascending, each once */
  int *behind_start;     /* by position */
  int *behind;           /* positions it must stay behind for the sake of memory or random numbers */
  int *effect, neffects; /* positions of ops with an effect (collectives are among them), and of unknown ones */
  int *memory;           /* by value id: values with the same number may share memory; NULL if nothing is written */
} Order;

Status order_new(Arena *arena, Graph *g, Order *out);

/* Nothing but data decides. */
static inline bool order_is_free(const Order *o) { return !o->behind_start[o->n]; }

static inline int order_nusers(const Order *o, const Val *v) {
  return o->use_start[v->id + 1] - o->use_start[v->id];
}
static inline int order_user(const Order *o, const Val *v, int i) { return o->use[o->use_start[v->id] + i]; }
static inline bool order_share(const Order *o, const Val *a, const Val *b) {
  return a == b || (o->memory && o->memory[a->id] == o->memory[b->id]);
}

/* Does the node at that position write to memory that v may be in?  (A wait does: what was
 * started in place is finished then.) */
bool order_writes_to(const Order *o, int at, const Val *v);

/* What a pass did to the nodes, for order_sort().  Zeroed: it only moved them. */
typedef struct {
  int nnew;                     /* nodes added: their marks are o->n .. o->n + nnew - 1 */
  int *instead_start, *instead; /* by position: marks of nodes that do its work now, if others do; NULL: none */
  /* By new node (mark - o->n): the positions whose places in the order it takes over. */
  int *takes_start, *takes;
} OrderChange;

/* Makes the present order a legal one: nodes that stand too early are put behind the last of
 * what they wait for, all else stays. */
Status order_sort(Arena *arena, const Order *o, const OrderChange *change);

#endif
