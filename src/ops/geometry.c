/* geometry.c -- see geometry.h. */
#include "ops/geometry.h"

#include <string.h>

Geometry geometry_of(const Tensor *t) {
  Geometry g = {.dtype = t->dtype, .ndim = t->ndim, .offset = t->offset};
  memcpy(g.size, t->size, sizeof g.size);
  memcpy(g.stride, t->stride, sizeof g.stride);
  return g;
}

Status geometry_contiguous(const Call *c, Dtype d, Ints size, Geometry *g) {
  int64_t numel;
  if (size.n > MAX_DIMS) return op_fail(c, "%d dimensions: at most %d are supported", size.n, MAX_DIMS);
  if (!checked_numel(size.n, size.v, &numel)) {
    char buf[256];
    return op_fail(c, "impossible size %s", shape_describe(size.n, size.v, buf, sizeof buf));
  }
  *g = (Geometry){.dtype = d, .ndim = size.n};
  if (size.n) memcpy(g->size, size.v, (size_t)size.n * sizeof *size.v);
  contiguous_strides(g->ndim, g->size, g->stride);
  return OK;
}

Status out_geometry_view(Call *c, const Tensor *t, const Geometry *g) {
  TRY(out_view(c, t, g->ndim, g->size, g->stride, g->offset));
  c->out[c->nout - 1].tensor->dtype = g->dtype;
  return OK;
}

Status out_geometry_new(Call *c, const Geometry *g) { return out_new(c, g->dtype, g->ndim, g->size); }

Status geometry_check(const Call *c, const Geometry *g, const Tensor *t) {
  if (!t->storage) return OK;
  Tensor view = {.storage = t->storage, .dtype = g->dtype, .ndim = g->ndim, .offset = g->offset};
  memcpy(view.size, g->size, sizeof view.size);
  memcpy(view.stride, g->stride, sizeof view.stride);
  return tensor_check_bounds(&view, c->op->schema.name);
}

View geometry_view(const Geometry *g, const Tensor *t) {
  void *base = t->storage ? t->storage->data : NULL;
  char *data = base ? (char *)base + (size_t)g->offset * dtype_size(g->dtype) : NULL;
  return (View){data, g->size, g->stride, g->ndim, g->dtype};
}

Status need_tensor(const Call *c, int i, Tensor **out) {
  *out = in_tensor(c, i);
  if (*out) return OK;
  return op_fail(c, "argument '%s' must be a tensor, it is a %s", c->op->schema.params[i].name,
                 val_kind_name(c->arg[i].kind));
}

Status in_number(const Call *c, int i, Value *out) {
  const Tensor *t = in_tensor(c, i);
  *out = c->arg[i];
  if (!t) return OK;
  if (tensor_numel(t) != 1 || !tensor_data(t)) {
    char buf[128];
    return op_fail(c, "argument '%s' must be a number, it is %s", c->op->schema.params[i].name,
                   tensor_describe(t, buf, sizeof buf));
  }
  *out = val_load(t->dtype, tensor_data(t));
  return OK;
}

/* ---- dimensions moved, added and dropped ---------------------------------------- */

static void remove_dim(Geometry *g, int dim) {
  size_t rest = (size_t)(g->ndim - dim - 1);
  memmove(g->size + dim, g->size + dim + 1, rest * sizeof *g->size);
  memmove(g->stride + dim, g->stride + dim + 1, rest * sizeof *g->stride);
  g->ndim--;
}

static Status insert_dim(const Call *c, Geometry *g, int dim, int64_t size, int64_t stride) {
  if (g->ndim == MAX_DIMS) return op_fail(c, "the result has more than %d dimensions", MAX_DIMS);
  size_t rest = (size_t)(g->ndim - dim);
  memmove(g->size + dim + 1, g->size + dim, rest * sizeof *g->size);
  memmove(g->stride + dim + 1, g->stride + dim, rest * sizeof *g->stride);
  g->size[dim] = size;
  g->stride[dim] = stride;
  g->ndim++;
  return OK;
}

static void swap_dims(Geometry *g, int a, int b) {
  int64_t size = g->size[a], stride = g->stride[a];
  g->size[a] = g->size[b], g->stride[a] = g->stride[b];
  g->size[b] = size, g->stride[b] = stride;
}

static void reorder(Geometry *g, const int *order) {
  Geometry old = *g;
  for (int i = 0; i < g->ndim; i++) g->size[i] = old.size[order[i]], g->stride[i] = old.stride[order[i]];
}

Status geometry_alias(const Call *c, int first, Geometry *g) { return (void)c, (void)first, (void)g, OK; }

Status geometry_transpose(const Call *c, int first, Geometry *g) {
  int a, b;
  TRY(wrap_dim(c, in_int(c, first), g->ndim, &a));
  TRY(wrap_dim(c, in_int(c, first + 1), g->ndim, &b));
  if (g->ndim) swap_dims(g, a, b);
  return OK;
}

Status geometry_t(const Call *c, int first, Geometry *g) {
  (void)first;
  if (g->ndim > 2) return op_fail(c, "expects at most 2 dimensions, not %d", g->ndim);
  if (g->ndim == 2) swap_dims(g, 0, 1);
  return OK;
}

Status geometry_reverse(const Call *c, int first, Geometry *g) {
  (void)c, (void)first;
  for (int i = 0, j = g->ndim - 1; i < j; i++, j--) swap_dims(g, i, j);
  return OK;
}

Status geometry_mt(const Call *c, int first, Geometry *g) {
  (void)first;
  if (g->ndim == 1 || (g->ndim == 0 && strstr(c->op->schema.name, "adjoint"))) {
    return op_fail(c, "expects a matrix or a batch of matrices, not %d dimensions", g->ndim);
  }
  if (dtype_kind(g->dtype) == KIND_COMPLEX && !strstr(c->op->schema.name, "mT"))
    return op_fail(c, "does not take complex tensors");
  if (g->ndim) swap_dims(g, g->ndim - 2, g->ndim - 1);
  return OK;
}

Status geometry_permute(const Call *c, int first, Geometry *g) {
  Ints dims = in_ints(c, first);
  bool seen[MAX_DIMS];
  if (dims.n != g->ndim) return op_fail(c, "%d dimensions are listed, the tensor has %d", dims.n, g->ndim);
  TRY(wrap_dims(c, dims, g->ndim, seen));
  int order[MAX_DIMS];
  for (int i = 0; i < dims.n; i++) order[i] = (int)(dims.v[i] < 0 ? dims.v[i] + g->ndim : dims.v[i]);
  reorder(g, order);
  return OK;
}

/* Dimension source[i] goes to destination[i]; the others keep their order. */
static Status move_dims(const Call *c, Ints source, Ints destination, Geometry *g) {
  bool from[MAX_DIMS], to[MAX_DIMS];
  if (source.n != destination.n)
    return op_fail(c, "%d dimensions cannot move to %d places", source.n, destination.n);
  TRY(wrap_dims(c, source, g->ndim, from));
  TRY(wrap_dims(c, destination, g->ndim, to));
  if (g->ndim == 0) return OK;
  int order[MAX_DIMS];
  for (int i = 0; i < source.n; i++) {
    int64_t s = source.v[i], d = destination.v[i];
    order[d < 0 ? d + g->ndim : d] = (int)(s < 0 ? s + g->ndim : s);
  }
  for (int d = 0, s = 0; d < g->ndim; d++) {
    if (to[d]) continue;
    while (from[s]) s++;
    order[d] = s++;
  }
  reorder(g, order);
  return OK;
}

Status geometry_movedim(const Call *c, int first, Geometry *g) {
  int64_t source = in_int(c, first), destination = in_int(c, first + 1);
  return move_dims(c, (Ints){&source, 1}, (Ints){&destination, 1}, g);
}

Status geometry_movedims(const Call *c, int first, Geometry *g) {
  return move_dims(c, in_ints(c, first), in_ints(c, first + 1), g);
}

Status geometry_squeeze_all(const Call *c, int first, Geometry *g) {
  (void)c, (void)first;
  for (int i = g->ndim - 1; i >= 0; i--) {
    if (g->size[i] == 1) remove_dim(g, i);
  }
  return OK;
}

static Status squeeze(const Call *c, Ints dims, Geometry *g) {
  bool drop[MAX_DIMS];
  TRY(wrap_dims(c, dims, g->ndim, drop));
  for (int i = g->ndim - 1; i >= 0; i--) {
    if (drop[i] && g->size[i] == 1) remove_dim(g, i);
  }
  return OK;
}

Status geometry_squeeze_dim(const Call *c, int first, Geometry *g) {
  int64_t dim = in_int(c, first);
  return squeeze(c, (Ints){&dim, 1}, g);
}

Status geometry_squeeze_dims(const Call *c, int first, Geometry *g) { return squeeze(c, in_ints(c, first), g); }

Status geometry_unsqueeze(const Call *c, int first, Geometry *g) {
  int dim;
  TRY(wrap_dim(c, in_int(c, first), g->ndim + 1, &dim));
  return insert_dim(c, g, dim, 1, dim < g->ndim ? g->size[dim] * g->stride[dim] : 1);
}

/* ---- repeated by stride 0 -------------------------------------------------------- */

static Status expand(const Call *c, Ints size, Geometry *g) {
  int fresh = size.n - g->ndim;
  char a[128], b[128];
  if (fresh < 0 || size.n > MAX_DIMS) {
    return op_fail(c, "size %s has too few or too many dimensions for %s",
                   shape_describe(size.n, size.v, b, sizeof b), shape_describe(g->ndim, g->size, a, sizeof a));
  }
  Geometry old = *g;
  for (int i = size.n - 1; i >= 0; i--) {
    int d = i - fresh;
    int64_t have = d >= 0 ? old.size[d] : 1;
    int64_t stride = d >= 0 ? old.stride[d] : old.ndim ? g->size[i + 1] * g->stride[i + 1] : 0;
    int64_t want = size.v[i] == -1 && d >= 0 ? have : size.v[i];
    if (want < 0 || (have != want && have != 1)) {
      return op_fail(c, "%s cannot be expanded to %s", shape_describe(old.ndim, old.size, a, sizeof a),
                     shape_describe(size.n, size.v, b, sizeof b));
    }
    g->size[i] = want;
    g->stride[i] = have == want ? stride : 0;
  }
  g->ndim = size.n;
  return OK;
}

Status geometry_expand(const Call *c, int first, Geometry *g) { return expand(c, in_ints(c, first), g); }

Status geometry_expand_as(const Call *c, int first, Geometry *g) {
  Tensor *other;
  TRY(need_tensor(c, first, &other));
  return expand(c, (Ints){other->size, other->ndim}, g);
}

/* ---- parts ------------------------------------------------------------------------ */

void slice_bounds(const Value *start, const Value *end, int64_t size, int64_t *from, int64_t *to) {
  int64_t a = start->kind == VAL_NONE ? 0 : val_as_int(start),
          b = end->kind == VAL_NONE ? INT64_MAX : val_as_int(end);
  if (a < 0) a += size;
  if (b < 0) b += size;
  *from = a < 0 ? 0 : a > size ? size : a;
  *to = b < *from ? *from : b > size ? size : b;
}

/* An enormous step takes one element at most; the product, or bytes of it, would overflow. */
static int64_t stride_of_step(int64_t stride, int64_t step) {
  return __builtin_mul_overflow(stride, step, &stride) || stride > INT64_MAX / 16 ? 0 : stride;
}

Status geometry_cut(const Call *c, Geometry *g, int dim, int64_t start, int64_t end, int64_t step) {
  if (step <= 0) return op_fail(c, "the step must be positive, not %lld", (long long)step);
  int64_t length = end - start;
  g->offset += start * g->stride[dim];
  g->size[dim] = length / step + (length % step != 0);
  g->stride[dim] = stride_of_step(g->stride[dim], step);
  return OK;
}

Status geometry_slice(const Call *c, int first, Geometry *g) {
  int dim;
  int64_t start, end;
  if (g->ndim == 0) return op_fail(c, "a 0-d tensor has nothing to slice");
  TRY(wrap_dim(c, in_int(c, first), g->ndim, &dim));
  slice_bounds(&c->arg[first + 1], &c->arg[first + 2], g->size[dim], &start, &end);
  return geometry_cut(c, g, dim, start, end, in_int(c, first + 3));
}

Status geometry_select(const Call *c, int first, Geometry *g) {
  int dim;
  if (g->ndim == 0) return op_fail(c, "a 0-d tensor has nothing to select from");
  TRY(wrap_dim(c, in_int(c, first), g->ndim, &dim));
  int64_t index = in_int(c, first + 1), size = g->size[dim];
  if (index < -size || index >= size) {
    return op_fail(c, "index %lld is out of range for dimension %d with size %lld", (long long)index, dim,
                   (long long)size);
  }
  g->offset += (index < 0 ? index + size : index) * g->stride[dim];
  remove_dim(g, dim);
  return OK;
}

Status geometry_narrow(const Call *c, int first, Geometry *g) {
  int dim;
  if (g->ndim == 0) return op_fail(c, "a 0-d tensor cannot be narrowed");
  TRY(wrap_dim(c, in_int(c, first), g->ndim, &dim));
  int64_t given = in_int(c, first + 1), length = in_int(c, first + 2), size = g->size[dim];
  int64_t start = given < 0 ? given + size : given;
  if (start < 0 || length < 0 || start > size || length > size - start) {
    return op_fail(c, "start %lld and length %lld exceed dimension %d of size %lld", (long long)given,
                   (long long)length, dim, (long long)size);
  }
  return geometry_cut(c, g, dim, start, start + length, 1);
}

Status geometry_diagonal(const Call *c, int first, Geometry *g) {
  int a, b;
  int64_t offset = in_int(c, first);
  TRY(wrap_dim(c, in_int(c, first + 1), g->ndim, &a));
  TRY(wrap_dim(c, in_int(c, first + 2), g->ndim, &b));
  if (a == b || g->ndim < 2) return op_fail(c, "the two dimensions of a diagonal must differ, both are %d", a);
  int64_t rows = g->size[a], columns = g->size[b];
  if (offset >= 0) columns = offset < columns ? columns - offset : 0;
  else rows = offset > -rows ? rows + offset : 0;
  int64_t length = rows < columns ? rows : columns, stride = g->stride[a] + g->stride[b];
  if (length > 0) g->offset += offset >= 0 ? offset * g->stride[b] : -offset * g->stride[a];
  remove_dim(g, a > b ? a : b);
  remove_dim(g, a > b ? b : a);
  return insert_dim(c, g, g->ndim, length, stride);
}

Status geometry_unfold(const Call *c, int first, Geometry *g) {
  int dim;
  TRY(wrap_dim(c, in_int(c, first), g->ndim, &dim));
  int64_t size = in_int(c, first + 1), step = in_int(c, first + 2), have = g->ndim ? g->size[dim] : 1;
  if (size < 0 || step <= 0 || size > have) {
    return op_fail(c, "windows of %lld every %lld elements do not fit dimension %d of size %lld", (long long)size,
                   (long long)step, dim, (long long)have);
  }
  int64_t stride = g->ndim ? g->stride[dim] : 1;
  if (g->ndim) {
    g->size[dim] = (have - size) / step + 1;
    g->stride[dim] = stride_of_step(stride, step);
  }
  return insert_dim(c, g, g->ndim, size, stride);
}

/* Places are counted in 64 bits, bytes of the largest elements too. */
static bool reaches_too_far(const Geometry *g) {
  int64_t last = g->offset, reach;
  for (int i = 0; i < g->ndim; i++) {
    if (g->size[i] == 0) return false;
    if (__builtin_mul_overflow(g->size[i] - 1, g->stride[i], &reach) || __builtin_add_overflow(last, reach, &last))
      return true;
  }
  return last > INT64_MAX / 16;
}

Status geometry_as_strided(const Call *c, int first, Geometry *g) {
  Ints size = in_ints(c, first), stride = in_ints(c, first + 1);
  bool given = first + 2 < c->op->schema.nparams && !in_none(c, first + 2);
  int64_t offset = given ? in_int(c, first + 2) : g->offset;
  if (size.n != stride.n) return op_fail(c, "%d sizes and %d strides", size.n, stride.n);
  TRY(geometry_contiguous(c, g->dtype, size, g));
  if (stride.n) memcpy(g->stride, stride.v, (size_t)stride.n * sizeof *stride.v);
  g->offset = offset;
  for (int i = 0; i < g->ndim; i++) {
    if (stride.v[i] < 0) return op_fail(c, "negative strides are not supported");
    if (stride.v[i] > INT64_MAX / 16) return op_fail(c, "there is no stride %lld", (long long)stride.v[i]);
  }
  if (offset < 0) return op_fail(c, "the storage offset is negative: %lld", (long long)offset);
  if (offset > INT64_MAX / 16) return op_fail(c, "there is no storage offset %lld", (long long)offset);
  return reaches_too_far(g) ? op_fail(c, "sizes and strides reach beyond any storage") : OK;
}

/* ---- the same bytes as another dtype ----------------------------------------------- */

Status geometry_view_as_real(const Call *c, int first, Geometry *g) {
  (void)first;
  if (g->dtype != DT_C64) return op_fail(c, "expects a complex tensor, not %s", dtype_name(g->dtype));
  for (int i = 0; i < g->ndim; i++) g->stride[i] *= 2;
  g->offset *= 2;
  g->dtype = DT_F32;
  return insert_dim(c, g, g->ndim, 2, 1);
}

Status geometry_view_as_complex(const Call *c, int first, Geometry *g) {
  (void)first;
  int last = g->ndim - 1;
  bool even = last >= 0 && g->size[last] == 2 && g->stride[last] == 1 && g->offset % 2 == 0;
  for (int i = 0; i < last; i++) even &= g->size[i] <= 1 || g->stride[i] % 2 == 0;
  if (g->dtype != DT_F32 || !even) {
    return op_fail(c, "expects f32 pairs that lie together: a last dimension of size 2 and stride 1, other strides "
                      "and the offset even");
  }
  for (int i = 0; i < last; i++) g->stride[i] /= 2;
  g->offset /= 2;
  g->ndim = last;
  g->dtype = DT_C64;
  return OK;
}

static Status complex_part(const Call *c, Geometry *g, int part) {
  TRY(geometry_view_as_real(c, 0, g));
  g->ndim--;
  g->offset += part;
  return OK;
}

Status geometry_real(const Call *c, int first, Geometry *g) {
  (void)first;
  return dtype_kind(g->dtype) == KIND_COMPLEX ? complex_part(c, g, 0) : OK;
}

Status geometry_imag(const Call *c, int first, Geometry *g) { return (void)first, complex_part(c, g, 1); }

Status geometry_view_dtype(const Call *c, int first, Geometry *g) {
  Dtype to = in_dtype(c, first, g->dtype);
  int64_t from_size = (int64_t)dtype_size(g->dtype), to_size = (int64_t)dtype_size(to);
  int last = g->ndim - 1;
  if (from_size > to_size ? last < 0 || g->stride[last] != 1
                          : from_size < to_size && (last < 0 || g->stride[last] != 1)) {
    return op_fail(c, "the last dimension must have stride 1 to see %s as %s", dtype_name(g->dtype),
                   dtype_name(to));
  }
  if (from_size > to_size) {
    int64_t parts = from_size / to_size;
    for (int i = 0; i < last; i++) g->stride[i] *= parts;
    g->size[last] *= parts;
    g->offset *= parts;
  } else if (from_size < to_size) {
    int64_t parts = to_size / from_size;
    bool fits = g->size[last] % parts == 0 && g->offset % parts == 0;
    for (int i = 0; i < last; i++) fits &= g->stride[i] % parts == 0;
    if (!fits)
      return op_fail(c, "size, strides and offset must be multiples of %lld to see %s as %s", (long long)parts,
                     dtype_name(g->dtype), dtype_name(to));
    for (int i = 0; i < last; i++) g->stride[i] /= parts;
    g->size[last] /= parts;
    g->offset /= parts;
  }
  g->dtype = to;
  return OK;
}

/* ---- sizes -------------------------------------------------------------------------- */

Status infer_size(const Call *c, Ints size, int64_t numel, int64_t *out) {
  int64_t known = 1;
  int unknown = -1;
  char buf[256];
  bool bad = size.n > MAX_DIMS;
  for (int i = 0; i < size.n && !bad; i++) {
    out[i] = size.v[i];
    if (size.v[i] == -1) bad = unknown >= 0, unknown = i;
    else bad = size.v[i] < 0 || __builtin_mul_overflow(known, size.v[i], &known);
  }
  if (!bad && unknown >= 0 && known > 0) out[unknown] = numel / known, known *= out[unknown];
  if (bad || known != numel || (unknown >= 0 && out[unknown] < 0)) {
    return op_fail(c, "%lld elements cannot have size %s", (long long)numel,
                   shape_describe(size.n, size.v, buf, sizeof buf));
  }
  return OK;
}

/* From the outermost dimension to the innermost. */
static const int channels_last_order[2][5] = {{0, 2, 3, 1}, {0, 2, 3, 4, 1}};

/* ATen's order for tensors with gaps or repeats: by stride, where a stride of 0 and
 * equal strides leave the question open and the sizes or the given order decide. */
static void order_by_stride(const Tensor *t, int *order) {
  int n = t->ndim;
  for (int i = 0; i < n; i++) order[i] = n - 1 - i; /* innermost first */
  for (int i = 1; i < n; i++) {
    for (int here = i, below = i - 1; below >= 0; below--) {
      int64_t a = t->stride[order[below]], b = t->stride[order[here]];
      bool unclear = a == 0 || b == 0;
      if (!unclear && (a > b || (a == b && t->size[order[below]] > t->size[order[here]]))) {
        int swap = order[below];
        order[below] = order[here], order[here] = swap;
        here = below;
      } else if (!unclear) {
        break;
      }
    }
  }
  for (int i = 0, j = n - 1; i < j; i++, j--) {
    int swap = order[i];
    order[i] = order[j], order[j] = swap;
  }
}

Status format_strides(const Call *c, MemoryFormat format, const Tensor *t, int64_t *stride) {
  if (format == MEMORY_CONTIGUOUS) return contiguous_strides(t->ndim, t->size, stride), OK;
  int by_stride[MAX_DIMS];
  const int *order = by_stride;
  if (format == MEMORY_PRESERVE) {
    order_by_stride(t, by_stride);
  } else {
    int need = format == MEMORY_CHANNELS_LAST ? 4 : 5;
    if (t->ndim != need) return op_fail(c, "channels_last needs %d dimensions, the tensor has %d", need, t->ndim);
    order = channels_last_order[need - 4];
  }
  int64_t n = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    stride[order[i]] = n;
    n *= t->size[order[i]] > 1 ? t->size[order[i]] : 1;
  }
  return OK;
}

Status out_format(Call *c, Dtype d, const Tensor *t, const Value *format) {
  int64_t stride[MAX_DIMS];
  TRY(format_strides(c, format && format->kind == VAL_MEMORY_FORMAT ? format->memory_format : MEMORY_PRESERVE, t,
                     stride));
  return out_strided(c, d, t->ndim, t->size, stride);
}

Status broadcast_size(const Call *c, int *ndim, int64_t *size, int other_ndim, const int64_t *other) {
  int n = *ndim > other_ndim ? *ndim : other_ndim;
  int64_t joined[MAX_DIMS];
  for (int i = 0; i < n; i++) {
    int a = i - (n - *ndim), b = i - (n - other_ndim);
    int64_t x = a >= 0 ? size[a] : 1, y = b >= 0 ? other[b] : 1;
    if (x != y && x != 1 && y != 1) {
      char one[128], two[128];
      return op_fail(c, "sizes %s and %s do not broadcast", shape_describe(*ndim, size, one, sizeof one),
                     shape_describe(other_ndim, other, two, sizeof two));
    }
    joined[i] = x == 1 ? y : x;
  }
  memcpy(size, joined, (size_t)n * sizeof *size);
  *ndim = n;
  return OK;
}

void broadcast_strides(const Tensor *t, int ndim, int64_t *stride) {
  for (int i = 0; i < ndim; i++) {
    int d = i - (ndim - t->ndim);
    stride[i] = d >= 0 && t->size[d] != 1 ? t->stride[d] : 0;
  }
}
