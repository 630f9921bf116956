/* plan_collect.h -- how a PlanReport is made, in parts; for plan_report*.c. */
#ifndef TESS_REPORT_PLAN_COLLECT_H
#define TESS_REPORT_PLAN_COLLECT_H

#include "base/ptrmap.h"
#include "base/strmap.h"
#include "dist/redistribute.h"
#include "report/plan_report.h"
#include "runtime/program.h"

typedef struct {
  const Exported *e;
  const PlanRequest *r;
  PlanReport *p;
  bool dry; /* large constants are not computed */
  Ctx ctx;
  Dist *dist;
  Mesh *mesh;
  const Value *inputs; /* of the rank's program: those of the request, or a replica's rows of them */
  const Marks *marks;  /* NULL: one rank, looked at for comparison */
  Marks *own_marks;    /* to be freed; NULL: they are the request's */
  Marks of_step;       /* the request's, on our mesh */
  Scope scope;         /* shards without data */
  Tensor **shard;      /* of the state, parallel to e->state */
  CommLog log;
  int logged;              /* events of the log that have become moves */
  Tensor **value;          /* by Val.id: the DTensor; NULL: not yet, or no tensor */
  const char **sharded_by; /* by Val.id * naxes + axis */
  GradRequest grad;        /* what is asked for, if wants_grad */
  bool wants_grad;
  PtrMap index;         /* node -> index of its PlanNode: of several, the last */
  bool backward;        /* what is recorded now is */
  int visited;          /* the node that the backward is at; -1: none */
  StrMap node_of;       /* name of a recorded value -> 1 + index of the node it was recorded for */
  StrMap texts;         /* that occur again and again: once */
  StrMap layers;        /* name -> 1 + index */
  const Node *recorded; /* the last node of the rank's program that was looked at */
  StrMap moved;         /* name of what a collective works on -> 1 + its move */
  StrMap groups;        /* name of a group that collectives are started in -> its axes */
  int node_cap, move_cap;
} Collector;

/* plan_report_nodes.c: nodes and moves while the program is recorded; then, of the rank's
 * finished program, who survived and what the ops take. */
WalkWatch collect_watch(Collector *c);
Status collect_program(Collector *c, const Program *p);
/* plan_report_step.c: which gradients are reduced together, and the course of a run in time and memory. */
Status collect_buckets(Collector *c, const Graph *g);
Status collect_course(Collector *c, const Program *p);
/* Does it send, or wait for what was sent? */
bool collect_communicates(const Instr *in);
/* Arithmetic, memory traffic and seconds of an instruction that is no collective. */
typedef struct {
  double flops, bytes, seconds;
} Work;
Work collect_work(const Collector *c, const Instr *in);
/* The node that a value of the rank's program was recorded for, from 1; 0: none. */
intptr_t collect_node_of(const Collector *c, const Instr *in);
Status collect_add_move(Collector *c, PlanMove **out);
/* plan_report_layers.c: from nodes, moves and weights to layers; kinds; what nobody asked for. */
Status collect_layers(Collector *c);
Status collect_kinds(Collector *c);
/* The collectives of another report, so many times. */
Status plan_report_add_kinds(PlanReport *to, const PlanReport *from, int times);
Status collect_unasked(Collector *c);
/* plan_report_ranks.c: weights, and what each rank holds of them. */
Status collect_weights(Collector *c);

/* A text, kept once. */
Status collect_text(Collector *c, const char *text, const char **out);
Status collect_place(Collector *c, const Spec *s, const char **out);
Status collect_type(Collector *c, Dtype d, int ndim, const int64_t *size, const char **out);
Status collect_note(Collector *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The layer that a module or a parameter of that name belongs to; made if it is new. */
Status collect_layer(Collector *c, const char *module, int *out);
Status collect_layer_of(Collector *c, const char *parameter, int *out);

#endif
