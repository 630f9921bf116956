/* plan_names.c -- see plan_names.h. */
#include "plan/plan_names.h"

#include <stdio.h>
#include <string.h>

#include "base/near.h"
#include "base/textbuf.h"

Status names_open(PlanNames *n, const Exported *e, Arena *arena) {
  *n = (PlanNames){.e = e, .arena = arena};
  TRY_NEW(n->module, arena_alloc(arena, ((size_t)e->graph->nnodes + 1) * sizeof *n->module));
  int i = 0;
  for (const Node *node = e->graph->first; node; node = node->next, i++)
    node_module(node, n->module[i], sizeof n->module[i]);
  TRY_NEW(n->owner, arena_new_n(arena, const char *, e->nstate + 1));
  for (i = 0; i < e->nstate; i++) {
    const char *fqn = e->state[i].fqn, *dot = strrchr(fqn, '.');
    const char *last = i ? n->owner[i - 1] : "";
    size_t size = dot ? (size_t)(dot - fqn) : 0;
    char *copy;
    if (strlen(last) == size && !strncmp(last, fqn, size)) { /* what is told of one is told of all */
      n->owner[i] = last;
      continue;
    }
    TRY_NEW(copy, arena_strdup(arena, fqn));
    copy[size] = 0;
    n->owner[i] = copy;
  }
  return OK;
}

bool names_has_modules(const PlanNames *n, const PlanEntry *e) {
  const char *last = NULL;
  for (int i = 0; i < n->e->nstate; i++) {
    if (n->e->state[i].is_constant || !*n->owner[i] || n->owner[i] == last) continue;
    last = n->owner[i];
    if (pattern_matches(e, last)) return true;
  }
  return false;
}

/* A module around the parameter. */
static bool is_around(const PlanEntry *e, const char *fqn) {
  char module[256];
  snprintf(module, sizeof module, "%s", fqn);
  for (char *dot; (dot = strrchr(module, '.'));) {
    *dot = 0;
    if (pattern_matches(e, module)) return true;
  }
  return false;
}

const char *names_inside(const PlanNames *n, const PlanEntry *e) {
  for (int i = 0; i < n->e->nstate; i++)
    if (!n->e->state[i].is_constant && is_around(e, n->e->state[i].fqn)) return n->e->state[i].fqn;
  return NULL;
}

bool names_around(const PlanNames *n, const PlanEntry *e) {
  int i = 0;
  for (const Node *node = n->e->graph->first; node; node = node->next, i++)
    if (*n->module[i] && pattern_matches(e, n->module[i])) return true;
  return names_inside(n, e) != NULL;
}

/* A module or parameter that the pattern matches from some dot of its name on; NULL: none. */
static const char *name_inside(const PlanNames *n, const PlanEntry *e) {
  PlanEntry inside = *e;
  inside.anywhere = true;
  int i = 0;
  for (const Node *node = n->e->graph->first; node; node = node->next, i++)
    if (*n->module[i] && pattern_matches(&inside, n->module[i])) return n->module[i];
  for (i = 0; i < n->e->nstate; i++)
    if (pattern_matches(&inside, n->e->state[i].fqn)) return n->e->state[i].fqn;
  return NULL;
}

static Status no_match(const PlanNames *n, const PlanFile *plan, const PlanEntry *e) {
  const char *near = NULL, *inside = name_inside(n, e);
  char buf[256] = "";
  for (int i = 0; i < n->e->nstate; i++) {
    const char *fqn = n->e->state[i].fqn, *dot = strrchr(fqn, '.');
    char module[256];
    snprintf(module, sizeof module, "%.*s", dot ? (int)(dot - fqn) : 0, fqn);
    const char *better = nearer_name(e->pattern, *buf ? buf : NULL, dot ? module : fqn);
    if (better && better != buf) snprintf(buf, sizeof buf, "%s", better), near = buf;
  }
  Status s = fail(ERR_USAGE, "%s: '%s' matches no module and no parameter of %s", plan->path, e->pattern,
                  n->e->name);
  if (inside) return status_hint(s, "it has '%s': write '**.%s'", inside, e->pattern);
  if (near) return status_hint(s, "did you mean '%s'?", near);
  TextBuf b = {0};
  int shown = 0;
  for (int i = 0; i < n->e->nstate && shown < 6; i++, shown++)
    text_printf(&b, "%s%s", shown ? ", " : "", n->e->state[i].fqn);
  if (b.text) s = status_hint(s, "its parameters: %s%s", b.text, n->e->nstate > shown ? " ..." : "");
  text_free(&b);
  return s;
}

static const char *last_name(const char *path) {
  const char *dot = strrchr(path, '.');
  return dot ? dot + 1 : path;
}

static bool entry_matches(const PlanNames *n, const PlanEntry *e) {
  bool found = names_around(n, e);
  for (int i = 0; !found && i < n->e->nstate; i++)
    found = pattern_matches(e, n->e->state[i].fqn) || (*n->owner[i] && pattern_matches(e, n->owner[i]));
  return found;
}

/* The end of a name, of as many parts as `like` has. */
static const char *last_parts(const char *name, const char *like) {
  const char *at = name + strlen(name);
  int parts = 1;
  for (; *like; like++) parts += *like == '.';
  for (; at > name; at--)
    if (at[-1] == '.' && --parts == 0) break;
  return at;
}

/* Some module that the plan says nothing of is called almost so. */
static bool is_mistyped(const PlanNames *n, const PlanFile *plan, const char *word) {
  int limit = near_limit(last_name(word)); /* the longer the name, the more of it is context */
  bool found = false;
  for (int i = 0; i < n->e->nstate && !found; i++) {
    const char *fqn = n->e->state[i].fqn, *module = n->owner[i];
    bool spoken = false;
    for (int j = 0; j < plan->nentries && !spoken; j++)
      spoken = pattern_matches(&plan->entry[j], fqn) || pattern_matches(&plan->entry[j], module);
    found = !spoken && (near_distance(word, last_parts(fqn, word), limit) <= limit ||
                        near_distance(word, last_parts(module, word), limit) <= limit);
  }
  return found;
}

/* The words of a name, as in gate_up_proj, are words of the program's own names. */
static bool is_word_of(const PlanNames *n, const char *word, size_t len) {
  for (int i = 0; i < n->e->nstate; i++) {
    const char *fqn = n->e->state[i].fqn;
    for (const char *p = fqn, *end; *p; p = *end ? end + 1 : end) {
      end = p + strcspn(p, "._");
      if ((size_t)(end - p) == len && !strncmp(p, word, len)) return true;
    }
  }
  return false;
}

static bool is_in_its_words(const PlanNames *n, const char *name) {
  for (const char *p = name, *end; *p; p = *end ? end + 1 : end) {
    end = p + strcspn(p, "_");
    if (strspn(p, "0123456789") >= (size_t)(end - p) || !is_word_of(n, p, (size_t)(end - p))) return false;
  }
  return *name != 0;
}

/* Plans that ship with models speak of all that their layers may have (a dense MLP beside
 * experts, norms of queries), and one configuration has less.  Such an entry stands beside others
 * for the same layers that fit, is no slip of the pen, and is made of words that the program
 * uses, too; anything else that matches nothing is a mistake. */
static bool is_for_others(const PlanNames *n, const PlanFile *plan, const PlanEntry *e) {
  const char *star = strrchr(e->pattern, '*');
  bool fits = false;
  if (!star || !star[1] || !is_in_its_words(n, last_name(e->pattern))) return false;
  for (int i = 0; i < plan->nentries && !fits; i++) {
    const PlanEntry *other = &plan->entry[i];
    fits = other != e && !strncmp(other->pattern, e->pattern, (size_t)(star + 1 - e->pattern)) &&
           entry_matches(n, other);
  }
  return fits && !is_mistyped(n, plan, star[1] == '.' ? star + 2 : star + 1);
}

Status names_missing(const PlanNames *n, const PlanFile *plan, const PlanEntry *e) {
  return e->anywhere || is_for_others(n, plan, e) ? OK : no_match(n, plan, e);
}

/* Counts of packed parts speak of weights, too. */
Status names_check_packed(const PlanNames *n, const PlanFile *plan) {
  for (int i = 0; plan && i < plan->npacked; i++) {
    PlanEntry e = {.pattern = plan->packed[i].name, .anywhere = true};
    if (!entry_matches(n, &e)) return status_at(no_match(n, plan, &e), "\"packed\"");
  }
  return OK;
}
