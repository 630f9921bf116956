/* train_check.c -- see train_check.h. */
#include "cli/train_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char kept[] = "optim.grad."; /* names of states that are gradients */

static Status list_states(const Trainer *t, TrainState **out, int *n) {
  *n = trainer_states(t, NULL);
  TRY_NEW(*out, malloc(((size_t)*n + 1) * sizeof **out));
  trainer_states(t, *out);
  return OK;
}

Status train_check_open(TrainCheck *c, Prepared *p, Trainer *on_mesh, const char *mode) {
  int n;
  const Ctx *ctx = session_ctx(trainer_session(on_mesh));
  ctx_init(&c->ctx, ctx->kern.threads);
  c->opened = true;
  c->ctx.seed = ctx->seed;
  c->on_mesh = on_mesh;
  c->by_nodes = *mode;
  c->nodes.rtol = c->nodes.atol = -1;
  TRY(trainer_open_on(&c->ctx, p, NULL, &c->alone));
  TRY(list_states(c->alone, &c->mine, &n));
  TRY(list_states(on_mesh, &c->theirs, &c->nstates));
  if (n != c->nstates) return fail(ERR_FAIL, "%d states, one rank has %d", c->nstates, n);
  return c->by_nodes ? run_check_watch(&c->nodes, trainer_session(c->alone), trainer_session(on_mesh)) : OK;
}

void train_check_close(TrainCheck *c) {
  if (!c->opened) return;
  run_check_close(&c->nodes);
  trainer_free(c->alone);
  free(c->mine);
  free(c->theirs);
  ctx_free(&c->ctx);
}

/* ---- a step ----------------------------------------------------------------------------------------- */

/* What no step writes to is given once. */
static Status copy_states(TrainCheck *c, Scope *scope) {
  for (int i = 0; i < c->nstates; i++) {
    Tensor *whole;
    bool never_changes = c->mine[i].tensor->storage && c->mine[i].tensor->storage->frozen;
    if (c->theirs[i].is_temporary || (never_changes && c->begun)) continue;
    TRY(trainer_gather(c->on_mesh, &c->theirs[i], scope, &whole));
    TRY(trainer_set_state(c->alone, &c->mine[i], whole, "the mesh"));
    scope_clear(scope);
  }
  return OK;
}

static Status begins(void *arg) {
  TrainCheck *c = arg;
  unsigned char random[RANDOM_STATE_BYTES];
  Scope scope = {0};
  Status s = copy_states(c, &scope);
  scope_clear(&scope);
  ctx_random_state(session_ctx(trainer_session(c->on_mesh)), random);
  ctx_set_random_state(&c->ctx, random);
  c->begun = true;
  return s;
}

static Status takes(void *arg, const Batch *batch) {
  TrainCheck *c = arg;
  bool done;
  if (c->by_nodes) run_check_forget(&c->nodes);
  return status_at(trainer_feed(c->alone, batch, &c->result, &done), "--check, on one rank");
}

/* ---- what came of it -------------------------------------------------------------------------------- */

/* Of what the program computes in halves by itself (an autocast region, casts). */
static double tolerance_of_results(const Graph *g) {
  double most = 0;
  for (const Node *n = g->first; n; n = n->next)
    for (int i = 0; i < n->nouts; i++) most = fmax(most, compare_tolerance(n->outs[i]->dtype));
  return most;
}

static double tolerance(const TrainCheck *c) {
  const Recipe *r = trainer_recipe(c->alone);
  double params = compare_tolerance(r->param_dtype == DT_NONE ? DT_F32 : r->param_dtype);
  double products = r->compute == DT_NONE ? 0 : compare_tolerance(r->compute);
  double inside = tolerance_of_results(session_program(trainer_session(c->alone))->graph);
  for (int i = 0; i < c->nstates; i++)
    if (c->mine[i].is_parameter && compare_tolerance(c->mine[i].whole->dtype) > params)
      params = compare_tolerance(c->mine[i].whole->dtype);
  return fmax(inside, fmax(products, params));
}

static bool is_near(double a, double b, double slack) {
  if (!isfinite(a) || !isfinite(b)) return (isnan(a) && isnan(b)) || a == b;
  return fabs(a - b) <= slack * fmax(fabs(b), 1e-6);
}

static Status compare_numbers(const TrainCheck *c, int64_t step, const StepResult *r, double slack) {
  const StepResult *want = &c->result;
  if (!is_near(r->loss, want->loss, slack))
    return fail(ERR_DIFF, "step %lld: the loss is %.9g, on one rank %.9g", (long long)step, r->loss, want->loss);
  if (is_near(r->grad_norm, want->grad_norm, slack)) return OK;
  return fail(ERR_DIFF, "step %lld: the norm of the gradients is %.9g, on one rank %.9g", (long long)step,
              r->grad_norm, want->grad_norm);
}

static double largest(const Tensor *t) {
  double most = 0;
  const unsigned char *p = tensor_data(t);
  for (int64_t i = 0; i < tensor_numel(t); i++) {
    Value v = val_load(t->dtype, p + i * (int64_t)dtype_size(t->dtype));
    most = fmax(most, fabs(val_as_float(&v)));
  }
  return most;
}

/* Gradients that are 0 but for rounding: what is forgiven, as a share of the norm of all. */
static double noise(double slack) { return slack * (slack > 1e-3 ? 0.05 : 0.002); }

/* Of state i, which keeps a gradient.  The elements of both are in order: they are states of sessions. */
static Status compare_gradient(const TrainCheck *c, int i, int64_t step, double slack, Scope *scope) {
  const Tensor *want = c->mine[i].tensor;
  Tensor *got;
  double worst, norm = isfinite(c->result.grad_norm) ? fabs(c->result.grad_norm) : 0;
  int64_t wrong;
  char text[256];
  TRY(trainer_gather(c->on_mesh, &c->theirs[i], scope, &got));
  double share = slack > 1e-3 ? 2 * slack : slack; /* halves are added up in another order */
  TRY(compare_pair(got, want, share, share * largest(want) + noise(slack) * norm, &worst, &wrong));
  if (!wrong) return OK;
  return fail(ERR_DIFF,
              "step %lld: the gradient of '%s', %s: %lld of %lld elements differ from one rank's, largest "
              "difference %.3g",
              (long long)step, c->theirs[i].name + sizeof kept - 1, tensor_describe(want, text, sizeof text),
              (long long)wrong, (long long)tensor_numel(want), worst);
}

static Status compare_gradients(TrainCheck *c, int64_t step, double slack) {
  c->gradients = 0;
  for (int i = 0; i < c->nstates; i++) {
    Scope scope = {0};
    if (strncmp(c->theirs[i].name, kept, sizeof kept - 1)) continue;
    Status s = compare_gradient(c, i, step, slack, &scope);
    scope_clear(&scope);
    TRY(s);
    c->gradients++;
  }
  return OK;
}

static Status made(void *arg, int64_t step, const StepResult *r) {
  TrainCheck *c = arg;
  double slack = tolerance(c);
  Status numbers = compare_numbers(c, step, r, slack);
  Status s = r->skipped ? OK : compare_gradients(c, step, slack); /* names where it comes from */
  c->steps++;
  if (!numbers || !s) return s ? s : numbers;
  numbers = status_at(numbers, "%s", status_message(s));
  status_free(s);
  return numbers;
}

StepWatch train_check_watch(TrainCheck *c) { return (StepWatch){c, begins, takes, made}; }

void train_check_tell(const TrainCheck *c, FILE *f) {
  fprintf(f, "check: %lld step%s one rank's: losses, norms and %d gradients", (long long)c->steps,
          c->steps == 1 ? " matches" : "s match", c->gradients);
  if (c->by_nodes) fprintf(f, ", %d results of nodes", c->nodes.compared);
  fputc('\n', f);
}
