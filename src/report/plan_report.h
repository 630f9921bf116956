/* plan_report.h -- what a program would do on a mesh: placements, collectives, memory,
 * work and time of a rank, for any number of ranks, without having them and without
 * running anything.
 *
 *   Exported *e = ...;                        as read
 *   TRY(plan_report_prepare(ctx, e));         or any program after passes_once (runtime/prepared.h)
 *   PlanRequest r = {.mesh = "dp=2,tp=4", .plan = plan, .inputs = inputs, .ninputs = n};
 *   TRY(plan_report(e, &r, &report));
 *   TRY(plan_report_write(report, "DIR/report.html", 0));   .html, .json, else text
 *   plan_report_free(report);
 *
 * A training step is asked for with a program that was prepared for it (train/trainer.h):
 *
 *   TRY(plan_report_sizes(e));
 *   TRY(trainer_prepare(ctx, e, &how, &prepared));
 *   PlanRequest r = {.mesh = "dp=16,tp=64", .step = prepared, ...};
 *   TRY(plan_report(prepared->program, &r, &report));
 *
 * It is made as the program of one rank is made (mark, specialize with a MeshRank, the
 * passes, the memory plan), on a mesh without a world, so it tells what a run does, not
 * what a model of it does.
 *
 * I1  The program is only read; no element of a weight is.
 * I2  Everything lives in the report; e may be freed before it.
 * I3  Amounts are of `rank`, except where "largest" or "whole" is said.  Rank 0 holds the
 *     most of everything: chunks never grow from rank to rank.
 */
#ifndef TESS_REPORT_PLAN_REPORT_H
#define TESS_REPORT_PLAN_REPORT_H

#include "plan/plan_file.h"
#include "report/machine.h"
#include "runtime/fit_memory.h"
#include "runtime/prepared.h"
#include "runtime/specialize.h"

typedef enum {
  CAUSE_PLAN,      /* an entry of the plan */
  CAUSE_OUTPUT,    /* results of the program are to be whole, or where the plan wants them */
  CAUSE_RULE,      /* nobody asked: the op could not work on what it got */
  CAUSE_PARTIAL,   /* an op on shards has left a partial result (a sum over what is sharded), which is reduced */
  CAUSE_COTANGENT, /* partial sums of a cotangent, or where its tensor was before an entry of the plan moved it */
  CAUSE_GRADIENT,  /* a gradient goes where its parameter lies */
  CAUSE_PARAMETER, /* a parameter that is sharded in memory alone (FSDP) is gathered to be used */
  CAUSE_UPDATE,    /* the norm of all gradients, or what an optimizer makes of parts of a parameter */
} MoveCause;

/* A collective. */
typedef struct {
  StepKind kind;
  unsigned axes;    /* of the mesh */
  int ranks;        /* of a group */
  int64_t bytes;    /* that a rank receives */
  double seconds;   /* predicted; 0 without a machine */
  double exposed;   /* of these, that the rank does not compute meanwhile */
  bool started;     /* in one place and waited for in another */
  int joined;       /* gradients that it reduces, or parameters that it gathers, at once; 0: it is none of these */
  const char *name; /* of its value in the rank's program */
  const char *type; /* "f32[2,16,64]", the whole */
  const char *from, *to; /* placements */
  MoveCause cause;
  const char *why;        /* "rowwise 'layers.0.mlp.down_proj'"; CAUSE_RULE: the op */
  const char *rule;       /* CAUSE_RULE: the rule's words, "" if it has none */
  const char *sharded_by; /* what made the tensor lie as it did: an entry of the plan; NULL: not known */
  int node;               /* for which it is done; -1: an output of the program, or a gradient */
  bool after;             /* on the node's result, not on an argument */
  Stage stage;            /* backward: on the way back through the node, or of a gradient */
  int layer;
} PlanMove;

typedef struct {
  const char *name, *type, *place; /* "add_1", "f32[2,16,64]", "S(0)R" */
} PlanValue;

/* A node of the whole program. */
typedef struct {
  const char *name, *op, *module, *source;
  PlanValue *in, *out; /* tensors; inputs as they come */
  int nin, nout;
  int move, nmoves;             /* of PlanReport.move: the forward's */
  double flops, bytes, seconds; /* collectives apart; work of fused nodes is told at the last of them */
  int layer;
} PlanNode;

typedef struct {
  const char *name;
  InputKind kind;                 /* parameter, buffer, constant, user */
  const char *type, *place, *why; /* why NULL: nobody asked for another placement than R */
  int64_t bytes, rank_bytes;      /* whole; of the largest rank */
  const char *tied;               /* the name that the bytes are told at; NULL: here */
  bool cut;
  int layer;
} PlanWeight;

/* The nodes and weights of a module: of one layer, where modules are numbered. */
typedef struct {
  const char *name; /* "model.layers.0"; "" for what belongs to no module */
  const char *stem; /* "model.layers." */
  int number;       /* 0; -1: not numbered */
  int nodes, unasked;
  int count[STEP_KIND_COUNT];
  int backward[STEP_KIND_COUNT];      /* of these */
  int64_t moved[STEP_KIND_COUNT];     /* bytes */
  int64_t weights, rank_weights;      /* bytes */
  double flops, compute, communicate; /* seconds */
  int alike;                          /* layers from here on that do the same, this one included; 0: told before */
} PlanLayer;

/* Equal collectives that nobody asked for. */
typedef struct {
  const PlanMove *first;
  int count;
  int64_t bytes;
  double seconds;
  const char *where; /* "model.layers.*.self_attn" */
  const char *advice;
} PlanUnasked;

/* Ranks that hold equally much of the state. */
typedef struct {
  const char *ranks; /* "0-2,4" */
  int first, count;
  int64_t weights, buffers, optimizer;
} RankClass;

typedef struct {
  /* Bytes.  Of a training step gradients are among the activations, unless they have memory of their own. */
  int64_t weights, buffers, optimizer, inputs, outputs, gradients, activations, total;
  double flops, bytes;                  /* bytes that ops read and write */
  double backward_flops;                /* of these */
  double compute, communicate, exposed; /* seconds; the rank takes compute + exposed */
  int steps;
} PlanTotals;

typedef struct {
  StepKind kind;
  unsigned axes;
  Stage stage;
  int count, unasked;
  int joined; /* gradients that these calls reduce, or parameters that they gather, several at once */
  int64_t bytes;
  double seconds, exposed;
} PlanKind;

/* A part of a rank's step: the work of one layer in a row, or a collective. */
typedef struct {
  Stage stage;
  int layer;
  int move;          /* -1: computing */
  double begun, end; /* seconds from the beginning of the step; of a collective, when it is under way */
  double waits;      /* of a collective: seconds that the rank waits for it */
  int calls;
} PlanSpan;

/* Bytes of intermediate results in use from `at` on, by what they wait for. */
typedef struct {
  double at; /* seconds; without a machine, instructions */
  Stage stage;
  int64_t saved, gradients, other;
} PlanMemoryAt;

/* The step of an optimizer, seen from one rank. */
typedef struct {
  const char *optimizer;    /* "adamw"; NULL: no step was asked for */
  int64_t samples, tokens;  /* of all batches of all ranks; tokens 0: the inputs are none */
  int batches;              /* micro-batches that it is made of */
  double before;            /* seconds of all but the last */
  int64_t saved, gradients; /* the most that is in use at once */
  const char *gathering;    /* how fully sharded parameters are gathered; NULL: there are none */
  int recomputed;           /* nodes whose results are computed again, for a limit of memory */
  double stage[3];          /* seconds of forward, backward, update, waits included; of all micro-batches */
  PlanSpan *span;
  PlanMemoryAt *memory;
  int nspans, nmemory;
} PlanStep;

typedef struct PlanReport {
  Arena arena;
  const char *program, *plan; /* file names, or "auto"; plan NULL: none */
  const char *derived;        /* auto: the plan that was derived, as a plan file; NULL: it was given */
  const char *mesh;           /* "dp=2,tp=4" */
  int naxes, axis[MAX_AXES], ranks, rank;
  const char *axis_name[MAX_AXES]; /* "tp"; "0" where it has none */
  const char *sizes;               /* "s0=2, s1=16" as the request has it; "" */
  const char *loss;                /* whose gradients are asked for; NULL: none are */
  int ngradients;                  /* that there are */
  const char *unknown;             /* why the rest of the program is not known before it runs; NULL: all is */
  bool timed;                      /* there is a machine */
  Machine machine;
  PlanTotals rank_total, whole; /* whole: on one rank; total 0 if it was not asked for */
  PlanStep step;
  PlanNode *node;
  PlanMove *move;
  PlanWeight *weight; /* state, then user inputs */
  PlanValue *output;
  PlanLayer *layer;
  PlanUnasked *unasked;
  RankClass *rank_class;
  PlanKind *kind;
  const char **note;
  int nnodes, nmoves, nweights, noutputs, nlayers, nunasked, nclasses, nkinds, nnotes;
} PlanReport;

typedef struct {
  const char *mesh;     /* NULL: the plan's */
  const PlanFile *plan; /* may be "auto"; NULL: nothing is cut, but for a batch on a data axis */
  const Value *inputs;  /* sizes of the user inputs, whole */
  int ninputs;
  const Machine *machine;  /* NULL: no times */
  const GradOptions *grad; /* the joint program; NULL: the forward alone */
  /* A training step of this program, which has its marks: instead of plan and grad.  Of several micro-batches the
   * last is looked at in full, the others are in the totals. */
  const Prepared *step;
  const ReduceGradients *reduce; /* of a training step; NULL: as always */
  MemoryLimit memory;            /* of a training step, as session_limit_memory() has it; amount 0: none */
  Phase phase;                   /* of a training step: which of its micro-batches; 0: the whole step */
  int rank;
  const char *sizes; /* for the reader; NULL: "" */
  bool no_whole;     /* do not look at the program on one rank, too */
} PlanRequest;

/* Gives weights without data their sizes. */
Status plan_report_sizes(Exported *e);
/* The same, and runs passes_once on e. */
Status plan_report_prepare(Ctx *ctx, Exported *e);
/* e: prepared.  A program whose sizes depend on data is told as far as it is known
 * (report->unknown). */
Status plan_report(const Exported *e, const PlanRequest *r, PlanReport **out);
void plan_report_free(PlanReport *r); /* NULL is fine */

typedef struct {
  bool nodes;   /* the table of nodes, too */
  bool weights; /* the table of weights, too */
} PlanTextOptions;
void plan_report_text(TextBuf *b, const PlanReport *r, PlanTextOptions o);
struct yyjson_mut_doc;
Status plan_report_json(const PlanReport *r, struct yyjson_mut_doc **out);
Status plan_report_html(TextBuf *b, const PlanReport *r); /* one page, no other files */
/* To a file, by the end of its name: .html, .json, else text.  flags: FileFlags. */
Status plan_report_write(const PlanReport *r, const char *path, unsigned flags);

#endif
