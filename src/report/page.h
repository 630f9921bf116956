/* page.h -- a report as one page of HTML that needs no other file.
 *
 * A page (plan_page.html, train_page.html) is a part of the program.  It has three places, in this order:
 * a comment of style for what all pages share (page_style.css), the JSON of the report, a comment of script
 * (page_script.js).  Everything that is seen is drawn from the JSON by the page's script. */
#ifndef TESS_REPORT_PAGE_H
#define TESS_REPORT_PAGE_H

#include "base/textbuf.h"

/* json: nothing in it ends the script that it stands in. */
Status page_write(TextBuf *b, const char *page, const char *json);

#endif
