/* view.c -- ops that only change how a tensor lies in its storage.
 *
 * A row is a schema and the GeometryFn that does it.  Three kinds: VIEW shares the
 * storage; METADATA is ATen's in-place form, and as programs go on with its result, a
 * view as well; COPY is a fresh tensor with the view's elements.
 */
#include "kernels/copy.h"
#include "ops/rule_move.h"

typedef struct {
  GeometryFn *view;
} ViewRow;

/* The view lies in self's storage: as_strided can name any place. */
static Status view_geometry(Call *c, Geometry *g, Tensor **self) {
  const ViewRow *row = c->op->def->row;
  TRY(need_tensor(c, 0, self));
  *g = geometry_of(*self);
  TRY(row->view(c, 1, g));
  return geometry_check(c, g, *self);
}

static Status view_infer(Call *c) {
  Geometry g;
  Tensor *self;
  TRY(view_geometry(c, &g, &self));
  return out_geometry_view(c, self, &g);
}

static Status copy_infer(Call *c) {
  Geometry g;
  Tensor *self;
  TRY(view_geometry(c, &g, &self));
  return out_geometry_new(c, &g);
}

static Status copy_run(Call *c) {
  Geometry g;
  Tensor *self;
  TRY(view_geometry(c, &g, &self));
  kernel_copy(&c->ctx->kern, out_view_of(c, 0), geometry_view(&g, self));
  return OK;
}

/* Dimensions that the view shows whole keep their shards. */
static Status view_place(Rules *r) {
  int to[MAX_DIMS];
  TRY(follow_geometry(r, ((const ViewRow *)r->call->op->def->row)->view, 1, r->in[0], to));
  return rule_renumber(r, to, PASS_ALL);
}

/* How the view shards, if not as view_place and the default say. */
#define SLICE .shard.place = rule_slice, .shard.localize = localize_slice, .moves = MOVES_CUT
#define NARROW .shard.place = rule_narrow, .shard.localize = localize_narrow, .moves = MOVES_CUT
#define SELECT .shard.place = view_place, .moves = MOVES_CUT
#define EXPAND .shard.place = view_place, .shard.localize = localize_expand, .moves = MOVES_DIMS
#define SQUEEZE .shard.place = view_place, .shard.localize = localize_squeeze, .moves = MOVES_DIMS
#define DIMS .shard.place = view_place, .moves = MOVES_DIMS
#define ALIAS .shard.place = view_place, .moves = MOVES_COPY
#define STRIDED .shard.place = rule_as_strided, .shard.localize = localize_as_strided
#define SAME_DIMS .shard.place = rule_same_dims
#define LINEAR .shard.place = rule_same_dims, .shard.linear = LINEAR_UNARY
#define DEFAULT .shard.place = view_place

/* clang-format off */
#define VIEW(text, fn, ...) {.schema = text, .infer = view_infer, .row = &(const ViewRow){fn}, __VA_ARGS__}
/* clang-format on */
#define METADATA(text, fn, ...) VIEW(text, fn, __VA_ARGS__)
/* clang-format off */
#define COPY(text, fn, ...) \
  {.schema = text, .infer = copy_infer, .run = copy_run, .row = &(const ViewRow){fn}, __VA_ARGS__}
/* clang-format on */

/* clang-format off */
const OpDef ops_view[] = {
    VIEW("aten::view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)", geometry_view_dtype, SAME_DIMS),
    VIEW("aten::transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)", geometry_transpose, DIMS),
    VIEW("aten::t(Tensor(a) self) -> Tensor(a)", geometry_t, DIMS),
    VIEW("aten::numpy_T(Tensor(a) self) -> Tensor(a)", geometry_reverse, DIMS),
    VIEW("aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)", geometry_permute, DIMS),
    VIEW("aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)", geometry_expand,
        EXPAND),
    VIEW("aten::broadcast_to(Tensor(a) self, SymInt[] size) -> Tensor(a)", geometry_expand, EXPAND),
    VIEW("aten::expand_as(Tensor(a) self, Tensor other) -> Tensor(a)", geometry_expand_as, EXPAND),
    VIEW("aten::squeeze(Tensor(a) self) -> Tensor(a)", geometry_squeeze_all, SQUEEZE),
    VIEW("aten::squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)", geometry_squeeze_dim, SQUEEZE),
    VIEW("aten::squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)", geometry_squeeze_dims, SQUEEZE),
    VIEW("aten::unsqueeze(Tensor(a) self, int dim) -> Tensor(a)", geometry_unsqueeze, DIMS),
    VIEW("aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> "
         "Tensor(a)", geometry_slice, SLICE),
    VIEW("aten::select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)", geometry_select, SELECT),
    VIEW("aten::narrow(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)", geometry_narrow,
        NARROW),
    VIEW("aten::diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)", geometry_diagonal,
        DEFAULT),
    VIEW("aten::linalg_diagonal(Tensor(a) A, *, int offset=0, int dim1=-2, int dim2=-1) -> Tensor(a)",
        geometry_diagonal, DEFAULT),
    VIEW("aten::as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> "
         "Tensor(a)", geometry_as_strided, STRIDED),
    VIEW("aten::_reshape_alias(Tensor(a) self, SymInt[] size, SymInt[] stride) -> Tensor(a)", geometry_as_strided,
        STRIDED),
    VIEW("aten::alias(Tensor(a) self) -> Tensor(a)", geometry_alias, ALIAS),
    VIEW("aten::detach(Tensor(a) self) -> Tensor(a)", geometry_alias, ALIAS),
    VIEW("aten::lift(Tensor self) -> Tensor", geometry_alias, ALIAS),
    VIEW("aten::lift_fresh(Tensor(a) self) -> Tensor(a)", geometry_alias, ALIAS),
    VIEW("aten::movedim.int(Tensor(a) self, int source, int destination) -> Tensor(a)", geometry_movedim, DIMS),
    VIEW("aten::movedim.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)", geometry_movedims,
        DIMS),
    VIEW("aten::moveaxis.int(Tensor(a) self, int source, int destination) -> Tensor(a)", geometry_movedim, DIMS),
    VIEW("aten::moveaxis.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)", geometry_movedims,
        DIMS),
    VIEW("aten::swapaxes(Tensor(a) self, int axis0, int axis1) -> Tensor(a)", geometry_transpose, DIMS),
    VIEW("aten::swapdims(Tensor(a) self, int dim0, int dim1) -> Tensor(a)", geometry_transpose, DIMS),
    VIEW("aten::unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)", geometry_unfold, DEFAULT),
    VIEW("aten::view_as_complex(Tensor(a) self) -> Tensor(a)", geometry_view_as_complex, LINEAR),
    VIEW("aten::view_as_real(Tensor(a) self) -> Tensor(a)", geometry_view_as_real, LINEAR),
    VIEW("aten::mT(Tensor(a) self) -> Tensor(a)", geometry_mt, DIMS),
    VIEW("aten::mH(Tensor(a) self) -> Tensor(a)", geometry_mt, DIMS),
    VIEW("aten::adjoint(Tensor(a) self) -> Tensor(a)", geometry_mt, DIMS),
    VIEW("aten::matrix_H(Tensor(a) self) -> Tensor(a)", geometry_mt, DIMS),
    VIEW("aten::real(Tensor(a) self) -> Tensor(a)", geometry_real, LINEAR),
    VIEW("aten::imag(Tensor(a) self) -> Tensor(a)", geometry_imag, LINEAR),
    VIEW("aten::resolve_conj(Tensor(a) self) -> Tensor(a)", geometry_alias, ALIAS),
    VIEW("aten::resolve_neg(Tensor(a) self) -> Tensor(a)", geometry_alias, ALIAS),
    VIEW("aten::positive(Tensor(a) self) -> Tensor(a)", geometry_alias, ALIAS),

    METADATA("aten::squeeze_(Tensor(a!) self) -> Tensor(a!)", geometry_squeeze_all, SQUEEZE),
    METADATA("aten::squeeze_.dim(Tensor(a!) self, int dim) -> Tensor(a!)", geometry_squeeze_dim, SQUEEZE),
    METADATA("aten::squeeze_.dims(Tensor(a!) self, int[] dim) -> Tensor(a!)", geometry_squeeze_dims, SQUEEZE),
    METADATA("aten::unsqueeze_(Tensor(a!) self, int dim) -> Tensor(a!)", geometry_unsqueeze, DIMS),
    METADATA("aten::transpose_(Tensor(a!) self, int dim0, int dim1) -> Tensor(a!)", geometry_transpose, DIMS),
    METADATA("aten::t_(Tensor(a!) self) -> Tensor(a!)", geometry_t, DIMS),
    METADATA("aten::detach_(Tensor(a!) self) -> Tensor(a!)", geometry_alias, ALIAS),
    METADATA("aten::swapaxes_(Tensor(a!) self, int axis0, int axis1) -> Tensor(a!)", geometry_transpose, DIMS),
    METADATA("aten::swapdims_(Tensor(a!) self, int dim0, int dim1) -> Tensor(a!)", geometry_transpose, DIMS),
    METADATA("aten::as_strided_(Tensor(a!) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> "
             "Tensor(a!)", geometry_as_strided, STRIDED),

    COPY("aten::narrow_copy(Tensor self, int dim, SymInt start, SymInt length) -> Tensor", geometry_narrow, NARROW),
    COPY("aten::slice_copy.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> "
         "Tensor", geometry_slice, SLICE),
    COPY("aten::select_copy.int(Tensor self, int dim, SymInt index) -> Tensor", geometry_select, SELECT),
    COPY("aten::permute_copy(Tensor self, int[] dims) -> Tensor", geometry_permute, DIMS),
    COPY("aten::transpose_copy.int(Tensor self, int dim0, int dim1) -> Tensor", geometry_transpose, DIMS),
    COPY("aten::t_copy(Tensor self) -> Tensor", geometry_t, DIMS),
    COPY("aten::expand_copy(Tensor self, SymInt[] size, *, bool implicit=False) -> Tensor", geometry_expand,
        EXPAND),
    COPY("aten::squeeze_copy(Tensor self) -> Tensor", geometry_squeeze_all, SQUEEZE),
    COPY("aten::squeeze_copy.dim(Tensor self, int dim) -> Tensor", geometry_squeeze_dim, SQUEEZE),
    COPY("aten::squeeze_copy.dims(Tensor self, int[] dim) -> Tensor", geometry_squeeze_dims, SQUEEZE),
    COPY("aten::unsqueeze_copy(Tensor self, int dim) -> Tensor", geometry_unsqueeze, DIMS),
    COPY("aten::detach_copy(Tensor self) -> Tensor", geometry_alias, ALIAS),
    COPY("aten::alias_copy(Tensor self) -> Tensor", geometry_alias, ALIAS),
    COPY("aten::as_strided_copy(Tensor self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> "
         "Tensor", geometry_as_strided, STRIDED),
    COPY("aten::diagonal_copy(Tensor self, int offset=0, int dim1=0, int dim2=1) -> Tensor", geometry_diagonal,
        DEFAULT),
    COPY("aten::unfold_copy(Tensor self, int dimension, int size, int step) -> Tensor", geometry_unfold, DEFAULT),
    COPY("aten::view_as_real_copy(Tensor self) -> Tensor", geometry_view_as_real, LINEAR),
    COPY("aten::view_as_complex_copy(Tensor self) -> Tensor", geometry_view_as_complex, LINEAR),
    COPY("aten::view_copy.dtype(Tensor self, ScalarType dtype) -> Tensor", geometry_view_dtype, SAME_DIMS),
    {0},
};
