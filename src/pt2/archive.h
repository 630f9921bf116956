/* archive.h -- the container of a .pt2 file: a ZIP with one root folder.
 *
 * I1  Opening reads the directory only, not the entries: a file of many gigabytes
 *     opens in milliseconds.
 * I2  Entry names are unique, have no root folder, and no '..' or empty part.
 * I3  The bytes of every entry lie inside the file.
 */
#ifndef TESS_PT2_ARCHIVE_H
#define TESS_PT2_ARCHIVE_H

#include "base/arena.h"
#include "base/file.h"

typedef struct {
  const char *name; /* "models/model.json" */
  size_t offset;    /* of the first byte, in the file */
  size_t packed;    /* bytes in the file */
  size_t size;      /* bytes unpacked; equal to packed when stored */
  uint32_t crc;
  bool stored;
} ArchiveEntry;

typedef struct {
  FileMap *map;
  Arena arena;
  const char *root;      /* "model/" or "" */
  ArchiveEntry *entries; /* sorted by name */
  int count;
} Archive;

/* Holds a reference to map. */
Status archive_open(FileMap *map, Archive **out);
void archive_close(Archive *a); /* NULL is fine */

const ArchiveEntry *archive_find(const Archive *a, const char *name); /* NULL if absent */
/* Unpacks an entry into e->size bytes and checks its sum. */
Status archive_unpack(const Archive *a, const ArchiveEntry *e, void *out);
/* The entry's bytes: in the mapping when stored (*owned = NULL), else in new memory that
 * the caller frees.  The sum is checked either way: for small entries. */
Status archive_bytes(const Archive *a, const ArchiveEntry *e, const void **bytes, void **owned);

#endif
