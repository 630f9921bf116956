/* reduce.c -- gradients of a group become shards; see fsdp.h.
 *
 * The gradients that the backward gave are copied (and cast) into one buffer, member by member as flat_group.h has
 * it, reduced over the shard group, then over the replicas; the result is the flat shard of the gradients, and
 * views of it are given to the parameters.  A reduction is started here and finished by a later group, or at the
 * end of the backward.
 */
#include <stdlib.h>
#include <string.h>

#include "dist/dist.h"
#include "dist/dtensor.h"
#include "dist/run_sharded.h"
#include "fsdp/fsdp_inside.h"
#include "kernels/copy.h"

/* ---- gradients before they are reduced ----------------------------------------------------------------------- */

typedef struct {
  FsdpGroup *group;
  int param;
} Taker;

static void taker_free(void *arg) {
  Taker *t = arg;
  fsdp_unit_unref(t->group->unit);
  free(t);
}

/* p->grad += g */
static Status add_gradient(FsdpGroup *g, FsdpParam *p, Tensor *grad) {
  Scope scope = {0};
  Arena arena = {0};
  Call c = fsdp_call(g, &scope, &arena);
  Tensor *held;
  Status s = OK;
  if (p->grad && p->grad->dtype != grad->dtype)
    s = OP(&c, "aten.to.dtype", &grad, val_tensor(grad), ((Value){.kind = VAL_DTYPE, .dtype = p->grad->dtype}));
  if (!s && p->grad) s = OP(&c, "aten.add.Tensor", &grad, val_tensor(p->grad), val_tensor(grad));
  if (!s) s = tensor_hold(grad, &held);
  if (!s) {
    tensor_release(p->grad);
    p->grad = held;
  }
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

static Status take_gradient(void *arg, Ctx *ctx, Tensor *gradient, Scope *scope, Tensor **out) {
  Taker *t = arg;
  (void)ctx, (void)scope, (void)out;
  return t->group->ctx ? add_gradient(t->group, &t->group->param[t->param], gradient) : OK;
}

Status fsdp_take_gradient_of(FsdpGroup *g, int p, Tensor *t) {
  Tape *tape = g->unit->tape(g->ctx);
  Taker *taker;
  TRY(tape_set_required(tape, t, true));
  TRY_NEW(taker, malloc(sizeof *taker));
  *taker = (Taker){g, p};
  fsdp_unit_ref(g->unit);
  Status s = tape_take(tape, t, take_gradient, taker, taker_free);
  if (s) taker_free(taker);
  return s;
}

void fsdp_drop_gradients(FsdpGroup *g) {
  for (int i = 0; g->param && i < g->n; i++) {
    tensor_release(g->param[i].grad);
    g->param[i].grad = NULL;
  }
  if (g->partial) status_free(fsdp_reduce_free(g->partial));
  g->partial = NULL;
}

static Status to_dtype(FsdpGroup *g, Tensor **held, Dtype dtype) {
  if (!*held || (*held)->dtype == dtype) return OK;
  Scope scope = {0};
  Arena arena = {0};
  Call c = fsdp_call(g, &scope, &arena);
  Tensor *cast, *kept;
  Status s = OP(&c, "aten.to.dtype", &cast, val_tensor(*held), ((Value){.kind = VAL_DTYPE, .dtype = dtype}));
  if (!s) s = tensor_hold(cast, &kept);
  if (!s) {
    tensor_release(*held);
    *held = kept;
  }
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

Status fsdp_accumulate(FsdpGroup *g) {
  for (int i = 0; i < g->n; i++) TRY(to_dtype(g, &g->param[i].grad, g->param[i].reduced));
  return OK;
}

/* ---- into the buffer
 * ---------------------------------------------------------------------------------------------
 */

/* A gradient that came as other shards, or as sums, is brought to where the parameter lies. */
static Status settle(FsdpGroup *g, FsdpParam *p) {
  if (!p->grad || !p->whole || !p->grad->spec) return OK;
  if (placements_equal(p->grad->spec->place, p->whole->place, p->whole->mesh->naxes)) return OK;
  Scope scope = {0};
  Tensor *moved, *held;
  Status s = dtensor_redistribute(g->ctx, &scope, p->grad, p->whole->mesh, p->whole->place, DT_NONE, &moved);
  if (!s) s = tensor_hold(moved, &held);
  if (!s) {
    tensor_release(p->grad);
    p->grad = held;
  }
  scope_clear(&scope);
  return s;
}

static void zero(Kern *k, View v) {
  unsigned char nothing[16] = {0};
  kernel_fill(k, v, nothing);
}

/* Copies gradients into r's buffer, member by member; they are gone then. */
static Status copy_in(FsdpGroup *g, FsdpReduce *r, int64_t **counts) {
  int64_t(*stride)[MAX_DIMS];
  FlatScatter way;
  TRY_NEW(stride, arena_alloc(&r->arena, (size_t)(g->n + 1) * sizeof *stride));
  for (int i = 0; i < g->n; i++) {
    FsdpParam *p = &g->param[i];
    const Tensor *grad = p->grad && p->grad->spec ? p->grad->local : p->grad;
    if (grad) memcpy(stride[i], grad->stride, sizeof *stride);
    else contiguous_strides(p->ndim, p->size, stride[i]);
  }
  TRY(flat_scatter(&g->shards.flat, r->in, (const int64_t(*)[MAX_DIMS])stride, &r->arena, &way));
  TRY(storage_new((size_t)way.total * dtype_size(r->dtype), &r->input));
  for (int i = 0; i < way.from.n; i++) {
    FsdpParam *p = &g->param[way.param[i]];
    const Tensor *grad = p->grad && p->grad->spec ? p->grad->local : p->grad;
    View to = fsdp_box_view(r->input->data, r->dtype, &way.into.v[i]);
    if (grad) kernel_copy(&g->ctx->kern, to, fsdp_box_view(tensor_data(grad), grad->dtype, &way.from.v[i]));
    else zero(&g->ctx->kern, to);
  }
  for (int i = 0; i < g->n; i++) {
    if (!r->in[i]) continue;
    tensor_release(g->param[i].grad);
    g->param[i].grad = NULL;
  }
  r->count = way.counts[g->shards.flat.me];
  *counts = way.counts;
  return OK;
}

static Status flat_tensor(const FsdpReduce *r, Storage *s, int64_t n, Scope *scope, Tensor **out) {
  TRY(tensor_meta(scope, r->dtype, 1, &n, out));
  (*out)->storage = storage_ref(s);
  return OK;
}

/* The whole buffer *= or /= a number. */
static Status scale(FsdpGroup *g, const FsdpReduce *r, Storage *s, const char *op, double by) {
  if (by == 1) return OK;
  Scope scope = {0};
  Arena arena = {0};
  Call c = fsdp_call(g, &scope, &arena);
  Tensor *flat, *out;
  Status status = flat_tensor(r, s, (int64_t)(s->size / dtype_size(r->dtype)), &scope, &flat);
  if (!status) status = OP(&c, op, &out, val_tensor(flat), val_float(by));
  scope_clear(&scope);
  arena_free(&arena);
  return status;
}

/* ---- over the ranks
 * ------------------------------------------------------------------------------------------------
 */

static Status start(FsdpGroup *g, FsdpReduce *r, Comm *comm, const Coll *c, FsdpEvent event, int64_t bytes) {
  TRY(dist_log(g->ctx->dist, event == FSDP_ON_ALL_REDUCE ? STEP_ALL_REDUCE : STEP_REDUCE_SCATTER,
               1u << (event == FSDP_ON_ALL_REDUCE ? g->mesh.replicate : g->mesh.shard), bytes, g->name));
  fsdp_tell(g, (FsdpNote){.event = event,
                          .bytes = bytes,
                          .dtype = r->dtype,
                          .op = c->op,
                          .premultiplied = r->how.premultiplied && event == FSDP_ON_REDUCE_SCATTER,
                          .ranks = comm_members(comm),
                          .nranks = comm_size(comm)});
  const bool now = g->replicas && event == FSDP_ON_REDUCE_SCATTER; /* the replicas need the result */
  return now ? comm_run(comm, c) : comm_start(comm, c, &r->work);
}

static Status wait_work(FsdpReduce *r) {
  CommWork *work = r->work;
  r->work = NULL;
  return work ? comm_wait(work) : OK;
}

static Status scatter(FsdpGroup *g, FsdpReduce *r, const int64_t *counts) {
  if (!g->shards.comm) {
    r->output = storage_ref(r->input);
    return OK;
  }
  TRY(storage_new((size_t)r->count * dtype_size(r->dtype), &r->output));
  Coll c = {.kind = COLL_REDUCE_SCATTER,
            .dtype = r->dtype,
            .op = r->how.scatter,
            .send = r->input->data,
            .recv = r->output->data,
            .counts = counts,
            .why = g->name};
  return start(g, r, g->shards.comm, &c, FSDP_ON_REDUCE_SCATTER, (int64_t)r->input->size);
}

/* to += from */
static Status add_partial(FsdpGroup *g, FsdpReduce *to, const FsdpReduce *from) {
  if (to->dtype != from->dtype || memcmp(to->in, from->in, (size_t)g->n * sizeof *to->in))
    return fsdp_fail(g, "has partial gradients of other parameters, or in another dtype, from an earlier backward",
                     "all-reduce after every backward, or let unused parameters be reduced, too");
  Scope scope = {0};
  Arena arena = {0};
  Call c = fsdp_call(g, &scope, &arena);
  Tensor *a, *b, *out;
  Status s = flat_tensor(to, to->output, to->count, &scope, &a);
  if (!s) s = flat_tensor(from, from->output, from->count, &scope, &b);
  if (!s) s = OP(&c, "aten.add_.Tensor", &out, val_tensor(a), val_tensor(b));
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

/* Over the replicas, after the shard group; *kept: r is kept for a later backward instead. */
static Status reduce_replicas(FsdpGroup *g, FsdpReduce *r, bool *kept) {
  *kept = false;
  if (!g->replicas) return OK;
  TRY(wait_work(r));
  if (!g->all_reduce_grads) {
    *kept = true;
    if (g->partial) return add_partial(g, g->partial, r);
    g->partial = r;
    return OK;
  }
  if (g->partial) {
    TRY(add_partial(g, r, g->partial));
    FsdpReduce *before = g->partial;
    g->partial = NULL;
    TRY(fsdp_reduce_free(before));
  }
  Coll c = {.kind = COLL_ALL_REDUCE,
            .dtype = r->dtype,
            .op = r->how.all,
            .send = r->output->data,
            .recv = r->output->data,
            .count = r->count,
            .why = g->name};
  return start(g, r, g->replicas, &c, FSDP_ON_ALL_REDUCE, r->count * (int64_t)dtype_size(r->dtype));
}

Status fsdp_reduce_free(FsdpReduce *r) {
  Status s = wait_work(r);
  storage_unref(r->input);
  storage_unref(r->output);
  arena_free(&r->arena);
  free(r);
  return s;
}

static Status begin(FsdpGroup *g, FsdpReduce *r, bool *kept) {
  int64_t *counts;
  for (int i = 0; i < g->n; i++) TRY(settle(g, &g->param[i]));
  r->how = dp_reduction(g->mesh.shard < 0 ? 0 : dp_shard_size(&g->mesh),
                        g->mesh.replicate < 0 ? 0 : dp_replicate_size(&g->mesh), r->dtype, g->divide, g->force_sum);
  TRY(copy_in(g, r, &counts));
  TRY(scale(g, r, r->input, "aten.mul_.Scalar", r->how.before));
  TRY(scatter(g, r, counts));
  return reduce_replicas(g, r, kept);
}

Status fsdp_start_reduce(FsdpGroup *g) {
  FsdpReduce *r;
  bool some = false, kept = false;
  TRY_NEW(r, calloc(1, sizeof *r));
  r->group = g;
  r->in = arena_new_n(&r->arena, bool, g->n + 1);
  for (int i = 0; r->in && i < g->n; i++) {
    r->in[i] = g->param[i].grad || (g->reduce_unused && g->param[i].requires_grad);
    if (r->in[i]) r->dtype = g->param[i].reduced;
    some |= r->in[i];
  }
  Status s = !r->in ? fail_oom() : some ? begin(g, r, &kept) : OK;
  if (s || !some || (kept && g->partial != r)) {
    Status ended = fsdp_reduce_free(r);
    if (s) status_free(ended);
    return s ? s : ended;
  }
  if (kept) return OK;
  FsdpRun *run = g->unit->run;
  FsdpReduce **last = &run->reducing;
  while (*last) last = &(*last)->next;
  *last = r;
  run->nreducing++;
  return OK;
}

/* ---- to the parameters
 * ----------------------------------------------------------------------------------------------
 */

static Status give(FsdpGroup *g, FsdpParam *p, Tensor *flat, int64_t at, Scope *scope, Arena *arena) {
  Tensor *local, *grad, *before = tape_gradient_of(p->sharded), *out;
  TRY(tensor_meta(scope, p->dtype, p->spec->ndim, p->spec->local, &local));
  local->storage = storage_ref(flat->storage);
  local->offset = at;
  TRY(dtensor_wrap(scope, p->spec, local, &grad));
  Call c = fsdp_call(g, scope, arena);
  if (before && before->spec == p->spec)
    return OP(&c, "aten.add_.Tensor", &out, val_tensor(before), val_tensor(grad));
  return tape_set_gradient(g->unit->tape(g->ctx), p->sharded, grad);
}

static Status give_all(FsdpGroup *g, FsdpReduce *r, Scope *scope) {
  Tensor *flat;
  int64_t at = 0;
  TRY(flat_tensor(r, r->output, r->count, scope, &flat));
  if (g->all_reduce_hook) TRY(g->all_reduce_hook(g->all_reduce_arg, g->ctx, flat));
  TRY(scale(g, r, r->output, "aten.div_.Scalar", r->how.after));
  for (int i = 0; i < g->n; i++) {
    if (!r->in[i]) continue;
    Dtype dtype = g->param[i].dtype;
    Call c = fsdp_call(g, scope, &r->arena);
    if (flat->dtype != dtype)
      TRY(OP(&c, "aten.to.dtype", &flat, val_tensor(flat), ((Value){.kind = VAL_DTYPE, .dtype = dtype})));
    TRY(give(g, &g->param[i], flat, at, scope, &r->arena));
    at += flat_counts(&g->shards.flat, g->shards.flat.me)[i];
  }
  return OK;
}

static Status finish(FsdpReduce *r) {
  Scope scope = {0};
  Status s = wait_work(r);
  storage_unref(r->input);
  r->input = NULL;
  if (!s) s = give_all(r->group, r, &scope);
  scope_clear(&scope);
  Status ended = fsdp_reduce_free(r);
  if (s) status_free(ended);
  return s ? s : ended;
}

Status fsdp_finish_reduces(FsdpRun *run, int leave) {
  while (run->nreducing > leave) {
    FsdpReduce *r = run->reducing;
    run->reducing = r->next;
    run->nreducing--;
    TRY(finish(r));
  }
  return OK;
}
