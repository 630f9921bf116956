/* own_calls.h -- ops called by code that is no op itself, on plain tensors and DTensors, past the tape.
 *
 *     OwnCalls w;
 *     Status s = OP(own_calls_begin(&w, ctx), "aten.copy_.default", &t, val_tensor(to), val_tensor(from));
 *     own_calls_end(&w);
 *
 * What the calls make is gone at the end, unless it was held or made in another scope.
 */
#ifndef TESS_OPS_OWN_CALLS_H
#define TESS_OPS_OWN_CALLS_H

#include "ops/op.h"

typedef struct {
  Call c;
  Scope scope;
  Arena arena;
} OwnCalls;

static inline Call *own_calls_begin(OwnCalls *w, Ctx *ctx) {
  *w = (OwnCalls){0};
  w->c = (Call){.ctx = ctx,
                .op = op_find("aten.copy_.default"), /* who calls, for errors */
                .scope = &w->scope,
                .arena = &w->arena,
                .level = LEVEL_SHARD};
  return &w->c;
}

static inline void own_calls_end(OwnCalls *w) {
  scope_clear(&w->scope);
  arena_free(&w->arena);
}

#endif
