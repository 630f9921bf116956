/* place_concat.h -- parts of a concatenation are made where they will stand. */
#ifndef TESS_RUNTIME_PLACE_CONCAT_H
#define TESS_RUNTIME_PLACE_CONCAT_H

#include "runtime/program.h"
#include "runtime/storage_use.h"

/* After reuse_memory's merges, before memory is planned.  Calls that have nothing left to
 * copy leave the program. */
Status place_concat(Program *p, StorageTable *t);

#endif
