/* golden_fsdp -- PyTorch's recorded runs of fully_shard, done again with tess_fully_shard().
 *
 *     golden_fsdp [FOLDER...] [--case NAME] [--every K] [--launched] [--verbose]
 *
 * A FOLDER holds fsdp/ (CASE.json, CASE.safetensors), train/ (the model's init and batches) and dtensor/
 * (fsdp_common.jsonl, of which every K-th row is taken).  Of each case: losses of every rank, parameters after
 * training, gradient norms, placements and sizes of shards, the order of events of the last step, and the number,
 * bytes, dtypes and reductions of its collectives (fsdp/compare.c says how PyTorch's padding is taken off). Numbers
 * are within 1e-5 of the largest, 3e-2 in half precision.  Runs that PyTorch refuses are compared with the same
 * training in one process.  --launched: this process is one of the ranks (mpirun -n 4 golden_fsdp --launched).
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/case.h"

typedef struct {
  const char *only;
  int every, passed, failed;
  bool verbose;
  TessCtx *launched; /* this process's rank; NULL: ranks are threads */
} Suite;

static int rank_of_case(TessCtx *ctx, void *arg) { return fsdp_case_run(ctx, arg); }

/* Each rank compares and tells what is its own. */
static bool run_launched(Suite *s, FsdpCase *c, char *error, size_t cap) {
  if (tess_rank(s->launched) < c->world && fsdp_case_run(s->launched, c)) {
    snprintf(error, cap, "%s", tess_error_message(s->launched));
    return false;
  }
  tess_barrier(s->launched);
  return true;
}

static void run_case(Suite *s, FsdpCase *c) {
  char error[1024] = "";
  const bool told = s->launched && tess_rank(s->launched);
  TextBuf trouble = {0};
  if (s->launched ? run_launched(s, c, error, sizeof error)
                  : !tess_run_ranks(c->world, 1, rank_of_case, c, error, sizeof error)) {
    if (!s->launched || tess_rank(s->launched) < c->world)
      fsdp_case_compare(c, s->launched ? tess_rank(s->launched) : -1);
  }
  for (int r = 0; r < c->world; r++)
    if (c->rank[r].trouble.text) text_printf(&trouble, "%s", c->rank[r].trouble.text);
  const bool good = !*error && !trouble.len;
  if (!good) printf("FAIL %s %s\n%s", c->name, error, trouble.text ? trouble.text : "");
  else if (s->verbose && !told) printf("ok   %s\n", c->name);
  s->passed += good;
  s->failed += !good;
  text_free(&trouble);
}

static bool is_half(const yyjson_val *what) {
  const char *policy = yyjson_get_str(yyjson_obj_get((yyjson_val *)(uintptr_t)what, "mp"));
  return policy && (strstr(policy, "float16") || strstr(policy, "bfloat16"));
}

static void read_case(Suite *s, const char *folder, const char *name) {
  FsdpCase c = {0};
  char path[2048];
  snprintf(c.name, sizeof c.name, "%.*s", (int)(strlen(name) - 5), name);
  snprintf(c.fsdp, sizeof c.fsdp, "%.1000s/fsdp", folder);
  snprintf(path, sizeof path, "%s/%s", c.fsdp, name);
  yyjson_doc *doc = yyjson_read_file(path, 0, NULL, NULL);
  c.json = yyjson_doc_get_root(doc);
  c.what = yyjson_obj_get(c.json, "case");
  c.world = yyjson_get_int(yyjson_obj_get(c.json, "world"));
  c.half = is_half(c.what);
  const char *model = yyjson_get_str(yyjson_obj_get(c.json, "model"));
  snprintf(c.train, sizeof c.train, "%.900s/train/%.90s", folder, model ? model : "");
  const bool fits = !s->launched || c.world <= tess_world_size(s->launched);
  if (c.what && c.world > 0 && c.world <= FSDP_MAX_RANKS && fits) {
    c.rank = calloc((size_t)c.world, sizeof *c.rank);
    if (c.rank) run_case(s, &c);
    for (int r = 0; c.rank && r < c.world; r++) text_free(&c.rank[r].trouble);
    free(c.rank);
  }
  free(c.event);
  text_free(&c.groups);
  yyjson_doc_free(doc);
}

static int is_json(const struct dirent *e) {
  size_t n = strlen(e->d_name);
  return n > 5 && !strcmp(e->d_name + n - 5, ".json");
}

static void run_folder(Suite *s, const char *folder) {
  char path[2048];
  struct dirent **list = NULL;
  snprintf(path, sizeof path, "%s/fsdp", folder);
  int n = scandir(path, &list, is_json, alphasort);
  if (n < 0) printf("FAIL %s cannot be read\n", path), s->failed++;
  for (int i = 0; i < n; i++) {
    size_t len = strlen(list[i]->d_name) - 5;
    if (!s->only || (strlen(s->only) == len && !strncmp(s->only, list[i]->d_name, len)))
      read_case(s, folder, list[i]->d_name);
    free(list[i]);
  }
  free(list);
  snprintf(path, sizeof path, "%s/dtensor/fsdp_common.jsonl", folder);
  if (!s->only && !s->launched) fsdp_common(path, s->every, &s->passed, &s->failed);
}

int main(int argc, char **argv) {
  Suite s = {.every = 1};
  int folders = 0;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--case") && i + 1 < argc) s.only = argv[++i];
    else if (!strcmp(argv[i], "--every") && i + 1 < argc) s.every = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--verbose")) s.verbose = true;
    else if (!strcmp(argv[i], "--launched")) s.launched = tess_ctx_mpi(1);
    else argv[1 + folders++] = argv[i];
  }
  for (int i = 0; i < folders; i++) run_folder(&s, argv[1 + i]);
  if (!folders) run_folder(&s, GOLDEN_FOLDER);
  if (!s.launched || !tess_rank(s.launched)) printf("%d passed, %d failed\n", s.passed, s.failed);
  tess_ctx_free(s.launched);
  return s.failed || !s.passed ? 1 : 0;
}
