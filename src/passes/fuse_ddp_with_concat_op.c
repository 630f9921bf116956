/* fuse_ddp_with_concat_op.c -- one all-reduce of joined gradients in the place of many.
 *
 *   before:  per gradient  %d = div(%g, 2)  %r = all_reduce(%d)  %w = wait(%r)
 *   after:   %f0 = flatten(%g0)  %f1 = flatten(%g1) ...
 *            %c = cat([%f0, %f1, ...])  %d = div(%c, 2)  %r = all_reduce(%d)  %w = wait(%r)
 *            %p0, %p1, ... = split(%w, [numel0, numel1, ...])  %w0 = reshape(%p0, size0) ...
 *
 * behind the last division of the bucket; the reshapes in reverse, as PyTorch has them.
 * Which gradients go together: ddp_buckets.h.  Linear.
 */
#include "passes/fuse_ddp.h"

static Status add_flat(Fuse *f, const Bucket *b, Node *before, Arg *flat, int64_t *total) {
  int k = 0;
  *total = 0;
  for (int i = b->first; i >= 0; i = f->all->reduction[i].next) {
    const Reduction *r = &f->all->reduction[i];
    Arg grad = arg_val(r->grad);
    const Sym *length;
    Node *n;
    Val *v;
    TRY(fuse_add(f, before, "aten.flatten.using_ints", &grad, 1, f->order->node[r->div], &n));
    fuse_takes(f, r);
    TRY(fuse_length(f, r->numel, &length));
    TRY(node_add_tensor(n, "flatten_using_ints", r->grad->dtype, 1, &length, &v));
    flat[k++] = arg_val(v);
    *total += r->numel;
  }
  return OK;
}

/* cat, div, all_reduce, wait: one after the other on the whole bucket. */
static Status add_chain(Fuse *f, const Bucket *b, Node *before, Arg *flat, int64_t total, Node **wait) {
  const Reduction *first = &f->all->reduction[b->first], *last = &f->all->reduction[b->last];
  const Node *comm = f->order->node[last->comm], *old_wait = f->order->node[last->wait],
             *div = f->order->node[last->div];
  Arg parts = arg_list(flat, b->count);
  Dtype dtype = div->outs[0]->dtype;
  const Sym *length;
  Node *n;
  Val *v;
  TRY(fuse_length(f, total, &length));
  TRY(fuse_add(f, before, "aten.cat.default", &parts, 1, div, &n));
  TRY(node_add_tensor(n, "cat", first->grad->dtype, 1, &length, &v));
  if (first->divisor.kind != ARG_UNSET) {
    TRY(fuse_add(f, before, "aten.div.Tensor", (Arg[]){arg_val(v), first->divisor}, 2, div, &n));
    TRY(node_add_tensor(n, "div_tensor", dtype, 1, &length, &v));
  }
  TRY(fuse_add(f, before, comm->target, (Arg[]){arg_val(v), comm->args[1], comm->args[2]}, 3, comm, &n));
  TRY(node_add_tensor(n, "all_reduce_default", dtype, 1, &length, &v));
  Arg started = arg_val(v);
  TRY(fuse_add(f, before, old_wait->target, &started, 1, old_wait, wait));
  return node_add_tensor(*wait, "wait_tensor_default", dtype, 1, &length, &v);
}

static Status add_split(Fuse *f, const Bucket *b, Node *before, const Node *wait, Node **out) {
  Dtype dtype = wait->outs[0]->dtype;
  Arg *lengths;
  int k = 0;
  Val *v;
  TRY_NEW(lengths, arena_new_n(f->graph->arena, Arg, b->count));
  for (int i = b->first; i >= 0; i = f->all->reduction[i].next) lengths[k++] = arg_int(f->all->reduction[i].numel);
  TRY(fuse_add(f, before, "aten.split.sizes", (Arg[]){arg_val(wait->outs[0]), arg_list(lengths, b->count)}, 2, wait,
               out));
  for (int i = b->first; i >= 0; i = f->all->reduction[i].next) {
    const Sym *length;
    TRY(fuse_length(f, f->all->reduction[i].numel, &length));
    TRY(node_add_tensor(*out, "getitem", dtype, 1, &length, &v));
  }
  return OK;
}

/* The reshape of each piece stands before those of the pieces before it. */
static Status add_reshapes(Fuse *f, const Bucket *b, Node *before, const Node *split, Fused *out) {
  int k = 0;
  for (int i = b->first; i >= 0; i = f->all->reduction[i].next, k++) {
    const Reduction *r = &f->all->reduction[i];
    const Val *quotient = f->order->node[r->div]->outs[0];
    Arg *size;
    Node *n;
    TRY_NEW(size, arena_new_n(f->graph->arena, Arg, quotient->ndim + 1));
    for (int d = 0; d < quotient->ndim; d++) size[d] = arg_int(quotient->size[d]->value);
    TRY(fuse_add(f, before, "aten.reshape.default",
                 (Arg[]){arg_val(split->outs[k]), arg_list(size, quotient->ndim)}, 2, f->order->node[r->wait], &n));
    TRY(node_add_tensor(n, "reshape", quotient->dtype, quotient->ndim, quotient->size, &out->results[k]));
    before = n;
    if (!k) out->last = n;
  }
  return OK;
}

static Status build(Fuse *f, const Bucket *b, Node *last_div, Fused *out) {
  Node *before = last_div->next, *wait, *split;
  int64_t total;
  Arg *flat;
  TRY_NEW(flat, arena_new_n(f->graph->arena, Arg, b->count));
  TRY(add_flat(f, b, before, flat, &total));
  TRY(add_chain(f, b, before, flat, total, &wait));
  TRY(add_split(f, b, before, wait, &split));
  out->reduced = wait;
  return add_reshapes(f, b, before, split, out);
}

Status pass_fuse_ddp_with_concat_op(Exported *e, const PassArgs *args) {
  return fuse_ddp(e, args, "fuse_ddp_with_concat_op", false, build);
}
