/* file.h -- files in: mapped whole; files out: whole or not at all.
 *
 * I1  A mapped file is private: writing to its bytes never reaches the disk.
 * I2  A FileMap is refcounted; tensors that borrow its bytes hold a reference.
 * I3  An output file appears under its name only when file_out_commit() succeeded.
 *     Until then its bytes are in a temporary file of the same folder, which every
 *     failure removes; where the file system can, that file has no name, and so the end
 *     of the process removes it too.  Devices and pipes (/dev/null, /dev/stdout) are written as they are.
 *     With FILE_SYNC, large pieces are written past the page cache: they have to be on the disk anyway.
 * I4  Errors name the path and the system's reason.
 */
#ifndef TESS_BASE_FILE_H
#define TESS_BASE_FILE_H

#include <stdatomic.h>

#include "base/status.h"

typedef struct FileMap {
  unsigned char *data; /* page-aligned if it is a whole file; NULL if it is empty */
  size_t size;         /* bytes */
  char *path;          /* as given, for messages */
  atomic_int refs;
  uint64_t device, number; /* of a whole file that is mapped: which it is */
  bool heap;               /* data came from malloc, not from a mapping */
  bool borrowed;           /* data is someone else's */
  struct FileMap *whole;   /* what this is a part of, or NULL */
} FileMap;

/* Refuses folders, devices and whatever else is not a regular file. */
Status file_map(const char *path, FileMap **out);
/* The same on a copy of bytes in memory; name stands in for the path in messages. */
Status file_map_bytes(const char *name, const void *data, size_t size, FileMap **out);
/* The same on bytes from malloc(), which become the map's own if it succeeds. */
Status file_map_heap(const char *name, void *data, size_t size, FileMap **out);
/* The same on bytes that stay someone else's, and outlive the map. */
Status file_map_borrow(const char *name, void *data, size_t size, FileMap **out);
/* Copies bytes out of it, as they are in the file.  Large pieces that are not in memory yet come straight from the
 * disk, and do not stay there. */
void file_map_copy(const FileMap *f, size_t offset, void *to, size_t size);
/* Is it the bytes of a file, whose pages can be read again? */
bool file_map_is_mapped(const FileMap *f);
/* Are these bytes in memory, or most of them?  Otherwise file_map_copy() is faster than looking at them. */
bool file_map_is_resident(const FileMap *f, size_t offset, size_t size);
/* Bytes [offset, offset + size) of f, which it keeps alive: a file inside a file. */
Status file_map_part(FileMap *f, size_t offset, size_t size, const char *name, FileMap **out);
FileMap *file_map_ref(FileMap *f);
void file_map_unref(FileMap *f); /* NULL is fine */

bool file_exists(const char *path);
bool file_is_folder(const char *path);
/* Makes a folder and its parents; fine if it is there. */
Status file_make_folder(const char *path);

/* ---- output ----------------------------------------------------------------- */

typedef enum {
  FILE_OVERWRITE = 1, /* replace what is there; otherwise that is an error */
  FILE_SYNC = 2,      /* on the disk, not only in the page cache, before the name appears */
  /* For folders that nobody looks into yet: under its name from the beginning, in what is there already, and so
   * still there if the process is killed.  With file_out_write_at() alone. */
  FILE_GO_ON = 4,
} FileFlags;

typedef struct {
  int fd;
  int direct; /* the same file, written past the page cache (direct.h); -1: not */
  unsigned flags;
  char *path, *temp; /* temp NULL: a device, written directly */
  size_t temp_cap;
  bool unnamed;     /* the temporary file has no name yet */
  uint64_t written; /* bytes so far */
  uint64_t started; /* of these, on their way to the disk (FILE_SYNC) */
  size_t buffered;
  unsigned char *buffer;
} FileOut;

/* Zeroed f is a valid argument of file_out_discard(). */
Status file_out_open(FileOut *f, const char *path, unsigned flags);
Status file_out_write(FileOut *f, const void *data, size_t size);
Status file_out_pad(FileOut *f, size_t count, char byte);
/* At a place of its own, beyond what was written or not; any number of threads at a time, and instead of
 * file_out_write().  Not for devices and pipes. */
Status file_out_write_at(const FileOut *f, uint64_t offset, const void *data, size_t size);
/* Replaces bytes that were written already. */
Status file_out_patch(FileOut *f, uint64_t offset, const void *data, size_t size);
/* Closes f either way. */
Status file_out_commit(FileOut *f);
void file_out_discard(FileOut *f);

/* open, write, commit. */
Status file_write_all(const char *path, const void *data, size_t size, unsigned flags);

#endif
