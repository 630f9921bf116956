/* fused.c -- ops of our own, which passes put in the place of several of ATen's. */
#include "ops/aten/product.h"
#include "ops/geometry.h"
#include "ops/rule.h"

/* linear_act: act(input weight^T + bias) + residual, the residual with the result's size. */
static const Product row_linear = {.left = 0,
                                   .right = 1,
                                   .add = 2,
                                   .beta = NO_ARG,
                                   .alpha = NO_ARG,
                                   .transposed = true,
                                   .residual = 3,
                                   .out = DT_NONE};

static Status linear_act_infer(Call *c) {
  GemmAct act;
  TRY(product_act(c, in_str(c, 4), &act));
  TRY(product_infer(c, &row_linear));
  Dtype d = out_tensor(c, 0)->dtype;
  if (d != DT_F32 && d != DT_F16 && d != DT_BF16)
    return op_fail(c, "works on f32, f16 and bf16, not on %s", dtype_name(d));
  return OK;
}

static Status linear_act_run(Call *c) {
  GemmAct act;
  TRY(product_act(c, in_str(c, 4), &act));
  return product_run(c, &row_linear, act);
}

/* An activation needs the whole sum; a residual behind it is added by every rank that has it. */
static Status linear_act_place(Rules *r) {
  GemmAct act;
  TRY(product_act(r->call, in_str(r->call, 4), &act));
  return product_place(r, &row_linear, act == GEMM_ACT_NONE);
}

static double linear_act_flops(const Call *c) { return product_flops(c, &row_linear); }

/* align: its arguments, placed so that they can be combined element by element. */
static Status align_infer(Call *c) {
  for (int i = 0; i < in_count(c, 0); i++) TRY(out_alias(c, in_item(c, 0, i)));
  return OK;
}

static Status align_place(Rules *r) {
  int ndim = 0;
  Placement *p;
  int64_t size[MAX_DIMS];
  for (int i = 0; i < r->nin; i++) TRY(broadcast_size(r->call, &ndim, size, r->in[i]->ndim, r->in[i]->size));
  TRY_NEW(p, arena_new_n(r->arena, Placement, 2 * r->nin));
  r->whole_last = true;
  r->uneven = true;
  for (int d = 0; d < ndim; d++) {
    for (int i = 0; i < r->nin; i++) {
      const Tensor *t = r->in[i];
      int at = d - (ndim - t->ndim);
      p[i] = p[r->nin + i] = at >= 0 && t->size[at] == size[d] ? place_s(at) : place_r();
    }
    TRY(rule_axis(r, p));
  }
  return OK;
}

const OpDef ops_fused[] = {
    {.schema = "tess::linear_act(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str act) -> Tensor",
     .infer = linear_act_infer,
     .run = linear_act_run,
     .flops = linear_act_flops,
     .shard.place = linear_act_place},
    {.schema = "tess::align(Tensor[] tensors) -> Tensor[]", .infer = align_infer, .shard.place = align_place},
    {0}};
