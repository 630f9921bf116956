/* port.h -- what a message-passing library must be able to do for us: bytes from one process
 * to another, without waiting.  All that is more (collectives, order of sums, mismatches,
 * failures, time limits) is in p2p.h and above, and knows no MPI.
 *
 * libtessera_mpi.so fills in a Port with the MPI that it was compiled for.  The two sides
 * share this header and nothing else: no symbol of one is needed by the other.
 *
 * I1  No function waits for another process, but for open() and close().
 * I2  Calls are made by one thread at a time; `any_thread` says whether it may change.
 * I3  Functions return 0 or an error code of the library, which error_text() tells.
 * I4  Messages with the same sender, receiver and tag are received in the order in which
 *     they were sent.  Tags are below PORT_TAGS.
 */
#ifndef TESS_COMM_PORT_H
#define TESS_COMM_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  PORT_VERSION = 1,
  PORT_TAGS = 32768, /* every MPI has that many */
  PORT_ANYONE = -1,
};
#define PORT_MOST_BYTES ((size_t)1 << 30) /* of one message */

/* A message under way; the library's handle is inside. */
typedef struct {
  uint64_t handle;
} PortRequest;

typedef struct Port {
  void *state;
  int rank, size;
  bool any_thread;
  const char *library; /* name and version; lives as long as the port */
  int (*send)(void *state, const void *data, size_t bytes, int to, int tag, PortRequest *out);
  int (*recv)(void *state, void *data, size_t bytes, int from, int tag, PortRequest *out);
  /* *from and *bytes of a receive that is done; either may be NULL. */
  int (*test)(void *state, PortRequest *r, bool *done, int *from, size_t *bytes);
  /* A receive that has not begun ends; test() says done in any case, soon. */
  int (*cancel)(void *state, PortRequest *r);
  void (*error_text)(void *state, int code, char *text, size_t cap);
  /* All have called it, or will.  Also frees the state. */
  void (*close)(void *state);
} Port;

/* The one symbol of a plug-in.  version: PORT_VERSION of the caller; a plug-in with another
 * one refuses.  0, or -1 with the reason in error. */
typedef int PortOpenFn(uint32_t version, Port *out, char *error, size_t cap);
#define PORT_SYMBOL "tessera_port_open"

#endif
