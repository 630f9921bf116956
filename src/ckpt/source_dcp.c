/* source_dcp.c -- checkpoints of torch.distributed.checkpoint; see source.h.
 *
 * .metadata is a pickle of Metadata: for every name a TensorStorageMetadata (dtype, size, chunks) or a
 * BytesStorageMetadata, and for every chunk, by name and offset, a _StorageInfo: which bytes of which file.  Those
 * bytes are a record of torch.save, of the chunk or of a Python value.
 */
#include <stdio.h>
#include <string.h>

#include "ckpt/source_formats.h"
#include "ckpt/torch_zip.h"

#define METADATA ".metadata"

bool source_is_dcp(const char *path, bool folder) {
  char name[4096];
  return folder && snprintf(name, sizeof name, "%s/%s", path, METADATA) < (int)sizeof name && file_exists(name);
}

typedef struct {
  Source *s;
  StrMap files;   /* name -> 1 + number */
  StrMap tensors; /* name -> 1 + number */
  StrMap bytes;   /* names of values */
} Reading;

static Status bad(const Reading *r, const char *name, const char *reason) {
  return fail(ERR_CKPT, "'%s/%s': '%.200s': %s", r->s->path, METADATA, name, reason);
}

/* ---- what is saved ------------------------------------------------------------------------------------- */

/* The dtype is the first of what TensorProperties was built with, or has its name there in older files. */
static Dtype dtype_of(const PickleValue *properties) {
  const PickleValue *state = pickle_is(properties, PICKLE_OBJECT) ? properties->state : NULL;
  const PickleValue *dtype = pickle_member(state, "dtype");
  if (pickle_is(state, PICKLE_TUPLE) && state->n) dtype = state->items[0];
  return pickle_is(dtype, PICKLE_GLOBAL) && dtype->global == PG_DTYPE ? dtype->dtype : DT_NONE;
}

static Status add_tensor(Reading *r, const char *name, const PickleValue *v) {
  SourceTensor *t;
  StrSlot *slot;
  int ndim;
  int64_t size[MAX_DIMS];
  Dtype dtype = dtype_of(pickle_member(v, "properties"));
  if (dtype == DT_NONE) return bad(r, name, "its dtype is not known");
  if (!pickle_sizes(pickle_member(v, "size"), &ndim, size)) return bad(r, name, "it has impossible sizes");
  if (!pickle_is(pickle_member(v, "chunks"), PICKLE_LIST)) return bad(r, name, "it has no chunks");
  TRY(source_add_tensor(r->s, name, dtype, ndim, size, &t));
  TRY(strmap_slot(&r->tensors, &r->s->arena, t->name, &slot));
  if (slot->value) return bad(r, name, "it is there twice");
  slot->value = (void *)(uintptr_t)r->s->tensors;
  return OK;
}

static Status read_names(Reading *r, const PickleValue *root) {
  const PickleValue *all = pickle_member(root, "state_dict_metadata");
  if (!pickle_is(all, PICKLE_DICT)) return bad(r, "state_dict_metadata", "it is missing");
  for (int i = 0; i + 1 < all->n; i += 2) {
    const PickleValue *key = all->items[i], *v = all->items[i + 1];
    StrSlot *slot;
    if (!pickle_is(key, PICKLE_TEXT)) return bad(r, "state_dict_metadata", "a name is no text");
    if (pickle_is_object(v, PG_TENSOR_METADATA)) TRY(add_tensor(r, key->text, v));
    else if (pickle_is_object(v, PG_BYTES_METADATA)) {
      TRY(strmap_slot(&r->bytes, &r->s->arena, key->text, &slot));
      slot->value = r;
    } else return bad(r, key->text, "it is neither a tensor nor bytes");
  }
  return OK;
}

/* ---- where it is --------------------------------------------------------------------------------------- */

static Status find_file(Reading *r, const char *name, int *out) {
  StrSlot *slot;
  if (!*name || *name == '.' || strchr(name, '/')) return bad(r, name, "it is no name of a file");
  TRY(strmap_slot(&r->files, &r->s->arena, name, &slot));
  if (!slot->value) {
    Status s = source_add_file(r->s, name, out);
    if (s) return status_hint(source_damage(s), "the checkpoint lacks the file of a rank");
    if (sscanf(name, "__%5d_", &r->s->file[*out].rank) != 1) r->s->file[*out].rank = -1;
    slot->value = (void *)(uintptr_t)(*out + 1);
  }
  *out = (int)(uintptr_t)slot->value - 1;
  return OK;
}

typedef struct {
  const char *name;
  const PickleValue *offset;
  int file;
  uint64_t at, bytes;
} Record;

static Status read_record(Reading *r, const PickleValue *key, const PickleValue *info, Record *out) {
  const PickleValue *name = pickle_member(key, "fqn"), *path = pickle_member(info, "relative_path");
  const PickleValue *at = pickle_member(info, "offset"), *bytes = pickle_member(info, "length");
  const PickleValue *transforms = pickle_member(info, "transform_descriptors");
  if (!pickle_is_object(key, PG_INDEX) || !pickle_is(name, PICKLE_TEXT))
    return bad(r, "storage_data", "a key is no MetadataIndex");
  if (!pickle_is_object(info, PG_STORAGE_INFO) || !pickle_is(path, PICKLE_TEXT) || !pickle_is(at, PICKLE_INT) ||
      !pickle_is(bytes, PICKLE_INT) || at->i < 0 || bytes->i < 0)
    return bad(r, name->text, "it is not told where it is");
  if (transforms && !pickle_is(transforms, PICKLE_NONE) && transforms->n)
    return bad(r, name->text, "it is compressed by an extension of the writer, which is not supported");
  *out = (Record){name->text, pickle_member(key, "offset"), 0, (uint64_t)at->i, (uint64_t)bytes->i};
  return find_file(r, path->text, &out->file);
}

static Status add_chunk(Reading *r, const Record *k, SourceTensor *t, TorchZip *z) {
  SourceChunk c;
  Dtype dtype;
  int ndim, n;
  int64_t offset[MAX_DIMS] = {0};
  if (!torch_zip_is_tensor(z->root)) return bad(r, k->name, "its record is no tensor");
  TRY(torch_zip_tensor(z, z->root, &dtype, &ndim, &c));
  if (dtype != t->dtype || ndim != t->ndim)
    return bad(r, k->name, "its record has another dtype or other dimensions");
  if (k->offset && !pickle_is(k->offset, PICKLE_NONE) && (!pickle_sizes(k->offset, &n, offset) || n != t->ndim))
    return bad(r, k->name, "its offset is impossible");
  memcpy(c.offset, offset, sizeof offset);
  return source_add_chunk(r->s, t, &c, false);
}

static Status add_value(Reading *r, const Record *k, const PickleValue *root) {
  Source *s = r->s;
  TextBuf text = {0};
  TRY_NEW(s->value, arena_more(&s->arena, s->value, s->values, &s->values_cap));
  pickle_print(&text, root);
  char *copy = text.failed ? NULL : arena_strdup(&s->arena, text.text ? text.text : "");
  text_free(&text);
  if (!copy) return fail_oom();
  s->value[s->values++] = (SourceValue){k->name, k->file, k->at, k->bytes, copy};
  return OK;
}

static Status read_one(Reading *r, const Record *k) {
  TorchZip z = {0};
  char what[600];
  uintptr_t number = (uintptr_t)strmap_get(&r->tensors, k->name);
  if (!number && !strmap_get(&r->bytes, k->name))
    return bad(r, k->name, "it has a record and is not among the names");
  snprintf(what, sizeof what, "'%.200s/%.100s': '%.200s'", r->s->path, r->s->file[k->file].name, k->name);
  Status s = torch_zip_open(r->s, k->file, k->at, k->bytes, what, &z);
  if (!s) s = number ? add_chunk(r, k, &r->s->tensor[number - 1], &z) : add_value(r, k, z.root);
  torch_zip_close(&z);
  return s;
}

static Status read_records(Reading *r, const PickleValue *root) {
  const PickleValue *all = pickle_member(root, "storage_data");
  if (!pickle_is(all, PICKLE_DICT)) return bad(r, "storage_data", "it is missing");
  for (int i = 0; i + 1 < all->n; i += 2) {
    Record k;
    TRY(read_record(r, all->items[i], all->items[i + 1], &k));
    TRY(read_one(r, &k));
  }
  return OK;
}

Status source_read_dcp_metadata(Source *s, const void *data, size_t size) {
  Reading r = {.s = s};
  PickleValue *root;
  char *what;
  TRY_NEW(what, arena_printf(&s->arena, "%s/%s", s->path, METADATA));
  TRY(pickle_read(what, data, size, &s->arena, &root));
  if (!pickle_is_object(root, PG_METADATA)) return fail(ERR_FILE, "%s: this is no Metadata of a checkpoint", what);
  TRY(read_names(&r, root));
  return read_records(&r, root);
}

Status source_open_dcp(Source *s) {
  FileMap *f;
  char *path;
  TRY_NEW(path, arena_printf(&s->arena, "%s/%s", s->path, METADATA));
  TRY(file_map(path, &f));
  Status r = source_read_dcp_metadata(s, f->data, f->size);
  file_map_unref(f);
  return r;
}
