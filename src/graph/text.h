/* text.h -- the words that print.c and parse.c share. */
#ifndef TESS_GRAPH_TEXT_H
#define TESS_GRAPH_TEXT_H

#include "graph/graph.h"

extern const char *const text_memory_format[4];
extern const char *const text_val_type[5];

/* Characters of words and value names. */
static inline bool text_in_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

#endif
