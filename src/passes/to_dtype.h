/* to_dtype.h -- a program as if torch.nn.Module.to(dtype) had come before its export: its parameters, buffers and
 * constants, what users pass, and whatever its nodes make, in another floating-point dtype.
 *
 * An f32 program does not tell whether a node makes f32 because its model says so or because its inputs are: the
 * latter is taken for granted. */
#ifndef TESS_PASSES_TO_DTYPE_H
#define TESS_PASSES_TO_DTYPE_H

#include "graph/graph.h"

/* f32 becomes `to`.  Users go on passing f32: it is cast at the beginning.  Before functionalize. */
Status program_to_dtype(Kern *k, Exported *e, Dtype to);

#endif
