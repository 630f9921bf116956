/* ckpt.h -- `tessera ckpt NAME ...`: a function and a row in ckpt.c. */
#ifndef TESS_CLI_CKPT_H
#define TESS_CLI_CKPT_H

#include "ckpt/source.h"
#include "cli/cli.h"

SubCommandFn ckpt_ls, ckpt_inspect, ckpt_verify, ckpt_diff, ckpt_change, ckpt_prune;
extern const CommandSpec spec_ckpt_ls, spec_ckpt_inspect, spec_ckpt_verify, spec_ckpt_diff, spec_ckpt_prune;
extern const CommandSpec spec_ckpt_convert, spec_ckpt_reshard, spec_ckpt_consolidate, spec_ckpt_cast,
    spec_ckpt_select, spec_ckpt_rename, spec_ckpt_merge;

#endif
