/* step_lines.c -- steps as lines for people, and a bar below them; see step_sink.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/human.h"
#include "base/progress.h"
#include "train/step_sink.h"

#define LINE_SECONDS 1.0 /* between lines on a terminal */

typedef struct {
  StepSink sink;
  FILE *lines;
  bool at_terminal; /* the lines are */
  int64_t last;
  double line_at; /* of the last line; 0: none yet */
  Progress bar;
  char note[128]; /* of the bar */
} LineSink;

/* ---- texts ---------------------------------------------------------------------------------------------- */

/* Adds to a text in buf; what does not fit is cut off. */
static void put(char *buf, size_t cap, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void put(char *buf, size_t cap, const char *fmt, ...) {
  size_t n = strlen(buf);
  va_list args;
  va_start(args, fmt);
  vsnprintf(buf + n, cap - n, fmt, args);
  va_end(args);
}

/* A loss, or a norm: so many digits behind the point where that says enough. */
static void put_number(char *buf, size_t cap, const char *name, double x, int digits) {
  double size = fabs(x);
  if (x == 0 || (size >= 0.01 && size < 1e5) || !isfinite(x)) put(buf, cap, "  %s %.*f", name, digits, x);
  else put(buf, cap, "  %s %.2e", name, x);
}

static void put_rate(char *buf, size_t cap, double x, const char *unit) {
  static const char *const prefix[] = {"", "k", "M", "G"};
  int u = 0;
  for (; x >= 1000 && u < 3; u++) x /= 1000;
  put(buf, cap, "  %.*f%s %s", x < 10 ? 2 : 1, x, prefix[u], unit);
}

static void put_speed(char *buf, size_t cap, const StepRecord *r) {
  if (r->tokens_per_s > 0) put_rate(buf, cap, r->tokens_per_s, "tok/s");
  else if (r->samples_per_s > 0) put_rate(buf, cap, r->samples_per_s, "samples/s");
}

static void put_arithmetic(char *buf, size_t cap, const StepRecord *r) {
  bool tera = r->tflops >= 0.1;
  double amount = tera ? r->tflops : r->tflops * 1e3;
  if (!(r->tflops > 0)) return;
  put(buf, cap, "  %.*f %cFLOP/s", amount < 10 ? 2 : 1, amount, tera ? 'T' : 'G');
  if (r->share_of_peak > 0) put(buf, cap, " (%.0f %%)", r->share_of_peak * 100);
}

const char *step_line(const StepRecord *r, int64_t last, char *buf, size_t cap) {
  char size[32];
  int digits = last > 0 ? snprintf(NULL, 0, "%lld", (long long)last) : 1;
  snprintf(buf, cap, "step %*lld", digits, (long long)r->step);
  put_number(buf, cap, "loss", r->loss, 4);
  if (!(r->grad_norm < 0)) put_number(buf, cap, "norm", r->grad_norm, 2);
  put(buf, cap, "  lr %.1e", r->lr);
  put_speed(buf, cap, r);
  put_arithmetic(buf, cap, r);
  if (r->memory) put(buf, cap, "  %s", human_bytes((double)r->memory, size, sizeof size));
  if (r->loss_scale > 0) put(buf, cap, "  scale %.0f", r->loss_scale);
  if (r->skipped) put(buf, cap, "  skipped: the gradient is not finite");
  if (r->has_eval) put_number(buf, cap, "eval", r->eval_loss, 4);
  return buf;
}

/* ---- the sink --------------------------------------------------------------------------------------------- */

static bool is_line_due(const LineSink *l, const StepRecord *r, double now) {
  if (!l->lines) return false;
  if (!l->at_terminal || r->has_eval || r->skipped || !isfinite(r->loss)) return true;
  return l->line_at == 0 || r->step == l->last || now - l->line_at >= LINE_SECONDS;
}

static Status write_line(StepSink *sink, const StepRecord *r) {
  LineSink *l = (LineSink *)sink;
  char line[512];
  double now = clock_now();
  if (is_line_due(l, r, now)) {
    progress_end(&l->bar);
    l->line_at = now;
    if (fprintf(l->lines, "%s\n", step_line(r, l->last, line, sizeof line)) < 0 || fflush(l->lines))
      return fail(ERR_FAIL, "cannot write the line of step %lld: the output is closed, or its disk full",
                  (long long)r->step);
  }
  l->note[0] = 0;
  put_number(l->note, sizeof l->note, "loss", r->loss, 4);
  put_speed(l->note, sizeof l->note, r);
  if (l->last && r->step >= l->last) progress_end(&l->bar);
  else progress_set(&l->bar, r->step);
  return OK;
}

static void pause_line(StepSink *sink) { progress_end(&((LineSink *)sink)->bar); }

static void close_line(StepSink *sink) {
  pause_line(sink);
  free(sink);
}

/* What goes through a pipe may come out on the terminal that the bar is drawn on (| tee). */
static bool is_pipe(FILE *f) {
  struct stat st;
  return f && fstat(fileno(f), &st) == 0 && S_ISFIFO(st.st_mode);
}

Status step_sink_lines(FILE *lines, FILE *bar, int64_t first, int64_t last, StepSink **out) {
  LineSink *l;
  TRY_NEW(l, calloc(1, sizeof *l));
  l->sink = (StepSink){.write = write_line, .pause = pause_line, .close = close_line};
  l->lines = lines;
  l->at_terminal = lines && isatty(fileno(lines));
  l->last = last;
  progress_begin(&l->bar, is_pipe(lines) ? NULL : bar, "step", last, PROGRESS_STEPS);
  l->bar.from = l->bar.done = first - 1;
  l->bar.note = l->note + 2; /* without the blanks before it */
  *out = &l->sink;
  return OK;
}
