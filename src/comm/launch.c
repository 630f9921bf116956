/* launch.c -- world_threads(): a thread per rank, and what is left of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/hub.h"

typedef struct {
  Hub *hub;
  int rank;
  RankFn *fn;
  void *arg;
  pthread_t thread;
  bool running;
} Rank;

static void *run_rank(void *arg) {
  const Rank *r = arg;
  World *w;
  parallel_take_share(r->rank, r->hub->n);
  Status s = hub_join(r->hub, r->rank, &w);
  if (!s) {
    s = r->fn(w, r->arg);
    hub_leave(w, s);
  }
  status_free(s);
  return NULL;
}

/* {"error": ..., "ranks": [{"rank": 0, "collectives": [...]}, ...]} */
static Status write_flight(Hub *hub, const char *path) {
  TextBuf text = {0};
  text_puts(&text, "{\"error\": ");
  text_json(&text, hub->message ? hub->message : "out of memory");
  text_puts(&text, ", \"ranks\": [");
  for (int i = 0; i < hub->n; i++) {
    text_printf(&text, "%s\n {\"rank\": %d, \"collectives\": ", i ? "," : "", i);
    flight_json(&hub->world[i].base.flight, &text);
    text_puts(&text, "}");
  }
  text_puts(&text, "]}\n");
  Status s = text.failed ? fail_oom() : OK;
  FILE *f = s ? NULL : fopen(path, "w");
  if (!s && !f) s = fail(ERR_FILE, "%s cannot be written", path);
  if (f) {
    bool written = fwrite(text.text, 1, text.len, f) == text.len;
    if (fclose(f) || !written) s = fail(ERR_FILE, "%s was not written to its end", path);
  }
  text_free(&text);
  return s;
}

static Status collect(Hub *hub, const char *flight_path) {
  Status s = hub_result(hub);
  if (!s || !flight_path) return s;
  Status written = write_flight(hub, flight_path);
  s = written ? status_hint(s, "no flight record: %s", status_message(written)) : status_hint(s, "the last collectives of all ranks are in %s", flight_path);
  status_free(written);
  return s;
}

Status world_threads(int n, RankFn *fn, void *arg, const char *flight_path) {
  Hub *hub;
  TRY(hub_new(n, &hub));
  Rank *rank = calloc((size_t)n, sizeof *rank);
  Status s = rank ? OK : fail_oom();
  for (int i = 0; i < n && !s; i++) {
    rank[i] = (Rank){.hub = hub, .rank = i, .fn = fn, .arg = arg};
    rank[i].running = pthread_create(&rank[i].thread, NULL, run_rank, &rank[i]) == 0;
    if (!rank[i].running) {
      s = fail(ERR_FAIL, "rank %d of %d: no thread for it", i, n);
      hub_fail(hub, ERR_FAIL, status_message(s)); /* those before it do not wait */
    }
  }
  for (int i = 0; i < n && rank; i++) {
    if (rank[i].running) pthread_join(rank[i].thread, NULL);
  }
  if (!s) s = collect(hub, flight_path);
  free(rank);
  hub_free(hub);
  return s;
}
