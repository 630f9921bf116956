/* run_model.c -- an exported PyTorch program from C.
 *
 *     cc run_model.c $(pkg-config --cflags --libs tessera) -o run_model
 *     ./run_model model.pt2 in.safetensors out.safetensors
 *
 * Inputs are looked up by name, then by position ("0", "1" ...); results are saved by
 * position.  Every error of tessera sticks to the context, so one look at the end is
 * enough.
 */
#include <stdio.h>
#include <tessera.h>

enum { MAX_TENSORS = 64 };

static TessTensor *load_input(TessCtx *ctx, const TessProgram *p, int i, const char *path) {
  char position[16];
  snprintf(position, sizeof position, "%d", i);
  TessTensor *t = tess_load(ctx, path, tess_input_name(p, i));
  if (t) return t;
  tess_error_clear(ctx);
  return tess_load(ctx, path, position);
}

static void describe(const char *what, int i, const TessTensor *t) {
  printf("%s %d: [", what, i);
  for (int d = 0; d < tess_ndim(t); d++) printf("%s%lld", d ? ", " : "", (long long)tess_size(t)[d]);
  printf("], %lld elements\n", (long long)tess_numel(t));
}

static void run(TessCtx *ctx, TessProgram *p, const char *in_path, const char *out_path) {
  const TessTensor *inputs[MAX_TENSORS], *results[MAX_TENSORS];
  TessTensor *outputs[MAX_TENSORS];
  char keys[MAX_TENSORS][16];
  const char *names[MAX_TENSORS];
  int n = tess_input_count(p), saved = 0;
  if (n > MAX_TENSORS) n = MAX_TENSORS;
  for (int i = 0; i < n; i++) {
    inputs[i] = load_input(ctx, p, i, in_path);
    if (!inputs[i]) return;
    describe("input ", i, inputs[i]);
  }
  int count = tess_run(p, inputs, n, outputs, MAX_TENSORS);
  for (int i = 0; i < count && i < MAX_TENSORS; i++) {
    if (!outputs[i]) continue; /* None, or a number */
    describe("output", i, outputs[i]);
    snprintf(keys[saved], sizeof keys[saved], "%d", i);
    names[saved] = keys[saved];
    results[saved++] = outputs[i];
  }
  if (count >= 0) tess_save(ctx, out_path, names, results, saved);
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: run_model model.pt2 in.safetensors out.safetensors\n");
    return 2;
  }
  TessCtx *ctx = tess_ctx_new(0);
  if (!ctx) return 1;
  TessProgram *p = tess_open(ctx, argv[1]);
  if (p) run(ctx, p, argv[2], argv[3]);
  int code = tess_error(ctx);
  if (code) fprintf(stderr, "error: %s\n", tess_error_message(ctx));
  tess_close(p);
  tess_ctx_free(ctx);
  return code;
}
