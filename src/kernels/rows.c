/* rows.c -- see rows.h.  Both copies are one stretch of rows, so that threads are started once. */
#include "kernels/rows.h"

#include <string.h>

enum { GRAIN_BYTES = 1 << 15 }; /* worth a thread */

static void copy_some(void *arg, int64_t begin, int64_t end, int worker) {
  const RowCopy *const *both = arg;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const RowCopy *c = both[i >= both[0]->n];
    const int64_t at = c == both[0] ? i : i - both[0]->n;
    const int64_t to = c->to_row ? c->to_row[at] : at, from = c->from_row ? c->from_row[at] : at;
    memcpy((char *)c->to + to * c->to_step, (const char *)c->from + from * c->from_step, c->bytes);
  }
}

void kernel_copy_rows(Kern *k, const RowCopy *a, const RowCopy *b) {
  const RowCopy *both[2] = {a, b};
  const size_t wide = a->bytes > b->bytes ? a->bytes : b->bytes;
  const int64_t grain = wide ? (int64_t)(GRAIN_BYTES / wide) : 0;
  parallel_for(k->threads, a->n + b->n, grain > 1 ? grain : 1, copy_some, both);
}
