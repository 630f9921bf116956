/* coll.h -- what a Coll means: who contributes how much, where it goes, whether it makes
 * sense, and how it is called in messages.
 *
 * All counts are elements; n members, me = this one.
 */
#ifndef TESS_COMM_COLL_H
#define TESS_COMM_COLL_H

#include "comm/comm.h"

/* How kinds differ, as far as a table can tell. */
typedef struct {
  const char *name;
  bool reduces; /* has an op */
  bool rooted;  /* has a root (or a peer) */
  bool parts;   /* counts: one per member, agreed by all */
} CollTraits;
extern const CollTraits coll_traits[COLL_KIND_COUNT];

static inline bool coll_is_pair(CollKind kind) { return kind == COLL_SEND || kind == COLL_RECV; }

/* The part of a member: counts[member], or count. */
static inline int64_t coll_part(const Coll *c, int member) { return c->counts ? c->counts[member] : c->count; }
static inline int64_t coll_recv_part(const Coll *c, int member) {
  return c->recv_counts ? c->recv_counts[member] : c->count;
}

/* Elements before the part of a member; member = n gives all. */
static inline int64_t coll_before(const Coll *c, int member) {
  if (!c->counts) return c->count * member;
  int64_t sum = 0;
  for (int i = 0; i < member; i++) sum += c->counts[i];
  return sum;
}
static inline int64_t coll_recv_before(const Coll *c, int member) {
  if (!c->recv_counts) return c->count * member;
  int64_t sum = 0;
  for (int i = 0; i < member; i++) sum += c->recv_counts[i];
  return sum;
}

/* What this rank reads from send, and what it may write to recv (0 where the table of
 * comm.h has nothing for it). */
int64_t coll_send_count(const Coll *c, int n, int me);
/* The most that any member sends; known alike to all.  -1: they do not know. */
int64_t coll_most_sent(const Coll *c, int n);

int64_t box_count(const Box *b);

/* Kind, dtype, op, root, counts; with `buffers` pointers and overlaps too.  Messages do not
 * name rank or kind. */
Status coll_check(const Coll *c, int n, int me, bool buffers);

/* Equal on all members of a collective that fits; of all_to_all and exchange, sizes are
 * left out: they are a matter of pairs. */
uint64_t coll_signature(const Coll *c, int n);

#endif
