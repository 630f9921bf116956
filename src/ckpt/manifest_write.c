/* manifest_write.c -- the manifest of a save that is being written; see manifest.h. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "ckpt/manifest.h"

const SaveKind save_kinds[SAVE_KINDS] = {{"model", "model."}, {"optimizer", ""}};

int save_kind_of(const char *name) {
  int k = 0;
  while (strncmp(name, save_kinds[k].prefix, strlen(save_kinds[k].prefix))) k++; /* the last has none */
  return k;
}

static int by_name(const void *a, const void *b) {
  return strcmp((*(const ManifestTensor *const *)a)->name, (*(const ManifestTensor *const *)b)->name);
}

Status manifest_sign(const Manifest *m, Arena *arena, uint64_t *out) {
  const ManifestTensor **sorted;
  TextBuf text = {0};
  char shape[400];
  int n = 0;
  TRY_NEW(sorted, arena_new_n(arena, const ManifestTensor *, m->tensors + 1));
  for (int i = 0; i < m->tensors; i++)
    if (save_kind_of(m->tensor[i].name) == 0) sorted[n++] = &m->tensor[i];
  qsort(sorted, (size_t)n, sizeof *sorted, by_name);
  for (int i = 0; i < n; i++)
    text_printf(&text, "%s %s%s\n", sorted[i]->name + strlen(save_kinds[0].prefix), dtype_name(sorted[i]->dtype),
                shape_describe(sorted[i]->ndim, sorted[i]->size, shape, sizeof shape));
  *out = XXH3_64bits(text.text, text.len);
  Status s = text.failed ? fail_oom() : OK;
  text_free(&text);
  return s;
}

Status manifest_write(const Manifest *m, FolderOut *folder, Arena *arena) {
  TextBuf text = {0};
  Manifest again;
  const char *path;
  Status s = manifest_print(m, &text);
  if (!s) s = manifest_parse("the manifest of this save", text.text, text.len, arena, &again);
  if (!s) s = folder_out_path(folder, MANIFEST_NAME, &path);
  if (!s) s = file_write_all(path, text.text, text.len, FILE_SYNC | FILE_OVERWRITE);
  text_free(&text);
  return s;
}
