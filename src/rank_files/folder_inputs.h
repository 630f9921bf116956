/* file_cuts.h -- how a folder of rank files takes its inputs: the key `files` of its
 * plan.json (cut_files.h writes it). */
#ifndef TESS_RANK_FILES_FOLDER_INPUTS_H
#define TESS_RANK_FILES_FOLDER_INPUTS_H

#include "kernels/kernel.h"
#include "ops/value.h"
#include "shard/layout.h"

typedef struct {
  Arena arena;
  const char *mesh;             /* NULL: the plan tells nothing, inputs are as they are */
  Placement (*input)[MAX_AXES]; /* per user input */
  unsigned *even;               /* per user input, bit d: dimension d must be shared evenly */
  int ninputs;
} FolderInputs;

/* path: a plan.json, with the key or without it. */
Status folder_inputs_read(const char *path, FolderInputs *out);
void folder_inputs_free(FolderInputs *c);

/* ERR_FILE if the ranks cannot share them evenly and the program asks for it (its sizes are symbols). */
Status folder_inputs_check(const FolderInputs *c, const Value *inputs, int n);
/* Whole inputs, checked so, become the rank's parts of them. */
Status folder_inputs_shard(const FolderInputs *c, Kern *kern, int rank, Scope *scope, Value *inputs, int n);

#endif
