/* shift.c -- elements moved within their dimensions and combined with neighbours: flip,
 * rot90, roll, the shuffles between channels and pixels, diff, trace. */
#include <string.h>

#include "kernels/copy.h"
#include "ops/aten/indexing.h"
#include "ops/rule_move.h"

/* ---- flip -------------------------------------------------------------------------------- */

static Status flip_infer(Call *c) {
  Tensor *self;
  bool flipped[MAX_DIMS];
  TRY(need_tensor(c, 0, &self));
  TRY(wrap_dims(c, in_ints(c, 1), self->ndim, flipped));
  return out_like(c, self->dtype, self);
}

/* Read from the far end, with the stride turned round. */
static Status flip_run(Call *c) {
  Tensor *self = in_tensor(c, 0);
  bool flipped[MAX_DIMS];
  int64_t start = 0;
  if (tensor_numel(self) == 0) return OK;
  TRY(wrap_dims(c, in_ints(c, 1), self->ndim, flipped));
  IndexMap map = {.ndim = self->ndim};
  memcpy(map.size, self->size, sizeof map.size);
  for (int d = 0; d < self->ndim; d++) {
    map.stride[d] = flipped[d] ? -self->stride[d] : self->stride[d];
    if (flipped[d]) start += (self->size[d] - 1) * self->stride[d];
  }
  kernel_gather(&c->ctx->kern, &map, out_view_of(c, 0),
                (const char *)tensor_data(self) + (size_t)start * dtype_size(self->dtype));
  return OK;
}

static Status flip_place(Rules *r) {
  bool flipped[MAX_DIMS];
  TRY(wrap_dims(r->call, in_ints(r->call, 1), r->in[0]->ndim, flipped));
  return rule_all_but(r, flipped, PASS_ALL);
}

/* fliplr, flipud: the row is the dimension. */
static Status flip_dim_compose(Call *c) {
  int64_t dim = *(const int *)c->op->def->row;
  Tensor *out;
  TRY(OP(c, "aten.flip.default", &out, c->arg[0], val_ints(&dim, 1)));
  return out_value(c, val_tensor(out));
}

/* Quarter turns: a flip for each of the two dimensions that changes its direction, and a
 * transposition if their number is odd. */
static Status rot90_compose(Call *c) {
  Ints dims = in_ints(c, 2);
  Tensor *self, *out;
  TRY(need_tensor(c, 0, &self));
  if (dims.n != 2) return op_fail(c, "turns in a plane of 2 dimensions, not %d", dims.n);
  int64_t turns = ((in_int(c, 1) % 4) + 4) % 4;
  static const struct {
    int first, count; /* dimensions to flip */
    bool transpose;
  } steps[] = {{0, 0, false}, {1, 1, true}, {0, 2, false}, {0, 1, true}};
  if (turns == 0) TRY(OP(c, "aten.clone.default", &out, val_tensor(self)));
  else
    TRY(OP(c, "aten.flip.default", &out, val_tensor(self),
           val_ints(dims.v + steps[turns].first, steps[turns].count)));
  if (steps[turns].transpose)
    TRY(OP(c, "aten.transpose.int", &out, val_tensor(out), val_int(dims.v[0]), val_int(dims.v[1])));
  return out_value(c, val_tensor(out));
}

/* ---- roll ------------------------------------------------------------------------------------ */

static Status roll_infer(Call *c) {
  Tensor *self;
  Ints shifts = in_ints(c, 1), dims = in_ints(c, 2);
  TRY(need_tensor(c, 0, &self));
  bool flat = dims.n == 0;
  if (shifts.n == 0 || (flat ? shifts.n != 1 : shifts.n != dims.n))
    return op_fail(c, "%d shifts for %d dimensions", shifts.n, dims.n);
  for (int i = 0; i < dims.n; i++) {
    int d;
    TRY(wrap_dim(c, dims.v[i], self->ndim, &d));
  }
  return out_new(c, self->dtype, self->ndim, self->size);
}

static Status roll_place(Rules *r) {
  Ints dims = in_ints(r->call, 2);
  bool rolled[MAX_DIMS];
  for (int d = 0; d < MAX_DIMS; d++) rolled[d] = dims.n == 0; /* as one long row */
  for (int i = 0, d; i < dims.n; i++) {
    TRY(wrap_dim(r->call, dims.v[i], r->in[0]->ndim, &d));
    rolled[d] = true;
  }
  return rule_all_but(r, rolled, PASS_ALL);
}

static View part_of(const Geometry *g, void *data) {
  return (View){(char *)data + (size_t)g->offset * dtype_size(g->dtype), g->size, g->stride, g->ndim, g->dtype};
}

/* Every dimension is two parts that change places; their products are copied one by one. */
static Status roll_parts(Call *c, const Geometry *from, void *source, const Geometry *to, const int64_t *shift,
                         int dim) {
  if (dim == from->ndim) {
    kernel_copy(&c->ctx->kern, part_of(to, tensor_data(out_tensor(c, 0))), part_of(from, source));
    return OK;
  }
  int64_t n = from->size[dim], s = shift[dim];
  if (s == 0) return roll_parts(c, from, source, to, shift, dim + 1);
  for (int part = 0; part < 2; part++) { /* [0, n - s) goes to s, [n - s, n) to 0 */
    Geometry a = *from, b = *to;
    TRY(geometry_cut(c, &a, dim, part ? n - s : 0, part ? n : n - s, 1));
    TRY(geometry_cut(c, &b, dim, part ? 0 : s, part ? s : n, 1));
    TRY(roll_parts(c, &a, source, &b, shift, dim + 1));
  }
  return OK;
}

static Status roll_body(Call *c) {
  Tensor *self = in_tensor(c, 0);
  Ints shifts = in_ints(c, 1), dims = in_ints(c, 2);
  int64_t shift[MAX_DIMS] = {0}, n = tensor_numel(self);
  void *source = tensor_data(self);
  if (n == 0) return OK;
  Geometry from = geometry_of(self), to = geometry_of(out_tensor(c, 0));
  if (dims.n == 0) { /* as one long row, which must lie in one piece */
    if (!tensor_is_contiguous(self)) {
      TRY_NEW(source, kern_scratch(&c->ctx->kern, (size_t)n * dtype_size(self->dtype)));
      kernel_copy(&c->ctx->kern, (View){source, to.size, to.stride, to.ndim, to.dtype}, tensor_view(self));
    }
    TRY(geometry_contiguous(c, self->dtype, (Ints){&n, 1}, &from));
    to = from;
  }
  from.offset = to.offset = 0;
  for (int i = 0; i < shifts.n; i++) {
    int d = 0;
    if (dims.n) TRY(wrap_dim(c, dims.v[i], self->ndim, &d));
    int64_t size = from.ndim ? from.size[d] : 1;
    shift[d] = (((shift[d] + shifts.v[i] % size) % size) + size) % size;
  }
  return roll_parts(c, &from, source, &to, shift, 0);
}

static Status roll_run(Call *c) { return with_scratch(c, roll_body); }

/* ---- channels and pixels ------------------------------------------------------------------------ */

/* [.., C r r, H, W] <-> [.., C, H r, W r], by a view of 5 dimensions more than the batch:
 * split, reorder, join. */
static Status shuffle(Call *c, const Tensor *self, const int64_t *split, const int *order, const int64_t *joined) {
  int64_t size[MAX_DIMS], dims[MAX_DIMS];
  int batch = self->ndim - 3;
  Tensor *t;
  if (batch + 5 > MAX_DIMS) return op_fail(c, "too many dimensions");
  for (int d = 0; d < batch + 5; d++) {
    size[d] = d < batch ? self->size[d] : split[d - batch];
    dims[d] = d < batch ? d : batch + order[d - batch];
  }
  TRY(OP(c, "aten.view.default", &t, val_tensor(self), val_ints(size, batch + 5)));
  TRY(OP(c, "aten.permute.default", &t, val_tensor(t), val_ints(dims, batch + 5)));
  TRY(OP(c, "aten.clone.default", &t, val_tensor(t), val_memory_format(MEMORY_CONTIGUOUS)));
  memcpy(size + batch, joined, 3 * sizeof *joined);
  TRY(OP(c, "aten.view.default", &t, val_tensor(t), val_ints(size, batch + 3)));
  return out_value(c, val_tensor(t));
}

static Status shuffle_input(const Call *c, Tensor **self, int64_t factor) {
  TRY(need_tensor(c, 0, self));
  if ((*self)->ndim < 3 || factor <= 0)
    return op_fail(c, "needs 3 dimensions and a positive factor, not %d and %lld", (*self)->ndim,
                   (long long)factor);
  return OK;
}

static Status pixel_shuffle_compose(Call *c) {
  Tensor *self;
  int64_t r = in_int(c, 1);
  TRY(shuffle_input(c, &self, r));
  const int64_t *size = self->size + self->ndim - 3;
  if (r > INT32_MAX || size[0] % (r * r))
    return op_fail(c, "%lld channels are not a multiple of %lld squared", (long long)size[0], (long long)r);
  const int64_t split[] = {size[0] / (r * r), r, r, size[1], size[2]},
                joined[] = {split[0], size[1] * r, size[2] * r};
  return shuffle(c, self, split, (const int[]){0, 3, 1, 4, 2}, joined);
}

static Status pixel_unshuffle_compose(Call *c) {
  Tensor *self;
  int64_t r = in_int(c, 1);
  TRY(shuffle_input(c, &self, r));
  const int64_t *size = self->size + self->ndim - 3;
  if (r > INT32_MAX || size[1] % r || size[2] % r) {
    return op_fail(c, "%lld by %lld pixels are not multiples of %lld", (long long)size[1], (long long)size[2],
                   (long long)r);
  }
  const int64_t split[] = {size[0], size[1] / r, r, size[2] / r, r},
                joined[] = {size[0] * r * r, size[1] / r, size[2] / r};
  return shuffle(c, self, split, (const int[]){0, 2, 4, 1, 3}, joined);
}

/* [N, g c, ..] seen as [N, g, c, ..] with g and c exchanged. */
static Status channel_shuffle_compose(Call *c) {
  Tensor *self, *t;
  int64_t groups = in_int(c, 1), size[MAX_DIMS + 1];
  TRY(shuffle_input(c, &self, groups));
  if (self->size[1] % groups || self->ndim == MAX_DIMS)
    return op_fail(c, "%lld channels do not make %lld groups", (long long)self->size[1], (long long)groups);
  size[0] = self->size[0];
  size[1] = groups;
  size[2] = self->size[1] / groups;
  memcpy(size + 3, self->size + 2, (size_t)(self->ndim - 2) * sizeof *size);
  TRY(OP(c, "aten.view.default", &t, val_tensor(self), val_ints(size, self->ndim + 1)));
  TRY(OP(c, "aten.transpose.int", &t, val_tensor(t), val_int(1), val_int(2)));
  TRY(OP(c, "aten.clone.default", &t, val_tensor(t), val_memory_format(MEMORY_CONTIGUOUS)));
  TRY(OP(c, "aten.view.default", &t, val_tensor(t), val_ints(self->size, self->ndim)));
  return out_value(c, val_tensor(t));
}

/* ---- differences of neighbours --------------------------------------------------------------------- */

static Status diff_once(Call *c, Tensor **t, int dim) {
  Tensor *after, *before;
  int64_t n = (*t)->size[dim];
  TRY(OP(c, "aten.slice.Tensor", &after, val_tensor(*t), val_int(dim), val_int(1), val_int(n)));
  TRY(OP(c, "aten.slice.Tensor", &before, val_tensor(*t), val_int(dim), val_int(0), val_int(n ? n - 1 : 0)));
  return OP(c, (*t)->dtype == DT_BOOL ? "aten.logical_xor.default" : "aten.sub.Tensor", t, val_tensor(after),
            val_tensor(before));
}

static Status diff_compose(Call *c) {
  Tensor *t, *list[3];
  int dim, parts = 0;
  int64_t n = in_int(c, 1);
  TRY(need_tensor(c, 0, &t));
  if (t->ndim == 0) return op_fail(c, "a 0-d tensor has no neighbours");
  TRY(wrap_dim(c, in_int(c, 2), t->ndim, &dim));
  if (n < 0) return op_fail(c, "the order is negative: %lld", (long long)n);
  if (in_tensor(c, 3)) list[parts++] = in_tensor(c, 3);
  list[parts++] = t;
  if (in_tensor(c, 4)) list[parts++] = in_tensor(c, 4);
  if (n == 0) TRY(OP(c, "aten.clone.default", &t, val_tensor(t)));
  else if (parts > 1) TRY(OP(c, "aten.cat.default", &t, val_tensors(list, parts), val_int(dim)));
  if (n > t->size[dim]) n = t->size[dim];
  for (int64_t i = 0; i < n; i++) TRY(diff_once(c, &t, dim));
  return out_value(c, val_tensor(t));
}

static Status trace_compose(Call *c) {
  Tensor *self, *diagonal, *out;
  TRY(need_tensor(c, 0, &self));
  if (self->ndim != 2) return op_fail(c, "expects a matrix, not %d dimensions", self->ndim);
  TRY(OP(c, "aten.diagonal.default", &diagonal, val_tensor(self)));
  TRY(OP(c, "aten.sum.default", &out, val_tensor(diagonal)));
  return out_value(c, val_tensor(out));
}

/* clang-format off */
const OpDef ops_shift[] = {
    {.schema = "aten::flip(Tensor self, int[] dims) -> Tensor", .infer = flip_infer, .run = flip_run,
     .shard.place = flip_place},
    {.schema = "aten::fliplr(Tensor self) -> Tensor", .compose = flip_dim_compose, .row = &(const int){1}},
    {.schema = "aten::flipud(Tensor self) -> Tensor", .compose = flip_dim_compose, .row = &(const int){0}},
    {.schema = "aten::rot90(Tensor self, int k=1, int[] dims=[0, 1]) -> Tensor", .compose = rot90_compose},
    {.schema = "aten::roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor", .infer = roll_infer,
     .run = roll_run, .shard.place = roll_place},
    {.schema = "aten::pixel_shuffle(Tensor self, int upscale_factor) -> Tensor", .compose = pixel_shuffle_compose},
    {.schema = "aten::pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor",
     .compose = pixel_unshuffle_compose},
    {.schema = "aten::channel_shuffle(Tensor self, SymInt groups) -> Tensor", .compose = channel_shuffle_compose},
    {.schema = "aten::diff(Tensor self, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None) -> Tensor",
     .compose = diff_compose},
    {.schema = "aten::trace(Tensor self) -> Tensor", .compose = trace_compose},
    {0},
};
