/* rank_files.h -- words on the command line that stand for a file of each rank.
 *
 *   a.safetensors,b.safetensors   one per rank, in order
 *   in.{rank}.safetensors         the rank's number put in
 *   in.safetensors                one for all
 */
#ifndef TESS_CLI_RANK_FILES_H
#define TESS_CLI_RANK_FILES_H

#include "cli/cli.h"

/* An input of the rank; fails if the word lists files for another number of ranks. */
Status rank_input(Arena *arena, const char *word, int rank, int n, const char **out);

bool rank_input_is_common(const char *word); /* one for all */

/* Outputs: with {rank} or a folder each rank has its own; else the file of all, if they
 * agree, and out.rank0.safetensors, out.rank1.safetensors ... if not. */
bool rank_output_is_own(const char *word);
Status rank_output(Arena *arena, const char *word, int rank, const char **out);

/* The programs that the words name: one for all ranks, one per rank, or a folder of
 * rank0.pt2, rank1.pt2 ... */
typedef struct {
  const char **path;
  int n; /* 1: the same on every rank */
  bool per_rank;
  const char *plan; /* plan.json beside the rank files; NULL: there is none */
} RankPrograms;
Status rank_programs(Arena *arena, const TextList *words, RankPrograms *out);

#endif
