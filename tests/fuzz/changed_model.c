/* changed_model.c -- see changed_model.h. */
#include "changed_model.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "check_program.h"
#include "harness/feed.h"
#include "pt2/read.h"
#include "pt2/write.h"
#include "runtime/feed_sizes.h"

enum { MOST_ELEMENTS = 60000 /* of inputs */ };

/* ---- programs to start from ------------------------------------------------------------------ */

static bool ends_with(const char *text, const char *end) {
  size_t n = strlen(text), k = strlen(end);
  return n >= k && !strcmp(text + n - k, end);
}

static void add_source(ModelSources *m, const char *path, size_t largest) {
  Zip *z;
  if (m->n == MOST_SOURCES) return;
  Status s = zip_open(path, &z);
  if (s) abort();
  if (z->file->size > largest) {
    zip_close(z);
    return;
  }
  ModelSource *source = &m->list[m->n++];
  source->zip = z;
  if (!(source->json = calloc((size_t)z->count, sizeof *source->json))) abort();
  for (int i = 0; i < z->count; i++) {
    ZipData d = {0};
    if (!ends_with(z->entries[i].name, ".json")) continue;
    s = zip_read(z, &z->entries[i], &d);
    if (!s) s = json_parse(path, d.data, d.size, JSON_NAN, &source->json[i]);
    if (s) abort();
    zip_data_free(&d);
  }
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

void model_sources_add(ModelSources *m, const char *folder, int most, size_t largest) {
  static const char *const files[] = {"", "/program.pt2", "/forward.pt2", "/rank0.pt2"};
  struct dirent **entry;
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", GOLDEN_FOLDER, folder);
  int count = scandir(path, &entry, NULL, by_name), end = m->n + most;
  for (int i = 0; i < count; i++) {
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
      snprintf(path, sizeof path, "%s/%s/%s%s", GOLDEN_FOLDER, folder, entry[i]->d_name, files[k]);
      if (m->n < end && ends_with(path, ".pt2") && !access(path, R_OK)) add_source(m, path, largest);
    }
    free(entry[i]);
  }
  if (count >= 0) free(entry);
}

/* ---- a program with changes -------------------------------------------------------------------- */

static void add_changed(ZipBytes *z, const char *name, yyjson_mut_doc *doc) {
  size_t size;
  char *text = yyjson_mut_write(doc, YYJSON_WRITE_ALLOW_INF_AND_NAN, &size);
  if (text) zip_bytes_add(z, name, text, size);
  free(text);
}

/* One change in ten is in a config of weights or constants. */
static int pick_entry(const ModelSource *s, Choices *c) {
  int model = 0, other = choose(c, 10) ? 0 : 1 + (int)choose(c, 2);
  for (int i = 0; i < s->zip->count; i++) {
    if (!s->json[i]) continue;
    if (ends_with(s->zip->entries[i].name, "models/model.json")) model = i;
    else if (other && --other == 0) return i;
  }
  return model;
}

void model_change(const ModelSource *s, Choices *c, int changes, ZipBytes *z) {
  yyjson_mut_doc *changed[64] = {NULL};
  int n = s->zip->count < 64 ? s->zip->count : 64;
  for (int k = 0; k < changes && choices_left(c); k++) {
    int i = pick_entry(s, c);
    if (!changed[i] && !(changed[i] = yyjson_doc_mut_copy(s->json[i], NULL))) abort();
    mutate_json(changed[i], c);
  }
  for (int i = 0; i < s->zip->count; i++) {
    const ZipEntry *e = &s->zip->entries[i];
    if (i < n && changed[i]) add_changed(z, e->name, changed[i]);
    else zip_bytes_add(z, e->name, s->zip->file->data + e->offset, (size_t)e->size);
  }
  for (int i = 0; i < n; i++) yyjson_mut_doc_free(changed[i]);
  zip_bytes_end(z);
  const char *save = getenv("FUZZ_SAVE");
  if (!save) return;
  fprintf(stderr, "%s, %d changes\n", s->zip->file->path, changes);
  status_free(file_write_all(save, z->out.data, z->out.size, FILE_OVERWRITE));
}

Choices model_choices(const uint8_t *data, size_t size, uint8_t many[SEED_CHOICES]) {
  uint64_t state = 0x9e3779b97f4a7c15u;
  if (size > 8) return (Choices){data, size, 0};
  for (size_t i = 0; i < size; i++) state = (state ^ data[i]) * 0xff51afd7ed558ccdu;
  for (size_t i = 0; i < SEED_CHOICES; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    many[i] = (uint8_t)(state >> 56);
  }
  return (Choices){many, SEED_CHOICES, 0};
}

/* ---- what targets do with it ---------------------------------------------------------------------- */

Status model_read(const ZipBytes *z, Exported **out) {
  return pt2_read_memory(z->out.data, z->out.size, "fuzz.pt2", out);
}

Status model_check_inputs(const Exported *e, Scope *scope, Arena *arena) {
  SymBindings b;
  Value *inputs;
  int n;
  int64_t elements = 0;
  TRY(feed_symbols(e, false, &b));
  Status s = feed_sizes(e, &b, scope, arena, &inputs, &n);
  free(b.v);
  for (int i = 0; !s && i < n; i++) elements += inputs[i].kind == VAL_TENSOR ? tensor_numel(inputs[i].tensor) : 0;
  return s || elements < MOST_ELEMENTS ? s : fail(ERR_FAIL, "inputs of %lld elements", (long long)elements);
}

Status model_write_again(const Exported *e, Exported **out) {
  char path[64];
  *out = NULL;
  snprintf(path, sizeof path, "%s/fuzz_program.%ld.pt2", access("/dev/shm", W_OK) ? "." : "/dev/shm",
           (long)getpid());
  Status s = pt2_write(e, path, true), read = s ? OK : pt2_read(path, out);
  unlink(path);
  if (read) {
    fprintf(stderr, "what was written cannot be read: %s\n", status_message(read));
    __builtin_trap();
  }
  if (!s) check_program(*out);
  return s;
}
