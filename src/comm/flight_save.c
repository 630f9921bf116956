/* flight_save.c -- the flight records of a launch that failed, as a file:
 *     {"error": ..., "ranks": [{"rank": 0, "collectives": [...]}, ...]}
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/transport.h"

static Status write_text(const TextBuf *text, const char *path) {
  if (text->failed) return fail_oom();
  FILE *f = fopen(path, "w");
  if (!f) return fail(ERR_FILE, "%s cannot be written", path);
  bool written = fwrite(text->text, 1, text->len, f) == text->len;
  return fclose(f) || !written ? fail(ERR_FILE, "%s was not written to its end", path) : OK;
}

Status flight_save(Status s, World *const *ranks, int n, const char *path) {
  TextBuf text = {0};
  text_puts(&text, "{\"error\": ");
  text_json(&text, status_message(s));
  text_puts(&text, ", \"ranks\": [");
  for (int i = 0; i < n; i++) {
    text_printf(&text, "%s\n {\"rank\": %d, \"collectives\": ", i ? "," : "", ranks[i]->rank);
    flight_json(&ranks[i]->flight, &text);
    text_puts(&text, "}");
  }
  text_puts(&text, "]}\n");
  Status written = write_text(&text, path);
  text_free(&text);
  s = written ? status_hint(s, "no flight record: %s", status_message(written))
              : status_hint(s, "the last collectives of %s are in %s", n > 1 ? "all ranks" : "this rank", path);
  status_free(written);
  return s;
}

Status flight_save_own(Status s, World *w) {
  char path[PATH_MAX];
  if (!s || !w->flight_path) return s;
  int n = snprintf(path, sizeof path, "%s.%d", w->flight_path, w->rank);
  free(w->flight_path);
  w->flight_path = NULL;
  return n < (int)sizeof path ? flight_save(s, &w, 1, path) : s;
}
