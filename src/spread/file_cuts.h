/* file_cuts.h -- how a folder of rank files takes its inputs: the key `files` of its
 * plan.json (cut_files.h writes it). */
#ifndef TESS_RUNTIME_FILE_CUTS_H
#define TESS_RUNTIME_FILE_CUTS_H

#include "kernels/kernel.h"
#include "ops/value.h"
#include "shard/layout.h"

typedef struct {
  Arena arena;
  const char *mesh; /* NULL: the plan tells nothing, inputs are as they are */
  Placement (*input)[MAX_AXES]; /* per user input */
  unsigned *even; /* per user input, bit d: dimension d must be shared evenly */
  int ninputs;
} FileCuts;

/* path: a plan.json, with the key or without it. */
Status file_cuts_read(const char *path, FileCuts *out);
void file_cuts_free(FileCuts *c);

/* ERR_FILE if the ranks cannot share them evenly and the program asks for it (its sizes are symbols). */
Status file_cuts_check(const FileCuts *c, const Value *inputs, int n);
/* Whole inputs, checked so, become the rank's parts of them. */
Status file_cuts_inputs(const FileCuts *c, Kern *kern, int rank, Scope *scope, Value *inputs, int n);

#endif
