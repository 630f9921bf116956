/* case.h -- golden cases of DTensor: what the files' parts share. */
#ifndef TESTS_DTENSOR_CASE_H
#define TESTS_DTENSOR_CASE_H

#include "base/json.h"
#include "dist/spec.h"

/* The outcome of one case. */
typedef enum {
  SAME,    /* what PyTorch does */
  BETTER,  /* PyTorch is wrong, refuses, or pays more */
  SKIPPED, /* not for us: the reason is in `text` */
  WRONG,
} Verdict;

typedef struct {
  yyjson_val *json;
  char text[2048]; /* why it is not SAME */
} Case;

typedef Verdict CaseFn(Case *c);

Verdict wrong(Case *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
Verdict wrong_status(Case *c, Status s); /* frees it */
Verdict better(Case *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
Verdict skipped(Case *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

yyjson_val *field(const Case *c, const char *key); /* NULL if absent */
/* Numbers of a list; returns how many (at most cap). */
int read_ints(yyjson_val *list, int64_t *out, int cap);
int read_sizes(yyjson_val *list, int *out, int cap);
bool same_ints(yyjson_val *list, const int64_t *v, int n);
/* Placements of a list of strings; false if one is none of ours. */
bool read_placements(yyjson_val *list, int ndim, Placement *out, int *n);
/* A shard order, [[tensor dim, [axes in execution order]], ...], as turns. */
void read_turns(yyjson_val *order, Placement *p);
Dtype read_dtype(yyjson_val *v); /* "f32"; absent: f32 */

CaseFn case_layout, case_redistribute, case_strategy, case_rng, case_checkpoint, case_api, case_behaviour;

#endif
