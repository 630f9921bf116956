/* promote.h -- result dtype, size and layout of ops that combine operands.
 *
 * Promotion is torch.result_type: tensors with dimensions decide first, then 0-d tensors,
 * then numbers; a lower tier counts only if its category (bool < int < float < complex)
 * is higher.  Floats as numbers are f32, the default dtype.
 *
 * Sets of arguments are bit masks: bit i stands for argument i of the call.
 */
#ifndef TESS_OPS_PROMOTE_H
#define TESS_OPS_PROMOTE_H

#include "ops/op.h"

/* The common dtype of arguments of a call that are tensors or numbers; None is left out.  Fails
 * where there is no such dtype here (complex128, or data dtypes). */
Status promote_args(const Call *c, unsigned args, Dtype *out);
/* The dtype that holds both; fails where there is none here: f64 and c64 would be complex128. */
Status promote_with(const Call *c, Dtype a, Dtype b, Dtype *out);
/* bool and integers become f32, the rest stays. */
static inline Dtype promote_to_float(Dtype d) { return dtype_is_integral(d) ? DT_F32 : d; }

/* The size all tensors among the arguments broadcast to. */
Status broadcast_args(const Call *c, unsigned args, int *ndim, int64_t *size);
/* Appends a fresh output of that size.  Its dimension order follows the operands', as in
 * ATen (channels_last in, channels_last out). */
Status out_broadcast(Call *c, Dtype d, unsigned args);

#endif
