/* registry.c -- all ops, by name.
 *
 * Built once, read-only afterwards: the only process-wide state of the library. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "ops/op.h"

#define FAMILY(name) extern const OpDef ops_##name[];
#include "ops/ops.def"
#undef FAMILY

#define GRADS(name) extern const GradDef grads_##name[];
#include "ops/grads/grads.def"
#undef GRADS

static const GradDef *const gradients[] = {
#define GRADS(name) grads_##name,
#include "ops/grads/grads.def"
#undef GRADS
};

static const OpDef *const families[] = {
#define FAMILY(name) ops_##name,
#include "ops/ops.def"
#undef FAMILY
};

typedef struct {
  Arena arena;
  Op *ops; /* sorted by name */
  int count;
  Status status;
} Registry;

static Registry *registry_get(void);

static int by_name(const void *a, const void *b) {
  return strcmp(((const Op *)a)->schema.name, ((const Op *)b)->schema.name);
}

static Op *find_in(const Registry *r, const char *name) {
  int low = 0, high = r->count;
  while (low < high) {
    int mid = low + (high - low) / 2, order = strcmp(name, r->ops[mid].schema.name);
    if (order == 0) return &r->ops[mid];
    if (order < 0) high = mid;
    else low = mid + 1;
  }
  return NULL;
}

/* Every word of grad.reads must be an argument, or `result` with a number or none: bits of op->reads,
 * op->reads_out. */
static Status take_reads(Op *op, const char *reads) {
  char word[64];
  for (const char *p = reads; p && *p; p += strspn(p, " ")) {
    size_t n = strcspn(p, " ");
    snprintf(word, sizeof word, "%.*s", (int)n, p);
    int arg = schema_find(&op->schema, word);
    if (arg >= 0) op->reads |= 1u << arg;
    else if (!strncmp(word, "result", 6)) op->reads_out |= 1u << (atoi(word + 6) & 31);
    else return fail(ERR_FAIL, "the gradient of '%s' reads '%s', which it does not have", op->schema.name, word);
    p += n;
  }
  return OK;
}

/* Joins a row of gradients to the ops that it names. */
static Status join_gradient(Registry *r, const GradDef *g) {
  char name[160];
  for (const char *p = g->ops; *p; p += strspn(p, " ")) {
    size_t n = strcspn(p, " ");
    snprintf(name, sizeof name, "aten.%.*s", (int)n, p);
    Op *op = find_in(r, name);
    if (!op) op = find_in(r, name + strlen("aten."));
    if (!op) return fail(ERR_FAIL, "there is a gradient for '%.*s', which is not in the registry", (int)n, p);
    if (op->grad) return fail(ERR_FAIL, "the gradient of '%s' is defined twice", op->schema.name);
    TRY(take_reads(op, g->reads));
    op->grad = g;
    p += n;
  }
  return OK;
}

static Status registry_fill(Registry *r) {
  int n = 0;
  for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
    for (const OpDef *d = families[f]; d->schema; d++) n++;
  }
  TRY_NEW(r->ops, arena_new_n(&r->arena, Op, n));
  for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
    for (const OpDef *d = families[f]; d->schema; d++) {
      Op *op = &r->ops[r->count];
      TRY(schema_parse(&r->arena, d->schema, &op->schema));
      op->def = d;
      for (int i = 0; i < op->schema.nparams; i++)
        op->aliases |= op->schema.params[i].aliased || op->schema.params[i].mutated;
      r->count++;
    }
  }
  qsort(r->ops, (size_t)r->count, sizeof *r->ops, by_name);
  for (int i = 0; i < r->count; i++) {
    r->ops[i].id = i;
    if (i && !strcmp(r->ops[i].schema.name, r->ops[i - 1].schema.name)) {
      return fail(ERR_FAIL, "the op '%s' is defined twice", r->ops[i].schema.name);
    }
  }
  for (size_t f = 0; f < sizeof gradients / sizeof *gradients; f++)
    for (const GradDef *g = gradients[f]; g->ops; g++) TRY(join_gradient(r, g));
  return OK;
}

static struct {
  pthread_once_t once;
  Registry registry;
} shared = {.once = PTHREAD_ONCE_INIT};

static void registry_make(void) { shared.registry.status = registry_fill(&shared.registry); }

static Registry *registry_get(void) {
  pthread_once(&shared.once, registry_make);
  return &shared.registry;
}

Status op_registry_status(void) {
  Status s = registry_get()->status;
  return s ? fail(status_code(s), "%s", status_message(s)) : OK;
}

int op_count(void) { return registry_get()->count; }
const Op *op_at(int i) { return &registry_get()->ops[i]; }

const Op *op_find(const char *name) { return find_in(registry_get(), name); }

/* "torch.ops.aten.mm.default", "aten::mm" and "aten.mm" mean aten.mm.default; a name
 * without an overload that has no default, its first one. */
static const Op *other_spelling(const char *name) {
  const Registry *r = registry_get();
  const char prefix[] = "torch.ops.", *colons = strstr(name, "::");
  char dotted[160], full[176];
  if (!strncmp(name, prefix, sizeof prefix - 1)) name += sizeof prefix - 1;
  if (colons) snprintf(dotted, sizeof dotted, "%.*s.%s", (int)(colons - name), name, colons + 2);
  else snprintf(dotted, sizeof dotted, "%s", name);
  if (op_find(dotted)) return op_find(dotted);
  size_t n = (size_t)snprintf(full, sizeof full, "%s.default", dotted) - strlen("default");
  if (op_find(full)) return op_find(full);
  for (int i = 0; i < r->count; i++) {
    if (!strncmp(full, r->ops[i].schema.name, n)) return &r->ops[i];
  }
  return NULL;
}

const Op *op_nearest(const char *name) {
  const Registry *r = registry_get();
  const Op *best = other_spelling(name);
  if (best) return best;
  int limit = 6;
  for (int i = 0; i < r->count; i++) {
    int d = near_distance(name, r->ops[i].schema.name, limit);
    if (d <= limit) best = &r->ops[i], limit = d - 1;
  }
  return best;
}
