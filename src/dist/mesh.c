/* mesh.c -- see mesh.h. */
#include "dist/mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "dist/decisions.h"
#include "dist/dist.h"

Status dist_new(World *w, Dist **out) {
  TRY_NEW(*out, calloc(1, sizeof **out));
  (*out)->world = w;
  return OK;
}

void dist_free(Dist *d) {
  if (!d) return;
  decisions_forget(d);
  arena_free(&d->arena);
  free(d);
}

/* ---- making ---------------------------------------------------------------------------- */

enum { MOST_MESH_RANKS = 1 << 24 };

static Status check_axes(const int *axis, int naxes, const char *const *names, int *size) {
  if (naxes < 0 || naxes > MAX_AXES) return fail(ERR_USAGE, "a mesh has 1 to %d axes, not %d", MAX_AXES, naxes);
  int64_t n = 1;
  for (int a = 0; a < naxes; a++) {
    if (axis[a] < 1) return fail(ERR_USAGE, "mesh axis %d has %d ranks; at least 1 is wanted", a, axis[a]);
    n *= axis[a];
    if (n > MOST_MESH_RANKS) return fail(ERR_USAGE, "a mesh of more than %d ranks", MOST_MESH_RANKS);
    for (int b = 0; names && names[a] && b < a; b++)
      if (names[b] && !strcmp(names[a], names[b]))
        return status_hint(fail(ERR_USAGE, "two mesh axes are called '%s'", names[a]),
                           "give each axis a name of its own: dp=2,tp=4");
  }
  *size = (int)n;
  return OK;
}

static Status check_ranks(const World *w, const int *rank, int n) {
  int world = w ? world_size(w) : 1 << 24;
  if (!rank) {
    if (n > world)
      return status_hint(fail(ERR_USAGE, "a mesh of %d ranks in a world of %d", n, world),
                         "start %d ranks, or choose smaller axes", n);
    return OK;
  }
  for (int i = 0; i < n; i++) {
    if (rank[i] < 0 || rank[i] >= world)
      return fail(ERR_USAGE, "rank %d in a mesh, but the world has ranks 0 to %d", rank[i], world - 1);
    for (int j = 0; j < i; j++)
      if (rank[i] == rank[j]) return fail(ERR_USAGE, "rank %d is in the mesh twice", rank[i]);
  }
  return OK;
}

static bool same_name(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

static bool same_mesh(const Mesh *a, const Mesh *b) {
  if (a->hash != b->hash || a->naxes != b->naxes || memcmp(a->axis, b->axis, sizeof a->axis) ||
      memcmp(a->rank, b->rank, (size_t)a->size * sizeof *a->rank))
    return false;
  for (int i = 0; i < a->naxes; i++)
    if (!same_name(a->name[i], b->name[i])) return false;
  return true;
}

Status mesh_new(Dist *d, const int *axis, int naxes, const char *const *names, const int *rank, Mesh **out) {
  Mesh m = {.naxes = naxes, .world = d->world, .dist = d, .devices_per_host = 1};
  TRY(check_axes(axis, naxes, names, &m.size));
  TRY(check_ranks(d->world, rank, m.size));
  if (naxes) memcpy(m.axis, axis, (size_t)naxes * sizeof *axis);
  int *ranks;
  TRY_NEW(ranks, arena_new_n(&d->arena, int, m.size));
  int me = d->world ? world_rank(d->world) : 0;
  for (int i = 0; i < m.size; i++) {
    ranks[i] = rank ? rank[i] : i;
    if (ranks[i] == me) {
      m.inside = true;
      mesh_coord(m.axis, naxes, i, m.coord);
    }
  }
  m.rank = ranks;
  m.hash = hash_bytes(hash_bytes(0xcbf29ce484222325u, m.axis, sizeof m.axis), ranks,
                      (size_t)m.size * sizeof *ranks);
  for (int a = 0; a < naxes; a++) m.name[a] = names ? names[a] : NULL;
  for (Mesh *other = d->meshes; other; other = other->next)
    if (same_mesh(other, &m)) {
      *out = other;
      return OK;
    }
  for (int a = 0; a < naxes; a++)
    if (m.name[a]) TRY_NEW(m.name[a], arena_strdup(&d->arena, m.name[a]));
  TRY_NEW(*out, arena_new(&d->arena, Mesh));
  m.next = d->meshes;
  **out = m;
  d->meshes = *out;
  return OK;
}

enum { AXIS_NAME = 64 };

/* names[a] NULL: the axis has none; else name[a]. */
static Status parse_axes(const char *text, int *axis, char (*name)[AXIS_NAME], const char **names, int *naxes) {
  int n = 0;
  const char *hint = "write a mesh as dp=2,tp=4 or 2x4";
  for (const char *t = text; *t;) {
    if (n == MAX_AXES) return fail(ERR_USAGE, "mesh '%s' has more than %d axes", text, MAX_AXES);
    size_t len = strcspn(t, "=,x");
    names[n] = NULL;
    if (t[len] == '=' || (t[len] == 'x' && strchr(t, '='))) {
      len = strcspn(t, "=");
      if (len >= sizeof name[0])
        return fail(ERR_USAGE, "mesh: the name '%.20s...' of an axis has %zu characters; at most %zu are taken", t,
                    len, sizeof name[0] - 1);
      if (!len)
        return status_hint(fail(ERR_USAGE, "mesh '%s': an axis without a name at '%s'", text, t), "%s", hint);
      memcpy(name[n], t, len);
      name[n][len] = 0;
      names[n] = name[n];
      t += len + 1;
    }
    char *end;
    long v = strtol(t, &end, 10);
    if (end == t)
      return status_hint(fail(ERR_USAGE, "mesh '%s': a number of ranks is expected %s%s%s", text,
                              *t ? "at '" : "at its end", t, *t ? "'" : ""),
                         "%s", hint);
    if (v < 1 || v > MOST_MESH_RANKS)
      return status_hint(fail(ERR_USAGE, "mesh '%s': %.*s is no number of ranks; 1 to %d are taken", text,
                              (int)(end - t), t, MOST_MESH_RANKS),
                         "%s", hint);
    axis[n++] = (int)v;
    t = end;
    if (*t == ',' || *t == 'x') t++;
    else if (*t)
      return status_hint(fail(ERR_USAGE, "mesh '%s': a comma is expected between axes, not '%s'", text, t), "%s",
                         hint);
    if (!*t && (end[0] == ',' || end[0] == 'x'))
      return status_hint(fail(ERR_USAGE, "mesh '%s' ends with '%c'", text, end[0]), "%s", hint);
  }
  if (!n) return status_hint(fail(ERR_USAGE, "an empty mesh"), "%s", hint);
  *naxes = n;
  return OK;
}

Status mesh_parse(Dist *d, const char *text, Mesh **out) {
  int axis[MAX_AXES], n;
  char name[MAX_AXES][AXIS_NAME];
  const char *names[MAX_AXES];
  TRY(parse_axes(text, axis, name, names, &n));
  return mesh_new(d, axis, n, names, NULL, out);
}

Status mesh_text_axes(const char *text, int *axis, int *naxes) {
  char name[MAX_AXES][AXIS_NAME];
  const char *names[MAX_AXES];
  return parse_axes(text, axis, name, names, naxes);
}

Status mesh_text_ranks(const char *text, int *out) {
  Dist *d;
  Mesh *m;
  TRY(dist_new(NULL, &d));
  Status s = mesh_parse(d, text, &m);
  if (!s) *out = m->size;
  dist_free(d);
  return s;
}

/* ---- asking ---------------------------------------------------------------------------- */

int mesh_axis_named(const Mesh *m, const char *name) {
  for (int a = 0; a < m->naxes; a++)
    if (m->name[a] && !strcmp(m->name[a], name)) return a;
  return -1;
}

bool mesh_coord_of(const Mesh *m, int rank, int *coord) {
  for (int i = 0; i < m->size; i++)
    if (m->rank[i] == rank) {
      mesh_coord(m->axis, m->naxes, i, coord);
      return true;
    }
  return false;
}

/* Walks the coordinates that differ from coord in `axes`, row-major in the order given. */
static int collect(const Mesh *m, const int *axes, int n, const int *coord, int *ranks) {
  int at[MAX_AXES], count = 1;
  memcpy(at, coord, sizeof at);
  for (int i = 0; i < n; i++) count *= m->axis[axes[i]];
  for (int k = 0; k < count; k++) {
    int rest = k;
    for (int i = n - 1; i >= 0; i--) {
      at[axes[i]] = rest % m->axis[axes[i]];
      rest /= m->axis[axes[i]];
    }
    ranks[k] = m->rank[mesh_position(m->axis, m->naxes, at)];
  }
  return count;
}

static int axes_of(const Mesh *m, unsigned set, int *axes) {
  int n = 0;
  for (int a = 0; a < m->naxes; a++)
    if (set >> a & 1) axes[n++] = a;
  return n;
}

int mesh_group_ranks(const Mesh *m, unsigned set, const int *coord, int *ranks) {
  int axes[MAX_AXES], n = axes_of(m, set, axes);
  return collect(m, axes, n, coord, ranks);
}

const char *mesh_group_name(const Mesh *m, unsigned axes, char *buf, size_t cap) {
  const char *between = "_";
  size_t at = 0;
  bool first = true;
  for (int a = 0; a < m->naxes; a++)
    if (m->name[a] && strchr(m->name[a], '_')) between = "+"; /* a_b and c, or a and b_c */
  buf[0] = 0;
  for (int a = 0; a < m->naxes && at < cap; a++) {
    if (!(axes >> a & 1) || m->axis[a] == 1) continue;
    int n = m->name[a] ? snprintf(buf + at, cap - at, "%s%s", first ? "" : between, m->name[a])
                       : snprintf(buf + at, cap - at, "%saxis%d", first ? "" : between, a);
    at += (size_t)n;
    first = false;
  }
  return buf;
}

Status mesh_group(Mesh *m, unsigned set, Comm **out) {
  if (!m->inside)
    return fail(ERR_RANK, "rank %d is outside the mesh and takes part in none of its groups",
                m->world ? world_rank(m->world) : 0);
  if (!m->world) return fail(ERR_FAIL, "a mesh made for planning has no ranks to talk to");
  if (!m->group[set]) {
    int *ranks;
    TRY_NEW(ranks, malloc((size_t)m->size * sizeof *ranks));
    int n = mesh_group_ranks(m, set, m->coord, ranks);
    Status s = comm_group(m->world, ranks, n, &m->group[set]);
    free(ranks);
    TRY(s);
  }
  *out = m->group[set];
  return OK;
}

static Status check_subset(const Mesh *m, const int *axes, int n) {
  unsigned seen = 0;
  for (int i = 0; i < n; i++) {
    if (axes[i] < 0 || axes[i] >= m->naxes)
      return fail(ERR_USAGE, "a mesh of %d axes has no axis %d", m->naxes, axes[i]);
    if (seen >> axes[i] & 1) return fail(ERR_USAGE, "mesh axis %d is named twice", axes[i]);
    seen |= 1u << axes[i];
  }
  return n ? OK : fail(ERR_USAGE, "no mesh axis is named");
}

Status mesh_sub(Mesh *m, const int *axes, int n, Mesh **out) {
  TRY(check_subset(m, axes, n));
  int *ranks, size[MAX_AXES];
  const char *names[MAX_AXES];
  for (int i = 0; i < n; i++) size[i] = m->axis[axes[i]], names[i] = m->name[axes[i]];
  TRY_NEW(ranks, malloc((size_t)m->size * sizeof *ranks));
  collect(m, axes, n, m->coord, ranks);
  Status s = mesh_new(m->dist, size, n, names, ranks, out);
  free(ranks);
  return s;
}

Status mesh_flatten(Mesh *m, const int *axes, int n, const char *name, Mesh **out) {
  TRY(check_subset(m, axes, n));
  char joined[256];
  size_t at = 0;
  for (int i = 0; i < n && !name && m->name[axes[i]] && at < sizeof joined; i++)
    at += (size_t)snprintf(joined + at, sizeof joined - at, "%s%s", i ? "_" : "", m->name[axes[i]]);
  const char *names[1] = {name ? name : at ? joined : NULL};
  int *ranks;
  TRY_NEW(ranks, malloc((size_t)m->size * sizeof *ranks));
  int count = collect(m, axes, n, m->coord, ranks);
  Status s = mesh_new(m->dist, &count, 1, names, ranks, out);
  free(ranks);
  return s;
}

const char *mesh_text(const Mesh *m, char *buf, size_t cap) {
  size_t at = 0;
  bool names = m->naxes > 0 && m->name[0];
  if (!cap) return "";
  buf[0] = 0;
  for (int a = 0; a < m->naxes && at < cap; a++) {
    int wrote = m->name[a] ? snprintf(buf + at, cap - at, "%s%s=%d", a ? "," : "", m->name[a], m->axis[a])
                           : snprintf(buf + at, cap - at, "%s%d", a ? names ? "," : "x" : "", m->axis[a]);
    at += wrote < 0 ? 0 : (size_t)wrote;
  }
  return buf;
}

const char *mesh_print(const Mesh *m, char *buf, size_t cap) {
  size_t at = 0;
#define ADD(...)                                           \
  do {                                                     \
    int wrote = snprintf(buf + at, cap - at, __VA_ARGS__); \
    at += wrote < 0 ? 0 : (size_t)wrote;                   \
    if (at >= cap) at = cap - 1;                           \
  } while (0)
  if (!cap) return "";
  bool plain = true;
  for (int i = 0; i < m->size; i++) plain &= m->rank[i] == i;
  ADD("Mesh(");
  for (int a = 0; a < m->naxes; a++) {
    if (m->name[a]) ADD("%s%s=%d", a ? ", " : "", m->name[a], m->axis[a]);
    else ADD("%s%d", a ? "x" : "", m->axis[a]);
  }
  for (int i = 0; !plain && i < m->size; i++) ADD("%s%d", i ? " " : ": ", m->rank[i]);
  ADD(")");
#undef ADD
  return buf;
}
