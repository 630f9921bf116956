/* run_check.h -- `run --check`: the same calls on one rank, and what differs.
 *
 * --check compares every output; --check=nodes every result of every node, and names the
 * first that differs (ranks and reference are then interpreted, node by node).
 */
#ifndef TESS_CLI_RUN_CHECK_H
#define TESS_CLI_RUN_CHECK_H

#include <stdio.h>

#include "harness/compare.h"
#include "runtime/session.h"

typedef struct {
  Session *alone; /* the program on one rank; NULL: this rank has nothing to compare */
  Session *on_mesh;
  double rtol, atol;
  bool nodes, json;
  bool parts; /* some output is left in shards: every rank compares its own */
  /* --check=nodes: results of the reference by Val.id, and where the comparison stands */
  Arena arena;
  Scope scope;
  Tensor **result;
  double *slack; /* how exact a result can be: as the coarsest floats that it was made of */
  int nresults, compared;
  Value *outs; /* of the reference, its gradients last */
  int nouts;
  Arena outs_arena;
  char *gradients; /* what was found of gradients, a line or an object each; malloc'ed */
  int ngradients;
} RunCheck;

/* p: the program that is checked.  Every rank of the mesh calls all of these.  mode: "" or "nodes". */
Status run_check_open(RunCheck *c, Ctx *alone, Prepared *p, Session *on_mesh, const char *mode);
/* Every result of every node of sessions that somebody else runs, from now on: each call alone, then on the mesh.
 * Their calls are interpreted. */
Status run_check_watch(RunCheck *c, Session *alone, Session *on_mesh);
void run_check_forget(RunCheck *c); /* before the next two calls */
/* Before a call of the session that is checked, with the same inputs. */
Status run_check_begin(RunCheck *c, const Value *inputs, int ninputs);
/* After it: a line per output, or the object of a JSON document, to f; ERR_DIFF. */
Status run_check_outputs(RunCheck *c, const Value *inputs, int ninputs, const OutputList *outs, FILE *f);
/* With --check=nodes: its gradients, which are whole.  ERR_DIFF; run_check_nodes tells of it. */
Status run_check_gradients(RunCheck *c, const OutputList *outs);
/* The same of --check=nodes, which compares while the call runs; found: what ended the call, OK: nothing. */
void run_check_nodes(const RunCheck *c, Status found, FILE *f);
void run_check_close(RunCheck *c);

#endif
