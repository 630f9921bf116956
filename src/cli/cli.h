/* cli.h -- what the commands share.
 *
 * A command is a file (src/cli/<name>.c), a row in commands.def, and a table of options.
 * Results go to stdout, messages and progress to stderr.  Exit codes are ErrCode's.
 */
#ifndef TESS_CLI_CLI_H
#define TESS_CLI_CLI_H

#include <stdio.h>

#include "base/human.h"
#include "base/status.h"
#include "harness/load.h"
#include "tensor/safetensors.h"

typedef enum { OPT_FLAG, OPT_TEXT, OPT_INT, OPT_FLOAT, OPT_LIST, OPT_MAYBE /* --check or --check=x */ } OptionKind;

enum { MAX_LIST = 1024 };
typedef struct {
  const char *v[MAX_LIST];
  int n;
} TextList;

typedef struct {
  const char *name; /* "--threads" */
  char letter;      /* 'i' for -i; 0 if none */
  OptionKind kind;
  void *target;             /* bool, const char *, int64_t, double, TextList, const char * ("" if bare) */
  const char *value, *help; /* "N", "what it does" */
} Option;

/* Which processes of an MPI launch do a command's work. */
typedef enum { LAUNCHED_ALL, LAUNCHED_FIRST } Launched;

typedef struct {
  const char *name;
  Status (*run)(int argc, char **argv);
  Launched launched;
  const char *summary;
} Command;

extern const Command command_table[];
extern const int command_count;

/* Fills the targets.  Words that are no options go to `words`, after -- all of them.  On --help prints the
 * help (examples first) and sets *help: the command returns at once. */
Status options_parse(const char *command, const char *usage, const char *examples, const Option *options, int n,
                     int argc, char **argv, TextList *words, bool *help);
#define OPTIONS(table) (table), (int)(sizeof(table) / sizeof *(table))

/* An option of numbers that nobody gave. */
#define NOT_GIVEN INT64_MIN
/* ERR_USAGE unless the number is between the two, or was not given. */
Status option_between(const char *name, int64_t value, int64_t least, int64_t most);

/* Number of threads: the option's value, or all cores this process may use. */
enum { MOST_THREADS = 1024 };
int threads_or_default(int64_t option);

/* Can `path` become an output file?  Asked before the work, not after it: fails if a
 * regular file is there already (unless force) or its folder cannot be written to. */
Status output_check(const char *path, bool force);

/* Names in files may hold anything: what would move a cursor is printed as '?'. */
void print_plain(FILE *f, const char *text);

/* Is stderr (stdout) a terminal that takes colours? */
bool terminal_colors(FILE *f);

/* Prints a JSON document and frees it.  A NULL document is out of memory. */
struct yyjson_mut_doc;
Status json_print(FILE *f, struct yyjson_mut_doc *doc);

#define COMMAND(name, who, summary) Status command_##name(int argc, char **argv);
#include "cli/commands.def"
#undef COMMAND

#endif
