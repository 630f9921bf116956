/* coll.c -- see coll.h. */
#include "comm/coll.h"

#include "kernels/combine.h"

const CollTraits coll_traits[COLL_KIND_COUNT] = {
    /* clang-format off */
    /*                                         reduces rooted parts */
    [COLL_ALL_REDUCE] = {"all_reduce",         true,   false, false},
    [COLL_ALL_GATHER] = {"all_gather",         false,  false, true},
    [COLL_REDUCE_SCATTER] = {"reduce_scatter", true,   false, true},
    [COLL_ALL_TO_ALL] = {"all_to_all",         false,  false, false},
    [COLL_EXCHANGE] = {"exchange",             false,  false, false},
    [COLL_BROADCAST] = {"broadcast",           false,  true,  false},
    [COLL_SCATTER] = {"scatter",               false,  true,  true},
    [COLL_GATHER] = {"gather",                 false,  true,  true},
    [COLL_REDUCE] = {"reduce",                 true,   true,  false},
    [COLL_BARRIER] = {"barrier",               false,  false, false},
    [COLL_SEND] = {"send",                     false,  true,  false},
    [COLL_RECV] = {"recv",                     false,  true,  false},
    /* clang-format on */
};

const char *coll_kind_name(CollKind kind) {
  return (unsigned)kind < COLL_KIND_COUNT ? coll_traits[kind].name : "no collective";
}

int64_t box_count(const Box *b) {
  int64_t n = 1;
  for (int d = 0; d < b->ndim; d++) n *= b->size[d];
  return n;
}

static int64_t boxes_count(const Box *b, int n) {
  int64_t sum = 0;
  for (int i = 0; i < n; i++) sum += box_count(&b[i]);
  return sum;
}

int64_t coll_send_count(const Coll *c, int n, int me) {
  switch (c->kind) {
    case COLL_ALL_REDUCE:
    case COLL_REDUCE:
    case COLL_SEND: return c->count;
    case COLL_BROADCAST: return me == c->root ? c->count : 0;
    case COLL_ALL_GATHER:
    case COLL_GATHER: return coll_part(c, me);
    case COLL_REDUCE_SCATTER:
    case COLL_ALL_TO_ALL: return coll_before(c, n);
    case COLL_SCATTER: return me == c->root ? coll_before(c, n) : 0;
    case COLL_EXCHANGE: return boxes_count(c->send_box, c->nsend);
    default: return 0;
  }
}

static int64_t coll_recv_count(const Coll *c, int n, int me) {
  switch (c->kind) {
    case COLL_ALL_REDUCE:
    case COLL_BROADCAST:
    case COLL_RECV: return c->count;
    case COLL_REDUCE: return me == c->root ? c->count : 0;
    case COLL_ALL_GATHER: return coll_before(c, n);
    case COLL_GATHER: return me == c->root ? coll_before(c, n) : 0;
    case COLL_REDUCE_SCATTER:
    case COLL_SCATTER: return coll_part(c, me);
    case COLL_ALL_TO_ALL: return coll_recv_before(c, n);
    case COLL_EXCHANGE: return boxes_count(c->recv_box, c->nrecv);
    default: return 0;
  }
}

int64_t coll_most_sent(const Coll *c, int n) {
  int64_t most = 0;
  switch (c->kind) {
    case COLL_ALL_REDUCE:
    case COLL_REDUCE:
    case COLL_BROADCAST: return c->count;
    case COLL_ALL_GATHER:
    case COLL_GATHER:
      for (int i = 0; i < n; i++) most = coll_part(c, i) > most ? coll_part(c, i) : most;
      return most;
    case COLL_REDUCE_SCATTER: return c->nsend ? -1 : coll_before(c, n);
    case COLL_SCATTER: return coll_before(c, n);
    case COLL_BARRIER: return 0;
    default: return -1;
  }
}

/* ---- checks ----------------------------------------------------------------------- */

/* Sums stay below this many elements: their bytes fit an int64_t. */
static const int64_t most_elements = INT64_MAX / 32;

static Status check_counts(const char *what, const int64_t *counts, int64_t count, int n) {
  int64_t sum = 0;
  for (int i = 0; i < n; i++) {
    int64_t part = counts ? counts[i] : count;
    if (part < 0) return fail(ERR_USAGE, "%s[%d] is %lld", what, i, (long long)part);
    if (part > most_elements - sum) return fail(ERR_USAGE, "%s add up to too many elements", what);
    sum += part;
  }
  return OK;
}

static Status check_boxes(const char *what, const Box *box, int nbox, int n) {
  if (nbox < 0 || (nbox && !box)) return fail(ERR_USAGE, "%d %s boxes, and no list of them", nbox, what);
  for (int i = 0; i < nbox; i++) {
    int64_t count;
    if (box[i].peer < 0 || box[i].peer >= n)
      return fail(ERR_USAGE, "%s box %d: there is no member %d of %d", what, i, box[i].peer, n);
    if (box[i].ndim < 0 || box[i].ndim > MAX_DIMS)
      return fail(ERR_USAGE, "%s box %d has %d dimensions", what, i, box[i].ndim);
    if (!checked_numel(box[i].ndim, box[i].size, &count) || box[i].offset < 0)
      return fail(ERR_USAGE, "%s box %d: size or offset is negative or too large", what, i);
  }
  return OK;
}

/* The boxes for a member are its part. */
static Status check_parts(const Coll *c, int n) {
  TRY(check_boxes("send", c->send_box, c->nsend, n));
  for (int m = 0; m < n; m++) {
    int64_t sum = 0;
    for (int i = 0; i < c->nsend; i++)
      if (c->send_box[i].peer == m) sum += box_count(&c->send_box[i]);
    if (sum != coll_part(c, m))
      return fail(ERR_USAGE, "the boxes for member %d have %lld elements, its part has %lld", m, (long long)sum,
                  (long long)coll_part(c, m));
  }
  return OK;
}

/* Where send may lie within recv, in elements; -1: nowhere. */
static int64_t place_within(const Coll *c, int me) {
  switch (c->kind) {
    case COLL_ALL_REDUCE: return 0;
    case COLL_REDUCE:
    case COLL_BROADCAST: return me == c->root ? 0 : -1;
    case COLL_ALL_GATHER: return coll_before(c, me);
    case COLL_GATHER: return me == c->root ? coll_before(c, me) : -1;
    default: return -1;
  }
}

static Status check_buffers(const Coll *c, int n, int me) {
  const size_t bytes = dtype_size(c->dtype);
  const size_t sent = (size_t)coll_send_count(c, n, me) * bytes, got = (size_t)coll_recv_count(c, n, me) * bytes;
  if (sent && !c->send) return fail(ERR_USAGE, "send is NULL");
  if (got && !c->recv) return fail(ERR_USAGE, "recv is NULL");
  if (!sent || !got || c->kind == COLL_EXCHANGE || c->nsend) return OK;
  uintptr_t from = (uintptr_t)c->send, to = (uintptr_t)c->recv;
  if (from + sent <= to || to + got <= from) return OK;
  int64_t place = place_within(c, me);
  if (place >= 0 && from == to + (size_t)place * bytes) return OK;
  return fail(ERR_USAGE, "send and recv overlap%s", place < 0 ? "" : ", and not in the way that is in place");
}

Status coll_check(const Coll *c, int n, int me, bool buffers) {
  if ((unsigned)c->kind >= COLL_KIND_COUNT)
    return fail(ERR_USAGE, "there is no collective number %d", (int)c->kind);
  if (c->kind == COLL_BARRIER) return OK;
  const CollTraits *t = &coll_traits[c->kind];
  if ((unsigned)c->dtype >= DT_COUNT) return fail(ERR_USAGE, "there is no dtype number %d", (int)c->dtype);
  if (t->reduces) TRY(combine_check(c->op, c->dtype));
  if (t->rooted && (c->root < 0 || c->root >= n)) return fail(ERR_USAGE, "there is no member %d of %d", c->root, n);
  if (coll_is_pair(c->kind) && c->root == me) return fail(ERR_USAGE, "a rank does not send to itself");
  if (c->kind == COLL_EXCHANGE) {
    TRY(check_boxes("send", c->send_box, c->nsend, n));
    TRY(check_boxes("recv", c->recv_box, c->nrecv, n));
  } else if (t->parts || c->kind == COLL_ALL_TO_ALL) {
    TRY(check_counts("counts", c->counts, c->count, n));
    if (c->kind == COLL_ALL_TO_ALL) TRY(check_counts("recv_counts", c->recv_counts, c->count, n));
    if (c->kind == COLL_REDUCE_SCATTER && c->nsend) TRY(check_parts(c, n));
  } else {
    TRY(check_counts("count", NULL, c->count, 1));
  }
  return buffers ? check_buffers(c, n, me) : OK;
}

/* ---- signatures -------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}

uint64_t coll_signature(const Coll *c, int n) {
  const CollTraits *t = &coll_traits[c->kind];
  uint64_t h = mix(1 ^ c->where, (uint64_t)c->kind);
  if (c->kind == COLL_BARRIER) return h;
  h = mix(h, (uint64_t)c->dtype);
  if (c->kind == COLL_EXCHANGE || c->kind == COLL_ALL_TO_ALL) return h;
  if (t->reduces) h = mix(h, (uint64_t)c->op + 100);
  if (t->rooted) h = mix(h, (uint64_t)c->root + 1000);
  if (!t->parts) return mix(h, (uint64_t)c->count);
  for (int i = 0; i < n; i++) h = mix(h, (uint64_t)coll_part(c, i));
  return h;
}
