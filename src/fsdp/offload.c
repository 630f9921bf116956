/* offload.c -- memory of flat shards: the heap, or a mapped file that the system may take out of memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/textbuf.h"
#include "fsdp/fsdp_inside.h"

static void unmap(Storage *s) { munmap(s->data, s->size); }

/* A file that nobody else can open and that is gone when it is closed. */
static int open_unnamed(const char *folder) {
#ifdef O_TMPFILE
  int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
#endif
  TextBuf path = {0};
  text_printf(&path, "%s/.fsdp-XXXXXX", folder);
  int made = path.failed ? -1 : mkostemp(path.text, O_CLOEXEC);
  if (made >= 0) unlink(path.text);
  text_free(&path);
  return made;
}

Status fsdp_shard_storage(size_t bytes, const char *folder, Storage **out) {
  if (!folder || !bytes) return storage_new(bytes, out);
  int fd = open_unnamed(folder);
  if (fd < 0) return fail(ERR_FAIL, "no file can be made in '%s' for shards: %s", folder, strerror(errno));
  int failed = posix_fallocate(fd, 0, (off_t)bytes);
  void *data = failed ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (!failed && data == MAP_FAILED) failed = errno;
  close(fd);
  if (failed) return fail(ERR_FAIL, "%zu bytes of shards do not fit '%s': %s", bytes, folder, strerror(failed));
  Status s = storage_borrow(data, bytes, unmap, NULL, out);
  if (s) munmap(data, bytes);
  return s;
}

void fsdp_shard_rest(const Storage *s) {
  if (s && s->release == unmap) madvise(s->data, s->size, MADV_DONTNEED);
}
