/* trace_save.h -- --trace FILE: the last run of a session, of all ranks (report/trace.h). */
#ifndef TESS_HARNESS_TRACE_SAVE_H
#define TESS_HARNESS_TRACE_SAVE_H

#include "comm/comm.h"
#include "runtime/session.h"

typedef struct {
  const char *path, *program;
  bool force;
} TraceFile;

/* inputs: of the last call.  w: ranks that do the same at the same time, rank 0 writes (collective); NULL: alone.
 */
Status trace_save(const TraceFile *f, World *w, Session *s, const Value *inputs, int ninputs);

#endif
