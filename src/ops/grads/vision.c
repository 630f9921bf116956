/* vision.c -- gradients of torchvision's roi_align and deform_conv2d.  Regions have none. */
#include <string.h>

#include "ops/vjp.h"

/* roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned) */
static void vjp_roi_align(Vjp *v) {
  const Value *a = v->forward->arg;
  const int64_t *size = vjp_arg(v, 0)->size;
  if (!vjp_wants(v, 0)) return;
  vjp_give(v, 0,
           F_OP(&v->f, "torchvision._roi_align_backward.default", F_T(vjp_cotangent(v)), a[1], a[2], a[3], a[4],
                val_int(size[0]), val_int(size[1]), val_int(size[2]), val_int(size[3]), a[5], a[6]));
}

/* deform_conv2d(input, weight, offset, mask, bias, ...) */
static void vjp_deform(Vjp *v) {
  Value arg[MAX_PARAMS];
  Tensor *grad[5];
  int n = v->forward->op->schema.nparams;
  arg[0] = F_T(vjp_cotangent(v));
  memcpy(arg + 1, v->forward->arg, (size_t)n * sizeof *arg);
  formula_ops(&v->f, "torchvision._deform_conv2d_backward.default", grad, 5, arg, n + 1);
  for (int i = 0; i < 5; i++) vjp_give(v, i, grad[i]);
}

const GradDef grads_vision[] = {
    GRAD("torchvision.roi_align.default", vjp_roi_align, "rois"),
    GRAD("torchvision.deform_conv2d.default", vjp_deform, "input weight offset mask bias"),
    {0},
};
