/* match.h -- small questions about the graph that pattern passes ask. */
#ifndef TESS_PASSES_MATCH_H
#define TESS_PASSES_MATCH_H

#include "graph/graph.h"

/* The node that makes a, if its target is `target`; else NULL. */
Node *match_node(const Arg *a, const char *target);
Node *match_val_node(const Val *v, const char *target);

/* A number, or a constant tensor of one element. */
bool match_number(const Arg *a, double *out);

/* x * s or x / s with a number s: x and the factor; false if v is neither. */
bool match_scaled(const Val *v, Val **x, double *factor);

/* add or sub (alpha is argument 2) without a factor */
bool match_plain_alpha(const Node *add);

/* x with its last two dimensions exchanged (transpose, permute); NULL if v is not that. */
Val *match_transposed(const Val *v);

/* Back through view, reshape, expand to the same number of elements, clone, contiguous:
 * nodes that keep the row-major order of elements.  Stops at the first value for which
 * `stop` says so, or at the source. */
Val *match_before_views(Val *v);

/* A tensor of floats all of whose elements are finite, whatever the inputs of the program are: made of numbers,
 * of conditions, and of choices between them. */
bool match_is_finite(const Val *v);

bool same_sizes(const Val *a, const Val *b);
/* sizes of the last n dimensions are equal */
bool same_last_sizes(const Val *a, const Val *b, int n);

/* The value of an int argument; its default if not given. */
bool match_int(const Arg *a, int64_t otherwise, int64_t *out);
bool match_is_last_dim(const Arg *a, const Val *v, int64_t otherwise);

#endif
