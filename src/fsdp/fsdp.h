/* fsdp.h -- fully sharded data parallelism of modules, with PyTorch's behaviour (fully_shard).
 *
 * A *unit* is what one call of fully_shard makes of a module, or of several: hooks around their forward, and one
 * *group* of parameters (one per mesh) that is gathered, freed and reduced together.  Units of one tree share a
 * *run*, which is made when the first of them, the root, runs forward.
 *
 *   before forward     parameters are gathered, inputs are marked, so that the backward tells when it leaves the
 * module after forward      parameters are freed (or kept, or resharded to fewer ranks), outputs are marked a
 * marked output's gradient comes:  parameters are gathered again, the group before starts to be gathered a marked
 * input's gradient is done: parameters are freed, gradients are reduced to shards the backward ends: what has no
 * marked inputs is reduced, what is under way is waited for
 *
 * What the units stand on (modules) is told by functions (Slots), so that nothing here knows a module.
 *
 * I1  A group's parameters are views of one buffer, its `gathered` storage.  The storage stays, so that what the
 * tape kept finds the parameters again after they were freed and gathered; its bytes come and go. I2  The
 * parameters of a module are DTensors that share the flat shard while the group is SHARDED, and handles of leaves
 * on the gathered buffer while it is UNSHARDED. I3  Leaves are made after the inputs were marked: the backward has
 * their gradients before it leaves the module. I4  A group is in one training state and one sharded state;
 * transitions that make no sense are errors that name it. I5  Nothing is padded, in memory or on the wire
 * (dist/flat_group.h).
 */
#ifndef TESS_FSDP_FSDP_H
#define TESS_FSDP_FSDP_H

#include "dist/flat_group.h"
#include "fsdp/dp_mesh.h"
#include "grad/tape.h"

#define FSDP_TRAINING_STATES(X) \
  X(FSDP_IDLE)                  \
  X(FSDP_FORWARD)               \
  X(FSDP_PRE_BACKWARD)          \
  X(FSDP_POST_BACKWARD)
#define FSDP_SHARDED_STATES(X) \
  X(FSDP_SHARDED)              \
  X(FSDP_SHARDED_POST_FORWARD) \
  X(FSDP_UNSHARDED)
#define X(id) id,
typedef enum { FSDP_TRAINING_STATES(X) } FsdpTraining;
typedef enum { FSDP_SHARDED_STATES(X) } FsdpSharded;
#undef X

/* What happens to a group, in PyTorch's words; for whoever watches. */
#define FSDP_EVENTS(X)                                    \
  X(FSDP_ON_PRE_FORWARD, "pre_forward")                   \
  X(FSDP_ON_ALL_GATHER, "all_gather")                     \
  X(FSDP_ON_UNSHARDED, "unsharded")                       \
  X(FSDP_ON_POST_FORWARD, "post_forward")                 \
  X(FSDP_ON_RESHARD, "reshard")                           \
  X(FSDP_ON_RESHARD_POST_FORWARD, "reshard_post_forward") \
  X(FSDP_ON_PRE_BACKWARD, "pre_backward")                 \
  X(FSDP_ON_POST_BACKWARD, "post_backward")               \
  X(FSDP_ON_REDUCE_SCATTER, "reduce_scatter")             \
  X(FSDP_ON_ALL_REDUCE, "all_reduce")
#define X(id, name) id,
typedef enum { FSDP_EVENTS(X) FSDP_EVENT_COUNT } FsdpEvent;
#undef X
const char *fsdp_event_name(FsdpEvent e);

/* What is told of an event: of collectives, the buffer's dtype and bytes (gathered, given to the reduce-scatter,
 * all-reduced), how many ranks, and how they are combined. */
typedef struct {
  FsdpEvent event;
  const char *group;
  int64_t bytes;
  Dtype dtype;
  ReduceOp op;
  bool premultiplied;
  const int *ranks;
  int nranks;
} FsdpNote;
typedef void FsdpWatch(void *arg, const FsdpNote *note);

typedef struct FsdpUnit FsdpUnit;
typedef struct FsdpGroup FsdpGroup;
typedef struct FsdpRun FsdpRun;

/* ---- parameters ------------------------------------------------------------------------------------------ */

/* A place in the module tree where a parameter stands; tied ones stand in several. */
typedef struct {
  void *module;
  char *name;
} FsdpSlot;

/* How slots are read and written. */
typedef struct {
  Tensor *(*get)(const FsdpSlot *s); /* NULL: it is gone */
  Status (*put)(const FsdpSlot *s, const Tensor *t);
  bool (*requires_grad)(const FsdpSlot *s);
} FsdpSlots;

typedef struct {
  char *name; /* dotted, from the unit's module */
  FsdpSlot *slot;
  int nslots;
  Dtype dtype, gathered, reduced; /* as it is, is gathered, and its gradient is reduced */
  const Spec *spec, *post_spec;   /* of the shard, and of that between forward and backward */
  const Spec *whole;              /* of a parameter that is a DTensor when gathered; NULL: plain */
  int ndim, dim;                  /* dim is cut, */
  int shard_axis;                 /* by this axis of spec's mesh; -1: none */
  int64_t size[MAX_DIMS];         /* of this rank's gathered part */
  Storage
      *original; /* what it was in before, if others still have that: to find tied ones, until the run begins; */
  int64_t original_at; /* at this element */
  bool requires_grad;
  bool meta;       /* its shard has no values yet */
  Tensor *sharded; /* held: the DTensor that optimizers and state_dict see */
  Tensor *grad;    /* held: what the backward has given so far for the gathered parameter; NULL: nothing */
} FsdpParam;

/* What a caller gives of one. */
typedef struct {
  const char *name;
  FsdpSlot *slot; /* names are copied */
  int nslots;
  int dim; /* that is cut */
} FsdpParamGiven;

/* ---- groups ---------------------------------------------------------------------------------------------- */

typedef struct {
  Dtype param, reduce, output; /* DT_NONE: as they are */
  bool keep_inputs;            /* inputs are not cast to the parameters' dtype */
} FsdpPrecision;

typedef struct {
  Reshard reshard;
  int reshard_ranks;
  FsdpPrecision precision;
  const char *offload; /* a folder: shards lie in a file there; NULL: in memory */
} FsdpOptions;

/* A reduction that has been started. */
typedef struct FsdpReduce {
  FsdpGroup *group;
  struct FsdpReduce *next;
  Arena arena;
  bool *in; /* by parameter */
  CommWork *work;
  Storage *input, *output;
  int64_t count; /* elements of the output */
  Dtype dtype;
  DpReduction how;
} FsdpReduce;

/* A way in which the parameters can be sharded: over the shard group, or over fewer ranks after forward. */
typedef struct {
  FlatGroup flat;
  FlatGather gather;
  Comm *comm;       /* NULL: one rank has all */
  Storage *storage; /* the flat shard; NULL: none now */
  Dtype *dtype;     /* of each parameter in it */
  int64_t *at;      /* where it begins, bytes; */
  int64_t *cast_at; /* the same, when all are as they are gathered */
  int64_t bytes;
} FsdpShards;

struct FsdpGroup {
  Ctx *ctx; /* NULL: its context is gone */
  FsdpUnit *unit;
  FsdpGroup *next; /* in its unit */
  char *name;      /* the unit's modules: "blocks.0", "norm, head"; "<root>" */
  Arena arena;
  DpMesh mesh;
  Comm *replicas; /* NULL: none */
  FsdpOptions options;
  FsdpParam *param;
  int n;
  FsdpShards shards, post; /* post: RESHARD_TO */
  Dtype *gathered_dtype;
  int64_t *whole_at; /* of each parameter in the gathered buffer, bytes */
  int64_t whole_bytes;
  Storage *gathered; /* without data while the parameters are sharded */
  uint64_t version;  /* of the gathered storage, while it has no data */
  CommWork *gathering;
  bool pending;        /* unshard was asked for and not waited for */
  Storage *sent;       /* cast copy of the shard, while gathering */
  FsdpReduce *partial; /* reduced over the shard group only (requires_all_reduce off) */
  FsdpTraining training;
  FsdpSharded state;
  Reshard reshard;               /* resolved: ALWAYS, NEVER or TO */
  int *order, norder, order_cap; /* places in the run's order of forwards */
  /* settings */
  bool reduce_grads, all_reduce_grads, reshard_after_backward, unshard_in_backward, force_sum, reduce_unused;
  double divide;
  Status (*all_reduce_hook)(void *arg, Ctx *ctx, Tensor *flat);
  void *all_reduce_arg;
  void (*user_hook)(void); /* the caller's own, for all_reduce_hook */
  void *user_arg;
};

/* Makes a group of the parameters that the slots hold now, and puts shards in their places.  (collective) */
Status fsdp_group_new(FsdpUnit *unit, const DpMesh *mesh, const FsdpOptions *options, const FsdpParamGiven *given,
                      int n, FsdpGroup **out);
void fsdp_group_free(FsdpGroup *g);
/* Memory for shards of parameters that had none, cleared. */
Status fsdp_group_materialize(FsdpGroup *g);
/* The settings of reshard_after_forward, also later.  (collective for RESHARD_TO) */
Status fsdp_group_set_reshard(FsdpGroup *g, Reshard how, int ranks);
/* Checks before the first forward, and what the policy says of dtypes. */
Status fsdp_group_init(FsdpGroup *g);
/* Shards come into the slots: those of the group, or those that are kept after forward. */
Status fsdp_group_put(FsdpGroup *g, bool post_forward);

/* gather.c.  (collective) */
Status fsdp_unshard(FsdpGroup *g); /* starts */
Status fsdp_unshard_now(FsdpGroup *g);
Status fsdp_wait_unshard(FsdpGroup *g);
Status fsdp_reshard(FsdpGroup *g);
/* Fresh leaves for what is computed from here on (I3). */
Status fsdp_renew_leaves(FsdpGroup *g);

/* reduce.c.  (collective) */
Status fsdp_start_reduce(FsdpGroup *g);
Status fsdp_finish_reduces(FsdpRun *run, int leave); /* all but so many */
void fsdp_drop_gradients(FsdpGroup *g);
/* The gradients so far are kept for a later backward, in the dtype that they will be reduced in. */
Status fsdp_accumulate(FsdpGroup *g);

/* ---- units ------------------------------------------------------------------------------------------------- */

struct FsdpRun {
  FsdpUnit **unit; /* of the tree, root first */
  int nunits;
  FsdpUnit *forward_root; /* of the forward under way */
  FsdpGroup **order;      /* in which groups went forward */
  int norder, order_cap;
  Tape *tape;
  TapeEnd end; /* is told of ends of backwards */
  bool end_expected, is_last_backward;
  FsdpReduce *reducing; /* oldest first */
  int nreducing, most_reducing;
  int refs;
};

struct FsdpUnit {
  Ctx *ctx; /* NULL: gone */
  const FsdpSlots *slots;
  Tape *(*tape)(Ctx *ctx);
  FsdpUnit *next, **link; /* in the context's list */
  FsdpGroup *groups;
  int ngroups;
  FsdpPrecision precision;
  bool auto_reshard; /* the root keeps its parameters */
  FsdpTraining training;
  FsdpRun *run;
  FsdpUnit **forward_prefetch, **backward_prefetch;
  int nforward, nbackward;
  int most_reducing;     /* reductions under way at once */
  bool is_last_backward; /* as told before the run began */
  int nmodules;          /* that are one unit; */
  int modules;           /* of these, the ones that are still there */
  bool *to_run;          /* by module: has not run in the forward under way; */
  int nto_run;           /* how many */
  FsdpWatch *watch;
  void *watch_arg;
  void (*user_watch)(void); /* the caller's own, for watch */
  void *user_watch_arg;
  atomic_int refs; /* the modules', the tape's and those of prefetch lists */
};

FsdpUnit *fsdp_unit_ref(FsdpUnit *u);
void fsdp_unit_unref(FsdpUnit *u);
/* Its modules or its context end: waits for what is under way, and frees all but the record. */
void fsdp_unit_close(FsdpUnit *u);
void fsdp_tell(const FsdpGroup *g, FsdpNote note);
/* Waits for a gather that nobody will use. */
Status fsdp_drop_gather(FsdpGroup *g);
/* Waits for a reduction and frees it. */
Status fsdp_reduce_free(FsdpReduce *r);

/* Its training begins: units of the tree under u, u first, with the names of their groups. */
Status fsdp_start_run(FsdpUnit *u, FsdpUnit *const *units, char *const *names, int n);

/* Around the forward of module number i of the unit; tensors may be replaced, by ones in scope. */
Status fsdp_before_forward(FsdpUnit *u, int i, Scope *scope, Tensor **inputs, int n);
Status fsdp_after_forward(FsdpUnit *u, int i, Scope *scope, Tensor **outputs, int n);
/* After an error: as before the iteration; its gradients are lost. */
Status fsdp_reset(FsdpUnit *root);

#endif
