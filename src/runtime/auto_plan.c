/* auto_plan.c -- see auto_plan.h. */
#include "runtime/auto_plan.h"

#include <stdlib.h>
#include <string.h>

#include "dist/dispatch.h"
#include "plan/blocks.h"
#include "runtime/plan_price.h"

/* What a plan costs, in seconds of a machine of which only the proportions matter.  A byte
 * of weights on a rank counts as much as four bytes sent: memory is what one shards for. */
static const double FLOPS = 100e12, LINK = 90e9, WEIGHTS = 22.5e9;

typedef enum { ROLE_NONE, ROLE_COLUMNS, ROLE_ROWS, ROLE_HEAD, ROLE_TABLE } Role;

static const Style style_of[] = {
    [ROLE_NONE] = STYLE_REPLICATE,
    [ROLE_COLUMNS] = STYLE_COLWISE,
    [ROLE_ROWS] = STYLE_ROWWISE,
    [ROLE_HEAD] = STYLE_COLWISE_GATHER_OUTPUT,
    [ROLE_TABLE] = STYLE_EMBEDDING_ROWWISE,
};

/* A weight that could be cut. */
typedef struct {
  int input, feature, contracted; /* dimensions */
  bool table;
  const WeightUse *use;
  Role role;
  int choice; /* decided with these */
  bool entered;
} Weight;

typedef struct {
  const char *pattern;
  Style style;
  int choice;
} Entry;

typedef struct {
  const Exported *e;
  const PlanFile *asked; /* "auto", and what is said beside it */
  const Mesh *mesh;
  const GradOptions *grad; /* NULL: no gradients */
  Arena arena;
  Probe *probe;
  Blocks blocks;
  Weight *weight;
  int nweights;
  Weight **weight_at; /* by input: the one that is no table; NULL: none */
  int *position;      /* of nodes, by id of the first result */
  const char **owner; /* of every weight: its module; "" where it has none */
  Entry *entry;
  int nentries, nchoices;
  int head, kept; /* choices of one weight: its results are gathered, or stay sharded for what follows; -1: none */
  bool *off;      /* by choice */
} Auto;

/* ---- weights --------------------------------------------------------------------------------- */

static Status consider(Auto *a, int input) {
  const Val *v = a->e->graph->inputs[input];
  const Tensor *t = probe_tensor(a->probe, v);
  const WeightUses *uses;
  if (a->e->inputs[input].kind != IN_PARAMETER || !t || t->ndim < 2) return OK;
  TRY(weight_uses(a->probe, v, &uses));
  Weight table = {.input = input, .feature = -1, .contracted = -1, .table = true, .choice = -1};
  for (int u = 0; u < uses->n; u++) {
    Weight w = {.input = input, .feature = -1, .contracted = -1, .use = &uses->use[u], .choice = -1};
    for (int d = 0; d < t->ndim; d++) {
      if (w.use->role[d] == DIM_FEATURE) w.feature = d;
      if (w.use->role[d] == DIM_CONTRACTED) w.contracted = d;
    }
    if (w.use->table && w.contracted == 0) table.contracted = 0, table.use = w.use;
    if (w.use->table || w.feature < 0 || w.contracted < 0) continue;
    a->weight[a->nweights++] = w;
    if (table.contracted < 0) return OK;
    break;
  }
  for (int u = 0; u < uses->n && table.contracted < 0; u++)
    if (uses->use[u].table && uses->use[u].role[0] == DIM_CONTRACTED)
      table.contracted = 0, table.use = &uses->use[u];
  if (table.contracted == 0 && !(a->nweights && a->weight[a->nweights - 1].input == input))
    a->weight[a->nweights++] = table;
  return OK;
}

static Status find_weights(Auto *a) {
  const Graph *g = a->e->graph;
  int i = 0;
  TRY_NEW(a->weight, arena_new_n(&a->arena, Weight, 2 * g->ninputs + 1));
  TRY_NEW(a->position, arena_new_n(&a->arena, int, g->nvals + 1));
  for (const Node *n = g->first; n; n = n->next, i++)
    if (n->nouts) a->position[n->outs[0]->id] = i;
  TRY_NEW(a->weight_at, arena_new_n(&a->arena, Weight *, g->ninputs + 1));
  for (i = 0; i < g->ninputs; i++) TRY(consider(a, i));
  for (i = a->nweights - 1; i >= 0; i--)
    if (!a->weight[i].table) a->weight_at[a->weight[i].input] = &a->weight[i];
  for (i = 0; i < a->nweights; i++) {
    const Weight *w = &a->weight[i];
    const Val *val;
    int dim;
    if (w->table) continue;
    TRY(weight_partner(a->probe, w->use, w->contracted, &val, &dim));
    if (val) TRY(blocks_add_rows(&a->blocks, w->input, w->contracted, w->use, val, dim));
  }
  for (i = 0; i < a->nweights; i++)
    if (!a->weight[i].table)
      TRY(blocks_add_columns(&a->blocks, a->weight[i].input, a->weight[i].feature, a->weight[i].use));
  return OK;
}

/* ---- pairs ------------------------------------------------------------------------------------- */

static Weight *weight_of(Auto *a, int member) { return a->weight_at[a->blocks.member[member].input]; }

/* A meeting of Blocks, and where in the program it is. */
typedef struct {
  int place, meeting;
} Place;

static int by_place(const void *x, const void *y) {
  const Place *a = x, *b = y;
  return a->place != b->place ? a->place - b->place : a->meeting - b->meeting;
}

/* The meetings at one node: columns[0..n) and rows.  They become a pair if all are free. */
static void pair_at(Auto *a, const Place *at, int n) {
  const Meeting *met = a->blocks.met;
  Weight *rows = weight_of(a, met[at[0].meeting].rows);
  bool free = rows && rows->role == ROLE_NONE;
  for (int i = 0; i < n; i++) {
    Weight *columns = weight_of(a, met[at[i].meeting].columns);
    if (columns) free &= columns != rows && (columns->role == ROLE_NONE || columns->role == ROLE_COLUMNS);
  }
  if (!free) return;
  rows->role = ROLE_ROWS;
  for (int i = 0; i < n; i++) {
    Weight *columns = weight_of(a, met[at[i].meeting].columns);
    if (columns) columns->role = ROLE_COLUMNS;
  }
}

/* In the order of the program, so that a chain of layers is cut in pairs from its start. */
static Status pair_weights(Auto *a) {
  const Blocks *b = &a->blocks;
  Place *order;
  TRY_NEW(order, arena_new_n(&a->arena, Place, b->nmet + 1));
  for (int i = 0; i < b->nmet; i++) order[i] = (Place){a->position[b->met[i].node->outs[0]->id], i};
  if (b->nmet) qsort(order, (size_t)b->nmet, sizeof *order, by_place);
  for (int i = 0, k; i < b->nmet; i = k) {
    for (k = i + 1; k < b->nmet && order[k].place == order[i].place;) k++;
    pair_at(a, &order[i], k - i);
  }
  return OK;
}

/* The last product of the program. */
static void choose_head(Auto *a) {
  Weight *head = NULL;
  for (int i = 0; i < a->nweights; i++) {
    Weight *w = &a->weight[i];
    if (!w->table && (!head || a->position[w->use->node->outs[0]->id] > a->position[head->use->node->outs[0]->id]))
      head = w;
  }
  if (head && head->role == ROLE_NONE) head->role = ROLE_HEAD;
  for (int i = 0; i < a->nweights; i++)
    if (a->weight[i].table) a->weight[i].role = ROLE_TABLE;
}

/* ---- entries ------------------------------------------------------------------------------------- */

/* The first `numbers` numbers between dots become '*'. */
static Status pattern_of(Auto *a, const char *name, int numbers, const char **out) {
  char *p, *to;
  TRY_NEW(p, arena_strdup(&a->arena, name));
  to = p;
  for (const char *at = name; *at;) {
    size_t n = strcspn(at, ".");
    bool number = n > 0 && strspn(at, "0123456789") == n;
    if (number && numbers-- > 0) *to++ = '*';
    else {
      memcpy(to, at, n);
      to += n;
    }
    at += n;
    if (*at) *to++ = *at++;
  }
  *to = 0;
  *out = p;
  return OK;
}

/* Every weight that the pattern would speak of has that role.  module: it is one of modules. */
static bool speaks_of(const Auto *a, const char *pattern, bool module, Role role) {
  PlanEntry e = {.pattern = pattern};
  for (int i = 0; i < a->nweights; i++) {
    const char *name = a->e->inputs[a->weight[i].input].target;
    if (a->weight[i].role != role && pattern_matches(&e, module ? a->owner[i] : name)) return false;
  }
  return true;
}

/* The pattern with the most stars that speaks of weights with that role only. */
static Status family_of(Auto *a, const char *name, bool module, Role role, const char **out) {
  int numbers = 0;
  for (const char *at = name; *at; at += strcspn(at, "."), at += *at == '.') {
    size_t n = strcspn(at, ".");
    numbers += n > 0 && strspn(at, "0123456789") == n;
  }
  for (; numbers >= 0; numbers--) {
    TRY(pattern_of(a, name, numbers, out));
    if (speaks_of(a, *out, module, role)) break;
  }
  return OK;
}

static Status add_entry(Auto *a, const char *name, bool module, Role role, int *choice) {
  const char *pattern;
  TRY(family_of(a, name, module, role, &pattern));
  for (int i = 0; i < a->nentries; i++)
    if (!strcmp(a->entry[i].pattern, pattern)) {
      if (*choice < 0) *choice = a->entry[i].choice;
      return OK;
    }
  if (*choice < 0) *choice = a->nchoices++;
  a->entry[a->nentries++] = (Entry){pattern, style_of[role], *choice};
  return OK;
}

/* A weight called so makes its module an entry; others (and their biases) are named. */
static Status enter(Auto *a, Weight *w) {
  const char *name = a->e->inputs[w->input].target, *dot = strrchr(name, '.');
  bool module = dot && !strcmp(dot, ".weight");
  if (w->entered) return OK;
  w->entered = true;
  TRY(add_entry(a, module ? a->owner[w - a->weight] : name, module, w->role, &w->choice));
  for (int i = 0; !module && w->role == ROLE_COLUMNS && i < w->use->node->nargs; i++) {
    const Arg *arg = &w->use->node->args[i];
    const Val *v = arg->kind == ARG_VAL ? arg->val : NULL;
    if (v && v != w->use->weight && !v->node && a->e->inputs[v->index].kind == IN_PARAMETER)
      TRY(add_entry(a, a->e->inputs[v->index].target, false, w->role, &w->choice));
  }
  return OK;
}

/* The head's results may stay sharded instead: a loss over them exchanges sums and not rows. */
static void offer_kept(Auto *a) {
  a->head = a->kept = -1;
  for (int i = a->nentries - 1; i >= 0; i--) {
    if (a->entry[i].style != STYLE_COLWISE_GATHER_OUTPUT) continue;
    a->head = a->entry[i].choice;
    a->kept = a->nchoices++;
    a->entry[a->nentries++] = (Entry){a->entry[i].pattern, STYLE_COLWISE, a->kept};
    return;
  }
}

/* Pairs are one choice: what meets is on or off together. */
static Status make_entries(Auto *a) {
  TRY_NEW(a->entry, arena_new_n(&a->arena, Entry, 8 * a->nweights + 1));
  TRY_NEW(a->owner, arena_new_n(&a->arena, const char *, a->nweights + 1));
  for (int i = 0; i < a->nweights; i++) {
    char *name, *dot;
    TRY_NEW(name, arena_strdup(&a->arena, a->e->inputs[a->weight[i].input].target));
    dot = strrchr(name, '.');
    *(dot ? dot : name) = 0;
    a->owner[i] = name;
  }
  for (int i = 0; i < a->blocks.nmet; i++) {
    Weight *c = weight_of(a, a->blocks.met[i].columns), *r = weight_of(a, a->blocks.met[i].rows);
    if (!c || !r || c->role != ROLE_COLUMNS || r->role != ROLE_ROWS) continue;
    if (r->choice < 0) r->choice = c->choice;
    TRY(enter(a, c));
    if (r->choice < 0) r->choice = c->choice;
    TRY(enter(a, r));
  }
  for (int i = 0; i < a->nweights; i++)
    if (a->weight[i].role == ROLE_HEAD || a->weight[i].role == ROLE_TABLE) TRY(enter(a, &a->weight[i]));
  offer_kept(a);
  TRY_NEW(a->off, arena_new_n(&a->arena, bool, a->nchoices + 1));
  if (a->kept >= 0) a->off[a->kept] = true;
  return OK;
}

/* Without entries; what was asked for beside them stays. */
static Status new_plan(const Auto *a, PlanFile **out) {
  TRY(plan_file_new("auto", out));
  (*out)->any_batch = a->asked->any_batch;
  if (!a->asked->data_axis) return OK;
  (*out)->data_axis = arena_strdup(&(*out)->arena, a->asked->data_axis);
  if ((*out)->data_axis) return OK;
  plan_file_free(*out);
  return fail_oom();
}

/* Of all entries, or of those that are not off. */
static Status build_plan(const Auto *a, bool all, PlanFile **out) {
  PlanFile *p;
  TRY(new_plan(a, &p));
  Status s = OK;
  for (int i = 0; i < a->nentries && !s; i++)
    if (all || !a->off[a->entry[i].choice]) s = plan_file_add(p, a->entry[i].pattern, a->entry[i].style);
  if (s) plan_file_free(p);
  else *out = p;
  return s;
}

/* ---- what a plan costs ------------------------------------------------------------------------------ */

/* The whole plan, what its entries speak of, and the prices of its parts. */
typedef struct {
  PlanFile *plan;
  Marker *marker;
  PlanPrice *prices;
  bool *off; /* by entry */
} Trials;

/* Gradients that cannot be had are refused when they are asked for, not here. */
static const GradRequest *wanted(Auto *a, GradRequest *room) {
  if (!a->grad) return NULL;
  Status s = grad_request(a->e, a->grad, &a->arena, room);
  if (!s) return room;
  status_free(s);
  return NULL;
}

static Status trials_open(Auto *a, Trials *t) {
  GradRequest grad;
  TRY(build_plan(a, true, &t->plan));
  TRY(plan_price_open(a->probe, a->mesh, wanted(a, &grad), &t->prices));
  TRY(marker_open(a->probe, plan_price_mesh(t->prices), t->plan, NULL, &t->marker));
  TRY_NEW(t->off, arena_new_n(&a->arena, bool, a->nentries + 1));
  return OK;
}

static void trials_close(Trials *t) {
  marker_close(t->marker);
  plan_price_close(t->prices);
  plan_file_free(t->plan);
}

static Status price(const Auto *a, Trials *t, double *seconds) {
  Marks *marks;
  Price p;
  for (int i = 0; i < a->nentries; i++) t->off[i] = a->off[a->entry[i].choice];
  TRY(marker_marks(t->marker, t->off, &marks));
  Status s = plan_price(t->prices, marks, &p);
  marker_take_back(t->marker, marks);
  *seconds = (double)p.sent / LINK + p.flops / FLOPS + (double)p.weights / WEIGHTS;
  return s;
}

static void swap_head(Auto *a) {
  bool off = a->off[a->head];
  a->off[a->head] = a->off[a->kept];
  a->off[a->kept] = off;
}

/* Each choice off, if that is cheaper. */
static Status search_with(Auto *a, Trials *t) {
  double best, now;
  TRY(price(a, t, &best));
  if (a->head >= 0) {
    swap_head(a);
    TRY(price(a, t, &now));
    if (now < best) best = now;
    else swap_head(a);
  }
  for (int i = 0; i < a->nchoices; i++) {
    if (a->off[i]) continue;
    a->off[i] = true;
    TRY(price(a, t, &now));
    if (now < best) best = now;
    else a->off[i] = false;
  }
  return OK;
}

static Status search(Auto *a) {
  Trials t = {0};
  Status s = trials_open(a, &t);
  if (!s) s = search_with(a, &t);
  trials_close(&t);
  if (s && status_code(s) == ERR_DYNAMIC) { /* sizes that depend on data have no price */
    status_free(s);
    return OK;
  }
  return s;
}

/* ---- all of it ---------------------------------------------------------------------------------------- */

static Status derive(Auto *a, PlanFile **out) {
  TRY(blocks_open(&a->blocks, a->probe));
  a->blocks.strict = true;
  TRY(find_weights(a));
  TRY(pair_weights(a));
  choose_head(a);
  TRY(make_entries(a));
  TRY(search(a));
  return build_plan(a, false, out);
}

/* Of an inlined and functional program.  Cuts the tensor-parallel axis of the mesh. */
static Status auto_plan(Probe *probe, const Mesh *mesh, const PlanFile *asked, const GradOptions *grad,
                        PlanFile **out) {
  Auto a = {.e = probe->e, .mesh = mesh, .probe = probe, .asked = asked, .grad = grad};
  if (mark_tensor_axis(mesh, asked) < 0) return new_plan(&a, out); /* only batches are cut */
  Status s = derive(&a, out);
  blocks_close(&a.blocks);
  arena_free(&a.arena);
  return s;
}

Status mark_with_plan(const Exported *e, Mesh *mesh, const PlanFile *plan, const GradOptions *grad, TextBuf *notes,
                      Marks **out) {
  PlanFile *derived = NULL;
  Probe probe;
  Status s = probe_open(&probe, e);
  if (!s && plan && plan->automatic) s = auto_plan(&probe, mesh, plan, grad, &derived);
  if (!s) s = mark(&probe, mesh, derived ? derived : plan, notes, out);
  probe_close(&probe);
  if (s) plan_file_free(derived);
  else (*out)->derived = derived;
  return s;
}
