/* trace_save.c -- see trace_save.h. */
#include "harness/trace_save.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/launch.h"
#include "harness/rank_results.h"
#include "report/trace.h"

static Status largest(World *w, double *x) {
  return comm_run(world_comm(w), &(Coll){.kind = COLL_ALL_REDUCE,
                                         .dtype = DT_F64,
                                         .op = REDUCE_MAX,
                                         .send = x,
                                         .recv = x,
                                         .count = 1,
                                         .why = "trace"});
}

/* The moment when the first rank began, by this rank's clock.  Ranks on one host have one clock; of others, now is
 * when all have come here. */
static Status find_zero(World *w, double begun, double *zero) {
  bool one_clock = !w || world_local_ranks(w) == world_size(w);
  if (!one_clock) TRY(comm_barrier(world_comm(w), "trace"));
  double now = clock_now();
  if (w && one_clock) TRY(largest(w, &now));
  double ago = begun > 0 ? now - begun : 0;
  if (w) TRY(largest(w, &ago));
  *zero = now - ago;
  return OK;
}

static Status own_events(TextBuf *b, const TraceFile *f, World *w, const TraceRun *run) {
  const char *slash = strrchr(f->program, '/');
  char name[256];
  double zero;
  if (w) snprintf(name, sizeof name, "rank %d", world_rank(w));
  else snprintf(name, sizeof name, "%s", slash ? slash + 1 : f->program);
  TRY(find_zero(w, trace_begun(run), &zero));
  return trace_events(b, run, w ? world_rank(w) : 0, name, zero);
}

Status trace_save(const TraceFile *f, World *w, const Session *s) {
  TextBuf mine = {0}, all = {0};
  TraceRun run = {session_last_program(s), session_node_times(s)};
  Status status = own_events(&mine, f, w, &run);
  if (!status && w) status = rank_results_texts(w, mine.text, mine.len, &all);
  if (!status && (!w || world_rank(w) == 0)) status = trace_write(f->path, f->program, w ? &all : &mine, f->force);
  text_free(&mine);
  text_free(&all);
  return status;
}
