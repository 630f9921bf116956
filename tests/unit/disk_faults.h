/* disk_faults.h -- calls that change the disk, one of which fails or ends the process.  The linker sends them here
 * (tests/CMakeLists.txt). */
#ifndef TESS_TESTS_DISK_FAULTS_H
#define TESS_TESTS_DISK_FAULTS_H

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"

typedef enum { FAIL, DIE_BEFORE, DIE_AFTER } Fault;

static struct {
  atomic_long left; /* calls of all threads before the one; negative: nothing happens */
  Fault fault;
  int error;
  const char *hit; /* the call that it was */
} plan = {.left = -1};

static bool is_due(const char *name) {
  if (plan.left < 0 || plan.left-- != 0) return false;
  plan.hit = name;
  if (plan.fault == DIE_BEFORE) _exit(99);
  return true;
}

static bool is_refused(void) {
  if (plan.fault != FAIL) return false;
  errno = plan.error;
  return true;
}

static void after(bool due) {
  if (due && plan.fault == DIE_AFTER) _exit(99);
}

/* clang-format off */
#define WRAP(type, name, params, args)                  \
  type __real_##name params;                            \
  type __wrap_##name params;                            \
  type __wrap_##name params {                           \
    bool due = is_due(#name);                           \
    if (due && is_refused()) return (type)-1;           \
    type result = __real_##name args;                   \
    after(due);                                         \
    return result;                                      \
  }
/* clang-format on */

WRAP(ssize_t, write, (int fd, const void *data, size_t n), (fd, data, n))
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at))
WRAP(int, ftruncate, (int fd, off_t n), (fd, n))
WRAP(int, rename, (const char *a, const char *b), (a, b))
WRAP(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
WRAP(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
WRAP(int, unlinkat, (int fd, const char *name, int flags), (fd, name, flags))
WRAP(int, unlink, (const char *path), (path))
WRAP(int, rmdir, (const char *path), (path))
WRAP(int, chmod, (const char *path, mode_t mode), (path, mode))

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode) { /* reads the mode if there is one: registers have it */
  bool due = is_due("open");
  if (due && is_refused()) return -1;
  int fd = __real_open(path, flags, mode);
  after(due);
  return fd;
}

int __wrap_fsync(int fd);
int __wrap_fsync(int fd) { /* takes long, and what it does cannot be seen by a process that lives on */
  bool due = is_due("fsync");
  if (due && is_refused()) return -1;
  after(due);
  return fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd) { /* closes, and still may say that something was lost */
  bool due = is_due("close");
  int result = __real_close(fd);
  after(due);
  return due && is_refused() ? -1 : result;
}

char *__real_mkdtemp(char *path);
char *__wrap_mkdtemp(char *path);
char *__wrap_mkdtemp(char *path) {
  bool due = is_due("mkdtemp");
  if (due && is_refused()) return NULL;
  char *result = __real_mkdtemp(path);
  after(due);
  return result;
}

#endif
