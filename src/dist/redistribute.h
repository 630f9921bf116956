/* redistribute.h -- routes, carried out on this rank's shard. */
#ifndef TESS_DIST_REDISTRIBUTE_H
#define TESS_DIST_REDISTRIBUTE_H

#include "dist/route.h"
#include "ops/op.h"

/* This rank's shard of `to`, from its shard of `from` (same shape and dtype; any two
 * meshes of the same world).  Collective over the mesh (over the world if the meshes
 * differ).  The result is contiguous, or `local` itself where nothing is to be done.
 * why: the op that needs it, for messages and comm_debug. */
Status redistribute_local(Ctx *ctx, const Spec *from, const Spec *to, Tensor *local, const char *why, Scope *scope,
                          Tensor **out);

/* The same along a route that is known, into memory that is there. */
Status redistribute_into(Ctx *ctx, const Spec *from, const Route *route, Tensor *local, const char *why,
                         Tensor *out);

/* Instead of redistributing: the route's steps as calls of ops, to whoever records.  Local
 * steps become slices and fills, others one tess.redistribute each. */
Status redistribute_emit(Ctx *ctx, const Spec *from, const Spec *to, Tensor *local, const char *why, Scope *scope,
                         Tensor **out);

/* What a rank holds after R -> P of the step: its value (true), or `other` in every element,
 * so that the reduction gives the value back bit for bit. */
bool partition_keeps(const Mesh *m, const Step *step, double *other);

/* The same in two halves: between them the last collective goes on while the rank
 * computes.  Within one mesh.  Every start is waited for, once. */
typedef struct Redistribution Redistribution;
Status redistribute_start(Ctx *ctx, const Spec *from, const Spec *to, const Tensor *local, const char *why,
                          Redistribution **out);
Status redistribute_wait(Redistribution *r, Scope *scope, Tensor **out);

/* ---- watching what is communicated -------------------------------------------------------- */

typedef struct {
  StepKind kind;
  int64_t bytes; /* that this rank receives */
  unsigned axes;
  const char *why;       /* lives as long as the Dist */
  const Spec *from, *to; /* recorded ones: how the tensor lies before and after; else NULL */
  const char *rule;      /* nobody asked for it: an op's rule could not do without; its words, "" if it has none.
                          * NULL: somebody asked */
} CommEvent;

typedef struct CommLog {
  CommEvent *event;
  int n, cap;
  int count[STEP_KIND_COUNT];
  struct CommLog *outer; /* scopes nest: an event goes to all of them */
} CommLog;

/* Tells the open logs. */
Status dist_log(Dist *d, StepKind kind, unsigned axes, int64_t bytes, const char *why);
/* The same of a step that is recorded, of a tensor of this spec. */
Status dist_log_step(const Spec *spec, const Step *step, const char *why);
void comm_log_begin(Dist *d, CommLog *log);
void comm_log_resume(Dist *d, CommLog *log); /* goes on with one that was ended */
void comm_log_end(Dist *d, CommLog *log);    /* the innermost; event is malloc'ed and stays */
void comm_log_free(CommLog *log);

/* ---- explicit redistribution --------------------------------------------------------------- */

/* While on: a redistribution that an op asks for by itself is an error (LOUD), also where
 * it costs no communication (STRICT). */
typedef enum { IMPLICIT_ALLOWED, IMPLICIT_LOUD, IMPLICIT_STRICT } ImplicitMode;
ImplicitMode dist_set_implicit(Dist *d, ImplicitMode mode); /* the former mode */

#endif
