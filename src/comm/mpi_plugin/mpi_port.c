/* mpi_port.c -- libtessera_mpi.so: a Port made of MPI.  See port.h.
 *
 * Only what every MPI does alike: bytes, point to point, on a communicator of
 * our own.  A host program that has called MPI_Init itself keeps that right: then MPI is
 * not finalised here.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/port.h"

typedef struct {
  MPI_Comm comm;
  bool finalize;
  char library[MPI_MAX_LIBRARY_VERSION_STRING];
} MpiState;

_Static_assert(sizeof(MPI_Request) <= sizeof(PortRequest), "a request fits");

static MPI_Request get(const PortRequest *r) {
  MPI_Request m;
  memcpy(&m, r, sizeof m);
  return m;
}
static void put(PortRequest *r, MPI_Request m) { memcpy(r, &m, sizeof m); }

static int port_send(void *state, const void *data, size_t bytes, int to, int tag, PortRequest *out) {
  const MpiState *s = state;
  MPI_Request m = MPI_REQUEST_NULL;
  int code = MPI_Isend((void *)(uintptr_t)data, (int)bytes, MPI_BYTE, to, tag, s->comm, &m);
  put(out, m);
  return code;
}

static int port_recv(void *state, void *data, size_t bytes, int from, int tag, PortRequest *out) {
  const MpiState *s = state;
  MPI_Request m = MPI_REQUEST_NULL;
  int code = MPI_Irecv(data, (int)bytes, MPI_BYTE, from == PORT_ANYONE ? MPI_ANY_SOURCE : from, tag, s->comm, &m);
  put(out, m);
  return code;
}

static int port_test(void *state, PortRequest *r, bool *done, int *from, size_t *bytes) {
  (void)state;
  MPI_Request m = get(r);
  MPI_Status status;
  int flag = 0, count = 0, code = MPI_Test(&m, &flag, &status);
  put(r, m);
  *done = flag != 0;
  if (code || !flag) return code;
  if (from) *from = status.MPI_SOURCE;
  if (bytes && !(code = MPI_Get_count(&status, MPI_BYTE, &count))) *bytes = (size_t)count;
  return code;
}

static int port_cancel(void *state, PortRequest *r) {
  (void)state;
  MPI_Request m = get(r);
  return m == MPI_REQUEST_NULL ? 0 : MPI_Cancel(&m);
}

static void port_error_text(void *state, int code, char *text, size_t cap) {
  (void)state;
  char full[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, full, &length)) snprintf(text, cap, "MPI error %d", code);
  else snprintf(text, cap, "%.*s", length, full);
}

static void port_close(void *state) {
  MpiState *s = state;
  MPI_Comm_free(&s->comm);
  if (s->finalize) MPI_Finalize();
  free(s);
}

/* MPI runs; *threads: what it allows. */
static int begin(MpiState *s, int *threads) {
  int begun = 0, ended = 0;
  if (MPI_Initialized(&begun) || MPI_Finalized(&ended)) return -1;
  if (ended) return -1;
  if (begun) return MPI_Query_thread(threads);
  s->finalize = true;
  return MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, threads);
}

static int refuse(MpiState *s, char *error, size_t cap, const char *text) {
  snprintf(error, cap, "%s", text);
  free(s);
  return -1;
}

__attribute__((visibility("default"))) PortOpenFn tessera_port_open;

int tessera_port_open(uint32_t version, Port *out, char *error, size_t cap) {
  if (version != PORT_VERSION) {
    snprintf(error, cap, "the plug-in speaks version %d, tessera %u: build both from the same source", PORT_VERSION,
             (unsigned)version);
    return -1;
  }
  MpiState *s = calloc(1, sizeof *s);
  int threads = MPI_THREAD_SINGLE, length = 0;
  if (!s) return refuse(s, error, cap, "out of memory");
  if (begin(s, &threads)) return refuse(s, error, cap, "MPI does not start, or has been finalised");
  if (MPI_Comm_dup(MPI_COMM_WORLD, &s->comm)) return refuse(s, error, cap, "MPI_Comm_dup failed");
  MPI_Comm_set_errhandler(s->comm, MPI_ERRORS_RETURN);
  MPI_Get_library_version(s->library, &length);
  s->library[strcspn(s->library, ",\n")] = 0; /* the rest is how it was built */
  *out = (Port){.state = s,
                .any_thread = threads >= MPI_THREAD_SERIALIZED,
                .library = s->library,
                .send = port_send,
                .recv = port_recv,
                .test = port_test,
                .cancel = port_cancel,
                .error_text = port_error_text,
                .close = port_close};
  MPI_Comm_rank(s->comm, &out->rank);
  MPI_Comm_size(s->comm, &out->size);
  return 0;
}
