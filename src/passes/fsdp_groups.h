/* fsdp_groups.h -- groups of the pass fsdp, and how one is written as nodes: fsdp.c finds groups and says where
 * their collectives stand, fsdp_groups.c writes them.
 */
#ifndef TESS_PASSES_FSDP_GROUPS_H
#define TESS_PASSES_FSDP_GROUPS_H

#include "graph/graph.h"

/* Arguments of tess.redistribute. */
enum { ARG_MESH = 1, ARG_SRC, ARG_DST, ARG_SHAPE };

/* One redistribution that becomes part of a group. */
typedef struct Member {
  struct Member *next;
  Node *node;
  struct Group *group;
  Val *in;                 /* the shard, or the partial gradient */
  Val *forward, *backward; /* what stands for its result */
} Member;

/* Redistributions that are made at once: of one module, of one kind. */
typedef struct Group {
  struct Group *next;
  const char *key;    /* module|mesh|dtype|axes */
  const char *module; /* or the parameter that is a group by itself; "": the root */
  bool wrapped;       /* it is a module's */
  Member *first, **last;
  int n;
  int first_use, first_again; /* positions, in the forward and behind it; INT_MAX: none */
  int again_for_all;          /* the same behind the forward, but by nodes that all ranks have, see Fsdp.epoch */
  int last_made;              /* scatters: position behind which all are there */
} Group;

/* gather_group or scatter_group (`target`) before one node; the wait and views of what it made before another.
 * results[k]: of member k. */
Status group_write(Graph *graph, const Group *g, const char *target, Node *before, Node *needed, Stage stage,
                   Val **results);

#endif
