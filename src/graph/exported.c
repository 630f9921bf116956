/* exported.c -- an exported program as a whole; see graph.h. */
#include <stdlib.h>
#include <string.h>

#include "graph/graph.h"

Status exported_new(const char *name, Exported **out) {
  Exported *e;
  TRY_NEW(e, calloc(1, sizeof *e));
  symtable_init(&e->syms, &e->arena);
  e->torch_version = e->dialect = "";
  e->name = arena_strdup(&e->arena, name);
  Status s = e->name ? graph_new(&e->arena, &e->syms, &e->graph) : fail_oom();
  if (s) {
    exported_free(e);
    return s;
  }
  *out = e;
  return OK;
}

void exported_free(Exported *e) {
  if (!e) return;
  scope_clear(&e->scope);
  arena_free(&e->arena);
  if (e->file_free) e->file_free(e->file);
  free(e);
}

Status exported_index_state(Exported *e) {
  for (; e->state_indexed < e->nstate; e->state_indexed++) {
    StrSlot *slot;
    TRY(strmap_slot(&e->state_at, &e->arena, e->state[e->state_indexed].fqn, &slot));
    if (!slot->value) slot->value = (void *)(intptr_t)(e->state_indexed + 1);
  }
  return OK;
}

/* Entries are only ever added; those behind the index are looked through. */
const StateEntry *exported_state(const Exported *e, const char *fqn) {
  intptr_t at = (intptr_t)strmap_get(&e->state_at, fqn) - 1;
  if (at >= 0 && at < e->nstate && !strcmp(e->state[at].fqn, fqn)) return &e->state[at];
  for (int i = e->state_indexed <= e->nstate ? e->state_indexed : 0; i < e->nstate; i++) {
    if (!strcmp(e->state[i].fqn, fqn)) return &e->state[i];
  }
  return NULL;
}

bool state_is_tied(const StateEntry *a, const StateEntry *b) {
  return a->record && b->record && !strcmp(a->record, b->record) && tensor_same_view(a->tensor, b->tensor);
}

bool exported_is_joint(const Exported *e) {
  for (int i = 0; i < e->graph->noutputs; i++) {
    OutputKind k = e->outputs[i].kind;
    if (k == OUT_LOSS || k == OUT_GRADIENT_TO_PARAMETER || k == OUT_GRADIENT_TO_USER_INPUT) return true;
  }
  return false;
}

int exported_user_inputs(const Exported *e) {
  int n = 0;
  for (int i = 0; i < e->graph->ninputs; i++) n += e->inputs[i].kind == IN_USER;
  return n;
}

bool exported_is_mutated(const Exported *e, const char *fqn) {
  for (int i = 0; i < e->graph->noutputs; i++) {
    OutputKind k = e->outputs[i].kind;
    if ((k == OUT_BUFFER_MUTATION || k == OUT_PARAMETER_MUTATION) && !strcmp(e->outputs[i].target, fqn))
      return true;
  }
  return false;
}

/* The words of the text form, and of .pt2 files. */
const char *input_kind_name(InputKind k) {
  static const char *const names[] = {"user", "parameter", "buffer", "tensor_constant", "constant", "token"};
  return names[k];
}

const char *output_kind_name(OutputKind k) {
  static const char *const names[] = {"user",
                                      "loss",
                                      "buffer_mutation",
                                      "parameter_mutation",
                                      "gradient_to_parameter",
                                      "gradient_to_user_input",
                                      "user_input_mutation",
                                      "token"};
  return names[k];
}
