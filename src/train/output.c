/* output.c -- see output.h. */
#include "train/output.h"

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

/* The model's states, whole.  all: not those of a state_dict alone.  keeps: false where they are gathered for
 * another rank. */
static Status gather_states(const Trainer *t, bool all, bool keeps, Scope *scope, Arena *arena, SafeItem **items,
                            int *n) {
  TrainState *state;
  int count = trainer_states(t, NULL);
  *n = 0;
  TRY_NEW(state, arena_new_n(arena, TrainState, count + 1));
  TRY_NEW(*items, arena_new_n(arena, SafeItem, count + 1));
  trainer_states(t, state);
  for (int i = 0; i < count; i++) {
    Tensor *whole;
    if (!(all ? state[i].is_model : trainer_is_saved(t, &state[i]))) continue;
    TRY(trainer_gather(t, &state[i], scope, &whole));
    (*items)[(*n)++] = (SafeItem){state[i].name, whole};
    if (!keeps) scope_clear(scope);
  }
  return OK;
}

Status trainer_write_weights(const Trainer *t, const char *path, bool force) {
  Scope scope = {0};
  Arena arena = {0};
  SafeItem *items;
  int n;
  Status s = gather_states(t, false, path != NULL, &scope, &arena, &items, &n);
  if (!s && path) s = safetensors_save(path, items, n, NULL, 0, force ? FILE_OVERWRITE : 0);
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

static Status put_state(Exported *e, const SafeItem *item) {
  for (int i = 0; i < e->nstate; i++) {
    StateEntry *to = &e->state[i];
    if (strcmp(to->fqn, item->name) || !to->tensor) continue;
    if (item->tensor->dtype != to->tensor->dtype)
      return status_hint(fail(ERR_USAGE, "'%s' was trained as %s, the program has it as %s", to->fqn,
                              dtype_name(item->tensor->dtype), dtype_name(to->tensor->dtype)),
                         "write the weights alone, to a file whose name ends in .safetensors");
    return tensor_alias(&e->scope, item->tensor, &to->tensor);
  }
  return OK;
}

Status trainer_write_program(const Trainer *t, Exported *e, const char *path, bool force) {
  Scope scope = {0};
  Arena arena = {0};
  SafeItem *items;
  int n;
  Status s = gather_states(t, true, path != NULL, &scope, &arena, &items, &n);
  for (int i = 0; i < n && !s && path; i++) s = put_state(e, &items[i]);
  if (!s && path) s = pt2_write(e, path, force);
  exported_free(e);
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}
