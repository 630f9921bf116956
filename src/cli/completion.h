/* completion.h -- what shells are told, from the tables of --help.
 *
 * `tessera completion SHELL` prints a script for it; a script asks `tessera completion ops`
 * for names.  Another shell is a file and a row in completion.c.
 */
#ifndef TESS_CLI_COMPLETION_H
#define TESS_CLI_COMPLETION_H

#include "base/textbuf.h"
#include "cli/cli.h"

/* What values of a kind look like. */
typedef struct {
  Takes takes;
  const char *name;            /* in the scripts */
  const char *files;           /* NULL: no files; "": any; "/": folders; "json": with that ending, and folders */
  void (*words)(TextBuf *out); /* words with spaces between them; NULL: none */
  const char *asked;           /* words come from `tessera completion ASKED`; NULL: they do not */
  bool list;                   /* several, with commas between them */
} Completion;

const Completion *completion_of(Takes takes); /* NULL: anything */

/* Calls fn for every kind, with its words; NULL: it has none. */
typedef void EachCompletionFn(const Completion *c, const char *words);
Status each_completion(EachCompletionFn *fn);

/* Calls fn for every command and benchmark: name is "run" or "bench run". */
typedef void EachCommandFn(const char *name, const char *summary, const CommandSpec *spec);
void each_command(EachCommandFn *fn);

Status completion_bash(void);
Status completion_zsh(void);
Status completion_fish(void);

#endif
