/* archive.h -- the container of a .pt2 file: a ZIP whose entries are in one root folder.
 *
 * The folder is named after the file and means nothing, so names here are without it.
 */
#ifndef TESS_PT2_ARCHIVE_H
#define TESS_PT2_ARCHIVE_H

#include "base/zip.h"

typedef struct {
  Zip *zip;
  const char *root; /* "model/"; "" in old files */
} Archive;

/* Keeps its own reference to map.  Zeroed a is a valid argument of archive_close(). */
Status archive_open(FileMap *map, Archive *a);
void archive_close(Archive *a);
const ZipEntry *archive_find(const Archive *a, const char *name); /* NULL if absent */
/* The name of an entry without the root folder. */
const char *archive_name(const Archive *a, const ZipEntry *e);

#endif
