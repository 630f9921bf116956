/* rule.h -- which placements of an op's inputs and outputs go together.
 *
 * A rule never talks to another rank and never looks at elements: it lists *strategies*,
 * and dist/propagate.c chooses the one that costs least to reach.  Tensors are numbered
 * flat (tensors.h), inputs and outputs each by themselves.
 *
 * Three ways to say it, in the op's record (op.h):
 *   .shard.rule   "mk,kn->mn"     letters, see rule_letters() below; without an arrow: rule_words()
 *   .shard.place  a function that calls rule_axis() or rule_mesh() for every strategy; rule_move.h has
 *                 ready ones for ops that move elements
 *   neither                 pointwise ops by their flag; ops with .compose by their parts;
 *                           in-place ops by the op they stand for; else all inputs R
 *
 * I1  A strategy is right if the op, run by every rank on its shards, gives the shards of
 *     the global result, also where sizes do not divide.
 * I2  All-R is always a strategy and comes first; rules do not list it.
 * I3  Order matters: of equally cheap strategies that move nothing the last is taken, of
 *     others the first (PyTorch's rule, which golden data records).
 */
#ifndef TESS_OPS_RULE_H
#define TESS_OPS_RULE_H

#include "ops/tensors.h"
#include "shard/layout.h"

typedef struct {
  Placement *place; /* one: nout + nin; all: (nout + nin) * naxes */
  bool exact;       /* one: S means just that */
  double extra;
} Strategy;

typedef struct {
  Strategy *v;
  int n, cap;
} StrategyList;

struct Rules {
  const Call *call; /* bound arguments; tensors have global sizes; outputs are inferred */
  int naxes;
  const int *axis; /* sizes of the mesh axes */
  int nin, nout;
  Tensor **in, **out;      /* flat; sizes are global */
  const Placement *have;   /* input i on axis a: have[i * naxes + a] */
  const Placement *wanted; /* of output 0, as the caller would have it best (Call.wanted); NULL: it did not say */
  Arena *arena;
  bool uneven;     /* set by a rule: shards may be empty where the input's placement stays */
  bool filled;     /* set by a rule: no shard of an input may be empty */
  bool whole_last; /* set by a rule: all-R is the last strategy, not the first */
  const char *why; /* set by rule_why() */
  /* what the rule listed, in order; strategies for one axis, and for all axes */
  StrategyList one, all;
};

/* The placement of input i on axis a, as it comes in. */
static inline const Placement *rule_have(const Rules *r, int i, int a) { return &r->have[i * r->naxes + a]; }
/* Input i's flat number for argument `arg` (element `item` of a list); -1 if it is None. */
int rule_input(const Rules *r, int arg, int item);

/* A strategy for one axis, which any axis may take: nout + nin placements, outputs first.
 * A plain S(d) among them stands for every kind of shard of dimension d (strided, with
 * units ...) that some input has on the axis, the same kind for all of them. */
Status rule_axis(Rules *r, const Placement *p);
/* The same, meant literally; after it rule_axis() adds the other kinds. */
Status rule_axis_exact(Rules *r, const Placement *p);
/* A strategy for all axes at once: (nout + nin) * naxes placements, tensor by tensor.
 * extra is added to its cost (microseconds), to prefer or to avoid it. */
Status rule_mesh(Rules *r, const Placement *p, double extra);
/* No strategy but all-R: the reason is shown where a plan gathers because of it. */
void rule_why(Rules *r, const char *why);

/* ---- common rules ------------------------------------------------------------------- */

/* Letters: one word per input, one per output: "mk,kn->mn", "*mn,mk,kn->mn".
 *   a letter in an output       S of that dimension wherever it stands, R elsewhere
 *   a letter in no output       S in the inputs, P(sum) in the outputs
 *   [k]                         whole on every rank; a word of these alone is no factor of a product
 *   * before a word             that input broadcasts to the output's letters
 *   ~ before a word             an operand that joins a sum: P where the outputs are P
 *   an input that is a tensor of no letters is R
 * Multilinear ops also pass P(sum): one input P, the others R. */
Status rule_letters(Rules *r, const char *text, bool multilinear);

/* Words: a strategy for one axis each, a letter per result and then per argument.
 *   0 .. 9     S of that dimension
 *   s a x n p  P of sum, avg, max, min, product
 *   r          R
 *   + before   the word also counts where no input is cut like that
 * Every result and tensor argument of the schema has its letter, None or not; a list has
 * one for all its elements; a word that is too short repeats its last letter.
 *   "00r"      convolution: the batch of the input; weight and bias are whole
 *   "0 1 s a"  upsampling: batch, channels, and it is linear */
Status rule_words(Rules *r, const char *text);
/* One such word, whose dimensions are `groups` equal groups each: cuts fall between them. */
Status rule_grouped(Rules *r, const char *word, int64_t groups);

/* Pointwise with broadcasting; linear says what P does. */
Status rule_pointwise(Rules *r, Linear linear);
/* The same for a table of ops: as the op's .linear says. */
Status place_pointwise(Rules *r);

/* Dimensions that an op folds or needs whole; the others pass.  Inputs of the leading one's
 * size are placed like it, all others are whole. */
typedef struct {
  int lead;             /* the input to follow */
  bool whole[MAX_DIMS]; /* its dimensions that must not be cut ... */
  bool leaves_partial;  /* ... or, if they are, leave this to be reduced: */
  Placement partial;
  bool drops;      /* whole dimensions are no dimensions of the results */
  bool any;        /* list every shard that is possible; else: as the input lies */
  bool offers;     /* any: also where no input is cut */
  unsigned passes; /* bit op: P(op) of the input becomes P(op) of the results */
  double norm;     /* P(norm) that does so */
} Fold;
Status rule_fold(Rules *r, const Fold *f);

/* The dimensions of argument 0 that the argument `dim` names, all if it names none or there
 * is no such argument. */
Status rule_dims(const Rules *r, bool *mask);
/* These dimensions are whole; the others pass, as the input lies / in any way / in any way,
 * and it may be cut for it. */
Status place_along(Rules *r);
Status place_rows(Rules *r);
Status place_rows_offered(Rules *r);

/* One strategy for all axes, made axis by axis: fn fills nout + nin placements. */
typedef Status AxisFn(const Rules *r, const void *arg, int axis, Placement *p);
Status rule_follow(Rules *r, AxisFn *fn, const void *arg);

/* Some rank has no elements of input i along the dimensions of mask. */
bool rule_has_empty(const Rules *r, int i, const bool *mask);
/* Every rank has as many. */
bool rule_is_even(const Rules *r, int i, const bool *mask);

/* ---- composing instead ------------------------------------------------------------------- */

/* How the inputs of a call lie, for compose_sharded (op.h). */
struct Sharded {
  bool keep;            /* what is sharded is to stay so: exchange partial results instead of gathering */
  const unsigned *dims; /* by input, flat: bit d: dimension d is sharded over several ranks */
};
/* Is argument `arg` sharded along one of these dimensions, and is it to stay so? */
bool sharded_along(const Sharded *how, const Call *c, int arg, const bool *dims);

/* ---- the local call -------------------------------------------------------------------- */

/* Rewrites a call for one rank, once placements are chosen: sizes in arguments become
 * local, offsets are added.  Default (no .localize): an argument that spells the sizes of
 * output 0 (the schema's `size`, `self_size`, `input_sizes` ...) gets the local ones. */
struct Local {
  const Call *call; /* the global call */
  const OpDef *def; /* whose rule it is: of an op in place, that of its functional form */
  const Op *op;     /* may be replaced */
  Value *arg;       /* may be rewritten; lists are replaced, never written through */
  int naxes;
  const int *axis, *coord;
  int nin, nout;
  Tensor **in, **out;     /* global sizes */
  const Placement *place; /* as chosen: outputs first, then inputs, naxes each */
  Arena *arena;
};

const Placement *local_place_out(const Local *l, int i);
const Placement *local_place_in(const Local *l, int i);
/* Sizes of this rank's part. */
Status local_out_size(const Local *l, int i, int64_t *size);
Status local_in_size(const Local *l, int i, int64_t *size);
/* Where this rank's part of dimension dim begins; fails if it is more than one run. */
Status local_in_begin(const Local *l, int i, int dim, int64_t *begin);
Status local_out_begin(const Local *l, int i, int dim, int64_t *begin);
/* Replaces argument i (by position) with these numbers. */
Status local_set_ints(Local *l, int i, const int64_t *v, int n);
/* Puts the local sizes of output 0 into argument i. */
Status local_set_out_size(Local *l, int i);

#endif
