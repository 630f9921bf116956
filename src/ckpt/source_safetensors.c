/* source_safetensors.c -- .safetensors files, and folders of them as Hugging Face and PyTorch write them; see
 * source.h.
 *
 * A file of shards says in its __metadata__ where each of its tensors begins in the whole:
 *     "DCP_SHARDING_INFO": "{\"wte.weight\": {\"saved_offsets\": [4, 0]}, ...}"
 * and the size of the whole is what the shards of all files reach.  Files without it hold whole tensors.  With an
 * index (model.safetensors.index.json) the files are those that it names, and the tensors must be where it says.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/strmap.h"
#include "ckpt/sharded_files.h"
#include "ckpt/source_formats.h"

#define INDEX_NAME "model.safetensors.index.json"

static bool ends_in(const char *name, const char *end) {
  size_t n = strlen(name), m = strlen(end);
  return n > m && !strcmp(name + n - m, end);
}

bool source_is_safetensors(const char *path, bool folder) { return !folder && ends_in(path, ".safetensors"); }

bool source_is_hf(const char *path, bool folder) {
  bool found = false;
  if (!folder) return ends_in(path, ".safetensors.index.json");
  DIR *d = opendir(path);
  for (const struct dirent *e; d && !found && (e = readdir(d));) found = ends_in(e->d_name, ".safetensors");
  if (d) closedir(d);
  return found;
}

/* ---- one file ---------------------------------------------------------------------------------------- */

typedef struct {
  Source *s;
  StrMap tensors; /* name -> 1 + its number */
  StrMap index;   /* name -> its file, of the index; empty: there is none */
  bool indexed;
} Reading;

/* Where the entry begins in the whole; zeros if the file has no such thing. */
static Status read_offsets(const Source *s, int file, yyjson_val *info, const SafeEntry *e, int64_t *offset) {
  yyjson_val *list, *v;
  size_t i, max;
  memset(offset, 0, MAX_DIMS * sizeof *offset);
  if (!info) return OK;
  yyjson_val *entry = yyjson_obj_get(info, e->name);
  const char *name = s->file[file].name;
  if (!entry)
    return fail(ERR_CKPT, "'%s', file '%s': %s does not name the tensor '%s'", s->path, name, SHARDING_KEY,
                e->name);
  TRY(json_array(entry, "saved_offsets", name, &list));
  if ((int)yyjson_arr_size(list) != e->ndim)
    return fail(ERR_CKPT, "'%s', file '%s': the tensor '%s' has %d dimensions and %zu offsets", s->path, name,
                e->name, e->ndim, yyjson_arr_size(list));
  yyjson_arr_foreach(list, i, max, v) {
    if (!json_as_int64(v, &offset[i]) || offset[i] < 0)
      return fail(ERR_CKPT, "'%s', file '%s': the offsets of the tensor '%s' must be 0 or more", s->path, name,
                  e->name);
  }
  return OK;
}

static Status find_tensor(Reading *r, int file, const SafeEntry *e, bool sharded, SourceTensor **out) {
  StrSlot *slot;
  Source *s = r->s;
  const int64_t nothing[MAX_DIMS] = {0};
  char a[200], b[200];
  TRY(strmap_slot(&r->tensors, &s->arena, e->name, &slot));
  if (!slot->value) {
    TRY(source_add_tensor(s, e->name, e->dtype, e->ndim, sharded ? nothing : e->size, out));
    slot->key = (*out)->name;
    slot->value = (void *)(uintptr_t)s->tensors;
    return OK;
  }
  SourceTensor *t = *out = &s->tensor[(uintptr_t)slot->value - 1];
  if (t->dtype != e->dtype || t->ndim != e->ndim)
    return fail(ERR_CKPT, "'%s': the tensor '%s' is %s%s in '%s', %s%s in '%s'", s->path, t->name,
                dtype_name(t->dtype), shape_describe(t->ndim, t->size, a, sizeof a),
                s->file[t->chunk ? t->chunk->file : file].name, dtype_name(e->dtype),
                shape_describe(e->ndim, e->size, b, sizeof b), s->file[file].name);
  if (!sharded)
    return fail(ERR_CKPT,
                "'%s': the tensor '%s' is both in '%s' and in '%s', which do not say that they are shards", s->path,
                t->name, s->file[t->chunk ? t->chunk->file : file].name, s->file[file].name);
  return OK;
}

static Status add_entry(Reading *r, int file, const SafeEntry *e, yyjson_val *info) {
  SourceTensor *t;
  SourceChunk c = {.file = file, .at = e->begin};
  TRY(read_offsets(r->s, file, info, e, c.offset));
  if (r->indexed) {
    const char *want = strmap_get(&r->index, e->name);
    if (!want || strcmp(want, r->s->file[file].name)) return OK; /* the index has it elsewhere, or leaves it out */
  }
  TRY(find_tensor(r, file, e, info != NULL, &t));
  if (e->ndim) memcpy(c.size, e->size, (size_t)e->ndim * sizeof *e->size);
  contiguous_strides(e->ndim, e->size, c.stride);
  return source_add_chunk(r->s, t, &c, info != NULL);
}

static Status add_entries(Reading *r, int file, const SafeTensors *st) {
  const char *text = safetensors_text(st, SHARDING_KEY);
  yyjson_doc *doc = NULL;
  Status s = OK;
  if (text) TRY(json_parse(r->s->file[file].name, text, strlen(text), 0, &doc));
  yyjson_val *info = doc ? yyjson_doc_get_root(doc) : NULL;
  if (doc && !yyjson_is_obj(info))
    s = fail(ERR_CKPT, "'%s': %s must be an object", r->s->file[file].name, SHARDING_KEY);
  for (int i = 0; !s && i < st->count; i++) s = add_entry(r, file, &st->entries[i], info);
  yyjson_doc_free(doc);
  return s;
}

static Status read_file(Reading *r, const char *name) {
  int file;
  SafeTensors *st;
  TRY(source_damage(source_add_file(r->s, name, &file)));
  TRY(source_damage(safetensors_from_map(r->s->file[file].map, &st)));
  if (name && sscanf(name, "shard-%5d-", &r->s->file[file].rank) == 1) r->s->file[file].rank--;
  Status s = add_entries(r, file, st);
  safetensors_close(st);
  return s;
}

Status source_open_safetensors(Source *s) {
  Reading r = {.s = s};
  return read_file(&r, NULL);
}

/* ---- a folder ------------------------------------------------------------------------------------------ */

typedef struct {
  const char **v;
  int n, cap;
} Names;

static int by_text(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static Status add_name(Source *s, Names *names, const char *name) {
  TRY_NEW(names->v, arena_more(&s->arena, names->v, names->n, &names->cap));
  TRY_NEW(names->v[names->n], arena_strdup(&s->arena, name));
  names->n++;
  return OK;
}

static Status list_files(Source *s, Names *names) {
  Status r = OK;
  DIR *d = opendir(s->path);
  if (!d) return fail(ERR_FILE, "cannot read '%s': %s", s->path, strerror(errno));
  for (const struct dirent *e; !r && (e = readdir(d));)
    if (e->d_name[0] != '.' && ends_in(e->d_name, ".safetensors")) r = add_name(s, names, e->d_name);
  closedir(d);
  return r;
}

static Status read_index(Reading *r, const char *path, yyjson_val *root, Names *names) {
  yyjson_val *map, *key, *value;
  size_t i, max;
  StrMap seen = {0};
  TRY(json_object(root, "weight_map", path, &map));
  TRY(json_check_keys(map, path));
  yyjson_obj_foreach(map, i, max, key, value) {
    const char *file = json_as_string(value);
    StrSlot *slot;
    char *name;
    if (!file || !*file || *file == '.' || strchr(file, '/'))
      return fail(ERR_CKPT, "'%s': '%s' is in no file of this folder", path, yyjson_get_str(key));
    TRY(strmap_slot(&seen, &r->s->arena, file, &slot));
    if (!slot->value) {
      TRY(add_name(r->s, names, file));
      slot->key = names->v[names->n - 1];
      slot->value = (void *)(uintptr_t)slot->key;
    }
    const char *kept = slot->value;
    TRY_NEW(name, arena_strdup(&r->s->arena, yyjson_get_str(key)));
    TRY(strmap_slot(&r->index, &r->s->arena, name, &slot));
    slot->value = (void *)(uintptr_t)kept;
  }
  r->indexed = true;
  return OK;
}

static Status open_index(Reading *r, const char *path, Names *names) {
  FileMap *f;
  yyjson_doc *doc;
  TRY(file_map(path, &f));
  Status s = json_parse(path, f->data, f->size, 0, &doc);
  if (!s) {
    s = read_index(r, path, yyjson_doc_get_root(doc), names);
    yyjson_doc_free(doc);
  }
  file_map_unref(f);
  return s;
}

/* Everything that the index names is there. */
static Status check_index(const Reading *r, const char *path) {
  for (size_t i = 0; i < r->index.cap; i++) {
    const StrSlot *slot = &r->index.slots[i];
    if (slot->key && !strmap_get(&r->tensors, slot->key))
      return fail(ERR_CKPT, "'%s' says that '%s' has the tensor '%s', which it has not", path,
                  (const char *)slot->value, slot->key);
  }
  return OK;
}

Status source_open_hf(Source *s) {
  Reading r = {.s = s};
  Names names = {0};
  const char *index = s->path;
  if (file_is_folder(s->path)) TRY_NEW(index, arena_printf(&s->arena, "%s/%s", s->path, INDEX_NAME));
  else { /* the index itself was named: its folder is the checkpoint */ const char *slash = strrchr(s->path, '/');
    TRY_NEW(s->path, slash ? arena_strndup(&s->arena, index, (size_t)(slash - index) + (slash == index))
                           : arena_strdup(&s->arena, "."));
  }
  if (file_exists(index)) TRY(open_index(&r, index, &names));
  else TRY(list_files(s, &names));
  if (names.n) qsort(names.v, (size_t)names.n, sizeof *names.v, by_text);
  for (int i = 0; i < names.n; i++) TRY(read_file(&r, names.v[i]));
  return r.indexed ? check_index(&r, index) : OK;
}
