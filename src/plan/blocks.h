/* blocks.h -- in which pieces the features of planned weights must stay together.
 *
 * A weight whose result features are to be cut does not know how its product will be used:
 * viewed as heads, split into q, k and v, paired with another product in an attention.
 * Tracks follow the features forward through views, splits and everything that passes a
 * shard on (probe.h) and collect
 *   segments  cut points of splits and selects: each segment is cut by itself
 *   blocks    the number of equal pieces (heads) of a segment that must stay whole
 * Weights whose products meet belong to one group and have as many blocks as all of them
 * can be cut into; so do the row-wise weights that the tracks end at, and buffers (KV
 * caches) that a track is written to.
 *
 * I1  Only advice: whatever is found, results are right.  Missed advice costs a gather.
 */
#ifndef TESS_PLAN_BLOCKS_H
#define TESS_PLAN_BLOCKS_H

#include "plan/track.h"
#include "plan/weight_use.h"

enum { MAX_CUTS = 16, MAX_SPANS = 24 };

typedef struct {
  int input; /* of the graph */
  int dim;
  int64_t n;  /* its size */
  int group;  /* another member of its group, or itself */
  int keeper; /* a member whose features are these, one by one, and who keeps the cuts; or itself */
  bool rows;  /* contracted: follows the others */
  int64_t cut[MAX_CUTS];
  int ncuts;  /* -1: too many */
  Span *span; /* at most MAX_SPANS */
  int nspans, spans_cap;
  int next;                /* another member of the same input; -1: none */
  int met_first, met_last; /* of Blocks.met, as columns; -1: none */
  int writer;              /* of a buffer: whose features [written.begin, written.end) go there; -1: none */
  Span written;
} Member;

/* An op that needs features [begin, end) whole, or would leave a sum behind. */
typedef struct {
  int member;
  int64_t begin, end;
  const Node *node;
  const Val *val; /* that has them */
  int next;       /* another one of the same features; -1: none */
} Need;

/* What a group of members is cut into. */
typedef struct {
  int64_t pieces; /* that the members which are cut can all be cut into; 0: not known */
  bool drops;     /* segments of fewer pieces than ranks stay whole */
} GroupPieces;

/* A value that is just these features of a weight's product: split off. */
typedef struct {
  int member;
  int64_t begin, end;
  const Val *val;
  int dim;
  int64_t size; /* of val's dimension dim */
} Part;

/* Where a row-wise weight waits for a track. */
typedef struct {
  const Node *node;
  const Val *val;
  int dim; /* of val */
  int member;
  int next;           /* another one at the same value; -1: none */
  int64_t begin, end; /* its part that the node gets */
} RowEnd;

/* Features of one weight that are contracted with another. */
typedef struct {
  int columns, rows; /* members */
  const Node *node;
  int next; /* of the same columns; -1: none */
} Meeting;

typedef struct {
  Probe *p;
  Arena arena;
  Meeting *met; /* in the order in which they were found */
  int nmet, met_cap;
  Member *member;
  int nmembers, members_cap;
  RowEnd *end;
  int nends, ends_cap;
  Need *need;
  int nneeds, needs_cap;
  Part *part;
  int nparts, parts_cap;
  struct Track **at; /* by Val.id: the track that came there first */
  int *member_at;    /* by input: 1 + its last member; 0: none */
  int *end_at;       /* by Val.id: 1 + the last RowEnd there; 0: none */
  bool strict;       /* tracks end at values that some op needs whole */
  /* What follows from all of it for a number of ranks, found out when first asked for. */
  int settled;         /* the ranks; 0: not yet */
  GroupPieces *pieces; /* by member that stands for a group */
  int *need_at;        /* by member that keeps the cuts: 1 + the first of its needs; 0: none */
} Blocks;

/* Of a zeroed or cleared b. */
Status blocks_open(Blocks *b, Probe *p);
void blocks_clear(Blocks *b); /* keeps memory for the next blocks_open() */
void blocks_close(Blocks *b);
/* All rows are to be added before the first column.  use: where it is used so. */
Status blocks_add_rows(Blocks *b, int input, int dim, const WeightUse *use, const Val *val, int val_dim);
Status blocks_add_columns(Blocks *b, int input, int dim, const WeightUse *use);

/* How dimension m->dim is to be cut over an axis of k ranks: S, or R where a few heads are
 * better had whole by everybody. */
Status blocks_place(Blocks *b, int input, int dim, int k, Placement *out);
/* Of a weight that is R: part number i of its product that is to be cut all the same (the
 * query heads beside a few key and value heads).  *val is NULL behind the last. */
Status blocks_part(Blocks *b, int input, int dim, int k, int i, const Val **val, Placement *out);
/* Buffers that were found on the way; member i with rows = false and no weight. */
bool blocks_is_member(const Blocks *b, int input, int *dim);

#endif
