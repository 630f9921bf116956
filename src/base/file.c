/* file.c -- see file.h. */
#define _GNU_SOURCE /* renameat2, O_TMPFILE */
#include "base/file.h"

#include "base/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OUT_BUFFER = 1 << 18, EARLY = 8 << 20, TEMP_ATTEMPTS = 100 };

static Status fail_path(const char *doing, const char *path, int error) {
  /* What cannot be read is a bad input file; what cannot be written is a plain failure. */
  bool reading = !strcmp(doing, "open") || !strcmp(doing, "read") || !strcmp(doing, "map");
  return fail(reading ? ERR_FILE : ERR_FAIL, "cannot %s '%s': %s", doing, path, strerror(error));
}

/* ---- input ------------------------------------------------------------------ */

static Status new_map(const char *path, FileMap **out) {
  FileMap *f;
  TRY_NEW(f, calloc(1, sizeof *f));
  atomic_init(&f->refs, 1);
  f->path = strdup(path);
  if (!f->path) {
    free(f);
    return fail_oom();
  }
  *out = f;
  return OK;
}

static Status map_fd(int fd, FileMap *f) {
  struct stat st;
  if (fstat(fd, &st)) return fail_path("read", f->path, errno);
  if (S_ISDIR(st.st_mode)) return fail(ERR_FILE, "cannot read '%s': it is a folder", f->path);
  if (!S_ISREG(st.st_mode)) return fail(ERR_FILE, "cannot read '%s': it is not a regular file", f->path);
  if (st.st_size == 0) return OK;
  if ((uint64_t)st.st_size > SIZE_MAX / 2)
    return fail(ERR_FILE, "cannot map '%s': %lld bytes are too many", f->path, (long long)st.st_size);
  /* Private and writable: an op that works in place on a weight changes its own copy (I1).
   * No swap is reserved: files may be larger than memory. */
  void *data = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) return fail_path("map", f->path, errno);
  f->data = data;
  f->size = (size_t)st.st_size;
  f->device = (uint64_t)st.st_dev;
  f->number = (uint64_t)st.st_ino;
  return OK;
}

Status file_map(const char *path, FileMap **out) {
  FileMap *f = NULL;
  TRY(new_map(path, &f));
  /* O_NONBLOCK: opening a pipe without a writer must not hang before it is refused. */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  Status s = fd < 0 ? fail_path("open", path, errno) : map_fd(fd, f);
  if (fd >= 0) close(fd);
  if (s) {
    file_map_unref(f);
    return s;
  }
  *out = f;
  return OK;
}

Status file_map_heap(const char *name, void *data, size_t size, FileMap **out) {
  TRY(new_map(name, out));
  (*out)->heap = true;
  (*out)->data = data;
  (*out)->size = size;
  return OK;
}

Status file_map_bytes(const char *name, const void *data, size_t size, FileMap **out) {
  void *copy = NULL;
  if (size) {
    TRY_NEW(copy, malloc(size));
    memcpy(copy, data, size);
  }
  Status s = file_map_heap(name, copy, size, out);
  if (s) free(copy);
  return s;
}

Status file_map_borrow(const char *name, void *data, size_t size, FileMap **out) {
  TRY(new_map(name, out));
  (*out)->borrowed = true;
  (*out)->data = data;
  (*out)->size = size;
  return OK;
}

bool file_map_is_mapped(const FileMap *f) {
  while (f->whole) f = f->whole;
  return !f->heap && !f->borrowed;
}

/* Are more than half of the pages in memory? */
static bool is_resident(const unsigned char *data, size_t size) {
  unsigned char in[256];
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), end = (uintptr_t)data + size;
  size_t pages = 0, found = 0;
  for (uintptr_t at = (uintptr_t)data / page * page; at < end; at += sizeof in * page) {
    size_t n = (end - at + page - 1) / page;
    if (n > sizeof in) n = sizeof in;
    if (mincore((void *)at, n * page, in)) return true;
    for (size_t i = 0; i < n; i++) found += in[i] & 1;
    pages += n;
  }
  return 2 * found > pages;
}

bool file_map_is_resident(const FileMap *f, size_t offset, size_t size) {
  return !size || !file_map_is_mapped(f) || is_resident(f->data + offset, size);
}

/* The mapped file, opened again; -1: it is another one by now, or cannot be read so. */
static int open_direct(const FileMap *f) {
#ifdef O_DIRECT
  struct stat st;
  int fd = open(f->path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return -1;
  if (!fstat(fd, &st) && (uint64_t)st.st_dev == f->device && (uint64_t)st.st_ino == f->number) return fd;
  close(fd);
#else
  (void)f;
#endif
  return -1;
}

void file_map_copy(const FileMap *f, size_t offset, void *to, size_t size) {
  const unsigned char *from = f->data + offset;
  size_t done = 0;
  while (f->whole) f = f->whole;
  if (size >= DIRECT_LEAST && file_map_is_mapped(f) && !is_resident(from, size)) {
    int fd = open_direct(f);
    if (fd >= 0) {
      done = direct_read(fd, (uint64_t)(from - f->data), to, size);
      close(fd);
    }
  }
  if (done < size) memcpy((unsigned char *)to + done, from + done, size - done);
}

Status file_map_part(FileMap *f, size_t offset, size_t size, const char *name, FileMap **out) {
  if (offset > f->size || size > f->size - offset) {
    return fail(ERR_FILE, "%s: bytes %zu to %zu of '%s' are outside the file", f->path, offset, offset + size,
                name);
  }
  TRY(new_map(name, out));
  (*out)->data = size ? f->data + offset : NULL;
  (*out)->size = size;
  (*out)->whole = file_map_ref(f);
  return OK;
}

FileMap *file_map_ref(FileMap *f) {
  atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
  return f;
}

void file_map_unref(FileMap *f) {
  if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
  if (f->whole) file_map_unref(f->whole);
  else if (f->heap) free(f->data);
  else if (f->data && !f->borrowed) munmap(f->data, f->size);
  free(f->path);
  free(f);
}

bool file_exists(const char *path) { return access(path, F_OK) == 0; }

bool file_is_folder(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

Status file_make_folder(const char *path) {
  char *copy;
  TRY_NEW(copy, strdup(path));
  Status s = OK;
  for (char *p = copy; !s && *p;) {
    p += strspn(p, "/");
    p += strcspn(p, "/");
    char old = *p;
    *p = 0;
    int error = mkdir(copy, 0777) ? errno : 0; /* looking at what is there sets another */
    if (error && !file_is_folder(copy)) s = fail_path("make the folder", copy, error);
    *p = old;
  }
  free(copy);
  return s;
}

/* ---- output ----------------------------------------------------------------- */

/* The file that a name stands for: links are followed, so that replacing the name of
 * a link replaces what it points to. */
static Status resolve(const char *path, char **out) {
  *out = realpath(path, NULL);
  if (!*out && errno == ENOENT) *out = strdup(path);
  return *out ? OK : errno == ENOMEM ? fail_oom() : fail_path("write", path, errno);
}

/* The i-th name to try for the temporary file: folder/.name.PID-i.tmp. */
static void name_temp(FileOut *f, int i) {
  const char *slash = strrchr(f->path, '/');
  int folder = slash ? (int)(slash - f->path) + 1 : 0;
  snprintf(f->temp, f->temp_cap, "%.*s.%.200s.%ld-%d.tmp", folder, f->path, f->path + folder, (long)getpid(), i);
}

/* A file without a name in the folder of the output: nothing is left of it if the process
 * ends, however it ends.  Not all file systems have that, and giving it a name later
 * takes /proc. */
static bool open_unnamed(FileOut *f) {
  const char *slash = strrchr(f->path, '/');
  char number[sizeof "/proc/self/fd/" + 12];
  snprintf(f->temp, f->temp_cap, "%.*s", slash ? (int)(slash - f->path) + 1 : 1, slash ? f->path : ".");
  f->fd = open(f->temp, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (f->fd < 0) return false;
  snprintf(number, sizeof number, "/proc/self/fd/%d", f->fd);
  if (access(number, F_OK) == 0) return true;
  close(f->fd);
  f->fd = -1;
  return false;
}

/* A new file with the permissions any new file would get. */
static Status open_temp(FileOut *f) {
  f->temp_cap = strlen(f->path) + 48;
  TRY_NEW(f->temp, malloc(f->temp_cap));
  f->unnamed = open_unnamed(f);
  if (f->unnamed) return OK;
  for (int i = 0; i < TEMP_ATTEMPTS; i++) {
    name_temp(f, i);
    f->fd = open(f->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd >= 0) return OK;
    if (errno != EEXIST) break;
  }
  Status s = fail_path("write", f->path, errno);
  free(f->temp);
  f->temp = NULL;
  return s;
}

static Status fail_exists(const char *path) {
  return status_hint(fail(ERR_USAGE, "'%s' is there already", path),
                     "remove it, or allow it to be replaced (--force)");
}

/* FILE_GO_ON: its temporary name is its name. */
static Status open_there(FileOut *f) {
  TRY_NEW(f->temp, strdup(f->path));
  f->fd = open(f->temp, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  return f->fd < 0 ? fail_path("write", f->path, errno) : OK;
}

static Status open_target(FileOut *f) {
  struct stat st;
  if (f->flags & FILE_GO_ON) return open_there(f);
  if (stat(f->path, &st)) return errno == ENOENT ? open_temp(f) : fail_path("write", f->path, errno);
  if (S_ISDIR(st.st_mode)) return fail(ERR_FAIL, "cannot write '%s': it is a folder", f->path);
  if (S_ISREG(st.st_mode)) return f->flags & FILE_OVERWRITE ? open_temp(f) : fail_exists(f->path);
  f->fd = open(f->path, O_WRONLY | O_CLOEXEC);
  return f->fd < 0 ? fail_path("write", f->path, errno) : OK;
}

Status file_out_open(FileOut *f, const char *path, unsigned flags) {
  *f = (FileOut){.fd = -1, .direct = -1, .flags = flags};
  if (!*path) return fail(ERR_USAGE, "the name of an output file is empty");
  Status s = OK;
  TRY_GOTO(failed, resolve(path, &f->path));
  f->buffer = malloc(OUT_BUFFER);
  if (!f->buffer) {
    s = fail_oom();
    goto failed;
  }
  TRY_GOTO(failed, open_target(f));
  if (flags & FILE_SYNC && f->temp) f->direct = direct_reopen(f->fd);
  return OK;
failed:
  file_out_discard(f);
  return s;
}

/* What must be on the disk in the end starts on its way there now, while more is made: the disk is not idle until
 * fsync(), which also reports what goes wrong. */
static void start_writing(FileOut *f) {
#ifdef SYNC_FILE_RANGE_WRITE
  if (!(f->flags & FILE_SYNC) || !f->temp || f->written - f->started < EARLY) return;
  sync_file_range(f->fd, (off_t)f->started, (off_t)(f->written - f->started), SYNC_FILE_RANGE_WRITE);
  f->started = f->written;
#else
  (void)f;
#endif
}

static Status fail_write(const FileOut *f, uint64_t after, int error) {
  Status s = fail(ERR_FAIL, "cannot write '%s' after %llu bytes: %s", f->path, (unsigned long long)after,
                  error ? strerror(error) : "the disk takes no more");
  return error && error != ENOSPC && error != EDQUOT ? s
                                                     : status_hint(s, "make room there, or write to another disk");
}

static Status write_plain(const FileOut *f, uint64_t offset, const unsigned char *p, size_t size) {
  while (size) {
    ssize_t n = pwrite(f->fd, p, size, (off_t)offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail_write(f, offset, n < 0 ? errno : 0);
    p += n, offset += (uint64_t)n, size -= (size_t)n;
  }
  return OK;
}

/* What is large goes past the page cache, but for the ends of it that share a page with something else. */
static Status write_at(const FileOut *f, uint64_t offset, const unsigned char *p, size_t size) {
  if (f->direct >= 0 && size >= DIRECT_LEAST) {
    size_t head = (size_t)(DIRECT_PAGE - offset % DIRECT_PAGE) % DIRECT_PAGE;
    int error;
    TRY(write_plain(f, offset, p, head));
    size_t done = head + direct_write(f->direct, offset + head, p + head, size - head, &error);
    if (error) return fail_write(f, offset + done, error);
    p += done, offset += done, size -= done;
  }
  return write_plain(f, offset, p, size);
}

/* A pipe or device has no places. */
static Status write_stream(FileOut *f, const unsigned char *data, size_t size) {
  while (size) {
    ssize_t n = write(f->fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail_write(f, f->written, n < 0 ? errno : 0);
    data += n;
    size -= (size_t)n;
    f->written += (uint64_t)n;
  }
  return OK;
}

static Status write_next(FileOut *f, const unsigned char *data, size_t size) {
  if (!f->temp) return write_stream(f, data, size);
  TRY(write_at(f, f->written, data, size));
  f->written += size;
  if (f->direct < 0) start_writing(f);
  return OK;
}

static Status flush(FileOut *f) {
  size_t n = f->buffered;
  f->buffered = 0;
  f->written -= n; /* counted again as they go out */
  return write_next(f, f->buffer, n);
}

static void put_in_buffer(FileOut *f, const void *data, size_t size) {
  memcpy(f->buffer + f->buffered, data, size);
  f->buffered += size;
  f->written += size;
}

/* Whole pages past the page cache; the buffer has what is before them in their first page.  *size: what is left. */
static Status write_pages(FileOut *f, const unsigned char **data, size_t *size) {
  const size_t head = (size_t)(DIRECT_PAGE - f->written % DIRECT_PAGE) % DIRECT_PAGE;
  const size_t pages = (*size - head) / DIRECT_PAGE * DIRECT_PAGE;
  if (head > OUT_BUFFER - f->buffered) TRY(flush(f));
  put_in_buffer(f, *data, head);
  TRY(flush(f));
  TRY(write_next(f, *data + head, pages));
  *data += head + pages, *size -= head + pages;
  return OK;
}

Status file_out_write(FileOut *f, const void *bytes, size_t size) {
  const unsigned char *data = bytes;
  if (f->direct >= 0 && size >= DIRECT_LEAST) TRY(write_pages(f, &data, &size));
  if (!size) return OK;
  if (size > OUT_BUFFER - f->buffered) {
    TRY(flush(f));
    if (size >= OUT_BUFFER) return write_next(f, data, size);
  }
  put_in_buffer(f, data, size);
  return OK;
}

Status file_out_pad(FileOut *f, size_t count, char byte) {
  char block[256];
  memset(block, byte, sizeof block);
  for (; count > sizeof block; count -= sizeof block) TRY(file_out_write(f, block, sizeof block));
  return file_out_write(f, block, count);
}

Status file_out_patch(FileOut *f, uint64_t offset, const void *data, size_t size) {
  const unsigned char *p = data;
  uint64_t on_disk = f->written - f->buffered;
  if (offset > f->written || size > f->written - offset)
    return fail(ERR_FAIL, "'%s': a patch beyond the end", f->path);
  if (offset >= on_disk) {
    if (size) memcpy(f->buffer + (offset - on_disk), p, size);
    return OK;
  }
  TRY(flush(f));
  return write_at(f, offset, p, size);
}

Status file_out_write_at(const FileOut *f, uint64_t offset, const void *data, size_t size) {
  if (!f->temp) return fail(ERR_USAGE, "cannot write '%s': it is not a regular file", f->path);
  TRY(write_at(f, offset, data, size));
#ifdef SYNC_FILE_RANGE_WRITE
  if ((f->flags & FILE_SYNC) && f->direct < 0 && size >= OUT_BUFFER)
    sync_file_range(f->fd, (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE);
#endif
  return OK;
}

/* A link does not replace a file: where that is wanted, the file without a name gets the
 * name of a temporary one first. */
static Status publish_unnamed(FileOut *f) {
  char number[sizeof "/proc/self/fd/" + 12];
  snprintf(number, sizeof number, "/proc/self/fd/%d", f->fd);
  if (!(f->flags & FILE_OVERWRITE) || !file_exists(f->path)) {
    if (linkat(AT_FDCWD, number, AT_FDCWD, f->path, AT_SYMLINK_FOLLOW) == 0) return OK;
    if (errno != EEXIST) return fail_path("write", f->path, errno);
    if (!(f->flags & FILE_OVERWRITE)) return fail_exists(f->path);
  }
  for (int i = 0; i < TEMP_ATTEMPTS; i++) {
    name_temp(f, i);
    if (linkat(AT_FDCWD, number, AT_FDCWD, f->temp, AT_SYMLINK_FOLLOW)) {
      if (errno == EEXIST) continue;
      break;
    }
    f->unnamed = false; /* and so removed if the last step fails */
    return rename(f->temp, f->path) ? fail_path("write", f->path, errno) : OK;
  }
  return fail_path("write", f->path, errno);
}

/* Gives the temporary file its name; without FILE_OVERWRITE only if nobody took it. */
static Status publish(FileOut *f) {
  if (f->flags & FILE_GO_ON) return OK;
  if (f->flags & FILE_OVERWRITE) return rename(f->temp, f->path) ? fail_path("write", f->path, errno) : OK;
  if (renameat2(AT_FDCWD, f->temp, AT_FDCWD, f->path, RENAME_NOREPLACE) == 0) return OK;
  if (errno == EEXIST) return fail_exists(f->path);
  if (errno != EINVAL && errno != ENOSYS) return fail_path("write", f->path, errno);
  /* A file system without that call: a hard link fails if the name is taken, too. */
  if (link(f->temp, f->path)) return errno == EEXIST ? fail_exists(f->path) : fail_path("write", f->path, errno);
  unlink(f->temp);
  return OK;
}

Status file_out_commit(FileOut *f) {
  Status s = flush(f);
  if (!s && (f->flags & FILE_SYNC) && f->temp && fsync(f->fd)) s = fail_path("write", f->path, errno);
  bool unnamed = f->unnamed; /* gets its name while it is open, others when all is on the disk */
  if (!s && unnamed) s = publish_unnamed(f);
  int fd = f->fd;
  f->fd = -1;
  if (f->direct >= 0) close(f->direct);
  f->direct = -1;
  if (close(fd) && !s && errno != EINTR) s = fail_path("write", f->path, errno);
  if (!s && f->temp && !unnamed) s = publish(f);
  if (!s) {
    free(f->temp);
    f->temp = NULL;
  }
  file_out_discard(f);
  return s;
}

void file_out_discard(FileOut *f) {
  if (f->path && f->fd >= 0) close(f->fd);
  if (f->path && f->direct >= 0) close(f->direct);
  if (f->temp && !f->unnamed) unlink(f->temp);
  free(f->temp);
  free(f->path);
  free(f->buffer);
  *f = (FileOut){.fd = -1, .direct = -1};
}

Status file_write_all(const char *path, const void *data, size_t size, unsigned flags) {
  FileOut f;
  TRY(file_out_open(&f, path, flags));
  Status s = file_out_write(&f, data, size);
  if (!s) return file_out_commit(&f);
  file_out_discard(&f);
  return s;
}
