/* main.c -- tessera's front door: finds the command, prints its error, sets the exit code. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/near.h"
#include "cli/cli.h"
#include "comm/launch.h"
#include "ops/op.h"
#include "tessera.h"

const Command command_table[] = {
#define COMMAND(name, who, summary) {#name, command_##name, LAUNCHED_##who, summary, &spec_##name},
#include "cli/commands.def"
#undef COMMAND
};
const int command_count = (int)(sizeof command_table / sizeof *command_table);

const ExitCode exit_codes[] = {
    {0, "ok"},
    {1, "failure"},
    {2, "usage"},
    {3, "bad or unsupported file"},
    {4, "a check found a difference"},
    {5, "rank failure"},
    {6, "bad checkpoint"},
    {130, "interrupted"},
};
const int exit_code_count = (int)(sizeof exit_codes / sizeof *exit_codes);

static void print_help(FILE *f) {
  fprintf(f, "tessera -- runs, shards, inspects and transforms exported PyTorch programs (.pt2) without Python\n\n"
             "  tessera run model.pt2 -i in.safetensors -o out.safetensors\n"
             "  tessera inspect model.pt2\n"
             "  tessera plan model.pt2 --mesh dp=2,tp=4 --report plan.html\n"
             "  tessera run model.pt2 --mesh tp=2 -i in.safetensors --check\n"
             "  tessera opt model.pt2 --passes functionalize,cse,dce --print\n\n"
             "commands\n");
  for (int i = 0; i < command_count; i++)
    fprintf(f, "  %-10s %s\n", command_table[i].name, command_table[i].summary);
  fprintf(f, "  %-10s %s\n\n", "help", "this page, or `tessera help COMMAND`");
  int column = fprintf(f, "exit codes:");
  for (int i = 0; i < exit_code_count; i++) {
    const ExitCode *e = &exit_codes[i];
    if (column + (int)strlen(e->meaning) > 94) column = fprintf(f, "\n           ") - 1;
    column += fprintf(f, " %d %s%s", e->code, e->meaning, i + 1 < exit_code_count ? "," : "\n");
  }
}

static const Command *find_command(const char *name) {
  for (int i = 0; i < command_count; i++) {
    if (!strcmp(command_table[i].name, name)) return &command_table[i];
  }
  return NULL;
}

static const char *nearest_command(const char *name) {
  const char *near = NULL;
  for (int i = 0, limit = near_limit(name); i < command_count; i++) {
    int d = near_distance(name, command_table[i].name, limit);
    if (d <= limit) near = command_table[i].name, limit = d - 1;
  }
  return near;
}

/* In one piece: what the processes of a launch say does not mix. */
static void print_error(const char *message) {
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  if (f) {
    fputs(terminal_colors(stderr) ? "\033[1;31merror:\033[0m " : "error: ", f);
    print_plain(f, message);
    fputc('\n', f);
  }
  if (f && !fclose(f)) fwrite(text, 1, size, stderr);
  else fprintf(stderr, "error: %s\n", message);
  free(text);
}

static int report(Status s) {
  if (!s) return 0;
  int code = (int)status_code(s);
  bool told = !*status_message(s); /* by another rank of an MPI launch */
  fflush(stdout);                  /* results so far stand before the error */
  if (!told) print_error(status_message(s));
  status_free(s);
  /* Launchers end all processes when the first fails: that must be the one that says why, and its code
   * is the launch's. */
  if (told) return 0;
  return code == ERR_DYNAMIC ? 1 : code;
}

/* In a launch, where others will miss this rank: which it was. */
static void say_interrupted(void) {
  char text[64] = "error: rank ", digits[12];
  size_t n = strlen(text), k = 0;
  for (int rank = launched_rank(); !k || rank; rank /= 10) digits[k++] = (char)('0' + rank % 10);
  while (k) text[n++] = digits[--k];
  memcpy(text + n, ": interrupted (SIGINT)\n", 23);
  if (write(STDERR_FILENO, text, n + 23) < 0) _Exit(130);
}

static void interrupted(int signal_number) {
  (void)signal_number;
  /* A progress bar may be there. */
  if (isatty(STDERR_FILENO) && write(STDERR_FILENO, "\r\033[K", 4) < 0) _Exit(130);
  if (transport_launched()) say_interrupted();
  _Exit(130);
}

/* A file that is opened must not get the number of a stream that was closed: what is
 * printed would go there.  Reading from /dev/null and writing to it fail both. */
static void open_streams(void) {
  for (int fd = 0; fd <= 2; fd++) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0) _Exit(ERR_FAIL);
  }
}

/* All of stdout is out, or that is the error. */
static int finish(int code) {
  bool failed = ferror(stdout) != 0;
  if ((fflush(stdout) || failed) && !code) code = report(fail(ERR_FAIL, "cannot write to standard output"));
  return code;
}

int main(int argc, char **argv) {
  signal(SIGINT, interrupted);
  signal(SIGPIPE, SIG_DFL);
  open_streams();
  if (argc < 2) {
    print_help(stderr);
    return ERR_USAGE;
  }
  const char *name = argv[1];
  if (!strcmp(name, "--version") || !strcmp(name, "version")) {
    printf("tessera %s\n", TESS_VERSION);
    return finish(0);
  }
  if (!strcmp(name, "help") && argc > 2 && strcmp(argv[2], "help") != 0) {
    name = argv[2];
    argv[2] = (char *)(uintptr_t) "--help";
  } else if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) {
    print_help(stdout);
    return finish(0);
  }
  const Command *c = find_command(name);
  if (!c) {
    const char *near = nearest_command(name);
    Status s = fail(ERR_USAGE, "there is no command '%s'", name);
    s = near ? status_hint(s, "did you mean 'tessera %s'?", near)
             : status_hint(s, "`tessera help` lists the commands");
    return report(s);
  }
  if (c->launched == LAUNCHED_FIRST && launched_rank() > 0) return 0;
  int code = report(op_registry_status());
  if (code) return code;
  return finish(report(c->run(argc - 2, argv + 2)));
}
