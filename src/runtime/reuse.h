/* reuse.h -- updates in place.
 *
 * An op that returns its first argument with some elements replaced (OP_UPDATE: a key-
 * value cache row, a slice) may write into that argument's memory when nobody reads the
 * old value afterwards.  Buffers that are written back at the end count: their memory is
 * free for the taking once the last reader of the old value is done.
 *
 * A pointwise op may likewise write over an operand of its result's size and layout that
 * nobody reads afterwards.
 */
#ifndef TESS_RUNTIME_REUSE_H
#define TESS_RUNTIME_REUSE_H

#include "runtime/program.h"

/* Merges storages and drops write-backs that have become copies onto themselves. */
Status reuse_memory(Program *p);

#endif
