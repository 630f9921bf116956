/* Checkpoints: whatever layout was saved, every other can be read from it. */
#include "unit.h"

#include "dist/checkpoint.h"
#include "dist/dtensor.h"

typedef struct {
  int axis[2], naxes;
  const char *place;
} MeshRank;

static const MeshRank spreads[] = {
    {{1}, 1, "R"},
    {{3}, 1, "S(0)"},
    {{4}, 1, "S(1)"},
    {{2}, 1, "_S(0, 2)"},
    {{3}, 1, "_S(1, 4)"},
    {{2, 2}, 2, "S(0)S(0)"},
    {{2, 2}, 2, "_S(0, 2)S(0)"},
    {{2, 3}, 2, "S(1)_S(0, 3)"},
    {{4, 2}, 2, "_S(0, 2)_S(1, 2)"},
    {{8}, 1, "S(0)"},
};

enum { KINDS = sizeof spreads / sizeof *spreads };

static const int64_t shape[2] = {7, 10};

static Layout layout_of(const MeshRank *s, Placement *place) {
  int n;
  assert_ok(placements_parse(s->place, 2, place, &n));
  return (Layout){.ndim = 2, .shape = shape, .naxes = s->naxes, .axis = s->axis, .place = place};
}

static int ranks_of(const MeshRank *s) { return s->naxes == 2 ? s->axis[0] * s->axis[1] : s->axis[0]; }

static void save(const MeshRank *s, Arena *arena, ChunkList *out) {
  Placement place[MAX_AXES];
  Layout l = layout_of(s, place);
  SavePlan plans[16] = {{0}};
  SavedList list;
  for (int r = 0; r < ranks_of(s); r++) {
    int coord[MAX_AXES];
    mesh_coord(s->axis, s->naxes, r, coord);
    assert_ok(save_plan_add_layout(&plans[r], arena, "w", DT_F32, &l, coord));
  }
  assert_ok(save_plans_dedup(plans, ranks_of(s), SAVE_BALANCED));
  assert_ok(saved_list(plans, ranks_of(s), arena, &list));
  assert_int_equal(list.n, 1);
  *out = list.v[0].chunk;
}

/* Every element of the rank's shard is written once, with the right one. */
static void check_reads(const ReadPlan *plan, const ChunkList *saved, const Layout *l, const int *coord,
                        Arena *arena) {
  int64_t *row, *col, rows, cols;
  assert_ok(layout_indices(l, coord, 0, arena, &row, &rows));
  assert_ok(layout_indices(l, coord, 1, arena, &col, &cols));
  int *written = calloc((size_t)(rows * cols + 1), sizeof *written);
  for (int i = 0; i < plan->n; i++) {
    const ReadItem *r = &plan->v[i];
    const Chunk *c = &saved->v[r->chunk];
    for (int64_t y = 0; y < r->size[0]; y++)
      for (int64_t x = 0; x < r->size[1]; x++) {
        assert_true(r->from[0] + y < c->size[0] && r->from[1] + x < c->size[1]);
        int64_t at_row = r->into[0] + y, at_col = r->into[1] + x;
        assert_true(at_row < rows && at_col < cols);
        assert_int_equal(c->offset[0] + r->from[0] + y, row[at_row]);
        assert_int_equal(c->offset[1] + r->from[1] + x, col[at_col]);
        written[at_row * cols + at_col]++;
      }
  }
  for (int64_t i = 0; i < rows * cols; i++) assert_int_equal(written[i], 1);
  free(written);
}

static void layouts_are_read_from_each_other(void **state) {
  (void)state;
  for (int a = 0; a < KINDS; a++) {
    for (int b = 0; b < KINDS; b++) {
      Arena arena = {0};
      ChunkList saved, wanted;
      ReadPlan plan;
      Placement place[MAX_AXES];
      save(&spreads[a], &arena, &saved);
      Layout l = layout_of(&spreads[b], place);
      for (int r = 0; r < ranks_of(&spreads[b]); r++) {
        int coord[MAX_AXES];
        mesh_coord(spreads[b].axis, spreads[b].naxes, r, coord);
        assert_ok(chunks_of(&l, coord, &arena, &wanted));
        assert_ok(read_plan("w", &saved, &wanted, &arena, &plan));
        check_reads(&plan, &saved, &l, coord, &arena);
      }
      if (saved.n > 1) {
        saved.n--; /* a part is missing */
        int coord[MAX_AXES] = {0};
        Placement r[MAX_AXES] = {{.kind = PLACE_R}};
        l.place = r;
        if (saved.v[saved.n].size[0] > 0 && saved.v[saved.n].size[1] > 0) {
          assert_ok(chunks_of(&l, coord, &arena, &wanted));
          assert_error(read_plan("w", &saved, &wanted, &arena, &plan), "were saved");
        }
      }
      arena_free(&arena);
    }
  }
}

static void disagreement_is_an_error(void **state) {
  (void)state;
  Arena arena = {0};
  SavePlan plans[2] = {{0}};
  Tensor small = {.dtype = DT_F32, .ndim = 1, .size = {3}}, large = {.dtype = DT_F32, .ndim = 1, .size = {4}};
  assert_ok(save_plan_add(&plans[0], &arena, "x", &small));
  assert_ok(save_plan_add(&plans[1], &arena, "x", &large));
  assert_error(save_plans_dedup(plans, 2, SAVE_BALANCED), "on rank 1");
  Placement p = place_p(REDUCE_SUM);
  int axis = 2, coord = 0;
  Layout l = {.ndim = 2, .shape = shape, .naxes = 1, .axis = &axis, .place = &p};
  assert_error(save_plan_add_layout(&plans[0], &arena, "w", DT_F32, &l, &coord), "partial");
  arena_free(&arena);
}

static Status look_at_chunks(World *w, void *arg) {
  Dist *d = NULL;
  Mesh *m;
  Ctx ctx;
  Tensor *whole, *t, *part;
  Arena arena = {0};
  ChunkList list;
  int axis = 2;
  int64_t nowhere[2] = {1, 1};
  Placement p = place_strided(0, 2);
  (void)arg;
  ctx_init(&ctx, 1);
  TRY(dist_new(w, &d));
  TRY(mesh_new(d, &axis, 1, NULL, NULL, &m));
  TRY(tensor_new(&ctx.scope, DT_F32, 2, shape, &whole));
  for (int i = 0; i < 70; i++) ((float *)tensor_data(whole))[i] = (float)i;
  TRY(dtensor_distribute(&ctx, &ctx.scope, whole, m, &p, -1, &t));
  TRY(dtensor_chunks(t, &arena, &list));
  if (list.n != 2) return fail(ERR_DIFF, "%d chunks", list.n);
  for (int i = 0; i < list.n; i++) {
    TRY(dtensor_chunk(&ctx.scope, t, list.v[i].offset, &part));
    for (int64_t j = 0; j < tensor_numel(part); j++)
      if (((float *)tensor_data(part))[j] != (float)(list.v[i].offset[0] * 10 + j))
        return fail(ERR_DIFF, "element %lld of chunk %d", (long long)j, i);
  }
  Status s = dtensor_chunk(&ctx.scope, t, nowhere, &part);
  if (!s) return fail(ERR_DIFF, "a chunk that is nowhere");
  status_free(s);
  arena_free(&arena);
  ctx_free(&ctx);
  dist_free(d);
  return OK;
}

static void chunks_are_views_of_the_shard(void **state) {
  (void)state;
  assert_ok(world_threads(2, look_at_chunks, NULL, NULL));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(layouts_are_read_from_each_other),
      cmocka_unit_test(disagreement_is_an_error),
      cmocka_unit_test(chunks_are_views_of_the_shard),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
