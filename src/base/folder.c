/* folder.c -- see folder.h. */
#define _GNU_SOURCE /* renameat2 */
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
  Status s = check(f, force);
  if (!s && !mkdtemp(temp)) s = cannot_write(f->path, errno);
  if (!s) f->temp = temp;
  if (!s && chmod(temp, 0755)) s = cannot_write(f->path, errno);
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

Status folder_out_commit(FolderOut *f) {
  Status s = OK;
  if (f->merge) s = move_files(f);
  else if (renameat2(AT_FDCWD, f->temp, AT_FDCWD, f->path, RENAME_NOREPLACE) == 0) f->temp = NULL;
  else if (errno == EINVAL || errno == ENOSYS) { /* a file system without RENAME_NOREPLACE */
    if (rename(f->temp, f->path)) s = cannot_write(f->path, errno);
    else f->temp = NULL;
  } else s = cannot_write(f->path, errno);
  folder_out_discard(f);
  return s;
}

void folder_out_discard(FolderOut *f) {
  DIR *d = f->temp ? opendir(f->temp) : NULL;
  for (struct dirent *e; d && (e = readdir(d));)
    if (is_entry(e)) unlinkat(dirfd(d), e->d_name, 0);
  if (d) closedir(d);
  if (f->temp) rmdir(f->temp);
  arena_free(&f->arena);
  *f = (FolderOut){0};
}
