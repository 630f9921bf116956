/* cli.h -- what the commands share.
 *
 * A command is a file (src/cli/<name>.c) with a spec (its options, usage and examples) and a row in
 * commands.def.  `tessera man` and `tessera completion` read the same tables.
 * Results go to stdout, messages and progress to stderr.  Exit codes are ErrCode's.
 */
#ifndef TESS_CLI_CLI_H
#define TESS_CLI_CLI_H

#include <stddef.h>
#include <stdio.h>

#include "base/human.h"
#include "base/status.h"
#include "harness/load.h"
#include "tensor/safetensors.h"

typedef enum {
  OPT_FLAG,
  OPT_TEXT,
  OPT_INT,
  OPT_FLOAT,
  OPT_LIST,
  OPT_MAYBE, /* --check or --check=x */
  OPT_KINDS = 8
} OptionKind;

enum { MAX_LIST = 1024 };
typedef struct {
  const char *v[MAX_LIST];
  int n;
} TextList;

/* What the value of an option or the arguments of a command are, for shells that complete them:
 * added to the kind of an option. */
typedef enum {
  TAKES_ANYTHING = 0, /* of a command: no arguments */
  TAKES_FILE = OPT_KINDS,
  TAKES_FOLDER = 2 * OPT_KINDS,
  TAKES_TENSORS = 3 * OPT_KINDS, /* .safetensors */
  TAKES_PROGRAM = 4 * OPT_KINDS, /* .pt2, a text or a folder */
  TAKES_PLAN = 5 * OPT_KINDS,    /* .json, or auto */
  TAKES_MACHINE = 6 * OPT_KINDS, /* .json, or the name of one */
  TAKES_MESH = 7 * OPT_KINDS,    /* tp=2,dp=4 */
  TAKES_PASSES = 8 * OPT_KINDS,  /* names with commas between them */
  TAKES_PASS = 9 * OPT_KINDS,
  TAKES_OP = 10 * OPT_KINDS,
  TAKES_COMM = 11 * OPT_KINDS, /* a transport */
  TAKES_DTYPE = 12 * OPT_KINDS,
  TAKES_REDUCTION = 13 * OPT_KINDS,
  TAKES_SHELL = 14 * OPT_KINDS
} Takes;

typedef struct {
  const char *name; /* "--threads" */
  char letter;      /* 'i' for -i; 0 if none */
  int how;          /* OptionKind, or'ed with a Takes */
  /* Where it is in the command's struct of options (offsetof): a bool, const char *, int64_t,
   * double, TextList, const char * ("" if bare). */
  size_t target;
  const char *value, *help; /* "N", "what it does" */
} Option;

static inline OptionKind option_kind(const Option *o) { return (OptionKind)(o->how % OPT_KINDS); }
static inline Takes option_takes(const Option *o) { return (Takes)(o->how - o->how % OPT_KINDS); }

/* What --help, the man page and the shells know of a command. */
typedef struct SubCommand SubCommand;
typedef struct {
  const char *usage;    /* what follows the name */
  const char *examples; /* lines; COMMAND stands for the name */
  Takes words;          /* its arguments */
  const Option *options;
  int noptions;
  const SubCommand *sub; /* the first argument is one of these */
  int nsub;
} CommandSpec;

typedef Status SubCommandFn(const char *name, int argc, char **argv);
struct SubCommand {
  const char *name, *summary;
  SubCommandFn *run;
  const CommandSpec *spec;
};

/* Which processes of an MPI launch do a command's work. */
typedef enum { LAUNCHED_ALL, LAUNCHED_FIRST } Launched;

typedef struct {
  const char *name;
  Status (*run)(int argc, char **argv);
  Launched launched;
  const char *summary;
  const CommandSpec *spec;
} Command;

extern const Command command_table[];
extern const int command_count;

/* What main() may return, in the order of the numbers. */
typedef struct {
  int code;
  const char *meaning;
} ExitCode;
extern const ExitCode exit_codes[];
extern const int exit_code_count;

/* Fills the targets in `values`.  Words that are no options go to `words`, after -- all of them.  On --help
 * prints the help (examples first) and sets *help: the command returns at once. */
Status options_parse(const char *command, const CommandSpec *spec, void *values, int argc, char **argv,
                     TextList *words, bool *help);
/* Examples of a spec, with the command's name in them. */
void print_examples(FILE *f, const char *text, const char *command);
#define OPTIONS(table) .options = (table), .noptions = (int)(sizeof(table) / sizeof *(table))

/* The struct of a command whose only option is --json. */
typedef struct {
  bool json;
} JsonOption;

/* An option of numbers that nobody gave. */
#define NOT_GIVEN INT64_MIN
/* ERR_USAGE unless the number is between the two, or was not given. */
Status option_between(const char *name, int64_t value, int64_t least, int64_t most);
static inline int64_t given_or(int64_t option, int64_t otherwise) {
  return option == NOT_GIVEN ? otherwise : option;
}
/* Rows of a table of options, for a struct that has wrap, keep_gathered and prefetch. */
/* clang-format off */
#define OPTIONS_OF_GROUPS(type)                                                                                        \
  {"--wrap", 0, OPT_TEXT, offsetof(type, wrap), "PATTERNS",                                                            \
   "with --fsdp: modules whose parameters are gathered at once, 'layers.*,head' (default: those with a number; "       \
   "none: all at once)"},                                                                                              \
  {"--keep-gathered", 0, OPT_FLAG, offsetof(type, keep_gathered), NULL,                                                \
   "with --fsdp: parameters stay gathered from the forward to the backward"},                                          \
  {"--prefetch", 0, OPT_INT, offsetof(type, prefetch), "N", "with --fsdp: groups that are gathered ahead (default 1)"}
/* clang-format on */
/* ERR_USAGE if something is said of groups of parameters that nothing shards. */
Status options_of_groups(const char *fsdp, const char *wrap, bool keep_gathered, int64_t prefetch);
/* Bytes: "256M"; text NULL: 0. */
Status option_bytes(const char *option, const char *text, uint64_t *out);

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

#define COMMAND(name, who, summary)             \
  Status command_##name(int argc, char **argv); \
  extern const CommandSpec spec_##name;
#include "cli/commands.def"
#undef COMMAND

#endif
