/* strategies.c -- strategies.jsonl: which placements an op wants, and what comes out. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "case.h"
#include "dist/dispatch.h"
#include "dist/dist.h"

enum { MOST_TENSORS = 64 };

typedef struct {
  Case *c;
  Ctx ctx;
  Dist *dist;
  Mesh *mesh;
  Arena arena;
  Scope scope;
  Tensor *in[MOST_TENSORS];
  int nin;
} Trial;

static Status read_tensor(Trial *t, yyjson_val *v, Tensor **out) {
  int64_t shape[MAX_DIMS], stride[MAX_DIMS];
  int ndim = read_ints(yyjson_obj_get(v, "t"), shape, MAX_DIMS), n;
  Placement place[MAX_AXES];
  if (!read_placements(yyjson_obj_get(v, "p"), ndim, place, &n))
    return fail(ERR_FAIL, "a placement does not parse");
  yyjson_val *strides = yyjson_obj_get(v, "stride");
  if (strides) read_ints(strides, stride, MAX_DIMS);
  const Spec *spec;
  TRY(spec_new(t->mesh, read_dtype(yyjson_obj_get(v, "dtype")), ndim, shape, strides ? stride : NULL, place,
               &spec));
  TRY(dtensor_wrap(&t->scope, spec, NULL, out));
  if (t->nin == MOST_TENSORS) return fail(ERR_FAIL, "too many tensors");
  t->in[t->nin++] = *out;
  return OK;
}

static bool is_tensor(yyjson_val *v) { return yyjson_is_obj(v) && yyjson_obj_get(v, "t"); }

static Status read_value(Trial *t, yyjson_val *v, Value *out);

static Status read_list(Trial *t, yyjson_val *v, Value *out) {
  int n = (int)yyjson_arr_size(v);
  bool tensors = false, ints = true, floats = true;
  yyjson_val *e;
  size_t i, m;
  yyjson_arr_foreach(v, i, m, e) {
    tensors |= is_tensor(e);
    ints &= yyjson_is_int(e);
    floats &= yyjson_is_num(e);
  }
  if (tensors) {
    Tensor **list;
    TRY_NEW(list, arena_new_n(&t->arena, Tensor *, n));
    yyjson_arr_foreach(v, i, m, e) if (is_tensor(e)) TRY(read_tensor(t, e, &list[i]));
    *out = val_tensors(list, n);
  } else if (ints) {
    int64_t *list;
    TRY_NEW(list, arena_new_n(&t->arena, int64_t, n + 1));
    read_ints(v, list, n);
    *out = val_ints(list, n);
  } else if (floats) {
    double *list;
    TRY_NEW(list, arena_new_n(&t->arena, double, n));
    yyjson_arr_foreach(v, i, m, e) list[i] = yyjson_get_num(e);
    *out = val_floats(list, n);
  } else {
    bool bools = true;
    yyjson_arr_foreach(v, i, m, e) bools &= yyjson_is_bool(e);
    if (bools) {
      bool *list;
      TRY_NEW(list, arena_new_n(&t->arena, bool, n + 1));
      yyjson_arr_foreach(v, i, m, e) list[i] = yyjson_get_bool(e);
      *out = val_bools(list, n);
      return OK;
    }
    Value *list;
    TRY_NEW(list, arena_new_n(&t->arena, Value, n));
    yyjson_arr_foreach(v, i, m, e) TRY(read_value(t, e, &list[i]));
    *out = (Value){.kind = VAL_LIST, .n = n, .list = list};
  }
  return OK;
}

static Status read_value(Trial *t, yyjson_val *v, Value *out) {
  *out = val_none();
  if (!v || yyjson_is_null(v)) return OK;
  if (is_tensor(v)) {
    Tensor *tensor;
    TRY(read_tensor(t, v, &tensor));
    *out = val_tensor(tensor);
  } else if (yyjson_is_obj(v)) {
    *out = val_dtype(read_dtype(yyjson_obj_get(v, "dtype")));
  } else if (yyjson_is_bool(v)) *out = val_bool(yyjson_get_bool(v));
  else if (yyjson_is_int(v)) *out = val_int(yyjson_get_sint(v));
  else if (yyjson_is_num(v)) *out = val_float(yyjson_get_num(v));
  else if (yyjson_is_str(v)) {
    const char *text = yyjson_get_str(v);
    *out = !strcmp(text, "inf")    ? val_float(INFINITY)
           : !strcmp(text, "-inf") ? val_float(-INFINITY)
                                   : val_str(text);
  } else return read_list(t, v, out);
  return OK;
}

static Status bind_call(Trial *t, const Op *op, Value *bound) {
  NamedValue args[MAX_PARAMS * 2];
  int n = 0;
  yyjson_val *e, *key;
  size_t i, m;
  yyjson_arr_foreach(field(t->c, "args"), i, m, e) {
    args[n] = (NamedValue){NULL, val_none()};
    TRY(read_value(t, e, &args[n++].value));
  }
  if (field(t->c, "kwargs")) yyjson_obj_foreach(field(t->c, "kwargs"), i, m, key, e) {
      args[n].name = yyjson_get_str(key);
      TRY(read_value(t, e, &args[n++].value));
    }
  return op_bind(&t->arena, op, args, n, bound);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool same_places(yyjson_val *told, const Spec *ours) {
  Placement p[MAX_AXES];
  int n;
  return read_placements(told, ours->ndim, p, &n) && placements_equal(p, ours->place, n);
}

static const char *describe(const Decision *d, char *buf, size_t cap) {
  size_t at = 0;
  char text[256];
  for (int i = 0; i < d->nin + d->nout && at < cap; i++) {
    const Spec *s = i < d->nin ? d->want[i] : d->out[i - d->nin];
    at += (size_t)snprintf(buf + at, cap - at, "%s%s",
                           i == d->nin ? " -> "
                           : i         ? ", "
                                       : "",
                           placements_print(s->place, s->mesh->naxes, text, sizeof text));
  }
  return buf;
}

/* The outputs as told, flat; NULL entries are left out. */
static int flat_outputs(yyjson_val *out, yyjson_val **list, int cap) {
  int n = 0;
  if (yyjson_is_obj(out)) list[n++] = out;
  yyjson_val *e;
  size_t i, m;
  if (yyjson_is_arr(out)) yyjson_arr_foreach(out, i, m, e) {
      if (yyjson_is_arr(e)) n += flat_outputs(e, list + n, cap - n);
      else if (!yyjson_is_null(e) && n < cap) list[n++] = e;
    }
  return n;
}

/* A _MaskPartial among the inputs is an index of which a rank uses a part. */
static bool same_input(yyjson_val *told, const Spec *ours) {
  Placement p[MAX_AXES];
  int n;
  if (!read_placements(told, ours->ndim, p, &n)) return false;
  for (int a = 0; a < n; a++)
    if (!strncmp(yyjson_get_str(yyjson_arr_get(told, (size_t)a)), "MaskP", 5)) p[a] = place_r();
  return placements_equal(p, ours->place, n);
}

static bool same_wants(Trial *t, const Decision *d) {
  yyjson_val *in = field(t->c, "in");
  if (!in) return !d->moves;
  for (int i = 0; i < d->nin; i++)
    if (!same_input(yyjson_arr_get(in, (size_t)i), d->want[i])) return false;
  return true;
}

/* A number or numbers of a rewritten call; anything else is not looked at. */
static bool same_number(yyjson_val *told, const Value *ours) {
  int64_t v[64];
  int n = yyjson_is_arr(told) ? read_ints(told, v, 64) : 0;
  if (yyjson_is_int(told)) return ours->kind == VAL_INT && ours->i == yyjson_get_sint(told);
  if (!yyjson_is_arr(told)) return true;
  return ours->kind == VAL_INTS && ours->n == n && (!n || !memcmp(ours->ints, v, (size_t)n * sizeof *v));
}

/* What rank 0 runs, where PyTorch changes it. */
static bool same_call(Trial *t, const Decision *d) {
  yyjson_val *told = field(t->c, "rewritten"), *e;
  size_t i, m;
  if (!told) return true;
  if (strcmp(d->op->schema.name + strlen("aten."), yyjson_get_str(yyjson_obj_get(told, "op")))) return false;
  if (yyjson_obj_get(told, "args"))
    yyjson_arr_foreach(yyjson_obj_get(told, "args"), i, m, e) if (!same_number(e, &d->arg[i])) return false;
  return true;
}

static const char *describe_call(const Decision *d, char *buf, size_t cap) {
  size_t at = (size_t)snprintf(buf, cap, "%s(", d->op->schema.name);
  for (int i = 0; i < d->op->schema.nparams && at < cap; i++) {
    char text[128];
    const Value *v = &d->arg[i];
    if (v->kind == VAL_INT) at += (size_t)snprintf(buf + at, cap - at, "%lld, ", (long long)v->i);
    if (v->kind == VAL_INTS)
      at += (size_t)snprintf(buf + at, cap - at, "%s, ", shape_describe(v->n, v->ints, text, sizeof text));
  }
  return buf;
}

static bool same_outputs(Trial *t, const Decision *d) {
  yyjson_val *list[MOST_TENSORS];
  int n = flat_outputs(field(t->c, "out"), list, MOST_TENSORS);
  if (n != d->nout) return n == 0;
  for (int i = 0; i < n; i++)
    if (!same_places(yyjson_obj_get(list[i], "p"), d->out[i])) return false;
  return true;
}

/* ---- decisions of PyTorch that no one should follow --------------------------------------------
 * They give wrong values, though the golden run did not meet any (docs/differences.md). */

/* PyTorch takes a partial input as it is. */
static bool keeps_debt(const Trial *t) {
  yyjson_val *want = field(t->c, "in"), *p;
  size_t i, m;
  for (int k = 0; k < t->nin; k++) {
    if (!want && t->in[k]->spec->partial) return true;
    yyjson_arr_foreach(yyjson_arr_get(want, (size_t)k), i, m, p) if (yyjson_get_str(p)[0] == 'P') return true;
  }
  return false;
}

/* Is the tensor of this place in the list of inputs written to? */
static bool is_written(const Trial *t, const Schema *schema, int place) {
  yyjson_val *arg;
  size_t i, m;
  int n = 0;
  yyjson_arr_foreach(field(t->c, "args"), i, m, arg) {
    yyjson_val *e;
    size_t j, k;
    int before = n;
    if (is_tensor(arg)) n++;
    if (yyjson_is_arr(arg)) yyjson_arr_foreach(arg, j, k, e) n += is_tensor(e);
    if (place >= before && place < n) return (int)i < schema->nparams && schema->params[i].mutated;
  }
  return false;
}

/* PyTorch moves a tensor that the op writes to. */
static bool moves_state(const Trial *t) {
  char name[128];
  snprintf(name, sizeof name, "aten.%s", yyjson_get_str(field(t->c, "op")));
  const Op *op = op_find(name);
  yyjson_val *want = field(t->c, "in");
  for (int i = 0; op && want && i < t->nin; i++)
    if (is_written(t, &op->schema, i) && !same_places(yyjson_arr_get(want, (size_t)i), t->in[i]->spec)) return true;
  return false;
}

/* PyTorch's result 0 is the average of what ranks have: of means over numbers of targets that
 * need not be alike. */
static bool averages_means(const Trial *t) {
  enum { REDUCTION = 3, MEAN = 1 };
  yyjson_val *p, *places = yyjson_obj_get(yyjson_arr_get(field(t->c, "out"), 0), "p");
  size_t i, m;
  if (yyjson_get_int(yyjson_arr_get(field(t->c, "args"), REDUCTION)) != MEAN) return false;
  yyjson_arr_foreach(places, i, m, p) if (!strcmp(yyjson_get_str(p), "P(avg)")) return true;
  return false;
}

static const struct {
  const char *op;
  bool (*when)(const Trial *t);
  const char *why;
} unsound[] = {
    {"any.", keeps_debt, "any(a + b) is not any(a) or any(b)"},
    {"linalg_vector_norm.", keeps_debt, "the extreme of magnitudes is not that of values"},
    {"_fused_adam", moves_state, "state that is moved loses its update"},
    {"nll_loss_forward.", averages_means, "a mean of means does not know how many targets count"},
};

static const char *why_unsound(const Trial *t) {
  const char *op = yyjson_get_str(field(t->c, "op"));
  for (size_t i = 0; op && i < sizeof unsound / sizeof *unsound; i++)
    if (!strncmp(op, unsound[i].op, strlen(unsound[i].op)) && unsound[i].when(t)) return unsound[i].why;
  return NULL;
}

/* What the golden run said, if not "ok"; NULL: it was, or there was none. */
static const char *run_failure(const Trial *t) {
  yyjson_val *ran = field(t->c, "run");
  const char *text = yyjson_get_str(ran);
  return !ran || (text && !strcmp(text, "ok")) ? why_unsound(t) : text ? text : "an error";
}

static Verdict compare(Trial *t, const Decision *d) {
  char text[1500];
  if (field(t->c, "error")) return better(t->c, "PyTorch refuses; ours: %s", describe(d, text, sizeof text));
  const char *run = run_failure(t);
  bool failed = run != NULL;
  if (same_wants(t, d) && same_outputs(t, d)) {
    if (same_call(t, d)) return SAME;
    describe_call(d, text, sizeof text);
    return failed ? better(t->c, "PyTorch's is '%s'; rank 0 runs %s", run, text)
                  : wrong(t->c, "rank 0 runs %s", text);
  }
  yyjson_val *told = field(t->c, "cost");
  double cost = told && yyjson_is_num(told) ? yyjson_get_num(told) : told ? INFINITY : 0;
  if (d->cost < cost - 1e-9)
    return better(t->c, "costs %g us, PyTorch's %g: %s", d->cost, cost, describe(d, text, sizeof text));
  if (failed) return better(t->c, "PyTorch's is '%s'; ours: %s", run, describe(d, text, sizeof text));
  return wrong(t->c, "ours (%g us, PyTorch's %g): %s", d->cost, cost, describe(d, text, sizeof text));
}

/* ---- ops that are taken apart ------------------------------------------------------------------ */

/* What came out, placed as told?  Of in-place ops nothing is told. */
static bool same_results(Trial *t, const Call *call) {
  yyjson_val *list[MOST_TENSORS];
  int n = flat_outputs(field(t->c, "out"), list, MOST_TENSORS), k = 0;
  if (!n) return true;
  for (int i = 0; i < call->nout; i++) {
    const Tensor *out = out_tensor(call, i);
    if (!out || !out->spec) continue;
    if (k == n || !same_places(yyjson_obj_get(list[k++], "p"), out->spec)) return false;
  }
  return true;
}

static const char *describe_results(const Call *call, char *buf, size_t cap) {
  size_t at = 0;
  char text[256];
  buf[0] = 0;
  for (int i = 0; i < call->nout && at < cap; i++) {
    const Tensor *out = out_tensor(call, i);
    if (out && out->spec)
      at += (size_t)snprintf(buf + at, cap - at, "%s%s", i ? ", " : "",
                             placements_print(out->spec->place, out->spec->mesh->naxes, text, sizeof text));
  }
  return buf;
}

/* Elements only change places, yet some rank would have to have more or fewer of them:
 * PyTorch's placements cannot be right, whether a run showed it or not. */
static bool contradicts_itself(Trial *t, const Tensor *in, yyjson_val *told) {
  int64_t size[MAX_DIMS], local[MAX_DIMS];
  int coord[MAX_AXES], naxes, ndim = read_ints(yyjson_obj_get(told, "t"), size, MAX_DIMS);
  Placement p[MAX_AXES];
  if (field(t->c, "in") || !read_placements(yyjson_obj_get(told, "p"), ndim, p, &naxes)) return false;
  Layout from = spec_layout(in->spec),
         to = {.ndim = ndim, .shape = size, .naxes = naxes, .axis = t->mesh->axis, .place = p};
  for (int rank = 0; rank < t->mesh->size; rank++) {
    const Layout *both[2] = {&from, &to};
    int64_t count[2] = {1, 1};
    mesh_coord(t->mesh->axis, naxes, rank, coord);
    for (int i = 0; i < 2; i++) {
      Status s = layout_local(both[i], coord, local);
      status_free(s);
      for (int d = 0; d < both[i]->ndim; d++) count[i] *= local[d];
    }
    if (count[0] != count[1]) return true;
  }
  return false;
}

/* What the result that PyTorch got would cost here, in one call; INFINITY: it cannot be had so. */
static double cost_of_told(Trial *t, const Call *call) {
  yyjson_val *list[MOST_TENSORS];
  Placement goal[MAX_AXES];
  Decision d;
  int n;
  if (flat_outputs(field(t->c, "out"), list, MOST_TENSORS) < 1) return INFINITY;
  if (!read_placements(yyjson_obj_get(list[0], "p"),
                       read_ints(yyjson_obj_get(list[0], "t"), (int64_t[MAX_DIMS]){0}, MAX_DIMS), goal, &n))
    return INFINITY;
  Call fresh = *call;
  fresh.out = NULL;
  fresh.nout = fresh.out_cap = 0;
  Status s = propagate_for(&fresh, NULL, goal, &t->arena, &d);
  status_free(s);
  return s ? INFINITY : d.cost;
}

/* A composite that is one op here, placed otherwise than PyTorch's parts were. */
static Verdict compare_composite(Trial *t, const Call *call, double ours, const char *text) {
  double theirs = dispatch_takes_apart(call->op) ? -1 : cost_of_told(t, call);
  if (ours <= theirs) return better(t->c, "costs %g us, PyTorch's result %g: %s", ours, theirs, text);
  if (strcmp(yyjson_get_str(field(t->c, "fn")), "cross_entropy"))
    return skipped(t->c, "placed otherwise (%g us in parts), and what PyTorch's costs is not told: %s", ours, text);
  return better(t->c, "PyTorch's is a mean of means; ours: %s", text);
}

/* Its parts are decided one by one: what counts is what comes out, and what it costs. */
static Verdict run_apart(Trial *t, Call *call) {
  char text[1500];
  t->dist->decided_cost = 0;
  Status s = op_dispatch(call);
  if (s && field(t->c, "error")) {
    status_free(s);
    return SAME;
  }
  if (s) return wrong_status(t->c, s);
  describe_results(call, text, sizeof text);
  if (field(t->c, "error")) return better(t->c, "PyTorch refuses; ours: %s", text);
  if (same_results(t, call)) return SAME;
  yyjson_val *told = field(t->c, "cost");
  double ours = t->dist->decided_cost, cost = told && yyjson_is_num(told) ? yyjson_get_num(told)
                                              : told                      ? INFINITY
                                                                          : 0;
  const char *run = run_failure(t);
  if (run) return better(t->c, "PyTorch's is '%s'; ours: %s", run, text);
  if (ours < cost - 1e-9 || ours == 0)
    return better(t->c, "in parts it costs %g us, PyTorch's %g: %s", ours, cost, text);
  yyjson_val *list[MOST_TENSORS];
  if (!strncmp(call->op->schema.name, "aten.pixel_", 11) && flat_outputs(field(t->c, "out"), list, MOST_TENSORS) &&
      contradicts_itself(t, t->in[0], list[0]))
    return better(t->c, "PyTorch's shards are too large or too small; ours: %s", text);
  if (field(t->c, "fn")) return compare_composite(t, call, ours, text);
  return wrong(t->c, "in parts (%g us, PyTorch's %g): %s", ours, cost, text);
}

static bool is_apart(const Op *op) {
  const Op *f = op->def->inplace ? op_find(op->def->inplace) : op;
  return f && (f->def->shard.compose_sharded || (f->def->compose && !f->def->shard.place && !f->def->shard.rule));
}

/* Functions of torch.nn.functional, as the ops that they are here. */
static const struct {
  const char *fn, *op;
} composites[] = {
    {"linear", "aten.linear.default"},         {"matmul", "aten.matmul.default"},
    {"layer_norm", "aten.layer_norm.default"}, {"rms_norm", "aten.rms_norm.default"},
    {"softmax", "aten.softmax.int"},           {"sdpa", "aten.scaled_dot_product_attention.default"},
    {"chunk", "aten.chunk.default"},           {"flatten", "aten.flatten.using_ints"},
    {"einsum", "aten.einsum.default"},         {"cross_entropy", "aten.cross_entropy_loss.default"},
    {"conv2d", "aten.conv2d.default"},         {"group_norm", "aten.group_norm.default"},
};

/* The arguments beyond the tensors, as the golden data's README tells them. */
static int composite_args(Trial *t, const char *fn, Value *v, int n, NamedValue *args) {
  static const int64_t ones[2] = {1, 1};
  static int64_t last[1];
  for (int i = 0; i < n; i++) args[i] = (NamedValue){NULL, v[i]};
  if (!strcmp(fn, "layer_norm") || !strcmp(fn, "rms_norm")) { /* (input, shape, weight, bias) */
    const Tensor *x = v[0].tensor;
    last[0] = x->size[x->ndim - 1];
    for (int i = n; i > 1; i--) args[i] = args[i - 1];
    args[1] = (NamedValue){NULL, val_ints(last, 1)};
    return n + 1;
  }
  if (!strcmp(fn, "group_norm")) {
    for (int i = n; i > 1; i--) args[i] = args[i - 1];
    args[1] = (NamedValue){NULL, val_int(2)};
    return n + 1;
  }
  if (!strcmp(fn, "softmax")) args[n++] = (NamedValue){NULL, val_int(-1)};
  if (!strcmp(fn, "chunk")) args[n++] = (NamedValue){NULL, val_int(3)}, args[n++] = (NamedValue){NULL, val_int(-1)};
  if (!strcmp(fn, "flatten"))
    args[n++] = (NamedValue){NULL, val_int(0)}, args[n++] = (NamedValue){NULL, val_int(1)};
  if (!strcmp(fn, "conv2d"))
    args[n++] = (NamedValue){NULL, val_ints(ones, 2)}, args[n++] = (NamedValue){NULL, val_ints(ones, 2)};
  if (!strcmp(fn, "einsum")) {
    Tensor **list = arena_new_n(&t->arena, Tensor *, n);
    for (int i = 0; list && i < n; i++) list[i] = v[i].tensor;
    args[0] = (NamedValue){NULL, val_str("bmk,nk->bmn")};
    args[1] = (NamedValue){NULL, val_tensors(list, n)};
    return 2;
  }
  return n;
}

/* view(B, T, 4, 4).transpose(1, 2) */
static Verdict run_reshape_heads(Trial *t) {
  Value x, bound[MAX_PARAMS], turned[MAX_PARAMS];
  const Op *view = op_find("aten.view.default"), *transpose = op_find("aten.transpose.int");
  Status s = read_value(t, yyjson_arr_get(field(t->c, "args"), 0), &x);
  if (s) return wrong_status(t->c, s);
  const int64_t size[4] = {x.tensor->size[0], x.tensor->size[1], 4, 4};
  Call first = {.ctx = &t->ctx, .op = view, .arg = bound, .scope = &t->scope, .arena = &t->arena};
  s = op_bind(&t->arena, view, (NamedValue[]){{NULL, x}, {NULL, val_ints(size, 4)}}, 2, bound);
  if (!s) s = op_dispatch(&first);
  if (!s)
    s = op_bind(&t->arena, transpose,
                (NamedValue[]){{NULL, val_tensor(out_tensor(&first, 0))}, {NULL, val_int(1)}, {NULL, val_int(2)}},
                3, turned);
  if (s && field(t->c, "error")) {
    status_free(s);
    return SAME;
  }
  if (s) return wrong_status(t->c, s);
  return run_apart(t,
                   &(Call){.ctx = &t->ctx, .op = transpose, .arg = turned, .scope = &t->scope, .arena = &t->arena});
}

static Verdict run_composite(Trial *t) {
  const char *fn = yyjson_get_str(field(t->c, "fn"));
  if (!strcmp(fn, "reshape_heads")) return run_reshape_heads(t);
  const Op *op = NULL;
  for (size_t i = 0; i < sizeof composites / sizeof *composites; i++)
    if (!strcmp(composites[i].fn, fn)) op = op_find(composites[i].op);
  if (!op) return skipped(t->c, "no such function here: %s", fn);
  Value v[8] = {val_none()}, bound[MAX_PARAMS];
  NamedValue args[12];
  int n = 0;
  yyjson_val *e;
  size_t i, m;
  Status s = OK;
  yyjson_arr_foreach(field(t->c, "args"), i, m, e) if (!s && n < 8) s = read_value(t, e, &v[n++]);
  if (!s) n = composite_args(t, fn, v, n, args);
  if (!s) s = op_bind(&t->arena, op, args, n, bound);
  if (s) return wrong_status(t->c, s);
  Call call = {.ctx = &t->ctx, .op = op, .arg = bound, .scope = &t->scope, .arena = &t->arena};
  return run_apart(t, &call);
}

static Verdict run_op(Trial *t) {
  char name[128];
  snprintf(name, sizeof name, "aten.%s", yyjson_get_str(field(t->c, "op")));
  const Op *op = op_find(name);
  if (!op) return skipped(t->c, "no op %s", name);
  Value bound[MAX_PARAMS];
  Status s = bind_call(t, op, bound);
  if (s) return wrong_status(t->c, s);
  Call call = {.ctx = &t->ctx, .op = op, .arg = bound, .scope = &t->scope, .arena = &t->arena};
  if (is_apart(op)) return run_apart(t, &call);
  Decision d;
  s = propagate(&call, NULL, &t->arena, &d);
  if (!s) return compare(t, &d);
  if (field(t->c, "error") || why_unsound(t)) {
    status_free(s);
    return field(t->c, "error") ? SAME : better(t->c, "refused: %s", why_unsound(t));
  }
  return wrong_status(t->c, s);
}

Verdict case_strategy(Case *c) {
  Trial t = {.c = c};
  int axis[MAX_AXES], naxes = read_sizes(field(c, "mesh"), axis, MAX_AXES);
  ctx_init(&t.ctx, 1);
  Status s = dist_new(NULL, &t.dist);
  if (!s) s = mesh_new(t.dist, axis, naxes, NULL, NULL, &t.mesh);
  Verdict v;
  if (s) v = wrong_status(c, s);
  else {
    ctx_attach_dist(&t.ctx, t.dist);
    v = strcmp(yyjson_get_str(field(c, "kind")), "op") ? run_composite(&t) : run_op(&t);
  }
  scope_clear(&t.scope);
  arena_free(&t.arena);
  ctx_free(&t.ctx);
  dist_free(t.dist);
  return v;
}
