/* folder.h -- a folder of files out: whole or not at all.
 *
 *     FolderOut f;
 *     folder_out_open(&f, "out/", false);           out/ is not there yet, or empty
 *     folder_out_path(&f, "a.json", &path); ... write it ...
 *     folder_out_commit(&f);                        now it is
 *
 * I1  Until the commit the files are in a folder beside, which every failure removes.
 * I2  With force, files of the same name in a folder that is there are replaced; others are
 *     left alone, but for those that are stale.
 * I3  The file called `last` is there only if all others are: in a folder that is there
 *     already, files are replaced one by one.
 * I4  Two that write the same folder at the same time do not mix: one replaces its files, then the
 *     other.
 * I5  A folder beside whose process was killed is removed by the next that writes here; that of one
 *     that still works (it holds a lock on it) is left alone.
 * I6  Work that is long may go on in the folder beside of a process that was killed (folder_out_go_on), if that
 * folder is of the same work. I7  A durable folder is on the disk before it has its name, and the name is when the
 * commit returns (its files are the caller's to sync: FILE_SYNC).  With force, one that is there is replaced as a
 *     whole, by an exchange of names.
 */
#ifndef TESS_BASE_FOLDER_H
#define TESS_BASE_FOLDER_H

#include "base/arena.h"
#include "base/status.h"

typedef struct {
  Arena arena;
  const char *path, *temp;
  bool merge, force;                                   /* the folder is there and keeps what it has */
  int lock;                                            /* on temp: its descriptor + 1; 0: none */
  const char *last;                                    /* set by the caller; NULL: none */
  bool durable;                                        /* set by the caller: I7 */
  bool (*is_stale)(const void *arg, const char *name); /* does a file that was there go? NULL: none does */
  const void *arg;
} FolderOut;

/* ERR_USAGE if it is there and not empty, unless force; ERR_FAIL if it cannot be written. */
Status folder_out_open(FolderOut *f, const char *path, bool force);
/* The same, but in the folder beside of a process that was killed, if that has a file called `mark` which begins
 * with these bytes; *again: it has, and what it has written is there.  The mark of a new folder is the caller's to
 * write, and in both cases to remove before the commit.  `file`: the result is to be a file
 * (folder_out_commit_file), and the caller has looked whether its name is free. */
typedef struct {
  const char *mark;
  const void *bytes;
  size_t size;
  bool file;
} FolderWork;
Status folder_out_go_on(FolderOut *f, const char *path, bool force, const FolderWork *work, bool *again);
/* The same without opening it: whoever has much to do first asks first. */
Status folder_out_check(const char *path, bool force);
/* Where to write the file of that name; lives as long as f. */
Status folder_out_path(FolderOut *f, const char *name, const char **out);
/* Ends f either way. */
Status folder_out_commit(FolderOut *f);
/* The same, where the result is this one file, under the name of the folder. */
Status folder_out_commit_file(FolderOut *f, const char *name);
void folder_out_discard(FolderOut *f); /* a zeroed f is fine */

/* I5 for the folder of that name in a parent, or for all whose names begin so. */
void folder_remove_abandoned(const char *parent, const char *name, bool all);
/* Removes a folder of files.  Its name goes first, for good: nobody finds half of it, and what is left
 * if the process is killed meanwhile is an abandoned folder beside. */
Status folder_remove(const char *path);

#endif
