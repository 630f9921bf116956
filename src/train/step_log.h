/* step_log.h -- tells of each step of a training wherever it was asked for: JSON lines, TensorBoard, the terminal.
 *
 *     StepLog *log;
 *     step_log_open(&(StepLogOptions){.json = "train.jsonl", .lines = stdout, .first = 1, .last = 1000}, &log);
 *     step_log_write(log, &record);    after every step
 *     step_log_close(log);
 *
 * I1  What a step says is in all files when step_log_write() has succeeded: a process that is killed takes nothing
 *     with it.
 * I2  A run that is resumed leaves each step once in the JSON lines, however far beyond its save the killed run had
 *     come; TensorBoard shows each once, too.
 */
#ifndef TESS_TRAIN_STEP_LOG_H
#define TESS_TRAIN_STEP_LOG_H

#include "train/step_sink.h"

typedef struct {
  const char *json;        /* a file; NULL: none */
  const char *tensorboard; /* a folder, made if it is not there; NULL: none */
  FILE *lines, *bar;       /* step_sink.h; NULL: none */
  int64_t first, last;     /* steps that this run will do; last 0: not known */
  bool resumed;            /* it goes on where an earlier one ended */
  bool force;              /* replace the file of another run */
} StepLogOptions;

typedef struct StepLog StepLog;

Status step_log_open(const StepLogOptions *o, StepLog **out);
Status step_log_write(StepLog *l, const StepRecord *r);
/* Wipes the bar: before anything else is written to the terminal.  The next step draws it again. */
void step_log_pause(StepLog *l);
void step_log_close(StepLog *l); /* NULL is fine */

/* The steps of a file of JSON lines, in order; malloc'ed.  An unfinished last line is left out. */
Status step_log_read(const char *path, StepRecord **out, int64_t *n);

#endif
