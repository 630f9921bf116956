/* The progress bar: only at a terminal, only when it takes long, gone at the end. */
#include <unistd.h>

#include "base/progress.h"
#include "terminal.h"
#include "unit.h"

static void draws_at_a_terminal(void **state) {
  (void)state;
  Terminal t;
  Progress p;
  terminal_open(&t);
  progress_begin(&p, t.stream, "writing", 2000000, PROGRESS_BYTES);
  progress_set(&p, 10);
  assert_string_equal(terminal_text(&t), ""); /* not a second old */
  p.delay = 0;
  progress_set(&p, 500000);
  const char *text = terminal_text(&t);
  assert_non_null(strstr(text, "writing  ######------------------   25%  500.0 kB of 2.0 MB"));
  assert_non_null(strstr(text, "left"));
  assert_null(strstr(text, "\033[36m"));
  progress_add(&p, 1);
  assert_string_equal(terminal_text(&t), ""); /* drawn a moment ago */
  progress_end(&p);
  assert_string_equal(terminal_text(&t), "\r\033[K");
  terminal_close(&t);
}

static void stays_in_one_line(void **state) {
  (void)state;
  Terminal t;
  Progress p;
  char what[200];
  memset(what, 'w', sizeof what);
  what[sizeof what - 1] = 0;
  terminal_open(&t);
  progress_begin(&p, t.stream, what, 10, PROGRESS_STEPS);
  p.delay = 0;
  progress_set(&p, 20);
  assert_int_equal(strlen(terminal_text(&t)), 4 + 79);
  progress_end(&p);
  terminal_close(&t);
}

/* A run that goes on where another ended is no faster for it. */
static void tells_more(void **state) {
  (void)state;
  Terminal t;
  Progress p;
  char note[32] = "loss 3.21";
  terminal_open(&t);
  progress_begin(&p, t.stream, "step", 1000, PROGRESS_STEPS);
  p.delay = 0;
  p.from = p.done = 500;
  p.note = note;
  p.begun -= 10; /* ten seconds for ten steps, and 490 to go */
  progress_set(&p, 510);
  assert_non_null(strstr(terminal_text(&t), "step  #####-----   51%  510 of 1000  8 min 10 s left  loss 3.21"));
  progress_end(&p);
  progress_begin(&p, t.stream, "step", 0, PROGRESS_STEPS); /* nobody knows how many */
  p.delay = 0;
  p.note = note;
  progress_set(&p, 7);
  assert_non_null(strstr(terminal_text(&t), "step    7  loss 3.21"));
  terminal_close(&t);
}

static void silent_in_a_pipe(void **state) {
  (void)state;
  int ends[2];
  char c;
  Progress p;
  assert_int_equal(pipe(ends), 0);
  FILE *stream = fdopen(ends[1], "w");
  progress_begin(&p, stream, "x", 10, PROGRESS_STEPS);
  p.delay = 0;
  for (int i = 0; i < 10; i++) progress_add(&p, 1);
  progress_end(&p);
  fclose(stream);
  assert_int_equal(read(ends[0], &c, 1), 0);
  close(ends[0]);
  assert_int_equal(p.done, 10);
  progress_begin(NULL, stderr, "x", 1, PROGRESS_STEPS);
  progress_add(NULL, 1);
  progress_end(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(draws_at_a_terminal), cmocka_unit_test(stays_in_one_line),
                                     cmocka_unit_test(tells_more), cmocka_unit_test(silent_in_a_pipe)};
  setenv("NO_COLOR", "1", 1);
  setenv("TERM", "xterm", 1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
