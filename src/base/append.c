/* append.c -- see append.h. */
#include "base/append.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Status cannot_write(const char *path, int error) {
  return fail(ERR_FAIL, "cannot write '%s': %s", path, strerror(error));
}

static Status open_with(AppendFile *a, const char *path, int more, bool *taken) {
  *a = (AppendFile){0};
  TRY_NEW(a->path, strdup(path));
  int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | more, 0666);
  bool exists = fd < 0 && errno == EEXIST && taken;
  Status s = fd < 0 && !exists ? cannot_write(path, errno) : OK;
  a->fd = fd + 1;
  if (fd < 0) append_close(a);
  if (taken) *taken = exists;
  return s;
}

Status append_open(AppendFile *a, const char *path) { return open_with(a, path, 0, NULL); }
Status append_new(AppendFile *a, const char *path, bool *taken) { return open_with(a, path, O_EXCL, taken); }

Status append_write(AppendFile *a, const void *data, size_t size) {
  const char *p = data;
  const int fd = a->fd - 1;
  off_t before = lseek(fd, 0, SEEK_END); /* -1 of a pipe, which takes nothing back */
  for (size_t left = size; left;) {
    ssize_t n = write(fd, p, left);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      int error = n < 0 ? errno : ENOSPC;
      if (before >= 0 && left < size && ftruncate(fd, before)) error = errno;
      return cannot_write(a->path, error);
    }
    p += n;
    left -= (size_t)n;
  }
  return OK;
}

void append_close(AppendFile *a) {
  if (a->fd) close(a->fd - 1);
  free(a->path);
  *a = (AppendFile){0};
}
