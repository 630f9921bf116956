/* golden_ckpt -- checkpoints that PyTorch wrote, read back.
 *
 *     golden_ckpt [FOLDER...] [--verbose]
 *
 * A FOLDER has a folder per case: full.safetensors (the truth), any number of folders (dcp/,
 * hf_sharded/, hf_full/) and files (model.pt) that are checkpoints, and metadata.json (`state_dict_metadata`,
 * `storage`, `other_values` of dcp/, `local_boxes_per_rank`).  Every checkpoint must verify, have the names, dtypes
 * and sizes of the truth, and its bits: of whole tensors, and of every box that some rank held.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "ckpt/source.h"

enum { PATH_CAP = 4096 };

typedef struct {
  int passed, failed;
  bool verbose;
} Suite;

typedef struct {
  const SafeTensors *full;
  const Source *s;
  yyjson_val *meta; /* NULL: there is none */
  Scope scope;
  Arena arena;
} Case;

/* ---- values ---------------------------------------------------------------------------------------------- */

/* The box of the checkpoint has the bits of the truth. */
static Status compare_box(Case *c, const SourceTensor *t, const int64_t *offset, const int64_t *size) {
  Tensor *got, *want, *part;
  char a[200], b[200];
  int64_t at = 0;
  size_t item = dtype_size(t->dtype);
  TRY(safetensors_get(c->full, t->name, &c->scope, &want));
  TRY(tensor_new(&c->scope, t->dtype, t->ndim, size, &got));
  if (!tensor_numel(got)) return OK;
  TRY(source_read(c->s, t, offset, tensor_view(got)));
  for (int d = 0; d < t->ndim; d++) at += offset[d] * want->stride[d];
  TRY(tensor_as_strided(&c->scope, want, t->ndim, size, want->stride, at, &part));
  for (int64_t i = 0; i < tensor_numel(got); i++) {
    int64_t from = 0, rest = i;
    for (int d = t->ndim - 1; d >= 0; rest /= size[d--]) from += rest % size[d] * part->stride[d];
    if (memcmp((char *)tensor_data(got) + (size_t)i * item, (char *)tensor_data(part) + (size_t)from * item, item))
      return fail(ERR_DIFF, "'%s': the box %s at %s differs in element %lld", t->name,
                  shape_describe(t->ndim, size, a, sizeof a), shape_describe(t->ndim, offset, b, sizeof b),
                  (long long)i);
  }
  return OK;
}

static Status compare_tensors(Case *c) {
  const int64_t nowhere[MAX_DIMS] = {0};
  if (c->s->tensors != c->full->count)
    return fail(ERR_DIFF, "%d tensors, should be %d", c->s->tensors, c->full->count);
  for (int i = 0; i < c->full->count; i++) {
    const SafeEntry *e = &c->full->entries[i];
    const SourceTensor *t = source_find(c->s, e->name);
    if (!t) return fail(ERR_DIFF, "the tensor '%s' is missing", e->name);
    if (t->dtype != e->dtype || t->ndim != e->ndim || memcmp(t->size, e->size, (size_t)t->ndim * sizeof *t->size))
      return fail(ERR_DIFF, "'%s' has another dtype or size", e->name);
    TRY(compare_box(c, t, nowhere, t->size));
    scope_clear(&c->scope);
  }
  return OK;
}

/* ---- what metadata.json says ------------------------------------------------------------------------------ */

static Status get_ints(yyjson_val *v, const char *key, int64_t *out) {
  yyjson_val *list, *item;
  size_t i, n;
  TRY(json_array(v, key, "metadata.json", &list));
  if (yyjson_arr_size(list) > MAX_DIMS) return fail(ERR_DIFF, "too many dimensions in metadata.json");
  memset(out, 0, MAX_DIMS * sizeof *out);
  yyjson_arr_foreach(list, i, n, item) {
    if (!json_as_int64(item, &out[i])) return fail(ERR_DIFF, "metadata.json has no number where one should be");
  }
  return OK;
}

static Status compare_boxes(Case *c) {
  yyjson_val *boxes = yyjson_obj_get(c->meta, "local_boxes_per_rank"), *key, *list, *box;
  size_t i, n, k, m;
  if (!boxes) return OK;
  yyjson_obj_foreach(boxes, i, n, key, list) {
    const SourceTensor *t = source_find(c->s, yyjson_get_str(key));
    if (!t) return fail(ERR_DIFF, "the tensor '%s' is missing", yyjson_get_str(key));
    yyjson_arr_foreach(list, k, m, box) {
      int64_t offset[MAX_DIMS], size[MAX_DIMS];
      TRY(get_ints(box, "offset", offset));
      TRY(get_ints(box, "shape", size));
      TRY(compare_box(c, t, offset, size));
      scope_clear(&c->scope);
    }
  }
  return OK;
}

static const SourceChunk *find_chunk(const SourceTensor *t, const int64_t *offset) {
  for (int i = 0; i < t->chunks; i++)
    if (!memcmp(t->chunk[i].offset, offset, (size_t)t->ndim * sizeof *offset)) return &t->chunk[i];
  return NULL;
}

static const SourceValue *find_value(const Source *s, const char *name, size_t length) {
  for (int i = 0; i < s->values; i++)
    if (!strncmp(s->value[i].name, name, length) && !s->value[i].name[length]) return &s->value[i];
  return NULL;
}

static Status compare_metadata(Case *c) {
  yyjson_val *all = yyjson_obj_get(c->meta, "state_dict_metadata"), *key, *v, *chunk;
  size_t i, n, k, m;
  if (!all) return OK;
  yyjson_obj_foreach(all, i, n, key, v) {
    const char *name = yyjson_get_str(key), *dtype;
    const SourceTensor *t = source_find(c->s, name);
    int64_t size[MAX_DIMS];
    if (yyjson_is_true(yyjson_obj_get(v, "bytes"))) {
      if (!find_value(c->s, name, strlen(name))) return fail(ERR_DIFF, "the value '%s' is missing", name);
      continue;
    }
    TRY(json_string(v, "dtype", name, &dtype));
    TRY(get_ints(v, "size", size));
    if (!t || strcmp(dtype_info[t->dtype].torch, dtype) || memcmp(size, t->size, (size_t)t->ndim * sizeof *size))
      return fail(ERR_DIFF, "'%s' is missing, or has another dtype or size", name);
    if (t->chunks != (int)yyjson_arr_size(yyjson_obj_get(v, "chunks")))
      return fail(ERR_DIFF, "'%s' has %d chunks", name, t->chunks);
    yyjson_arr_foreach(yyjson_obj_get(v, "chunks"), k, m, chunk) {
      int64_t offset[MAX_DIMS];
      TRY(get_ints(chunk, "offset", offset));
      TRY(get_ints(chunk, "size", size));
      const SourceChunk *found = find_chunk(t, offset);
      if (!found || memcmp(found->size, size, (size_t)t->ndim * sizeof *size))
        return fail(ERR_DIFF, "'%s' lacks a chunk", name);
    }
  }
  return OK;
}

/* Each record is where it should be: the chunk's bytes lie within. */
static Status compare_storage(Case *c) {
  yyjson_val *v, *storage = yyjson_obj_get(c->meta, "storage");
  size_t i, n;
  if (!storage) return OK;
  yyjson_arr_foreach(storage, i, n, v) {
    const char *name, *file;
    int64_t at, length, offset[MAX_DIMS] = {0};
    TRY(json_string(v, "key", "storage", &name));
    TRY(json_string(v, "file", "storage", &file));
    TRY(json_int64(v, "at", "storage", &at));
    TRY(json_int64(v, "length", "storage", &length));
    const SourceTensor *t = source_find(c->s, name);
    const SourceValue *value = find_value(c->s, name, strlen(name));
    if (yyjson_is_arr(yyjson_obj_get(v, "offset"))) TRY(get_ints(v, "offset", offset));
    const SourceChunk *chunk = t ? find_chunk(t, offset) : NULL;
    int in = chunk ? chunk->file : value ? value->file : -1;
    uint64_t begin = chunk ? chunk->at : value ? value->at : 0;
    if (in < 0 || strcmp(c->s->file[in].name, file) || begin < (uint64_t)at || begin >= (uint64_t)(at + length))
      return fail(ERR_DIFF, "'%s' is not where it should be", name);
  }
  return OK;
}

/* As Python prints them; items of lists have names of their own there. */
static Status compare_values(Case *c) {
  yyjson_val *key, *v, *values = yyjson_obj_get(c->meta, "other_values");
  size_t i, n;
  if (!values) return OK;
  yyjson_obj_foreach(values, i, n, key, v) {
    const char *name = yyjson_get_str(key), *want = yyjson_get_str(v), *dot = strrchr(name, '.');
    const SourceValue *value = find_value(c->s, name, strlen(name));
    if (value && !strcmp(value->text, want)) continue;
    const SourceValue *list = dot ? find_value(c->s, name, (size_t)(dot - name)) : NULL;
    if (list && strstr(list->text, want)) continue;
    return fail(ERR_DIFF, "the value '%s' is %s, should be %s", name, value ? value->text : "missing", want);
  }
  return OK;
}

/* ---- cases ------------------------------------------------------------------------------------------------- */

static Status run(Case *c) {
  TRY(source_verify(c->s, &(SourceVerify){.threads = 2}));
  TRY(compare_tensors(c));
  if (!c->meta) return OK;
  TRY(compare_boxes(c));
  if (strcmp(c->s->format->name, "dcp")) return OK;
  TRY(compare_metadata(c));
  TRY(compare_storage(c));
  return compare_values(c);
}

static Status run_checkpoint(const char *path, const SafeTensors *full, yyjson_val *meta) {
  Source *source;
  TRY(source_open(path, &source));
  Case c = {.full = full, .s = source, .meta = meta};
  Status s = run(&c);
  scope_clear(&c.scope);
  arena_free(&c.arena);
  source_close(source);
  return s;
}

static void report(Suite *suite, const char *path, Status s) {
  if (s) printf("FAILED %s: %s\n", path, status_message(s));
  else if (suite->verbose) printf("ok     %s\n", path);
  if (s) suite->failed++;
  else suite->passed++;
  status_free(s);
}

static void run_checkpoints(Suite *suite, const char *folder, const SafeTensors *full, yyjson_val *meta) {
  struct dirent **entry;
  int n = scandir(folder, &entry, NULL, alphasort);
  for (int i = 0; i < n; i++) {
    char path[PATH_CAP];
    snprintf(path, sizeof path, "%.3800s/%s", folder, entry[i]->d_name);
    const char *name = entry[i]->d_name;
    if (name[0] != '.' && strcmp(name, "full.safetensors") && strcmp(name, "metadata.json"))
      report(suite, path, run_checkpoint(path, full, meta));
    free(entry[i]);
  }
  if (n >= 0) free(entry);
}

static Status run_case(Suite *suite, const char *folder) {
  char path[PATH_CAP];
  SafeTensors *full;
  FileMap *map = NULL;
  yyjson_doc *doc = NULL;
  snprintf(path, sizeof path, "%.4000s/full.safetensors", folder);
  TRY(safetensors_open(path, &full));
  snprintf(path, sizeof path, "%.4000s/metadata.json", folder);
  Status s = file_exists(path) ? file_map(path, &map) : OK;
  if (!s && map) s = json_parse(path, map->data, map->size, 0, &doc);
  if (!s) run_checkpoints(suite, folder, full, doc ? yyjson_doc_get_root(doc) : NULL);
  yyjson_doc_free(doc);
  file_map_unref(map);
  safetensors_close(full);
  return s;
}

static void run_folder(Suite *suite, const char *folder) {
  struct dirent **entry;
  int n = scandir(folder, &entry, NULL, alphasort), before = suite->passed + suite->failed;
  for (int i = 0; i < n; i++) {
    char path[PATH_CAP], full[PATH_CAP + 32];
    snprintf(path, sizeof path, "%.3800s/%s", folder, entry[i]->d_name);
    snprintf(full, sizeof full, "%s/full.safetensors", path);
    if (entry[i]->d_name[0] != '.' && file_exists(full)) {
      Status s = run_case(suite, path);
      if (s) report(suite, path, s);
    }
    free(entry[i]);
  }
  if (n >= 0) free(entry);
  if (suite->passed + suite->failed == before) report(suite, folder, fail(ERR_FILE, "there is no case in it"));
}

int main(int argc, char **argv) {
  Suite suite = {0};
  int folders = 0;
  for (int i = 1; i < argc; i++)
    if (!strcmp(argv[i], "--verbose")) suite.verbose = true;
  for (int i = 1; i < argc; i++) {
    if (argv[i][0] == '-') continue;
    run_folder(&suite, argv[i]);
    folders++;
  }
  if (!folders) run_folder(&suite, GOLDEN_FOLDER "/ckpt");
  printf("%d passed, %d failed\n", suite.passed, suite.failed);
  return suite.failed ? 1 : 0;
}
