/* rng.c -- rng.jsonl: where PyTorch puts each rank in the random stream.
 *
 * PyTorch gives every shard a stretch of the stream behind that of the shard before it: a
 * tensor depends on how it is spread, and uneven shards share numbers or run into the next
 * op's.  Ours takes number i for element i.  What both schemes have in common is compared
 * (shards and their order, by how much an op moves the stream on, the form of the state);
 * for the numbers themselves every rank's shard is drawn and compared with the whole. */
#include <stdio.h>
#include <string.h>

#include "case.h"
#include "ops/op.h"

static Verdict check_linear(Case *c) {
  int coord[MAX_DIMS], size[MAX_DIMS], n = read_sizes(field(c, "coord"), coord, MAX_DIMS);
  read_sizes(field(c, "size"), size, MAX_DIMS);
  int64_t ours = mesh_position(size, n, coord);
  return ours == yyjson_get_sint(field(c, "idx")) ? SAME : wrong(c, "%lld", (long long)ours);
}

/* ---- one tensor on all ranks ------------------------------------------------------------ */

typedef struct {
  Layout layout;
  int axis[MAX_AXES];
  int64_t shape[MAX_DIMS];
  Placement place[MAX_AXES];
} Problem;

static bool read_problem(Case *c, Problem *p) {
  int n;
  p->layout = (Layout){.ndim = read_ints(field(c, "shape"), p->shape, MAX_DIMS),
                       .naxes = read_sizes(field(c, "mesh"), p->axis, MAX_AXES)};
  p->layout.shape = p->shape;
  p->layout.axis = p->axis;
  p->layout.place = p->place;
  return read_placements(field(c, "placements"), p->layout.ndim, p->place, &n);
}

/* Which shard of how many along each dimension: axes count left to right. */
static void shard_number(const Problem *p, const int *coord, int64_t *index, int64_t *count) {
  for (int d = 0; d < p->layout.ndim; d++) index[d] = 0, count[d] = 1;
  for (int a = 0; a < p->layout.naxes; a++) {
    if (!is_s(&p->place[a])) continue;
    int d = p->place[a].dim;
    index[d] = index[d] * p->axis[a] + coord[a];
    count[d] *= p->axis[a];
  }
}

static Status draw(Ctx *ctx, Scope *scope, Arena *arena, int ndim, const int64_t *size, const ShardOf *shard,
                   Tensor **out) {
  Call c = {.ctx = ctx, .scope = scope, .arena = arena, .op = op_find("aten.rand.default"), .shard = shard};
  ctx->seed = 42;
  ctx->offset = 0;
  return OP(&c, "aten.rand.default", out, val_ints(size, ndim));
}

/* Every element of the shard is that of the whole. */
static Status compare_part(const ShardOf *s, const Tensor *whole, const Tensor *part, Arena *arena) {
  int64_t *index[MAX_DIMS], n[MAX_DIMS];
  for (int d = 0; d < whole->ndim; d++) TRY(layout_indices(&s->layout, s->coord, d, arena, &index[d], &n[d]));
  for (int64_t i = 0; i < tensor_numel(part); i++) {
    int64_t rest = i, at = 0;
    for (int d = whole->ndim - 1; d >= 0; rest /= n[d], d--) at += index[d][rest % n[d]] * whole->stride[d];
    if (((float *)tensor_data(whole))[at] != ((float *)tensor_data(part))[i])
      return fail(ERR_DIFF, "element %lld of the whole is another number", (long long)at);
  }
  return OK;
}

static Status check_numbers(const Problem *p, Ctx *ctx, Scope *scope, Arena *arena, int64_t *end) {
  Tensor *whole, *part;
  int64_t local[MAX_DIMS], positions = 1;
  for (int a = 0; a < p->layout.naxes; a++) positions *= p->axis[a];
  TRY(draw(ctx, scope, arena, p->layout.ndim, p->shape, NULL, &whole));
  *end = (int64_t)ctx->offset * 4; /* words */
  for (int64_t at = 0; at < positions; at++) {
    int coord[MAX_AXES];
    mesh_coord(p->axis, p->layout.naxes, at, coord);
    ShardOf shard = {p->layout, coord};
    TRY(layout_local(&p->layout, coord, local));
    TRY(draw(ctx, scope, arena, p->layout.ndim, local, &shard, &part));
    TRY(compare_part(&shard, whole, part, arena));
  }
  return OK;
}

static int64_t up_to_four(int64_t n) { return (n + 3) / 4 * 4; }

/* What PyTorch's scheme says of one rank; its beginning is not ours. */
static Verdict check_rank(Case *c, const Problem *p, int rank, bool *elsewhere) {
  int coord[MAX_AXES], numbers[MAX_DIMS], counts[MAX_DIMS];
  int64_t index[MAX_DIMS], count[MAX_DIMS], first[MAX_DIMS], elements = 1;
  mesh_coord(p->axis, p->layout.naxes, rank, coord);
  shard_number(p, coord, index, count);
  yyjson_val *told = yyjson_arr_get(field(c, "ranks"), (size_t)rank);
  if (!same_ints(yyjson_obj_get(told, "shard_idx"), index, p->layout.ndim))
    return wrong(c, "the shard of rank %d", rank);
  if (!same_ints(yyjson_obj_get(told, "num_shards"), count, p->layout.ndim))
    return wrong(c, "the number of shards, rank %d", rank);
  for (int d = 0; d < p->layout.ndim; d++) numbers[d] = (int)index[d], counts[d] = (int)count[d];
  int64_t linear = mesh_position(counts, p->layout.ndim, numbers);
  if (linear != yyjson_get_sint(yyjson_obj_get(told, "linear_idx")))
    return wrong(c, "the place of rank %d's shard", rank);
  read_ints(field(c, "first_shard"), first, MAX_DIMS);
  for (int d = 0; d < p->layout.ndim; d++) elements *= first[d];
  int64_t start = yyjson_get_sint(yyjson_obj_get(told, "start"));
  if (start != up_to_four(linear * elements)) return wrong(c, "the offset of rank %d", rank);
  *elsewhere |= start != 0;
  return SAME;
}

static Verdict check_offsets(Case *c) {
  Problem p;
  if (!read_problem(c, &p)) return wrong(c, "a placement does not parse");
  Ctx ctx;
  Scope scope = {0};
  Arena arena = {0};
  int64_t end = 0;
  ctx_init(&ctx, 1);
  Status s = check_numbers(&p, &ctx, &scope, &arena, &end);
  scope_clear(&scope);
  arena_free(&arena);
  ctx_free(&ctx);
  if (s) return wrong_status(c, s);
  if (end != yyjson_get_sint(field(c, "end"))) return wrong(c, "the stream moves on by %lld words", (long long)end);
  bool elsewhere = false;
  for (int r = 0; r < (int)yyjson_arr_size(field(c, "ranks")); r++) {
    Verdict v = check_rank(c, &p, r, &elsewhere);
    if (v != SAME) return v;
  }
  if (field(c, "shards_share_numbers")) return better(c, "PyTorch gives shards the same numbers");
  if (field(c, "runs_into_next_op")) return better(c, "PyTorch gives the next op the same numbers");
  return elsewhere ? better(c, "PyTorch's tensor depends on how it is spread") : SAME;
}

static Verdict check_state(Case *c) {
  Ctx ctx = {0}, back = {0};
  unsigned char state[RANDOM_STATE_BYTES];
  char hex[2 * RANDOM_STATE_BYTES + 1];
  unsigned long long seed;
  if (sscanf(yyjson_get_str(field(c, "seed")), "%llu", &seed) != 1) return wrong(c, "no seed");
  ctx.seed = seed;
  ctx.offset = yyjson_get_uint(field(c, "offset"));
  ctx_random_state(&ctx, state);
  for (int i = 0; i < RANDOM_STATE_BYTES; i++) snprintf(hex + 2 * i, 3, "%02x", state[i]);
  if (strcmp(hex, yyjson_get_str(field(c, "state")))) return wrong(c, "the state is %s", hex);
  ctx_set_random_state(&back, state);
  return back.seed == ctx.seed && back.offset == ctx.offset ? SAME : wrong(c, "the state does not come back");
}

Verdict case_rng(Case *c) {
  static const struct {
    const char *kind;
    CaseFn *check;
  } table[] = {{"linear_idx", check_linear}, {"offsets", check_offsets}, {"state", check_state}};
  const char *kind = yyjson_get_str(field(c, "kind"));
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (!strcmp(kind, table[i].kind)) return table[i].check(c);
  return wrong(c, "a case of unknown kind '%s'", kind);
}
