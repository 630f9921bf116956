/* golden_programs -- every exported program of a folder through reader, verifier, text and
 * writer.
 *
 *     golden_programs [FOLDER | FILE]...         default: the golden models
 *
 * For each .pt2 file: it is read and verified; its text form, with and without metadata,
 * parses back to the same text; written and read again it is the same, weights included;
 * and when it is cut off or bits of it are flipped, the
 * reader says so or gives a program that passes the verifier.  Run it under a sanitizer.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/textbuf.h"
#include "pt2/read.h"
#include "pt2/write.h"

enum { CUTS = 40, FLIPS = 160 };

typedef struct {
  int files, failures;
} Suite;

static void complain(Suite *s, const char *path, Status why, const char *what) {
  printf("%s: %s%s%s\n", path, what, why ? ": " : "", why ? status_message(why) : "");
  status_free(why);
  s->failures++;
}

static void check_text(Suite *s, const char *path, const Exported *e, PrintOptions o) {
  TextBuf first = {0}, second = {0};
  Exported *again = NULL;
  graph_print(&first, e, o);
  Status status = graph_parse(first.text, first.len, "text", &again);
  if (!status) status = graph_verify(again);
  if (status) {
    complain(s, path, status, "the text does not parse back");
  } else {
    graph_print(&second, again, o);
    if (first.failed || second.failed || strcmp(first.text, second.text))
      complain(s, path, OK, "the text changes when it is parsed and printed");
  }
  exported_free(again);
  text_free(&first);
  text_free(&second);
}

/* ---- writing --------------------------------------------------------------------------- */

/* Same fqn, kind, size and elements; shared records stay shared. */
static bool same_state(const Exported *a, const Exported *b) {
  if (a->nstate != b->nstate) return false;
  for (int i = 0; i < a->nstate; i++) {
    const StateEntry *x = &a->state[i], *y = &b->state[i];
    if (strcmp(x->fqn, y->fqn) || x->is_parameter != y->is_parameter || x->is_constant != y->is_constant)
      return false;
    if (x->requires_grad != y->requires_grad || x->tensor->dtype != y->tensor->dtype ||
        !tensor_same_size(x->tensor, y->tensor))
      return false;
    bool shared = i && !strcmp(x->record, a->state[i - 1].record),
         still = i && !strcmp(y->record, b->state[i - 1].record);
    if (shared != still) return false;
    size_t bytes = (size_t)tensor_extent(x->tensor) * dtype_size(x->tensor->dtype);
    if (tensor_extent(x->tensor) == tensor_extent(y->tensor) && bytes &&
        memcmp(tensor_data(x->tensor), tensor_data(y->tensor), bytes))
      return false;
  }
  return true;
}

static void check_written(Suite *s, const char *path, const Exported *e) {
  char folder[64] = "/tmp/tessera-golden-XXXXXX", copy[512];
  const char *slash = strrchr(path, '/');
  if (!mkdtemp(folder)) abort();
  snprintf(copy, sizeof copy, "%s/%s", folder, slash ? slash + 1 : path);
  Exported *again = NULL;
  TextBuf first = {0}, second = {0};
  Status status = pt2_write(e, copy, false);
  if (!status) status = pt2_read(copy, &again);
  if (status) {
    complain(s, path, status, "is not written so that it reads back");
  } else {
    graph_print(&first, e, (PrintOptions){.meta = true});
    graph_print(&second, again, (PrintOptions){.meta = true});
    if (strcmp(first.text, second.text)) complain(s, path, OK, "changes when it is written and read");
    if (!same_state(e, again)) complain(s, path, OK, "its weights change when it is written and read");
  }
  exported_free(again);
  text_free(&first);
  text_free(&second);
  remove(copy);
  remove(folder);
}

/* ---- damage ---------------------------------------------------------------------------- */

/* The same numbers in every run. */
static uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 20;
}

static void check_damaged(Suite *s, const char *path, const unsigned char *bytes, size_t size, const char *how) {
  Exported *e = NULL;
  Status status = pt2_read_memory(bytes, size, path, &e);
  if (!status) {
    status = graph_verify(e);
    /* A flipped bit in a name or an argument is a wrong program, but a program. */
    if (status && status_code(status) != ERR_FILE) complain(s, path, status, how), status = OK;
  }
  status_free(status);
  exported_free(e);
}

static void check_damage(Suite *s, const char *path) {
  FileMap *f;
  Status status = file_map(path, &f);
  if (status) {
    complain(s, path, status, "cannot be mapped");
    return;
  }
  uint64_t random = f->size;
  unsigned char *copy = malloc(f->size);
  if (!copy) abort();
  memcpy(copy, f->data, f->size);
  for (int i = 0; i < CUTS; i++) check_damaged(s, path, copy, next_random(&random) % f->size, "cut off");
  for (int i = 0; i < FLIPS; i++) {
    /* Half of them near the end, where the directory is. */
    size_t span = i % 2 && f->size > 4096 ? 4096 : f->size, at = f->size - 1 - next_random(&random) % span;
    unsigned char bit = (unsigned char)(1u << (next_random(&random) % 8));
    copy[at] ^= bit;
    check_damaged(s, path, copy, f->size, "with a flipped bit");
    copy[at] ^= bit;
  }
  free(copy);
  file_map_unref(f);
}

static void check_file(Suite *s, const char *path) {
  Exported *e;
  s->files++;
  Status status = pt2_read(path, &e);
  if (status) {
    complain(s, path, status, "cannot be read");
    return;
  }
  status = graph_verify(e);
  if (status) complain(s, path, status, "is not well formed");
  check_text(s, path, e, (PrintOptions){0});
  check_text(s, path, e, (PrintOptions){.meta = true});
  check_written(s, path, e);
  exported_free(e);
  check_damage(s, path);
}

static bool ends_with(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && !strcmp(text + n - m, end);
}

/* Folders are walked two levels deep: models/NAME/program.pt2. */
static void check_path(Suite *s, const char *path, int depth) {
  if (!file_is_folder(path)) {
    if (ends_with(path, ".pt2")) check_file(s, path);
    return;
  }
  DIR *d = depth < 2 ? opendir(path) : NULL;
  for (struct dirent *entry; d && (entry = readdir(d));) {
    char inner[4096];
    if (entry->d_name[0] == '.') continue;
    if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= (int)sizeof inner) continue;
    check_path(s, inner, depth + 1);
  }
  if (d) closedir(d);
}

int main(int argc, char **argv) {
  Suite s = {0};
  for (int i = 1; i < argc; i++) check_path(&s, argv[i], 0);
  if (argc == 1) check_path(&s, GOLDEN_FOLDER "/models", 0);
  printf("%d programs, %d failures\n", s.files, s.failures);
  return s.failures ? 1 : 0;
}
