/* test_flat_group.c -- groups of parameters of any sizes, dimensions and dtypes, with tensor parallelism on the
 * same or another dimension: what the members' flat shards have is gathered to the wholes and scattered back, to
 * the element, on every rank of many small meshes. */
#include <stdlib.h>
#include <string.h>

#include "dist/flat_group.h"
#include "fsdp/dp_mesh.h"
#include "unit.h"

enum { PARAMS = 5, MOST = 4 };

typedef struct {
  Arena arena;
  int axis[3], naxes, shard, members;
  FlatParam param[PARAMS];
  Dtype dtype[PARAMS];
  int64_t first[PARAMS]; /* number of the first element of a tensor; elements are numbered through */
  FlatGroup group[MOST]; /* as each member sees it */
} Setting;

static int draw(unsigned *seed, int n) {
  *seed = *seed * 1664525u + 1013904223u;
  return (int)((*seed >> 8) % (unsigned)n);
}

/* A mesh of [replicas,] shards [, tensor parallel ranks], and parameters on it. */
static void set_up(Setting *s, unsigned *seed) {
  static const Dtype dtypes[] = {DT_F32, DT_BF16, DT_F64, DT_U8};
  memset(s, 0, sizeof *s);
  s->naxes = 1 + draw(seed, 3);
  s->shard = s->naxes == 3;
  for (int a = 0; a < s->naxes; a++) s->axis[a] = 1 + draw(seed, 4);
  s->members = s->axis[s->shard];
  const bool mixed = draw(seed, 2);
  int64_t next = 0;
  for (int p = 0; p < PARAMS; p++) {
    int ndim = 1 + draw(seed, 3);
    int64_t *shape = arena_new_n(&s->arena, int64_t, 3), numel = 1;
    Placement *whole = arena_new_n(&s->arena, Placement, MAX_AXES),
              *cut = arena_new_n(&s->arena, Placement, MAX_AXES);
    for (int d = 0; d < ndim; d++) numel *= shape[d] = draw(seed, 8);
    for (int a = 0; a < MAX_AXES; a++) whole[a] = place_r();
    if (s->naxes > 1 && draw(seed, 3)) whole[s->naxes - 1] = place_s(draw(seed, ndim));
    const Mesh m = {.naxes = s->naxes, .axis = {s->axis[0], s->axis[1], s->axis[2]}};
    assert_ok(dp_cut(&m, whole, ndim, shape, s->shard, draw(seed, ndim), cut));
    s->param[p] = (FlatParam){{ndim, shape, s->naxes, s->axis, whole}, {ndim, shape, s->naxes, s->axis, cut}, NULL};
    s->dtype[p] = mixed ? dtypes[draw(seed, 4)] : DT_F32;
    s->first[p] = next;
    next += numel;
  }
}

/* The members of the group that the rank with these coordinates belongs to. */
static void see(Setting *s, const int *coord) {
  int *all = arena_new_n(&s->arena, int, MOST * 3);
  for (int m = 0; m < s->members; m++)
    for (int a = 0; a < s->naxes; a++) all[m * s->naxes + a] = a == s->shard ? m : coord[a];
  for (int p = 0; p < PARAMS; p++) s->param[p].coord = all;
  for (int m = 0; m < s->members; m++)
    assert_ok(flat_group_new(s->param, PARAMS, s->members, m, &s->arena, &s->group[m]));
}

/* The numbers of the elements that a layout gives a rank, in its own order. */
static int64_t numbers(Setting *s, const Layout *l, const int *coord, int64_t first, int64_t **out) {
  int64_t *index[3] = {0}, n[3] = {1, 1, 1}, size[3] = {1, 1, 1}, count = 0;
  for (int d = 0; d < l->ndim; d++) {
    assert_ok(layout_indices(l, coord, d, &s->arena, &index[d], &n[d]));
    size[d] = l->shape[d];
  }
  *out = arena_new_n(&s->arena, int64_t, n[0] * n[1] * n[2] + 1);
  for (int64_t i = 0; i < n[0]; i++)
    for (int64_t j = 0; j < n[1]; j++)
      for (int64_t k = 0; k < n[2]; k++)
        (*out)[count++] = first +
                          ((index[0] ? index[0][i] : 0) * size[1] + (index[1] ? index[1][j] : 0)) * size[2] +
                          (index[2] ? index[2][k] : 0);
  return count;
}

/* Each element of a buffer is written as its number, in every one of its bytes one after the other. */
static void put(unsigned char *at, size_t item, int64_t number) {
  for (size_t b = 0; b < item; b++) at[b] = (unsigned char)(number * 7 + (int64_t)b);
}

static void copy_box(unsigned char *to, const Box *b, const unsigned char *from, const Box *a, size_t item) {
  int64_t index[MAX_DIMS] = {0}, n = 1;
  assert_int_equal(a->ndim, b->ndim);
  for (int d = 0; d < a->ndim; d++) {
    assert_int_equal(a->size[d], b->size[d]);
    n *= a->size[d];
  }
  for (int64_t i = 0; i < n; i++) {
    int64_t x = a->offset, y = b->offset;
    for (int d = 0; d < a->ndim; d++) x += index[d] * a->stride[d], y += index[d] * b->stride[d];
    memcpy(to + y * (int64_t)item, from + x * (int64_t)item, item);
    for (int d = a->ndim - 1; d >= 0 && ++index[d] == a->size[d]; d--) index[d] = 0;
  }
}

/* The flat shard of a member, and the buffer that it should gather. */
static unsigned char *flat_shard(Setting *s, int m, int64_t *bytes) {
  const FlatGroup *g = &s->group[m];
  int64_t at[PARAMS];
  *bytes = flat_places(g, flat_counts(g, m), s->dtype, NULL, at);
  unsigned char *buffer = arena_new_n(&s->arena, unsigned char, *bytes + 1);
  for (int p = 0; p < PARAMS; p++) {
    int64_t *number, n = numbers(s, &s->param[p].shard, &s->param[p].coord[m * s->naxes], s->first[p], &number);
    size_t item = dtype_size(s->dtype[p]);
    int64_t size[MAX_DIMS], numel = 1;
    assert_ok(flat_shard_size(g, m, p, size));
    for (int d = 0; d < s->param[p].shard.ndim; d++) numel *= size[d];
    assert_int_equal(n, flat_counts(g, m)[p]);
    assert_int_equal(n, numel);
    assert_int_equal(at[p] % (int64_t)item, 0);
    for (int64_t i = 0; i < n; i++) put(buffer + at[p] + i * (int64_t)item, item, number[i]);
  }
  return buffer;
}

static unsigned char *gathered(Setting *s, int m, int64_t *bytes) {
  const FlatGroup *g = &s->group[m];
  int64_t at[PARAMS];
  *bytes = flat_places(g, g->numel, s->dtype, NULL, at);
  unsigned char *buffer = arena_new_n(&s->arena, unsigned char, *bytes + 1);
  for (int p = 0; p < PARAMS; p++) {
    int64_t *number, n = numbers(s, &s->param[p].whole, &s->param[p].coord[m * s->naxes], s->first[p], &number);
    size_t item = dtype_size(s->dtype[p]);
    assert_int_equal(n, g->numel[p]);
    for (int64_t i = 0; i < n; i++) put(buffer + at[p] + i * (int64_t)item, item, number[i]);
  }
  return buffer;
}

/* What an exchange does with the boxes of all members. */
static void gather_on(Setting *s) {
  FlatGather way[MOST];
  unsigned char *shard[MOST];
  int64_t sum = 0, bytes, whole;
  for (int m = 0; m < s->members; m++) {
    assert_ok(flat_gather(&s->group[m], s->dtype, &s->arena, &way[m]));
    shard[m] = flat_shard(s, m, &bytes);
    sum += bytes;
  }
  for (int m = 0; m < s->members; m++) {
    unsigned char *want = gathered(s, m, &whole), *is = arena_new_n(&s->arena, unsigned char, whole + 1);
    assert_int_equal(sum, whole); /* nothing is padded */
    for (int q = 0; q < s->members; q++) {
      int k = 0;
      for (int i = 0; i < way[m].recv.n; i++) {
        if (way[m].recv.v[i].peer != q) continue;
        while (way[q].send.v[k].peer != m) k++;
        copy_box(is, &way[m].recv.v[i], shard[q], &way[q].send.v[k++], dtype_size(way[m].as));
      }
    }
    assert_memory_equal(is, want, (size_t)whole);
  }
}

/* Gradients of all tensors but one, in order of their numbers, come to the members as flat shards. */
static void scatter_on(Setting *s, int without) {
  const FlatGroup *g = &s->group[0];
  FlatScatter way;
  bool in[PARAMS];
  int64_t at = 0;
  for (int p = 0; p < PARAMS; p++) in[p] = p != without;
  assert_ok(flat_scatter(g, in, NULL, &s->arena, &way));
  int64_t *buffer = arena_new_n(&s->arena, int64_t, way.total + 1);
  for (int i = 0; i < way.from.n; i++) {
    int p = way.param[i];
    int64_t *number;
    numbers(s, &s->param[p].whole, s->param[p].coord, s->first[p], &number);
    copy_box((unsigned char *)buffer, &way.into.v[i], (unsigned char *)number, &way.from.v[i], sizeof *buffer);
  }
  for (int m = 0; m < s->members; m++) {
    int64_t begin = at;
    for (int p = 0; p < PARAMS; p++) {
      if (!in[p]) continue;
      int64_t *number, n = numbers(s, &s->param[p].shard, &s->param[p].coord[m * s->naxes], s->first[p], &number);
      assert_memory_equal(buffer + at, number, (size_t)n * sizeof *number);
      at += n;
    }
    assert_int_equal(at - begin, way.counts[m]);
  }
  assert_int_equal(at, way.total);
}

static void any_group(void **state) {
  (void)state;
  unsigned seed = 5;
  for (int round = 0; round < 400; round++) {
    Setting s;
    set_up(&s, &seed);
    int ranks = 1, coord[3] = {0};
    for (int a = 0; a < s.naxes; a++) ranks *= s.axis[a];
    mesh_coord(s.axis, s.naxes, draw(&seed, ranks), coord);
    see(&s, coord);
    gather_on(&s);
    scatter_on(&s, draw(&seed, PARAMS + 1));
    arena_free(&s.arena);
  }
}

/* Shards that are not the whole are refused. */
static void not_the_whole(void **state) {
  (void)state;
  Arena arena = {0};
  const int axis = 2, coord[] = {0, 1};
  const int64_t shape[] = {4};
  const Placement r = place_r(), shard = place_s(0);
  FlatGroup g;
  FlatParam replicated = {{1, shape, 1, &axis, &r}, {1, shape, 1, &axis, &r}, coord};
  FlatParam one = {{1, shape, 1, &axis, &r}, {1, shape, 1, &axis, &shard}, coord};
  assert_error(flat_group_new(&replicated, 1, 2, 0, &arena, &g), "8 elements, the whole 4");
  assert_error(flat_group_new(&one, 1, 1, 0, &arena, &g), "2 elements, the whole 4");
  assert_ok(flat_group_new(&one, 1, 2, 1, &arena, &g));
  arena_free(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(any_group), cmocka_unit_test(not_the_whole)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
