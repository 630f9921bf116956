/* layout.c -- see layout.h.  The one recursion of this file: an axis turns the list of
 * runs that the axes before it left into a shorter one. */
#include "shard/layout.h"

#include <string.h>

static int64_t div_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

void chunk_of(int64_t n, int64_t k, int64_t r, int64_t unit, int64_t *begin, int64_t *size) {
  int64_t chunk = div_up(div_up(n, unit), k) * unit; /* I2 */
  *begin = chunk && r > n / chunk ? n : r * chunk;
  if (*begin > n) *begin = n;
  *size = n - *begin < chunk ? n - *begin : chunk;
}

void mesh_coord(const int *axis, int naxes, int64_t position, int *coord) {
  for (int a = naxes - 1; a >= 0; a--) {
    coord[a] = (int)(position % axis[a]);
    position /= axis[a];
  }
}

int64_t mesh_position(const int *axis, int naxes, const int *coord) {
  int64_t position = 0;
  for (int a = 0; a < naxes; a++) position = position * axis[a] + coord[a];
  return position;
}

Status shard_of_copy(const ShardOf *s, Arena *arena, const ShardOf **out) {
  const Layout *l = &s->layout;
  struct {
    ShardOf of;
    int axis[MAX_AXES], coord[MAX_AXES];
    int64_t shape[MAX_DIMS];
    Placement place[MAX_AXES];
  } * own;
  TRY_NEW(own, arena_new(arena, typeof(*own)));
  memcpy(own->axis, l->axis, (size_t)l->naxes * sizeof *l->axis);
  memcpy(own->coord, s->coord, (size_t)l->naxes * sizeof *s->coord);
  memcpy(own->shape, l->shape, (size_t)l->ndim * sizeof *l->shape);
  memcpy(own->place, l->place, (size_t)l->naxes * sizeof *l->place);
  own->of = (ShardOf){{l->ndim, own->shape, l->naxes, own->axis, own->place}, own->coord};
  *out = &own->of;
  return OK;
}

int layout_cuts(const Layout *l, int dim, int *axes) {
  int n = 0;
  bool turns = false;
  for (int a = 0; a < l->naxes; a++) {
    if (!is_s_of(&l->place[a], dim)) continue;
    axes[n++] = a;
    turns |= l->place[a].turn > 0;
  }
  for (int i = 1; turns && i < n; i++) /* insertion sort: a handful of axes */
    for (int j = i; j > 0 && l->place[axes[j]].turn < l->place[axes[j - 1]].turn; j--) {
      int swap = axes[j];
      axes[j] = axes[j - 1];
      axes[j - 1] = swap;
    }
  return n;
}

/* ---- segments ---------------------------------------------------------------------- */

/* Segment i of an extent of n elements.  Equal ones are torch.chunk's: ceil(n/factor),
 * the last may be shorter or missing.  Given ones are scaled when an earlier axis has
 * left a part of the dimension in which each keeps its share. */
static Status segment_of(const Placement *p, int64_t n, int64_t i, int64_t *begin, int64_t *size) {
  if (!p->nsegments) {
    chunk_of(n, p->factor, i, 1, begin, size);
    return OK;
  }
  int64_t total = 0, before = 0;
  for (int s = 0; s < p->nsegments; s++) {
    if (s < i) before += p->segment[s];
    total += p->segment[s];
  }
  if (total == n) {
    *begin = before;
    *size = p->segment[i];
    return OK;
  }
  for (int s = 0; s < p->nsegments; s++)
    if (!total || (p->segment[s] * n) % total) {
      char text[256];
      return fail(ERR_USAGE, "%s: segments of %lld elements in all do not fit an extent of %lld",
                  placement_print(p, text, sizeof text), (long long)total, (long long)n);
    }
  *begin = before * n / total;
  *size = p->segment[i] * n / total;
  return OK;
}

static int64_t segment_count(const Placement *p) { return p->nsegments ? p->nsegments : p->factor; }

/* How many of n elements piece r of k gets. */
static Status piece_size(const Placement *p, int64_t n, int k, int r, int64_t *out) {
  int64_t total = 0, begin, size, from, count;
  if (!p->nsegments) { /* equal ones, and what is left of another: there may be any number of them */
    TRY(segment_of(p, n, 0, &begin, &size));
    if (!size) return *out = 0, OK;
    chunk_of(size, k, r, p->unit, &from, &total);
    chunk_of(n % size, k, r, p->unit, &from, &count);
    *out = n / size * total + (n % size ? count : 0);
    return OK;
  }
  for (int64_t i = 0; i < p->nsegments; i++) {
    TRY(segment_of(p, n, i, &begin, &size));
    if (!size) continue;
    chunk_of(size, k, r, p->unit, &from, &count);
    total += count;
  }
  *out = total;
  return OK;
}

Status layout_local(const Layout *l, const int *coord, int64_t *local) {
  for (int d = 0; d < l->ndim; d++) {
    int axes[MAX_AXES], n = layout_cuts(l, d, axes);
    local[d] = l->shape[d];
    for (int i = 0; i < n; i++)
      TRY(piece_size(&l->place[axes[i]], local[d], l->axis[axes[i]], coord[axes[i]], &local[d]));
  }
  return OK;
}

/* Extents that ranks are left with by axes axes[at..] of one dimension, for every coordinate. */
static Status check_cuts(const Layout *l, const int *axes, int n, int at, int64_t extent) {
  if (at == n) return OK;
  int k = l->axis[axes[at]];
  int64_t seen[2] = {-1, -1}; /* chunks come in few sizes: neighbours are mostly alike */
  for (int r = 0; r < k; r++) {
    int64_t size;
    TRY(piece_size(&l->place[axes[at]], extent, k, r, &size));
    if (size == seen[0] || size == seen[1]) continue;
    seen[1] = seen[0];
    seen[0] = size;
    TRY(check_cuts(l, axes, n, at + 1, size));
  }
  return OK;
}

Status layout_check(const Layout *l) {
  for (int d = 0; d < l->ndim; d++) {
    int axes[MAX_AXES], n = layout_cuts(l, d, axes);
    bool given = false;
    for (int i = 0; i < n; i++) given |= l->place[axes[i]].nsegments > 0;
    if (given) TRY(check_cuts(l, axes, n, 0, l->shape[d])); /* only given segments can fail to fit */
  }
  return OK;
}

bool layout_is_even(const Layout *l) {
  for (int d = 0; d < l->ndim; d++) {
    int axes[MAX_AXES], n = layout_cuts(l, d, axes);
    int64_t extent = l->shape[d];
    for (int i = 0; i < n; i++) {
      const Placement *p = &l->place[axes[i]];
      int k = l->axis[axes[i]];
      for (int64_t s = 0; s < segment_count(p); s++) {
        int64_t begin, size;
        Status bad = segment_of(p, extent, s, &begin, &size);
        if (bad) {
          status_free(bad);
          return false;
        }
        if (size % (k * p->unit)) return false;
        if (!p->nsegments && (extent % p->factor || size != extent / p->factor)) return false;
        if (!p->nsegments) break; /* the others are like it */
      }
      extent /= k;
    }
  }
  return true;
}

/* ---- runs -------------------------------------------------------------------------- */

/* Adds elements [begin, begin + size) of the extent that `from` lists. */
static void add_part(const Runs *from, int64_t begin, int64_t size, Runs *to) {
  for (int i = 0; i < from->n && size > 0; i++) {
    Run run = from->run[i];
    if (begin >= run.size) {
      begin -= run.size;
      continue;
    }
    int64_t take = run.size - begin < size ? run.size - begin : size;
    Run *last = to->n ? &to->run[to->n - 1] : NULL;
    if (last && last->begin + last->size == run.begin + begin) last->size += take;
    else to->run[to->n++] = (Run){run.begin + begin, take};
    to->size += take;
    size -= take;
    begin = 0;
  }
}

static Status cut_runs(const Placement *p, int k, int r, Runs *runs, Arena *arena) {
  /* Every segment adds at most one run beyond the cuts that are there already. */
  Runs next = {.run = NULL};
  int64_t segments = segment_count(p) < runs->size ? segment_count(p) : runs->size;
  if (p->nsegments) segments = p->nsegments;
  TRY_NEW(next.run, arena_new_n(arena, Run, segments + runs->n + 1));
  for (int64_t i = 0; i < segment_count(p); i++) {
    int64_t begin, size, from, count;
    TRY(segment_of(p, runs->size, i, &begin, &size));
    if (!size && !p->nsegments) break;
    chunk_of(size, k, r, p->unit, &from, &count);
    add_part(runs, begin + from, count, &next);
  }
  *runs = next;
  return OK;
}

Status layout_runs(const Layout *l, const int *coord, int dim, Arena *arena, Runs *out) {
  int axes[MAX_AXES], n = layout_cuts(l, dim, axes);
  TRY_NEW(out->run, arena_new_n(arena, Run, 1));
  out->run[0] = (Run){0, l->shape[dim]};
  out->n = l->shape[dim] > 0;
  out->size = l->shape[dim];
  for (int i = 0; i < n; i++)
    TRY(cut_runs(&l->place[axes[i]], l->axis[axes[i]], coord[axes[i]], out, arena)); /* I4 */
  return OK;
}

Status layout_indices(const Layout *l, const int *coord, int dim, Arena *arena, int64_t **index, int64_t *n) {
  Runs runs;
  TRY(layout_runs(l, coord, dim, arena, &runs));
  TRY_NEW(*index, arena_new_n(arena, int64_t, runs.size ? runs.size : 1));
  *n = 0;
  for (int i = 0; i < runs.n; i++)
    for (int64_t j = 0; j < runs.run[i].size; j++) (*index)[(*n)++] = runs.run[i].begin + j;
  return OK;
}

Status layout_offset(const Layout *l, const int *coord, int64_t *offset) {
  Arena arena = {0};
  Status s = OK;
  for (int d = 0; d < l->ndim && !s; d++) {
    Runs runs;
    s = layout_runs(l, coord, d, &arena, &runs);
    if (!s) offset[d] = runs.n ? runs.run[0].begin : l->shape[d]; /* I3 */
  }
  arena_free(&arena);
  return s;
}

/* ---- PyTorch's shard orders -------------------------------------------------------- */

void order_to_strided(const Placement *p, const int *axis, int n, Placement *out) {
  for (int i = 0; i < n; i++) {
    out[i] = p[i];
    if (!is_s(&p[i]) || !p[i].turn) continue;
    out[i].turn = 0;
    out[i].factor = 1;
    for (int j = i + 1; j < n; j++) /* cut before this one although it stands to the right */
      if (is_s_of(&p[j], p[i].dim) && p[j].turn < p[i].turn) out[i].factor *= axis[j];
  }
}

bool strided_to_order(const Placement *p, const int *axis, int n, Placement *out) {
  int order[MAX_AXES][MAX_AXES], count[MAX_AXES], dims[MAX_AXES], ndims = 0;
  for (int i = n - 1; i >= 0; i--) {
    if (!is_s(&p[i])) continue;
    if (p[i].unit != 1 || p[i].nsegments || p[i].turn) return false;
    int d = 0;
    while (d < ndims && dims[d] != p[i].dim) d++;
    if (d == ndims) dims[ndims] = p[i].dim, count[ndims++] = 0;
    int64_t product = 1;
    int at = 0;
    while (product != p[i].factor && at < count[d]) product *= axis[order[d][at++]];
    if (product != p[i].factor) return false;
    memmove(&order[d][at + 1], &order[d][at], (size_t)(count[d] - at) * sizeof(int));
    order[d][at] = i;
    count[d]++;
  }
  for (int i = 0; i < n; i++) {
    out[i] = p[i];
    if (is_s(&p[i])) out[i].factor = 1;
  }
  for (int d = 0; d < ndims; d++) {
    bool ascending = true;
    for (int i = 1; i < count[d]; i++) ascending &= order[d][i - 1] < order[d][i];
    for (int i = 0; i < count[d] && !ascending; i++) out[order[d][i]].turn = i + 1;
  }
  return true;
}

/* ---- strides ----------------------------------------------------------------------- */

void local_strides(int ndim, const int64_t *local, const int64_t *global_stride, int64_t *out) {
  int by_stride[MAX_DIMS];
  for (int d = 0; d < ndim; d++) {
    int at = d;
    while (at > 0 && global_stride[by_stride[at - 1]] < global_stride[d]) by_stride[at] = by_stride[at - 1], at--;
    by_stride[at] = d;
  }
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    int d = by_stride[i];
    out[d] = stride;
    stride *= local[d]; /* an empty dimension gives 0, as PyTorch's do */
  }
}

void global_from_local(const Layout *of_local, const int64_t *local_stride, int64_t *shape, int64_t *stride) {
  int ndim = of_local->ndim;
  memcpy(shape, of_local->shape, (size_t)ndim * sizeof *shape);
  memcpy(stride, local_stride, (size_t)ndim * sizeof *stride);
  for (int a = 0; a < of_local->naxes; a++) {
    const Placement *p = &of_local->place[a];
    if (!is_s(p)) continue;
    shape[p->dim] *= of_local->axis[a];
    for (int d = 0; d < ndim; d++)
      if (d != p->dim && stride[d] >= stride[p->dim]) stride[d] *= of_local->axis[a];
  }
}
