/* pass.c -- the list of passes and how a list of them is run; see pass.h. */
#include "passes/pass.h"

#include <stdlib.h>
#include <string.h>

#include "base/near.h"

const PassDef pass_table[] = {
#define PASS(name, options, summary) {#name, pass_##name, options, summary},
#include "passes/passes.def"
#undef PASS
};
const int pass_count = (int)(sizeof pass_table / sizeof *pass_table);

const PassDef *pass_find(const char *name) {
  for (int i = 0; i < pass_count; i++) {
    if (!strcmp(pass_table[i].name, name)) return &pass_table[i];
  }
  return NULL;
}

static Status unknown(const char *name) {
  TextBuf known = {0};
  for (int i = 0; i < pass_count; i++) {
    if (near_distance(name, pass_table[i].name, near_limit(name)) <= near_limit(name)) {
      return status_hint(fail(ERR_USAGE, "there is no pass '%s'", name), "did you mean '%s'?", pass_table[i].name);
    }
  }
  for (int i = 0; i < pass_count; i++) text_printf(&known, "%s%s", i ? ", " : "", pass_table[i].name);
  Status s = fail(ERR_USAGE, "there is no pass '%s'", name);
  if (known.text) s = status_hint(s, "the passes are: %s", known.text);
  text_free(&known);
  return s;
}

enum { MAX_OPTIONS = 16 };

/* "(a=1, b)" behind a pass's name, cut up in place; *p is left behind it. */
static Status parse_options(char **p, const char *pass, PassOption *options, int *n) {
  char *text = *p + 1, *end = strchr(text, ')');
  if (!end) return fail(ERR_USAGE, "pass '%s': its options need a closing ')'", pass);
  *end = 0;
  *p = end + 1;
  for (char *item = strtok_r(text, ", ", &text); item; item = strtok_r(NULL, ", ", &text)) {
    if (*n == MAX_OPTIONS) return fail(ERR_USAGE, "pass '%s': more than %d options", pass, MAX_OPTIONS);
    char *equals = strchr(item, '=');
    if (equals) *equals = 0;
    options[(*n)++] = (PassOption){item, equals ? equals + 1 : ""};
  }
  return OK;
}

static Status run_list(Exported *e, char *list, Ctx *ctx, TextBuf *stats) {
  for (char *p = list; *p;) {
    p += strspn(p, ", ");
    size_t len = strcspn(p, ",( ");
    if (!len) break;
    char name[64], after = p[len];
    if (len >= sizeof name) return fail(ERR_USAGE, "there is no pass '%s'", p);
    memcpy(name, p, len);
    name[len] = 0;
    p += len;
    const PassDef *pass = pass_find(name);
    if (!pass) return unknown(name);
    PassOption options[MAX_OPTIONS];
    PassArgs args = {.ctx = ctx, .options = options, .stats = stats};
    if (after == '(') TRY(parse_options(&p, name, options, &args.noptions));
    if (args.noptions && !*pass->options) return fail(ERR_USAGE, "pass '%s' takes no options, '%s' was given", name, options[0].name);
    Status s = pass->run(e, &args);
    if (!s) s = graph_verify(e);
    if (s) return status_at(s, "pass '%s'", name);
  }
  return OK;
}

Status pass_run_list(Exported *e, const char *list, Ctx *ctx, TextBuf *stats) {
  char *copy = strdup(list);
  if (!copy) return fail_oom();
  Status s = run_list(e, copy, ctx, stats);
  free(copy);
  return s;
}
