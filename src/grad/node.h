/* node.h -- one call that a gradient goes back through; inside grad/. */
#ifndef TESS_GRAD_NODE_H
#define TESS_GRAD_NODE_H

#include "grad/tape.h"

typedef struct TapeNode {
  GradNode ref;
  uint64_t number;    /* calls that come later have higher numbers */
  const Op *op;       /* NULL: a leaf */
  const void *origin; /* tape.h */
  Value *arg, *out;   /* as the call had them; tensors that are not read have sizes only */
  int nvalues;        /* of out */
  int nin, nout;      /* tensors, flat */
  GradNode **source;  /* by input: the call that made it; NULL: no gradient is wanted there */
  int *source_out;    /* which of its results */
  uint64_t *version;  /* by tensor, inputs then outputs: its storage's when it was kept */
  bool *kept;         /* by tensor likewise: its elements are */
  bool freed;         /* what it kept is gone: a backward has been here */
  uint64_t visited;   /* the last backward that came here */
  struct TapeNode *next_dying;
  Scope scope;
  Arena arena;
} TapeNode;

static inline TapeNode *tape_node(GradNode *n) { return (TapeNode *)n; }

static inline bool can_have_gradient(const Tensor *t) { return dtype_kind(t->dtype) >= KIND_FLOAT; }

/* Drops what a node kept. */
void tape_node_forget(TapeNode *n);

#endif
