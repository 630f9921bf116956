/* peak.c -- see peak.h. */
#include "train/peak.h"

#include <string.h>

#include "base/clock.h"

enum { SIDE = 1024, TURNS = 3 };

static Status measure(Call *c, double *out) {
  Tensor *a, *b;
  double best = 0;
  TRY(tensor_new(c->scope, DT_F32, 2, (int64_t[]){SIDE, SIDE}, &a));
  memset(tensor_data(a), 0, (size_t)SIDE * SIDE * sizeof(float));
  for (int i = 0; i < TURNS; i++) {
    double begin = clock_now();
    TRY(OP(c, "aten.mm.default", &b, val_tensor(a), val_tensor(a)));
    double rate = 2.0 * SIDE * SIDE * SIDE / (clock_now() - begin);
    if (rate > best) best = rate;
  }
  *out = best;
  return OK;
}

Status measure_peak(Ctx *ctx, double *out) {
  Scope scope = {0};
  Arena arena = {0};
  Call c = {.ctx = ctx, .scope = &scope, .arena = &arena, .level = LEVEL_RUN};
  Status s = measure(&c, out);
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}
