/* status.c -- see status.h. */
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Error {
  ErrCode code;
  char *text; /* message, then notes, one per line */
};

/* What fail() returns when there is no memory left to say anything better. */
static const Error out_of_memory = {ERR_FAIL, (char *)"out of memory"};

static char *format(const char *fmt, va_list args) {
  va_list again;
  va_copy(again, args);
  int n = vsnprintf(NULL, 0, fmt, again);
  va_end(again);
  char *text = n < 0 ? NULL : malloc((size_t)n + 1);
  if (text) vsnprintf(text, (size_t)n + 1, fmt, args);
  return text;
}

Status fail_oom(void) { return (Status)(uintptr_t)&out_of_memory; }

Status fail(ErrCode code, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  char *text = format(fmt, args);
  va_end(args);
  Error *e = text ? malloc(sizeof *e) : NULL;
  if (!e) {
    free(text);
    return fail_oom();
  }
  *e = (Error){code, text};
  return e;
}

static Status add_line(Status s, const char *label, const char *fmt, va_list args) {
  if (!s || s == fail_oom()) return s;
  char *line = format(fmt, args);
  if (!line) return s;
  size_t old = strlen(s->text), size = old + strlen(label) + strlen(line) + 2;
  char *text = realloc(s->text, size);
  if (text) {
    s->text = text;
    snprintf(text + old, size - old, "\n%s%s", label, line);
  }
  free(line);
  return s;
}

Status status_at(Status s, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  s = add_line(s, "  at   ", fmt, args);
  va_end(args);
  return s;
}

Status status_hint(Status s, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  s = add_line(s, "  hint ", fmt, args);
  va_end(args);
  return s;
}

ErrCode status_code(Status s) { return s->code; }
const char *status_message(Status s) { return s->text; }

void status_free(Status s) {
  if (!s || s == fail_oom()) return;
  free(s->text);
  free(s);
}
