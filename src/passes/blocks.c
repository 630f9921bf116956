/* blocks.c -- see blocks.h. */
#include "passes/blocks.h"

#include <stdio.h>
#include <string.h>

#include "graph/resolve.h"

/* A dimension of a value that holds features: index i stands for features
 * [base + i' * inner, base + (i' + 1) * inner) with i' = i / repeat % (size / before / repeat);
 * the range of the track begins at base. */
typedef struct {
  int dim;
  int64_t size;
  int64_t inner;  /* features per step */
  int64_t repeat; /* neighbours that are copies: KV heads given to several query heads */
  int64_t before; /* times that the whole comes again: a batch flattened into it */
} Lead;

/* Outermost first; lead[0] is what would be cut. */
typedef struct Track {
  const Val *val;
  int member; /* whose features */
  int64_t base;
  int n;
  Lead lead[MAX_DIMS];
} Track;

static int64_t gcd(int64_t a, int64_t b) {
  while (b) {
    int64_t r = a % b;
    a = b;
    b = r;
  }
  return a;
}

static int64_t pieces(const Lead *l) { return l->size / l->before / l->repeat; }

/* ---- members ----------------------------------------------------------------------------------- */

Status blocks_open(Blocks *b, Probe *p) {
  *b = (Blocks){.p = p};
  TRY_NEW(b->at, arena_new_n(&b->arena, Track *, p->e->graph->nvals + 1));
  return OK;
}

void blocks_close(Blocks *b) {
  arena_free(&b->arena);
  *b = (Blocks){0};
}

static Status add_member(Blocks *b, int input, int dim, bool rows, int *out) {
  for (int i = 0; i < b->nmembers; i++)
    if (b->member[i].input == input && b->member[i].dim == dim) return *out = i, OK;
  if (b->nmembers == b->members_cap) {
    int cap = b->members_cap ? 2 * b->members_cap : 64;
    Member *more;
    TRY_NEW(more, arena_new_n(&b->arena, Member, cap));
    if (b->nmembers) memcpy(more, b->member, (size_t)b->nmembers * sizeof *more);
    b->member = more;
    b->members_cap = cap;
  }
  const Tensor *t = probe_tensor(b->p, b->p->e->graph->inputs[input]);
  *out = b->nmembers;
  b->member[b->nmembers] = (Member){.input = input, .dim = dim, .n = t->size[dim], .group = b->nmembers, .twin = b->nmembers, .rows = rows};
  b->nmembers++;
  return OK;
}

static int group_of(const Blocks *b, int m) {
  while (b->member[m].group != m) m = b->member[m].group;
  return m;
}

static void join(Blocks *b, int m, int other) {
  int g = group_of(b, m), h = group_of(b, other);
  if (g != h) b->member[g > h ? g : h].group = g > h ? h : g;
}

static Member *twin_of(const Blocks *b, int m) {
  while (b->member[m].twin != m) m = b->member[m].twin;
  return &b->member[m];
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

static void add_count(Blocks *b, int member, int64_t count) {
  Member *m = &b->member[member];
  m->count = gcd(m->count, count);
}

/* ---- reshapes ------------------------------------------------------------------------------------ */

/* Entries of the dimensions [from, to) of in, as one dimension of that many elements.
 * false: not one lead with repetitions around it. */
static bool flatten(const Track *t, const Tensor *in, int from, int to, Lead *out) {
  int64_t before = 1, repeat = 1;
  bool found = false;
  *out = (Lead){0};
  for (int d = from; d < to; d++) {
    const Lead *l = NULL;
    for (int i = 0; i < t->n; i++)
      if (t->lead[i].dim == d) l = &t->lead[i];
    if (in->size[d] == 1) continue;
    if (!l && !found) before *= in->size[d];
    else if (!l) repeat *= in->size[d];
    else if (!found) {
      *out = *l;
      found = true;
    } else { /* the next inner one of the same features */
      if (repeat != 1 || out->repeat != 1 || l->before != 1 || out->inner != l->inner * (l->size / l->repeat)) return false;
      out->size *= l->size;
      out->inner = l->inner;
      out->repeat = l->repeat;
    }
  }
  if (!found || (out->before > 1 && before > 1)) return false;
  out->size *= before * repeat;
  out->before *= before;
  out->repeat *= repeat;
  return true;
}

/* The lead as the dimensions [from, to) of out; appends to t. */
static bool unflatten(Lead l, const Tensor *out, int from, int to, Track *t) {
  int64_t before = l.before, repeat = l.repeat, n = pieces(&l), inner = l.inner * n;
  int last = to;
  int64_t tail[MAX_DIMS] = {0};
  for (int d = to - 1; d >= from && repeat > 1; d--) { /* repetitions are the innermost */
    int64_t size = out->size[d];
    if (repeat % size == 0) repeat /= size, last = d;
    else if (size % repeat == 0) {
      tail[d] = repeat;
      repeat = 1;
    } else return false;
  }
  if (repeat > 1) return false;
  for (int d = from; d < last; d++) {
    int64_t size = out->size[d], again = 1;
    if (size == 1) continue;
    if (before > 1 && before % size == 0) {
      before /= size;
      continue;
    }
    if (before > 1) {
      if (size % before) return false;
      again = before;
      before = 1;
    }
    int64_t copies = tail[d] ? tail[d] : 1, count = size / again / copies;
    if (!count || inner % count || t->n == MAX_DIMS) return false;
    inner /= count;
    t->lead[t->n++] = (Lead){d, size, inner, copies, again};
  }
  return true;
}

static bool holds(const Track *t, int from, int to) {
  for (int i = 0; i < t->n; i++)
    if (t->lead[i].dim >= from && t->lead[i].dim < to) return true;
  return false;
}

/* Groups of dimensions with equal products on both sides. */
static bool reshape(const Track *t, const Tensor *in, const Tensor *out, Track *to) {
  int i = 0, o = 0;
  while (i < in->ndim || o < out->ndim) {
    int i0 = i, o0 = o;
    int64_t a = 1, b = 1;
    if (i < in->ndim) a = in->size[i++];
    if (o < out->ndim) b = out->size[o++];
    while (a != b) {
      if (a < b && i < in->ndim) a *= in->size[i++];
      else if (b < a && o < out->ndim) b *= out->size[o++];
      else return false;
    }
    while (i < in->ndim && in->size[i] == 1) i++;
    while (o < out->ndim && out->size[o] == 1) o++;
    Lead l;
    if (!holds(t, i0, i)) continue;
    if (!flatten(t, in, i0, i, &l) || !unflatten(l, out, o0, o, to)) return false;
  }
  return to->n > 0;
}

/* ---- cuts ------------------------------------------------------------------------------------------ */

/* Ops that keep a part of one dimension.  start < 0: the results follow each other. */
static const struct {
  const char *name;
  int dim, start;
} cutters[] = {
    {"aten.slice.Tensor", 1, 2},        {"aten.narrow.default", 1, 2},          {"aten.select.int", 1, 2},
    {"aten.split.Tensor", 2, -1},       {"aten.split.sizes", 2, -1},            {"aten.split_with_sizes.default", 2, -1},
    {"aten.chunk.default", 2, -1},      {"aten.unbind.int", 1, -1},             {"aten.tensor_split.sections", 2, -1},
    {"aten.split_copy.Tensor", 2, -1},  {"aten.split_with_sizes_copy.default", 2, -1}, {"aten.unsafe_split.Tensor", 2, -1},
};
enum { CUTTERS = sizeof cutters / sizeof *cutters };

static bool arg_number(const Probe *p, const Arg *a, int64_t otherwise, int64_t *out) {
  *out = otherwise;
  if (a->kind == ARG_INT) *out = a->i;
  else if (a->kind == ARG_VAL && p->env[a->val->id].kind == VAL_INT) *out = p->env[a->val->id].i;
  else return a->kind == ARG_UNSET || a->kind == ARG_NONE;
  return true;
}

/* Entries behind a dimension that vanished move up. */
static void drop_dim(Track *t, int dim) {
  for (int i = 0; i < t->n; i++) t->lead[i].dim -= t->lead[i].dim > dim;
}

/* Result `index` of a cutter, which begins at `start` of dimension dim. */
static bool cut(Blocks *b, const Track *t, const Tensor *in, const Tensor *out, int dim, int64_t start, Track *to) {
  int at = 0;
  bool vanishes = out->ndim < in->ndim;
  int64_t kept = vanishes ? 1 : out->size[dim];
  to->base = t->base;
  while (at < t->n && t->lead[at].dim != dim) at++;
  memcpy(to->lead, t->lead, sizeof to->lead);
  to->n = t->n;
  if (at == t->n || kept == in->size[dim]) {
    if (vanishes) drop_dim(to, dim);
    return true;
  }
  if (at > 0) { /* inside of what stays whole: from there on nothing is known */
    to->n = at;
    if (vanishes) drop_dim(to, dim);
    return true;
  }
  Lead *l = &to->lead[0];
  if (l->before != 1 || l->repeat != 1) return false;
  to->base += start * l->inner;
  add_cut(twin_of(b, t->member), to->base);
  add_cut(twin_of(b, t->member), to->base + kept * l->inner);
  l->size = kept;
  if (vanishes) {
    memmove(&to->lead[0], &to->lead[1], (size_t)(to->n - 1) * sizeof *l);
    to->n--;
    drop_dim(to, dim);
  }
  return to->n > 0;
}

/* ---- following --------------------------------------------------------------------------------------- */

static bool target_is(const Node *n, const char *const *names) {
  for (; *names; names++)
    if (!strncmp(n->target, *names, strlen(*names))) return true;
  return false;
}

static const char *const reshapes[] = {"aten.view.", "aten.reshape.", "aten._unsafe_view.", "aten.flatten.", "aten.unflatten.", "aten.view_copy.", NULL};
/* Ops that move values without looking at them: no piece is used yet. */
static const char *const movers[] = {"aten.transpose", "aten.permute", "aten.t.", "aten.unsqueeze", "aten.squeeze", "aten.expand", "aten.contiguous",
                                     "aten.clone", "aten.to.", "aten._to_copy", "aten.alias", "aten.detach", "aten.movedim", "aten.swapaxes", "aten.mT", NULL};

static Status arrive(Blocks *b, const Track *t, int depth);

/* Both are the features of their weights, one by one: a bias and its weight, gate and up. */
static bool same_features(const Blocks *b, const Track *t, const Track *u) {
  const Lead *x = &t->lead[0], *y = &u->lead[0];
  return t->base == u->base && x->size == y->size && x->inner == y->inner && x->repeat == 1 && y->repeat == 1 && x->before == y->before &&
         b->member[t->member].n == b->member[u->member].n;
}

static void make_twins(Blocks *b, int m, int other) {
  Member *x = twin_of(b, m), *y = twin_of(b, other);
  if (x == y) return;
  for (int i = 0; i < x->ncuts; i++) add_cut(y, x->cut[i]);
  x->twin = (int)(y - b->member);
}

static Status remember(Blocks *b, int columns, int rows, const Node *n) {
  if (b->nmet == b->met_cap) {
    int cap = b->met_cap ? 2 * b->met_cap : 64;
    Meeting *more;
    TRY_NEW(more, arena_new_n(&b->arena, Meeting, cap));
    if (b->nmet) memcpy(more, b->met, (size_t)b->nmet * sizeof *more);
    b->met = more;
    b->met_cap = cap;
  }
  b->met[b->nmet++] = (Meeting){columns, rows, n};
  return OK;
}

/* What the first of two went on to meet, the second meets too. */
static Status meet_alike(Blocks *b, int member, int first) {
  int n = b->nmet;
  for (int i = 0; i < n; i++)
    if (b->met[i].columns == first) TRY(remember(b, member, b->met[i].rows, b->met[i].node));
  return OK;
}

/* Two tracks at one value: their weights are cut alike. */
static Status land(Blocks *b, Track *t, int depth) {
  Track *first = b->at[t->val->id];
  if (first && first->n && first->lead[0].dim == t->lead[0].dim && first->base == t->base && first->member == t->member) return OK;
  if (first) {
    if (!first->n || first->lead[0].dim != t->lead[0].dim) return OK;
    join(b, t->member, first->member);
    TRY(meet_alike(b, t->member, first->member));
    if (same_features(b, t, first)) make_twins(b, t->member, first->member);
    return OK;
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
  for (int i = 0; i < b->nends; i++) {
    const RowEnd *e = &b->end[i];
    if (e->node != n || e->val != t->val || e->dim != t->lead[0].dim) continue;
    add_count(b, e->member, pieces(&t->lead[0]));
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
    if (!v || v->node || v == t->val || p->e->inputs[v->index].kind != IN_BUFFER || !exported_is_mutated(p->e, p->e->inputs[v->index].target)) continue;
    const Tensor *whole = probe_tensor(p, v);
    for (int d = 0; whole && d < whole->ndim; d++) {
      Placement out[MAX_DIMS];
      bool free, known;
      int m;
      if (whole->size[d] % pieces(&t->lead[0]) || n->nouts != 1) continue;
      TRY(probe_ask(p, n, (Given[]){{v, place_s(d)}, {t->val, place_s(t->lead[0].dim)}}, 2, out, &free, &known));
      if (!known || !free || !is_s_of(&out[0], dim)) continue;
      TRY(add_member(b, g->inputs[v->index]->index, d, false, &m));
      add_count(b, m, pieces(&t->lead[0]));
      join(b, t->member, m);
    }
  }
  return OK;
}

/* An op that passes the shard on, as its rule says. */
static Status pass_on(Blocks *b, const Track *t, const Node *n, bool counts, int depth) {
  Placement out[MAX_DIMS];
  Track to[MAX_DIMS] = {{0}};
  bool free, known;
  for (int i = 0; i < t->n; i++) {
    TRY(probe_ask(b->p, n, &(Given){t->val, place_s(t->lead[i].dim)}, 1, out, &free, &known));
    if (!known) break;
    for (int o = 0; o < n->nouts; o++) {
      bool stays = free && is_plain_s(&out[o]) && (i == 0 || to[o].n > 0);
      const Tensor *size = stays ? probe_tensor(b->p, n->outs[o]) : NULL;
      if (!size || size->size[out[o].dim] != t->lead[i].size) continue;
      if (i == 0) to[o] = (Track){.val = n->outs[o], .member = t->member, .base = t->base};
      to[o].lead[to[o].n] = t->lead[i];
      to[o].lead[to[o].n++].dim = out[o].dim;
    }
    if (i == 0) {
      if (counts) add_count(b, t->member, pieces(&t->lead[0]));
      if (free && n->nouts == 1 && is_s(&out[0])) TRY(join_buffers(b, t, n, out[0].dim));
    }
    if (i == 0 && to[0].n == 0) break;
  }
  for (int o = 0; o < n->nouts; o++) {
    if (to[o].n) TRY(land(b, &to[o], depth));
  }
  return OK;
}

static Status cut_results(Blocks *b, const Track *t, const Node *n, int row, int depth) {
  const Tensor *in = probe_tensor(b->p, t->val);
  int64_t dim, start = 0;
  if (!arg_number(b->p, &n->args[cutters[row].dim], 0, &dim)) return OK;
  if (dim < 0) dim += in->ndim;
  if (dim < 0 || dim >= in->ndim) return OK;
  if (cutters[row].start >= 0 && !arg_number(b->p, &n->args[cutters[row].start], 0, &start)) return OK;
  if (start < 0) start += in->size[dim];
  for (int o = 0; o < n->nouts; o++) {
    const Tensor *out = probe_tensor(b->p, n->outs[o]);
    Track to = {.val = n->outs[o], .member = t->member};
    if (!out) continue;
    if (cut(b, t, in, out, (int)dim, start, &to)) TRY(land(b, &to, depth));
    if (cutters[row].start < 0) start += out->ndim < in->ndim ? 1 : out->size[dim];
  }
  return OK;
}

static Status follow_user(Blocks *b, const Track *t, const Node *n, int depth) {
  bool ends;
  TRY(ends_here(b, t, n, &ends));
  if (ends) return add_count(b, t->member, pieces(&t->lead[0])), OK;
  if (!n->op || n->nouts == 0 || n->nouts > MAX_DIMS) return OK;
  for (int i = 0; i < CUTTERS; i++)
    if (node_is(n, cutters[i].name)) return cut_results(b, t, n, i, depth);
  if (target_is(n, reshapes)) {
    const Tensor *in = probe_tensor(b->p, t->val), *out = probe_tensor(b->p, n->outs[0]);
    Track to = {.val = n->outs[0], .member = t->member, .base = t->base};
    return out && reshape(t, in, out, &to) ? land(b, &to, depth) : OK;
  }
  return pass_on(b, t, n, !target_is(n, movers), depth);
}

/* Some op needs the features whole, or adds them up. */
static Status is_clean(Blocks *b, const Track *t, bool *clean) {
  *clean = true;
  for (int k = b->p->first_user[t->val->id]; k < b->p->first_user[t->val->id + 1] && *clean; k++) {
    const Node *n = b->p->user[k];
    Placement out[MAX_DIMS];
    bool free, known, row = false;
    if (!n || !n->op || n->nouts == 0 || n->nouts > MAX_DIMS || target_is(n, reshapes)) continue;
    for (int i = 0; i < b->nends; i++) row |= b->end[i].node == n && b->end[i].val == t->val;
    for (int i = 0; i < CUTTERS; i++) row |= node_is(n, cutters[i].name);
    if (row) continue;
    TRY(probe_ask(b->p, n, &(Given){t->val, place_s(t->lead[0].dim)}, 1, out, &free, &known));
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

Status blocks_add_rows(Blocks *b, int input, int dim, const Node *node, const Val *val, int val_dim) {
  int m;
  TRY(add_member(b, input, dim, true, &m));
  if (b->nends == b->ends_cap) {
    int cap = b->ends_cap ? 2 * b->ends_cap : 64;
    RowEnd *more;
    TRY_NEW(more, arena_new_n(&b->arena, RowEnd, cap));
    if (b->nends) memcpy(more, b->end, (size_t)b->nends * sizeof *more);
    b->end = more;
    b->ends_cap = cap;
  }
  b->end[b->nends++] = (RowEnd){node, val, val_dim, m};
  return OK;
}

Status blocks_add_columns(Blocks *b, int input, int dim, const WeightUse *use) {
  int m;
  TRY(add_member(b, input, dim, false, &m));
  const Val *v = use->node->outs[0];
  const Tensor *t = probe_tensor(b->p, v);
  int at = use->out[dim];
  if (!t || at < 0 || at >= t->ndim || t->size[at] != b->member[m].n) return OK;
  Track track = {.val = v, .member = m, .n = 1, .lead = {{at, t->size[at], 1, 1, 1}}};
  return land(b, &track, 0);
}

/* ---- what was found --------------------------------------------------------------------------------------- */

/* Pieces of the group: what all its members that are cut can be cut into. */
static int64_t group_pieces(const Blocks *b, int g, int k, bool *drops) {
  int64_t all = 0, wide = 0;
  bool narrow = false;
  for (int i = 0; i < b->nmembers; i++) {
    const Member *m = &b->member[i];
    if (group_of(b, i) != g || !m->count) continue;
    all = gcd(all, m->count);
    if (m->count >= k) wide = gcd(wide, m->count);
    else narrow = true;
  }
  *drops = narrow && wide > all;
  return *drops ? wide : all;
}

static const Member *find_member(const Blocks *b, int input, int dim) {
  for (int i = 0; i < b->nmembers; i++)
    if (b->member[i].input == input && (dim < 0 || b->member[i].dim == dim)) return &b->member[i];
  return NULL;
}

bool blocks_is_member(const Blocks *b, int input, int *dim) {
  const Member *m = find_member(b, input, -1);
  if (m) *dim = m->dim;
  return m;
}

Status blocks_place(const Blocks *b, int input, int dim, int k, Placement *out) {
  const Member *m = find_member(b, input, dim);
  *out = place_s(dim);
  if (!m) return OK;
  bool drops;
  int64_t n = group_pieces(b, group_of(b, (int)(m - b->member)), k, &drops), size[MAX_CUTS + 1], unit = 1;
  if (drops && m->count && m->count < k) return *out = place_r(), OK;
  int segments = 0;
  m = twin_of(b, (int)(m - b->member));
  for (int i = 0; m->ncuts > 0 && i <= m->ncuts; i++)
    size[segments++] = (i < m->ncuts ? m->cut[i] : m->n) - (i ? m->cut[i - 1] : 0);
  if (!segments) size[segments++] = m->n;
  if (n > 0 && n % k) {
    unit = 0;
    for (int i = 0; i < segments; i++) unit = size[i] % n ? 1 : gcd(unit, size[i] / n);
    if (unit < 1) unit = 1;
  }
  if (segments > MAX_SEGMENTS) return OK;
  if (segments == 1) {
    out->unit = unit;
    return OK;
  }
  return place_segments(dim, size, segments, unit, out);
}
