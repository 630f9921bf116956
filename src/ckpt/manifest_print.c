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
  for (int i = 0; i < n; i++) text_printf(b, "%s%lld", i ? "," : "", size ? (long long)size[i] : 0LL);
  text_puts(b, "]");
}

static void put_facts(TextBuf *b, const SaveFacts *f) {
  text_printf(b, ",\n\"step\": %lld,\n\"seed\": %llu,\n\"random\": ", (long long)f->step,
              (unsigned long long)f->seed);
  put_hex(b, f->random, f->random_bytes);
  text_printf(b, ",\n\"data\": {\"batches\": %lld, \"samples\": %lld}", (long long)f->batches,
              (long long)f->samples);
  text_puts(b, ",\n\"mesh\": \"1\",\n\"program\": {\"name\": ");
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
  text_printf(b, ", \"chunks\": [{\"file\": %d, ", t->file);
  put_sizes(b, "offset", NULL, t->ndim);
  text_puts(b, ", ");
  put_sizes(b, "shape", t->size, t->ndim);
  text_printf(b, ", \"xxh3\": \"%016llx\"}]}", (unsigned long long)t->hash);
}

Status manifest_print(const Manifest *m, TextBuf *out) {
  text_printf(out, "{\n\"format\": \"tessera run\",\n\"version\": %d,\n\"tessera\": ", MANIFEST_VERSION);
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
