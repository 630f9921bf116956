/* view_calculus.c -- see view_calculus.h. */
#include "shard/view_calculus.h"

#include <string.h>

static int64_t div_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* ---- cuts --------------------------------------------------------------------------- */

/* What an axis does to an extent: a row of n segments, `copies` times, each cut by itself
 * in multiples of unit. */
typedef struct {
  int64_t copies, unit;
  int n;
  int64_t size[MAX_SEGMENTS];
} Cut;

/* Segments without elements are left out; equal ones are copies. */
static void cut_simplify(Cut *c) {
  int n = 0;
  bool equal = true;
  for (int i = 0; i < c->n; i++)
    if (c->size[i]) c->size[n++] = c->size[i];
  for (int i = 1; i < n; i++) equal &= c->size[i] == c->size[0];
  c->n = n;
  if (equal && n) c->copies *= n, c->n = 1;
}

/* The cut of an extent of n elements; false if it has more segments than we can write. */
static bool cut_of(const Placement *p, int64_t n, Cut *c) {
  *c = (Cut){.copies = 1, .unit = p->unit};
  if (p->nsegments) {
    int64_t total = 0;
    for (int i = 0; i < p->nsegments; i++) total += p->segment[i];
    for (int i = 0; i < p->nsegments; i++) {
      if (total != n && (!total || (p->segment[i] * n) % total)) return false;
      c->size[i] = total == n ? p->segment[i] : p->segment[i] * n / total;
    }
    c->n = p->nsegments;
  } else if (n % p->factor == 0) {
    c->copies = p->factor;
    c->size[c->n++] = n / p->factor;
  } else {
    int64_t size = div_up(n, p->factor), whole = n / size, rest = n % size;
    if (!rest) c->copies = whole, c->size[c->n++] = size;
    else if (whole + 1 <= MAX_SEGMENTS) {
      for (int64_t i = 0; i < whole; i++) c->size[c->n++] = size;
      c->size[c->n++] = rest;
    } else return false;
  }
  cut_simplify(c);
  return true;
}

/* The same cut of a dimension, as one of the flat extent around it. */
static Cut cut_flat(Cut c, int64_t outer, int64_t inner) {
  c.copies *= outer;
  c.unit *= inner;
  for (int i = 0; i < c.n; i++) c.size[i] *= inner;
  return c;
}

static int64_t chunk_size(int64_t n, int k, int64_t unit) {
  int64_t chunk = div_up(div_up(n, unit), k) * unit;
  return chunk < n ? chunk : n;
}

/* Rank 0 of the axis holds everything. */
static bool cut_is_first(const Cut *c, int k) {
  for (int i = 0; i < c->n; i++)
    if (chunk_size(c->size[i], k, c->unit) < c->size[i]) return false;
  return true;
}

/* Do two cuts of the same number of elements give every rank the same ones? */
static bool cut_same(const Cut *a, const Cut *b, int k) {
  bool first = cut_is_first(a, k);
  if (first != cut_is_first(b, k)) return false;
  if (first) return true;
  if (a->copies != b->copies || a->n != b->n) return false;
  for (int i = 0; i < a->n; i++)
    if (a->size[i] != b->size[i] || chunk_size(a->size[i], k, a->unit) != chunk_size(b->size[i], k, b->unit))
      return false;
  return true;
}

/* How many elements piece r of k has. */
static int64_t cut_piece(const Cut *c, int k, int r) {
  int64_t total = 0, begin, size;
  for (int i = 0; i < c->n; i++) {
    chunk_of(c->size[i], k, r, c->unit, &begin, &size);
    total += size;
  }
  return total * c->copies;
}

/* ---- states: the local sizes that occur ------------------------------------------------ */

enum { MAX_STATES = 64, STATE_WIDTH = 2 * MAX_DIMS };

/* Rows of numbers, each once; row 0 is that of coordinate 0 everywhere. */
typedef struct {
  int64_t row[MAX_STATES][STATE_WIDTH];
  int n, width;
} States;

static bool states_add(States *s, const int64_t *row) {
  for (int i = s->n - 1; i >= 0; i--)
    if (!memcmp(s->row[i], row, (size_t)s->width * sizeof *row)) return true;
  if (s->n == MAX_STATES) return false;
  memcpy(s->row[s->n++], row, (size_t)s->width * sizeof *row);
  return true;
}

static int64_t product(const int64_t *size, int n) {
  int64_t p = 1;
  for (int i = 0; i < n; i++) p *= size[i];
  return p;
}

/* The cut by p of a dimension of these sizes, as one of all their elements. */
static bool flat_cut(const Placement *p, int ndim, const int64_t *size, Cut *c) {
  if (!cut_of(p, size[p->dim], c)) return false;
  *c = cut_flat(*c, product(size, p->dim), product(size + p->dim + 1, ndim - p->dim - 1));
  return true;
}

/* ---- reshape ----------------------------------------------------------------------------- */

typedef struct {
  int from, to; /* dimensions; a state is `from` sizes, then `to` */
  int64_t global[STATE_WIDTH];
  States now, next;
} Reshape;

static bool image_fits(const Reshape *v, const Placement *in, const Placement *out, int k) {
  for (int i = 0; i < v->now.n; i++) {
    Cut a, b;
    const int64_t *size = v->now.row[i];
    if (!flat_cut(in, v->from, size, &a) || !flat_cut(out, v->to, size + v->from, &b) || !cut_same(&a, &b, k))
      return false;
  }
  return true;
}

/* Which unit a candidate has. */
typedef enum { UNIT_NONE, UNIT_SCALED, UNIT_CHUNK, UNIT_KINDS } UnitKind;

/* The placement on dimension dim of `size` that cuts as `flat` does, if sizes allow one.
 * first: flat leaves everything to rank 0, which any dimension can say. */
static bool candidate(const Cut *flat, int ndim, const int64_t *size, int dim, int k, bool first, UnitKind kind,
                      Placement *out) {
  int64_t outer = product(size, dim), inner = product(size + dim + 1, ndim - dim - 1), unit = 1;
  int64_t copies = first ? 1 : flat->copies / outer;
  if (!first && flat->copies % outer) return false;
  if (kind == UNIT_SCALED) {
    if (flat->unit % inner) return false;
    unit = flat->unit / inner;
  } else if (kind == UNIT_CHUNK) {
    int64_t chunk = chunk_size(flat->size[0], k, flat->unit);
    if (!first && (flat->n != 1 || chunk % inner)) return false;
    unit = first ? size[dim] : chunk / inner;
  }
  *out = place_s(dim);
  out->unit = unit;
  if (flat->n == 1 || first) {
    out->factor = copies;
    return size[dim] % copies == 0;
  }
  if (copies * flat->n > MAX_SEGMENTS) return false;
  for (int64_t i = 0; i < copies; i++) {
    for (int s = 0; s < flat->n; s++) {
      if (flat->size[s] % inner) return false;
      out->segment[out->nsegments++] = flat->size[s] / inner;
    }
  }
  return true;
}

/* How well dimension d of the result answers to the input's, where either would do (a rank
 * has a single element of both): the very same one, any that is not 1. */
static int kinship(const Reshape *v, int from, int d) {
  const int64_t *a = v->global, *b = v->global + v->from;
  bool twin = a[from] == b[d] && product(a, from) == product(b, d);
  return twin ? 2 + (from == d && v->from == v->to) : b[d] > 1;
}

/* I2: kinds of units first, then the smallest factor, the nearest kin, the first dimension. */
static bool find_image(const Reshape *v, const Placement *in, int k, Placement *out) {
  static const UnitKind plain[UNIT_KINDS] = {UNIT_NONE, UNIT_SCALED, UNIT_CHUNK},
                        given[UNIT_KINDS] = {UNIT_SCALED, UNIT_NONE, UNIT_CHUNK};
  const UnitKind *kinds = in->unit > 1 ? given : plain;
  const int64_t *size = v->now.row[0];
  Cut flat;
  if (!flat_cut(in, v->from, size, &flat)) return false;
  for (int i = 0; i < 2 * UNIT_KINDS; i++) {
    bool found = false, first = i >= UNIT_KINDS;
    int best = 0;
    if (first && !cut_is_first(&flat, k)) break;
    for (int d = 0; d < v->to; d++) {
      Placement p;
      if (!candidate(&flat, v->to, size + v->from, d, k, first, kinds[i % UNIT_KINDS], &p)) continue;
      int kin = kinship(v, in->dim, d);
      if (found && (p.factor > out->factor || (p.factor == out->factor && kin <= best))) continue;
      if (!image_fits(v, in, &p, k)) continue;
      *out = p;
      best = kin;
      found = true;
    }
    if (found) return true;
  }
  return false;
}

/* The local sizes after this axis; ranks without elements need no further look. */
static bool reshape_step(Reshape *v, const Placement *in, const Placement *out, int k) {
  v->next.n = 0;
  v->next.width = v->from + v->to;
  for (int i = 0; i < v->now.n; i++) {
    Cut a, b;
    int64_t row[STATE_WIDTH], *to = row + v->from;
    memcpy(row, v->now.row[i], (size_t)v->next.width * sizeof *row);
    if (!cut_of(in, row[in->dim], &a) || !cut_of(out, to[out->dim], &b)) return false;
    for (int r = 0; r < k; r++) {
      row[in->dim] = cut_piece(&a, k, r);
      to[out->dim] = cut_piece(&b, k, r);
      if (row[in->dim] && to[out->dim] && !states_add(&v->next, row)) return false;
    }
  }
  v->now = v->next;
  return true;
}

/* No elements: a dimension keeps its shards if the sizes up to it, or from it, stay. */
static bool reshape_empty(const Axes *m, int from_ndim, const int64_t *from, int to_ndim, const int64_t *to,
                          const Placement *in, Placement *out, int *bad) {
  for (int a = 0; a < m->naxes; a++) {
    out[a] = in[a];
    if (!is_s(&in[a])) continue;
    int d = in[a].dim, tail = from_ndim - d;
    if (d < to_ndim && !memcmp(from, to, (size_t)(d + 1) * sizeof *from)) continue;
    if (tail <= to_ndim && !memcmp(from + d, to + to_ndim - tail, (size_t)tail * sizeof *from))
      out[a].dim = to_ndim - tail;
    else return *bad = a, false;
  }
  return true;
}

/* I3 */
static bool without_turns(const Axes *m, int ndim, const int64_t *size, const Placement *in, Placement *out,
                          int *bad) {
  memcpy(out, in, (size_t)m->naxes * sizeof *out);
  for (int a = 0; a < m->naxes; a++) {
    if (!is_s(&in[a]) || !in[a].turn) continue;
    Layout l = {.ndim = ndim, .shape = size, .naxes = m->naxes, .axis = m->axis, .place = in};
    if (!layout_is_even(&l)) return *bad = a, false;
    order_to_strided(in, m->axis, m->naxes, out);
    return true;
  }
  return true;
}

bool view_reshape(const Axes *m, int from_ndim, const int64_t *from, int to_ndim, const int64_t *to,
                  const Placement *in, Placement *out, int *bad) {
  Placement have[MAX_AXES];
  if (!without_turns(m, from_ndim, from, in, have, bad)) return false;
  if (!product(from, from_ndim)) return reshape_empty(m, from_ndim, from, to_ndim, to, have, out, bad);
  Reshape v = {.from = from_ndim, .to = to_ndim};
  int64_t row[STATE_WIDTH] = {0};
  memcpy(row, from, (size_t)from_ndim * sizeof *row);
  memcpy(row + from_ndim, to, (size_t)to_ndim * sizeof *row);
  v.now.width = from_ndim + to_ndim;
  memcpy(v.global, row, sizeof row);
  states_add(&v.now, row);
  for (int a = 0; a < m->naxes; a++) {
    out[a] = have[a];
    if (!is_s(&have[a])) continue;
    if (!find_image(&v, &have[a], m->axis[a], &out[a]) || !reshape_step(&v, &have[a], &out[a], m->axis[a]))
      return *bad = a, false;
  }
  return true;
}

/* ---- cuts of a dimension ------------------------------------------------------------------ */

/* The segments of c that lie in [begin, end); false if one of these is inside a segment. */
static bool cut_between(const Cut *c, int64_t begin, int64_t end, Cut *out) {
  int64_t period = 0, at = 0;
  for (int i = 0; i < c->n; i++) period += c->size[i];
  *out = (Cut){.copies = 1, .unit = c->unit};
  if (begin == end) return true;
  if (!period) return false;
  if (begin % period == 0 && end % period == 0) {
    *out = *c;
    out->copies = (end - begin) / period;
    return true;
  }
  bool from = false, to = false;
  for (int64_t copy = begin / period; copy < c->copies && at < end; copy++) {
    at = copy * period;
    for (int i = 0; i < c->n && at < end; i++, at += c->size[i - 1]) {
      from |= at == begin;
      if (at < begin) continue;
      if (out->n == MAX_SEGMENTS) return false;
      out->size[out->n++] = c->size[i];
      to |= at + c->size[i] == end;
    }
  }
  cut_simplify(out);
  return from && to;
}

/* A placement with these segments. */
static bool place_cut(int dim, const Cut *c, Placement *out) {
  int64_t size[MAX_SEGMENTS];
  int n = 0;
  *out = place_s(dim);
  out->unit = c->unit;
  if (c->n <= 1) {
    out->factor = c->n ? c->copies : 1;
    return true;
  }
  if (c->copies * c->n > MAX_SEGMENTS) return false;
  for (int64_t i = 0; i < c->copies; i++)
    for (int s = 0; s < c->n; s++) size[n++] = c->size[s];
  memcpy(out->segment, size, (size_t)n * sizeof *size);
  out->nsegments = n;
  return true;
}

/* The number of elements that piece r has before `limit`, a boundary of segments. */
static int64_t piece_before(const Cut *c, int64_t limit, int k, int r) {
  Cut front;
  return cut_between(c, 0, limit, &front) ? cut_piece(&front, k, r) : 0;
}

bool view_cut(const Axes *m, int dim, int64_t n, int64_t begin, int64_t end, const Placement *in, Placement *out,
              int *bad) {
  States now = {.width = 3}, next = {.width = 3}; /* extent, begin, end */
  states_add(&now, (int64_t[]){n, begin, end});
  for (int a = 0; a < m->naxes; a++) {
    int k = m->axis[a];
    out[a] = in[a];
    if (!is_s_of(&in[a], dim) || (begin == 0 && end == n)) continue;
    *bad = a;
    if (in[a].turn) return false;
    next.n = 0;
    for (int i = 0; i < now.n; i++) {
      const int64_t *s = now.row[i];
      Cut whole, part, told;
      if (!cut_of(&in[a], s[0], &whole) || !cut_between(&whole, s[1], s[2], &part)) return false;
      if (i == 0 && !place_cut(dim, &part, &out[a])) return false;
      if (!cut_of(&out[a], s[2] - s[1], &told) || (s[2] > s[1] && !cut_same(&part, &told, k))) return false;
      for (int r = 0; r < k; r++) {
        int64_t row[3] = {cut_piece(&whole, k, r), piece_before(&whole, s[1], k, r),
                          piece_before(&whole, s[2], k, r)};
        if (row[0] && !states_add(&next, row)) return false;
      }
    }
    now = next;
  }
  return true;
}

/* ---- joins ----------------------------------------------------------------------------------- */

static bool cut_append(Cut *to, const Cut *c) {
  if (c->n == 0) return true;
  if (to->n == 0) {
    int64_t unit = to->unit;
    *to = *c;
    return unit == 0 || unit == c->unit;
  }
  if (to->unit != c->unit) return false;
  if (to->n == 1 && c->n == 1 && to->size[0] == c->size[0]) {
    to->copies += c->copies;
    return true;
  }
  int64_t n = to->copies * to->n + c->copies * c->n;
  if (n > MAX_SEGMENTS) return false;
  Cut joined = {.copies = 1, .unit = c->unit};
  const Cut *parts[2] = {to, c};
  for (int p = 0; p < 2; p++)
    for (int64_t i = 0; i < parts[p]->copies; i++)
      for (int s = 0; s < parts[p]->n; s++) joined.size[joined.n++] = parts[p]->size[s];
  *to = joined;
  return true;
}

static bool join_row(const Placement *in, int naxes, const int64_t *size, int count, Cut *out) {
  *out = (Cut){.copies = 1};
  for (int t = 0; t < count; t++) {
    Cut c;
    if (!cut_of(&in[t * naxes], size[t], &c) || !cut_append(out, &c)) return false;
  }
  if (!out->unit) out->unit = 1;
  return true;
}

bool view_join(const Axes *m, int dim, const int64_t *size, int count, const Placement *in, Placement *out,
               int *bad) {
  *bad = 0;
  if (count > STATE_WIDTH || count > MAX_JOINED) return false;
  States now = {.width = count}, next = {.width = count};
  states_add(&now, size);
  for (int a = 0; a < m->naxes; a++) {
    int k = m->axis[a], sharded = 0;
    out[a] = in[a];
    for (int t = 0; t < count; t++) sharded += is_s_of(&in[t * m->naxes + a], dim) && !in[t * m->naxes + a].turn;
    if (!is_s_of(&in[a], dim) && !sharded) continue;
    *bad = a;
    if (sharded != count) return false;
    next.n = 0;
    for (int i = 0; i < now.n; i++) {
      Cut joined, told;
      int64_t total = 0;
      for (int t = 0; t < count; t++) total += now.row[i][t];
      if (!join_row(&in[a], m->naxes, now.row[i], count, &joined)) return false;
      if (i == 0 && !place_cut(dim, &joined, &out[a])) return false;
      if (!cut_of(&out[a], total, &told) || !cut_same(&joined, &told, k)) return false;
      for (int r = 0; r < k; r++) {
        int64_t row[STATE_WIDTH], left = 0;
        for (int t = 0; t < count; t++) {
          Cut c;
          if (!cut_of(&in[t * m->naxes + a], now.row[i][t], &c)) return false;
          left += row[t] = cut_piece(&c, k, r);
        }
        if (left && !states_add(&next, row)) return false;
      }
    }
    now = next;
  }
  return true;
}
