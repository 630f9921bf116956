/* sim.c -- see sim.h. */
#include "comm/sim.h"

#include <math.h>
#include <stdlib.h>

#include "comm/transport.h"

const SimMachine sim_machine_default = {2, {{8, 2e-6, 100e9}, {0, 10e-6, 25e9}}};

typedef struct {
  World base;
  SimMachine machine;
  SimTotal total[COLL_KIND_COUNT];
} SimWorld;

typedef enum { EACH, TREE, ONE } Messages; /* one after the other: n-1, log2(n), 1 */
static const struct {
  Messages messages;
  double times; /* that many passes */
  bool but_own; /* (n-1)/n of the bytes */
} costs[COLL_KIND_COUNT] = {
    /* clang-format off */
    [COLL_ALL_REDUCE] =     {EACH, 2, true},
    [COLL_ALL_GATHER] =     {EACH, 1, true},
    [COLL_REDUCE_SCATTER] = {EACH, 1, true},
    [COLL_ALL_TO_ALL] =     {EACH, 1, true},
    [COLL_EXCHANGE] =       {EACH, 1, true},
    [COLL_SCATTER] =        {EACH, 1, true},
    [COLL_GATHER] =         {EACH, 1, true},
    [COLL_BROADCAST] =      {TREE, 1, false},
    [COLL_REDUCE] =         {TREE, 1, false},
    [COLL_BARRIER] =        {TREE, 1, false},
    [COLL_SEND] =           {ONE, 1, false},
    [COLL_RECV] =           {ONE, 1, false},
    /* clang-format on */
};

double sim_seconds(const SimLevel *l, CollKind kind, int n, double bytes) {
  if (n < 2) return 0;
  const double messages = costs[kind].messages == EACH ? n - 1 : costs[kind].messages == TREE ? ceil(log2(n)) : 1;
  const double moved = costs[kind].but_own ? bytes * (n - 1) / n : bytes;
  return costs[kind].times * (messages * l->latency + moved / l->bandwidth);
}

static const SimLevel *sim_level(const SimMachine *m, const int *ranks, int n) {
  for (int i = 0; i < m->levels - 1; i++) {
    int span = m->level[i].span;
    bool close = true;
    for (int k = 1; k < n && span > 0; k++) close &= ranks[k] / span == ranks[0] / span;
    if (close) return &m->level[i];
  }
  return &m->level[m->levels - 1];
}

/* Messages to each partner, and the busier direction. */
static double exchange_seconds(const SimLevel *l, const Comm *c, const Coll *what, double width) {
  double sent = 0, got = 0;
  int partners = 0;
  for (int i = 0; i < what->nsend; i++) {
    bool again = what->send_box[i].peer == c->rank;
    if (!again) sent += (double)box_count(&what->send_box[i]);
    for (int j = 0; j < i && !again; j++) again = what->send_box[j].peer == what->send_box[i].peer;
    partners += !again;
  }
  for (int i = 0; i < what->nrecv; i++)
    got += what->recv_box[i].peer == c->rank ? 0 : (double)box_count(&what->recv_box[i]);
  return partners * l->latency + (sent > got ? sent : got) * width / l->bandwidth;
}

static double predict(const SimMachine *m, const Comm *c, const Coll *what) {
  if (c->size < 2) return 0;
  int pair[2] = {c->members[c->rank], what->root >= 0 && what->root < c->size ? c->members[what->root] : 0};
  const bool two = coll_is_pair(what->kind);
  const SimLevel *l = two ? sim_level(m, pair, 2) : sim_level(m, c->members, c->size);
  const double width = what->kind == COLL_BARRIER ? 0 : (double)dtype_size(what->dtype);
  if (what->kind == COLL_EXCHANGE) return exchange_seconds(l, c, what, width);
  double elements = (double)what->count;
  if (coll_traits[what->kind].parts || what->kind == COLL_ALL_TO_ALL) {
    int64_t most = 0;
    for (int i = 0; i < c->size; i++) most = coll_part(what, i) > most ? coll_part(what, i) : most;
    elements = (double)most * c->size;
  }
  return sim_seconds(l, what->kind, c->size, elements * width);
}

static Status sim_group(Comm *c) {
  (void)c;
  return OK;
}

static Status sim_run(Comm *c, const Coll *what, uint64_t sequence, uint64_t ticket) {
  (void)sequence, (void)ticket;
  SimWorld *w = (SimWorld *)c->world;
  SimTotal *t = &w->total[what->kind];
  t->calls++;
  if (what->kind != COLL_BARRIER)
    t->bytes += coll_send_count(what, c->size, c->rank) * (int64_t)dtype_size(what->dtype);
  t->seconds += predict(&w->machine, c, what);
  return OK;
}

static void sim_fail(World *w, Status s) { (void)w, (void)s; }

static void sim_free(World *w) {
  world_clear(w);
  free(w);
}

/* One rank after the other: nobody waits for anybody. */
static Status sim_launch(int n, RankFn *fn, void *arg, const char *flight_path) {
  (void)flight_path; /* no rank waits, so none can fail for another */
  if (n < 1) return fail(ERR_USAGE, "%d ranks; at least 1 is wanted", n);
  Status s = OK;
  for (int rank = 0; rank < n && !s; rank++) {
    World *w;
    TRY(world_sim(n, rank, &w));
    s = fn(w, arg);
    if (s) s = status_at(s, "rank %d of %d", rank, n);
    world_free(w);
  }
  return s;
}

const Transport sim_transport = {
    .name = "sim",
    .launch = sim_launch,
    .no_data = true,
    .takes_boxes = true,
    .group = sim_group,
    .run = sim_run,
    .fail = sim_fail,
    .free = sim_free,
};

Status world_sim(int n, int rank, World **out) {
  if (n < 1 || rank < 0 || rank >= n) return fail(ERR_USAGE, "there is no rank %d of %d", rank, n);
  SimWorld *w;
  TRY_NEW(w, calloc(1, sizeof *w));
  w->machine = sim_machine_default;
  Status s = world_init(&w->base, &sim_transport, rank, n);
  if (s) free(w);
  else *out = &w->base;
  return s;
}

void sim_set_machine(World *w, const SimMachine *m) { ((SimWorld *)w)->machine = *m; }

SimTotal sim_total(const World *w, CollKind kind) {
  const SimWorld *sim = (const SimWorld *)w;
  if (kind != COLL_KIND_COUNT) return sim->total[kind];
  SimTotal sum = {0};
  for (int k = 0; k < COLL_KIND_COUNT; k++) {
    sum.calls += sim->total[k].calls;
    sum.bytes += sim->total[k].bytes;
    sum.seconds += sim->total[k].seconds;
  }
  return sum;
}

void sim_reset(World *w) {
  SimWorld *sim = (SimWorld *)w;
  for (int k = 0; k < COLL_KIND_COUNT; k++) sim->total[k] = (SimTotal){0};
}
