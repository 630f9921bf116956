/* golden_files.h -- a golden model cut into rank files, which then run on their own. */
#ifndef TESS_TESTS_GOLDEN_FILES_H
#define TESS_TESTS_GOLDEN_FILES_H

#include "rank_files/folder_inputs.h"
#include "runtime/session.h"

/* Makes the model's calls on an open program; whole inputs are cut by `cuts`. */
typedef Status FileCallsFn(void *arg, Ctx *ctx, Session *s, int rank, const FolderInputs *cuts);

/* Cuts the program over the mesh by the plan, writes the folder that `tessera shard` writes to
 * a temporary place, and lets every rank of as many threads open its file and make the calls. */
Status golden_files(const char *program, const char *mesh, const char *plan, FileCallsFn *calls, void *arg);

#endif
