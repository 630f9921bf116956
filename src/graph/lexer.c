/* lexer.c -- see lexer.h. */
#include "graph/lexer.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/textbuf.h"
#include "graph/text.h"

void lex_skip(Lexer *l) {
  for (;;) {
    while (*l->p == ' ' || *l->p == '\n' || *l->p == '\t' || *l->p == '\r') l->p++;
    if (*l->p != '#') return;
    while (l->p < l->end && *l->p != '\n') l->p++;
  }
}

char lex_peek(Lexer *l) {
  lex_skip(l);
  return *l->p;
}

bool lex_take(Lexer *l, char c) {
  if (lex_peek(l) != c || l->p == l->end) return false;
  l->p++;
  return true;
}

bool lex_take_word(Lexer *l, const char *word) {
  size_t n = strlen(word);
  lex_skip(l);
  if (strncmp(l->p, word, n) || text_in_word(l->p[n])) return false;
  l->p += n;
  return true;
}

/* ---- errors ------------------------------------------------------------------------------ */

static void position(const Lexer *l, const char *at, int *line, int *column) {
  *line = *column = 1;
  for (const char *p = l->text; p < at; p++) {
    ++*column;
    if (*p == '\n') {
      ++*line;
      *column = 1;
    }
  }
}

Status lex_error(Lexer *l, const char *at, const char *what) {
  int line, column;
  position(l, at, &line, &column);
  return fail(ERR_FILE, "%s:%d:%d: %s", l->name, line, column, what);
}

Status lex_expected(Lexer *l, const char *what) {
  int line, column, n = 0;
  lex_skip(l);
  position(l, l->p, &line, &column);
  while (n < 30 && text_in_word(l->p[n])) n++;
  if (l->p == l->end) return fail(ERR_FILE, "%s:%d:%d: expected %s, found the end", l->name, line, column, what);
  return fail(ERR_FILE, "%s:%d:%d: expected %s, found '%.*s'", l->name, line, column, what, n ? n : 1, l->p);
}

Status lex_locate(Lexer *l, const char *at, Status s) {
  if (!s || s == fail_oom()) return s;
  Status located = lex_error(l, at, status_message(s));
  status_free(s);
  return located;
}

Status lex_expect(Lexer *l, char c) {
  char what[] = {'\'', c, '\'', 0};
  return lex_take(l, c) ? OK : lex_expected(l, what);
}

Status lex_expect_word(Lexer *l, const char *word) { return lex_take_word(l, word) ? OK : lex_expected(l, word); }

/* ---- words and strings --------------------------------------------------------------------- */

Status lex_word(Lexer *l, const char **out) {
  *out = NULL;
  char c = lex_peek(l);
  if (!text_in_word(c) || isdigit((unsigned char)c) || c == '.') return OK;
  const char *begin = l->p;
  while (text_in_word(*l->p)) l->p++;
  TRY_NEW(*out, arena_strndup(l->arena, begin, (size_t)(l->p - begin)));
  return OK;
}

static bool hex4(const char *p, unsigned *out) {
  *out = 0;
  for (int i = 0; i < 4; i++) {
    if (!isxdigit((unsigned char)p[i])) return false;
    unsigned digit = isdigit((unsigned char)p[i]) ? (unsigned)(p[i] - '0')
                                                  : (unsigned)(tolower((unsigned char)p[i]) - 'a' + 10);
    *out = *out * 16 + digit;
  }
  return true;
}

static char *put_utf8(char *to, unsigned code) {
  if (code < 0x80) {
    *to++ = (char)code;
  } else if (code < 0x800) {
    *to++ = (char)(0xc0 | code >> 6);
    *to++ = (char)(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    *to++ = (char)(0xe0 | code >> 12);
    *to++ = (char)(0x80 | (code >> 6 & 0x3f));
    *to++ = (char)(0x80 | (code & 0x3f));
  } else {
    *to++ = (char)(0xf0 | code >> 18);
    *to++ = (char)(0x80 | (code >> 12 & 0x3f));
    *to++ = (char)(0x80 | (code >> 6 & 0x3f));
    *to++ = (char)(0x80 | (code & 0x3f));
  }
  return to;
}

/* Behind the backslash; the result is never longer than what it was written with. */
static Status unescape(Lexer *l, char **to) {
  static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
  const char *at = l->p - 1, *simple = *l->p ? strchr(from, *l->p) : NULL;
  unsigned code, low;
  if (simple) {
    *(*to)++ = into[simple - from];
    l->p++;
    return OK;
  }
  if (*l->p != 'u' || !hex4(l->p + 1, &code)) return lex_error(l, at, "this escape is not known");
  l->p += 5;
  if (code >= 0xd800 && code < 0xdc00 && l->p[0] == '\\' && l->p[1] == 'u' && hex4(l->p + 2, &low) &&
      low >= 0xdc00 && low < 0xe000) {
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    l->p += 6;
  }
  if (code == 0 || (code >= 0xd800 && code < 0xe000))
    return lex_error(l, at, "this character cannot stand in a string");
  *to = put_utf8(*to, code);
  return OK;
}

Status lex_string(Lexer *l, const char **out) {
  if (!lex_take(l, '"')) return lex_expected(l, "a string");
  const char *begin = l->p, *close = begin;
  while (close < l->end && *close != '"') close += *close == '\\' && close + 1 < l->end ? 2 : 1;
  char *text, *to;
  TRY_NEW(text, arena_alloc(l->arena, (size_t)(close - begin) + 1));
  to = text;
  while (*l->p != '"') {
    if (l->p >= l->end) return lex_error(l, begin - 1, "the string has no end");
    if (!*l->p) return lex_error(l, l->p, "the character NUL cannot stand in a string");
    if (*l->p != '\\') {
      *to++ = *l->p++;
    } else {
      l->p++;
      TRY(unescape(l, &to));
    }
  }
  l->p++;
  *to = 0;
  *out = text;
  return OK;
}

Status lex_word_or_string(Lexer *l, const char *what, const char **out) {
  if (lex_peek(l) == '"') return lex_string(l, out);
  TRY(lex_word(l, out));
  return *out ? OK : lex_expected(l, what);
}

Status lex_value_name(Lexer *l, const char **out) {
  if (!lex_take(l, '%')) return lex_expected(l, "a value (%name)");
  const char *begin = l->p;
  if (*l->p == '"') {
    TRY(lex_string(l, out));
  } else {
    while (text_in_word(*l->p)) l->p++;
    TRY_NEW(*out, arena_strndup(l->arena, begin, (size_t)(l->p - begin)));
  }
  return **out ? OK : lex_error(l, begin, "expected the name of a value after %");
}

/* ---- numbers -------------------------------------------------------------------------------- */

Status lex_number(Lexer *l, Arg *out) {
  char *end_int;
  const char *end_float;
  lex_skip(l);
  errno = 0;
  long long i = strtoll(l->p, &end_int, 10);
  bool too_large = errno != 0;
  double f = text_to_float(l->p, &end_float);
  if (end_float == l->p) return lex_expected(l, "a number");
  if (end_float > end_int) {
    l->p = end_float;
    *out = arg_float(f);
    return OK;
  }
  if (too_large) return lex_error(l, l->p, "this number does not fit in 64 bits");
  l->p = end_int;
  *out = arg_int(i);
  return OK;
}

Status lex_int(Lexer *l, int64_t *out) {
  Arg a;
  lex_skip(l);
  const char *at = l->p;
  TRY(lex_number(l, &a));
  if (a.kind != ARG_INT) return lex_error(l, at, "expected an integer");
  *out = a.i;
  return OK;
}

Status lex_float(Lexer *l, double *out) {
  Arg a;
  TRY(lex_number(l, &a));
  *out = a.kind == ARG_INT ? (double)a.i : a.f;
  return OK;
}

Status lex_sym(Lexer *l, const Sym **out) {
  lex_skip(l);
  return lex_locate(l, l->p, sym_parse_text(l->syms, l->p, &l->p, out));
}
