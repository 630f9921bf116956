/* session.h -- a program that is open for business: call after call, any admissible
 * sizes, buffers keep their state.
 *
 * I1  Buffers that the program writes, and parameters that are trained, are the session's own copies from the
 *     start; everything else stays mapped.
 * I2  One Program per set of input sizes, built on first use and kept (the least
 *     recently used goes when there are many).
 * I3  Programs whose sizes depend on data are interpreted, with the same results.
 */
#ifndef TESS_RUNTIME_SESSION_H
#define TESS_RUNTIME_SESSION_H

#include "runtime/fit_memory.h"
#include "runtime/node_times.h"
#include "runtime/prepared.h"
#include "runtime/program.h"
#include "runtime/specialize.h"

typedef struct Session Session;

/* Takes over e, also on failure. */
Status session_open(Ctx *ctx, Exported *e, Session **out);
/* Of a program that was prepared before and that other sessions may share; the session holds a reference.
 * mesh NULL: one rank runs it by itself.  Else as this rank of the mesh runs it: p has marks for a mesh of
 * the same axes, ctx has the mesh's Dist (ctx_attach_dist), every rank of the mesh opens it and makes the
 * same calls.  Calls get whole inputs and give whole outputs, or shards where the plan leaves them so. */
Status session_open_prepared(Ctx *ctx, Prepared *p, Mesh *mesh, Session **out);
/* The same on one rank, only to be specialised and planned: what is to be written has memory without contents,
 * which takes no pages of the machine. */
Status session_open_dry(Ctx *ctx, Prepared *p, Session **out);
/* The same of a program that nobody shares.  Takes over e, also on failure.  plan NULL: see prepare_marks(). */
Status session_open_on_mesh(Ctx *ctx, Exported *e, Mesh *mesh, const PlanFile *plan, Session **out);
/* Gradients, too, with every call from now on: behind the user outputs, one Value per gradient of the request
 * (VAL_NONE: the loss does not depend on it).  Before the first call. */
Status session_want_gradients(Session *s, const GradOptions *o);
const GradRequest *session_gradients(const Session *s); /* NULL: none are wanted */
/* Of a program that is trained (prepare_update): which part of a step the next calls are.  A call gives the user
 * outputs and, if it makes a step, the norm of the gradients behind them. */
void session_set_phase(Session *s, Phase phase);
/* Calls may have more or fewer rows than the program was exported for (rebatch.h), from now on. */
void session_allow_any_batch(Session *s);
/* Of a program that is trained on a mesh: the gradients of each step are averaged over so many ranks along these
 * axes, which have rows of their own (GradRequest).  Before the first call. */
void session_average_gradients(Session *s, int ranks, unsigned axes);
/* Of a program that is trained on several ranks; before the first call. */
void session_reduce_gradients(Session *s, const ReduceGradients *how);
/* This rank's tensor of the state, to be read and written between calls; NULL: there is none. */
Tensor *session_state(const Session *s, const char *fqn);
/* How it lies on the mesh; NULL: there is no mesh, and the tensor is the whole. */
Status session_state_spec(const Session *s, const char *fqn, const Spec **out);
/* Is told by calls before they write to the state, from now on; NULL: nobody.  Borrowed. */
void session_guard_state(Session *s, const WriteGuard *guard);
/* The same for whoever writes to a tensor of the state between calls, and must say so. */
void session_before_write(const Session *s, const Tensor *state);
/* Programs are built anew: what they believed to be constant was written to. */
void session_forget_programs(Session *s);
/* On a mesh: replaces the gradients among the outputs of a call, which lie as their inputs do, by the whole ones.
 * inputs: of the call.  (collective) */
Status session_gather_gradients(Session *s, const Value *inputs, Scope *scope, Value *outputs, int noutputs);
/* Joint programs are made to fit this from now on.  Before the first call.  Gradients that wait for the update do
 * not count and have memory of their own then, which no limit can make smaller; without a limit they share that of
 * intermediate results.  amount 0: they have memory of their own, and there is no limit. */
void session_limit_memory(Session *s, MemoryLimit limit);
void session_free(Session *s);                /* NULL is fine */
const Marks *session_marks(const Session *s); /* NULL: not on a mesh */
Ctx *session_ctx(const Session *s);

/* The functional program that calls are specialised from. */
const Exported *session_program(const Session *s);

/* One Value per user input (exported_user_inputs); tensors whose program writes to them
 * must be writable.  *outputs has one Value per user output; handles live in scope, the
 * array in arena. */
Status session_run(Session *s, const Value *inputs, int ninputs, Scope *scope, Arena *arena, Value **outputs,
                   int *noutputs);

/* Builds the Program for these sizes without running it; NULL in *out if the program is
 * interpreted. */
Status session_prepare(Session *s, const Value *inputs, int ninputs, Program **out);

/* The specialised program that session_prepare() would build, to look at; sizes are enough.  It must be freed
 * before the session.  ERR_DYNAMIC if it would be interpreted. */
Status session_specialize(Session *s, const Value *inputs, int ninputs, Exported **out);

/* Interpret every call from now on, or no longer; returns what it was. */
bool session_interpret(Session *s, bool on);
static inline void session_force_interpreter(Session *s) { session_interpret(s, true); } /* for comparison */
void session_set_profile(Session *s, bool on);
void session_forget_times(Session *s); /* what was profiled so far */
/* With profiling, of calls that were interpreted; compiled ones: Program.instrs. */
const NodeTimes *session_node_times(const Session *s);
/* What the last call ran; NULL: it was interpreted.  Valid until the next call. */
const Program *session_last_program(const Session *s);
/* Is told of every step of every call from now on; NULL: nobody.  Borrowed. */
void session_set_progress(Session *s, Progress *progress);
/* Steps of one call at these sizes. */
Status session_steps(Session *s, const Value *inputs, int ninputs, int64_t *out);

/* Is told of every node of interpreted calls, with its results (DTensors on a mesh); what it
 * returns ends the call.  NULL: nobody. */
typedef Status NodeWatchFn(void *arg, const Node *n, const Value *outs, int nouts);
void session_watch_nodes(Session *s, NodeWatchFn *fn, void *arg);

#endif
