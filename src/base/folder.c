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
static Status make_temp(FolderOut *f, char *temp) {
  size_t n = strlen(temp);
  for (int tries = 0; tries < 100; tries++) {
    struct stat st;
    memset(temp + n - 6, 'X', 6);
    if (!mkdtemp(temp)) return cannot_write(f->path, errno);
    int fd = open_folder(temp);
    if (fd < 0) continue;
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

/* "out.part-Ab12Xy" of "out". */
static bool is_temp_of(const char *name, const char *base) {
  static const char part[] = ".part-";
  size_t n = strlen(base);
  return !strncmp(name, base, n) && !strncmp(name + n, part, sizeof part - 1) &&
         strlen(name + n) == sizeof part - 1 + 6;
}

/* I5.  What cannot be done is left: it is no part of what is asked. */
static void remove_abandoned(FolderOut *f) {
  const char *slash = strrchr(f->path, '/'), *base = slash ? slash + 1 : f->path;
  char *parent = slash ? arena_strndup(&f->arena, f->path, (size_t)(slash - f->path) + 1)
                       : arena_strdup(&f->arena, "./");
  DIR *d = parent ? opendir(parent) : NULL;
  for (struct dirent *e; d && (e = readdir(d));) {
    if (!is_temp_of(e->d_name, base)) continue;
    char *path = arena_printf(&f->arena, "%s%s", parent, e->d_name);
    int fd = path ? open_folder(path) : -1;
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB)) remove_folder(path);
    if (fd >= 0) close(fd);
  }
  if (d) closedir(d);
}

Status folder_out_open(FolderOut *f, const char *path, bool force) {
  char *plain, *temp;
  *f = (FolderOut){0};
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') n--;
  if (!n) return fail(ERR_USAGE, "the name of the output folder is empty");
  if (!(plain = arena_strndup(&f->arena, path, n)) || !(temp = arena_printf(&f->arena, "%s.part-XXXXXX", plain))) {
    folder_out_discard(f);
    return fail_oom();
  }
  f->path = plain;
  f->force = force;
  Status s = check(f, force);
  if (!s) remove_abandoned(f);
  if (!s) s = make_temp(f, temp);
  if (s) folder_out_discard(f);
  return s;
}

Status folder_out_check(const char *path, bool force) {
  FolderOut f;
  TRY(folder_out_open(&f, path, force));
  folder_out_discard(&f);
  return OK;
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

Status folder_out_commit(FolderOut *f) {
  Status s = OK;
  bool moved = !f->merge && renameat2(AT_FDCWD, f->temp, AT_FDCWD, f->path, RENAME_NOREPLACE) == 0;
  if (!f->merge && !moved && (errno == EINVAL || errno == ENOSYS)) /* a file system without RENAME_NOREPLACE */
    moved = rename(f->temp, f->path) == 0;
  if (moved) f->temp = NULL;
  else if (f->merge || (f->force && (errno == EEXIST || errno == ENOTEMPTY))) s = replace_files(f);
  else if (errno == EEXIST || errno == ENOTEMPTY)
    s = status_hint(fail(ERR_USAGE, "'%s' was made by another meanwhile", f->path),
                    "--force replaces files of the same names");
  else s = cannot_write(f->path, errno);
  folder_out_discard(f);
  return s;
}

void folder_out_discard(FolderOut *f) {
  if (f->temp) remove_folder(f->temp);
  if (f->lock) close(f->lock - 1);
  arena_free(&f->arena);
  *f = (FolderOut){0};
}
