/* groups.h -- process groups by name, and the collectives that a rank has started in them.
 *
 * Exported programs know a group by its name alone ("0" is PyTorch's group of all ranks).
 * A Groups is one rank's table of names, and of works that are under way: a work is known by
 * the storage that it writes to, as wait_tensor() knows nothing else.
 *
 * I1  A name that nobody defined is the group of all ranks, as long as no name is defined;
 *     "0" always is, unless it is defined otherwise.
 * I2  What a started collective reads and writes is held until it is waited for.
 * I3  After groups_end() nothing is under way: memory may be freed, whatever happened.
 */
#ifndef TESS_COMM_GROUPS_H
#define TESS_COMM_GROUPS_H

#include "comm/comm.h"

typedef struct Groups Groups;

Status groups_new(World *w, Groups **out); /* the world outlives it */
void groups_free(Groups *g);               /* NULL is fine */
World *groups_world(const Groups *g);

/* Ranks of the world that call themselves `name`.  Several lists of one name: each rank
 * belongs to one of them (the rows of a mesh axis).  Every rank gets all of them. */
Status groups_define(Groups *g, const char *name, const int *ranks, int n);
/* A name for a group that this rank has its end of: the wanted one, or one like it if that is another group's. */
Status groups_name(Groups *g, const char *wanted, Comm *comm, const char **name);
/* This rank's end of a group. */
Status groups_find(Groups *g, const char *name, Comm **out);

/* Starts `what`, which reads from one storage (NULL: the caller sees to it) and writes to
 * another. */
Status groups_start(Groups *g, Comm *comm, const Coll *what, Storage *reads, Storage *writes);
/* The same of a collective that writes to several, at least one: waiting for any of them waits for all. */
Status groups_start_many(Groups *g, Comm *comm, const Coll *what, Storage *reads, Storage *const *writes, int n);
/* Waits for all that writes to the storage; nothing does: OK. */
Status groups_wait(Groups *g, const Storage *writes);
bool groups_busy(const Groups *g); /* something is under way */
/* The end of a call that gave s: waits for everything, or, if s is an error and something
 * is under way, gives up in the name of all ranks.  Returns s, or the first error. */
Status groups_end(Groups *g, Status s);

#endif
