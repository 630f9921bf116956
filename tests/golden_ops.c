/* golden_ops -- runs the golden cases of single operators through the dispatcher.
 *
 *     golden_ops [FOLDER] [--op NAME] [--family F] [--case ID] [--threads N] [--verbose] [--skip-unknown]
 *                [--ranks N] [--seed S] [--launched] [--every K] [--grad] [--twice]
 *
 * --ranks: every case is run spread over N thread ranks, its tensors placed at random, and
 * compared with one rank (new memory is left out).
 * --launched: the same, and this process is one of the ranks (mpirun -n 4 golden_ops --launched).
 * --every: only every K-th case.
 * --grad: the gradients of the cases that have recorded ones, instead of the results; also on ranks.
 * --twice: second derivatives of these, compared with differences of gradients (golden_twice.h).
 * NAME is an overload (aten.add.Tensor), or the beginning of one up to a dot (aten.add,
 * add).  Ops that are not in the registry count as failed unless --skip-unknown.  Cases
 * run in child processes: a crash or a hang is the failure of one case.
 */
#include <dirent.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/launch.h"
#include "golden_compare.h"
#include "golden_spread.h"
#include "golden_twice.h"
#include "golden_vjp.h"

enum { CASE_SECONDS = 30, REASON = 400 };

typedef struct {
  enum { WAITING, RUNNING, PASSED, FAILED, UNKNOWN, LEFT_OUT } state; /* LEFT_OUT: not compared, so not counted */
  char reason[REASON];
} Result; /* in memory that children share */

typedef struct {
  const char *id, *op;
  char family[32];
  yyjson_doc *doc;
  SafeTensors *data;
  Result *result;
} Item;

enum { MAX_FILES = 64 };

typedef struct {
  const char *folder, *op, *family, *id;
  bool verbose, skip_unknown, launched, grad, twice;
  int threads, ranks, every;
  uint64_t seed;
  Item *items;
  int count, cap;
  SafeTensors *files[MAX_FILES]; /* the cases' data */
  int nfiles;
} Suite;

static void stop(Status s) {
  fprintf(stderr, "golden_ops: %s\n", status_message(s));
  exit(2);
}

/* ---- reading ---------------------------------------------------------------- */

static bool op_matches(const char *op, const char *pattern) {
  size_t n = strlen(pattern);
  if (!strncmp(op, pattern, n) && (op[n] == 0 || op[n] == '.')) return true;
  const char *bare = strchr(op, '.');
  return bare && !strncmp(bare + 1, pattern, n) && (bare[n + 1] == 0 || bare[n + 1] == '.');
}

static Status add_case(Suite *s, const char *family, SafeTensors *data, const char *line, size_t length) {
  yyjson_doc *doc;
  const char *op, *id;
  TRY(json_parse(family, line, length, 0, &doc));
  TRY(json_string(yyjson_doc_get_root(doc), "op", family, &op));
  TRY(json_string(yyjson_doc_get_root(doc), "id", family, &id));
  if ((s->op && !op_matches(op, s->op)) || (s->id && strcmp(id, s->id))) {
    yyjson_doc_free(doc);
    return OK;
  }
  if (s->count == s->cap) {
    s->cap = s->cap ? s->cap * 2 : 1024;
    TRY_NEW(s->items, realloc(s->items, (size_t)s->cap * sizeof *s->items));
  }
  Item *item = &s->items[s->count++];
  *item = (Item){.id = id, .op = op, .doc = doc, .data = data};
  snprintf(item->family, sizeof item->family, "%.31s", family);
  return OK;
}

static Status read_family(Suite *s, const char *family) {
  char path[4096];
  FileMap *lines;
  SafeTensors *data;
  snprintf(path, sizeof path, "%s/%s.safetensors", s->folder, family);
  if (s->nfiles == MAX_FILES) return fail(ERR_USAGE, "'%s' has more than %d families", s->folder, MAX_FILES);
  TRY(safetensors_open(path, &data));
  s->files[s->nfiles++] = data;
  snprintf(path, sizeof path, "%s/%s.jsonl", s->folder, family);
  TRY(file_map(path, &lines));
  const char *at = (const char *)lines->data, *end = at + lines->size;
  while (at < end) {
    const char *stop_at = memchr(at, '\n', (size_t)(end - at));
    if (!stop_at) stop_at = end;
    if (stop_at > at) TRY(add_case(s, family, data, at, (size_t)(stop_at - at)));
    at = stop_at + 1;
  }
  file_map_unref(lines);
  return OK;
}

static void suite_free(Suite *s) {
  for (int i = 0; i < s->count; i++) yyjson_doc_free(s->items[i].doc);
  for (int i = 0; i < s->nfiles; i++) safetensors_close(s->files[i]);
  free(s->items);
}

static int is_jsonl(const struct dirent *e) {
  size_t n = strlen(e->d_name);
  return n > 6 && !strcmp(e->d_name + n - 6, ".jsonl");
}

static Status read_suite(Suite *s) {
  struct dirent **found = NULL;
  int n = scandir(s->folder, &found, is_jsonl, alphasort);
  if (n <= 0) return fail(ERR_USAGE, "there are no .jsonl files in '%s'", s->folder);
  for (int i = 0; i < n; i++) {
    char family[256];
    snprintf(family, sizeof family, "%.*s", (int)strlen(found[i]->d_name) - 6, found[i]->d_name);
    if (!s->family || !strcmp(s->family, family)) TRY(read_family(s, family));
    free(found[i]);
  }
  free(found);
  Result *results = mmap(NULL, ((size_t)s->count + 1) * sizeof *results, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (results == MAP_FAILED) return fail_oom();
  for (int i = 0; i < s->count; i++) s->items[i].result = &results[i];
  return OK;
}

/* ---- running (in a child) --------------------------------------------------- */

static Status run_gradients(GoldenCase *c, Ctx *ctx) {
  Tensor *gradient[GOLDEN_TENSORS] = {0};
  TRY(golden_case_read(c));
  TRY(golden_gradients(c, ctx, NULL, gradient));
  return golden_compare_gradients(c, gradient);
}

static Status run_case(GoldenCase *c, Ctx *ctx, Scope *scope, Arena *arena) {
  TRY(golden_case_read(c));
  Value bound[MAX_PARAMS];
  Call call = {.ctx = ctx, .op = op_find(c->op), .arg = bound, .scope = scope, .arena = arena};
  TRY(op_bind(arena, call.op, c->args, c->nargs, bound));
  TRY(op_dispatch(&call));
  return golden_compare(c, call.out, call.nout);
}

/* On ranks: new memory holds anything, and as_strided speaks of the storage of a tensor,
 * which a shard does not have. */
static bool can_spread(const Item *item) {
  return !strstr(item->op, "empty") && strcmp(item->op, "aten.as_strided.default");
}

static void run_spread(const Item *item, int ranks, uint64_t seed, bool grad) {
  Result *r = item->result;
  bool refused = false;
  r->state = RUNNING;
  alarm(CASE_SECONDS);
  Status s = golden_spread(item->family, yyjson_doc_get_root(item->doc), item->data, ranks, seed, grad, &refused);
  alarm(0);
  if (s) snprintf(r->reason, REASON, "%s", status_message(s));
  r->state = s ? FAILED : refused ? LEFT_OUT : PASSED;
  status_free(s);
}

static void run_twice(const Item *item, int threads) {
  Result *r = item->result;
  bool left_out = false;
  r->state = RUNNING;
  alarm(CASE_SECONDS);
  Status s = golden_twice(item->family, yyjson_doc_get_root(item->doc), item->data, threads, &left_out);
  alarm(0);
  if (s) snprintf(r->reason, REASON, "%s", status_message(s));
  r->state = s ? FAILED : left_out ? LEFT_OUT : PASSED;
  status_free(s);
}

static void run_item(const Item *item, int threads, bool grad) {
  Result *r = item->result;
  if (!op_find(item->op)) {
    r->state = UNKNOWN;
    snprintf(r->reason, REASON, "not in the registry");
    return;
  }
  GoldenCase c = {.family = item->family, .json = yyjson_doc_get_root(item->doc), .data = item->data};
  Ctx ctx;
  Scope scope = {0};
  Arena arena = {0};
  ctx_init(&ctx, threads);
  r->state = RUNNING;
  alarm(CASE_SECONDS);
  Status s = grad ? run_gradients(&c, &ctx) : run_case(&c, &ctx, &scope, &arena);
  alarm(0);
  if (s) snprintf(r->reason, REASON, "%s", status_message(s));
  r->state = s ? FAILED : PASSED;
  status_free(s);
  scope_clear(&scope);
  arena_free(&arena);
  golden_case_free(&c);
  ctx_free(&ctx);
}

static void say_crash(Result *r, int status) {
  int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  r->state = FAILED;
  if (sig == SIGALRM) snprintf(r->reason, REASON, "did not end within %d seconds", CASE_SECONDS);
  else if (sig) snprintf(r->reason, REASON, "crashed: %s", strsignal(sig));
  else snprintf(r->reason, REASON, "ended the process with code %d", WEXITSTATUS(status));
}

/* True if the cases are done but the process did not end well. */
static bool run_suite(Suite *s) {
  int status = 0;
  for (int next = 0; next < s->count;) {
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) stop(fail(ERR_FAIL, "cannot start a process"));
    if (child == 0) {
      mallopt(M_PERTURB, 0x80); /* fresh memory is 0x7f7f...: what a kernel forgets to write shows */
      for (int i = next; i < s->count; i++) {
        Item *item = &s->items[i];
        bool skip = (s->grad || s->twice) && !golden_has_gradients(yyjson_doc_get_root(item->doc));
        if (i % s->every || skip) item->result->state = LEFT_OUT;
        else if (s->twice && op_find(item->op)) run_twice(item, s->threads);
        else if (!s->ranks || !op_find(item->op)) run_item(item, s->threads, s->grad);
        else if (can_spread(item)) run_spread(item, s->ranks, s->seed * 1000003 + (uint64_t)i, s->grad);
        else item->result->state = LEFT_OUT;
      }
      exit(0); /* not _exit: a leak checker has its say at the end */
    }
    waitpid(child, &status, 0);
    while (next < s->count && s->items[next].result->state > RUNNING) next++;
    if (next < s->count) say_crash(s->items[next++].result, status), status = 0;
  }
  return status != 0;
}

/* ---- as a rank of an MPI launch ------------------------------------------------- */

/* A case that fails on all ranks alike is counted; ranks that do not agree end the run. */
static Status run_case_on(World *w, const Suite *s, int i, int32_t *failed, bool *refused) {
  const Item *item = &s->items[i];
  alarm(CASE_SECONDS);
  Status e = golden_spread_on(w, item->family, yyjson_doc_get_root(item->doc), item->data,
                              s->seed * 1000003 + (uint64_t)i, refused);
  int32_t mine = e != OK;
  e = status_at(e, "rank %d, %s, case %s", world_rank(w), item->op, item->id);
  if (e) fprintf(stderr, "%s\n", status_message(e));
  Status agreed = comm_run(world_comm(w), &(Coll){.kind = COLL_ALL_REDUCE,
                                                  .dtype = DT_I32,
                                                  .op = REDUCE_MAX,
                                                  .send = &mine,
                                                  .recv = failed,
                                                  .count = 1,
                                                  .why = item->id});
  alarm(0);
  status_free(e);
  return agreed;
}

static Status run_on(World *w, void *arg) {
  const Suite *s = arg;
  int passed = 0, failed = 0, left_out = 0;
  world_set_timeout(w, CASE_SECONDS / 2);
  mallopt(M_PERTURB, 0x80);
  for (int i = 0; i < s->count; i += s->every) {
    int32_t bad = 0;
    bool refused = false;
    if (!op_find(s->items[i].op) || !can_spread(&s->items[i])) {
      left_out++;
      continue;
    }
    TRY(run_case_on(w, s, i, &bad, &refused));
    failed += bad;
    left_out += !bad && refused;
    passed += !bad && !refused;
  }
  if (world_rank(w) == 0 && left_out)
    printf("%d cases left out: no data to compare, or the op declines these placements\n", left_out);
  if (world_rank(w) == 0) printf("%d passed, %d failed\n", passed, failed);
  return passed && !failed ? OK : fail(ERR_DIFF, "%d of %d cases failed", failed, passed + failed);
}

static int run_as_rank(Suite *s) {
  const Transport *t;
  Status failed = transport_choose(NULL, &t);
  if (!failed) failed = world_launch(t, 0, run_on, s, NULL);
  if (failed) fprintf(stderr, "golden_ops: %s\n", status_message(failed));
  int code = failed ? 1 : 0;
  status_free(failed);
  return code;
}

/* ---- reporting -------------------------------------------------------------- */

static int by_op(const void *a, const void *b) {
  const Item *x = a, *y = b;
  int order = strcmp(x->op, y->op);
  return order ? order : x->result < y->result ? -1 : 1;
}

static const char *why_left_out(const Suite *s) {
  if (!s->grad && !s->twice) return "no data to compare, or the op declines these placements";
  return s->ranks ? "no gradient was recorded (make_op_cases.py --grad), or the op declines these placements"
                  : "no gradient was recorded (make_op_cases.py --grad)";
}

static int report(Suite *s) {
  int passed = 0, failed = 0, unknown = 0, unknown_ops = 0, left_out = 0;
  if (s->count) qsort(s->items, (size_t)s->count, sizeof *s->items, by_op);
  for (int i = 0, end; i < s->count; i = end) {
    int good = 0, out = 0;
    for (end = i; end < s->count && !strcmp(s->items[end].op, s->items[i].op); end++) {
      good += s->items[end].result->state == PASSED;
      out += s->items[end].result->state == LEFT_OUT;
    }
    if (s->items[i].result->state == UNKNOWN) {
      unknown += end - i;
      unknown_ops++;
      continue;
    }
    int ran = end - i - out;
    passed += good;
    failed += ran - good;
    left_out += out;
    if (s->verbose || good < ran) printf("%-60s %d/%d\n", s->items[i].op, good, ran);
    for (int j = i, told = 0; j < end && (s->verbose || !told); j++) {
      if (s->items[j].result->state != FAILED) continue;
      printf("    %s: %s\n", s->items[j].id, s->items[j].result->reason);
      told++;
    }
  }
  if (unknown)
    printf("\nnot in the registry: %d ops, %d cases%s\n", unknown_ops, unknown,
           s->skip_unknown ? " (skipped)" : "");
  for (int i = 0; i < s->count; i++) {
    if (s->items[i].result->state == UNKNOWN && (i == 0 || strcmp(s->items[i].op, s->items[i - 1].op)))
      printf("    %s\n", s->items[i].op);
  }
  if (!s->skip_unknown) failed += unknown;
  if (left_out) printf("%d cases left out: %s\n", left_out, why_left_out(s));
  if (!s->count) printf("%s has no such case: --op takes aten.add.Tensor, aten.add or add\n", s->folder);
  printf("%d passed, %d failed\n", passed, failed);
  return failed || passed == 0;
}

static const char *option_value(int argc, char **argv, int *i) {
  if (*i + 1 >= argc) stop(fail(ERR_USAGE, "%s needs a value", argv[*i]));
  return argv[++*i];
}

int main(int argc, char **argv) {
  Suite s = {.folder = GOLDEN_FOLDER "/ops", .threads = 1, .every = 1};
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--op")) s.op = option_value(argc, argv, &i);
    else if (!strcmp(argv[i], "--family")) s.family = option_value(argc, argv, &i);
    else if (!strcmp(argv[i], "--case")) s.id = option_value(argc, argv, &i);
    else if (!strcmp(argv[i], "--threads")) s.threads = atoi(option_value(argc, argv, &i));
    else if (!strcmp(argv[i], "--ranks")) s.ranks = atoi(option_value(argc, argv, &i));
    else if (!strcmp(argv[i], "--seed")) s.seed = strtoull(option_value(argc, argv, &i), NULL, 10);
    else if (!strcmp(argv[i], "--launched") || !strcmp(argv[i], "--mpi")) s.launched = true;
    else if (!strcmp(argv[i], "--every")) s.every = atoi(option_value(argc, argv, &i));
    else if (!strcmp(argv[i], "--grad")) s.grad = true;
    else if (!strcmp(argv[i], "--twice")) s.twice = true;
    else if (!strcmp(argv[i], "--verbose")) s.verbose = true;
    else if (!strcmp(argv[i], "--skip-unknown")) s.skip_unknown = true;
    else if (argv[i][0] == '-') stop(fail(ERR_USAGE, "unknown option %s", argv[i]));
    else s.folder = argv[i];
  }
  Status st = op_registry_status();
  if (!st) st = read_suite(&s);
  if (st) stop(st);
  if (s.every < 1) stop(fail(ERR_USAGE, "--every takes a number from 1 on"));
  if (s.launched) return run_as_rank(&s);
  bool leaked = run_suite(&s);
  if (leaked) fprintf(stderr, "golden_ops: a process ended with an error after its last case\n");
  bool failed = report(&s);
  suite_free(&s);
  return failed || leaked;
}
