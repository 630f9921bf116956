/* groups.c -- see groups.h. */
#include "comm/groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Named {
  const char *name;
  int *ranks;
  int n;
  bool mine; /* this rank is among them */
  Comm *comm;
  struct Named *next;
} Named;

/* A collective that was started: there is a Pending for each storage that it writes to. */
typedef struct {
  CommWork *work; /* NULL: it is over */
  Storage *reads;
  int refs;
} Started;

typedef struct Pending {
  Started *started;
  Storage *writes;
  struct Pending *next;
} Pending;

enum { BUCKETS = 1024 };

struct Groups {
  World *world;
  Arena arena;
  Named *first, **last;
  Pending *pending[BUCKETS]; /* by the storage written to */
  int npending;
};

Status groups_new(World *w, Groups **out) {
  Groups *g;
  TRY_NEW(g, calloc(1, sizeof *g));
  g->world = w;
  g->last = &g->first;
  *out = g;
  return OK;
}

void groups_free(Groups *g) {
  if (!g) return;
  status_free(groups_end(g, OK));
  arena_free(&g->arena);
  free(g);
}

World *groups_world(const Groups *g) { return g->world; }

/* ---- names ---------------------------------------------------------------------------- */

static Status check_ranks(const Groups *g, const char *name, const int *ranks, int n) {
  if (n < 1) return fail(ERR_USAGE, "group '%s' has no ranks", name);
  for (int i = 0; i < n; i++) {
    if (ranks[i] < 0 || ranks[i] >= world_size(g->world)) {
      return fail(ERR_USAGE, "group '%s' names rank %d; there are %d ranks, 0 to %d", name, ranks[i],
                  world_size(g->world), world_size(g->world) - 1);
    }
    for (int j = 0; j < i; j++) {
      if (ranks[i] == ranks[j]) return fail(ERR_USAGE, "group '%s' names rank %d twice", name, ranks[i]);
    }
  }
  return OK;
}

Status groups_define(Groups *g, const char *name, const int *ranks, int n) {
  TRY(check_ranks(g, name, ranks, n));
  for (const Named *other = g->first; other; other = other->next) {
    if (strcmp(other->name, name)) continue;
    for (int i = 0; i < other->n * n; i++) {
      if (other->ranks[i / n] == ranks[i % n])
        return fail(ERR_USAGE, "rank %d is in two groups called '%s'", ranks[i % n], name);
    }
  }
  Named *m;
  TRY_NEW(m, arena_new(&g->arena, Named));
  TRY_NEW(m->name, arena_strdup(&g->arena, name));
  TRY_NEW(m->ranks, arena_new_n(&g->arena, int, n));
  memcpy(m->ranks, ranks, (size_t)n * sizeof *ranks);
  m->n = n;
  for (int i = 0; i < n; i++) m->mine |= ranks[i] == world_rank(g->world);
  *g->last = m;
  g->last = &m->next;
  return OK;
}

Status groups_name(Groups *g, const char *wanted, Comm *comm, const char **name) {
  char with_number[300];
  const char *tried = wanted;
  for (int number = 2;; number++) {
    const Named *m = g->first;
    while (m && strcmp(m->name, tried)) m = m->next;
    if (m && m->comm == comm) return *name = m->name, OK;
    if (!m) break;
    snprintf(with_number, sizeof with_number, "%.250s.%d", wanted, number);
    tried = with_number;
  }
  Named *m;
  TRY_NEW(m, arena_new(&g->arena, Named));
  TRY_NEW(m->name, arena_strdup(&g->arena, tried));
  m->comm = comm;
  m->mine = true;
  *g->last = m;
  g->last = &m->next;
  *name = m->name;
  return OK;
}

static Status unknown(const Groups *g, const char *name, bool of_others) {
  int rank = world_rank(g->world);
  TextBuf known = {0};
  for (const Named *m = g->first; m; m = m->next) {
    bool seen = false;
    for (const Named *k = g->first; k != m && !seen; k = k->next) seen = !strcmp(k->name, m->name);
    if (!seen) text_printf(&known, "%s'%s'", known.len ? ", " : "", m->name);
  }
  Status s = of_others ? fail(ERR_USAGE, "rank %d is in no group called '%s'", rank, name)
                       : fail(ERR_USAGE, "group '%s' is not known; there %s %s", name,
                              known.len && strchr(known.text, ',') ? "are" : "is", known.len ? known.text : "none");
  text_free(&known);
  return s;
}

Status groups_find(Groups *g, const char *name, Comm **out) {
  bool of_others = false;
  for (Named *m = g->first; m; m = m->next) {
    if (strcmp(m->name, name)) continue;
    of_others = true;
    if (!m->mine) continue;
    if (!m->comm) TRY(comm_group(g->world, m->ranks, m->n, &m->comm));
    *out = m->comm;
    return OK;
  }
  if (of_others || (g->first && strcmp(name, "0"))) return unknown(g, name, of_others);
  *out = world_comm(g->world); /* I1 */
  return OK;
}

/* ---- works ---------------------------------------------------------------------------- */

static Pending **bucket_of(Groups *g, const Storage *s) {
  return &g->pending[(uintptr_t)s / sizeof(Storage) % BUCKETS];
}

static void release(Started *s) {
  if (--s->refs) return;
  storage_unref(s->reads);
  free(s);
}

static void enter(Groups *g, Pending *p, Started *s, Storage *writes) {
  Pending **at = bucket_of(g, writes);
  *p = (Pending){.started = s, .writes = storage_ref(writes), .next = *at};
  s->refs++;
  *at = p;
  g->npending++;
}

Status groups_start_many(Groups *g, Comm *comm, const Coll *what, Storage *reads, Storage *const *writes, int n) {
  Started *started = calloc(1, sizeof *started);
  Pending **p = calloc((size_t)n + 1, sizeof *p);
  bool room = started && p;
  for (int i = 0; i < n && room; i++) room = (p[i] = malloc(sizeof **p)) != NULL;
  Status s = room ? comm_start(comm, what, &started->work) : fail_oom();
  if (s) {
    for (int i = 0; i < n && p; i++) free(p[i]);
    free(started);
    free(p);
    return s;
  }
  started->reads = reads ? storage_ref(reads) : NULL;
  for (int i = 0; i < n; i++) enter(g, p[i], started, writes[i]);
  free(p);
  return OK;
}

Status groups_start(Groups *g, Comm *comm, const Coll *what, Storage *reads, Storage *writes) {
  return groups_start_many(g, comm, what, reads, &writes, 1);
}

/* Waits for *at and takes it out of its list. */
static Status finish(Groups *g, Pending **at) {
  Pending *p = *at;
  CommWork *work = p->started->work;
  *at = p->next;
  g->npending--;
  p->started->work = NULL;
  Status s = work ? comm_wait(work) : OK;
  release(p->started);
  storage_unref(p->writes);
  free(p);
  return s;
}

Status groups_wait(Groups *g, const Storage *writes) {
  if (!g->npending) return OK;
  for (Pending **at = bucket_of(g, writes); *at;) {
    if ((*at)->writes == writes) TRY(finish(g, at));
    else at = &(*at)->next;
  }
  return OK;
}

bool groups_busy(const Groups *g) { return g->npending > 0; }

/* Others wait for what this rank will not do. */
static Status give_up(Groups *g, Status s) {
  if (status_code(s) == ERR_FAIL) {
    Status named = fail(ERR_RANK, "%s", status_message(s));
    status_free(s);
    s = named;
  }
  world_fail(g->world, s);
  return s;
}

Status groups_end(Groups *g, Status s) {
  if (s && g->npending) s = give_up(g, s);
  for (int b = 0; b < BUCKETS && g->npending; b++) {
    while (g->pending[b]) {
      Status ended = finish(g, &g->pending[b]);
      if (s) status_free(ended);
      else s = ended;
    }
  }
  return s;
}
