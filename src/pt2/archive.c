/* archive.c -- see archive.h.  minizip reads the directory; it sees the mapped file as
 * a stream in memory. */
#include "pt2/archive.h"

#include <stdlib.h>
#include <string.h>

#include <unzip.h>
#include <zlib.h>

enum { MAX_NAME = 4096, DEFLATE_RATIO = 1032 /* the most that deflate can shrink */ };

/* ---- the mapped file as a minizip stream ------------------------------------------ */

typedef struct {
  const FileMap *map;
  uint64_t at;
} Stream;

static voidpf ZCALLBACK stream_open(voidpf opaque, const void *name, int mode) {
  (void)name;
  return mode & ZLIB_FILEFUNC_MODE_WRITE ? NULL : opaque;
}
static uLong ZCALLBACK stream_read(voidpf opaque, voidpf stream, void *buf, uLong size) {
  (void)opaque;
  Stream *s = stream;
  uint64_t left = s->at < s->map->size ? s->map->size - s->at : 0;
  uLong n = size < left ? size : (uLong)left;
  if (n) memcpy(buf, s->map->data + s->at, n);
  s->at += n;
  return n;
}
static uLong ZCALLBACK stream_write(voidpf opaque, voidpf stream, const void *buf, uLong size) {
  (void)opaque, (void)stream, (void)buf, (void)size;
  return 0;
}
static ZPOS64_T ZCALLBACK stream_tell(voidpf opaque, voidpf stream) {
  (void)opaque;
  return ((Stream *)stream)->at;
}
static long ZCALLBACK stream_seek(voidpf opaque, voidpf stream, ZPOS64_T offset, int origin) {
  (void)opaque;
  Stream *s = stream;
  uint64_t base = origin == ZLIB_FILEFUNC_SEEK_CUR ? s->at : origin == ZLIB_FILEFUNC_SEEK_END ? s->map->size : 0, to;
  if (__builtin_add_overflow(base, offset, &to) || to > s->map->size) return -1;
  s->at = to;
  return 0;
}
static int ZCALLBACK stream_close(voidpf opaque, voidpf stream) {
  (void)opaque, (void)stream;
  return 0;
}

static unzFile open_stream(Stream *s) {
  zlib_filefunc64_def io = {stream_open, stream_read, stream_write, stream_tell, stream_seek, stream_close, stream_close, s};
  return unzOpen2_64("", &io);
}

/* ---- the directory ------------------------------------------------------------------ */

/* No absolute names, backslashes, empty parts, '.' or '..'. */
static bool is_safe(const char *name) {
  for (const char *p = name;; p++) {
    size_t n = strcspn(p, "/\\");
    if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.')) return false;
    p += n;
    if (*p == '\\') return false;
    if (!*p) return true;
  }
}

static Status read_entry(Archive *a, unzFile z, ArchiveEntry *e) {
  char name[MAX_NAME];
  unz_file_info64 info;
  if (unzGetCurrentFileInfo64(z, &info, name, sizeof name, NULL, 0, NULL, 0) != UNZ_OK) {
    return fail(ERR_FILE, "%s: the directory of the archive is damaged", a->map->path);
  }
  if (info.size_filename >= sizeof name || strlen(name) != info.size_filename) {
    return fail(ERR_FILE, "%s: an entry has an impossible name", a->map->path);
  }
  size_t len = strlen(name);
  if (len && name[len - 1] == '/') { /* a folder */
    *e = (ArchiveEntry){0};
    return OK;
  }
  if (!is_safe(name)) return fail(ERR_FILE, "%s: an entry has the unsafe name '%s'", a->map->path, name);
  if (info.flag & 1) return fail(ERR_FILE, "%s: '%s' is encrypted", a->map->path, name);
  if (info.compression_method != 0 && info.compression_method != Z_DEFLATED) {
    return fail(ERR_FILE, "%s: '%s' uses the compression method %lu; stored and deflate are supported", a->map->path, name, info.compression_method);
  }
  int method, level;
  if (unzOpenCurrentFile2(z, &method, &level, 1) != UNZ_OK) return fail(ERR_FILE, "%s: the header of '%s' is damaged", a->map->path, name);
  uint64_t offset = unzGetCurrentFileZStreamPos64(z);
  unzCloseCurrentFile(z); /* the sum is not known to minizip: we read nothing */
  if (offset > a->map->size || info.compressed_size > a->map->size - offset) {
    return fail(ERR_FILE, "%s: '%s' reaches beyond the end of the file: was it cut off?", a->map->path, name);
  }
  *e = (ArchiveEntry){.offset = (size_t)offset,
                      .packed = (size_t)info.compressed_size,
                      .size = (size_t)info.uncompressed_size,
                      .crc = (uint32_t)info.crc,
                      .stored = info.compression_method == 0};
  if (e->stored ? e->size != e->packed : e->size / DEFLATE_RATIO > e->packed) {
    return fail(ERR_FILE, "%s: '%s' has impossible sizes: %zu bytes packed, %zu unpacked", a->map->path, name, e->packed, e->size);
  }
  TRY_NEW(e->name, arena_strdup(&a->arena, name));
  return OK;
}

static Status add_entry(Archive *a, int *cap, const ArchiveEntry *e) {
  if (!e->name) return OK;
  if (a->count == *cap) {
    ArchiveEntry *more;
    *cap = *cap ? *cap * 2 : 64;
    TRY_NEW(more, arena_new_n(&a->arena, ArchiveEntry, *cap));
    if (a->count) memcpy(more, a->entries, (size_t)a->count * sizeof *more);
    a->entries = more;
  }
  a->entries[a->count++] = *e;
  return OK;
}

static int by_name(const void *a, const void *b) { return strcmp(((const ArchiveEntry *)a)->name, ((const ArchiveEntry *)b)->name); }

/* The folder that all entries are in; "" if there is none, as in old files. */
static Status find_root(Archive *a) {
  size_t len = 0;
  const char *first = a->count ? a->entries[0].name : "", *slash = strchr(first, '/');
  if (slash) len = (size_t)(slash - first) + 1;
  for (int i = 0; i < a->count; i++) {
    if (strncmp(a->entries[i].name, first, len)) len = 0;
  }
  TRY_NEW(a->root, arena_strndup(&a->arena, first, len));
  for (int i = 0; i < a->count; i++) a->entries[i].name += len;
  if (a->count) qsort(a->entries, (size_t)a->count, sizeof *a->entries, by_name);
  for (int i = 1; i < a->count; i++) {
    if (!by_name(&a->entries[i - 1], &a->entries[i])) {
      return fail(ERR_FILE, "%s: '%s' occurs twice in the archive", a->map->path, a->entries[i].name);
    }
  }
  return OK;
}

static Status read_directory(Archive *a) {
  Stream stream = {a->map, 0};
  unzFile z = a->map->size ? open_stream(&stream) : NULL;
  if (!z) {
    Status s = fail(ERR_FILE, "%s: not a .pt2 file: it is not a complete ZIP archive", a->map->path);
    return status_hint(s, "write it with torch.export.save(), or copy it again: it may be cut off");
  }
  Status s = OK;
  ArchiveEntry e;
  int cap = 0, more = unzGoToFirstFile(z);
  for (; more == UNZ_OK; more = unzGoToNextFile(z)) {
    TRY_GOTO(done, read_entry(a, z, &e));
    TRY_GOTO(done, add_entry(a, &cap, &e));
  }
  if (more != UNZ_END_OF_LIST_OF_FILE) s = fail(ERR_FILE, "%s: the directory of the archive is damaged", a->map->path);
done:
  unzClose(z);
  return s ? s : find_root(a);
}

Status archive_open(FileMap *map, Archive **out) {
  Archive *a;
  TRY_NEW(a, calloc(1, sizeof *a));
  a->map = file_map_ref(map);
  Status s = read_directory(a);
  if (s) {
    archive_close(a);
    return s;
  }
  *out = a;
  return OK;
}

void archive_close(Archive *a) {
  if (!a) return;
  file_map_unref(a->map);
  arena_free(&a->arena);
  free(a);
}

const ArchiveEntry *archive_find(const Archive *a, const char *name) {
  ArchiveEntry key = {.name = name};
  return a->count ? bsearch(&key, a->entries, (size_t)a->count, sizeof key, by_name) : NULL;
}

/* ---- contents ------------------------------------------------------------------------ */

static Status check_sum(const Archive *a, const ArchiveEntry *e, const void *bytes) {
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION /* a fuzzer cannot guess sums */
  if (crc32_z(0, bytes, e->size) != e->crc) return fail(ERR_FILE, "%s: '%s' is damaged: its CRC-32 is wrong", a->map->path, e->name);
#else
  (void)a, (void)e, (void)bytes;
#endif
  return OK;
}

static Status inflate_all(const Archive *a, const ArchiveEntry *e, unsigned char *out) {
  z_stream z = {0};
  if (inflateInit2(&z, -MAX_WBITS) != Z_OK) return fail_oom();
  const unsigned char *from = a->map->data + e->offset;
  size_t in = 0, done = 0;
  int r = Z_OK;
  while (r == Z_OK) { /* z_stream counts in 32 bits */
    if (z.avail_in == 0) {
      size_t n = e->packed - in < 1u << 30 ? e->packed - in : 1u << 30;
      z.next_in = (unsigned char *)(uintptr_t)(from + in);
      z.avail_in = (uInt)n;
      in += n;
    }
    size_t room = e->size - done < 1u << 30 ? e->size - done : 1u << 30;
    z.next_out = out + done;
    z.avail_out = (uInt)room;
    r = inflate(&z, Z_NO_FLUSH);
    done += room - z.avail_out;
  }
  inflateEnd(&z);
  if (r != Z_STREAM_END || done != e->size) return fail(ERR_FILE, "%s: '%s' is damaged: it does not unpack", a->map->path, e->name);
  return OK;
}

Status archive_unpack(const Archive *a, const ArchiveEntry *e, void *out) {
  if (!e->stored) TRY(inflate_all(a, e, out));
  else if (e->size) memcpy(out, a->map->data + e->offset, e->size);
  return check_sum(a, e, out);
}

Status archive_bytes(const Archive *a, const ArchiveEntry *e, const void **bytes, void **owned) {
  *owned = NULL;
  if (e->stored) {
    *bytes = a->map->data + e->offset;
    return check_sum(a, e, *bytes);
  }
  TRY_NEW(*owned, malloc(e->size ? e->size : 1));
  Status s = archive_unpack(a, e, *owned);
  if (s) {
    free(*owned);
    *owned = NULL;
  }
  *bytes = *owned;
  return s;
}
