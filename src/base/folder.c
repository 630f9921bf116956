/* folder.c -- see folder.h. */
#define _GNU_SOURCE /* renameat2 */
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static Status cannot_write(const char *path, int error) {
  return fail(ERR_FAIL, "cannot write '%s': %s", path, strerror(error));
}

static bool is_entry(const struct dirent *d) { return strcmp(d->d_name, ".") && strcmp(d->d_name, ".."); }

static bool is_empty(const char *path) {
  DIR *d = opendir(path);
  bool empty = true;
  for (struct dirent *e; d && (e = readdir(d));) empty &= !is_entry(e);
  if (d) closedir(d);
  return empty;
}

static Status check(FolderOut *f, bool force) {
  struct stat st;
  if (stat(f->path, &st) && errno != ENOENT) return cannot_write(f->path, errno);
  if (stat(f->path, &st))
    return lstat(f->path, &st) ? OK : fail(ERR_USAGE, "'%s' is a link to something that is not there", f->path);
  if (!S_ISDIR(st.st_mode)) return fail(ERR_USAGE, "'%s' is there and is no folder", f->path);
  if (access(f->path, W_OK | X_OK)) return cannot_write(f->path, errno);
  f->merge = true;
  if (force || is_empty(f->path)) return OK;
  return status_hint(fail(ERR_USAGE, "'%s' exists already and is not empty", f->path),
                     "--force replaces files of the same names");
}

/* ---- the folder beside --------------------------------------------------------------------- */

static int open_folder(const char *path) { return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

static void remove_folder(const char *path) {
  DIR *d = opendir(path);
  for (struct dirent *e; d && (e = readdir(d));)
    if (is_entry(e)) unlinkat(dirfd(d), e->d_name, 0);
  if (d) closedir(d);
  rmdir(path);
}

/* A new one, locked.  Whoever tidies up may take it for a stale one before it is locked: then
 * another one.  Where there are no locks nobody tidies up. */
static Status new_temp(FolderOut *f) {
  char *temp;
  TRY_NEW(temp, arena_printf(&f->arena, "%s.part-XXXXXX", f->path));
  size_t n = strlen(temp);
  for (int tries = 0; tries < 100; tries++) {
    struct stat st;
    memset(temp + n - 6, 'X', 6);
    if (!mkdtemp(temp)) return cannot_write(f->path, errno);
    int fd = open_folder(temp);
    if (fd < 0) {
      rmdir(temp);
      continue;
    }
    flock(fd, LOCK_EX);
    if (!fstat(fd, &st) && st.st_nlink > 0 && !stat(temp, &st)) {
      f->temp = temp;
      f->lock = fd + 1;
      return chmod(temp, 0755) ? cannot_write(f->path, errno) : OK;
    }
    close(fd);
  }
  return fail(ERR_FAIL, "cannot write '%s': the folder beside it goes away again and again", f->path);
}

/* "out.part-Ab12Xy" of "out", or of all that begin with "out". */
static bool is_temp_of(const char *name, const char *base, bool all) {
  static const char part[] = ".part-";
  enum { PART = sizeof part - 1, RANDOM = 6 };
  size_t n = strlen(name), begin = strlen(base);
  if (n < begin + PART + RANDOM) return false;
  n -= PART + RANDOM;
  return !strncmp(name, base, begin) && !strncmp(name + n, part, PART) && (all || n == begin);
}

/* What cannot be done is left: it is no part of what is asked. */
void folder_remove_abandoned(const char *parent, const char *name, bool all) {
  Arena arena = {0};
  DIR *d = opendir(parent);
  for (struct dirent *e; d && (e = readdir(d));) {
    if (!is_temp_of(e->d_name, name, all)) continue;
    char *path = arena_printf(&arena, "%s/%s", parent, e->d_name);
    int fd = path ? open_folder(path) : -1;
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB)) remove_folder(path);
    if (fd >= 0) close(fd);
  }
  if (d) closedir(d);
  arena_free(&arena);
}

/* The folder that a path is in, and its name there. */
static char *parent_of(Arena *arena, const char *path, const char **base) {
  const char *slash = strrchr(path, '/');
  *base = slash ? slash + 1 : path;
  if (slash == path) return arena_strdup(arena, "/");
  return slash ? arena_strndup(arena, path, (size_t)(slash - path)) : arena_strdup(arena, ".");
}

static void remove_abandoned(FolderOut *f) {
  const char *base, *parent = parent_of(&f->arena, f->path, &base);
  if (parent) folder_remove_abandoned(parent, base, false);
}

/* Does the folder have a file that begins with these bytes? */
static bool is_marked(int folder, const FolderWork *work) {
  char buffer[256];
  int fd = openat(folder, work->mark, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  ssize_t n = fd >= 0 && work->size <= sizeof buffer ? read(fd, buffer, work->size) : -1;
  if (fd >= 0) close(fd);
  return n == (ssize_t)work->size && !memcmp(buffer, work->bytes, work->size);
}

/* Takes over an abandoned folder of the same work, if there is one. */
static bool take_over(FolderOut *f, const FolderWork *work) {
  const char *base, *parent = parent_of(&f->arena, f->path, &base);
  DIR *d = parent ? opendir(parent) : NULL;
  for (struct dirent *e; d && !f->temp && (e = readdir(d));) {
    if (!is_temp_of(e->d_name, base, false)) continue;
    char *path = arena_printf(&f->arena, "%s/%s", parent, e->d_name);
    int fd = path ? open_folder(path) : -1;
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB) && is_marked(fd, work)) {
      f->temp = path;
      f->lock = fd + 1;
    } else if (fd >= 0) close(fd);
  }
  if (d) closedir(d);
  return f->temp != NULL;
}

/* A link stands for what it points to, which is replaced. */
static Status check_file(FolderOut *f) {
  struct stat st;
  if (stat(f->path, &st)) return errno == ENOENT ? OK : cannot_write(f->path, errno);
  if (!S_ISREG(st.st_mode)) return fail(ERR_USAGE, "'%s' is there and is no regular file", f->path);
  char *real = realpath(f->path, NULL);
  if (!real) return cannot_write(f->path, errno);
  f->path = arena_strdup(&f->arena, real);
  free(real);
  return f->path ? OK : fail_oom();
}

static Status open_beside(FolderOut *f, const FolderWork *work, bool *again) {
  TRY(work && work->file ? check_file(f) : check(f, f->force));
  *again = work && work->size && take_over(f, work);
  remove_abandoned(f); /* not the one that is locked now */
  return *again ? OK : new_temp(f);
}

/* Without slashes at its end. */
static Status take_path(FolderOut *f, const char *path, bool force) {
  size_t n = strlen(path);
  *f = (FolderOut){.force = force};
  while (n > 1 && path[n - 1] == '/') n--;
  if (!n) return fail(ERR_USAGE, "the name of the output folder is empty");
  TRY_NEW(f->path, arena_strndup(&f->arena, path, n));
  return OK;
}

Status folder_out_go_on(FolderOut *f, const char *path, bool force, const FolderWork *work, bool *again) {
  Status s = take_path(f, path, force);
  if (!s) s = open_beside(f, work, again);
  if (s) folder_out_discard(f);
  return s;
}

Status folder_out_open(FolderOut *f, const char *path, bool force) {
  bool again;
  return folder_out_go_on(f, path, force, NULL, &again);
}

/* Tried with a folder of its own, whatever others have left. */
Status folder_out_check(const char *path, bool force) {
  FolderOut f;
  Status s = take_path(&f, path, force);
  if (!s) s = check(&f, force);
  if (!s) s = new_temp(&f);
  folder_out_discard(&f);
  return s;
}

Status folder_out_path(FolderOut *f, const char *name, const char **out) {
  TRY_NEW(*out, arena_printf(&f->arena, "%s/%s", f->temp, name));
  return OK;
}

static Status move_file(FolderOut *f, const char *name) {
  char *from, *to;
  TRY_NEW(from, arena_printf(&f->arena, "%s/%s", f->temp, name));
  TRY_NEW(to, arena_printf(&f->arena, "%s/%s", f->path, name));
  return rename(from, to) ? cannot_write(to, errno) : OK;
}

/* Files of earlier times that would be taken for part of what is written now. */
static Status remove_stale(FolderOut *f) {
  DIR *d = opendir(f->path);
  Status s = d ? OK : cannot_write(f->path, errno);
  for (struct dirent *e; !s && (e = readdir(d));) {
    bool stale = is_entry(e) &&
                 ((f->last && !strcmp(e->d_name, f->last)) || (f->is_stale && f->is_stale(f->arg, e->d_name)));
    if (stale && unlinkat(dirfd(d), e->d_name, 0) && errno != ENOENT)
      s = fail(ERR_FAIL, "cannot replace '%s/%s': %s", f->path, e->d_name, strerror(errno));
  }
  if (d) closedir(d);
  return s;
}

/* Of every file in the temporary folder: into the folder that is there. */
static Status move_files(FolderOut *f) {
  bool last = false;
  TRY(remove_stale(f));
  DIR *d = opendir(f->temp);
  Status s = d ? OK : cannot_write(f->path, errno);
  for (struct dirent *e; !s && (e = readdir(d));) {
    bool waits = f->last && !strcmp(e->d_name, f->last);
    last |= waits;
    if (is_entry(e) && !waits) s = move_file(f, e->d_name);
  }
  if (d) closedir(d);
  return !s && last ? move_file(f, f->last) : s;
}

/* I4 */
static Status replace_files(FolderOut *f) {
  int fd = open_folder(f->path);
  if (fd >= 0) flock(fd, LOCK_EX); /* where there are no locks, as well as it goes */
  Status s = move_files(f);
  if (fd >= 0) close(fd);
  return s;
}

/* The name, if nobody has it; else false, with errno. */
static bool take_name(FolderOut *f) {
  bool taken = renameat2(AT_FDCWD, f->temp, AT_FDCWD, f->path, RENAME_NOREPLACE) == 0;
  if (!taken && (errno == EINVAL || errno == ENOSYS)) /* a file system without RENAME_NOREPLACE */
    taken = rename(f->temp, f->path) == 0;
  if (taken) f->temp = NULL;
  return taken;
}

/* What bars the way to the name. */
static Status fail_name(const FolderOut *f) {
  if (errno != EEXIST && errno != ENOTEMPTY) return cannot_write(f->path, errno);
  return status_hint(fail(ERR_USAGE, "'%s' was made by another meanwhile", f->path),
                     "--force replaces files of the same names");
}

static Status commit(FolderOut *f) {
  if (f->merge) return replace_files(f);
  if (take_name(f)) return OK;
  return f->force && (errno == EEXIST || errno == ENOTEMPTY) ? replace_files(f) : fail_name(f);
}

/* Some file systems have nothing to sync of a folder, and say so. */
static Status sync_folder(int fd, const char *path) {
  return fsync(fd) && errno != EINVAL ? cannot_write(path, errno) : OK;
}

static Status sync_parent(Arena *arena, const char *path) {
  const char *base;
  char *parent;
  TRY_NEW(parent, parent_of(arena, path, &base));
  int fd = open_folder(parent);
  if (fd < 0) return cannot_write(parent, errno);
  Status s = sync_folder(fd, parent);
  close(fd);
  return s;
}

/* After an exchange the old folder is the one beside, which goes. */
static Status exchange_names(FolderOut *f) {
  if (renameat2(AT_FDCWD, f->temp, AT_FDCWD, f->path, RENAME_EXCHANGE) == 0) return OK;
  if (errno != EINVAL && errno != ENOSYS) return cannot_write(f->path, errno);
  return status_hint(fail(ERR_FAIL, "cannot replace '%s': this file system does not exchange names", f->path),
                     "remove it first");
}

/* I7 */
static Status commit_durable(FolderOut *f) {
  TRY(sync_folder(f->lock - 1, f->temp));
  if (f->merge) TRY(exchange_names(f));
  else if (!take_name(f)) return fail_name(f);
  return sync_parent(&f->arena, f->path);
}

Status folder_out_commit(FolderOut *f) {
  Status s = f->durable ? commit_durable(f) : commit(f);
  folder_out_discard(f);
  return s;
}

static Status move_to_name(const FolderOut *f, const char *from) {
  int flags = f->force ? 0 : RENAME_NOREPLACE;
  if (renameat2(AT_FDCWD, from, AT_FDCWD, f->path, (unsigned)flags) == 0) return OK;
  if (errno == EEXIST) return fail(ERR_USAGE, "'%s' was made by another meanwhile", f->path);
  if (errno != EINVAL && errno != ENOSYS) return cannot_write(f->path, errno);
  /* A file system without that call: a hard link fails if the name is taken, too. */
  if ((f->force ? rename(from, f->path) : link(from, f->path)) == 0) return OK;
  return errno == EEXIST ? fail(ERR_USAGE, "'%s' was made by another meanwhile", f->path)
                         : cannot_write(f->path, errno);
}

Status folder_out_commit_file(FolderOut *f, const char *name) {
  const char *from;
  Status s = folder_out_path(f, name, &from);
  if (!s) s = move_to_name(f, from);
  if (!s && f->durable) s = sync_parent(&f->arena, f->path);
  folder_out_discard(f);
  return s;
}

void folder_out_discard(FolderOut *f) {
  if (f->temp) remove_folder(f->temp);
  if (f->lock) close(f->lock - 1);
  arena_free(&f->arena);
  *f = (FolderOut){0};
}

/* The name that it gets is one that an empty folder holds. */
Status folder_remove(const char *path) {
  Arena arena = {0};
  Status s = OK;
  char *temp = arena_printf(&arena, "%s.part-XXXXXX", path);
  if (!temp) s = fail_oom();
  else if (!mkdtemp(temp) || rename(path, temp)) {
    s = fail(ERR_FAIL, "cannot remove '%s': %s", path, strerror(errno));
    rmdir(temp);
  } else {
    s = sync_parent(&arena, path);
    remove_folder(temp);
  }
  arena_free(&arena);
  return s;
}
