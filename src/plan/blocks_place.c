/* blocks_place.c -- from what tracks found to placements; see blocks.h.
 *
 * A segment of a member is *wide* if it has at least as many pieces as there are ranks, and
 * *narrow* if it has fewer (key and value heads), or if an op that gets a wide one beside
 * it needs it whole.  Narrow segments in the company of wide ones stay whole on every
 * rank: their use with the wide ones is then local.  A weight that has both is whole, and
 * the wide parts of its product are cut.
 */
#include "plan/blocks_inside.h"

static int64_t blocks_gcd(int64_t a, int64_t b) {
  while (b) {
    int64_t r = a % b;
    a = b;
    b = r;
  }
  return a;
}

int blocks_group(const Blocks *b, int m) {
  while (b->member[m].group != m) m = b->member[m].group;
  return m;
}

Member *blocks_keeper(const Blocks *b, int m) {
  while (b->member[m].keeper != m) m = b->member[m].keeper;
  return &b->member[m];
}

Status member_add_span(Blocks *b, Member *m, int64_t begin, int64_t end, int64_t count) {
  int i = 0;
  while (i < m->nspans && (m->span[i].begin != begin || m->span[i].end != end)) i++;
  if (i == MAX_SPANS) return OK;
  if (i == m->nspans) {
    TRY_NEW(m->span, arena_more(&b->arena, m->span, m->nspans, &m->spans_cap));
    m->span[m->nspans++] = (Span){begin, end, 0};
  }
  m->span[i].count = blocks_gcd(m->span[i].count, count);
  return OK;
}

/* ---- segments ------------------------------------------------------------------------------- */

/* Segments of the features, their pieces in count (0: nothing is known). */
static int segments_of(const Member *m, Span *out) {
  int n = m->ncuts > 0 ? m->ncuts + 1 : 1;
  for (int i = 0; i < n; i++) out[i] = (Span){i ? m->cut[i - 1] : 0, i < n - 1 ? m->cut[i] : m->n, 0};
  for (int i = 0; i < n; i++) {
    int64_t size = out[i].end - out[i].begin;
    for (int s = 0; s < m->nspans; s++) {
      const Span *span = &m->span[s];
      if (span->begin > out[i].begin || span->end < out[i].end || !span->count) continue;
      int64_t piece = (span->end - span->begin) / span->count;
      bool exact = span->begin == out[i].begin && span->end == out[i].end;
      if (piece && size % piece == 0 && (exact || size > piece))
        out[i].count = blocks_gcd(out[i].count, size / piece);
    }
  }
  return n;
}

/* Does the track at v carry at least k pieces? */
static bool is_wide_track(const Blocks *b, const Val *v, int k) {
  const Track *t = b->at[v->id];
  return t && t->n && track_pieces(t) >= k;
}

/* Features [begin, end) of m meet wide ones where they are needed whole. */
static bool is_needed(const Blocks *b, const Member *m, int64_t begin, int64_t end, int k) {
  for (int i = b->need_at[m - b->member] - 1; i >= 0; i = b->need[i].next) {
    const Need *need = &b->need[i];
    if (need->begin >= end || need->end <= begin) continue;
    for (int a = 0; a < need->node->nargs; a++) {
      const Val *v = need->node->args[a].kind == ARG_VAL ? need->node->args[a].val : NULL;
      const Track *t = v && v != need->val ? b->at[v->id] : NULL;
      if (t && is_wide_track(b, v, k) &&
          (blocks_keeper(b, t->member) != m || t->base >= end || track_end(t) <= begin))
        return true;
    }
  }
  return false;
}

/* ---- groups --------------------------------------------------------------------------------------- */

/* Pieces of the members' segments; of those with at least k; whether there are others. */
typedef struct {
  int64_t all, wide;
  bool narrow;
} Count;

static void count_member(const Blocks *b, const Member *m, int k, Count *count) {
  Span segment[MAX_CUTS + 1];
  int n = segments_of(m, segment);
  for (int s = 0; s < n; s++) {
    if (!segment[s].count || is_needed(b, m, segment[s].begin, segment[s].end, k)) continue;
    count->all = blocks_gcd(count->all, segment[s].count);
    if (segment[s].count >= k) count->wide = blocks_gcd(count->wide, segment[s].count);
    else count->narrow = true;
  }
}

/* All groups, and where the needs of each member are. */
static Status settle(Blocks *b, int k) {
  Count *count;
  if (b->settled == k) return OK;
  TRY_NEW(count, arena_new_n(&b->arena, Count, b->nmembers + 1));
  TRY_NEW(b->pieces, arena_new_n(&b->arena, GroupPieces, b->nmembers + 1));
  TRY_NEW(b->need_at, arena_new_n(&b->arena, int, b->nmembers + 1));
  for (int i = b->nneeds - 1; i >= 0; i--) {
    int *first = &b->need_at[blocks_keeper(b, b->need[i].member) - b->member];
    b->need[i].next = *first - 1;
    *first = i + 1;
  }
  for (int i = 0; i < b->nmembers; i++)
    if (b->member[i].keeper == i) count_member(b, &b->member[i], k, &count[blocks_group(b, i)]);
  for (int i = 0; i < b->nmembers; i++) {
    bool drops = count[i].narrow && count[i].wide > count[i].all;
    b->pieces[i] = (GroupPieces){drops ? count[i].wide : count[i].all, drops};
  }
  b->settled = k;
  return OK;
}

static bool is_narrow(const Blocks *b, const Member *m, const Span *segment, GroupPieces g, int k) {
  if (g.drops && segment->count && segment->count < k) return true;
  return is_needed(b, m, segment->begin, segment->end, k);
}

/* ---- placements ------------------------------------------------------------------------------------ */

static const Member *find_member(const Blocks *b, int input, int dim) {
  const Member *found = NULL; /* the first of several */
  for (int i = b->member_at[input] - 1; i >= 0; i = b->member[i].next)
    if (dim < 0 || b->member[i].dim == dim) found = &b->member[i];
  return found;
}

bool blocks_is_member(const Blocks *b, int input, int *dim) {
  const Member *m = find_member(b, input, -1);
  if (m) *dim = m->dim;
  return m;
}

static GroupPieces pieces_of(const Blocks *b, const Member *m) {
  return b->pieces[blocks_group(b, (int)(m - b->member))];
}

/* What goes to a buffer stays whole on every rank. */
static bool is_written_whole(const Blocks *b, const Member *buffer, GroupPieces g, int k) {
  Span segment[MAX_CUTS + 1];
  if (buffer->writer < 0) return false;
  const Member *m = blocks_keeper(b, buffer->writer);
  int n = segments_of(m, segment);
  for (int s = 0; s < n; s++)
    if (segment[s].begin < buffer->written.end && segment[s].end > buffer->written.begin &&
        is_narrow(b, m, &segment[s], g, k))
      return true;
  return false;
}

/* Pieces stay whole: the size of one, where the ranks do not divide their number. */
static int64_t unit_of(int64_t size, GroupPieces g, int k) {
  if (g.pieces <= 0 || g.pieces % k == 0) return 1;
  return size % g.pieces ? 1 : size / g.pieces;
}

Status blocks_place(Blocks *b, int input, int dim, int k, Placement *out) {
  const Member *m = find_member(b, input, dim);
  *out = place_s(dim);
  if (!m) return OK;
  TRY(settle(b, k));
  GroupPieces g = pieces_of(b, m);
  Span segment[MAX_CUTS + 1];
  int64_t size[MAX_CUTS + 1], unit = 0;
  if (is_written_whole(b, m, g, k)) return *out = place_r(), OK;
  m = blocks_keeper(b, (int)(m - b->member));
  int n = segments_of(m, segment);
  for (int i = 0; i < n; i++) {
    if (is_narrow(b, m, &segment[i], g, k)) return *out = place_r(), OK;
    size[i] = segment[i].end - segment[i].begin;
    int64_t u = unit_of(size[i], g, k);
    unit = unit == 1 || u == 1 ? 1 : blocks_gcd(unit, u);
  }
  if (n > MAX_SEGMENTS) return OK;
  if (n == 1) {
    out->unit = unit;
    return OK;
  }
  return place_segments(dim, size, n, unit, out);
}

Status blocks_part(Blocks *b, int input, int dim, int k, int i, const Val **val, Placement *out) {
  const Member *m = find_member(b, input, dim);
  *val = NULL;
  if (!m) return OK;
  TRY(settle(b, k));
  GroupPieces g = pieces_of(b, m);
  m = blocks_keeper(b, (int)(m - b->member));
  Span segment[MAX_CUTS + 1];
  int n = segments_of(m, segment);
  for (int p = 0; p < b->nparts; p++) {
    const Part *part = &b->part[p];
    if (blocks_keeper(b, part->member) != m) continue;
    int s = 0;
    while (s < n && (segment[s].begin != part->begin || segment[s].end != part->end)) s++;
    if (s == n || segment[s].count < k || is_narrow(b, m, &segment[s], g, k) || i-- > 0) continue;
    *val = part->val;
    *out = place_s(part->dim);
    out->unit = unit_of(part->size, g, k);
    return OK;
  }
  return OK;
}
