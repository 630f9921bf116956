/* modules.h -- the tree of a program's modules: what each holds and what it costs.
 *
 * Paths come from the names of the state ("h.0.attn.c_attn.weight" belongs to module
 * h.0.attn.c_attn) and from the nodes' nn_module_stack, which also tells the class.
 *
 * I1  A module's numbers include everything below it.
 * I2  Tied weights count once, where they are met first.
 */
#ifndef TESS_CLI_MODULES_H
#define TESS_CLI_MODULES_H

#include "graph/graph.h"

typedef struct Module Module;
struct Module {
  const char *name;   /* last part of its path; "" for the root */
  const char *type;   /* class, without its Python module; "" if not known */
  int64_t parameters; /* elements */
  int64_t bytes;      /* of parameters, buffers and constants */
  int nodes;
  double flops;
  Module *children, *last_child, *next;
};

Status modules_build(Arena *arena, const Exported *e, Module **out);
/* Adds to the module of n, as found by its metadata, and all above it. */
Status modules_add_flops(Arena *arena, Module *root, const Node *n, double flops);

/* Same name pattern, class, numbers and children: one of a row of equal layers. */
bool modules_alike(const Module *a, const Module *b);

#endif
