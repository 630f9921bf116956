/* textbuf.c -- see textbuf.h. */
#include "base/textbuf.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(TextBuf *b, size_t more) {
  if (b->failed) return false;
  if (b->cap - b->len > more) return true;
  size_t cap = b->cap ? b->cap : 256;
  while (cap - b->len <= more) {
    if (cap > SIZE_MAX / 2) return !(b->failed = true);
    cap *= 2;
  }
  char *text = realloc(b->text, cap);
  if (!text) return !(b->failed = true);
  b->text = text;
  b->cap = cap;
  return true;
}

void text_write(TextBuf *b, const char *s, size_t n) {
  if (!reserve(b, n)) return;
  memcpy(b->text + b->len, s, n);
  b->len += n;
  b->text[b->len] = 0;
}

void text_puts(TextBuf *b, const char *s) { text_write(b, s, strlen(s)); }

void text_printf(TextBuf *b, const char *fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  int n = vsnprintf(NULL, 0, fmt, args);
  if (n >= 0 && reserve(b, (size_t)n)) {
    vsnprintf(b->text + b->len, (size_t)n + 1, fmt, again);
    b->len += (size_t)n;
  }
  va_end(again);
  va_end(args);
}

static bool is_plain(unsigned char c) { return c >= 0x20 && c < 0x80 && c != '"' && c != '\\'; }

/* Bytes of the character at s, beyond ASCII; 0: it is no UTF-8. */
static size_t utf8_length(const char *s) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  unsigned char c = (unsigned char)*s;
  size_t n = c >= 0xf0 && c < 0xf8 ? 4 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xc0 && c < 0xe0 ? 2 : 0;
  uint32_t code = n ? c & (0x7fu >> n) : 0;
  for (size_t i = 1; i < n; i++) {
    if (((unsigned char)s[i] & 0xc0) != 0x80) return 0;
    code = code << 6 | ((unsigned char)s[i] & 0x3f);
  }
  return code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : n;
}

bool text_is_utf8(const char *s) {
  for (size_t n; *s; s += n) {
    n = (unsigned char)*s < 0x80 ? 1 : utf8_length(s);
    if (!n) return false;
  }
  return true;
}

void text_json(TextBuf *b, const char *s) {
  text_puts(b, "\"");
  while (*s) {
    size_t n = 0;
    while (is_plain((unsigned char)s[n])) n++;
    if (n) text_write(b, s, n);
    s += n;
    if (!*s) break;
    if ((unsigned char)*s >= 0x80) { /* a name of a file may be anything, JSON is UTF-8 */
      n = utf8_length(s);
      text_write(b, n ? s : "?", n ? n : 1);
      s += n ? n : 1;
      continue;
    }
    unsigned char c = (unsigned char)*s++;
    if (c == '"' || c == '\\') text_write(b, (const char[]){'\\', (char)c}, 2);
    else if (c == '\n') text_puts(b, "\\n");
    else if (c == '\t') text_puts(b, "\\t");
    else text_printf(b, "\\u%04x", c);
  }
  text_puts(b, "\"");
}

void text_int(TextBuf *b, int64_t i) {
  char digits[24], *p = digits + sizeof digits;
  uint64_t rest = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
  do *--p = (char)('0' + rest % 10);
  while (rest /= 10);
  if (i < 0) *--p = '-';
  text_write(b, p, (size_t)(digits + sizeof digits - p));
}

void text_float(TextBuf *b, double f) {
  char digits[40];
  if (isnan(f) || isinf(f)) return text_puts(b, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
  for (int precision = 15; precision <= 17; precision++) {
    snprintf(digits, sizeof digits, "%.*g", precision, f);
    if (strtod(digits, NULL) == f) break;
  }
  char *point = digits + strspn(digits, "-0123456789e+"); /* a comma in some locales */
  if (*point) *point = '.';
  text_puts(b, digits);
  if (!strpbrk(digits, ".e")) text_puts(b, ".0");
}

double text_to_float(const char *s, const char **end) {
  char copy[64], *stop, point = *localeconv()->decimal_point;
  if (point == '.') {
    double f = strtod(s, &stop);
    *end = stop;
    return f;
  }
  size_t n = strspn(s, "+-.0123456789abcdefABCDEFinftyINFTYxXpP");
  if (n >= sizeof copy) n = sizeof copy - 1;
  for (size_t i = 0; i < n; i++) copy[i] = s[i] == '.' ? point : s[i];
  copy[n] = 0;
  double f = strtod(copy, &stop);
  *end = s + (stop - copy);
  return f;
}

void text_free(TextBuf *b) {
  free(b->text);
  *b = (TextBuf){0};
}
