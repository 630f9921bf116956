/* zip_out.c -- writing archives; see zip.h.
 *
 * minizip writes headers and directory; the data is aligned by a padding field in the
 * local header, the one that PyTorch uses: "FB", u16 length, that many 'Z'. */
#include <stdlib.h>
#include <string.h>
#include <zip.h>

#include "base/zip.h"

enum { ALIGN = 64, LOCAL_HEADER = 30, ZIP64_FIELD = 20, PADDING_HEAD = 4, FLAG_UTF8 = 1 << 11, PIECE = 1 << 20 };

/* 1 January 1980: the archive depends on its content alone. */
#define DOS_DATE ((uLong)1 << 21 | (uLong)1 << 16)

struct ZipOut {
  FileOut file;
  uint64_t at; /* minizip goes back to complete a header */
  zipFile zip;
  Status error;  /* the first; minizip only knows that there was one */
  uint64_t left; /* bytes that the open entry still needs */
  char *name;    /* of the open entry */
  Progress *progress;
};

/* ---- minizip's output ------------------------------------------------------- */

static voidpf out_open(voidpf opaque, const void *name, int mode) {
  (void)name, (void)mode;
  return opaque;
}

static uLong out_read(voidpf opaque, voidpf stream, void *buf, uLong size) {
  (void)opaque, (void)stream, (void)buf, (void)size;
  return 0;
}

static uLong out_write(voidpf opaque, voidpf stream, const void *buf, uLong size) {
  ZipOut *z = stream;
  (void)opaque;
  if (z->error) return 0;
  uint64_t end = z->file.written, old = z->at < end ? end - z->at : 0;
  if (old > size) old = size;
  if (old) z->error = file_out_patch(&z->file, z->at, buf, (size_t)old);
  if (!z->error && size > old) z->error = file_out_write(&z->file, (const char *)buf + old, (size_t)(size - old));
  if (z->error) return 0;
  z->at += size;
  return size;
}

static ZPOS64_T out_tell(voidpf opaque, voidpf stream) {
  (void)opaque;
  return ((ZipOut *)stream)->at;
}

static long out_seek(voidpf opaque, voidpf stream, ZPOS64_T offset, int origin) {
  ZipOut *z = stream;
  (void)opaque;
  uint64_t to = offset + (origin == ZLIB_FILEFUNC_SEEK_SET   ? 0
                          : origin == ZLIB_FILEFUNC_SEEK_CUR ? z->at
                                                             : z->file.written);
  if (to > z->file.written) return -1;
  z->at = to;
  return 0;
}

static int out_nothing(voidpf opaque, voidpf stream) {
  (void)opaque, (void)stream;
  return 0;
}

/* ---- entries ---------------------------------------------------------------- */

Status zip_out_open(const char *path, unsigned flags, ZipOut **out) {
  ZipOut *z;
  TRY_NEW(z, calloc(1, sizeof *z));
  Status s = file_out_open(&z->file, path, flags);
  if (s) {
    free(z);
    return s;
  }
  zlib_filefunc64_def io = {.zopen64_file = out_open,
                            .zread_file = out_read,
                            .zwrite_file = out_write,
                            .ztell64_file = out_tell,
                            .zseek64_file = out_seek,
                            .zclose_file = out_nothing,
                            .zerror_file = out_nothing,
                            .opaque = z};
  z->zip = zipOpen2_64("", APPEND_STATUS_CREATE, NULL, &io);
  if (!z->zip) {
    zip_out_discard(z);
    return fail_oom();
  }
  *out = z;
  return OK;
}

/* What went wrong when minizip says no. */
static Status failure(ZipOut *z) {
  Status s = z->error;
  z->error = OK;
  return s ? s : fail_oom();
}

Status zip_out_begin(ZipOut *z, const char *name, uint64_t size) {
  if (!zip_name_ok(name)) return fail(ERR_FAIL, "'%s' cannot be the name of an entry of an archive", name);
  if (z->name) return fail(ERR_FAIL, "entry '%s' of '%s' is not complete", z->name, z->file.path);
  TRY_NEW(z->name, strdup(name));
  z->left = size;
  bool large = size >= 0xffffffff;
  uint64_t data = z->at + LOCAL_HEADER + strlen(name) + (large ? ZIP64_FIELD : 0) + PADDING_HEAD;
  unsigned padding = (unsigned)((ALIGN - data % ALIGN) % ALIGN);
  unsigned char field[PADDING_HEAD + ALIGN] = {'F', 'B', (unsigned char)padding, 0};
  memset(field + PADDING_HEAD, 'Z', padding);
  zip_fileinfo info = {.dosDate = DOS_DATE};
  int code = zipOpenNewFileInZip4_64(z->zip, name, &info, field, PADDING_HEAD + padding, NULL, 0, NULL, 0, 0, 0,
                                     -MAX_WBITS, DEF_MEM_LEVEL, Z_DEFAULT_STRATEGY, NULL, 0, 0, FLAG_UTF8, large);
  return code == ZIP_OK ? OK : failure(z);
}

Status zip_out_write(ZipOut *z, const void *data, size_t size) {
  const char *p = data;
  if (!z->name || size > z->left) return fail(ERR_FAIL, "'%s': more bytes than the entry has", z->file.path);
  for (size_t n; size; p += n, size -= n) {
    n = size < PIECE ? size : PIECE;
    if (zipWriteInFileInZip(z->zip, p, (unsigned)n) != ZIP_OK) return failure(z);
    z->left -= n;
    progress_add(z->progress, (int64_t)n);
  }
  return OK;
}

Status zip_out_end(ZipOut *z) {
  if (!z->name || z->left)
    return fail(ERR_FAIL, "'%s': entry '%s' lacks %llu bytes", z->file.path, z->name ? z->name : "",
                (unsigned long long)z->left);
  free(z->name);
  z->name = NULL;
  return zipCloseFileInZip(z->zip) == ZIP_OK ? OK : failure(z);
}

void zip_out_progress(ZipOut *z, Progress *progress) { z->progress = progress; }

Status zip_out_add(ZipOut *z, const char *name, const void *data, size_t size) {
  TRY(zip_out_begin(z, name, size));
  TRY(zip_out_write(z, data, size));
  return zip_out_end(z);
}

Status zip_out_commit(ZipOut *z) {
  Status s = z->name ? fail(ERR_FAIL, "entry '%s' of '%s' is not complete", z->name, z->file.path) : OK;
  if (!s) {
    int code = zipClose(z->zip, NULL);
    z->zip = NULL;
    s = code == ZIP_OK ? file_out_commit(&z->file) : failure(z);
  }
  zip_out_discard(z);
  return s;
}

void zip_out_discard(ZipOut *z) {
  if (!z) return;
  if (z->zip) {
    if (!z->error) z->error = fail_oom(); /* what minizip writes on closing is not wanted any more */
    zipClose(z->zip, NULL);
  }
  status_free(z->error);
  file_out_discard(&z->file);
  free(z->name);
  free(z);
}
