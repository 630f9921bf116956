/* placement.h -- what one mesh axis does to a tensor.
 *
 *   R      every rank of the axis has the whole
 *   S(d)   dimension d is cut into one piece per rank
 *   P(op)  every rank has a value of full size; the true one is their op (sum, max ...)
 *
 * A shard has refinements, all trivial by default (docs: the view calculus):
 *   factor    the dimension is a row of that many equal segments, each cut by itself:
 *             PyTorch's _StridedShard(dim, split_factor)
 *   segments  the same with segments of unequal sizes (a fused qkv with few KV heads)
 *   unit      cuts fall on multiples of it (whole heads)
 *   turn      axes that cut the same dimension do so from left to right, unless every
 *             one of them has a turn: then in that order (PyTorch's shard order)
 *
 * I1  A Placement is a value: two are the same placement if and only if
 *     placement_equal() says so; unused fields are zero.
 */
#ifndef TESS_SHARD_PLACEMENT_H
#define TESS_SHARD_PLACEMENT_H

#include "base/status.h"
#include "kernels/reduce_op.h"

enum { MAX_AXES = 8, MAX_SEGMENTS = 8 };

typedef enum { PLACE_R, PLACE_S, PLACE_P } PlaceKind;

typedef struct {
  PlaceKind kind;
  ReduceOp op;    /* P */
  double norm;    /* P: not 0: values are norms of this exponent, (sum |x|^p)^(1/p); op is sum */
  int dim;        /* S: counted from the front */
  int turn;       /* S: 0 = no turn given, else 1 + its place in the order */
  int64_t factor; /* S: >= 1 */
  int64_t unit;   /* S: >= 1 */
  int nsegments;  /* S: 0 = `factor` equal ones */
  int64_t segment[MAX_SEGMENTS];
} Placement;

static inline Placement place_r(void) { return (Placement){.kind = PLACE_R}; }
static inline Placement place_s(int dim) {
  return (Placement){.kind = PLACE_S, .dim = dim, .factor = 1, .unit = 1};
}
static inline Placement place_strided(int dim, int64_t factor) {
  return (Placement){.kind = PLACE_S, .dim = dim, .factor = factor, .unit = 1};
}
static inline Placement place_p(ReduceOp op) { return (Placement){.kind = PLACE_P, .op = op}; }

static inline bool is_r(const Placement *p) { return p->kind == PLACE_R; }
static inline bool is_s(const Placement *p) { return p->kind == PLACE_S; }
static inline bool is_s_of(const Placement *p, int dim) { return p->kind == PLACE_S && p->dim == dim; }
static inline bool is_p(const Placement *p) { return p->kind == PLACE_P; }
/* Cut in one piece per rank, in order: no segments, no unit. */
static inline bool is_plain_s(const Placement *p) {
  return p->kind == PLACE_S && p->factor == 1 && p->unit == 1 && !p->nsegments;
}

bool placement_equal(const Placement *a, const Placement *b);
bool placements_equal(const Placement *a, const Placement *b, int n);
/* The axes of a move between two lists that begin or cease to cut: those whose ranks exchange anything. */
unsigned placements_exchange(const Placement *from, const Placement *to, int n);
uint64_t placements_hash(const Placement *p, int n, uint64_t seed);

/* S with these segments; equal ones become a factor.  Fails on more than MAX_SEGMENTS. */
Status place_segments(int dim, const int64_t *size, int n, int64_t unit, Placement *out);

/* PyTorch's spellings and ours:
 *   R  Replicate()  S(1)  Shard(1)  Shard(dim=1)  _S(0, 2)  _StridedShard(dim=0, split_factor=2)
 *   P  P(max)  Partial()  Partial(max)  P(norm 2)  S(0; segments 64,16,16; unit 16)  S(0)[1]
 * A negative dim is wrapped by ndim (ndim < 0: left as it is, must not be negative).
 * Fails with the text, what is wrong in it and what is understood. */
Status placement_parse(const char *text, int ndim, Placement *out);
/* One per axis, e.g. "S(0),R" or "[Shard(dim=0), Replicate()]" or "S(0)R".  *n <= MAX_AXES. */
Status placements_parse(const char *text, int ndim, Placement *out, int *n);
/* The first of "S(0)R>RR;S(1)R>RR", where a tensor lies before and after; *text goes on behind it. */
Status placements_parse_move(const char **text, int ndim, Placement *from, Placement *to, int *n);

/* "S(1)", "_S(0, 2)", "S(0; segments 64,16,16; unit 16)", "P(sum)"; buf is returned. */
const char *placement_print(const Placement *p, char *buf, size_t cap);
/* "RS(0)P(sum)": PyTorch's form for a list. */
const char *placements_print(const Placement *p, int n, char *buf, size_t cap);

/* May these be partial at once?  Of one kind all of them, but that sum and avg mix. */
bool placements_partial_alike(const Placement *p, int n);
/* Everything about a list that does not depend on sizes: dims within ndim, one kind of
 * Partial at most (sum and avg may mix), turns complete.  `what` opens the message. */
Status placements_check(const Placement *p, int n, int ndim, const char *what);

#endif
