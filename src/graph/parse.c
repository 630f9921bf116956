/* parse.c -- reads the text form of programs; see graph.h. */
#include "graph/graph.h"

Status graph_parse(const char *text, size_t len, const char *name, Exported **out) {
  (void)text, (void)len, (void)out;
  return fail(ERR_FILE, "%s: text programs are not read yet", name);
}
