/* decisions.c -- see decisions.h. */
#include "dist/decisions.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "dist/dist.h"

enum { BUCKETS = 4096, MOST_ENTRIES = 65536 };

typedef struct Entry {
  struct Entry *next;
  uint64_t hash;
  const Op *op;
  unsigned apart; /* Dist.apart */
  const Spec *wanted;
  Value *key; /* arguments; a DTensor is its spec (Value.kind VAL_TENSOR, str = the pointer) */
  Decision d;
} Entry;

struct Decisions {
  Arena arena;
  Entry *bucket[BUCKETS];
  int n;
};

void decisions_forget(Dist *d) {
  if (d->decisions) arena_free(&d->decisions->arena);
  free(d->decisions);
  d->decisions = NULL;
}

/* ---- keys ------------------------------------------------------------------------------------ */

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
  TRY(val_copy(arena, v, key));
  if (v->kind == VAL_TENSOR) key->i = (int64_t)tensor_word(v->tensor);
  if (v->kind != VAL_TENSORS) return OK;
  int64_t *words;
  TRY_NEW(words, arena_new_n(arena, int64_t, v->n ? v->n : 1));
  for (int i = 0; i < v->n; i++) words[i] = (int64_t)tensor_word(v->tensors[i]);
  key->ints = words;
  return OK;
}

static Entry *find_entry(const Dist *d, const Call *c, uint64_t hash) {
  if (!d->decisions) return NULL;
  for (Entry *e = d->decisions->bucket[hash % BUCKETS]; e; e = e->next) {
    if (e->hash != hash || e->op != c->op || e->apart != d->apart || e->wanted != c->wanted) continue;
    int i = 0;
    while (i < c->op->schema.nparams && key_matches(&e->key[i], &c->arg[i])) i++;
    if (i == c->op->schema.nparams) return e;
  }
  return NULL;
}

/* ---- deciding -------------------------------------------------------------------------------- */

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
  if (dist->decisions && dist->decisions->n >= MOST_ENTRIES) decisions_forget(dist);
  if (!dist->decisions) TRY_NEW(dist->decisions, calloc(1, sizeof *dist->decisions));
  Decisions *known = dist->decisions;
  Arena arena = {0};
  Scope scope = {0};
  Decision d;
  Call global = *c;
  global.scope = &scope;
  Status s = propagate(&global, NULL, &arena, &d);
  Entry *e = NULL;
  if (!s && !(e = arena_new(&known->arena, Entry))) s = fail_oom();
  if (!s) s = keep_decision(&known->arena, c, &d, &e->d);
  scope_clear(&scope);
  arena_free(&arena);
  TRY(s);
  e->op = c->op;
  e->hash = hash;
  e->apart = dist->apart;
  e->wanted = c->wanted;
  TRY_NEW(e->key, arena_new_n(&known->arena, Value, c->op->schema.nparams + 1));
  for (int i = 0; i < c->op->schema.nparams; i++) TRY(key_of(&known->arena, &c->arg[i], &e->key[i]));
  e->next = known->bucket[hash % BUCKETS];
  known->bucket[hash % BUCKETS] = e;
  known->n++;
  *out = e;
  return OK;
}

Status decision_find(Call *c, const Decision **out) {
  Dist *d = c->ctx->dist;
  uint64_t hash = hash_mix(d->apart, (uint64_t)(uintptr_t)c->op);
  hash = hash_mix(hash, (uint64_t)(uintptr_t)c->wanted);
  for (int i = 0; i < c->op->schema.nparams; i++) hash = hash_value(hash, &c->arg[i]);
  Entry *e = find_entry(d, c, hash);
  if (!e) TRY(decide(d, c, hash, &e));
  *out = &e->d;
  return OK;
}
