/* bucket_size.c -- see bucket_size.h. */
#include "passes/bucket_size.h"

#include <math.h>
#include <stdlib.h>

#include "graph/resolve.h"
#include "ops/tensors.h"
#include "passes/comm_block.h"
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

static Status find_arrivals(Arena *arena, const Order *o, const BucketMachine *m, const Buckets *all,
                            Arrivals *out) {
  double *done, now = 0;
  TRY_NEW(done, arena_new_n(arena, double, o->n + 1));
  TRY_NEW(out->v, arena_new_n(arena, Arrival, all->n + 1));
  for (int i = 0; i < o->n; i++) {
    double seconds = 0;
    if (o->node[i]->stage != STAGE_UPDATE) TRY(node_seconds(arena, m, o->node[i], &seconds));
    done[i] = now += seconds;
  }
  for (int i = 0; i < all->n; i++) {
    const Reduction *r = &all->reduction[i];
    int made = o->producer[r->grad->id];
    out->v[i] = (Arrival){made < 0 ? 0 : done[made], (double)r->bytes};
  }
  out->n = all->n;
  out->end = now;
  return OK;
}

/* ---- when all is over ------------------------------------------------------------------------------ */

typedef struct {
  double free;  /* when the reduction before is over */
  double taken; /* seconds that reductions have taken from the computing */
} Course;

static void reduce(const BucketMachine *m, double ready, double bytes, Course *k) {
  double n = m->ranks, seconds = 2 * ceil(log2(n)) * m->latency + 2 * (n - 1) / n * bytes / m->bandwidth;
  k->free = fmax(ready + k->taken, k->free) + seconds;
  k->taken += (1 - m->overlap) * seconds;
}

static double seconds_with(const BucketMachine *m, const Arrivals *a, double limit) {
  Course k = {0};
  double held = 0, ready = 0, most = fmin(limit, FIRST);
  for (int i = 0; i < a->n; i++) {
    held += a->v[i].bytes;
    ready = fmax(ready, a->v[i].ready);
    if (held < most) continue;
    reduce(m, ready, held, &k);
    held = 0;
    most = limit;
  }
  if (held > 0) reduce(m, ready, held, &k);
  return fmax(a->end + k.taken, k.free);
}

Status bucket_size_choose(Arena *arena, const Order *o, const BucketMachine *m, BucketRules *rules) {
  Buckets single;
  Arrivals a;
  double best = INFINITY, seconds[SIZES];
  rules->bucket_bytes = rules->first_bytes = 0; /* each by itself */
  TRY(ddp_buckets_find(arena, o, rules, &single));
  TRY(find_arrivals(arena, o, m, &single, &a));
  for (int i = 0; i < SIZES; i++) best = fmin(best, seconds[i] = seconds_with(m, &a, ldexp(LEAST, i)));
  int chosen = -1;
  for (int i = 0; i < SIZES; i++)
    if (seconds[i] <= best * AS_GOOD && (chosen < 0 || abs(i - USUAL) < abs(chosen - USUAL))) chosen = i;
  rules->bucket_bytes = ldexp(LEAST, chosen);
  rules->first_bytes = fmin(rules->bucket_bytes, FIRST);
  return OK;
}
