/* place_updates.h -- parts of gathered parameters are made where they will stand. */
#ifndef TESS_RUNTIME_PLACE_UPDATES_H
#define TESS_RUNTIME_PLACE_UPDATES_H

#include "runtime/program.h"
#include "runtime/storage_use.h"

/* After reuse_memory's merges, before memory is planned and write-backs that have become copies onto themselves are
 * dropped. */
void place_updates(const Program *p, StorageTable *t);

#endif
