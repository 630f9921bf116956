/* kernels/index.h and kernels/sort.h against the definitions, on sizes that several
 * threads share. */
#include <string.h>

#include "kernels/index.h"
#include "kernels/sort.h"
#include "unit.h"

static uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

/* place(e) as index.h defines it, for the position with this number. */
static int64_t place_of(const IndexMap *m, const int64_t *near_stride, int64_t position, int64_t *near) {
  int64_t e[MAX_DIMS], place = 0;
  *near = 0;
  for (int d = m->ndim - 1; d >= 0; d--) {
    e[d] = position % m->size[d];
    position /= m->size[d];
    place += e[d] * m->stride[d];
    *near += e[d] * near_stride[d];
  }
  for (int k = 0; k < m->nindex; k++) {
    int64_t at = 0;
    for (int d = 0; d < m->ndim; d++) at += e[d] * m->index[k].stride[d];
    place += m->index[k].data[at] * m->index[k].step;
  }
  return place;
}

enum { ROWS = 37, COLUMNS = 41, PICKED = 53, DEPTH = 29 };

/* far is [ROWS, DEPTH, COLUMNS].  Three maps: slices along the middle, an index per
 * element, two indices that broadcast. */
static int make_maps(IndexMap *maps, int64_t *index) {
  const int64_t stride[3] = {DEPTH * COLUMNS, COLUMNS, 1};
  maps[0] = (IndexMap){.ndim = 3,
                       .size = {ROWS, PICKED, COLUMNS},
                       .stride = {stride[0], 0, 1},
                       .nindex = 1,
                       .index = {{.data = index, .stride = {0, 1, 0}, .step = stride[1]}}};
  maps[1] = (IndexMap){.ndim = 3,
                       .size = {ROWS, PICKED, COLUMNS},
                       .stride = {stride[0], 0, 1},
                       .nindex = 1,
                       .index = {{.data = index, .stride = {PICKED * COLUMNS, COLUMNS, 1}, .step = stride[1]}}};
  maps[2] = (IndexMap){.ndim = 3,
                       .size = {PICKED, ROWS, COLUMNS},
                       .stride = {0, 0, 1},
                       .nindex = 2,
                       .index = {{.data = index, .stride = {1, 0, 0}, .step = stride[0]},
                                 {.data = index, .stride = {0, 1, 0}, .step = stride[1]}}};
  return 3;
}

static float far[ROWS * DEPTH * COLUMNS], expected[ROWS * DEPTH * COLUMNS], got[ROWS * DEPTH * COLUMNS];
static float near_data[ROWS * PICKED * COLUMNS], read_back[ROWS * PICKED * COLUMNS];
static int64_t indices[ROWS * PICKED * COLUMNS];

static void gathers_and_scatters_follow_the_map(void **state) {
  (void)state;
  uint64_t seed = 3;
  IndexMap maps[3];
  enum { FAR = ROWS * DEPTH * COLUMNS, NEAR = ROWS * PICKED * COLUMNS };
  for (int i = 0; i < FAR; i++) far[i] = (float)(next_random(&seed) % 64);
  for (int i = 0; i < NEAR; i++)
    near_data[i] = (float)(next_random(&seed) % 64), indices[i] = (int64_t)(next_random(&seed) % DEPTH);
  int count = make_maps(maps, indices);
  for (int threads = 1; threads <= 3; threads += 2) {
    Kern k;
    kern_init(&k, threads);
    for (int i = 0; i < count; i++) {
      const IndexMap *m = &maps[i];
      int64_t stride[3] = {m->size[1] * m->size[2], m->size[2], 1}, at;
      View near = {near_data, m->size, stride, 3, DT_F32}, back = {read_back, m->size, stride, 3, DT_F32};
      kernel_gather(&k, m, back, far);
      for (int64_t p = 0; p < NEAR; p++) {
        int64_t place = place_of(m, stride, p, &at);
        assert_true(read_back[at] == far[place]);
      }
      for (ScatterOp op = SCATTER_ASSIGN; op <= SCATTER_MIN; op++) {
        if (op == SCATTER_MUL) continue; /* overflows: the others are exact */
        memcpy(expected, far, sizeof far);
        memcpy(got, far, sizeof far);
        for (int64_t p = 0; p < NEAR; p++) {
          int64_t place = place_of(m, stride, p, &at);
          float *x = &expected[place], v = near_data[at];
          *x = op == SCATTER_ADD   ? *x + v
               : op == SCATTER_MAX ? (v > *x ? v : *x)
               : op == SCATTER_MIN ? (v < *x ? v : *x)
                                   : v;
        }
        kernel_scatter(&k, m, got, near, op);
        assert_memory_equal(got, expected, sizeof got);
      }
    }
    kern_free(&k);
  }
}

/* Row r of the sorted result is right if it is ordered, equals keep their order, and
 * every index occurs once. */
static void check_sorted(const float *row, int64_t n, const float *values, const int64_t *index, int64_t count,
                         bool descending) {
  static bool seen[5000];
  memset(seen, 0, sizeof seen);
  for (int64_t i = 0; i < count; i++) {
    assert_true(index[i] >= 0 && index[i] < n && !seen[index[i]]);
    seen[index[i]] = true;
    assert_true(values[i] == row[index[i]]);
    if (i == 0) continue;
    assert_true(descending ? values[i - 1] >= values[i] : values[i - 1] <= values[i]);
    assert_true(values[i - 1] != values[i] || index[i - 1] < index[i]);
  }
  for (int64_t i = 0; i < n && count; i++) { /* nothing better was left out */
    assert_true(seen[i] || (descending ? row[i] <= values[count - 1] : row[i] >= values[count - 1]));
  }
}

static void rows_are_sorted(void **state) {
  (void)state;
  static float x[7 * 5000], values[7 * 5000];
  static int64_t index[7 * 5000];
  static const int64_t lengths[] = {1, 2, 31, 32, 33, 257, 5000};
  uint64_t seed = 9;
  for (int threads = 1; threads <= 3; threads += 2) {
    Kern k;
    kern_init(&k, threads);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
      int64_t n = lengths[l];
      for (int64_t i = 0; i < 7 * n; i++) x[i] = (float)((int64_t)(next_random(&seed) % 1000) - 500) / 4;
      for (int64_t keep = 1; keep <= n; keep = keep * 5 > n && keep < n ? n : keep * 5) {
        int64_t size[2] = {7, n}, kept[2] = {7, keep}, stride[2] = {n, 1}, out[2] = {keep, 1};
        for (int descending = 0; descending < 2; descending++) {
          View in = {x, size, stride, 2, DT_F32}, v = {values, kept, out, 2, DT_F32},
               i = {index, kept, out, 2, DT_I64};
          assert_true(kernel_sort(&k, in, 1, descending, 0, keep, v, i));
          for (int64_t r = 0; r < 7; r++)
            check_sorted(x + r * n, n, values + r * keep, index + r * keep, keep, descending);
        }
      }
    }
    kern_free(&k);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gathers_and_scatters_follow_the_map),
      cmocka_unit_test(rows_are_sorted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
