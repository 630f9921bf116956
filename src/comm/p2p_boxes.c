/* p2p_boxes.c -- exchange between processes: boxes for one member are packed one behind the
 * other and go as one piece.  A single box without gaps is its own piece.
 *
 * Messages list the sizes of the boxes that they announce, as many as fit, so that both
 * sides of a mismatch can be named: 1 + ndim numbers each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/p2p.h"
#include "kernels/copy.h"

enum { LIST_BYTES = 1024 };

/* The next box for `peer` at or after i; n if there is none. */
static int next_box(const Box *box, int n, int i, int peer) {
  while (i < n && box[i].peer != peer) i++;
  return i;
}

static bool has_no_gaps(const Box *b) {
  int64_t step = 1;
  for (int d = b->ndim - 1; d >= 0; d--) {
    if (b->size[d] != 1 && b->stride[d] != step) return false;
    step *= b->size[d];
  }
  return true;
}

typedef struct {
  const Box *box;
  int n;
  const void *buffer;
} Side;

static Side send_side(const P2pRound *r) { return (Side){r->coll->send_box, r->coll->nsend, r->coll->send}; }
static Side recv_side(const P2pRound *r) { return (Side){r->coll->recv_box, r->coll->nrecv, r->coll->recv}; }

/* Bytes of all boxes for a member; *direct: they lie as one piece in the buffer. */
static size_t measure(const Side *s, int member, size_t width, const Box **direct) {
  size_t bytes = 0;
  int boxes = 0;
  *direct = NULL;
  for (int i = next_box(s->box, s->n, 0, member); i < s->n; i = next_box(s->box, s->n, i + 1, member)) {
    size_t size = (size_t)box_count(&s->box[i]) * width;
    if (!size) continue;
    bytes += size;
    *direct = boxes++ ? NULL : has_no_gaps(&s->box[i]) ? &s->box[i] : NULL;
  }
  return bytes;
}

static View view_of(const Side *s, const Box *b, Dtype d) {
  return (View){(char *)(uintptr_t)s->buffer + (size_t)b->offset * dtype_size(d), b->size, b->stride, b->ndim, d};
}

/* Boxes of one member to or from their packed form. */
static void pack(const P2pRound *r, const Side *s, int member, char *packed, bool back) {
  Kern kern = {.threads = 1, .isa = p2p_world(r->comm)->isa};
  for (int i = next_box(s->box, s->n, 0, member); i < s->n; i = next_box(s->box, s->n, i + 1, member)) {
    const Box *b = &s->box[i];
    int64_t stride[MAX_DIMS], step = 1;
    for (int d = b->ndim - 1; d >= 0; d--) stride[d] = step, step *= b->size[d];
    if (!step) continue;
    View flat = {packed, b->size, stride, b->ndim, r->coll->dtype}, strided = view_of(s, b, r->coll->dtype);
    if (back) kernel_copy(&kern, strided, flat);
    else kernel_copy(&kern, flat, strided);
    packed += (size_t)step * p2p_width(r);
  }
}

/* Pieces of one side; those that are packed lie in scratch from *used on.  Without scratch
 * they are only measured. */
static void lay_out(P2pRound *r, const Side *s, Piece *piece, size_t *used) {
  for (int i = 0; i < r->n; i++) {
    const Box *direct;
    size_t bytes = measure(s, i, p2p_width(r), &direct);
    piece[i] = (Piece){.bytes = bytes};
    if (direct) {
      piece[i].at = view_of(s, direct, r->coll->dtype).data;
    } else {
      if (r->scratch) piece[i].at = r->scratch + *used;
      *used += (bytes + 63) & ~(size_t)63;
    }
  }
}

static bool is_packed(const P2pRound *r, const Piece *p, const Side *s, int member) {
  const Box *direct;
  return p->bytes && measure(s, member, p2p_width(r), &direct) && !direct;
}

static Status check_own(const P2pRound *r);
static uint64_t hash_boxes(const Side *s, int member, int *count);

Status boxes_prepare(P2pRound *r) {
  const Side out = send_side(r), in = recv_side(r);
  size_t used = 0;
  TRY(check_own(r));
  lay_out(r, &out, r->out, &used);
  lay_out(r, &in, r->in, &used);
  if (used) {
    TRY_NEW(r->scratch, aligned_alloc(64, used));
    used = 0;
    lay_out(r, &out, r->out, &used);
    lay_out(r, &in, r->in, &used);
  }
  for (int i = 0, count; i < r->n; i++) {
    if (is_packed(r, &r->out[i], &out, i)) pack(r, &out, i, r->out[i].at, false);
    r->send_hash += p2p_pair_hash(r, r->me, i, hash_boxes(&out, i, &count));
    r->recv_hash += p2p_pair_hash(r, i, r->me, hash_boxes(&in, i, &count));
  }
  return OK;
}

void boxes_finish(P2pRound *r) {
  const Side in = recv_side(r);
  for (int i = 0; i < r->n; i++) {
    if (is_packed(r, &r->in[i], &in, i)) pack(r, &in, i, r->in[i].at, true);
  }
}

/* ---- do they fit? --------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}

static uint64_t hash_box(uint64_t h, const Box *b) {
  h = mix(h, (uint64_t)b->ndim);
  for (int d = 0; d < b->ndim; d++) h = mix(h, (uint64_t)b->size[d]);
  return h;
}

static uint64_t hash_boxes(const Side *s, int member, int *count) {
  uint64_t h = 1;
  *count = 0;
  for (int i = next_box(s->box, s->n, 0, member); i < s->n; i = next_box(s->box, s->n, i + 1, member)) {
    h = hash_box(h, &s->box[i]);
    ++*count;
  }
  return h;
}

void boxes_list(const P2pRound *r, int member, Message *l) {
  const Side s = send_side(r);
  int count;
  l->head.amount = (int64_t)hash_boxes(&s, member, &count);
  l->head.boxes = count;
  int64_t *list = (int64_t *)(void *)l->data;
  for (int i = next_box(s.box, s.n, 0, member); i < s.n; i = next_box(s.box, s.n, i + 1, member)) {
    const Box *b = &s.box[i];
    const size_t numbers = 1 + (size_t)b->ndim;
    if (l->head.bytes + numbers * sizeof *list > LIST_BYTES) break;
    *list++ = b->ndim;
    memcpy(list, b->size, (size_t)b->ndim * sizeof *list);
    list += b->ndim;
    l->head.bytes += (uint32_t)(numbers * sizeof *list);
    l->head.listed++;
  }
}

size_t boxes_skip(const Message *l) {
  const int64_t *list = (const int64_t *)(const void *)l->data, *at = list;
  for (int i = 0; i < l->head.listed; i++) at += 1 + *at;
  return (size_t)(at - list) * sizeof *list;
}

static void describe_box(const Box *b, char *text, size_t cap) {
  if (b) shape_describe(b->ndim, b->size, text, cap);
  else snprintf(text, cap, "none");
}

static void describe_difference(const P2pRound *r, int from, int number, const Box *sent, const Box *wanted,
                                char *text, size_t cap) {
  char a[96], b[96];
  describe_box(sent, a, sizeof a);
  describe_box(wanted, b, sizeof b);
  snprintf(text, cap, "box %d from rank %d to rank %d is %s as sent, %s as expected", number,
           r->comm->members[from], r->comm->world->rank, a, b);
}

static bool same_size(const Box *a, const Box *b) {
  return a && b && a->ndim == b->ndim && !memcmp(a->size, b->size, (size_t)a->ndim * sizeof *a->size);
}

Status boxes_check(const P2pRound *r, int member) {
  const Message *l = r->message[member];
  const Side s = recv_side(r);
  int count;
  if (hash_boxes(&s, member, &count) == (uint64_t)l->head.amount && count == l->head.boxes) return OK;
  const int64_t *list = (const int64_t *)(const void *)l->data;
  char what[320];
  for (int k = 0, i = next_box(s.box, s.n, 0, member); k < l->head.listed || k == l->head.boxes; k++) {
    Box sent = {0}, *a = k < l->head.listed ? &sent : NULL;
    const Box *b = i < s.n ? &s.box[i] : NULL;
    if (a) {
      sent.ndim = (int)*list++;
      memcpy(sent.size, list, (size_t)sent.ndim * sizeof *list);
      list += sent.ndim;
    }
    if (!same_size(a, b)) {
      describe_difference(r, member, k, a, b, what, sizeof what);
      return p2p_mismatch(r, l, what);
    }
    i = next_box(s.box, s.n, i + 1, member);
  }
  snprintf(what, sizeof what, "its %d boxes are not the %d that rank %d expects", l->head.boxes, count,
           r->comm->world->rank);
  return p2p_mismatch(r, l, what);
}

/* What a rank sends to itself must fit too. */
static Status check_own(const P2pRound *r) {
  const Side out = send_side(r), in = recv_side(r);
  int i = next_box(out.box, out.n, 0, r->me), j = next_box(in.box, in.n, 0, r->me);
  for (int k = 0; i < out.n || j < in.n; k++) {
    const Box *a = i < out.n ? &out.box[i] : NULL, *b = j < in.n ? &in.box[j] : NULL;
    if (!same_size(a, b)) {
      char what[320], text[256];
      describe_difference(r, r->me, k, a, b, what, sizeof what);
      return fail(ERR_RANK, "rank %d of %d: %s: %s", r->comm->world->rank, r->comm->world->size,
                  p2p_describe(p2p_world(r->comm), r->ticket, text, sizeof text), what);
    }
    i = next_box(out.box, out.n, i + 1, r->me);
    j = next_box(in.box, in.n, j + 1, r->me);
  }
  return OK;
}
