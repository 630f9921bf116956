/* sort.h -- order: sorting, the k first, places in a sorted row.
 *
 * Every dtype is sorted by unsigned keys that are in the order of its values: -0 and 0
 * are equal, nan is the largest and equal to itself.  Equal elements keep their order,
 * also descending.
 */
#ifndef TESS_KERNELS_SORT_H
#define TESS_KERNELS_SORT_H

#include "kernels/kernel.h"

typedef struct {
  uint64_t key;
  int64_t index;
} SortEntry;

/* keys[i] for n elements of a row, step in elements; the complement if descending.
 * bool, the integers and the floats. */
void sort_keys(Dtype d, const void *row, int64_t step, int64_t n, bool descending, uint64_t *keys);

/* Stable; spare has room for n entries.  key_bytes: bytes of the keys that can differ. */
void sort_entries(SortEntry *entries, SortEntry *spare, int64_t n, int key_bytes);
/* 1, 2, 4 or 8 bytes: how much of a dtype's keys is used (16-bit floats have 4). */
int sort_key_bytes(Dtype d);

/* Sorts every row along dim and writes places first .. first + count - 1 of each to
 * values (in's dtype) and indices (i64): views of in's size but for size[dim] = count.
 * Either may have NULL data.  A small first + count does not sort the whole row.
 * False: no scratch memory. */
bool kernel_sort(Kern *k, View in, int dim, bool descending, int64_t first, int64_t count, View values,
                 View indices);

/* out[i] = how many of the row's n ascending elements are below x (right: or equal to
 * it), for x = find[i].  Rows of i64 or f64. */
void kernel_search_sorted(Dtype d, const void *row, int64_t n, const void *find, int64_t count, bool right,
                          int64_t *out);

#endif
