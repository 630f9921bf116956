/* write.h -- .pt2 files out: what torch.export.load() of PyTorch 2.9 and later accepts.
 *
 * The whole program is written: graph, signature, weights.  Weights that share memory
 * share a record, so tied weights stay tied; of a weight that is a part of a larger one
 * (a shard), only that part is written.
 *
 * Fails, naming it, on a value whose sizes are not known and on state without data.
 * Fails with ERR_USAGE if the file is there already, unless force.
 */
#ifndef TESS_PT2_WRITE_H
#define TESS_PT2_WRITE_H

#include "base/progress.h"
#include "graph/graph.h"

Status pt2_write(const Exported *e, const char *path, bool force);
/* The same; progress gets the bytes of the weights as its total, and counts them. */
Status pt2_write_progress(const Exported *e, const char *path, bool force, Progress *progress);
/* The same; interrupted is asked before every weight, and true ends it without a file. */
Status pt2_write_unless(const Exported *e, const char *path, bool force, bool (*interrupted)(void));

#endif
