/* pad.c -- padding by a constant, by reflection, by the edge, or around the corner.
 *
 * `pad` lists (before, after) for the last dimension first.  A mode other than constant
 * is a table per dimension: which element of the input each place of the output shows;
 * the gradient sends it back and adds.  Negative padding cuts off.
 */
#include <string.h>

#include "kernels/copy.h"
#include "ops/aten/indexing.h"
#include "ops/rule_move.h"

typedef enum { PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR } PadMode;

typedef struct {
  PadMode mode;
  int dims; /* that the op pads; 0: as many as the list says */
} PadRow;

static const char *const mode_names[] = {"reflection", "replication", "circular padding"};

static Status padded_size(const Call *c, Ints pad, int ndim, const int64_t *size, int64_t *out) {
  char a[128], b[128];
  if (pad.n % 2 || pad.n / 2 > ndim) {
    return op_fail(c, "padding %s does not fit a tensor of %d dimensions",
                   shape_describe(pad.n, pad.v, a, sizeof a), ndim);
  }
  memcpy(out, size, (size_t)ndim * sizeof *out);
  for (int i = 0; i < pad.n / 2; i++) {
    int64_t *n = &out[ndim - 1 - i];
    bool cuts_too_much = pad.v[2 * i] < -*n || pad.v[2 * i + 1] < -*n;
    if (cuts_too_much || __builtin_add_overflow(*n, pad.v[2 * i], n) ||
        __builtin_add_overflow(*n, pad.v[2 * i + 1], n) || *n < 0) {
      return op_fail(c, "padding %s leaves nothing of size %s", shape_describe(pad.n, pad.v, a, sizeof a),
                     shape_describe(ndim, size, b, sizeof b));
    }
  }
  return OK;
}

/* Padded dimensions are whole; partial values pass if the padding is no constant of its own. */
static Status pad_place(Rules *r, Ints pad, Pass pass) {
  bool padded[MAX_DIMS] = {false};
  for (int i = 0; i < pad.n; i++) padded[r->in[0]->ndim - 1 - i / 2] |= pad.v[i] != 0;
  return rule_all_but(r, padded, pass);
}

static bool is_zero(const Value *v) {
  return v->kind != VAL_TENSOR && v->kind != VAL_COMPLEX && val_as_float(v) == 0;
}

static Status constant_place(Rules *r) {
  Ints pad = in_ints(r->call, 1);
  bool grows = false;
  for (int i = 0; i < pad.n; i++) grows |= pad.v[i] > 0;
  return pad_place(r, pad, !grows || is_zero(&r->call->arg[2]) ? PASS_ALL : PASS_EQUAL);
}

static Status mode_place(Rules *r) { return pad_place(r, in_ints(r->call, 1), PASS_ALL); }

/* backward(grad, self, padding): only the size of self matters, so it is cut as the gradient. */
static Status backward_place(Rules *r) {
  Ints pad = in_ints(r->call, 2);
  int ndim = r->in[0]->ndim;
  for (int d = 0; d < ndim - pad.n / 2; d++) TRY(rule_axis(r, (Placement[]){place_s(d), place_s(d), place_s(d)}));
  for (ReduceOp op = REDUCE_SUM; op <= REDUCE_AVG; op++)
    TRY(rule_axis(r, (Placement[]){place_p(op), place_p(op), place_r()}));
  return OK;
}

/* ---- constant ---------------------------------------------------------------------------- */

static Status constant_infer(Call *c) {
  Tensor *self;
  int64_t size[MAX_DIMS];
  TRY(need_tensor(c, 0, &self));
  TRY(padded_size(c, in_ints(c, 1), self->ndim, self->size, size));
  return out_new(c, self->dtype, self->ndim, size);
}

static Status constant_run(Call *c) {
  Tensor *self = in_tensor(c, 0), *out = out_tensor(c, 0);
  Ints pad = in_ints(c, 1);
  Geometry from = geometry_of(self), to = geometry_of(out);
  Value value;
  char element[16];
  bool grows = false;
  for (int i = 0; i < pad.n / 2; i++) {
    int d = self->ndim - 1 - i;
    int64_t before = pad.v[2 * i], after = pad.v[2 * i + 1];
    TRY(geometry_cut(c, &from, d, before < 0 ? -before : 0, self->size[d] + (after < 0 ? after : 0), 1));
    TRY(geometry_cut(c, &to, d, before > 0 ? before : 0, out->size[d] - (after > 0 ? after : 0), 1));
    grows |= before > 0 || after > 0;
  }
  TRY(in_number(c, 2, &value));
  val_store(&value, out->dtype, element);
  if (grows) kernel_fill(&c->ctx->kern, tensor_view(out), element);
  kernel_copy(&c->ctx->kern, geometry_view(&to, out), geometry_view(&from, self));
  return OK;
}

/* ---- by what the tensor holds --------------------------------------------------------------- */

/* The input's place that output place i shows. */
static int64_t source_of(PadMode mode, int64_t i, int64_t before, int64_t after, int64_t n) {
  int64_t x = i - before;
  if (mode == PAD_CIRCULAR) { /* around what negative padding leaves */
    int64_t start = before < 0 ? -before : 0, left = n - start + (after < 0 ? after : 0);
    return start + (((x - start) % left) + left) % left;
  }
  if (mode == PAD_REPLICATE) return x < 0 ? 0 : x >= n ? n - 1 : x;
  x = x < 0 ? -x : x;
  return x >= n ? 2 * (n - 1) - x : x;
}

static Status mode_check(const Call *c, const PadRow *row, Ints pad, int ndim, const int64_t *size, int64_t *out) {
  int dims = pad.n / 2;
  if (row->dims && dims != row->dims)
    return op_fail(c, "needs %d numbers of padding, not %d", 2 * row->dims, pad.n);
  TRY(padded_size(c, pad, ndim, size, out));
  for (int i = 0; i < dims; i++) {
    int64_t n = size[ndim - 1 - i], before = pad.v[2 * i], after = pad.v[2 * i + 1],
            most = before > after ? before : after;
    int64_t left = n + (before < 0 ? before : 0) + (after < 0 ? after : 0);
    bool fits = n > 0 &&
                (row->mode == PAD_REPLICATE || (row->mode == PAD_REFLECT ? most < n : most <= n && left > 0));
    if (!fits && out[ndim - 1 - i] > 0) {
      return op_fail(c, "%s by %lld and %lld needs more than the %lld elements of dimension %d",
                     mode_names[row->mode], (long long)before, (long long)after, (long long)n, ndim - 1 - i);
    }
  }
  return OK;
}

/* The map from the padded size to a tensor of the unpadded one. */
static Status pad_map(const Call *c, PadMode mode, Ints pad, const int64_t *padded, const Tensor *far,
                      IndexMap *map) {
  *map = (IndexMap){.ndim = far->ndim};
  for (int d = 0; d < far->ndim; d++) {
    int i = far->ndim - 1 - d;
    map->size[d] = padded[d];
    if (2 * i >= pad.n) {
      map->stride[d] = far->stride[d];
      continue;
    }
    int64_t *table;
    TRY_NEW(table, kern_scratch(&c->ctx->kern, (size_t)padded[d] * sizeof *table));
    for (int64_t p = 0; p < padded[d]; p++)
      table[p] = source_of(mode, p, pad.v[2 * i], pad.v[2 * i + 1], far->size[d]);
    IndexAxis *axis = &map->index[map->nindex++];
    *axis = (IndexAxis){.data = table, .step = far->stride[d]};
    axis->stride[d] = 1;
  }
  return OK;
}

static Status mode_infer(Call *c) {
  Tensor *self;
  int64_t size[MAX_DIMS];
  TRY(need_tensor(c, 0, &self));
  TRY(mode_check(c, c->op->def->row, in_ints(c, 1), self->ndim, self->size, size));
  return out_new(c, self->dtype, self->ndim, size);
}

/* One side of a dimension: places [from, to) of the output show other places of it. */
static Status pad_side(Call *c, const PadRow *row, const Geometry *filled, int dim, Ints pad, int64_t from,
                       int64_t to) {
  int i = filled->ndim - 1 - dim;
  Tensor *self = in_tensor(c, 0), *out = out_tensor(c, 0);
  int64_t before = pad.v[2 * i], n = to - from, *table;
  if (n == 0) return OK;
  TRY_NEW(table, kern_scratch(&c->ctx->kern, (size_t)n * sizeof *table));
  for (int64_t p = 0; p < n; p++)
    table[p] = before + source_of(row->mode, from + p, before, pad.v[2 * i + 1], self->size[dim]);
  Geometry part = *filled, whole = *filled;
  part.size[dim] = n;
  part.offset += from * part.stride[dim];
  IndexMap map = {.ndim = part.ndim, .nindex = 1, .index = {{.data = table, .step = part.stride[dim]}}};
  memcpy(map.size, part.size, sizeof map.size);
  memcpy(map.stride, part.stride, sizeof map.stride);
  map.stride[dim] = 0;
  map.index[0].stride[dim] = 1;
  kernel_gather(&c->ctx->kern, &map, geometry_view(&part, out), geometry_view(&whole, out).data);
  return OK;
}

/* The input to the middle, then the sides, dimension by dimension, from what is there:
 * the sides of an outer dimension are whole rows. */
static Status pad_by_sides(Call *c, const PadRow *row, Ints pad) {
  Tensor *self = in_tensor(c, 0), *out = out_tensor(c, 0);
  Geometry filled = geometry_of(out);
  for (int i = 0; i < pad.n / 2; i++) {
    int d = self->ndim - 1 - i;
    TRY(geometry_cut(c, &filled, d, pad.v[2 * i], pad.v[2 * i] + self->size[d], 1));
  }
  kernel_copy(&c->ctx->kern, geometry_view(&filled, out), tensor_view(self));
  for (int i = 0; i < pad.n / 2; i++) {
    int d = self->ndim - 1 - i;
    filled.offset -= pad.v[2 * i] * filled.stride[d];
    filled.size[d] = out->size[d];
    TRY(pad_side(c, row, &filled, d, pad, 0, pad.v[2 * i]));
    TRY(pad_side(c, row, &filled, d, pad, out->size[d] - pad.v[2 * i + 1], out->size[d]));
  }
  return OK;
}

static Status mode_body(Call *c) {
  const PadRow *row = c->op->def->row;
  Tensor *self = in_tensor(c, 0), *out = out_tensor(c, 0);
  IndexMap map;
  bool cuts = false;
  for (int i = 0; i < in_ints(c, 1).n; i++) cuts |= in_ints(c, 1).v[i] < 0;
  if (!cuts) return pad_by_sides(c, row, in_ints(c, 1));
  TRY(pad_map(c, row->mode, in_ints(c, 1), out->size, self, &map));
  kernel_gather(&c->ctx->kern, &map, tensor_view(out), tensor_data(self));
  return OK;
}

static Status mode_run(Call *c) { return with_scratch(c, mode_body); }

/* ---- gradients: (grad_output, self, padding) -------------------------------------------------- */

static Status backward_infer(Call *c) {
  Tensor *grad, *self;
  int64_t size[MAX_DIMS];
  TRY(need_tensor(c, 0, &grad));
  TRY(need_tensor(c, 1, &self));
  TRY(mode_check(c, c->op->def->row, in_ints(c, 2), self->ndim, self->size, size));
  if (grad->ndim != self->ndim || memcmp(grad->size, size, (size_t)self->ndim * sizeof *size))
    return op_fail(c, "the gradient has another size than the padded tensor");
  return out_new(c, grad->dtype, self->ndim, self->size);
}

static Status backward_body(Call *c) {
  const PadRow *row = c->op->def->row;
  Tensor *grad = in_tensor(c, 0), *out = out_tensor(c, 0);
  Working to, from;
  NearStrides strides;
  IndexMap map;
  const char zero[16] = {0};
  kernel_fill(&c->ctx->kern, tensor_view(out), zero);
  TRY(working_begin(c, out, sum_dtype(out->dtype), &to));
  TRY(working_begin(c, grad, to.tensor.dtype, &from));
  TRY(pad_map(c, row->mode, in_ints(c, 2), grad->size, &to.tensor, &map));
  kernel_scatter(&c->ctx->kern, &map, to.data, near_view(&from, &map, &strides), SCATTER_ADD);
  working_end(c, out, &to);
  return OK;
}

static Status backward_run(Call *c) { return with_scratch(c, backward_body); }

/* ---- pad: the mode by name or number ------------------------------------------------------------- */

static Status pad_by(Call *c, const char *mode, const Value *value) {
  static const char *const reflect[] = {"aten.reflection_pad1d.default", "aten.reflection_pad2d.default",
                                        "aten.reflection_pad3d.default"};
  static const char *const replicate[] = {"aten.replication_pad1d.default", "aten.replication_pad2d.default",
                                          "aten.replication_pad3d.default"};
  Ints pad = in_ints(c, 1);
  Tensor *out;
  int dims = pad.n / 2;
  if (!strcmp(mode, "constant")) {
    TRY(OP(c, "aten.constant_pad_nd.default", &out, c->arg[0], c->arg[1],
           value->kind == VAL_NONE ? val_int(0) : *value));
    return out_value(c, val_tensor(out));
  }
  bool by_reflection = !strcmp(mode, "reflect"), by_edge = !strcmp(mode, "replicate");
  if (value->kind != VAL_NONE && val_as_float(value) != 0) return op_fail(c, "mode '%s' takes no value", mode);
  if (!strcmp(mode, "circular")) TRY(OP(c, "aten._pad_circular.default", &out, c->arg[0], c->arg[1]));
  else if ((!by_reflection && !by_edge) || dims < 1 || dims > 3)
    return op_fail(c, "mode '%s' with %d numbers of padding is not supported", mode, pad.n);
  else TRY(OP(c, by_reflection ? reflect[dims - 1] : replicate[dims - 1], &out, c->arg[0], c->arg[1]));
  return out_value(c, val_tensor(out));
}

static Status pad_compose(Call *c) { return pad_by(c, in_str(c, 2), &c->arg[3]); }

static Status pad_enum_compose(Call *c) {
  static const char *const modes[] = {"reflect", "replicate", "circular", "constant"};
  int64_t mode = in_int(c, 2);
  if (mode < 0 || mode > 3) return op_fail(c, "there is no mode %lld", (long long)mode);
  return pad_by(c, modes[mode], &c->arg[3]);
}

/* clang-format off */
#define PAD(text, ...) \
  {.schema = text, .infer = mode_infer, .run = mode_run, .shard.place = mode_place, \
    .row = &(const PadRow){__VA_ARGS__}}
#define BACKWARD(text, ...) \
  {.schema = text, .infer = backward_infer, .run = backward_run, .shard.place = backward_place, \
    .row = &(const PadRow){__VA_ARGS__}}
/* clang-format on */

/* clang-format off */
const OpDef ops_pad[] = {
    {.schema = "aten::constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor",
     .infer = constant_infer, .run = constant_run, .shard.place = constant_place},
    {.schema = "aten::pad(Tensor self, SymInt[] pad, str mode=\"constant\", float? value=None) -> Tensor",
     .compose = pad_compose},
    {.schema = "aten::_pad_enum(Tensor self, SymInt[] pad, int mode, float? value=None) -> Tensor",
     .compose = pad_enum_compose},
    PAD("aten::_pad_circular(Tensor self, SymInt[] pad) -> Tensor", PAD_CIRCULAR, 0),
    PAD("aten::reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor", PAD_REFLECT, 1),
    PAD("aten::reflection_pad2d(Tensor self, SymInt[4] padding) -> Tensor", PAD_REFLECT, 2),
    PAD("aten::reflection_pad3d(Tensor self, SymInt[6] padding) -> Tensor", PAD_REFLECT, 3),
    PAD("aten::replication_pad1d(Tensor self, SymInt[2] padding) -> Tensor", PAD_REPLICATE, 1),
    PAD("aten::replication_pad2d(Tensor self, SymInt[4] padding) -> Tensor", PAD_REPLICATE, 2),
    PAD("aten::replication_pad3d(Tensor self, SymInt[6] padding) -> Tensor", PAD_REPLICATE, 3),
    BACKWARD("aten::reflection_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor",
        PAD_REFLECT, 1),
    BACKWARD("aten::reflection_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor",
        PAD_REFLECT, 2),
    BACKWARD("aten::reflection_pad3d_backward(Tensor grad_output, Tensor self, SymInt[6] padding) -> Tensor",
        PAD_REFLECT, 3),
    BACKWARD("aten::replication_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor",
        PAD_REPLICATE, 1),
    BACKWARD("aten::replication_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor",
        PAD_REPLICATE, 2),
    BACKWARD("aten::replication_pad3d_backward(Tensor grad_output, Tensor self, SymInt[6] padding) -> Tensor",
        PAD_REPLICATE, 3),
    {0},
};
