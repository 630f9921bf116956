/* passes.c -- text-in text-out tests of the passes.
 *
 *     passes [--update] FILE...          FILE: tests/passes/NAME.txt
 *
 * A file is a row of cases.  A case is a line of prose (and an optional line
 * `passes: a,b(x=1)`; without it the pass named like the file), a program in text form,
 * a line `---`, and the program that must come out.  Cases are separated by `===`.  A
 * case whose pass must fail has `error: words of the message` instead of a program.
 * --update writes what came out into the file: read the diff before you keep it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/textbuf.h"
#include "passes/pass.h"

typedef struct {
  char *prose, *list, *in, *want; /* NUL-terminated, inside the file's text */
} Case;

static int passed, failed, written;

/* Cuts `text` at the next line that is `mark`; returns what follows it, or NULL. */
static char *cut_at_line(char *text, const char *mark) {
  size_t n = strlen(mark);
  for (char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
    if (strncmp(line, mark, n) || (line[n] != '\n' && line[n] != 0)) continue;
    char *rest = line[n] ? line + n + 1 : line + n;
    *line = 0;
    return rest;
  }
  return NULL;
}

static bool split_case(char *text, Case *c) {
  c->want = cut_at_line(text, "---");
  while (*text == '\n') text++;
  c->prose = text;
  char *end = strchr(text, '\n');
  if (!c->want || !end) return false;
  *end = 0;
  c->in = end + 1;
  c->list = NULL;
  if (!strncmp(c->in, "passes: ", 8)) {
    c->list = c->in + 8;
    end = strchr(c->list, '\n');
    if (!end) return false;
    *end = 0;
    c->in = end + 1;
  }
  return true;
}

static char *print_program(const Exported *e, bool memory) {
  TextBuf b = {0};
  graph_print(&b, e, (PrintOptions){.memory = memory});
  return b.text;
}

/* What the passes make of the case's program: its text, or "error: ...". */
static char *run_case(Ctx *ctx, const Case *c, const char *list) {
  Exported *e = NULL;
  Status s = graph_parse(c->in, strlen(c->in), "case", &e);
  if (!s) s = graph_verify(e);
  if (!s) s = pass_run_list(e, list, ctx, NULL);
  char *out = s ? NULL : print_program(e, strstr(list, "assign_memory") != NULL);
  if (s) {
    TextBuf b = {0};
    text_printf(&b, "error: %s\n", status_message(s));
    out = b.text;
  }
  status_free(s);
  exported_free(e);
  return out;
}

/* Expected text in the printer's own layout, so that spaces and comments do not count.
 * Programs with memory offsets are compared as they stand. */
static bool same_program(const char *want, const char *got) {
  if (!strcmp(want, got)) return true;
  Exported *e = NULL;
  Status s = graph_parse(want, strlen(want), "case", &e);
  char *text = s ? NULL : print_program(e, false);
  bool same = text && !strcmp(text, got);
  status_free(s);
  exported_free(e);
  free(text);
  return same;
}

static bool matches(const char *want, const char *got) {
  while (*want == '\n') want++;
  if (strncmp(want, "error: ", 7)) return same_program(want, got);
  char words[256];
  snprintf(words, sizeof words, "%.*s", (int)strcspn(want + 7, "\n"), want + 7);
  return !strncmp(got, "error: ", 7) && strstr(got, words);
}

static void run_file(Ctx *ctx, const char *path, bool update) {
  FileMap *f;
  Status s = file_map(path, &f);
  if (s) {
    printf("%s\n", status_message(s));
    status_free(s);
    failed++;
    return;
  }
  char *text = calloc(1, f->size + 1), name[64];
  memcpy(text, f->data, f->size);
  const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
  snprintf(name, sizeof name, "%.*s", (int)strcspn(base, "."), base);
  TextBuf updated = {0};
  bool broken = false;
  for (char *at = text, *next; at; at = next) {
    next = cut_at_line(at, "===");
    Case c;
    if (!split_case(at, &c)) {
      if (strspn(at, "\n ") != strlen(at)) {
        printf("%s: a case without ---: %.60s\n", path, at);
        failed++;
        broken = true;
      }
      continue;
    }
    char *got = run_case(ctx, &c, c.list ? c.list : name);
    bool same = got && matches(c.want, got);
    same ? passed++ : update ? written++ : failed++;
    if (!same && !update)
      printf("%s: %s\n--- expected\n%s\n--- came out\n%s\n", path, c.prose, c.want, got ? got : "nothing");
    if (updated.len) text_puts(&updated, "===\n");
    text_printf(&updated, "%s\n", c.prose);
    if (c.list) text_printf(&updated, "passes: %s\n", c.list);
    text_printf(&updated, "%s---\n%s", c.in, same ? c.want : got);
    free(got);
  }
  if (update && broken) printf("%s: not written\n", path);
  else if (update && updated.text) status_free(file_write_all(path, updated.text, updated.len, FILE_OVERWRITE));
  text_free(&updated);
  free(text);
  file_map_unref(f);
}

int main(int argc, char **argv) {
  Ctx ctx;
  bool update = argc > 1 && !strcmp(argv[1], "--update");
  ctx_init(&ctx, 1);
  for (int i = update ? 2 : 1; i < argc; i++) run_file(&ctx, argv[i], update);
  ctx_free(&ctx);
  if (written) printf("%d written: read what git diff shows\n", written);
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0 || passed + written == 0;
}
