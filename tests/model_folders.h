/* model_folders.h -- what the runners of golden models share: folders of models, each run in a process of its own,
 * so that a crash or a hang is the failure of one model. */
#ifndef TESS_TESTS_MODEL_FOLDERS_H
#define TESS_TESTS_MODEL_FOLDERS_H

#include <stdbool.h>
#include <stdio.h>

#include "dist/dispatch.h"

enum { MODEL_SECONDS = 300, MODEL_FAILED = 1 }; /* the exit code of a model that has said why it failed */

/* Calls fn with the name of every folder in `folder`, in order; ends the process if it cannot be read. */
void each_model(const char *folder, void (*fn)(void *arg, const char *folder, const char *name), void *arg);

/* fn(arg) in a child that has MODEL_SECONDS; its exit code is what fn gives.  True if that is 0.  A child that did
 * not end by itself, or with another code than MODEL_FAILED, is reported under the label. */
bool run_in_child(int (*fn)(void *arg), void *arg, const char *label);

/* fn on a rank that knows meshes.  What it communicated goes to `log`, unless that is NULL. */
Status run_on_rank(World *w, Status (*fn)(Ctx *ctx, void *arg), void *arg, FILE *log);

/* Element i of a tensor of any strides and dtype, counted in row-major order. */
double element_at(const Tensor *t, int64_t i);

/* The value of option argv[*i]; ends the process if there is none. */
const char *option_value(int argc, char **argv, int *i);

#endif
