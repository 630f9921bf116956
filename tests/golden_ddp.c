/* golden_ddp -- PyTorch's DDP fusion, graph by graph.
 *
 *     golden_ddp [--print] [--random N] [FOLDER | CASE.json]...
 *                                   default: the golden graphs, and 300 random ones
 *
 * For every run that a case records (a list of passes, a bucket size) the passes run on its
 * `before` graph, built from the JSON and, where there is one, read from CASE.before.pt2.
 *
 *   - What comes out is well formed, in a legal order, and means the same: the same gradients
 *     divided by the same number and reduced by the same op in the same group reach the same
 *     outputs and buffers.  This holds for every run, also where PyTorch fails.
 *   - Where PyTorch's own result means the same and can be run, ours is equal to it up to names:
 *     the same nodes with the same arguments in the same order (the sorted one where PyTorch
 *     leaves it broken), and buckets of the same bytes.
 *   - The result does not change when it is printed and parsed.
 *   - Passes of our own (overlap) and repeated ones keep the meaning too; all of them also on
 *     programs made at random.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "ddp/ddp.h"
#include "passes/pass.h"
#include "pt2/read.h"

typedef struct {
  Ctx ctx;
  bool print;
  int runs, equal, other_order, own, failures;
} Suite;

typedef struct {
  const char *path, *name;
  char list[256]; /* passes */
  yyjson_val *root, *run;
} Run;

static void complain(Suite *s, const Run *r, Status why, const char *what, const char *detail) {
  printf("%s [%s]: %s%s%s%s%s\n", r->name, r->list, what, detail ? ": " : "", detail ? detail : "", why ? ": " : "",
         why ? status_message(why) : "");
  status_free(why);
  s->failures++;
}

static void show(const char *title, const Exported *e) {
  TextBuf b = {0};
  graph_print(&b, e, (PrintOptions){0});
  printf("--- %s\n%s", title, b.text ? b.text : "");
  text_free(&b);
}

/* ---- reading ------------------------------------------------------------------------------------- */

static void list_passes(Run *r) {
  yyjson_val *name;
  size_t i, n;
  double mb = yyjson_get_num(yyjson_obj_get(r->run, "bucket_mb"));
  char *at = r->list, *end = r->list + sizeof r->list;
  *at = 0;
  yyjson_arr_foreach(yyjson_obj_get(r->run, "passes"), i, n, name) {
    const char *pass = yyjson_get_str(name);
    at += snprintf(at, (size_t)(end - at), "%s%s", i ? "," : "", pass);
    if (!strncmp(pass, "fuse", 4)) at += snprintf(at, (size_t)(end - at), "(bucket_size_mb=%.17g)", mb);
  }
}

static Status parse_graph(yyjson_val *order, yyjson_val *const *lists, int n, Exported **out) {
  TextBuf text = {0};
  Status s = ddp_graph_text(order, lists, n, &text);
  if (!s) s = graph_parse(text.text, text.len, "golden", out);
  if (!s) s = graph_verify(*out);
  text_free(&text);
  return s;
}

static Status read_before(const Run *r, Exported **out) {
  yyjson_val *before = yyjson_obj_get(r->root, "before"), *node;
  yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
  yyjson_mut_val *names = yyjson_mut_arr(doc);
  size_t i, n;
  yyjson_mut_doc_set_root(doc, names);
  yyjson_arr_foreach(before, i, n, node)
      yyjson_mut_arr_add_val(names, yyjson_val_mut_copy(doc, yyjson_obj_get(node, "name")));
  yyjson_doc *order = yyjson_mut_doc_imut_copy(doc, NULL);
  Status s = parse_graph(yyjson_doc_get_root(order), &before, 1, out);
  yyjson_doc_free(order);
  yyjson_mut_doc_free(doc);
  return s;
}

static Status read_after(const Run *r, Exported **out) {
  yyjson_val *lists[] = {yyjson_obj_get(r->root, "before"), yyjson_obj_get(r->run, "nodes")};
  yyjson_val *order = yyjson_obj_get(r->run, "sorted");
  return parse_graph(yyjson_is_arr(order) ? order : yyjson_obj_get(r->run, "order"), lists, 2, out);
}

/* ---- checking ------------------------------------------------------------------------------------- */

/* The bytes of our buckets stand in the pass's own words. */
static void check_buckets(Suite *s, const Run *r, const char *stats) {
  yyjson_val *buckets = yyjson_obj_get(r->run, "buckets"), *bucket;
  size_t i, n;
  for (const char *line = stats; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
    if (strncmp(line, "fuse", 4)) continue;
    const char *at = line;
    yyjson_arr_foreach(buckets, i, n, bucket) {
      char want[128];
      size_t count = yyjson_arr_size(yyjson_obj_get(bucket, "comms"));
      snprintf(want, sizeof want, "  bucket %zu: %zu gradient%s, %lld bytes", i, count, count == 1 ? "" : "s",
               (long long)yyjson_get_sint(yyjson_obj_get(bucket, "bytes")));
      at = at ? strstr(at, want) : NULL;
      if (!at) complain(s, r, OK, "the buckets differ, missing", want);
    }
    char more[32];
    snprintf(more, sizeof more, "  bucket %zu:", yyjson_arr_size(buckets));
    if (strstr(line, more)) complain(s, r, OK, "there are more buckets", stats);
  }
}

static void check_text(Suite *s, const Run *r, const Exported *e) {
  TextBuf first = {0}, second = {0};
  Exported *again = NULL;
  graph_print(&first, e, (PrintOptions){0});
  Status status = graph_parse(first.text, first.len, "text", &again);
  if (!status) graph_print(&second, again, (PrintOptions){0});
  if (status || strcmp(first.text, second.text))
    complain(s, r, status, "the text changes when it is parsed and printed", NULL);
  exported_free(again);
  text_free(&first);
  text_free(&second);
}

static void compare(Suite *s, const Run *r, const Exported *ours, const Exported *theirs, const char *stats) {
  TextBuf why = {0}, order_why = {0};
  if (ddp_same_graph(ours, theirs, false, &order_why)) {
    s->equal++;
    check_buckets(s, r, stats);
  } else if (ddp_same_graph(ours, theirs, true, &why)) {
    s->other_order++;
    complain(s, r, OK, "equal but for the order", order_why.text);
  } else {
    complain(s, r, OK, "differs from PyTorch's", why.text);
    if (s->print) show("ours", ours), show("PyTorch's", theirs);
  }
  text_free(&why);
  text_free(&order_why);
}

/* Runs the passes on `program`, whose meaning is `meaning`. */
static void check_program(Suite *s, const Run *r, Exported *program, uint64_t meaning, const Exported *theirs) {
  TextBuf stats = {0};
  uint64_t after;
  s->runs++;
  Status status = pass_run_list(program, r->list, &s->ctx, &stats);
  if (!status) status = ddp_meaning(program, &after);
  if (status) {
    complain(s, r, status, "the passes fail", NULL);
  } else {
    if (after != meaning) {
      complain(s, r, OK, "the program does something else now", NULL);
      if (s->print) show("ours", program);
    }
    check_text(s, r, program);
    if (theirs) compare(s, r, program, theirs, stats.text);
    else s->own++;
    if (s->print && !theirs)
      printf("%s [%s], without a model:\n%s", r->name, r->list, stats.text ? stats.text : "");
  }
  text_free(&stats);
}

/* PyTorch's result, or NULL where it failed, does something else, or cannot run. */
static Exported *usable(Suite *s, const Run *r, uint64_t meaning) {
  Exported *theirs = NULL;
  uint64_t theirs_means = 0;
  if (yyjson_is_str(yyjson_obj_get(r->run, "error"))) return NULL;
  Status status = read_after(r, &theirs);
  if (!status) status = ddp_meaning(theirs, &theirs_means);
  if (status) complain(s, r, status, "PyTorch's graph cannot be read", NULL);
  if (status || theirs_means != meaning || ddp_mixes_dtypes(theirs)) {
    exported_free(theirs);
    return NULL;
  }
  return theirs;
}

static void check_run(Suite *s, Run *r) {
  Exported *before = NULL, *file = NULL;
  uint64_t meaning = 0;
  list_passes(r);
  Status status = read_before(r, &before);
  if (!status) status = ddp_meaning(before, &meaning);
  if (status) {
    complain(s, r, status, "the graph cannot be read", NULL);
    return;
  }
  Exported *theirs = usable(s, r, meaning);
  check_program(s, r, before, meaning, theirs);
  char path[4096];
  snprintf(path, sizeof path, "%.*s.before.pt2", (int)(strlen(r->path) - 5), r->path);
  if (!access(path, R_OK)) {
    status = pt2_read(path, &file);
    if (!status) status = ddp_meaning(file, &meaning);
    if (status) complain(s, r, status, "the program cannot be read", NULL);
    else check_program(s, r, file, meaning, theirs);
  }
  exported_free(before);
  exported_free(file);
  exported_free(theirs);
}

/* Without a model: the program means what it meant. */
static const char *const lists[] = {
    "overlap", "overlap(memory_mb=0.00005)", "fuse_ddp_with_concat_op,overlap,overlap",
    "overlap,fuse_ddp_with_coalesced_op,overlap(memory_mb=1)", "schedule_comm_wait,schedule_comm_wait",
    /* two gradients of random programs to a bucket */
    "fuse_ddp_with_concat_op(bucket_size_mb=0.00002,first_bucket_mb=0.00002),schedule_comm_wait",
    "schedule_comm_wait,fuse_ddp_with_coalesced_op(bucket_size_mb=0.00002)", "fuse_ddp_with_concat_op"};

static void check_random(Suite *s, uint64_t seed) {
  char name[32];
  Run r = {.name = name};
  snprintf(name, sizeof name, "random %llu", (unsigned long long)seed);
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
    TextBuf text = {0};
    Exported *before = NULL;
    uint64_t meaning = 0;
    snprintf(r.list, sizeof r.list, "%s", lists[i]);
    Status status = ddp_random_text(seed, &text);
    if (!status) status = graph_parse(text.text, text.len, "random", &before);
    if (!status) status = ddp_meaning(before, &meaning);
    int failures = s->failures;
    if (status) complain(s, &r, status, "is not a program", text.text);
    else check_program(s, &r, before, meaning, NULL);
    if (s->print && s->failures > failures) printf("--- before\n%s", text.text);
    exported_free(before);
    text_free(&text);
  }
}

static void check_own_passes(Suite *s, Run *r) {
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
    Exported *before = NULL;
    uint64_t meaning = 0;
    snprintf(r->list, sizeof r->list, "%s", lists[i]);
    Status status = read_before(r, &before);
    if (!status) status = ddp_meaning(before, &meaning);
    if (status) complain(s, r, status, "the graph cannot be read", NULL);
    else check_program(s, r, before, meaning, NULL);
    exported_free(before);
  }
}

static void check_case(Suite *s, const char *path) {
  FileMap *f;
  yyjson_doc *doc = NULL;
  const char *slash = strrchr(path, '/');
  Run r = {.path = path, .name = slash ? slash + 1 : path};
  Status status = file_map(path, &f);
  if (!status) {
    status = json_parse(path, f->data, f->size, JSON_NAN, &doc);
    file_map_unref(f);
  }
  if (status) {
    complain(s, &r, status, "cannot be read", NULL);
    return;
  }
  r.root = yyjson_doc_get_root(doc);
  size_t i, n;
  yyjson_arr_foreach(yyjson_obj_get(r.root, "runs"), i, n, r.run) check_run(s, &r);
  check_own_passes(s, &r);
  yyjson_doc_free(doc);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void check_path(Suite *s, const char *path) {
  struct dirent **list;
  if (!file_is_folder(path)) {
    check_case(s, path);
    return;
  }
  char fusion[4096];
  if (snprintf(fusion, sizeof fusion, "%s/fusion", path) < (int)sizeof fusion &&
      file_is_folder(fusion)) { /* all of ddp/ */
    check_path(s, fusion);
    return;
  }
  int n = scandir(path, &list, NULL, by_name);
  for (int i = 0; i < n; i++) {
    char inner[4096];
    const char *dot = strrchr(list[i]->d_name, '.');
    if (dot && !strcmp(dot, ".json") && strcmp(list[i]->d_name, "index.json")) {
      snprintf(inner, sizeof inner, "%s/%s", path, list[i]->d_name);
      check_case(s, inner);
    }
    free(list[i]);
  }
  if (n >= 0) free(list);
}

int main(int argc, char **argv) {
  Suite s = {0};
  int paths = 0;
  uint64_t random = 0;
  ctx_init(&s.ctx, 1);
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--print")) s.print = true;
    else if (!strcmp(argv[i], "--random") && i + 1 < argc) random = strtoull(argv[++i], NULL, 10);
    else check_path(&s, argv[i]), paths++;
  }
  if (!paths && !random) {
    check_path(&s, GOLDEN_FOLDER "/ddp/fusion");
    random = 300;
  }
  for (uint64_t i = 0; i < random; i++) check_random(&s, i);
  ctx_free(&s.ctx);
  printf("%d runs: %d equal to PyTorch's, %d without a model (PyTorch fails, is wrong, or has no such pass), %d "
         "failures\n",
         s.runs, s.equal, s.own, s.failures);
  return s.failures || !s.runs ? 1 : 0;
}
