/* embedding.c -- gradients of rows of a table that are looked up, one by one or summed up in bags. */
#include "ops/vjp.h"

static void vjp_embedding(Vjp *v) {
  vjp_give(v, 0,
           F_OP(&v->f, "aten.embedding_dense_backward.default", F_T(vjp_cotangent(v)), vjp_value(v, 1),
                val_int(v->in[0]->size[0]), vjp_value(v, 2), vjp_value(v, 3)));
}

const GradDef grads_embedding[] = {
    GRAD("embedding.default", vjp_embedding, "indices"),
    {0},
};
