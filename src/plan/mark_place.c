/* mark_place.c -- where planned weights lie, and what is asked of the values around them; see
 * marker.h.
 *
 *            weight                 its argument            its result
 *   columns  S(feature)             whole                   left cut, or whole (gather_output)
 *   rows     S(contracted)          S, as the weight        whole, or cut along the sequence
 */
#include <stdio.h>
#include <string.h>

#include "plan/mark_sequence.h"
#include "plan/marker.h"
#include "shard/view_calculus.h"

/* ---- what is asked around a node -------------------------------------------------------------------------- */

Status marks_want_before(Marks *m, const Node *n, const Val *v, int axis, Placement place, const char *why) {
  Anchor **list = &m->before[n->outs[0]->id], *a = *list;
  while (a && a->val != v) a = a->next;
  if (!a) {
    TRY_NEW(a, arena_new(&m->arena, Anchor));
    *a = (Anchor){.next = *list, .val = v};
    *list = a;
  }
  a->want.axes |= 1u << axis;
  a->want.place[axis] = place;
  a->want.why = why;
  return OK;
}

static Status marks_want_after(Marks *m, const Val *v, int axis, Placement place, const char *why) {
  Want **w = &m->after[v->id];
  if (*w && (*w)->axes >> axis & 1 && placement_equal(&(*w)->place[axis], &place)) return OK;
  if (!*w) TRY_NEW(*w, arena_new(&m->arena, Want));
  (*w)->axes |= 1u << axis;
  (*w)->place[axis] = place;
  (*w)->why = why;
  return OK;
}

/* Activations of the node are whole on the axis. */
static Status want_whole_arguments(Marker *k, const WeightUse *u, int axis, const char *why) {
  const Node *n = u->node;
  for (int i = 0; i < n->nargs; i++) {
    const Val *v = n->args[i].kind == ARG_VAL ? n->args[i].val : NULL;
    if (v && v != u->weight && v->type == TY_TENSOR && k->probe->activation[v->id])
      TRY(marks_want_before(k->m, n, v, axis, place_r(), why));
  }
  return OK;
}

static bool is_product(const WeightUse *u) {
  for (int d = 0; d < MAX_DIMS; d++)
    if (u->role[d] == DIM_CONTRACTED) return true;
  return false;
}

/* How the part of the weight that the node gets lies. */
static bool part_place(const Marker *k, const Planned *p, const WeightUse *u, const Placement *place,
                       Placement *out) {
  int64_t n = probe_tensor(k->probe, input_val(k, p->input))->size[p->dim];
  Axes axis = {1, &k->mesh->axis[p->axis]};
  int bad;
  *out = *place;
  if (!is_s(place) || (u->begin[p->dim] == 0 && u->end[p->dim] == n)) return true;
  return view_cut(&axis, p->dim, n, u->begin[p->dim], u->end[p->dim], place, out, &bad);
}

static Status anchor_use(Marker *k, const Planned *p, const WeightUse *u, const Placement *place, const char *why) {
  const Val *out = u->node->outs[0];
  if (u->role[p->dim] == DIM_FEATURE && is_product(u)) {
    TRY(want_whole_arguments(k, u, p->axis, why));
    bool mine = !p->module || use_in_module(u, p->module) || p->uses->n == 1;
    if (style_table[p->entry->style].gather && mine) TRY(marks_want_after(k->m, out, p->axis, place_r(), why));
  }
  if (u->role[p->dim] != DIM_CONTRACTED) return OK;
  const Val *val;
  int dim;
  TRY(weight_partner(k->probe, u, p->dim, &val, &dim));
  Placement with;
  if (val && part_place(k, p, u, place, &with)) {
    with.dim = dim;
    if (is_s(place)) TRY(marks_want_before(k->m, u->node, val, p->axis, with, why));
  }
  Placement reduced = place_r();
  sequence_place(k->m, out, &reduced);
  TRY(marks_want_after(k->m, out, p->axis, reduced, why));
  k->m->after[out->id]->partial_sum = true;
  return OK;
}

/* ---- placements --------------------------------------------------------------------------------------------- */

static Status collect_blocks(Marker *k) {
  for (int i = 0; i < k->nplanned; i++) {
    const Planned *p = &k->planned[i];
    if (!entry_is_on(k, p->entry)) continue;
    for (int u = 0; p->dim >= 0 && u < p->uses->n; u++) {
      const WeightUse *use = &p->uses->use[u];
      const Val *val;
      int dim;
      if (use->role[p->dim] != DIM_CONTRACTED) continue;
      TRY(weight_partner(k->probe, use, p->dim, &val, &dim));
      if (val) TRY(blocks_add_rows(&k->blocks, p->input, p->dim, use, val, dim));
    }
  }
  for (int i = 0; i < k->nplanned; i++) {
    const Planned *p = &k->planned[i];
    if (!entry_is_on(k, p->entry)) continue;
    for (int u = 0; p->dim >= 0 && u < p->uses->n; u++)
      if (p->uses->use[u].role[p->dim] == DIM_FEATURE)
        TRY(blocks_add_columns(&k->blocks, p->input, p->dim, &p->uses->use[u]));
  }
  return OK;
}

static int64_t packed_count(const Marker *k, const Planned *p) {
  for (int i = 0; i < k->plan->npacked; i++) {
    PlanEntry e = {.pattern = k->plan->packed[i].name, .anywhere = p->entry->anywhere};
    if (pattern_matches(&e, p->name) || (p->module && *p->module && pattern_matches(&e, p->module)))
      return k->plan->packed[i].count;
  }
  return 0;
}

static Status set_input(Marker *k, int input, int axis, Placement place, const char *name, const char *why) {
  InputMark *mark = &k->m->input[input];
  char a[128], b[128];
  if (!is_r(&mark->place[axis]) && !is_r(&place) && !placement_equal(&mark->place[axis], &place)) {
    return status_hint(fail(ERR_USAGE, "%s: '%s' is to be %s by %s and %s by %s", k->plan->path, name,
                            placement_print(&mark->place[axis], a, sizeof a), mark->why,
                            placement_print(&place, b, sizeof b), why),
                       "two entries, or two names of tied weights, speak of one tensor: keep one, or give both the "
                       "same placement");
  }
  if (is_r(&place)) return OK;
  mark->place[axis] = place;
  mark->why = why;
  return OK;
}

/* Parts of the product of a weight that is whole. */
static Status cut_parts(Marker *k, const Planned *p, const char *why) {
  for (int i = 0;; i++) {
    const Val *val;
    Placement place;
    TRY(blocks_part(&k->blocks, p->input, p->dim, k->mesh->axis[p->axis], i, &val, &place));
    if (!val) return OK;
    TRY(marks_want_after(k->m, val, p->axis, place, why));
  }
}

static Status place_planned(Marker *k, const Planned *p) {
  const char *why;
  Placement place = place_r();
  TRY_NEW(why, arena_strdup(&k->m->arena, p->why)); /* marks outlive the marker */
  if (p->entry->style == STYLE_PLACEMENTS) {
    Placement list[MAX_AXES];
    const Tensor *t = probe_tensor(k->probe, input_val(k, p->input));
    int n;
    bool module_bias = p->module && t && t->ndim < 2; /* S(1) of a module is its matrix's */
    TRY(status_at(placements_parse(p->entry->placements, t && !module_bias ? t->ndim : -1, list, &n),
                  "%s: the entry of '%s'", k->plan->path, p->entry->pattern));
    if (n != 1 && n != k->mesh->naxes) return marker_wrong_length(k, p->entry->pattern, n);
    for (int a = 0; a < n; a++) {
      if (is_p(&list[a]))
        return fail(ERR_USAGE, "%s: '%s' cannot be placed P: it is a parameter", k->plan->path, p->entry->pattern);
      if (module_bias && is_s(&list[a]) && list[a].dim != 0 && list[a].dim >= t->ndim) continue;
      if (t) TRY(status_at(placements_check(&list[a], 1, t->ndim, p->name), "%s", k->plan->path));
      TRY(set_input(k, p->input, n == 1 ? p->axis : a, list[a], p->name, why));
    }
    return OK;
  }
  if (p->dim < 0) return OK;
  int ranks = k->mesh->axis[p->axis];
  TRY(blocks_place(&k->blocks, p->input, p->dim, ranks, &place));
  int64_t packed = packed_count(k, p), n = probe_tensor(k->probe, input_val(k, p->input))->size[p->dim];
  if (packed > 1 && is_plain_s(&place) && n % packed == 0) place.factor = packed;
  if (packed > 1 && n % packed)
    return fail(ERR_USAGE, "%s: '%s' has %lld features, not a multiple of the %lld packed parts", k->plan->path,
                p->name, (long long)n, (long long)packed);
  if (is_r(&place) && k->noted != p->entry) { /* once for all layers */
    marker_note(k, "'%s' stays whole on the axis '%s': it has fewer heads than there are ranks\n",
                p->entry->pattern, k->mesh->name[p->axis] ? k->mesh->name[p->axis] : "");
    k->noted = p->entry;
  }
  TRY(set_input(k, p->input, p->axis, place, p->name, why));
  if (is_r(&place)) return cut_parts(k, p, why);
  for (int u = 0; u < p->uses->n; u++) TRY(anchor_use(k, p, &p->uses->use[u], &place, why));
  return OK;
}

/* Names of weights that the program does not use lie as the ones it uses. */
static void place_tied(Marker *k) {
  for (int i = 0; i < k->e->graph->ninputs; i++) {
    const StateEntry *s = k->tied.state[i];
    if (!s || marker_uses(k, i)) continue;
    int weight = k->tied.weight[s - k->e->state];
    for (int t = k->tied.first[weight]; t < k->tied.first[weight + 1]; t++) {
      int j = k->tied.input[t];
      if (marker_uses(k, j)) k->m->input[i] = k->m->input[j];
    }
  }
}

/* Buffers that heads are written to are cut like them. */
static Status place_buffers(Marker *k) {
  int axis;
  TRY(marker_axis(k, NULL, &axis));
  for (int i = 0; i < k->e->graph->ninputs; i++) {
    int dim;
    Placement place;
    if (k->e->inputs[i].kind != IN_BUFFER || !is_r(&k->m->input[i].place[axis]) ||
        !blocks_is_member(&k->blocks, i, &dim))
      continue;
    TRY(blocks_place(&k->blocks, i, dim, k->mesh->axis[axis], &place));
    if (!is_r(&place))
      TRY(set_input(k, i, axis, place, k->e->inputs[i].target, "the heads that are written to it"));
  }
  return OK;
}

/* ---- modules whose results are to be whole ----------------------------------------------------- */

/* Modules whose results are to be whole. */
static Status gather_modules(Marker *k, const PlanEntry *e) {
  int axis, i = 0;
  if (e->style != STYLE_GATHER) return OK;
  TRY(marker_axis(k, e, &axis));
  for (const Node *n = k->e->graph->first; n; n = n->next, i++) {
    if (!pattern_matches(e, k->names.module[i])) continue;
    for (int o = 0; o < n->nouts; o++) {
      const Val *v = n->outs[o];
      bool leaves = false;
      for (int u = k->probe->first_user[v->id]; u < k->probe->first_user[v->id + 1]; u++) {
        char buf[256];
        const Node *user = k->probe->user[u];
        if (user && strncmp(node_module(user, buf, sizeof buf), k->names.module[i], strlen(k->names.module[i])))
          leaves = true;
      }
      if (leaves && v->type == TY_TENSOR && k->probe->activation[v->id])
        TRY(marks_want_after(k->m, v, axis, place_r(), "gather"));
    }
  }
  return OK;
}

Status place_weights(Marker *k) {
  TRY(collect_blocks(k));
  for (int i = 0; i < k->nplanned; i++)
    if (entry_is_on(k, k->planned[i].entry)) TRY(place_planned(k, &k->planned[i]));
  for (int i = 0; k->plan && i < k->plan->nentries; i++)
    if (entry_is_on(k, &k->plan->entry[i])) TRY(gather_modules(k, &k->plan->entry[i]));
  TRY(place_buffers(k));
  place_tied(k);
  return OK;
}
