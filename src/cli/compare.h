/* compare.h -- outputs against a file of expected ones. */
#ifndef TESS_CLI_COMPARE_H
#define TESS_CLI_COMPARE_H

#include "cli/cli.h"

/* Every tensor of the file must be an output of the same dtype and size, each element
 * within atol + rtol * |expected| (negative: f64 1e-9, f32 1e-4, f16 4e-3, bf16 3e-2;
 * integers exactly).  Prints a line per output; ERR_DIFF if one differs. */
Status compare_with_file(FILE *f, const char *path, const Value *outs, int nouts, double rtol, double atol, bool json);

#endif
