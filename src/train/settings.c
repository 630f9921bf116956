/* settings.c -- see settings.h. */
#include "train/settings.h"

#include <string.h>

static Status parse_dtype(const char *setting, const char *text, const char *which, Dtype *out) {
  *out = DT_NONE;
  if (!text) return OK;
  static const struct {
    const char *name;
    Dtype d;
  } names[] = {{"bf16", DT_BF16},     {"f16", DT_F16},     {"f32", DT_F32},     {"f64", DT_F64},
               {"bfloat16", DT_BF16}, {"float16", DT_F16}, {"float32", DT_F32}, {"float64", DT_F64}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(names[i].name, text) && strstr(which, names[i].name)) return *out = names[i].d, OK;
  return fail(ERR_USAGE, "%s is one of %s, not '%s'", setting, which, text);
}

Status settings_nonfinite(const TrainSettings *s, NonFinite *out) {
  *out = NONFINITE_STOP;
  if (!s->nonfinite || !strcmp(s->nonfinite, "stop")) return OK;
  if (!strcmp(s->nonfinite, "skip")) return *out = NONFINITE_SKIP, OK;
  if (!strcmp(s->nonfinite, "go")) return *out = NONFINITE_GO, OK;
  return fail(ERR_USAGE, "--nonfinite is stop, skip or go, not '%s'", s->nonfinite);
}

static Status parse_dtypes(const TrainSettings *s, Recipe *r) {
  static const char any[] = "bf16 f16 f32 f64 bfloat16 float16 float32 float64";
  TRY(parse_dtype("--dtype", s->dtype, "bf16 f16 bfloat16 float16", &r->compute));
  TRY(parse_dtype("--param-dtype", s->param_dtype, any, &r->param_dtype));
  TRY(parse_dtype("--state-dtype", s->state_dtype, any, &r->state_dtype));
  r->scale_loss = r->compute == DT_F16;
  return OK;
}

Status settings_recipe(const TrainSettings *s, Arena *arena, Recipe *out) {
  enum { MOST_BATCHES = 1000000 };
  NonFinite nonfinite;
  TRY(settings_nonfinite(s, &nonfinite));
  TRY(status_at(recipe_init(out, arena, s->optim ? s->optim : "adamw"), "--optim"));
  for (int i = 0; i < s->ngroups; i++) TRY(recipe_add_group(out, s->groups[i]));
  if (s->clip) TRY(recipe_clip(out, s->clip));
  if (s->freeze) TRY_NEW(out->freeze, arena_printf(arena, "%s", s->freeze));
  if (s->accumulate < 0 || s->accumulate > MOST_BATCHES)
    return fail(ERR_USAGE, "--accumulate must be between 1 and %d", MOST_BATCHES);
  out->accumulate = s->accumulate ? (int)s->accumulate : 1;
  out->skip_nonfinite = nonfinite != NONFINITE_GO;
  return parse_dtypes(s, out);
}

Status settings_schedule(const TrainSettings *s, int64_t steps, Schedule *out) {
  TRY(schedule_parse(s->schedule ? s->schedule : "constant", steps > 0 ? steps : INT64_MAX, out));
  bool ends = out->kind == SCHEDULE_LINEAR || out->kind == SCHEDULE_COSINE || out->kind == SCHEDULE_WSD;
  if (!ends || out->steps != INT64_MAX) return OK;
  return status_hint(fail(ERR_USAGE, "--schedule %s: how many steps it is for is not told", s->schedule),
                     "give --steps, or %s,steps=N", s->schedule);
}
