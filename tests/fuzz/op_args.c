/* op_args.c -- see op_args.h. */
#include "op_args.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"

enum { MAX_LIST = 300, MAX_ELEMENTS = 1200, MAX_TAME = 48 };

/* ---- choices -------------------------------------------------------------------------------- */

int64_t below(Choices *c, int64_t n) {
  uint64_t x = 0;
  size_t bytes = n > 256 ? 2 : 1;
  if (c->left < bytes) return (int64_t)(random_bits(&c->state) % (uint64_t)n);
  memcpy(&x, c->at, bytes);
  c->at += bytes;
  c->left -= bytes;
  return (int64_t)(x % (uint64_t)n);
}

bool chance(Choices *c, int percent) { return below(c, 100) < percent; }

void tell(const Made *m, const char *text) {
  if (!m->story) return;
  size_t at = strlen(m->story);
  snprintf(m->story + at, STORY - at, "%s", text);
}

/* ---- numbers ------------------------------------------------------------------------------------ */

int64_t any_int(Made *m) {
  static const int64_t odd[] = {INT64_MIN,  INT64_MAX,       INT32_MIN,    INT32_MAX,     -1,    1LL << 31,
                                1LL << 40,  1LL << 62,       -(1LL << 40), INT64_MAX - 1, 65536, 100000,
                                1000000007, (1LL << 33) + 1, 255,          INT64_MIN + 1, 16,    17};
  int64_t r = below(&m->pick, m->tame ? 70 : 100);
  if (r < 55) return below(&m->pick, 4);
  if (r < 70) return m->sizes[below(&m->pick, 3)];
  if (r < 85) return below(&m->pick, 14) - 5;
  if (r < 93) return below(&m->pick, 1000) - 200;
  return odd[below(&m->pick, sizeof odd / sizeof *odd)];
}

static double any_float(Made *m) {
  static const double odd[] = {NAN,  INFINITY,     -INFINITY, 1e308,   -1e308, 1e-320, 1e19, -1e19,
                               1e10, 4294967296.5, 0x1p63,    -0x1p63, 1e-30,  3e38,   1e5,  -0.0};
  if (m->tame || chance(&m->pick, 85)) return (double)(below(&m->pick, 33) - 8) / 8;
  return odd[below(&m->pick, sizeof odd / sizeof *odd)];
}

Value any_number(Made *m) {
  switch (m->tame ? 4 + below(&m->pick, 2) : below(&m->pick, 8)) {
    case 0: return val_bool(below(&m->pick, 2));
    case 1: return (Value){.kind = VAL_COMPLEX, .complex_ = {any_float(m), any_float(m)}};
    case 2:
    case 3:
    case 4: return val_int(any_int(m));
    default: return val_float(any_float(m));
  }
}

Dtype any_dtype(Made *m) {
  static const Dtype common[] = {DT_F32, DT_F32, DT_F32, DT_F32,  DT_F64, DT_BF16,
                                 DT_F16, DT_I64, DT_I64, DT_BOOL, DT_C64};
  if (m->tame) return m->dtype;
  return chance(&m->pick, 80) ? common[below(&m->pick, sizeof common / sizeof *common)]
                              : (Dtype)below(&m->pick, DT_COUNT);
}

/* ---- tensors -------------------------------------------------------------------------------------- */

/* Small enough that calls are quick. */
int fresh_sizes(Made *m, int64_t *size) {
  int ndim = (int)below(&m->pick, 6);
  int64_t numel = 1;
  for (int d = 0; d < ndim; d++) {
    size[d] = m->sizes[below(&m->pick, 3)];
    if (numel * size[d] > (m->tame ? MAX_TAME : MAX_ELEMENTS)) size[d] = m->tame ? 1 : 2;
    numel *= size[d];
  }
  return ndim;
}

static int any_sizes(Made *m, int64_t *size) {
  int64_t r = below(&m->pick, 100);
  int ndim = m->ndim;
  if (r < 75) {
    memcpy(size, m->size, sizeof m->size);
    if (r >= 55 && ndim) size[below(&m->pick, ndim)] = chance(&m->pick, 60) ? 1 : m->sizes[below(&m->pick, 3)];
    if (r >= 68 && ndim) memmove(size, size + 1, (size_t)--ndim * sizeof *size);
    return ndim;
  }
  return fresh_sizes(m, size);
}

/* Strides: in order or not, with gaps or without, some dimensions all on one element. */
static int64_t any_strides(Made *m, int ndim, const int64_t *size, int64_t *stride) {
  int64_t step = 1, last = 0;
  int order[MAX_DIMS];
  bool plain = chance(&m->pick, 60);
  for (int d = 0; d < ndim; d++) order[d] = ndim - 1 - d;
  for (int d = 0; d + 1 < ndim && !plain; d++) {
    int other = d + (int)below(&m->pick, ndim - d), swap = order[d];
    order[d] = order[other], order[other] = swap;
  }
  for (int k = 0; k < ndim; k++) {
    int d = order[k];
    if (!plain && !m->tame && chance(&m->pick, 15)) step *= 2;
    stride[d] = !plain && !m->tame && chance(&m->pick, 10) ? below(&m->pick, 2) : step;
    if (size[d] > 1) last += (size[d] - 1) * stride[d];
    step *= size[d] > 1 ? size[d] : 1;
  }
  return last + 1;
}

static double between(uint64_t *state, double low, double high) {
  return low + (double)(random_bits(state) >> 11) / 0x1p53 * (high - low);
}

/* An element of a tensor, from random bits. */
static Value element(const Made *m, Dtype d, bool places, bool odd, uint64_t r) {
  if (m->tame && d == DT_BOOL) return val_bool(r >> 40 & 1);
  if (m->tame && dtype_kind(d) >= KIND_FLOAT)
    return (Value){.kind = VAL_COMPLEX, .complex_ = {between(&r, m->low, m->high), between(&r, m->low, m->high)}};
  if (places) return val_int((int64_t)(r % 3));
  if (odd && r >> 32 & 1) return any_number(&(Made){.pick = {.state = r}, .sizes = {1, 2, 3}});
  return val_float((double)(r % 33) / 8 - 2);
}

/* The first elements are random, the others repeat them. */
static void fill(Made *m, Tensor *flat, bool places) {
  bool odd = !m->tame && chance(&m->pick, 20);
  uint64_t state = m->pick.state ^ 0x66696c6c;
  size_t width = dtype_size(flat->dtype), made = 61 * width, all = (size_t)flat->size[0] * width;
  char first[61 * 16], *data = tensor_data(flat);
  for (size_t i = 0; i < 61 && i * width < all; i++) {
    uint64_t r = random_bits(&state), two[2] = {r, r};
    Value v = element(m, flat->dtype, places, odd, r);
    if (dtype_is_compute(flat->dtype)) val_store(&v, flat->dtype, first + i * width);
    else memcpy(first + i * width, two, width);
  }
  for (size_t at = 0; at < all; at += made) memcpy(data + at, first, all - at < made ? all - at : made);
}

static Placement any_placement(Made *m, const Tensor *t) {
  static const ReduceOp ops[] = {REDUCE_SUM, REDUCE_SUM, REDUCE_AVG, REDUCE_MAX, REDUCE_MIN};
  int64_t r = below(&m->pick, 8);
  if (r < 2 || (!t->ndim && r < 6)) return place_r();
  if (r == 2 || !t->ndim) return place_p(ops[below(&m->pick, 5)]);
  int dim = (int)below(&m->pick, t->ndim);
  return r == 3 ? place_strided(dim, 2) : place_s(dim);
}

Status any_spread(Made *m, Tensor **t) {
  Placement p[MAX_AXES];
  if (!m->mesh || chance(&m->pick, 10)) return OK;
  for (int a = 0; a < m->mesh->naxes; a++) p[a] = any_placement(m, *t);
  char text[128];
  tell(m, placements_print(p, m->mesh->naxes, text, sizeof text));
  return dtensor_distribute(m->ctx, m->scope, *t, m->mesh, p, -1, t);
}

/* Does an argument of this name hold places, which are small integers? */
static bool holds_places(const char *name) {
  static const char *const words[] = {"ind", "target", "offset", "repeats", "bucket", "token", "length", "offs"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strstr(name, words[i])) return true;
  return false;
}

/* Of this size and dtype, with any layout and elements, spread if there is a mesh. */
Status tensor_of(Made *m, Dtype d, int ndim, const int64_t *size, bool places, Tensor **out) {
  int64_t stride[MAX_DIMS], offset = chance(&m->pick, 10) ? below(&m->pick, 4) : 0;
  int64_t extent = any_strides(m, ndim, size, stride);
  char text[128];
  Tensor *flat;
  TRY(tensor_new(m->scope, d, 1, (int64_t[]){extent + offset}, &flat));
  fill(m, flat, places);
  TRY(tensor_as_strided(m->scope, flat, ndim, size, stride, offset, out));
  tell(m, tensor_describe(*out, text, sizeof text));
  if (!tensor_is_contiguous(*out)) tell(m, "~");
  return any_spread(m, out);
}

Status any_tensor(Made *m, const char *name, Tensor **out) {
  int64_t size[MAX_DIMS];
  if (m->earlier && !m->tame && chance(&m->pick, 6)) return *out = m->earlier, tell(m, "the same"), OK;
  bool places = holds_places(name);
  Dtype d = places && chance(&m->pick, m->tame ? 70 : 85)  ? DT_I64
            : strstr(name, "mask") && chance(&m->pick, 50) ? DT_BOOL
            : chance(&m->pick, 80)                         ? m->dtype
                                                           : any_dtype(m);
  int ndim = any_sizes(m, size);
  TRY(tensor_of(m, d, ndim, size, places, out));
  m->earlier = *out;
  return OK;
}

/* ---- arguments -------------------------------------------------------------------------------------- */

static const char *any_str(Made *m) {
  static const char *const words[] = {"none",
                                      "tanh",
                                      "mean",
                                      "sum",
                                      "floor",
                                      "trunc",
                                      "constant",
                                      "reflect",
                                      "replicate",
                                      "circular",
                                      "bilinear",
                                      "nearest",
                                      "ij",
                                      "xy",
                                      "left",
                                      "right",
                                      "amax",
                                      "amin",
                                      "prod",
                                      "",
                                      "bogus",
                                      "ij,jk->ik",
                                      "...i,...i",
                                      "ii->i",
                                      "ab,b,cb->",
                                      "a...,->a",
                                      "i->ij",
                                      "relu",
                                      "gelu",
                                      "silu",
                                      "cpu",
                                      "euclidean",
                                      "linear",
                                      "reduce",
                                      "avg",
                                      "0",
                                      "tag",
                                      "S(0)",
                                      "aten.add.Tensor(x0,x1)",
                                      "aten.relu.default(x0)",
                                      "aten.mul.Tensor(x0,x1);aten.relu.default(y0)",
                                      "x0",
                                      "aten.neg.default(x9)",
                                      "backward",
                                      "ortho",
                                      "forward",
                                      "same",
                                      "valid",
                                      "max",
                                      "inf",
                                      "fro",
                                      "nuc"};
  return words[below(&m->pick, sizeof words / sizeof *words)];
}

static int any_length(Made *m, const Param *p) {
  if (p->length > 1 && chance(&m->pick, 93)) return p->length;
  int64_t r = below(&m->pick, m->tame ? 92 : 100);
  return r < 50 ? m->ndim : r < 92 ? (int)below(&m->pick, 7) : r < 97 ? (int)below(&m->pick, 40) : MAX_LIST;
}

static Status any_ints(Made *m, const Param *p, Value *out) {
  int n = any_length(m, p);
  int64_t *list;
  char text[128];
  TRY_NEW(list, arena_new_n(m->arena, int64_t, n));
  bool sizes = chance(&m->pick, 25), dims = chance(&m->pick, 35), wild = chance(&m->pick, 15);
  for (int i = 0; i < n; i++)
    list[i] = sizes && i < m->ndim ? m->size[i]
              : dims && m->ndim    ? below(&m->pick, m->ndim)
              : wild               ? any_int(m)
                                   : below(&m->pick, 4);
  *out = val_ints(list, n);
  tell(m, shape_describe(n, list, text, sizeof text));
  return OK;
}

static Status any_list(Made *m, const Param *p, Value *out) {
  int n = any_length(m, p);
  if (p->type == TYPE_INT) return any_ints(m, p, out);
  if (n > 40) n = 40;
  if (p->type == TYPE_TENSOR) {
    Tensor **list;
    if (n > 4) n = (int)below(&m->pick, 5);
    TRY_NEW(list, arena_new_n(m->arena, Tensor *, n));
    tell(m, "[");
    for (int i = 0; i < n; i++)
      if (!chance(&m->pick, p->item_optional ? 30 : m->tame ? 0 : 2)) TRY(any_tensor(m, p->name, &list[i]));
      else tell(m, "None");
    tell(m, "]");
    *out = val_tensors(list, n);
    return OK;
  }
  Value *list;
  double *floats;
  bool *bools;
  TRY_NEW(list, arena_new_n(m->arena, Value, n));
  TRY_NEW(floats, arena_new_n(m->arena, double, n));
  TRY_NEW(bools, arena_new_n(m->arena, bool, n));
  for (int i = 0; i < n; i++) {
    floats[i] = any_float(m);
    bools[i] = below(&m->pick, 2);
    list[i] = p->type == TYPE_STR ? val_str(any_str(m)) : any_number(m);
  }
  *out = p->type == TYPE_FLOAT  ? val_floats(floats, n)
         : p->type == TYPE_BOOL ? val_bools(bools, n)
                                : (Value){.kind = VAL_LIST, .n = n, .list = list};
  tell(m, "list");
  return OK;
}

Status any_value(Made *m, const Param *p, Value *out) {
  char text[64];
  *out = val_none();
  if (p->list) return any_list(m, p, out);
  switch (p->type) {
    case TYPE_TENSOR: {
      Tensor *t = NULL;
      TRY(any_tensor(m, p->name, &t));
      *out = val_tensor(t);
      return OK;
    }
    case TYPE_INT:
      *out = val_int(strstr(p->name, "dim") && m->ndim && chance(&m->pick, 80)
                         ? below(&m->pick, 2 * m->ndim) - m->ndim
                         : any_int(m));
      break;
    case TYPE_FLOAT: *out = val_float(any_float(m)); break;
    case TYPE_BOOL: *out = val_bool(below(&m->pick, 2)); break;
    case TYPE_SCALAR: *out = any_number(m); break;
    case TYPE_STR: *out = val_str(any_str(m)); break;
    case TYPE_DTYPE:
      *out = (Value){.kind = VAL_DTYPE,
                     .dtype = chance(&m->pick, 3) ? (Dtype)(below(&m->pick, 60) - 20) : any_dtype(m)};
      break;
    case TYPE_LAYOUT: *out = (Value){.kind = VAL_LAYOUT}; break;
    case TYPE_MEMORY_FORMAT: *out = val_memory_format((MemoryFormat)below(&m->pick, 5)); break;
    case TYPE_DEVICE: *out = (Value){.kind = VAL_DEVICE, .str = "cpu"}; break;
    case TYPE_GENERATOR:
    case TYPE_GRAPH:
    case TYPE_ANY: break;
  }
  snprintf(text, sizeof text, "%s %.17g", out->kind == VAL_STR ? out->str : val_kind_name(out->kind),
           out->kind == VAL_DTYPE ? (double)out->dtype : val_as_float(out));
  tell(m, text);
  return OK;
}

/* Now and then an argument as another type would have it. */
Status any_arg(Made *m, const Param *p, Value *out) {
  Param other = *p;
  if (!m->tame && chance(&m->pick, 3)) {
    other.type = (TypeKind)below(&m->pick, TYPE_ANY);
    other.list = below(&m->pick, 2);
  }
  if (p->optional && chance(&m->pick, 50)) return *out = val_none(), OK;
  return any_value(m, &other, out);
}

Status any_args(Made *m, const Op *op, NamedValue *args, int *n) {
  *n = 0;
  for (int i = 0; i < op->schema.nparams; i++) {
    const Param *p = &op->schema.params[i];
    if (p->has_default && chance(&m->pick, 40)) continue;
    if (!m->tame && chance(&m->pick, 1)) continue;
    tell(m, *n ? ", " : "(");
    tell(m, p->name);
    tell(m, "=");
    args[*n].name = p->name;
    TRY(any_arg(m, p, &args[(*n)++].value));
  }
  return OK;
}
