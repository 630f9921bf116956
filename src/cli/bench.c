/* bench.c -- `tessera bench`: which benchmark. */
#include "cli/bench.h"

#include <string.h>

#include "base/near.h"

static const SubCommand benchmarks[] = {
    {"run", "calls of a program", bench_run, &spec_bench_run},
    {"calibrate", "this machine as a few numbers, for `tessera plan --machine`", bench_calibrate,
     &spec_bench_calibrate},
    {"allreduce", "ranks reduce a buffer, all get the result", bench_collective, &spec_bench_collective},
    {"allgather", "all ranks get the parts of all", bench_collective, &spec_bench_collective},
    {"reducescatter", "ranks reduce a buffer, each gets a part", bench_collective, &spec_bench_collective},
    {"alltoall", "every rank sends a part to every rank", bench_collective, &spec_bench_collective},
    {"broadcast", "all ranks get the buffer of one", bench_collective, &spec_bench_collective},
};
enum { BENCHMARKS = sizeof benchmarks / sizeof *benchmarks };

static const char examples[] = "  tessera bench run model.pt2\n"
                               "  tessera bench allreduce -b 8 -e 128M -f 2 -n 4\n"
                               "  tessera bench calibrate -o machine.json\n";

const CommandSpec spec_bench = {
    .usage = "BENCHMARK [options]", .examples = examples, .sub = benchmarks, .nsub = BENCHMARKS};

static Status no_benchmark(const char *word) {
  const char *near = NULL;
  for (int i = 0, limit = near_limit(word); i < BENCHMARKS; i++) {
    int d = near_distance(word, benchmarks[i].name, limit);
    if (d <= limit) near = benchmarks[i].name, limit = d - 1;
  }
  Status s = fail(ERR_USAGE, "there is no benchmark '%s'", word);
  return near ? status_hint(s, "did you mean 'tessera bench %s'?", near)
              : status_hint(s, "`tessera bench --help` lists them");
}

Status command_bench(int argc, char **argv) {
  const char *word = argc ? argv[0] : NULL;
  if (word && word[0] != '-') {
    for (int i = 0; i < BENCHMARKS; i++) {
      if (!strcmp(word, benchmarks[i].name)) return benchmarks[i].run(word, argc - 1, argv + 1);
    }
    return no_benchmark(word);
  }
  TextList words;
  bool help;
  TRY(options_parse("bench", &spec_bench, NULL, argc, argv, &words, &help));
  if (!help) return status_hint(fail(ERR_USAGE, "which benchmark?"), "`tessera bench --help` lists them");
  printf("\nbenchmarks (each has a --help of its own)\n");
  for (int i = 0; i < BENCHMARKS; i++) printf("  %-16s %s\n", benchmarks[i].name, benchmarks[i].summary);
  return OK;
}
