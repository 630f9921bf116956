/* program.h -- a specialised graph made ready to run.
 *
 * An array of calls with everything resolved: kernels, arguments, and for each result
 * its place in one slab of memory.  Running it is a loop.
 *
 * I1  A call's tensors never change; only the data pointers of their storages do, when
 *     inputs are bound or outputs taken away.
 * I2  Results that the caller gets have memory of their own, which is used again once
 *     the caller has dropped them; everything else lives in the slab, at offsets that
 *     assign_memory chose.
 * I3  Values written back to buffers are computed in the buffer's own memory where no
 *     later node reads the old value, else copied at the end.
 * I4  One run at a time per Program.
 */
#ifndef TESS_RUNTIME_PROGRAM_H
#define TESS_RUNTIME_PROGRAM_H

#include "base/progress.h"
#include "graph/graph.h"

typedef struct Instr Instr;
struct Instr {
  Call call;
  const Node *node;
  void *state; /* the op's cache for this call site */
  void (*state_free)(void *);
  uint64_t drawn;      /* where the stream of random numbers stood when it began */
  const Instr *again;  /* a random op that draws the numbers of this one once more; NULL: new ones */
  double seconds;      /* with profiling: sum over runs */
  double begun, ended; /* with profiling: of the last run, by clock_now() */
  bool writes_state;   /* some result lies in the memory of a parameter, buffer or optimizer state */
};

/* Somebody who reads the state beside the runs, a save that is under way: told before its memory is written to, and
 * returns when it may be. */
typedef struct {
  void (*before_write)(void *arg, const Storage *s);
  void *arg;
} WriteGuard;

typedef struct {
  Tensor *to, *from;
} WriteBack;

typedef struct {
  Tensor *tensor; /* its storage is the input's data during a run; NULL: a number */
  bool mutated;   /* written back at the end */
} BoundInput;

typedef struct Program {
  Exported *graph; /* specialised; owned */
  Arena arena;
  Scope scope;
  Instr *instrs;
  int ninstrs;
  BoundInput *inputs; /* user inputs in order */
  int ninputs;
  Value *outputs; /* user outputs in order */
  int noutputs;
  int *output_first;       /* per output: the first one in the same storage */
  Storage **output_memory; /* what the caller got last time, per output: taken again if he let it go */
  WriteBack *write_backs;
  int nwrite_backs;
  void *slab; /* and the gradients behind it */
  size_t slab_bytes;
  size_t gradient_bytes; /* of gradients that have memory of their own (Graph.gradients_apart) */
  int64_t runs;
  bool profile;
  Progress *progress;      /* told of every instruction; NULL: nobody */
  const WriteGuard *guard; /* NULL: nobody */
  /* Is told of every instruction before it runs and when it has (its results may lie where its arguments did);
   * what it returns ends the run. */
  Status (*watch)(void *arg, const Instr *i, bool done);
  void *watch_arg;
} Program;

/* Takes over `specialized`, also on failure. */
Status program_build(Ctx *ctx, Exported *specialized, Program **out);
/* The same without memory for results: it tells what a run would take, and cannot be run. */
Status program_plan(Ctx *ctx, Exported *specialized, Program **out);
void program_free(Program *p);
void program_forget_times(Program *p); /* what was profiled so far */

/* inputs: one per user input, sizes as specialised for.  outputs get handles in `scope`. */
Status program_run(Ctx *ctx, Program *p, const Value *inputs, Scope *scope, Value *outputs);

#endif
