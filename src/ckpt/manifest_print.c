/* manifest_print.c -- writing manifest.json; see manifest.h. */
#include <string.h>
#include <xxhash.h>

#include "ckpt/manifest.h"

static void put_hex(TextBuf *b, const void *data, size_t n) {
  const unsigned char *p = data;
  text_puts(b, "\"");
  for (size_t i = 0; i < n; i++) text_printf(b, "%02x", p[i]);
  text_puts(b, "\"");
}

/* What users say may be names of files, which are any bytes: those that are no text are written in hex. */
static void put_words(TextBuf *b, const char *s) {
  if (text_is_utf8(s)) {
    text_json(b, s);
    return;
  }
  text_puts(b, "{\"hex\": ");
  put_hex(b, s, strlen(s));
  text_puts(b, "}");
}

static void put_sizes(TextBuf *b, const char *name, const int64_t *size, int n) {
  text_printf(b, "\"%s\": [", name);
  for (int i = 0; i < n; i++) text_printf(b, "%s%lld", i ? "," : "", (long long)size[i]);
  text_puts(b, "]");
}

static void put_facts(TextBuf *b, const SaveFacts *f) {
  text_printf(b, ",\n\"step\": %lld,\n\"seed\": %llu,\n\"random\": ", (long long)f->step,
              (unsigned long long)f->seed);
  put_hex(b, f->random, f->random_bytes);
  text_printf(b, ",\n\"data\": {\"batches\": %lld, \"samples\": %lld}", (long long)f->batches,
              (long long)f->samples);
  text_puts(b, ",\n\"mesh\": ");
  text_json(b, f->mesh ? f->mesh : "1");
  text_puts(b, ",\n\"program\": {\"name\": ");
  put_words(b, f->program ? f->program : "");
  text_printf(b, ", \"signature\": \"%016llx\"},\n\"command\": [", (unsigned long long)f->signature);
  for (int i = 0; i < f->argc; i++) {
    if (i) text_puts(b, ", ");
    put_words(b, f->argv[i]);
  }
  text_puts(b, "],\n\"texts\": {");
  for (int i = 0; i < f->texts; i++) {
    if (i) text_puts(b, ", ");
    text_json(b, f->text[i].key);
    text_puts(b, ": ");
    put_words(b, f->text[i].value);
  }
  text_puts(b, "}");
}

static void put_tensor(TextBuf *b, const ManifestTensor *t) {
  text_puts(b, "{\"name\": ");
  text_json(b, t->name);
  text_printf(b, ", \"dtype\": \"%s\", ", dtype_name(t->dtype));
  put_sizes(b, "shape", t->size, t->ndim);
  if (t->placements) {
    text_puts(b, ", \"placements\": ");
    text_json(b, t->placements);
  }
  text_puts(b, ", \"chunks\": [");
  for (int i = 0; i < t->chunks; i++) {
    const ManifestChunk *c = &t->chunk[i];
    text_printf(b, "%s{\"file\": %d, ", i ? ", " : "", c->file);
    put_sizes(b, "offset", c->offset, t->ndim);
    text_puts(b, ", ");
    put_sizes(b, "shape", c->size, t->ndim);
    text_printf(b, ", \"xxh3\": \"%016llx\"}", (unsigned long long)c->hash);
  }
  text_puts(b, "]}");
}

/* I2: the first that can say it, so that older readers read it. */
static int version_of(const Manifest *m) {
  if (m->facts.mesh && strcmp(m->facts.mesh, "1")) return 2;
  for (int i = 0; i < m->tensors; i++)
    if (!manifest_is_whole(&m->tensor[i]) || m->tensor[i].placements) return 2;
  return 1;
}

Status manifest_print(const Manifest *m, TextBuf *out) {
  text_printf(out, "{\n\"format\": \"tessera run\",\n\"version\": %d,\n\"tessera\": ", version_of(m));
  text_json(out, m->facts.version);
  put_facts(out, &m->facts);
  text_puts(out, ",\n\"files\": [");
  for (int i = 0; i < m->files; i++) {
    text_puts(out, i ? ",\n{\"name\": " : "\n{\"name\": ");
    text_json(out, m->file[i].name);
    text_puts(out, ", \"prefix\": ");
    text_json(out, m->file[i].prefix);
    text_printf(out, ", \"bytes\": %llu}", (unsigned long long)m->file[i].bytes);
  }
  text_puts(out, "],\n\"tensors\": [");
  for (int i = 0; i < m->tensors; i++) {
    text_puts(out, i ? ",\n" : "\n");
    put_tensor(out, &m->tensor[i]);
  }
  text_puts(out, "],\n");
  if (out->failed) return fail_oom();
  text_printf(out, "\"xxh3\": \"%016llx\"\n}\n", (unsigned long long)XXH3_64bits(out->text, out->len));
  return out->failed ? fail_oom() : OK;
}
