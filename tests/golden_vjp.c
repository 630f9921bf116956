/* golden_vjp.c -- see golden_vjp.h. */
#include "golden_vjp.h"

#include <stdio.h>
#include <string.h>

bool golden_has_gradients(yyjson_val *json) { return yyjson_arr_size(yyjson_obj_get(json, "grad")) > 0; }

/* A leaf of x, and what the call gets for it: a second handle, or of ops that write in place a clone, because
 * leaves are not written to. */
static Status make_leaf(GoldenCase *c, Tape *tape, Tensor *x, Tensor **leaf, Tensor **arg) {
  Call clone = {.ctx = tape->ctx, .op = op_find(c->op), .scope = &c->scope, .arena = &c->arena};
  TRY(tape_require(tape, &c->scope, x, leaf));
  if (clone.op->schema.mutates) return OP(&clone, "aten.clone.default", arg, val_tensor(*leaf));
  return tensor_handle(&c->scope, *leaf, arg);
}

Status golden_require(GoldenCase *c, Tape *tape, GoldenEachFn *each, void *arg, Tensor **leaf) {
  yyjson_val *grad = yyjson_obj_get(c->json, "grad");
  int at = 0;
  for (int i = 0; i < c->nargs; i++) {
    Value *v = &c->args[i].value;
    int n = v->kind == VAL_TENSORS ? v->n : v->kind == VAL_TENSOR;
    Tensor **list;
    TRY_NEW(list, arena_new_n(&c->arena, Tensor *, n + 1));
    for (int j = 0; j < n; j++) {
      list[j] = v->kind == VAL_TENSORS ? v->tensors[j] : v->tensor;
      if (!list[j]) continue;
      bool wanted = !yyjson_is_null(yyjson_arr_get(grad, (size_t)at));
      TRY(each(arg, at, &wanted, &list[j]));
      leaf[at] = NULL;
      if (wanted) TRY(make_leaf(c, tape, list[j], &leaf[at], &list[j]));
      at++;
    }
    if (v->kind == VAL_TENSORS) v->tensors = list;
    else if (n) v->tensor = list[0];
  }
  return OK;
}

static Status place_one(void *arg, int at, bool *wanted, Tensor **t) {
  const GoldenPlace *place = arg;
  (void)at, (void)wanted;
  return place ? place->place(place->arg, t) : OK;
}

static Status differentiate(GoldenCase *c, Ctx *ctx, Tape *tape, const GoldenPlace *place, Tensor **gradient) {
  Value bound[MAX_PARAMS];
  Tensor *leaf[GOLDEN_TENSORS] = {0}, *output[GOLDEN_TENSORS], *cotangent[GOLDEN_TENSORS], *input[GOLDEN_TENSORS],
         *found[GOLDEN_TENSORS];
  int noutputs = 0, ninputs = 0, at = 0;
  TRY(golden_require(c, tape, place_one, (void *)place, leaf));
  Call call = {.ctx = ctx, .op = op_find(c->op), .arg = bound, .scope = &c->scope, .arena = &c->arena};
  TRY(op_bind(&c->arena, call.op, c->args, c->nargs, bound));
  TRY(op_dispatch(&call));
  yyjson_val *cot = yyjson_obj_get(c->json, "cot");
  for (TensorWalk w = call_outputs(&call); tensor_next(&w); at++) {
    yyjson_val *one = yyjson_arr_get(cot, (size_t)at);
    if (!one || yyjson_is_null(one)) continue;
    output[noutputs] = w.tensor;
    TRY(golden_tensor(c, one, &cotangent[noutputs]));
    if (place) TRY(place->place(place->arg, &cotangent[noutputs]));
    if (!w.tensor->grad) continue; /* its gradients are zero, or there are none */
    noutputs++;
  }
  for (int i = 0; i < c->tensors; i++)
    if (leaf[i]) input[ninputs++] = leaf[i];
  TRY(tape_gradients(tape, output, cotangent, noutputs, input, ninputs, &(Backward){.allow_unused = true},
                     &c->scope, found));
  for (int i = c->tensors - 1; i >= 0; i--) gradient[i] = leaf[i] ? found[--ninputs] : NULL;
  return OK;
}

Status golden_gradients(GoldenCase *c, Ctx *ctx, const GoldenPlace *place, Tensor **gradient) {
  Tape tape;
  tape_begin(&tape, ctx);
  Status s = differentiate(c, ctx, &tape, place, gradient);
  tape_end(&tape);
  return s;
}

Status golden_compare_gradients(GoldenCase *c, Tensor *const *gradient) {
  yyjson_val *grad = yyjson_obj_get(c->json, "grad");
  for (int i = 0; i < c->tensors; i++) {
    yyjson_val *one = yyjson_arr_get(grad, (size_t)i);
    Tensor *want, *got = gradient[i];
    char what[48], a[128], b[128];
    snprintf(what, sizeof what, "gradient of tensor argument %d", i);
    if (!one || yyjson_is_null(one)) continue;
    TRY(golden_tensor(c, one, &want));
    if (!got) { /* none stands for zeros */
      TRY(tensor_new(&c->scope, want->dtype, want->ndim, want->size, &got));
      memset(got->storage->data, 0, got->storage->size);
    }
    if (got->dtype != want->dtype || !tensor_same_size(got, want))
      return fail(ERR_DIFF, "%s is %s, should be %s", what, tensor_describe(got, a, sizeof a),
                  tensor_describe(want, b, sizeof b));
    Tolerance tol = golden_gradient_tolerance(c, want->dtype);
    TRY(golden_compare_values(got, want, tol, what));
  }
  return OK;
}
