/* embedding.c -- see embedding.h. */
#include "kernels/embedding.h"

#include <math.h>
#include <string.h>

enum { GRAIN = 8192 };

static inline float load_f16(uint16_t x) { return f16_to_f32(x); }
static inline float load_bf16(uint16_t x) { return bf16_to_f32(x); }
static inline float load_f32(float x) { return x; }
static inline double load_f64(double x) { return x; }
static inline uint16_t store_f16(float x) { return f32_to_f16(x); }
static inline uint16_t store_bf16(float x) { return f32_to_bf16(x); }
static inline float store_f32(float x) { return x; }
static inline double store_f64(double x) { return x; }

/* ---- bags -------------------------------------------------------------------------------- */

typedef struct {
  const Bags *bags;
  void *out;
  int64_t *size, *largest;
  char *sums; /* a row per worker */
} BagJob;

/* The rows of a bag into its sum.  T: elements, A: sums. */
#define BAG_ROWS(NAME, T, A)                                                                          \
  static void bag_add_##NAME(const BagJob *j, int64_t bag, A *sum) {                                  \
    const Bags *b = j->bags;                                                                          \
    int64_t rows = b->table.size[0], width = b->table.size[1], step = b->table.stride[1];             \
    int64_t counted = 0, here = 0;                                                                    \
    int64_t *largest = j->largest ? j->largest + bag * width : NULL;                                  \
    memset(sum, 0, (size_t)width * sizeof *sum);                                                      \
    if (largest) memset(largest, 0, (size_t)width * sizeof *largest);                                 \
    for (int64_t i = b->offset[bag]; i < b->offset[bag + 1]; i++) {                                   \
      if (b->indices[i] == b->padding) continue;                                                      \
      int64_t row = b->indices[i] - b->begin;                                                         \
      counted++;                                                                                      \
      if (row < 0 || row >= rows) continue;                                                           \
      const T *x = (const T *)b->table.data + row * b->table.stride[0];                               \
      if (b->mode == BAG_MAX) {                                                                       \
        for (int64_t d = 0; d < width; d++) {                                                         \
          A v = load_##NAME(x[d * step]);                                                             \
          if (here && !(v > sum[d])) continue;                                                        \
          sum[d] = v;                                                                                 \
          if (largest) largest[d] = row;                                                              \
        }                                                                                             \
      } else if (b->weight) {                                                                         \
        A w = load_##NAME(((const T *)b->weight)[i * b->weight_step]);                                \
        for (int64_t d = 0; d < width; d++) sum[d] += w * load_##NAME(x[d * step]);                   \
      } else {                                                                                        \
        for (int64_t d = 0; d < width; d++) sum[d] += load_##NAME(x[d * step]);                       \
      }                                                                                               \
      here++;                                                                                         \
    }                                                                                                 \
    T *to = (T *)j->out + bag * width;                                                                \
    A by = b->mode == BAG_MEAN && counted ? (A)counted : 1;                                           \
    for (int64_t d = 0; b->mode == BAG_MAX && counted && !here && d < width; d++) sum[d] = -INFINITY; \
    for (int64_t d = 0; d < width; d++) to[d] = store_##NAME(sum[d] / by);                            \
    if (j->size) j->size[bag] = counted;                                                              \
  }
BAG_ROWS(f16, uint16_t, float)
BAG_ROWS(bf16, uint16_t, float)
BAG_ROWS(f32, float, float)
BAG_ROWS(f64, double, double)

static void bag_part(void *arg, int64_t begin, int64_t end, int worker) {
  const BagJob *j = arg;
  void *sum = j->sums + (size_t)worker * (size_t)j->bags->table.size[1] * sizeof(double);
  for (int64_t bag = begin; bag < end; bag++) {
    switch (j->bags->table.dtype) {
      case DT_F16: bag_add_f16(j, bag, sum); break;
      case DT_BF16: bag_add_bf16(j, bag, sum); break;
      case DT_F32: bag_add_f32(j, bag, sum); break;
      default: bag_add_f64(j, bag, sum);
    }
  }
}

bool kernel_embedding_bag(Kern *k, const Bags *bags, void *out, int64_t *size, int64_t *largest) {
  int64_t width = bags->table.size[1], all = bags->bags ? bags->offset[bags->bags] - bags->offset[0] : 0;
  int64_t grain = bags->bags ? GRAIN / (all * width / bags->bags + 1) + 1 : 1;
  int workers = parallel_workers(k->threads, bags->bags, grain);
  size_t mark = kern_mark(k);
  BagJob j = {bags, out, size, largest, kern_scratch(k, (size_t)workers * (size_t)width * sizeof(double))};
  if (!j.sums) return false;
  parallel_for(k->threads, bags->bags, grain, bag_part, &j);
  kern_release(k, mark);
  return true;
}

/* ---- the gradient of what a bag's rows are multiplied with ------------------------------------ */

typedef struct {
  const BagDots *dots;
  void *out;
} DotJob;

#define BAG_DOT(NAME, T, A)                                                                             \
  static void bag_dot_##NAME(const DotJob *j, int64_t i, int64_t bag, int64_t row) {                    \
    const View *g = &j->dots->grad, *t = &j->dots->table;                                               \
    const T *x = (const T *)g->data + bag * g->stride[0], *y = (const T *)t->data + row * t->stride[0]; \
    A sum = 0;                                                                                          \
    for (int64_t d = 0; d < g->size[1]; d++)                                                            \
      sum += (A)load_##NAME(x[d * g->stride[1]]) * (A)load_##NAME(y[d * t->stride[1]]);                 \
    ((T *)j->out)[i] = store_##NAME(sum);                                                               \
  }
BAG_DOT(f16, uint16_t, float)
BAG_DOT(bf16, uint16_t, float)
BAG_DOT(f32, float, float)
BAG_DOT(f64, double, double)

static void bag_dots_part(void *arg, int64_t begin, int64_t end, int worker) {
  const DotJob *j = arg;
  const BagDots *b = j->dots;
  size_t width = dtype_size(b->table.dtype);
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    int64_t bag = b->bag[i] - b->first_bag, row = b->row[i] - b->first_row;
    bool here = bag >= 0 && bag < b->grad.size[0] && row >= 0 && row < b->table.size[0];
    if (!here || b->row[i] == b->padding) memset((char *)j->out + (size_t)i * width, 0, width);
    else if (b->table.dtype == DT_F16) bag_dot_f16(j, i, bag, row);
    else if (b->table.dtype == DT_BF16) bag_dot_bf16(j, i, bag, row);
    else if (b->table.dtype == DT_F32) bag_dot_f32(j, i, bag, row);
    else bag_dot_f64(j, i, bag, row);
  }
}

void kernel_bag_dots(Kern *k, const BagDots *b, void *out) {
  DotJob j = {b, out};
  parallel_for(k->threads, b->n, GRAIN / (b->grad.size[1] + 1) + 1, bag_dots_part, &j);
}

/* ---- the gradient of a table ----------------------------------------------------------------- */

#define ADD_ROW(T)                                                   \
  do {                                                               \
    T *to = (T *)s->out + row * s->width;                            \
    const T *from = (const T *)s->grad + source * s->width;          \
    T scale = s->scale ? (T)s->scale[i] : 1;                         \
    for (int64_t d = 0; d < s->width; d++) to[d] += scale * from[d]; \
  } while (0)

/* Every worker looks at all indices and takes those of its own rows. */
static void add_rows_part(void *arg, int64_t begin, int64_t end, int worker) {
  const RowSums *s = arg;
  (void)worker;
  for (int64_t i = 0; i < s->n; i++) {
    int64_t row = s->row[i] - s->first_row, source = s->from ? s->from[i] - s->first_from : i;
    if (row < begin || row >= end || s->row[i] == s->padding || source < 0 || source >= s->nfrom) continue;
    if (s->dtype == DT_F64) ADD_ROW(double);
    else ADD_ROW(float);
  }
}

void kernel_add_rows(Kern *k, const RowSums *s) {
  int64_t work = s->n * s->width;
  parallel_for(work < GRAIN ? 1 : k->threads, s->rows, 1, add_rows_part, (void *)(uintptr_t)s);
}

typedef struct {
  const RowSums *sums;
  const int64_t *size, *largest;
} LargestJob;

/* Workers share the columns: no two of them meet in an element. */
static void add_largest_part(void *arg, int64_t begin, int64_t end, int worker) {
  const LargestJob *j = arg;
  const RowSums *s = j->sums;
  (void)worker;
  for (int64_t bag = 0; bag < s->nfrom; bag++) {
    if (j->size[bag] <= 0) continue;
    for (int64_t d = begin; d < end; d++) {
      int64_t from = bag * s->width + d, row = j->largest[from] - s->first_row;
      if (row < 0 || row >= s->rows) continue;
      if (s->dtype == DT_F64) ((double *)s->out)[row * s->width + d] += ((const double *)s->grad)[from];
      else ((float *)s->out)[row * s->width + d] += ((const float *)s->grad)[from];
    }
  }
}

void kernel_add_largest(Kern *k, const RowSums *s, const int64_t *size, const int64_t *largest) {
  LargestJob j = {s, size, largest};
  parallel_for(k->threads, s->width, GRAIN / (s->nfrom + 1) + 1, add_largest_part, &j);
}
