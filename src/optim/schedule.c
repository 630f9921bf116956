/* schedule.c -- see schedule.h. */
#include "optim/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"constant", "linear", "cosine", "wsd", "step"};

static Status parse_kind(const char *text, size_t n, ScheduleKind *out) {
  for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
    if (strlen(names[i]) == n && !strncmp(names[i], text, n)) return *out = (ScheduleKind)i, OK;
  return status_hint(fail(ERR_USAGE, "there is no schedule '%.*s'", (int)n, text),
                     "there are constant, linear, cosine, wsd (warmup, stable, decay) and step");
}

static Status parse_count(const char *name, const char *text, size_t n, int64_t least, int64_t *out) {
  char *end;
  long long v = strtoll(text, &end, 10);
  if (!n || end != text + n || v < least)
    return fail(ERR_USAGE, "--schedule: %s must be a whole number of at least %lld, not '%.*s'", name,
                (long long)least, (int)n, text);
  *out = v;
  return OK;
}

static Status parse_fraction(const char *name, const char *text, size_t n, double *out) {
  char *end;
  double v = strtod(text, &end);
  if (!n || end != text + n || !(v >= 0 && v <= 1))
    return fail(ERR_USAGE, "--schedule: %s must be a number from 0 to 1, not '%.*s'", name, (int)n, text);
  *out = v;
  return OK;
}

static Status parse_option(const char *item, size_t n, Schedule *s) {
  const char *equals = memchr(item, '=', n);
  size_t name = equals ? (size_t)(equals - item) : n;
  const char *value = equals ? equals + 1 : item + n;
  size_t len = equals ? n - name - 1 : 0;
  if (name == 6 && !strncmp(item, "warmup", 6)) return parse_count("warmup", value, len, 0, &s->warmup);
  if (name == 5 && !strncmp(item, "steps", 5)) return parse_count("steps", value, len, 1, &s->steps);
  if (name == 5 && !strncmp(item, "decay", 5)) return parse_count("decay", value, len, 1, &s->decay);
  if (name == 5 && !strncmp(item, "every", 5)) return parse_count("every", value, len, 1, &s->every);
  if (name == 3 && !strncmp(item, "min", 3)) return parse_fraction("min", value, len, &s->min);
  if (name == 5 && !strncmp(item, "gamma", 5)) return parse_fraction("gamma", value, len, &s->gamma);
  return status_hint(fail(ERR_USAGE, "--schedule: there is no option '%.*s'", (int)name, item),
                     "warmup=N, min=FRACTION, steps=N; wsd: decay=N; step: every=N, gamma=FRACTION");
}

Status schedule_parse(const char *text, int64_t steps, Schedule *out) {
  size_t n = strcspn(text, ",");
  *out = (Schedule){.gamma = 0.1};
  TRY(parse_kind(text, n, &out->kind));
  for (const char *p = text + n; *p;) {
    size_t len = strcspn(++p, ",");
    if (len) TRY(parse_option(p, len, out));
    p += len;
  }
  if (!out->steps) out->steps = steps;
  if (!out->decay) out->decay = out->steps / 10 > 0 ? out->steps / 10 : 1;
  if (out->kind == SCHEDULE_STEP && !out->every)
    return status_hint(fail(ERR_USAGE, "--schedule step: after how many steps is not told"),
                       "for example --schedule step,every=1000,gamma=0.1");
  if (out->warmup > out->steps)
    return fail(ERR_USAGE, "--schedule: %lld steps of warm-up are more than the %lld steps of the whole",
                (long long)out->warmup, (long long)out->steps);
  return OK;
}

/* From 0 to 1 over `length` steps; 1 from then on. */
static double part(int64_t at, int64_t length) {
  return length <= 0 || at >= length ? 1 : at <= 0 ? 0 : (double)at / (double)length;
}

double schedule_factor(const Schedule *s, int64_t step) {
  int64_t done = step - 1; /* steps before this one */
  if (done < s->warmup) return (double)step / (double)s->warmup;
  double t = part(done - s->warmup, s->steps - s->warmup);
  switch (s->kind) {
    case SCHEDULE_LINEAR: return s->min + (1 - s->min) * (1 - t);
    case SCHEDULE_COSINE: return s->min + (1 - s->min) * 0.5 * (1 + cos(acos(-1.0) * t));
    case SCHEDULE_WSD: return s->min + (1 - s->min) * (1 - part(done - (s->steps - s->decay), s->decay));
    case SCHEDULE_STEP: return fmax(s->min, pow(s->gamma, (double)((done - s->warmup) / s->every)));
    default: return 1;
  }
}
