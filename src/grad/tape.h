/* tape.h -- gradients of what was called: the handler of LEVEL_TAPE (ops/op.h).
 *
 * While a tape stands in a context's line of handlers, every call with a tensor whose gradient may be asked for
 * leaves a node: the op, what its gradient reads of arguments and results, and the nodes that made its
 * arguments.  There is no list of calls: results refer to their node (Tensor.grad), nodes to earlier ones, and
 * what nobody refers to any more is freed.
 *
 *     Tape tape;
 *     tape_begin(&tape, &ctx);
 *     tape_require(&tape, scope, w, &w);                   // a leaf: its gradient will be asked for
 *     ... loss = f(w) ...
 *     tape_gradients(&tape, &loss, NULL, 1, &w, 1, how, scope, &dw);
 *     tape_end(&tape);
 *
 * DTensors are tensors of global sizes here, so that their gradients are decided and placed like any call; while
 * calls are recorded (graph/builder.h) the backward is recorded behind them.
 *
 * I1  A kept tensor must not be written to before the backward: its storage's version is compared, and an error
 *     names the op that kept it and the one that wrote.
 * I2  The backward visits nodes in the reverse of their numbers, each once, and frees what a node kept when it
 *     has been visited, unless told to keep it.
 * I3  Gradients that meet are added in a fixed order: later calls first.
 */
#ifndef TESS_GRAD_TAPE_H
#define TESS_GRAD_TAPE_H

#include "dist/dtensor.h"
#include "ops/vjp.h"

/* Told when a backward that adds to leaves has been through all nodes, with its error if there is one: takes the
 * error over and gives the one that counts.  Only then gradients are added, if there is none. */
typedef struct TapeEnd TapeEnd;
struct TapeEnd {
  Status (*fn)(void *arg, Status s);
  void *arg;
  TapeEnd *next;
};

typedef struct Tape {
  Handler handler; /* first: the tape is its handler */
  Ctx *ctx;
  uint64_t calls;     /* numbers of nodes */
  uint64_t backwards; /* numbers of backwards */
  bool paused;        /* nothing is kept (no_grad) */
  int under_way;      /* backwards, one inside another */
  bool adding;        /* a backward is under way that adds to leaves */
  TapeEnd *ends;      /* the caller's, in the order they came */
  Handler *outer;     /* what stood there before */
  /* Where the calls come from (a node of a program), for whoever knows: nodes remember it, and the backward tells
   * of it before it goes back through one.  NULL: nothing to tell. */
  const void *origin;
  Status (*visits)(void *arg, const void *origin);
  void *visits_arg;
  /* The origin in words: for errors "node 'x' in m, file.py:12", as a title "'x' in m"; NULL: none. */
  void (*describe)(const void *origin, bool title, char *buf, size_t cap);
} Tape;

void tape_begin(Tape *t, Ctx *ctx);
void tape_end(Tape *t);

/* A handle on x whose gradient may be asked for: a leaf.  Floats only. */
Status tape_require(Tape *t, Scope *scope, const Tensor *x, Tensor **out);
/* x itself becomes a leaf, or stops being one.  What was computed requires a gradient for good. */
Status tape_set_required(Tape *t, Tensor *x, bool on);
bool tensor_requires_grad(const Tensor *t);
/* A leaf, or no gradient flows through it. */
bool tensor_is_leaf(const Tensor *t);
/* Handles that are made of t from here on (tensor_handle) learn of writes in place through each other. */
Status tape_share(Tensor *t);

/* dtensor_distribute(): of a leaf that requires a gradient a leaf is made, with a gradient of its own; through
 * another tensor the gradient flows, whole on every rank. */
Status tape_distribute(Tape *t, Scope *scope, Tensor *x, Mesh *m, const Placement *place, int src, Tensor **out);

typedef struct {
  bool keep;         /* nodes keep what they read: the backward can be done again */
  bool create_graph; /* the backward's own calls leave nodes, for gradients of gradients */
  bool allow_unused; /* an input that the outputs do not depend on has no gradient (NULL), which is else an error */
} Backward;

/* Gradients of sum_i <outputs[i], cotangents[i]> by the inputs.  cotangents NULL, or an entry: ones, of an output
 * of one element.  gradients[i] is NULL where none comes (allow_unused). */
Status tape_gradients(Tape *t, Tensor *const *outputs, Tensor *const *cotangents, int noutputs,
                      Tensor *const *inputs, int ninputs, const Backward *how, Scope *scope, Tensor **gradients);

/* The same for all leaves that the outputs depend on: adds to their gradients, all or none. */
Status tape_backward(Tape *t, Tensor *const *outputs, Tensor *const *cotangents, int noutputs, const Backward *how);

/* Whoever waits for the ends of backwards; `e` is the caller's and stays until it is taken out. */
void tape_await(Tape *t, TapeEnd *e);
void tape_await_no_more(Tape *t, TapeEnd *e);

/* The gradient of a leaf, or of a tensor that tape_retain() was called for, after tape_backward(); NULL: none.  It
 * belongs to the tensor's node, and is replaced or removed (g NULL) by tape_set_gradient(). */
Tensor *tape_gradient_of(const Tensor *t);
Status tape_set_gradient(Tape *t, Tensor *x, const Tensor *g);
Status tape_retain(Tape *t, Tensor *x);

/* Called when the gradient of a tensor is complete; *out is `gradient` unless it is replaced, by a tensor in
 * `scope`. */
typedef Status TapeHookFn(void *arg, Ctx *ctx, Tensor *gradient, Scope *scope, Tensor **out);
typedef struct TapeHook TapeHook;
/* Hooks are called in the order they came.  release(arg) is called when the hook is gone: not removed, but when
 * neither the tensor's node nor the caller, with tape_unhook(), have it any more. */
Status tape_hook(Tape *t, Tensor *x, TapeHookFn *fn, void *arg, void (*release)(void *), TapeHook **out);
/* The gradient of leaf x is fn's, when it is complete, instead of being kept: what fn does not hold on to is gone.
 */
Status tape_take(Tape *t, Tensor *x, TapeHookFn *fn, void *arg, void (*release)(void *));

/* The caller's last word on a hook: it is not called any more (remove), or stays. */
void tape_unhook(TapeHook *h, bool remove);

#endif
