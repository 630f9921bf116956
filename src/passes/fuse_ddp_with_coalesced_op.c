/* fuse_ddp_with_coalesced_op.c -- one all-reduce of a list of gradients in the place of many.
 *
 *   before:  per gradient  %d = div(%g, 2)  %r = all_reduce(%d)  %w = wait(%r)
 *   after:   %d0, %d1, ... = _foreach_div([%g0, %g1, ...], 2)
 *            %r0, %r1, ... = all_reduce_coalesced([%d0, %d1, ...])
 *            %w0 = wait(%r0)  %w1 = wait(%r1) ...
 *
 * before the last division of the bucket.  Which gradients go together: ddp_buckets.h.  Linear.
 */
#include "passes/fuse_ddp.h"

#include <string.h>

/* Results like the quotients of the bucket; their values go to `out`. */
static Status add_results(Fuse *f, const Bucket *b, Node *n, Arg *out) {
  int k = 0;
  for (int i = b->first; i >= 0; i = f->all->reduction[i].next) {
    const Val *quotient = f->order->node[f->all->reduction[i].div]->outs[0];
    Val *v;
    TRY(node_add_tensor(n, "getitem", quotient->dtype, quotient->ndim, quotient->size, &v));
    out[k++] = arg_val(v);
  }
  return OK;
}

static Status add_division(Fuse *f, const Bucket *b, Node *before, Arg *quotients) {
  const Reduction *first = &f->all->reduction[b->first], *last = &f->all->reduction[b->last];
  bool by_tensor = first->divisor.kind == ARG_VAL && first->divisor.val->type == TY_TENSOR;
  Arg *grads;
  Node *n;
  int k = 0;
  TRY_NEW(grads, arena_new_n(f->graph->arena, Arg, b->count));
  for (int i = b->first; i >= 0; i = f->all->reduction[i].next) grads[k++] = arg_val(f->all->reduction[i].grad);
  if (first->divisor.kind == ARG_UNSET) return memcpy(quotients, grads, (size_t)k * sizeof *grads), OK;
  const char *target = by_tensor ? "aten._foreach_div.Tensor" : "aten._foreach_div.Scalar";
  TRY(fuse_add(f, before, target, (Arg[]){arg_list(grads, k), first->divisor}, 2, f->order->node[last->div], &n));
  for (int i = b->first; i >= 0; i = f->all->reduction[i].next) fuse_takes(f, &f->all->reduction[i]);
  return add_results(f, b, n, quotients);
}

static Status build(Fuse *f, const Bucket *b, Node *last_div, Fused *out) {
  const Reduction *last = &f->all->reduction[b->last];
  const Node *comm = f->order->node[last->comm];
  Arg *quotients, *started;
  Node *n;
  int k = 0;
  TRY_NEW(quotients, arena_new_n(f->graph->arena, Arg, b->count));
  TRY_NEW(started, arena_new_n(f->graph->arena, Arg, b->count));
  TRY(add_division(f, b, last_div, quotients));
  Arg list = arg_list(quotients, b->count);
  TRY(fuse_add(f, last_div, "_c10d_functional.all_reduce_coalesced.default",
               (Arg[]){list, comm->args[1], comm->args[2]}, 3, comm, &n));
  TRY(add_results(f, b, n, started));
  for (int i = b->first; i >= 0; i = f->all->reduction[i].next, k++) {
    const Node *wait = f->order->node[f->all->reduction[i].wait];
    TRY(fuse_add(f, last_div, wait->target, &started[k], 1, wait, &n));
    const Val *v = started[k].val;
    TRY(node_add_tensor(n, "wait_tensor_default", v->dtype, v->ndim, v->size, &out->results[k]));
  }
  out->last = out->reduced = n;
  return OK;
}

Status pass_fuse_ddp_with_coalesced_op(Exported *e, const PassArgs *args) {
  return fuse_ddp(e, args, "fuse_ddp_with_coalesced_op", true, build);
}
