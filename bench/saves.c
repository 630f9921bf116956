/* saves -- how fast a run is saved and restored, beside what the machine can do.
 *
 *     build/bench/saves FOLDER [MEBIBYTES [ROUNDS [THREADS]]]
 *
 * In turns: a save (to the disk: with every fsync), a copy of its files by `cp` and then `sync` of each, a restore
 * from the page cache (mapped, verified, copied), memcpy of as many bytes.  The medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "ckpt/run_folder.h"
#include "ckpt/save.h"

enum { TENSORS = 150, MAX_ROUNDS = 100 };

typedef struct {
  Scope scope;
  SafeItem item[TENSORS];
  char name[TENSORS][64];
  size_t bytes;
  const char *folder;
  int threads;
} Bench;

/* A model and two moments of each tensor; a tenth of it is one tensor. */
static Status make_state(Bench *b, int64_t bytes) {
  for (int i = 0; i < TENSORS; i++) {
    Tensor *t;
    int64_t part = i % 50 == 0 ? bytes / 30 : bytes / TENSORS;
    static const char *const kind[] = {"model.layer%d.weight", "optim.state.layer%d.weight.exp_avg",
                                       "optim.state.layer%d.weight.exp_avg_sq"};
    TRY(tensor_new(&b->scope, DT_F32, 2, (int64_t[]){part / 4096, 1024}, &t));
    size_t n = (size_t)tensor_numel(t) * 4;
    memset(tensor_data(t), i + 1, n);
    if (i < 50) snprintf(b->name[i], sizeof b->name[i], kind[0], i);
    else snprintf(b->name[i], sizeof b->name[i], i < 100 ? kind[1] : kind[2], i % 50);
    b->item[i] = (SafeItem){b->name[i], t};
    b->bytes += n;
  }
  return OK;
}

static Status save(Bench *b, int step) {
  RunFolder *run;
  TRY(run_folder_open(b->folder, &run));
  Status s = run_folder_save(run, &(SaveFacts){.step = step}, b->item, TENSORS, &(KeepSaves){.last = 1});
  run_folder_close(run);
  return s;
}

static Status copy(Bench *b, int step) {
  char command[4096];
  (void)step;
  snprintf(command, sizeof command,
           "cd '%s' && rm -rf copy copied && cp -r step-* copy && sync copy/* copy && mv copy copied && sync .",
           b->folder);
  return system(command) ? fail(ERR_FAIL, "cp failed") : OK;
}

static Status restore(Bench *b, int step) {
  Arena arena = {0};
  Save *s = NULL;
  const char *path;
  (void)step;
  Status r = run_latest(b->folder, &arena, &path);
  if (!r) r = save_open(path, &s);
  if (!r) r = save_restore(s, b->item, TENSORS, b->threads);
  save_close(s);
  arena_free(&arena);
  return r;
}

static Status copy_memory(Bench *b, int step) {
  for (int i = 1; i + 1 < TENSORS; i += 2) {
    size_t n = (size_t)tensor_numel(b->item[i].tensor) * 4, m = (size_t)tensor_numel(b->item[i + 1].tensor) * 4;
    memcpy(tensor_data(b->item[i].tensor), tensor_data(b->item[i + 1].tensor), n < m ? n : m);
  }
  (void)step;
  return OK;
}

static const struct {
  const char *name;
  Status (*run)(Bench *, int);
  double share; /* of the bytes */
} works[] = {
    {"save", save, 1}, {"cp and sync", copy, 1}, {"restore", restore, 1}, {"memcpy, one thread", copy_memory, 0.5}};
enum { WORKS = sizeof works / sizeof *works };

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *v, int n) {
  qsort(v, (size_t)n, sizeof *v, by_value);
  return v[n / 2];
}

static double in_seconds(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec * 1e-6; }

static double processor_now(void) {
  struct rusage own, children;
  getrusage(RUSAGE_SELF, &own);
  getrusage(RUSAGE_CHILDREN, &children);
  return in_seconds(own.ru_utime) + in_seconds(own.ru_stime) + in_seconds(children.ru_utime) +
         in_seconds(children.ru_stime);
}

static Status run_all(Bench *b, int rounds) {
  static double passed[WORKS][MAX_ROUNDS], used[WORKS][MAX_ROUNDS];
  for (int r = 0; r < rounds; r++) {
    for (int w = 0; w < WORKS; w++) {
      double begin = clock_now(), processor = processor_now();
      TRY(works[w].run(b, r));
      passed[w][r] = clock_now() - begin;
      used[w][r] = processor_now() - processor;
    }
  }
  for (int w = 0; w < WORKS; w++) {
    double bytes = works[w].share * (double)b->bytes * 1e-9, t = median(passed[w], rounds),
           cpu = median(used[w], rounds);
    printf("%-20s %8.3f s %8.2f GB/s    processor %8.3f s %8.2f GB/s\n", works[w].name, t, bytes / t, cpu,
           bytes / cpu);
  }
  return OK;
}

int main(int argc, char **argv) {
  Bench b = {.folder = argc > 1 ? argv[1] : NULL, .threads = argc > 4 ? atoi(argv[4]) : 2};
  int rounds = argc > 3 ? atoi(argv[3]) : 5;
  if (!b.folder || rounds < 1 || rounds > MAX_ROUNDS) {
    fprintf(stderr, "usage: saves FOLDER [MEBIBYTES [ROUNDS [THREADS]]]\n");
    return 2;
  }
  Status s = make_state(&b, (argc > 2 ? atoll(argv[2]) : 1500) << 20);
  if (!s) s = run_all(&b, rounds);
  if (s) fprintf(stderr, "%s\n", status_message(s));
  scope_clear(&b.scope);
  int code = s ? 1 : 0;
  status_free(s);
  return code;
}
