/* transformer.h -- PyTorch's test model as modules of tessera.h: token and position embeddings, pre-norm blocks of
 * attention and feed-forward, a norm and a head; loss is the cross entropy of the mean over positions (a
 * classifier) or of every position.  Sizes and values are those of a state_dict; a head.weight of one name with
 * tok.weight is tied. */
#ifndef TESS_TESTS_TRANSFORMER_H
#define TESS_TESTS_TRANSFORMER_H

#include "tessera.h"

typedef struct {
  int heads, causal; /* what no weight tells */
} TransformerShape;

/* Values of the .safetensors file `init`.  forward(x, y) gives the loss.  NULL on error. */
TessModule *transformer_new(TessCtx *ctx, const char *init, const TransformerShape *shape);
int transformer_blocks(TessModule *m);

#endif
