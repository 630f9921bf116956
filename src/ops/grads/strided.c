/* strided.c -- gradients of views that name places in a storage by strides.
 *
 * The cotangent is added up in a storage of its own, in which the input's geometry is then read: places that the
 * view shows several times get the sum, and an input that shows a place several times an equal share each. */
#include "ops/vjp.h"

#include <string.h>

enum { SIZE = 1, STRIDE, OFFSET }; /* arguments of as_strided, behind the tensors */

/* A tensor without elements that lies so. */
static Tensor lying(int ndim, const int64_t *size, const int64_t *stride, int64_t offset) {
  Tensor t = {.ndim = ndim, .offset = offset};
  for (int d = 0; d < ndim; d++) t.size[d] = size[d], t.stride[d] = stride[d];
  return t;
}

static Tensor lying_as_called(const Vjp *v, int ntensors, const Tensor *self) {
  Ints size = in_ints(v->forward, ntensors - 1 + SIZE), stride = in_ints(v->forward, ntensors - 1 + STRIDE);
  int at = ntensors - 1 + OFFSET;
  bool has = at < v->forward->op->schema.nparams && !in_none(v->forward, at);
  return lying(size.n, size.v, stride.v, has ? in_int(v->forward, at) : self->offset);
}

static Tensor *as_strided(Vjp *v, Tensor *t, const Tensor *like) {
  return F_OP(&v->f, "aten.as_strided.default", F_T(t), val_ints(like->size, like->ndim),
              val_ints(like->stride, like->ndim), val_int(like->offset));
}

/* Adds what lies as `like` does, elements of `from`, to n zeros. */
static Tensor *add_up(Vjp *v, int64_t n, const Tensor *like, Tensor *from) {
  Formula *f = &v->f;
  int64_t all = tensor_numel(like);
  Tensor *zeros = vjp_zeros(v, from->dtype, 1, &n);
  if (!tensor_overlaps_itself(like))
    return F_OP(f, "aten.as_strided_scatter.default", F_T(zeros), F_T(from), val_ints(like->size, like->ndim),
                val_ints(like->stride, like->ndim), val_int(like->offset));
  Tensor *ones = F_OP(f, "aten.new_ones.default", F_T(from), val_ints(&n, 1), val_dtype(DT_I64));
  Tensor *number = F_OP(f, "aten.cumsum.default", F_T(ones), val_int(0));
  Tensor *place = as_strided(v, F_OP(f, "aten.sub.Scalar", F_T(number), val_int(1)), like);
  return F_OP(f, "aten.index_add.default", F_T(zeros), val_int(0), F_T(f_view(f, place, &all, 1)),
              F_T(f_view(f, from, &all, 1)));
}

/* Dimensions along which the view shows the same places are summed first. */
static Tensor *sum_repeated(Vjp *v, Tensor *g, Tensor *like) {
  int64_t over[MAX_DIMS];
  int sums = 0, n = 0;
  for (int d = 0; d < like->ndim; d++) {
    if (like->stride[d] == 0 && like->size[d] != 1) {
      over[sums++] = d;
      continue;
    }
    like->size[n] = like->size[d], like->stride[n++] = like->stride[d];
  }
  like->ndim = n;
  return sums ? f_sum(&v->f, g, over, sums, false) : g;
}

static void vjp_as_strided(Vjp *v) {
  const Tensor *x = v->in[0];
  Tensor view = lying_as_called(v, 1, x), input = lying(x->ndim, x->size, x->stride, x->offset);
  Tensor *g = vjp_cotangent(v);
  if (tensor_numel(x) == 0 || tensor_numel(g) == 0) {
    vjp_give(v, 0, vjp_zeros_like(v, x));
    return;
  }
  int64_t first = view.offset < input.offset ? view.offset : input.offset;
  view.offset -= first, input.offset -= first;
  int64_t n = view.offset + tensor_extent(&view), m = input.offset + tensor_extent(&input);
  if (n < m) n = m;
  g = sum_repeated(v, g, &view);
  Tensor *storage = g ? add_up(v, n, &view, g) : NULL;
  if (storage && tensor_overlaps_itself(&input)) {
    Tensor *ones = F_OP(&v->f, "aten.new_ones.default", F_T(g), val_ints(x->size, x->ndim));
    Tensor *count = ones ? add_up(v, n, &input, ones) : NULL;
    storage = f_div(&v->f, storage, count);
  }
  vjp_give(v, 0, as_strided(v, storage, &input));
}

/* The places are those of a tensor that begins at the start of its storage. */
static void vjp_as_strided_scatter(Vjp *v) {
  const Tensor *self = v->in[0], *source = vjp_arg(v, 1);
  Tensor view = lying_as_called(v, 2, self);
  Tensor *g = F_OP(&v->f, "aten.clone.default", F_T(vjp_cotangent(v)), val_memory_format(MEMORY_CONTIGUOUS));
  view.offset -= self->offset;
  if (vjp_wants(v, 0)) {
    Tensor *zeros = vjp_zeros(v, self->dtype, source->ndim, source->size);
    vjp_give(v, 0,
             F_OP(&v->f, "aten.as_strided_scatter.default", F_T(g), F_T(zeros), vjp_value(v, 2), vjp_value(v, 3),
                  val_int(view.offset)));
  }
  if (vjp_wants(v, 1)) vjp_give(v, 1, as_strided(v, g, &view));
}

const GradDef grads_strided[] = {
    GRAD("as_strided.default as_strided_.default as_strided_copy.default", vjp_as_strided, NULL),
    GRAD("as_strided_scatter.default", vjp_as_strided_scatter, NULL),
    {0},
};
