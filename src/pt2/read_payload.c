/* read_payload.c -- weights and constants of a .pt2 file; see reader.h.
 *
 * A config names, for each parameter, buffer and constant, the record that holds its
 * storage and the view it is of it.  A record becomes one Storage on the mapped bytes;
 * entries that share a record share the Storage, so tied weights stay tied.
 */
#include <stdlib.h>
#include <string.h>

#include "pt2/reader.h"

/* What kernels may assume of a pointer to any dtype. */
enum { RECORD_ALIGN = 16 };

/* ---- records -------------------------------------------------------------------------- */

static void release_map(Storage *s) { file_map_unref(s->owner); }

static Status copy_record(const FileMap *part, Storage **out) {
  TRY(storage_new(part->size, out));
  if (part->size) memcpy((*out)->data, part->data, part->size);
  return OK;
}

/* The mapped bytes, or unpacked ones where an archive was repacked with compression; a
 * copy where it was repacked without alignment.  What torch wrote is never copied. */
static Status open_record(const Zip *z, const ZipEntry *entry, Storage **out) {
  FileMap *part;
  TRY(zip_map(z, entry, &part));
  bool aligned = (uintptr_t)part->data % RECORD_ALIGN == 0;
  Status s = aligned ? storage_borrow(part->data, part->size, release_map, part, out) : copy_record(part, out);
  if (s || !aligned) file_map_unref(part);
  return s;
}

/* ---- entries ---------------------------------------------------------------------------- */

typedef struct {
  Reader *r;
  const char *folder; /* "data/weights/" */
  bool constants;
  StrMap *records; /* path -> Storage, of which the map holds a reference */
  StrMap *names;   /* every fqn so far */
} Payload;

static Status find_entry(Payload *p, const char *path_name, const char **path, const ZipEntry **out) {
  if (strpbrk(path_name, "/\\") || !*path_name || path_name[0] == '.') {
    return fail(ERR_FILE, "the record '%.100s' is outside %s", path_name, p->folder);
  }
  TRY_NEW(*path, arena_printf(&p->r->e->arena, "%s%s", p->folder, path_name));
  *out = archive_find(&p->r->file->archive, *path);
  return *out ? OK : fail(ERR_FILE, "the record '%.100s' is missing from the archive", *path);
}

static Status refuse_pickle(const char *fqn, const char *kind) {
  Status s = fail(ERR_FILE, "'%s' is stored as %s", fqn, kind);
  return status_hint(
      s, "pickles are not read: export the model with plain tensors (no tensor subclasses, no custom objects)");
}

static Status make_tensor(Payload *p, Storage *storage, const PayloadMeta *m, Tensor **out) {
  Tensor *t;
  TRY_NEW(t, scope_tensor(&p->r->e->scope));
  t->storage = storage_ref(storage);
  t->dtype = m->dtype;
  t->offset = m->offset;
  t->ndim = m->ndim;
  memcpy(t->size, m->size, sizeof t->size);
  memcpy(t->stride, m->stride, sizeof t->stride);
  TRY(tensor_check_bounds(t, "the view"));
  *out = t;
  return OK;
}

static Status read_entry(Payload *p, const char *fqn, yyjson_val *json, StateEntry *out) {
  const char *path_name, *path;
  const ZipEntry *entry;
  StrSlot *record;
  PayloadMeta meta = {0};
  if (!fqn || !*fqn) return fail(ERR_FILE, "an entry without a name");
  TRY(json_string(json, "path_name", "payload", &path_name));
  if (!strncmp(path_name, "custom_obj_", 11) || !strncmp(path_name, "opaque_obj_", 11))
    return refuse_pickle(fqn, "a custom object");
  if (yyjson_is_true(yyjson_obj_get(json, "use_pickle"))) return refuse_pickle(fqn, "a pickle");
  TRY(find_entry(p, path_name, &path, &entry));
  yyjson_val *tensor_meta;
  TRY(json_object(json, "tensor_meta", "payload", &tensor_meta));
  TRY(read_payload_meta(tensor_meta, &meta));
  TRY(strmap_slot(p->records, &p->r->e->arena, path, &record));
  if (!record->value) {
    Storage *storage;
    TRY(open_record(p->r->file->archive.zip, entry, &storage));
    record->value = storage;
  }
  out->fqn = fqn;
  out->record = record->key;
  out->is_parameter = yyjson_is_true(yyjson_obj_get(json, "is_param"));
  out->is_constant = p->constants;
  out->requires_grad = meta.requires_grad;
  return make_tensor(p, record->value, &meta, &out->tensor);
}

static Status read_entries(Payload *p, yyjson_val *config) {
  Exported *e = p->r->e;
  size_t i, max;
  yyjson_val *key, *value;
  if (config) yyjson_obj_foreach(config, i, max, key, value) {
      StateEntry *out = &e->state[e->nstate];
      StrSlot *name;
      const char *fqn = json_as_string(key);
      TRY(status_at(read_entry(p, fqn, value, out), "'%s' in %s", fqn ? fqn : "?", p->folder));
      TRY(strmap_slot(p->names, &e->arena, fqn, &name));
      if (name->value) return fail(ERR_FILE, "'%s' occurs twice among the weights and constants", fqn);
      name->value = out;
      e->nstate++;
    }
  return OK;
}

Status read_state(Reader *r) {
  yyjson_val *weights, *constants;
  TRY(json_object(yyjson_doc_get_root(r->file->weights), "config", "weights config", &weights));
  TRY(json_object(yyjson_doc_get_root(r->file->constants), "config", "constants config", &constants));
  size_t count = yyjson_obj_size(weights) + yyjson_obj_size(constants);
  if (count > INT32_MAX / 4) return fail(ERR_FILE, "%zu weights are too many", count);
  TRY_NEW(r->e->state, arena_new_n(&r->e->arena, StateEntry, count));
  TRY(strmap_reserve(&r->state, &r->e->arena, count));
  StrMap records = {0};
  Payload p = {.r = r, .folder = "data/weights/", .records = &records, .names = &r->state};
  Status s = read_entries(&p, weights);
  if (!s) {
    p.folder = "data/constants/";
    p.constants = true;
    s = read_entries(&p, constants);
  }
  for (size_t i = 0; i < records.cap; i++) storage_unref(records.slots[i].value);
  return s ? s : exported_index_state(r->e);
}
