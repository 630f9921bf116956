/* rows.h -- whole rows copied to and from places that a list names. */
#ifndef TESS_KERNELS_ROWS_H
#define TESS_KERNELS_ROWS_H

#include "kernels/kernel.h"

/* Row to_row[i] of `to` becomes row from_row[i] of `from`, for n of them. */
typedef struct {
  void *to;
  const void *from;
  int64_t to_step, from_step;       /* bytes from row to row */
  const int64_t *to_row, *from_row; /* NULL: 0, 1, 2 ... */
  int64_t n;
  size_t bytes; /* of a row */
} RowCopy;

/* Both, in any order: what one writes the other neither reads nor writes, and no row is written twice. */
void kernel_copy_rows(Kern *k, const RowCopy *a, const RowCopy *b);

#endif
