/* view.c -- gradients of views and of their copies: the cotangent goes back to the places that the view shows.
 *
 * Most are another view of the cotangent; those that show a part (slice, select, diagonal, unfold, as_strided)
 * are zero elsewhere. */
#include "ops/vjp.h"

#include <string.h>

/* The same elements in the same order, or each for several: sizes say which.  vjp_give() sums and casts. */
static void vjp_pass(Vjp *v) { vjp_give(v, 0, vjp_cotangent(v)); }

/* In row-major order, with other sizes. */
static void vjp_reshape(Vjp *v) {
  const Tensor *x = v->in[0];
  Tensor *g = vjp_cotangent(v);
  vjp_give(v, 0, tensor_same_size(g, x) ? g : f_view(&v->f, g, x->size, x->ndim));
}

/* Lists: each result is the tensor of the same number, reshaped or broadcast. */
static void vjp_reshape_each(Vjp *v) {
  for (int i = 0; i < v->nin; i++) {
    const Tensor *x = v->in[i];
    Tensor *g = v->cotangent[i];
    if (!g || !vjp_wants_item(v, 0, i)) continue;
    vjp_give_item(v, 0, i, tensor_same_size(g, x) ? g : f_view(&v->f, g, x->size, x->ndim));
  }
}
static void vjp_pass_each(Vjp *v) {
  for (int i = 0; i < v->nin; i++) vjp_give_item(v, 0, i, v->cotangent[i]);
}

/* ---- dimensions in another order ------------------------------------------------------------------------ */

static void vjp_transpose(Vjp *v) {
  vjp_give(v, 0, F_OP(&v->f, "aten.transpose.int", F_T(vjp_cotangent(v)), vjp_value(v, 1), vjp_value(v, 2)));
}

static void vjp_transpose_last(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  vjp_give(v, 0, g->ndim < 2 ? g : F_OP(&v->f, "aten.transpose.int", F_T(g), val_int(-2), val_int(-1)));
}

static void vjp_reverse(Vjp *v) { vjp_give(v, 0, F_OP(&v->f, "aten.numpy_T.default", F_T(vjp_cotangent(v)))); }

static void vjp_permute(Vjp *v) {
  Ints dims = in_ints(v->forward, 1);
  int64_t back[MAX_DIMS];
  for (int d = 0; d < dims.n; d++) back[dims.v[d] < 0 ? dims.v[d] + dims.n : dims.v[d]] = d;
  vjp_give(v, 0, F_OP(&v->f, "aten.permute.default", F_T(vjp_cotangent(v)), val_ints(back, dims.n)));
}

static void vjp_movedim(Vjp *v) {
  const char *op = vjp_value(v, 1).kind == VAL_INT ? "aten.movedim.int" : "aten.movedim.intlist";
  vjp_give(v, 0, F_OP(&v->f, op, F_T(vjp_cotangent(v)), vjp_value(v, 2), vjp_value(v, 1)));
}

/* ---- parts -------------------------------------------------------------------------------------------- */

static Value size_of(const Tensor *x) { return val_ints(x->size, x->ndim); }

static void vjp_slice(Vjp *v) {
  Value start = vjp_value(v, 2), end = vjp_value(v, 3);
  if (start.kind == VAL_NONE) start = val_int(0);
  if (end.kind == VAL_NONE) end = val_int(INT64_MAX);
  vjp_give(v, 0,
           F_OP(&v->f, "aten.slice_backward.default", F_T(vjp_cotangent(v)), size_of(v->in[0]), vjp_value(v, 1),
                start, end, vjp_value(v, 4)));
}

static void vjp_narrow(Vjp *v) {
  const Tensor *x = v->in[0];
  int64_t dim = in_int(v->forward, 1), start = in_int(v->forward, 2);
  if (dim < 0) dim += x->ndim;
  if (start < 0) start += x->size[dim];
  vjp_give(v, 0,
           F_OP(&v->f, "aten.slice_backward.default", F_T(vjp_cotangent(v)), size_of(x), val_int(dim),
                val_int(start), val_int(start + in_int(v->forward, 3)), val_int(1)));
}

static void vjp_select(Vjp *v) {
  vjp_give(v, 0,
           F_OP(&v->f, "aten.select_backward.default", F_T(vjp_cotangent(v)), size_of(v->in[0]), vjp_value(v, 1),
                vjp_value(v, 2)));
}

static void vjp_diagonal(Vjp *v) {
  vjp_give(v, 0,
           F_OP(&v->f, "aten.diagonal_backward.default", F_T(vjp_cotangent(v)), size_of(v->in[0]), vjp_value(v, 1),
                vjp_value(v, 2), vjp_value(v, 3)));
}

static void vjp_unfold(Vjp *v) {
  vjp_give(v, 0,
           F_OP(&v->f, "aten.unfold_backward.default", F_T(vjp_cotangent(v)), size_of(v->in[0]), vjp_value(v, 1),
                vjp_value(v, 2), vjp_value(v, 3)));
}

/* The parts themselves: gradients of what puts a tensor in place of a part, or among zeros. */
static void vjp_slice_backward(Vjp *v) {
  vjp_give(v, 0,
           F_OP(&v->f, "aten.slice.Tensor", F_T(vjp_cotangent(v)), vjp_value(v, 2), vjp_value(v, 3),
                vjp_value(v, 4), vjp_value(v, 5)));
}
static void vjp_select_backward(Vjp *v) {
  vjp_give(v, 0, F_OP(&v->f, "aten.select.int", F_T(vjp_cotangent(v)), vjp_value(v, 2), vjp_value(v, 3)));
}
static void vjp_diagonal_backward(Vjp *v) {
  vjp_give(v, 0,
           F_OP(&v->f, "aten.diagonal.default", F_T(vjp_cotangent(v)), vjp_value(v, 2), vjp_value(v, 3),
                vjp_value(v, 4)));
}
static void vjp_unfold_backward(Vjp *v) {
  vjp_give(
      v, 0,
      F_OP(&v->f, "aten.unfold.default", F_T(vjp_cotangent(v)), vjp_value(v, 2), vjp_value(v, 3), vjp_value(v, 4)));
}

/* X_scatter(self, src, ...): src gets its part of the cotangent, self the rest. */
static void vjp_scatter(Vjp *v, const char *view, const char *scatter, int nargs) {
  Tensor *g = vjp_cotangent(v);
  Value part[MAX_PARAMS] = {F_T(g)}, rest[MAX_PARAMS] = {F_T(g)};
  for (int i = 0; i < nargs; i++) part[1 + i] = rest[2 + i] = vjp_value(v, 2 + i);
  if (vjp_wants(v, 0)) {
    rest[1] = F_T(vjp_zeros(v, g->dtype, vjp_arg(v, 1)->ndim, vjp_arg(v, 1)->size));
    vjp_give(v, 0, formula_op(&v->f, scatter, rest, 2 + nargs));
  }
  if (vjp_wants(v, 1)) vjp_give(v, 1, formula_op(&v->f, view, part, 1 + nargs));
}
static void vjp_slice_scatter(Vjp *v) { vjp_scatter(v, "aten.slice.Tensor", "aten.slice_scatter.default", 4); }
static void vjp_select_scatter(Vjp *v) { vjp_scatter(v, "aten.select.int", "aten.select_scatter.default", 2); }
static void vjp_diagonal_scatter(Vjp *v) {
  vjp_scatter(v, "aten.diagonal.default", "aten.diagonal_scatter.default", 3);
}
static void vjp_narrow_scatter(Vjp *v) { vjp_scatter(v, "aten.narrow.default", "tess.narrow_scatter.default", 3); }

/* ---- complex numbers seen as real ones, and the other way round ------------------------------------------- */

static void vjp_view_as_real(Vjp *v) {
  Tensor *g = F_OP(&v->f, "aten.contiguous.default", F_T(vjp_cotangent(v)));
  vjp_give(v, 0, F_OP(&v->f, "aten.view_as_complex.default", F_T(g)));
}
static void vjp_view_as_complex(Vjp *v) {
  vjp_give(v, 0, F_OP(&v->f, "aten.view_as_real.default", F_T(vjp_cotangent(v))));
}

static void vjp_imag(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  vjp_give(v, 0, F_OP(&v->f, "aten.complex.default", F_T(vjp_zeros_like(v, g)), F_T(g)));
}

static void vjp_conjugate(Vjp *v) { vjp_give(v, 0, vjp_conj(v, vjp_cotangent(v))); }

static void vjp_complex(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  if (vjp_wants(v, 0)) vjp_give(v, 0, F_OP(&v->f, "aten.real.default", F_T(g)));
  if (vjp_wants(v, 1)) vjp_give(v, 1, F_OP(&v->f, "aten.imag.default", F_T(g)));
}

/* ---- elements in other places ------------------------------------------------------------------------------ */

static void vjp_flip(Vjp *v) {
  vjp_give(v, 0, F_OP(&v->f, "aten.flip.default", F_T(vjp_cotangent(v)), vjp_value(v, 1)));
}

/* Each shift back; a dimension may be named several times, and shifts may be of any size. */
static void vjp_roll(Vjp *v) {
  const Tensor *g = vjp_cotangent(v);
  Ints shifts = in_ints(v->forward, 1), dims = in_ints(v->forward, 2);
  int64_t *back = arena_new_n(v->f.c->arena, int64_t, shifts.n);
  if (!back && !v->f.status) v->f.status = fail_oom();
  for (int i = 0; i < shifts.n && back; i++) {
    int64_t d = dims.n && dims.v[i] < 0 ? dims.v[i] + g->ndim : dims.n ? dims.v[i] : 0;
    int64_t size = !dims.n ? tensor_numel(g) : g->ndim ? g->size[d] : 1;
    back[i] = size ? -(shifts.v[i] % size) : 0;
  }
  vjp_give(v, 0, F_OP(&v->f, "aten.roll.default", F_T(g), val_ints(back, shifts.n), vjp_value(v, 2)));
}

static void vjp_tril(Vjp *v) {
  vjp_give(v, 0, F_OP(&v->f, "aten.tril.default", F_T(vjp_cotangent(v)), vjp_value(v, 1)));
}
static void vjp_triu(Vjp *v) {
  vjp_give(v, 0, F_OP(&v->f, "aten.triu.default", F_T(vjp_cotangent(v)), vjp_value(v, 1)));
}

/* copy(self, src): src in self's size and dtype. */
static void vjp_copy(Vjp *v) {
  if (vjp_wants(v, 0)) vjp_give(v, 0, vjp_zeros_like(v, v->in[0]));
  vjp_give(v, 1, vjp_cotangent(v));
}

const GradDef grads_view[] = {
    GRAD("alias.default alias_copy.default clone.default contiguous.default lift.default lift_fresh.default "
         "lift_fresh_copy.default resolve_conj.default resolve_neg.default positive.default",
         vjp_pass, NULL),
    GRAD("to.dtype to.dtype_layout to.device to.other _to_copy.default type_as.default real.default", vjp_pass,
         NULL),
    GRAD("expand.default expand_copy.default expand_as.default broadcast_to.default", vjp_pass, NULL),
    GRAD("broadcast_tensors.default tess.align.default", vjp_pass_each, NULL),
    GRAD("copy.default", vjp_copy, NULL),
    GRAD("detach.default detach_.default detach_copy.default view.dtype view_copy.dtype", vjp_none, NULL),
    GRAD("view.default view_copy.default _unsafe_view.default reshape.default view_as.default reshape_as.default "
         "ravel.default flatten.using_ints unflatten.int _reshape_alias.default",
         vjp_reshape, NULL),
    GRAD("squeeze.default squeeze.dim squeeze.dims squeeze_.default squeeze_.dim squeeze_.dims "
         "squeeze_copy.default squeeze_copy.dim squeeze_copy.dims unsqueeze.default unsqueeze_.default "
         "unsqueeze_copy.default atleast_1d.default atleast_2d.default atleast_3d.default",
         vjp_reshape, NULL),
    GRAD("atleast_1d.Sequence atleast_2d.Sequence atleast_3d.Sequence", vjp_reshape_each, NULL),
    GRAD("transpose.int transpose_.default transpose_copy.int swapaxes.default swapaxes_.default swapdims.default "
         "swapdims_.default",
         vjp_transpose, NULL),
    GRAD("t.default t_.default t_copy.default mT.default mH.default adjoint.default matrix_H.default",
         vjp_transpose_last, NULL),
    GRAD("numpy_T.default", vjp_reverse, NULL),
    GRAD("permute.default permute_copy.default", vjp_permute, NULL),
    GRAD("movedim.int movedim.intlist moveaxis.int moveaxis.intlist", vjp_movedim, NULL),
    GRAD("slice.Tensor slice_copy.Tensor", vjp_slice, NULL),
    GRAD("narrow.default narrow_copy.default", vjp_narrow, NULL),
    GRAD("select.int select_copy.int", vjp_select, NULL),
    GRAD("diagonal.default diagonal_copy.default linalg_diagonal.default", vjp_diagonal, NULL),
    GRAD("unfold.default unfold_copy.default", vjp_unfold, NULL),
    GRAD("slice_backward.default", vjp_slice_backward, NULL),
    GRAD("select_backward.default", vjp_select_backward, NULL),
    GRAD("diagonal_backward.default", vjp_diagonal_backward, NULL),
    GRAD("unfold_backward.default", vjp_unfold_backward, NULL),
    GRAD("slice_scatter.default", vjp_slice_scatter, NULL),
    GRAD("select_scatter.default", vjp_select_scatter, NULL),
    GRAD("diagonal_scatter.default", vjp_diagonal_scatter, NULL),
    GRAD("tess.narrow_scatter.default", vjp_narrow_scatter, NULL),
    GRAD("view_as_real.default view_as_real_copy.default", vjp_view_as_real, NULL),
    GRAD("view_as_complex.default view_as_complex_copy.default", vjp_view_as_complex, NULL),
    GRAD("imag.default", vjp_imag, NULL),
    GRAD("conj.default _conj.default conj_physical.default _conj_physical.default", vjp_conjugate, NULL),
    GRAD("complex.default", vjp_complex, NULL),
    GRAD("flip.default", vjp_flip, NULL),
    GRAD("roll.default", vjp_roll, NULL),
    GRAD("tril.default", vjp_tril, NULL),
    GRAD("triu.default", vjp_triu, NULL),
    {0},
};
