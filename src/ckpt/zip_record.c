/* zip_record.c -- see zip_record.h.  Entries are stored; padding is PyTorch's: a field "FB" of the local header. */
#include "ckpt/zip_record.h"

#include <string.h>
#include <zlib.h>

enum { ALIGN = 64, LOCAL = 30, LARGE_FIELD = 20, FIELD_HEAD = 4, FLAG_UTF8 = 1 << 11, DATE = 1 << 5 | 1 };
#define LARGE 0xffffffffu

typedef struct {
  const char *name;
  const void *data; /* NULL: written elsewhere */
  uint64_t bytes, at;
  uint32_t crc;
} Entry;

static void put(TextBuf *b, uint64_t value, int bytes) {
  char out[8];
  for (int i = 0; i < bytes; i++) out[i] = (char)(value >> (8 * i));
  text_write(b, out, (size_t)bytes);
}

/* What local and central headers have in common, from the version that is needed on. */
static void put_common(TextBuf *b, const Entry *e, size_t extra) {
  bool large = e->bytes >= LARGE;
  put(b, large ? 45 : 20, 2);
  put(b, FLAG_UTF8, 2);
  put(b, 0, 2); /* stored */
  put(b, 0, 2);
  put(b, DATE, 2);
  put(b, e->crc, 4);
  put(b, large ? LARGE : e->bytes, 4);
  put(b, large ? LARGE : e->bytes, 4);
  put(b, strlen(e->name), 2);
  put(b, extra, 2);
}

static void put_large(TextBuf *b, const Entry *e) {
  put(b, 1, 2);
  put(b, 16, 2);
  put(b, e->bytes, 8);
  put(b, e->bytes, 8);
}

/* skip: bytes of the record before b. */
static void put_entry(TextBuf *b, uint64_t skip, Entry *e) {
  size_t large = e->bytes >= LARGE ? LARGE_FIELD : 0;
  e->at = skip + b->len;
  size_t padding = (size_t)((ALIGN - (e->at + LOCAL + strlen(e->name) + large + FIELD_HEAD) % ALIGN) % ALIGN);
  put(b, 0x04034b50, 4);
  put_common(b, e, large + FIELD_HEAD + padding);
  text_puts(b, e->name);
  if (large) put_large(b, e);
  text_puts(b, "FB");
  put(b, padding, 2);
  while (padding--) text_puts(b, "Z");
  if (e->data) text_write(b, e->data, (size_t)e->bytes);
}

static void put_central(TextBuf *b, const Entry *e) {
  bool far = e->at >= LARGE, large = e->bytes >= LARGE;
  size_t extra = large || far ? 4u + (large ? 16u : 0u) + (far ? 8u : 0u) : 0;
  put(b, 0x02014b50, 4);
  put(b, 45, 2);
  put_common(b, e, extra);
  put(b, 0, 2 + 2 + 2); /* no comment, first disk */
  put(b, 0, 4);         /* attributes */
  put(b, far ? LARGE : e->at, 4);
  text_puts(b, e->name);
  if (!extra) return;
  put(b, 1, 2);
  put(b, extra - 4, 2);
  if (large) put(b, e->bytes, 8), put(b, e->bytes, 8);
  if (far) put(b, e->at, 8);
}

static void put_end(TextBuf *b, uint64_t skip, uint64_t directory, uint64_t entries) {
  uint64_t end = skip + b->len, bytes = end - directory;
  if (directory >= LARGE) {
    put(b, 0x06064b50, 4);
    put(b, 44, 8);
    put(b, 45, 2);
    put(b, 45, 2);
    put(b, 0, 8);
    put(b, entries, 8);
    put(b, entries, 8);
    put(b, bytes, 8);
    put(b, directory, 8);
    put(b, 0x07064b50, 4);
    put(b, 0, 4);
    put(b, end, 8);
    put(b, 1, 4);
  }
  put(b, 0x06054b50, 4);
  put(b, 0, 4);
  put(b, entries, 2);
  put(b, entries, 2);
  put(b, bytes, 4);
  put(b, directory >= LARGE ? LARGE : directory, 4);
  put(b, 0, 2);
}

static uint32_t crc_of(const void *data, size_t size) { return (uint32_t)crc32_z(0, data, size); }

void zip_record(const TextBuf *pickle, uint64_t bytes, uint32_t crc, TextBuf *before, TextBuf *after) {
  Entry e[] = {{"archive/data.pkl", pickle->text, pickle->len, 0, crc_of(pickle->text, pickle->len)},
               {"archive/byteorder", "little", 6, 0, crc_of("little", 6)},
               {"archive/data/0", NULL, bytes, 0, crc},
               {"archive/version", "3\n", 2, 0, crc_of("3\n", 2)}};
  enum { ENTRIES = sizeof e / sizeof *e, DATA = 2 };
  for (int i = 0; i <= DATA; i++) put_entry(before, 0, &e[i]);
  uint64_t skip = before->len + bytes;
  for (int i = DATA + 1; i < ENTRIES; i++) put_entry(after, skip, &e[i]);
  uint64_t directory = skip + after->len;
  for (int i = 0; i < ENTRIES; i++) put_central(after, &e[i]);
  put_end(after, skip, directory, ENTRIES);
}
