/* pass.c -- the list of passes and how a list of them is run; see pass.h. */
#include "passes/pass.h"

#include <string.h>

#include "base/near.h"
#include "passes/pass_options.h"

const PassDef pass_table[] = {
#define PASS(name, summary) {#name, pass_##name, summary},
#define OPTION(pass, name, type, value, least, most, what)
#include "passes/passes.def"
#undef PASS
#undef OPTION
};
const int pass_count = (int)(sizeof pass_table / sizeof *pass_table);

static const PassDef *pass_find(const char *name) {
  for (int i = 0; i < pass_count; i++) {
    if (!strcmp(pass_table[i].name, name)) return &pass_table[i];
  }
  return NULL;
}

static Status unknown(const char *name) {
  const char *nearest = NULL;
  int distance = near_limit(name) + 1;
  for (int i = 0; i < pass_count; i++) {
    int d = near_distance(name, pass_table[i].name, near_limit(name));
    if (d < distance) nearest = pass_table[i].name, distance = d;
  }
  Status s = fail(ERR_USAGE, "there is no pass '%s'", name);
  if (nearest) return status_hint(s, "did you mean '%s'?", nearest);
  TextBuf known = {0};
  for (int i = 0; i < pass_count; i++) text_printf(&known, "%s%s", i ? ", " : "", pass_table[i].name);
  if (known.text) s = status_hint(s, "the passes are: %s", known.text);
  text_free(&known);
  return s;
}

char *pass_list_next(char **list) {
  char *item = *list + strspn(*list, ", "), *p = item;
  bool quoted = false;
  if (!*item) return NULL;
  for (int depth = 0; *p && (*p != ',' || depth || quoted); p++) {
    if (*p == '"') quoted = !quoted;
    if (!quoted) depth += *p == '(' ? 1 : *p == ')' ? -1 : 0;
  }
  *list = *p ? p + 1 : p;
  *p = 0;
  while (p > item && p[-1] == ' ') *--p = 0;
  return item;
}

Status pass_list_check(const char *list) {
  bool quoted = false, blank = true;
  int depth = 0;
  if (!list[strspn(list, " ")]) return OK;
  for (const char *p = list;; p++) {
    if (*p == '"') quoted = !quoted;
    if (!quoted) depth += *p == '(' ? 1 : *p == ')' ? -1 : 0;
    bool ends = !*p || (*p == ',' && !depth && !quoted);
    if (ends && blank)
      return status_hint(
          fail(ERR_USAGE, "'%s': there is nothing %s", list, !*p ? "behind the last comma" : "before a comma"),
          "items stand with a single comma between them: a,b,c");
    if (!*p) return OK;
    blank = ends || (blank && *p == ' ');
  }
}

/* One pass of a list, ready to run. */
typedef struct {
  const PassDef *pass;
  PassValue *values;
} Item;

static Status parse_item(Arena *arena, char *text, Item *item) {
  size_t len = strcspn(text, "( ");
  char *rest = text + len + strspn(text + len, " "), opens = *rest;
  text[len] = 0;
  item->pass = pass_find(text);
  if (!item->pass) return unknown(text);
  if (opens && opens != '(') return fail(ERR_USAGE, "pass '%s': '%s' behind its name", text, rest);
  char *options = opens ? rest + 1 : rest, *end = strrchr(options, ')');
  if (opens && (!end || end[1])) return fail(ERR_USAGE, "pass '%s': its options need a closing ')'", text);
  if (end) *end = 0;
  return pass_options_parse(arena, item->pass->name, options, &item->values);
}

static Status parse_list(Arena *arena, const char *list, Item **out, int *n) {
  char *copy;
  int room = 1;
  *n = 0;
  TRY(pass_list_check(list));
  for (const char *p = list; *p; p++) room += *p == ',';
  TRY_NEW(copy, arena_strdup(arena, list));
  TRY_NEW(*out, arena_new_n(arena, Item, room));
  for (char *item; (item = pass_list_next(&copy)); (*n)++) TRY(parse_item(arena, item, &(*out)[*n]));
  return OK;
}

Status pass_check_list(const char *list) {
  Arena arena = {0};
  Item *items;
  int n;
  Status s = parse_list(&arena, list, &items, &n);
  arena_free(&arena);
  return s;
}

Status pass_run_list(Exported *e, const char *list, Ctx *ctx, TextBuf *stats) {
  Arena arena = {0};
  Item *items;
  int n;
  Status s = parse_list(&arena, list, &items, &n);
  for (int i = 0; !s && i < n; i++) {
    PassArgs args = {.ctx = ctx, .values = items[i].values, .stats = stats};
    s = items[i].pass->run(e, &args);
    if (!s) s = graph_verify(e);
    if (!s && stats && stats->failed) s = fail_oom();
    if (s) s = status_at(s, "pass '%s'", items[i].pass->name);
  }
  arena_free(&arena);
  return s;
}
