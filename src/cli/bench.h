/* bench.h -- `tessera bench NAME ...`: a benchmark is a function and a row in bench.c. */
#ifndef TESS_CLI_BENCH_H
#define TESS_CLI_BENCH_H

#include "cli/cli.h"

/* name: of the benchmark; argv: what follows it. */
SubCommandFn bench_run, bench_collective, bench_calibrate;
extern const CommandSpec spec_bench_run, spec_bench_collective, spec_bench_calibrate;

#endif
