/* index.c -- see index.h.
 *
 * The iteration space is first folded: dimensions of size 1 go, neighbours that every
 * stride treats as one become one.  Then the last dimension is a row.  If no index
 * varies along it, a row is a strided copy (a memcpy for whole embeddings); else every
 * element of the row looks up its own place.
 */
#include "kernels/index.h"

#include <string.h>

#include "kernels/bits.h"
#include "kernels/odometer.h"

enum { GRAIN = 8192 }; /* elements worth a thread */

/* The map, folded, with the near view's strides; the row is the last dimension. */
typedef struct {
  IndexMap map;
  int64_t near_stride[MAX_DIMS];
  char *near, *far;
  size_t item;
  Dtype dtype;
  ScatterOp op;
  bool lookup; /* some index varies along the row */
  int split;   /* kernel_scatter: the dimension that is shared out */
} Job;

/* ---- folding ------------------------------------------------------------------------ */

/* Is dimension d a continuation of d + 1 for a list of strides? */
static bool continues(const int64_t *stride, int d, int64_t inner) { return stride[d] == stride[d + 1] * inner; }

static bool can_merge(const Job *j, int d) {
  int64_t inner = j->map.size[d + 1];
  bool ok = continues(j->near_stride, d, inner) && continues(j->map.stride, d, inner);
  for (int k = 0; k < j->map.nindex; k++) ok &= continues(j->map.index[k].stride, d, inner);
  return ok;
}

static void drop_dim(Job *j, int d) {
  IndexMap *m = &j->map;
  size_t rest = (size_t)(m->ndim - d - 1) * sizeof(int64_t);
  memmove(m->size + d, m->size + d + 1, rest);
  memmove(m->stride + d, m->stride + d + 1, rest);
  memmove(j->near_stride + d, j->near_stride + d + 1, rest);
  for (int k = 0; k < m->nindex; k++) memmove(m->index[k].stride + d, m->index[k].stride + d + 1, rest);
  m->ndim--;
}

static void fold(Job *j) {
  IndexMap *m = &j->map;
  for (int d = m->ndim - 1; d >= 0; d--) {
    if (m->size[d] == 1) drop_dim(j, d);
  }
  for (int d = m->ndim - 2; d >= 0; d--) {
    if (!can_merge(j, d)) continue;
    m->size[d + 1] *= m->size[d];
    drop_dim(j, d);
  }
  if (m->ndim == 0) { /* one element: a row of one */
    m->ndim = 1;
    m->size[0] = 1;
    m->stride[0] = j->near_stride[0] = 0;
    for (int k = 0; k < m->nindex; k++) m->index[k].stride[0] = 0;
  }
  for (int k = 0; k < m->nindex; k++) j->lookup |= m->index[k].stride[m->ndim - 1] != 0;
}

static Job job_of(const IndexMap *map, View near, const void *far, ScatterOp op) {
  Job j = {.map = *map,
           .near = near.data,
           .far = (char *)(uintptr_t)far,
           .item = dtype_size(near.dtype),
           .dtype = near.dtype,
           .op = op};
  if (near.ndim) memcpy(j.near_stride, near.stride, (size_t)near.ndim * sizeof *near.stride);
  fold(&j);
  return j;
}

/* ---- rows ---------------------------------------------------------------------------- */

/* The part of a row that one call does; offsets are in elements. */
typedef struct {
  int64_t n;
  char *near, *far; /* first element; far without what varies along the row */
  int64_t near_step, far_step;
  const int64_t *index[MAX_DIMS];
} Row;

static inline int64_t place(const Job *j, const Row *r, int64_t i) {
  int64_t at = i * r->far_step;
  int last = j->map.ndim - 1;
  for (int k = 0; k < j->map.nindex; k++)
    at += r->index[k][i * j->map.index[k].stride[last]] * j->map.index[k].step;
  return at;
}

/* Loops over a row with the common cases kept simple for the compiler: no index, one
 * index along the dimension itself, one index. */
#define ROW_LOOP(BODY)                                                                                             \
  const int64_t *index = r->index[0], next = j->map.index[0].stride[j->map.ndim - 1], step = j->map.index[0].step; \
  if (!j->lookup) {                                                                                                \
    for (int64_t i = 0; i < r->n; i++) {                                                                           \
      int64_t at = i * r->far_step;                                                                                \
      BODY                                                                                                         \
    }                                                                                                              \
  } else if (j->map.nindex == 1 && next == 1 && step == 1 && r->far_step == 0) {                                   \
    for (int64_t i = 0; i < r->n; i++) {                                                                           \
      int64_t at = index[i];                                                                                       \
      BODY                                                                                                         \
    }                                                                                                              \
  } else if (j->map.nindex == 1) {                                                                                 \
    for (int64_t i = 0; i < r->n; i++) {                                                                           \
      int64_t at = i * r->far_step + index[i * next] * step;                                                       \
      BODY                                                                                                         \
    }                                                                                                              \
  } else {                                                                                                         \
    for (int64_t i = 0; i < r->n; i++) {                                                                           \
      int64_t at = place(j, r, i);                                                                                 \
      BODY                                                                                                         \
    }                                                                                                              \
  }

#define GATHER_ROW(T)                                      \
  static void gather_row_##T(const Job *j, const Row *r) { \
    T *near = (T *)(void *)r->near;                        \
    const T *far = (const T *)(const void *)r->far;        \
    ROW_LOOP(near[i * r->near_step] = far[at];)            \
  }
GATHER_ROW(Bits8)
GATHER_ROW(Bits16)
GATHER_ROW(Bits32)
GATHER_ROW(Bits64)
GATHER_ROW(Bits128)

static void gather_row(const Job *j, const Row *r) {
  if (!j->lookup && r->near_step == 1 && r->far_step == 1) {
    memcpy(r->near, r->far, (size_t)r->n * j->item);
    return;
  }
  switch (j->item) {
    case 1: gather_row_Bits8(j, r); break;
    case 2: gather_row_Bits16(j, r); break;
    case 4: gather_row_Bits32(j, r); break;
    case 8: gather_row_Bits64(j, r); break;
    default: gather_row_Bits128(j, r);
  }
}

#define SCATTER_ROW(T, NAME, RESULT)                                                  \
  static void scatter_row_##NAME(const Job *j, const Row *r) {                        \
    const T *near = (const T *)(const void *)r->near;                                 \
    T *far = (T *)(void *)r->far;                                                     \
    ROW_LOOP(T a = far[at]; T b = near[i * r->near_step]; (void)a; far[at] = RESULT;) \
  }
SCATTER_ROW(Bits8, Bits8, b)
SCATTER_ROW(Bits16, Bits16, b)
SCATTER_ROW(Bits32, Bits32, b)
SCATTER_ROW(Bits64, Bits64, b)
SCATTER_ROW(Bits128, Bits128, b)

/* Integers add and multiply as unsigned ones: they wrap. */
#define SCATTER_ARITHMETIC(T, U)                     \
  SCATTER_ROW(T, add_##T, (T)((U)a + (U)b))          \
  SCATTER_ROW(T, mul_##T, (T)((U)a * (U)b))          \
  SCATTER_ROW(T, max_##T, (b != b || b > a) ? b : a) \
  SCATTER_ROW(T, min_##T, (b != b || b < a) ? b : a)
SCATTER_ARITHMETIC(uint8_t, uint32_t)
SCATTER_ARITHMETIC(int8_t, uint32_t)
SCATTER_ARITHMETIC(int16_t, uint32_t)
SCATTER_ARITHMETIC(int32_t, uint32_t)
SCATTER_ARITHMETIC(int64_t, uint64_t)
SCATTER_ARITHMETIC(float, float)
SCATTER_ARITHMETIC(double, double)
SCATTER_ROW(bool, or_bool, a || b)
SCATTER_ROW(bool, and_bool, a &&b)

typedef struct {
  float re, im;
} Complex;
SCATTER_ROW(Complex, add_Complex, ((Complex){a.re + b.re, a.im + b.im}))

typedef void RowFn(const Job *j, const Row *r);

#define ARITHMETIC(T) \
  { NULL, scatter_row_add_##T, scatter_row_mul_##T, scatter_row_max_##T, scatter_row_min_##T }
static RowFn *const scatter_rows[DT_COUNT][5] = {
    [DT_BOOL] = {NULL, scatter_row_or_bool, scatter_row_and_bool, scatter_row_or_bool, scatter_row_and_bool},
    [DT_U8] = ARITHMETIC(uint8_t),
    [DT_I8] = ARITHMETIC(int8_t),
    [DT_I16] = ARITHMETIC(int16_t),
    [DT_I32] = ARITHMETIC(int32_t),
    [DT_I64] = ARITHMETIC(int64_t),
    [DT_F32] = ARITHMETIC(float),
    [DT_F64] = ARITHMETIC(double),
    [DT_C64] = {NULL, scatter_row_add_Complex},
};

static void scatter_row(const Job *j, const Row *r) {
  if (j->op != SCATTER_ASSIGN) {
    RowFn *fn = scatter_rows[j->dtype][j->op];
    if (fn) fn(j, r);
    return;
  }
  if (!j->lookup && r->near_step == 1 && r->far_step == 1) {
    memcpy(r->far, r->near, (size_t)r->n * j->item);
    return;
  }
  switch (j->item) {
    case 1: scatter_row_Bits8(j, r); break;
    case 2: scatter_row_Bits16(j, r); break;
    case 4: scatter_row_Bits32(j, r); break;
    case 8: scatter_row_Bits64(j, r); break;
    default: scatter_row_Bits128(j, r);
  }
}

/* ---- all rows --------------------------------------------------------------------------- */

/* Elements [begin, end) of the folded space, in row-major order. */
static void for_rows(const Job *j, int64_t begin, int64_t end, RowFn *fn) {
  const IndexMap *m = &j->map;
  int last = m->ndim - 1;
  int64_t width = m->size[last];
  Odometer o = {.ndim = last, .size = m->size, .views = 2 + m->nindex, .stride = {j->near_stride, m->stride}};
  for (int k = 0; k < m->nindex; k++) o.stride[2 + k] = m->index[k].stride;
  odometer_begin(&o, begin / width);
  for (int64_t at = begin; at < end; odometer_next(&o)) {
    int64_t from = at % width, left = end - at, n = width - from < left ? width - from : left;
    int64_t far = o.offset[1] + from * m->stride[last];
    Row r = {.n = n, .near_step = j->near_stride[last], .far_step = m->stride[last]};
    for (int k = 0; k < m->nindex; k++) {
      r.index[k] = m->index[k].data + o.offset[2 + k] + from * m->index[k].stride[last];
      if (!j->lookup) far += *r.index[k] * m->index[k].step;
    }
    r.near = j->near + (o.offset[0] + from * r.near_step) * (int64_t)j->item;
    r.far = j->far + far * (int64_t)j->item;
    fn(j, &r);
    at += n;
  }
}

static void gather_part(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  for_rows(arg, begin, end, gather_row);
}

void kernel_gather(Kern *k, const IndexMap *map, View near, const void *far) {
  int64_t n = odometer_count(map->ndim, map->size);
  if (n == 0) return;
  Job j = job_of(map, near, far, SCATTER_ASSIGN);
  parallel_for(k->threads, n, GRAIN, gather_part, &j);
}

/* ---- writing ------------------------------------------------------------------------------ */

/* The job restricted to [begin, end) of its dimension `split`. */
static void scatter_part(void *arg, int64_t begin, int64_t end, int worker) {
  Job j = *(const Job *)arg;
  int d = j.split;
  (void)worker;
  j.near += begin * j.near_stride[d] * (int64_t)j.item;
  j.far += begin * j.map.stride[d] * (int64_t)j.item;
  for (int k = 0; k < j.map.nindex; k++) j.map.index[k].data += begin * j.map.index[k].stride[d];
  j.map.size[d] = end - begin;
  for_rows(&j, 0, odometer_count(j.map.ndim, j.map.size), scatter_row);
}

/* Threads share out a dimension in which positions never meet (I2), the longest. */
static int split_dim(const IndexMap *m) {
  int best = -1;
  for (int d = 0; d < m->ndim; d++) {
    if (m->stride[d] != 0 && (best < 0 || m->size[d] > m->size[best])) best = d;
  }
  return m->overlaps ? -1 : best;
}

void kernel_scatter(Kern *k, const IndexMap *map, void *far, View near, ScatterOp op) {
  int64_t n = odometer_count(map->ndim, map->size);
  if (n == 0) return;
  Job j = job_of(map, near, far, op);
  j.split = split_dim(&j.map);
  if (j.split < 0) {
    for_rows(&j, 0, n, scatter_row);
    return;
  }
  int64_t per_step = n / j.map.size[j.split];
  int64_t grain = GRAIN / per_step + 1;
  if (j.split == j.map.ndim - 1 && grain < 16) grain = 16; /* rows, not single elements */
  parallel_for(k->threads, j.map.size[j.split], grain, scatter_part, &j);
}

/* ---- positions of what is not zero ---------------------------------------------------------- */

#define NOT_ZERO(T, TEST)                            \
  for (int64_t i = 0; i < n; i++) {                  \
    T x = ((const T *)(const void *)data)[i * step]; \
    flags[i] = TEST;                                 \
  }                                                  \
  break

/* flags[i] = element i is not 0; nan is not, -0 is. */
static void not_zero(const char *data, int64_t step, Dtype d, int64_t n, uint8_t *flags) {
  switch (d) {
    case DT_F32: NOT_ZERO(float, x != 0);
    case DT_F64: NOT_ZERO(double, x != 0);
    case DT_F16:
    case DT_BF16: NOT_ZERO(uint16_t, (x & 0x7fff) != 0);
    case DT_C64: NOT_ZERO(Complex, x.re != 0 || x.im != 0);
    default:
      switch (dtype_size(d)) {
        case 1: NOT_ZERO(uint8_t, x != 0);
        case 2: NOT_ZERO(uint16_t, x != 0);
        case 4: NOT_ZERO(uint32_t, x != 0);
        default: NOT_ZERO(uint64_t, x != 0);
      }
  }
}

enum { FLAGS = 1024 };

/* Goes through the elements that are not 0, in row-major order, and stores their
 * coordinates as long as there is room; lists may be NULL.  Returns how many there are. */
static int64_t each_nonzero(View v, int64_t room, int64_t *lists, int64_t per_dim, int64_t per_item) {
  int last = v.ndim - 1, outer = v.ndim ? last : 0;
  int64_t one = 1, none = 0, count = 0, rows = odometer_count(outer, v.size);
  View row = v.ndim ? (View){v.data, v.size + last, v.stride + last, 1, v.dtype}
                    : (View){v.data, &one, &none, 1, v.dtype};
  uint8_t flags[FLAGS];
  Odometer o = {.ndim = outer, .size = v.size, .views = 1, .stride = {v.stride}};
  odometer_begin(&o, 0);
  for (int64_t r = 0; r < rows; r++, odometer_next(&o)) {
    for (int64_t begin = 0; begin < row.size[0]; begin += FLAGS) {
      int64_t n = row.size[0] - begin < FLAGS ? row.size[0] - begin : FLAGS, found = 0;
      not_zero((const char *)v.data + (o.offset[0] + begin * row.stride[0]) * (int64_t)dtype_size(v.dtype),
               row.stride[0], v.dtype, n, flags);
      for (int64_t i = 0; i < n; i++) found += flags[i];
      if (lists && found && found <= room - count) {
        int64_t columns[FLAGS + 1], at = 0, *to = lists + count * per_item;
        for (int64_t i = 0; i < n; i++) columns[at] = begin + i, at += flags[i]; /* the next overwrites a miss */
        for (int64_t i = 0; i < found; i++) to[outer * per_dim + i * per_item] = columns[i];
        for (int d = 0; d < outer; d++) {
          for (int64_t i = 0; i < found; i++) to[d * per_dim + i * per_item] = o.index[d];
        }
      }
      count += found;
    }
  }
  return count;
}

int64_t kernel_count_nonzero(View v) { return each_nonzero(v, 0, NULL, 0, 0); }

void kernel_nonzero(View v, int64_t n, int64_t *coordinates, int64_t per_dim, int64_t per_item) {
  if (v.ndim && n) each_nonzero(v, n, coordinates, per_dim, per_item);
}

/* ---- flat numbers ------------------------------------------------------------------------------ */

#define FLAT_DTYPES(X)                      \
  case DT_U8: X(uint8_t, uint32_t, by_int)  \
  case DT_I8: X(int8_t, uint32_t, by_int)   \
  case DT_I16: X(int16_t, uint32_t, by_int) \
  case DT_I32: X(int32_t, uint32_t, by_int) \
  case DT_I64: X(int64_t, uint64_t, by_int) \
  case DT_F32: X(float, float, by)          \
  case DT_F64: X(double, double, by)

void kernel_flat_scale(Dtype d, void *x, int64_t n, double by, int64_t by_int) {
#define SCALE(T, U, BY)                                                        \
  for (int64_t i = 0; i < n; i++) ((T *)x)[i] = (T)((U)((T *)x)[i] * (U)(BY)); \
  break;
  switch (d) {
    FLAT_DTYPES(SCALE)
    case DT_BOOL:
      for (int64_t i = 0; i < n; i++) ((bool *)x)[i] = ((bool *)x)[i] && by_int;
      break;
    default: break;
  }
#undef SCALE
}

static int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0); /* b > 0 */ }

void kernel_flat_divide(Dtype d, void *x, const int64_t *count, int64_t n) {
#define DIVIDE(T, U, BY)                                                                                 \
  for (int64_t i = 0; i < n; i++) {                                                                      \
    T *y = (T *)x + i;                                                                                   \
    if (count[i] > 1) *y = (T)0.5 != 0 ? (T)(*y / (T)count[i]) : (T)floor_divide((int64_t)*y, count[i]); \
  }                                                                                                      \
  break;
  switch (d) {
    FLAT_DTYPES(DIVIDE)
    default: break;
  }
#undef DIVIDE
}
