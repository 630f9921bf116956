/* npy.h -- the .npy container: one array of NumPy's in one file.
 *
 *     "\x93NUMPY" | u8 major | u8 minor | u16 or u32 n | n bytes of text | data
 *
 * The text is a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (8, 3), }.
 * Versions 1 to 3, little endian, rows first.
 *
 * I1  What npy_read accepts is right as a whole: the dtype is known, and the data is as many bytes as its size
 *     needs, no fewer and no more.  Errors name the file.
 */
#ifndef TESS_TENSOR_NPY_H
#define TESS_TENSOR_NPY_H

#include "base/file.h"
#include "tensor/tensor.h"

typedef struct {
  Dtype dtype;
  int ndim;
  int64_t size[MAX_DIMS];
  size_t begin; /* bytes from the start of the file to the first element, which may not be aligned */
} Npy;

Status npy_read(const FileMap *f, Npy *out);

#endif
