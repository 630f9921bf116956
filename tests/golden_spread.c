/* golden_spread.c -- see golden_spread.h. */
#include "golden_spread.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "dist/dtensor.h"
#include "golden_vjp.h"
#include "kernels/copy.h"

typedef struct {
  const char *family;
  yyjson_val *json;
  const SafeTensors *data;
  int axis[3], naxes;
  uint64_t seed;
  bool grad;
  atomic_bool refused, partial, steps, exact; /* every rank says the same */
  atomic_int width;                           /* bytes of an element of the widest result */
  char placed[1024];
} Trial;

/* Its elements added up over the ranks stay finite: else their average is not them. */
static Status can_be_added(Ctx *ctx, Scope *scope, const Tensor *t, int ranks, bool *out) {
  Tensor *wide;
  *out = true;
  if (dtype_kind(t->dtype) != KIND_FLOAT) return OK;
  TRY(tensor_new(scope, DT_F64, t->ndim, t->size, &wide));
  kernel_copy(&ctx->kern, tensor_view(wide), tensor_view(t));
  double most = t->dtype == DT_F64 ? DBL_MAX : t->dtype == DT_F16 ? 65504 : FLT_MAX;
  for (int64_t i = 0; i < tensor_numel(t); i++) {
    double x = fabs(((const double *)tensor_data(wide))[i]);
    *out &= !(isfinite(x) && x > most / ranks);
  }
  return OK;
}

/* What partial values a tensor may have: one kind for all axes, of those that its dtype can be brought to. */
static Placement random_debt(const Tensor *t, uint64_t *state) {
  static const ReduceOp ops[] = {REDUCE_SUM, REDUCE_SUM, REDUCE_SUM,    REDUCE_AVG,
                                 REDUCE_MAX, REDUCE_MIN, REDUCE_PRODUCT};
  ReduceOp op = ops[random_bits(state) % (sizeof ops / sizeof *ops)];
  DtypeKind kind = dtype_kind(t->dtype);
  if (kind == KIND_BOOL || (kind == KIND_INT && op == REDUCE_AVG) || (kind == KIND_COMPLEX && op != REDUCE_AVG))
    op = REDUCE_SUM;
  return place_p(op);
}

/* Two segments of any sizes, or cuts on multiples of 2: what fused projections and heads need. */
static Placement random_refinement(const Tensor *t, int dim, uint64_t *state) {
  Placement p = place_strided(dim, 2);
  int64_t n = t->size[dim];
  uint64_t r = random_bits(state) % 4;
  if (r == 0 && n > 1) {
    int64_t first = 1 + (int64_t)(random_bits(state) % (uint64_t)(n - 1));
    status_free(place_segments(dim, (int64_t[]){first, n - first}, 2, 1, &p));
  }
  if (r == 1) {
    p = place_s(dim);
    p.unit = 2;
  }
  return p;
}

static Placement random_placement(const Tensor *t, Placement debt, uint64_t *state) {
  uint64_t r = random_bits(state) % 8;
  if (r < 2 || (t->ndim == 0 && r < 6)) return place_r();
  if (r == 2 && dtype_kind(t->dtype) != KIND_BOOL) return debt;
  if (!t->ndim) return place_r();
  int dim = (int)(random_bits(state) % (uint64_t)t->ndim);
  return r == 3 ? random_refinement(t, dim, state) : place_s(dim);
}

/* Segments are those of the whole dimension: no axis before may have cut it otherwise. */
static bool is_possible(const Tensor *t, const Mesh *m, const Placement *p) {
  Layout l = {.ndim = t->ndim, .shape = t->size, .naxes = m->naxes, .axis = m->axis, .place = p};
  Status s = layout_check(&l);
  status_free(s);
  return !s;
}

static void note(Trial *t, bool speak, const char *text) {
  size_t at = strlen(t->placed);
  if (speak && at < sizeof t->placed) snprintf(t->placed + at, sizeof t->placed - at, "%s%s", at ? ", " : "", text);
}

static Status spread(Trial *t, Ctx *ctx, Scope *scope, Mesh *m, Tensor **tensor, uint64_t *state, bool speak) {
  Placement p[MAX_AXES], debt;
  char text[256];
  if (!*tensor) return OK;
  bool small;
  debt = random_debt(*tensor, state);
  if (debt.op == REDUCE_AVG && (t->exact || dtype_size((*tensor)->dtype) < (size_t)t->width)) debt.op = REDUCE_SUM;
  TRY(can_be_added(ctx, scope, *tensor, m->size, &small));
  if (debt.op == REDUCE_AVG && !small) debt = place_p(REDUCE_SUM);
  for (int a = 0; a < m->naxes; a++) {
    p[a] = random_placement(*tensor, debt, state);
    if (t->steps && is_p(&p[a])) p[a] = place_r();
    if (is_p(&p[a])) t->partial = true;
  }
  if (!is_possible(*tensor, m, p))
    for (int a = 0; a < m->naxes; a++) p[a].nsegments = 0;
  note(t, speak, placements_print(p, m->naxes, text, sizeof text));
  return dtensor_distribute(ctx, scope, *tensor, m, p, -1, tensor);
}

static Status spread_args(Trial *t, GoldenCase *c, Ctx *ctx, Mesh *m, bool speak) {
  uint64_t state = t->seed;
  t->steps = !strncmp(c->op, "aten._fused_", 12) &&
             op_find(c->op)->schema.mutates; /* a parameter's states lie where it lies */
  const Schema *schema = &op_find(c->op)->schema;
  for (int i = 0; i < c->nargs; i++) {
    Value *v = &c->args[i].value;
    int param = c->args[i].name ? schema_find(schema, c->args[i].name) : i;
    if (param < 0 || param >= schema->nparams || schema->params[param].type != TYPE_TENSOR)
      continue; /* a number given as a tensor */
    if (v->kind == VAL_TENSOR) TRY(spread(t, ctx, &c->scope, m, &v->tensor, &state, speak));
    if (v->kind != VAL_TENSORS) continue;
    Tensor **list;
    TRY_NEW(list, arena_new_n(&c->arena, Tensor *, v->n ? v->n : 1));
    if (t->steps) state = t->seed;
    for (int j = 0; j < v->n; j++) {
      list[j] = v->tensors[j];
      TRY(spread(t, ctx, &c->scope, m, &list[j], &state, speak));
    }
    v->tensors = list;
  }
  return OK;
}

static Status call_case(GoldenCase *c, Ctx *ctx, Call *call, Value *bound) {
  *call = (Call){.ctx = ctx, .op = op_find(c->op), .arg = bound, .scope = &c->scope, .arena = &c->arena};
  TRY(op_bind(&c->arena, call->op, c->args, c->nargs, bound));
  return op_dispatch(call);
}

/* Owed parts that meet 0 or infinity are nan on ranks that hold nothing (-0 * inf), and averages of
 * the largest numbers are infinite: so where one rank gives no finite number, or one that cannot
 * be multiplied by the number of ranks, the sum is not compared; everything else is. */
static Status forgive_infinities(GoldenCase *c, Ctx *ctx, Tensor **got, Tensor *want) {
  Call call = {.ctx = ctx, .scope = &c->scope, .arena = &c->arena, .op = op_find("aten.isfinite.default")};
  Tensor *finite, *more;
  if (dtype_kind(want->dtype) != KIND_FLOAT) return OK;
  TRY(OP(&call, "aten.mul.Scalar", &more, val_tensor(want), val_float(8)));
  TRY(OP(&call, "aten.isfinite.default", &finite, val_tensor(more)));
  return OP(&call, "aten.where.self", got, val_tensor(finite), val_tensor(*got), val_tensor(want));
}

/* A gradient is no more exact than the halves that it was computed with. */
static Dtype coarsest(const GoldenCase *c, Dtype d) {
  for (int i = 0; i < c->tensors; i++)
    if (c->tensor[i]->dtype == DT_BF16 || (c->tensor[i]->dtype == DT_F16 && d != DT_BF16)) d = c->tensor[i]->dtype;
  return d;
}

static Status compare_one(GoldenCase *c, Ctx *ctx, Tensor *got, Tensor *want, bool partial, bool gradient,
                          const char *what) {
  if (!got || !want) return got || want ? fail(ERR_DIFF, "%s is there on one side only", what) : OK;
  if (got->spec) TRY(dtensor_full(ctx, &c->scope, got, &got));
  if (got->dtype != want->dtype || !tensor_same_size(got, want)) {
    char a[128], b[128];
    return fail(ERR_DIFF, "%s is %s, on one rank %s", what, tensor_describe(got, a, sizeof a),
                tensor_describe(want, b, sizeof b));
  }
  if (partial) TRY(forgive_infinities(c, ctx, &got, want));
  Tolerance tol = golden_tolerance(c, gradient ? coarsest(c, got->dtype) : got->dtype);
  tol.rtol *= 4; /* sums in another order */
  tol.atol *= 4;
  return golden_compare_values(got, want, tol, what);
}

/* Which row of a bag is the largest is not known where the table is cut by rows (docs/differences.md). */
static bool is_not_told(const Call *c, int result) {
  return result == 3 && strstr(c->op->schema.name, "embedding_bag") && c->out[result].kind == VAL_NONE;
}

static Status compare_calls(GoldenCase *c, Ctx *ctx, const Call *got, const Call *want, bool partial) {
  char what[64];
  if (got->nout != want->nout) return fail(ERR_DIFF, "%d results, on one rank %d", got->nout, want->nout);
  for (int i = 0; i < got->nout; i++) {
    snprintf(what, sizeof what, "result %d", i);
    if (is_not_told(got, i)) continue;
    TRY(compare_one(c, ctx, out_tensor(got, i), out_tensor(want, i), partial, false, what));
  }
  for (int i = 0; i < got->op->schema.nparams; i++) {
    if (!got->op->schema.params[i].mutated) continue;
    snprintf(what, sizeof what, "argument '%s' afterwards", got->op->schema.params[i].name);
    int n = got->arg[i].kind == VAL_TENSORS ? got->arg[i].n : 1;
    for (int j = 0; j < n; j++)
      TRY(compare_one(c, ctx, got->arg[i].kind == VAL_TENSORS ? got->arg[i].tensors[j] : in_tensor(got, i),
                      want->arg[i].kind == VAL_TENSORS ? want->arg[i].tensors[j] : in_tensor(want, i), partial,
                      false, what));
  }
  return OK;
}

static Status run_both(Trial *t, World *w, GoldenCase *one, GoldenCase *many, Ctx *ctx, Dist *d) {
  Call plain, spread_call;
  Value bound[MAX_PARAMS], bound_too[MAX_PARAMS];
  TRY(golden_case_read(one));
  TRY(golden_case_read(many));
  ctx->seed = t->seed;
  ctx->offset = 7;
  Status s = call_case(one, ctx, &plain, bound);
  if (s) { /* an error case: nothing to compare */
    t->refused = true;
    status_free(s);
    return OK;
  }
  for (int i = 0; i < plain.nout;
       i++) { /* averages are off by a rounding: comparisons and wider results would show it */
    const Tensor *out = out_tensor(&plain, i);
    if (!out) continue;
    if (dtype_is_integral(out->dtype)) t->exact = true;
    else if ((int)dtype_size(out->dtype) > t->width) t->width = (int)dtype_size(out->dtype);
  }
  Mesh *m;
  TRY(mesh_new(d, t->axis, t->naxes, NULL, NULL, &m));
  TRY(spread_args(t, many, ctx, m, world_rank(w) == 0));
  ctx_attach_dist(ctx, d);
  ctx->offset = 7; /* the same random numbers again */
  s = call_case(many, ctx, &spread_call, bound_too);
  if (s && many->nargs &&
      strstr(status_message(s), "in place on a tensor placed")) { /* also by an op that it is written with */
    t->refused = true;
    status_free(s);
    return OK;
  }
  TRY(s);
  return compare_calls(many, ctx, &spread_call, &plain, t->partial);
}

/* ---- gradients ------------------------------------------------------------------------------------- */

typedef struct {
  Trial *trial;
  GoldenCase *c;
  Ctx *ctx;
  Mesh *mesh;
  uint64_t state;
  bool speak;
} Places;

/* Single numbers stay as they are: some stand where the schema has a number. */
static Status place_one(void *arg, Tensor **t) {
  Places *p = arg;
  return (*t)->ndim ? spread(p->trial, p->ctx, &p->c->scope, p->mesh, t, &p->state, p->speak) : OK;
}

static Status gradients_of_both(Trial *t, World *w, GoldenCase *one, GoldenCase *many, Ctx *ctx, Dist *d) {
  Tensor *want[GOLDEN_TENSORS] = {0}, *got[GOLDEN_TENSORS] = {0};
  TRY(golden_case_read(one));
  TRY(golden_case_read(many));
  TRY(golden_gradients(one, ctx, NULL, want));
  Places places = {t, many, ctx, NULL, t->seed, world_rank(w) == 0};
  t->width = 4;
  TRY(mesh_new(d, t->axis, t->naxes, NULL, NULL, &places.mesh));
  ctx_attach_dist(ctx, d);
  Status s = golden_gradients(many, ctx, &(GoldenPlace){place_one, &places}, got);
  if (s && strstr(status_message(s), "in place on a tensor placed")) {
    t->refused = true;
    status_free(s);
    return OK;
  }
  TRY(s);
  for (int i = 0; i < one->tensors; i++) {
    char what[64];
    snprintf(what, sizeof what, "gradient of tensor argument %d", i);
    TRY(compare_one(many, ctx, got[i], want[i], t->partial, true, what));
  }
  return OK;
}

static Status on_rank(World *w, void *arg) {
  Trial *t = arg;
  GoldenCase one = {.family = t->family, .json = t->json, .data = t->data}, many = one;
  Ctx ctx;
  Dist *d = NULL;
  ctx_init(&ctx, 1);
  Status s = dist_new(w, &d);
  if (!s) s = (t->grad ? gradients_of_both : run_both)(t, w, &one, &many, &ctx, d);
  golden_case_free(&one);
  golden_case_free(&many);
  ctx_free(&ctx);
  dist_free(d);
  return s;
}

/* Up to three axes whose product is `ranks`, every way of cutting alike: 8 is 8, 2x4, 4x2 or 2x2x2. */
static void random_mesh(Trial *t, int ranks, uint64_t state) {
  int ways[64][3], n = 0;
  for (int a = 1; a <= ranks; a++)
    for (int b = 1; ranks % a == 0 && b <= ranks / a; b++) {
      if (ranks / a % b) continue;
      int way[3] = {a, b, ranks / a / b};
      bool gaps = (way[0] == 1 && ranks > 1) || (way[1] == 1 && way[2] > 1); /* ones only at the end: fewer axes */
      if (!gaps && n < 64) memcpy(ways[n++], way, sizeof way);
    }
  memcpy(t->axis, ways[random_bits(&state) % (uint64_t)n], sizeof t->axis);
  t->naxes = t->axis[1] == 1 ? 1 : t->axis[2] == 1 ? 2 : 3;
}

static Trial make_trial(const char *family, yyjson_val *json, const SafeTensors *data, int ranks, uint64_t seed) {
  Trial t = {.family = family, .json = json, .data = data, .seed = seed};
  random_mesh(&t, ranks, seed ^ 0x6d657368);
  return t;
}

static Status tell_where(const Trial *t, Status s) {
  char mesh[64];
  int at = snprintf(mesh, sizeof mesh, "%d", t->axis[0]);
  for (int a = 1; a < t->naxes; a++) at += snprintf(mesh + at, sizeof mesh - (size_t)at, "x%d", t->axis[a]);
  return status_at(s, "mesh %s, placed %s", mesh, t->placed);
}

Status golden_spread(const char *family, yyjson_val *json, const SafeTensors *data, int ranks, uint64_t seed,
                     bool grad, bool *refused) {
  Trial t = make_trial(family, json, data, ranks, seed);
  t.grad = grad;
  Status s = world_threads(ranks, on_rank, &t, NULL);
  *refused = t.refused;
  return tell_where(&t, s);
}

Status golden_spread_on(World *w, const char *family, yyjson_val *json, const SafeTensors *data, uint64_t seed,
                        bool *refused) {
  Trial t = make_trial(family, json, data, world_size(w), seed);
  Status s = on_rank(w, &t);
  *refused = t.refused;
  return tell_where(&t, s);
}
