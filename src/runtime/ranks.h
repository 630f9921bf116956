/* ranks.h -- the same work on every rank of a transport: threads of this process, or the
 * processes of a launch.  Each rank gets a context whose collectives reach the others.
 *
 *     Status work(Ctx *ctx, World *w, void *arg) { ... session_open(ctx, ...) ... }
 *     ranks_run(&(Ranks){.n = 2, .groups = &list}, work, arg);
 *
 * I1  What the work opened with its context (sessions, scopes) it closes before it returns.
 * I2  A rank that fails releases the others; the result is its error, with its name, and
 *     ERR_RANK unless the failure has a code of its own (a bad file, a difference).
 * I3  An error that all ranks have found names none of them, and is told once.
 */
#ifndef TESS_RUNTIME_RANKS_H
#define TESS_RUNTIME_RANKS_H

#include "comm/group_list.h"
#include "comm/launch.h"
#include "ops/op.h"

typedef struct {
  const Transport *transport; /* NULL: threads */
  int n;                      /* ranks; of processes 0, or as many as were launched */
  int threads;                /* of each rank; 0: its share of the cores */
  const GroupList *groups;    /* NULL: none are named, every name means all ranks */
  const double *timeout;      /* seconds that a rank waits for others, 0: for ever; NULL: as always */
  const char *flight;         /* where the flight records go if it fails; NULL: nowhere */
} Ranks;

typedef Status RankWorkFn(Ctx *ctx, World *w, void *arg);

Status ranks_run(const Ranks *r, RankWorkFn *work, void *arg);

/* Threads that each rank of a world should use: its share of the cores. */
int ranks_threads(const World *w);

#endif
