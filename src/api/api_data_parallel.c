/* api_data_parallel.c -- public functions: a module whose gradients are averaged over an axis of ranks.
 *
 * The gradients are the reducer's (parallel/reducer.h).  Here are the module's: parameters and buffers that are
 * made equal, and ranks with different numbers of batches.
 *
 * Join: between begin and end, every forward with gradients begins with an all-reduce of three numbers, in which
 * ranks that are at their end take part from inside of tess_data_parallel_join_end().
 */
#include <stdlib.h>

#include "api/module.h"
#include "dist/dist.h"
#include "ops/own_calls.h"
#include "parallel/reducer.h"

struct TessDataParallel {
  TessCtx *ctx; /* NULL: gone */
  TessModule *m;
  Mesh *axis;
  Comm *group;
  Reducer *reducer;
  TessReplicas how;
  int hook;
  bool joining, by_active; /* by_active: sums are divided by the ranks that have batches */
  TessDataParallel *next;  /* of the context's */
};

/* ---- equal tensors ------------------------------------------------------------------------------------- */

static Status broadcast(TessDataParallel *d, Tensor *t, int root, const char *why) {
  Tensor *shard = t->spec ? t->local : t, *whole = shard, *back;
  OwnCalls w;
  Call *c = own_calls_begin(&w, d->ctx);
  Status s = tensor_is_contiguous(shard) ? OK : OP(c, "aten.contiguous.default", &whole, val_tensor(shard));
  int64_t n = tensor_numel(shard);
  Coll what = {.kind = COLL_BROADCAST,
               .dtype = shard->dtype,
               .root = root,
               .send = s ? NULL : tensor_data(whole),
               .recv = s ? NULL : tensor_data(whole),
               .count = n,
               .where = d->axis->hash,
               .why = why};
  if (!s && n) s = comm_run(d->group, &what);
  if (!s && whole != shard) s = OP(c, "aten.copy_.default", &back, val_tensor(shard), val_tensor(whole));
  if (!s && whole == shard && shard->storage) shard->storage->version++; /* as an op in place would */
  own_calls_end(&w);
  return s;
}

static Status make_equal(TessDataParallel *d, bool buffers, int root) {
  ModuleTensors list;
  TRY(module_tensors(d->m, buffers, &list));
  Status s = OK;
  for (int i = 0; i < list.n && !s; i++) s = broadcast(d, list.v[i], root, list.name[i]);
  module_tensors_free(&list);
  return s;
}

/* ---- ranks that are at their end ---------------------------------------------------------------------------- */

typedef enum { ACTIVE, SYNCS, SOURCE, NUMBERS } Number; /* ranks with a batch; that reduce; the last of them */

static Status reduce_numbers(TessDataParallel *d, ReduceOp op, int64_t *numbers, int n, const char *why) {
  Coll what = {.kind = COLL_ALL_REDUCE,
               .dtype = DT_I64,
               .op = op,
               .send = numbers,
               .recv = numbers,
               .count = n,
               .where = d->axis->hash,
               .why = why};
  return comm_run(d->group, &what);
}

/* What all ranks say: two numbers are summed up, the last one is the largest. */
static Status tell(TessDataParallel *d, bool active, bool syncs, int64_t all[NUMBERS]) {
  all[ACTIVE] = active;
  all[SYNCS] = syncs;
  all[SOURCE] = active ? comm_rank(d->group) : -1;
  TRY(reduce_numbers(d, REDUCE_SUM, all, 2, "who still has batches"));
  return reduce_numbers(d, REDUCE_MAX, &all[SOURCE], 1, "who still has batches");
}

static Status before_forward(TessDataParallel *d) {
  bool syncs = reducer_sync(d->reducer, true);
  int64_t all[NUMBERS] = {0};
  reducer_sync(d->reducer, syncs);
  if (d->joining) TRY(tell(d, true, syncs, all));
  if (d->joining && d->by_active) reducer_divide_by(d->reducer, (int)all[ACTIVE]);
  if (!syncs) return OK;
  reducer_expect(d->reducer);
  return d->how.own_buffers ? OK : make_equal(d, true, (int)all[SOURCE]);
}

static int forward_hook(TessCtx *ctx, TessModule *m, TessTensor **t, int n, TessMesh *mesh, void *arg) {
  (void)m, (void)t, (void)n, (void)mesh;
  return tess_grad_enabled(ctx) && api_stick(ctx, before_forward(arg)) ? -1 : 0;
}

/* One forward and backward of the others; *on: there was one. */
static Status follow(TessDataParallel *d, bool *on, int64_t all[NUMBERS]) {
  TRY(tell(d, false, false, all));
  *on = all[ACTIVE] > 0;
  if (!*on || !all[SYNCS]) return OK;
  if (d->by_active) reducer_divide_by(d->reducer, (int)all[ACTIVE]);
  if (!d->how.own_buffers) TRY(make_equal(d, true, (int)all[SOURCE]));
  return reducer_shadow(d->reducer);
}

/* The last ranks that had a batch have seen all steps. */
static Status end_join(TessDataParallel *d) {
  int64_t all[NUMBERS] = {0}, longest;
  int followed = 0;
  for (bool on = true; on; followed += on) TRY(follow(d, &on, all));
  longest = followed ? -1 : comm_rank(d->group);
  TRY(reduce_numbers(d, REDUCE_MAX, &longest, 1, "who went on longest"));
  reducer_divide_by(d->reducer, 0);
  TRY(make_equal(d, false, (int)longest));
  return make_equal(d, true, (int)longest);
}

int tess_data_parallel_join_begin(TessDataParallel *d, int divide_by_active) {
  if (!d || !API_READY(d->ctx)) return -1;
  if (d->joining && api_stick(d->ctx, fail(ERR_USAGE, "a join is open already"))) return -1;
  d->joining = true;
  d->by_active = divide_by_active != 0;
  return 0;
}

int tess_data_parallel_join_end(TessDataParallel *d) {
  if (!d || !API_READY(d->ctx)) return -1;
  if (!d->joining && api_stick(d->ctx, fail(ERR_USAGE, "no join is open"))) return -1;
  Status s = end_join(d);
  d->joining = false;
  return api_stick(d->ctx, s) ? -1 : 0;
}

/* ---- making it ---------------------------------------------------------------------------------------------- */

static Status begin(TessDataParallel *d) {
  ModuleTensors params;
  double mb = d->how.bucket_mb;
  if (!(mb >= 0 && mb < 1e6)) return fail(ERR_USAGE, "a bucket of %g MiB", mb);
  int64_t most = mb > 0 ? (int64_t)(mb * 1048576) + 1 : 25 << 20;
  ReducerHow how = {.first_bytes = most < 1 << 20 ? most : 1 << 20,
                    .bucket_bytes = most,
                    .find_unused = d->how.find_unused != 0,
                    .bf16 = d->how.bf16 != 0};
  TRY(mesh_group(d->axis, 1, &d->group));
  if (!d->how.own_parameters) TRY(make_equal(d, false, 0));
  if (!d->how.own_parameters) TRY(make_equal(d, true, 0));
  TRY(module_tensors(d->m, false, &params));
  Status s = params.n ? reducer_new(api_tape(d->ctx), d->axis, params.v, params.name, params.n, &how, &d->reducer)
                      : status_hint(
                            fail(ERR_USAGE, "the module has no parameter that requires a gradient"),
                            "mark them with tess_set_requires_grad() before; in Python they are tessera.tensor(x, "
                            "requires_grad=True)");
  module_tensors_free(&params);
  TRY(s);
  TRY(module_add_hook(d->m, TESS_BEFORE_FORWARD, forward_hook, d, NULL));
  d->hook = d->m->hooks_made - 1;
  return OK;
}

TessDataParallel *tess_data_parallel(TessCtx *ctx, TessModule *m, TessMesh *mesh, const TessReplicas *how) {
  Mesh *axis = NULL;
  if (!API_BEGIN(ctx, GIVEN("the module", m)) ||
      api_stick(ctx, api_axis(ctx, mesh, "a module is data parallel", &axis)))
    return NULL;
  TessDataParallel *d = calloc(1, sizeof *d);
  if (!d && api_stick(ctx, fail_oom())) return NULL;
  *d = (TessDataParallel){.ctx = ctx, .m = tess_module_hold(m), .axis = axis, .hook = -1};
  if (how) d->how = *how;
  d->next = ((PublicCtx *)ctx)->replicas;
  ((PublicCtx *)ctx)->replicas = d;
  if (!api_stick(ctx, begin(d))) return d;
  tess_data_parallel_free(d);
  return NULL;
}

/* The module is as before; the context knows nothing of it any more. */
static void detach(TessDataParallel *d) {
  if (!d->ctx) return;
  TessDataParallel **at = &((PublicCtx *)d->ctx)->replicas;
  while (*at != d) at = &(*at)->next;
  *at = d->next;
  if (d->hook >= 0) tess_module_unhook(d->m, d->hook);
  reducer_free(d->reducer, ((PublicCtx *)d->ctx)->taping ? api_tape(d->ctx) : NULL);
  d->reducer = NULL;
  d->ctx = NULL;
}

void api_end_data_parallel(TessCtx *ctx) {
  while (((PublicCtx *)ctx)->replicas) detach(((PublicCtx *)ctx)->replicas);
}

void tess_data_parallel_free(TessDataParallel *d) {
  if (!d) return;
  detach(d);
  tess_module_free(d->m);
  free(d);
}

int tess_data_parallel_sync(TessDataParallel *d, int on) {
  return d && d->reducer ? reducer_sync(d->reducer, on != 0) : 0;
}
int tess_data_parallel_buckets(const TessDataParallel *d) {
  return d && d->reducer ? reducer_buckets(d->reducer) : 0;
}
