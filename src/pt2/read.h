/* read.h -- .pt2 files in: what torch.export.save() of PyTorch 2.9 and later writes.
 *
 * The result owns the file: weights are the mapped bytes (private: a program that writes
 * to them changes its own copy), strings point into the parsed JSON.  A tensor made from
 * a weight keeps the mapping alive on its own.
 *
 * Errors are ERR_FILE and name the file, the node and the value.  Unknown ops are no
 * error here: see graph_check_ops().
 */
#ifndef TESS_PT2_READ_H
#define TESS_PT2_READ_H

#include "graph/graph.h"

Status pt2_read(const char *path, Exported **out);
/* The same on bytes in memory, which are copied; name stands for the path in messages. */
Status pt2_read_memory(const void *bytes, size_t size, const char *name, Exported **out);

#endif
