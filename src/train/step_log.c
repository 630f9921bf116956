/* step_log.c -- see step_log.h. */
#include "train/step_log.h"

#include <stdlib.h>

struct StepLog {
  StepSink *first, **end;
};

static void add(StepLog *l, StepSink *s) {
  *l->end = s;
  l->end = &s->next;
}

static Status open_sinks(StepLog *l, const StepLogOptions *o) {
  StepSink *s;
  if (o->json) {
    TRY(step_sink_json(o->json, o->resumed, o->first, o->force, &s));
    add(l, s);
  }
  if (o->tensorboard) {
    TRY(step_sink_events(o->tensorboard, o->resumed, o->first, &s));
    add(l, s);
  }
  if (o->lines || o->bar) {
    TRY(step_sink_lines(o->lines, o->bar, o->first, o->last, &s));
    add(l, s);
  }
  return OK;
}

Status step_log_open(const StepLogOptions *o, StepLog **out) {
  StepLog *l;
  TRY_NEW(l, calloc(1, sizeof *l));
  l->end = &l->first;
  Status s = open_sinks(l, o);
  if (s) step_log_close(l);
  else *out = l;
  return s;
}

Status step_log_write(StepLog *l, const StepRecord *r) {
  for (StepSink *s = l->first; s; s = s->next) TRY(s->write(s, r));
  return OK;
}

void step_log_pause(StepLog *l) {
  for (StepSink *s = l->first; s; s = s->next)
    if (s->pause) s->pause(s);
}

void step_log_close(StepLog *l) {
  if (!l) return;
  for (StepSink *s = l->first, *next; s; s = next) {
    next = s->next;
    s->close(s);
  }
  free(l);
}
