/* exchange.c -- see exchange.h. */
#include "ckpt/exchange.h"

#include <stdlib.h>
#include <string.h>

static Status gather(Comm *c, const char *why, Dtype dtype, const void *send, void *recv, int64_t count,
                     const int64_t *counts) {
  return comm_run(c, &(Coll){.kind = COLL_ALL_GATHER,
                             .dtype = dtype,
                             .send = send,
                             .recv = recv,
                             .count = count,
                             .counts = counts,
                             .why = why});
}

/* What a member tells first: how it went, and how many bytes follow (of an error, its text). */
typedef struct {
  int64_t code, size;
} Head;

static Status gather_bytes(Comm *c, const char *why, const Head *mine, const void *data, Arena *arena, Head **heads,
                           Message **out) {
  int n = comm_size(c);
  int64_t *counts, total = 0;
  unsigned char *all;
  TRY_NEW(*heads, arena_new_n(arena, Head, n));
  TRY_NEW(counts, arena_new_n(arena, int64_t, n));
  TRY_NEW(*out, arena_new_n(arena, Message, n));
  TRY(gather(c, why, DT_I64, mine, *heads, 2, NULL));
  for (int i = 0; i < n; i++) total += counts[i] = (*heads)[i].size;
  TRY_NEW(all, arena_alloc(arena, (size_t)total + 1));
  if (total) TRY(gather(c, why, DT_U8, data, all, mine->size, counts));
  for (int i = 0; i < n; i++) {
    (*out)[i] = (Message){all, (size_t)counts[i]};
    all += counts[i];
  }
  return OK;
}

Status exchange(Comm *c, const char *why, const void *data, size_t size, Status mine, Arena *arena, Message **out) {
  Head *heads, head = {0, (int64_t)size};
  if (mine) {
    data = status_message(mine);
    head = (Head){(int64_t)status_code(mine), (int64_t)strlen(data)};
  }
  Status s = gather_bytes(c, why, &head, data, arena, &heads, out);
  status_free(mine);
  if (s) return s;
  int first = -1, failed = 0, n = comm_size(c);
  for (int i = n - 1; i >= 0; i--)
    if (heads[i].code) first = i, failed++;
  if (!failed) return OK;
  const Message *m = &(*out)[first];
  ErrCode code = (ErrCode)heads[first].code;
  if (failed == n) return fail(code, "%.*s", (int)m->size, (const char *)m->data); /* nobody's own */
  return fail(code, "rank %d of %d: %.*s", comm_members(c)[first], n, (int)m->size, (const char *)m->data);
}

Status exchange_outcome(Comm *c, const char *why, Status mine) {
  Arena arena = {0};
  Message *all;
  Status s = exchange(c, why, NULL, 0, mine, &arena, &all);
  arena_free(&arena);
  return s;
}
