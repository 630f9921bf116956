/* outputs.h -- what a call gave: to a file, as text, as JSON. */
#ifndef TESS_CLI_OUTPUTS_H
#define TESS_CLI_OUTPUTS_H

#include "cli/cli.h"
#include "harness/compare.h"

/* Tensors by position, gradients by name into a .safetensors file; numbers and None are left out. */
Status outputs_save(const char *path, const OutputList *outs, bool force);

/* A line per output: "0: f32[2,3] [[1, 2, 3], [4, 5, 6]]", the edges of large ones. */
Status outputs_print(FILE *f, const OutputList *outs);
/* A list: [{"output": 0, "dtype": "f32", "size": [2, 3], "data": [...]}], with all elements, row by
 * row, or without data. */
Status outputs_print_json(FILE *f, const OutputList *outs, bool data);

/* "0: f32[2,3]": for a call whose outputs nobody asked for. */
Status outputs_list(FILE *f, const OutputList *outs);

#endif
