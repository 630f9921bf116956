/* spread.c -- what a program that was cut into ranks says to the other ranks. */
#include "ops/geometry.h"

/* redistribute(self, mesh, src, dst, shape, size, why): this rank's shard (`size`) of a
 * tensor of `shape` placed dst, from its shard as src has it.  Every rank of the mesh calls
 * it.  Not a function of its arguments: what the others have is in the result. */
static Status redistribute_infer(Call *c) {
  Tensor *self;
  Ints size = in_ints(c, 5);
  TRY(need_tensor(c, 0, &self));
  return out_new(c, self->dtype, size.n, size.v);
}

static Status redistribute_run(Call *c) {
  if (!c->ctx->redistribute)
    return status_hint(op_fail(c, "needs the ranks of the mesh %s, and there is only this one", in_str(c, 1)),
                       "run it with --mesh");
  return c->ctx->redistribute(c);
}

const OpDef ops_redistribute[] = {{.schema = "tess::redistribute(Tensor self, str mesh, str src, str dst, SymInt[] "
                                             "shape, SymInt[] size, str why) -> Tensor",
                                   .infer = redistribute_infer,
                                   .run = redistribute_run,
                                   .flags = OP_RANDOM},
                                  {0}};
