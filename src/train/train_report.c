/* train_report.c -- see train_report.h. */
#include "train/train_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "report/page.h"

/* train_page.html, as it is, with a NUL behind it. */
static const char train_page[] = {
#include "train/train_page.inc"
};

enum { STRETCHES = 1000, ROWS = 200, NOT_FINITE_TOLD = 100 };

/* ---- numbers of a step ------------------------------------------------------------------------------------ */

/* Does the step have it? */
typedef bool NumberFn(const StepRecord *r, double *out);

static bool get_loss(const StepRecord *r, double *out) { return *out = r->loss, true; }
static bool get_eval(const StepRecord *r, double *out) { return *out = r->eval_loss, r->has_eval; }
static bool get_norm(const StepRecord *r, double *out) { return *out = r->grad_norm, !(r->grad_norm < 0); }
static bool get_lr(const StepRecord *r, double *out) { return *out = r->lr, true; }
static bool get_seconds(const StepRecord *r, double *out) { return *out = r->seconds, r->seconds > 0; }
static bool get_tokens(const StepRecord *r, double *out) { return *out = r->tokens_per_s, r->tokens_per_s > 0; }
static bool get_samples(const StepRecord *r, double *out) { return *out = r->samples_per_s, r->samples_per_s > 0; }
static bool get_tflops(const StepRecord *r, double *out) { return *out = r->tflops, r->tflops > 0; }
static bool get_share(const StepRecord *r, double *out) { return *out = r->share_of_peak, r->share_of_peak > 0; }
static bool get_memory(const StepRecord *r, double *out) { return *out = (double)r->memory, r->memory > 0; }
static bool get_scale(const StepRecord *r, double *out) { return *out = r->loss_scale, r->loss_scale > 0; }

static const struct {
  const char *name;
  NumberFn *get;
} numbers[] = {{"loss", get_loss},
               {"eval_loss", get_eval},
               {"grad_norm", get_norm},
               {"lr", get_lr},
               {"seconds", get_seconds},
               {"tokens_per_s", get_tokens},
               {"samples_per_s", get_samples},
               {"tflops", get_tflops},
               {"share_of_peak", get_share},
               {"memory", get_memory},
               {"loss_scale", get_scale}};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

/* Seven digits are more than a page can show. */
static void put_number(TextBuf *b, double x) {
  char digits[32];
  if (!isfinite(x)) return text_puts(b, "null");
  snprintf(digits, sizeof digits, "%.7g", x);
  text_float(b, strtod(digits, NULL)); /* both with the point of the locale */
}

/* ---- curves ------------------------------------------------------------------------------------------------- */

typedef struct {
  int64_t *step;
  double *value; /* finite */
  int64_t n;
  int64_t bad, bad_step[NOT_FINITE_TOLD]; /* steps whose number is not finite; the first of them */
} Curve;

static void collect(Curve *c, const TrainReport *r, NumberFn *get) {
  c->n = c->bad = 0;
  for (int64_t i = 0; i < r->nsteps; i++) {
    double x;
    if (!get(&r->step[i], &x)) continue;
    if (isfinite(x)) {
      c->step[c->n] = r->step[i].step;
      c->value[c->n++] = x;
    } else if (c->bad++ < NOT_FINITE_TOLD) {
      c->bad_step[c->bad - 1] = r->step[i].step;
    }
  }
}

/* Points [from, to) of a curve, as few as tell of it. */
typedef struct {
  int64_t keep[4]; /* in order, may repeat: the first, the least and the largest, the last */
  double mean;
} Stretch;

static Stretch look_at(const Curve *c, int64_t from, int64_t to) {
  int64_t least = from, most = from;
  double sum = 0;
  for (int64_t i = from; i < to; i++) {
    if (c->value[i] < c->value[least]) least = i;
    if (c->value[i] > c->value[most]) most = i;
    sum += c->value[i] / (double)(to - from);
  }
  int64_t early = least < most ? least : most, late = least < most ? most : least;
  return (Stretch){{from ? early : 0, early, late, to == c->n ? to - 1 : late}, sum};
}

/* "step": [...] or "value": [...] of the points that are kept; means: of each stretch, at its middle. */
typedef enum { PUT_STEP, PUT_VALUE, PUT_MEAN_STEP, PUT_MEAN } PutWhat;

static void put_points(TextBuf *b, const Curve *c, PutWhat what) {
  int64_t stretches = c->n <= 2 * STRETCHES ? c->n : STRETCHES, last = -1;
  int n = 0;
  for (int64_t k = 0; k < stretches; k++) {
    int64_t from = k * c->n / stretches, to = (k + 1) * c->n / stretches;
    Stretch s = look_at(c, from, to);
    if (what == PUT_MEAN || what == PUT_MEAN_STEP) {
      if (n++) text_puts(b, ",");
      if (what == PUT_MEAN) put_number(b, s.mean);
      else text_int(b, c->step[from + (to - from) / 2]);
      continue;
    }
    for (int j = 0; j < 4; j++) {
      if (s.keep[j] == last) continue;
      last = s.keep[j];
      if (n++) text_puts(b, ",");
      if (what == PUT_STEP) text_int(b, c->step[last]);
      else put_number(b, c->value[last]);
    }
  }
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Sorts the values: the last thing that is done with them. */
static double median(Curve *c) {
  qsort(c->value, (size_t)c->n, sizeof *c->value, by_value);
  return c->value[c->n / 2];
}

static void put_curve(TextBuf *b, Curve *c) {
  text_puts(b, "{\"step\":[");
  put_points(b, c, PUT_STEP);
  text_puts(b, "],\"value\":[");
  put_points(b, c, PUT_VALUE);
  if (c->n > 2 * STRETCHES) {
    text_puts(b, "],\"mean_step\":[");
    put_points(b, c, PUT_MEAN_STEP);
    text_puts(b, "],\"mean\":[");
    put_points(b, c, PUT_MEAN);
  }
  text_puts(b, "],\"not_finite\":");
  text_int(b, c->bad);
  text_puts(b, ",\"not_finite_at\":[");
  for (int i = 0; i < c->bad && i < NOT_FINITE_TOLD; i++) {
    if (i) text_puts(b, ",");
    text_int(b, c->bad_step[i]);
  }
  text_puts(b, "],\"count\":");
  text_int(b, c->n + c->bad);
  if (c->n) text_puts(b, ",\"median\":"), put_number(b, median(c));
  text_puts(b, "}");
}

static Status put_curves(TextBuf *b, const TrainReport *r) {
  Curve c = {0};
  c.step = malloc(((size_t)r->nsteps + 1) * sizeof *c.step);
  c.value = malloc(((size_t)r->nsteps + 1) * sizeof *c.value);
  Status s = c.step && c.value ? OK : fail_oom();
  text_puts(b, "\"curves\":{");
  for (int i = 0, n = 0; i < NUMBERS && !s; i++) {
    collect(&c, r, numbers[i].get);
    if (!c.n && !c.bad) continue;
    text_printf(b, "%s\"%s\":", n++ ? ",\n" : "", numbers[i].name);
    put_curve(b, &c);
  }
  text_puts(b, "}");
  free(c.step);
  free(c.value);
  return s;
}

/* ---- a table of some steps ---------------------------------------------------------------------------------- */

static void put_row(TextBuf *b, const StepRecord *r) {
  text_puts(b, "[");
  text_int(b, r->step);
  for (int i = 0; i < NUMBERS; i++) {
    double x;
    bool known = numbers[i].get(r, &x);
    text_puts(b, ",");
    if (known && !isfinite(x)) text_puts(b, isnan(x) ? "\"nan\"" : x < 0 ? "\"-inf\"" : "\"inf\"");
    else put_number(b, known ? x : NAN);
  }
  text_puts(b, "]");
}

/* Evenly chosen, the first and the last among them. */
static void put_table(TextBuf *b, const TrainReport *r) {
  int64_t n = r->nsteps < ROWS ? r->nsteps : ROWS;
  text_puts(b, "\"columns\":[\"step\"");
  for (int i = 0; i < NUMBERS; i++) text_printf(b, ",\"%s\"", numbers[i].name);
  text_puts(b, "],\n\"rows\":[");
  for (int64_t k = 0; k < n; k++) {
    if (k) text_puts(b, ",\n");
    put_row(b, &r->step[n > 1 ? k * (r->nsteps - 1) / (n - 1) : 0]);
  }
  text_puts(b, "]");
}

/* ---- the rest ------------------------------------------------------------------------------------------------ */

static void put_text(TextBuf *b, const char *key, const char *text) {
  if (!text) return;
  text_printf(b, ",\n\"%s\":", key);
  text_json(b, text);
}

static void put_amount(TextBuf *b, const char *key, int64_t n) {
  if (n) text_printf(b, ",\n\"%s\":%lld", key, (long long)n);
}

static void put_facts(TextBuf *b, const TrainReport *r) {
  int64_t skipped = 0;
  for (int64_t i = 0; i < r->nsteps; i++) skipped += r->step[i].skipped;
  text_puts(b, "\"steps\":");
  text_int(b, r->nsteps);
  put_amount(b, "planned", r->planned);
  put_amount(b, "skipped", skipped);
  put_amount(b, "samples", r->samples);
  put_amount(b, "tokens", r->tokens);
  put_amount(b, "parameters", r->parameters);
  if (r->seconds > 0) text_puts(b, ",\n\"seconds\":"), put_number(b, r->seconds);
  put_text(b, "program", r->program);
  put_text(b, "command", r->command);
  put_text(b, "ended", r->ended);
  text_puts(b, ",\n\"facts\":[");
  for (int i = 0; i < r->nfacts; i++) {
    text_puts(b, i ? ",[" : "[");
    text_json(b, r->fact[i].name);
    text_puts(b, ",");
    text_json(b, r->fact[i].value);
    text_puts(b, "]");
  }
  text_puts(b, "],\n\"memory\":[");
  for (int i = 0; i < r->nmemory; i++) {
    text_puts(b, i ? ",{\"name\":" : "{\"name\":");
    text_json(b, r->memory[i].name);
    text_printf(b, ",\"bytes\":%lld}", (long long)r->memory[i].bytes);
  }
  text_puts(b, "]");
}

Status train_report_json(TextBuf *b, const TrainReport *r) {
  text_puts(b, "{");
  put_facts(b, r);
  text_puts(b, ",\n");
  TRY(put_curves(b, r));
  text_puts(b, ",\n");
  put_table(b, r);
  text_puts(b, "}");
  return b->failed ? fail_oom() : OK;
}

Status train_report_html(const TrainReport *r, const char *path) {
  TextBuf json = {0}, page = {0};
  Status s = train_report_json(&json, r);
  if (!s) s = page_write(&page, train_page, json.text);
  if (!s) s = file_write_all(path, page.text, page.len, FILE_OVERWRITE);
  text_free(&json);
  text_free(&page);
  return s;
}
