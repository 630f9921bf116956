/* launch.h -- the transports, by name or by what has started this process, and work on all ranks
 * of a world whichever it is.
 *
 *     const Transport *t;
 *     TRY(transport_choose(NULL, &t));
 *     TRY(world_launch(t, 0, work, arg, NULL));
 */
#ifndef TESS_COMM_LAUNCH_H
#define TESS_COMM_LAUNCH_H

#include "comm/comm.h"

typedef struct Transport Transport;

const Transport *transport_find(const char *name); /* NULL: there is none of that name */
/* That a user names; NULL: the one whose launcher has started this process, else threads.
 * ERR_USAGE with the names that there are, if it is none on which programs can run. */
Status transport_choose(const char *name, const Transport **out);
/* "threads and mpi": those on which programs can run. */
void transport_list(TextBuf *out, const char *separator, const char *last);
const char *transport_name(const Transport *t);
const char *transport_needs(const Transport *t);                    /* what must be installed; NULL: nothing */
bool transport_has_processes(const Transport *t);                   /* every rank is a process, of a launcher */
Status transport_check(const Transport *t, char *path, size_t cap); /* can it be used here?  path: where it is */

/* The transport whose launcher has started this process; NULL: none has. */
const Transport *transport_launched(void);
/* The rank of this process as that launcher counts, before the transport has begun; 0: there is none. */
int launched_rank(void);

/* fn on n ranks; returns when all of this process are done: OK, or the error of the rank that
 * failed first, which all ranks get; an empty message means that another process says it.  Where ranks are
 * processes, n must be as many as were launched, or 0.  flight_path (or NULL): where flight records go if it fails
 * (world_set_flight). */
Status world_launch(const Transport *t, int n, RankFn *fn, void *arg, const char *flight_path);
/* This process's end of a world of processes.  world_free() waits until all ranks leave; there
 * is one such world in the life of a process.  Meanwhile SIGTERM, unless the program handles it,
 * ends waits with an error instead of the process. */
Status world_join(const Transport *t, World **out);
const Transport *world_transport(const World *w);
int world_local_ranks(const World *w); /* ranks of this world on this host, with this one */

#endif
