/* dtensor -- what DTensors cost: dispatch of a cached op over the plain op, redistribution
 * against memcpy, planning.
 *
 *     build/bench/dtensor [--json]
 *
 * Every number is the best of several rounds.  The script bench/dtensor runs it beside PyTorch.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dist/dtensor.h"
#include "tessera.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

enum { CALLS = 20000, ROUNDS = 7, MOVES = 60 }; /* moves: the allocator needs some until it keeps large blocks */

/* Microseconds per aten.add.Tensor call of two tensors. */
static double time_add(TessCtx *ctx, TessTensor *a, TessTensor *b) {
  double best = 1e9;
  for (int r = 0; r < ROUNDS; r++) {
    double begin = now();
    for (int i = 0; i < CALLS; i += 100) {
      TessScope *scope = tess_scope_begin(ctx);
      for (int j = 0; j < 100; j++) tess_call(ctx, "aten.add.Tensor", tess_t(a), tess_t(b));
      tess_scope_end(ctx, scope);
    }
    double t = (now() - begin) / CALLS * 1e6;
    if (t < best) best = t;
  }
  return best;
}

typedef struct {
  double plain, spread;
} Overhead;

static int measure_overhead(TessCtx *ctx, void *arg) {
  Overhead *o = arg;
  float data[64] = {0};
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){1}, NULL);
  TessTensor *a = tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){8, 8}, data),
             *b = tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){8, 8}, data);
  TessTensor *x = tess_distribute_tensor(ctx, a, mesh, "S(0)", -1),
             *y = tess_distribute_tensor(ctx, b, mesh, "S(0)", -1);
  o->plain = time_add(ctx, a, b);
  o->spread = time_add(ctx, x, y);
  return tess_error(ctx);
}

typedef struct {
  double seconds, bytes;
} Move;

static int measure_move(TessCtx *ctx, void *arg) {
  Move *m = arg;
  int64_t size[] = {2048, 4096};
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){tess_world_size(ctx)}, NULL);
  TessTensor *t = tess_dtensor_full(ctx, mesh, "S(0)", TESS_F32, 2, size, 1);
  double best = 1e9;
  for (int r = 0; r < MOVES; r++) {
    TessScope *scope = tess_scope_begin(ctx);
    tess_barrier(ctx);
    double begin = now();
    tess_redistribute(ctx, t, mesh, "S(1)", -1);
    tess_barrier(ctx);
    double s = now() - begin;
    if (s < best) best = s;
    tess_scope_end(ctx, scope);
  }
  if (tess_rank(ctx) == 0) *m = (Move){best, (double)(size[0] * size[1] * 4)};
  return tess_error(ctx);
}

/* The same bytes by two threads' memcpy into fresh memory, as a redistribution must. */
static int measure_memcpy(TessCtx *ctx, void *arg) {
  Move *m = arg;
  size_t bytes = (size_t)2048 * 4096 * 4 / (size_t)tess_world_size(ctx);
  char *from = malloc(bytes);
  double best = 1e9;
  memset(from, 1, bytes);
  for (int r = 0; r < MOVES; r++) {
    tess_barrier(ctx);
    double begin = now();
    char *volatile to = malloc(bytes); /* volatile: the copy is really made */
    memcpy(to, from, bytes);
    tess_barrier(ctx);
    double s = now() - begin;
    if (s < best) best = s;
    free(to);
  }
  free(from);
  if (tess_rank(ctx) == 0) *m = (Move){best, (double)bytes * tess_world_size(ctx)};
  return 0;
}

static double measure_plan(void) {
  TessCtx *ctx = tess_ctx_plan();
  double best = 1e9;
  for (int r = 0; r < 200; r++) {
    double begin = now();
    char *text = tess_plan_redistribute(ctx, TESS_F32, 4, (int64_t[]){64, 64, 64, 64}, 4, (int[]){2, 2, 2, 2},
                                        "S(0)S(1)S(2)S(3)", "S(3)S(2)S(1)S(0)", 0);
    double t = (now() - begin) * 1e6;
    tess_free(text);
    if (t < best) best = t;
  }
  tess_ctx_free(ctx);
  return best;
}

static void run(int n, TessRankFn *fn, void *arg) {
  char error[1024];
  if (!tess_run_ranks(n, 1, fn, arg, error, sizeof error)) return;
  fprintf(stderr, "%s\n", error);
  exit(1);
}

int main(int argc, char **argv) {
  bool json = argc > 1 && !strcmp(argv[1], "--json");
  Overhead o = {0};
  Move move = {0}, copy = {0};
  run(1, measure_overhead, &o);
  run(2, measure_move, &move);
  run(2, measure_memcpy, &copy);
  double plan = measure_plan(), speed = move.bytes / move.seconds / 1e9, memory = copy.bytes / copy.seconds / 1e9;
  if (json) {
    printf(
        "{\"plain_us\": %.3f, \"dtensor_us\": %.3f, \"move_gbs\": %.3f, \"memcpy_gbs\": %.3f, \"plan_us\": %.2f}\n",
        o.plain, o.spread, speed, memory, plan);
    return 0;
  }
  printf("op on 8x8, plain             %8.3f us\n", o.plain);
  printf("op on 8x8, DTensor, cached   %8.3f us   (%+.3f us)\n", o.spread, o.spread - o.plain);
  printf("S(0) -> S(1), 2 ranks        %8.2f GB/s (memcpy %.2f: %.2f of it)\n", speed, memory, speed / memory);
  printf("plan on 2x2x2x2              %8.2f us\n", plan);
  return 0;
}
