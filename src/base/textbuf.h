/* textbuf.h -- a growing text.  Errors stick: check `failed` once at the end. */
#ifndef TESS_BASE_TEXTBUF_H
#define TESS_BASE_TEXTBUF_H

#include "base/status.h"

typedef struct TextBuf {
  char *text; /* NUL-terminated once anything was added */
  size_t len, cap;
  bool failed; /* out of memory */
} TextBuf;

void text_printf(TextBuf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void text_puts(TextBuf *b, const char *s);
void text_write(TextBuf *b, const char *s, size_t n);
void text_int(TextBuf *b, int64_t i);
/* A JSON string with quotes and escapes; bytes that are no UTF-8 become '?'. */
void text_json(TextBuf *b, const char *s);
bool text_is_utf8(const char *s);
/* The shortest decimal that reads back as the same number, with a dot or an exponent:
 * 1.0, 1e-05, inf, -inf, nan. */
void text_float(TextBuf *b, double f);
/* strtod() with a dot whatever the locale of the process: hosts call setlocale(). */
double text_to_float(const char *s, const char **end);
void text_free(TextBuf *b);

#endif
