/* windows.h -- a box in pieces that fit into memory. */
#ifndef TESS_CKPT_WINDOWS_H
#define TESS_CKPT_WINDOWS_H

#include "tensor/tensor.h"

typedef Status WindowFn(void *arg, const int64_t *offset, const int64_t *size, size_t bytes);

/* Calls fn with boxes of at most `most` bytes (an element of `item` bytes at least) that one after another are the
 * elements of the box in row-major order; they begin at pages, counted from the box, where that can be. */
Status each_window(int ndim, const int64_t *offset, const int64_t *size, size_t item, size_t most, WindowFn *fn,
                   void *arg);

#endif
