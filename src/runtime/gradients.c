/* gradients.c -- see gradients.h. */
#include "runtime/gradients.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/textbuf.h"

/* ---- what is asked for ---------------------------------------------------------------------------- */

static const char *output_name(const Exported *e, int i) {
  const Arg *a = &e->graph->outputs[i];
  return a->kind == ARG_VAL ? a->val->name : NULL;
}

static bool is_returned_tensor(const Exported *e, int i) {
  const Arg *a = &e->graph->outputs[i];
  return output_is_returned(e->outputs[i].kind) && a->kind == ARG_VAL && a->val->type == TY_TENSOR;
}

/* One number of a float dtype, as far as the program says. */
static bool can_be_loss(const Exported *e, int i) {
  if (!is_returned_tensor(e, i)) return false;
  const Val *v = e->graph->outputs[i].val;
  for (int d = 0; d < v->ndim; d++)
    if (sym_is_int(v->size[d]) && v->size[d]->value != 1) return false;
  return dtype_kind(v->dtype) == KIND_FLOAT;
}

static void put_output(TextBuf *b, const Exported *e, int i) {
  const Val *v = e->graph->outputs[i].kind == ARG_VAL ? e->graph->outputs[i].val : NULL;
  if (!v) return text_puts(b, "a constant");
  val_describe(b, v);
}

/* candidates: of outputs that can be the loss; 0: none can, or none is called as it is wanted. */
static Status refuse_loss(const Exported *e, const char *wanted, int candidates) {
  TextBuf list = {0};
  for (int i = 0, n = 0; i < e->graph->noutputs; i++) {
    if (!output_is_returned(e->outputs[i].kind)) continue;
    text_printf(&list, "%s%d: ", n ? ", " : "", n);
    put_output(&list, e, i);
    n++;
  }
  const char *outputs = list.text ? list.text : "none";
  Status s = wanted       ? fail(ERR_USAGE, "there is no output '%s': the outputs are %s", wanted, outputs)
             : candidates ? fail(ERR_USAGE, "%d outputs can be the loss: the outputs are %s", candidates, outputs)
                          : fail(ERR_USAGE, "no output can be the loss: the outputs are %s", outputs);
  text_free(&list);
  return wanted || candidates ? status_hint(s, "name one that is: --loss OUTPUT, or grad(loss=OUTPUT)")
                              : status_hint(s, "a loss is one number of a floating-point dtype");
}

static Status refuse_output(const Exported *e, int i) {
  TextBuf b = {0};
  put_output(&b, e, i);
  Status s = fail(ERR_USAGE, "output %s cannot be the loss", b.text ? b.text : "");
  text_free(&b);
  return status_hint(s, "a loss is one number of a floating-point dtype");
}

/* Is output i, the number-th that is returned, called so? */
static bool is_called(const Exported *e, int i, int number, const char *wanted) {
  char *end;
  long as_number = strtol(wanted, &end, 10);
  bool named = output_name(e, i) && !strcmp(output_name(e, i), wanted);
  return named || (!*end && *wanted && as_number == number);
}

static Status find_loss(const Exported *e, const char *wanted, int *out) {
  int found = -1, candidates = 0, returned = 0;
  for (int i = 0; i < e->graph->noutputs; i++) {
    if (!output_is_returned(e->outputs[i].kind)) continue;
    int number = returned++;
    if (wanted) {
      if (!is_called(e, i, number, wanted)) continue;
      return can_be_loss(e, i) ? (*out = i, OK) : refuse_output(e, i);
    }
    if (e->outputs[i].kind == OUT_LOSS) return *out = i, OK;
    if (can_be_loss(e, i)) found = i, candidates++;
  }
  if (wanted || candidates != 1) return refuse_loss(e, wanted, candidates);
  return *out = found, OK;
}

static bool is_wanted(const Exported *e, int i, const GradOptions *o) {
  const InputSpec *in = &e->inputs[i];
  const Val *v = e->graph->inputs[i];
  if (v->type != TY_TENSOR || dtype_kind(v->dtype) < KIND_FLOAT) return false;
  if (in->kind == IN_USER) return o->inputs;
  if (in->kind != IN_PARAMETER) return false;
  if (o->parameters) return patterns_match(o->parameters, in->target);
  if (o->freeze && patterns_match(o->freeze, in->target)) return false;
  const StateEntry *s = exported_state(e, in->target);
  return s && s->requires_grad;
}

/* Each pattern is about some parameter: one that is not is a slip. */
static Status check_freeze(const char *patterns, const Exported *e) {
  for (const char *p = patterns; p && *p; p += *p == ',') {
    char one[256];
    int n = (int)strcspn(p, ",");
    bool used = !n;
    snprintf(one, sizeof one, "%.*s", n, p);
    for (int i = 0; i < e->graph->ninputs; i++)
      used |= e->inputs[i].kind == IN_PARAMETER && patterns_match(one, e->inputs[i].target);
    if (!used)
      return status_hint(fail(ERR_USAGE, "no parameter matches '%s', which is to be frozen", one),
                         "`tessera inspect %s` lists the modules; names are those of the state_dict", e->name);
    p += n;
  }
  return OK;
}

Status grad_request(const Exported *e, const GradOptions *o, Arena *arena, GradRequest *out) {
  const Graph *g = e->graph;
  *out = (GradRequest){.reduce_dtype = DT_NONE};
  if (exported_is_joint(e))
    return status_hint(
        fail(ERR_USAGE, "the program has gradients among its outputs already: it is a joint program"),
        "run it as it is, or ask the program that it was made of");
  TRY(check_freeze(o->freeze, e));
  TRY(find_loss(e, o->loss, &out->loss));
  TRY_NEW(out->input, arena_new_n(arena, int, g->ninputs + 1));
  for (int i = 0; i < g->ninputs; i++)
    if (is_wanted(e, i, o)) out->input[out->n++] = i;
  if (out->n) return OK;
  if (o->parameters)
    return status_hint(fail(ERR_USAGE, "no floating-point parameter matches '%s'", o->parameters),
                       "`tessera inspect` lists them");
  if (o->freeze)
    return status_hint(fail(ERR_USAGE, "no parameter is left to train: all are frozen ('%s')", o->freeze),
                       "`tessera inspect %s` lists the modules", e->name);
  return status_hint(fail(ERR_USAGE, "no parameter of the program requires a gradient"),
                     "name those that are wanted (--grad='w.*'), or ask for those of the inputs (--grad-inputs)");
}

OutputSpec grad_output(const Exported *e, const GradRequest *r, int i) {
  int n = e->graph->noutputs;
  if (i == r->loss) return (OutputSpec){.kind = OUT_LOSS};
  if (i < n) return e->outputs[i];
  if (r->update) return r->update->output[i - n];
  const InputSpec *in = &e->inputs[r->input[i - n]];
  bool user = in->kind == IN_USER;
  return (OutputSpec){.kind = user ? OUT_GRADIENT_TO_USER_INPUT : OUT_GRADIENT_TO_PARAMETER,
                      .target = user ? e->graph->inputs[r->input[i - n]]->name : in->target};
}

/* ---- the backward of a walk ---------------------------------------------------------------------------- */

/* The place in the request of an earlier name of the same parameter; k itself if there is none. */
static int first_name(const Exported *e, const GradRequest *r, int k) {
  const StateEntry *s = e->inputs[r->input[k]].kind == IN_PARAMETER
                            ? exported_state(e, e->inputs[r->input[k]].target)
                            : NULL;
  for (int j = 0; s && j < k; j++) {
    const StateEntry *other = e->inputs[r->input[j]].kind == IN_PARAMETER
                                  ? exported_state(e, e->inputs[r->input[j]].target)
                                  : NULL;
    if (other && state_is_tied(other, s)) return j;
  }
  return k;
}

Status gradients_require(Tape *t, const Exported *e, const GradRequest *r, Scope *scope, Value *inputs) {
  for (int k = 0; k < r->n; k++) {
    Value *v = &inputs[r->input[k]];
    Tensor *leaf;
    if (v->kind != VAL_TENSOR) continue;
    TRY(tape_require(t, scope, v->tensor, &leaf));
    int first = first_name(e, r, k);
    if (first < k) { /* both names feed one leaf; the second has no gradient of its own */
      grad_unref(leaf->grad);
      leaf->grad = grad_ref(inputs[r->input[first]].tensor->grad);
    }
    *v = val_tensor(leaf);
  }
  return OK;
}

static bool is_second_name(const GradRequest *r, const Value *inputs, int k) {
  for (int j = 0; j < k; j++)
    if (inputs[r->input[j]].tensor->grad == inputs[r->input[k]].tensor->grad) return true;
  return false;
}

Status gradients_find(Tape *t, const GradRequest *r, const Value *inputs, Tensor *loss, Scope *scope, Arena *arena,
                      Value *gradients) {
  Tensor **leaf, **found;
  TRY_NEW(leaf, arena_new_n(arena, Tensor *, r->n + 1));
  TRY_NEW(found, arena_new_n(arena, Tensor *, r->n + 1));
  for (int k = 0; k < r->n; k++) leaf[k] = inputs[r->input[k]].tensor;
  if (!loss->grad)
    return status_hint(fail(ERR_USAGE, "the loss does not depend on any parameter whose gradient is wanted"),
                       "a detach or a no-grad region may lie between, or it is made of integers");
  TRY(tape_gradients(t, &loss, NULL, 1, leaf, r->n, &(Backward){.allow_unused = true}, scope, found));
  for (int k = 0; k < r->n; k++) {
    const Tensor *g = is_second_name(r, inputs, k) ? NULL : found[k];
    gradients[k] = val_tensor(g);
  }
  return OK;
}
