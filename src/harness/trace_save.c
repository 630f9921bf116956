/* trace_save.c -- see trace_save.h. */
#include "harness/trace_save.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/launch.h"
#include "harness/rank_results.h"
#include "report/trace.h"
#include "report/trace_comm.h"

static Status over_ranks(World *w, ReduceOp op, double *x) {
  return comm_run(
      world_comm(w),
      &(Coll){
          .kind = COLL_ALL_REDUCE, .dtype = DT_F64, .op = op, .send = x, .recv = x, .count = 1, .why = "trace"});
}

static Status largest(World *w, double *x) { return over_ranks(w, REDUCE_MAX, x); }

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

/* What this rank said to others from the first to the last instruction. */
static Status own_collectives(TextBuf *b, TextBuf *calls, World *w, const TraceRun *run, double zero) {
  CommPast *past;
  int n;
  TRY(world_past(w, trace_begun(run), trace_ended(run), &past, &n));
  Status s = trace_comm_events(b, calls, past, n, world_rank(w), zero);
  free(past);
  return s;
}

static Status own_events(TextBuf *b, TextBuf *calls, const TraceFile *f, World *w, const TraceRun *run) {
  const char *slash = strrchr(f->program, '/');
  char name[256];
  double zero;
  if (w) snprintf(name, sizeof name, "rank %d", world_rank(w));
  else snprintf(name, sizeof name, "%s", slash ? slash + 1 : f->program);
  TRY(find_zero(w, trace_begun(run), &zero));
  TRY(trace_events(b, run, w ? world_rank(w) : 0, name, zero));
  return w ? own_collectives(b, calls, w, run, zero) : OK;
}

static Status find_times(World *w, const TraceRun *run, TraceTimes *t) {
  *t = (TraceTimes){.seconds = trace_ended(run) - trace_begun(run), .waited = trace_waited(run)};
  t->most = t->waited;
  if (!w) return OK;
  TRY(largest(w, &t->seconds));
  TRY(largest(w, &t->most));
  TRY(over_ranks(w, REDUCE_SUM, &t->waited));
  t->waited /= world_size(w);
  return OK;
}

/* The events of all ranks, and the arrows between them. */
static Status gather(World *w, const TextBuf *mine, const TextBuf *calls, TextBuf *all) {
  TextBuf arrows = {0};
  TRY(rank_results_texts(w, mine->text, mine->len, all));
  Status s = rank_results_texts(w, calls->text, calls->len, &arrows);
  if (!s && world_rank(w) == 0) s = trace_comm_arrows(all, arrows.text ? arrows.text : "");
  text_free(&arrows);
  return s;
}

Status trace_save(const TraceFile *f, World *w, const Session *s, TraceTimes *times) {
  TextBuf mine = {0}, calls = {0}, all = {0};
  TraceRun run = {session_last_program(s), session_node_times(s)};
  Status status = own_events(&mine, &calls, f, w, &run);
  if (!status && times) status = find_times(w, &run, times);
  if (!status && w) status = gather(w, &mine, &calls, &all);
  if (!status && (!w || world_rank(w) == 0)) status = trace_write(f->path, f->program, w ? &all : &mine, f->force);
  text_free(&mine);
  text_free(&calls);
  text_free(&all);
  return status;
}
