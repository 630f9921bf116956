/* completion.c -- `tessera completion`: what values look like, and names that scripts ask for. */
#include "cli/completion.h"

#include <string.h>

#include "comm/launch.h"
#include "kernels/reduce_op.h"
#include "ops/op.h"
#include "passes/pass.h"
#include "report/machine.h"

/* ---- kinds of values -------------------------------------------------------------------------- */

static void mesh_words(TextBuf *out) {
  static const char *const axes[] = {"tp", "dp"};
  for (size_t a = 0; a < sizeof axes / sizeof *axes; a++) {
    for (int n = 2; n <= 8; n *= 2) text_printf(out, "%s=%d ", axes[a], n);
  }
}

static void plan_words(TextBuf *out) { text_puts(out, "auto"); }

/* "cpu2, a100" without the commas. */
static void machine_words(TextBuf *out) {
  for (const char *c = machine_presets(); *c; c++) {
    if (*c != ',') text_printf(out, "%c", *c);
  }
}

static void pass_words(TextBuf *out) {
  for (int i = 0; i < pass_count; i++) text_printf(out, "%s ", pass_table[i].name);
  text_puts(out, "specialize partition grad");
}

static void comm_words(TextBuf *out) { transport_list(out, " ", " "); }

static void dtype_words(TextBuf *out) {
  for (Dtype d = 0; d < DT_COUNT; d++) {
    if (dtype_is_compute(d)) text_printf(out, "%s ", dtype_name(d));
  }
}

static void reduction_words(TextBuf *out) {
  for (ReduceOp op = 0; op < REDUCE_OP_COUNT; op++) text_printf(out, "%s ", reduce_op_name(op));
}

static void shell_words(TextBuf *out);

static const Completion completions[] = {
    {.takes = TAKES_FILE, .name = "file", .files = ""},
    {.takes = TAKES_FOLDER, .name = "folder", .files = "/"},
    {.takes = TAKES_TENSORS, .name = "tensors", .files = "safetensors"},
    {.takes = TAKES_PROGRAM, .name = "program", .files = ""},
    {.takes = TAKES_PLAN, .name = "plan", .files = "json", .words = plan_words},
    {.takes = TAKES_MACHINE, .name = "machine", .files = "json", .words = machine_words},
    {.takes = TAKES_MESH, .name = "mesh", .words = mesh_words, .list = true},
    {.takes = TAKES_PASSES, .name = "passes", .words = pass_words, .list = true},
    {.takes = TAKES_PASS, .name = "pass", .words = pass_words},
    {.takes = TAKES_OP, .name = "op", .asked = "ops"},
    {.takes = TAKES_COMM, .name = "comm", .words = comm_words},
    {.takes = TAKES_DTYPE, .name = "dtype", .words = dtype_words},
    {.takes = TAKES_REDUCTION, .name = "reduction", .words = reduction_words},
    {.takes = TAKES_SHELL, .name = "shell", .words = shell_words},
};
static const int completion_count = (int)(sizeof completions / sizeof *completions);

const Completion *completion_of(Takes takes) {
  for (int i = 0; i < completion_count; i++) {
    if (completions[i].takes == takes) return &completions[i];
  }
  return NULL;
}

Status each_completion(EachCompletionFn *fn) {
  for (int i = 0; i < completion_count; i++) {
    TextBuf words = {0};
    if (completions[i].words) completions[i].words(&words);
    Status s = words.failed ? fail_oom() : OK;
    if (!s) fn(&completions[i], words.text);
    text_free(&words);
    TRY(s);
  }
  return OK;
}

/* ---- commands --------------------------------------------------------------------------------- */

void each_command(EachCommandFn *fn) {
  for (int i = 0; i < command_count; i++) {
    const Command *c = &command_table[i];
    fn(c->name, c->summary, c->spec);
    for (int k = 0; k < c->spec->nsub; k++) {
      char name[64];
      snprintf(name, sizeof name, "%s %s", c->name, c->spec->sub[k].name);
      fn(name, c->spec->sub[k].summary, c->spec->sub[k].spec);
    }
  }
}

/* ---- the command ------------------------------------------------------------------------------ */

static Status list_ops(void) {
  for (int i = 0; i < op_count(); i++) printf("%s\n", op_at(i)->schema.name);
  return OK;
}

static const struct {
  const char *name;
  Status (*print)(void);
  bool shell;
} prints[] = {
    {"bash", completion_bash, true},
    {"zsh", completion_zsh, true},
    {"fish", completion_fish, true},
    {"ops", list_ops, false},
};
enum { PRINTS = sizeof prints / sizeof *prints };

static void shell_words(TextBuf *out) {
  for (int i = 0; i < PRINTS; i++) {
    if (prints[i].shell) text_printf(out, "%s ", prints[i].name);
  }
}

static const char examples[] = "  source <(tessera completion bash)\n"
                               "  tessera completion zsh > ~/.zfunc/_tessera\n"
                               "  tessera completion fish > ~/.config/fish/completions/tessera.fish\n";
const CommandSpec spec_completion = {.usage = "bash|zsh|fish", .examples = examples, .words = TAKES_SHELL};

Status command_completion(int argc, char **argv) {
  TextList words;
  bool help;
  TRY(options_parse("completion", &spec_completion, NULL, argc, argv, &words, &help));
  if (help) return OK;
  if (words.n != 1) return status_hint(fail(ERR_USAGE, "which shell?"), "bash, zsh or fish");
  for (int i = 0; i < PRINTS; i++) {
    if (!strcmp(words.v[0], prints[i].name)) return prints[i].print();
  }
  return status_hint(fail(ERR_USAGE, "there is no completion for '%s'", words.v[0]),
                     "there is one for bash, zsh, fish");
}
