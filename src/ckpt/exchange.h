/* exchange.h -- texts and outcomes that all ranks of a group tell each other.
 *
 * I1  Collective: every member calls it, whether its own part has failed or not.  The outcome is the same on all.
 */
#ifndef TESS_CKPT_EXCHANGE_H
#define TESS_CKPT_EXCHANGE_H

#include "comm/comm.h"

typedef struct {
  const unsigned char *data; /* in the arena */
  size_t size;
} Message;

/* Every member gives bytes, or the reason why it cannot (mine, which is taken), and gets those of all: out[member],
 * in the arena.  If some member has failed, all get the error of the first. */
Status exchange(Comm *c, const char *why, const void *data, size_t size, Status mine, Arena *arena, Message **out);
/* The same without bytes: did all succeed? */
Status exchange_outcome(Comm *c, const char *why, Status mine);

#endif
