/* source.c -- opening checkpoints of any format, adding to them, finding; see source.h. */
#include "ckpt/source.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/save.h"
#include "ckpt/source_formats.h"

const SourceFormat source_formats[] = {
    {"tessera", "a save of tessera", source_is_run, source_open_run},
    {"dcp", "a distributed checkpoint of PyTorch", source_is_dcp, source_open_dcp},
    {"hf", "a folder of .safetensors", source_is_hf, source_open_hf},
    {"safetensors", "a .safetensors file", source_is_safetensors, source_open_safetensors},
    {"pt2", "an exported program", source_is_pt2, source_open_pt2},
    {"torch", "a file of torch.save", source_is_torch, source_open_torch},
};
const int source_format_count = (int)(sizeof source_formats / sizeof *source_formats);

/* ---- adding ----------------------------------------------------------------------------------------- */

Status source_add_map(Source *s, const char *name, FileMap *map, int *out) {
  SourceFile *more = arena_more(&s->arena, s->file, s->files, &s->files_cap);
  char *copy = arena_strdup(&s->arena, name);
  if (!more || !copy) {
    file_map_unref(map);
    return fail_oom();
  }
  s->file = more;
  s->file[s->files] = (SourceFile){copy, map, -1};
  *out = s->files++;
  return OK;
}

Status source_add_file(Source *s, const char *name, int *out) {
  FileMap *map;
  const char *path = s->path;
  if (name) TRY_NEW(path, arena_printf(&s->arena, "%s/%s", s->path, name));
  TRY(file_map(path, &map));
  return source_add_map(s, name ? name : path, map, out);
}

Status source_damage(Status s) {
  if (!s || status_code(s) != ERR_FILE) return s;
  Status damage = fail(ERR_CKPT, "%s", status_message(s));
  status_free(s);
  return damage;
}

Status source_add_tensor(Source *s, const char *name, Dtype dtype, int ndim, const int64_t *size,
                         SourceTensor **out) {
  SourceTensor t = {.dtype = dtype, .ndim = ndim};
  int64_t numel, bytes;
  TRY_NEW(s->tensor, arena_more(&s->arena, s->tensor, s->tensors, &s->tensors_cap));
  TRY_NEW(t.name, arena_strdup(&s->arena, name));
  if (!checked_numel(ndim, size, &numel) || __builtin_mul_overflow(numel, (int64_t)dtype_size(dtype), &bytes))
    return fail(ERR_CKPT, "'%s': the tensor '%s' has impossible sizes", s->path, name);
  if (ndim) memcpy(t.size, size, (size_t)ndim * sizeof *size);
  s->tensor[s->tensors] = t;
  *out = &s->tensor[s->tensors++];
  return OK;
}

static Status bad_chunk(const Source *s, const SourceTensor *t, const SourceChunk *c, const char *reason) {
  char a[200], b[200], whole[200];
  return fail(ERR_CKPT, "'%s', file '%s': the part %s at %s of the tensor '%s' %s%s %s", s->path,
              s->file[c->file].name, shape_describe(t->ndim, c->size, a, sizeof a),
              shape_describe(t->ndim, c->offset, b, sizeof b), t->name, dtype_name(t->dtype),
              shape_describe(t->ndim, t->size, whole, sizeof whole), reason);
}

/* I1: every element is in the file. */
static bool is_in_file(const Source *s, const SourceTensor *t, const SourceChunk *c) {
  int64_t last = 0, numel;
  uint64_t size = s->file[c->file].map->size;
  if (!checked_numel(t->ndim, c->size, &numel)) return false;
  if (!numel) return c->at <= size;
  for (int d = 0; d < t->ndim; d++) {
    int64_t step;
    if (c->stride[d] < 0 || __builtin_mul_overflow(c->size[d] - 1, c->stride[d], &step) ||
        __builtin_add_overflow(last, step, &last))
      return false;
  }
  int64_t bytes;
  if (__builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, (int64_t)dtype_size(t->dtype), &bytes))
    return false;
  return c->at <= size && (uint64_t)bytes <= size - c->at;
}

Status source_add_chunk(Source *s, SourceTensor *t, const SourceChunk *chunk, bool grow) {
  SourceChunk c = *chunk;
  for (int d = 0; d < t->ndim; d++) {
    int64_t end;
    if (c.offset[d] < 0 || c.size[d] < 0 || __builtin_add_overflow(c.offset[d], c.size[d], &end))
      return bad_chunk(s, t, &c, "has impossible sizes");
    if (end > t->size[d] && grow) t->size[d] = end;
    if (end > t->size[d]) return bad_chunk(s, t, &c, "lies outside of it");
  }
  if (!is_in_file(s, t, &c)) return bad_chunk(s, t, &c, "lies outside of its file, which was cut off or changed");
  TRY_NEW(t->chunk, arena_more(&s->arena, t->chunk, t->chunks, &t->cap));
  t->chunk[t->chunks++] = c;
  return OK;
}

/* ---- opening ---------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
  return strcmp(((const SourceTensor *)a)->name, ((const SourceTensor *)b)->name);
}

static Status sort_tensors(Source *s) {
  if (s->tensors) qsort(s->tensor, (size_t)s->tensors, sizeof *s->tensor, by_name);
  for (int i = 0; i < s->tensors; i++) {
    const SourceTensor *t = &s->tensor[i];
    int64_t numel, bytes;
    if (i && !strcmp(s->tensor[i - 1].name, t->name))
      return fail(ERR_CKPT, "'%s': the tensor '%s' is there twice", s->path, t->name);
    if (!checked_numel(t->ndim, t->size, &numel) ||
        __builtin_mul_overflow(numel, (int64_t)dtype_size(t->dtype), &bytes))
      return fail(ERR_CKPT, "'%s': the tensor '%s' has impossible sizes", s->path, t->name);
  }
  return OK;
}

static Status no_format(const char *path, bool folder) {
  Status s = fail(ERR_FILE, "'%s' is no checkpoint that tessera knows", path);
  return status_hint(s, folder
                            ? "folders are saves of tessera (manifest.json), distributed checkpoints of PyTorch "
                              "(.metadata), or have .safetensors files in them"
                            : "files are .safetensors, .pt2, or zips of torch.save (the format before PyTorch 1.6 "
                              "is none: load it there and save it again)");
}

static Status open_any(Source *s, const char *path) {
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') n--;
  TRY_NEW(s->path, arena_strndup(&s->arena, path, n));
  if (!file_exists(s->path)) return fail(ERR_USAGE, "there is no checkpoint '%s'", s->path);
  bool folder = file_is_folder(s->path);
  for (int i = 0; i < source_format_count && !s->format; i++)
    if (source_formats[i].is(s->path, folder)) s->format = &source_formats[i];
  if (!s->format) return no_format(s->path, folder);
  TRY(s->format->open(s));
  return sort_tensors(s);
}

Status source_open(const char *path, Source **out) {
  Source *s;
  TRY_NEW(s, calloc(1, sizeof *s));
  Status r = open_any(s, path);
  if (r) source_close(s);
  else *out = s;
  return r;
}

void source_close(Source *s) {
  if (!s) return;
  for (int i = 0; i < s->files; i++) file_map_unref(s->file[i].map);
  save_close(s->save);
  arena_free(&s->arena);
  free(s);
}

const SourceTensor *source_find(const Source *s, const char *name) {
  const SourceTensor key = {.name = name};
  return s->tensors ? bsearch(&key, s->tensor, (size_t)s->tensors, sizeof key, by_name) : NULL;
}

int64_t source_bytes(const SourceTensor *t) {
  int64_t numel = 1;
  for (int d = 0; d < t->ndim; d++) numel *= t->size[d];
  return numel * (int64_t)dtype_size(t->dtype);
}
