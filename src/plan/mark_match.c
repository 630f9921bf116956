/* mark_match.c -- which entry of a plan speaks of which weight, and along which of its dimensions
 * the weight is to be cut; see marker.h. */
#include <stdlib.h>
#include <string.h>

#include "plan/marker.h"

const StyleRow style_table[STYLE_COUNT] = {
    [STYLE_COLWISE] = {SIDE_COLUMNS, false},
    [STYLE_PACKED_COLWISE] = {SIDE_COLUMNS, false},
    [STYLE_COLWISE_GATHER_OUTPUT] = {SIDE_COLUMNS, true},
    [STYLE_ROWWISE] = {SIDE_ROWS, false},
    [STYLE_PACKED_ROWWISE] = {SIDE_ROWS, false},
    [STYLE_ROWWISE_SPLIT_INPUT] = {SIDE_ROWS, false},
    [STYLE_EMBEDDING_ROWWISE] = {SIDE_ROWS, false},
    [STYLE_SEQUENCE_PARALLEL] = {SIDE_NONE, false},
    [STYLE_REPLICATE] = {SIDE_NONE, false},
    [STYLE_GATHER] = {SIDE_NONE, true},
    [STYLE_PLACEMENTS] = {SIDE_NONE, false},
};

static Status add_planned(Marker *k, Planned p) {
  TRY_NEW(k->planned, arena_more(&k->arena, k->planned, k->nplanned, &k->planned_cap));
  k->planned[k->nplanned++] = p;
  return OK;
}
/* ---- dimensions --------------------------------------------------------------------------- */

bool use_in_module(const WeightUse *u, const char *module) {
  char buf[256];
  return module && *module && !strcmp(node_module(u->node, buf, sizeof buf), module);
}

/* The dimension with that role: as the module's own ops use it, if it is used elsewhere too
 * (tied weights); features preferably the last of the result. */
static int dim_with_role(const Planned *p, const Tensor *t, DimRole role) {
  int best = -1, best_rank = -1;
  for (int i = 0; i < p->uses->n; i++) {
    const WeightUse *u = &p->uses->use[i];
    for (int d = 0; d < t->ndim; d++) {
      if (u->role[d] != role) continue;
      int last = u->node->outs[0]->ndim - 1;
      bool table = p->entry->style == STYLE_EMBEDDING_ROWWISE;
      int rank = (u->table == table ? 8 : 0) + (use_in_module(u, p->module) ? 4 : 0) +
                 (u->out[d] == last || role == DIM_CONTRACTED ? 2 : 0);
      if (rank > best_rank || (rank == best_rank && d > best)) best = d, best_rank = rank;
    }
  }
  return best;
}

static Status choose_dim(Marker *k, Planned *p) {
  const Tensor *t = probe_tensor(k->probe, input_val(k, p->input));
  p->side = style_table[p->entry->style].side;
  p->dim = -1;
  if (!t || p->side == SIDE_NONE) return OK;
  TRY(weight_uses(k->probe, input_val(k, p->input), &p->uses));
  p->dim = dim_with_role(p, t, p->side == SIDE_COLUMNS ? DIM_FEATURE : DIM_CONTRACTED);
  return OK;
}

/* An entry that found weights but none that can be cut so. */
static Status cannot(const Marker *k, const PlanEntry *e, const char *name) {
  return status_hint(
      fail(ERR_USAGE, "%s: '%s' is to be %s, but no op uses it in a way that allows it", k->plan->path, name,
           style_name(e->style)),
      style_table[e->style].side == SIDE_ROWS
          ? "rowwise shards a dimension that is contracted with the activations; norms and biases have none"
          : "colwise shards a feature dimension of the result");
}

/* An entry that names modules only whose weights, if any, are those of modules inside. */
static Status no_weights(const Marker *k, const PlanEntry *e) {
  const char *fqn = names_inside(&k->names, e);
  Status s = fail(ERR_USAGE, "%s: '%s' is to be %s, but has no weights of its own", k->plan->path, e->pattern,
                  e->style == STYLE_PLACEMENTS ? e->placements : style_name(e->style));
  return fqn ? status_hint(s, "name the modules inside that have them, such as that of '%s'", fqn)
             : status_hint(s, "styles are for modules with weights; leave the entry out");
}

/* Weights of one feature, or that only the branches of a cond use: nobody is wrong. */
static bool cannot_be_asked(const Marker *k, const Planned *p) {
  const Val *v = input_val(k, p->input);
  const Tensor *t = probe_tensor(k->probe, v);
  for (int d = 0; t && d < t->ndim; d++)
    if (t->size[d] == 1) return true;
  for (int i = k->probe->first_user[v->id]; i < k->probe->first_user[v->id + 1]; i++)
    if (k->probe->user[i] && !k->probe->user[i]->op) return true;
  return false;
}

/* ---- entries -------------------------------------------------------------------------------- */

/* What an entry found. */
typedef struct {
  bool matched, used; /* parameters that it names; ones that some node uses */
  bool cut;           /* ones that can be cut as its style says */
  bool single;        /* ones that need not be */
  const char *name;   /* one of them, for messages */
} Found;

/* Entry e speaks of state entry i. */
static Status match_state(Marker *k, const PlanEntry *e, int axis, int i, const char *module, Found *found) {
  const char *fqn = k->e->state[i].fqn;
  int weight = k->tied.weight[i]; /* by this name or another */
  found->matched = true;
  for (int t = k->tied.first[weight]; t < k->tied.first[weight + 1]; t++) {
    int input = k->tied.input[t];
    if (!marker_uses(k, input)) continue;
    Planned p = {.entry = e, .name = fqn, .module = module, .axis = axis, .input = input, .dim = -1};
    found->used = true;
    if (!found->cut) found->name = fqn;
    TRY(choose_dim(k, &p));
    TRY_NEW(p.why, arena_printf(&k->arena, "%s '%s'", style_name(e->style), module && *module ? module : fqn));
    found->cut |= p.dim >= 0;
    found->single |= cannot_be_asked(k, &p);
    TRY(add_planned(k, p));
  }
  return OK;
}

static Status check_found(Marker *k, const PlanEntry *e, const Found *found) {
  if (!found->matched && !names_around(&k->names, e)) {
    TRY(names_missing(&k->names, k->plan, e));
    marker_note(k, "'%s' of %s matches nothing here\n", e->pattern, k->plan->path);
    return OK;
  }
  if (!found->matched && e->style == STYLE_EMBEDDING_ROWWISE) { /* images and sounds: what Hugging Face calls
                                                            the input embeddings need not be a table */
    marker_note(k, "'%s' has no table: %s\n", e->pattern, "its modules stay as other entries say");
    return OK;
  }
  bool needs_weights = style_table[e->style].side != SIDE_NONE || e->style == STYLE_PLACEMENTS;
  if (!found->matched && !e->anywhere && needs_weights) return no_weights(k, e);
  if (found->used && !found->cut && style_table[e->style].side != SIDE_NONE) {
    if (!found->single) return cannot(k, e, found->name);
    marker_note(k, "%s stays whole: %s\n", found->name, "it has a single element to shard, or is used in a branch");
  }
  return OK;
}

Status match_entry(Marker *k, const PlanEntry *e) {
  Found found = {.name = e->pattern};
  int axis;
  TRY(marker_axis(k, e, &axis));
  bool modules = names_has_modules(&k->names, e), by_module = false;
  const char *last = NULL;
  for (int i = 0; i < k->e->nstate; i++) {
    const StateEntry *s = &k->e->state[i];
    const char *module = k->names.owner[i];
    if (s->is_constant) continue;
    if (module != last) by_module = *module && pattern_matches(e, module), last = module;
    if (modules && *module && !by_module) continue; /* an entry for modules names no weights of others */
    bool by_name = pattern_matches(e, s->fqn);
    if (!by_name && (!by_module || (e->style == STYLE_PLACEMENTS && !s->is_parameter))) continue;
    TRY(match_state(k, e, axis, i, by_name ? NULL : module, &found));
  }
  return check_found(k, e, &found);
}
