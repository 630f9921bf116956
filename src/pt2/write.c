/* write.c -- a .pt2 file as a whole; see write.h. */
#include "pt2/write.h"

#include <string.h>

#include "base/json.h"
#include "pt2/writer.h"

/* The newest schema that we know; readers take any minor version. */
enum { SCHEMA_MAJOR = 8, SCHEMA_MINOR = 20, OPSET = 10 };

static Status read_hints(Writer *w) {
  const Exported *e = w->e;
  TRY_NEW(w->hints.v, arena_new_n(&w->arena, SymBinding, e->nranges));
  for (int i = 0; i < e->nranges; i++) {
    if (e->ranges[i].hint >= 0) w->hints.v[w->hints.n++] = (SymBinding){e->ranges[i].symbol, e->ranges[i].hint};
  }
  w->hints.cap = w->hints.n;
  return OK;
}

static void write_bound(Writer *w, const char *key, int64_t bound) {
  if (bound == INT64_MIN || bound == INT64_MAX) text_printf(&w->b, "\"%s\": null", key);
  else text_printf(&w->b, "\"%s\": %lld", key, (long long)bound);
}

static void write_ranges(Writer *w) {
  const Exported *e = w->e;
  text_puts(&w->b, "{");
  for (int i = 0; i < e->nranges; i++) {
    if (i) text_puts(&w->b, ", ");
    text_json(&w->b, e->ranges[i].symbol);
    text_puts(&w->b, ": {");
    write_bound(w, "min_val", e->ranges[i].min);
    text_puts(&w->b, ", ");
    write_bound(w, "max_val", e->ranges[i].max);
    text_puts(&w->b, "}");
  }
  text_puts(&w->b, "}");
}

/* Kept as text by the reader; a hand-written program may hold anything. */
static Status check_namedtuples(const Exported *e) {
  yyjson_doc *doc;
  if (!e->namedtuples) return OK;
  TRY(json_parse("namedtuples", e->namedtuples, strlen(e->namedtuples), 0, &doc));
  yyjson_doc_free(doc);
  return OK;
}

static Status write_program(Writer *w) {
  const Exported *e = w->e;
  TRY(check_namedtuples(e));
  w->b.len = 0;
  text_puts(&w->b, "{\"graph_module\": {\"graph\": ");
  TRY(write_graph(w, e->graph, e));
  text_puts(&w->b, ", \"signature\": ");
  write_signature(w);
  text_puts(&w->b, ", \"module_call_graph\": ");
  write_root_call(w);
  text_printf(&w->b, ", \"metadata\": {}, \"treespec_namedtuple_fields\": %s}",
              e->namedtuples ? e->namedtuples : "{}");
  text_printf(&w->b, ", \"opset_version\": {\"aten\": %d}, \"range_constraints\": ", OPSET);
  write_ranges(w);
  text_printf(&w->b, ", \"schema_version\": {\"major\": %d, \"minor\": %d}, \"verifiers\": [", SCHEMA_MAJOR,
              SCHEMA_MINOR);
  text_json(&w->b, *e->dialect ? e->dialect : "TRAINING");
  text_puts(&w->b, "], \"torch_version\": ");
  text_json(&w->b, *e->torch_version ? e->torch_version : "2.9.0");
  text_puts(&w->b, ", \"guards_code\": []}");
  return w->b.failed ? fail_oom() : OK;
}

/* out/rank0.pt2 -> "rank0/": the folder that all entries are in. */
static Status root_folder(Writer *w, const char *path, const char **out) {
  const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path, *dot = strrchr(base, '.');
  int n = (int)(dot && dot > base ? dot - base : (ptrdiff_t)strlen(base));
  TRY_NEW(*out, arena_printf(&w->arena, "%.*s/", n, base));
  if (!zip_name_ok(*out)) *out = "model/";
  return OK;
}

static Status add(Writer *w, ZipOut *z, const char *root, const char *name, const void *data, size_t size) {
  char *full;
  TRY_NEW(full, arena_printf(&w->arena, "%s%s", root, name));
  return zip_out_add(z, full, data, size);
}

static Status write_entries(Writer *w, ZipOut *z, const char *root) {
  static const char *const markers[][2] = {{"data/sample_inputs/model.pt", ""},
                                           {"archive_format", "pt2"},
                                           {"archive_version", "0"},
                                           {".data/version", "6\n"},
                                           {"byteorder", "little"}};
  TRY(write_state(w, z, root));
  TRY(write_program(w));
  TRY(add(w, z, root, "models/model.json", w->b.text, w->b.len));
  for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
    TRY(add(w, z, root, markers[i][0], markers[i][1], strlen(markers[i][1])));
  }
  return OK;
}

static Status write_file(Writer w, const char *path, bool force) {
  ZipOut *z = NULL;
  const char *root;
  symtable_init(&w.syms, &w.arena);
  Status s = OK;
  TRY_GOTO(done, read_hints(&w));
  TRY_GOTO(done, root_folder(&w, path, &root));
  TRY_GOTO(done, zip_out_open(path, force ? FILE_OVERWRITE : 0, &z));
  zip_out_progress(z, w.progress);
  s = write_entries(&w, z, root);
  if (s) zip_out_discard(z);
  else s = zip_out_commit(z);
done:
  text_free(&w.b);
  arena_free(&w.arena);
  return s;
}

Status pt2_write(const Exported *e, const char *path, bool force) {
  return write_file((Writer){.e = e}, path, force);
}

Status pt2_write_progress(const Exported *e, const char *path, bool force, Progress *progress) {
  return write_file((Writer){.e = e, .progress = progress}, path, force);
}

Status pt2_write_unless(const Exported *e, const char *path, bool force, bool (*interrupted)(void)) {
  return write_file((Writer){.e = e, .interrupted = interrupted}, path, force);
}
