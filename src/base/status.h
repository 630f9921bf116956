/* status.h -- how a function says that it failed.
 *
 * A Status is NULL (OK) or a heap error that carries a code, the message and notes
 * added on the way up.  There is no errno, no global, no abort: ranks may be threads.
 *
 * I1  A Status that is not OK has exactly one owner.  Returning it passes it on;
 *     whoever does not return it calls status_free().
 * I2  The message says what failed, where, with which numbers.  A hint says what to do.
 */
#ifndef TESS_BASE_STATUS_H
#define TESS_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The codes are the exit codes of the command line (DESIGN section 7). */
typedef enum {
  ERR_FAIL = 1,    /* anything that has no code of its own */
  ERR_USAGE = 2,   /* the caller's words are off */
  ERR_FILE = 3,    /* bad or unsupported input file */
  ERR_DIFF = 4,    /* a check found a difference */
  ERR_RANK = 5,    /* rank failure or mismatch */
  ERR_CKPT = 6,    /* bad checkpoint */
  ERR_DYNAMIC = 7, /* inside only: sizes depend on data, the static path does not apply */
} ErrCode;

typedef struct Error Error;
typedef Error *Status;
#define OK ((Status)NULL)

#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* Never OK: the compiler may know. */
Status fail(ErrCode code, const char *fmt, ...) PRINTF_LIKE(2, 3) __attribute__((returns_nonnull));
Status fail_oom(void) __attribute__((returns_nonnull)); /* never allocates */

/* Adds a line below the message: "  at   <text>" / "  hint <text>".  OK stays OK. */
Status status_at(Status s, const char *fmt, ...) PRINTF_LIKE(2, 3);
Status status_hint(Status s, const char *fmt, ...) PRINTF_LIKE(2, 3);

ErrCode status_code(Status s);        /* s is not OK */
const char *status_message(Status s); /* message and notes, lives as long as s */
void status_free(Status s);           /* OK is fine */

#define TRY(expr)                        \
  do {                                   \
    Status try_status_ = (expr);         \
    if (try_status_) return try_status_; \
  } while (0)

/* For functions with an exit label: sets s and jumps.  Needs `Status s` in scope. */
#define TRY_GOTO(label, expr) \
  do {                        \
    s = (expr);               \
    if (s) goto label;        \
  } while (0)

#define TRY_NEW(ptr, expr)                           \
  do {                                               \
    if (((ptr) = (expr)) == NULL) return fail_oom(); \
  } while (0)

#endif
