/* torch_zip.c -- see torch_zip.h. */
#include "ckpt/torch_zip.h"

#include <string.h>

#include "ckpt/source_formats.h"

enum { DEEPEST = 64 }; /* dicts in dicts */

typedef struct {
  int file;
  uint64_t at, bytes;
} StoragePlace;

static Status bad(const TorchZip *z, const char *reason) { return fail(ERR_FILE, "%s: %s", z->what, reason); }

/* ---- opening ------------------------------------------------------------------------------------------- */

static Status check_byteorder(const TorchZip *z) {
  const ZipEntry *e = archive_find(&z->archive, "byteorder");
  ZipData data;
  if (!e) return OK;
  TRY(zip_read(z->archive.zip, e, &data));
  bool little = data.size == 6 && !memcmp(data.data, "little", 6);
  zip_data_free(&data);
  return little ? OK : bad(z, "its numbers are big-endian, which is not supported");
}

Status torch_zip_open(Source *s, int file, uint64_t at, uint64_t size, const char *what, TorchZip *z) {
  const FileMap *whole = s->file[file].map;
  ZipData data;
  *z = (TorchZip){.s = s, .what = what, .file = file, .at = at};
  if (at > whole->size || size > whole->size - at)
    return fail(ERR_CKPT, "%s: bytes %llu to %llu lie outside of the file '%s', which was cut off", what,
                (unsigned long long)at, (unsigned long long)(at + size), s->file[file].name);
  TRY(file_map_part(s->file[file].map, (size_t)at, (size_t)size, what, &z->map));
  TRY(source_damage(archive_open(z->map, &z->archive)));
  const ZipEntry *e = archive_find(&z->archive, "data.pkl");
  if (!e) return bad(z, "it has no data.pkl: not written by torch.save");
  TRY(check_byteorder(z));
  TRY(source_damage(zip_read(z->archive.zip, e, &data)));
  Status r = pickle_read(what, data.data, data.size, &s->arena, &z->root);
  zip_data_free(&data);
  return r;
}

void torch_zip_close(TorchZip *z) {
  archive_close(&z->archive);
  file_map_unref(z->map);
  z->map = NULL;
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

bool torch_zip_is_tensor(const PickleValue *v) {
  return pickle_is_object(v, PG_REBUILD_TENSOR) || pickle_is_object(v, PG_REBUILD_TYPED) ||
         pickle_is_object(v, PG_REBUILD_PARAMETER);
}

static Status find_storage(TorchZip *z, const char *key, StoragePlace **out) {
  StrSlot *slot;
  char *name;
  FileMap *part;
  TRY(strmap_slot(&z->storages, &z->s->arena, key, &slot));
  if ((*out = slot->value)) return OK;
  TRY_NEW(name, arena_printf(&z->s->arena, "data/%.200s", key));
  const ZipEntry *e = archive_find(&z->archive, name);
  if (!e) return fail(ERR_CKPT, "%s: the entry '%s' is missing", z->what, name);
  TRY_NEW(*out, arena_new(&z->s->arena, StoragePlace));
  if (e->stored) **out = (StoragePlace){z->file, z->at + e->offset, e->size};
  else { /* someone packed it: unpacked it is a file of its own */ TRY(zip_map(z->archive.zip, e, &part));
    **out = (StoragePlace){0, 0, part->size};
    TRY(source_add_map(z->s, name, part, &(*out)->file));
  }
  slot->value = *out;
  return OK;
}

/* ('storage', torch.FloatStorage, '0', 'cpu', numel) */
static Status read_storage(TorchZip *z, const PickleValue *v, Dtype *dtype, StoragePlace **out) {
  const PickleValue *id = pickle_is(v, PICKLE_STORED) ? v->items[0] : NULL;
  if (!pickle_is(id, PICKLE_TUPLE) || id->n != 5 || !pickle_is(id->items[0], PICKLE_TEXT) ||
      strcmp(id->items[0]->text, "storage") || !pickle_is(id->items[1], PICKLE_GLOBAL) ||
      id->items[1]->global != PG_STORAGE || !pickle_is(id->items[2], PICKLE_TEXT))
    return bad(z, "a tensor is no view of a plain storage");
  if (id->items[1]->dtype != DT_NONE) *dtype = id->items[1]->dtype;
  return find_storage(z, id->items[2]->text, out);
}

Status torch_zip_tensor(TorchZip *z, const PickleValue *v, Dtype *dtype, int *ndim, SourceChunk *c) {
  const PickleValue *args = v->args;
  StoragePlace *storage;
  int strides;
  if (v->global == PG_REBUILD_PARAMETER) {
    const PickleValue *inner = args->n ? args->items[0] : NULL;
    if (!pickle_is_object(inner, PG_REBUILD_TENSOR) && !pickle_is_object(inner, PG_REBUILD_TYPED))
      return bad(z, "a parameter is no plain tensor");
    args = inner->args, v = inner;
  }
  *c = (SourceChunk){0};
  *dtype = DT_NONE;
  if (args->n < 6 || !pickle_is(args->items[1], PICKLE_INT) || !pickle_sizes(args->items[2], ndim, c->size) ||
      !pickle_sizes(args->items[3], &strides, c->stride) || strides != *ndim)
    return bad(z, "a tensor has impossible sizes");
  TRY(read_storage(z, args->items[0], dtype, &storage));
  if (v->global == PG_REBUILD_TYPED) {
    if (args->n < 7 || !pickle_is(args->items[6], PICKLE_GLOBAL) || args->items[6]->global != PG_DTYPE)
      return bad(z, "a tensor has no dtype");
    *dtype = args->items[6]->dtype;
  }
  if (*dtype == DT_NONE) return bad(z, "a tensor has no dtype");
  uint64_t skip;
  if (args->items[1]->i < 0 || __builtin_mul_overflow((uint64_t)args->items[1]->i, dtype_size(*dtype), &skip) ||
      skip > storage->bytes)
    return bad(z, "a tensor lies outside of its storage");
  c->file = storage->file;
  c->at = storage->at + skip;
  return OK;
}

/* ---- a whole file -------------------------------------------------------------------------------------- */

bool source_is_torch(const char *path, bool folder) {
  FileMap *map;
  bool is = false;
  if (folder) return false;
  Status s = file_map(path, &map);
  if (!s) {
    is = map->size > 4 && !memcmp(map->data, "PK\3\4", 4);
    file_map_unref(map);
  }
  status_free(s);
  return is;
}

static Status add_value(TorchZip *z, const char *name, const PickleValue *v, int depth);

/* Keys are texts, or the numbers of parameters in an optimizer's state: names have a dot between them. */
static Status add_members(TorchZip *z, const char *name, const PickleValue *v, int depth) {
  const bool dict = v->kind == PICKLE_DICT;
  for (int i = 0; i < v->n; i += dict ? 2 : 1) {
    const PickleValue *key = dict ? v->items[i] : NULL;
    const char *dot = *name ? "." : "";
    char *path;
    if (dict && !pickle_is(key, PICKLE_TEXT) && !pickle_is(key, PICKLE_INT))
      return bad(z, "a key is neither a text nor a number");
    TRY_NEW(path, dict && key->kind == PICKLE_TEXT
                      ? arena_printf(&z->s->arena, "%s%s%s", name, dot, key->text)
                      : arena_printf(&z->s->arena, "%s%s%lld", name, dot, dict ? (long long)key->i : (long long)i));
    TRY(add_value(z, path, v->items[dict ? i + 1 : i], depth + 1));
  }
  return OK;
}

static Status add_other(TorchZip *z, const char *name, const PickleValue *v) {
  Source *s = z->s;
  TextBuf text = {0};
  TRY_NEW(s->value, arena_more(&s->arena, s->value, s->values, &s->values_cap));
  pickle_print(&text, v);
  s->value[s->values] = (SourceValue){.name = name, .text = arena_strdup(&s->arena, text.text ? text.text : "")};
  bool failed = text.failed || !s->value[s->values].text;
  text_free(&text);
  if (failed) return fail_oom();
  s->values++;
  return OK;
}

static Status add_value(TorchZip *z, const char *name, const PickleValue *v, int depth) {
  SourceTensor *t;
  SourceChunk c;
  Dtype dtype;
  int ndim;
  if (depth > DEEPEST) return bad(z, "values are nested too deep");
  if (v->kind == PICKLE_DICT || v->kind == PICKLE_LIST || v->kind == PICKLE_TUPLE)
    return add_members(z, name, v, depth);
  if (!torch_zip_is_tensor(v)) return add_other(z, name, v);
  if (!*name) name = "tensor";
  TRY(torch_zip_tensor(z, v, &dtype, &ndim, &c));
  TRY(source_add_tensor(z->s, name, dtype, ndim, c.size, &t));
  return source_add_chunk(z->s, t, &c, false);
}

Status source_open_torch(Source *s) {
  TorchZip z = {0};
  int file;
  TRY(source_add_file(s, NULL, &file));
  Status r = torch_zip_open(s, file, 0, s->file[file].map->size, s->path, &z);
  if (!r) r = add_value(&z, "", z.root, 0);
  torch_zip_close(&z);
  return r;
}
