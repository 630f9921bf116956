/* comm_cases.h -- what ranks do in the tests of collectives, on any world: every kind, dtype
 * and op, even and uneven, and what happens when a rank does something else, nothing, or
 * fails.  On threads by unit/test_comm.c, on processes by comm_mpi.c.
 */
#ifndef TESS_TESTS_COMM_CASES_H
#define TESS_TESTS_COMM_CASES_H

#include <stdatomic.h>

#include "comm/launch.h"

enum { MOST_RANKS = 64, AWKWARD = 30011 };

/* every_kind */
typedef struct {
  Dtype dtype;
  ReduceOp op;
  int64_t count;
  bool uneven, in_place, start;
} Case;

/* every_type */
typedef struct {
  int64_t count;
  bool start;
} Sweep;

/* mistaken */
typedef struct {
  const char *want[2]; /* both in the message of every rank */
  Coll normal, odd;    /* what ranks call; rank 1 calls the odd one */
  bool start;
  _Atomic int errors; /* ranks that got one, with code ERR_RANK */
} Mistake;
/* An all-reduce of one number. */
Status sum_of(Comm *c, int mine, int *out);
bool mistake_at(int i, Mistake *out); /* false: there are no more */

/* fails_midway */
typedef struct {
  int64_t count;
  int after; /* collectives that rank 1 takes part in */
  bool error, start;
  _Atomic int released;
  atomic_flag told; /* other[] has what the first rank that was not released got */
  char other[256];
} Failing;

RankFn every_kind,               /* Case: a collective of each kind */
    every_type,                  /* Sweep: every dtype and op */
    odd_types,                   /* types without arithmetic */
    in_groups,                   /* of four ranks */
    crossed,                     /* of three: started in two groups, in different orders */
    overlapped,                  /* int64_t elements */
    progresses,                  /* data move while a rank does something else */
    awkward_sum,                 /* float [ranks][AWKWARD]: each rank writes its line */
    mistaken,                    /* Mistake */
    mistaken_boxes,              /* of two */
    mistaken_group,              /* of three; int: what is wrong with rank 1's group */
    mistaken_pair, fails_midway, /* Failing */
    fails_some_time,             /* unsigned: who and when */
    comes_late,                  /* bool: started */
    does_not_wait,               /* of two */
    many,                        /* bool: rank 1 fails at the end */
    watched,                     /* of two */
    brief;

#endif
