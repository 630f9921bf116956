/* Saves of several ranks: any mesh and placements to any other, replicas once, one outcome for all. */
#include "ckpt/sharded_save.h"
#include "drawn_layouts.h"
#include "run_saves.h"

enum { TENSORS = 5, LARGEST = 4096 };

/* A mesh, and how the tensors lie on it. */
typedef struct {
  int axis[MAX_AXES], naxes, ranks;
  Placement place[TENSORS][MAX_AXES];
} Spread;

typedef struct {
  char run[300];
  int ndim[TENSORS];
  int64_t size[TENSORS][MAX_DIMS];
  Spread from, to;
  Dtype loaded; /* dtype that is loaded into */
  int64_t step;
} Round;

static const char *const names[TENSORS] = {"model.a", "model.b.weight", "optim.state.a.exp_avg", "model.c",
                                           "other"};

static int64_t whole_numel(const Round *r, int i) {
  int64_t n = 1;
  for (int d = 0; d < r->ndim[i]; d++) n *= r->size[i][d];
  return n;
}

static Layout layout_of(const Round *r, const Spread *s, int i) {
  return (Layout){
      .ndim = r->ndim[i], .shape = r->size[i], .naxes = s->naxes, .axis = s->axis, .place = s->place[i]};
}

static void draw_spread(uint64_t *seed, Round *r, Spread *s) {
  do {
    s->naxes = draw_mesh(seed, s->axis);
    s->ranks = 1;
    for (int a = 0; a < s->naxes; a++) s->ranks *= s->axis[a];
  } while (s->ranks > 8);
  for (int i = 0; i < TENSORS; i++) {
    Layout l = layout_of(r, s, i);
    do {
      for (int a = 0; a < s->naxes; a++) s->place[i][a] = draw_place(seed, r->ndim[i], r->size[i]);
    } while (!fits_everywhere(&l));
  }
}

/* Element k of tensor i of the whole. */
static float value_of(const Round *r, int i, int64_t k) { return (float)(r->step + 3 * k + 7 * i); }

typedef struct {
  Scope scope;
  Arena arena;
  int coord[MAX_AXES];
  ShardOf shard[TENSORS];
  ShardItem item[TENSORS];
  Tensor *local[TENSORS];
} Held;

static void hold(const Round *r, const Spread *s, int rank, Dtype dtype, Held *h) {
  *h = (Held){0};
  mesh_coord(s->axis, s->naxes, rank, h->coord);
  for (int i = 0; i < TENSORS; i++) {
    int64_t size[MAX_DIMS];
    h->shard[i] = (ShardOf){layout_of(r, s, i), h->coord};
    assert_ok(layout_local(&h->shard[i].layout, h->coord, size));
    assert_ok(tensor_new(&h->scope, dtype, r->ndim[i], size, &h->local[i]));
    h->item[i] = (ShardItem){names[i], h->local[i], &h->shard[i]};
  }
}

static void let_go(Held *h) {
  scope_clear(&h->scope);
  arena_free(&h->arena);
}

static void fill_held(const Round *r, Held *h) {
  static _Thread_local int64_t flat[MOST];
  for (int i = 0; i < TENSORS; i++) {
    int64_t n = held(&h->shard[i].layout, h->coord, &h->arena, flat);
    for (int64_t k = 0; k < n; k++) ((float *)tensor_data(h->local[i]))[k] = value_of(r, i, flat[k]);
  }
}

static void check_held(const Round *r, Held *h) {
  static _Thread_local int64_t flat[MOST];
  for (int i = 0; i < TENSORS; i++) {
    int64_t n = held(&h->shard[i].layout, h->coord, &h->arena, flat);
    for (int64_t k = 0; k < n; k++) {
      double got = h->local[i]->dtype == DT_F32 ? (double)((float *)tensor_data(h->local[i]))[k]
                                                : ((double *)tensor_data(h->local[i]))[k];
      if (got != (double)value_of(r, i, flat[k]))
        test_failed("'%s': element %lld is %g, should be %g", names[i], (long long)flat[k], got,
                    (double)value_of(r, i, flat[k]));
    }
  }
}

static int64_t whole_bytes(const Round *r) {
  int64_t n = 0;
  for (int i = 0; i < TENSORS; i++) n += whole_numel(r, i) * (int64_t)sizeof(float);
  return n;
}

/* Begun without data, written from a snapshot.  Together the ranks write every byte once. */
static Status save_in_pieces(const Round *r, World *w, RunFolder *run, const SaveFacts *facts, const Held *h) {
  ShardedSave *save;
  Held empty;
  int64_t mine, all;
  hold(r, &r->from, world_rank(w), DT_F32, &empty);
  for (int i = 0; i < TENSORS; i++) tensor_drop(empty.local[i]);
  Status s = sharded_save_begin(run, world_comm(w), facts, empty.item, TENSORS, &save);
  let_go(&empty);
  TRY(s);
  mine = sharded_save_bytes(save);
  assert_ok(comm_run(
      world_comm(w),
      &(Coll){
          .kind = COLL_ALL_REDUCE, .dtype = DT_I64, .op = REDUCE_SUM, .send = &mine, .recv = &all, .count = 1}));
  assert_int_equal(all, whole_bytes(r));
  Snapshot *held = sharded_save_hold(save, h->item, &(SnapshotHow){.threads = 1});
  for (int i = 0; i < TENSORS; i++) { /* nobody sees what is written from now on */
    snapshot_before_write(held, h->local[i]->storage);
    if (tensor_numel(h->local[i])) memset(tensor_data(h->local[i]), 0xff, h->local[i]->storage->size);
  }
  sharded_save_write(save);
  s = sharded_save_join(save);
  if (!s) {
    sharded_save_commit(save, NULL);
    s = sharded_save_end(save);
  }
  sharded_save_free(save);
  return s;
}

static Status save_rank(World *w, void *arg) {
  const Round *r = arg;
  Held h;
  RunFolder *run = NULL;
  SaveFacts facts = {.step = r->step, .mesh = "drawn"};
  hold(r, &r->from, world_rank(w), DT_F32, &h);
  fill_held(r, &h);
  if (world_rank(w) == 0) assert_ok(run_folder_open(r->run, &run));
  Status s = r->step % 2 ? save_in_pieces(r, w, run, &facts, &h)
                         : sharded_save(run, world_comm(w), &facts, h.item, TENSORS, NULL);
  run_folder_close(run);
  let_go(&h);
  return s;
}

static Status load_rank(World *w, void *arg) {
  const Round *r = arg;
  Held h;
  Source *source;
  hold(r, &r->to, world_rank(w), r->loaded, &h);
  assert_ok(source_open(r->run, &source));
  Status s = sharded_load(world_comm(w), source, h.item, TENSORS, 1);
  if (!s) check_held(r, &h);
  source_close(source);
  let_go(&h);
  return s;
}

/* Every element is in the save once. */
static void check_whole(const Round *r) {
  Source *s;
  assert_ok(source_open(r->run, &s));
  assert_ok(source_verify(s, &(SourceVerify){.threads = 2}));
  assert_int_equal(s->tensors, TENSORS);
  for (int i = 0; i < TENSORS; i++) {
    const SourceTensor *t = source_find(s, names[i]);
    int64_t saved = 0;
    assert_non_null(t);
    for (int k = 0; k < t->chunks; k++) {
      int64_t n = 1;
      for (int d = 0; d < t->ndim; d++) n *= t->chunk[k].size[d];
      saved += n;
    }
    assert_int_equal(saved, whole_numel(r, i));
  }
  source_close(s);
}

static char folder[256];
static int set_up(void **state) { return (void)state, make_folder(folder, sizeof folder) == NULL; }
static int tear_down(void **state) { return (void)state, remove_folder(folder), 0; }

static void any_mesh_to_any(void **state) {
  (void)state;
  const char *wanted = getenv("TESS_RESHARDS");
  int rounds = wanted ? atoi(wanted) : 25;
  for (int i = 0; i < rounds; i++) {
    uint64_t seed = (uint64_t)i + 1;
    Round r = {.step = i, .loaded = i % 5 == 4 ? DT_F64 : DT_F32};
    snprintf(r.run, sizeof r.run, "%s/run%d", folder, i);
    for (int t = 0; t < TENSORS; t++) {
      do r.ndim[t] = draw_shape(&seed, r.size[t]);
      while (whole_numel(&r, t) > LARGEST);
    }
    draw_spread(&seed, &r, &r.from);
    draw_spread(&seed, &r, &r.to);
    assert_ok(world_threads(r.from.ranks, save_rank, &r, NULL));
    check_whole(&r);
    assert_ok(world_threads(r.to.ranks, load_rank, &r, NULL));
    remove_folder(r.run);
  }
}

/* ---- failing together --------------------------------------------------------------------------------------- */

typedef enum { FINE, OTHER_SIZE, PARTIAL, NO_DATA, NOT_UTF8, NOBODY_HAS_IT } Trouble;

typedef struct {
  const char *run;
  Trouble trouble;
  int64_t step;
  char message[3][400];
} Failing;

static Status fail_rank(World *w, void *arg) {
  Failing *f = arg;
  int rank = world_rank(w), axis[1] = {3};
  int64_t whole[1] = {7}, size[1], odd[1] = {9};
  Scope scope = {0};
  Tensor *t;
  Placement place = f->trouble == PARTIAL && rank == 1 ? place_p(REDUCE_SUM) : place_s(0);
  ShardOf of = {{.ndim = 1,
                 .shape = f->trouble == OTHER_SIZE && rank == 1 ? odd : whole,
                 .naxes = 1,
                 .axis = axis,
                 .place = &place},
                &rank};
  RunFolder *run = NULL;
  SaveFacts facts = {.step = f->step, .mesh = "3"};
  assert_ok(layout_local(&of.layout, &rank, size));
  if (f->trouble == NO_DATA && rank == 1) assert_ok(tensor_meta(&scope, DT_F32, 1, size, &t));
  else assert_ok(tensor_new(&scope, DT_F32, 1, size, &t));
  for (int64_t i = 0; t->storage && i < size[0]; i++) ((float *)tensor_data(t))[i] = 1;
  if (rank == 0) assert_ok(run_folder_open(f->run, &run));
  ShardItem item = {f->trouble == NOT_UTF8 && rank == 2 ? "model.\xff" : "model.w", t, &of};
  Status s = sharded_save(run, world_comm(w), &facts, &item, f->trouble == NOBODY_HAS_IT && rank == 1 ? 0 : 1,
                          NULL);
  snprintf(f->message[rank], sizeof f->message[rank], "%s", s ? status_message(s) : "");
  status_free(s);
  run_folder_close(run);
  scope_clear(&scope);
  return OK;
}

static void ranks_fail_together(void **state) {
  (void)state;
  static const struct {
    Trouble trouble;
    const char *error;
  } cases[] = {
      {OTHER_SIZE, "'model.w' is shards of"},
      {PARTIAL, "rank 1 of 3: a tensor placed"},
      {NO_DATA, "rank 1 of 3: tensor 'model.w' has no data"},
      {NOT_UTF8, "rank 2 of 3: the name of a tensor is not UTF-8"},
      {NOBODY_HAS_IT, "has 7 elements, its chunks together 4"},
  };
  char run[300];
  snprintf(run, sizeof run, "%s/failing", folder);
  Failing good = {.run = run, .step = 1};
  assert_ok(world_threads(3, fail_rank, &good, NULL));
  assert_string_equal(good.message[0], "");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Failing f = {.run = run, .trouble = cases[i].trouble, .step = 2};
    assert_ok(world_threads(3, fail_rank, &f, NULL));
    if (!strstr(f.message[0], cases[i].error)) test_failed("'%s' does not say '%s'", f.message[0], cases[i].error);
    assert_string_equal(f.message[0], f.message[1]);
    assert_string_equal(f.message[0], f.message[2]);
    assert_int_equal(count_entries(run, "step-"), 1);
    assert_int_equal(count_entries(run, "part"), 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(any_mesh_to_any), cmocka_unit_test(ranks_fail_together)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
