/* node.h -- one call that a gradient goes back through; inside grad/.
 *
 * A node is one allocation: itself, the values of its call, and what is kept of its tensors.  Of a tensor that the
 * gradient does not read only the geometry is kept.
 *
 * I1  A node refers to the nodes behind it and to storages, never to a family (family.h) nor to a handle: what
 *     refers to nodes is never referred to by them, so that counting references frees all.
 * I2  A node is changed by the thread of its context alone; it may die in any.
 */
#ifndef TESS_GRAD_NODE_H
#define TESS_GRAD_NODE_H

#include "grad/tape.h"

typedef struct Kept Kept;
struct Kept {
  Storage *storage; /* NULL: the gradient does not read it, or it has been dropped */
  const Spec *spec;
  Kept *local; /* of a DTensor */
  void *tag;
  int64_t offset;
  int64_t *geometry; /* sizes, then strides */
  uint64_t version;  /* of the storage when it was kept */
  Dtype dtype;
  int ndim;
  bool read;
};

typedef struct TapeHook TapeHook;
struct TapeHook {
  atomic_int refs;
  atomic_bool removed;
  TapeHookFn *fn;
  void *arg;
  void (*release)(void *arg);
  int out;    /* of which result */
  bool takes; /* the gradient is its own */
  TapeHook *next;
};

/* What users have asked of a result: hooks in the order they came, and its gradient. */
typedef struct {
  TapeHook *hooks;
  Tensor **gradient; /* by result, held; NULL: none */
  bool *retained;    /* by result */
} Asked;

typedef struct TapeNode TapeNode;
struct TapeNode {
  GradNode ref;
  uint64_t number;    /* calls that come later have higher numbers */
  const Op *op;       /* NULL: a leaf */
  const void *origin; /* tape.h */
  Value *arg, *out;   /* as the call had them, but for tensors: their pointers only tell that there was one */
  int nvalues;        /* of out */
  int nin, nout;      /* tensors, flat */
  GradNode **source;  /* by input: the call that made it; NULL: no gradient is wanted there */
  int *source_out;    /* which of its results */
  Kept *kept;         /* by tensor, inputs then outputs */
  Asked *asked;       /* NULL: nothing */
  bool freed;         /* what it kept is gone: a backward has been here */
  uint64_t visited;   /* the last backward that came here */
  TapeNode *next_dying;
};

static inline TapeNode *tape_node(GradNode *n) { return (TapeNode *)n; }
static inline bool is_leaf(const GradNode *n) { return n && !((const TapeNode *)n)->op; }

static inline bool can_have_gradient(const Tensor *t) { return dtype_kind(t->dtype) >= KIND_FLOAT; }

/* A node of a call that was made, without giving it to the results. */
Status node_of_call(Tape *t, const Call *c, TapeNode **out);
Status node_leaf(Tape *t, TapeNode **out);
/* Drops what a node kept. */
void node_forget(TapeNode *n);
/* What was kept of tensor i (inputs, then outputs), as a handle that borrows it. */
void node_tensor(const TapeNode *n, int i, Tensor *out, Tensor *local);
Status node_asked(TapeNode *n, Asked **out);

void hook_unref(TapeHook *h);

#endif
