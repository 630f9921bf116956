/* feed.c -- see feed.h. */
#include "harness/feed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "graph/user_inputs.h"
#include "runtime/specialize.h"

/* ---- from a file ---------------------------------------------------------------------- */

static const SafeEntry *find_entry(const SafeTensors *st, const Val *v, int position, char *key, size_t cap) {
  snprintf(key, cap, "%d", position);
  const SafeEntry *by_name = safetensors_find(st, v->name);
  return by_name ? by_name : safetensors_find(st, key);
}

static Status to_number(const Val *v, const Tensor *t, Value *out) {
  if (tensor_numel(t) != 1) return fail(ERR_FILE, "input '%s' is a number: give a tensor of one element", v->name);
  *out = val_load(t->dtype, tensor_data(t));
  return OK;
}

static Status read_inputs(const Exported *e, const SafeTensors *st, const char *path, Scope *scope, Value *inputs,
                          int *n) {
  int used = 0;
  *n = 0;
  for (int i = 0; i < e->graph->ninputs; i++) {
    const Val *v = e->graph->inputs[i];
    char key[16];
    if (e->inputs[i].kind != IN_USER) continue;
    const SafeEntry *entry = st ? find_entry(st, v, *n, key, sizeof key) : NULL;
    if (!entry) {
      Status s = path ? fail(ERR_FILE, "'%s' has no input '%s' (nor \"%d\")", path, v->name, *n)
                      : fail(ERR_USAGE, "the program needs inputs: give -i FILE or --random-inputs SEED");
      return user_inputs_hint(s, e);
    }
    Tensor *t;
    TRY(safetensors_tensor(st, entry, scope, &t));
    Value *out = &inputs[(*n)++];
    *out = val_tensor(t);
    if (v->type != TY_TENSOR) TRY(to_number(v, t, out));
    used++;
  }
  if (!st || used == st->count) return OK;
  for (int k = 0; k < st->count; k++) {
    bool known = false;
    for (int i = 0, u = 0; i < e->graph->ninputs; i++) {
      char key[16];
      if (e->inputs[i].kind != IN_USER) continue;
      snprintf(key, sizeof key, "%d", u++);
      known |= !strcmp(st->entries[k].name, e->graph->inputs[i]->name) || !strcmp(st->entries[k].name, key);
    }
    if (!known)
      return user_inputs_hint(fail(ERR_FILE, "'%s': the program has no input '%s'", path, st->entries[k].name), e);
  }
  return user_inputs_hint(fail(ERR_FILE, "'%s' gives an input twice, by name and by position", path), e);
}

Status feed_from_file(const Exported *e, const char *path, Scope *scope, Arena *arena, Value **inputs, int *n) {
  SafeTensors *st = NULL;
  TRY_NEW(*inputs, arena_new_n(arena, Value, exported_user_inputs(e)));
  if (path) TRY(safetensors_open(path, &st));
  Status s = read_inputs(e, st, path, scope, *inputs, n);
  safetensors_close(st);
  return s;
}

/* ---- made up ---------------------------------------------------------------------------- */

static double uniform(uint64_t *state) { return (double)(random_bits(state) >> 11) * 0x1p-53; }

/* The smallest number of rows of an embedding in the program: integers stay below it. */
static int64_t index_limit(const Graph *g) {
  int64_t limit = 2;
  bool found = false;
  for (const Node *n = g->first; n; n = n->next) {
    if (!node_is(n, "aten.embedding.default") || n->args[0].kind != ARG_VAL) continue;
    const Val *w = n->args[0].val;
    if (w->ndim != 2 || !sym_is_int(w->size[0])) continue;
    if (!found || w->size[0]->value < limit) limit = w->size[0]->value;
    found = true;
  }
  return limit < 1 ? 1 : limit;
}

static Status fill_random(Tensor *t, uint64_t *state, int64_t limit) {
  int64_t n = tensor_numel(t);
  char *data = tensor_data(t);
  size_t step = dtype_size(t->dtype);
  for (int64_t i = 0; i < n; i++, data += step) {
    Value v;
    if (dtype_is_float(t->dtype))
      v = val_float(sqrt(-2 * log(1 - uniform(state))) * cos(6.283185307179586 * uniform(state)));
    else if (t->dtype == DT_BOOL) v = val_bool(true);
    else v = val_int((int64_t)(uniform(state) * (double)limit));
    val_store(&v, t->dtype, data);
  }
  return OK;
}

Status feed_random(const Exported *e, uint64_t seed, bool hints, Scope *scope, Arena *arena, Value **inputs,
                   int *n) {
  uint64_t state = seed * 0x2545f4914f6cdd1du + 1;
  int64_t limit = index_limit(e->graph);
  SymBindings b;
  TRY(feed_symbols(e, hints, &b));
  Status s = feed_sizes(e, &b, scope, arena, inputs, n);
  free(b.v);
  for (int i = 0; !s && i < *n; i++) {
    if ((*inputs)[i].kind != VAL_TENSOR) continue;
    s = tensor_materialize((*inputs)[i].tensor);
    if (!s) s = fill_random((*inputs)[i].tensor, &state, limit);
  }
  return s;
}
