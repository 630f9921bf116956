/* unit.c -- what happens around forward and backward: the training states; see fsdp.h. */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/textbuf.h"
#include "fsdp/fsdp_inside.h"

const char *fsdp_event_name(FsdpEvent e) {
#define X(id, name) name,
  static const char *const names[] = { FSDP_EVENTS(X) };
#undef X
  return (unsigned)e < FSDP_EVENT_COUNT ? names[e] : "?";
}

static const char *training_name(FsdpTraining t) {
  static const char *const names[] = {"idle", "in forward", "before its backward", "after its backward"};
  return names[t];
}

Status fsdp_fail(const FsdpGroup *g, const char *what, const char *hint) {
  return status_hint(fail(ERR_USAGE, "group '%s' (%s, %s) %s", g->name ? g->name : g->param[0].name,
                          training_name(g->training),
                          g->state == FSDP_UNSHARDED ? "gathered"
                          : g->state == FSDP_SHARDED ? "sharded"
                                                     : "resharded after forward",
                          what),
                     "%s", hint);
}

void fsdp_tell(const FsdpGroup *g, FsdpNote note) {
  note.group = g->name ? g->name : "";
  if (g->unit->watch) g->unit->watch(g->unit->watch_arg, &note);
}

static void tell(const FsdpGroup *g, FsdpEvent event) { fsdp_tell(g, (FsdpNote){.event = event}); }

/* ---- the run ---------------------------------------------------------------------------------------------- */

static void run_unref(FsdpRun *run) {
  if (!run || --run->refs) return;
  tape_await_no_more(run->tape, &run->end);
  free(run->unit);
  free(run->order);
  free(run);
}

static Status check_names(FsdpUnit *const *units, int n) {
  for (int i = 1; i < n; i++)
    if (units[i]->run)
      return status_hint(fail(ERR_USAGE, "group '%s' has run forward by itself before the modules around it",
                              units[i]->groups && units[i]->groups->name ? units[i]->groups->name : "?"),
                         "run forward through the root first");
  return units[0]->nmodules == 1
             ? OK
             : fail(ERR_USAGE, "the root of fully sharded modules is one module, not a list of %d",
                    units[0]->nmodules);
}

/* Were p and some parameter of the unit one? */
static Status check_tied_to(const FsdpGroup *g, const FsdpParam *p, const FsdpUnit *u) {
  for (const FsdpGroup *h = u->groups; h; h = h->next)
    for (int i = 0; i < h->n; i++)
      if (p->original && p->original == h->param[i].original && p->original_at == h->param[i].original_at)
        return status_hint(fail(ERR_USAGE, "parameter '%s' of group '%s' is also '%s' of group '%s'", p->name,
                                g->name, h->param[i].name, h->name),
                           "shard the modules that share it as one list");
  return OK;
}

/* The values of one parameter are in one group. */
static Status check_tied(FsdpUnit *const *units, int n) {
  for (int i = 0; i < n; i++)
    for (const FsdpGroup *g = units[i]->groups; g; g = g->next)
      for (int p = 0; p < g->n; p++)
        for (int k = 0; k < i; k++) TRY(check_tied_to(g, &g->param[p], units[k]));
  return OK;
}

static Status name_groups(FsdpUnit *const *units, char *const *names, int n) {
  for (int i = 0; i < n; i++)
    for (FsdpGroup *g = units[i]->groups; g; g = g->next) {
      free(g->name);
      TRY_NEW(g->name, strdup(i ? names[i] : "<root>"));
    }
  return OK;
}

Status fsdp_start_run(FsdpUnit *u, FsdpUnit *const *units, char *const *names, int n) {
  FsdpRun *run;
  TRY(check_names(units, n));
  TRY(name_groups(units, names, n));
  TRY(check_tied(units, n));
  for (FsdpGroup *g = u->groups; g && u->auto_reshard; g = g->next) g->reshard = RESHARD_NEVER;
  for (int i = 0; i < n; i++)
    for (FsdpGroup *g = units[i]->groups; g; g = g->next) {
      fsdp_forget_originals(g);
      if (g->state == FSDP_SHARDED) TRY(fsdp_group_init(g));
    }
  TRY_NEW(run, calloc(1, sizeof *run));
  *run = (FsdpRun){.nunits = n, .is_last_backward = u->is_last_backward, .most_reducing = 1, .refs = 1};
  run->unit = malloc((size_t)n * sizeof *run->unit);
  if (!run->unit) {
    free(run);
    return fail_oom();
  }
  run->tape = u->tape(u->ctx);
  run->end = (TapeEnd){.fn = fsdp_told_end, .arg = run};
  tape_await(run->tape, &run->end);
  for (int i = 0; i < n; i++) {
    run->unit[i] = units[i];
    units[i]->run = run;
    run->refs++;
    if (units[i]->most_reducing > run->most_reducing) run->most_reducing = units[i]->most_reducing;
  }
  run_unref(run);
  return OK;
}

/* ---- records ------------------------------------------------------------------------------------------------ */

FsdpUnit *fsdp_unit_ref(FsdpUnit *u) {
  atomic_fetch_add(&u->refs, 1);
  return u;
}

void fsdp_unit_unref(FsdpUnit *u) {
  if (!u || atomic_fetch_sub(&u->refs, 1) > 1) return;
  fsdp_unit_close(u);
  for (FsdpGroup *g = u->groups, *next; g; g = next) {
    next = g->next;
    fsdp_group_free(g);
  }
  free(u->to_run);
  free(u);
}

static void drop_prefetch(FsdpUnit ***list, int *n) {
  for (int i = 0; i < *n; i++) fsdp_unit_unref((*list)[i]);
  free(*list);
  *list = NULL;
  *n = 0;
}

static void forget_run(FsdpUnit *u) {
  FsdpRun *run = u->run;
  if (!run) return;
  while (run->reducing) {
    FsdpReduce *r = run->reducing;
    run->reducing = r->next;
    run->nreducing--;
    status_free(fsdp_reduce_free(r));
  }
  for (int i = 0; i < run->nunits; i++)
    if (run->unit[i] == u) run->unit[i] = run->unit[--run->nunits];
  run->norder = 0;
  if (run->forward_root == u) run->forward_root = NULL;
  u->run = NULL;
  run_unref(run);
}

void fsdp_unit_close(FsdpUnit *u) {
  if (!u->ctx) return;
  for (FsdpGroup *g = u->groups; g; g = g->next) {
    status_free(fsdp_drop_gather(g));
    fsdp_drop_gradients(g);
  }
  forget_run(u);
  drop_prefetch(&u->forward_prefetch, &u->nforward);
  drop_prefetch(&u->backward_prefetch, &u->nbackward);
  *u->link = u->next;
  if (u->next) u->next->link = u->link;
  u->ctx = NULL;
  for (FsdpGroup *g = u->groups; g; g = g->next) g->ctx = NULL;
}

/* ---- casts -------------------------------------------------------------------------------------------------- */

static Status cast_all(FsdpUnit *u, Dtype dtype, Scope *scope, Tensor **t, int n) {
  Arena arena = {0};
  Call c = {.ctx = u->ctx, .scope = scope, .arena = &arena, .level = LEVEL_TAPE};
  Status s = OK;
  for (int i = 0; i < n && dtype != DT_NONE && !s; i++)
    if (t[i] && dtype_is_float(t[i]->dtype) && t[i]->dtype != dtype)
      s = OP(&c, "aten.to.dtype", &t[i], val_tensor(t[i]), ((Value){.kind = VAL_DTYPE, .dtype = dtype}));
  arena_free(&arena);
  return s;
}

static Status cast_inputs(FsdpUnit *u, Scope *scope, Tensor **t, int n) {
  return u->precision.keep_inputs ? OK : cast_all(u, u->precision.param, scope, t, n);
}

/* ---- forward
 * ------------------------------------------------------------------------------------------------------
 */

/* A group is gathered ahead, for a state that it is not in yet. */
static Status prefetch(FsdpGroup *g, FsdpTraining as) {
  FsdpTraining now = g->training;
  g->training = as;
  Status s = fsdp_unshard(g);
  g->training = now;
  return s;
}

static Status pre_forward(FsdpGroup *g, Scope *scope, Tensor **inputs, int n) {
  bool entering = g->training != FSDP_FORWARD;
  tell(g, FSDP_ON_PRE_FORWARD);
  g->training = FSDP_FORWARD;
  TRY(fsdp_unshard_now(g));
  if (!entering) return OK;
  TRY(fsdp_mark_inputs(g, scope, inputs, n));
  return fsdp_renew_leaves(g); /* I3 */
}

/* A forward inside a backward (recomputation): what is marked already is not marked again. */
static Status recompute(FsdpUnit *u, Scope *scope, Tensor **inputs, int n) {
  for (FsdpGroup *g = u->groups; g; g = g->next) {
    TRY(fsdp_unshard_now(g));
    TRY(fsdp_renew_leaves(g));
  }
  return cast_inputs(u, scope, inputs, n);
}

Status fsdp_before_forward(FsdpUnit *u, int i, Scope *scope, Tensor **inputs, int n) {
  /* gradients by some inputs, which add to no leaves, tell nobody of their end */
  if (u->run->end_expected && !u->run->tape->under_way) TRY(fsdp_end_of_backward(u->run));
  if (u->training == FSDP_PRE_BACKWARD) return recompute(u, scope, inputs, n);
  bool first = u->training != FSDP_FORWARD;
  if (!first && u->nmodules == 1 && u->groups)
    return fsdp_fail(u->groups, "is called while a forward of it is under way",
                     "call reset_iter_state after a forward or backward that has failed");
  u->training = FSDP_FORWARD;
  if (first && !u->run->forward_root) u->run->forward_root = u;
  if (u->nmodules > 1 && !u->nto_run) {
    for (int k = 0; k < u->nmodules; k++) u->to_run[k] = true;
    u->nto_run = u->nmodules;
  }
  (void)i;
  TRY(cast_inputs(u, scope, inputs, n));
  for (FsdpGroup *g = u->groups; g; g = g->next) TRY(pre_forward(g, scope, inputs, n));
  for (int k = 0; first && k < u->nforward; k++)
    for (FsdpGroup *g = u->forward_prefetch[k]->groups; g; g = g->next) TRY(prefetch(g, FSDP_FORWARD));
  return OK;
}

static Status post_forward(FsdpGroup *g) {
  FsdpRun *run = g->unit->run;
  tell(g, FSDP_ON_POST_FORWARD);
  if (g->training != FSDP_FORWARD)
    return fsdp_fail(g, "has ended a forward that it has not begun", "call reset_iter_state after a failure");
  TRY(fsdp_reshard(g));
  TRY_ROOM(run->order, run->norder, run->order_cap);
  TRY_ROOM(g->order, g->norder, g->order_cap);
  g->order[g->norder++] = run->norder;
  run->order[run->norder++] = g;
  g->training = FSDP_IDLE;
  return OK;
}

static Status complete(FsdpUnit *u, Scope *scope, Tensor **outputs, int n) {
  for (FsdpGroup *g = u->groups; g; g = g->next) TRY(post_forward(g));
  TRY(fsdp_mark_outputs(u, outputs, n));
  u->training = FSDP_IDLE;
  (void)scope;
  return OK;
}

/* Lists of which not every module has run end with the forward of the root, innermost first. */
static Status complete_others(FsdpUnit *root, Scope *scope, Tensor **outputs, int n) {
  for (int i = root->run->nunits - 1; i >= 0; i--) {
    FsdpUnit *u = root->run->unit[i];
    if (u == root || !u->nto_run) continue;
    TRY(complete(u, scope, outputs, n));
    u->nto_run = 0;
    TRY(cast_all(u, u->precision.output, scope, outputs, n));
  }
  return OK;
}

Status fsdp_after_forward(FsdpUnit *u, int i, Scope *scope, Tensor **outputs, int n) {
  if (u->training == FSDP_PRE_BACKWARD) return cast_all(u, u->precision.output, scope, outputs, n);
  if (u->nmodules > 1) {
    bool last = u->to_run[i] && u->nto_run == 1;
    if (u->to_run[i]) u->nto_run--;
    u->to_run[i] = false;
    if (!last) return cast_all(u, u->precision.output, scope, outputs, n);
  }
  TRY(complete(u, scope, outputs, n));
  if (u->run->forward_root == u) {
    TRY(complete_others(u, scope, outputs, n));
    u->run->forward_root = NULL;
  }
  return cast_all(u, u->precision.output, scope, outputs, n);
}

/* ---- backward
 * ----------------------------------------------------------------------------------------------------- */

/* The group that went forward before this one is needed next. */
static Status prefetch_before(FsdpGroup *g) {
  FsdpRun *run = g->unit->run;
  if (!g->norder) return OK;
  int at = g->order[--g->norder];
  if (g->unit->ngroups == 1) return at > 0 ? prefetch(run->order[at - 1], FSDP_PRE_BACKWARD) : OK;
  if (g->unit->groups->next != g) return OK; /* of several groups of a unit, the last but one in the backward */
  const FsdpUnit *target = NULL;
  for (int i = at - 1; i >= 0; i--) {
    FsdpGroup *before = run->order[i];
    if (before->unit == g->unit) continue;
    if (!target) target = before->unit;
    if (before->unit != target) break;
    TRY(prefetch(before, FSDP_PRE_BACKWARD));
  }
  return OK;
}

static Status pre_backward(FsdpGroup *g, bool prefetches) {
  if (g->training == FSDP_PRE_BACKWARD) return OK;
  if (g->training == FSDP_FORWARD && g->unit->nmodules == 1)
    return fsdp_fail(g, "goes backward inside its own forward",
                     "call reset_iter_state after a forward that has failed");
  tell(g, FSDP_ON_PRE_BACKWARD);
  g->training = FSDP_PRE_BACKWARD;
  TRY(fsdp_unshard_now(g));
  return prefetches ? prefetch_before(g) : OK;
}

/* Groups of a unit stand in the order of their forward; some things are done in the reverse of it. */
static Status each_reversed(FsdpGroup *g, Status (*fn)(FsdpGroup *g)) {
  if (!g) return OK;
  TRY(each_reversed(g->next, fn));
  return fn(g);
}

static Status prefetch_backward(FsdpGroup *g) { return prefetch(g, FSDP_PRE_BACKWARD); }

Status fsdp_pre_backward(FsdpUnit *u) {
  u->training = FSDP_PRE_BACKWARD;
  fsdp_expect_end(u);
  for (FsdpGroup *g = u->groups; g; g = g->next) TRY(pre_backward(g, !u->nbackward));
  for (int i = 0; i < u->nbackward; i++) TRY(each_reversed(u->backward_prefetch[i]->groups, prefetch_backward));
  return OK;
}

Status fsdp_post_backward(FsdpGroup *g) {
  tell(g, FSDP_ON_POST_BACKWARD);
  g->training = FSDP_POST_BACKWARD;
  if (g->reshard_after_backward) TRY(fsdp_reshard(g));
  if (!g->reduce_grads) return fsdp_accumulate(g);
  TRY(fsdp_finish_reduces(g->unit->run, g->unit->run->most_reducing - 1));
  return fsdp_start_reduce(g);
}

static Status end_group(FsdpGroup *g) {
  bool left = false; /* gradients of leaves that were made outside of a forward */
  for (int i = 0; i < g->n; i++) left |= g->param[i].grad != NULL;
  if (g->training != FSDP_POST_BACKWARD) TRY(fsdp_post_backward(g));
  else if (left && g->reduce_grads) TRY(fsdp_start_reduce(g));
  g->training = FSDP_IDLE;
  return OK;
}

Status fsdp_end_of_backward(FsdpRun *run) {
  run->end_expected = false;
  run->forward_root = NULL;
  for (int i = 0; i < run->nunits; i++) {
    FsdpUnit *u = run->unit[i];
    u->nto_run = 0;
    TRY(each_reversed(u->groups, end_group));
    u->training = FSDP_IDLE;
    for (FsdpGroup *g = u->groups; g && run->is_last_backward; g = g->next) {
      TRY(fsdp_drop_gather(g));
      g->norder = 0;
    }
  }
  if (run->is_last_backward) run->norder = 0;
  return fsdp_finish_reduces(run, 0);
}

/* ---- after a failure
 * ---------------------------------------------------------------------------------------------- */

Status fsdp_reset(FsdpUnit *root) {
  FsdpRun *run = root->run;
  Status first = OK;
  if (!run) return OK;
  if (run->unit[0] != root)
    return status_hint(fail(ERR_USAGE, "only the root of fully sharded modules can be reset"),
                       "call reset_iter_state on the module that runs forward first");
  while (run->reducing) {
    FsdpReduce *r = run->reducing;
    run->reducing = r->next;
    run->nreducing--;
    Status s = fsdp_reduce_free(r);
    if (!first) first = s;
    else status_free(s);
  }
  run->norder = 0;
  run->forward_root = NULL;
  run->end_expected = false;
  for (int i = 0; i < run->nunits && !first; i++) {
    FsdpUnit *u = run->unit[i];
    u->training = FSDP_IDLE;
    u->nto_run = 0;
    for (FsdpGroup *g = u->groups; g && !first; g = g->next) {
      first = fsdp_drop_gather(g);
      fsdp_drop_gradients(g);
      g->norder = 0;
      g->training = FSDP_IDLE;
      if (!first) first = fsdp_reshard(g);
    }
  }
  return first;
}
