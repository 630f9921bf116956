/* golden_training.c -- see golden_training.h. */
#include "golden_training.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/textbuf.h"

/* ---- the recipe ------------------------------------------------------------------------------------- */

static void put_argument(TextBuf *b, const char *key, yyjson_val *v) {
  size_t i, n;
  yyjson_val *item;
  if (yyjson_is_null(v)) return;
  text_printf(b, ",%s", key);
  if (yyjson_is_bool(v)) return text_puts(b, yyjson_get_bool(v) ? "" : "=false");
  if (yyjson_is_str(v)) return text_printf(b, "=%s", yyjson_get_str(v));
  if (!yyjson_is_arr(v)) return text_printf(b, "=%.17g", yyjson_get_num(v));
  yyjson_arr_foreach(v, i, n, item) text_printf(b, "%s%.17g", i ? ":" : "=", yyjson_get_num(item));
}

/* "AdamW", {"lr": 0.01} -> "adamw,lr=0.01" */
static void optimizer_text(yyjson_val *run, TextBuf *b) {
  size_t i, n;
  yyjson_val *key, *value;
  for (const char *p = yyjson_get_str(yyjson_obj_get(run, "optimizer")); p && *p; p++)
    text_printf(b, "%c", tolower((unsigned char)*p));
  yyjson_obj_foreach(yyjson_obj_get(run, "args"), i, n, key, value) put_argument(b, yyjson_get_str(key), value);
}

Status golden_recipe(yyjson_val *run, Arena *arena, Recipe *r) {
  TextBuf text = {0};
  optimizer_text(run, &text);
  Status s = recipe_init(r, arena, text.text ? text.text : "");
  text_free(&text);
  TRY(s);
  yyjson_val *clip = yyjson_obj_get(run, "clip"), *type = yyjson_obj_get(clip, "norm_type");
  r->accumulate = (int)yyjson_get_int(yyjson_obj_get(run, "accumulate"));
  if (yyjson_is_obj(clip)) {
    r->clip_norm = yyjson_get_num(yyjson_obj_get(clip, "max_norm"));
    r->norm_type = yyjson_is_str(type) ? strtod(yyjson_get_str(type), NULL) : yyjson_get_num(type);
  }
  const char *dtype = yyjson_get_str(yyjson_obj_get(run, "dtype"));
  if (dtype && !strcmp(dtype, "bfloat16")) r->param_dtype = DT_BF16;
  if (dtype && !strcmp(dtype, "float16")) r->param_dtype = DT_F16;
  return OK;
}

/* ---- what was trained ------------------------------------------------------------------------------- */

/* The whole of the trained state that stands under this name in a file of results; NULL: there is none. */
Status golden_trained(const Trainer *t, const char *name, bool state, Scope *scope, Tensor **out) {
  char full[1024];
  const char *last = strrchr(name, '/');
  if (!state || !last) snprintf(full, sizeof full, "%s", name);
  else if (!strcmp(last, "/step")) snprintf(full, sizeof full, "optim.step");
  else snprintf(full, sizeof full, "optim.state.%.*s.%s", (int)(last - name), name, last + 1);
  TrainState *states = calloc((size_t)trainer_states(t, NULL) + 1, sizeof *states);
  Status s = states ? OK : fail_oom();
  int n = states ? trainer_states(t, states) : 0;
  *out = NULL;
  for (int i = 0; i < n && !s && !*out; i++)
    if (!strcmp(states[i].name, full)) s = trainer_gather(t, &states[i], scope, out);
  free(states);
  return s;
}

/* ---- batches ---------------------------------------------------------------------------------------- */

/* The inputs of batch `number`, by the names of the program's inputs. */
static Status take_batch(const Exported *e, const SafeTensors *file, int64_t number, Scope *scope, Value *inputs) {
  int at = 0;
  for (int i = 0; i < e->graph->ninputs; i++) {
    Tensor *all, *one;
    if (e->inputs[i].kind != IN_USER) continue;
    TRY(safetensors_get(file, e->graph->inputs[i]->name, scope, &all));
    if (number >= all->size[0]) return fail(ERR_DIFF, "there are only %lld batches", (long long)all->size[0]);
    TRY(tensor_alias(scope, all, &one));
    one->ndim--;
    memmove(one->size, one->size + 1, (size_t)one->ndim * sizeof *one->size);
    memmove(one->stride, one->stride + 1, (size_t)one->ndim * sizeof *one->stride);
    one->offset += number * all->stride[0];
    inputs[at++] = val_tensor(one);
  }
  return OK;
}

Status golden_next_batch(void *arg, int i, Batch *out) {
  GoldenBatches *b = arg;
  *out = (Batch){b->inputs, exported_user_inputs(b->e)};
  if (out->n > GOLDEN_INPUTS) return fail(ERR_DIFF, "the test has no room for so many inputs");
  return take_batch(b->e, b->file, b->first + i, b->scope, b->inputs);
}
