/* trace_save.h -- --trace FILE: the last run of a session, of all ranks (report/trace.h). */
#ifndef TESS_HARNESS_TRACE_SAVE_H
#define TESS_HARNESS_TRACE_SAVE_H

#include "comm/comm.h"
#include "runtime/session.h"

typedef struct {
  const char *path, *program;
  bool force;
} TraceFile;

/* What the ranks had to wait for in that run, for the rank that writes. */
typedef struct {
  double seconds;      /* from the beginning of the first to the end of the last instruction */
  double waited, most; /* of these in collectives: on average, and of the rank that waited most */
} TraceTimes;

/* w: ranks that do the same at the same time, rank 0 writes (collective); NULL: alone.  times may be NULL. */
Status trace_save(const TraceFile *f, World *w, const Session *s, TraceTimes *times);

#endif
