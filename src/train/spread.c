/* spread.c -- see spread.h. */
#include "train/spread.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/textbuf.h"

static Status needs_mesh(const SpreadSettings *s) {
  const char *given = s->data_axis       ? "--data-axis"
                      : s->data_parallel ? "--data-parallel"
                      : s->rank_rows     ? "--rank-rows"
                      : s->fsdp          ? "--fsdp"
                      : s->no_overlap    ? "--no-overlap"
                      : s->reduce_dtype  ? "--reduce-dtype"
                      : s->bucket_mb     ? "--bucket-mb"
                      : s->whole_updates ? "--whole-updates"
                                         : NULL;
  if (!given || s->mesh) return OK;
  return status_hint(fail(ERR_USAGE, "%s is about several ranks, and there is one", given),
                     "say which ranks: --mesh dp=2");
}

enum { MOST_MB = 1000000000 };

static Status read_bucket(const char *text, double *mb) {
  const char *end;
  *mb = reduce_gradients_default.bucket_mb;
  if (!text) return OK;
  if (!strcmp(text, "auto")) return *mb = BUCKET_AUTO, OK;
  *mb = text_to_float(text, &end);
  if (end != text && !*end && *mb >= 0 && *mb <= MOST_MB) return OK;
  return status_hint(fail(ERR_USAGE, "--bucket-mb %s: the MiB of gradients that are reduced at once", text),
                     "0 or more, or auto");
}

Status spread_plan(const SpreadSettings *s, const PlanFile *plan, TrainerPlan *out) {
  bool local = s->data_parallel && !strcmp(s->data_parallel, "local");
  TRY(needs_mesh(s));
  if (s->data_parallel && !local && strcmp(s->data_parallel, "global"))
    return fail(ERR_USAGE, "--data-parallel %s: there is global and local", s->data_parallel);
  if (s->rank_rows && !local)
    return status_hint(fail(ERR_USAGE, "--rank-rows shares out batches, and every rank works on the whole one"),
                       "ranks that have rows of their own: --data-parallel local");
  double mb;
  TRY(read_bucket(s->bucket_mb, &mb));
  out->mesh = s->mesh;
  out->plan = plan;
  out->data_axis = s->data_axis;
  out->fsdp = s->fsdp;
  out->local = local;
  out->whole_updates = s->whole_updates;
  return OK;
}

/* "5,7"; malloc'ed. */
static Status parse_rows(const char *text, int64_t **rows, int *n) {
  enum { DECIMAL = 10 };
  int64_t *list;
  *n = 0;
  TRY_NEW(list, malloc((strlen(text) + 1) * sizeof *list));
  for (const char *p = text; *p;) {
    char *end;
    long long v = strtoll(p, &end, DECIMAL);
    bool ends = !*end || (*end == ',' && end[1]);
    if (end == p || !ends || v < 1 || v == INT64_MAX) {
      free(list);
      return status_hint(fail(ERR_USAGE, "--rank-rows %s: rows of each rank are wanted", text),
                         "a number per rank along the data axes: 5,7");
    }
    list[(*n)++] = v;
    p = *end ? end + 1 : end;
  }
  *rows = list;
  return OK;
}

/* The patterns become an option of a pass, in double quotes. */
static Status check_wrap(const char *wrap) {
  enum { LONGEST = 1000 };
  if (*wrap && !strchr(wrap, '"') && strlen(wrap) <= LONGEST) return OK;
  return status_hint(
      fail(ERR_USAGE, "--wrap '%.60s': patterns of modules are wanted, %d characters at the most", wrap, LONGEST),
      "--wrap 'layers.*,head'");
}

static Status parse_reduce_dtype(const char *text, Dtype *out) {
  *out = DT_NONE;
  if (!text) return OK;
  if (!strcmp(text, "bf16")) *out = DT_BF16;
  else if (!strcmp(text, "f16")) *out = DT_F16;
  else if (strcmp(text, "f32"))
    return fail(ERR_USAGE, "--reduce-dtype %s: gradients are reduced in bf16, f16 or f32", text);
  return OK;
}

Status spread_reductions(const SpreadSettings *s, Arena *arena, ReduceGradients *out) {
  char *wrap;
  *out = reduce_gradients_default;
  out->keep_gathered = s->keep_gathered;
  out->wait_at_once = s->no_overlap;
  TRY(parse_reduce_dtype(s->reduce_dtype, &out->dtype));
  if (s->prefetch >= 0) out->prefetch = (int)s->prefetch;
  TRY(read_bucket(s->bucket_mb, &out->bucket_mb));
  if (!s->wrap) return OK;
  TRY(check_wrap(s->wrap));
  TRY_NEW(wrap, arena_printf(arena, "%s", s->wrap));
  for (char *p = wrap; *p; p++)
    if (*p == ',') *p = '|';
  out->wrap = wrap;
  return OK;
}

/* Is there a module with parameters that the pattern names? */
static bool names_module(const Exported *e, const char *pattern) {
  for (int i = 0; i < e->nstate; i++) {
    char module[1024];
    const char *fqn = e->state[i].fqn;
    for (const char *dot = e->state[i].is_parameter ? strchr(fqn, '.') : NULL; dot; dot = strchr(dot + 1, '.')) {
      snprintf(module, sizeof module, "%.*s", (int)(dot - fqn), fqn);
      if (patterns_match(pattern, module)) return true;
    }
  }
  return false;
}

Status spread_check_modules(const char *wrap, Arena *arena, const Exported *e) {
  if (!wrap || !strcmp(wrap, "none")) return OK;
  char *text, *rest;
  TRY_NEW(text, arena_printf(arena, "%s", wrap));
  for (char *pattern = strtok_r(text, ",", &rest); pattern; pattern = strtok_r(NULL, ",", &rest))
    if (!names_module(e, pattern))
      return status_hint(fail(ERR_USAGE, "--wrap: no module with parameters matches '%s'", pattern),
                         "`tessera inspect` lists the modules");
  return OK;
}

Status spread_apply(const SpreadSettings *s, Arena *arena, Trainer *t) {
  ReduceGradients reduce;
  TRY(spread_reductions(s, arena, &reduce));
  TRY(spread_check_modules(s->wrap, arena, trainer_program(t)));
  session_reduce_gradients(trainer_session(t), &reduce);
  if (!s->rank_rows) return OK;
  int64_t *rows = NULL;
  int n;
  TRY(parse_rows(s->rank_rows, &rows, &n));
  Status status = trainer_set_rows(t, rows, n);
  free(rows);
  return status;
}
