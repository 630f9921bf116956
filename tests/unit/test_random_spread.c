/* Random tensors do not depend on how they are spread: every op, mesh and placement gives
 * the numbers of one rank, and leaves the stream at the same place on every rank. */
#include "unit.h"

#include <math.h>

#include "dist/dtensor.h"

enum { RANKS = 5 }; /* one more than the meshes have: it stays outside */

typedef struct {
  const char *mesh, *place;
} MeshRank;

static const MeshRank spreads[] = {
    {"4", "R"},
    {"4", "S(0)"},
    {"4", "S(1)"},
    {"4", "S(2)"},
    {"4", "_S(1, 2)"},
    {"3", "_S(0, 3)"},
    {"2x2", "S(0)S(1)"},
    {"2x2", "S(1)S(1)"},
    {"2x2", "_S(1, 2)S(1)"},
    {"2x2", "RS(2)"},
    {"2x2", "S(0)S(0)"},
    {"2x2", "S(0)[1]S(0)[0]"},
    {"3", "S(1; unit 2)"},
    {"2x2", "S(2)R"},
};

static const struct {
  Dtype dtype;
  int64_t size[4];
  int ndim;
} shapes[] = {{DT_F32, {6, 7, 5}, 3},
              {DT_F64, {3, 2, 9}, 3},
              {DT_BF16, {1, 40, 3}, 3},
              {DT_F32, {2, 0, 3}, 3},
              {DT_F32, {70, 90, 3}, 3}};

/* Of one tensor of probabilities. */
static const struct {
  const char *op;
  int nargs;
  Value arg[3];
} ops[] = {
    {"aten.rand_like.default", 0, {{.kind = VAL_NONE}}},
    {"aten.randn_like.default", 0, {{.kind = VAL_NONE}}},
    {"aten.randint_like.low_dtype", 2, {{.kind = VAL_INT, .i = -5}, {.kind = VAL_INT, .i = 90}}},
    {"aten.bernoulli.default", 0, {{.kind = VAL_NONE}}},
    {"aten.bernoulli.p", 1, {{.kind = VAL_FLOAT, .f = 0.4}}},
    {"aten.exponential.default", 0, {{.kind = VAL_NONE}}},
    {"aten.normal_.default", 2, {{.kind = VAL_FLOAT, .f = 1}, {.kind = VAL_FLOAT, .f = 2}}},
    {"aten.uniform_.default", 0, {{.kind = VAL_NONE}}},
    {"aten.bernoulli_.float", 1, {{.kind = VAL_FLOAT, .f = 0.3}}},
    {"aten.dropout.default", 2, {{.kind = VAL_FLOAT, .f = 0.3}, {.kind = VAL_BOOL, .b = true}}},
    {"aten.native_dropout.default", 2, {{.kind = VAL_FLOAT, .f = 0.3}, {.kind = VAL_BOOL, .b = true}}},
    {"aten.feature_dropout.default", 2, {{.kind = VAL_FLOAT, .f = 0.5}, {.kind = VAL_BOOL, .b = true}}},
    {"aten.normal.Tensor_float", 1, {{.kind = VAL_FLOAT, .f = 2}}},
};

typedef struct {
  World *w;
  Ctx ctx;
  Dist *dist;
  Mesh *mesh;
  Placement place[MAX_AXES];
  Scope scope;
  Arena arena;
  Call call;
  const char *what;
} Rank;

static void begin_stream(Rank *r) {
  r->ctx.seed = 123456789012345u;
  r->ctx.offset = 11;
}

/* f32 up to the rounding of sums in another order. */
static bool close_to(const Tensor *a, const Tensor *b) {
  for (int64_t i = 0; i < tensor_numel(a); i++)
    if (!(fabsf(((float *)tensor_data(a))[i] - ((float *)tensor_data(b))[i]) < 1e-5f)) return false;
  return true;
}

/* Both have the same bits (attention: the same values), and both streams stand alike. */
static Status compare(Rank *r, Tensor *spread, const Tensor *plain, uint64_t offset) {
  Tensor *full;
  if (r->ctx.offset != offset)
    return fail(ERR_DIFF, "%s: the stream of rank %d stands at %llu, not %llu", r->what, world_rank(r->w),
                (unsigned long long)r->ctx.offset, (unsigned long long)offset);
  if (!r->mesh->inside) return OK;
  TRY(dtensor_full(&r->ctx, &r->scope, spread, &full));
  Tensor *dense, *want;
  TRY(OP(&r->call, "aten.contiguous.default", &dense, val_tensor(full)));
  TRY(OP(&r->call, "aten.contiguous.default", &want, val_tensor(plain)));
  if (!tensor_same_size(dense, want) || dense->dtype != want->dtype)
    return fail(ERR_DIFF, "%s: another size", r->what);
  bool same = !tensor_numel(want) ||
              !memcmp(tensor_data(dense), tensor_data(want), (size_t)tensor_numel(want) * dtype_size(want->dtype));
  if (!same && strstr(r->what, "attention")) same = close_to(dense, want);
  if (!same) return fail(ERR_DIFF, "%s: rank %d has other numbers", r->what, world_rank(r->w));
  return OK;
}

static Status probabilities(Rank *r, Dtype dtype, int ndim, const int64_t *size, Tensor **out) {
  Tensor *wide;
  TRY(tensor_new(&r->scope, DT_F64, ndim, size, &wide));
  for (int64_t i = 0; i < tensor_numel(wide); i++)
    ((double *)tensor_data(wide))[i] = (double)((i * 37 + 5) % 64) / 64;
  return OP(&r->call, "aten.to.dtype", out, val_tensor(wide), val_dtype(dtype));
}

static Status check_op(Rank *r, int op, int shape) {
  Tensor *plain, *spread, *a, *b;
  Value args[4];
  r->what = ops[op].op;
  memcpy(args + 1, ops[op].arg, sizeof ops[op].arg);
  TRY(probabilities(r, shapes[shape].dtype, shapes[shape].ndim, shapes[shape].size, &plain));
  TRY(dtensor_distribute(&r->ctx, &r->scope, plain, r->mesh, r->place, -1, &spread));
  begin_stream(r);
  args[0] = val_tensor(plain);
  TRY(op_call(&r->call, r->what, &a, 1, args, 1 + ops[op].nargs));
  uint64_t offset = r->ctx.offset;
  begin_stream(r);
  args[0] = val_tensor(spread);
  TRY(op_call(&r->call, r->what, &b, 1, args, 1 + ops[op].nargs));
  return compare(r, b, a, offset);
}

static Status check_factories(Rank *r, int shape) {
  Tensor *a, *b;
  Dtype dtype = shapes[shape].dtype;
  const int64_t *size = shapes[shape].size;
  int ndim = shapes[shape].ndim;
  for (int normal = 0; normal < 2; normal++) {
    r->what = normal ? "aten.randn.default" : "aten.rand.default";
    begin_stream(r);
    TRY(OP(&r->call, r->what, &a, val_ints(size, ndim), val_dtype(dtype)));
    uint64_t offset = r->ctx.offset;
    begin_stream(r);
    TRY((normal ? dtensor_randn : dtensor_rand)(&r->ctx, &r->scope, r->mesh, r->place, dtype, ndim, size, &b));
    TRY(compare(r, b, a, offset));
  }
  return OK;
}

/* Weights of attention, [B, H, T, S] with heads in groups, and draws of multinomial. */
static Status check_others(Rank *r) {
  Tensor *q, *k, *v, *dq, *dk, *dv, *a, *b;
  Placement whole[MAX_AXES] = {{.kind = PLACE_R}};
  TRY(probabilities(r, DT_F32, 4, (const int64_t[]){3, 4, 6, 8}, &q));
  TRY(probabilities(r, DT_F32, 4, (const int64_t[]){3, 4, 5, 8}, &k));
  TRY(probabilities(r, DT_F32, 4, (const int64_t[]){3, 4, 5, 2}, &v));
  TRY(dtensor_distribute(&r->ctx, &r->scope, q, r->mesh, r->place, -1, &dq));
  TRY(dtensor_distribute(&r->ctx, &r->scope, k, r->mesh, whole, -1, &dk));
  TRY(dtensor_distribute(&r->ctx, &r->scope, v, r->mesh, whole, -1, &dv));
  r->what = "aten.scaled_dot_product_attention.default";
  begin_stream(r);
  TRY(OP(&r->call, r->what, &a, val_tensor(q), val_tensor(k), val_tensor(v), val_none(), val_float(0.5)));
  uint64_t offset = r->ctx.offset;
  begin_stream(r);
  TRY(OP(&r->call, r->what, &b, val_tensor(dq), val_tensor(dk), val_tensor(dv), val_none(), val_float(0.5)));
  TRY(compare(r, b, a, offset));
  r->what = "aten.multinomial.default";
  bool by_rows = true;
  for (int i = 0; i < r->mesh->naxes; i++) by_rows &= !is_s(&r->place[i]) || r->place[i].dim < 2;
  if (!by_rows) return OK;
  TRY(probabilities(r, DT_F32, 2, (const int64_t[]){7, 12}, &q));
  TRY(dtensor_distribute(&r->ctx, &r->scope, q, r->mesh, r->place, -1, &dq));
  for (int replacement = 0; replacement < 2; replacement++) {
    begin_stream(r);
    TRY(OP(&r->call, r->what, &a, val_tensor(q), val_int(4), val_bool(replacement)));
    offset = r->ctx.offset;
    begin_stream(r);
    TRY(OP(&r->call, r->what, &b, val_tensor(dq), val_int(4), val_bool(replacement)));
    TRY(compare(r, b, a, offset));
  }
  return OK;
}

static Status check_spread(Rank *r) {
  for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++) {
    for (size_t op = 0; op < sizeof ops / sizeof *ops; op++) {
      if (!strcmp(ops[op].op, "aten.exponential.default") && shapes[shape].dtype == DT_BF16) continue;
      if (r->place[0].turn && strstr(ops[op].op, "_.")) continue; /* strategies have no turns */
      TRY(check_op(r, (int)op, (int)shape));
    }
    TRY(check_factories(r, (int)shape));
  }
  return check_others(r);
}

static Status on_rank(World *w, void *arg) {
  const MeshRank *s = arg;
  Rank r = {.w = w};
  int n;
  ctx_init(&r.ctx, 1);
  r.call = (Call){.ctx = &r.ctx, .scope = &r.scope, .arena = &r.arena, .op = op_find("aten.rand.default")};
  Status st = dist_new(w, &r.dist);
  if (!st) st = mesh_parse(r.dist, s->mesh, &r.mesh);
  if (!st) st = placements_parse(s->place, 3, r.place, &n);
  if (!st) ctx_attach_dist(&r.ctx, r.dist);
  if (!st) st = check_spread(&r);
  if (st) st = status_at(st, "mesh %s placed %s", s->mesh, s->place);
  scope_clear(&r.scope);
  arena_free(&r.arena);
  ctx_free(&r.ctx);
  dist_free(r.dist);
  return st;
}

static void spread_gives_the_same_numbers(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof spreads / sizeof *spreads; i++) {
    MeshRank s = spreads[i];
    assert_ok(world_threads(RANKS, on_rank, &s, NULL));
  }
}

/* Rows of t along dim that coord holds. */
static Tensor *held(Call *c, Tensor *t, const ShardOf *s, int dim) {
  int64_t *index, n;
  Tensor *list, *out;
  assert_ok(layout_indices(&s->layout, s->coord, dim, c->arena, &index, &n));
  assert_ok(tensor_new(c->scope, DT_I64, 1, &n, &list));
  if (n) memcpy(tensor_data(list), index, (size_t)n * sizeof n);
  assert_ok(OP(c, "aten.index_select.default", &out, val_tensor(t), val_int(dim), val_tensor(list)));
  return out;
}

/* A rank's part of batches, heads and queries drops the weights that the whole drops. */
static void attention_drops_the_same_weights(void **state) {
  (void)state;
  static const int axis[2] = {2, 2};
  static const char *const places[] = {"S(0)S(1)", "S(1)S(1)", "_S(1, 2)S(2)", "RS(2)", "S(0)_S(2, 2)", "S(3)S(0)"};
  Rank r = {.what = "aten.scaled_dot_product_attention.default"};
  ctx_init(&r.ctx, 1);
  Call *c = &r.call;
  *c = (Call){.ctx = &r.ctx, .scope = &r.scope, .arena = &r.arena, .op = op_find(r.what)};
  Tensor *q, *k, *v, *whole, *part;
  const int64_t shape[] = {3, 8, 6, 2};
  assert_ok(probabilities(&r, DT_F32, 4, (const int64_t[]){3, 8, 6, 8}, &q));
  assert_ok(probabilities(&r, DT_F32, 4, (const int64_t[]){3, 8, 5, 8}, &k));
  assert_ok(probabilities(&r, DT_F32, 4, (const int64_t[]){3, 8, 5, 2}, &v));
  begin_stream(&r);
  assert_ok(OP(c, r.what, &whole, val_tensor(q), val_tensor(k), val_tensor(v), val_none(), val_float(0.5)));
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    Placement p[MAX_AXES];
    int n, coord[2];
    assert_ok(placements_parse(places[i], 4, p, &n));
    for (int at = 0; at < 4; at++) {
      mesh_coord(axis, 2, at, coord);
      ShardOf s = {{.ndim = 4, .shape = shape, .naxes = 2, .axis = axis, .place = p}, coord};
      Tensor *in[3] = {held(c, held(c, held(c, q, &s, 0), &s, 1), &s, 2), held(c, held(c, k, &s, 0), &s, 1),
                       held(c, held(c, held(c, v, &s, 0), &s, 1), &s, 3)};
      begin_stream(&r);
      c->shard = &s;
      assert_ok(OP(c, r.what, &part, val_tensor(in[0]), val_tensor(in[1]), val_tensor(in[2]), val_none(),
                   val_float(0.5)));
      c->shard = NULL;
      Tensor *want = held(c, held(c, held(c, held(c, whole, &s, 0), &s, 1), &s, 2), &s, 3);
      assert_true(tensor_same_size(part, want));
      assert_ok(OP(c, "aten.contiguous.default", &part, val_tensor(part)));
      assert_ok(OP(c, "aten.contiguous.default", &want, val_tensor(want)));
      assert_true(close_to(part, want));
    }
  }
  scope_clear(&r.scope);
  arena_free(&r.arena);
  ctx_free(&r.ctx);
}

static void partial_numbers_are_refused(void **state) {
  (void)state;
  Dist *d;
  Mesh *m;
  Tensor *t;
  Ctx ctx;
  Placement p = place_p(REDUCE_SUM);
  int axis = 2;
  int64_t size = 3;
  ctx_init(&ctx, 1);
  assert_ok(dist_new(NULL, &d));
  assert_ok(mesh_new(d, &axis, 1, NULL, NULL, &m));
  assert_error(dtensor_rand(&ctx, &ctx.scope, m, &p, DT_F32, 1, &size, &t), "cannot be placed P");
  p = place_s(0);
  assert_ok(
      dtensor_rand(&ctx, &ctx.scope, m, &p, DT_F32, 1, &size, &t)); /* a plan: no shard, but the stream moves */
  assert_null(t->local);
  assert_int_equal(ctx.offset, 1);
  ctx_free(&ctx);
  dist_free(d);
}

static void states_are_sixteen_bytes(void **state) {
  (void)state;
  Ctx ctx = {.seed = 0x0102030405060708u, .offset = 0x1112131415161718u}, back = {0};
  unsigned char bytes[RANDOM_STATE_BYTES],
      want[] = {8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11};
  ctx_random_state(&ctx, bytes);
  assert_memory_equal(bytes, want, sizeof want);
  ctx_set_random_state(&back, bytes);
  assert_true(back.seed == ctx.seed && back.offset == ctx.offset);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(spread_gives_the_same_numbers),
      cmocka_unit_test(attention_drops_the_same_weights),
      cmocka_unit_test(partial_numbers_are_refused),
      cmocka_unit_test(states_are_sixteen_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
