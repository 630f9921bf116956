/* ckpt_change.c -- `tessera ckpt convert` and its sisters: a checkpoint made of others. */
#include <string.h>

#include "base/parallel.h"
#include "ckpt/change.h"
#include "cli/ckpt.h"

typedef struct {
  const char *to, *output, *dtype, *mesh, *plan, *program, *shard, *memory;
  TextList select, drop, rename;
  int64_t threads;
  bool json, dry_run, force, no_sync;
} ChangeOptions;

/* What the words behind the command are, and what it cannot do without. */
typedef enum { WORDS_SOURCE, WORDS_SOURCES, WORDS_PATTERNS, WORDS_RENAMES } Words;
static const struct {
  const char *name;
  Words words;
  const char *fallback; /* format */
  size_t needs;         /* offset of a text option; 0: none */
  const char *hint;
} commands[] = {
    {"convert", WORDS_SOURCE, NULL, 0, "--to hf|safetensors|dcp|tessera|pt2 -o PATH"},
    {"reshard", WORDS_SOURCE, "tessera", offsetof(ChangeOptions, mesh), "--mesh dp=4,tp=2"},
    {"consolidate", WORDS_SOURCE, "hf", 0, "-o PATH"},
    {"cast", WORDS_SOURCE, NULL, offsetof(ChangeOptions, dtype), "--dtype bf16"},
    {"select", WORDS_PATTERNS, NULL, 0, "tessera ckpt select model/ 'layers.0.*' -o part/"},
    {"rename", WORDS_RENAMES, NULL, 0, "tessera ckpt rename model/ 'transformer.*=model.*' -o renamed/"},
    {"merge", WORDS_SOURCES, NULL, 0, "tessera ckpt merge a/ b/ -o mean/"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static Status take_words(int command, const TextList *words, ChangeOptions *o, Change *c) {
  Words kind = commands[command].words;
  c->source = words->v;
  c->sources = words->n ? 1 : 0;
  if (kind == WORDS_SOURCES) c->sources = words->n;
  if (!c->sources || (kind == WORDS_SOURCES && words->n < 2) || (kind == WORDS_SOURCE && words->n > 1) ||
      (kind >= WORDS_PATTERNS && words->n < 2))
    return status_hint(fail(ERR_USAGE, "%s takes %s", commands[command].name,
                            kind == WORDS_SOURCES    ? "two checkpoints or more"
                            : kind == WORDS_PATTERNS ? "a checkpoint and patterns of names"
                            : kind == WORDS_RENAMES  ? "a checkpoint and renamings FROM=TO"
                                                     : "one checkpoint"),
                       "%s", commands[command].hint);
  TextList *list = kind == WORDS_PATTERNS ? &o->select : &o->rename;
  for (int i = 1; kind >= WORDS_PATTERNS && i < words->n; i++) {
    if (list->n == MAX_LIST) return fail(ERR_USAGE, "more than %d patterns", MAX_LIST);
    list->v[list->n++] = words->v[i];
  }
  return OK;
}

static Status take_options(int command, const ChangeOptions *o, Change *c) {
  const size_t needs = commands[command].needs;
  c->how = (DeriveHow){.select = o->select.v,
                       .selects = o->select.n,
                       .drop = o->drop.v,
                       .drops = o->drop.n,
                       .rename = o->rename.v,
                       .renames = o->rename.n,
                       .dtype = DT_NONE};
  if (needs && !*(const char *const *)((const char *)o + needs) &&
      !(needs == offsetof(ChangeOptions, mesh) && o->plan))
    return status_hint(fail(ERR_USAGE, "%s: to what?", commands[command].name), "%s", commands[command].hint);
  if (!o->output) return status_hint(fail(ERR_USAGE, "where to?"), "-o PATH");
  if (o->dtype) {
    c->how.dtype = dtype_parse(o->dtype);
    if (c->how.dtype == DT_NONE || !dtype_is_float(c->how.dtype))
      return status_hint(fail(ERR_USAGE, "--dtype takes f32, bf16, f16 or f64, not '%s'", o->dtype),
                         "--dtype bf16");
  }
  TRY(option_between("--threads", o->threads, 1, MOST_THREADS));
  TRY(option_bytes("--memory", o->memory, &c->memory));
  TRY(option_bytes("--max-shard-size", o->shard, &c->shard_bytes));
  c->output = o->output, c->to = o->to, c->fallback = commands[command].fallback;
  c->mesh = o->mesh, c->plan = o->plan, c->program = o->program;
  c->force = o->force, c->sync = !o->no_sync, c->plan_only = o->dry_run;
  return OK;
}

/* ---- telling
 * ------------------------------------------------------------------------------------------------------ */

enum { SHOWN = 20 };

static Status tell(void *arg, const Writing *w) {
  const ChangeOptions *o = arg;
  char bytes[32];
  if (w->resumed)
    fprintf(stderr, "note: went on where the same command was killed: %s had been written\n",
            human_bytes((double)w->resumed, bytes, sizeof bytes));
  if (w->d->left_out)
    fprintf(stderr, "note: %d tensor%s of the optimizer %s left out: %s has the model alone\n", w->d->left_out,
            PLURAL(w->d->left_out), w->d->left_out == 1 ? "is" : "are", w->how->format->what);
  if (w->d->values && strcmp(w->how->format->name, "dcp"))
    fprintf(stderr, "note: %d value%s that %s no tensor%s left out\n", w->d->values, PLURAL(w->d->values),
            w->d->values == 1 ? "is" : "are", w->d->values == 1 ? " is" : "s are");
  if (o->json) {
    TextBuf text = {0};
    change_json(w, &text);
    Status s = text.failed ? fail_oom() : OK;
    if (!s) printf("%s\n", text.text);
    text_free(&text);
    return s;
  }
  printf("%s %s: %s, %d tensor%s, %s\n", o->dry_run ? "would write" : "wrote", w->how->path, w->how->format->what,
         w->d->n, PLURAL(w->d->n), human_bytes((double)w->d->bytes, bytes, sizeof bytes));
  for (int i = 0; i < w->files && i < SHOWN && w->how->format->folder; i++)
    printf("  %-44s %s\n", w->file[i].name, human_bytes((double)w->file[i].bytes, bytes, sizeof bytes));
  if (w->files > SHOWN && w->how->format->folder) printf("  and %d more\n", w->files - SHOWN);
  return OK;
}

Status ckpt_change(const char *name, int argc, char **argv) {
  static const CommandSpec *const specs[COMMANDS] = {&spec_ckpt_convert, &spec_ckpt_reshard, &spec_ckpt_consolidate,
                                                     &spec_ckpt_cast,    &spec_ckpt_select,  &spec_ckpt_rename,
                                                     &spec_ckpt_merge};
  ChangeOptions o = {.threads = NOT_GIVEN};
  Change c = {0};
  Progress bar;
  TextList words;
  bool help;
  char full[32];
  int command = 0;
  while (strcmp(commands[command].name, name)) command++;
  snprintf(full, sizeof full, "ckpt %s", name);
  TRY(options_parse(full, specs[command], &o, argc, argv, &words, &help));
  if (help) return OK;
  TRY(take_words(command, &words, &o, &c));
  TRY(take_options(command, &o, &c));
  c.threads = threads_or_default(o.threads);
  progress_begin(&bar, stderr, "writing", 0, PROGRESS_BYTES);
  c.progress = &bar;
  Status s = checkpoint_change(&c, tell, &o);
  progress_end(&bar);
  return s;
}

/* ---- what they are called with
 * --------------------------------------------------------------------------------------- */

#define FIELD(name) offsetof(ChangeOptions, name)
static const Option options[] = {
    {"--output", 'o', OPT_TEXT | TAKES_FILE, FIELD(output), "PATH", "the file or folder to write"},
    {"--to", 0, OPT_TEXT, FIELD(to), "FORMAT",
     "tessera, hf, safetensors, dcp, pt2 (default: by the name of the output, else as the source)"},
    {"--mesh", 'm', OPT_TEXT | TAKES_MESH, FIELD(mesh), "AXES", "tessera and dcp: a file per rank of dp=4,tp=2"},
    {"--plan", 0, OPT_TEXT | TAKES_PLAN, FIELD(plan), "FILE",
     "how tensors lie on the mesh (default: dimension 0 is cut over all axes, as FSDP does)"},
    {"--dtype", 0, OPT_TEXT | TAKES_DTYPE, FIELD(dtype), "DTYPE", "of floats: bf16, f16, f32, f64"},
    {"--select", 0, OPT_LIST, FIELD(select), "PATTERNS", "only tensors whose names match: 'layers.0.*,*.bias'"},
    {"--drop", 0, OPT_LIST, FIELD(drop), "PATTERNS", "not those whose names match"},
    {"--rename", 0, OPT_LIST, FIELD(rename), "FROM=TO",
     "'transformer.*=model.*': the first that matches a whole name; stars stand for the same text"},
    {"--program", 0, OPT_TEXT | TAKES_PROGRAM, FIELD(program), "FILE",
     "pt2: the program whose weights are replaced"},
    {"--max-shard-size", 0, OPT_TEXT, FIELD(shard), "BYTES", "hf: of a file at most (default 5G)"},
    {"--memory", 0, OPT_TEXT, FIELD(memory), "BYTES", "for buffers and pages that are read (default 256M)"},
    {"--threads", 't', OPT_INT, FIELD(threads), "N", "that read and write at the same time (default: all cores)"},
    {"--dry-run", 0, OPT_FLAG, FIELD(dry_run), NULL, "only tell what would be written"},
    {"--no-sync", 0, OPT_FLAG, FIELD(no_sync), NULL, "do not wait until all is on the disk"},
    {"--json", 0, OPT_FLAG, FIELD(json), NULL, "what was written, as JSON"},
    {"--force", 'f', OPT_FLAG, FIELD(force), NULL, "replace what is there: a folder as a whole"},
};

#define SPEC(command, takes, shown)         \
  const CommandSpec spec_ckpt_##command = { \
      .usage = takes " -o PATH [options]", .examples = shown, .words = TAKES_FILE, OPTIONS(options)}

SPEC(convert, "CHECKPOINT --to FORMAT",
     "  tessera COMMAND checkpoint/ --to hf -o model/\n"
     "  tessera COMMAND model/ --to dcp -o checkpoint/\n"
     "  tessera COMMAND run/ -o model.safetensors\n"
     "  tessera COMMAND model.safetensors --program model.pt2 -o new.pt2\n");
SPEC(reshard, "CHECKPOINT --mesh AXES [--plan FILE]",
     "  tessera COMMAND run/ --mesh dp=4,tp=2 --plan plan.json -o sharded/\n"
     "  tessera COMMAND checkpoint/ --mesh dp=8 --to dcp -o other/\n");
SPEC(consolidate, "CHECKPOINT",
     "  tessera COMMAND sharded/ -o model/\n"
     "  tessera COMMAND sharded/ -o model.safetensors\n");
SPEC(cast, "CHECKPOINT --dtype DTYPE", "  tessera COMMAND model/ --dtype bf16 -o model-bf16/\n");
SPEC(select, "CHECKPOINT PATTERN...", "  tessera COMMAND model/ 'layers.0.*' 'embed.*' -o part.safetensors\n");
SPEC(rename, "CHECKPOINT FROM=TO...", "  tessera COMMAND model/ 'transformer.h.*=model.layers.*' -o renamed/\n");
SPEC(merge, "CHECKPOINT CHECKPOINT...", "  tessera COMMAND run/step-00000900 run/step-00001000 -o mean/\n");
