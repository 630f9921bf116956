/* comm_block.c -- see comm_block.h. */
#include "passes/comm_block.h"

#include <string.h>

/* ---- which ops ------------------------------------------------------------------------------ */

enum { ONE = 1, MANY = 2, OTHER = 4 };

static const struct {
  const char *target;
  int kind;
} collectives[] = {
    {"_c10d_functional.all_reduce.default", ONE},
    {"_c10d_functional.all_reduce_.default", ONE},
    {"_c10d_functional.all_reduce_coalesced.default", MANY},
    {"_c10d_functional.all_reduce_coalesced_.default", MANY},
};

static int kind_of(const Node *n) {
  if (n->op && !(n->op->def->flags & OP_EFFECT)) return 0; /* most are not even near */
  if (strncmp(n->target, "_c10d_functional", 16)) return 0;
  for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++) {
    if (!strcmp(n->target, collectives[i].target)) return collectives[i].kind;
  }
  return node_is(n, WAIT_TENSOR) || strstr(n->target, "._wrap_tensor") ? 0 : OTHER;
}

bool comm_is_all_reduce(const Node *n) { return kind_of(n) == ONE; }
bool comm_is_start(const Node *n) { return kind_of(n) != 0; }

static bool returns_list(const Node *n) { return n->outs_list || (n->op && n->op->schema.returns_list); }

/* ---- waits ---------------------------------------------------------------------------------- */

static CommBlockKind wait_of(const Order *o, const Val *v, int *wait) {
  int users = order_nusers(o, v), at = users ? order_user(o, v, 0) : -1;
  *wait = -1;
  if (!users) return COMM_UNUSED;
  if (users > 1 || at == o->n || !node_is(o->node[at], WAIT_TENSOR)) return COMM_NO_WAIT;
  *wait = at;
  return COMM_BLOCK;
}

CommBlockKind comm_find_wait(const Order *o, int comm, int *wait) {
  const Node *n = o->node[comm];
  *wait = -1;
  if (n->nouts != 1 || returns_list(n)) return n->nouts ? COMM_NO_WAIT : COMM_UNUSED;
  return wait_of(o, n->outs[0], wait);
}

static CommBlockKind block_kind(const Order *o, int comm) {
  const Node *n = o->node[comm];
  int wait, waits = 0;
  if (!returns_list(n)) return comm_find_wait(o, comm, &wait);
  for (int i = 0; i < n->nouts; i++) {
    CommBlockKind kind = wait_of(o, n->outs[i], &wait);
    if (kind == COMM_NO_WAIT) return kind;
    waits += kind == COMM_BLOCK;
  }
  return waits > 1 ? COMM_BLOCK : waits ? COMM_NO_WAIT : COMM_UNUSED; /* I1 */
}

/* ---- followers ------------------------------------------------------------------------------ */

/* I2 */
static bool is_follower(const Node *n) {
  static const char *const prefixes[] = {"split", "reshape", "getitem", "detach", "alias"};
  if (!n->nouts) return false;
  const char *dot = strchr(n->target, '.'), *name = n->outs[0]->name;
  if (n->nouts > 1 || returns_list(n)) name = dot ? dot + 1 : n->target;
  for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
    if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) return true;
  }
  return false;
}

/* A walk over values in breadth; a node with several results puts all of them in line. */
typedef struct {
  Arena *arena;
  const Order *o;
  CommBlock *b; /* the present one */
  const Val **queue;
  int head, tail;
  int *seen;  /* by position: the collective whose walk came by last, + 1 */
  int *nodes; /* of all blocks */
  int count, cap;
} Search;

static Status add_node(Search *s, int at) {
  if (s->seen[at] == s->b->comm + 1) return OK;
  s->seen[at] = s->b->comm + 1;
  TRY_NEW(s->nodes, arena_more(s->arena, s->nodes, s->count, &s->cap));
  s->nodes[s->count++] = at;
  s->b->nnodes++;
  for (int i = 0; i < s->o->node[at]->nouts; i++) s->queue[s->tail++] = s->o->node[at]->outs[i];
  return OK;
}

/* Up to the first user that is not a follower, which makes v an output of the block. */
static Status follow_users(Search *s, const Val *v) {
  for (int i = 0; i < order_nusers(s->o, v); i++) {
    int at = order_user(s->o, v, i);
    if (at < s->o->n && is_follower(s->o->node[at])) {
      TRY(add_node(s, at));
      continue;
    }
    int first = order_user(s->o, v, 0);
    if (s->b->first_user < 0 || first < s->b->first_user) s->b->first_user = first;
    break;
  }
  return OK;
}

static Status collect(Search *s, int comm) {
  const Node *n = s->o->node[comm];
  *s->b = (CommBlock){.comm = comm, .first = s->count, .first_user = -1};
  s->head = s->tail = 0;
  for (int i = 0; i < n->nouts; i++) {
    if (order_nusers(s->o, n->outs[i])) TRY(add_node(s, order_user(s->o, n->outs[i], 0)));
  }
  while (s->head < s->tail) TRY(follow_users(s, s->queue[s->head++]));
  return OK;
}

Status comm_blocks_find(Arena *arena, const Order *o, CommBlocks *out) {
  Search s = {.arena = arena, .o = o, .cap = o->n + 1};
  *out = (CommBlocks){0};
  if (!o->neffects) return OK;
  TRY_NEW(s.queue, arena_new_n(arena, const Val *, o->graph->nvals + 1));
  TRY_NEW(s.seen, arena_new_n(arena, int, o->n + 1));
  TRY_NEW(s.nodes, arena_new_n(arena, int, s.cap));
  TRY_NEW(out->block, arena_new_n(arena, CommBlock, o->neffects));
  for (int i = 0; i < o->neffects; i++) {
    int at = o->effect[i];
    if (!(kind_of(o->node[at]) & (ONE | MANY))) continue;
    if (block_kind(o, at) != COMM_BLOCK) {
      out->left_out++;
      continue;
    }
    s.b = &out->block[out->n++];
    TRY(collect(&s, at));
  }
  out->nodes = s.nodes;
  return OK;
}
