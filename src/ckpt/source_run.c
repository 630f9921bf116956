/* source_run.c -- our own saves, and run folders; see source.h. */
#include <stdio.h>
#include <string.h>

#include "ckpt/save.h"
#include "ckpt/source_formats.h"
#include "ckpt/steps.h"

bool source_is_run(const char *path, bool folder) {
  Arena arena = {0};
  Steps steps;
  bool is = false;
  if (!folder) return false;
  char *manifest = arena_printf(&arena, "%s/%s", path, MANIFEST_NAME);
  if (manifest) is = file_exists(manifest);
  if (!is) {
    Status s = steps_list(path, &arena, &steps);
    is = !s && steps.n;
    status_free(s);
  }
  arena_free(&arena);
  return is;
}

/* "model-rank00002.safetensors" */
static int rank_of(const char *name) {
  const char *at = strstr(name, "-rank");
  int rank;
  return at && sscanf(at, "-rank%5d", &rank) == 1 ? rank : -1;
}

static Status add_tensor(Source *s, const Save *save, const ManifestTensor *m) {
  SourceTensor *t;
  TRY(source_add_tensor(s, m->name, m->dtype, m->ndim, m->size, &t));
  t->placements = m->placements;
  for (int i = 0; i < m->chunks; i++) {
    const ManifestChunk *k = &m->chunk[i];
    SourceChunk c = {.file = k->file, .at = save_entry(save, m, k)->begin, .hashed = true, .hash = k->hash};
    memcpy(c.offset, k->offset, sizeof c.offset);
    memcpy(c.size, k->size, sizeof c.size);
    contiguous_strides(m->ndim, k->size, c.stride);
    TRY(source_add_chunk(s, t, &c, false));
  }
  return OK;
}

Status source_open_run(Source *s) {
  TRY(run_latest(s->path, &s->arena, &s->path));
  TRY(save_open(s->path, &s->save));
  const Manifest *m = &s->save->m;
  s->mesh = m->facts.mesh;
  for (int i = 0; i < m->files; i++) {
    int file;
    TRY(source_add_map(s, m->file[i].name, file_map_ref(s->save->file[i]->file), &file));
    s->file[file].rank = rank_of(m->file[i].name);
  }
  for (int i = 0; i < m->tensors; i++) TRY(add_tensor(s, s->save, &m->tensor[i]));
  return OK;
}
