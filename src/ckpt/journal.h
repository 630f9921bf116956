/* journal.h -- which boxes of a conversion are written, so that the same command goes on where one was killed.
 *
 * The journal is a file in the folder where the result is made (base/folder.h, FolderWork): a key, then a record
 * per box.
 *
 * I1  The key stands for the work: the plan of boxes and files, and the sources with the sizes and times of their
 *     files.  Another work begins anew.
 * I2  A record follows the bytes of its box.  It is believed as long as the system has not been started anew since:
 *     what a killed process has written is in the page cache or on the disk, what a machine has lost its power over
 *     may be in neither.
 * I3  A record that is cut off or damaged ends the journal: boxes behind it are written again.
 */
#ifndef TESS_CKPT_JOURNAL_H
#define TESS_CKPT_JOURNAL_H

#include "ckpt/writing.h"

#define JOURNAL_NAME ".journal"

typedef struct {
  unsigned char bytes[16];
} JournalKey;

/* *resumable false: sources are not files, or the system does not tell when it was started. */
Status journal_key(const Writing *w, JournalKey *out, bool *resumable);

typedef struct {
  int fd; /* -1: none is kept */
  JournalKey key;
} Journal;

/* In the folder of w->out.  again: it is there, and its boxes are marked as written; *bytes: of these. */
Status journal_open(Journal *j, Writing *w, const JournalKey *key, bool again, int64_t *bytes);
/* A box that is written, whatever is around it too.  Any number of threads. */
Status journal_add(const Journal *j, const Writing *w, const WriteBox *b);
/* Removes the file: the result is whole. */
Status journal_end(Journal *j, Writing *w);
void journal_close(Journal *j); /* a zeroed fd is not -1: open first */

#endif
