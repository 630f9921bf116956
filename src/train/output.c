/* output.c -- see output.h. */
#include "train/output.h"

#include <stdlib.h>
#include <string.h>

#include "pt2/write.h"
#include "tensor/safetensors.h"

bool output_is_program(const char *path) {
  size_t n = strlen(path);
  return n >= 4 && !strcmp(path + n - 4, ".pt2");
}

bool trainer_is_saved(const Trainer *t, const TrainState *state) {
  const Exported *e = trainer_program(t);
  if (!state->is_model) return false;
  for (int i = 0; i < e->graph->ninputs; i++)
    if (e->inputs[i].target && !strcmp(e->inputs[i].target, state->name))
      return e->inputs[i].kind == IN_PARAMETER || e->inputs[i].persistent;
  return true;
}

Status trainer_write_weights(const Trainer *t, const char *path, bool force) {
  int count = trainer_states(t, NULL), n = 0;
  TrainState *state = malloc(((size_t)count + 1) * sizeof *state);
  SafeItem *items = malloc(((size_t)count + 1) * sizeof *items);
  Status s = state && items ? OK : fail_oom();
  if (!s) trainer_states(t, state);
  for (int i = 0; i < count && !s; i++)
    if (trainer_is_saved(t, &state[i])) items[n++] = (SafeItem){state[i].name, state[i].tensor};
  if (!s) s = safetensors_save(path, items, n, NULL, 0, force ? FILE_OVERWRITE : 0);
  free(items);
  free(state);
  return s;
}

Status trainer_write_program(const Trainer *t, Exported *e, const char *path, bool force) {
  Status s = OK;
  for (int i = 0; i < e->nstate && !s; i++) {
    Tensor *trained = trainer_tensor(t, e->state[i].fqn);
    if (trained && e->state[i].tensor && trained->dtype != e->state[i].tensor->dtype)
      s = status_hint(fail(ERR_USAGE, "'%s' was trained as %s, the program has it as %s", e->state[i].fqn,
                           dtype_name(trained->dtype), dtype_name(e->state[i].tensor->dtype)),
                      "write the weights alone, to a file whose name ends in .safetensors");
    else if (trained) s = tensor_alias(&e->scope, trained, &e->state[i].tensor);
  }
  if (!s) s = pt2_write(e, path, force);
  exported_free(e);
  return s;
}
