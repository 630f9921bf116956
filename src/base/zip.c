/* zip.c -- reading archives; see zip.h.
 *
 * minizip finds the directory and walks it; each record is decoded here, straight from the
 * mapping and with every bound checked, because minizip before 1.3 passes over the ZIP64
 * field on 64-bit machines (entries beyond 4 GiB) and does not tell where data begins
 * without opening an entry. */
#include "base/zip.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unzip.h>
#include <zlib.h>

enum {
  NAME_MAX_BYTES = 4096,
  RECORD = 46,
  LOCAL = 30,
  END = 22,
  FLAG_ENCRYPTED = 1,
  METHOD_STORED = 0,
  METHOD_DEFLATE = 8
};
enum { RECORD_SIGNATURE = 0x02014b50, LOCAL_SIGNATURE = 0x04034b50, END_SIGNATURE = 0x06054b50, ZIP64_FIELD = 1 };
#define IN_ZIP64 0xffffffffu /* a size or offset of 32 bits that stands in the ZIP64 field */
#define VERIFY_PIECE ((uint64_t)8 << 20)

/* ---- minizip's input: the mapping ------------------------------------------- */

typedef struct {
  const FileMap *file;
  uint64_t at;
  bool cut; /* the last read got less than it asked for */
} Stream;

static voidpf stream_open(voidpf opaque, const void *name, int mode) {
  (void)name, (void)mode;
  return opaque;
}

static uLong stream_read(voidpf opaque, voidpf stream, void *buf, uLong size) {
  Stream *s = stream;
  (void)opaque;
  uint64_t left = s->at < s->file->size ? s->file->size - s->at : 0;
  s->cut = size > left;
  if (s->cut) size = (uLong)left;
  if (size) memcpy(buf, s->file->data + s->at, size);
  s->at += size;
  return size;
}

static ZPOS64_T stream_tell(voidpf opaque, voidpf stream) {
  (void)opaque;
  return ((Stream *)stream)->at;
}

static long stream_seek(voidpf opaque, voidpf stream, ZPOS64_T offset, int origin) {
  Stream *s = stream;
  (void)opaque;
  uint64_t base = origin == ZLIB_FILEFUNC_SEEK_SET ? 0 : origin == ZLIB_FILEFUNC_SEEK_CUR ? s->at : s->file->size;
  if (offset > s->file->size || base > s->file->size - offset) return -1;
  s->at = base + offset;
  return 0;
}

static int stream_nothing(voidpf opaque, voidpf stream) {
  (void)opaque, (void)stream;
  return 0;
}

/* minizip takes the end of the file for zeros unless it is told that this is an error. */
static int stream_error(voidpf opaque, voidpf stream) {
  (void)opaque;
  return ((Stream *)stream)->cut;
}

static unzFile stream_unzip(Stream *s) {
  zlib_filefunc64_def io = {.zopen64_file = stream_open,
                            .zread_file = stream_read,
                            .ztell64_file = stream_tell,
                            .zseek64_file = stream_seek,
                            .zclose_file = stream_nothing,
                            .zerror_file = stream_error,
                            .opaque = s};
  return unzOpen2_64("", &io);
}

/* ---- the directory ---------------------------------------------------------- */

bool zip_name_ok(const char *name) {
  size_t n = strlen(name);
  if (n == 0 || n >= NAME_MAX_BYTES) return false;
  for (const char *part = name;; part++) {
    size_t length = strcspn(part, "/");
    bool dots = (length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.');
    if (dots || (length == 0 && !(part != name && *part == 0))) return false; /* "//", a leading "/" */
    for (size_t i = 0; i < length; i++) {
      if (part[i] == '\\' || (unsigned char)part[i] < 0x20 || part[i] == 0x7f) return false;
    }
    part += length;
    if (*part == 0) return true;
  }
}

static Status bad_entry(const Zip *z, const char *name, const char *reason) {
  return fail(ERR_FILE, "%s: entry '%s': %s", z->file->path, name, reason);
}

static Status damaged(const Zip *z) { return fail(ERR_FILE, "%s: the directory is damaged", z->file->path); }

static uint64_t number(const unsigned char *p, int bytes) {
  uint64_t v = 0;
  for (int i = bytes - 1; i >= 0; i--) v = v << 8 | p[i];
  return v;
}

/* n bytes at an offset, or NULL. */
static const unsigned char *bytes_at(const Zip *z, uint64_t offset, uint64_t n) {
  return offset <= z->file->size && n <= z->file->size - offset ? z->file->data + offset : NULL;
}

/* One record of the directory. */
typedef struct {
  unsigned flags, method;
  uint32_t crc;
  size_t name_length, extra_length;
  uint64_t packed, size, header; /* header: offset of the local one */
  const unsigned char *name, *extra;
} Record;

/* The 64-bit values replace, in this order, those that are marked. */
static bool read_zip64(Record *r) {
  uint64_t *const values[] = {&r->size, &r->packed, &r->header};
  for (size_t at = 0; r->extra_length - at >= 4;) {
    const unsigned char *field = r->extra + at;
    size_t length = (size_t)number(field + 2, 2), used = 0;
    if (length > r->extra_length - at - 4) return false;
    at += 4 + length;
    if (number(field, 2) != ZIP64_FIELD) continue;
    for (int i = 0; i < 3; i++) {
      if (*values[i] != IN_ZIP64) continue;
      if (length - used < 8) return false;
      *values[i] = number(field + 4 + used, 8);
      used += 8;
    }
    return true;
  }
  return true; /* no such field: then the values are what they seem */
}

static bool read_record(const Zip *z, uint64_t at, Record *r) {
  const unsigned char *p = bytes_at(z, at, RECORD);
  if (!p || number(p, 4) != RECORD_SIGNATURE) return false;
  *r = (Record){.flags = (unsigned)number(p + 8, 2),
                .method = (unsigned)number(p + 10, 2),
                .crc = (uint32_t)number(p + 16, 4),
                .packed = number(p + 20, 4),
                .size = number(p + 24, 4),
                .name_length = (size_t)number(p + 28, 2),
                .extra_length = (size_t)number(p + 30, 2),
                .header = number(p + 42, 4)};
  r->name = bytes_at(z, at + RECORD, r->name_length + r->extra_length);
  if (!r->name) return false;
  r->extra = r->name + r->name_length;
  return read_zip64(r);
}

/* Where the data of an entry begins: behind its local header, which repeats the name. */
static Status find_data(const Zip *z, const Record *r, ZipEntry *e) {
  const unsigned char *p = bytes_at(z, r->header, LOCAL), *name;
  if (!p || number(p, 4) != LOCAL_SIGNATURE)
    return bad_entry(z, e->name, "its header is damaged, or not where the directory says");
  uint64_t name_length = number(p + 26, 2), extra_length = number(p + 28, 2);
  name = bytes_at(z, r->header + LOCAL, name_length + extra_length);
  if (!name || name_length != r->name_length || memcmp(name, r->name, r->name_length) ||
      number(p + 8, 2) != r->method) {
    return bad_entry(z, e->name, "its header does not agree with the directory");
  }
  e->offset = r->header + LOCAL + name_length + extra_length;
  return bytes_at(z, e->offset, e->packed) ? OK : bad_entry(z, e->name, "its data is outside the file");
}

static Status check_record(const Zip *z, const Record *r, const char *name) {
  if (r->flags & FLAG_ENCRYPTED) return bad_entry(z, name, "it is encrypted");
  if (r->method != METHOD_STORED && r->method != METHOD_DEFLATE) {
    return fail(ERR_FILE, "%s: entry '%s': compression method %u is not supported", z->file->path, name, r->method);
  }
  if (r->method == METHOD_STORED && r->size != r->packed)
    return bad_entry(z, name, "it is stored, but its two sizes differ");
  return OK;
}

/* The entry that minizip stands at. */
static Status read_entry(Zip *z, unzFile unzip) {
  unz64_file_pos at;
  Record r;
  if (unzGetFilePos64(unzip, &at) != UNZ_OK || !read_record(z, at.pos_in_zip_directory, &r)) return damaged(z);
  char *name;
  TRY_NEW(name, arena_strndup(&z->arena, (const char *)r.name, r.name_length));
  if (strlen(name) != r.name_length || !zip_name_ok(name)) {
    return fail(
        ERR_FILE,
        "%s: an entry has a name that is not allowed (absolute, with '..', a backslash or control characters)",
        z->file->path);
  }
  bool folder = name[r.name_length - 1] == '/';
  if (folder) return r.size ? bad_entry(z, name, "a folder with content") : OK;
  TRY(check_record(z, &r, name));
  ZipEntry *e = &z->entries[z->count];
  *e = (ZipEntry){.name = name,
                  .size = r.size,
                  .packed = r.packed,
                  .crc = r.crc,
                  .order = z->count,
                  .stored = r.method == METHOD_STORED};
  TRY(find_data(z, &r, e));
  z->count++;
  return OK;
}

static Status read_entries(Zip *z, unzFile unzip) {
  unz_global_info64 global;
  if (unzGetGlobalInfo64(unzip, &global) != UNZ_OK) return damaged(z);
  if (global.number_entry > z->file->size / RECORD || global.number_entry > INT_MAX / 2) {
    return fail(ERR_FILE, "%s: a directory of %llu entries does not fit in the file", z->file->path,
                (unsigned long long)global.number_entry);
  }
  TRY_NEW(z->entries, arena_new_n(&z->arena, ZipEntry, global.number_entry));
  int code = global.number_entry ? unzGoToFirstFile(unzip) : UNZ_END_OF_LIST_OF_FILE;
  for (uint64_t i = 0; i < global.number_entry; i++) {
    if (code != UNZ_OK) break;
    TRY(read_entry(z, unzip));
    code = unzGoToNextFile(unzip);
  }
  return code == UNZ_END_OF_LIST_OF_FILE ? OK : damaged(z);
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const ZipEntry *)a)->name, ((const ZipEntry *)b)->name);
}

static int by_offset(const void *a, const void *b) {
  const ZipEntry *x = a, *y = b;
  return x->offset != y->offset ? (x->offset < y->offset ? -1 : 1)
                                : (x->packed > y->packed) - (x->packed < y->packed);
}

static Status check_entries(Zip *z) {
  if (z->count == 0) return OK;
  uint64_t end = 0;
  qsort(z->entries, (size_t)z->count, sizeof *z->entries, by_offset);
  for (int i = 0; i < z->count; i++) {
    const ZipEntry *e = &z->entries[i];
    if (e->packed && e->offset < end) return bad_entry(z, e->name, "its data overlaps another entry's");
    if (e->packed) end = e->offset + e->packed;
  }
  qsort(z->entries, (size_t)z->count, sizeof *z->entries, by_name);
  for (int i = 1; i < z->count; i++) {
    if (!strcmp(z->entries[i].name, z->entries[i - 1].name))
      return bad_entry(z, z->entries[i].name, "it occurs twice");
  }
  return OK;
}

/* minizip makes do with the 64-bit directory in front of it, which a file that was cut off may
 * still have. */
static bool has_end(const Zip *z) {
  uint64_t size = z->file->size;
  for (uint64_t comment = 0; comment <= UINT16_MAX && END + comment <= size; comment++) {
    const unsigned char *p = bytes_at(z, size - END - comment, END);
    if (number(p, 4) == END_SIGNATURE && number(p + 20, 2) == comment) return true;
  }
  return false;
}

static Status read_archive(Zip *z) {
  if (z->file->size < END)
    return fail(ERR_FILE, "%s: %zu bytes are too few for a ZIP archive", z->file->path, z->file->size);
  Stream stream = {.file = z->file};
  unzFile unzip = has_end(z) ? stream_unzip(&stream) : NULL;
  if (!unzip)
    return fail(ERR_FILE, "%s: not a ZIP archive, or cut off: it has no directory at its end", z->file->path);
  Status s = read_entries(z, unzip);
  unzClose(unzip);
  return s ? s : check_entries(z);
}

Status zip_from_map(FileMap *f, Zip **out) {
  Zip *z;
  TRY_NEW(z, calloc(1, sizeof *z));
  z->file = file_map_ref(f);
  Status s = read_archive(z);
  if (s) zip_close(z);
  else *out = z;
  return s;
}

Status zip_open(const char *path, Zip **out) {
  FileMap *f;
  TRY(file_map(path, &f));
  Status s = zip_from_map(f, out);
  file_map_unref(f);
  return s;
}

void zip_close(Zip *z) {
  if (!z) return;
  file_map_unref(z->file);
  arena_free(&z->arena);
  free(z);
}

const ZipEntry *zip_find(const Zip *z, const char *name) {
  const ZipEntry key = {.name = name};
  return z->count ? bsearch(&key, z->entries, (size_t)z->count, sizeof key, by_name) : NULL;
}

/* ---- content ---------------------------------------------------------------- */

static Status inflate_into(const Zip *z, const ZipEntry *e, unsigned char *to) {
  z_stream s = {0};
  if (inflateInit2(&s, -MAX_WBITS) != Z_OK) return fail_oom();
  const unsigned char *from = z->file->data + e->offset;
  uint64_t in = e->packed, out = e->size;
  unsigned char none[1];
  int code = Z_OK;
  /* zlib counts in 32 bits: it is fed in pieces.  One spare byte of room shows an entry
   * that is longer than its directory says. */
  s.next_in = (Bytef *)(uintptr_t)from;
  s.next_out = to;
  while (code == Z_OK) {
    if (s.avail_in == 0 && in) {
      s.avail_in = in > UINT_MAX ? UINT_MAX : (uInt)in;
      in -= s.avail_in;
    }
    if (s.avail_out == 0 && out) {
      s.avail_out = out > UINT_MAX ? UINT_MAX : (uInt)out;
      out -= s.avail_out;
    } else if (s.avail_out == 0) {
      if (s.next_out == none + 1) break;
      s.next_out = none;
      s.avail_out = 1;
    }
    code = inflate(&s, Z_NO_FLUSH);
  }
  bool overran = s.next_out == none + 1, filled = out == 0 && (s.avail_out == 0 || s.next_out == none);
  inflateEnd(&s);
  if (code == Z_MEM_ERROR) return fail_oom();
  if (code != Z_STREAM_END || overran || !filled) return bad_entry(z, e->name, "its compressed data is damaged");
  return OK;
}

static Status inflate_entry(const Zip *z, const ZipEntry *e, unsigned char **out) {
  if (e->size > ZIP_PLAIN_MAX && e->size / ZIP_RATIO_MAX > e->packed) {
    return fail(ERR_FILE, "%s: entry '%s': %llu compressed bytes that grow to %llu are refused", z->file->path,
                e->name, (unsigned long long)e->packed, (unsigned long long)e->size);
  }
  unsigned char *data;
  TRY_NEW(data, malloc(e->size ? (size_t)e->size : 1));
  Status s = inflate_into(z, e, data);
  if (s) free(data);
  else *out = data;
  return s;
}

static Status bad_crc(const Zip *z, const ZipEntry *e) {
  return bad_entry(z, e->name, "it is damaged: its checksum does not match");
}

static Status check_crc(const Zip *z, const ZipEntry *e, const unsigned char *data) {
  uLong crc = crc32_z(crc32_z(0, NULL, 0), data, (size_t)e->size);
  return e->crc == 0 || crc == e->crc ? OK : bad_crc(z, e);
}

Status zip_read(const Zip *z, const ZipEntry *e, ZipData *out) {
  unsigned char *heap = NULL;
  if (!e->stored) TRY(inflate_entry(z, e, &heap));
  const unsigned char *data = heap ? heap : z->file->data + e->offset;
  Status s = e->size ? check_crc(z, e, data) : OK;
  if (s) {
    free(heap);
    return s;
  }
  *out = (ZipData){.data = data, .size = (size_t)e->size, .heap = heap};
  return OK;
}

void zip_data_free(ZipData *d) {
  free(d->heap);
  *d = (ZipData){0};
}

/* A stored entry where it lies, in pieces. */
static Status verify_stored(const Zip *z, const ZipEntry *e, Progress *progress) {
  uLong crc = crc32_z(0, NULL, 0);
  if (!e->size) return OK;
  for (uint64_t at = 0, n; at < e->size; at += n) {
    n = e->size - at < VERIFY_PIECE ? e->size - at : VERIFY_PIECE;
    crc = crc32_z(crc, z->file->data + e->offset + at, (size_t)n);
    progress_add(progress, (int64_t)n);
  }
  return e->crc == 0 || crc == e->crc ? OK : bad_crc(z, e);
}

Status zip_verify(const Zip *z, Progress *progress) {
  for (int i = 0; i < z->count; i++) {
    const ZipEntry *e = &z->entries[i];
    ZipData d;
    if (e->stored) {
      TRY(verify_stored(z, e, progress));
      continue;
    }
    TRY(zip_read(z, e, &d));
    zip_data_free(&d);
    progress_add(progress, (int64_t)e->size);
  }
  return OK;
}

Status zip_map(const Zip *z, const ZipEntry *e, FileMap **out) {
  char *name;
  size_t cap = strlen(z->file->path) + strlen(e->name) + 3;
  TRY_NEW(name, malloc(cap));
  memcpy(name, z->file->path, strlen(z->file->path) + 1);
  strcat(strcat(name, ": "), e->name);
  Status s = OK;
  if (e->stored) {
    s = file_map_part(z->file, (size_t)e->offset, (size_t)e->size, name, out);
  } else {
    unsigned char *data = NULL;
    TRY_GOTO(done, inflate_entry(z, e, &data));
    TRY_GOTO(free_data, check_crc(z, e, data));
    s = file_map_heap(name, data, (size_t)e->size, out);
    if (!s) goto done;
  free_data:
    free(data);
  }
done:
  free(name);
  return s;
}
