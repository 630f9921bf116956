/* sharded_files.h -- which file of a save the boxes of a rank go to.
 *
 * I1  A function of the rank's plan alone: whoever has the plans of all ranks knows all files.
 * I2  A file holds a name once: the second box of a tensor goes to a second file, and so on.
 */
#ifndef TESS_CKPT_SHARDED_FILES_H
#define TESS_CKPT_SHARDED_FILES_H

#include "ckpt/manifest.h"
#include "dist/checkpoint.h"

typedef struct {
  const char *name;
  int kind; /* of save_kinds */
} RankFile;

typedef struct {
  RankFile *v;
  int n, cap;
  int *of; /* by item of the plan */
} RankFiles;

Status rank_files(const SavePlan *plan, int rank, Arena *arena, RankFiles *out);
/* {"wte.weight": {"saved_offsets": [4, 0]}, ...}: what PyTorch wants to know of a file of shards. */
Status sharding_info(const char *const *key, const int64_t *const *offset, const int *ndim, int n, Arena *arena,
                     const char **out);
#define SHARDING_KEY "DCP_SHARDING_INFO"

#endif
