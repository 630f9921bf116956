/* spread.h -- what users say of a training on several ranks, in the words of the command line and of the libraries,
 * and what it means for a trainer. */
#ifndef TESS_TRAIN_SPREAD_H
#define TESS_TRAIN_SPREAD_H

#include "train/trainer.h"

/* NULL: not told.  Everything is borrowed. */
typedef struct {
  const char *mesh;          /* "dp=2,tp=2"; NULL: one rank */
  const char *data_axis;     /* over which batches are sharded */
  const char *data_parallel; /* "global" (not told), "local" */
  const char *rank_rows;     /* "5,7": rows of each batch that the ranks along the data axes take */
  const char *fsdp;   /* an axis over which parameters are sharded, too; "": the data axes; NULL: they are not */
  const char *wrap;   /* with fsdp: "layers.*,head", modules whose parameters are gathered at once */
  bool keep_gathered; /* with fsdp: from the forward to the backward */
  int64_t prefetch;   /* with fsdp: groups that are gathered ahead; negative: not told */
  bool no_overlap;    /* reductions are waited for where they start */
  bool whole_updates; /* replicas of a parameter update all of it each, not a part each */
  const char *reduce_dtype; /* "bf16", "f16": gradients are rounded to it on their way; NULL: they are not */
  const char *bucket_mb;    /* of gradients that are reduced at once; "0": each by itself; "auto" (BUCKET_AUTO) */
} SpreadSettings;

/* The parts of a TrainerPlan that say where.  plan may be NULL.  Errors name the setting; what is about ranks needs
 * a mesh. */
Status spread_plan(const SpreadSettings *s, const PlanFile *plan, TrainerPlan *out);
/* How gradients are reduced and parameters gathered; texts live in the arena. */
Status spread_reductions(const SpreadSettings *s, Arena *arena, ReduceGradients *out);
/* ERR_USAGE if a pattern of `wrap` names no module of the program that has parameters; NULL is fine. */
Status spread_check_modules(const char *wrap, Arena *arena, const Exported *e);
/* What a trainer that was opened so is told before its first step.  Texts live in the arena, which must outlive it.
 */
Status spread_apply(const SpreadSettings *s, Arena *arena, Trainer *t);

#endif
