/* manifest_parse.c -- reading manifest.json; see manifest.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/json.h"
#include "ckpt/manifest.h"

typedef struct {
  const char *what;
  Arena *arena;
  Manifest *m;
  int64_t version;
} Reading;

static Status bad(const Reading *r, const char *name, const char *reason) {
  return fail(ERR_CKPT, "%s: '%s': %s", r->what, name, reason);
}

/* I1: is the end as it was written? */
static bool is_intact(const char *text, size_t size) {
  static const char before[] = "\"xxh3\": \"", after[] = "\"\n}\n";
  enum { BEFORE = sizeof before - 1, DIGITS = 16, AFTER = sizeof after - 1 };
  char digits[DIGITS + 1];
  if (size < BEFORE + DIGITS + AFTER) return false;
  size_t n = size - (BEFORE + DIGITS + AFTER);
  snprintf(digits, sizeof digits, "%016llx", (unsigned long long)XXH3_64bits(text, n));
  text += n;
  return !memcmp(text, before, BEFORE) && !memcmp(text + BEFORE, digits, DIGITS) &&
         !memcmp(text + BEFORE + DIGITS, after, AFTER);
}

/* ---- single members ----------------------------------------------------------------------------- */

/* A string, in the arena. */
static Status get_text(const Reading *r, yyjson_val *object, const char *key, const char **out) {
  const char *s;
  TRY(json_string(object, key, r->what, &s));
  TRY_NEW(*out, arena_strdup(r->arena, s));
  return OK;
}

static Status get_count(const Reading *r, yyjson_val *object, const char *key, int64_t *out) {
  TRY(json_int64(object, key, r->what, out));
  return *out < 0 ? bad(r, key, "it must not be negative") : OK;
}

static Status get_hash(const Reading *r, yyjson_val *object, const char *key, uint64_t *out) {
  const char *s;
  TRY(json_string(object, key, r->what, &s));
  if (strlen(s) != 16 || strspn(s, "0123456789abcdef") != 16) return bad(r, key, "it must be 16 digits in hex");
  *out = strtoull(s, NULL, 16);
  return OK;
}

static Status get_sizes(const Reading *r, yyjson_val *object, const char *key, int *n, int64_t *size) {
  yyjson_val *list, *v;
  size_t i, max;
  TRY(json_array(object, key, r->what, &list));
  if (yyjson_arr_size(list) > MAX_DIMS) return bad(r, key, "there are too many dimensions");
  *n = (int)yyjson_arr_size(list);
  yyjson_arr_foreach(list, i, max, v) {
    if (!json_as_int64(v, &size[i]) || size[i] < 0) return bad(r, key, "it must hold sizes of 0 or more");
  }
  return OK;
}

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* NUL-terminated bytes of a text in hex. */
static Status get_hex(const Reading *r, yyjson_val *object, const char *key, const void **out, size_t *n) {
  const char *s;
  char *bytes;
  TRY(json_string(object, key, r->what, &s));
  *n = strlen(s) / 2;
  TRY_NEW(bytes, arena_alloc(r->arena, *n + 1));
  for (size_t i = 0; i < *n; i++) {
    int high = hex_digit(s[2 * i]), low = hex_digit(s[2 * i + 1]);
    if (high < 0 || low < 0) return bad(r, key, "it must be bytes in hex");
    bytes[i] = (char)(high << 4 | low);
  }
  if (strlen(s) % 2) return bad(r, key, "it must be bytes in hex");
  *out = bytes;
  return OK;
}

/* A text or {"hex": bytes}, as put_words() writes it. */
static Status get_words(const Reading *r, yyjson_val *v, const char *key, const char **out) {
  const char *s = json_as_string(v);
  const void *bytes;
  size_t n;
  if (s) {
    TRY_NEW(*out, arena_strdup(r->arena, s));
    return OK;
  }
  if (!yyjson_is_obj(v)) return bad(r, key, "it must be a text, or bytes in hex");
  TRY(get_hex(r, v, "hex", &bytes, &n));
  *out = bytes;
  return OK;
}

/* ---- facts -------------------------------------------------------------------------------------- */

static Status read_command(const Reading *r, yyjson_val *root, SaveFacts *f) {
  yyjson_val *list, *v;
  size_t i, max;
  const char **argv;
  TRY(json_array(root, "command", r->what, &list));
  TRY_NEW(argv, arena_new_n(r->arena, const char *, yyjson_arr_size(list) + 1));
  yyjson_arr_foreach(list, i, max, v) TRY(get_words(r, v, "command", &argv[i]));
  f->argv = argv;
  f->argc = (int)yyjson_arr_size(list);
  return OK;
}

static Status read_texts(const Reading *r, yyjson_val *root, SaveFacts *f) {
  yyjson_val *object, *key, *value;
  size_t i, max;
  SafeText *text;
  TRY(json_object(root, "texts", r->what, &object));
  TRY(json_check_keys(object, r->what));
  TRY_NEW(text, arena_new_n(r->arena, SafeText, yyjson_obj_size(object) + 1));
  yyjson_obj_foreach(object, i, max, key, value) {
    TRY_NEW(text[i].key, arena_strdup(r->arena, yyjson_get_str(key)));
    TRY(get_words(r, value, text[i].key, &text[i].value));
  }
  f->text = text;
  f->texts = (int)yyjson_obj_size(object);
  return OK;
}

static Status read_facts(const Reading *r, yyjson_val *root, SaveFacts *f) {
  yyjson_val *v, *data, *program;
  TRY(get_text(r, root, "tessera", &f->version));
  TRY(get_count(r, root, "step", &f->step));
  TRY(json_member(root, "seed", r->what, &v));
  if (!yyjson_is_uint(v)) return bad(r, "seed", "it must be an integer of 0 or more");
  f->seed = yyjson_get_uint(v);
  TRY(get_hex(r, root, "random", &f->random, &f->random_bytes));
  TRY(json_object(root, "data", r->what, &data));
  TRY(get_count(r, data, "batches", &f->batches));
  TRY(get_count(r, data, "samples", &f->samples));
  TRY(get_text(r, root, "mesh", &f->mesh));
  if (r->version == 1 && strcmp(f->mesh, "1"))
    return bad(r, "mesh", "saves of several ranks are of another version");
  TRY(json_object(root, "program", r->what, &program));
  TRY(get_words(r, yyjson_obj_get(program, "name"), "name", &f->program));
  TRY(get_hash(r, program, "signature", &f->signature));
  TRY(read_command(r, root, f));
  return read_texts(r, root, f);
}

/* ---- files and tensors -------------------------------------------------------------------------- */

static Status read_files(const Reading *r, yyjson_val *root) {
  yyjson_val *list, *v;
  size_t i, max;
  Manifest *m = r->m;
  TRY(json_array(root, "files", r->what, &list));
  if (yyjson_arr_size(list) > MAX_SAVED_FILES) return bad(r, "files", "there are too many");
  TRY_NEW(m->file, arena_new_n(r->arena, ManifestFile, yyjson_arr_size(list) + 1));
  yyjson_arr_foreach(list, i, max, v) {
    ManifestFile *f = &m->file[i];
    int64_t bytes;
    TRY(get_text(r, v, "name", &f->name));
    TRY(get_text(r, v, "prefix", &f->prefix));
    TRY(get_count(r, v, "bytes", &bytes));
    f->bytes = (uint64_t)bytes;
    if (!*f->name || *f->name == '.' || strchr(f->name, '/')) return bad(r, f->name, "it is no name of a file");
  }
  m->files = (int)yyjson_arr_size(list);
  return OK;
}

static Status read_chunk(const Reading *r, yyjson_val *v, const ManifestTensor *t, ManifestChunk *c) {
  int offsets, sizes;
  int64_t file;
  TRY(json_int64(v, "file", r->what, &file));
  if (file < 0 || file >= r->m->files) return bad(r, t->name, "its file is not among the files");
  c->file = (int)file;
  TRY(get_sizes(r, v, "offset", &offsets, c->offset));
  TRY(get_sizes(r, v, "shape", &sizes, c->size));
  bool inside = offsets == t->ndim && sizes == t->ndim;
  for (int i = 0; inside && i < t->ndim; i++)
    inside = c->offset[i] <= t->size[i] && c->size[i] <= t->size[i] - c->offset[i];
  if (!inside)
    return bad(r, t->name, r->version == 1 ? "its chunk is not the whole tensor" : "a chunk lies outside of it");
  const char *prefix = r->m->file[c->file].prefix;
  if (strncmp(t->name, prefix, strlen(prefix))) return bad(r, t->name, "its name lacks the prefix of its file");
  return get_hash(r, v, "xxh3", &c->hash);
}

static Status read_chunks(const Reading *r, yyjson_val *tensor, ManifestTensor *t) {
  yyjson_val *list, *v;
  size_t i, max;
  TRY(json_array(tensor, "chunks", r->what, &list));
  if (r->version == 1 && yyjson_arr_size(list) != 1)
    return bad(r, t->name, "a tensor of several chunks is of another version");
  TRY_NEW(t->chunk, arena_new_n(r->arena, ManifestChunk, yyjson_arr_size(list) + 1));
  yyjson_arr_foreach(list, i, max, v) TRY(read_chunk(r, v, t, &t->chunk[i]));
  t->chunks = (int)yyjson_arr_size(list);
  if (r->version == 1 && !manifest_is_whole(t)) return bad(r, t->name, "its chunk is not the whole tensor");
  return OK;
}

static Status read_tensor(const Reading *r, yyjson_val *v, ManifestTensor *t) {
  const char *dtype;
  int64_t numel, bytes;
  TRY(get_text(r, v, "name", &t->name));
  TRY(json_string(v, "dtype", r->what, &dtype));
  t->dtype = dtype_parse(dtype);
  if (t->dtype == DT_NONE) return fail(ERR_CKPT, "%s: '%s': there is no dtype '%s'", r->what, t->name, dtype);
  TRY(get_sizes(r, v, "shape", &t->ndim, t->size));
  if (!checked_numel(t->ndim, t->size, &numel) ||
      __builtin_mul_overflow(numel, (int64_t)dtype_size(t->dtype), &bytes))
    return bad(r, t->name, "it has impossible sizes");
  if (yyjson_obj_get(v, "placements")) TRY(get_text(r, v, "placements", &t->placements));
  return read_chunks(r, v, t);
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const ManifestTensor *)a)->name, ((const ManifestTensor *)b)->name);
}

static Status read_tensors(const Reading *r, yyjson_val *root) {
  yyjson_val *list, *v;
  size_t i, max;
  Manifest *m = r->m;
  TRY(json_array(root, "tensors", r->what, &list));
  TRY_NEW(m->tensor, arena_new_n(r->arena, ManifestTensor, yyjson_arr_size(list) + 1));
  yyjson_arr_foreach(list, i, max, v) TRY(read_tensor(r, v, &m->tensor[i]));
  m->tensors = (int)yyjson_arr_size(list);
  qsort(m->tensor, (size_t)m->tensors, sizeof *m->tensor, by_name);
  for (int k = 1; k < m->tensors; k++) {
    if (!strcmp(m->tensor[k - 1].name, m->tensor[k].name)) return bad(r, m->tensor[k].name, "it occurs twice");
  }
  return OK;
}

const ManifestTensor *manifest_find(const Manifest *m, const char *name) {
  const ManifestTensor key = {.name = name};
  return m->tensors ? bsearch(&key, m->tensor, (size_t)m->tensors, sizeof key, by_name) : NULL;
}

bool manifest_is_whole(const ManifestTensor *t) {
  return t->chunks == 1 && (!t->ndim || !memcmp(t->chunk->size, t->size, (size_t)t->ndim * sizeof *t->size));
}

const char *manifest_key(const Manifest *m, const ManifestTensor *t, const ManifestChunk *c) {
  return t->name + strlen(m->file[c->file].prefix);
}

bool manifest_is_like(const ManifestTensor *t, Dtype dtype, int ndim, const int64_t *size) {
  return t->dtype == dtype && t->ndim == ndim && (!ndim || !memcmp(t->size, size, (size_t)ndim * sizeof *size));
}

/* ---- the whole ---------------------------------------------------------------------------------- */

/* Before anything else is believed: a later version may be different in everything but this. */
static Status check_version(Reading *r, yyjson_val *root) {
  const char *format = json_as_string(yyjson_obj_get(root, "format"));
  const char *writer = json_as_string(yyjson_obj_get(root, "tessera"));
  if (!format || strcmp(format, "tessera run"))
    return fail(ERR_CKPT, "%s: this is no manifest of a save: its 'format' is not 'tessera run'", r->what);
  TRY(json_int64(root, "version", r->what, &r->version));
  if (r->version >= 1 && r->version <= MANIFEST_VERSION) return OK;
  return status_hint(fail(ERR_CKPT,
                          "%s: the save has version %lld of the format, this tessera reads up to version %d",
                          r->what, (long long)r->version, MANIFEST_VERSION),
                     "use tessera %s or a later one", writer ? writer : "of the machine that made it");
}

static Status read_root(Reading *r, yyjson_val *root, bool intact) {
  TRY(check_version(r, root));
  if (!intact)
    return fail(ERR_CKPT, "%s: its text does not match its checksum: it was edited or damaged after it was saved",
                r->what);
  TRY(json_check_keys(root, r->what));
  TRY(read_facts(r, root, &r->m->facts));
  TRY(read_files(r, root));
  return read_tensors(r, root);
}

Status manifest_parse(const char *what, const void *text, size_t size, Arena *arena, Manifest *out) {
  Reading r = {what, arena, out, 0};
  yyjson_doc *doc;
  *out = (Manifest){0};
  TRY(json_parse(what, text, size, 0, &doc));
  Status s = read_root(&r, yyjson_doc_get_root(doc), is_intact(text, size));
  yyjson_doc_free(doc);
  return s;
}
