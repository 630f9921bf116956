/* train_report.h -- a training as one page of HTML (train_page.html): the course of loss, evaluation, gradient
 * norm, learning rate, speed and memory, and what was run.
 *
 * I1  A page has at most some two thousand points per curve, however many steps there were: of more steps, each of
 *     a thousand stretches leaves its least and its largest value and its mean, so that no spike is lost.
 * I2  The file appears as a whole or not at all; one of the same name is replaced, so that a report can be written
 *     again and again while a training goes on.
 */
#ifndef TESS_TRAIN_TRAIN_REPORT_H
#define TESS_TRAIN_TRAIN_REPORT_H

#include "base/textbuf.h"
#include "train/step_record.h"

typedef struct {
  const char *name, *value; /* "optimizer", "adamw, lr=3e-4" */
} TrainFact;

typedef struct {
  const char *name; /* "weights", "gradients", "optimizer state", "saved values", "workspace" ... */
  int64_t bytes;
} TrainMemory;

typedef struct {
  const char *program; /* its path */
  const char *command; /* the command line; NULL: there was none */
  const char *ended;   /* why it is no longer going on, if that is news: "interrupted"; NULL: it came to its end */
  const TrainFact *fact; /* what else is worth telling, in this order */
  int nfacts;
  const TrainMemory *memory; /* what the memory is taken by */
  int nmemory;
  const StepRecord *step; /* in order */
  int64_t nsteps;
  int64_t planned;         /* the number of the last step that was asked for; 0: not known */
  double seconds;          /* of the whole training; 0: not known */
  int64_t samples, tokens; /* that were trained on; 0: not known */
  int64_t parameters;      /* that are trained; 0: not known */
} TrainReport;

/* The page's data. */
Status train_report_json(TextBuf *b, const TrainReport *r);
Status train_report_html(const TrainReport *r, const char *path);

#endif
