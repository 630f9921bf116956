/* sort.c -- see sort.h.
 *
 * Rows are radix-sorted, least significant byte first, on (key, index) entries; bytes in
 * which all keys agree cost one look.  Short rows are sorted by insertion.  For the first
 * few of a long row a heap of that many entries is enough: one compare per element.
 */
#include "kernels/sort.h"

#include <string.h>

#include "kernels/odometer.h"

enum {
  INSERTION = 32, /* rows that are not worth counting */
  CHUNK = 512,    /* keys made at a time for the heap */
  GRAIN = 16384,  /* elements worth a thread */
};

/* ---- keys ----------------------------------------------------------------------------- */

static inline uint64_t key_f32(float x) {
  uint32_t u = f32_bits(x == 0 ? 0 : x);
  if (x != x) return UINT32_MAX;
  return u >> 31 ? ~u : u | 0x80000000u;
}
static inline uint64_t key_f64(double x) {
  union {
    double f;
    uint64_t u;
  } bits = {x == 0 ? 0 : x};
  if (x != x) return UINT64_MAX;
  return bits.u >> 63 ? ~bits.u : bits.u | (uint64_t)1 << 63;
}
static inline uint64_t key_f16(uint16_t x) { return key_f32(f16_to_f32(x)); }
static inline uint64_t key_bf16(uint16_t x) { return key_f32(bf16_to_f32(x)); }
static inline uint64_t key_u8(uint8_t x) { return x; }
static inline uint64_t key_i8(int8_t x) { return (uint8_t)x ^ 0x80u; }
static inline uint64_t key_i16(int16_t x) { return (uint16_t)x ^ 0x8000u; }
static inline uint64_t key_i32(int32_t x) { return (uint32_t)x ^ 0x80000000u; }
static inline uint64_t key_i64(int64_t x) { return (uint64_t)x ^ (uint64_t)1 << 63; }

int sort_key_bytes(Dtype d) { return d == DT_F16 || d == DT_BF16 ? 4 : (int)dtype_size(d); }

void sort_keys(Dtype d, const void *row, int64_t step, int64_t n, bool descending, uint64_t *keys) {
  uint64_t all = UINT64_MAX >> (64 - 8 * sort_key_bytes(d)), flip = descending ? all : 0;
#define KEYS(T, key)                                                                \
  for (int64_t i = 0; i < n; i++) keys[i] = key(((const T *)row)[i * step]) ^ flip; \
  break
  switch (d) {
    case DT_F32: KEYS(float, key_f32);
    case DT_F64: KEYS(double, key_f64);
    case DT_F16: KEYS(uint16_t, key_f16);
    case DT_BF16: KEYS(uint16_t, key_bf16);
    case DT_I8: KEYS(int8_t, key_i8);
    case DT_I16: KEYS(int16_t, key_i16);
    case DT_I32: KEYS(int32_t, key_i32);
    case DT_I64: KEYS(int64_t, key_i64);
    default: KEYS(uint8_t, key_u8);
  }
#undef KEYS
}

/* ---- sorting a row ---------------------------------------------------------------------- */

static void insertion_sort(SortEntry *e, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    SortEntry x = e[i];
    int64_t j = i;
    for (; j > 0 && e[j - 1].key > x.key; j--) e[j] = e[j - 1];
    e[j] = x;
  }
}

void sort_entries(SortEntry *entries, SortEntry *spare, int64_t n, int key_bytes) {
  if (n <= INSERTION) {
    insertion_sort(entries, n);
    return;
  }
  int64_t count[8][256];
  memset(count, 0, (size_t)key_bytes * sizeof *count);
  for (int64_t i = 0; i < n; i++) {
    for (int b = 0; b < key_bytes; b++) count[b][entries[i].key >> (8 * b) & 255]++;
  }
  SortEntry *from = entries, *to = spare;
  for (int b = 0; b < key_bytes; b++) {
    if (count[b][from[0].key >> (8 * b) & 255] == n) continue;
    int64_t at = 0, start[256];
    for (int v = 0; v < 256; v++) start[v] = at, at += count[b][v];
    for (int64_t i = 0; i < n; i++) to[start[from[i].key >> (8 * b) & 255]++] = from[i];
    SortEntry *swap = from;
    from = to, to = swap;
  }
  if (from != entries) memcpy(entries, from, (size_t)n * sizeof *entries);
}

/* ---- the first few of a row --------------------------------------------------------------- */

/* The heap has the worst entry on top: the largest key, of equals the last index. */
static inline bool is_worse(const SortEntry *a, const SortEntry *b) {
  return a->key > b->key || (a->key == b->key && a->index > b->index);
}

static void sift_down(SortEntry *heap, int64_t n, int64_t i) {
  SortEntry x = heap[i];
  for (int64_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
    if (child + 1 < n && is_worse(&heap[child + 1], &heap[child])) child++;
    if (!is_worse(&heap[child], &x)) break;
    heap[i] = heap[child];
    i = child;
  }
  heap[i] = x;
}

/* A heap forgets the order of equals: this brings it back, before the stable sort by key. */
static void sort_by_index(SortEntry *entries, SortEntry *spare, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint64_t key = entries[i].key;
    entries[i].key = (uint64_t)entries[i].index;
    entries[i].index = (int64_t)key;
  }
  sort_entries(entries, spare, n, 8);
  for (int64_t i = 0; i < n; i++) {
    uint64_t index = entries[i].key;
    entries[i].key = (uint64_t)entries[i].index;
    entries[i].index = (int64_t)index;
  }
}

/* entries[0 .. keep) become the first `keep` of the row, in order. */
static void select_first(Dtype d, const void *row, int64_t step, int64_t n, bool descending, int64_t keep,
                         SortEntry *entries, SortEntry *spare) {
  uint64_t keys[CHUNK];
  size_t item = dtype_size(d);
  for (int64_t begin = 0; begin < n; begin += CHUNK) {
    int64_t m = n - begin < CHUNK ? n - begin : CHUNK, i = 0;
    sort_keys(d, (const char *)row + (size_t)(begin * step) * item, step, m, descending, keys);
    if (begin < keep) { /* the heap is not full yet */
      for (; i < m && begin + i < keep; i++) entries[begin + i] = (SortEntry){keys[i], begin + i};
      if (begin + i < keep) continue;
      for (int64_t h = keep / 2 - 1; h >= 0; h--) sift_down(entries, keep, h);
    }
    uint64_t worst = entries[0].key;
    for (; i < m; i++) {
      if (keys[i] >= worst) continue;
      entries[0] = (SortEntry){keys[i], begin + i};
      sift_down(entries, keep, 0);
      worst = entries[0].key;
    }
  }
  sort_by_index(entries, spare, keep);
  sort_entries(entries, spare, keep, sort_key_bytes(d));
}

/* ---- all rows --------------------------------------------------------------------------------- */

typedef struct {
  View in, values, indices;
  int dim;
  bool descending, whole; /* whole: sort all of the row */
  int64_t first, count, room;
  int64_t size[MAX_DIMS], stride[3][MAX_DIMS]; /* without dim */
  SortEntry *entries;                          /* 2 * room per worker */
} SortJob;

static void write_row(const SortJob *j, const SortEntry *e, const char *row, char *values, int64_t *indices) {
  size_t item = dtype_size(j->in.dtype);
  int64_t step = j->in.stride[j->dim];
  for (int64_t i = 0; i < j->count && values; i++) {
    memcpy(values + (size_t)(i * j->values.stride[j->dim]) * item, row + (size_t)(e[i].index * step) * item, item);
  }
  for (int64_t i = 0; i < j->count && indices; i++) indices[i * j->indices.stride[j->dim]] = e[i].index;
}

static void sort_part(void *arg, int64_t begin, int64_t end, int worker) {
  const SortJob *j = arg;
  Dtype d = j->in.dtype;
  size_t item = dtype_size(d);
  int64_t n = j->in.size[j->dim], step = j->in.stride[j->dim];
  SortEntry *entries = j->entries + 2 * j->room * worker, *spare = entries + j->room;
  Odometer o = {
      .ndim = j->in.ndim - 1, .size = j->size, .views = 3, .stride = {j->stride[0], j->stride[1], j->stride[2]}};
  odometer_begin(&o, begin);
  for (int64_t r = begin; r < end; r++, odometer_next(&o)) {
    const char *row = (const char *)j->in.data + o.offset[0] * (int64_t)item;
    if (j->whole) {
      uint64_t keys[CHUNK];
      for (int64_t from = 0; from < n; from += CHUNK) {
        int64_t m = n - from < CHUNK ? n - from : CHUNK;
        sort_keys(d, row + (size_t)(from * step) * item, step, m, j->descending, keys);
        for (int64_t i = 0; i < m; i++) entries[from + i] = (SortEntry){keys[i], from + i};
      }
      sort_entries(entries, spare, n, sort_key_bytes(d));
    } else {
      select_first(d, row, step, n, j->descending, j->first + j->count, entries, spare);
    }
    write_row(j, entries + j->first, row,
              j->values.data ? (char *)j->values.data + o.offset[1] * (int64_t)item : NULL,
              j->indices.data ? (int64_t *)j->indices.data + o.offset[2] : NULL);
  }
}

bool kernel_sort(Kern *k, View in, int dim, bool descending, int64_t first, int64_t count, View values,
                 View indices) {
  int64_t one = 1, zero = 0;
  if (in.ndim == 0) { /* a row of one */
    in = (View){in.data, &one, &zero, 1, in.dtype};
    values = (View){values.data, &one, &zero, 1, values.dtype};
    indices = (View){indices.data, &one, &zero, 1, indices.dtype};
  }
  int64_t n = in.size[dim], rows = 1, keep = first + count;
  SortJob j = {.in = in,
               .values = values,
               .indices = indices,
               .dim = dim,
               .descending = descending,
               .first = first,
               .count = count};
  const int64_t *const strides[3] = {in.stride, values.data ? values.stride : in.stride,
                                     indices.data ? indices.stride : in.stride};
  for (int d = 0, to = 0; d < in.ndim; d++) {
    if (d == dim) continue;
    j.size[to] = in.size[d];
    for (int v = 0; v < 3; v++) j.stride[v][to] = strides[v][d];
    rows *= in.size[d];
    to++;
  }
  if (rows == 0 || count == 0) return true;
  j.whole = keep > n / 16;
  j.room = j.whole ? n : keep;
  int64_t grain = GRAIN / n + 1;
  int workers = parallel_workers(k->threads, rows, grain);
  size_t mark = kern_mark(k);
  j.entries = kern_scratch(k, (size_t)workers * 2 * (size_t)j.room * sizeof *j.entries);
  if (j.entries) parallel_for(k->threads, rows, grain, sort_part, &j);
  kern_release(k, mark);
  return j.entries != NULL;
}

/* ---- searching ----------------------------------------------------------------------------------- */

#define SEARCH(T)                                                \
  for (int64_t i = 0; i < count; i++) {                          \
    const T *x = (const T *)row;                                 \
    T v = ((const T *)find)[i];                                  \
    int64_t low = 0, high = n;                                   \
    while (low < high) {                                         \
      int64_t mid = low + (high - low) / 2;                      \
      if (right ? !(x[mid] > v) : !(x[mid] >= v)) low = mid + 1; \
      else high = mid;                                           \
    }                                                            \
    out[i] = low;                                                \
  }

void kernel_search_sorted(Dtype d, const void *row, int64_t n, const void *find, int64_t count, bool right,
                          int64_t *out) {
  if (d == DT_I64) {
    SEARCH(int64_t)
  } else {
    SEARCH(double)
  }
}
