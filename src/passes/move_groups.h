/* move_groups.h -- redistributions that are made at once, as one collective: what fsdp.c, scatter_gradients.c and
 * gather_updates.c have in common.  They find groups and say where their collectives stand; here is which
 * redistributions can be part of one, and how a group is written as nodes.
 */
#ifndef TESS_PASSES_MOVE_GROUPS_H
#define TESS_PASSES_MOVE_GROUPS_H

#include "dist/spec.h"
#include "graph/graph.h"

/* Arguments of tess.redistribute. */
enum { ARG_MESH = 1, ARG_SRC, ARG_DST, ARG_SHAPE, ARG_LOCAL, ARG_WHY };
/* The last of these, where the gradient of a parameter is brought to where that lies. */
#define WHY_GRADIENT "gradient of '%s'"

/* One redistribution that becomes part of a group. */
typedef struct Member {
  struct Member *next;
  Node *node;
  struct Group *group;
  Val *in;                 /* the shard, or the partial gradient */
  Val *forward, *backward; /* what stands for its result */
} Member;

/* Redistributions that are made at once, of one kind. */
typedef struct Group {
  struct Group *next; /* in the order in which they were begun */
  const char *key;    /* name|mesh|dtype|axes */
  const char *name;   /* of a module, or of the parameter that is a group by itself; "": the root */
  bool wrapped;       /* it is a module's */
  Member *first, **last;
  int n;
  int last_made; /* position behind which all that it moves are there; -1: from the beginning */
  double bytes;  /* of all: see move_bytes() */
  /* Of gathers (fsdp.c): */
  int first_use, first_again; /* positions, in the forward and behind it; INT_MAX: none */
  int again_for_all;          /* the same behind the forward, but by nodes that all ranks have, see Fsdp.epoch */
} Group;

typedef struct {
  Arena *arena;
  /* A group that holds so many bytes takes no more, and another one of its kind is begun; 0: each member is a
   * group. The first group of the list may have another limit. */
  double limit, first_limit;
  Group *first, **last;
  int n;
} GroupList;

/* The nodes of a graph by position, which is their `mark` as well. */
typedef struct {
  Node **node;
  int n, boundary; /* the first position of the backward; n: there is none */
} NodeList;
Status node_list(Graph *g, Arena *arena, NodeList *out);

/* Axes along which a node redistributes from one kind of placement to another, staying as it is along the others;
 * 0: it is no such node.  wanted: only if these are the axes; 0: any. */
unsigned move_axes(const Node *n, PlaceKind from, PlaceKind to, unsigned wanted);
bool is_redistribute(const Node *n);
/* Of the tensor that a redistribution moves, as large as it is without its axes: what one rank has of it then.
 * Other axes that cut it are taken to do so evenly, so that all ranks find the same. */
double move_bytes(const Node *n);
/* The parameter that a value is; NULL: it is none. */
const char *parameter_of(const Exported *e, const Val *v);
/* The parameter to whose gradient a redistribution belongs; NULL: to none, or memory is short.  What a node is for
 * is the same on all ranks, whatever they have made of its neighbours. */
const char *gradient_of(const Node *n, Arena *arena);
/* Options of passes have commas between them, so their patterns have | instead. */
char *patterns_of_option(Arena *arena, const char *text);

/* The group of that name that redistributions like n can join: the last that was begun, if it takes more. */
Status group_find(GroupList *list, const Node *n, const char *name, unsigned axes, Group **out);
/* Where fully sharded parameters and their gradients are grouped alike: by modules; what is in none is the root's,
 * but for parameters of so many bytes, each of which is a group. */
Status group_find_module(GroupList *list, const Node *n, const char *wrap, double large, const char *parameter,
                         unsigned axes, Group **out);
Status group_add(GroupList *list, Group *g, Node *n, Member **out);
/* The redistribution that was added last. */
Node *group_last(const Group *g);

/* The collective (`target`) of a group before one node; the wait and views of what it made before another.
 * results[k]: of member k. */
Status group_write(Graph *graph, const Group *g, const char *target, Node *before, Node *needed, Stage stage,
                   Val **results);
/* The same where each result has memory of its own: a wait of each. */
Status group_write_each(Graph *graph, const Group *g, const char *target, Node *before, Node *needed, Stage stage,
                        Val **results);

#endif
