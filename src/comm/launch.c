/* launch.c -- see launch.h. */
#include "comm/launch.h"

#include <stdio.h>
#include <string.h>

#include "comm/transport.h"

static const Transport *const transports[] = {
#define TRANSPORT(name) &name##_transport,
#include "comm/transports.def"
#undef TRANSPORT
};
enum { TRANSPORTS = sizeof transports / sizeof *transports };

/* ---- the table ------------------------------------------------------------------------------ */

const Transport *transport_find(const char *name) {
  for (int i = 0; i < TRANSPORTS; i++) {
    if (!strcmp(transports[i]->name, name)) return transports[i];
  }
  return NULL;
}

const Transport *transport_launched(void) {
  for (int i = 0; i < TRANSPORTS; i++) {
    if (transports[i]->launched && transports[i]->launched() >= 0) return transports[i];
  }
  return NULL;
}

int launched_rank(void) {
  const Transport *t = transport_launched();
  return t ? t->launched() : 0;
}

void transport_list(TextBuf *out, const char *separator, const char *last) {
  int n = 0, listed = 0;
  for (int i = 0; i < TRANSPORTS; i++) n += !transports[i]->no_data;
  for (int i = 0; i < TRANSPORTS; i++) {
    if (transports[i]->no_data) continue;
    text_printf(out, "%s%s", !listed ? "" : listed + 1 < n ? separator : last, transports[i]->name);
    listed++;
  }
}

Status transport_choose(const char *name, const Transport **out) {
  *out = name ? transport_find(name) : transport_launched();
  if (!*out && !name) *out = transports[0];
  if (*out && !(*out)->no_data) return OK;
  TextBuf names = {0};
  transport_list(&names, ", ", " and ");
  Status s = names.failed ? fail_oom() : fail(ERR_USAGE, "--comm %s: there are %s", name, names.text);
  text_free(&names);
  return s;
}

const char *transport_name(const Transport *t) { return t->name; }
const char *transport_needs(const Transport *t) { return t->needs; }
bool transport_has_processes(const Transport *t) { return t->join != NULL; }

Status transport_check(const Transport *t, char *path, size_t cap) {
  if (cap) *path = 0;
  return t->find ? t->find(path, cap) : OK;
}

/* ---- worlds --------------------------------------------------------------------------------- */

const Transport *world_transport(const World *w) { return w->transport; }

int world_local_ranks(const World *w) { return w->transport->local_ranks ? w->transport->local_ranks(w) : w->size; }

Status world_join(const Transport *t, World **out) {
  *out = NULL;
  if (t->join) return t->join(out);
  return fail(ERR_USAGE, "ranks of %s are no processes that join: world_launch() makes them", t->name);
}

static Status wrong_count(const Transport *t, int wanted, int there) {
  return status_hint(fail(ERR_USAGE, "%d rank%s launched, %d %s wanted", there, there == 1 ? " was" : "s were",
                          wanted, wanted == 1 ? "is" : "are"),
                     "start as many processes as there are ranks: %s %d", t->starter, wanted);
}

static Status join_and_run(const Transport *t, int n, RankFn *fn, void *arg, const char *flight_path) {
  World *w;
  TRY(world_join(t, &w));
  Status s = flight_path ? world_set_flight(w, flight_path) : OK;
  if (!s && n && n != w->size) s = wrong_count(t, n, w->size);
  if (!s) s = fn(w, arg);
  if (s) {
    world_fail(w, s);
    s = flight_save_own(s, w);
    if (t->tell_once) s = t->tell_once(w, s);
  }
  world_free(w);
  return s;
}

Status world_launch(const Transport *t, int n, RankFn *fn, void *arg, const char *flight_path) {
  return t->join ? join_and_run(t, n, fn, arg, flight_path) : t->launch(n, fn, arg, flight_path);
}
