/* train_options.c -- see train_options.h. */
#include "cli/train_options.h"

#include <string.h>

#include "ckpt/save.h"

static const char examples[] =
    "  tessera COMMAND loss.pt2 --data train.safetensors --optim adamw,lr=3e-4,weight_decay=0.1 --steps 1000\n"
    "  tessera COMMAND gpt.pt2 --data 'shards/*.bin' --tokens input_ids,labels --batch 8 --schedule "
    "cosine,warmup=100 \\\n"
    "                --clip 1.0 --eval val.bin --eval-every 100 --save run/ --save-every 500 --report train.html\n"
    "  tessera COMMAND gpt.pt2 --resume run/\n"
    "  tessera COMMAND loss.pt2 --data train.safetensors --mesh dp=2,tp=2 --plan plan.json --steps 1000\n"
    "  mpirun -n 4 tessera COMMAND loss.pt2 --data train.safetensors --mesh dp=4 --steps 1000\n"
    "  tessera COMMAND loss.pt2 --data x.safetensors --steps 10 --log log.jsonl -o trained.safetensors\n";

#define FIELD(name) offsetof(TrainCommand, name)
static const Option options[] = {
    {"--data", 'd', OPT_LIST | TAKES_FILE, FIELD(data), "FILE",
     "samples: .safetensors by the names of inputs, input=x.npy, or tokens (.bin, .npy); several, globs"},
    {"--tokens", 0, OPT_TEXT, FIELD(tokens), "INPUTS",
     "the files are streams of tokens, cut into windows for these inputs: input_ids,labels"},
    {"--unshifted", 0, OPT_FLAG, FIELD(unshifted), NULL,
     "with --tokens: the second input is the same window, not the one a token further on"},
    {"--window", 0, OPT_INT, FIELD(window), "N",
     "with --tokens: tokens of a window (default: the program's length)"},
    {"--token-dtype", 0, OPT_TEXT | TAKES_DTYPE, FIELD(token_dtype), "DTYPE",
     "of files of tokens without a header: uint16 (default), uint32, uint8 (a text)"},
    {"--batch", 'b', OPT_INT, FIELD(batch), "N", "samples of a batch (default: as the program was exported)"},
    {"--batched", 0, OPT_FLAG, FIELD(batched), NULL,
     "the files hold batches: the first dimension counts them, they are taken in order"},
    {"--no-shuffle", 0, OPT_FLAG, FIELD(no_shuffle), NULL, "samples in the order of the files"},
    {"--drop-last", 0, OPT_FLAG, FIELD(drop_last), NULL, "leave out a last batch that is not full"},
    {"--seed", 0, OPT_INT, FIELD(seed), "N", "of the order of samples and of random numbers (default 0)"},
    {"--optim", 0, OPT_TEXT, FIELD(optim), "NAME,..",
     "sgd, adam, adamw (default), adagrad, muon, with torch.optim's arguments: "
     "adamw,lr=3e-4,betas=0.9:0.95,amsgrad"},
    {"--group", 0, OPT_LIST, FIELD(groups), "NAME=PATTERNS:..",
     "other settings for some parameters: 'no_decay=*.bias,*norm*:weight_decay=0'"},
    {"--freeze", 0, OPT_TEXT, FIELD(freeze), "PATTERNS", "parameters that stay as they are: 'wte.*,h.0.*'"},
    {"--schedule", 0, OPT_TEXT, FIELD(schedule), "NAME,..",
     "of the learning rate: constant, linear, cosine, wsd, step; with warmup=N, min=F, decay=N, every=N, gamma=F"},
    {"--clip", 0, OPT_TEXT, FIELD(clip), "MAX,..",
     "clip the norm of the gradients: 1.0, 0.05,norm=inf; or value=0.5"},
    {"--accumulate", 0, OPT_INT, FIELD(accumulate), "N", "a step is made with the mean gradient of N batches"},
    {"--dtype", 0, OPT_TEXT | TAKES_DTYPE, FIELD(dtype), "DTYPE",
     "compute products in bf16 or f16 (with loss scaling), as autocast does; parameters stay as they are"},
    {"--param-dtype", 0, OPT_TEXT | TAKES_DTYPE, FIELD(param_dtype), "DTYPE",
     "parameters, buffers and all that is computed in bf16, f16 or f64, as Module.to() does"},
    {"--state-dtype", 0, OPT_TEXT | TAKES_DTYPE, FIELD(state_dtype), "DTYPE",
     "of what the optimizer keeps (default: the parameter's)"},
    {"--loss", 0, OPT_TEXT, FIELD(loss), "OUTPUT",
     "which output is the loss, by name or position (default: the only one that can be)"},
    {"--steps", 'n', OPT_INT, FIELD(steps), "N", "updates of the parameters"},
    {"--epochs", 0, OPT_INT, FIELD(epochs), "N", "instead: so many times through the data"},
    {"--eval", 0, OPT_LIST | TAKES_FILE, FIELD(eval), "FILE", "data like that of --data, for evaluation"},
    {"--eval-every", 0, OPT_INT, FIELD(eval_every), "N", "steps between evaluations (default: at the end alone)"},
    {"--eval-batches", 0, OPT_INT, FIELD(eval_batches), "N", "batches of an evaluation (default: all)"},
    {"--init", 0, OPT_TEXT | TAKES_FILE, FIELD(init), "PATH",
     "weights to begin with, by name: .safetensors, a folder of Hugging Face or its index, of PyTorch's DCP, a "
     "run, "
     ".pt2, torch.save"},
    {"--init-rename", 0, OPT_LIST, FIELD(init_rename), "FROM=TO",
     "with --init: names there to names of the program, 'transformer.*=*'; the first that matches"},
    {"--save", 0, OPT_TEXT | TAKES_FOLDER, FIELD(save), "FOLDER",
     "save model, optimizer, random state and position at the end and when interrupted"},
    {"--save-every", 0, OPT_INT, FIELD(save_every), "N", "and every N steps"},
    {"--save-async", 0, OPT_FLAG, FIELD(save_async), NULL,
     "write saves while training goes on (default); --save-sync: wait for each"},
    {"--save-sync", 0, OPT_FLAG, FIELD(save_sync), NULL, "steps wait until a save is on the disk"},
    {"--save-memory", 0, OPT_TEXT, FIELD(save_memory), "BYTES",
     "of each rank, for what a save has not written when the next update comes (default: as much as it takes)"},
    {"--keep", 0, OPT_INT, FIELD(keep), "K", "only the last K saves stay (default: 3; 0: all)"},
    {"--keep-every", 0, OPT_INT, FIELD(keep_every), "M", "and those of every M-th step"},
    {"--resume", 0, OPT_TEXT | TAKES_FOLDER, FIELD(resume), "FOLDER",
     "go on from the newest save in a folder, with its options where none are given"},
    {"--output", 'o', OPT_TEXT | TAKES_FILE, FIELD(output), "FILE",
     "the trained weights by name (.safetensors), or the program with them (.pt2)"},
    {"--log", 0, OPT_TEXT | TAKES_FILE, FIELD(log), "FILE", "a line of JSON per step"},
    {"--tensorboard", 0, OPT_TEXT | TAKES_FOLDER, FIELD(tensorboard), "FOLDER", "event files for TensorBoard"},
    {"--report", 0, OPT_TEXT | TAKES_FILE, FIELD(report), "FILE", "a page (HTML) with the course of the training"},
    {"--profile", 0, OPT_FLAG, FIELD(profile), NULL,
     "at the end, print time per kind of op and per node of a step"},
    {"--trace", 0, OPT_TEXT | TAKES_FILE, FIELD(trace), "FILE",
     "write when each node of the last step began and ended, for ui.perfetto.dev or Chrome (.json)"},
    {"--check-finite", 0, OPT_FLAG, FIELD(check_finite), NULL,
     "if the loss or a gradient is not finite, find the first node that gave such a value"},
    {"--nonfinite", 0, OPT_TEXT, FIELD(nonfinite), "stop|skip|go",
     "what then: end (default), leave the step out, or go on as if nothing were"},
    {"--memory", 0, OPT_TEXT, FIELD(memory), "BYTES",
     "limit of the memory of a step (2G, or 70% of what it takes): the backward computes some results again"},
    {"--mesh", 0, OPT_TEXT | TAKES_MESH, FIELD(mesh), "AXES",
     "on a mesh of ranks, as one rank would on the whole batch: dp=2,tp=2 (batches are sharded over dp)"},
    {"--plan", 0, OPT_TEXT | TAKES_PLAN, FIELD(plan), "FILE",
     "with --mesh: which weights are sharded how (JSON), or auto (default)"},
    {"--data-axis", 0, OPT_TEXT, FIELD(data_axis), "AXIS",
     "of the mesh, over which batches are sharded (default: those called dp, data, fsdp, replica ...)"},
    {"--data-parallel", 0, OPT_TEXT, FIELD(data_parallel), "global|local",
     "global (default): as one rank on the whole batch; local: the mean of what ranks get on their own rows, as "
     "PyTorch's DDP"},
    {"--fsdp", 0, OPT_MAYBE, FIELD(fsdp), "AXIS",
     "shard parameters, gradients and optimizer state over the data axis, too; a mesh replica=2,dp=2 has two "
     "groups (--fsdp=none: of a run that is resumed, no longer)"},
    OPTIONS_OF_GROUPS(TrainCommand),
    {"--reduce-dtype", 0, OPT_TEXT, FIELD(reduce_dtype), "bf16|f16",
     "with --mesh: gradients are rounded to it before they are added up over the ranks, half of what they send"},
    {"--whole-updates", 0, OPT_FLAG, FIELD(whole_updates), NULL,
     "with --mesh: ranks that have a parameter each update all of it and keep all of the optimizer's state "
     "(default: "
     "a part each, and the parts are gathered)"},
    {"--no-overlap", 0, OPT_FLAG, FIELD(no_overlap), NULL,
     "with --mesh: nothing is computed while gradients are reduced, for comparison"},
    {"--rank-rows", 0, OPT_TEXT, FIELD(rank_rows), "N,N..",
     "with local: rows of each batch for the ranks along the data axes (default: equal parts)"},
    {"--bucket-mb", 0, OPT_TEXT, FIELD(bucket_mb), "N|auto",
     "MiB of gradients that ranks reduce at once, beside the backward (default 4; 0: each by itself; auto: by a "
     "model "
     "of times)"},
    {"--check", 0, OPT_MAYBE, FIELD(check), "nodes",
     "with --mesh: make every step on one rank too and compare loss, norm and gradients, or every node; exit code "
     "4"},
    {"--comm", 0, OPT_TEXT | TAKES_COMM, FIELD(ranks.comm), "HOW",
     "ranks are threads, or processes of an MPI launch: mpi (default there)"},
    {"--timeout", 0, OPT_FLOAT, FIELD(ranks.timeout), "SECONDS",
     "a rank that waits longer names who is missing and ends the run (default 1800; 0: never)"},
    {"--flight", 0, OPT_TEXT | TAKES_FILE, FIELD(ranks.flight), "FILE",
     "on failure, the last collectives of all ranks as JSON (mpi: FILE.RANK each)"},
    {"--threads", 't', OPT_INT, FIELD(threads), "T", "threads (default: all cores; of each rank: its share)"},
    {"--quiet", 'q', OPT_FLAG, FIELD(quiet), NULL, "no line per step"},
    {"--force", 'f', OPT_FLAG, FIELD(force), NULL, "overwrite output files"},
};
const CommandSpec spec_train = {
    .usage = "PROGRAM --data FILE [options]", .examples = examples, .words = TAKES_PROGRAM, OPTIONS(options)};

/* ---- options ---------------------------------------------------------------------------------------- */

static TrainCommand nothing_given(void) {
  return (TrainCommand){.window = NOT_GIVEN,
                        .batch = NOT_GIVEN,
                        .steps = NOT_GIVEN,
                        .epochs = NOT_GIVEN,
                        .accumulate = NOT_GIVEN,
                        .eval_every = NOT_GIVEN,
                        .eval_batches = NOT_GIVEN,
                        .save_every = NOT_GIVEN,
                        .keep = NOT_GIVEN,
                        .keep_every = NOT_GIVEN,
                        .seed = NOT_GIVEN,
                        .threads = NOT_GIVEN,
                        .prefetch = NOT_GIVEN,
                        .ranks = {.ranks = NOT_GIVEN, .timeout = BY_DEFAULT}};
}

static Status parse(int argc, char **argv, TrainCommand *c, bool *help) {
  TextList words;
  TRY(options_parse("train", &spec_train, c, argc, argv, &words, help));
  if (*help) return OK;
  if (words.n > 1) return fail(ERR_USAGE, "one program is trained at a time, not also '%s'", words.v[1]);
  if (words.n) c->program = words.v[0];
  return OK;
}

/* The command line of the save, and then this one: what is given here counts. */
static Status parse_resumed(int argc, char **argv, Arena *arena, TrainCommand *c) {
  const char *path;
  Save *save;
  bool help;
  TrainCommand now = *c;
  if (now.init)
    return status_hint(fail(ERR_USAGE, "--init gives weights to begin with; a run that is resumed has begun"),
                       "leave out --init, or begin another run: without --resume");
  TRY(run_latest(now.resume, arena, &path));
  TRY(save_open(path, &save));
  const SaveFacts *f = &save->m.facts;
  char **all = arena_new_n(arena, char *, f->argc + argc + 1);
  for (int i = 0; all && i < f->argc; i++) all[i] = arena_printf(arena, "%s", f->argv[i]);
  bool ok = all != NULL;
  for (int i = 0; ok && i < f->argc; i++) ok = all[i] != NULL;
  int saved = f->argc;
  save_close(save);
  if (!ok) return fail_oom();
  if (!saved && !now.program)
    return status_hint(fail(ERR_USAGE, "%s was saved by a program, not by `tessera train`", path),
                       "say what to train, and how");
  *c = nothing_given();
  if (saved) TRY(status_at(parse(saved - 1, all + 1, c, &help), "the command line in %s", path));
  if (now.data.n) c->data.n = 0;
  if (now.eval.n) c->eval.n = 0;
  if (now.groups.n) c->groups.n = 0;
  if (now.save_async) c->save_sync = false;
  if (now.save_sync) c->save_async = false;
  TRY(parse(argc, argv, c, &help));
  if (!now.save) c->save = now.resume; /* wherever the folder is by now */
  c->force = true;                     /* the files are this run's own */
  return OK;
}

TrainSettings train_settings(const TrainCommand *c) {
  return (TrainSettings){.optim = c->optim,
                         .groups = c->groups.v,
                         .ngroups = c->groups.n,
                         .freeze = c->freeze,
                         .clip = c->clip,
                         .schedule = c->schedule,
                         .nonfinite = c->nonfinite,
                         .dtype = c->dtype,
                         .param_dtype = c->param_dtype,
                         .state_dtype = c->state_dtype,
                         .accumulate = given_or(c->accumulate, 1)};
}

SpreadSettings train_spread(const TrainCommand *c) {
  return (SpreadSettings){.mesh = c->mesh,
                          .data_axis = c->data_axis,
                          .data_parallel = c->data_parallel,
                          .rank_rows = c->rank_rows,
                          .fsdp = c->fsdp,
                          .wrap = c->wrap,
                          .keep_gathered = c->keep_gathered,
                          .prefetch = given_or(c->prefetch, -1),
                          .no_overlap = c->no_overlap,
                          .whole_updates = c->whole_updates,
                          .reduce_dtype = c->reduce_dtype,
                          .bucket_mb = c->bucket_mb};
}

static Status check(const TrainCommand *c) {
  if (!c->program)
    return status_hint(fail(ERR_USAGE, "which program is to be trained?"), "tessera train loss.pt2 ...");
  if (!c->data.n) return status_hint(fail(ERR_USAGE, "there is no data to train on"), "give --data FILE");
  if (c->steps == NOT_GIVEN && c->epochs == NOT_GIVEN)
    return status_hint(fail(ERR_USAGE, "how long?"), "give --steps N or --epochs N");
  if (c->steps != NOT_GIVEN && c->epochs != NOT_GIVEN)
    return fail(ERR_USAGE, "--steps and --epochs exclude each other");
  if ((c->unshifted || c->window != NOT_GIVEN || c->token_dtype) && !c->tokens)
    return status_hint(fail(ERR_USAGE, "--unshifted, --window and --token-dtype are for streams of tokens"),
                       "say which inputs get them: --tokens input_ids,labels");
  if (!c->eval.n && (c->eval_every != NOT_GIVEN || c->eval_batches != NOT_GIVEN))
    return fail(ERR_USAGE, "--eval-every and --eval-batches need --eval FILE");
  if (!c->save &&
      (c->save_every != NOT_GIVEN || c->keep != NOT_GIVEN || c->keep_every != NOT_GIVEN || c->save_memory))
    return fail(ERR_USAGE, "--save-every, --keep, --keep-every and --save-memory need --save FOLDER");
  if (c->init_rename.n && !c->init && !c->resume) return fail(ERR_USAGE, "--init-rename needs --init PATH");
  if (c->save_async && c->save_sync) return fail(ERR_USAGE, "--save-async and --save-sync exclude each other");
  size_t name = c->output ? strlen(c->output) : 0;
  if (c->param_dtype && name > 4 && !strcmp(c->output + name - 4, ".pt2"))
    return status_hint(fail(ERR_USAGE,
                            "-o %s: the program keeps the dtype of its parameters, not that of --param-dtype",
                            c->output),
                       "write the weights alone: -o weights.safetensors");
  if (c->check_finite && c->nonfinite && !strcmp(c->nonfinite, "go"))
    return status_hint(fail(ERR_USAGE, "--check-finite makes a step again, which --nonfinite go does not allow"),
                       "take --nonfinite stop or skip");
  TRY(option_between("--steps", c->steps, 1, INT64_MAX));
  TRY(option_between("--epochs", c->epochs, 1, 1000000));
  TRY(option_between("--accumulate", c->accumulate, 1, 1000000));
  TRY(option_between("--batch", c->batch, 1, INT64_MAX));
  TRY(option_between("--window", c->window, 1, INT64_MAX));
  TRY(option_between("--eval-every", c->eval_every, 1, INT64_MAX));
  TRY(option_between("--eval-batches", c->eval_batches, 1, INT64_MAX));
  TRY(option_between("--save-every", c->save_every, 1, INT64_MAX));
  TRY(option_between("--keep", c->keep, 0, 1000000));
  TRY(option_between("--keep-every", c->keep_every, 1, INT64_MAX));
  if (c->fsdp && !c->mesh && !c->plan)
    return status_hint(fail(ERR_USAGE, "--fsdp shards parameters over the ranks of a mesh"), "--mesh dp=4");
  TRY(options_of_groups(c->fsdp, c->wrap, c->keep_gathered, c->prefetch));
  if (c->check && *c->check && strcmp(c->check, "nodes"))
    return fail(ERR_USAGE, "--check=%s: there is --check and --check=nodes", c->check);
  if (c->check && c->data_parallel && !strcmp(c->data_parallel, "local"))
    return fail(ERR_USAGE, "--check compares with one rank on the whole batch, which --data-parallel local is not");
  if (c->check && c->reduce_dtype)
    return fail(ERR_USAGE, "--check compares with one rank, whose gradients no --reduce-dtype rounds");
  TRY(rank_options_check(&c->ranks));
  return option_between("--threads", c->threads, 1, MOST_THREADS);
}

Status train_options_parse(int argc, char **argv, Arena *arena, TrainCommand *c, bool *help) {
  *c = nothing_given();
  TRY(parse(argc, argv, c, help));
  if (*help) return OK;
  if (c->resume) TRY(parse_resumed(argc, argv, arena, c));
  if (c->fsdp && !strcmp(c->fsdp, "none")) c->fsdp = NULL;
  return check(c);
}

DataOptions train_data(const TrainCommand *c, bool eval) {
  const TextList *files = eval ? &c->eval : &c->data;
  return (DataOptions){.files = files->v,
                       .nfiles = files->n,
                       .tokens = c->tokens,
                       .unshifted = c->unshifted,
                       .window = given_or(c->window, 0),
                       .token_dtype = c->token_dtype,
                       .batch = given_or(c->batch, 0),
                       .batched = c->batched,
                       .shuffle = !eval && !c->batched && !c->no_shuffle,
                       .drop_last = !eval && c->drop_last,
                       .seed = (uint64_t)given_or(c->seed, 0)};
}

/* ---- as words again ---------------------------------------------------------------------------------- */

typedef struct {
  Arena *arena;
  const char **v;
  int n, cap;
} Words;

static Status add_word(Words *w, const char *text) {
  TRY_NEW(w->v, arena_more(w->arena, w->v, w->n, &w->cap));
  TRY_NEW(w->v[w->n], arena_printf(w->arena, "%s", text));
  w->n++;
  return OK;
}

static Status add_option(Words *w, const Option *o, const void *target) {
  char number[32];
  const char *text = NULL;
  switch (option_kind(o)) {
    case OPT_FLAG: return *(const bool *)target ? add_word(w, o->name) : OK;
    case OPT_TEXT: text = *(const char *const *)target; break;
    case OPT_MAYBE:
      text = *(const char *const *)target;
      return !text    ? OK
             : !*text ? add_word(w, o->name)
                      : add_word(w, arena_printf(w->arena, "%s=%s", o->name, text));
    case OPT_FLOAT:
      snprintf(number, sizeof number, "%g", *(const double *)target);
      if (*(const double *)target != BY_DEFAULT) text = number;
      break;
    case OPT_INT:
      snprintf(number, sizeof number, "%lld", (long long)*(const int64_t *)target);
      if (*(const int64_t *)target != NOT_GIVEN) text = number;
      break;
    default: break;
  }
  const TextList *list = option_kind(o) == OPT_LIST ? target : NULL;
  for (int i = 0; list && i < list->n; i++) {
    TRY(add_word(w, o->name));
    TRY(add_word(w, list->v[i]));
  }
  if (!text) return OK;
  TRY(add_word(w, o->name));
  return add_word(w, text);
}

/* Of one command, not of the run that others go on with. */
static bool says_nothing_of_the_run(const char *option) {
  return !strcmp(option, "--resume") || !strcmp(option, "--force") || !strcmp(option, "--quiet") ||
         !strcmp(option, "--check");
}

Status train_options_text(const TrainCommand *c, Arena *arena, const char *const **argv, int *argc) {
  Words w = {.arena = arena};
  TRY(add_word(&w, "train"));
  TRY(add_word(&w, c->program));
  for (int i = 0; i < spec_train.noptions; i++) {
    const Option *o = &spec_train.options[i];
    if (!says_nothing_of_the_run(o->name)) TRY(add_option(&w, o, (const char *)c + o->target));
  }
  *argv = w.v;
  *argc = w.n;
  return OK;
}
