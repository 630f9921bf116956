/* estimate.h -- what a call of a program would take, from sizes alone.
 *
 * Builds the Program that a session would build, except that weights have no data: no
 * page of them is read, and nothing that depends on them is computed ahead.
 */
#ifndef TESS_RUNTIME_ESTIMATE_H
#define TESS_RUNTIME_ESTIMATE_H

#include "runtime/program.h"

/* inputs: tensors need sizes and dtype only.  e is changed and only good for freeing
 * afterwards, which must wait for program_free(*out).  The Program cannot be run.
 * ERR_DYNAMIC if sizes depend on data, ERR_FILE if there are unknown ops. */
Status estimate_program(Ctx *ctx, Exported *e, const Value *inputs, int ninputs, Program **out);

double program_flops(const Program *p);

#endif
