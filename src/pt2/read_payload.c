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

typedef struct {
  const char *path; /* in the archive */
  Storage *storage;
} Record;

/* Open addressing on the path of a record, and on the name of an entry. */
typedef struct {
  Record *slots;
  size_t cap;
} Records;

static uint64_t hash_text(const char *s) {
  uint64_t h = 0xcbf29ce484222325u;
  for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
  return h ^ (h >> 29);
}

static Record *find_record(Records *r, const char *path) {
  for (uint64_t i = hash_text(path);; i++) {
    Record *slot = &r->slots[i & (r->cap - 1)];
    if (!slot->path || !strcmp(slot->path, path)) return slot;
  }
}

static Status new_records(size_t count, Records *out) {
  out->cap = 16;
  while (out->cap < count * 2) out->cap *= 2;
  TRY_NEW(out->slots, calloc(out->cap, sizeof *out->slots));
  return OK;
}

static void free_records(Records *r) {
  for (size_t i = 0; r->slots && i < r->cap; i++) storage_unref(r->slots[i].storage);
  free(r->slots);
}

static void release_map(Storage *s) { file_map_unref(s->owner); }

/* Mapped where that is possible, which is always in files that torch wrote; unpacked or
 * copied where the archive was repacked with compression or without alignment. */
static Status open_record(const Archive *a, const ArchiveEntry *entry, Storage **out) {
  if (entry->stored && entry->offset % RECORD_ALIGN == 0) {
    void *bytes = entry->size ? a->map->data + entry->offset : NULL;
    Status s = storage_borrow(bytes, entry->size, release_map, file_map_ref(a->map), out);
    if (s) file_map_unref(a->map);
    return s;
  }
  TRY(storage_new(entry->size, out));
  Status s = archive_unpack(a, entry, (*out)->data);
  if (s) storage_unref(*out);
  return s;
}

/* ---- entries ---------------------------------------------------------------------------- */

typedef struct {
  Reader *r;
  const char *folder; /* "data/weights/" */
  bool constants;
  Records records;
} Payload;

static Status find_entry(Payload *p, const char *path_name, const char **path, const ArchiveEntry **out) {
  if (strpbrk(path_name, "/\\") || !*path_name || path_name[0] == '.') {
    return fail(ERR_FILE, "its record '%.100s' is outside %s", path_name, p->folder);
  }
  TRY_NEW(*path, arena_printf(&p->r->e->arena, "%s%s", p->folder, path_name));
  *out = archive_find(p->r->file->archive, *path);
  return *out ? OK : fail(ERR_FILE, "its record '%.100s' is missing from the archive", *path);
}

static Status refuse_pickle(const char *kind) {
  Status s = fail(ERR_FILE, "it is stored as %s", kind);
  return status_hint(s, "pickles are not read: export the model with plain tensors (no tensor subclasses, no custom objects)");
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
  TRY(tensor_check_bounds(t, "its view"));
  *out = t;
  return OK;
}

static Status read_entry(Payload *p, const char *fqn, yyjson_val *json, StateEntry *out) {
  const char *path_name, *path;
  const ArchiveEntry *entry;
  PayloadMeta meta = {0};
  if (!fqn || !*fqn) return fail(ERR_FILE, "an entry without a name");
  TRY(json_string(json, "path_name", "payload", &path_name));
  if (!strncmp(path_name, "custom_obj_", 11) || !strncmp(path_name, "opaque_obj_", 11)) return refuse_pickle("a custom object");
  if (yyjson_is_true(yyjson_obj_get(json, "use_pickle"))) return refuse_pickle("a pickle");
  TRY(find_entry(p, path_name, &path, &entry));
  yyjson_val *tensor_meta;
  TRY(json_object(json, "tensor_meta", "payload", &tensor_meta));
  TRY(read_payload_meta(tensor_meta, &meta));
  Record *record = find_record(&p->records, path);
  if (!record->path) {
    TRY(open_record(p->r->file->archive, entry, &record->storage));
    record->path = path;
  }
  out->fqn = fqn;
  out->record = record->path;
  out->is_parameter = yyjson_is_true(yyjson_obj_get(json, "is_param"));
  out->is_constant = p->constants;
  out->requires_grad = meta.requires_grad;
  return make_tensor(p, record->storage, &meta, &out->tensor);
}

static Status read_entries(Payload *p, yyjson_val *config, Records *names) {
  Exported *e = p->r->e;
  size_t i, max;
  yyjson_val *key, *value;
  yyjson_obj_foreach(config, i, max, key, value) {
    StateEntry *out = &e->state[e->nstate];
    const char *fqn = json_as_string(key);
    TRY(status_at(read_entry(p, fqn, value, out), "'%s' in the %s of %s", fqn ? fqn : "?", p->constants ? "constants" : "weights", p->r->name));
    Record *name = find_record(names, fqn);
    if (name->path) return fail(ERR_FILE, "%s: the name '%s' occurs twice among weights and constants", p->r->name, fqn);
    name->path = fqn;
    e->nstate++;
  }
  return OK;
}

static Status read_payload(Reader *r, const char *folder, yyjson_val *config, Records *names) {
  Payload p = {.r = r, .folder = folder, .constants = config && !strcmp(folder, "data/constants/")};
  TRY(new_records(yyjson_obj_size(config), &p.records));
  Status s = read_entries(&p, config, names);
  free_records(&p.records);
  return s;
}

Status read_state(Reader *r) {
  yyjson_val *weights, *constants;
  TRY(json_object(yyjson_doc_get_root(r->file->weights), "config", r->name, &weights));
  TRY(json_object(yyjson_doc_get_root(r->file->constants), "config", r->name, &constants));
  size_t count = yyjson_obj_size(weights) + yyjson_obj_size(constants);
  if (count > INT32_MAX / 4) return fail(ERR_FILE, "%s: too many weights", r->name);
  TRY_NEW(r->e->state, arena_new_n(&r->e->arena, StateEntry, count));
  Records names = {0};
  TRY(new_records(count, &names));
  Status s = read_payload(r, "data/weights/", weights, &names);
  if (!s) s = read_payload(r, "data/constants/", constants, &names);
  free_records(&names);
  return s;
}
