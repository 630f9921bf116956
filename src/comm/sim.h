/* sim.h -- a world in which no data moves: what a program would send, and how long that
 * would take on a machine that is described by a few numbers.
 *
 * Time of a collective over n ranks, with latency a (seconds per message) and bandwidth b
 * (bytes per second that a rank sends, and receives, at the same time).  B: bytes of the
 * whole, that is the buffer which all have afterwards (all_gather, all_reduce, broadcast,
 * reduce) or had before (reduce_scatter, scatter); of all_to_all what one rank sends.
 *
 *   all_reduce                    2 (n-1) a + 2 (n-1)/n B/b      ring
 *   all_gather, reduce_scatter      (n-1) a +   (n-1)/n B/b      ring
 *   all_to_all, scatter, gather     (n-1) a +   (n-1)/n B/b      pairwise
 *   broadcast, reduce           log2(n) a + B/b                  tree, in pieces
 *   barrier                     log2(n) a
 *   send, recv                        a + B/b
 *   exchange                          a per partner, and the larger of sent and received / b
 *
 * Uneven parts count as n times the largest.  What has one member takes no time.
 */
#ifndef TESS_COMM_SIM_H
#define TESS_COMM_SIM_H

#include "comm/comm.h"

enum { SIM_LEVELS = 4 };

/* Ranks a and b with a/span == b/span are as close as this; 0: all are. */
typedef struct {
  int span;
  double latency, bandwidth;
} SimLevel;

/* From near to far; a group communicates at the first level that holds all its members,
 * or at the last one. */
typedef struct {
  int levels;
  SimLevel level[SIM_LEVELS];
} SimMachine;

/* 8 ranks a node, 100 GB/s and 2 us among them; 25 GB/s and 10 us between nodes. */
extern const SimMachine sim_machine_default;

/* Seconds of one collective; bytes as B above. */
double sim_seconds(const SimLevel *level, CollKind kind, int n, double bytes);

typedef struct {
  int64_t calls;
  int64_t bytes; /* that this rank sends or contributes */
  double seconds;
} SimTotal;

/* Of worlds made by world_sim(). */
void sim_set_machine(World *w, const SimMachine *m);
SimTotal sim_total(const World *w, CollKind kind); /* COLL_KIND_COUNT: of all kinds */
void sim_reset(World *w);

#endif
