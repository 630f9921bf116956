/* lexer.h -- characters and tokens of the text form; used by parse.c.
 *
 * White space and comments (# to the end of the line) may stand between tokens.
 * Errors say file:line:column, what was expected and what is there.
 */
#ifndef TESS_GRAPH_LEXER_H
#define TESS_GRAPH_LEXER_H

#include "graph/graph.h"

typedef struct {
  const char *name;           /* of the file */
  const char *text, *p, *end; /* end points to a NUL */
  Arena *arena;               /* of strings */
  SymTable *syms;
} Lexer;

void lex_skip(Lexer *l);
/* Takes a token if it comes next. */
bool lex_take(Lexer *l, char c);
bool lex_take_word(Lexer *l, const char *word);
/* The next character after white space; 0 at the end. */
char lex_peek(Lexer *l);

Status lex_error(Lexer *l, const char *at, const char *what);
Status lex_expected(Lexer *l, const char *what);
Status lex_expect(Lexer *l, char c);
Status lex_expect_word(Lexer *l, const char *word);
/* Puts file:line:column in front of an error of someone else. */
Status lex_locate(Lexer *l, const char *at, Status s);

/* Letters, digits, '_' and '.'; a word begins with no digit.  NULL in *out: none is there. */
Status lex_word(Lexer *l, const char **out);
Status lex_string(Lexer *l, const char **out); /* "..." */
Status lex_word_or_string(Lexer *l, const char *what, const char **out);
Status lex_value_name(Lexer *l, const char **out); /* %name or %"..." */
Status lex_int(Lexer *l, int64_t *out);
Status lex_float(Lexer *l, double *out);
Status lex_number(Lexer *l, Arg *out); /* int or float */
Status lex_sym(Lexer *l, const Sym **out);

#endif
