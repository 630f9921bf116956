/* archive.c -- see archive.h. */
#include "pt2/archive.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 4096 };

Status archive_open(FileMap *map, Archive *a) {
  Status s = zip_from_map(map, &a->zip);
  if (s) return status_hint(s, "give a .pt2 file that torch.export.save() wrote; this one may be cut off");
  /* The folder of the first entry, if all the others are in it: names are sorted. */
  const Zip *z = a->zip;
  const char *first = z->count ? z->entries[0].name : "", *slash = strchr(first, '/');
  size_t len = slash ? (size_t)(slash - first) + 1 : 0;
  if (len && strncmp(z->entries[z->count - 1].name, first, len)) len = 0;
  TRY_NEW(a->root, arena_strndup(&a->zip->arena, first, len));
  return OK;
}

void archive_close(Archive *a) {
  zip_close(a->zip);
  *a = (Archive){0};
}

const ZipEntry *archive_find(const Archive *a, const char *name) {
  char path[MAX_NAME];
  int n = snprintf(path, sizeof path, "%s%s", a->root, name);
  return n > 0 && (size_t)n < sizeof path ? zip_find(a->zip, path) : NULL;
}

const char *archive_name(const Archive *a, const ZipEntry *e) { return e->name + strlen(a->root); }
