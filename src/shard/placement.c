/* placement.c -- placements as values: equality, hash, check. */
#include "shard/placement.h"

#include <string.h>

#include "base/hash.h"

bool placement_equal(const Placement *a, const Placement *b) {
  if (a->kind != b->kind) return false;
  if (a->kind == PLACE_R) return true;
  if (a->kind == PLACE_P) return a->op == b->op && a->norm == b->norm;
  return a->dim == b->dim && a->turn == b->turn && a->factor == b->factor && a->unit == b->unit &&
         a->nsegments == b->nsegments && !memcmp(a->segment, b->segment, (size_t)a->nsegments * sizeof *a->segment);
}

bool placements_equal(const Placement *a, const Placement *b, int n) {
  for (int i = 0; i < n; i++)
    if (!placement_equal(&a[i], &b[i])) return false;
  return true;
}

unsigned placements_exchange(const Placement *from, const Placement *to, int n) {
  unsigned axes = 0;
  for (int a = 0; a < n; a++)
    if (is_s(&from[a]) != is_s(&to[a])) axes |= 1u << a;
  return axes;
}

static uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
  return h * 0xff51afd7ed558ccdu;
}

uint64_t placements_hash(const Placement *p, int n, uint64_t seed) {
  uint64_t h = seed;
  for (int i = 0; i < n; i++) {
    h = mix(h, (uint64_t)p[i].kind);
    if (is_p(&p[i])) h = mix(h, (uint64_t)p[i].op * 31 + hash_bytes(0, &p[i].norm, sizeof p[i].norm));
    if (!is_s(&p[i])) continue;
    h = mix(h, (uint64_t)p[i].dim | (uint64_t)p[i].turn << 8 | (uint64_t)p[i].nsegments << 16);
    h = mix(h, (uint64_t)p[i].factor ^ (uint64_t)p[i].unit << 32);
    for (int s = 0; s < p[i].nsegments; s++) h = mix(h, (uint64_t)p[i].segment[s]);
  }
  return h;
}

Status place_segments(int dim, const int64_t *size, int n, int64_t unit, Placement *out) {
  *out = place_s(dim);
  out->unit = unit;
  bool equal = true;
  for (int i = 1; i < n; i++) equal &= size[i] == size[0];
  if (equal) {
    out->factor = n > 0 ? n : 1;
    return OK;
  }
  if (n > MAX_SEGMENTS)
    return fail(ERR_USAGE, "a shard has at most %d segments of unequal sizes, not %d", MAX_SEGMENTS, n);
  out->nsegments = n;
  memcpy(out->segment, size, (size_t)n * sizeof *size);
  return OK;
}

static Status check_one(const Placement *p, int ndim, const char *what) {
  if (!is_s(p)) return OK;
  if (p->dim < 0 || p->dim >= ndim)
    return fail(ERR_USAGE, "%s: S(%d) of a tensor with %d dimension%s", what, p->dim, ndim, ndim == 1 ? "" : "s");
  if (p->factor < 1 || p->unit < 1) return fail(ERR_USAGE, "%s: factor and unit of a shard are at least 1", what);
  for (int i = 0; i < p->nsegments; i++)
    if (p->segment[i] < 0) return fail(ERR_USAGE, "%s: a segment of %lld elements", what, (long long)p->segment[i]);
  return OK;
}

/* Turns on a dimension: none, or 1..k each once. */
static Status check_turns(const Placement *p, int n, const char *what) {
  for (int i = 0; i < n; i++) {
    if (!is_s(&p[i])) continue;
    int given = 0, cuts = 0;
    unsigned seen = 0;
    for (int j = 0; j < n; j++) {
      if (!is_s_of(&p[j], p[i].dim)) continue;
      cuts++;
      given += p[j].turn > 0;
      if (p[j].turn > 0 && p[j].turn <= MAX_AXES) seen |= 1u << (p[j].turn - 1);
    }
    if (given && (given != cuts || seen != (1u << cuts) - 1u))
      return fail(ERR_USAGE, "%s: the turns on dimension %d are not 0 to %d, each once", what, p[i].dim, cuts - 1);
  }
  return OK;
}

static bool may_mix(const Placement *a, const Placement *b) {
  if (a->norm != 0 || b->norm != 0) return placement_equal(a, b);
  return a->op == b->op || (a->op <= REDUCE_AVG && b->op <= REDUCE_AVG);
}

/* The first partial placement that does not go with an earlier one, *with; -1: none. */
static int first_clash(const Placement *p, int n, int *with) {
  *with = -1;
  for (int i = 0; i < n; i++) {
    if (!is_p(&p[i])) continue;
    if (*with >= 0 && !may_mix(&p[*with], &p[i])) return i;
    *with = i;
  }
  return -1;
}

bool placements_partial_alike(const Placement *p, int n) {
  int with;
  return first_clash(p, n, &with) < 0;
}

Status placements_check(const Placement *p, int n, int ndim, const char *what) {
  for (int i = 0; i < n; i++) TRY(check_one(&p[i], ndim, what));
  int with, clash = first_clash(p, n, &with);
  if (clash >= 0) {
    char a[64], b[64];
    return fail(ERR_USAGE, "%s: %s and %s cannot be partial at once", what, placement_print(&p[with], a, sizeof a),
                placement_print(&p[clash], b, sizeof b));
  }
  return check_turns(p, n, what);
}
