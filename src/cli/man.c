/* man.c -- `tessera man`: tessera(1), from the tables of --help. */
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/completion.h"
#include "tessera.h"

/* As roff: a backslash is \e, a hyphen that may be copied is \-, a line begins with no dot. */
static void print_roff(const char *text) {
  bool begins = true;
  for (; *text; text++) {
    if (begins && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
    begins = *text == '\n';
    if (*text == '\\') fputs("\\e", stdout);
    else if (*text == '-') fputs("\\-", stdout);
    else putchar(*text);
  }
}

static void print_example(const char *text, const char *command) {
  char *filled = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&filled, &size);
  if (!f) return;
  print_examples(f, text, command);
  if (!fclose(f)) print_roff(filled);
  free(filled);
}

static void print_option(const Option *o) {
  printf(".TP\n");
  if (o->letter) printf("\\fB\\-%c\\fR, ", o->letter);
  printf("\\fB");
  print_roff(o->name);
  printf("\\fR");
  if (option_kind(o) == OPT_MAYBE) printf("[\\fB=%s\\fR]", o->value);
  else if (o->value) printf(" \\fI%s\\fR", o->value);
  printf("\n");
  print_roff(o->help);
  printf("\n");
}

static void print_command(const char *name, const char *summary, const CommandSpec *spec) {
  printf(".SS \"tessera %s\"\n", name);
  print_roff(summary);
  printf("\n.PP\n\\fBtessera %s\\fR ", name);
  print_roff(spec->usage);
  printf("\n");
  for (int i = 0; i < spec->noptions; i++) print_option(&spec->options[i]);
  printf(".PP\n.EX\n");
  print_example(spec->examples, name);
  printf(".EE\n");
}

static const struct {
  const char *name, *meaning;
} variables[] = {
    {"TESSERA_ISA", "The instruction set to use at most: base, avx2 or avx512."},
    {"TESSERA_MPI_PLUGIN", "The file of the MPI plug\\-in, libtessera_mpi.so, where it is not beside the command."},
    {"NO_COLOR", "No colours, if it is set and not empty."},
};

static const char examples[] = "  tessera man | man -l -\n";
const CommandSpec spec_man = {.usage = "", .examples = examples};

Status command_man(int argc, char **argv) {
  TextList words;
  bool help;
  TRY(options_parse("man", &spec_man, NULL, argc, argv, &words, &help));
  if (help) return OK;
  if (words.n) return fail(ERR_USAGE, "man takes no argument, '%s' was given", words.v[0]);
  printf(".\\\" Written by `tessera man` from the tables of --help.\n"
         ".TH TESSERA 1 \"\" \"tessera %s\" \"User Commands\"\n.SH NAME\n"
         "tessera \\- run, shard, inspect and transform exported PyTorch programs\n"
         ".SH SYNOPSIS\n\\fBtessera\\fR \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]\n.br\n"
         "\\fBtessera help\\fR [\\fICOMMAND\\fR]\n.br\n\\fBtessera \\-\\-version\\fR\n"
         ".SH DESCRIPTION\n"
         "tessera reads what torch.export.save() writes (.pt2), compiles it for the sizes of its inputs and\n"
         "runs it, on one rank or on a mesh of ranks (threads of one process, or the processes of an MPI launch);\n"
         "or it writes a .pt2 file per rank that PyTorch runs.\n"
         "Results go to standard output, messages and progress to standard error.\n.SH COMMANDS\n",
         TESS_VERSION);
  each_command(print_command);
  printf(".SH EXIT STATUS\n");
  for (int i = 0; i < exit_code_count; i++) printf(".TP\n%d\n%s\n", exit_codes[i].code, exit_codes[i].meaning);
  printf(".SH ENVIRONMENT\n");
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
    printf(".TP\n\\fB%s\\fR\n%s\n", variables[i].name, variables[i].meaning);
  return OK;
}
