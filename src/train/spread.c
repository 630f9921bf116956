/* spread.c -- see spread.h. */
#include "train/spread.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/textbuf.h"

static Status needs_mesh(const SpreadSettings *s) {
  const char *given = s->data_axis       ? "--data-axis"
                      : s->data_parallel ? "--data-parallel"
                      : s->rank_rows     ? "--rank-rows"
                      : s->fsdp          ? "--fsdp"
                      : s->bucket_mb     ? "--bucket-mb"
                                         : NULL;
  if (!given || s->mesh) return OK;
  return status_hint(fail(ERR_USAGE, "%s is about several ranks, and there is one", given),
                     "say which ranks: --mesh dp=2");
}

static Status read_bucket(const char *text, double *mb) {
  const char *end;
  *mb = reduce_gradients_default.bucket_mb;
  if (!text) return OK;
  if (!strcmp(text, "auto")) return *mb = BUCKET_AUTO, OK;
  *mb = text_to_float(text, &end);
  if (end != text && !*end && *mb >= 0 && !isinf(*mb)) return OK;
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

Status spread_reductions(const SpreadSettings *s, Arena *arena, ReduceGradients *out) {
  char *wrap;
  *out = reduce_gradients_default;
  out->keep_gathered = s->keep_gathered;
  if (s->prefetch >= 0) out->prefetch = (int)s->prefetch;
  TRY(read_bucket(s->bucket_mb, &out->bucket_mb));
  if (!s->wrap) return OK;
  TRY_NEW(wrap, arena_printf(arena, "%s", s->wrap));
  for (char *p = wrap; *p; p++)
    if (*p == ',') *p = '|';
  out->wrap = wrap;
  return OK;
}

Status spread_apply(const SpreadSettings *s, Arena *arena, Trainer *t) {
  ReduceGradients reduce;
  TRY(spread_reductions(s, arena, &reduce));
  session_reduce_gradients(trainer_session(t), &reduce);
  if (!s->rank_rows) return OK;
  int64_t *rows = NULL;
  int n;
  TRY(parse_rows(s->rank_rows, &rows, &n));
  Status status = trainer_set_rows(t, rows, n);
  free(rows);
  return status;
}
