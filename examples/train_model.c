/* train_model.c -- an exported PyTorch program that returns its loss, trained from C.
 *
 *     cc train_model.c $(pkg-config --cflags --libs tessera) -o train_model
 *     ./train_model loss.pt2 batches.safetensors trained.safetensors
 *
 * The file has a tensor per input of the program, [batches, ...]: one batch per leading index.  `trained` may also
 * be a .pt2: the program with its new weights, for PyTorch or for run_model.c.  The same as
 *
 *     tessera train loss.pt2 --data batches.safetensors --batched --optim adamw,lr=1e-2,weight_decay=0.01 \
 *             --group 'no_decay=*.bias:weight_decay=0' --schedule cosine,warmup=4,min=0.1 --clip 1.0 --steps 40 \
 *             -o trained.safetensors
 *
 * Every error of tessera sticks to the context, so one look at the end is enough.
 */
#include <stdio.h>
#include <tessera.h>

enum { STEPS = 40 };

static void train(TessTrainer *t, const TessData *data, const char *trained) {
  TessStep step;
  double loss;
  tess_trainer_set_data(t, data);
  for (int i = 0; i < STEPS; i++) {
    if (tess_trainer_next(t, &step) < 0) return;
    if (step.step == 1 || step.step % 10 == 0)
      printf("step %2lld  loss %.4f  norm of the gradients %.3f  learning rate %.2e\n", (long long)step.step,
             step.loss, step.grad_norm, step.lr);
  }
  if (tess_trainer_evaluate_data(t, data, 0, &loss) == 0) printf("loss over all batches: %.4f\n", loss);
  tess_trainer_write(t, trained);
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: train_model loss.pt2 batches.safetensors trained.safetensors\n");
    return 2;
  }
  const char *const groups[] = {"no_decay=*.bias:weight_decay=0"}, *const files[] = {argv[2]};
  const TessTraining how = {.optim = "adamw,lr=1e-2,weight_decay=0.01",
                            .groups = groups,
                            .ngroups = 1,
                            .schedule = "cosine,warmup=4,min=0.1",
                            .steps = STEPS,
                            .clip = "1.0"};
  const TessData data = {.files = files, .nfiles = 1, .batched = 1};
  TessCtx *ctx = tess_ctx_new(0);
  if (!ctx) return 1;
  TessTrainer *t = tess_trainer_open(ctx, argv[1], &how);
  if (t) train(t, &data, argv[3]);
  int code = tess_error(ctx);
  if (code) fprintf(stderr, "error: %s\n", tess_error_message(ctx));
  tess_trainer_free(t);
  tess_ctx_free(ctx);
  return code;
}
