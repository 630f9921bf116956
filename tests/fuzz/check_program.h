/* check_program.h -- what must hold of any program that a reader let through. */
#ifndef TESS_TESTS_CHECK_PROGRAM_H
#define TESS_TESTS_CHECK_PROGRAM_H

#include <string.h>

#include "base/textbuf.h"
#include "graph/graph.h"

/* Well formed, and its text form reads back as itself. */
static inline void check_program(const Exported *e) {
  Status s = graph_verify(e);
  if (s && status_code(s) != ERR_FILE) __builtin_trap();
  bool sound = !s;
  status_free(s);
  status_free(graph_check_ops(e));
  for (int meta = 0; meta < 2; meta++) {
    TextBuf first = {0}, second = {0};
    Exported *again = NULL;
    graph_print(&first, e, (PrintOptions){.meta = meta});
    s = graph_parse(first.text, first.len, "again", &again);
    if (s && sound) __builtin_trap();
    if (!s) {
      graph_print(&second, again, (PrintOptions){.meta = meta});
      if (strcmp(first.text, second.text)) __builtin_trap();
    }
    status_free(s);
    exported_free(again);
    text_free(&first);
    text_free(&second);
  }
}

#endif
