/* read.c -- a .pt2 file as a whole; see read.h. */
#include "pt2/read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pt2/reader.h"

enum { SCHEMA_MAJOR = 8, MAX_MARKER = 64 };

static const char reexport[] = "export the model again with PyTorch 2.9 or later (torch.export.save)";

static void free_file(void *p) {
  Pt2File *f = p;
  yyjson_doc_free(f->model);
  yyjson_doc_free(f->weights);
  yyjson_doc_free(f->constants);
  archive_close(&f->archive);
  free(f);
}

/* ---- what kind of archive it is -------------------------------------------------------- */

/* Entries that tell other formats from ours.  (TorchScript archives hold a data.pkl too.) */
static const struct {
  const char *entry, *what, *hint;
} others[] = {
    {"serialized_exported_program.json", "was written by a PyTorch before 2.8", reexport},
    {"constants.pkl", "is a TorchScript archive, not an exported program",
     "give a file that torch.export.save() wrote"},
    {"data.pkl", "is a torch.save() file, not an exported program", "give a file that torch.export.save() wrote"},
    {"data/weights/model.pt", "was written by PyTorch 2.8, which pickles the weights", reexport},
};

/* Content of a small entry without the white space around it; "" if absent. */
static Status read_marker(Reader *r, const char *name, char out[MAX_MARKER]) {
  const Archive *a = &r->file->archive;
  const ZipEntry *e = archive_find(a, name);
  ZipData d;
  out[0] = 0;
  if (!e) return OK;
  TRY(zip_read(a->zip, e, &d));
  size_t n = d.size < MAX_MARKER ? d.size : MAX_MARKER - 1;
  if (n) memcpy(out, d.data, n);
  out[n] = 0;
  out[strcspn(out, "\r\n \t")] = 0;
  zip_data_free(&d);
  return OK;
}

static Status check_archive(Reader *r) {
  const Archive *a = &r->file->archive;
  char text[MAX_MARKER];
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    if (archive_find(a, others[i].entry))
      return status_hint(fail(ERR_FILE, "%s %s", r->name, others[i].what), "%s", others[i].hint);
  }
  TRY(read_marker(r, "archive_format", text));
  if (strcmp(text, "pt2")) {
    return status_hint(fail(ERR_FILE, "%s: not a .pt2 file: the archive does not say so", r->name),
                       "give a file that torch.export.save() wrote");
  }
  TRY(read_marker(r, "archive_version", text));
  if (strcmp(text, "0")) return fail(ERR_FILE, "%s: the archive version is '%s'; 0 is supported", r->name, text);
  TRY(read_marker(r, "byteorder", text));
  if (*text && strcmp(text, "little")) {
    return status_hint(fail(ERR_FILE, "%s: the weights are in %s-endian byte order", r->name, text),
                       "save the model on a little-endian machine");
  }
  return OK;
}

/* models/NAME.json: `model` is what torch.export.save() writes; a package may hold one of
 * another name. */
static Status find_model(Reader *r, char *name, size_t cap) {
  const Archive *a = &r->file->archive;
  const char *found = NULL;
  size_t len = 0;
  int count = 0;
  for (int i = 0; i < a->zip->count; i++) {
    const char *entry = archive_name(a, &a->zip->entries[i]), *end = strrchr(entry, '.');
    if (strncmp(entry, "models/", 7) || strchr(entry + 7, '/') || !end || strcmp(end, ".json")) continue;
    count++;
    found = entry + 7;
    len = (size_t)(end - found);
  }
  if (archive_find(a, "models/model.json")) {
    found = "model";
    len = 5;
  } else if (count == 0) {
    return status_hint(fail(ERR_FILE, "%s holds no exported program (models/model.json)", r->name),
                       "AOTInductor packages hold compiled code only: write the program with torch.export.save()");
  } else if (count > 1) {
    return status_hint(fail(ERR_FILE, "%s holds %d programs", r->name, count),
                       "save one program per file with torch.export.save()");
  }
  if (len >= cap) return fail(ERR_FILE, "%s: the name of its program is too long", r->name);
  memcpy(name, found, len);
  name[len] = 0;
  return OK;
}

/* ---- JSON --------------------------------------------------------------------------------- */

/* JSON of an entry of the archive. */
static Status read_json(Reader *r, const char *entry, yyjson_doc **out) {
  const Archive *a = &r->file->archive;
  const ZipEntry *e = archive_find(a, entry);
  ZipData d;
  if (!e)
    return status_hint(fail(ERR_FILE, "%s: '%s' is missing from the archive", r->name, entry), "%s", reexport);
  TRY(zip_read(a->zip, e, &d));
  yyjson_read_err err = {0};
  /* Not json_parse(): our walk bounds its own depth, so a second look at every byte is
   * not needed. */
  *out = yyjson_read_opts((char *)(uintptr_t)d.data, d.size, YYJSON_READ_ALLOW_INF_AND_NAN, NULL, &err);
  zip_data_free(&d);
  if (*out) return OK;
  if (err.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION) return fail_oom();
  return fail(ERR_FILE, "%s: '%s' is not valid JSON: %s at byte %zu", r->name, entry, err.msg, err.pos);
}

static Status check_schema(Reader *r) {
  yyjson_val *version;
  int64_t major, minor = 0;
  TRY(json_object(r->program, "schema_version", r->name, &version));
  TRY(json_int64(version, "major", r->name, &major));
  json_as_int64(yyjson_obj_get(version, "minor"), &minor);
  if (major == SCHEMA_MAJOR) return OK;
  Status s = fail(ERR_FILE, "%s: the schema version is %lld.%lld; %d.x is supported", r->name, (long long)major,
                  (long long)minor, SCHEMA_MAJOR);
  if (major > SCHEMA_MAJOR)
    return status_hint(
        s, "it is newer than this program: export with a PyTorch between 2.9 and 2.13, or take a newer tessera");
  return status_hint(s, "%s", reexport);
}

static void keep_hints(Reader *r) {
  for (int i = 0; i < r->e->nranges; i++) {
    const int64_t *hint = sym_lookup(&r->hints, r->e->ranges[i].symbol);
    if (hint && *hint >= 0) r->e->ranges[i].hint = *hint;
  }
}

/* {"Point": {"field_names": ["x", "y"]}}: kept as text, for writing. */
static Status read_namedtuples(Reader *r) {
  yyjson_val *fields = yyjson_obj_get(yyjson_obj_get(r->program, "graph_module"), "treespec_namedtuple_fields");
  if (yyjson_obj_size(fields) == 0) return OK;
  char *text = yyjson_val_write(fields, YYJSON_WRITE_NOFLAG, NULL);
  if (text) r->e->namedtuples = arena_strdup(&r->e->arena, text);
  free(text);
  return OK;
}

static Status read_strings(Reader *r) {
  const char *text = json_as_string(yyjson_obj_get(r->program, "torch_version"));
  if (text) r->e->torch_version = text;
  text = json_as_string(yyjson_arr_get_first(yyjson_obj_get(r->program, "verifiers")));
  /* Old files say "dialect". */
  if (!text) text = json_as_string(yyjson_obj_get(r->program, "dialect"));
  if (text) r->e->dialect = text;
  return OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static Status read_program(Reader *r) {
  char model[200], entry[300];
  yyjson_val *module, *graph, *signature;
  TRY(check_archive(r));
  TRY(find_model(r, model, sizeof model));
  snprintf(entry, sizeof entry, "models/%s.json", model);
  TRY(read_json(r, entry, &r->file->model));
  r->program = yyjson_doc_get_root(r->file->model);
  TRY(check_schema(r));
  snprintf(entry, sizeof entry, "data/weights/%s_weights_config.json", model);
  TRY(read_json(r, entry, &r->file->weights));
  snprintf(entry, sizeof entry, "data/constants/%s_constants_config.json", model);
  TRY(read_json(r, entry, &r->file->constants));
  TRY(read_state(r));
  TRY(json_object(r->program, "graph_module", r->name, &module));
  TRY(json_object(module, "graph", r->name, &graph));
  TRY(json_object(module, "signature", r->name, &signature));
  TRY(read_strings(r));
  TRY(read_ranges(r));
  TRY(read_graph(r, graph, yyjson_obj_get(signature, "input_specs"), 0, r->e->graph));
  TRY(read_signature(r));
  keep_hints(r);
  TRY(read_namedtuples(r));
  return read_root_call(r);
}

static Status read_map(FileMap *map, Exported **out) {
  Reader r = {.name = map->path};
  TRY(exported_new(map->path, &r.e));
  Status s = OK;
  r.file = calloc(1, sizeof *r.file);
  if (!r.file) {
    exported_free(r.e);
    return fail_oom();
  }
  r.e->file = r.file;
  r.e->file_free = free_file;
  TRY_GOTO(failed, archive_open(map, &r.file->archive));
  TRY_GOTO(failed, read_program(&r));
  *out = r.e;
  return OK;
failed:
  if (!strstr(status_message(s), map->path)) s = status_at(s, "%s", map->path);
  exported_free(r.e);
  return s;
}

Status pt2_read(const char *path, Exported **out) {
  FileMap *map;
  TRY(file_map(path, &map));
  Status s = read_map(map, out);
  file_map_unref(map);
  return s;
}

Status pt2_read_memory(const void *bytes, size_t size, const char *name, Exported **out) {
  FileMap *map;
  TRY(file_map_bytes(name, bytes, size, &map));
  Status s = read_map(map, out);
  file_map_unref(map);
  return s;
}
