/* golden_dtensor -- what PyTorch's DTensor does, case by case, against ours.
 *
 *     golden_dtensor [-v] [-f FILE] [-i ID] [FOLDER]    default: the compact set
 *
 * Reads the .jsonl files of the folder (format: the golden data's README).  -v prints
 * every case that is not the same; -f takes one file (layout, redistribute ...), -i one case.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "dtensor/case.h"

typedef struct {
  const char *file;
  CaseFn *check;
} Part;

static const Part parts[] = {
    {"layout", case_layout}, {"redistribute", case_redistribute}, {"strategies", case_strategy},
    {"rng", case_rng},       {"checkpoint", case_checkpoint},     {"api", case_api},
};

typedef struct {
  bool verbose;
  const char *only;
  long id;
  int count[4];
  int shown;
} Suite;

static const char *const verdict_name[] = {"same", "better", "skipped", "WRONG"};

static void run_line(Suite *s, const Part *part, const char *line, size_t size) {
  yyjson_doc *doc = NULL;
  Status status = json_parse(part->file, line, size, JSON_NAN, &doc);
  Case c = {.text = ""};
  Verdict v;
  if (status) v = wrong_status(&c, status);
  else {
    c.json = yyjson_doc_get_root(doc);
    if (s->id >= 0 && yyjson_get_sint(field(&c, "id")) != s->id) {
      yyjson_doc_free(doc);
      return;
    }
    v = part->check(&c);
  }
  s->count[v]++;
  if ((v == WRONG && (s->verbose || s->shown++ < 20)) || (v != SAME && s->verbose)) {
    int head = size < 300 ? (int)size : 300;
    printf("%s %s: %s\n    %.*s\n", part->file, verdict_name[v], c.text, s->verbose ? (int)size : head, line);
  }
  yyjson_doc_free(doc);
}

static int run_part(Suite *s, const Part *part, const char *folder) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s.jsonl", folder, part->file);
  FILE *f = fopen(path, "r");
  memset(s->count, 0, sizeof s->count);
  if (!f) return 0;
  char *line = NULL;
  size_t cap = 0;
  ssize_t n;
  while ((n = getline(&line, &cap, f)) > 0) run_line(s, part, line, (size_t)n);
  free(line);
  fclose(f);
  printf("%-14s %5d same, %4d better, %4d skipped, %4d wrong\n", part->file, s->count[SAME], s->count[BETTER],
         s->count[SKIPPED], s->count[WRONG]);
  return s->count[WRONG];
}

int main(int argc, char **argv) {
  Suite s = {.id = -1};
  const char *folder = GOLDEN_FOLDER "/dtensor";
  int failures = 0, passed = 0;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "-v")) s.verbose = true;
    else if (!strcmp(argv[i], "-f") && i + 1 < argc) s.only = argv[++i];
    else if (!strcmp(argv[i], "-i") && i + 1 < argc) s.id = strtol(argv[++i], NULL, 10);
    else folder = argv[i];
  }
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    if (s.only && strcmp(s.only, parts[i].file)) continue;
    failures += run_part(&s, &parts[i], folder);
    passed += s.count[SAME] + s.count[BETTER];
  }
  printf("%d passed, %d failed\n", passed, failures);
  return failures || !passed;
}
