/* run_check.c -- see run_check.h. */
#include "cli/run_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "dist/dtensor.h"
#include "graph/walk.h"
#include "harness/compare.h"
#include "kernels/copy.h"
#include "runtime/shards.h"

static bool leaves_parts(const Session *on_mesh) {
  const Marks *m = session_marks(on_mesh);
  const Exported *e = session_program(on_mesh);
  for (int i = 0; i < e->graph->noutputs; i++) {
    OutputKind k = e->outputs[i].kind;
    if (!output_is_returned(k)) continue;
    for (int a = 0; a < m->mesh->naxes; a++)
      if (!is_r(&m->output[i].place[a])) return true;
  }
  return false;
}

typedef struct {
  const double *slack; /* of every value; infinite: its elements are not compared */
  double most;
  bool empty; /* some is infinite */
} Made;

static void add_slack(void *arg, Val **v) {
  Made *made = arg;
  double slack = made->slack[(*v)->id];
  made->empty |= isinf(slack);
  if (!isinf(slack) && slack > made->most) made->most = slack;
}

/* Memory that nobody has written to, or a view of it: its elements may be anything. */
static bool is_empty(const Node *n, const Made *made) {
  if (!n->op) return false;
  return n->op->def->flags & OP_EMPTY || (made->empty && n->op->def->moves != MOVES_NOT);
}

/* Rounding goes on: a f32 that was a bf16 is no more exact than that. */
static void reckon_slack(RunCheck *c, const Graph *g) {
  for (int i = 0; i < g->ninputs; i++) c->slack[g->inputs[i]->id] = compare_tolerance(g->inputs[i]->dtype);
  for (Node *n = g->first; n; n = n->next) {
    Made made = {.slack = c->slack};
    node_each_val(n, add_slack, &made);
    for (int i = 0; i < n->nouts; i++) {
      double own = compare_tolerance(n->outs[i]->dtype);
      c->slack[n->outs[i]->id] = is_empty(n, &made) ? INFINITY : own > made.most ? own : made.most;
    }
  }
}

static NodeWatchFn keep_results, compare_results;

Status run_check_open(RunCheck *c, Ctx *alone, Prepared *p, Session *on_mesh, const char *mode) {
  c->nodes = *mode;
  c->on_mesh = on_mesh;
  c->parts = leaves_parts(on_mesh);
  const Mesh *mesh = session_marks(on_mesh)->mesh;
  if (!c->nodes && !c->parts && mesh_position(mesh->axis, mesh->naxes, mesh->coord) != 0) return OK;
  TRY(session_open_prepared(alone, p, NULL, &c->alone));
  return c->nodes ? run_check_watch(c, c->alone, on_mesh) : OK;
}

Status run_check_watch(RunCheck *c, Session *alone, Session *on_mesh) {
  c->on_mesh = on_mesh;
  session_force_interpreter(alone);
  session_force_interpreter(on_mesh);
  c->nresults = session_program(on_mesh)->graph->nvals;
  TRY_NEW(c->result, arena_new_n(&c->arena, Tensor *, c->nresults + 1));
  TRY_NEW(c->slack, arena_new_n(&c->arena, double, c->nresults + 1));
  reckon_slack(c, session_program(on_mesh)->graph);
  session_watch_nodes(alone, keep_results, c);
  session_watch_nodes(on_mesh, compare_results, c);
  return OK;
}

void run_check_forget(RunCheck *c) {
  scope_clear(&c->scope);
  memset(c->result, 0, (size_t)c->nresults * sizeof *c->result);
}

void run_check_close(RunCheck *c) {
  session_free(c->alone);
  scope_clear(&c->scope);
  arena_free(&c->arena);
  arena_free(&c->outs_arena);
  free(c->gradients);
}

/* ---- nodes --------------------------------------------------------------------------------------- */

/* Values of sub-graphs have numbers of their own, and more than one content. */
static bool of_main_graph(const RunCheck *c, const Node *n) {
  return n->graph == session_program(c->on_mesh)->graph;
}

static Status keep_results(void *arg, const Node *n, const Value *outs, int nouts) {
  RunCheck *c = arg;
  if (!of_main_graph(c, n)) return OK;
  for (int i = 0; i < n->nouts && i < nouts; i++) {
    Tensor *copy;
    if (outs[i].kind != VAL_TENSOR || n->outs[i]->id >= c->nresults) continue;
    const Tensor *t = outs[i].tensor;
    TRY(tensor_new(&c->scope, t->dtype, t->ndim, t->size, &copy));
    Kern kern = {.threads = 1};
    kernel_copy(&kern, tensor_view(copy), tensor_view(t));
    c->result[n->outs[i]->id] = copy;
  }
  return OK;
}

static Status compare_results(void *arg, const Node *n, const Value *outs, int nouts) {
  RunCheck *c = arg;
  Ctx *ctx = session_ctx(c->on_mesh);
  if (!of_main_graph(c, n)) return OK;
  for (int i = 0; i < n->nouts && i < nouts; i++) {
    Tensor *want = outs[i].kind == VAL_TENSOR && n->outs[i]->id < c->nresults ? c->result[n->outs[i]->id] : NULL,
           *got;
    Scope scope = {0};
    char text[512];
    double worst = 0;
    int64_t wrong = 0;
    if (!want || isinf(c->slack[n->outs[i]->id])) continue;
    got = outs[i].tensor;
    Status s = got->spec ? dtensor_full(ctx, &scope, got, &got) : OK;
    double slack = dtype_is_float(want->dtype) || want->dtype == DT_C64 ? c->slack[n->outs[i]->id] : 0;
    if (!s)
      s = compare_pair(got, want, c->rtol < 0 ? slack : c->rtol, c->atol < 0 ? slack : c->atol, &worst, &wrong);
    scope_clear(&scope);
    TRY(s);
    c->compared++;
    if (!wrong) continue;
    s = fail(ERR_DIFF, "'%s' %s: %lld of %lld elements differ from one rank's, largest difference %.3g",
             n->outs[i]->name,
             outs[i].tensor->spec ? spec_print(outs[i].tensor->spec, text, sizeof text)
                                  : tensor_describe(want, text, sizeof text),
             (long long)wrong, (long long)tensor_numel(want), worst);
    return s; /* the walk adds where it is */
  }
  return OK;
}

/* ---- calls ----------------------------------------------------------------------------------------- */

Status run_check_begin(RunCheck *c, const Value *inputs, int ninputs) {
  if (!c->nodes) return OK;
  arena_free(&c->outs_arena);
  free(c->gradients);
  c->gradients = NULL;
  run_check_forget(c);
  c->compared = 0;
  return session_run(c->alone, inputs, ninputs, &c->scope, &c->outs_arena, &c->outs, &c->nouts);
}

Status run_check_gradients(RunCheck *c, const OutputList *outs) {
  size_t size;
  if (outs->n != c->nouts) return fail(ERR_DIFF, "%d outputs, one rank gives %d", outs->n, c->nouts);
  int first = 0;
  while (first < outs->n && !outs->gradient[first]) first++;
  const OutputList gradients = {outs->v + first, outs->n - first, outs->gradient + first};
  FILE *f = open_memstream(&c->gradients, &size);
  if (!f) return fail_oom();
  Status s = compare_with_values(f, "one rank", c->outs + first, &gradients, c->rtol, c->atol, c->json);
  if (fclose(f) && !s) s = fail_oom();
  c->ngradients = gradients.n;
  return s;
}

/* This rank's part of what the reference gave. */
static Status cut_output(const RunCheck *c, int output, Scope *scope, Kern *kern, Value *v) {
  const Marks *m = session_marks(c->on_mesh);
  const Spec *spec;
  if (v->kind != VAL_TENSOR) return OK;
  TRY(spec_new(m->mesh, v->tensor->dtype, v->tensor->ndim, v->tensor->size, NULL, m->output[output].place, &spec));
  return shard_of(kern, scope, v->tensor, spec, &v->tensor);
}

static void tell_nodes(const RunCheck *c, Status found, FILE *f) {
  if (!found || c->gradients) fprintf(f, "check: %d results of nodes match one rank's\n", c->compared);
  if (!c->gradients) return;
  if (found) fputs(c->gradients, f);
  else fprintf(f, "check: %d gradients match one rank's\n", c->ngradients);
}

/* "check": {"nodes": 12, "gradients": [...], "ok": true} */
void run_check_nodes(const RunCheck *c, Status found, FILE *f) {
  if (!c->json) return tell_nodes(c, found, f);
  TextBuf b = {0};
  text_printf(&b, "{\"nodes\": %d", c->compared);
  if (c->gradients) text_printf(&b, ", \"gradients\": [%s]", c->gradients);
  text_printf(&b, ", \"ok\": %s", found ? "false" : "true");
  if (found) text_puts(&b, ", \"difference\": "), text_json(&b, status_message(found));
  text_puts(&b, "}");
  if (!b.failed) fputs(b.text, f);
  text_free(&b);
}

/* The reference's outputs, cut as the ranks leave them. */
static Status wanted_outputs(RunCheck *c, const Value *inputs, int ninputs, Scope *scope, Arena *arena,
                             Value **wanted, int nouts) {
  const Exported *e = session_program(c->on_mesh);
  int n, user = 0;
  TRY(session_run(c->alone, inputs, ninputs, scope, arena, wanted, &n));
  if (n != nouts) return fail(ERR_DIFF, "%d outputs, one rank gives %d", nouts, n);
  for (int i = 0; c->parts && i < e->graph->noutputs; i++) {
    if (!output_is_returned(e->outputs[i].kind)) continue;
    TRY(cut_output(c, i, scope, &session_ctx(c->on_mesh)->kern, &(*wanted)[user++]));
  }
  return OK;
}

Status run_check_outputs(RunCheck *c, const Value *inputs, int ninputs, const OutputList *outs, FILE *f) {
  Scope scope = {0};
  Arena arena = {0};
  Value *wanted;
  if (!c->alone || c->nodes) return OK;
  Status s = wanted_outputs(c, inputs, ninputs, &scope, &arena, &wanted, outs->n);
  if (c->json) fputs("{\"outputs\": [", f);
  if (!s) s = compare_with_values(f, "one rank", wanted, outs, c->rtol, c->atol, c->json);
  if (c->json) fprintf(f, "], \"ok\": %s}", s ? "false" : "true");
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}
