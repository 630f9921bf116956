/* dense.c -- see dense.h. */
#include "ops/aten/dense.h"

#include "kernels/copy.h"

Status dense_view_as(Kern *k, const Tensor *t, Dtype d, Dense *out) {
  out->view = (View){0};
  if (!t) return OK;
  out->view = tensor_view(t);
  contiguous_strides(t->ndim, t->size, out->stride);
  out->view.stride = out->stride;
  if (tensor_is_contiguous(t) && t->dtype == d) return OK;
  if (t->dtype != d && !(dtype_is_compute(t->dtype) && dtype_is_compute(d)))
    return fail(ERR_FAIL, "%s cannot be converted to %s", dtype_name(t->dtype), dtype_name(d));
  out->view.dtype = d;
  TRY_NEW(out->view.data, kern_scratch(k, (size_t)tensor_numel(t) * dtype_size(d)));
  kernel_copy(k, out->view, tensor_view(t));
  return OK;
}

Status dense_view(Kern *k, const Tensor *t, Dense *out) { return dense_view_as(k, t, t ? t->dtype : DT_F32, out); }
