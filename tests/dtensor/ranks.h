/* ranks.h -- cases that run on real ranks (threads). */
#ifndef TESTS_DTENSOR_RANKS_H
#define TESTS_DTENSOR_RANKS_H

#include "case.h"
#include "dist/dtensor.h"

/* One rank of a case. */
typedef struct {
  Case *c;
  World *w;
  int me;
  Ctx ctx; /* spread */
  Dist *dist;
  Scope scope;
  Arena arena;
  Call call;       /* for OP() */
  int collectives; /* of more than one member, begun so far */
  bool better;     /* set where PyTorch is wrong or refuses */
  bool refused;    /* set where we refuse */
} Rank;

typedef Status RankCheck(Rank *r);

/* Runs check on every rank.  Its error is WRONG; BETTER if some rank says so. */
Verdict on_ranks(Case *c, int ranks, RankCheck *check);

Status rank_mesh(Rank *r, Mesh **out); /* of the case */
/* [shape, values], or flat values of a shape. */
Status rank_read(Rank *r, Dtype dtype, yyjson_val *local, Tensor **out);
/* 0, 1, 2 ... times step plus first. */
Status rank_arange(Rank *r, Dtype dtype, int ndim, const int64_t *size, double step, double first, Tensor **out);
/* Sizes and values (to 1e-5), or an error that names what. */
Status rank_same(Rank *r, const Tensor *ours, const Tensor *told, const char *what);
Status rank_same_ints(yyjson_val *told, const int64_t *ours, int n, const char *what);
int told_total(yyjson_val *comm); /* collectives of all kinds */

#endif
