/* append.h -- a file that grows by whole records, for logs that others read meanwhile.
 *
 * I1  A record is in the file when append_write() has succeeded; one that could not be written as a whole (the
 *     disk is full) is taken away again.
 * I2  Errors name the path and the system's reason.
 */
#ifndef TESS_BASE_APPEND_H
#define TESS_BASE_APPEND_H

#include "base/status.h"

typedef struct {
  int fd; /* its descriptor + 1; 0: it is not open */
  char *path;
} AppendFile;

/* Makes the file if it is not there. */
Status append_open(AppendFile *a, const char *path);
/* *taken: a file of that name is there, so it is not opened. */
Status append_new(AppendFile *a, const char *path, bool *taken);
Status append_write(AppendFile *a, const void *data, size_t size);
void append_close(AppendFile *a); /* a zeroed one is fine */

#endif
