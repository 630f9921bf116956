/* api_mpi -- the public API as one process of an MPI launch: a product of matrices that lie in
 * pieces on all ranks, and an error that all get.
 *
 *     mpirun -n 4 api_mpi [fail]        with `fail`, rank 1 gives up
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tessera.h"

static int complain(TessCtx *ctx, const char *what) {
  fprintf(stderr, "api_mpi: rank %d of %d: %s: %s\n", tess_rank(ctx), tess_world_size(ctx), what,
          tess_error_message(ctx));
  tess_ctx_free(ctx);
  return 1;
}

int main(int argc, char **argv) {
  enum { N = 6, K = 5 };
  const bool fails = argc > 1 && !strcmp(argv[1], "fail");
  TessCtx *ctx = tess_ctx_mpi(1);
  if (!ctx || tess_error(ctx)) return complain(ctx, "no context");
  const int n = tess_world_size(ctx);
  float a[N * K], b[K * N], y[N * N];
  for (int i = 0; i < N * K; i++) a[i] = (float)(i % 7), b[i] = (float)(i % 5);
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){n}, NULL);
  TessTensor *ta = tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){N, K}, a),
             *tb = tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){K, N}, b);
  TessTensor *da = tess_distribute_tensor(ctx, ta, mesh, "S(0)", 0),
             *db = tess_distribute_tensor(ctx, tb, mesh, "R", 0);
  if (fails && tess_rank(ctx) == 1) {
    tess_call(ctx, "aten.mm.default", tess_t(ta), tess_t(ta)); /* shapes do not fit */
    tess_ctx_free(ctx);
    return 0;
  }
  TessTensor *full = tess_full_tensor(ctx, tess_call(ctx, "aten.mm.default", tess_t(da), tess_t(db)));
  if (fails) {
    bool told = tess_error(ctx) == 5 && strstr(tess_error_message(ctx), "rank 1 of");
    if (!told) return complain(ctx, "not told that rank 1 failed");
    tess_ctx_free(ctx);
    return 0;
  }
  if (!full || tess_read(ctx, full, y)) return complain(ctx, "no result");
  for (int i = 0; i < N * N; i++) {
    float want = 0;
    for (int k = 0; k < K; k++) want += a[i / N * K + k] * b[k * N + i % N];
    if (y[i] != want) return complain(ctx, "a wrong result");
  }
  tess_ctx_free(ctx);
  return 0;
}
