/* step_sink.h -- one place that records of steps go to.  step_log.h is the list of them. */
#ifndef TESS_TRAIN_STEP_SINK_H
#define TESS_TRAIN_STEP_SINK_H

#include <stdio.h>

#include "base/status.h"
#include "train/step_record.h"

typedef struct StepSink StepSink;
struct StepSink { /* the first member of each kind */
  Status (*write)(StepSink *s, const StepRecord *r);
  void (*pause)(StepSink *s); /* something else will be written to the terminal; NULL: all the same to it */
  void (*close)(StepSink *s); /* frees it */
  StepSink *next;             /* of a StepLog */
};

/* JSON lines (step_json.c).  resumed: the file goes on; lines of steps from `first` on are dropped.  Else a file
 * that is there is an error, unless force, which replaces it. */
Status step_sink_json(const char *path, bool resumed, int64_t first, bool force, StepSink **out);

/* A new event file for TensorBoard in a folder (step_events.c).  resumed: what earlier files tell of steps from
 * `first` on is void. */
Status step_sink_events(const char *folder, bool resumed, int64_t first, StepSink **out);

/* Lines for people (step_lines.c), in a file or a pipe one per step; on a terminal at most one per second, the
 * first, the last and evaluations always.  bar: where a bar with the time left is drawn if it is a terminal.
 * Either may be NULL.  last 0: it is not known how many steps there will be. */
Status step_sink_lines(FILE *lines, FILE *bar, int64_t first, int64_t last, StepSink **out);
/* "step 12  loss 3.2104  norm 1.23  lr 3.0e-04  12.3k tok/s  0.21 TFLOP/s (63 %)  1.2 GiB"; last: as above. */
const char *step_line(const StepRecord *r, int64_t last, char *buf, size_t cap);

#endif
