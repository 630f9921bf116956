/* case.h -- a recorded training run of PyTorch's fully_shard, and the same run here. */
#ifndef TESS_TESTS_FSDP_CASE_H
#define TESS_TESTS_FSDP_CASE_H

#include <stdbool.h>

#include "base/json.h"
#include "base/textbuf.h"
#include "tessera.h"

enum { FSDP_MAX_RANKS = 64, FSDP_MAX_STEPS = 32 };

/* What one rank did. */
typedef struct {
  double loss[FSDP_MAX_STEPS * 4], norm[FSDP_MAX_STEPS];
  int nlosses, nnorms;
  TextBuf trouble; /* what is wrong, a line each */
} RankLog;

/* An event of the last step; its event is "-- forward" where a phase begins. */
typedef struct {
  char event[32], group[64], op[16], dtype[8], ranks[64];
  int64_t bytes;
} LoggedEvent;

typedef struct {
  char name[96];
  char fsdp[1024], train[1024]; /* folders */
  yyjson_val *json, *what;      /* the file, and its "case" */
  int world;
  bool half; /* dtypes of 16 bits are at work */
  RankLog *rank;
  LoggedEvent *event; /* of rank 0 */
  int nevents, event_cap;
  bool logging;
  TextBuf groups; /* JSON: what rank 0 tells of its groups, a list of lists */
} FsdpCase;

void note_trouble(FsdpCase *c, int rank, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Trains as the case says, as one of c->world ranks; results are in c->rank[] and c->event[].  0, or -1 with the
 * context's error. */
int fsdp_case_run(TessCtx *ctx, FsdpCase *c);

/* The same training in one process on the whole batch, without sharding: losses of global batches and norms.
 * Parameters afterwards are in m.  scale: what gradients are multiplied by. */
TessModule *fsdp_case_reference(TessCtx *ctx, const FsdpCase *c, double scale, RankLog *out);

/* Compares what is recorded with what happened (compare.c), after all ranks are done; only: of this rank, -1: of
 * all. */
void fsdp_case_compare(FsdpCase *c, int only);
/* This rank's shards as they are before training. */
void fsdp_case_compare_shards(TessCtx *ctx, FsdpCase *c, TessModule *m);
/* Parameters after training: of the file that belongs to the case, or of the reference.  (collective) */
void fsdp_case_compare_final(TessCtx *ctx, FsdpCase *c, TessModule *m, TessModule *reference);

double fsdp_tolerance(const FsdpCase *c);
bool fsdp_close(double a, double b, double largest, double tolerance);

/* fsdp_common.jsonl (common.c): prints failures, adds to the counts. */
void fsdp_common(const char *path, int every, int *passed, int *failed);

#endif
