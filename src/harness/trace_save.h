/* trace_save.h -- --trace FILE: the last run of a session, of all ranks (report/trace.h). */
#ifndef TESS_HARNESS_TRACE_SAVE_H
#define TESS_HARNESS_TRACE_SAVE_H

#include "comm/comm.h"
#include "runtime/session.h"

typedef struct {
  const char *path, *program;
  bool force;
} TraceFile;

/* w: ranks that do the same at the same time, rank 0 writes (collective); NULL: alone. */
Status trace_save(const TraceFile *f, World *w, const Session *s);

#endif
