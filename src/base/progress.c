/* progress.c -- see progress.h. */
#include "base/progress.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

enum { LINE = 256, BAR = 24, SHORT_BAR = 10, WIDTH_IF_UNKNOWN = 80, WIDE = 120 };

#define REDRAW_SECONDS 0.1
#define WIPE "\r\033[K"
#define CYAN "\033[36m"
#define PLAIN "\033[0m"

static bool is_terminal(FILE *stream) {
  const char *term = getenv("TERM");
  return stream && isatty(fileno(stream)) && !(term && !strcmp(term, "dumb"));
}

void progress_begin(Progress *p, FILE *stream, const char *what, int64_t total, ProgressUnit unit) {
  if (!p) return;
  const char *no_colour = getenv("NO_COLOR");
  *p = (Progress){
      .stream = is_terminal(stream) ? stream : NULL, .what = what, .total = total, .unit = unit, .delay = 1};
  p->colour = !(no_colour && *no_colour);
  if (p->stream) p->begun = p->drawn_at = clock_now();
}

static const char *amount(double n, ProgressUnit unit, char *buf, size_t cap) {
  static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
  int u = 0;
  if (unit == PROGRESS_STEPS) {
    snprintf(buf, cap, "%.0f", n);
    return buf;
  }
  for (; n >= 1000 && u < 4; u++) n /= 1000;
  snprintf(buf, cap, u ? "%.1f %s" : "%.0f %s", n, units[u]);
  return buf;
}

static const char *duration(double seconds, char *buf, size_t cap) {
  long s = seconds < 1e6 ? (long)(seconds + 0.5) : 1000000;
  if (s < 60) snprintf(buf, cap, "%ld s", s);
  else if (s < 3600) snprintf(buf, cap, "%ld min %02ld s", s / 60, s % 60);
  else snprintf(buf, cap, "%ld h %02ld min", s / 3600, s / 60 % 60);
  return buf;
}

static int columns(FILE *stream) {
  struct winsize size;
  return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : WIDTH_IF_UNKNOWN;
}

/* "writing weights  #########---------------   37%  1.2 GB of 3.3 GB  4 s left  a note", cut to
 * the width of the terminal: a line that wraps cannot be wiped. */
static void draw(Progress *p, double at) {
  char bar[BAR + 1] = "", percent[16] = "", a[32], b[32], c[32], line[LINE];
  double seconds = at - p->begun, part = p->total > 0 ? (double)p->done / (double)p->total : 0;
  int width = columns(p->stream), bar_width = p->note && width < WIDE ? SHORT_BAR : BAR;
  if (part > 1) part = 1;
  if (p->total > 0) {
    int filled = (int)(part * bar_width);
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '-', (size_t)(bar_width - filled));
    snprintf(percent, sizeof percent, "  %3d%%", (int)(part * 100));
  }
  bool numbers = p->unit != PROGRESS_SHARE;
  int n = snprintf(line, sizeof line, "%s  %s%s%s%s", p->what, bar, percent, numbers ? "  " : "",
                   numbers ? amount((double)p->done, p->unit, a, sizeof a) : "");
  if (n > 0 && n < LINE && p->total > 0 && numbers)
    n += snprintf(line + n, (size_t)(LINE - n), " of %s", amount((double)p->total, p->unit, b, sizeof b));
  if (n > 0 && n < LINE && p->total > p->done && p->done > p->from) {
    double each = seconds / (double)(p->done - p->from);
    n += snprintf(line + n, (size_t)(LINE - n), "  %s left",
                  duration(each * (double)(p->total - p->done), c, sizeof c));
  }
  if (n > 0 && n < LINE && p->note) snprintf(line + n, (size_t)(LINE - n), "  %s", p->note);
  fprintf(p->stream, WIPE "%s%.*s%s", p->colour ? CYAN : "", width - 1, line, p->colour ? PLAIN : "");
  fflush(p->stream);
  p->drawn = true;
  p->drawn_at = at;
}

void progress_set(Progress *p, int64_t done) {
  if (!p) return;
  p->done = done;
  if (!p->stream) return;
  double at = clock_now();
  if (at - p->begun < p->delay || (p->drawn && at - p->drawn_at < REDRAW_SECONDS)) return;
  draw(p, at);
}

void progress_add(Progress *p, int64_t more) {
  if (p) progress_set(p, p->done + more);
}

void progress_end(Progress *p) {
  if (!p || !p->drawn) return;
  fputs(WIPE, p->stream);
  fflush(p->stream);
  p->drawn = false;
}
