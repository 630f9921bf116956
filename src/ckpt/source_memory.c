/* source_memory.c -- tensors that are in memory, as a checkpoint; see source.h. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/source.h"

static const SourceFormat memory = {"memory", "tensors in memory", NULL, NULL};

static Status add_item(Source *s, const SafeItem *item) {
  const Tensor *t = item->tensor;
  SourceTensor *to;
  FileMap *map;
  SourceChunk c = {.at = (uint64_t)t->offset * dtype_size(t->dtype)};
  if (t->spec) return fail(ERR_USAGE, "'%s' is a DTensor: ranks save those together", item->name);
  if (tensor_numel(t) && !tensor_data(t)) return fail(ERR_USAGE, "'%s' has no data to be saved", item->name);
  if (!tensor_numel(t)) c.at = 0;
  TRY(file_map_borrow(item->name, t->storage ? t->storage->data : NULL, t->storage ? t->storage->size : 0, &map));
  TRY(source_add_map(s, item->name, map, &c.file));
  TRY(source_add_tensor(s, item->name, t->dtype, t->ndim, t->size, &to));
  memcpy(c.size, t->size, sizeof c.size);
  memcpy(c.stride, t->stride, sizeof c.stride);
  return source_add_chunk(s, to, &c, false);
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const SourceTensor *)a)->name, ((const SourceTensor *)b)->name);
}

Status source_of_tensors(const SafeItem *items, int n, Source **out) {
  Source *s;
  Status r = OK;
  TRY_NEW(s, calloc(1, sizeof *s));
  s->path = "tensors in memory";
  s->format = &memory;
  for (int i = 0; !r && i < n; i++) r = add_item(s, &items[i]);
  if (!r && s->tensors) qsort(s->tensor, (size_t)s->tensors, sizeof *s->tensor, by_name);
  for (int i = 1; !r && i < s->tensors; i++)
    if (!strcmp(s->tensor[i - 1].name, s->tensor[i].name))
      r = fail(ERR_USAGE, "two tensors cannot both be saved as '%s'", s->tensor[i].name);
  if (r) source_close(s);
  else *out = s;
  return r;
}
