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

Status rank_options_check(const RankOptions *ro);
/* --plan (NULL: auto) for a mesh, and the mesh if it is the plan that tells it.  *out NULL: no mesh, one rank. */
Status mesh_plan_read(const char **mesh, const char *path, PlanFile **out);
/* What ranks failed with, where that is no failure of a rank: a full disk. */
Status ranks_plain_failure(Status s);
/* How many ranks a mesh has, as far as they fit. */
Status mesh_count_ranks(const char *mesh, const RankOptions *ro, int *out);

/* Is this a matter of several ranks? */
bool run_ranks_wanted(const RankOptions *ro, const RankPrograms *programs, const RunOptions *o);
/* Every rank opens its program and makes the calls. */
Status run_ranks(const RankOptions *ro, const RankPrograms *programs, const RunOptions *o);

#endif
