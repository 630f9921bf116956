/* sharded_load.c -- how items of ranks lie, and filling them; see sharded_save.h. */
#include <string.h>

#include "ckpt/exchange.h"
#include "ckpt/sharded_save.h"

static const int one_rank[1] = {1}, first[1] = {0};
static const Placement replicated = {.kind = PLACE_R};

static Status check_local(const ShardItem *item) {
  const Layout *l = &item->shard->layout;
  const Tensor *t = item->tensor;
  int64_t size[MAX_DIMS];
  char a[200], b[200];
  TRY(layout_local(l, item->shard->coord, size));
  if (t->ndim == l->ndim && (!t->ndim || !memcmp(t->size, size, (size_t)t->ndim * sizeof *size))) return OK;
  return fail(ERR_USAGE, "'%s': the shard is %s, its layout says %s", item->name, tensor_describe(t, a, sizeof a),
              shape_describe(l->ndim, size, b, sizeof b));
}

Status item_shard(const ShardItem *item, ItemShard *out) {
  const Tensor *t = item->tensor;
  if (item->shard) {
    *out = (ItemShard){*item->shard, t};
    return check_local(item);
  }
  if (t->spec) {
    const Mesh *mesh = t->spec->mesh;
    *out = (ItemShard){{spec_layout(t->spec), mesh->coord}, mesh->inside ? t->local : NULL};
    return OK;
  }
  *out = (ItemShard){
      {{.ndim = t->ndim, .shape = t->size, .naxes = 1, .axis = one_rank, .place = &replicated}, first}, t};
  return OK;
}

static Status fill(const Source *s, const ShardItem *item, int threads, Arena *arena) {
  const SourceTensor *t = source_find(s, item->name);
  ItemShard shard;
  ChunkList wanted;
  char a[200], b[200];
  TRY(item_shard(item, &shard));
  if (!shard.local) return OK;
  const Layout *l = &shard.of.layout;
  if (!t) return fail(ERR_USAGE, "'%s' holds no tensor '%s'", s->path, item->name);
  if (t->ndim != l->ndim || (t->ndim && memcmp(t->size, l->shape, (size_t)t->ndim * sizeof *t->size)))
    return fail(ERR_USAGE, "'%s': the tensor '%s' is %s%s there, %s here", s->path, item->name,
                dtype_name(t->dtype), shape_describe(t->ndim, t->size, a, sizeof a),
                shape_describe(l->ndim, l->shape, b, sizeof b));
  if (tensor_numel(shard.local) && !tensor_data(shard.local))
    return fail(ERR_FAIL, "'%s' cannot be loaded: the tensor has no memory", item->name);
  TRY(chunks_of(l, shard.of.coord, arena, &wanted));
  return source_read_chunks(s, t, &wanted, shard.local, threads);
}

Status source_fill(const Source *s, const ShardItem *item, int threads) {
  Arena arena = {0};
  Status r = fill(s, item, threads, &arena);
  arena_free(&arena);
  return r;
}

static Status agree(Comm *c, Status mine) { return c ? exchange_outcome(c, "checkpoint", mine) : mine; }

Status sharded_load(Comm *c, const Source *s, const ShardItem *items, int n, int threads) {
  SourceVerify how = {.threads = threads, .part = c ? comm_rank(c) : 0, .parts = c ? comm_size(c) : 1};
  TRY(agree(c, source_verify(s, &how)));
  Status r = OK;
  for (int i = 0; !r && i < n; i++) r = source_fill(s, &items[i], threads);
  return agree(c, r);
}
