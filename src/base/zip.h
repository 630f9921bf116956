/* zip.h -- ZIP archives: a mapped reader, and a writer of what PyTorch reads.
 *
 * Opening reads the central directory and the local headers, never the data, so an
 * archive of many gigabytes opens in milliseconds and its stored entries can be mapped.
 *
 * I1  An opened archive is right as a whole: every entry lies inside the file, entries do
 *     not overlap, names are relative paths without '..', '\' or control characters, and
 *     none occurs twice.  Encrypted entries and methods other than stored and deflate are refused.
 * I2  A Zip does not change after opening: threads may share it.
 * I3  Inflating is limited: an entry above ZIP_PLAIN_MAX bytes that would grow more than
 *     ZIP_RATIO_MAX times is refused before memory is taken.
 */
#ifndef TESS_BASE_ZIP_H
#define TESS_BASE_ZIP_H

#include "base/arena.h"
#include "base/file.h"
#include "base/progress.h"

#define ZIP_PLAIN_MAX ((uint64_t)64 << 20)
#define ZIP_RATIO_MAX ((uint64_t)100)

typedef struct {
  const char *name;
  uint64_t size;   /* bytes of content */
  uint64_t packed; /* bytes in the archive; equal to size if stored */
  uint64_t offset; /* of those bytes from the start of the archive */
  uint32_t crc;    /* CRC-32 of the content; 0 also means that the writer did not compute it */
  int order;       /* position in the directory */
  bool stored;
} ZipEntry;

typedef struct {
  FileMap *file;
  Arena arena;
  ZipEntry *entries; /* sorted by name; folders are left out */
  int count;
} Zip;

Status zip_open(const char *path, Zip **out);
/* Keeps its own reference to f. */
Status zip_from_map(FileMap *f, Zip **out);
void zip_close(Zip *z); /* NULL is fine */

const ZipEntry *zip_find(const Zip *z, const char *name); /* NULL if there is none */

/* The content: borrowed from the archive's mapping, or inflated. */
typedef struct {
  const unsigned char *data;
  size_t size;
  void *heap;
} ZipData;

/* Checks the CRC, so it reads every byte: for small entries. */
Status zip_read(const Zip *z, const ZipEntry *e, ZipData *out);
void zip_data_free(ZipData *d);

/* A stored entry as a part of the mapping, a deflated one inflated: for weights and for
 * archives in archives.  Stored bytes are not looked at. */
Status zip_map(const Zip *z, const ZipEntry *e, FileMap **out);

/* Compares every entry with its CRC, which reads the whole file; progress counts bytes and may be NULL. */
Status zip_verify(const Zip *z, Progress *progress);

/* ---- writing ---------------------------------------------------------------- */

/* Entries are stored, their data begins at multiples of 64 bytes.  The archive appears
 * whole or not at all (file.h I3), and is the same for the same content. */
typedef struct ZipOut ZipOut;

Status zip_out_open(const char *path, unsigned flags, ZipOut **out); /* flags: FileFlags */
/* Bytes of entries are counted there; borrowed. */
void zip_out_progress(ZipOut *z, Progress *progress);
Status zip_out_add(ZipOut *z, const char *name, const void *data, size_t size);
/* In pieces: begin, write as often as it takes to make `size` bytes, end. */
Status zip_out_begin(ZipOut *z, const char *name, uint64_t size);
Status zip_out_write(ZipOut *z, const void *data, size_t size);
Status zip_out_end(ZipOut *z);
/* Both free z. */
Status zip_out_commit(ZipOut *z);
void zip_out_discard(ZipOut *z); /* NULL is fine */

/* A name that I1 allows. */
bool zip_name_ok(const char *name);

#endif
