/* reducer.c -- see reducer.h. */
#include "parallel/reducer.h"

#include <stdlib.h>
#include <string.h>

#include "base/textbuf.h"
#include "dist/dist.h"
#include "dist/spec.h"
#include "ops/own_calls.h"

typedef struct {
  Reducer *reducer;
  Tensor *param; /* held */
  const char *name;
  TapeHook *hook;
  int bucket;
  int64_t offset, n; /* elements in the bucket */
  bool ready;        /* this backward's gradient is there */
} Slot;

typedef struct {
  Dtype dtype;
  int64_t n;
  Tensor *flat, *wire; /* wire: what travels, flat itself or a copy in bf16 */
  int missing;         /* gradients that have not come */
  CommWork *work;
  bool started;
} Bucket;

struct Reducer {
  Tape *tape;
  Mesh *axis;
  Comm *group;
  ReducerHow how;
  Arena arena;
  Scope scope; /* of the buckets' memory */
  TapeEnd end;
  Slot *slot;
  int nslots;
  Bucket *bucket;
  int nbuckets, bucket_cap, next; /* next: the first that is not started */
  int32_t *used;                  /* by slot: how many ranks have a gradient */
  int divide_by;
  bool sync, expected, any;
};

static const Tensor *shard_of(const Tensor *t) { return t->spec ? t->local : t; }

/* ---- making it ----------------------------------------------------------------------------------------- */

/* The open bucket of a dtype, which the last bucket of it is unless it has enough. */
static Status bucket_for(Reducer *r, Dtype d, int *out) {
  for (int b = r->nbuckets - 1; b >= 0; b--) {
    int64_t most = b == 0 ? r->how.first_bytes : r->how.bucket_bytes;
    if (r->bucket[b].dtype != d) continue;
    if (r->bucket[b].n * (int64_t)dtype_size(d) >= most) break;
    *out = b;
    return OK;
  }
  TRY_NEW(r->bucket, arena_more(&r->arena, r->bucket, r->nbuckets, &r->bucket_cap));
  r->bucket[r->nbuckets] = (Bucket){.dtype = d};
  *out = r->nbuckets++;
  return OK;
}

static Status assign(Reducer *r) {
  for (int i = r->nslots - 1; i >= 0; i--) {
    Slot *s = &r->slot[i];
    TRY(bucket_for(r, s->param->dtype, &s->bucket));
    Bucket *b = &r->bucket[s->bucket];
    s->n = tensor_numel(shard_of(s->param));
    s->offset = b->n;
    b->n += s->n;
    b->missing++;
  }
  for (int i = 0; i < r->nbuckets; i++) {
    Bucket *b = &r->bucket[i];
    TRY(tensor_new(&r->scope, b->dtype, 1, &b->n, &b->flat));
    b->wire = b->flat;
    if (r->how.bf16 && b->dtype != DT_BF16) TRY(tensor_new(&r->scope, DT_BF16, 1, &b->n, &b->wire));
  }
  return OK;
}

static TapeHookFn collect;
static Status finish(void *arg, Status s);

static Status take_params(Reducer *r, Tensor *const *params, const char *const *names, int n) {
  TRY_NEW(r->slot, arena_new_n(&r->arena, Slot, n + 1));
  TRY_NEW(r->used, arena_new_n(&r->arena, int32_t, n + 1));
  for (; r->nslots < n; r->nslots++) {
    Slot *s = &r->slot[r->nslots];
    *s = (Slot){.reducer = r};
    TRY_NEW(s->name, arena_strdup(&r->arena, names[r->nslots]));
    TRY(tensor_hold(params[r->nslots], &s->param));
  }
  TRY(assign(r));
  for (int i = 0; i < n; i++)
    TRY(tape_hook(r->tape, r->slot[i].param, collect, &r->slot[i], NULL, &r->slot[i].hook));
  return OK;
}

Status reducer_new(Tape *t, Mesh *axis, Tensor *const *params, const char *const *names, int n,
                   const ReducerHow *how, Reducer **out) {
  Reducer *r;
  TRY_NEW(r, calloc(1, sizeof *r));
  *r = (Reducer){.tape = t, .axis = axis, .how = *how, .sync = true};
  r->end = (TapeEnd){.fn = finish, .arg = r};
  Status s = mesh_group(axis, 1, &r->group);
  if (!s) s = take_params(r, params, names, n);
  tape_await(t, &r->end);
  if (s) reducer_free(r, t);
  else *out = r;
  return s;
}

void reducer_free(Reducer *r, Tape *tape) {
  if (!r) return;
  if (tape) tape_await_no_more(tape, &r->end);
  for (int i = 0; i < r->nslots; i++) {
    tape_unhook(r->slot[i].hook, true);
    tensor_release(r->slot[i].param);
  }
  scope_clear(&r->scope);
  arena_free(&r->arena);
  free(r);
}

bool reducer_sync(Reducer *r, bool on) {
  bool former = r->sync;
  r->sync = on;
  return former;
}

void reducer_expect(Reducer *r) { r->expected = true; }
void reducer_divide_by(Reducer *r, int ranks) { r->divide_by = ranks; }
int reducer_buckets(const Reducer *r) { return r->nbuckets; }

/* ---- calls of ops ------------------------------------------------------------------------------------------- */

/* The part of the bucket that is a parameter's shard. */
static Status view_of(const Slot *s, Scope *scope, Tensor **out) {
  const Tensor *shard = shard_of(s->param);
  int64_t stride[MAX_DIMS];
  contiguous_strides(shard->ndim, shard->size, stride);
  return tensor_as_strided(scope, s->reducer->bucket[s->bucket].flat, shard->ndim, shard->size, stride, s->offset,
                           out);
}

/* I4 */
static Status bring(Call *c, const Tensor *param, Tensor **g) {
  if (!param->spec || !(*g)->spec) return OK;
  Placement place[MAX_AXES];
  const Spec *to;
  for (int a = 0; a < param->spec->mesh->naxes; a++) {
    const Placement *is = &(*g)->spec->place[a], *want = &param->spec->place[a];
    place[a] = is_r(want) && is_p(is) ? *is : *want;
  }
  TRY(spec_with((*g)->spec, place, &to));
  return to == (*g)->spec ? OK
                          : OP(c, "tess.dtensor_redistribute.default", g, val_tensor(*g),
                               ((Value){.kind = VAL_SPEC, .spec = to}), val_str("a gradient for its bucket"));
}

/* What the leaf would have, in the bucket: as a tensor like the parameter in `out`. */
static Status put(Call *c, const Slot *s, Tensor *g, Scope *scope, Tensor **out) {
  Tensor *before = tape_gradient_of(s->param), *view, *copied;
  if (before && g) TRY(OP(c, "aten.add.Tensor", &g, val_tensor(before), val_tensor(g)));
  else if (before) g = before;
  TRY(view_of(s, scope, &view));
  if (!g) return OP(c, "aten.zero_.default", &copied, val_tensor(view));
  TRY(bring(c, s->param, &g));
  TRY(OP(c, "aten.copy_.default", &copied, val_tensor(view), val_tensor(shard_of(g))));
  if (!out) return OK;
  if (!g->spec) return *out = view, OK;
  Call made = *c;
  made.scope = scope;
  return OP(&made, "tess.dtensor_from_local.default", out, val_tensor(view),
            ((Value){.kind = VAL_SPEC, .spec = g->spec}));
}

/* ---- the backward ---------------------------------------------------------------------------------------- */

static Status start(Reducer *r, Bucket *b) {
  OwnCalls w;
  Tensor *cast;
  Status s = OK;
  if (b->wire != b->flat)
    s = OP(own_calls_begin(&w, r->tape->ctx), "aten.copy_.default", &cast, val_tensor(b->wire),
           val_tensor(b->flat)),
    own_calls_end(&w);
  if (!s) s = dist_log(r->axis->dist, STEP_ALL_REDUCE, 1, b->n * (int64_t)dtype_size(b->wire->dtype), "gradients");
  if (s) return s;
  Coll what = {.kind = COLL_ALL_REDUCE,
               .dtype = b->wire->dtype,
               .op = r->divide_by ? REDUCE_SUM : REDUCE_AVG,
               .send = tensor_data(b->wire),
               .recv = tensor_data(b->wire),
               .count = b->n,
               .where = r->axis->hash,
               .why = "gradients of replicas"};
  TRY(comm_start(r->group, &what, &b->work));
  b->started = true;
  return OK;
}

/* I1 */
static Status start_full(Reducer *r) {
  for (; r->next < r->nbuckets && !r->bucket[r->next].missing; r->next++) TRY(start(r, &r->bucket[r->next]));
  return OK;
}

static Status collect(void *arg, Ctx *ctx, Tensor *gradient, Scope *scope, Tensor **out) {
  Slot *s = arg;
  Reducer *r = s->reducer;
  if (!r->sync || !r->tape->adding || s->ready) return OK;
  OwnCalls w;
  Status failed = put(own_calls_begin(&w, ctx), s, gradient, scope, out);
  own_calls_end(&w);
  TRY(status_at(failed, "the gradient of parameter '%s'", s->name));
  s->ready = r->any = true;
  r->used[s - r->slot] = 1;
  r->bucket[s->bucket].missing--;
  return start_full(r);
}

static Status missing_error(const Reducer *r) {
  TextBuf list = {0};
  int n = 0;
  for (int i = 0; i < r->nslots; i++)
    if (!r->slot[i].ready && n++ < 8) text_printf(&list, "%s%s", n > 1 ? ", " : "", r->slot[i].name);
  Status s = fail(ERR_USAGE, "%d parameter%s got no gradient in this backward: %s%s", n, n == 1 ? "" : "s",
                  list.text ? list.text : "", n > 8 ? " ..." : "");
  text_free(&list);
  return status_hint(s,
                     "if the forward does not use some of them in every step, say find_unused when the module is "
                     "made data parallel (Python: find_unused_parameters=True)");
}

/* What has not come is 0 here, and may have come elsewhere. */
static Status fill_missing(Reducer *r) {
  for (int i = 0; i < r->nslots; i++) {
    Slot *s = &r->slot[i];
    if (s->ready) continue;
    if (!r->how.find_unused) return missing_error(r);
    OwnCalls w;
    Status failed = put(own_calls_begin(&w, r->tape->ctx), s, NULL, &w.scope, NULL);
    own_calls_end(&w);
    TRY(failed);
    r->bucket[s->bucket].missing--;
  }
  return OK;
}

/* How many ranks have a gradient of each. */
static Status agree_on_used(Reducer *r) {
  Coll what = {.kind = COLL_ALL_REDUCE,
               .dtype = DT_I32,
               .op = REDUCE_SUM,
               .send = r->used,
               .recv = r->used,
               .count = r->nslots,
               .where = r->axis->hash,
               .why = "parameters that have a gradient"};
  TRY(dist_log(r->axis->dist, STEP_ALL_REDUCE, 1, r->nslots * (int64_t)sizeof *r->used, what.why));
  return comm_run(r->group, &what);
}

/* Whatever was started; the first error counts. */
static Status wait_all(Reducer *r, Status s) {
  for (int i = 0; i < r->nbuckets; i++) {
    Bucket *b = &r->bucket[i];
    if (!b->started) continue;
    Status waited = comm_wait(b->work);
    b->started = false;
    if (s) status_free(waited);
    else s = waited;
  }
  return s;
}

/* From what travelled to what gradients are views of. */
static Status unpack(Reducer *r) {
  Tensor *t;
  for (int i = 0; i < r->nbuckets; i++) {
    Bucket *b = &r->bucket[i];
    OwnCalls w;
    Call *c = own_calls_begin(&w, r->tape->ctx);
    Status s = b->wire == b->flat ? OK : OP(c, "aten.copy_.default", &t, val_tensor(b->flat), val_tensor(b->wire));
    if (!s && r->divide_by) s = OP(c, "aten.div_.Scalar", &t, val_tensor(b->flat), val_float(r->divide_by));
    own_calls_end(&w);
    TRY(s);
  }
  return OK;
}

/* A parameter that only others have used gets its average here; the tape knows of no gradient to add. */
static Status give_unused(Reducer *r, Slot *s) {
  OwnCalls w;
  Call *c = own_calls_begin(&w, r->tape->ctx);
  Tensor *view;
  Status failed = view_of(s, &w.scope, &view);
  if (!failed) failed = OP(c, "aten.clone.default", &view, val_tensor(view));
  if (!failed && s->param->spec)
    failed = OP(c, "tess.dtensor_from_local.default", &view, val_tensor(view),
                ((Value){.kind = VAL_SPEC, .spec = s->param->spec}));
  if (!failed) failed = tape_set_gradient(r->tape, s->param, view);
  own_calls_end(&w);
  return failed;
}

/* The tape adds what has come; what was there before is part of it (I2). */
static Status give(Reducer *r) {
  for (int i = 0; i < r->nslots; i++) {
    Slot *s = &r->slot[i];
    if (s->ready) TRY(tape_set_gradient(r->tape, s->param, NULL));
    else if (r->used[i]) TRY(give_unused(r, s));
  }
  return OK;
}

static void reset(Reducer *r) {
  for (int i = 0; i < r->nbuckets; i++) r->bucket[i].missing = 0;
  for (int i = 0; i < r->nslots; i++) {
    r->slot[i].ready = false;
    r->used[i] = 0;
    r->bucket[r->slot[i].bucket].missing++;
  }
  r->next = 0;
  r->any = r->expected = false;
}

static Status finish(void *arg, Status s) {
  Reducer *r = arg;
  bool meant = r->any || (r->expected && r->how.find_unused); /* else it is the backward of something else */
  if (!r->sync || !meant || (s && !r->any)) return s;
  if (!s && r->how.find_unused) s = agree_on_used(r);
  if (!s) s = fill_missing(r);
  if (!s) s = start_full(r);
  s = wait_all(r, s);
  if (!s) s = unpack(r);
  if (!s) s = give(r);
  reset(r);
  return s;
}

Status reducer_shadow(Reducer *r) {
  memset(r->used, 0, (size_t)r->nslots * sizeof *r->used);
  Status s = r->how.find_unused ? agree_on_used(r) : OK;
  for (int i = 0; i < r->nbuckets && !s; i++) {
    Bucket *b = &r->bucket[i];
    memset(tensor_data(b->flat), 0, (size_t)b->n * dtype_size(b->dtype));
    s = start(r, b);
  }
  s = wait_all(r, s);
  reset(r);
  return s;
}
