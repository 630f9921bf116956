/* page.c -- see page.h. */
#include "report/page.h"

#include <string.h>

/* The files, as they are, with a NUL behind them. */
static const char style[] = {
#include "report/page_style.inc"
};
static const char script[] = {
#include "report/page_script.inc"
};

/* No tag may begin inside a script. */
static void put_json(TextBuf *b, const char *json) {
  for (const char *c = json; *c;) {
    size_t n = strcspn(c, "<");
    text_write(b, c, n);
    c += n;
    if (*c) text_puts(b, "\\u003c"), c++;
  }
}

Status page_write(TextBuf *b, const char *page, const char *json) {
  static const char *const slot[] = {"/*page_style.css*/", "{/*report*/}", "/*page_script.js*/"};
  for (int i = 0; i < 3; i++) {
    const char *at = strstr(page, slot[i]);
    if (!at) return fail(ERR_FAIL, "the page has no place '%s'", slot[i]);
    text_write(b, page, (size_t)(at - page));
    if (i == 1) put_json(b, json);
    else text_puts(b, i ? script : style);
    page = at + strlen(slot[i]);
  }
  text_puts(b, page);
  return b->failed ? fail_oom() : OK;
}
