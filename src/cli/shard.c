/* shard.c -- `tessera shard`: a program cut into one program per rank. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/folder.h"
#include "base/human.h"
#include "cli/cli.h"
#include "rank_files/write_folder.h"
#include "train/spread.h"

static const char examples[] = "  tessera shard model.pt2 --mesh tp=4 --plan plan.json -o out/\n"
                               "  tessera shard model.pt2 --mesh dp=2,tp=4 --plan plan.json -o out/ --stats\n"
                               "  tessera run out/ -i in.safetensors -o out.safetensors\n"
                               "  torchrun --nproc-per-node 4 out/run.py -i in.safetensors -o out.safetensors\n"
                               "  tessera shard loss.pt2 --train --mesh dp=2,tp=2 -o ranks/\n"
                               "  torchrun --nproc-per-node 4 ranks/train.py --data train.safetensors --steps 100\n"
                               "  tessera shard loss.pt2 --train --fsdp --mesh replica=2,dp=2 -o ranks/\n";

typedef struct {
  const char *mesh, *plan, *output, *ranks, *weights;
  int64_t threads, batch, prefetch;
  TextList sizes; /* s0=2 */
  const char *loss, *freeze, *data_axis, *fsdp, *wrap;
  bool train, force, stats, half_sums, json, keep_gathered;
} ShardOptions;

/* "0,1,5" */
static Status parse_ranks(const char *text, int size, int **out, int *n) {
  *n = 0;
  TRY_NEW(*out, calloc(strlen(text) + 1, sizeof **out));
  for (const char *p = text;; p++) {
    char *end;
    long r = strtol(p, &end, 10);
    if (end == p || (*end && *end != ','))
      return fail(ERR_USAGE, "--ranks takes numbers with commas between them, not '%s'", text);
    if (r < 0 || r >= size) return fail(ERR_USAGE, "--ranks: rank %ld of a mesh of %d", r, size);
    for (int i = 0; i < *n; i++)
      if ((*out)[i] == r) return fail(ERR_USAGE, "--ranks names rank %ld twice", r);
    (*out)[(*n)++] = (int)r;
    if (!*end) return OK;
    p = end;
  }
}

static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { ENDING_SIGNALS = sizeof ending_signals / sizeof *ending_signals };

/* A signal that ends the program waits until the half-written folder is gone. */
static void hold_interrupts(bool on) {
  sigset_t set;
  sigemptyset(&set);
  for (int i = 0; i < ENDING_SIGNALS; i++) sigaddset(&set, ending_signals[i]);
  sigprocmask(on ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

static bool is_interrupted(void) {
  sigset_t set;
  bool pending = false;
  if (sigpending(&set)) return false;
  for (int i = 0; i < ENDING_SIGNALS; i++) pending |= sigismember(&set, ending_signals[i]) == 1;
  return pending;
}

static void print_stats(const Partition *c, double read, double mark, double write) {
  char mesh[256];
  fprintf(stderr, "%s: %d nodes, %s; read %.1f ms, planned %.1f ms, partitioned and written %.1f ms\n",
          c->program->name, c->program->graph->nnodes, mesh_print(c->mesh, mesh, sizeof mesh), read * 1e3,
          mark * 1e3, write * 1e3);
}

static Status print_json(const Partition *c, const char *folder, const TextBuf *ranks) {
  TextBuf b = {0};
  text_puts(&b, "{\"program\": ");
  text_json(&b, c->program->name);
  text_puts(&b, ", \"folder\": ");
  text_json(&b, folder);
  text_puts(&b, ", \"mesh\": {");
  for (int a = 0; a < c->mesh->naxes; a++) {
    char unnamed[16];
    snprintf(unnamed, sizeof unnamed, "axis%d", a);
    if (a) text_puts(&b, ", ");
    text_json(&b, c->mesh->name[a] ? c->mesh->name[a] : unnamed);
    text_printf(&b, ": %d", c->mesh->axis[a]);
  }
  text_puts(&b, "}, \"notes\": ");
  text_json(&b, c->prepared->notes.text ? c->prepared->notes.text : "");
  text_printf(&b, ", \"ranks\": [%s]}\n", ranks->text ? ranks->text : "");
  Status s = b.failed || ranks->failed ? fail_oom() : OK;
  if (!s) fputs(b.text, stdout);
  text_free(&b);
  return s;
}

/* The programs are joint ones, if they are to train. */
static Status want_training(const ShardOptions *o, const PlanFile *plan, Partition *c) {
  const SpreadSettings how = {
      .wrap = o->wrap, .keep_gathered = o->keep_gathered, .prefetch = given_or(o->prefetch, -1)};
  if (!o->train) return OK;
  TRY(partition_want_gradients(c, &(GradOptions){.loss = o->loss, .freeze = o->freeze}));
  c->loss_alone = true;
  c->batch = given_or(o->batch, 0);
  TRY(spread_reductions(&how, &c->arena, &c->reduce));
  TRY(spread_check_modules(o->wrap, &c->arena, c->program));
  return o->fsdp ? partition_shard_fully(c, plan, *o->fsdp ? o->fsdp : NULL) : OK;
}

static Status shard(const ShardOptions *o, const char *path, const PlanFile *plan) {
  const char *mesh = o->mesh ? o->mesh : plan ? plan->mesh : NULL;
  Exported *e;
  Partition *c;
  TextBuf report = {0}, json = {0};
  Progress bar;
  FolderOptions how = {.folder = o->output,
                       .force = o->force,
                       .threads = threads_or_default(o->threads),
                       .progress = &bar,
                       .report = &report,
                       .json = o->json ? &json : NULL,
                       .interrupted = is_interrupted};
  int *ranks = NULL;
  if (!mesh) return status_hint(fail(ERR_USAGE, "which mesh?"), "--mesh tp=4");
  double start = clock_now();
  TRY(program_load(path, o->weights, &e));
  double read = clock_now();
  TRY(partition_open(e, mesh, plan, NULL, &c));
  double marked = clock_now();
  c->half_sums = o->half_sums;
  Status s = want_training(o, plan, c);
  if (!s && o->ranks) s = parse_ranks(o->ranks, c->mesh->size, &ranks, &how.nranks);
  how.ranks = ranks;
  for (int i = 0; i < o->sizes.n && !s; i++) s = partition_fix_sizes(c, o->sizes.v[i]);
  progress_begin(&bar, stderr, "ranks", 0, PROGRESS_STEPS);
  hold_interrupts(true);
  if (!s) s = partition_write(c, plan, &how);
  progress_end(&bar);
  hold_interrupts(false);
  if (!s && o->stats) print_stats(c, read - start, marked - read, clock_now() - marked);
  if (!s && o->json) s = print_json(c, o->output, &json);
  else if (!s && report.text) fputs(report.text, stdout);
  text_free(&report);
  text_free(&json);
  free(ranks);
  partition_free(c);
  return s;
}

static Status check_options(const ShardOptions *o, const TextList *words) {
  if (words->n != 1)
    return status_hint(fail(ERR_USAGE, "shard takes one program, %d were given", words->n),
                       "tessera shard model.pt2 --mesh tp=4 --plan plan.json -o out/");
  if (!o->output) return status_hint(fail(ERR_USAGE, "where to?"), "-o DIR");
  const char *about = o->loss                 ? "--loss"
                      : o->freeze             ? "--freeze"
                      : o->batch != NOT_GIVEN ? "--batch"
                      : o->fsdp               ? "--fsdp"
                                              : NULL;
  if (about && !o->train)
    return status_hint(fail(ERR_USAGE, "%s speaks of a training", about), "give --train, too");
  TRY(options_of_groups(o->fsdp, o->wrap, o->keep_gathered, o->prefetch));
  TRY(option_between("--batch", o->batch, 1, INT64_MAX));
  return option_between("--threads", o->threads, 1, MOST_THREADS);
}

static const Option options[] = {
    {"--mesh", 'm', OPT_TEXT | TAKES_MESH, offsetof(ShardOptions, mesh), "AXES",
     "ranks on named axes: tp=4, dp=2,tp=4 (default: the plan's)"},
    {"--plan", 0, OPT_TEXT | TAKES_PLAN, offsetof(ShardOptions, plan), "FILE",
     "which weights are sharded how: a plan (JSON), as Hugging Face models have them too, or auto (default)"},
    {"--output", 'o', OPT_TEXT | TAKES_FOLDER, offsetof(ShardOptions, output), "DIR",
     "the folder to write: rank0.pt2 ..., plan.json, report.txt, run.py (and train.py), README.md"},
    {"--train", 0, OPT_FLAG, offsetof(ShardOptions, train), NULL,
     "joint programs, which give the gradients of the rank's parameters, and train.py, which trains them in "
     "PyTorch"},
    {"--loss", 0, OPT_TEXT, offsetof(ShardOptions, loss), "OUTPUT",
     "with --train: which output is the loss, by name or position (default: the only one that can be)"},
    {"--batch", 'b', OPT_INT, offsetof(ShardOptions, batch), "N",
     "with --train: samples of a batch of all ranks, instead of as many as the program was exported for"},
    {"--freeze", 0, OPT_TEXT, offsetof(ShardOptions, freeze), "PATTERNS",
     "with --train: parameters that stay as they are: 'wte.*,h.0.*'"},
    {"--data-axis", 0, OPT_TEXT, offsetof(ShardOptions, data_axis), "AXIS",
     "of the mesh, over which batches are sharded (default: those called dp, data, fsdp, replica ...)"},
    {"--fsdp", 0, OPT_MAYBE, offsetof(ShardOptions, fsdp), "AXIS",
     "with --train: parameters and gradients are sharded over the data axis, too, or over this one (FSDP)"},
    OPTIONS_OF_GROUPS(ShardOptions),
    {"--ranks", 0, OPT_TEXT, offsetof(ShardOptions, ranks), "LIST", "write the files of these ranks only: 0,1"},
    {"--size", 0, OPT_LIST, offsetof(ShardOptions, sizes), "NAME=N",
     "a symbol among the sizes that is a number in the files: s0=2"},
    {"--weights", 0, OPT_TEXT | TAKES_FILE, offsetof(ShardOptions, weights), "FILE",
     "weights of a program in text form (.pt2 or .safetensors)"},
    {"--threads", 't', OPT_INT, offsetof(ShardOptions, threads), "N",
     "ranks whose programs are made at the same time (default: as many as there are cores)"},
    {"--half-sums", 0, OPT_FLAG, offsetof(ShardOptions, half_sums), NULL,
     "round parts of sums of f16 and bf16 before they are added up, as PyTorch does: faster on GPUs"},
    {"--stats", 0, OPT_FLAG, offsetof(ShardOptions, stats), NULL, "times, to stderr"},
    {"--json", 0, OPT_FLAG, offsetof(ShardOptions, json), NULL,
     "what was written, weights and collectives of each rank, as JSON"},
    {"--force", 'f', OPT_FLAG, offsetof(ShardOptions, force), NULL,
     "write into a folder that is not empty, replacing files of the same names"},
};
const CommandSpec spec_shard = {.usage = "PROGRAM --mesh AXES [--plan FILE] -o DIR [options]",
                                .examples = examples,
                                .words = TAKES_PROGRAM,
                                OPTIONS(options)};

Status command_shard(int argc, char **argv) {
  ShardOptions o = {.threads = NOT_GIVEN, .batch = NOT_GIVEN, .prefetch = NOT_GIVEN};
  TextList words;
  bool help;
  PlanFile *plan = NULL;
  TRY(options_parse("shard", &spec_shard, &o, argc, argv, &words, &help));
  if (help) return OK;
  TRY(check_options(&o, &words));
  hold_interrupts(true);
  Status can = folder_out_check(o.output, o.force);
  hold_interrupts(false);
  TRY(can);
  TRY(plan_file_read(o.plan ? o.plan : "auto", &plan));
  plan->any_batch = o.train;
  plan->data_axis = o.data_axis;
  Status s = shard(&o, words.v[0], plan);
  plan_file_free(plan);
  return s;
}
