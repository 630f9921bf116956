/* folder_plan.h -- plan.json of a folder of rank files: the plan as it was used, and what is to be known of the
 * files.
 *
 *   "mesh", "parallelize" ...   the plan; `--plan plan.json` makes the same folder again
 *   "groups"                    the ranks behind the group names that the programs call
 *   "files"                     how inputs and outputs are cut (folder_inputs.h reads it)
 *   "train"                     of joint programs: whole sizes and cuts of parameters and buffers, and which of
 * them are one tensor under two names (train.py reads it)
 */
#ifndef TESS_RANK_FILES_FOLDER_PLAN_H
#define TESS_RANK_FILES_FOLDER_PLAN_H

#include "rank_files/partition.h"

/* plan: as it was given, NULL: none.  After the ranks' programs were made, which tell the groups. */
Status folder_plan_print(TextBuf *b, const Partition *c, const PlanFile *plan);

#endif
