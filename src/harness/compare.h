/* compare.h -- outputs against a file of expected ones. */
#ifndef TESS_HARNESS_COMPARE_H
#define TESS_HARNESS_COMPARE_H

#include <stdio.h>

#include "graph/graph.h"
#include "tensor/safetensors.h"

/* What a call gave.  Outputs go by their position, gradients by the name of what they belong to. */
typedef struct {
  const Value *v;
  int n;
  const char *const *gradient; /* per output: "grad/layers.0.weight"; NULL, or an entry: it is no gradient */
} OutputList;
/* "0", or the gradient's name. */
const char *output_label(const OutputList *outs, int i, char *buf, size_t cap);

/* Every tensor of the file must be an output of the same dtype and size, each element
 * within atol + rtol * |expected| (negative: f64 1e-9, f32 1e-4, f16 4e-3, bf16 3e-2;
 * integers exactly); elements of a gradient by its largest one: atol is a share of that, or of a thousandth of
 * the largest element of all gradients.  With gradients, `loss`
 * is output 0.  Prints a line per output, or as JSON an object each with commas between them
 * (the caller prints the list around them); ERR_DIFF if one differs. */
Status compare_with_file(FILE *f, const char *path, const OutputList *outs, double rtol, double atol, bool json);

/* The same against values of this process; what: where they come from. */
Status compare_with_values(FILE *f, const char *what, const Value *wanted, const OutputList *outs, double rtol,
                           double atol, bool json);
/* What is forgiven of a dtype unless told otherwise, relative and absolute. */
double compare_tolerance(Dtype d);
/* Of one tensor, without a word: the largest difference and elements out of tolerance. */
Status compare_pair(const Tensor *got, const Tensor *want, double rtol, double atol, double *worst, int64_t *wrong);

#endif
