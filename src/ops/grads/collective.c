/* collective.c -- gradients of collectives that programs call (torch.ops._c10d_functional).
 *
 * Every rank has a loss of its own, and what is minimised is their sum: a value that went to several ranks gets
 * the sum of what comes back from them.  A gradient is waited for where it is made. */
#include <string.h>
#include <strings.h>

#include "comm/groups.h"
#include "ops/vjp.h"

static Tensor *wait_for(Vjp *v, Tensor *t) { return F_OP(&v->f, "_c10d_functional.wait_tensor.default", F_T(t)); }

static void vjp_wait(Vjp *v) { vjp_give(v, 0, vjp_cotangent(v)); }

/* Sums and averages are their own gradients; extremes and products have none, as in PyTorch. */
static bool is_linear(Vjp *v, int arg) {
  const char *op = in_str(v->forward, arg);
  if (!strcasecmp(op, "sum") || !strcasecmp(op, "avg")) return true;
  if (!v->f.status) v->f.status = fail(ERR_FAIL, "the gradient of a reduction by '%s' is not known", op);
  return false;
}

/* One call for all operands: op(cotangents, arguments ...), each result waited for. */
static void give_all(Vjp *v, const char *op, const Value *rest, int nrest) {
  Value args[MAX_PARAMS];
  Tensor **all = arena_new_n(v->f.c->arena, Tensor *, v->nout + 1), **got;
  int n;
  if (!all && !v->f.status) v->f.status = fail_oom();
  for (int i = 0; i < v->nout && !v->f.status; i++) all[i] = vjp_cotangent_or_zeros(v, i);
  if (v->f.status) return;
  args[0] = val_tensors(all, v->nout);
  memcpy(args + 1, rest, (size_t)nrest * sizeof *rest);
  v->f.status = op_call_list(v->f.c, op, &got, &n, args, 1 + nrest);
  for (int i = 0; i < v->nin && !v->f.status; i++) vjp_give_item(v, 0, i, wait_for(v, got[i]));
}

static void vjp_all_reduce(Vjp *v) {
  if (!is_linear(v, 1)) return;
  vjp_give(v, 0,
           wait_for(v, F_OP(&v->f, "_c10d_functional.all_reduce.default", F_T(vjp_cotangent(v)), vjp_value(v, 1),
                            vjp_value(v, 2))));
}

static void vjp_all_reduce_coalesced(Vjp *v) {
  const Value rest[] = {vjp_value(v, 1), vjp_value(v, 2)};
  if (is_linear(v, 1)) give_all(v, "_c10d_functional.all_reduce_coalesced.default", rest, 2);
}

static void vjp_all_gather(Vjp *v) {
  vjp_give(v, 0,
           wait_for(v, F_OP(&v->f, "_c10d_functional.reduce_scatter_tensor.default", F_T(vjp_cotangent(v)),
                            val_str("sum"), vjp_value(v, 1), vjp_value(v, 2))));
}

static void vjp_all_gather_coalesced(Vjp *v) {
  const Value rest[] = {val_str("sum"), vjp_value(v, 1), vjp_value(v, 2)};
  give_all(v, "_c10d_functional.reduce_scatter_tensor_coalesced.default", rest, 3);
}

/* Of an average each rank's share is one part of the group's size. */
static double share(const Vjp *v) {
  return strcasecmp(in_str(v->forward, 1), "avg") ? 1 : 1 / (double)in_int(v->forward, 2);
}

static void vjp_reduce_scatter(Vjp *v) {
  if (!is_linear(v, 1)) return;
  Tensor *g = wait_for(v, F_OP(&v->f, "_c10d_functional.all_gather_into_tensor.default", F_T(vjp_cotangent(v)),
                               vjp_value(v, 2), vjp_value(v, 3)));
  vjp_give(v, 0, share(v) == 1 ? g : f_scale(&v->f, g, share(v)));
}

static void vjp_reduce_scatter_coalesced(Vjp *v) {
  const Value rest[] = {vjp_value(v, 2), vjp_value(v, 3)};
  if (!is_linear(v, 1)) return;
  give_all(v, "_c10d_functional.all_gather_into_tensor_coalesced.default", rest, 2);
  for (int i = 0; i < v->nin && share(v) != 1; i++)
    if (v->gradient[i]) v->gradient[i] = f_scale(&v->f, v->gradient[i], share(v));
}

/* What came goes back. */
static void vjp_all_to_all(Vjp *v) {
  vjp_give(v, 0,
           wait_for(v, F_OP(&v->f, "_c10d_functional.all_to_all_single.default", F_T(vjp_cotangent(v)),
                            vjp_value(v, 2), vjp_value(v, 1), vjp_value(v, 3))));
}

/* The rank that sent gets the sum, the others zero: of parts that are zero but for the sender's, a
 * reduce-scatter gives each rank its own. */
static void vjp_broadcast(Vjp *v) {
  const Tensor *x = v->in[0];
  Ctx *ctx = v->forward->ctx;
  Comm *comm;
  int64_t size[MAX_DIMS + 1], n = tensor_numel(x);
  if (!v->f.status && !ctx->groups)
    v->f.status = fail(ERR_USAGE, "there are no ranks to talk to, the size of the group is not known");
  if (!v->f.status) v->f.status = groups_find(ctx->groups, in_str(v->forward, 2), &comm);
  if (v->f.status) return;
  size[0] = comm_size(comm), size[1] = n;
  Tensor *part = F_OP(&v->f, "aten.select_backward.default", F_T(f_view(&v->f, vjp_cotangent(v), &n, 1)),
                      val_ints(size, 2), val_int(0), vjp_value(v, 1));
  part = wait_for(v, F_OP(&v->f, "_c10d_functional.reduce_scatter_tensor.default", F_T(part), val_str("sum"),
                          val_int(size[0]), vjp_value(v, 2)));
  vjp_give(v, 0, f_view(&v->f, part, x->size, x->ndim));
}

const GradDef grads_collective[] = {
    GRAD("_c10d_functional.wait_tensor.default _c10d_functional._wrap_tensor_autograd.default", vjp_wait, NULL),
    GRAD("_c10d_functional.all_reduce.default", vjp_all_reduce, NULL),
    GRAD("_c10d_functional.all_reduce_coalesced.default", vjp_all_reduce_coalesced, NULL),
    GRAD("_c10d_functional.all_gather_into_tensor.default "
         "_c10d_functional_autograd.all_gather_into_tensor.default",
         vjp_all_gather, NULL),
    GRAD("_c10d_functional.all_gather_into_tensor_coalesced.default", vjp_all_gather_coalesced, NULL),
    GRAD("_c10d_functional.reduce_scatter_tensor.default _c10d_functional_autograd.reduce_scatter_tensor.default",
         vjp_reduce_scatter, NULL),
    GRAD("_c10d_functional.reduce_scatter_tensor_coalesced.default", vjp_reduce_scatter_coalesced, NULL),
    GRAD("_c10d_functional.all_to_all_single.default _c10d_functional_autograd.all_to_all_single.default",
         vjp_all_to_all, NULL),
    GRAD("_c10d_functional.broadcast.default", vjp_broadcast, NULL),
    {0},
};
