/* specialize.h -- a program for one set of input sizes.
 *
 * Takes a functional program with symbolic sizes and gives a new one in which every
 * size is a number, composite ops are dissolved, numbers are computed and everything
 * that depends on weights and sizes alone is a constant.
 *
 * I1  The source program is only read: ranks may specialise it at the same time.
 * I2  Weights are shared, not copied; the result must not outlive the source.
 */
#ifndef TESS_RUNTIME_SPECIALIZE_H
#define TESS_RUNTIME_SPECIALIZE_H

#include "graph/graph.h"

/* Which symbol has which value, from the sizes of the user inputs (in the order of the
 * signature; tensors or numbers).  Checks dtypes, fixed sizes and ranges; errors name
 * the input, the symbol, the value and the range.  bindings->v is malloc'ed. */
Status specialize_bind(const Exported *e, const Value *user_inputs, int ninputs, SymBindings *bindings);

/* ERR_DYNAMIC if some size depends on data: such a program is interpreted. */
Status specialize(Ctx *ctx, const Exported *e, const Value *user_inputs, int ninputs, Exported **out);

#endif
