/* terminal.h -- a terminal that a test looks at from the other side. */
#ifndef TESS_TESTS_TERMINAL_H
#define TESS_TESTS_TERMINAL_H

#include <fcntl.h>
#include <pty.h>
#include <unistd.h>

#include "unit.h"

/* What arrives at the other end of a terminal of 80 columns. */
typedef struct {
  int master;
  FILE *stream;
  char text[4096];
} Terminal;

static inline void terminal_open(Terminal *t) {
  int slave;
  struct winsize size = {.ws_row = 24, .ws_col = 80};
  if (openpty(&t->master, &slave, NULL, NULL, &size)) skip(); /* a build root without /dev/pts */
  assert_int_equal(fcntl(t->master, F_SETFL, O_NONBLOCK), 0);
  t->stream = fdopen(slave, "w");
  assert_non_null(t->stream);
}

static inline const char *terminal_text(Terminal *t) {
  fflush(t->stream);
  usleep(10000);
  ssize_t n = read(t->master, t->text, sizeof t->text - 1);
  t->text[n > 0 ? n : 0] = 0;
  return t->text;
}

static inline void terminal_close(Terminal *t) {
  fclose(t->stream);
  close(t->master);
}

#endif
