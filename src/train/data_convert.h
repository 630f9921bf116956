/* data_convert.h -- elements of a file as elements of an input.
 *
 * Nothing is lost: integers (and bools) keep their value or are refused, floats become wider.
 */
#ifndef TESS_TRAIN_DATA_CONVERT_H
#define TESS_TRAIN_DATA_CONVERT_H

#include "tensor/dtype.h"

/* Can it be done?  rounded: if floats could lose bits. */
bool data_converts(Dtype from, Dtype to, bool rounded);

/* n elements; src may have any alignment, dst is aligned.  -1, or the number of the first element that has no place
 * in `to`; a bool that is neither 0 nor 1 has none. */
int64_t data_convert(void *dst, Dtype to, const void *src, Dtype from, int64_t n);

#endif
