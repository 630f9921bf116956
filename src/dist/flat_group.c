/* flat_group.c -- see flat_group.h. */
#include "dist/flat_group.h"

static const int *coord_of(const FlatParam *p, int member) { return &p->coord[member * p->whole.naxes]; }

static int64_t product(int n, const int64_t *size) {
  int64_t numel = 1;
  for (int d = 0; d < n; d++) numel *= size[d];
  return numel;
}

Status flat_shard_size(const FlatGroup *g, int m, int p, int64_t *size) {
  return layout_local(&g->param[p].shard, coord_of(&g->param[p], m), size);
}

Status flat_whole_size(const FlatGroup *g, int p, int64_t *size) {
  return layout_local(&g->param[p].whole, coord_of(&g->param[p], g->me), size);
}

Status flat_group_new(const FlatParam *param, int n, int members, int me, Arena *arena, FlatGroup *out) {
  int64_t size[MAX_DIMS];
  *out = (FlatGroup){.n = n, .members = members, .me = me, .param = param};
  TRY_NEW(out->count, arena_new_n(arena, int64_t, (int64_t)members * n + 1));
  TRY_NEW(out->numel, arena_new_n(arena, int64_t, n + 1));
  for (int p = 0; p < n; p++) {
    int64_t sum = 0;
    TRY(flat_whole_size(out, p, size));
    out->numel[p] = product(param[p].whole.ndim, size);
    for (int m = 0; m < members; m++) {
      TRY(flat_shard_size(out, m, p, size));
      out->count[(int64_t)m * n + p] = product(param[p].shard.ndim, size);
      sum += out->count[(int64_t)m * n + p];
    }
    if (sum != out->numel[p]) /* I1 */
      return fail(ERR_USAGE,
                  "tensor %d of the group: the shards of its %d ranks have %lld elements, the whole %lld", p,
                  members, (long long)sum, (long long)out->numel[p]);
  }
  return OK;
}

int64_t flat_places(const FlatGroup *g, const int64_t *count, const Dtype *dtype, const bool *in, int64_t *at) {
  int64_t end = 0;
  for (size_t item = 16; item; item /= 2) /* I2 */
    for (int p = 0; p < g->n; p++) {
      if (dtype_size(dtype[p]) != item || (in && !in[p])) continue;
      if (at) at[p] = end;
      end += count[p] * (int64_t)item;
    }
  return end;
}

/* ---- gathering ---------------------------------------------------------------------------------------- */

/* The runs of a tensor's shard or whole on one member, and the strides of its dense elements. */
static Status dense(const Layout *l, const int *coord, Arena *arena, Region *region, int64_t *stride) {
  int64_t size[MAX_DIMS];
  TRY(region_of(l, coord, arena, region));
  for (int d = 0; d < l->ndim; d++) size[d] = region->dim[d].size;
  contiguous_strides(l->ndim, size, stride);
  return OK;
}

/* A box of elements in a buffer of elements of another size: an element becomes `times` of these. */
static void split_items(Box *b, int64_t times) {
  if (times == 1) return;
  b->offset *= times;
  for (int d = 0; d < b->ndim; d++) b->stride[d] *= times;
  int last = b->ndim - 1;
  if (b->ndim && (b->stride[last] == times || b->size[last] == 1)) {
    b->size[last] *= times;
    b->stride[last] = 1;
    return;
  }
  b->size[b->ndim] = times;
  b->stride[b->ndim++] = 1;
}

/* Boxes from number `from` on get their place in the buffer: `at` bytes from its beginning. */
static void settle(BoxList *list, int from, int64_t at, Dtype dtype, Dtype as) {
  int64_t times = (int64_t)(dtype_size(dtype) / dtype_size(as));
  for (int i = from; i < list->n; i++) {
    split_items(&list->v[i], times);
    list->v[i].offset += at / (int64_t)dtype_size(as);
  }
}

Status flat_gather(const FlatGroup *g, const Dtype *dtype, Arena *arena, FlatGather *out) {
  int64_t *mine, *whole, unknown[MAX_DIMS] = {0}, stride[MAX_DIMS], whole_stride[MAX_DIMS];
  TRY_NEW(mine, arena_new_n(arena, int64_t, g->n + 1));
  TRY_NEW(whole, arena_new_n(arena, int64_t, g->n + 1));
  flat_places(g, flat_counts(g, g->me), dtype, NULL, mine);
  flat_places(g, g->numel, dtype, NULL, whole);
  *out = (FlatGather){.as = g->n ? dtype[0] : DT_U8};
  for (int p = 1; p < g->n; p++)
    if (dtype[p] != out->as) out->as = DT_U8;
  for (int q = 0; q < g->members; q++)
    for (int p = 0; p < g->n; p++) {
      const FlatParam *t = &g->param[p];
      Region have, want, other;
      int sent = out->send.n, received = out->recv.n;
      TRY(dense(&t->shard, coord_of(t, g->me), arena, &have, stride));
      TRY(dense(&t->whole, coord_of(t, g->me), arena, &want, whole_stride));
      TRY(region_of(&t->whole, coord_of(t, q), arena, &other));
      TRY(boxes_shared(&have, stride, &other, unknown, q, arena, &out->send, NULL));
      TRY(region_of(&t->shard, coord_of(t, q), arena, &other));
      TRY(boxes_shared(&other, unknown, &want, whole_stride, q, arena, NULL, &out->recv));
      settle(&out->send, sent, mine[p], dtype[p], out->as);
      settle(&out->recv, received, whole[p], dtype[p], out->as);
    }
  return OK;
}

/* ---- reducing ------------------------------------------------------------------------------------------ */

Status flat_part(const FlatGroup *g, int m, int p, const int64_t *stride, Arena *arena, BoxList *of_whole,
                 BoxList *of_shard) {
  const FlatParam *t = &g->param[p];
  Region have, want;
  int64_t have_stride[MAX_DIMS], want_stride[MAX_DIMS];
  TRY(dense(&t->shard, coord_of(t, m), arena, &have, have_stride));
  TRY(dense(&t->whole, coord_of(t, g->me), arena, &want, want_stride));
  return boxes_shared(&have, have_stride, &want, stride ? stride : want_stride, m, arena, of_shard, of_whole);
}

Status flat_scatter(const FlatGroup *g, const bool *in, const int64_t (*stride)[MAX_DIMS], Arena *arena,
                    FlatScatter *out) {
  int cap = 0;
  *out = (FlatScatter){0};
  TRY_NEW(out->counts, arena_new_n(arena, int64_t, g->members + 1));
  for (int m = 0; m < g->members; m++)
    for (int p = 0; p < g->n; p++) {
      int before = out->into.n;
      if (in && !in[p]) continue;
      TRY(flat_part(g, m, p, stride ? stride[p] : NULL, arena, &out->from, &out->into));
      for (int i = before; i < out->into.n; i++) {
        out->into.v[i].offset += out->total;
        TRY_NEW(out->param, arena_more(arena, out->param, i, &cap));
        out->param[i] = p;
      }
      out->counts[m] += flat_counts(g, m)[p];
      out->total += flat_counts(g, m)[p];
    }
  return OK;
}
