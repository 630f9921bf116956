/* plan_names.h -- the names of a program that the patterns of a plan are held against. */
#ifndef TESS_PLAN_PLAN_NAMES_H
#define TESS_PLAN_PLAN_NAMES_H

#include "graph/graph.h"
#include "plan/plan_file.h"

typedef struct {
  const Exported *e;
  Arena *arena;
  char (*module)[256]; /* of every node, in graph order; "" where not known */
  const char **owner;  /* of every entry of the state: the module that it belongs to; "" where none.
                        * Neighbours of one module have the same pointer */
} PlanNames;

/* What it keeps lives in the arena. */
Status names_open(PlanNames *n, const Exported *e, Arena *arena);
/* Does the entry name a module that has parameters or buffers of its own?  Then it speaks of
 * modules: "f.*.*.*" names f.0.1.0 and not the weight of f.0.0. */
bool names_has_modules(const PlanNames *n, const PlanEntry *e);
/* A parameter inside of a module that the entry names, at any depth; NULL: there is none. */
const char *names_inside(const PlanNames *n, const PlanEntry *e);
/* Does the entry name a module that nodes come from (norms without weights), or one that holds
 * others? */
bool names_around(const PlanNames *n, const PlanEntry *e);
/* Of an entry that matches nothing: an error with the nearest name, or OK where the plan speaks of
 * layers that models of this kind may have and this one has not. */
Status names_missing(const PlanNames *n, const PlanFile *plan, const PlanEntry *e);
/* Counts of packed parts must speak of something. */
Status names_check_packed(const PlanNames *n, const PlanFile *plan);

#endif
