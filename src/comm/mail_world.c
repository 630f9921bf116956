/* mail_world.c -- a world of processes: joining, failing, waiting, leaving.  See mail.h.
 *
 * A process may die without a word.  Launchers end the others then, with SIGTERM first: it
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

#include "comm/mail.h"

/* ---- failing ------------------------------------------------------------------------------ */

void mail_set_failed(MailWorld *w, ErrCode code, const char *text) {
  if (w->failed) return;
  w->failed = true;
  w->code = code;
  w->message = strdup(text);
}

Status mail_error(const MailWorld *w) {
  return fail(ERR_RANK, "%s", w->message ? w->message : "a rank failed, and there was no memory to say why");
}

static void write_failure(const MailWorld *w, Letter *l) {
  if (!w->failed) return;
  l->head.sign = (uint64_t)w->code;
  int length = snprintf((char *)l->data, LETTER_DATA, "%s", w->message ? w->message : "out of memory");
  l->head.bytes = (uint32_t)(length < LETTER_DATA ? length + 1 : LETTER_DATA);
}

/* As far as it goes: a letter that cannot be sent is no news any more. */
static void tell_failure(MailWorld *w) {
  Letter *l;
  Status s = letter_new(w, &l);
  if (!s) {
    l->head.type = LETTER_FAIL;
    write_failure(w, l);
    for (int i = 0; i < w->base.size; i++) {
      if (i != w->base.rank && !peer_has_left(&w->peer[i])) status_free(letter_send(w, l, i));
    }
    letter_drop(w, l);
  }
  status_free(s);
}

void mail_fail(MailWorld *w, ErrCode code, const char *text) {
  if (w->failed) return;
  mail_set_failed(w, code, text);
  tell_failure(w);
}

Status mail_may_begin(MailWorld *w, uint64_t ticket) {
  bool moved = false;
  char here[256];
  TRY(mail_poll(w, &moved)); /* bad news may be there */
  if (w->failed)
    return status_at(mail_error(w), "rank %d, in %s", w->base.rank, mail_describe(w, ticket, here, sizeof here));
  if (!w->told_to_end) return OK;
  return fail(ERR_RANK, "rank %d of %d: %s: this process is told to end (SIGTERM)", w->base.rank, w->base.size,
              mail_describe(w, ticket, here, sizeof here));
}

static void fail_mail_world(World *world, Status s) {
  MailWorld *w = (MailWorld *)world;
  Status named = fail(status_code(s), "rank %d of %d: %s", world->rank, world->size, status_message(s));
  pthread_mutex_lock(&w->lock);
  mail_fail(w, status_code(named), status_message(named));
  pthread_mutex_unlock(&w->lock);
  status_free(named);
}

/* ---- describing ------------------------------------------------------------------------------ */

const char *mail_describe(const MailWorld *w, uint64_t ticket, char *buf, size_t cap) {
  FlightEntry e;
  if (flight_get(&w->base.flight, ticket, &e)) return flight_describe(&e, buf, cap);
  snprintf(buf, cap, "joining");
  return buf;
}

void mail_describe_peer(const MailWorld *w, int rank, TextBuf *out) {
  const Peer *p = &w->peer[rank];
  char call[256];
  const Letter *waiting = p->first; /* nobody has asked for it: it is there now */
  while (waiting && waiting->head.type != LETTER_ROUND && waiting->head.type != LETTER_PAIR)
    waiting = waiting->next;
  if (p->home != w->peer[w->base.rank].home) text_printf(out, "on %s, ", p->host);
  if (waiting) text_printf(out, "it is in %s", flight_describe(&waiting->head.call, call, sizeof call));
  else if (p->heard) text_printf(out, "last seen after %s", flight_describe(&p->last, call, sizeof call));
  else text_puts(out, "no collective so far");
}

/* ---- waiting ------------------------------------------------------------------------------------ */

static bool is_gone(const MailWorld *w, const Peer *p) {
  return p->greeted && p->home == w->peer[w->base.rank].home && !p->leaving && kill(p->pid, 0) && errno == ESRCH;
}

/* A rank whose process is no more; -1: none that is known. */
static int find_gone(const MailWorld *w) {
  for (int i = 0; i < w->base.size; i++) {
    if (i != w->base.rank && is_gone(w, &w->peer[i])) return i;
  }
  return -1;
}

bool mail_told_to_end(MailWorld *w) {
  sigset_t pending;
  if (w->holds_sigterm && !w->told_to_end && !sigpending(&pending))
    w->told_to_end = sigismember(&pending, SIGTERM) == 1;
  return w->told_to_end;
}

static Status gone_error(const MailWorld *w, int rank, const char *here) {
  const Peer *p = &w->peer[rank];
  TextBuf text = {0};
  text_printf(&text, "rank %d of %d: %s: rank %d (process %d on %s) has ended without a word; ", w->base.rank,
              w->base.size, here, rank, p->pid, p->host);
  mail_describe_peer(w, rank, &text);
  Status s = text.failed ? fail_oom() : fail(ERR_RANK, "%s", text.text);
  text_free(&text);
  return s;
}

typedef struct {
  MailWorld *world;
  uint64_t ticket;
  MailMissingFn *missing;
  void *arg;
  double begun, looked; /* seconds */
} Watch;

/* Is there a reason not to wait any longer? */
static Status watch(Watch *a, double now) {
  MailWorld *w = a->world;
  const double limit = w->base.timeout;
  const bool late = limit > 0 && now - a->begun > limit;
  char here[256];
  if (!late && now - a->looked < 0.02) return OK;
  a->looked = now;
  const bool end = mail_told_to_end(w);
  int gone = find_gone(w);
  if (!end && !late && gone < 0) return OK;
  mail_describe(w, a->ticket, here, sizeof here);
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
static void pause_after(const MailWorld *w, double waited, long looks) {
  if (w->spin && waited < 50e-6 && looks < 1000) return;
  if (waited < (w->spin ? 5e-3 : 1e-3)) {
    sched_yield();
    return;
  }
  struct timespec t = {0, waited < 0.1 ? 50000 : waited < 1 ? 500000 : 2000000};
  nanosleep(&t, NULL);
}

Status mail_wait(MailWorld *w, uint64_t ticket, MailLookFn *look, MailMissingFn *missing, void *arg) {
  Watch a = {.world = w, .ticket = ticket, .missing = missing, .arg = arg};
  Status s = OK;
  for (long looks = 0;; looks++) {
    bool done = false, moved = false;
    double now = 0;
    pthread_mutex_lock(&w->lock);
    s = mail_drive(w, &moved);
    if (!s) s = look(arg, &done);
    if (!s && !done && looks % 16 == 0) {
      now = clock_now();
      if (!looks) a.begun = a.looked = now;
      s = watch(&a, now);
    }
    if (s) mail_fail(w, status_code(s), status_message(s));
    pthread_mutex_unlock(&w->lock);
    if (s || done) return s;
    if (!moved && now > 0) pause_after(w, now - a.begun, looks);
  }
}

/* ---- groups ---------------------------------------------------------------------------------------- */

static Status make_group(Comm *c) {
  MailGroup *g;
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
static void hold_sigterm(MailWorld *w) {
  struct sigaction now;
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  if (sigaction(SIGTERM, NULL, &now) || now.sa_handler != SIG_DFL) return;
  w->holds_sigterm = !pthread_sigmask(SIG_BLOCK, &set, &before) && sigismember(&before, SIGTERM) == 0;
}

static void release_sigterm(MailWorld *w) {
  sigset_t set;
  if (!w->holds_sigterm) return;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  if (w->told_to_end) sigtimedwait(&set, NULL, &(struct timespec){0, 0}); /* it has had its effect */
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* Equal where process numbers mean the same. */
static uint64_t home_of(const char *host) {
  struct stat st = {0};
  uint64_t h = stat("/proc/self/ns/pid", &st) ? (uint64_t)getpid() : (uint64_t)st.st_ino;
  return hash_mix(h, hash_text(host));
}

static Status greet(MailWorld *w) {
  Peer *me = &w->peer[w->base.rank];
  Letter *l;
  if (gethostname(me->host, sizeof me->host - 1)) me->host[0] = 0;
  me->pid = (int32_t)getpid();
  me->home = home_of(me->host);
  me->greeted = true;
  TRY(letter_new(w, &l));
  l->head = (LetterHead){
      .type = LETTER_HELLO, .sign = mail_layout(), .group = me->home, .boxes = me->pid, .bytes = sizeof me->host};
  memcpy(l->data, me->host, sizeof me->host);
  Status s = OK;
  for (int i = 0; i < w->base.size && !s; i++) {
    if (i != w->base.rank) s = letter_send(w, l, i);
  }
  letter_drop(w, l);
  return s;
}

static Status look_for_greetings(void *arg, bool *done) {
  MailWorld *w = arg;
  *done = true;
  for (int i = 0; i < w->base.size; i++) *done &= w->peer[i].greeted;
  return w->failed ? fail(w->code, "%s", w->message ? w->message : "a rank failed")
                   : OK; /* before this one came: its code is the launch's */
}

static void missing_greetings(void *arg, TextBuf *out) {
  const MailWorld *w = arg;
  text_puts(out, "these have not joined:");
  for (int i = 0; i < w->base.size; i++) {
    if (!w->peer[i].greeted) text_printf(out, " rank %d", i);
  }
}

static Status join(MailWorld *w) {
  pthread_mutex_lock(&w->lock);
  Status s = mail_listen(w);
  if (!s) s = greet(w);
  pthread_mutex_unlock(&w->lock);
  if (!s) s = mail_wait(w, 0, look_for_greetings, missing_greetings, w);
  for (int i = 0; i < w->base.size; i++) w->neighbours += w->peer[i].home == w->peer[w->base.rank].home;
  w->spin = w->neighbours <= sysconf(_SC_NPROCESSORS_ONLN);
  return s;
}

/* ---- leaving -------------------------------------------------------------------------------------------- */

static bool everybody_left(const MailWorld *w) {
  for (int i = 0; i < w->base.size; i++) {
    if (i != w->base.rank && !peer_has_left(&w->peer[i])) return false;
  }
  return w->nout == 0;
}

static Status say_goodbye(MailWorld *w) {
  for (int i = 0; i < w->base.size; i++) {
    if (i == w->base.rank) continue;
    Letter *l;
    TRY(letter_new(w, &l));
    l->head.type = LETTER_LEFT;
    l->head.sequence = w->peer[i].sent + 1;
    write_failure(w, l);
    Status s = letter_send(w, l, i);
    letter_drop(w, l);
    TRY(s);
  }
  return OK;
}

/* Until all have left.  After a failure that should not take long: all know of it.  False: some
 * have not, and the library must not wait for them either. */
static bool leave(MailWorld *w) {
  const double patience = 5; /* seconds */
  const double begun = clock_now();
  bool all = false;
  double failed_at = 0;
  pthread_mutex_lock(&w->lock);
  Status s = say_goodbye(w);
  pthread_mutex_unlock(&w->lock);
  for (long looks = 0; !s && !all; looks++) {
    bool moved = false;
    const double now = clock_now();
    pthread_mutex_lock(&w->lock);
    s = mail_poll(w, &moved);
    all = everybody_left(w);
    if (failed_at == 0 && (w->failed || mail_told_to_end(w) || find_gone(w) >= 0)) failed_at = now;
    pthread_mutex_unlock(&w->lock);
    if (w->told_to_end || (failed_at > 0 && now - failed_at > patience)) break;
    if (!moved && !all) pause_after(w, now - begun, looks);
  }
  status_free(s);
  return all;
}

/* A port that is not closed goes on listening: its letters stay. */
static void free_mail_world(World *world) {
  MailWorld *w = (MailWorld *)world;
  mail_stop(w);
  if (w->failed) status_free(flight_save_own(mail_error(w), world));
  if (leave(w)) {
    Status s = mail_deaf(w);
    if (!s) w->port.close(w->port.state);
    status_free(s);
  }
  release_sigterm(w);
  for (int i = 0; i < world->size; i++) {
    for (Letter *l = w->peer[i].first, *next; l; l = next) {
      next = l->next;
      free(l);
    }
  }
  for (Letter *l = w->spare, *next; l; l = next) {
    next = l->next;
    free(l);
  }
  for (Comm *c = world->comms; c; c = c->next) free(c->link);
  world_clear(world);
  pthread_cond_destroy(&w->wake);
  pthread_mutex_destroy(&w->lock);
  free(w->out);
  free(w->peer);
  free(w->message);
  free(w);
}

/* ---- the transport ------------------------------------------------------------------------------------------ */

static Status run(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket) {
  return coll_is_pair(what->kind) ? mail_pair_run(c, what, ticket) : mail_round_run(c, what, sequence, ticket);
}

static const Transport mail_transport = {
    .name = "mpi",
    .work_size = sizeof(MailWork),
    .group = make_group,
    .run = run,
    .start = mail_start,
    .wait = mail_wait_work,
    .fail = fail_mail_world,
    .free = free_mail_world,
};

Status mail_new(PortOpenFn *open, World **out) {
  MailWorld *w;
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
  if (!s) s = world_init(&w->base, &mail_transport, w->port.rank, w->port.size);
  if (!s) {
    s = join(w);
    if (!s) return *out = &w->base, OK;
    free_mail_world(&w->base);
    return s;
  }
  free(w->peer); /* out of memory: the others will see that this process has gone */
  free(w);
  return s;
}

const char *mail_library(const World *w) { return ((const MailWorld *)w)->port.library; }
int mpi_neighbours(const World *w) { return ((const MailWorld *)w)->neighbours; }
