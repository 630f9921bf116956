/* dispatch.c -- see dispatch.h. */
#include "dist/dispatch.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "dist/dist.h"
#include "kernels/copy.h"

/* ---- the cache ------------------------------------------------------------------------------ */

enum { BUCKETS = 4096, MOST_ENTRIES = 65536 };

typedef struct Entry {
  struct Entry *next;
  uint64_t hash;
  const Op *op;
  Value *key; /* arguments; a DTensor is its spec (Value.kind VAL_TENSOR, str = the pointer) */
  Decision d;
} Entry;

typedef struct DispatchCache {
  Arena arena;
  Entry *bucket[BUCKETS];
  int n;
  int64_t hits, misses;
} DispatchCache;

static void cache_free(DispatchCache *c) {
  if (!c) return;
  arena_free(&c->arena);
  free(c);
}

void dispatch_forget(Dist *d) {
  cache_free(d->cache);
  d->cache = NULL;
}

void dispatch_counts(const Dist *d, int64_t *hits, int64_t *misses) {
  *hits = d->cache ? d->cache->hits : 0;
  *misses = d->cache ? d->cache->misses : 0;
}

/* What stands for a tensor in a key: its spec, or a hash of dtype and sizes. */
static uint64_t tensor_word(const Tensor *t) {
  if (!t) return 0;
  if (t->spec) return (uint64_t)(uintptr_t)t->spec;
  uint64_t h = hash_mix(1, (uint64_t)t->dtype * 64 + (uint64_t)t->ndim);
  for (int d = 0; d < t->ndim; d++) h = hash_mix(h, (uint64_t)t->size[d]);
  return h | 1; /* no pointer is odd */
}

static size_t value_bytes(const Value *v) {
  switch (v->kind) {
    case VAL_INTS: return (size_t)v->n * sizeof *v->ints;
    case VAL_FLOATS: return (size_t)v->n * sizeof *v->floats;
    case VAL_BOOLS: return (size_t)v->n * sizeof *v->bools;
    case VAL_COMPLEX: return sizeof v->complex_;
    default: return 0;
  }
}

/* The word of a number or a name; lists are hashed by their elements. */
static uint64_t value_word(const Value *v) {
  switch (v->kind) {
    case VAL_BOOL: return v->b;
    case VAL_INT: return (uint64_t)v->i;
    case VAL_DTYPE: return (uint64_t)v->dtype;
    case VAL_MEMORY_FORMAT: return (uint64_t)v->memory_format;
    case VAL_FLOAT: {
      uint64_t bits;
      memcpy(&bits, &v->f, sizeof bits);
      return bits;
    }
    default: return 0;
  }
}

static uint64_t hash_value(uint64_t h, const Value *v) {
  h = hash_mix(h, (uint64_t)v->kind | (uint64_t)(unsigned)v->n << 8);
  switch (v->kind) {
    case VAL_TENSOR: return hash_mix(h, tensor_word(v->tensor));
    case VAL_TENSORS:
      for (int i = 0; i < v->n; i++) h = hash_mix(h, tensor_word(v->tensors[i]));
      return h;
    case VAL_STR:
    case VAL_DEVICE: return v->str ? hash_bytes(h, v->str, strlen(v->str)) : h;
    case VAL_LIST:
      for (int i = 0; i < v->n; i++) h = hash_value(h, &v->list[i]);
      return h;
    case VAL_INTS:
    case VAL_FLOATS:
    case VAL_BOOLS: return hash_bytes(h, v->ints, value_bytes(v));
    case VAL_COMPLEX: return hash_bytes(h, v->complex_, sizeof v->complex_);
    default: return hash_mix(h, value_word(v));
  }
}

/* In keys a tensor is kept as its word, in the field i (a list: in ints). */
static bool key_matches(const Value *key, const Value *v) {
  if (key->kind != v->kind || key->n != v->n) return false;
  switch (v->kind) {
    case VAL_TENSOR: return (uint64_t)key->i == tensor_word(v->tensor);
    case VAL_TENSORS:
      for (int i = 0; i < v->n; i++)
        if ((uint64_t)key->ints[i] != tensor_word(v->tensors[i])) return false;
      return true;
    case VAL_STR:
    case VAL_DEVICE: return key->str == v->str || (key->str && v->str && !strcmp(key->str, v->str));
    case VAL_LIST:
      for (int i = 0; i < v->n; i++)
        if (!key_matches(&key->list[i], &v->list[i])) return false;
      return true;
    case VAL_INTS:
    case VAL_FLOATS:
    case VAL_BOOLS: return !v->n || !memcmp(key->ints, v->ints, value_bytes(v));
    case VAL_COMPLEX: return !memcmp(key->complex_, v->complex_, sizeof v->complex_);
    default: return value_word(key) == value_word(v);
  }
}

static Status key_of(Arena *arena, const Value *v, Value *key) {
  *key = *v;
  switch (v->kind) {
    case VAL_TENSOR: key->i = (int64_t)tensor_word(v->tensor); return OK;
    case VAL_TENSORS: {
      int64_t *words;
      TRY_NEW(words, arena_new_n(arena, int64_t, v->n ? v->n : 1));
      for (int i = 0; i < v->n; i++) words[i] = (int64_t)tensor_word(v->tensors[i]);
      key->ints = words;
      return OK;
    }
    case VAL_STR:
    case VAL_DEVICE:
      if (v->str) TRY_NEW(key->str, arena_strdup(arena, v->str));
      return OK;
    case VAL_LIST: {
      Value *list;
      TRY_NEW(list, arena_new_n(arena, Value, v->n ? v->n : 1));
      for (int i = 0; i < v->n; i++) TRY(key_of(arena, &v->list[i], &list[i]));
      key->list = list;
      return OK;
    }
    case VAL_INTS:
    case VAL_FLOATS:
    case VAL_BOOLS: {
      void *copy;
      TRY_NEW(copy, arena_alloc(arena, value_bytes(v) + 1));
      if (v->n) memcpy(copy, v->ints, value_bytes(v));
      key->ints = copy;
      return OK;
    }
    default: return OK;
  }
}

static Entry *find_entry(const DispatchCache *cache, const Call *c, uint64_t hash) {
  for (Entry *e = cache->bucket[hash % BUCKETS]; e; e = e->next) {
    if (e->hash != hash || e->op != c->op) continue;
    int i = 0;
    while (i < c->op->schema.nparams && key_matches(&e->key[i], &c->arg[i])) i++;
    if (i == c->op->schema.nparams) return e;
  }
  return NULL;
}

/* ---- deciding --------------------------------------------------------------------------------- */

/* Keeps what a decision points to; rewritten arguments are copied, others come from the
 * call each time. */
static Status keep_decision(Arena *arena, const Call *c, const Decision *d, Decision *out) {
  *out = *d;
  size_t in = (size_t)(d->nin ? d->nin : 1), no = (size_t)(d->nout ? d->nout : 1);
  const Spec **have, **want, **specs;
  TRY_NEW(have, arena_new_n(arena, const Spec *, in));
  TRY_NEW(want, arena_new_n(arena, const Spec *, in));
  TRY_NEW(specs, arena_new_n(arena, const Spec *, no));
  memcpy(have, d->have, (size_t)d->nin * sizeof *have);
  memcpy(want, d->want, (size_t)d->nin * sizeof *want);
  memcpy(specs, d->out, (size_t)d->nout * sizeof *specs);
  out->have = have;
  out->want = want;
  out->out = specs;
  if (d->why) TRY_NEW(out->why, arena_strdup(arena, d->why));
  int n = d->op->schema.nparams > c->op->schema.nparams ? d->op->schema.nparams : c->op->schema.nparams;
  TRY_NEW(out->arg, arena_new_n(arena, Value, n ? n : 1));
  for (int i = 0; d->rewritten && i < n; i++) {
    if (d->arg[i].kind == VAL_TENSOR || d->arg[i].kind == VAL_TENSORS)
      out->arg[i] = (Value){.kind = d->arg[i].kind};
    else TRY(key_of(arena, &d->arg[i], &out->arg[i]));
  }
  return OK;
}

static Status decide(Dist *dist, Call *c, uint64_t hash, Entry **out) {
  if (dist->cache && dist->cache->n >= MOST_ENTRIES) dispatch_forget(dist);
  if (!dist->cache) {
    TRY_NEW(dist->cache, calloc(1, sizeof *dist->cache));
    dist->cache_free = cache_free;
  }
  DispatchCache *cache = dist->cache;
  Arena arena = {0};
  Scope scope = {0};
  Decision d;
  Call global = *c;
  global.scope = &scope;
  Status s = propagate(&global, NULL, &arena, &d);
  Entry *e = NULL;
  if (!s && !(e = arena_new(&cache->arena, Entry))) s = fail_oom();
  if (!s) s = keep_decision(&cache->arena, c, &d, &e->d);
  scope_clear(&scope);
  arena_free(&arena);
  TRY(s);
  e->op = c->op;
  e->hash = hash;
  TRY_NEW(e->key, arena_new_n(&cache->arena, Value, c->op->schema.nparams + 1));
  for (int i = 0; i < c->op->schema.nparams; i++) TRY(key_of(&cache->arena, &c->arg[i], &e->key[i]));
  e->next = cache->bucket[hash % BUCKETS];
  cache->bucket[hash % BUCKETS] = e;
  cache->n++;
  cache->misses++;
  *out = e;
  return OK;
}

/* ---- running ------------------------------------------------------------------------------------ */

Status dtensor_wrap(Scope *scope, const Spec *spec, Tensor *local, Tensor **out) {
  Tensor *t;
  TRY_NEW(t, scope_tensor(scope));
  t->spec = spec;
  t->local = local;
  t->dtype = spec->dtype;
  t->ndim = spec->ndim;
  memcpy(t->size, spec->shape, (size_t)spec->ndim * sizeof *t->size);
  memcpy(t->stride, spec->stride, (size_t)spec->ndim * sizeof *t->stride);
  *out = t;
  return OK;
}

static const char *dtensor_name(const Tensor *t, char *buf, size_t cap) {
  return t->spec ? spec_print(t->spec, buf, cap) : tensor_describe(t, buf, cap);
}

static Status refuse_implicit(const Call *c, const Spec *from, const Spec *to) {
  char a[512], b[512];
  return status_hint(op_fail(c, "needs %s as %s, and implicit redistribution is switched off here",
                             spec_print(from, a, sizeof a),
                             placements_print(to->place, to->mesh->naxes, b, sizeof b)),
                     "redistribute it yourself before the call");
}

/* While calls are recorded, shards are there without a world. */
static bool mesh_has_shards(const Ctx *ctx, const Mesh *m) { return (m->world || ctx->emitter) && m->inside; }

/* why: the rule's words; NULL: it has none. */
static Status move_for_rule(const Call *c, const char *why, const Spec *from, const Spec *to, Tensor *local,
                            Tensor **out) {
  const char **rule = &from->mesh->dist->rule, *outer = *rule;
  *rule = why ? why : "";
  Status s = redistribute_local(c->ctx, from, to, local, c->op->schema.name, c->scope, out);
  *rule = outer;
  return s;
}

/* The shard that the local op gets for input i. */
static Status local_input(const Call *c, const Decision *d, int i, Tensor *t, Tensor **out) {
  *out = t->spec ? t->local : t;
  const Spec *from = d->have[i], *to = d->want[i];
  if (from == to) return OK;
  ImplicitMode mode = d->mesh->dist->implicit;
  if (mode == IMPLICIT_STRICT || (mode == IMPLICIT_LOUD && redistribute_cost(from, to->place) > 0))
    return refuse_implicit(c, from, to);
  TRY(move_for_rule(c, d->why, from, to, *out, out));
  if (c->ctx->emitter && from->partial && !to->partial &&
      t->spec) { /* paid once: whoever comes later finds it so */
    t->spec = to;
    t->local = *out;
  }
  return OK;
}

static Status local_arguments(const Call *c, const Decision *d, Value *local) {
  int flat = 0, n = d->op->schema.nparams;
  for (int i = 0; i < n; i++) {
    const Value *v = d->rewritten ? &d->arg[i] : &c->arg[i];
    local[i] = *v;
    if (v->kind == VAL_TENSOR) {
      Tensor *t;
      TRY(local_input(c, d, flat++, c->arg[i].tensor, &t));
      local[i] = val_tensor(t);
    } else if (v->kind == VAL_TENSORS) {
      Tensor **list;
      TRY_NEW(list, arena_new_n(c->arena, Tensor *, c->arg[i].n ? c->arg[i].n : 1));
      for (int j = 0; j < c->arg[i].n; j++)
        if (c->arg[i].tensors[j]) TRY(local_input(c, d, flat++, c->arg[i].tensors[j], &list[j]));
      local[i] = val_tensors(list, c->arg[i].n);
    }
  }
  return OK;
}

/* In place: the results are the arguments themselves. */
static Status alias_mutated(Call *c) {
  for (int i = 0; i < c->op->schema.nparams; i++)
    if (c->op->schema.params[i].mutated && c->op->schema.nreturns && in_tensor(c, i))
      TRY(out_alias(c, in_tensor(c, i)));
  return OK;
}

/* An argument that is written to, but had to be moved for the op: the result goes back. */
static Status write_back(Call *c, const Decision *d, const Value *local) {
  int flat = 0;
  for (int i = 0; i < d->op->schema.nparams; i++) {
    int n = c->arg[i].kind == VAL_TENSORS ? c->arg[i].n : c->arg[i].kind == VAL_TENSOR;
    for (int j = 0; j < n; j++) {
      Tensor *t = c->arg[i].kind == VAL_TENSORS ? c->arg[i].tensors[j] : c->arg[i].tensor;
      Tensor *moved = !t ? NULL : local[i].kind == VAL_TENSORS ? local[i].tensors[j] : local[i].tensor;
      if (!t) continue;
      int k = flat++;
      if (!c->op->schema.params[i].mutated || d->have[k] == d->want[k]) continue;
      if (d->have[k]->partial)
        return op_fail(c, "in place on a tensor placed P: argument '%s'", c->op->schema.params[i].name);
      TRY(redistribute_local(c->ctx, d->want[k], d->have[k], moved, c->op->schema.name, c->scope, &moved));
      kernel_copy(&c->ctx->kern, tensor_view(t->spec ? t->local : t), tensor_view(moved));
    }
  }
  return OK;
}

Status random_local(Call *local, const Spec *out, int64_t draws) {
  Ctx *ctx = local->ctx;
  ShardOf shard = {spec_layout(out), out->mesh->coord};
  uint64_t next = ctx->offset + (uint64_t)draws;
  if (out->partial) return op_fail(local, "random numbers cannot be placed P");
  ctx->shard = out->replicated ? NULL : &shard;
  Status s = op_eager(local);
  ctx->shard = NULL;
  ctx->offset = next;
  return s;
}

/* What a rank outside the mesh holds of a result. */
static Status outside_shard(Call *c, const Spec *s, Tensor **out) {
  *out = NULL;
  return s->mesh->world ? tensor_new(c->scope, s->dtype, s->local_ndim, s->local, out) : OK;
}

static void note_decision(const Call *c, const Decision *d) {
  Dist *dist = d->mesh->dist;
  dist->decided_cost += d->cost;
  if (dist->planned) dist->planned(dist->decided_arg, c, d);
}

static Status run_decision(Call *c, const Decision *d) {
  bool inplace = c->op->schema.mutates;
  Call local = {.ctx = c->ctx, .op = d->op, .scope = c->scope, .arena = c->arena};
  Value arg[MAX_PARAMS];
  if (!d->mesh->world) note_decision(c, d);
  if (mesh_has_shards(c->ctx, d->mesh)) {
    TRY(local_arguments(c, d, arg));
    local.arg = arg;
    if (d->draws && d->nout) TRY(random_local(&local, d->out[0], d->draws));
    else TRY(op_local(&local));
    if (inplace && d->moves) TRY(write_back(c, d, arg));
  } else c->ctx->offset += (uint64_t)d->draws;
  if (inplace && c->op->def->inplace) return alias_mutated(c);
  int next = 0;
  for (int i = 0; i < (local.arg ? local.nout : d->nout); i++) {
    if (local.arg && local.out[i].kind != VAL_TENSOR) {
      TRY(out_value(c, local.out[i]));
      continue;
    }
    Tensor *t;
    if (next >= d->nout) return op_fail(c, "gave more results than its rule has");
    if (local.arg) t = local.out[i].tensor;
    else TRY(outside_shard(c, d->out[next], &t));
    TRY(dtensor_wrap(c->scope, d->out[next++], t, &t));
    TRY(out_value(c, val_tensor(t)));
  }
  return OK;
}

/* After an op that ran on whole tensors: what it wrote to goes back to its placement. */
static Status return_whole(Call *c, const Value *local) {
  Placement r[MAX_AXES] = {{.kind = PLACE_R}};
  for (int i = 0; i < c->op->schema.nparams; i++) {
    int n = c->arg[i].kind == VAL_TENSORS ? c->arg[i].n : c->arg[i].kind == VAL_TENSOR;
    for (int j = 0; c->op->schema.params[i].mutated && j < n; j++) {
      Tensor *t = c->arg[i].kind == VAL_TENSORS ? c->arg[i].tensors[j] : c->arg[i].tensor;
      if (!t || !t->spec || t->spec->replicated) continue;
      if (t->spec->partial)
        return op_fail(c, "in place on a tensor placed P: argument '%s'", c->op->schema.params[i].name);
      const Spec *whole;
      Tensor *part = local[i].kind == VAL_TENSORS ? local[i].tensors[j] : local[i].tensor;
      TRY(spec_with(t->spec, r, &whole));
      TRY(redistribute_local(c->ctx, whole, t->spec, part, c->op->schema.name, c->scope, &part));
      kernel_copy(&c->ctx->kern, tensor_view(t->local), tensor_view(part));
    }
  }
  return alias_mutated(c);
}

/* Sizes that depend on elements, or results that are numbers: every rank needs all. */
static Status run_replicated(Call *c) {
  const Op *op = c->op;
  Value arg[MAX_PARAMS];
  Mesh *mesh = NULL;
  Placement r[MAX_AXES] = {{.kind = PLACE_R}};
  for (int i = 0; i < op->schema.nparams; i++) {
    arg[i] = c->arg[i];
    int n = c->arg[i].kind == VAL_TENSORS ? c->arg[i].n : c->arg[i].kind == VAL_TENSOR;
    Tensor **list;
    TRY_NEW(list, arena_new_n(c->arena, Tensor *, n ? n : 1));
    for (int j = 0; j < n; j++) {
      Tensor *t = c->arg[i].kind == VAL_TENSORS ? c->arg[i].tensors[j] : c->arg[i].tensor;
      list[j] = t;
      if (!t || !t->spec) continue;
      const Spec *whole;
      mesh = t->spec->mesh;
      TRY(spec_with(t->spec, r, &whole));
      if (whole != t->spec && mesh->dist->implicit == IMPLICIT_STRICT) return refuse_implicit(c, t->spec, whole);
      if (!mesh->world && !c->ctx->emitter)
        return op_fail(c, "the sizes of its results depend on elements, and a plan has none");
      if (!mesh->inside)
        return op_fail(c, "the sizes of its results depend on elements, and this rank is outside the mesh");
      TRY(move_for_rule(c, "every rank needs all of its elements", t->spec, whole, t->local, &list[j]));
    }
    arg[i] = c->arg[i].kind == VAL_TENSORS ? val_tensors(list, n) : n ? val_tensor(list[0]) : c->arg[i];
  }
  Call local = {.ctx = c->ctx, .op = op, .arg = arg, .scope = c->scope, .arena = c->arena};
  TRY(op_local(&local));
  if (op->schema.mutates) return return_whole(c, arg);
  for (int i = 0; i < local.nout; i++) {
    Tensor *t = out_tensor(&local, i);
    if (t) {
      const Spec *spec;
      TRY(spec_new(mesh, t->dtype, t->ndim, t->size, NULL, r, &spec));
      TRY(dtensor_wrap(c->scope, spec, t, &t));
      TRY(out_value(c, val_tensor(t)));
    } else TRY(out_value(c, local.out[i]));
  }
  return OK;
}

/* to = from, wherever the two lie. */
static Status write_moved(Call *c, Tensor *to, Tensor *from) {
  char a[600], b[600];
  if (!tensor_same_size(to, from))
    return op_fail(c, "the result %s does not fit in place of %s", dtensor_name(from, a, sizeof a),
                   dtensor_name(to, b, sizeof b));
  Tensor *part = from;
  if (to->spec && from->spec) {
    const Spec *there; /* as `to`, but of from's dtype */
    TRY(spec_new(to->spec->mesh, from->dtype, from->ndim, from->size, from->stride, to->spec->place, &there));
    part = from->local;
    if (part) TRY(redistribute_local(c->ctx, from->spec, there, part, c->op->schema.name, c->scope, &part));
  } else if (to->spec || from->spec) return op_fail(c, "a plain tensor and a DTensor: one is written to the other");
  if (part) kernel_copy(&c->ctx->kern, tensor_view(to->spec ? to->local : to), tensor_view(part));
  return OK;
}

/* An in-place op whose functional form is taken apart, or whose result goes to an argument
 * that it does not read (out=): the results go to where the arguments lie. */
static Status run_inplace_apart(Call *c, const Op *functional) {
  Value bound[MAX_PARAMS];
  NamedValue args[MAX_PARAMS];
  int n = functional->schema.nparams < c->op->schema.nparams ? functional->schema.nparams : c->op->schema.nparams,
      next = 0;
  for (int i = 0; i < n; i++) args[i] = (NamedValue){NULL, c->arg[i]};
  TRY(op_bind(c->arena, functional, args, n, bound));
  Call f = {.ctx = c->ctx, .op = functional, .arg = bound, .scope = c->scope, .arena = c->arena};
  TRY(op_dispatch(&f));
  for (int i = 0; i < c->op->schema.nparams; i++) {
    if (!c->op->schema.params[i].mutated) continue;
    int count = c->arg[i].kind == VAL_TENSORS ? c->arg[i].n : 1;
    for (int j = 0; j < count; j++, next++) {
      Tensor *to = c->arg[i].kind == VAL_TENSORS ? c->arg[i].tensors[j] : in_tensor(c, i);
      Tensor *from = next < f.nout ? out_tensor(&f, next) : NULL;
      if (!to || !from) return op_fail(c, "nothing to write to argument '%s'", c->op->schema.params[i].name);
      TRY(write_moved(c, to, from));
    }
  }
  return alias_mutated(c);
}

/* Sizes and dtypes are those of the whole: handles answer by themselves. */
static bool asks_for_sizes(const Op *op) {
  if (!(op->def->flags & OP_SCALAR) || !op->schema.nparams) return false;
  return !strncmp(op->schema.name, "aten.sym_", 9) ||
         !strcmp(op->schema.name, "aten._assert_tensor_metadata.default");
}

/* Plain tensors that the parts make for themselves (masks, ranges) are alike on all ranks. */
static Status run_parts(Call *c, OpFn *parts) {
  bool *allowed = &c->ctx->dist->implicit_replication, before = *allowed;
  *allowed = true;
  Status s = parts(c);
  *allowed = before;
  return s;
}

/* functional: the op that an in-place one stands for, or the op itself. */
static const Op *functional_of(const Op *op) { return op->def->inplace ? op_find(op->def->inplace) : op; }

static bool has_rule_of_its_own(const Op *functional) {
  return functional &&
         (functional->def->shard.place || functional->def->shard.rule || functional->def->flags & OP_POINTWISE);
}

static bool takes_apart(const Op *op, const Op *functional, bool has_rule) {
  if (op->def->compose && !has_rule) return true;
  bool to_others = op->def->inplace && !op->schema.params[0].mutated;
  return op->def->inplace && functional && (to_others || (functional->def->compose && !has_rule));
}

bool dispatch_takes_apart(const Op *op) {
  const Op *functional = functional_of(op);
  return takes_apart(op, functional, has_rule_of_its_own(functional));
}

bool dispatch_prefers_parts(const Op *op, const Decision *d) {
  return op->def->shard.compose_unmoved && d->cost > 0 && !d->have[0]->partial;
}

/* Every DTensor among the arguments is whole. */
static bool is_replicated(const Call *c) {
  for (int i = 0; i < c->op->schema.nparams; i++) {
    const Value *v = &c->arg[i];
    if (v->kind == VAL_TENSOR && v->tensor->spec && !v->tensor->spec->replicated) return false;
    for (int j = 0; v->kind == VAL_TENSORS && j < v->n; j++)
      if (v->tensors[j] && v->tensors[j]->spec && !v->tensors[j]->spec->replicated) return false;
  }
  return true;
}

static Status dispatch(Call *c) {
  const OpDef *def = c->op->def;
  const Op *functional = functional_of(c->op);
  bool has_rule = has_rule_of_its_own(functional);
  if (c->ctx->emitter && def->compose && !has_rule && is_replicated(c))
    return run_replicated(c); /* recorded as it is */
  if (takes_apart(c->op, functional, has_rule))
    return def->inplace ? run_inplace_apart(c, functional) : run_parts(c, def->compose);
  if (asks_for_sizes(c->op)) return op_eager(c);
  if (def->shard.compose_sharded) {
    bool done = false;
    TRY(def->shard.compose_sharded(c, &done));
    if (done) return OK;
  }
  if ((def->flags & (OP_DYNAMIC | OP_SCALAR | OP_EFFECT) && !has_rule) || (!def->inplace && !def->infer))
    return run_replicated(c);
  Dist *d = c->ctx->dist;
  uint64_t hash = hash_mix(0, (uint64_t)(uintptr_t)c->op);
  for (int i = 0; i < c->op->schema.nparams; i++) hash = hash_value(hash, &c->arg[i]);
  Entry *e = d->cache ? find_entry(d->cache, c, hash) : NULL;
  if (e) d->cache->hits++;
  else {
    Status s = decide(d, c, hash, &e);
    if (s && status_code(s) == ERR_DYNAMIC) {
      status_free(s);
      return run_replicated(c);
    }
    TRY(s);
  }
  if (c->ctx->emitter && e->d.draws)
    return run_replicated(c); /* a recorded call does not know whose part it draws */
  if (def->shard.compose_unmoved && dispatch_prefers_parts(c->op, &e->d))
    return run_parts(c, def->shard.compose_unmoved);
  return run_decision(c, &e->d);
}

static bool in_parts(const Ctx *ctx, const Tensor *t, const bool *dims) {
  if (!t || !t->spec || !ctx->dist->in_parts) return false;
  for (int a = 0; a < t->spec->mesh->naxes; a++)
    if (is_s(&t->spec->place[a]) && dims[t->spec->place[a].dim] && t->spec->mesh->axis[a] > 1) return true;
  return false;
}

void ctx_attach_dist(Ctx *ctx, Dist *d) {
  ctx->dist = d;
  ctx->dispatch = dispatch;
  ctx->redistribute = redistribute_call;
  ctx->in_parts = in_parts;
}

void ctx_detach_dist(Ctx *ctx) {
  ctx->dist = NULL;
  ctx->dispatch = NULL;
  ctx->redistribute = NULL;
  ctx->in_parts = NULL;
}
