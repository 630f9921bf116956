/* behaviour.c -- see behaviour.h. */
#include "behaviour.h"

#include <stdio.h>
#include <string.h>

#include "dist/dist.h"

/* ---- what cases share --------------------------------------------------------------------------- */

/* "... mesh[2, 2] ...": the grid that the call tells; else two rows. */
static void read_grid(const Rank *r, int *rows, int *columns) {
  const char *call = yyjson_get_str(field(r->c, "call"));
  *rows = 2;
  *columns = world_size(r->w) / 2;
  for (const char *at = call; at && (at = strstr(at, "mesh[")); at++)
    if (sscanf(at, "mesh[%d, %d]", rows, columns) == 2) return;
}

Status case_mesh(Rank *r, const char *which, Mesh **out) {
  char text[64];
  int rows, columns, more = which[1] == '-' ? -1 : which[1] == '+' ? 1 : 0;
  read_grid(r, &rows, &columns);
  if (which[1] == ',') snprintf(text, sizeof text, "a=%d,b=%d", rows, columns);
  else snprintf(text, sizeof text, "a=%d", world_size(r->w) + more);
  return mesh_parse(r->dist, text, out);
}

Status x_of(Rank *r, Tensor **out) { return rank_arange(r, DT_F32, 2, size_x, 1, 0, out); }

Status place_tensor(Rank *r, Tensor *t, const char *mesh, const char *place, Tensor **out) {
  Mesh *m;
  Placement p[MAX_AXES];
  int n;
  TRY(case_mesh(r, mesh, &m));
  TRY(placements_parse(place, t->ndim, p, &n));
  return dtensor_distribute(&r->ctx, &r->scope, t, m, p, 0, out);
}

Status place_x(Rank *r, const char *mesh, const char *place, Tensor **out) {
  Tensor *x;
  TRY(x_of(r, &x));
  return place_tensor(r, x, mesh, place, out);
}

Status local_two(Rank *r, const char *mesh, const char *place, double value, Tensor **out) {
  Mesh *m;
  Placement p[MAX_AXES];
  int n;
  Tensor *local;
  TRY(case_mesh(r, mesh, &m));
  TRY(placements_parse(place, 1, p, &n));
  TRY(rank_arange(r, DT_F32, 1, (const int64_t[]){2}, 0, value, &local));
  return dtensor_from_local(&r->ctx, &r->scope, local, m, p, &(FromLocal){0}, out);
}

Status redistribute(Rank *r, const Tensor *t, const char *place, Tensor **out) {
  Placement p[MAX_AXES];
  int n;
  TRY(placements_parse(place, t->ndim, p, &n));
  return dtensor_redistribute(&r->ctx, &r->scope, t, NULL, p, DT_NONE, out);
}

Status sensible(Rank *r, const Tensor *t, const Tensor *plain) {
  Tensor *full;
  TRY(dtensor_full(&r->ctx, &r->scope, t, &full));
  TRY(rank_same(r, full, plain, "the whole"));
  r->better = true;
  return OK;
}

Status from_local(Rank *r, Tensor *local, const char *mesh, const char *place, const FromLocal *how, Tensor **out) {
  Mesh *m;
  Placement p[MAX_AXES];
  int n;
  TRY(case_mesh(r, mesh, &m));
  TRY(placements_parse(place, local->ndim, p, &n));
  return dtensor_from_local(&r->ctx, &r->scope, local, m, p, how, out);
}

/* ---- cases -------------------------------------------------------------------------------------- */

static const char modules[] = "modules belong to the public API: unit/test_dtensor.c, python/tests/test_module.py";

static Behave *find_behaviour(const char *name, const char **why) {
  const Behaviour *const tables[] = {behaviours_make, behaviours_ops};
  *why = strncmp(name, "module_", 7) ? NULL : modules;
  for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
    for (const Behaviour *b = tables[t]; b->name; b++) {
      if (strcmp(name, b->name)) continue;
      *why = b->why;
      return b->fn;
    }
  return NULL;
}

/* A list, or one per rank. */
static yyjson_val *for_rank(yyjson_val *list, int rank) {
  yyjson_val *mine = yyjson_arr_get(list, (size_t)rank);
  return yyjson_is_arr(mine) ? mine : list;
}

static Status compare(Rank *r, Tensor *t) {
  yyjson_val *places = field(r->c, "placements"), *size = field(r->c, "global"),
             *local = field(r->c, "local_shape"), *full = field(r->c, "full");
  Placement p[MAX_AXES];
  int n;
  char text[200];
  if (places && (!read_placements(places, t->ndim, p, &n) || !placements_equal(p, t->spec->place, n)))
    return fail(ERR_DIFF, "placed %s", placements_print(t->spec->place, t->spec->mesh->naxes, text, sizeof text));
  if (size) TRY(rank_same_ints(for_rank(size, r->me), t->size, t->ndim, "global size"));
  if (local) TRY(rank_same_ints(for_rank(local, r->me), t->local->size, t->local->ndim, "local size"));
  if (!full) return OK;
  Tensor *ours;
  TRY(dtensor_full(&r->ctx, &r->scope, t, &ours));
  for (int64_t i = 0; i < tensor_numel(ours); i++)
    if ((double)((float *)tensor_data(ours))[i] != yyjson_get_num(yyjson_arr_get(full, (size_t)i)))
      return fail(ERR_DIFF, "element %lld is %g", (long long)i, (double)((float *)tensor_data(ours))[i]);
  return OK;
}

static Status behave(Rank *r) {
  const char *why;
  Tensor *t = NULL;
  Status s = find_behaviour(yyjson_get_str(field(r->c, "name")), &why)(r, &t);
  if (s && field(r->c, "error") && status_code(s) != ERR_DIFF) {
    status_free(s);
    r->refused = true;
    return OK;
  }
  TRY(s);
  return t && !field(r->c, "error") ? compare(r, t) : OK;
}

Verdict case_behaviour(Case *c) {
  const char *name = yyjson_get_str(field(c, "name")), *why;
  Behave *fn = find_behaviour(name, &why);
  if (!fn) return why ? skipped(c, "%s", why) : wrong(c, "no behaviour is called '%s'", name);
  return on_ranks(c, yyjson_get_int(field(c, "ranks")), behave);
}