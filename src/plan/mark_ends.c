/* mark_ends.c -- where a program's user inputs and its outputs lie; see marker.h. */
#include <stdio.h>
#include <string.h>

#include "plan/marker.h"

static Status parse_all(const Marker *k, const PlanPair *pair, int ndim, Placement *out) {
  int n, axis;
  Placement list[MAX_AXES];
  TRY(status_at(placements_parse(pair->text, ndim, list, &n), "%s: '%s'", k->plan->path, pair->name));
  if (n != 1 && n != k->mesh->naxes) return marker_wrong_length(k, pair->name, n);
  TRY(marker_axis(k, NULL, &axis));
  for (int a = 0; a < k->mesh->naxes; a++) out[a] = n == 1 ? place_r() : list[a];
  if (n == 1) out[axis] = list[0];
  return status_at(placements_check(out, k->mesh->naxes, ndim, pair->name), "%s", k->plan->path);
}

/* The plan's words for input or output number i called name; NULL: none. */
static const PlanPair *pair_for(const PlanPair *pairs, int n, int i, const char *name) {
  char position[16];
  snprintf(position, sizeof position, "%d", i);
  for (int j = 0; j < n; j++)
    if (!strcmp(pairs[j].name, position) || !strcmp(pairs[j].name, "*") || (name && !strcmp(pairs[j].name, name)))
      return &pairs[j];
  return NULL;
}

static bool is_user_output(OutputKind kind) { return output_is_returned(kind); }

/* A name or position in the plan that no input or output has is an error. */
static Status check_seen(const Marker *k, const char *what, const PlanPair *pairs, int n, const bool *seen) {
  const Graph *g = k->e->graph;
  bool input = *what == 'i';
  int j = 0;
  while (j < n && (seen[j] || !strcmp(pairs[j].name, "*"))) j++;
  if (j == n) return OK;
  TextBuf b = {0};
  int count = 0;
  for (int i = 0; i < (input ? g->ninputs : g->noutputs); i++) {
    if (input ? k->e->inputs[i].kind != IN_USER : !is_user_output(k->e->outputs[i].kind)) continue;
    const Val *v = input ? g->inputs[i] : g->outputs[i].kind == ARG_VAL ? g->outputs[i].val : NULL;
    if (count++ < 8) text_printf(&b, "%s%s", b.text ? ", " : "", v && v->name ? v->name : "(a constant)");
  }
  Status s = fail(ERR_USAGE, "%s: the program has no %s '%s'", k->plan->path, what, pairs[j].name);
  if (b.text)
    s = status_hint(s, "by position, 0 to %d, or by name: %s%s", count - 1, b.text, count > 8 ? " ..." : "");
  text_free(&b);
  return s;
}

/* The batch: the leading size of the first user tensor. */
static int64_t batch_of(const Marker *k) {
  for (int i = 0; i < k->e->graph->ninputs; i++) {
    const Tensor *t = k->e->inputs[i].kind == IN_USER ? probe_tensor(k->probe, input_val(k, i)) : NULL;
    if (t && t->ndim) return t->size[0];
  }
  return -1;
}

Status place_user_inputs(Marker *k) {
  int64_t batch = batch_of(k);
  bool *seen;
  TRY_NEW(seen, arena_new_n(&k->m->arena, bool, k->plan ? k->plan->ninputs + 1 : 1));
  for (int i = 0, u = 0; i < k->e->graph->ninputs; i++) {
    if (k->e->inputs[i].kind != IN_USER) continue;
    const Val *v = input_val(k, i);
    const PlanPair *pair = k->plan ? pair_for(k->plan->inputs, k->plan->ninputs, u++, v->name) : NULL;
    if (pair) seen[pair - k->plan->inputs] = true;
    if (v->type != TY_TENSOR) continue;
    InputMark *mark = &k->m->input[i];
    if (pair) {
      TRY(parse_all(k, pair, v->ndim, mark->place));
      for (int a = 0; a < k->mesh->naxes; a++)
        if (is_p(&mark->place[a]))
          return fail(ERR_USAGE, "%s: input '%s' cannot be placed P: every rank is given the whole", k->plan->path,
                      v->name);
      mark->why = "the plan's inputs";
      continue;
    }
    const Tensor *t = probe_tensor(k->probe, v);
    int64_t shards = 1;
    for (int a = 0; t && t->ndim && t->size[0] == batch && a < k->mesh->naxes; a++) {
      if (!mark_is_data_axis(k->mesh, k->plan, a)) continue;
      if (batch % (shards * k->mesh->axis[a]) && !(k->plan && k->plan->any_batch)) continue;
      shards *= k->mesh->axis[a];
      mark->place[a] = place_s(0);
      mark->batch = !(k->plan && k->plan->any_batch);
      mark->why = "the batch on the data axis";
    }
  }
  return check_seen(k, "input", k->plan ? k->plan->inputs : NULL, k->plan ? k->plan->ninputs : 0, seen);
}

Status place_outputs(Marker *k) {
  const Exported *e = k->e;
  int users = 0;
  bool *seen;
  TRY_NEW(seen, arena_new_n(&k->m->arena, bool, k->plan ? k->plan->noutputs + 1 : 1));
  for (int i = 0; i < e->graph->noutputs; i++) {
    Want *w = &k->m->output[i];
    const Arg *a = &e->graph->outputs[i];
    w->axes = (1u << k->mesh->naxes) - 1;
    w->why = "an output of the program";
    OutputKind kind = e->outputs[i].kind;
    if (!is_user_output(kind)) {
      for (int j = 0; j < e->graph->ninputs; j++) {
        const char *name = kind == OUT_USER_INPUT_MUTATION ? e->graph->inputs[j]->name : e->inputs[j].target;
        if (name && !strcmp(name, e->outputs[i].target))
          memcpy(w->place, k->m->input[j].place, (size_t)k->mesh->naxes * sizeof *w->place);
      }
      w->why = "what the program writes back";
      continue;
    }
    const PlanPair *pair = k->plan ? pair_for(k->plan->outputs, k->plan->noutputs, users++,
                                              a->kind == ARG_VAL ? a->val->name : NULL)
                                   : NULL;
    if (pair) seen[pair - k->plan->outputs] = true;
    if (pair && a->kind == ARG_VAL && a->val->type == TY_TENSOR) TRY(parse_all(k, pair, a->val->ndim, w->place));
  }
  return check_seen(k, "output", k->plan ? k->plan->outputs : NULL, k->plan ? k->plan->noutputs : 0, seen);
}
