/* trace.h -- the last run of a program as a trace that Chrome (about:tracing) and Perfetto (ui.perfetto.dev) show.
 *
 * One slice per instruction, named after its node, in slices of the modules that it stands in, in one of its stage
 * (forward, backward, update).  Each rank is a process.  Its collectives are on tracks of their own (trace_comm.h).
 * docs/trace.md tells the fields.
 *
 * I1  Slices of one track lie in each other or beside each other; times are whole nanoseconds.
 * I2  The program was run with profiling (session_set_profile): the times are those of the last run.
 */
#ifndef TESS_REPORT_TRACE_H
#define TESS_REPORT_TRACE_H

#include "base/textbuf.h"
#include "runtime/node_times.h"
#include "runtime/program.h"

typedef struct {
  const Program *program; /* NULL: the call was interpreted */
  const NodeTimes *times; /* of an interpreted call */
} TraceRun;

/* When the first instruction began, by clock_now(); 0: there is none. */
double trace_begun(const TraceRun *run);

/* When the last one ended. */
double trace_ended(const TraceRun *run);
/* Seconds of the instructions that communicate, or wait for what was started before. */
double trace_waited(const TraceRun *run);

/* Adds a rank's events to those of others.  name: of its process; zero: the clock_now() that times count from. */
Status trace_events(TextBuf *b, const TraceRun *run, int rank, const char *name, double zero);

/* A time as an event has it: "ts" or "dur". */
void trace_put_time(TextBuf *b, const char *key, int64_t ns);

/* Writes the events of all ranks to a file, whole or not at all.  program: its path. */
Status trace_write(const char *path, const char *program, const TextBuf *events, bool force);

#endif
