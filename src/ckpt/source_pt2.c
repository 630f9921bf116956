/* source_pt2.c -- the weights of exported programs; see source.h.  Names that share a record share its bytes. */
#include <string.h>

#include "base/strmap.h"
#include "ckpt/source_formats.h"
#include "pt2/archive.h"
#include "pt2/read.h"

bool source_is_pt2(const char *path, bool folder) {
  size_t n = strlen(path);
  return !folder && n > 4 && !strcmp(path + n - 4, ".pt2");
}

typedef struct {
  Source *s;
  Archive archive;
  StrMap records; /* path -> 1 + the number of the file */
} Reading;

static Status find_record(Reading *r, const char *record, int *file) {
  const ZipEntry *entry = archive_find(&r->archive, record);
  StrSlot *slot;
  FileMap *map;
  char *name;
  if (!entry) return fail(ERR_CKPT, "'%s': the record '%s' is missing", r->s->path, record);
  TRY_NEW(name, arena_strdup(&r->s->arena, record));
  TRY(strmap_slot(&r->records, &r->s->arena, name, &slot));
  if (!slot->value) {
    TRY(zip_map(r->archive.zip, entry, &map));
    TRY(source_add_map(r->s, name, map, file));
    slot->value = (void *)(uintptr_t)(*file + 1);
  }
  *file = (int)(uintptr_t)slot->value - 1;
  return OK;
}

static Status add_entry(Reading *r, const StateEntry *e) {
  const Tensor *from = e->tensor;
  SourceTensor *t;
  SourceChunk c = {.at = (uint64_t)from->offset * dtype_size(from->dtype)};
  if (!e->record) return OK;
  TRY(find_record(r, e->record, &c.file));
  TRY(source_add_tensor(r->s, e->fqn, from->dtype, from->ndim, from->size, &t));
  memcpy(c.size, from->size, sizeof c.size);
  memcpy(c.stride, from->stride, sizeof c.stride);
  return source_add_chunk(r->s, t, &c, false);
}

static Status add_state(Reading *r, const Exported *e) {
  FileMap *map;
  TRY(file_map(r->s->path, &map));
  Status s = archive_open(map, &r->archive);
  file_map_unref(map);
  for (int i = 0; !s && i < e->nstate; i++) s = add_entry(r, &e->state[i]);
  archive_close(&r->archive);
  return s;
}

Status source_open_pt2(Source *s) {
  Reading r = {.s = s};
  Exported *e;
  TRY(pt2_read(s->path, &e));
  Status status = add_state(&r, e);
  exported_free(e);
  return status;
}
