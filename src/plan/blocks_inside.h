/* blocks_inside.h -- tracks, and what they find out; shared by blocks.c (following) and
 * blocks_place.c (what follows from it). */
#ifndef TESS_PLAN_BLOCKS_INSIDE_H
#define TESS_PLAN_BLOCKS_INSIDE_H

#include "plan/blocks.h"

/* A dimension of a value that holds features: index i stands for features
 * [base + i' * inner, base + (i' + 1) * inner) with i' = i / repeat % (size / before / repeat);
 * the range of the track begins at base. */
typedef struct {
  int dim;
  int64_t size;
  int64_t inner;  /* features per step */
  int64_t repeat; /* neighbours that are copies: KV heads given to several query heads */
  int64_t before; /* times that the whole comes again: a batch flattened into it */
} Lead;

/* Outermost first; lead[0] is what would be cut. */
typedef struct Track {
  const Val *val;
  const Val *from; /* the argument of val's node that it came with; NULL: the weight's product */
  int member;      /* whose features */
  int64_t base;
  int64_t single; /* > 0: so many features that are one piece, whatever happens inside */
  int n;
  Lead lead[MAX_DIMS];
} Track;

static inline int64_t lead_pieces(const Lead *l) { return l->size / l->before / l->repeat; }
static inline int64_t track_pieces(const Track *t) { return t->single ? 1 : lead_pieces(&t->lead[0]); }
/* The features behind a track end here; they begin at its base. */
static inline int64_t track_end(const Track *t) {
  return t->base + (t->single ? t->single : lead_pieces(&t->lead[0]) * t->lead[0].inner);
}

int blocks_group(const Blocks *b, int member);
/* The member that keeps what is known of these features. */
Member *blocks_twin(const Blocks *b, int member);
/* Features [begin, end) are used in `count` equal pieces. */
void member_add_span(Member *m, int64_t begin, int64_t end, int64_t count);

#endif
