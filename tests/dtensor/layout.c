/* layout.c -- layout.jsonl: who holds what. */
#include "case.h"

#include <string.h>

/* chunk: n over k, plain or strided. */
static Verdict check_chunk(Case *c) {
  int64_t n = yyjson_get_sint(field(c, "n"));
  int k = yyjson_get_int(field(c, "k"));
  yyjson_val *sf = field(c, "sf");
  bool strided = yyjson_is_int(sf);
  Placement p = strided ? place_strided(0, yyjson_get_sint(sf)) : place_s(0);
  Layout l = {.ndim = 1, .shape = &n, .naxes = 1, .axis = &k, .place = &p};
  for (int r = 0; r < k; r++) {
    Arena arena = {0};
    Runs runs;
    Status s = layout_runs(&l, &r, 0, &arena, &runs);
    if (s) return wrong_status(c, s);
    int64_t size = yyjson_get_sint(yyjson_arr_get(field(c, "size"), (size_t)r));
    int64_t off = yyjson_get_sint(yyjson_arr_get(field(c, "off"), (size_t)r));
    int64_t first = runs.n ? runs.run[0].begin : strided ? -1 : n;
    arena_free(&arena);
    if (runs.size != size || first != off)
      return wrong(c, "rank %d holds %lld from %lld, not %lld from %lld", r, (long long)runs.size, (long long)first,
                   (long long)size, (long long)off);
  }
  return SAME;
}

/* held: [dim number][...] indices of one rank. */
static bool holds(const Layout *l, const int *coord, int dim, yyjson_val *indices) {
  Arena arena = {0};
  Runs runs;
  Status s = layout_runs(l, coord, dim, &arena, &runs);
  bool same = !s && runs.size == (int64_t)yyjson_arr_size(indices);
  size_t at = 0;
  for (int i = 0; same && i < runs.n; i++)
    for (int64_t j = 0; j < runs.run[i].size && same; j++)
      same = yyjson_get_sint(yyjson_arr_get(indices, at++)) == runs.run[i].begin + j;
  status_free(s);
  arena_free(&arena);
  return same;
}

static bool all_hold(Case *c, const Layout *l, yyjson_val *held, int rank, const int *coord) {
  int64_t dims[MAX_DIMS];
  int n = read_ints(field(c, "dims"), dims, MAX_DIMS);
  yyjson_val *mine = yyjson_arr_get(held, (size_t)rank);
  for (int i = 0; i < n; i++)
    if (!holds(l, coord, (int)dims[i], yyjson_arr_get(mine, (size_t)i))) return false;
  return true;
}

static Verdict check_layout(Case *c) {
  int64_t shape[MAX_DIMS], ranks[256], local[MAX_DIMS], offset[MAX_DIMS];
  int axis[MAX_AXES], naxes = read_sizes(field(c, "mesh"), axis, MAX_AXES), nplace;
  int ndim = read_ints(field(c, "shape"), shape, MAX_DIMS);
  Placement place[MAX_AXES];
  if (!read_placements(field(c, "placements"), ndim, place, &nplace)) return wrong(c, "a placement does not parse");
  Layout l = {.ndim = ndim, .shape = shape, .naxes = naxes, .axis = axis, .place = place};
  yyjson_val *listed = field(c, "ranks");
  int64_t positions = 1;
  for (int a = 0; a < naxes; a++) positions *= axis[a];
  if (listed) read_ints(listed, ranks, 256);
  for (int64_t at = 0; at < positions; at++) {
    int coord[MAX_AXES], rank = listed ? (int)ranks[at] : (int)at;
    mesh_coord(axis, naxes, at, coord);
    Status s = layout_local(&l, coord, local);
    if (!s) s = layout_offset(&l, coord, offset);
    if (s) return wrong_status(c, s);
    if (!same_ints(yyjson_arr_get(field(c, "local"), (size_t)rank), local, ndim))
      return wrong(c, "local size of rank %d", rank);
    if (!same_ints(yyjson_arr_get(field(c, "offset"), (size_t)rank), offset, ndim))
      return wrong(c, "offset of rank %d", rank);
    if (!all_hold(c, &l, field(c, "held"), rank, coord)) return wrong(c, "elements of rank %d", rank);
  }
  return SAME;
}

static Verdict check_order(Case *c) {
  int64_t shape[MAX_DIMS];
  int axis[MAX_AXES], naxes = read_sizes(field(c, "mesh"), axis, MAX_AXES), n;
  int ndim = read_ints(field(c, "shape"), shape, MAX_DIMS);
  Placement place[MAX_AXES], strided[MAX_AXES], made[MAX_AXES], back[MAX_AXES], decoded[MAX_AXES];
  char text[512];
  if (!read_placements(field(c, "placements"), ndim, place, &n)) return wrong(c, "a placement does not parse");
  if (!read_placements(field(c, "strided"), ndim, strided, &n))
    return wrong(c, "a strided placement does not parse");
  memcpy(decoded, place, sizeof decoded);
  if (yyjson_is_null(field(c, "order")))
    return strided_to_order(strided, axis, naxes, back) ? wrong(c, "factors that spell no order were decoded")
                                                        : SAME;
  read_turns(field(c, "order"), place);
  order_to_strided(place, axis, naxes, made);
  if (!placements_equal(made, strided, naxes))
    return wrong(c, "the strided form is %s", placements_print(made, naxes, text, sizeof text));
  bool spells = strided_to_order(strided, axis, naxes, back);
  yyjson_val *told = field(c, "decoded");
  if (yyjson_is_null(told) != !spells) return wrong(c, "decodable: %d", spells);
  if (spells) {
    read_turns(told, decoded);
    if (!placements_equal(back, decoded, naxes))
      return wrong(c, "decoded as %s", placements_print(back, naxes, text, sizeof text));
  }
  Layout by_order = {.ndim = ndim, .shape = shape, .naxes = naxes, .axis = axis, .place = place},
         by_strided = by_order;
  by_strided.place = strided;
  int64_t positions = 1;
  for (int a = 0; a < naxes; a++) positions *= axis[a];
  for (int at = 0; at < positions; at++) {
    int coord[MAX_AXES];
    mesh_coord(axis, naxes, at, coord);
    if (!all_hold(c, &by_order, field(c, "held_by_order"), at, coord))
      return wrong(c, "elements of rank %d by order", at);
    yyjson_val *other = field(c, "held_by_strided");
    if (!all_hold(c, &by_strided, other ? other : field(c, "held_by_order"), at, coord))
      return wrong(c, "elements of rank %d by factors", at);
  }
  return SAME;
}

static Verdict check_stride(Case *c) {
  int64_t shape[MAX_DIMS], stride[MAX_DIMS], local[MAX_DIMS], ours[MAX_DIMS], global[MAX_DIMS],
      global_stride[MAX_DIMS];
  int axis[MAX_AXES], naxes = read_sizes(field(c, "mesh"), axis, MAX_AXES), n;
  int ndim = read_ints(field(c, "shape"), shape, MAX_DIMS);
  read_ints(field(c, "stride"), stride, MAX_DIMS);
  Placement place[MAX_AXES];
  if (!read_placements(field(c, "placements"), ndim, place, &n)) return wrong(c, "a placement does not parse");
  Layout l = {.ndim = ndim, .shape = shape, .naxes = naxes, .axis = axis, .place = place};
  yyjson_val *locals = field(c, "local"), *strides = field(c, "local_stride");
  for (size_t r = 0; r < yyjson_arr_size(locals); r++) {
    int coord[MAX_AXES];
    mesh_coord(axis, naxes, (int64_t)r, coord);
    Status s = layout_local(&l, coord, local);
    if (s) return wrong_status(c, s);
    local_strides(ndim, local, stride, ours);
    if (!same_ints(yyjson_arr_get(locals, r), local, ndim)) return wrong(c, "local size of rank %d", (int)r);
    if (!same_ints(yyjson_arr_get(strides, r), ours, ndim)) return wrong(c, "local strides of rank %d", (int)r);
  }
  global_from_local(&l, stride, global, global_stride);
  if (!same_ints(field(c, "as_local_global"), global, ndim)) return wrong(c, "global size of equal shards");
  if (!same_ints(field(c, "as_local_global_stride"), global_stride, ndim))
    return wrong(c, "global strides of equal shards");
  return SAME;
}

static Verdict check_mesh_of(Case *c, Mesh *m, int rank) {
  int coord[MAX_AXES], group[256];
  yyjson_val *told = yyjson_arr_get(field(c, "coord"), (size_t)rank);
  bool inside = mesh_coord_of(m, rank, coord);
  if (inside == yyjson_is_null(told)) return wrong(c, "rank %d inside: %d", rank, inside);
  if (!inside) return SAME;
  for (int a = 0; a < m->naxes; a++) {
    if (yyjson_get_int(yyjson_arr_get(told, (size_t)a)) != coord[a]) return wrong(c, "coordinate of rank %d", rank);
    int n = mesh_group_ranks(m, 1u << a, coord, group);
    yyjson_val *list = yyjson_arr_get(yyjson_arr_get(field(c, "groups"), (size_t)rank), (size_t)a);
    if ((int)yyjson_arr_size(list) != n) return wrong(c, "group of rank %d on axis %d", rank, a);
    for (int i = 0; i < n; i++) { /* PyTorch sorts a group; ours are in the order of coordinates */
      bool there = false;
      for (int j = 0; j < n; j++) there |= yyjson_get_int(yyjson_arr_get(list, (size_t)i)) == group[j];
      if (!there) return wrong(c, "group of rank %d on axis %d", rank, a);
    }
  }
  return SAME;
}

static Verdict check_mesh(Case *c) {
  int axis[MAX_AXES], ranks[256], naxes = read_sizes(field(c, "mesh"), axis, MAX_AXES);
  read_sizes(field(c, "ranks"), ranks, 256);
  Dist *d = NULL;
  Mesh *m = NULL;
  Status s = dist_new(NULL, &d);
  if (!s) s = mesh_new(d, axis, naxes, NULL, ranks, &m);
  if (s) return wrong_status(c, s);
  Verdict v = SAME;
  for (size_t r = 0; v == SAME && r < yyjson_arr_size(field(c, "coord")); r++) v = check_mesh_of(c, m, (int)r);
  dist_free(d);
  return v;
}

Verdict case_layout(Case *c) {
  static const struct {
    const char *kind;
    CaseFn *check;
  } table[] = {{"chunk", check_chunk},
               {"layout", check_layout},
               {"order", check_order},
               {"stride", check_stride},
               {"mesh", check_mesh}};
  const char *kind = yyjson_get_str(field(c, "kind"));
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (!strcmp(kind, table[i].kind)) return table[i].check(c);
  return wrong(c, "a case of unknown kind '%s'", kind);
}
