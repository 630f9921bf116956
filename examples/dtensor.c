/* dtensor.c -- a product of two matrices on four ranks, spread over a mesh of 2 x 2.
 *
 *     cc dtensor.c $(pkg-config --cflags --libs tessera) -o dtensor && ./dtensor
 */
#include <stdio.h>

#include "tessera.h"

enum { ROWS = 6, INNER = 8, COLUMNS = 10 };

static TessTensor *counting(TessCtx *ctx, int64_t rows, int64_t columns) {
  float data[ROWS * INNER + INNER * COLUMNS];
  for (int64_t i = 0; i < rows * columns; i++) data[i] = (float)(i % 5);
  return tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){rows, columns}, data);
}

static int work(TessCtx *ctx, void *arg) {
  (void)arg;
  char text[256];
  TessMesh *mesh = tess_init_device_mesh(ctx, 2, (int[]){2, 2}, (const char *const[]){"dp", "tp"});
  TessTensor *x = tess_distribute_tensor(ctx, counting(ctx, ROWS, INNER), mesh, "S(0)R", 0); /* rows over dp */
  TessTensor *w = tess_distribute_tensor(ctx, counting(ctx, INNER, COLUMNS), mesh, "RS(1)",
                                         0);                               /* columns over tp */
  TessTensor *y = tess_call(ctx, "aten.mm.default", tess_t(x), tess_t(w)); /* nothing is sent */
  TessTensor *sum = tess_call(ctx, "aten.sum.default", tess_t(y));         /* owed by all ranks */
  TessTensor *total = tess_full_tensor(ctx, sum);                          /* one all-reduce */
  if (!total) return 1; /* the context's error says why, for all ranks */
  if (tess_rank(ctx) == 0)
    printf("%s, its sum is %g\n", tess_repr(y, text, sizeof text), *(float *)tess_data(total));
  return 0;
}

int main(void) {
  char error[1024];
  int code = tess_run_ranks(4, 1, work, NULL, error, sizeof error);
  if (code) fprintf(stderr, "error: %s\n", error);
  return code;
}
