/* blocks.c -- see blocks.h. */
#include "plan/blocks.h"

#include <string.h>

#include "base/arena_reuse.h"
#include "plan/blocks_inside.h"
#include "plan/cutters.h"

/* ---- members ----------------------------------------------------------------------------------- */

Status blocks_open(Blocks *b, Probe *p) {
  *b = (Blocks){.p = p, .arena = b->arena};
  TRY_NEW(b->at, arena_new_n(&b->arena, Track *, p->e->graph->nvals + 1));
  TRY_NEW(b->end_at, arena_new_n(&b->arena, int, p->e->graph->nvals + 1));
  TRY_NEW(b->member_at, arena_new_n(&b->arena, int, p->e->graph->ninputs + 1));
  return OK;
}

void blocks_clear(Blocks *b) {
  arena_clear(&b->arena);
  *b = (Blocks){.arena = b->arena};
}

void blocks_close(Blocks *b) {
  arena_free(&b->arena);
  *b = (Blocks){0};
}

static Status add_member(Blocks *b, int input, int dim, bool rows, int *out) {
  for (int i = b->member_at[input] - 1; i >= 0; i = b->member[i].next)
    if (b->member[i].dim == dim) return *out = i, OK;
  TRY_NEW(b->member, arena_more(&b->arena, b->member, b->nmembers, &b->members_cap));
  const Tensor *t = probe_tensor(b->p, b->p->e->graph->inputs[input]);
  *out = b->nmembers;
  b->member[b->nmembers] = (Member){.input = input,
                                    .dim = dim,
                                    .n = t->size[dim],
                                    .group = b->nmembers,
                                    .keeper = b->nmembers,
                                    .rows = rows,
                                    .writer = -1,
                                    .next = b->member_at[input] - 1,
                                    .met_first = -1,
                                    .met_last = -1};
  b->member_at[input] = ++b->nmembers;
  return OK;
}

static void join(Blocks *b, int m, int other) {
  int g = blocks_group(b, m), h = blocks_group(b, other);
  if (g != h) b->member[g > h ? g : h].group = g > h ? h : g;
}

static void add_cut(Member *m, int64_t at) {
  if (m->ncuts < 0 || at <= 0 || at >= m->n) return;
  int i = 0;
  while (i < m->ncuts && m->cut[i] < at) i++;
  if (i < m->ncuts && m->cut[i] == at) return;
  if (m->ncuts == MAX_CUTS) {
    m->ncuts = -1;
    return;
  }
  memmove(&m->cut[i + 1], &m->cut[i], (size_t)(m->ncuts - i) * sizeof *m->cut);
  m->cut[i] = at;
  m->ncuts++;
}

static Status count_track(Blocks *b, const Track *t) {
  return member_add_span(b, blocks_keeper(b, t->member), t->base, track_end(t), track_pieces(t));
}

static Status count_all(Blocks *b, int member, int64_t count) {
  Member *m = &b->member[member];
  return member_add_span(b, m, 0, m->n, count);
}

/* ---- following --------------------------------------------------------------------------------------- */

static bool moves(const Node *n, Moves how) { return n->op && n->op->def->moves == how; }

static Status arrive(Blocks *b, const Track *t, int depth);

/* Both are the features of their weights, one by one: a bias and its weight, gate and up. */
static bool same_features(const Blocks *b, const Track *t, const Track *u) {
  const TrackDim *x = &t->dims[0], *y = &u->dims[0];
  return t->base == u->base && x->size == y->size && x->inner == y->inner && x->repeat == 1 && y->repeat == 1 &&
         x->before == y->before && b->member[t->member].n == b->member[u->member].n;
}

static Status keep_together(Blocks *b, int m, int other) {
  Member *x = blocks_keeper(b, m), *y = blocks_keeper(b, other);
  if (x == y) return OK;
  for (int i = 0; i < x->ncuts; i++) add_cut(y, x->cut[i]);
  for (int i = 0; i < x->nspans; i++)
    TRY(member_add_span(b, y, x->span[i].begin, x->span[i].end, x->span[i].count));
  x->keeper = (int)(y - b->member);
  return OK;
}

static Status remember(Blocks *b, int columns, int rows, const Node *n) {
  Member *m = &b->member[columns];
  for (int i = m->met_first; i >= 0; i = b->met[i].next)
    if (b->met[i].rows == rows && b->met[i].node == n) return OK;
  TRY_NEW(b->met, arena_more(&b->arena, b->met, b->nmet, &b->met_cap));
  if (m->met_last >= 0) b->met[m->met_last].next = b->nmet;
  else m->met_first = b->nmet;
  m->met_last = b->nmet;
  b->met[b->nmet++] = (Meeting){columns, rows, n, -1};
  return OK;
}

/* What the first of two went on to meet, the second meets too. */
static Status meet_alike(Blocks *b, int member, int first) {
  for (int i = member == first ? -1 : b->member[first].met_first; i >= 0; i = b->met[i].next)
    TRY(remember(b, member, b->met[i].rows, b->met[i].node));
  return OK;
}

/* n cannot have these features cut as its argument val has them. */
static Status add_need(Blocks *b, const Track *t, const Val *val, const Node *n) {
  if (!val || !n) return OK;
  TRY_NEW(b->need, arena_more(&b->arena, b->need, b->nneeds, &b->needs_cap));
  b->need[b->nneeds++] = (Need){t->member, t->base, track_end(t), n, val, -1};
  return OK;
}

/* Heads that are rotated as a whole leave a rest of no elements. */
static bool is_empty(const Blocks *b, const Val *v) {
  const Tensor *t = probe_tensor(b->p, v);
  return t && tensor_numel(t) == 0;
}

/* Two tracks at one value: their weights are cut alike. */
static Status land(Blocks *b, Track *t, int depth) {
  if (is_empty(b, t->val)) return OK;
  Track *first = b->at[t->val->id];
  if (first && first->n && first->dims[0].dim == t->dims[0].dim && first->base == t->base &&
      first->member == t->member)
    return OK;
  bool conflict = first && first->n && first->dims[0].dim != t->dims[0].dim;
  if (conflict && t->dims[0].dim > first->dims[0].dim) return add_need(b, t, t->from, t->val->node);
  if (conflict) TRY(add_need(b, first, first->from, t->val->node)); /* heads rather than what is inside of them */
  if (first && !conflict) {
    if (!first->n) return OK;
    join(b, t->member, first->member);
    TRY(meet_alike(b, t->member, first->member));
    return same_features(b, t, first) ? keep_together(b, t->member, first->member) : OK;
  }
  Track *kept;
  TRY_NEW(kept, arena_new(&b->arena, Track));
  *kept = *t;
  b->at[t->val->id] = kept;
  return arrive(b, kept, depth + 1);
}

/* A row-wise weight that is contracted with this dimension. */
static Status ends_here(Blocks *b, const Track *t, const Node *n, bool *ends) {
  *ends = false;
  for (int i = b->end_at[t->val->id] - 1; i >= 0; i = b->end[i].next) {
    const RowEnd *e = &b->end[i];
    if (e->node != n || e->dim != t->dims[0].dim) continue;
    TRY(member_add_span(b, &b->member[e->member], e->begin, e->end, track_pieces(t)));
    join(b, t->member, e->member);
    TRY(remember(b, t->member, e->member, n));
    *ends = true;
  }
  return OK;
}

/* A buffer that the program writes to and that is cut with output dimension dim. */
static Status join_buffers(Blocks *b, const Track *t, const Node *n, int dim) {
  Probe *p = b->p;
  const Graph *g = p->e->graph;
  for (int i = 0; i < n->nargs; i++) {
    const Val *v = n->args[i].kind == ARG_VAL ? n->args[i].val : NULL;
    if (!v || v->node || v == t->val || p->e->inputs[v->index].kind != IN_BUFFER ||
        !exported_is_mutated(p->e, p->e->inputs[v->index].target))
      continue;
    const Tensor *whole = probe_tensor(p, v);
    for (int d = 0; whole && d < whole->ndim; d++) {
      Placement out[MAX_DIMS];
      bool free, known;
      int m;
      if (whole->size[d] % track_pieces(t) || n->nouts != 1) continue;
      TRY(probe_ask(p, n, (Given[]){{v, place_s(d)}, {t->val, place_s(t->dims[0].dim)}}, 2, out, &free, &known));
      if (!known || !free || !is_s_of(&out[0], dim)) continue;
      TRY(add_member(b, g->inputs[v->index]->index, d, false, &m));
      TRY(count_all(b, m, track_pieces(t)));
      b->member[m].writer = t->member;
      b->member[m].written = (Span){t->base, track_end(t), 0};
      join(b, t->member, m);
    }
  }
  return OK;
}

/* A track of the same features at v, whose dimensions are not told yet. */
static void start_track(Track *to, const Val *v, const Track *t) {
  to->val = v;
  to->from = t->val;
  to->member = t->member;
  to->base = t->base;
  to->single = t->single;
  to->n = 0;
}

/* An op that passes the shard on, as its rule says. */
static Status pass_on(Blocks *b, const Track *t, const Node *n, bool counts, int depth) {
  Placement out[MAX_DIMS];
  Track to[MAX_DIMS];
  bool free, known;
  for (int o = 0; o < n->nouts; o++) to[o].n = 0;
  for (int i = 0; i < t->n; i++) {
    TRY(probe_ask(b->p, n, &(Given){t->val, place_s(t->dims[i].dim)}, 1, out, &free, &known));
    if (!known) break;
    for (int o = 0; o < n->nouts; o++) {
      bool stays = free && is_plain_s(&out[o]) && (i == 0 || to[o].n > 0);
      const Tensor *size = stays ? probe_tensor(b->p, n->outs[o]) : NULL;
      int64_t times = size ? size->size[out[o].dim] / t->dims[i].size : 0;
      if (!size || size->size[out[o].dim] % t->dims[i].size || (times > 1 && !(n->op->def->flags & OP_SHARES)))
        continue;
      if (i == 0) start_track(&to[o], n->outs[o], t);
      to[o].dims[to[o].n] = t->dims[i];
      to[o].dims[to[o].n].size *= times;
      to[o].dims[to[o].n].repeat *= times;
      to[o].dims[to[o].n++].dim = out[o].dim;
    }
    if (i == 0) {
      if (counts) TRY(count_track(b, t));
      if (!free || !is_s(&out[0])) TRY(add_need(b, t, t->val, n));
      if (free && n->nouts == 1 && is_s(&out[0])) TRY(join_buffers(b, t, n, out[0].dim));
    }
    if (i == 0 && to[0].n == 0) break;
  }
  for (int o = 0; o < n->nouts; o++) {
    if (to[o].n) TRY(land(b, &to[o], depth));
  }
  return OK;
}

/* A part of the features, as a value of its own. */
static Status add_part(Blocks *b, const Track *t) {
  TRY_NEW(b->part, arena_more(&b->arena, b->part, b->nparts, &b->parts_cap));
  b->part[b->nparts++] = (Part){t->member, t->base, track_end(t), t->val, t->dims[0].dim, t->dims[0].size};
  return OK;
}

static Status land_part(Blocks *b, const Track *t, const Node *n, int o, int dim, int64_t start, int depth) {
  const Tensor *in = probe_tensor(b->p, t->val), *out = probe_tensor(b->p, n->outs[o]);
  Track to = {.val = n->outs[o], .from = t->val, .member = t->member};
  Span part = {0};
  bool goes_on = out && track_cut(t, in, out, dim, start, &to, &part);
  if (part.end > part.begin) {
    add_cut(blocks_keeper(b, t->member), part.begin);
    add_cut(blocks_keeper(b, t->member), part.end);
  }
  if (!goes_on) return OK;
  if (to.base != t->base || track_end(&to) != track_end(t)) TRY(add_part(b, &to));
  return land(b, &to, depth);
}

/* The constant behind a copy of it. */
static const Tensor *constant_of(const Blocks *b, const Val *v) {
  while (v->node && moves(v->node, MOVES_COPY) && v->node->args[0].kind == ARG_VAL) v = v->node->args[0].val;
  const char *name = v->node ? NULL : b->p->e->inputs[v->index].target;
  const StateEntry *s = name ? exported_state(b->p->e, name) : NULL;
  return s && s->tensor && s->tensor->dtype == DT_I64 && tensor_is_contiguous(s->tensor) && tensor_data(s->tensor)
             ? s->tensor
             : NULL;
}

/* x[:, [-2]]: neighbours, picked by a list that the program has. */
static Status index_results(Blocks *b, const Track *t, const Node *n, int depth) {
  const Arg *list = &n->args[1];
  int dim = -1;
  for (int i = 0; list->kind == ARG_LIST && i < list->n; i++) {
    if (list->list[i].kind != ARG_VAL) continue;
    if (dim >= 0) return OK;
    dim = i;
  }
  const Tensor *picked = dim >= 0 ? constant_of(b, list->list[dim].val) : NULL;
  if (!picked || picked->ndim != 1 || picked->size[0] < 1) return pass_on(b, t, n, true, depth);
  const int64_t *at = tensor_data(picked);
  for (int64_t i = 1; i < picked->size[0]; i++)
    if (at[i] != at[0] + i) return pass_on(b, t, n, true, depth);
  return land_part(b, t, n, 0, dim, at[0] < 0 ? at[0] + probe_tensor(b->p, t->val)->size[dim] : at[0], depth);
}

/* Every element again, as its neighbours: KV heads given to several query heads. */
static Status repeat_results(Blocks *b, const Track *t, const Node *n, int depth) {
  const Tensor *in = probe_tensor(b->p, t->val), *out = probe_tensor(b->p, n->outs[0]);
  int64_t dim;
  if (n->nargs < 3 || !arg_number(b->p, &n->args[2], 0, &dim) || !out || out->ndim != in->ndim) return OK;
  if (dim < 0) dim += in->ndim;
  Track to = *t;
  to.val = n->outs[0];
  to.from = t->val;
  for (int i = 0; i < to.n; i++) {
    if (to.dims[i].dim != dim) continue;
    to.dims[i].repeat *= out->size[dim] / in->size[dim];
    to.dims[i].size = out->size[dim];
  }
  return land(b, &to, depth);
}

/* Every step-th feature: a step is a piece. */
static Status step_results(Blocks *b, const Track *t, const Node *n, int depth) {
  const Tensor *in = probe_tensor(b->p, t->val);
  Track to = *t;
  int64_t dim, start, step;
  if (!cutter_steps(b->p, n, &dim, &start, &step)) return OK;
  if (dim < 0) dim += in->ndim;
  TrackDim *l = &to.dims[0];
  if (l->dim != dim) return pass_on(b, t, n, true, depth);
  if (start < 0 || start >= step || l->size % step || l->repeat != 1 || l->before != 1) return OK;
  l->size /= step;
  l->inner *= step;
  to.n = 1;
  to.val = n->outs[0];
  to.from = t->val;
  return land(b, &to, depth);
}

/* The two halves of a dimension, one on the other. */
static Status halve_results(Blocks *b, const Track *t, const Node *n, int depth) {
  const Tensor *in = probe_tensor(b->p, t->val);
  int64_t dim;
  if (!arg_number(b->p, &n->args[1], -1, &dim)) return OK;
  if (dim < 0) dim += in->ndim;
  TRY(land_part(b, t, n, 0, (int)dim, 0, depth));
  return land_part(b, t, n, 0, (int)dim, in->size[dim] / 2, depth);
}

/* Groups of channels are normalised together. */
static Status count_groups(Blocks *b, const Track *t, const Node *n) {
  int64_t groups;
  int at = node_is(n, "aten.group_norm.default") ? 1 : node_is(n, "aten.native_group_norm.default") ? 6 : -1;
  if (at < 0 || t->dims[0].dim != 1 || !arg_number(b->p, &n->args[at], 1, &groups)) return OK;
  return member_add_span(b, blocks_keeper(b, t->member), t->base, track_end(t), groups);
}

static Status cut_results(Blocks *b, const Track *t, const Node *n, int depth) {
  int dim;
  int64_t start[MAX_DIMS];
  if (!cutter_parts(b->p, n, &dim, start)) return step_results(b, t, n, depth);
  for (int o = 0; o < n->nouts; o++) TRY(land_part(b, t, n, o, dim, start[o], depth));
  return OK;
}

/* The features of u come right behind those of t. */
static bool adjoins(const Blocks *b, const Track *t, const Track *u) {
  const TrackDim *x = &t->dims[0], *y = u && u->n ? &u->dims[0] : NULL;
  if (!y || t->single || u->single || blocks_keeper(b, t->member) != blocks_keeper(b, u->member)) return false;
  bool plain = x->repeat == 1 && y->repeat == 1 && x->before == 1 && y->before == 1;
  return plain && x->dim == y->dim && x->inner == y->inner && u->base == track_end(t);
}

/* Neighbours that were split and are put together again: a head that is rotated in part. */
static Status cat_results(Blocks *b, const Track *t, const Node *n, int depth) {
  const Arg *list = &n->args[0];
  int64_t dim;
  if (list->kind != ARG_LIST || list->n < 2 || list->list[0].kind != ARG_VAL ||
      !arg_number(b->p, &n->args[1], 0, &dim))
    return pass_on(b, t, n, true, depth);
  const Track *first = b->at[list->list[0].val->id];
  if (dim < 0) dim += t->val->ndim;
  if (dim != t->dims[0].dim || !first || !first->n || first->dims[0].dim != dim)
    return pass_on(b, t, n, true, depth);
  Track to = *first;
  for (int i = 1; i < list->n; i++) {
    const Track *next = list->list[i].kind == ARG_VAL ? b->at[list->list[i].val->id] : NULL;
    if (!adjoins(b, &to, next)) return pass_on(b, t, n, true, depth);
    to.dims[0].size += next->dims[0].size;
  }
  to.val = n->outs[0];
  to.from = t->val;
  to.n = 1;
  return land(b, &to, depth);
}

static Status follow_user(Blocks *b, const Track *t, const Node *n, int depth) {
  bool ends;
  TRY(ends_here(b, t, n, &ends));
  if (ends) return count_track(b, t);
  if (!n->op || n->nouts == 0 || n->nouts > MAX_DIMS) return OK;
  if (moves(n, MOVES_CUT)) return cut_results(b, t, n, depth);
  if (node_is(n, "aten.index.Tensor")) return index_results(b, t, n, depth);
  if (node_is(n, "aten.cat.default")) return cat_results(b, t, n, depth);
  if (node_is(n, "aten.glu.default")) return halve_results(b, t, n, depth);
  TRY(count_groups(b, t, n));
  if (node_is(n, "aten.repeat_interleave.self_int")) return repeat_results(b, t, n, depth);
  if (moves(n, MOVES_RESHAPE)) {
    const Tensor *in = probe_tensor(b->p, t->val), *out = probe_tensor(b->p, n->outs[0]);
    Track to = {.val = n->outs[0], .from = t->val, .member = t->member, .base = t->base, .single = t->single};
    return out && track_reshape(t, in, out, &to) ? land(b, &to, depth) : OK;
  }
  bool used = !moves(n, MOVES_COPY) && !moves(n, MOVES_DIMS); /* else no piece is used yet */
  return pass_on(b, t, n, used, depth);
}

/* Some op needs the features whole, or adds them up. */
static Status is_clean(Blocks *b, const Track *t, bool *clean) {
  *clean = true;
  for (int k = b->p->first_user[t->val->id]; k < b->p->first_user[t->val->id + 1] && *clean; k++) {
    const Node *n = b->p->user[k];
    Placement out[MAX_DIMS];
    bool free, known, row = false;
    if (!n || !n->op || n->nouts == 0 || n->nouts > MAX_DIMS || moves(n, MOVES_RESHAPE)) continue;
    for (int i = b->end_at[t->val->id] - 1; i >= 0; i = b->end[i].next) row |= b->end[i].node == n;
    if (row || moves(n, MOVES_CUT)) continue;
    TRY(probe_ask(b->p, n, &(Given){t->val, place_s(t->dims[0].dim)}, 1, out, &free, &known));
    *clean = known && free && is_s(&out[0]);
  }
  return OK;
}

enum { MAX_DEPTH = 400 };

static Status arrive(Blocks *b, const Track *t, int depth) {
  bool clean = true;
  if (depth > MAX_DEPTH) return OK;
  if (b->strict) TRY(is_clean(b, t, &clean));
  if (!clean) return OK;
  for (int k = b->p->first_user[t->val->id]; k < b->p->first_user[t->val->id + 1]; k++)
    if (b->p->user[k]) TRY(follow_user(b, t, b->p->user[k], depth));
  return OK;
}

/* ---- sources -------------------------------------------------------------------------------------------- */

/* The part of the parameter that the node gets is a segment of it. */
static void cut_part(Member *m, int dim, const WeightUse *use) {
  add_cut(m, use->begin[dim]);
  add_cut(m, use->end[dim]);
}

Status blocks_add_rows(Blocks *b, int input, int dim, const WeightUse *use, const Val *val, int val_dim) {
  int m;
  b->settled = 0;
  TRY(add_member(b, input, dim, true, &m));
  cut_part(&b->member[m], dim, use);
  TRY_NEW(b->end, arena_more(&b->arena, b->end, b->nends, &b->ends_cap));
  b->end[b->nends] = (RowEnd){use->node, val, val_dim, m, b->end_at[val->id] - 1, use->begin[dim], use->end[dim]};
  b->end_at[val->id] = ++b->nends;
  return OK;
}

Status blocks_add_columns(Blocks *b, int input, int dim, const WeightUse *use) {
  int m;
  b->settled = 0;
  TRY(add_member(b, input, dim, false, &m));
  const Val *v = use->node->outs[0];
  const Tensor *t = probe_tensor(b->p, v);
  int at = use->out[dim];
  if (!t || at < 0 || at >= t->ndim || t->size[at] != use->end[dim] - use->begin[dim]) return OK;
  cut_part(blocks_keeper(b, m), dim, use);
  Track track = {.val = v, .member = m, .base = use->begin[dim], .n = 1, .dims = {{at, t->size[at], 1, 1, 1}}};
  return land(b, &track, 0);
}
