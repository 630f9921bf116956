/* progress.h -- a progress bar for whoever waits at a terminal.
 *
 * The command line owns it and hands it down; library code only counts.  It is a line
 * that redraws itself and is gone at the end, so nothing of it reaches a file or a pipe.
 *
 * I1  Nothing is written unless the stream is a terminal and the work has taken longer
 *     than a second, and then at most ten times a second.
 * I2  A NULL Progress is fine everywhere and does nothing.
 * I3  One thread at a time.
 */
#ifndef TESS_BASE_PROGRESS_H
#define TESS_BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum {
  PROGRESS_STEPS,
  PROGRESS_BYTES,
  PROGRESS_SHARE /* numbers say nothing: only the bar */
} ProgressUnit;

typedef struct {
  FILE *stream;     /* NULL: silent */
  const char *what; /* "writing rank 3"; borrowed */
  int64_t total;    /* 0: not known */
  int64_t done;
  ProgressUnit unit;
  bool colour; /* the environment has no NO_COLOR */
  bool drawn;
  /* These may be changed after progress_begin(). */
  double delay;     /* seconds before the first drawing; 1 */
  int64_t from;     /* so much was done before it began: the time that is left goes by the rest; 0 */
  const char *note; /* the end of the line: what else is to be told; borrowed; NULL */
  double begun, drawn_at;
} Progress;

void progress_begin(Progress *p, FILE *stream, const char *what, int64_t total, ProgressUnit unit);
/* So much is done altogether. */
void progress_set(Progress *p, int64_t done);
void progress_add(Progress *p, int64_t more);
/* Wipes the line.  Also before a message is written to the same terminal. */
void progress_end(Progress *p);

#endif
