/* plan_report_html.c -- a plan as one page: plan_page.html with the report's JSON in it. */
#include <stdlib.h>

#include "base/json.h"
#include "report/page.h"
#include "report/plan_report.h"

/* plan_page.html, as it is, with a NUL behind it. */
static const char plan_page[] = {
#include "report/plan_page.inc"
};

Status plan_report_html(TextBuf *b, const PlanReport *r) {
  yyjson_mut_doc *doc;
  TRY(plan_report_json(r, &doc));
  char *json = yyjson_mut_write(doc, YYJSON_WRITE_ALLOW_INVALID_UNICODE, NULL);
  yyjson_mut_doc_free(doc);
  if (!json) return fail_oom();
  Status s = page_write(b, plan_page, json);
  free(json);
  return s;
}
