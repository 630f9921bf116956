/* saver.c -- see saver.h. */
#include "train/saver.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "ckpt/exchange.h"
#include "ckpt/sharded_save.h"
#include "train/saved_states.h"

typedef enum {
  PART_NONE,
  PART_WRITES,  /* files; on one rank the whole of it */
  PART_COMMITS, /* the first rank, for all */
} SavePart;

struct Saver {
  Trainer *t;
  Comm *c; /* NULL: one rank */
  RunFolder *run;
  SaverOptions o;
  SaverCost cost; /* of saves that are complete, and in saver_save() */

  SavePart part; /* of the save under way, and all that follows: */
  Arena arena;
  Scope scope;
  SavedStates saved;
  ShardItem *item;       /* on a mesh */
  const Tensor **tensor; /* on one rank */
  SaveFacts facts;
  unsigned char random[RANDOM_STATE_BYTES];
  char mesh[256];
  ShardedSave *sharded;
  Snapshot *snapshot; /* of the rank's thread; on a mesh it is the sharded save's */
  WriteGuard guard;
  Status outcome; /* on one rank */
  pthread_t thread;
  bool running;
  atomic_bool busy;
};

Status saver_open(Trainer *t, RunFolder *run, const SaverOptions *o, Saver **out) {
  Saver *s;
  Mesh *mesh = trainer_mesh(t);
  TRY_NEW(s, calloc(1, sizeof *s));
  s->t = t, s->run = run, s->o = *o;
  Status r = mesh && mesh->size > 1 ? mesh_group(mesh, (1u << mesh->naxes) - 1, &s->c) : OK;
  if (r) saver_free(s);
  else *out = s;
  return r;
}

/* ---- the thread ------------------------------------------------------------------------------------------ */

static void work(Saver *s) {
  if (!s->c)
    s->outcome = run_folder_save_snapshot(s->run, &s->facts, s->saved.item, s->saved.n, s->snapshot, &s->o.keep);
  else if (s->part == PART_WRITES) sharded_save_write(s->sharded);
  else sharded_save_commit(s->sharded, &s->o.keep);
}

static void *run_thread(void *arg) {
  Saver *s = arg;
  work(s);
  atomic_store(&s->busy, false);
  return NULL;
}

/* Signals are for the threads that were there before.  Where no thread can be started the work is done now. */
static void start(Saver *s) {
  sigset_t all, old;
  bool nothing = s->part == PART_COMMITS && comm_rank(s->c);
  if (nothing) return;
  if (s->o.beside) {
    atomic_store(&s->busy, true);
    sigfillset(&all);
    bool masked = !pthread_sigmask(SIG_SETMASK, &all, &old);
    s->running = !pthread_create(&s->thread, NULL, run_thread, s);
    if (masked) pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (s->running) return;
    atomic_store(&s->busy, false);
  }
  work(s);
}

static void join(Saver *s) {
  if (s->running) pthread_join(s->thread, NULL);
  s->running = false;
}

/* ---- a save ------------------------------------------------------------------------------------------------ */

static void guard_state(void *arg, const Storage *storage) {
  Saver *s = arg;
  snapshot_before_write(s->snapshot, storage);
}

/* Nobody has to be asked any more. */
static void stop_guarding(Saver *s) {
  session_guard_state(trainer_session(s->t), NULL);
  if (!s->snapshot) return;
  SnapshotCost cost = snapshot_cost(s->snapshot);
  s->cost.waited += cost.waited;
  if (cost.copied > s->cost.copied) s->cost.copied = cost.copied;
  if (!s->c) snapshot_free(s->snapshot);
  s->snapshot = NULL;
}

static void clear(Saver *s) {
  join(s);
  stop_guarding(s);
  sharded_save_free(s->sharded);
  s->sharded = NULL;
  status_free(s->outcome);
  s->outcome = OK;
  scope_clear(&s->scope);
  arena_free(&s->arena);
  s->arena = (Arena){0};
  s->part = PART_NONE;
}

void saver_free(Saver *s) {
  if (!s) return;
  if (s->snapshot) snapshot_give_up(s->snapshot);
  clear(s);
  free(s);
}

static void note_facts(Saver *s, const SaveFacts *known) {
  Ctx *ctx = session_ctx(trainer_session(s->t));
  ctx_random_state(ctx, s->random);
  s->facts = *known;
  s->facts.seed = ctx->seed;
  s->facts.random = s->random;
  s->facts.random_bytes = sizeof s->random;
  s->facts.batches = known->step * trainer_recipe(s->t)->accumulate;
  s->facts.program = trainer_program(s->t)->name;
  s->facts.mesh = s->c ? mesh_text(trainer_mesh(s->t), s->mesh, sizeof s->mesh) : NULL;
}

static Status hold_alone(Saver *s, const SnapshotHow *how) {
  TRY_NEW(s->tensor, arena_new_n(&s->arena, const Tensor *, s->saved.n + 1));
  for (int i = 0; i < s->saved.n; i++) s->tensor[i] = s->saved.item[i].tensor = s->saved.state[i].tensor;
  return how ? snapshot_new(s->tensor, s->saved.n, how, &s->snapshot) : OK;
}

static Status list_shards(Saver *s) {
  TRY(saved_states(s->t, &s->arena, &s->saved));
  return saved_shards(s->t, &s->saved, &s->scope, &s->arena, &s->item);
}

static Status hold_shards(Saver *s, const SnapshotHow *how) {
  TRY(exchange_outcome(s->c, "checkpoint", list_shards(s)));
  TRY(sharded_save_begin(s->run, s->c, &s->facts, s->item, s->saved.n, &s->sharded));
  s->snapshot = sharded_save_hold(s->sharded, s->item, how);
  return OK;
}

static Status hold(Saver *s, const SaveFacts *known) {
  const SnapshotHow how = {.most = s->o.most, .threads = session_ctx(trainer_session(s->t))->kern.threads};
  TRY(trainer_share_buffers(s->t));
  note_facts(s, known);
  if (s->c) return hold_shards(s, s->o.beside ? &how : NULL);
  TRY(saved_states(s->t, &s->arena, &s->saved));
  return hold_alone(s, s->o.beside ? &how : NULL);
}

static Status begin(Saver *s, const SaveFacts *known) {
  TRY(hold(s, known));
  s->part = PART_WRITES;
  if (s->snapshot) {
    s->guard = (WriteGuard){guard_state, s};
    session_guard_state(trainer_session(s->t), &s->guard);
  }
  start(s);
  return OK;
}

/* Of one rank, ckpt/run_folder.h has done it. */
static Status explain(const Saver *s, Status r) {
  if (!r || !s->c) return r;
  return s->run ? run_folder_explain(s->run, s->facts.step, saved_bytes(&s->saved), r)
                : status_at(r, "saving step %lld", (long long)s->facts.step);
}

bool saver_is_saving(const Saver *s) { return s->part != PART_NONE; }
bool saver_is_idle(const Saver *s) { return !atomic_load(&s->busy); }

/* *done: nothing is left to do. */
static Status next_part(Saver *s, bool *done) {
  *done = true;
  if (!s->c) {
    Status r = s->outcome;
    s->outcome = OK;
    return r;
  }
  if (s->part == PART_COMMITS) return sharded_save_end(s->sharded);
  TRY(sharded_save_join(s->sharded));
  *done = false;
  s->part = PART_COMMITS;
  start(s);
  return OK;
}

static Status advance(Saver *s) {
  bool done;
  join(s);
  stop_guarding(s);
  Status r = explain(s, next_part(s, &done));
  if (done || r) clear(s);
  return r;
}

Status saver_wait(Saver *s) {
  while (s->part != PART_NONE) TRY(advance(s));
  return OK;
}

Status saver_advance(Saver *s) {
  double since = clock_now();
  Status r = s->part == PART_NONE ? OK : advance(s);
  s->cost.waited += clock_now() - since;
  return r;
}

static Status save(Saver *s, const SaveFacts *known) {
  TRY(saver_wait(s));
  Status r = explain(s, begin(s, known));
  if (r) clear(s);
  return r || s->o.beside ? r : saver_wait(s);
}

Status saver_save(Saver *s, const SaveFacts *known) {
  double since = clock_now();
  Status r = save(s, known);
  s->cost.waited += clock_now() - since;
  return r;
}

SaverCost saver_cost(const Saver *s) { return s->cost; }
