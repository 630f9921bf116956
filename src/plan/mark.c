/* mark.c -- see mark.h.
 *
 * In order: which entry of the plan speaks of which weight; what the weight's dimensions
 * are to the ops that use it (weight_use.h); which pieces must stay together (blocks.h);
 * then placements, and what is asked around the nodes that use the weights:
 *
 *            weight                 its argument            its result
 *   columns  S(feature)             whole                   left cut, or whole (gather_output)
 *   rows     S(contracted)          S, as the weight        whole, or cut along the sequence
 */
#include "plan/mark.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/blocks.h"
#include "plan/mark_sequence.h"
#include "plan/plan_names.h"
#include "plan/tied.h"
#include "shard/view_calculus.h"

typedef enum { SIDE_NONE, SIDE_COLUMNS, SIDE_ROWS } Side;

/* What a style asks for. */
static const struct {
  Side side;
  bool gather; /* results are to be whole */
} style_table[STYLE_COUNT] = {
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

/* An entry of the plan that speaks of an input of the graph. */
typedef struct {
  const PlanEntry *entry;
  const char *name;   /* fqn that matched */
  const char *module; /* NULL: the entry names the parameter itself */
  int input, axis;
  int dim; /* that is cut; -1: none */
  Side side;
  WeightUses *uses;
} Planned;

typedef struct {
  const Exported *e;
  Mesh *mesh;
  const PlanFile *plan;
  TextBuf *notes;
  Marks *m;
  Probe probe;
  Blocks blocks;
  Tied tied;
  Planned *planned;
  int nplanned, planned_cap;
  const PlanEntry *noted; /* the last one that a note was about */
  PlanNames names;
} Marker;

static void note(Marker *k, const char *fmt, const char *a, const char *b) {
  if (k->notes) text_printf(k->notes, fmt, a, b);
}

/* ---- which entry speaks of what ---------------------------------------------------------------------- */

static bool is_named(const char *name, const char *const *list) {
  for (; name && *list; list++)
    if (!strcmp(name, *list)) return true;
  return false;
}

static bool is_data_axis(const Mesh *m, int a) {
  static const char *const names[] = {"dp", "data", "ddp", "batch", "fsdp", "replica", NULL};
  return is_named(m->name[a], names);
}

int mark_tensor_axis(const Mesh *m) {
  static const char *const names[] = {"tp", "tensor", "model", "mp", NULL};
  int last = -1;
  for (int a = 0; a < m->naxes; a++) {
    if (is_named(m->name[a], names)) return a;
    if (!is_data_axis(m, a)) last = a;
  }
  return last;
}

static Status axis_of(const Marker *k, const PlanEntry *e, int *out) {
  const Mesh *m = k->mesh;
  *out = e && e->axis ? mesh_axis_named(m, e->axis) : mark_tensor_axis(m);
  char text[256];
  if (e && e->axis && *out < 0)
    return status_hint(fail(ERR_USAGE, "%s: '%s' names the axis '%s', which the mesh does not have", k->plan->path,
                            e->pattern, e->axis),
                       "the mesh is %s", mesh_text(m, text, sizeof text));
  if (*out < 0) *out = m->naxes - 1;
  return OK;
}

static Status add_planned(Marker *k, Planned p) {
  TRY_NEW(k->planned, arena_more(&k->m->arena, k->planned, k->nplanned, &k->planned_cap));
  k->planned[k->nplanned++] = p;
  return OK;
}

/* ---- dimensions ------------------------------------------------------------------------------------------ */

static const Val *input_val(const Marker *k, int input) { return k->e->graph->inputs[input]; }

static bool is_used(const Marker *k, int input) {
  int id = input_val(k, input)->id;
  return k->probe.first_user[id] < k->probe.first_user[id + 1];
}

static bool use_in_module(const WeightUse *u, const char *module) {
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
  const Tensor *t = probe_tensor(&k->probe, input_val(k, p->input));
  p->side = style_table[p->entry->style].side;
  p->dim = -1;
  TRY_NEW(p->uses, arena_new(&k->m->arena, WeightUses));
  if (!t || p->side == SIDE_NONE) return OK;
  TRY(weight_uses(&k->probe, input_val(k, p->input), p->uses));
  p->dim = dim_with_role(p, t, p->side == SIDE_COLUMNS ? DIM_FEATURE : DIM_CONTRACTED);
  return OK;
}

/* An entry that found weights but none that can be cut so. */
static Status cannot(const Marker *k, const PlanEntry *e, const char *name) {
  return status_hint(
      fail(ERR_USAGE, "%s: '%s' is to be %s, but no op uses it in a way that allows it", k->plan->path, name,
           style_name(e->style)),
      style_table[e->style].side == SIDE_ROWS
          ? "rowwise cuts a dimension that is contracted with the activations; norms and biases have none"
          : "colwise cuts a feature dimension of the result");
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
  const Tensor *t = probe_tensor(&k->probe, v);
  for (int d = 0; t && d < t->ndim; d++)
    if (t->size[d] == 1) return true;
  for (int i = k->probe.first_user[v->id]; i < k->probe.first_user[v->id + 1]; i++)
    if (k->probe.user[i] && !k->probe.user[i]->op) return true;
  return false;
}

static Status match_entry(Marker *k, const PlanEntry *e) {
  bool matched = false, cut = false, used = false, single = false;
  const char *name = e->pattern;
  int axis;
  TRY(axis_of(k, e, &axis));
  for (int i = 0; i < k->e->nstate; i++) {
    const StateEntry *s = &k->e->state[i];
    const char *module = NULL;
    if (s->is_constant) continue;
    if (!pattern_matches(e, s->fqn)) {
      TRY(names_module(&k->names, s->fqn, &module));
      if (!*module || !pattern_matches(e, module)) continue;
      if (e->style == STYLE_PLACEMENTS && !s->is_parameter) continue;
    }
    matched = true;
    int weight = k->tied.weight[i]; /* by this name or another */
    for (int t = k->tied.first[weight]; t < k->tied.first[weight + 1]; t++) {
      int input = k->tied.input[t];
      if (!is_used(k, input)) continue;
      Planned p = {.entry = e, .name = s->fqn, .module = module, .axis = axis, .input = input, .dim = -1};
      used = true;
      if (!cut) name = s->fqn;
      TRY(choose_dim(k, &p));
      cut |= p.dim >= 0;
      single |= cannot_be_asked(k, &p);
      TRY(add_planned(k, p));
    }
  }
  if (!matched && !names_around(&k->names, e)) {
    TRY(names_missing(&k->names, k->plan, e));
    note(k, "'%s' of %s matches nothing here\n", e->pattern, k->plan->path);
    return OK;
  }
  if (!matched && e->style == STYLE_EMBEDDING_ROWWISE) { /* images and sounds: what Hugging Face calls the input
                                                            embeddings need not be a table */
    note(k, "'%s' has no table: %s\n", e->pattern, "its modules stay as other entries say");
    return OK;
  }
  if (!matched && !e->anywhere && (style_table[e->style].side != SIDE_NONE || e->style == STYLE_PLACEMENTS))
    return no_weights(k, e);
  if (used && !cut && style_table[e->style].side != SIDE_NONE) {
    if (!single) return cannot(k, e, name);
    note(k, "%s stays whole: %s\n", name, "it has a single element to cut, or is used in a branch");
  }
  return OK;
}

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

Status marks_want_after(Marks *m, const Val *v, int axis, Placement place, const char *why) {
  Want **w = &m->after[v->id];
  if (*w && (*w)->axes >> axis & 1 && placement_equal(&(*w)->place[axis], &place)) return OK;
  if (!*w) TRY_NEW(*w, arena_new(&m->arena, Want));
  (*w)->axes |= 1u << axis;
  (*w)->place[axis] = place;
  (*w)->why = why;
  return OK;
}

static Status why_of(Marker *k, const Planned *p, const char **out) {
  char text[512];
  snprintf(text, sizeof text, "%s '%s'", style_name(p->entry->style),
           p->module && *p->module ? p->module : p->name);
  TRY_NEW(*out, arena_strdup(&k->m->arena, text));
  return OK;
}

/* Activations of the node are whole on the axis. */
static Status want_whole_arguments(Marker *k, const WeightUse *u, int axis, const char *why) {
  const Node *n = u->node;
  for (int i = 0; i < n->nargs; i++) {
    const Val *v = n->args[i].kind == ARG_VAL ? n->args[i].val : NULL;
    if (v && v != u->weight && v->type == TY_TENSOR && k->probe.activation[v->id])
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
  int64_t n = probe_tensor(&k->probe, input_val(k, p->input))->size[p->dim];
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
  TRY(weight_partner(&k->probe, u, p->dim, &val, &dim));
  Placement with;
  if (val && part_place(k, p, u, place, &with)) {
    with.dim = dim;
    if (is_s(place)) TRY(marks_want_before(k->m, u->node, val, p->axis, with, why));
  }
  Placement paid = place_r();
  sequence_place(k->m, out, p->axis, &paid);
  TRY(marks_want_after(k->m, out, p->axis, paid, why));
  k->m->after[out->id]->pays = true;
  return OK;
}

/* ---- placements --------------------------------------------------------------------------------------------- */

static Status collect_blocks(Marker *k) {
  for (int i = 0; i < k->nplanned; i++) {
    const Planned *p = &k->planned[i];
    for (int u = 0; p->dim >= 0 && u < p->uses->n; u++) {
      const WeightUse *use = &p->uses->use[u];
      const Val *val;
      int dim;
      if (use->role[p->dim] != DIM_CONTRACTED) continue;
      TRY(weight_partner(&k->probe, use, p->dim, &val, &dim));
      if (val) TRY(blocks_add_rows(&k->blocks, p->input, p->dim, use, val, dim));
    }
  }
  for (int i = 0; i < k->nplanned; i++) {
    const Planned *p = &k->planned[i];
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

static Status wrong_length(const Marker *k, const char *name, int n) {
  char text[256];
  Status s = fail(ERR_USAGE, "%s: '%s' has %d placements for a mesh of %d ax%s", k->plan->path, name, n,
                  k->mesh->naxes, k->mesh->naxes == 1 ? "is" : "es");
  return status_hint(s, "one for each axis of %s, or a single one for the axis that styles cut",
                     mesh_text(k->mesh, text, sizeof text));
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
  TRY(why_of(k, p, &why));
  if (p->entry->style == STYLE_PLACEMENTS) {
    Placement list[MAX_AXES];
    const Tensor *t = probe_tensor(&k->probe, input_val(k, p->input));
    int n;
    bool module_bias = p->module && t && t->ndim < 2; /* S(1) of a module is its matrix's */
    TRY(status_at(placements_parse(p->entry->placements, t && !module_bias ? t->ndim : -1, list, &n),
                  "%s: the entry of '%s'", k->plan->path, p->entry->pattern));
    if (n != 1 && n != k->mesh->naxes) return wrong_length(k, p->entry->pattern, n);
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
  int64_t packed = packed_count(k, p), n = probe_tensor(&k->probe, input_val(k, p->input))->size[p->dim];
  if (packed > 1 && is_plain_s(&place) && n % packed == 0) place.factor = packed;
  if (packed > 1 && n % packed)
    return fail(ERR_USAGE, "%s: '%s' has %lld features, not a multiple of the %lld packed parts", k->plan->path,
                p->name, (long long)n, (long long)packed);
  if (is_r(&place) && k->noted != p->entry) { /* once for all layers */
    note(k, "'%s' stays whole on the axis '%s': it has fewer heads than there are ranks\n", p->entry->pattern,
         k->mesh->name[p->axis] ? k->mesh->name[p->axis] : "");
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
    if (!s || is_used(k, i)) continue;
    int weight = k->tied.weight[s - k->e->state];
    for (int t = k->tied.first[weight]; t < k->tied.first[weight + 1]; t++) {
      int j = k->tied.input[t];
      if (is_used(k, j)) k->m->input[i] = k->m->input[j];
    }
  }
}

/* Buffers that heads are written to are cut like them. */
static Status place_buffers(Marker *k) {
  int axis;
  TRY(axis_of(k, NULL, &axis));
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

/* ---- inputs and outputs
 * ------------------------------------------------------------------------------------------ */

static Status parse_all(const Marker *k, const PlanPair *pair, int ndim, Placement *out) {
  int n, axis;
  Placement list[MAX_AXES];
  TRY(status_at(placements_parse(pair->text, ndim, list, &n), "%s: '%s'", k->plan->path, pair->name));
  if (n != 1 && n != k->mesh->naxes) return wrong_length(k, pair->name, n);
  TRY(axis_of(k, NULL, &axis));
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

static bool is_user_output(OutputKind kind) {
  return kind != OUT_BUFFER_MUTATION && kind != OUT_PARAMETER_MUTATION && kind != OUT_USER_INPUT_MUTATION;
}

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
    const Tensor *t = k->e->inputs[i].kind == IN_USER ? probe_tensor(&k->probe, input_val(k, i)) : NULL;
    if (t && t->ndim) return t->size[0];
  }
  return -1;
}

static Status place_user_inputs(Marker *k) {
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
    const Tensor *t = probe_tensor(&k->probe, v);
    int64_t shards = 1;
    for (int a = 0; t && t->ndim && t->size[0] == batch && a < k->mesh->naxes; a++) {
      if (!is_data_axis(k->mesh, a) || batch % (shards * k->mesh->axis[a])) continue;
      shards *= k->mesh->axis[a];
      mark->place[a] = place_s(0);
      mark->batch = true;
      mark->why = "the batch on the data axis";
    }
  }
  return check_seen(k, "input", k->plan ? k->plan->inputs : NULL, k->plan ? k->plan->ninputs : 0, seen);
}

static Status place_outputs(Marker *k) {
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
        if (name && !strcmp(name, e->outputs[i].target)) memcpy(w->place, k->m->input[j].place, sizeof w->place);
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

/* ---- all of it
 * ---------------------------------------------------------------------------------------------------- */

static Status allocate(Marker *k) {
  const Graph *g = k->e->graph;
  Marks *m = k->m;
  m->mesh = k->mesh;
  m->graph = g;
  m->nvals = g->nvals;
  TRY_NEW(m->input, arena_new_n(&m->arena, InputMark, g->ninputs + 1));
  TRY_NEW(m->output, arena_new_n(&m->arena, Want, g->noutputs + 1));
  TRY_NEW(m->before, arena_new_n(&m->arena, Anchor *, g->nvals + 1));
  TRY_NEW(m->after, arena_new_n(&m->arena, Want *, g->nvals + 1));
  TRY_NEW(m->sequence, arena_new_n(&m->arena, Placement, g->nvals + 1));
  return names_open(&k->names, k->e, &m->arena);
}

/* Modules whose results are to be whole. */
static Status gather_modules(Marker *k, const PlanEntry *e) {
  int axis, i = 0;
  if (e->style != STYLE_GATHER) return OK;
  TRY(axis_of(k, e, &axis));
  for (const Node *n = k->e->graph->first; n; n = n->next, i++) {
    if (!pattern_matches(e, k->names.module[i])) continue;
    for (int o = 0; o < n->nouts; o++) {
      const Val *v = n->outs[o];
      bool leaves = false;
      for (int u = k->probe.first_user[v->id]; u < k->probe.first_user[v->id + 1]; u++) {
        char buf[256];
        const Node *user = k->probe.user[u];
        if (user && strncmp(node_module(user, buf, sizeof buf), k->names.module[i], strlen(k->names.module[i])))
          leaves = true;
      }
      if (leaves && v->type == TY_TENSOR && k->probe.activation[v->id])
        TRY(marks_want_after(k->m, v, axis, place_r(), "gather"));
    }
  }
  return OK;
}

/* A program that talks already is one rank's part. */
static Status refuse_collectives(const Exported *e) {
  for (const Node *n = e->graph->first; n; n = n->next) {
    if (strncmp(n->target, "_c10d_functional", 16)) continue;
    return status_hint(
        fail(ERR_USAGE, "%s is one rank's program already: it calls %s", e->name, n->target),
        "cut the program that it was made of; `tessera run` runs this one with -n RANKS, or all of its folder");
  }
  return OK;
}

static Status run(Marker *k) {
  TRY(refuse_collectives(k->e));
  TRY(allocate(k));
  TRY(tied_find(&k->m->arena, k->e, &k->tied));
  TRY(probe_open(&k->probe, k->e));
  TRY(blocks_open(&k->blocks, &k->probe));
  for (int i = 0; k->plan && i < k->plan->nentries; i++) TRY(match_entry(k, &k->plan->entry[i]));
  TRY(names_check_packed(&k->names, k->plan));
  for (int i = 0; k->plan && i < k->plan->nentries; i++) {
    const PlanEntry *e = &k->plan->entry[i];
    int axis;
    if (e->style != STYLE_SEQUENCE_PARALLEL) continue;
    TRY(axis_of(k, e, &axis));
    TRY(sequence_mark(k->m, &k->probe, e, axis));
  }
  TRY(collect_blocks(k));
  for (int i = 0; i < k->nplanned; i++) TRY(place_planned(k, &k->planned[i]));
  for (int i = 0; k->plan && i < k->plan->nentries; i++) TRY(gather_modules(k, &k->plan->entry[i]));
  TRY(place_buffers(k));
  place_tied(k);
  TRY(place_user_inputs(k));
  return place_outputs(k);
}

Status mark(const Exported *e, Mesh *mesh, const PlanFile *plan, TextBuf *notes, Marks **out) {
  Marker k = {.e = e, .mesh = mesh, .plan = plan, .notes = notes};
  TRY_NEW(k.m, calloc(1, sizeof *k.m));
  Status s = run(&k);
  blocks_close(&k.blocks);
  probe_close(&k.probe);
  if (s) marks_free(k.m);
  else *out = k.m;
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
