/* recipe.c -- see recipe.h. */
#include "optim/recipe.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool patterns_match(const char *patterns, const char *name) {
  char one[256];
  for (const char *p = patterns; *p; p += *p == ',') {
    size_t n = strcspn(p, ",");
    if (n < sizeof one) {
      memcpy(one, p, n);
      one[n] = 0;
      if (!fnmatch(one, name, 0)) return true;
    }
    p += n;
  }
  return false;
}

Status recipe_init(Recipe *r, Arena *arena, const char *optim) {
  *r = (Recipe){.ngroups = 1,
                .norm_type = 2,
                .accumulate = 1,
                .compute = DT_NONE,
                .param_dtype = DT_NONE,
                .state_dtype = DT_NONE,
                .arena = arena};
  r->group[0].name = "all";
  return optim_parse(optim, &r->group[0].optim);
}

static bool is_taken(const Recipe *r, const char *name) {
  for (int i = 0; i < r->ngroups; i++)
    if (!strcmp(r->group[i].name, name)) return true;
  return false;
}

/* "optim=NAME,lr=..": another optimizer may only stand first. */
static Status group_settings(OptimSpec *o, const char *settings) {
  if (strncmp(settings, "optim=", 6)) return optim_set(o, settings);
  OptimSpec base = *o, named;
  char name[64];
  size_t n = strcspn(settings + 6, ",");
  if (n >= sizeof name) return fail(ERR_USAGE, "the name of an optimizer is too long");
  memcpy(name, settings + 6, n);
  name[n] = 0;
  TRY(optim_parse(name, &named));
  optim_convert(&base, named.optimizer->name, o);
  return optim_set(o, settings[6 + n] ? settings + 7 + n : "");
}

Status recipe_add_group(Recipe *r, const char *text) {
  char *copy;
  TRY_NEW(copy, arena_printf(r->arena, "%s", text));
  /* the first colon behind the patterns: others stand in lists of numbers */
  char *equals = strchr(copy, '='), *colon = equals ? strchr(equals, ':') : NULL;
  if (!equals || equals == copy || !colon || colon == equals + 1)
    return status_hint(fail(ERR_USAGE, "a group is NAME=PATTERNS:SETTINGS, not '%s'", text),
                       "for example --group 'no_decay=*.bias,*norm*:weight_decay=0'");
  *equals = *colon = 0;
  if (is_taken(r, copy)) return fail(ERR_USAGE, "there are two groups called '%s'", copy);
  if (r->ngroups == MAX_GROUPS)
    return fail(ERR_USAGE, "there are more than %d groups of parameters", MAX_GROUPS - 1);
  OptimGroup all = r->group[r->ngroups - 1];
  OptimGroup g = {.name = copy, .patterns = equals + 1, .optim = all.optim};
  TRY(status_at(group_settings(&g.optim, colon + 1), "group '%s'", copy));
  r->group[r->ngroups - 1] = g;
  r->group[r->ngroups++] = all;
  return OK;
}

static Status positive(const char *text, size_t n, const char *what, double *out) {
  char *end;
  double v = strtod(text, &end);
  if (!n || end != text + n || !(v > 0))
    return fail(ERR_USAGE, "--clip: %s must be a number above 0, not '%.*s'", what, (int)n, text);
  *out = v;
  return OK;
}

Status recipe_clip(Recipe *r, const char *text) {
  bool typed = false;
  for (const char *p = text; *p; p += *p == ',') {
    size_t n = strcspn(p, ",");
    typed |= !strncmp(p, "norm=", 5);
    if (!strncmp(p, "norm=", 5) && n > 5) TRY(positive(p + 5, n - 5, "norm", &r->norm_type));
    else if (!strncmp(p, "value=", 6) && n > 6) TRY(positive(p + 6, n - 6, "value", &r->clip_value));
    else if (!strncmp(p, "max=", 4) && n > 4) TRY(positive(p + 4, n - 4, "max", &r->clip_norm));
    else TRY(positive(p, n, "the largest norm", &r->clip_norm));
    p += n;
  }
  if (typed && r->clip_norm == 0)
    return status_hint(fail(ERR_USAGE, "--clip %s: there is a norm, but not how large it may be", text),
                       "for example --clip 1.0,norm=inf");
  return OK;
}

int recipe_group(const Recipe *r, const char *fqn) {
  for (int i = 0; i + 1 < r->ngroups; i++)
    if (patterns_match(r->group[i].patterns, fqn)) return i;
  return r->ngroups - 1;
}
