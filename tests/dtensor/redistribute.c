/* redistribute.c -- redistribute.jsonl: plans, and their results on real ranks. */
#include <math.h>
#include <string.h>

#include "case.h"
#include "dist/dispatch.h"

/* PyTorch's collectives as executed on rank 0; a mesh axis of one rank counts nothing. */
static int told_collectives(Case *c, const int *axis) {
  int n = 0;
  yyjson_val *plan = field(c, "greedy") ? field(c, "greedy") : field(c, "graph"), *step;
  size_t i, m;
  if (yyjson_obj_get(plan, "steps")) yyjson_arr_foreach(yyjson_obj_get(plan, "steps"), i, m, step) {
      yyjson_val *dim = yyjson_arr_get(step, 0);
      const char *from = yyjson_get_str(yyjson_arr_get(step, 1));
      bool several = yyjson_is_arr(dim) || axis[yyjson_get_int(dim)] > 1;
      n += several && from[0] != 'R';
    }
  return n;
}

typedef struct {
  Case *c;
  int axis[MAX_AXES], naxes, ndim, size;
  int64_t shape[MAX_DIMS];
  Dtype dtype;
  Placement src[MAX_AXES], dst[MAX_AXES];
  Verdict verdict[64]; /* per rank */
} Trial;

static double element(yyjson_val *v) {
  if (!yyjson_is_str(v)) return yyjson_get_num(v);
  const char *s = yyjson_get_str(v);
  return s[0] == 'n' ? NAN : s[0] == '-' ? -INFINITY : INFINITY;
}

/* [shape, values] -> a tensor of that dtype. */
static Status read_local(Ctx *ctx, Scope *scope, Dtype dtype, yyjson_val *v, Tensor **out) {
  int64_t size[MAX_DIMS];
  int ndim = read_ints(yyjson_arr_get(v, 0), size, MAX_DIMS);
  Tensor *wide;
  TRY(tensor_new(scope, DT_F64, ndim, size, &wide));
  yyjson_val *e;
  size_t i, n;
  yyjson_arr_foreach(yyjson_arr_get(v, 1), i, n, e)((double *)tensor_data(wide))[i] = element(e);
  Call c = {.ctx = ctx, .scope = scope, .arena = &ctx->arena, .op = op_find("aten.to.dtype")};
  return OP(&c, "aten.to.dtype", out, val_tensor(wide), val_dtype(dtype));
}

static bool same_local(Ctx *ctx, Scope *scope, const Tensor *ours, const Tensor *told) {
  Call c = {.ctx = ctx, .scope = scope, .arena = &ctx->arena, .op = op_find("aten.to.dtype")};
  Tensor *a, *b;
  if (!tensor_same_size(ours, told)) return false;
  Status s = OP(&c, "aten.to.dtype", &a, val_tensor(ours), val_dtype(DT_F64));
  if (!s) s = OP(&c, "aten.contiguous.default", &a, val_tensor(a));
  if (!s) s = OP(&c, "aten.to.dtype", &b, val_tensor(told), val_dtype(DT_F64));
  bool same = !s;
  for (int64_t i = 0; same && i < tensor_numel(a); i++) {
    double x = ((double *)tensor_data(a))[i], y = ((double *)tensor_data(b))[i];
    same = x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= 1e-5 * fabs(y);
  }
  status_free(s);
  return same;
}

static Status check_rank(Trial *t, World *w, Dist *dist, Ctx *ctx, Scope *scope, Verdict *verdict) {
  Case *c = t->c;
  int me = world_rank(w);
  Mesh *mesh;
  TRY(mesh_new(dist, t->axis, t->naxes, NULL, NULL, &mesh));
  const Spec *from, *to, *whole;
  Placement r[MAX_AXES] = {{.kind = PLACE_R}};
  TRY(spec_new(mesh, t->dtype, t->ndim, t->shape, NULL, t->src, &from));
  TRY(spec_with(from, t->dst, &to));
  TRY(spec_with(from, r, &whole));
  Tensor *in, *out, *told;
  TRY(read_local(ctx, scope, t->dtype, yyjson_arr_get(field(c, "in"), (size_t)me), &in));
  TRY(redistribute_local(ctx, from, to, in, "golden", scope, &out));
  bool torch_wrong = field(c, "torch_wrong") || field(c, "error") || !field(c, "out");
  if (to->partial || torch_wrong) { /* a split may be any: what it sums up to counts */
    TRY(redistribute_local(ctx, to, whole, out, "golden", scope, &out));
    yyjson_val *dense = field(c, "dense");
    if (dense) {
      Tensor *flat;
      TRY(tensor_new(scope, DT_F64, t->ndim, t->shape, &flat));
      yyjson_val *e;
      size_t i, n;
      yyjson_arr_foreach(dense, i, n, e)((double *)tensor_data(flat))[i] = element(e);
      *verdict = same_local(ctx, scope, out, flat) ? BETTER : WRONG;
      return OK;
    }
    Tensor *direct;
    TRY(redistribute_local(ctx, from, whole, in, "golden", scope, &direct));
    *verdict = same_local(ctx, scope, out, direct) ? SAME : WRONG;
    return OK;
  }
  TRY(read_local(ctx, scope, t->dtype, yyjson_arr_get(field(c, "out"), (size_t)me), &told));
  *verdict = same_local(ctx, scope, out, told) ? SAME : WRONG;
  return OK;
}

static Status on_rank(World *w, void *arg) {
  Trial *t = arg;
  Ctx ctx;
  Scope scope = {0};
  Dist *dist = NULL;
  ctx_init(&ctx, 1);
  t->verdict[world_rank(w)] = WRONG;
  Status s = dist_new(w, &dist);
  if (!s) s = check_rank(t, w, dist, &ctx, &scope, &t->verdict[world_rank(w)]);
  scope_clear(&scope);
  ctx_free(&ctx);
  dist_free(dist);
  return s;
}

static Verdict check_values(Trial *t) {
  Status s = world_threads(t->size, on_rank, t, NULL);
  if (s) return wrong_status(t->c, s);
  for (int r = 0; r < t->size; r++)
    if (t->verdict[r] == WRONG) return wrong(t->c, "the values of rank %d differ", r);
  return t->verdict[0] == BETTER ? better(t->c, "PyTorch is wrong or refuses") : SAME;
}

static Verdict check_plan(Trial *t) {
  Case *c = t->c;
  Dist *d = NULL;
  Mesh *m;
  const Spec *from, *to;
  Arena arena = {0};
  Route plan, greedy;
  Status s = dist_new(NULL, &d);
  if (!s) s = mesh_new(d, t->axis, t->naxes, NULL, NULL, &m);
  if (!s && field(c, "devices_per_host")) m->devices_per_host = yyjson_get_int(field(c, "devices_per_host"));
  if (!s) s = spec_new(m, t->dtype, t->ndim, t->shape, NULL, t->src, &from);
  if (!s) s = spec_with(from, t->dst, &to);
  if (!s) s = route_find(from, to, &arena, &plan);
  if (!s) s = route_greedy(from, to, &arena, &greedy);
  Verdict v = SAME;
  if (s) v = wrong_status(c, s);
  else if (field(c, "greedy") && !yyjson_obj_get(field(c, "greedy"), "error")) {
    char text[512];
    int told = told_collectives(c, t->axis);
    if (plan.collectives > told)
      v = wrong(c, "%d collectives, PyTorch %d: %s", plan.collectives, told,
                route_print(&plan, m->naxes, text, sizeof text));
    const char *steps = yyjson_get_str(yyjson_obj_get(field(c, "greedy"), "text"));
    route_print(&greedy, m->naxes, text, sizeof text);
    bool turned = false;
    for (int a = 0; a < m->naxes; a++) turned |= t->src[a].turn || t->dst[a].turn;
    if (v == SAME && steps && !strchr(steps, '[') && !strstr(steps, "-->") && !turned && !field(c, "flat") &&
        greedy.n && strcmp(steps, text))
      v = wrong(c, "the greedy plan is %s", text);
    yyjson_val *cost = field(c, "cost");
    if (v == SAME && cost && yyjson_is_num(cost)) {
      double ours = redistribute_cost(from, t->dst), theirs = yyjson_get_num(cost);
      if (fabs(ours - theirs) > 1e-9 * fabs(theirs)) v = wrong(c, "cost %.12g, not %.12g", ours, theirs);
    }
  }
  arena_free(&arena);
  dist_free(d);
  return v;
}

Verdict case_redistribute(Case *c) {
  Trial t = {.c = c, .size = 1};
  int n;
  t.naxes = read_sizes(field(c, "mesh"), t.axis, MAX_AXES);
  t.ndim = read_ints(field(c, "shape"), t.shape, MAX_DIMS);
  t.dtype = read_dtype(field(c, "dtype"));
  for (int a = 0; a < t.naxes; a++) t.size *= t.axis[a];
  if (!read_placements(field(c, "src"), t.ndim, t.src, &n) || !read_placements(field(c, "dst"), t.ndim, t.dst, &n))
    return wrong(c, "a placement does not parse");
  read_turns(field(c, "src_order"), t.src);
  read_turns(field(c, "dst_order"), t.dst);
  Verdict v = check_plan(&t);
  if (v != SAME || strcmp(yyjson_get_str(field(c, "kind")), "exec")) return v;
  return check_values(&t);
}
