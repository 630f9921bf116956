/* fsdp_inside.h -- what the files of fsdp/ share. */
#ifndef TESS_FSDP_FSDP_INSIDE_H
#define TESS_FSDP_FSDP_INSIDE_H

#include "fsdp/fsdp.h"

/* A box of a buffer of this dtype. */
View fsdp_box_view(void *base, Dtype dtype, const Box *b);

/* Memory of a flat shard: on the heap, or in a file without a name in `folder` (offload.c). */
Status fsdp_shard_storage(size_t bytes, const char *folder, Storage **out);
/* Pages of such a file leave the process; whoever reads them again gets them from the file. */
void fsdp_shard_rest(const Storage *s);

/* t comes into all places of the parameter. */
Status fsdp_put_slots(const FsdpGroup *g, const FsdpParam *p, const Tensor *t);
void fsdp_forget_originals(FsdpGroup *g);
/* The gathered storage, without data; or the flat shard itself, where that is all there is to gather. */
Status fsdp_gathered_init(FsdpGroup *g);

/* A call on this group's rank, of tensors that are no part of what is differentiated. */
static inline Call fsdp_call(const FsdpGroup *g, Scope *scope, Arena *arena) {
  return (Call){.ctx = g->ctx, .scope = scope, .arena = arena, .level = LEVEL_SHARD};
}

/* An error that says where. */
Status fsdp_fail(const FsdpGroup *g, const char *what, const char *hint);

/* The marks of one forward (marks.c). */
Status fsdp_mark_inputs(FsdpGroup *g, Scope *scope, Tensor **inputs, int n);
Status fsdp_mark_outputs(FsdpUnit *u, Tensor *const *outputs, int n);
Status fsdp_pre_backward(FsdpUnit *u);
Status fsdp_post_backward(FsdpGroup *g);
/* The backward under way is one that this run must be told the end of. */
void fsdp_expect_end(FsdpUnit *u);
/* Of every backward; also called late, for one that told nobody. */
Status fsdp_end_of_backward(FsdpRun *run);
Status fsdp_told_end(void *run, Status s);
/* The gradient of leaf t, parameter p, goes to the group. */
Status fsdp_take_gradient_of(FsdpGroup *g, int p, Tensor *t);

#endif
