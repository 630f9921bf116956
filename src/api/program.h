/* program.h -- what the files of the public API know of an open program. */
#ifndef TESS_API_PROGRAM_H
#define TESS_API_PROGRAM_H

#include "api/api.h"
#include "runtime/session.h"

struct TessProgram {
  TessCtx *ctx;
  Session *session;
  bool lent; /* it is part of a trainer */
};

/* A value per user input that is given; values has room for n. */
Status api_gather_inputs(const TessProgram *p, const TessTensor *const *inputs, int n, Value *values);

#endif
