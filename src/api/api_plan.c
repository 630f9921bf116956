/* api_plan.c -- public functions that plan: layouts, redistributions and sharding decisions as
 * JSON. */
#include <math.h>
#include <string.h>

#include "api/api.h"
#include "dist/dispatch.h"
#include "dist/dist.h"

static void put_ints(TextBuf *out, const int64_t *v, int n) {
  text_puts(out, "[");
  for (int i = 0; i < n; i++) text_printf(out, "%s%lld", i ? ", " : "", (long long)v[i]);
  text_puts(out, "]");
}

/* JSON has no infinities (what cannot be reached costs as much): they are text. */
static void put_float(TextBuf *out, double f) {
  if (isfinite(f)) text_float(out, f);
  else text_puts(out, isnan(f) ? "\"nan\"" : f > 0 ? "\"inf\"" : "\"-inf\"");
}

static void put_places(TextBuf *out, const Placement *p, int n) {
  char text[512];
  text_puts(out, "[");
  for (int i = 0; i < n; i++) {
    text_puts(out, i ? ", " : "");
    text_json(out, placement_print(&p[i], text, sizeof text));
  }
  text_puts(out, "]");
}

/* The text, or NULL with the error sticking. */
static char *finish(TessCtx *ctx, TextBuf *out, Status s) {
  if (!s && out->failed) s = fail_oom();
  if (!api_stick(ctx, s)) return out->text;
  text_free(out);
  return NULL;
}

static Status read_places(const char *text, int ndim, int naxes, Placement *out) {
  int n;
  TRY(placements_parse(text, ndim, out, &n));
  if (n != naxes) return fail(ERR_USAGE, "%d placements '%s' for a mesh of %d axes", n, text, naxes);
  return placements_check(out, n, ndim, "placements");
}

static Status check_sizes(int ndim, const int64_t *shape, int naxes, const int *mesh) {
  int64_t numel;
  if (ndim < 0 || ndim > MAX_DIMS || !checked_numel(ndim, shape, &numel))
    return fail(ERR_USAGE, "a tensor of %d dimensions with impossible sizes", ndim);
  if (naxes < 1 || naxes > MAX_AXES) return fail(ERR_USAGE, "a mesh has 1 to %d axes, not %d", MAX_AXES, naxes);
  for (int a = 0; a < naxes; a++)
    if (mesh[a] < 1) return fail(ERR_USAGE, "mesh axis %d has %d ranks", a, mesh[a]);
  return OK;
}

static Status print_layout(const Layout *l, const int *coord, Arena *arena, TextBuf *out) {
  int64_t local[MAX_DIMS], offset[MAX_DIMS];
  for (int a = 0; a < l->naxes; a++)
    if (coord[a] < 0 || coord[a] >= l->axis[a])
      return fail(ERR_USAGE, "coordinate %d on an axis of %d ranks", coord[a], l->axis[a]);
  TRY(layout_local(l, coord, local));
  TRY(layout_offset(l, coord, offset));
  text_puts(out, "{\"shape\": ");
  put_ints(out, local, l->ndim);
  text_puts(out, ", \"offset\": ");
  put_ints(out, offset, l->ndim);
  text_puts(out, ", \"runs\": [");
  for (int d = 0; d < l->ndim; d++) {
    Runs runs;
    TRY(layout_runs(l, coord, d, arena, &runs));
    text_puts(out, d ? ", [" : "[");
    for (int i = 0; i < runs.n; i++)
      text_printf(out, "%s[%lld, %lld]", i ? ", " : "", (long long)runs.run[i].begin, (long long)runs.run[i].size);
    text_puts(out, "]");
  }
  text_puts(out, "]}");
  return OK;
}

char *tess_plan_layout(TessCtx *ctx, int ndim, const int64_t *shape, int naxes, const int *mesh,
                       const char *placements, const int *coord) {
  Placement place[MAX_AXES];
  TextBuf out = {0};
  Arena arena = {0};
  if (!API_BEGIN(ctx, LISTED("the shape", shape, ndim), LISTED("the mesh", mesh, naxes),
                 GIVEN("the text of placements", placements), LISTED("the coordinate", coord, naxes)))
    return NULL;
  Status s = check_sizes(ndim, shape, naxes, mesh);
  if (!s) s = read_places(placements, ndim, naxes, place);
  Layout l = {.ndim = ndim, .shape = shape, .naxes = naxes, .axis = mesh, .place = place};
  if (!s) s = print_layout(&l, coord, &arena, &out);
  arena_free(&arena);
  return finish(ctx, &out, s);
}

static void print_plan(const Route *plan, int naxes, TextBuf *out) {
  text_puts(out, "{\"steps\": [");
  for (int i = 0; i < plan->n; i++) {
    const Step *step = &plan->step[i];
    text_printf(out, "%s{\"kind\": \"%s\", \"axes\": [", i ? ", " : "", step_kind_name(step->kind));
    bool first = true;
    for (int a = 0; a < naxes; a++) {
      if (!(step->changed >> a & 1)) continue;
      text_printf(out, "%s%d", first ? "" : ", ", a);
      first = false;
    }
    text_puts(out, "], \"before\": ");
    put_places(out, step->before, naxes);
    text_puts(out, ", \"after\": ");
    put_places(out, step->after, naxes);
    text_printf(out, ", \"bytes\": %lld, \"cost\": ", (long long)step->bytes);
    put_float(out, step->cost);
    text_puts(out, "}");
  }
  text_puts(out, "], \"cost\": ");
  put_float(out, plan->cost);
  text_printf(out, ", \"bytes\": %lld, \"collectives\": %d}", (long long)plan->bytes, plan->collectives);
}

static Status plan_between(Dtype dtype, int ndim, const int64_t *shape, int naxes, const int *mesh,
                           const char *from, const char *to, bool greedy, TextBuf *out) {
  Placement a[MAX_AXES], b[MAX_AXES];
  Dist *d = NULL;
  Mesh *m;
  const Spec *before, *after;
  Arena arena = {0};
  Route plan;
  TRY(check_sizes(ndim, shape, naxes, mesh));
  TRY(read_places(from, ndim, naxes, a));
  TRY(read_places(to, ndim, naxes, b));
  TRY(dist_new(NULL, &d));
  Status s = mesh_new(d, mesh, naxes, NULL, NULL, &m);
  if (!s) s = spec_new(m, dtype, ndim, shape, NULL, a, &before);
  if (!s) s = spec_with(before, b, &after);
  if (!s) s = greedy ? route_greedy(before, after, &arena, &plan) : route_find(before, after, &arena, &plan);
  if (!s) print_plan(&plan, naxes, out);
  arena_free(&arena);
  dist_free(d);
  return s;
}

char *tess_plan_redistribute(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *shape, int naxes,
                             const int *mesh, const char *from, const char *to, int greedy) {
  TextBuf out = {0};
  if (!API_BEGIN(ctx, LISTED("the shape", shape, ndim), LISTED("the mesh", mesh, naxes),
                 GIVEN("the text of placements before", from), GIVEN("the text of placements after", to)) ||
      api_stick(ctx, api_check_type(dtype, ndim, shape)))
    return NULL;
  return finish(ctx, &out, plan_between((Dtype)dtype, ndim, shape, naxes, mesh, from, to, greedy != 0, &out));
}

/* ---- propagate ------------------------------------------------------------------------------------ */

static void put_value(TextBuf *out, const Value *v) {
  switch (v->kind) {
    case VAL_BOOL: text_puts(out, v->b ? "true" : "false"); break;
    case VAL_INT: text_printf(out, "%lld", (long long)v->i); break;
    case VAL_FLOAT: put_float(out, v->f); break;
    case VAL_STR: text_json(out, v->str); break;
    case VAL_DTYPE: text_json(out, dtype_name(v->dtype)); break;
    case VAL_INTS: put_ints(out, v->ints, v->n); break;
    default: text_puts(out, "null"); break;
  }
}

static void print_decision(const Decision *d, TextBuf *out) {
  text_puts(out, "{\"inputs\": [");
  for (int i = 0; i < d->nin; i++) {
    text_puts(out, i ? ", " : "");
    put_places(out, d->want[i]->place, d->mesh->naxes);
  }
  text_puts(out, "], \"outputs\": [");
  for (int i = 0; i < d->nout; i++) {
    text_printf(out, "%s{\"shape\": ", i ? ", " : "");
    put_ints(out, d->out[i]->shape, d->out[i]->ndim);
    text_puts(out, ", \"placements\": ");
    put_places(out, d->out[i]->place, d->mesh->naxes);
    text_printf(out, ", \"dtype\": \"%s\"}", dtype_name(d->out[i]->dtype));
  }
  text_puts(out, "], \"cost\": ");
  put_float(out, d->cost);
  text_puts(out, ", \"op\": ");
  text_json(out, d->op->schema.name);
  text_puts(out, ", \"args\": [");
  for (int i = 0; i < d->op->schema.nparams; i++) {
    text_puts(out, i ? ", " : "");
    put_value(out, &d->arg[i]);
  }
  text_puts(out, "], \"why\": ");
  if (d->why) text_json(out, d->why);
  else text_puts(out, "null");
  text_puts(out, "}");
}

/* An op that is taken apart, and what its parts want of its tensors. */
typedef struct {
  Tensor **in;
  const Spec **want; /* as the first part that takes it; NULL: none does */
  int n;
} Parts;

static void note_part(void *arg, const Call *c, const Decision *d) {
  Parts *p = arg;
  for (TensorWalk w = call_inputs(c); tensor_next(&w) && w.flat < d->nin;)
    for (int k = 0; k < p->n; k++)
      if (p->in[k] == w.tensor && !p->want[k]) p->want[k] = d->want[w.flat];
}

static void print_parts(const Parts *p, const Call *c, double cost, TextBuf *out) {
  text_puts(out, "{\"inputs\": [");
  for (int i = 0; i < p->n; i++) {
    text_puts(out, i ? ", " : "");
    if (p->want[i]) put_places(out, p->want[i]->place, p->want[i]->mesh->naxes);
    else text_puts(out, "null");
  }
  text_puts(out, "], \"outputs\": [");
  for (int i = 0, n = 0; i < c->nout; i++) {
    const Tensor *t = out_tensor(c, i);
    if (!t || !t->spec) continue;
    text_printf(out, "%s{\"shape\": ", n++ ? ", " : "");
    put_ints(out, t->size, t->ndim);
    text_puts(out, ", \"placements\": ");
    put_places(out, t->spec->place, t->spec->mesh->naxes);
    text_printf(out, ", \"dtype\": \"%s\"}", dtype_name(t->dtype));
  }
  text_puts(out, "], \"cost\": ");
  put_float(out, cost);
  text_puts(out, ", \"op\": null, \"args\": null, \"why\": \"the op is taken apart\"}");
}

static Status propagate_parts(Call *c, Arena *arena, TextBuf *out) {
  Dist *d = c->ctx->dist;
  Parts p = {.n = count_tensors(c->arg, c->op->schema.nparams)};
  TRY_NEW(p.in, arena_new_n(arena, Tensor *, p.n ? p.n : 1));
  TRY_NEW(p.want, arena_new_n(arena, const Spec *, p.n ? p.n : 1));
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) p.in[w.flat] = w.tensor;
  d->decided_cost = 0;
  d->decided = note_part;
  d->decided_arg = &p;
  Status s = op_dispatch(c);
  d->decided = NULL;
  if (!s) print_parts(&p, c, d->decided_cost, out);
  return s;
}

static Status propagate_call(TessCtx *ctx, const char *name, const TessArg *args, int nargs, Arena *arena,
                             TextBuf *out) {
  Value bound[MAX_PARAMS];
  Call c;
  TRY(api_bind(ctx, name, args, nargs, arena, bound, &c));
  if (dispatch_takes_apart(c.op)) return propagate_parts(&c, arena, out);
  Decision d;
  TRY(propagate(&c, NULL, arena, &d));
  if (dispatch_prefers_parts(c.op, &d)) return propagate_parts(&c, arena, out);
  print_decision(&d, out);
  return OK;
}

char *tess_propagate(TessCtx *ctx, const char *op, const TessArg *args, int nargs) {
  TextBuf out = {0};
  Arena arena = {0};
  if (!API_BEGIN(ctx, GIVEN("the op", op), LISTED("the arguments", args, nargs))) return NULL;
  Status s = propagate_call(ctx, op, args, nargs, &arena, &out);
  arena_free(&arena);
  return finish(ctx, &out, s);
}
