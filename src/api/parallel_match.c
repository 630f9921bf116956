/* parallel_match.c -- which modules a path of a plan names; see parallel.h. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "api/parallel.h"
#include "base/near.h"

/* The first name of a path as text of its own, and what follows it. */
static Status split(const char *path, char **token, const char **rest) {
  size_t n = strcspn(path, ".");
  TRY_NEW(*token, strndup(path, n));
  *rest = path[n] ? path + n + 1 : path + n;
  return OK;
}

static Status match(TessModule *m, const char *at, const char *path, ModuleList *out) {
  char *token;
  const char *rest;
  if (!*path) return module_list_add(out, strdup(at), m);
  TRY(split(path, &token, &rest));
  Status s = OK;
  for (int i = 0; i < m->nchildren && !s; i++) {
    if (fnmatch(token, m->child[i].name, 0)) continue;
    TextBuf inner = {0};
    text_printf(&inner, "%s%s%s", at, *at ? "." : "", m->child[i].name);
    s = inner.failed ? fail_oom() : match(m->child[i].module, inner.text, rest, out);
    text_free(&inner);
  }
  free(token);
  return s;
}

Status modules_matching(TessModule *m, const char *path, ModuleList *out) { return match(m, "", path, out); }

/* Goes along the path as far as something matches. */
static TessModule *farthest(TessModule *m, const char **path, TextBuf *at) {
  char *token;
  const char *rest;
  Status s = split(*path, &token, &rest);
  status_free(s);
  if (s) return m;
  for (int i = 0; i < m->nchildren; i++) {
    if (fnmatch(token, m->child[i].name, 0)) continue;
    free(token);
    text_printf(at, "%s%s", at->len ? "." : "", m->child[i].name);
    *path = rest;
    return farthest(m->child[i].module, path, at);
  }
  free(token);
  return m;
}

Status no_module(TessModule *m, const char *path) {
  TextBuf at = {0}, names = {0};
  const char *left = path, *near = NULL;
  TessModule *last = farthest(m, &left, &at);
  for (int i = 0; i < last->nchildren; i++) {
    text_printf(&names, "%s%s", i ? ", " : "", last->child[i].name);
    near = nearer_name(left, near, last->child[i].name);
  }
  Status s = fail(ERR_USAGE, "plan entry '%s' matches no module: %s%s%s has none that matches '%.*s'", path,
                  at.len ? "'" : "the module", at.len ? at.text : "", at.len ? "'" : "", (int)strcspn(left, "."),
                  left);
  if (near) s = status_hint(s, "did you mean '%s'?", near);
  else if (names.len) s = status_hint(s, "inside are %s", names.text);
  else s = status_hint(s, "nothing is inside of it");
  text_free(&at);
  text_free(&names);
  return s;
}
