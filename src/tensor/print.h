/* print.h -- tensors for people: edges of large ones, as NumPy and PyTorch do. */
#ifndef TESS_TENSOR_PRINT_H
#define TESS_TENSOR_PRINT_H

#include "base/textbuf.h"
#include "tensor/tensor.h"

/* "f32[2,3] [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]"; more than `limit` elements: three from
 * each end of every dimension. */
void tensor_print(TextBuf *b, const Tensor *t, int64_t limit);

#endif
