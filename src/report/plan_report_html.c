/* plan_report_html.c -- a plan as one page: plan_page.html with the report's JSON in it. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "report/plan_report.h"

/* src/spread/plan_page.html, as it is, with a NUL behind it. */
static const char plan_page[] = {
#include "report/plan_page.inc"
};

/* Where the JSON goes. */
static const char slot[] = "{/*report*/}";

Status plan_report_html(TextBuf *b, const PlanReport *r) {
  yyjson_mut_doc *doc;
  const char *at = strstr(plan_page, slot);
  if (!at) return fail(ERR_FAIL, "the page has no place for the report");
  TRY(plan_report_json(r, &doc));
  char *json = yyjson_mut_write(doc, YYJSON_WRITE_ALLOW_INVALID_UNICODE, NULL);
  yyjson_mut_doc_free(doc);
  if (!json) return fail_oom();
  text_write(b, plan_page, (size_t)(at - plan_page));
  for (const char *c = json; *c;) { /* no tag may begin inside a script */
    size_t n = strcspn(c, "<");
    text_write(b, c, n);
    c += n;
    if (*c) text_puts(b, "\\u003c"), c++;
  }
  free(json);
  text_puts(b, at + sizeof slot - 1);
  return b->failed ? fail_oom() : OK;
}
