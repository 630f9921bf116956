/* folder_plan.c -- see folder_plan.h. */
#include "rank_files/folder_plan.h"

#include <stdio.h>
#include <stdlib.h>

static void print_mesh(TextBuf *b, const Mesh *m) {
  text_puts(b, "{\n \"mesh\": {");
  for (int a = 0; a < m->naxes; a++) {
    char name[24];
    snprintf(name, sizeof name, "axis%d", a);
    if (a) text_puts(b, ", ");
    text_json(b, m->name[a] ? m->name[a] : name);
    text_printf(b, ": %d", m->axis[a]);
  }
  text_puts(b, "}");
}

/* "tp": [[0, 1], [2, 3]] */
static Status print_group(TextBuf *b, const Mesh *m, unsigned axes, Arena *arena) {
  char name[256];
  int *ranks;
  bool first = true;
  TRY_NEW(ranks, arena_new_n(arena, int, m->size));
  text_json(b, mesh_group_name(m, axes, name, sizeof name));
  text_puts(b, ": [");
  for (int i = 0; i < m->size; i++) {
    int coord[MAX_AXES];
    bool leads = true;
    mesh_coord(m->axis, m->naxes, i, coord);
    for (int a = 0; a < m->naxes; a++) leads &= !(axes >> a & 1) || coord[a] == 0;
    if (!leads) continue;
    int n = mesh_group_ranks(m, axes, coord, ranks);
    text_puts(b, first ? "[" : ", [");
    for (int r = 0; r < n; r++) text_printf(b, "%s%d", r ? ", " : "", ranks[r]);
    text_puts(b, "]");
    first = false;
  }
  text_puts(b, "]");
  return OK;
}

static Status print_groups(TextBuf *b, const Partition *c, Arena *arena) {
  bool first = true;
  text_puts(b, ",\n \"groups\": {");
  for (unsigned axes = 1; axes < 1u << c->mesh->naxes; axes++) {
    if (!c->group[axes]) continue;
    text_puts(b, first ? "\n  " : ",\n  ");
    first = false;
    TRY(print_group(b, c->mesh, axes, arena));
  }
  text_puts(b, first ? "}" : "\n }");
  return OK;
}

/* A size that the files leave open. */
static bool is_open(const Partition *c, const Sym *size) { return sym_first_unbound(size, &c->fixed) != NULL; }

/* [{"dim": 0}, null]: how each axis cuts it; null if none does.  "turn": when, among axes that cut one dimension,
 * if not in the order of the mesh.  "even": the program wants a size that its ranks can share evenly.  v: the
 * value, NULL if it is none. */
static void print_cuts(TextBuf *b, const Partition *c, const Placement *p, const Val *v) {
  int naxes = c->mesh->naxes;
  bool cut = false;
  for (int a = 0; a < naxes; a++) cut |= is_s(&p[a]);
  if (!cut) {
    text_puts(b, "null");
    return;
  }
  text_puts(b, "[");
  for (int a = 0; a < naxes; a++) {
    if (a) text_puts(b, ", ");
    if (!is_s(&p[a])) {
      text_puts(b, "null");
      continue;
    }
    text_printf(b, "{\"dim\": %d", p[a].dim);
    if (p[a].factor > 1) text_printf(b, ", \"factor\": %lld", (long long)p[a].factor);
    if (p[a].turn) text_printf(b, ", \"turn\": %d", p[a].turn);
    if (p[a].unit > 1) text_printf(b, ", \"unit\": %lld", (long long)p[a].unit);
    if (v && p[a].dim < v->ndim && is_open(c, v->size[p[a].dim])) text_puts(b, ", \"even\": true");
    for (int i = 0; i < p[a].nsegments; i++)
      text_printf(b, "%s%lld", i ? ", " : ", \"segments\": [", (long long)p[a].segment[i]);
    text_puts(b, p[a].nsegments ? "]}" : "}");
  }
  text_puts(b, "]");
}

static void print_files(TextBuf *b, const Partition *c) {
  const Exported *e = c->program;
  bool first = true;
  text_puts(b, ",\n \"files\": {\n  \"inputs\": [");
  for (int i = 0; i < e->graph->ninputs; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    if (!first) text_puts(b, ", ");
    first = false;
    print_cuts(b, c, c->marks->input[i].place, e->graph->inputs[i]);
  }
  text_puts(b, "],\n  \"outputs\": [");
  first = true;
  for (int i = 0; i < e->graph->noutputs; i++) {
    if (e->outputs[i].kind != OUT_USER && e->outputs[i].kind != OUT_LOSS) continue;
    if (partition_drops_output(c, i)) continue;
    if (!first) text_puts(b, ", ");
    first = false;
    print_cuts(b, c, c->marks->output[i].place, NULL);
  }
  text_puts(b, "]\n }");
}

/* ---- what a training is to know -------------------------------------------------------------------- */

/* An earlier input that is the same tensor under another name; NULL: there is none. */
static const char *tied_to(const Exported *e, int input, const StateEntry *s) {
  for (int j = 0; j < input; j++) {
    const StateEntry *other = e->inputs[j].target ? exported_state(e, e->inputs[j].target) : NULL;
    if (other && other != s && state_is_tied(other, s)) return other->fqn;
  }
  return NULL;
}

/* "tok.weight": {"shape": [31, 16], "shards": [null, {"dim": 0}]} */
static void print_state(TextBuf *b, const Partition *c, int input) {
  const Exported *e = c->program;
  const StateEntry *s = exported_state(e, e->inputs[input].target);
  const char *tied = tied_to(e, input, s);
  text_json(b, s->fqn);
  if (tied) {
    text_puts(b, ": {\"tied\": ");
    text_json(b, tied);
    text_puts(b, "}");
    return;
  }
  text_puts(b, ": {\"shape\": [");
  for (int d = 0; d < s->tensor->ndim; d++) text_printf(b, "%s%lld", d ? ", " : "", (long long)s->tensor->size[d]);
  text_puts(b, "], \"shards\": ");
  print_cuts(b, c, c->marks->input[input].place, NULL);
  text_puts(b, "}");
}

/* {"name": "x", "shape": [12, 8], "open": [0]}: the whole, as it was exported, and which sizes are free. */
static Status print_input(TextBuf *b, const Partition *c, const Val *v, const SymBindings *sizes) {
  bool first = true;
  if (v->type != TY_TENSOR) return text_puts(b, "null"), OK;
  text_puts(b, "{\"name\": ");
  text_json(b, v->name);
  text_puts(b, ", \"shape\": [");
  for (int d = 0; d < v->ndim; d++) {
    int64_t size = d == 0 ? partition_rows(c, v) : 0;
    if (!size) TRY(sym_eval(v->size[d], sizes, &size));
    text_printf(b, "%s%lld", d ? ", " : "", (long long)size);
  }
  text_puts(b, "], \"open\": [");
  for (int d = 0; d < v->ndim; d++) {
    if (!is_open(c, v->size[d])) continue;
    text_printf(b, "%s%d", first ? "" : ", ", d);
    first = false;
  }
  text_puts(b, "]}");
  return OK;
}

static Status print_inputs(TextBuf *b, const Partition *c) {
  const Exported *e = c->program;
  SymBindings sizes;
  bool first = true, open;
  TRY(partition_sizes(c, &sizes, &open));
  Status s = OK;
  text_puts(b, ",\n  \"inputs\": [");
  for (int i = 0; i < e->graph->ninputs && !s; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    text_puts(b, first ? "\n   " : ",\n   ");
    first = false;
    s = print_input(b, c, e->graph->inputs[i], &sizes);
  }
  text_puts(b, "\n  ]");
  free(sizes.v);
  return s;
}

static Status print_training(TextBuf *b, const Partition *c) {
  const Exported *e = c->program;
  bool first = true;
  text_puts(b, ",\n \"train\": {\n  \"state\": {");
  for (int i = 0; i < e->graph->ninputs; i++) {
    const StateEntry *s = e->inputs[i].target ? exported_state(e, e->inputs[i].target) : NULL;
    if (!s || !s->tensor || s->is_constant) continue;
    text_puts(b, first ? "\n   " : ",\n   ");
    first = false;
    print_state(b, c, i);
  }
  text_puts(b, "\n  }");
  TRY(print_inputs(b, c));
  text_puts(b, "\n }");
  return OK;
}

/* ---- all of it ------------------------------------------------------------------------------------------- */

Status folder_plan_print(TextBuf *b, const Partition *c, const PlanFile *plan) {
  Arena arena = {0};
  if (c->marks->derived) plan = c->marks->derived;
  print_mesh(b, c->mesh);
  if (plan) plan_print_members(b, plan);
  Status s = print_groups(b, c, &arena);
  print_files(b, c);
  if (!s && c->wants_grad) s = print_training(b, c);
  text_puts(b, "\n}\n");
  arena_free(&arena);
  return s;
}
