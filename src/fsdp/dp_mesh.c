/* dp_mesh.c -- see dp_mesh.h. */
#include "fsdp/dp_mesh.h"

#include <math.h>
#include <string.h>

#include "dist/dist.h"

/* ---- the ranks ----------------------------------------------------------------------------------------- */

static Status named_axes(const Mesh *m, const char *names, int *axes, int *n) {
  char text[160], name[64];
  *n = 0;
  for (const char *at = names ? names : ""; *at;) {
    size_t len = strcspn(at, ",");
    if (*n == MAX_AXES || len >= sizeof name) return fail(ERR_USAGE, "'%s' names too many or too long axes", names);
    memcpy(name, at, len);
    name[len] = 0;
    axes[*n] = mesh_axis_named(m, name);
    if (axes[*n] < 0) return fail(ERR_USAGE, "there is no axis '%s' in %s", name, mesh_print(m, text, sizeof text));
    ++*n;
    at += len + (at[len] == ',');
  }
  return OK;
}

static unsigned set_of(const int *axes, int n) {
  unsigned set = 0;
  for (int i = 0; i < n; i++) set |= 1u << axes[i];
  return set;
}

/* Axes of m as one axis each list, through this rank's coordinate, then `rest` as they are. */
static Status regroup(Mesh *m, const int *const *axes, const int *counts, int nlists, const int *rest, int nrest,
                      Mesh **out) {
  int all[MAX_AXES], size[MAX_AXES], n = 0;
  const char *names[MAX_AXES] = {0};
  char joined[2][160];
  Mesh *apart;
  for (int l = 0; l < nlists; l++) {
    size[l] = 1;
    joined[l][0] = 0;
    for (int i = 0; i < counts[l]; i++) {
      const char *name = m->name[axes[l][i]];
      size_t at = strlen(joined[l]);
      if (name && at + strlen(name) + 2 < sizeof joined[l]) {
        if (at) joined[l][at++] = '_';
        strcpy(joined[l] + at, name);
      }
      size[l] *= m->axis[axes[l][i]];
      all[n++] = axes[l][i];
    }
    names[l] = joined[l][0] ? joined[l] : NULL;
  }
  for (int i = 0; i < nrest; i++) {
    size[nlists + i] = m->axis[rest[i]];
    names[nlists + i] = m->name[rest[i]];
    all[n++] = rest[i];
  }
  TRY(mesh_sub(m, all, n, &apart));
  return mesh_new(m->dist, size, nlists + nrest, names, apart->rank, out);
}

static Status of_larger(Mesh *m, const char *shard, const char *replicate, DpMesh *out) {
  int s[MAX_AXES], r[MAX_AXES], ns, nr;
  TRY(named_axes(m, shard, s, &ns));
  TRY(named_axes(m, replicate, r, &nr));
  if (!ns && !nr) return fail(ERR_USAGE, "data parallelism needs axes that shard, that replicate, or both");
  if (set_of(s, ns) & set_of(r, nr)) return fail(ERR_USAGE, "an axis cannot both shard and replicate");
  const int *lists[2] = {nr ? r : s, s};
  int counts[2] = {nr ? nr : ns, ns};
  *out = (DpMesh){.kind = nr && ns ? DP_HSDP
                          : ns     ? DP_FSDP
                                   : DP_DDP,
                  .shard = ns ? nr > 0 : -1,
                  .replicate = nr ? 0 : -1,
                  .larger = m,
                  .larger_shard = set_of(s, ns),
                  .larger_replicate = set_of(r, nr)};
  return regroup(m, lists, counts, nr && ns ? 2 : 1, NULL, 0, &out->mesh);
}

Status dp_mesh_new(Mesh *m, const char *shard, const char *replicate, bool ddp, DpMesh *out) {
  char text[160];
  if (shard || replicate) return of_larger(m, shard, replicate, out);
  if (m->naxes != 1 && (m->naxes != 2 || ddp))
    return status_hint(fail(ERR_USAGE, "data parallelism takes a mesh of one axis%s, not %s",
                            ddp ? "" : ", or of two: replicas and shards", mesh_print(m, text, sizeof text)),
                       "name the axes that shard and replicate, or take a part of the mesh");
  *out = (DpMesh){.kind = ddp             ? DP_DDP
                          : m->naxes == 2 ? DP_HSDP
                                          : DP_FSDP,
                  .mesh = m,
                  .shard = ddp ? -1 : m->naxes - 1,
                  .replicate = ddp || m->naxes == 2 ? 0 : -1};
  return OK;
}

int dp_shard_size(const DpMesh *d) { return d->shard < 0 ? 1 : d->mesh->axis[d->shard]; }
int dp_replicate_size(const DpMesh *d) { return d->replicate < 0 ? 1 : d->mesh->axis[d->replicate]; }

Status dp_reshard(const DpMesh *d, Reshard how, int ranks, Reshard *out) {
  int n = dp_shard_size(d);
  *out = how;
  if (how != RESHARD_TO) return OK;
  if (ranks < 1 || ranks > n || n % ranks)
    return fail(ERR_USAGE,
                "parameters are resharded to a number of ranks that divides the %d of their group, not %d", n,
                ranks);
  if (ranks == 1) *out = RESHARD_NEVER;
  else if (ranks == n) *out = RESHARD_ALWAYS;
  return OK;
}

/* ---- a parameter ---------------------------------------------------------------------------------------- */

static bool takes_part(Mesh *m, const Mesh *part, int *axes) {
  Mesh *sub;
  for (int a = 0; a < part->naxes; a++) {
    axes[a] = part->name[a] ? mesh_axis_named(m, part->name[a]) : -1;
    if (axes[a] < 0) return false;
  }
  Status s = mesh_sub(m, axes, part->naxes, &sub);
  if (s) return status_free(s), false;
  return sub == part;
}

/* The mesh whose axes are those of both: a rank knows only its own rows of them, so that it must be a part of one
 * that was made before. */
static Status join(const DpMesh *d, const Mesh *other, Mesh **out) {
  int axes[2 * MAX_AXES];
  char a[160], b[160];
  for (Mesh *m = d->mesh->dist->meshes; m; m = m->next) {
    if (m->naxes < d->mesh->naxes + other->naxes || !m->inside) continue;
    if (takes_part(m, d->mesh, axes) && takes_part(m, other, axes + d->mesh->naxes) &&
        !(set_of(axes, d->mesh->naxes) & set_of(axes + d->mesh->naxes, other->naxes)))
      return mesh_sub(m, axes, d->mesh->naxes + other->naxes, out);
  }
  return status_hint(fail(ERR_USAGE,
                          "a parameter lies on %s, data parallelism on %s: these are no parts of one mesh",
                          mesh_print(other, a, sizeof a), mesh_print(d->mesh, b, sizeof b)),
                     "take both out of one mesh with named axes");
}

static Status on_larger(const DpMesh *d, const Spec *given, DpPlace *out) {
  const unsigned dp = d->larger_shard | d->larger_replicate;
  char a[160], b[160];
  int rest[MAX_AXES], nrest = 0, s[MAX_AXES], ns = 0, r[MAX_AXES], nr = 0;
  if (given->mesh != d->larger)
    return fail(ERR_USAGE, "a parameter lies on %s, not on the mesh %s that axes were named of",
                mesh_print(given->mesh, a, sizeof a), mesh_print(d->larger, b, sizeof b));
  for (int i = 0; i < given->mesh->naxes; i++) {
    if (dp >> i & 1 && !is_r(&given->place[i]))
      return fail(ERR_USAGE, "a parameter is %s on axis %d of %s, which is data-parallel: it must be whole there",
                  placement_print(&given->place[i], a, sizeof a), i, mesh_print(given->mesh, b, sizeof b));
    if (d->larger_shard >> i & 1) s[ns++] = i;
    else if (d->larger_replicate >> i & 1) r[nr++] = i;
    else rest[nrest++] = i;
  }
  if (ns <= 1) { /* as it is: one axis cuts */
    *out = (DpPlace){.mesh = given->mesh, .shard = ns ? s[0] : -1};
    memcpy(out->whole, given->place, sizeof out->whole);
    return OK;
  }
  const int *lists[2] = {nr ? r : s, s};
  int counts[2] = {nr ? nr : ns, ns}, nlists = nr ? 2 : 1;
  *out = (DpPlace){.shard = nlists - 1};
  for (int i = 0; i < nlists; i++) out->whole[i] = place_r();
  for (int i = 0; i < nrest; i++) out->whole[nlists + i] = given->place[rest[i]];
  return regroup(given->mesh, lists, counts, nlists, rest, nrest, &out->mesh);
}

Status dp_place(const DpMesh *d, const Spec *given, DpPlace *out) {
  if (given && d->larger) return on_larger(d, given, out);
  *out = (DpPlace){.mesh = d->mesh, .shard = d->shard};
  for (int a = 0; a < MAX_AXES; a++) out->whole[a] = place_r();
  if (!given) return OK;
  TRY(join(d, given->mesh, &out->mesh));
  for (int a = 0; a < given->mesh->naxes; a++) out->whole[d->mesh->naxes + a] = given->place[a];
  return OK;
}

/* Do both say the same of every rank? */
static Status same_runs(const Layout *a, const Layout *b, int dim, bool *same) {
  Arena arena = {0};
  int64_t ranks = 1;
  Status s = OK;
  *same = true;
  for (int i = 0; i < a->naxes; i++) ranks *= a->axis[i];
  for (int64_t r = 0; r < ranks && *same && !s; r++) {
    int coord[MAX_AXES];
    Runs x, y;
    mesh_coord(a->axis, a->naxes, r, coord);
    s = layout_runs(a, coord, dim, &arena, &x);
    if (!s) s = layout_runs(b, coord, dim, &arena, &y);
    if (s) break;
    *same = x.n == y.n;
    for (int i = 0; i < x.n && *same; i++)
      *same = x.run[i].begin == y.run[i].begin && x.run[i].size == y.run[i].size;
  }
  arena_free(&arena);
  return s;
}

Status dp_cut(const Mesh *m, const Placement *whole, int ndim, const int64_t *shape, int axis, int dim,
              Placement *out) {
  Placement turns[MAX_AXES];
  Layout strided = {ndim, shape, m->naxes, m->axis, out}, ordered = {ndim, shape, m->naxes, m->axis, turns};
  int64_t factor = 1;
  int cuts[MAX_AXES], n = layout_cuts(&(Layout){ndim, shape, m->naxes, m->axis, whole}, dim, cuts);
  bool after = true, same;
  memcpy(out, whole, MAX_AXES * sizeof *out);
  memcpy(turns, whole, sizeof turns);
  for (int i = 0; i < n; i++) {
    turns[cuts[i]].turn = i + 1;
    after &= cuts[i] < axis && !whole[cuts[i]].turn;
    if (cuts[i] > axis) factor *= m->axis[cuts[i]];
  }
  out[axis] = place_strided(dim, factor);
  turns[axis] = place_s(dim);
  turns[axis].turn = n + 1;
  if (after) return OK; /* it stands last already */
  TRY(same_runs(&strided, &ordered, dim, &same));
  if (!same) memcpy(out, turns, sizeof turns);
  return OK;
}

Status dp_split_axis(Mesh *m, int axis, int k, Mesh **out) {
  int size[MAX_AXES + 1], n = 0;
  const char *names[MAX_AXES + 1];
  if (m->naxes == MAX_AXES) return fail(ERR_USAGE, "a mesh has at most %d axes", MAX_AXES);
  for (int a = 0; a < m->naxes; a++) {
    if (a == axis) size[n] = m->axis[a] / k, names[n++] = NULL;
    size[n] = a == axis ? k : m->axis[a];
    names[n++] = a == axis ? NULL : m->name[a];
  }
  return mesh_new(m->dist, size, n, names, m->rank, out);
}

/* ---- reductions ------------------------------------------------------------------------------------------ */

DpReduction dp_reduction(int shard, int replicate, Dtype dtype, double factor, bool force_sum) {
  const bool overflows = dtype != DT_F32 && dtype != DT_BF16; /* sums of many ranks leave the range of f16 */
  int ranks = (shard ? shard : 1) * (replicate ? replicate : 1);
  DpReduction r = {1, 1, REDUCE_SUM, REDUCE_SUM, false};
  if (!overflows && !force_sum) {
    if (factor == 0) {
      if (ranks > 1) r.scatter = r.all = REDUCE_AVG;
    } else if (shard && factor == shard) r.scatter = REDUCE_AVG;
    else r.before = 1 / factor, r.premultiplied = true;
    return r;
  }
  if (factor == 0) factor = ranks;
  double before = 1;
  while (overflows && fmod(factor, before) == 0 && factor / before > before) before *= 2;
  r.before = 1 / before;
  r.after = factor / before;
  return r;
}

void dp_dtypes(Dtype original, Dtype *param, Dtype *reduce) {
  if (*reduce == *param) *reduce = DT_NONE;
  if (*param == original || !dtype_is_float(original)) *param = DT_NONE;
}
