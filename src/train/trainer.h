/* trainer.h -- a program that returns a loss, being trained: parameters and optimizer state in memory, one step
 * after the other.
 *
 *     Trainer *t;
 *     trainer_open(&ctx, program, &recipe, NULL, &t);       // takes over the program
 *     while (...) {
 *       trainer_set_rate(t, schedule_factor(&schedule, step));
 *       trainer_step(t, next_batch, data, &result);
 *     }
 *     trainer_free(t);
 *
 * On a mesh every rank has a Trainer of one Prepared (trainer_prepare, trainer_open_on) and makes the same calls
 * with the same batches, which are those of the whole mesh: each rank takes its part.  It holds its shards of
 * parameters and optimizer state.  Functions marked (collective) must be called by all.
 *
 * I1  A step that fails leaves the parameters as they were, unless the machine fails in the middle of the update.
 * I2  A step that is skipped changes nothing but the scale of the loss: neither parameters nor buffers nor random
 *     numbers.
 * I3  The same program, recipe, data and random state give the same bits.
 */
#ifndef TESS_TRAIN_TRAINER_H
#define TESS_TRAIN_TRAINER_H

#include "optim/schedule.h"
#include "runtime/session.h"

typedef struct Trainer Trainer;

typedef struct {
  double loss;       /* the mean over the micro-batches, and over ranks that have rows of their own */
  double own_loss;   /* of this rank's rows, where that is something else; of others it is `loss` */
  double grad_norm;  /* before clipping */
  bool skipped;      /* the norm was not finite, and the recipe skips such steps */
  double loss_scale; /* that the loss was multiplied by; 0: it was not */
} StepResult;

/* One micro-batch: a value per user input. */
typedef struct {
  const Value *inputs;
  int n;
} Batch;

/* Takes over e, also on failure.  loss: which output, NULL: the only one that can be it.  The recipe's texts are
 * borrowed. */
Status trainer_open(Ctx *ctx, Exported *e, const Recipe *r, const char *loss, Trainer **out);
/* The same in two steps, of which the first is made once per process.  mesh NULL: one rank.  plan may be
 * NULL: nothing is sharded but batches, which are always, whether they divide or not.  ctx is needed for the time
 * of the call. */
typedef struct {
  const Recipe *recipe;
  const char *loss;
  const char *mesh;
  const PlanFile *plan;
  const char *data_axis; /* as in PlanFile */
  /* Along the axes that shard batches every rank runs the program on its own rows and gradients are averaged: what
   * PyTorch's DDP means.  Means are means of the ranks' means, batch statistics are those of the local rows, and
   * buffers are those of the first rank, from step to step.  Else the program is that of the whole batch. */
  bool local;
  /* Parameters, gradients and optimizer state are sharded over a data axis, too (FSDP): its name, "" for the one
   * that there is; NULL: they are not. */
  const char *fsdp;
  /* Replicas of a parameter update all of it each, not a part each; for comparison. */
  bool whole_updates;
} TrainerPlan;
Status trainer_prepare(Ctx *ctx, Exported *e, const TrainerPlan *how, Prepared **out);
/* mesh: of the same axes, NULL: one rank.  (collective) */
Status trainer_open_on(Ctx *ctx, Prepared *p, Mesh *mesh, Trainer **out);
void trainer_free(Trainer *t); /* NULL is fine */

const Recipe *trainer_recipe(const Trainer *t);
const Exported *trainer_program(const Trainer *t);
Session *trainer_session(Trainer *t);
Mesh *trainer_mesh(const Trainer *t); /* NULL: one rank */

/* Of a local trainer: how many rows of each batch the ranks along its data axes take, in their order; NULL: equal
 * parts, as torch.chunk() makes them.  Copied. */
Status trainer_set_rows(Trainer *t, const int64_t *rows, int n);

/* Learning rates of all groups: so much of what their settings say. */
void trainer_set_rate(Trainer *t, double factor);
double trainer_rate(const Trainer *t); /* of the group of all parameters that no other takes */
/* Asks for as many batches as the recipe accumulates: i is 0, 1 ...; each must be valid until the next is asked
 * for. */
typedef Status BatchFn(void *arg, int i, Batch *out);
Status trainer_step(Trainer *t, BatchFn *batch, void *arg, StepResult *out);
/* The same, batch by batch: *done if this was the last one of a step, which out then tells of.  After an error the
 * next batch is the first of a step. */
Status trainer_feed(Trainer *t, const Batch *batch, StepResult *out, bool *done);
/* Which part of a step its i-th micro-batch is. */
Phase trainer_phase(const Trainer *t, int i);
/* The program that a batch is trained with in a phase, of this rank's rows; NULL: it is interpreted. */
Status trainer_program_of(Trainer *t, Phase phase, const Batch *batch, Program **out);
/* The loss alone: nothing changes, neither buffers nor random numbers. */
Status trainer_loss(Trainer *t, const Batch *batch, double *out);

/* Everything that changes: parameters and buffers (`is_model`), and what optimizers keep.  Tied names are told of
 * once each. */
typedef struct {
  const char *name;
  Tensor *tensor;      /* this rank's shard */
  const Tensor *whole; /* sizes and dtype of the whole; its elements may be from before the training */
  bool is_model, is_parameter;
  bool is_temporary; /* nothing that outlives a step: sums of micro-batches, gradients that are kept */
} TrainState;
int trainer_states(const Trainer *t, TrainState *out); /* how many; out may be NULL */
/* What calls change by the way, buffers and random numbers, set aside and put back around calls that are not to
 * count.  trainer_put_back() follows also if setting aside fails. */
typedef struct {
  Scope scope;
  TrainState *state;
  Tensor **copy; /* one per state; NULL: left alone */
  int n;
  unsigned char random[RANDOM_STATE_BYTES];
} SetAside;
Status trainer_set_aside(Trainer *t, SetAside *a);
void trainer_put_back(Trainer *t, SetAside *a);

/* Buffers of ranks that have rows of their own become those of the first, as at the beginning of the next step.
 * (collective) */
Status trainer_share_buffers(Trainer *t);
/* This rank's memory of a state: a DTensor on a mesh, else a plain tensor. */
Status trainer_state_tensor(const Trainer *t, const TrainState *state, Scope *scope, Tensor **out);
/* All elements of a state, in the trainer's own memory where this rank has them all.  (collective) */
Status trainer_gather(const Trainer *t, const TrainState *state, Scope *scope, Tensor **out);
/* Writes the elements of another tensor of the whole's size.  `where` is named in errors. */
Status trainer_set_state(Trainer *t, const TrainState *to, const Tensor *from, const char *where);
/* To be called when states were written to in another way: a step that was begun is forgotten, and copies of what
 * the update does not write are made anew. */
void trainer_was_written(Trainer *t);

#endif
