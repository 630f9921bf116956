/* write_folder.h -- a cut program as a folder:
 *
 *   rank0.pt2 ...   one program per rank
 *   plan.json       the plan as it was used, and what is to be known of the files (folder_plan.h)
 *   report.txt      weights and collectives of each rank
 *   run.py          runs the programs in PyTorch (torchrun)
 *   train.py        of joint programs: trains them in PyTorch
 *   README.md       says so
 */
#ifndef TESS_RANK_FILES_WRITE_FOLDER_H
#define TESS_RANK_FILES_WRITE_FOLDER_H

#include "base/progress.h"
#include "rank_files/partition.h"

typedef struct {
  const char *folder;
  bool force;
  const int *ranks; /* only these; NULL: all */
  int nranks;
  int threads;        /* ranks that are cut at the same time; 0: as many as there are cores */
  Progress *progress; /* counts ranks; NULL: nobody looks */
  bool (*interrupted)(
      void);       /* asked before every rank, every weight and at the end; true: give up.  NULL: nobody is */
  TextBuf *report; /* gets a copy of the report; NULL: nobody asks */
  TextBuf *json;   /* the same, a JSON object per rank with commas between them; NULL: nobody asks */
} FolderOptions;

/* Nothing is left behind if it fails. */
Status partition_write(Partition *c, const PlanFile *plan, const FolderOptions *o);

#endif
