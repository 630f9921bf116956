/* bench.h -- `tessera bench NAME ...`: a benchmark is a function and a row in bench.c. */
#ifndef TESS_CLI_BENCH_H
#define TESS_CLI_BENCH_H

#include "base/status.h"

/* argv: what follows the name. */
typedef Status BenchFn(const char *name, int argc, char **argv);
BenchFn bench_run, bench_collective, bench_calibrate;

#endif
