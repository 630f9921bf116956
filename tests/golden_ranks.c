/* golden_ranks -- runs programs that contain collectives, on ranks, and compares.
 *
 *     golden_ranks [GOLDEN] [--ranks N] [--launched] [--case NAME] [--large] [--verbose]
 *
 * GOLDEN is a folder with
 *   models/X/rank0.pt2, rank1.pt2 ...   one program per rank, inputs_rankN and outputs_rankN
 *   ddp/fusion/X.before.pt2             one program for all ranks, and what PyTorch's passes
 *                X.concat.pt2 ...       made of it; X.run.safetensors: results on two ranks
 *   train/X/batches.safetensors         inputs of those; others are made up, one set per rank
 *
 * The first kind runs on as many ranks as it has files.  The second runs on 2, 3 and 4 ranks
 * (--ranks N: on N): each program compiled, twice, and interpreted; all programs of a case,
 * and what our own passes make of it, must give the same bits, interpreted ones the same
 * values.  Inputs of more than 4 MiB are left to --large.  --launched: on the ranks of the launch.
 * NAME matches as a substring.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "harness/compare.h"
#include "harness/feed.h"
#include "harness/load.h"
#include "harness/rank_results.h"
#include "passes/pass.h"
#include "pt2/read.h"
#include "runtime/ranks.h"
#include "runtime/session.h"

enum { PATH_CAP = 4096, MOST_CASES = 256, LARGE_BYTES = 4 << 20 };

typedef struct {
  char name[128];
  char folder[PATH_CAP];
  bool pair; /* a program per rank */
  int ranks; /* pair: how many */
} Case;

typedef struct {
  const char *golden, *only;
  bool launched, verbose, large;
  int ranks; /* 0: 2, 3 and 4 */
  Case *cases;
  int ncases, passed, failed;
} Suite;

/* Programs of a case: as recorded, and what our passes make of the first. */
typedef struct {
  const char *file, *passes;
} Variant;
static const Variant variants[] = {
    {"before", NULL},
    {"concat", NULL},
    {"concat+schedule", NULL},
    {"coalesced+schedule", NULL},
    {"schedule", NULL},
    {"before", "fuse_ddp_with_concat_op"},
    {"before", "fuse_ddp_with_concat_op(bucket_size_mb=0.0001,first_bucket_mb=0.0001),schedule_comm_wait"},
    {"before", "fuse_ddp_with_coalesced_op,schedule_comm_wait"},
    {"before", "schedule_comm_wait"},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* What PyTorch's passes get wrong: results differ from those of the graph before. */
static const struct {
  const char *name, *variant, *why;
} known_wrong[] = {
    {"copy_then_read", "co", "a later read of the buffer sees the old value"},
    {"dtypes_differ", "concat", "the bf16 gradient comes back as f32"},
    {"reduce_ops_differ", "co", "the op of the last block is used for all"},
};

static bool is_known_wrong(const char *name, const Variant *v) {
  const char *variant = v->file;
  for (size_t i = 0; i < sizeof known_wrong / sizeof *known_wrong; i++) {
    if (!strcmp(name, known_wrong[i].name) &&
        !strncmp(variant, known_wrong[i].variant, strlen(known_wrong[i].variant)))
      return true;
  }
  return false;
}

/* ---- one call on one rank --------------------------------------------------------------- */

typedef struct {
  Scope scope;
  Arena arena;
  Value *in, *out;
  int nin, nout;
} Called;

static void called_free(Called *c) {
  scope_clear(&c->scope);
  arena_free(&c->arena);
}

/* x and y of batch number `rank`. */
static Status feed_batch(const Suite *suite, const Case *c, const Exported *e, int rank, Called *to) {
  char path[PATH_CAP + 64], model[128];
  SafeTensors *st;
  snprintf(model, sizeof model, "%s", c->name);
  char *tail = strstr(model, "_tail");
  if (tail) *tail = 0;
  snprintf(path, sizeof path, "%s/train/%s/batches.safetensors", suite->golden, model);
  TRY(safetensors_open(path, &st));
  Status s = feed_random(e, 0, true, &to->scope, &to->arena, &to->in, &to->nin);
  for (int i = 0, u = 0; i < e->graph->ninputs && !s; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    Tensor *all = NULL;
    const Tensor *one = to->in[u++].tensor;
    s = safetensors_get(st, e->graph->inputs[i]->name, &to->scope, &all);
    if (s) break;
    int64_t count = tensor_numel(one);
    size_t bytes = (size_t)count * dtype_size(one->dtype);
    if (tensor_numel(all) < count * (rank + 1) || all->dtype != one->dtype)
      s = fail(ERR_FILE, "%s: no batch %d", path, rank);
    else memcpy(tensor_data(one), (char *)tensor_data(all) + (size_t)rank * bytes, bytes);
  }
  safetensors_close(st);
  return s;
}

static bool has_batches(const Case *c, char *path, size_t cap) {
  snprintf(path, cap, "%s/%s.run.safetensors", c->folder, c->name);
  return file_exists(path);
}

static Status feed_case(const Suite *suite, const Case *c, const Exported *e, int rank, Called *to) {
  char path[PATH_CAP + 160];
  if (!c->pair && has_batches(c, path, sizeof path)) return feed_batch(suite, c, e, rank, to);
  if (!c->pair) return feed_random(e, (uint64_t)rank + 1, true, &to->scope, &to->arena, &to->in, &to->nin);
  snprintf(path, sizeof path, "%s/inputs_rank%d.safetensors", c->folder, rank);
  return feed_from_file(e, path, &to->scope, &to->arena, &to->in, &to->nin);
}

/* Programs may write to their inputs. */
static Status copy_inputs(const Called *from, Called *to) {
  TRY_NEW(to->in, arena_new_n(&to->arena, Value, from->nin));
  to->nin = from->nin;
  for (int i = 0; i < from->nin; i++) {
    to->in[i] = from->in[i];
    if (from->in[i].kind != VAL_TENSOR) continue;
    const Tensor *t = from->in[i].tensor;
    Tensor *copy;
    TRY(tensor_new(&to->scope, t->dtype, t->ndim, t->size, &copy));
    if (tensor_numel(t)) memcpy(tensor_data(copy), tensor_data(t), (size_t)tensor_numel(t) * dtype_size(t->dtype));
    to->in[i] = val_tensor(copy);
  }
  return OK;
}

/* Opens the program, calls it `calls` times with fresh inputs, keeps the last call.  Inputs
 * are made by the first call of a case. */
static Status call_program(const Suite *suite, const Case *c, const char *path, const char *passes, Ctx *ctx,
                           int rank, bool interpret, int calls, Called *master, Called *out) {
  Exported *e;
  Session *session = NULL;
  *out = (Called){0};
  TRY(pt2_read(path, &e));
  Status passed = passes ? pass_run_list(e, passes, ctx, NULL) : OK;
  if (passed) exported_free(e);
  TRY(passed);
  TRY(session_open(ctx, e, &session));
  if (interpret) session_force_interpreter(session);
  Status s = master->in ? OK : feed_case(suite, c, session_program(session), rank, master);
  for (int i = 0; i < calls && !s; i++) {
    called_free(out);
    s = copy_inputs(master, out);
    if (!s) s = session_run(session, out->in, out->nin, &out->scope, &out->arena, &out->out, &out->nout);
  }
  session_free(session);
  return s;
}

/* ---- comparing --------------------------------------------------------------------------- */

static Status same_bits(const Called *a, const Called *b, const char *what) {
  if (a->nout != b->nout || a->nin != b->nin)
    return fail(ERR_DIFF, "%s: %d outputs instead of %d", what, b->nout, a->nout);
  for (int i = 0; i < a->nout; i++) {
    if (value_hash(&a->out[i]) != value_hash(&b->out[i])) return fail(ERR_DIFF, "%s: output %d differs", what, i);
  }
  for (int i = 0; i < a->nin; i++) {
    if (value_hash(&a->in[i]) != value_hash(&b->in[i]))
      return fail(ERR_DIFF, "%s: input %d is written otherwise", what, i);
  }
  return OK;
}

static double element(const Tensor *t, int64_t i) {
  int64_t offset = 0;
  for (int d = t->ndim - 1; d >= 0; d--) {
    offset += i % t->size[d] * t->stride[d];
    i /= t->size[d];
  }
  Value v = val_load(t->dtype, (const char *)tensor_data(t) + (size_t)offset * dtype_size(t->dtype));
  return val_as_float(&v);
}

/* Within so much of the largest element. */
static Status near(const Tensor *got, const Tensor *want, double tolerance, const char *what, const char *name) {
  char a[128], b[128];
  if (got->dtype != want->dtype || !tensor_same_size(got, want)) {
    return fail(ERR_DIFF, "%s: %s is %s instead of %s", what, name, tensor_describe(got, a, sizeof a),
                tensor_describe(want, b, sizeof b));
  }
  double largest = 1;
  for (int64_t i = 0; i < tensor_numel(got); i++) largest = fmax(largest, fabs(element(want, i)));
  for (int64_t i = 0; i < tensor_numel(got); i++) {
    double x = element(got, i), y = element(want, i);
    if (isnan(x) && isnan(y)) continue;
    if (!(fabs(x - y) <= tolerance * largest) && x != y)
      return fail(ERR_DIFF, "%s: %s[%lld] is %.9g instead of %.9g", what, name, (long long)i, x, y);
  }
  return OK;
}

/* Made-up weights are large, and sums of them lose digits; a wrong result is far off. */
static Status same_values(const Called *a, const Called *b, const char *what) {
  if (a->nout != b->nout) return fail(ERR_DIFF, "%s: %d outputs instead of %d", what, b->nout, a->nout);
  for (int i = 0; i < a->nout; i++) {
    char name[32];
    snprintf(name, sizeof name, "output %d", i);
    if (a->out[i].kind == VAL_TENSOR) TRY(near(b->out[i].tensor, a->out[i].tensor, 1e-3, what, name));
  }
  return OK;
}

/* Gradients by the names of their parameters, "loss.rank0". */
static Status same_as_recorded(const Case *c, const Exported *e, const Called *got, int rank) {
  char path[PATH_CAP + 160], loss[32];
  SafeTensors *st;
  Scope scope = {0};
  if (!has_batches(c, path, sizeof path)) return OK;
  TRY(safetensors_open(path, &st));
  snprintf(loss, sizeof loss, "loss.rank%d", rank);
  Status s = OK;
  int found = 0;
  for (int i = 0, u = 0; i < e->graph->noutputs && !s; i++) {
    OutputKind k = e->outputs[i].kind;
    if (k == OUT_BUFFER_MUTATION || k == OUT_PARAMETER_MUTATION || k == OUT_USER_INPUT_MUTATION || k == OUT_TOKEN)
      continue;
    const char *name = k == OUT_GRADIENT_TO_PARAMETER ? e->outputs[i].target : u == 0 ? loss : NULL;
    const Value *v = &got->out[u++];
    Tensor *want;
    if (!name || !safetensors_find(st, name)) continue;
    s = safetensors_get(st, name, &scope, &want);
    if (!s) s = near(v->tensor, want, 1e-6, c->name, name);
    found++;
  }
  if (!s && found + 1 < st->count)
    s = fail(ERR_DIFF, "%s: only %d of %d recorded tensors are among the outputs", c->name, found, st->count);
  scope_clear(&scope);
  safetensors_close(st);
  return s;
}

static Status check_recorded(const Case *c, const char *path, const Called *got, int rank) {
  Exported *e;
  TRY(pt2_read(path, &e));
  Status s = same_as_recorded(c, e, got, rank);
  exported_free(e);
  return s;
}

/* ---- a case on one rank -------------------------------------------------------------------- */

/* Differences do not end the world: the others go on, and everybody says what he found. */
static void note(Status *first, Status s) {
  if (*first) status_free(s);
  else *first = s;
}

static Status run_pair(const Suite *suite, const Case *c, Ctx *ctx, World *w, Status *found) {
  char program[PATH_CAP + 64], want[PATH_CAP + 64], *text = NULL;
  size_t len = 0;
  int rank = world_rank(w);
  snprintf(program, sizeof program, "%s/rank%d.pt2", c->folder, rank);
  snprintf(want, sizeof want, "%s/outputs_rank%d.safetensors", c->folder, rank);
  for (int interpret = 0; interpret < 2; interpret++) {
    Called master = {0}, got;
    Status s = call_program(suite, c, program, NULL, ctx, rank, interpret, 2, &master, &got);
    FILE *quiet = s ? NULL : open_memstream(&text, &len);
    if (quiet) {
      note(found, compare_with_file(quiet, want, &(OutputList){got.out, got.nout, NULL}, 1e-6, 1e-6, false));
      fclose(quiet);
      free(text);
    }
    called_free(&got);
    called_free(&master);
    TRY(s);
  }
  return OK;
}

static Status run_variant(const Suite *suite, const Case *c, const Variant *v, Ctx *ctx, World *w, Called *master,
                          Called *before, Status *found) {
  char path[PATH_CAP + 160], what[512];
  int rank = world_rank(w);
  snprintf(path, sizeof path, "%s/%s.%s.pt2", c->folder, c->name, v->file);
  if (!file_exists(path)) return OK;
  bool first = v == variants;
  Called got, plain = {0};
  snprintf(what, sizeof what, "%s.%s %s on %d ranks", c->name, v->file, v->passes ? v->passes : "", world_size(w));
  TRY(call_program(suite, c, path, v->passes, ctx, rank, false, 2, master, &got));
  Status s = call_program(suite, c, path, v->passes, ctx, rank, true, 1, master, &plain);
  if (!s) {
    note(found, same_values(&plain, &got, what));
    if (world_size(w) == 2) note(found, check_recorded(c, path, &got, rank));
    if (!first && !is_known_wrong(c->name, v)) note(found, same_bits(before, &got, what));
  }
  called_free(&plain);
  if (first && !s) *before = got;
  else called_free(&got);
  return s;
}

static Status run_fused(const Suite *suite, const Case *c, Ctx *ctx, World *w, Status *found) {
  Called before = {0}, master = {0};
  Status s = OK;
  for (int i = 0; i < VARIANTS && !s; i++) s = run_variant(suite, c, &variants[i], ctx, w, &master, &before, found);
  called_free(&before);
  called_free(&master);
  return s;
}

typedef struct {
  Suite *suite;
  int first, last; /* cases */
} Part;

static Status on_rank(Ctx *ctx, World *w, void *arg) {
  const Part *p = arg;
  Suite *suite = p->suite;
  for (int i = p->first; i < p->last; i++) {
    const Case *c = &suite->cases[i];
    Status found = OK;
    if (c->pair && c->ranks != world_size(w)) continue;
    TRY(c->pair ? run_pair(suite, c, ctx, w, &found) : run_fused(suite, c, ctx, w, &found));
    int64_t bad = found != OK, all;
    if (found) printf("FAILED rank %d: %s\n", world_rank(w), status_message(found));
    status_free(found);
    TRY(comm_run(
        world_comm(w),
        &(Coll){
            .kind = COLL_ALL_REDUCE, .dtype = DT_I64, .op = REDUCE_SUM, .send = &bad, .recv = &all, .count = 1}));
    if (world_rank(w)) continue;
    if (all) suite->failed++;
    else suite->passed++;
    if (suite->verbose) printf("%s %s on %d ranks\n", all ? "FAILED" : "ok", c->name, world_size(w));
  }
  return OK;
}

/* ---- the suite --------------------------------------------------------------------------------- */

/* Do the inputs of one rank take more than a quick test should?  (What cannot be read
 * fails when it is run.) */
static bool is_large(const char *path) {
  Exported *e;
  double bytes = 0;
  Status s = pt2_read(path, &e);
  status_free(s);
  if (s) return false;
  for (int i = 0; i < e->graph->ninputs; i++) {
    const Val *v = e->graph->inputs[i];
    double n = (double)dtype_size(v->dtype);
    for (int d = 0; v->type == TY_TENSOR && d < v->ndim; d++)
      n *= sym_is_int(v->size[d]) ? (double)v->size[d]->value : 1;
    bytes += v->type == TY_TENSOR ? n : 0;
  }
  exported_free(e);
  return bytes > LARGE_BYTES;
}

static void add_case(Suite *s, const char *folder, const char *name, bool pair) {
  Case *c = &s->cases[s->ncases];
  if (s->ncases == MOST_CASES || (s->only && !strstr(name, s->only))) return;
  *c = (Case){.pair = pair};
  if (snprintf(c->name, sizeof c->name, "%s", name) >= (int)sizeof c->name) return;
  if (snprintf(c->folder, sizeof c->folder, "%s%s%s", folder, pair ? "/" : "", pair ? name : "") >=
      (int)sizeof c->folder)
    return;
  char path[PATH_CAP + 160];
  for (; pair; c->ranks++) {
    snprintf(path, sizeof path, "%s/rank%d.pt2", c->folder, c->ranks);
    if (!file_exists(path)) break;
  }
  snprintf(path, sizeof path, "%s/%.128s.before.pt2", c->folder, c->name);
  if (pair ? c->ranks > 0 : s->large || !is_large(path)) s->ncases++;
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void find_cases(Suite *s, const char *under, bool pair) {
  char folder[PATH_CAP];
  struct dirent **list;
  snprintf(folder, sizeof folder, "%s/%s", s->golden, under);
  int n = scandir(folder, &list, NULL, by_name);
  for (int i = 0; i < n; i++) {
    char *end = strstr(list[i]->d_name, ".before.pt2");
    if (end) *end = 0;
    if (list[i]->d_name[0] != '.' && (pair || end)) add_case(s, folder, list[i]->d_name, pair);
    free(list[i]);
  }
  if (n >= 0) free(list);
}

static void run_on(Suite *s, int ranks) {
  for (int i = 0; i < s->ncases; i++) {
    Part p = {s, i, i + 1};
    Status status = s->cases[i].pair && s->cases[i].ranks != ranks
                        ? OK
                        : ranks_run(&(Ranks){.n = ranks, .threads = 1}, on_rank, &p);
    if (!status) continue;
    printf("FAILED %s on %d ranks: %s\n", s->cases[i].name, ranks, status_message(status));
    status_free(status);
    s->failed++;
  }
}

static Status run_launched(Suite *s) {
  Part p = {s, 0, s->ncases};
  const Transport *t;
  TRY(transport_choose(NULL, &t));
  return ranks_run(&(Ranks){.transport = t, .threads = 1}, on_rank, &p);
}

int main(int argc, char **argv) {
  Suite s = {.golden = GOLDEN_FOLDER};
  Case *cases = calloc(MOST_CASES, sizeof *cases);
  if (!cases) return 1;
  s.cases = cases;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--launched") || !strcmp(argv[i], "--mpi")) s.launched = true;
    else if (!strcmp(argv[i], "--verbose")) s.verbose = true;
    else if (!strcmp(argv[i], "--large")) s.large = true;
    else if (!strcmp(argv[i], "--ranks") && i + 1 < argc) s.ranks = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--case") && i + 1 < argc) s.only = argv[++i];
    else s.golden = argv[i];
  }
  find_cases(&s, "models", true);
  find_cases(&s, "ddp/fusion", false);
  Status status = OK;
  if (s.launched) status = run_launched(&s);
  else if (s.ranks) run_on(&s, s.ranks);
  else
    for (int n = 2; n <= 4; n++) run_on(&s, n);
  if (status) printf("FAILED: %s\n", status_message(status));
  s.failed += status != OK;
  status_free(status);
  free(cases);
  if (s.passed + s.failed || !s.launched) printf("%d passed, %d failed\n", s.passed, s.failed);
  return s.failed != 0 || (!s.launched && !s.passed);
}
