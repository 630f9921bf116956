/* p2p_world.c -- a world of processes: joining, failing, waiting, leaving.  See p2p.h.
 *
 * A process may end without leaving.  Launchers end the others then, with SIGTERM first: it
 * is held back while a world is up (unless the host program has its own use for it), and a
 * rank that waits returns with an error that says whom it waited for.  Ranks of the same
 * host also see by themselves that a process is gone.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"

#include "comm/p2p.h"

/* ---- failing ------------------------------------------------------------------------------ */

void p2p_set_failed(P2pWorld *w, ErrCode code, const char *text) {
  if (w->failed) return;
  w->failed = true;
  w->code = code;
  w->failure = strdup(text);
}

Status p2p_error(const P2pWorld *w) {
  return fail(ERR_RANK, "%s", w->failure ? w->failure : "a rank failed, and there was no memory to say why");
}

static void write_failure(const P2pWorld *w, Message *l) {
  if (!w->failed) return;
  l->head.signature = (uint64_t)w->code;
  int length = snprintf((char *)l->data, MESSAGE_DATA, "%s", w->failure ? w->failure : "out of memory");
  l->head.bytes = (uint32_t)(length < MESSAGE_DATA ? length + 1 : MESSAGE_DATA);
}

/* As far as it goes: a rank that cannot be reached learns of the failure in another way. */
static void send_failure(P2pWorld *w) {
  Message *l;
  Status s = message_new(w, &l);
  if (!s) {
    l->head.type = MESSAGE_FAIL;
    write_failure(w, l);
    for (int i = 0; i < w->base.size; i++) {
      if (i != w->base.rank && !peer_has_left(&w->peer[i])) status_free(message_send(w, l, i));
    }
    message_drop(w, l);
  }
  status_free(s);
}

void p2p_fail(P2pWorld *w, ErrCode code, const char *text) {
  if (w->failed) return;
  p2p_set_failed(w, code, text);
  send_failure(w);
}

Status p2p_may_begin(P2pWorld *w, uint64_t ticket) {
  bool moved = false;
  char here[256];
  TRY(p2p_poll(w, &moved)); /* a failure may have arrived */
  if (w->failed)
    return status_at(p2p_error(w), "rank %d, in %s", w->base.rank, p2p_describe(w, ticket, here, sizeof here));
  if (!w->terminating) return OK;
  return fail(ERR_RANK, "rank %d of %d: %s: this process is asked to end (SIGTERM)", w->base.rank, w->base.size,
              p2p_describe(w, ticket, here, sizeof here));
}

void p2p_fail_world(World *world, Status s) {
  P2pWorld *w = (P2pWorld *)world;
  Status named = fail(status_code(s), "rank %d of %d: %s", world->rank, world->size, status_message(s));
  pthread_mutex_lock(&w->lock);
  p2p_fail(w, status_code(named), status_message(named));
  pthread_mutex_unlock(&w->lock);
  status_free(named);
}

/* ---- describing ------------------------------------------------------------------------------ */

const char *p2p_describe(const P2pWorld *w, uint64_t ticket, char *buf, size_t cap) {
  FlightEntry e;
  if (flight_get(&w->base.flight, ticket, &e)) return flight_describe(&e, buf, cap);
  snprintf(buf, cap, "joining");
  return buf;
}

void p2p_describe_peer(const P2pWorld *w, int rank, TextBuf *out) {
  const Peer *p = &w->peer[rank];
  char call[256];
  const Message *waiting = p->first; /* nobody has asked for it: it is there now */
  while (waiting && waiting->head.type != MESSAGE_ROUND && waiting->head.type != MESSAGE_PAIR)
    waiting = waiting->next;
  if (p->host_id != w->peer[w->base.rank].host_id) text_printf(out, "on %s, ", p->host);
  if (waiting) text_printf(out, "it is in %s", flight_describe(&waiting->head.call, call, sizeof call));
  else if (p->called) text_printf(out, "last seen after %s", flight_describe(&p->last, call, sizeof call));
  else text_puts(out, "no collective so far");
}

/* ---- waiting ------------------------------------------------------------------------------------ */

static bool is_gone(const P2pWorld *w, const Peer *p) {
  return p->joined && p->host_id == w->peer[w->base.rank].host_id && !p->leaving && kill(p->pid, 0) &&
         errno == ESRCH;
}

/* A rank whose process is no more; -1: none that is known. */
static int find_gone(const P2pWorld *w) {
  for (int i = 0; i < w->base.size; i++) {
    if (i != w->base.rank && is_gone(w, &w->peer[i])) return i;
  }
  return -1;
}

bool p2p_terminating(P2pWorld *w) {
  sigset_t pending;
  if (w->holds_sigterm && !w->terminating && !sigpending(&pending))
    w->terminating = sigismember(&pending, SIGTERM) == 1;
  return w->terminating;
}

static Status gone_error(const P2pWorld *w, int rank, const char *here) {
  const Peer *p = &w->peer[rank];
  TextBuf text = {0};
  text_printf(&text, "rank %d of %d: %s: rank %d (process %d on %s) has ended without leaving; ", w->base.rank,
              w->base.size, here, rank, p->pid, p->host);
  p2p_describe_peer(w, rank, &text);
  Status s = text.failed ? fail_oom() : fail(ERR_RANK, "%s", text.text);
  text_free(&text);
  return s;
}

typedef struct {
  P2pWorld *world;
  uint64_t ticket;
  P2pMissingFn *missing;
  void *arg;
  double begun, looked; /* seconds */
} Watch;

/* Is there a reason not to wait any longer? */
static Status watch(Watch *a, double now) {
  P2pWorld *w = a->world;
  const double limit = w->base.timeout;
  const bool late = limit > 0 && now - a->begun > limit;
  char here[256];
  if (!late && now - a->looked < 0.02) return OK;
  a->looked = now;
  const bool end = p2p_terminating(w);
  int gone = find_gone(w);
  if (!end && !late && gone < 0) return OK;
  p2p_describe(w, a->ticket, here, sizeof here);
  if (gone >= 0) return gone_error(w, gone, here);
  TextBuf text = {0};
  text_printf(&text, "rank %d of %d: %s: ", w->base.rank, w->base.size, here);
  if (end) text_puts(&text, "the launcher ends the job (SIGTERM); ");
  else text_printf(&text, "after %g s ", limit);
  a->missing(a->arg, &text);
  Status s = text.failed ? fail_oom() : fail(ERR_RANK, "%s", text.text);
  text_free(&text);
  return s;
}

/* Between looks: on the core, then leaving it to others, then asleep for longer and longer. */
static void pause_after(const P2pWorld *w, double waited, long looks) {
  if (w->spin && waited < 50e-6 && looks < 1000) return;
  if (waited < (w->spin ? 5e-3 : 1e-3)) {
    sched_yield();
    return;
  }
  struct timespec t = {0, waited < 0.1 ? 50000 : waited < 1 ? 500000 : 2000000};
  nanosleep(&t, NULL);
}

Status p2p_wait(P2pWorld *w, uint64_t ticket, P2pLookFn *look, P2pMissingFn *missing, void *arg) {
  Watch a = {.world = w, .ticket = ticket, .missing = missing, .arg = arg};
  Status s = OK;
  for (long looks = 0;; looks++) {
    bool done = false, moved = false;
    double now = 0;
    pthread_mutex_lock(&w->lock);
    s = p2p_drive(w, &moved);
    if (!s) s = look(arg, &done);
    if (!s && !done && looks % 16 == 0) {
      now = clock_now();
      if (!looks) a.begun = a.looked = now;
      s = watch(&a, now);
    }
    if (s) p2p_fail(w, status_code(s), status_message(s));
    pthread_mutex_unlock(&w->lock);
    if (s || done) return s;
    if (!moved && now > 0) pause_after(w, now - a.begun, looks);
  }
}

/* ---- groups ---------------------------------------------------------------------------------------- */

Status p2p_group(Comm *c) {
  P2pGroup *g;
  const size_t n = (size_t)c->size;
  TRY_NEW(g, calloc(1, sizeof *g + 2 * n * sizeof(uint64_t)));
  g->sends = (uint64_t *)(void *)(g + 1);
  g->recvs = g->sends + n;
  g->hash = n;
  for (size_t i = 0; i < n; i++) {
    g->hash = (g->hash ^ (uint64_t)c->members[i]) * 0x9e3779b97f4a7c15u;
    g->hash ^= g->hash >> 29;
  }
  c->link = g;
  return OK;
}

/* ---- joining ------------------------------------------------------------------------------------------ */

/* SIGTERM waits, unless somebody has a use for it. */
static void hold_sigterm(P2pWorld *w) {
  struct sigaction now;
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  if (sigaction(SIGTERM, NULL, &now) || now.sa_handler != SIG_DFL) return;
  w->holds_sigterm = !pthread_sigmask(SIG_BLOCK, &set, &before) && sigismember(&before, SIGTERM) == 0;
}

static void release_sigterm(P2pWorld *w) {
  sigset_t set;
  if (!w->holds_sigterm) return;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  if (w->terminating) sigtimedwait(&set, NULL, &(struct timespec){0, 0}); /* it has had its effect */
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* Equal where process numbers mean the same. */
static uint64_t host_id_of(const char *host) {
  struct stat st = {0};
  uint64_t h = stat("/proc/self/ns/pid", &st) ? (uint64_t)getpid() : (uint64_t)st.st_ino;
  return hash_mix(h, hash_text(host));
}

static Status send_hello(P2pWorld *w) {
  Peer *me = &w->peer[w->base.rank];
  Message *l;
  if (gethostname(me->host, sizeof me->host - 1)) me->host[0] = 0;
  me->pid = (int32_t)getpid();
  me->host_id = host_id_of(me->host);
  me->joined = true;
  TRY(message_new(w, &l));
  l->head = (MessageHeader){.type = MESSAGE_HELLO,
                            .signature = p2p_layout(),
                            .group = me->host_id,
                            .boxes = me->pid,
                            .bytes = sizeof me->host};
  memcpy(l->data, me->host, sizeof me->host);
  Status s = OK;
  for (int i = 0; i < w->base.size && !s; i++) {
    if (i != w->base.rank) s = message_send(w, l, i);
  }
  message_drop(w, l);
  return s;
}

static Status look_for_hellos(void *arg, bool *done) {
  P2pWorld *w = arg;
  *done = true;
  for (int i = 0; i < w->base.size; i++) *done &= w->peer[i].joined;
  /* Before this one came, its code is the launch's; else this one finds out what it finds by itself. */
  return w->failed && !*done ? fail(w->code, "%s", w->failure ? w->failure : "a rank failed") : OK;
}

static void missing_hellos(void *arg, TextBuf *out) {
  const P2pWorld *w = arg;
  text_puts(out, "these have not joined:");
  for (int i = 0; i < w->base.size; i++) {
    if (!w->peer[i].joined) text_printf(out, " rank %d", i);
  }
}

static Status join(P2pWorld *w) {
  pthread_mutex_lock(&w->lock);
  Status s = p2p_post_receives(w);
  if (!s) s = send_hello(w);
  pthread_mutex_unlock(&w->lock);
  if (!s) s = p2p_wait(w, 0, look_for_hellos, missing_hellos, w);
  for (int i = 0; i < w->base.size; i++) w->local_ranks += w->peer[i].host_id == w->peer[w->base.rank].host_id;
  w->spin = w->local_ranks <= sysconf(_SC_NPROCESSORS_ONLN);
  return s;
}

/* ---- leaving -------------------------------------------------------------------------------------------- */

static bool everybody_left(const P2pWorld *w) {
  for (int i = 0; i < w->base.size; i++) {
    if (i != w->base.rank && !peer_has_left(&w->peer[i])) return false;
  }
  return w->nout == 0;
}

/* Nobody who has not left is there any more: their processes have ended. */
static bool rest_is_gone(const P2pWorld *w) {
  for (int i = 0; i < w->base.size; i++) {
    if (i != w->base.rank && !peer_has_left(&w->peer[i]) && !is_gone(w, &w->peer[i])) return false;
  }
  return true;
}

static Status send_left(P2pWorld *w) {
  for (int i = 0; i < w->base.size; i++) {
    if (i == w->base.rank) continue;
    Message *l;
    TRY(message_new(w, &l));
    l->head.type = MESSAGE_LEFT;
    l->head.sequence = w->peer[i].sent + 1;
    l->head.group = w->own;
    write_failure(w, l);
    Status s = message_send(w, l, i);
    message_drop(w, l);
    TRY(s);
  }
  return OK;
}

/* Until all have left that are still there.  After a failure that should not take long: all know of it, and the
 * launcher ends a rank that is still silent a second or two after another has died.  False: some have not left, and
 * the library must not wait for them either. */
static bool leave(P2pWorld *w) {
  const double patience = 5, last_words = 0.3; /* seconds; what a process said before it ended may be under way */
  const double begun = clock_now();
  bool all = false;
  double failed_at = 0, alone_since = begun;
  pthread_mutex_lock(&w->lock);
  Status s = send_left(w);
  pthread_mutex_unlock(&w->lock);
  for (long looks = 0; !s && !all; looks++) {
    bool moved = false;
    const double now = clock_now();
    pthread_mutex_lock(&w->lock);
    s = p2p_poll(w, &moved);
    all = everybody_left(w);
    if (failed_at == 0 && (w->failed || p2p_terminating(w) || find_gone(w) >= 0)) failed_at = now;
    if (failed_at == 0 || moved || !rest_is_gone(w)) alone_since = now;
    pthread_mutex_unlock(&w->lock);
    if (w->terminating || now - alone_since > last_words || (failed_at > 0 && now - failed_at > patience)) break;
    if (!moved && !all) pause_after(w, now - begun, looks);
  }
  status_free(s);
  return all;
}

static void leave_once(P2pWorld *w) {
  if (w->left) return;
  w->left = true;
  p2p_stop(w);
  w->all_left = leave(w);
}

/* Errors of other ranks that have left: how many are this one, and are they all before this rank? */
static int count_same(const P2pWorld *w, bool *first, bool *others) {
  int same = 0;
  *first = true;
  *others = false;
  for (int i = 0; i < w->base.size; i++) {
    if (i == w->base.rank) continue;
    bool is_same = w->own && w->peer[i].own == w->own;
    same += is_same;
    *first &= !is_same || i > w->base.rank;
    *others |= w->peer[i].own != 0;
  }
  return same;
}

Status p2p_tell_once(World *world, Status s) {
  P2pWorld *w = (P2pWorld *)world;
  pthread_mutex_lock(&w->lock);
  bool echo = w->heard && w->failure && strstr(status_message(s), w->failure);
  ErrCode code = echo ? w->code : status_code(s);
  w->own = echo ? 0 : hash_text(status_message(s)) | 1;
  pthread_mutex_unlock(&w->lock);
  leave_once(w);
  bool first, others;
  int same = count_same(w, &first, &others);
  bool told = echo ? others : !first; /* by another rank */
  Status said = OK;
  if (told) said = fail(code, "%s", "");
  else if (same == world->size - 1 || !strncmp(status_message(s), "rank ", 5))
    said = fail(code, "%s", status_message(s));
  else said = fail(code, "rank %d of %d: %s", world->rank, world->size, status_message(s));
  status_free(s);
  return said;
}

/* A port that is not closed still has receives posted: their messages stay. */
void p2p_free_world(World *world) {
  P2pWorld *w = (P2pWorld *)world;
  if (!w->left) p2p_stop(w);
  if (w->failed) status_free(flight_save_own(p2p_error(w), world));
  leave_once(w);
  if (w->all_left) {
    Status s = p2p_cancel_receives(w);
    if (!s) w->port.close(w->port.state);
    status_free(s);
  }
  release_sigterm(w);
  for (int i = 0; i < world->size; i++) {
    for (Message *l = w->peer[i].first, *next; l; l = next) {
      next = l->next;
      free(l);
    }
  }
  for (Message *l = w->spare, *next; l; l = next) {
    next = l->next;
    free(l);
  }
  for (Comm *c = world->comms; c; c = c->next) free(c->link);
  world_clear(world);
  pthread_cond_destroy(&w->wake);
  pthread_mutex_destroy(&w->lock);
  free(w->out);
  free(w->peer);
  free(w->failure);
  free(w);
}

/* ---- the transport ------------------------------------------------------------------------------------------ */

Status p2p_run(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket) {
  return coll_is_pair(what->kind) ? p2p_pair_run(c, what, ticket) : p2p_round_run(c, what, sequence, ticket);
}

int p2p_local_ranks(const World *w) { return ((const P2pWorld *)w)->local_ranks; }

Status p2p_new(const Transport *t, PortOpenFn *open, World **out) {
  P2pWorld *w;
  char error[512] = "";
  TRY_NEW(w, calloc(1, sizeof *w));
  hold_sigterm(w); /* before the library has threads */
  if (open(PORT_VERSION, &w->port, error, sizeof error)) {
    release_sigterm(w);
    free(w);
    return fail(ERR_FAIL, "%s", error);
  }
  w->isa = isa_detect();
  w->peer = calloc((size_t)w->port.size, sizeof *w->peer);
  Status s = w->peer ? OK : fail_oom();
  for (int i = 0; i < w->port.size && !s; i++) w->peer[i].end = &w->peer[i].first;
  if (!s && (pthread_mutex_init(&w->lock, NULL) || pthread_cond_init(&w->wake, NULL)))
    s = fail(ERR_FAIL, "no mutex for the world");
  if (!s) s = world_init(&w->base, t, w->port.rank, w->port.size);
  if (!s) {
    s = join(w);
    if (!s) return *out = &w->base, OK;
    if (w->heard) s = p2p_tell_once(&w->base, s);
    p2p_free_world(&w->base);
    return s;
  }
  free(w->peer); /* out of memory: the others will see that this process has gone */
  free(w);
  return s;
}

const char *p2p_library(const World *w) { return ((const P2pWorld *)w)->port.library; }
