/* run_ranks.h -- `tessera run` on several ranks. */
#ifndef TESS_CLI_RUN_RANKS_H
#define TESS_CLI_RUN_RANKS_H

#include "cli/rank_files.h"
#include "cli/run_calls.h"

#define BY_DEFAULT (-INFINITY)

typedef struct {
  int64_t ranks;    /* -n */
  const char *comm; /* a transport; NULL: by launch */
  TextList groups;  /* NAME=0,1 */
  double timeout;   /* seconds; BY_DEFAULT: not given */
  const char *flight;
} RankOptions;

/* Is this a matter of several ranks? */
bool run_ranks_wanted(const RankOptions *ro, const RankPrograms *programs, const RunOptions *o);
/* Every rank opens its program and makes the calls. */
Status run_ranks(const RankOptions *ro, const RankPrograms *programs, const RunOptions *o);

#endif
