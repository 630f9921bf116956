/* placement_text.c -- placements as text: PyTorch's spellings and ours. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/scan.h"
#include "base/textbuf.h"
#include "shard/placement.h"

/* ---- printing -------------------------------------------------------------------- */

static void print_shard(const Placement *p, char *buf, size_t cap) {
  size_t at = 0;
#define ADD(...)                                                                   \
  do {                                                                             \
    int wrote = snprintf(buf + at, cap - at, __VA_ARGS__);                         \
    at += wrote < 0 ? 0 : (size_t)wrote < cap - at ? (size_t)wrote : cap - at - 1; \
  } while (0)
  bool strided = p->factor != 1 && p->unit == 1;
  if (strided) ADD("_S(%d, %lld)", p->dim, (long long)p->factor);
  else {
    ADD("S(%d", p->dim);
    if (p->factor != 1) ADD("; factor %lld", (long long)p->factor);
    for (int i = 0; i < p->nsegments; i++) ADD("%s%lld", i ? "," : "; segments ", (long long)p->segment[i]);
    if (p->unit != 1) ADD("; unit %lld", (long long)p->unit);
    ADD(")");
  }
  if (p->turn) ADD("[%d]", p->turn - 1);
#undef ADD
}

const char *placement_print(const Placement *p, char *buf, size_t cap) {
  if (!cap) return "";
  if (is_r(p)) snprintf(buf, cap, "R");
  else if (is_s(p)) print_shard(p, buf, cap);
  else if (p->norm != 0) {
    TextBuf t = {0};
    text_float(&t, p->norm);
    snprintf(buf, cap, "P(norm %s)", t.failed ? "?" : t.text);
    text_free(&t);
  } else snprintf(buf, cap, "P(%s)", reduce_op_name(p->op));
  return buf;
}

const char *placements_print(const Placement *p, int n, char *buf, size_t cap) {
  if (!cap) return "";
  buf[0] = 0;
  size_t at = 0;
  for (int i = 0; i < n && at + 1 < cap; i++) {
    placement_print(&p[i], buf + at, cap - at);
    at += strlen(buf + at);
  }
  return buf;
}

/* ---- parsing --------------------------------------------------------------------- */

typedef struct {
  const char *whole, *at;
  int ndim;
} Reader;

static Status complain(const Reader *r, const char *why) {
  return status_hint(fail(ERR_USAGE, "placement '%s': %s at '%s'", r->whole, why, *r->at ? r->at : "the end"),
                     "write R, S(dim), _S(dim, factor), S(dim; segments 64,16,16; unit 16), or "
                     "P(sum|avg|min|max|product|band|bor|bxor)");
}

static Status read_int(Reader *r, int64_t *out) {
  scan_skip(&r->at);
  char *end;
  errno = 0;
  long long v = strtoll(r->at, &end, 10);
  if (end == r->at || errno) return complain(r, "a whole number is expected");
  r->at = end;
  *out = v;
  return OK;
}

static Status expect(Reader *r, const char *word) {
  return scan_take(&r->at, word) ? OK : complain(r, word[0] == ')' ? "')' is expected" : "something is missing");
}

static Status read_dim(Reader *r, int *out) {
  int64_t dim;
  if (scan_take(&r->at, "dim")) TRY(expect(r, "="));
  TRY(read_int(r, &dim));
  const long long given = (long long)dim;
  if (dim < 0 && r->ndim >= 0) dim += r->ndim;
  if (dim < 0 || dim >= (r->ndim >= 0 ? r->ndim : MAX_SEGMENTS * MAX_AXES)) {
    if (r->ndim < 0) return fail(ERR_USAGE, "placement '%s': there is no dimension %lld", r->whole, given);
    return status_hint(
        fail(ERR_USAGE, "placement '%s': there is no dimension %lld in a tensor of %d", r->whole, given, r->ndim),
        "dimensions are counted from 0, or from the last one backwards: -1, -2 ...");
  }
  *out = (int)dim;
  return OK;
}

/* What follows S(dim, up to the closing parenthesis. */
static Status read_refinements(Reader *r, Placement *p) {
  while (scan_take(&r->at, ";") || scan_take(&r->at, ",")) {
    int64_t v;
    if (scan_take(&r->at, "segments")) {
      (void)scan_take(&r->at, "=");
      bool bracket = scan_take(&r->at, "[");
      int64_t size[MAX_SEGMENTS];
      int n = 0;
      do {
        if (n == MAX_SEGMENTS) return complain(r, "too many segments");
        TRY(read_int(r, &size[n++]));
        if (size[n - 1] < 0) return complain(r, "a segment is negative");
        scan_skip(&r->at);
      } while (*r->at == ',' && (isdigit((unsigned char)r->at[1]) || r->at[1] == ' ') && scan_take(&r->at, ","));
      if (bracket) TRY(expect(r, "]"));
      Placement with;
      TRY(place_segments(p->dim, size, n, p->unit, &with));
      *p = with;
    } else if (scan_take(&r->at, "unit")) {
      (void)scan_take(&r->at, "=");
      TRY(read_int(r, &v));
      if (v < 1) return complain(r, "a unit is at least 1");
      p->unit = v;
    } else {
      if (scan_take(&r->at, "factor") || scan_take(&r->at, "split_factor") || scan_take(&r->at, "sf"))
        (void)scan_take(&r->at, "=");
      TRY(read_int(r, &v));
      if (v < 1 || v > INT32_MAX) return complain(r, "a factor is 1 to 2147483647");
      p->factor = v;
    }
  }
  return expect(r, ")");
}

static Status read_shard(Reader *r, Placement *p) {
  *p = place_s(0);
  TRY(expect(r, "("));
  TRY(read_dim(r, &p->dim));
  TRY(read_refinements(r, p));
  if (scan_take(&r->at, "[")) {
    int64_t turn;
    TRY(read_int(r, &turn));
    if (turn < 0 || turn >= MAX_AXES) return complain(r, "no such turn");
    p->turn = (int)turn + 1;
    TRY(expect(r, "]"));
  }
  return OK;
}

static Status read_partial(Reader *r, Placement *p) {
  *p = place_p(REDUCE_SUM);
  if (!scan_take(&r->at, "(")) return OK;
  if (scan_take(&r->at, ")")) return OK;
  if (scan_take(&r->at, "reduce_op")) TRY(expect(r, "="));
  (void)scan_take(&r->at, "'");
  if (scan_take(&r->at, "norm")) {
    scan_skip(&r->at);
    const char *end;
    p->norm = text_to_float(r->at, &end);
    if (end == r->at || p->norm == 0) return complain(r, "an exponent is expected");
    r->at = end;
    return expect(r, ")");
  }
  char word[16];
  size_t n = 0;
  scan_skip(&r->at);
  while (isalpha((unsigned char)r->at[n]) && n + 1 < sizeof word) n++;
  memcpy(word, r->at, n);
  word[n] = 0;
  if (!reduce_op_parse(word, &p->op)) return complain(r, "no such reduction");
  r->at += n;
  (void)scan_take(&r->at, "'");
  return expect(r, ")");
}

static Status read_one(Reader *r, Placement *out) {
  if (scan_take(&r->at, "Replicate")) {
    if (scan_take(&r->at, "(")) TRY(expect(r, ")"));
    *out = place_r();
    return OK;
  }
  if (scan_take(&r->at, "_StridedShard") || scan_take(&r->at, "StridedShard") || scan_take(&r->at, "_S") ||
      scan_take(&r->at, "Shard"))
    return read_shard(r, out);
  if (scan_take(&r->at, "Partial")) return read_partial(r, out);
  scan_skip(&r->at);
  switch (*r->at) {
    case 'R':
      r->at++;
      *out = place_r();
      return OK;
    case 'S': r->at++; return read_shard(r, out);
    case 'P': r->at++; return read_partial(r, out);
    default: return complain(r, "no placement begins so");
  }
}

Status placement_parse(const char *text, int ndim, Placement *out) {
  Reader r = {text, text, ndim};
  TRY(read_one(&r, out));
  scan_skip(&r.at);
  return *r.at ? complain(&r, "something follows the placement") : OK;
}

/* Placements up to the end of the text or one of these characters. */
static Status read_list(Reader *r, const char *ends, Placement *out, int *n) {
  bool bracket = scan_take(&r->at, "[") || scan_take(&r->at, "(");
  *n = 0;
  for (scan_skip(&r->at); *r->at && !strchr(ends, *r->at) && *r->at != ']' && *r->at != ')'; scan_skip(&r->at)) {
    if (*n == MAX_AXES) return complain(r, "more placements than a mesh has axes");
    TRY(read_one(r, &out[(*n)++]));
    (void)scan_take(&r->at, ",");
  }
  if (bracket && !scan_take(&r->at, "]") && !scan_take(&r->at, ")")) return complain(r, "']' is expected");
  scan_skip(&r->at);
  return *r->at && !strchr(ends, *r->at) ? complain(r, "something follows the placements") : OK;
}

Status placements_parse(const char *text, int ndim, Placement *out, int *n) {
  Reader r = {text, text, ndim};
  return read_list(&r, "", out, n);
}

Status placements_parse_move(const char **text, int ndim, Placement *from, Placement *to, int *n) {
  Reader r = {*text, *text, ndim};
  int other;
  TRY(read_list(&r, ">", from, n));
  if (!scan_take(&r.at, ">")) return complain(&r, "'>' and where it lies behind are expected");
  TRY(read_list(&r, ";", to, &other));
  if (other != *n) return complain(&r, "before and behind differ in their axes");
  (void)scan_take(&r.at, ";");
  *text = r.at;
  return OK;
}
