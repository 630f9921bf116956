/* run_calls.h -- calls of an open program: inputs in, outputs out, by one rank or by each
 * of several. */
#ifndef TESS_CLI_RUN_CALLS_H
#define TESS_CLI_RUN_CALLS_H

#include <math.h>
#include <stdatomic.h>

#include "cli/cli.h"
#include "cli/gradient_options.h"
#include "comm/comm.h"
#include "rank_files/folder_inputs.h"
#include "runtime/session.h"

#define BY_DTYPE (-INFINITY) /* a tolerance that was not given */

typedef struct {
  TextList inputs, outputs, expect; /* one per call; of ranks: see rank_files.h */
  int64_t repeat, threads, seed, warmup;
  bool print_outputs, profile, json, force, interpret;
  bool nothing_asked;                  /* of the outputs: they are listed */
  const char *trace;                   /* NULL: none */
  const char *path, *weights, *random; /* path: of the program, or what stands for the programs of all ranks */
  double atol, rtol;
  const char *mesh;     /* the program is partitioned over it; NULL: ranks run it as it is */
  const PlanFile *plan; /* NULL: nothing is cut */
  const char *check;    /* NULL: no; else "" or "nodes" */
  GradientWords gradients;
  const char *memory;       /* a limit of what joint programs keep; NULL: none */
  atomic_bool *unwritten;   /* set if an output file cannot be written; NULL: nobody asks */
  const FolderInputs *cuts; /* of rank files: inputs that all ranks are given are cut so; NULL: they are not */
} RunOptions;

/* So many calls, of so many runs each: the last one's outputs are the call's. */
int run_count_calls(const RunOptions *o);

/* Makes all calls of a program, which has marks if there is a mesh.  w: the ranks that do the same
 * and talk to each other meanwhile; NULL: this one is alone.  load_seconds: what reading and
 * preparing it took. */
Status run_calls(Ctx *ctx, World *w, Prepared *p, const RunOptions *o, double load_seconds);

#endif
