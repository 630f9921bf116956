/* bucket_size.c -- see bucket_size.h. */
#include "passes/bucket_size.h"

#include <math.h>
#include <stdlib.h>

#include "graph/resolve.h"
#include "ops/tensors.h"
#include "passes/comm_block.h"
#include "passes/move_groups.h"
#include "passes/started.h"

/* 256 KiB to 1 GiB, usually 4 MiB; the first bucket, as PyTorch has it. */
enum { LEAST = 1 << 18, SIZES = 13, USUAL = 4, FIRST = 1 << 20 };
static const double AS_GOOD = 1.001;

/* A gradient that is there after so many seconds of the backward. */
typedef struct {
  double ready, bytes;
} Arrival;

typedef struct {
  Arrival *v; /* in the order of their collectives */
  int n;
  double end; /* of the backward */
} Arrivals;

const BucketMachine bucket_machine_default = {
    .ranks = 2, .flops = 60e9, .memory = 10e9, .latency = 0.5e-6, .bandwidth = 5e9};

BucketMachine bucket_machine(const PassArgs *args) {
  return (BucketMachine){.ranks = (int)pass_int(args, "ranks"),
                         .flops = pass_number(args, "gflops") * 1e9,
                         .memory = pass_number(args, "memory_gb") * 1e9,
                         .latency = pass_number(args, "latency_us") * 1e-6,
                         .bandwidth = pass_number(args, "link_gb") * 1e9,
                         .overlap = pass_number(args, "overlap")};
}

/* ---- when gradients come ------------------------------------------------------------------------- */

static double sized_bytes(const Val *v) {
  double n = v->type == TY_TENSOR && v->ndim >= 0 ? (double)dtype_size(v->dtype) : 0;
  for (int d = 0; d < v->ndim; d++) n *= sym_is_int(v->size[d]) ? (double)v->size[d]->value : 1;
  return n;
}

static void add_bytes(void *sum, Val **ref) { *(double *)sum += sized_bytes(*ref); }

static void look(void *known, Val **ref) { *(bool *)known &= (*ref)->type != TY_TENSOR || (*ref)->tensor; }

/* Are all its tensors known?  Those of nodes that a pass has made are not. */
static bool is_specialized(Node *n) {
  bool known = n->op != NULL;
  node_each_val(n, look, &known);
  for (int i = 0; i < n->nouts; i++) look(&known, &n->outs[i]);
  return known;
}

/* Where tensors are not known, as long as the bytes of the values take. */
static Status node_seconds(Arena *arena, const BucketMachine *m, Node *n, double *out) {
  Value *arg, *result;
  *out = 0;
  if (node_is(n, WAIT_TENSOR) || node_starts(n)) return OK;
  if (!is_specialized(n)) {
    for (int i = 0; i < n->nouts; i++) *out += sized_bytes(n->outs[i]);
    node_each_val(n, add_bytes, out);
    *out /= m->memory;
    return OK;
  }
  TRY_NEW(arg, arena_new_n(arena, Value, n->op->schema.nparams + 1));
  TRY_NEW(result, arena_new_n(arena, Value, n->nouts + 1));
  TRY(node_resolve(arena, NULL, n, arg));
  for (int i = 0; i < n->nouts; i++) result[i] = n->outs[i]->tensor ? val_tensor(n->outs[i]->tensor) : val_none();
  const Call c = {.op = n->op, .arg = arg, .out = result, .nout = n->nouts};
  for (TensorWalk w = call_inputs(&c); tensor_next(&w);)
    if (n->nouts && n->outs[0]->tensor && n->outs[0]->tensor->storage == w.tensor->storage) return OK; /* a view */
  *out = fmax(op_flops(&c) / m->flops, op_bytes(&c) / m->memory);
  return OK;
}

/* A gradient that a node makes, at this position; negative: it is there from the beginning. */
typedef struct {
  int made;
  double bytes;
} Made;

static Status find_arrivals(Arena *arena, Node *const *nodes, int nnodes, const Made *gradients, int n,
                            const BucketMachine *m, Arrivals *out) {
  double *done, now = 0;
  TRY_NEW(done, arena_new_n(arena, double, nnodes + 1));
  TRY_NEW(out->v, arena_new_n(arena, Arrival, n + 1));
  for (int i = 0; i < nnodes; i++) {
    double seconds = 0;
    if (nodes[i]->stage != STAGE_UPDATE) TRY(node_seconds(arena, m, nodes[i], &seconds));
    done[i] = now += seconds;
  }
  for (int i = 0; i < n; i++)
    out->v[i] = (Arrival){gradients[i].made < 0 ? 0 : done[gradients[i].made], gradients[i].bytes};
  out->n = n;
  out->end = now;
  return OK;
}

/* ---- when all is over ------------------------------------------------------------------------------ */

typedef struct {
  double free;  /* when the reduction before is over */
  double taken; /* seconds that reductions have taken from the computing */
} Course;

static void reduce(const BucketMachine *m, int rounds, double ready, double bytes, Course *k) {
  double n = m->ranks, seconds = rounds * (ceil(log2(n)) * m->latency + (n - 1) / n * bytes / m->bandwidth);
  k->free = fmax(ready + k->taken, k->free) + seconds;
  k->taken += (1 - m->overlap) * seconds;
}

static double seconds_with(const BucketMachine *m, int rounds, const Arrivals *a, double limit) {
  Course k = {0};
  double held = 0, ready = 0, most = fmin(limit, FIRST);
  for (int i = 0; i < a->n; i++) {
    held += a->v[i].bytes;
    ready = fmax(ready, a->v[i].ready);
    if (held < most) continue;
    reduce(m, rounds, ready, held, &k);
    held = 0;
    most = limit;
  }
  if (held > 0) reduce(m, rounds, ready, held, &k);
  return fmax(a->end + k.taken, k.free);
}

/* The limit of buckets of these gradients, in the order in which they are reduced.  rounds: how often a reduction
 * sends a rank's share of the bytes, 2 for an all-reduce, 1 for a reduce-scatter. */
static Status best_limit(Arena *arena, Node *const *nodes, int nnodes, const Made *gradients, int n, int rounds,
                         const BucketMachine *m, double *limit) {
  Arrivals a;
  double best = INFINITY, seconds[SIZES];
  int chosen = -1;
  TRY(find_arrivals(arena, nodes, nnodes, gradients, n, m, &a));
  for (int i = 0; i < SIZES; i++) best = fmin(best, seconds[i] = seconds_with(m, rounds, &a, ldexp(LEAST, i)));
  for (int i = 0; i < SIZES; i++)
    if (seconds[i] <= best * AS_GOOD && (chosen < 0 || abs(i - USUAL) < abs(chosen - USUAL))) chosen = i;
  *limit = ldexp(LEAST, chosen);
  return OK;
}

Status bucket_size_choose(Arena *arena, const Order *o, const BucketMachine *m, BucketRules *rules) {
  Buckets single;
  Made *gradients;
  rules->bucket_bytes = rules->first_bytes = 0; /* each by itself */
  TRY(ddp_buckets_find(arena, o, rules, &single));
  TRY_NEW(gradients, arena_new_n(arena, Made, single.n + 1));
  for (int i = 0; i < single.n; i++) {
    const Reduction *r = &single.reduction[i];
    gradients[i] = (Made){o->producer[r->grad->id], (double)r->bytes};
  }
  TRY(best_limit(arena, o->node, o->n, gradients, single.n, 2, m, &rules->bucket_bytes));
  rules->first_bytes = fmin(rules->bucket_bytes, FIRST);
  return OK;
}

static Status size_of_step(Arena *arena, Exported *e, const BucketMachine *m, double *limit) {
  NodeList all;
  Made *gradients;
  int n = 0, rounds = 2;
  TRY(node_list(e->graph, arena, &all));
  TRY_NEW(gradients, arena_new_n(arena, Made, all.n + 1));
  for (int at = all.boundary; at < all.n; at++) {
    const Node *node = all.node[at];
    bool scatters = gradient_of(node, arena) && move_axes(node, PLACE_P, PLACE_S, 0);
    if (!(scatters || comm_is_all_reduce(node)) || node->stage != STAGE_BACKWARD) continue;
    const Val *of = node->args[0].kind == ARG_VAL ? node->args[0].val : NULL;
    if (!of) continue;
    gradients[n++] = (Made){of->node ? of->node->mark : -1, scatters ? move_bytes(node) : sized_bytes(of)};
    if (scatters) rounds = 1;
  }
  return best_limit(arena, all.node, all.n, gradients, n, rounds, m, limit);
}

Status bucket_size_of_step(Exported *e, const BucketMachine *m, double *mb) {
  Arena arena = {0};
  double limit = 0;
  Status s = size_of_step(&arena, e, m, &limit);
  arena_free(&arena);
  *mb = limit / (1 << 20);
  return s;
}
