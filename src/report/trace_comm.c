/* trace_comm.c -- see trace_comm.h. */
#include "report/trace_comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/human.h"
#include "report/trace.h"

enum { MOST_TRACKS = 16, TRACK_IDS = 1000 };

/* Threads of a process are numbered from those of the programs on. */
static int track_id(int rank, int track) { return TRACK_IDS * (rank + 1) + track; }

/* What a collective is to all its members. */
static uint64_t call_key(const CommPast *c) {
  uint64_t h = hash_bytes(0, c->members, (size_t)c->group_size * sizeof *c->members);
  const uint64_t more[] = {c->sequence, c->started, (uint64_t)c->kind};
  return hash_bytes(h, more, sizeof more);
}

static int64_t nanoseconds(double at, double zero) { return (int64_t)llround((at - zero) * 1e9); }

static void put_slice(TextBuf *b, const CommPast *c, int64_t begun, int64_t end, int rank, int track) {
  char size[32];
  double bytes = (double)c->count * (double)dtype_size(c->dtype);
  text_printf(
      b, "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"communication\",\"args\":{\"why\":", coll_kind_name(c->kind));
  text_json(b, c->why);
  if (c->kind != COLL_BARRIER)
    text_printf(b, ",\"data\":\"%s[%lld]\",\"size\":\"%s\"", dtype_name(c->dtype), (long long)c->count,
                human_bytes(bytes, size, sizeof size));
  text_printf(b, ",\"ranks\":%d,\"number\":%llu,\"started\":%s}", c->group_size, (unsigned long long)c->sequence,
              c->started ? "true" : "false");
  trace_put_time(b, "ts", begun);
  trace_put_time(b, "dur", end - begun);
  text_printf(b, ",\"pid\":%d,\"tid\":%d},\n", rank + 1, track_id(rank, track));
}

static void put_track(TextBuf *b, int rank, int track) {
  char number[16] = "";
  if (track) snprintf(number, sizeof number, " %d", track + 1);
  text_printf(
      b, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"communication%s\"}},\n",
      rank + 1, track_id(rank, track), number);
}

/* The first track that is free at that moment; the last one, if there are not enough. */
static int find_track(const int64_t *free_at, int n, int64_t begun) {
  int track = 0;
  while (track < n && free_at[track] > begun) track++;
  return track < MOST_TRACKS ? track : MOST_TRACKS - 1;
}

Status trace_comm_events(TextBuf *events, TextBuf *calls, const CommPast *past, int n, int rank, double zero) {
  int64_t free_at[MOST_TRACKS] = {0};
  int tracks = 0;
  for (int i = 0; i < n; i++) {
    const CommPast *c = &past[i];
    int64_t begun = nanoseconds(c->begun, zero), end = nanoseconds(c->done, zero);
    int track = find_track(free_at, tracks, begun);
    if (c->group_size < 2) continue;
    if (begun < free_at[track]) begun = free_at[track]; /* I1; never before the run */
    if (end < begun) end = begun;
    if (track == tracks) put_track(events, rank, tracks++);
    free_at[track] = end;
    put_slice(events, c, begun, end, rank, track);
    text_printf(calls, "%llx %d %d %lld\n", (unsigned long long)call_key(c), rank, track_id(rank, track),
                (long long)begun);
  }
  return events->failed || calls->failed ? fail_oom() : OK;
}

/* ---- arrows ---------------------------------------------------------------------------------------------- */

typedef struct {
  unsigned long long key;
  int rank, track;
  long long begun;
} Part;

static int by_key(const void *a, const void *b) {
  const Part *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  if (x->begun != y->begun) return x->begun < y->begun ? 1 : -1; /* the last to come first */
  return x->rank - y->rank;
}

static void put_end(TextBuf *b, const char *phase, int64_t id, const Part *p, int64_t at) {
  text_printf(b, "{\"ph\":\"%s\",\"name\":\"waits for\",\"cat\":\"collective\",\"id\":%lld", phase, (long long)id);
  trace_put_time(b, "ts", at);
  text_printf(b, ",\"pid\":%d,\"tid\":%d},\n", p->rank + 1, p->track);
}

static Status read_parts(const char *calls, Part **out, int *n) {
  int cap = 1;
  for (const char *p = calls; *p; p++) cap += *p == '\n';
  Part *part = calloc((size_t)cap, sizeof *part);
  if (!part) return fail_oom();
  *n = 0;
  for (const char *line = calls; *line; line = strchr(line, '\n') + 1) {
    Part *p = &part[*n];
    if (sscanf(line, "%llx %d %d %lld", &p->key, &p->rank, &p->track, &p->begun) == 4) ++*n;
    if (!strchr(line, '\n')) break;
  }
  qsort(part, (size_t)*n, sizeof *part, by_key);
  *out = part;
  return OK;
}

Status trace_comm_arrows(TextBuf *events, const char *calls) {
  Part *part;
  int n;
  int64_t id = 0;
  TRY(read_parts(calls, &part, &n));
  for (int i = 0; i < n;) {
    const Part *last = &part[i]; /* I2 */
    for (i++; i < n && part[i].key == last->key; i++) {
      put_end(events, "s", ++id, last, last->begun);
      put_end(events, "f\",\"bp\":\"e", id, &part[i], last->begun);
    }
  }
  free(part);
  return events->failed ? fail_oom() : OK;
}
