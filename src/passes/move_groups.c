/* move_groups.c -- see move_groups.h. */
#include "passes/move_groups.h"

#include <stddef.h>
#include <string.h>

#include "base/textbuf.h"
#include "dist/mesh.h"
#include "optim/recipe.h"
#include "passes/comm_block.h"

Status node_list(Graph *g, Arena *arena, NodeList *out) {
  *out = (NodeList){.boundary = -1};
  TRY_NEW(out->node, arena_new_n(arena, Node *, g->nnodes + 1));
  for (Node *n = g->first; n; n = n->next) {
    n->mark = out->n;
    if (n->stage == STAGE_BACKWARD && out->boundary < 0) out->boundary = out->n;
    out->node[out->n++] = n;
  }
  if (out->boundary < 0) out->boundary = out->n;
  return OK;
}

/* ---- which redistributions ------------------------------------------------------------------------------- */

bool is_redistribute(const Node *n) { return node_is(n, "tess.redistribute.default"); }

static bool read_move(const Node *n, Placement *from, Placement *to, int *naxes) {
  int ndim = n->args[ARG_SHAPE].kind == ARG_LIST ? n->args[ARG_SHAPE].n : -1, other = 0;
  Status s = placements_parse(n->args[ARG_SRC].str, ndim, from, naxes);
  if (!s) s = placements_parse(n->args[ARG_DST].str, ndim, to, &other);
  bool good = !s && other == *naxes;
  status_free(s);
  return good;
}

/* Do the ranks along the axis have neighbouring parts of what the axes outside of the group leave?  If one of these
 * cuts the same dimension after it, elements come from ranks outside of the group. */
static bool is_innermost(const Placement *p, int naxes, int axis, unsigned group) {
  for (int b = 0; b < naxes; b++)
    if (!(group >> b & 1) && is_s(&p[b]) && p[b].dim == p[axis].dim && !(p[b].turn && p[b].turn < p[axis].turn))
      return false;
  return true;
}

unsigned move_axes(const Node *n, PlaceKind from_kind, PlaceKind to_kind, unsigned wanted) {
  Placement from[MAX_AXES], to[MAX_AXES];
  unsigned axes = 0;
  int naxes;
  if (!is_redistribute(n) || n->args[ARG_SHAPE].kind != ARG_LIST || !read_move(n, from, to, &naxes)) return 0;
  for (int a = 0; a < naxes; a++) {
    bool sum = from[a].kind != PLACE_P || (from[a].op == REDUCE_SUM && from[a].norm == 0);
    if (from[a].kind == from_kind && to[a].kind == to_kind && sum) axes |= 1u << a;
    else if (from[a].kind != to[a].kind || from[a].dim != to[a].dim) return 0;
  }
  const Placement *sharded = from_kind == PLACE_S ? from : to;
  for (int a = 0; a < naxes; a++)
    if (axes >> a & 1 && !is_innermost(sharded, naxes, a, axes)) return 0;
  return wanted && axes != wanted ? 0 : axes;
}

double move_bytes(const Node *n) {
  Placement from[MAX_AXES], to[MAX_AXES];
  int axis[MAX_AXES], naxes = 0, sizes = 0;
  double bytes = (double)dtype_size(n->outs[0]->dtype);
  for (int d = 0; d < n->args[ARG_SHAPE].n; d++) bytes *= (double)n->args[ARG_SHAPE].list[d].i;
  Status s = mesh_text_axes(n->args[ARG_MESH].str, axis, &sizes);
  if (!s && read_move(n, from, to, &naxes) && naxes == sizes)
    for (int a = 0; a < naxes; a++)
      if (is_s(&from[a]) && is_s(&to[a])) bytes /= axis[a];
  status_free(s);
  return bytes;
}

/* ---- whose they are ---------------------------------------------------------------------------------------- */

const char *parameter_of(const Exported *e, const Val *v) {
  if (!v || v->node || v->index >= e->graph->ninputs || e->graph->inputs[v->index] != v) return NULL;
  return e->inputs[v->index].kind == IN_PARAMETER ? e->inputs[v->index].target : NULL;
}

const char *gradient_of(const Node *n, Arena *arena) {
  static const char opening[] = WHY_GRADIENT;
  const size_t prefix = strcspn(opening, "%");
  if (!is_redistribute(n) || n->args[ARG_WHY].kind != ARG_STR) return NULL;
  const char *why = n->args[ARG_WHY].str, *end = strrchr(why, '\'');
  if (strncmp(why, opening, prefix) != 0 || !end || end < why + prefix) return NULL;
  return arena_printf(arena, "%.*s", (int)(end - why - (ptrdiff_t)prefix), why + prefix);
}

/* "model.layers.3" of "model.layers.3.mlp.up.weight": the outermost module that `wrap` names (patterns), or with
 * "blocks" the one whose name is a number; "" if there is none. */
static const char *module_of(Arena *arena, const char *wrap, const char *name) {
  const char *begin = name;
  for (const char *dot = strchr(name, '.'); dot; begin = dot + 1, dot = strchr(begin, '.')) {
    char *prefix = arena_printf(arena, "%.*s", (int)(dot - name), name);
    bool number = (size_t)(dot - begin) == strspn(begin, "0123456789");
    if (prefix && (strcmp(wrap, "blocks") ? patterns_match(wrap, prefix) : number)) return prefix;
  }
  return "";
}

char *patterns_of_option(Arena *arena, const char *text) {
  char *copy = arena_strdup(arena, text);
  for (char *p = copy; p && *p; p++)
    if (*p == '|') *p = ',';
  return copy;
}

/* ---- groups ------------------------------------------------------------------------------------------------ */

static Status group_begin(GroupList *list, const char *key, const char *name, Group **out) {
  Group *g;
  TRY_NEW(g, arena_new(list->arena, Group));
  *g = (Group){.key = key,
               .name = name,
               .last_made = -1,
               .first_use = INT32_MAX,
               .first_again = INT32_MAX,
               .again_for_all = INT32_MAX};
  g->last = &g->first;
  if (!list->first) list->last = &list->first;
  *list->last = g;
  list->last = &g->next;
  list->n++;
  *out = g;
  return OK;
}

Status group_find(GroupList *list, const Node *n, const char *name, unsigned axes, Group **out) {
  const char *key;
  Group *found = NULL;
  TRY_NEW(key, arena_printf(list->arena, "%s|%s|%d|%u", name, n->args[ARG_MESH].str, (int)n->outs[0]->dtype, axes));
  for (Group *g = list->first; g; g = g->next)
    if (!strcmp(g->key, key)) found = g;
  if (found && found->bytes < (found == list->first ? list->first_limit : list->limit)) return *out = found, OK;
  return group_begin(list, key, name, out);
}

Status group_find_module(GroupList *list, const Node *n, const char *wrap, double large, const char *parameter,
                         unsigned axes, Group **out) {
  const char *module = module_of(list->arena, wrap, parameter);
  bool wrapped = *module;
  if (!wrapped && move_bytes(n) >= large) module = parameter;
  TRY(group_find(list, n, module, axes, out));
  (*out)->wrapped = wrapped;
  return OK;
}

Status group_add(GroupList *list, Group *g, Node *n, Member **out) {
  Member *m;
  TRY_NEW(m, arena_new(list->arena, Member));
  *m = (Member){.node = n, .group = g, .in = n->args[0].val};
  *g->last = m;
  g->last = &m->next;
  g->n++;
  g->bytes += move_bytes(n);
  if (m->in->node && m->in->node->mark > g->last_made) g->last_made = m->in->node->mark;
  *out = m;
  return OK;
}

Node *group_last(const Group *g) {
  const Member *m = g->first;
  while (m->next) m = m->next;
  return m->node;
}

/* ---- written as nodes -------------------------------------------------------------------------------------- */

static int64_t numel_of(const Val *v) {
  int64_t n = 1;
  for (int d = 0; d < v->ndim; d++) n *= v->size[d]->value;
  return n;
}

/* The arguments that tell how each of the group moves. */
static Status describe_moves(Graph *graph, const Group *g, Arg *moves, Arg *shapes, Arg *list, int64_t *size) {
  Arena *arena = graph->arena;
  TextBuf text = {0};
  int n = 0, cap = 0;
  for (const Member *m = g->first; m; m = m->next) cap += 1 + m->node->args[ARG_SHAPE].n;
  Arg *numbers = arena_new_n(arena, Arg, cap + 1), *in = arena_new_n(arena, Arg, g->n + 1);
  if (!numbers || !in) return fail_oom();
  int k = 0;
  *size = 0;
  for (const Member *m = g->first; m; m = m->next) {
    const Arg *a = m->node->args;
    text_printf(&text, "%s%s>%s", k ? ";" : "", a[ARG_SRC].str, a[ARG_DST].str);
    numbers[n++] = arg_int(a[ARG_SHAPE].n);
    for (int d = 0; d < a[ARG_SHAPE].n; d++) numbers[n++] = a[ARG_SHAPE].list[d];
    in[k++] = arg_val(m->in);
    *size += numel_of(m->node->outs[0]);
  }
  const char *copy = text.failed ? NULL : arena_strdup(arena, text.text);
  text_free(&text);
  if (!copy) return fail_oom();
  *moves = arg_str(copy);
  *shapes = arg_list(numbers, n);
  *list = arg_list(in, k);
  return OK;
}

static Status add_call(Graph *graph, Node *before, const Node *like, Stage stage, const char *target,
                       const Arg *args, int nargs, Node **out) {
  TRY(graph_emit_like(graph, before, like, target, args, nargs, out));
  (*out)->stage = stage;
  return OK;
}

/* The tensors of a group as views of the buffer; results[k] of member k. */
static Status add_views(Graph *graph, const Group *g, Node *before, Stage stage, Val *flat, Val **results) {
  Arg *lengths;
  Node *split;
  int k = 0;
  TRY_NEW(lengths, arena_new_n(graph->arena, Arg, g->n + 1));
  for (const Member *m = g->first; m; m = m->next) lengths[k++] = arg_int(numel_of(m->node->outs[0]));
  TRY(add_call(graph, before, g->first->node, stage, "aten.split.sizes",
               (Arg[]){arg_val(flat), arg_list(lengths, g->n)}, 2, &split));
  k = 0;
  for (const Member *m = g->first; m; m = m->next, k++) {
    const Val *like = m->node->outs[0];
    const Sym *length;
    Val *part;
    TRY_NEW(length, sym_int(graph->syms, lengths[k].i));
    TRY(node_add_tensor(split, "getitem", like->dtype, 1, &length, &part));
  }
  k = 0;
  for (const Member *m = g->first; m; m = m->next, k++) {
    const Val *like = m->node->outs[0];
    Arg *size;
    Node *n;
    TRY_NEW(size, arena_new_n(graph->arena, Arg, like->ndim + 1));
    for (int d = 0; d < like->ndim; d++) size[d] = arg_int(like->size[d]->value);
    TRY(add_call(graph, before, m->node, stage, "aten.reshape.default",
                 (Arg[]){arg_val(split->outs[k]), arg_list(size, like->ndim)}, 2, &n));
    TRY(node_add_tensor(n, like->name, like->dtype, like->ndim, like->size, &results[k]));
  }
  return OK;
}

/* The arguments of its collective; *size: elements of all results. */
static Status group_args(Graph *graph, const Group *g, Arg *args, int64_t *size) {
  TRY(describe_moves(graph, g, &args[2], &args[3], &args[0], size));
  args[1] = g->first->node->args[ARG_MESH];
  args[4] = arg_int(*size);
  const char *why = arena_printf(graph->arena, "group '%s'", *g->name ? g->name : "(root)");
  if (!why) return fail_oom();
  args[5] = arg_str(why);
  return OK;
}

Status group_write(Graph *graph, const Group *g, const char *target, Node *before, Node *needed, Stage stage,
                   Val **results) {
  const Node *like = g->first->node;
  Arg args[6];
  int64_t size;
  const Sym *length;
  Node *n;
  Val *flat;
  TRY(group_args(graph, g, args, &size));
  TRY_NEW(length, sym_int(graph->syms, size));
  TRY(add_call(graph, before, like, stage, target, args, 6, &n));
  TRY(node_add_tensor(n, "group", like->outs[0]->dtype, 1, &length, &flat));
  Arg started = arg_val(flat);
  TRY(add_call(graph, needed, like, stage, WAIT_TENSOR, &started, 1, &n));
  TRY(node_add_tensor(n, "group_wait", like->outs[0]->dtype, 1, &length, &flat));
  return add_views(graph, g, needed, stage, flat, results);
}

/* Sizes of the results, one behind the other. */
static Status list_sizes(Graph *graph, const Group *g, Arg *out) {
  Arg *size;
  int n = 0;
  for (const Member *m = g->first; m; m = m->next) n += m->node->outs[0]->ndim;
  TRY_NEW(size, arena_new_n(graph->arena, Arg, n + 1));
  n = 0;
  for (const Member *m = g->first; m; m = m->next)
    for (int d = 0; d < m->node->outs[0]->ndim; d++) size[n++] = arg_int(m->node->outs[0]->size[d]->value);
  *out = arg_list(size, n);
  return OK;
}

Status group_write_each(Graph *graph, const Group *g, const char *target, Node *before, Node *needed, Stage stage,
                        Val **results) {
  Arg args[6];
  int64_t size;
  Node *start, *wait;
  int k = 0;
  TRY(group_args(graph, g, args, &size));
  TRY(list_sizes(graph, g, &args[4]));
  TRY(add_call(graph, before, g->first->node, stage, target, args, 6, &start));
  for (const Member *m = g->first; m; m = m->next) {
    const Val *like = m->node->outs[0];
    TRY(node_add_tensor(start, "group", like->dtype, like->ndim, like->size, &results[k++]));
  }
  k = 0;
  for (const Member *m = g->first; m; m = m->next, k++) {
    const Val *like = m->node->outs[0];
    Arg started = arg_val(results[k]);
    TRY(add_call(graph, needed, m->node, stage, WAIT_TENSOR, &started, 1, &wait));
    TRY(node_add_tensor(wait, like->name, like->dtype, like->ndim, like->size, &results[k]));
  }
  return OK;
}
