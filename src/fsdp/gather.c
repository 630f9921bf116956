/* gather.c -- parameters are gathered and freed: the sharded states of a group; see fsdp.h.
 *
 *   SHARDED ----------- unshard, wait -----------> UNSHARDED
 *      ^  ^--------------- reshard -------------------'  |
 *      '--- reshard --- SHARDED_POST_FORWARD <-- reshard after forward, to fewer ranks
 *                        '--- unshard, wait ---> UNSHARDED
 */
#include <stdlib.h>
#include <string.h>

#include "base/blocks.h"
#include "dist/dist.h"
#include "dist/run_sharded.h"
#include "fsdp/fsdp_inside.h"
#include "kernels/copy.h"

#define GONE UINT64_MAX /* the version of a storage without data: what was kept of it cannot be read */

/* ---- the buffer ------------------------------------------------------------------------------------------ */

static void release_gathered(Storage *s) {
  if (s->data) block_free(s->data, s->size ? s->size : 1);
}

/* One rank has all, as it is gathered: its flat shard is the buffer. */
static bool is_borrowed(const FsdpGroup *g) { return g->gathered == g->shards.storage; }

Status fsdp_gathered_init(FsdpGroup *g) {
  if (g->gathered) return OK;
  bool same = g->shards.flat.members == 1;
  for (int i = 0; i < g->n; i++) same &= g->param[i].gathered == g->param[i].dtype;
  if (same) {
    g->gathered = storage_ref(g->shards.storage);
    return OK;
  }
  TRY(storage_borrow(NULL, (size_t)g->whole_bytes, release_gathered, NULL, &g->gathered));
  g->gathered->version = GONE;
  return OK;
}

static Status buffer_alloc(FsdpGroup *g) {
  Storage *s = g->gathered;
  s->data = block_alloc(s->size ? s->size : 1);
  if (!s->data)
    return fail(ERR_FAIL, "group '%s': no memory for %zu bytes of gathered parameters", g->name, s->size);
  return OK;
}

static void buffer_free(FsdpGroup *g) {
  Storage *s = g->gathered;
  if (!s || is_borrowed(g) || !s->data) return;
  block_free(s->data, s->size ? s->size : 1);
  s->data = NULL;
  if (s->version != GONE) g->version = s->version;
  s->version = GONE;
}

/* ---- gathering ---------------------------------------------------------------------------------------------- */

static bool casts(const FsdpGroup *g, const FsdpShards *from) {
  for (int p = 0; p < g->n; p++)
    if (from->dtype[p] != g->gathered_dtype[p]) return true;
  return false;
}

/* The flat shard as it is gathered, into `to`. */
static void cast_shard(FsdpGroup *g, const FsdpShards *from, char *to) {
  const int64_t *count = flat_counts(&from->flat, from->flat.me), one = 1;
  flat_places(&from->flat, count, g->gathered_dtype, NULL, from->cast_at);
  for (int p = 0; p < g->n; p++)
    kernel_copy(&g->ctx->kern, (View){to + from->cast_at[p], &count[p], &one, 1, g->gathered_dtype[p]},
                (View){(char *)from->storage->data + from->at[p], &count[p], &one, 1, from->dtype[p]});
}

static Status exchange(FsdpGroup *g, const FsdpShards *from, bool now) {
  const void *send = from->storage->data;
  if (casts(g, from)) {
    int64_t bytes = flat_places(&from->flat, flat_counts(&from->flat, from->flat.me), g->gathered_dtype, NULL,
                                NULL);
    TRY(storage_new((size_t)bytes, &g->sent));
    cast_shard(g, from, g->sent->data);
    send = g->sent->data;
  }
  const FlatGather *how = &from->gather;
  Coll c = {.kind = COLL_EXCHANGE,
            .dtype = how->as,
            .send = send,
            .recv = g->gathered->data,
            .send_box = how->send.v,
            .nsend = how->send.n,
            .recv_box = how->recv.v,
            .nrecv = how->recv.n,
            .why = g->name};
  TRY(dist_log(g->ctx->dist, STEP_ALL_GATHER, 1u << g->mesh.shard, g->whole_bytes, g->name));
  fsdp_tell(g, (FsdpNote){.event = FSDP_ON_ALL_GATHER,
                          .bytes = g->whole_bytes,
                          .dtype = how->as,
                          .ranks = comm_members(from->comm),
                          .nranks = comm_size(from->comm)});
  return now ? comm_run(from->comm, &c) : comm_start(from->comm, &c, &g->gathering);
}

static Status unshard(FsdpGroup *g, bool now) {
  if (g->pending || g->state == FSDP_UNSHARDED) return OK;
  if (!g->unshard_in_backward && g->training == FSDP_PRE_BACKWARD) return OK;
  const FsdpShards *from = g->state == FSDP_SHARDED ? &g->shards : &g->post;
  if (g->state == FSDP_SHARDED) TRY(fsdp_group_init(g));
  if (!is_borrowed(g)) {
    TRY(buffer_alloc(g));
    Status s = OK;
    if (from->comm) s = exchange(g, from, now);
    else cast_shard(g, from, g->gathered->data);
    if (s) {
      buffer_free(g);
      return s;
    }
  }
  g->pending = true;
  return OK;
}

Status fsdp_unshard(FsdpGroup *g) { return unshard(g, false); }

static Status end_gather(FsdpGroup *g) {
  Status s = g->gathering ? comm_wait(g->gathering) : OK;
  g->gathering = NULL;
  g->pending = false;
  storage_unref(g->sent);
  g->sent = NULL;
  fsdp_shard_rest(g->shards.storage);
  return s;
}

Status fsdp_unshard_now(FsdpGroup *g) {
  TRY(unshard(g, true)); /* waiting at once costs less than starting */
  return fsdp_wait_unshard(g);
}

Status fsdp_wait_unshard(FsdpGroup *g) {
  if (!g->pending) return OK;
  TRY(end_gather(g));
  if (g->gathered->version == GONE) g->gathered->version = g->version;
  storage_unref(g->post.storage);
  g->post.storage = NULL;
  g->state = FSDP_UNSHARDED;
  fsdp_tell(g, (FsdpNote){.event = FSDP_ON_UNSHARDED});
  return fsdp_renew_leaves(g);
}

Status fsdp_drop_gather(FsdpGroup *g) {
  if (!g->pending) return OK;
  Status s = end_gather(g);
  if (g->state != FSDP_UNSHARDED) buffer_free(g);
  return s;
}

/* ---- parameters --------------------------------------------------------------------------------------------- */

static Status whole_tensor(FsdpGroup *g, int i, Scope *scope, Tensor **out) {
  const FsdpParam *p = &g->param[i];
  Tensor *t;
  TRY(tensor_meta(scope, p->gathered, p->ndim, p->size, &t));
  t->storage = storage_ref(g->gathered);
  t->offset = g->whole_at[i] / (int64_t)dtype_size(p->gathered);
  return p->whole ? dtensor_wrap(scope, p->whole, t, out) : (*out = t, OK);
}

static Status renew_leaf(FsdpGroup *g, int i, Scope *scope) {
  FsdpParam *p = &g->param[i];
  Tensor *t;
  TRY(whole_tensor(g, i, scope, &t));
  p->requires_grad = g->unit->slots->requires_grad(&p->slot[0]);
  if (p->requires_grad && !g->unit->tape(g->ctx)->paused) TRY(fsdp_take_gradient_of(g, i, t));
  return fsdp_put_slots(g, p, t);
}

Status fsdp_renew_leaves(FsdpGroup *g) {
  for (int i = 0; i < g->n; i++) {
    Scope scope = {0};
    Status s = renew_leaf(g, i, &scope);
    scope_clear(&scope);
    TRY(s);
  }
  return OK;
}

/* ---- freeing ------------------------------------------------------------------------------------------------- */

/* This rank's part for the time between forward and backward. */
static Status cut_post(FsdpGroup *g) {
  Arena arena = {0};
  Status s = storage_new((size_t)g->post.bytes, &g->post.storage);
  for (int p = 0; p < g->n && !s; p++) {
    BoxList from = {0}, into = {0};
    s = flat_part(&g->post.flat, g->post.flat.me, p, NULL, &arena, &from, &into);
    for (int i = 0; i < from.n && !s; i++)
      kernel_copy(&g->ctx->kern,
                  fsdp_box_view((char *)g->post.storage->data + g->post.at[p], g->post.dtype[p], &into.v[i]),
                  fsdp_box_view((char *)g->gathered->data + g->whole_at[p], g->post.dtype[p], &from.v[i]));
  }
  arena_free(&arena);
  return s;
}

static Status to_post_forward(FsdpGroup *g) {
  if (g->state == FSDP_SHARDED_POST_FORWARD) return OK;
  if (g->state != FSDP_UNSHARDED)
    return fsdp_fail(g, "cannot be resharded to fewer ranks: its parameters are not gathered", "unshard it before");
  TRY(cut_post(g));
  buffer_free(g);
  g->state = FSDP_SHARDED_POST_FORWARD;
  fsdp_tell(g, (FsdpNote){.event = FSDP_ON_RESHARD_POST_FORWARD});
  return fsdp_group_put(g, true);
}

Status fsdp_reshard(FsdpGroup *g) {
  if (g->training == FSDP_FORWARD && g->reshard == RESHARD_NEVER) return OK;
  if (g->training == FSDP_FORWARD && g->reshard == RESHARD_TO) return to_post_forward(g);
  if (g->state == FSDP_SHARDED) return OK;
  buffer_free(g);
  storage_unref(g->post.storage);
  g->post.storage = NULL;
  g->state = FSDP_SHARDED;
  fsdp_tell(g, (FsdpNote){.event = FSDP_ON_RESHARD});
  return fsdp_group_put(g, false);
}
