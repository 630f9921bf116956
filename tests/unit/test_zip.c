/* ZIP archives: what we write we read, and nothing damaged or hostile gets through. */
#include <zlib.h>

#include "base/zip.h"
#include "unit.h"

static char folder[256];

static int set_up(void **state) { return (void)state, make_folder(folder, sizeof folder) == NULL; }
static int tear_down(void **state) { return (void)state, remove_folder(folder), 0; }

/* Opens and reads everything. */
static Status read_bytes(const void *data, size_t size) {
  FileMap *f;
  Zip *z = NULL;
  TRY(file_map_bytes("x.zip", data, size, &f));
  Status s = zip_from_map(f, &z);
  file_map_unref(f);
  bool whole = !s;
  for (int i = 0; !s && i < z->count; i++) {
    ZipData d = {0};
    s = zip_read(z, &z->entries[i], &d);
    zip_data_free(&d);
  }
  Status verified = whole ? zip_verify(z, NULL) : OK;
  if (whole) assert_int_equal(!s, !verified); /* the one finds what the other finds */
  status_free(verified);
  zip_close(z);
  return s;
}

/* ---- archives made by hand -------------------------------------------------- */

typedef struct {
  unsigned char data[1 << 16];
  size_t size;
} Bytes;

static void put(Bytes *b, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) b->data[b->size++] = (unsigned char)(value >> (8 * i));
}

static void put_text(Bytes *b, const void *text, size_t n) {
  if (n) memcpy(b->data + b->size, text, n);
  b->size += n;
}

typedef struct {
  const char *name;
  size_t name_length; /* 0: strlen */
  const void *content;
  size_t packed, size;
  unsigned flags, method;
  uint32_t crc;
  int64_t move; /* added to the header's offset in the directory */
} Entry;

static void build(Bytes *b, const Entry *entries, int n) {
  size_t offset[8], begin;
  b->size = 0;
  for (int i = 0; i < n; i++) {
    const Entry *e = &entries[i];
    size_t length = e->name_length ? e->name_length : strlen(e->name);
    offset[i] = b->size;
    put(b, 0x04034b50, 4), put(b, 20, 2), put(b, e->flags, 2), put(b, e->method, 2), put(b, 0, 4);
    put(b, e->crc, 4), put(b, e->packed, 4), put(b, e->size, 4), put(b, length, 2), put(b, 0, 2);
    put_text(b, e->name, length);
    put_text(b, e->content, e->content ? e->packed : 0);
  }
  begin = b->size;
  for (int i = 0; i < n; i++) {
    const Entry *e = &entries[i];
    size_t length = e->name_length ? e->name_length : strlen(e->name);
    put(b, 0x02014b50, 4), put(b, 20, 2), put(b, 20, 2), put(b, e->flags, 2), put(b, e->method, 2), put(b, 0, 4);
    put(b, e->crc, 4), put(b, e->packed, 4), put(b, e->size, 4), put(b, length, 2), put(b, 0, 2), put(b, 0, 2),
        put(b, 0, 2), put(b, 0, 2);
    put(b, 0, 4), put(b, (uint64_t)((int64_t)offset[i] + e->move), 4);
    put_text(b, e->name, length);
  }
  size_t size = b->size - begin;
  put(b, 0x06054b50, 4), put(b, 0, 2), put(b, 0, 2), put(b, (uint64_t)n, 2), put(b, (uint64_t)n, 2),
      put(b, size, 4), put(b, begin, 4), put(b, 0, 2);
}

static Status read_entries(const Entry *entries, int n) {
  static Bytes b;
  build(&b, entries, n);
  return read_bytes(b.data, b.size);
}

static Entry stored(const char *name, const char *content) {
  size_t n = strlen(content);
  return (Entry){.name = name,
                 .content = content,
                 .packed = n,
                 .size = n,
                 .crc = (uint32_t)crc32(0, (const Bytef *)content, (uInt)n)};
}

static void names(void **state) {
  (void)state;
  static const char *const good[] = {"a", "a/b", ".data/version", "...", "a/..b", "\xc3\xa4", "a/"};
  static const char *const bad[] = {"",      "/a",   "..",   "../a", "a/../b", "a/..", ".",
                                    "a/./b", "a//b", "a\\b", "a\nb", "\x7f",   "//"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(zip_name_ok(good[i]));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_false(zip_name_ok(bad[i]));
    if (!*bad[i]) continue;
    Entry e = stored(bad[i], "x");
    assert_error(read_entries(&e, 1), "name that is not allowed");
  }
  Entry e = stored("a\0b", "x");
  e.name_length = 3;
  assert_error(read_entries(&e, 1), "name that is not allowed");
}

static void hostile(void **state) {
  (void)state;
  Entry a = stored("a", "hello"), b = stored("b", "world"), e;
  Entry two[] = {a, b};
  assert_ok(read_entries(two, 2));
  assert_error(read_entries(NULL, 0), "not a ZIP archive"); /* nobody writes empty ones */
  two[1].name = "a";
  assert_error(read_entries(two, 2), "occurs twice");
  two[1] = b;
  two[1].move = -(int64_t)(30 + 1 + 5); /* the directory's b is the file's a */
  assert_error(read_entries(two, 2), "does not agree");
  static Bytes inner; /* b's header and data, inside a's data */
  build(&inner, &b, 1);
  two[0] = (Entry){
      .name = "a", .content = inner.data, .packed = 36, .size = 36, .crc = (uint32_t)crc32(0, inner.data, 36)};
  two[1].move = -36;
  assert_error(read_entries(two, 2), "overlaps");
  e = a, e.flags = 1;
  assert_error(read_entries(&e, 1), "encrypted");
  e = a, e.method = 12;
  assert_error(read_entries(&e, 1), "method 12");
  e = a, e.size = 6;
  assert_error(read_entries(&e, 1), "two sizes differ");
  e = a, e.crc ^= 1;
  assert_error(read_entries(&e, 1), "checksum");
  e = a, e.packed = e.size = 50000, e.content = NULL;
  assert_error(read_entries(&e, 1), "outside the file");
  e = a, e.move = 7;
  assert_error(read_entries(&e, 1), "header is damaged");
  e = a, e.move = 0x7fffffff;
  assert_error(read_entries(&e, 1), "header is damaged");
  e = (Entry){.name = "d/"};
  assert_ok(read_entries(&e, 1));
  e = stored("d/", "x");
  assert_error(read_entries(&e, 1), "a folder with content");
  assert_error(read_bytes("", 0), "too few");
  static unsigned char zeros[100];
  assert_error(read_bytes(zeros, sizeof zeros), "not a ZIP archive");
}

static Entry deflated(const char *name, const void *content, size_t size, unsigned char *buf, size_t cap) {
  z_stream s = {
      .next_in = (Bytef *)(uintptr_t)content, .avail_in = (uInt)size, .next_out = buf, .avail_out = (uInt)cap};
  assert_int_equal(deflateInit2(&s, 9, Z_DEFLATED, -15, 9, Z_DEFAULT_STRATEGY), Z_OK);
  assert_int_equal(deflate(&s, Z_FINISH), Z_STREAM_END);
  deflateEnd(&s);
  return (Entry){.name = name,
                 .content = buf,
                 .packed = s.total_out,
                 .size = size,
                 .method = 8,
                 .crc = (uint32_t)crc32(0, content, (uInt)size)};
}

static void compressed(void **state) {
  (void)state;
  static unsigned char content[30000], buf[30000];
  for (size_t i = 0; i < sizeof content; i++) content[i] = (unsigned char)(i * i % 17);
  Entry e = deflated("x", content, sizeof content, buf, sizeof buf), bad;
  assert_ok(read_entries(&e, 1));
  bad = e, bad.size--;
  assert_error(read_entries(&bad, 1), "damaged");
  bad = e, bad.size++;
  assert_error(read_entries(&bad, 1), "damaged");
  bad = e, bad.packed--;
  assert_error(read_entries(&bad, 1), "damaged");
  bad = e, bad.crc++;
  assert_error(read_entries(&bad, 1), "checksum");
  bad = e, bad.size = 0xfffffffe; /* a bomb, by its own words */
  assert_error(read_entries(&bad, 1), "refused");
  memset(content, 0, sizeof content);
  e = deflated("x", content, sizeof content, buf, sizeof buf);
  bad = e, bad.size = 1; /* grows far beyond what it says */
  assert_error(read_entries(&bad, 1), "damaged");
  e = deflated("x", content, 0, buf, sizeof buf);
  assert_ok(read_entries(&e, 1));
}

/* ---- our own ---------------------------------------------------------------- */

static void write_sample(const char *path) {
  ZipOut *out;
  char block[1000];
  memset(block, 'w', sizeof block);
  assert_ok(zip_out_open(path, 0, &out));
  assert_ok(zip_out_add(out, "m/data/weights/weight_0", block, sizeof block));
  assert_ok(zip_out_add(out, "m/empty", NULL, 0));
  assert_ok(zip_out_begin(out, "m/model.json", 6));
  assert_ok(zip_out_write(out, "{\"a\"", 4));
  assert_ok(zip_out_write(out, ":1", 2));
  assert_ok(zip_out_end(out));
  assert_ok(zip_out_commit(out));
}

static void round_trip_and_damage(void **state) {
  (void)state;
  char path[300];
  Zip *z;
  ZipData d;
  FileMap *map, *part;
  snprintf(path, sizeof path, "%s/a.zip", folder);
  write_sample(path);
  assert_ok(zip_open(path, &z));
  assert_int_equal(z->count, 3);
  for (int i = 0; i < z->count; i++) {
    assert_true(z->entries[i].stored);
    assert_int_equal(z->entries[i].offset % 64, 0);
  }
  assert_null(zip_find(z, "model.json"));
  assert_ok(zip_read(z, zip_find(z, "m/model.json"), &d));
  assert_int_equal(d.size, 6);
  assert_memory_equal(d.data, "{\"a\":1", 6);
  zip_data_free(&d);
  assert_int_equal(zip_find(z, "m/data/weights/weight_0")->order, 0);
  assert_ok(zip_map(z, zip_find(z, "m/data/weights/weight_0"), &part));
  zip_close(z); /* the part keeps the file */
  assert_int_equal(part->size, 1000);
  assert_int_equal(part->data[999], 'w');
  file_map_unref(part);

  assert_ok(file_map(path, &map));
  for (size_t n = 0; n < map->size; n++) {
    Status s = read_bytes(map->data, n);
    assert_non_null(s);
    status_free(s);
  }
  for (size_t bit = 0; bit < map->size * 8; bit++) {
    map->data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    status_free(read_bytes(map->data, map->size));
    map->data[bit / 8] ^= (unsigned char)(1u << bit % 8);
  }
  file_map_unref(map);
}

static void writer_refuses(void **state) {
  (void)state;
  ZipOut *out;
  char path[300];
  snprintf(path, sizeof path, "%s/b.zip", folder);
  assert_ok(zip_out_open(path, 0, &out));
  assert_error(zip_out_add(out, "../x", "", 0), "cannot be the name");
  assert_ok(zip_out_begin(out, "x", 2));
  assert_error(zip_out_write(out, "abc", 3), "more bytes");
  assert_ok(zip_out_write(out, "a", 1));
  assert_error(zip_out_end(out), "lacks 1 bytes");
  assert_error(zip_out_begin(out, "y", 2), "not complete");
  assert_error(zip_out_commit(out), "not complete");
  assert_false(file_exists(path));
  assert_ok(zip_out_open(path, 0, &out));
  zip_out_discard(out);
  zip_out_discard(NULL);
  assert_false(file_exists(path));
  assert_ok(zip_out_open("/dev/full", 0, &out));
  static char block[1 << 20];
  Status s = zip_out_add(out, "x", block, sizeof block);
  assert_error(s, "No space left");
  zip_out_discard(out);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(hostile),
                                     cmocka_unit_test(compressed), cmocka_unit_test(round_trip_and_damage),
                                     cmocka_unit_test(writer_refuses)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
