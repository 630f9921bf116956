/* ckpt.c -- `tessera ckpt`: which of its commands. */
#include "cli/ckpt.h"

#include <string.h>

#include "base/near.h"

static const SubCommand commands[] = {
    {"ls", "which checkpoints are there", ckpt_ls, &spec_ckpt_ls},
    {"inspect", "what a checkpoint holds: modules, sizes, dtypes, placements, who holds what", ckpt_inspect,
     &spec_ckpt_inspect},
    {"verify", "is it whole: checksums, missing and overlapping parts", ckpt_verify, &spec_ckpt_verify},
    {"diff", "in what two checkpoints differ", ckpt_diff, &spec_ckpt_diff},
    {"convert", "to another format", ckpt_change, &spec_ckpt_convert},
    {"reshard", "to another mesh: a file per rank", ckpt_change, &spec_ckpt_reshard},
    {"consolidate", "shards to whole tensors", ckpt_change, &spec_ckpt_consolidate},
    {"cast", "floats to another dtype", ckpt_change, &spec_ckpt_cast},
    {"select", "only some tensors, by pattern", ckpt_change, &spec_ckpt_select},
    {"rename", "other names, by pattern", ckpt_change, &spec_ckpt_rename},
    {"merge", "the average of several", ckpt_change, &spec_ckpt_merge},
    {"prune", "remove old saves of a run folder", ckpt_prune, &spec_ckpt_prune},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static const char examples[] = "  tessera ckpt ls run/\n"
                               "  tessera ckpt inspect run/\n"
                               "  tessera ckpt convert checkpoint/ --to hf -o model/          from PyTorch's "
                               "distributed checkpoints, or ours\n"
                               "  tessera ckpt reshard model/ --mesh dp=2,tp=4 --plan plan.json -o sharded/\n"
                               "  tessera ckpt diff a/ b.safetensors\n";

const CommandSpec spec_ckpt = {
    .usage = "COMMAND CHECKPOINT... [options]", .examples = examples, .sub = commands, .nsub = COMMANDS};

static Status no_command(const char *word) {
  const char *near = NULL;
  for (int i = 0; i < COMMANDS; i++) near = nearer_name(word, near, commands[i].name);
  Status s = fail(ERR_USAGE, "`tessera ckpt` has no command '%s'", word);
  return near ? status_hint(s, "did you mean 'tessera ckpt %s'?", near)
              : status_hint(s, "`tessera ckpt --help` lists them");
}

Status command_ckpt(int argc, char **argv) {
  const char *word = argc ? argv[0] : NULL;
  if (word && word[0] != '-') {
    for (int i = 0; i < COMMANDS; i++)
      if (!strcmp(word, commands[i].name)) return commands[i].run(word, argc - 1, argv + 1);
    return no_command(word);
  }
  TextList words;
  bool help;
  TRY(options_parse("ckpt", &spec_ckpt, NULL, argc, argv, &words, &help));
  if (!help) return status_hint(fail(ERR_USAGE, "which command?"), "`tessera ckpt --help` lists them");
  printf("\ncommands (each has a --help of its own)\n");
  for (int i = 0; i < COMMANDS; i++) printf("  %-12s %s\n", commands[i].name, commands[i].summary);
  printf("\ncheckpoints are saves and run folders of tessera, .safetensors files, folders of them with or without "
         "an index,\n"
         "distributed checkpoints of PyTorch (.metadata), files of torch.save (.pt, .bin) and programs (.pt2)\n");
  return OK;
}
