/* mark.c -- see mark.h.
 *
 * In order: which entry of the plan speaks of which weight; what the weight's dimensions
 * are to the ops that use it (weight_use.h); which pieces must stay together (blocks.h);
 * then placements, and what is asked around the nodes that use the weights.
 */
#include "plan/mark.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena_reuse.h"
#include "plan/mark_sequence.h"
#include "plan/marker.h"

void marker_note(Marker *k, const char *fmt, const char *a, const char *b) {
  if (k->notes) text_printf(k->notes, fmt, a, b);
}

/* ---- axes ---------------------------------------------------------------------------------- */

static bool is_named(const char *name, const char *const *list) {
  for (; name && *list; list++)
    if (!strcmp(name, *list)) return true;
  return false;
}

bool mark_is_data_axis(const Mesh *m, const PlanFile *plan, int a) {
  static const char *const names[] = {"dp", "data", "ddp", "batch", "fsdp", "replica", NULL};
  if (plan && plan->data_axis) return m->name[a] && !strcmp(m->name[a], plan->data_axis);
  return is_named(m->name[a], names);
}

int mark_tensor_axis(const Mesh *m, const PlanFile *plan) {
  static const char *const names[] = {"tp", "tensor", "model", "mp", NULL};
  int last = -1;
  for (int a = 0; a < m->naxes; a++) {
    if (mark_is_data_axis(m, plan, a)) continue;
    if (is_named(m->name[a], names)) return a;
    last = a;
  }
  return last;
}

Status marker_axis(const Marker *k, const PlanEntry *e, int *out) {
  const Mesh *m = k->mesh;
  *out = e && e->axis ? mesh_axis_named(m, e->axis) : mark_tensor_axis(m, k->plan);
  char text[256];
  if (e && e->axis && *out < 0)
    return status_hint(fail(ERR_USAGE, "%s: '%s' names the axis '%s', which the mesh does not have", k->plan->path,
                            e->pattern, e->axis),
                       "the mesh is %s", mesh_text(m, text, sizeof text));
  if (*out < 0) *out = m->naxes - 1;
  return OK;
}

bool marker_uses(const Marker *k, int input) {
  int id = input_val(k, input)->id;
  return k->probe->first_user[id] < k->probe->first_user[id + 1];
}

Status marker_wrong_length(const Marker *k, const char *name, int n) {
  char text[256];
  Status s = fail(ERR_USAGE, "%s: '%s' has %d placements for a mesh of %d ax%s", k->plan->path, name, n,
                  k->mesh->naxes, k->mesh->naxes == 1 ? "is" : "es");
  return status_hint(s, "one for each axis of %s, or a single one for the axis that styles shard over",
                     mesh_text(k->mesh, text, sizeof text));
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* A program that talks already is one rank's part. */
static Status refuse_collectives(const Exported *e) {
  for (const Node *n = e->graph->first; n; n = n->next) {
    if (strncmp(n->target, "_c10d_functional", 16)) continue;
    return status_hint(
        fail(ERR_USAGE, "%s is one rank's program already: it calls %s", e->name, n->target),
        "shard the program that it was made of; `tessera run` runs this one with -n RANKS, or all of its folder");
  }
  return OK;
}

static Status find_planned(Marker *k) {
  TRY(refuse_collectives(k->e));
  char text[256];
  if (k->plan && k->plan->data_axis && mesh_axis_named(k->mesh, k->plan->data_axis) < 0)
    return status_hint(fail(ERR_USAGE, "batches are to be sharded over the axis '%s', which the mesh does not have",
                            k->plan->data_axis),
                       "the mesh is %s", mesh_text(k->mesh, text, sizeof text));
  TRY(names_open(&k->names, k->e, &k->arena));
  TRY(tied_find(&k->arena, k->e, &k->tied));
  for (int i = 0; k->plan && i < k->plan->nentries; i++) TRY(match_entry(k, &k->plan->entry[i]));
  return names_check_packed(&k->names, k->plan);
}

Status marker_open(Probe *p, Mesh *mesh, const PlanFile *plan, TextBuf *notes, Marker **out) {
  Marker *k;
  TRY_NEW(k, calloc(1, sizeof *k));
  *k = (Marker){.e = p->e, .probe = p, .mesh = mesh, .plan = plan, .notes = notes};
  Status s = find_planned(k);
  if (s) marker_close(k);
  else *out = k;
  return s;
}

void marker_close(Marker *k) {
  if (!k) return;
  marks_free(k->spare);
  blocks_close(&k->blocks);
  arena_free(&k->arena);
  free(k);
}

static Status allocate(Marks *m, const Graph *g, Mesh *mesh) {
  m->mesh = mesh;
  m->graph = g;
  m->nvals = g->nvals;
  TRY_NEW(m->input, arena_new_n(&m->arena, InputMark, g->ninputs + 1));
  Placement *place;
  TRY_NEW(place, arena_new_n(&m->arena, Placement, g->ninputs * mesh->naxes + 1));
  for (int i = 0; i < g->ninputs; i++) m->input[i].place = place + i * mesh->naxes;
  TRY_NEW(m->output, arena_new_n(&m->arena, Want, g->noutputs + 1));
  TRY_NEW(m->before, arena_new_n(&m->arena, Anchor *, g->nvals + 1));
  TRY_NEW(m->after, arena_new_n(&m->arena, Want *, g->nvals + 1));
  return OK;
}

static Status place_all(Marker *k) {
  TRY(allocate(k->m, k->e->graph, k->mesh));
  TRY(blocks_open(&k->blocks, k->probe));
  for (int i = 0; k->plan && i < k->plan->nentries; i++) {
    const PlanEntry *e = &k->plan->entry[i];
    int axis;
    if (e->style != STYLE_SEQUENCE_PARALLEL || !entry_is_on(k, e)) continue;
    TRY(marker_axis(k, e, &axis));
    if (!k->m->sequence) TRY_NEW(k->m->sequence, arena_new_n(&k->m->arena, Placement, k->e->graph->nvals + 1));
    TRY(sequence_mark(k->m, k->probe, e, axis));
  }
  TRY(place_weights(k));
  TRY(place_user_inputs(k));
  return place_outputs(k);
}

Status marker_marks(Marker *k, const bool *off, Marks **out) {
  k->m = k->spare;
  k->spare = NULL;
  if (!k->m) TRY_NEW(k->m, calloc(1, sizeof *k->m));
  k->off = off;
  k->noted = NULL;
  Status s = place_all(k);
  blocks_clear(&k->blocks);
  if (s) marks_free(k->m);
  else *out = k->m;
  k->m = NULL;
  return s;
}

void marker_take_back(Marker *k, Marks *m) {
  if (k->spare) return marks_free(m);
  plan_file_free(m->derived);
  arena_clear(&m->arena);
  *m = (Marks){.arena = m->arena};
  k->spare = m;
}

Status mark(Probe *p, Mesh *mesh, const PlanFile *plan, TextBuf *notes, Marks **out) {
  Marker *k;
  TRY(marker_open(p, mesh, plan, notes, &k));
  Status s = marker_marks(k, NULL, out);
  marker_close(k);
  return s;
}

void marks_input_places(const Marks *m, int i, int64_t batch, Placement *out) {
  int64_t shards = 1;
  for (int a = 0; a < m->mesh->naxes; a++) {
    out[a] = m->input[i].place[a];
    if (!m->input[i].batch || !is_s(&out[a])) continue;
    if (batch % (shards * m->mesh->axis[a])) out[a] = place_r();
    else shards *= m->mesh->axis[a];
  }
}

void marks_free(Marks *m) {
  if (!m) return;
  plan_file_free(m->derived);
  arena_free(&m->arena);
  free(m);
}