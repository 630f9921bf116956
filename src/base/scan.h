/* scan.h -- reading short texts that people write: schemas, sizes, placements.  *p is where the reader
 * stands; the text ends with a NUL. */
#ifndef TESS_BASE_SCAN_H
#define TESS_BASE_SCAN_H

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

static inline bool scan_is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static inline void scan_skip(const char **p) {
  while (isspace((unsigned char)**p)) (*p)++;
}

/* Steps over white space and this token, if it comes next.  A token that ends like a word must end
 * one: "S" is not the beginning of "Shard". */
static inline bool scan_take(const char **p, const char *token) {
  size_t n = strlen(token);
  scan_skip(p);
  if (strncmp(*p, token, n) || (scan_is_word(token[n - 1]) && scan_is_word((*p)[n]))) return false;
  *p += n;
  return true;
}

#endif
