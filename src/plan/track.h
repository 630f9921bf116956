/* track.h -- the features of a weight, followed to a value: which of its dimensions hold them, and
 * what reshapes and cuts make of that.  Arithmetic only; blocks.c follows tracks through a program. */
#ifndef TESS_PLAN_TRACK_H
#define TESS_PLAN_TRACK_H

#include "graph/graph.h"

/* Features [begin, end) are used in `count` equal pieces. */
typedef struct {
  int64_t begin, end, count;
} Span;

/* A dimension of a value that holds features: index i stands for features
 * [base + i' * inner, base + (i' + 1) * inner) with i' = i / repeat % (size / before / repeat);
 * the range of the track begins at base. */
typedef struct {
  int dim;
  int64_t size;
  int64_t inner;  /* features per step */
  int64_t repeat; /* neighbours that are copies: KV heads given to several query heads */
  int64_t before; /* times that the whole comes again: a batch flattened into it */
} TrackDim;

/* Outermost first; dims[0] is what would be cut. */
typedef struct Track {
  const Val *val;
  const Val *from; /* the argument of val's node that it came with; NULL: the weight's product */
  int member;      /* whose features */
  int64_t base;
  int64_t single; /* > 0: so many features that are one piece, whatever happens inside */
  int n;
  TrackDim dims[MAX_DIMS];
} Track;

static inline int64_t dim_pieces(const TrackDim *l) { return l->size / l->before / l->repeat; }
static inline int64_t track_pieces(const Track *t) { return t->single ? 1 : dim_pieces(&t->dims[0]); }
/* The features behind a track end here; they begin at its base. */
static inline int64_t track_end(const Track *t) {
  return t->base + (t->single ? t->single : dim_pieces(&t->dims[0]) * t->dims[0].inner);
}

/* The same features in `out`, which is `in` with other sizes; appends to to->dims.  false: they are
 * not in order there. */
bool track_reshape(const Track *t, const Tensor *in, const Tensor *out, Track *to);
/* The features in `out`, which is `in` from `start` of dimension dim on (or one index of it, and the
 * dimension is gone).  part: the features that are kept, if not all of t's are; else empty.  false:
 * the track ends. */
bool track_cut(const Track *t, const Tensor *in, const Tensor *out, int dim, int64_t start, Track *to, Span *part);

#endif
