/* recompose.h -- the patterns of the pass; each looks at one node (whose arguments are
 * up to date), and if it is the last one of its pattern sets *out to a value that may
 * take the place of its first result.  *out stays NULL otherwise. */
#ifndef TESS_PASSES_RECOMPOSE_H
#define TESS_PASSES_RECOMPOSE_H

#include "graph/graph.h"

typedef Status RecomposeFn(Graph *g, Node *n, Val **out);

RecomposeFn recompose_linear, recompose_attention, recompose_repeated_heads, recompose_rms_norm, recompose_gelu,
    recompose_silu;

#endif
