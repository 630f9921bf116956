/* Shards through views: every op that only moves elements, on the shards of every rank, against
 * the same op on the whole tensor. */
#include "dist/dispatch.h"
#include "drawn_layouts.h"

static int64_t from_held[MOST], to_held[MOST];

typedef struct {
  uint64_t *seed;
  Tensor *self;  /* i64, its elements count from 0 */
  Value args[6]; /* behind self */
  int nargs;
  int64_t numbers[64];
  int used;
  Tensor *list[4]; /* a list instead of self */
  int nlist;
} Drawn;

typedef void DrawFn(Drawn *d);

static void add(Drawn *d, Value v) { d->args[d->nargs++] = v; }
static int any_dim(Drawn *d) { return (int)upto(d->seed, d->self->ndim); }
static int64_t signed_dim(Drawn *d) { return any_dim(d) - (upto(d->seed, 2) ? d->self->ndim : 0); }
static int64_t *numbers(Drawn *d, int n) { return d->used += n, d->numbers + d->used - n; }

static void draw_nothing(Drawn *d) { (void)d; }
static void draw_dim(Drawn *d) { add(d, val_int(signed_dim(d))); }
static void draw_new_dim(Drawn *d) { add(d, val_int(upto(d->seed, d->self->ndim + 1))); }
static void draw_two_dims(Drawn *d) { add(d, val_int(signed_dim(d))), add(d, val_int(signed_dim(d))); }

static void draw_sizes(Drawn *d) {
  int64_t *to = numbers(d, 16);
  int n = draw_reshape(d->seed, d->self->ndim, d->self->size, to);
  int hole = (int)upto(d->seed, n);
  if (n && tensor_numel(d->self) && upto(d->seed, 2)) to[hole] = -1;
  add(d, val_ints(to, n));
}

static void draw_flatten(Drawn *d) {
  int first = any_dim(d);
  add(d, val_int(first)), add(d, val_int(first + upto(d->seed, d->self->ndim - first)));
}

static void draw_unflatten(Drawn *d) {
  int64_t *to = numbers(d, 16);
  int dim = any_dim(d), n = draw_reshape(d->seed, 1, &d->self->size[dim], to);
  add(d, val_int(dim)), add(d, val_ints(to, n));
}

static void draw_order(Drawn *d) {
  int64_t *order = numbers(d, d->self->ndim);
  for (int i = 0; i < d->self->ndim; i++) {
    int64_t j = upto(d->seed, i + 1);
    order[i] = order[j];
    order[j] = i;
  }
  add(d, val_ints(order, d->self->ndim));
}

static void draw_some_dims(Drawn *d) {
  int64_t *dims = numbers(d, d->self->ndim);
  int n = 0;
  for (int i = 0; i < d->self->ndim; i++)
    if (upto(d->seed, 2)) dims[n++] = i;
  add(d, val_ints(dims, n));
}

static void draw_expand(Drawn *d) {
  int64_t *to = numbers(d, d->self->ndim + 1);
  to[0] = 3;
  for (int i = 0; i < d->self->ndim; i++)
    to[i + 1] = d->self->size[i] == 1 ? 1 + upto(d->seed, 3) : upto(d->seed, 2) ? -1 : d->self->size[i];
  add(d, val_ints(to, d->self->ndim + 1));
}

/* Cuts often fall where segments do: in the middle, at thirds. */
static void draw_cut(Drawn *d, int64_t *dim, int64_t *begin, int64_t *end) {
  *dim = any_dim(d);
  int64_t n = d->self->size[*dim], parts = 1 + upto(d->seed, 4), step = n / parts;
  *begin = upto(d->seed, 3) ? step * upto(d->seed, parts) : upto(d->seed, n + 1);
  *end = upto(d->seed, 3) ? *begin + step : *begin + upto(d->seed, n - *begin + 1);
  if (*end > n) *end = n;
}

static void draw_slice(Drawn *d) {
  int64_t dim, begin, end;
  draw_cut(d, &dim, &begin, &end);
  add(d, val_int(dim)), add(d, upto(d->seed, 4) ? val_int(begin) : val_none()),
      add(d, upto(d->seed, 4) ? val_int(end) : val_none());
  add(d, val_int(upto(d->seed, 4) ? 1 : 2));
}

static void draw_narrow(Drawn *d) {
  int64_t dim, begin, end;
  draw_cut(d, &dim, &begin, &end);
  add(d, val_int(dim)), add(d, val_int(begin)), add(d, val_int(end - begin));
}

static void draw_select(Drawn *d) {
  int dim = any_dim(d);
  add(d, val_int(dim)), add(d, val_int(upto(d->seed, d->self->size[dim])));
}

static void draw_pieces(Drawn *d) {
  int dim = any_dim(d);
  int64_t n = d->self->size[dim], parts = 1 + upto(d->seed, 3);
  add(d, val_int(n >= parts && upto(d->seed, 3) ? n / parts : 1 + upto(d->seed, n + 1))), add(d, val_int(dim));
}

static void draw_chunks(Drawn *d) { add(d, val_int(1 + upto(d->seed, 4))), add(d, val_int(signed_dim(d))); }

static void draw_piece_sizes(Drawn *d) {
  int dim = any_dim(d);
  int64_t n = d->self->size[dim], *sizes = numbers(d, 3);
  sizes[0] = upto(d->seed, n + 1);
  sizes[1] = upto(d->seed, n - sizes[0] + 1);
  sizes[2] = n - sizes[0] - sizes[1];
  add(d, val_ints(sizes, 3)), add(d, val_int(dim));
}

static void draw_diagonal(Drawn *d) {
  add(d, val_int(upto(d->seed, 3) - 1)), add(d, val_int(0)), add(d, val_int(d->self->ndim - 1));
}
static void draw_offset(Drawn *d) { add(d, val_int(upto(d->seed, 7) - 3)); }

static void draw_windows(Drawn *d) {
  int dim = any_dim(d);
  add(d, val_int(dim)), add(d, val_int(1 + upto(d->seed, d->self->size[dim]))),
      add(d, val_int(1 + upto(d->seed, 2)));
}

static void draw_padding(Drawn *d) {
  int64_t *pad = numbers(d, 4);
  int n = d->self->ndim > 1 ? 4 : 2;
  for (int i = 0; i < n; i++) pad[i] = upto(d->seed, 3);
  add(d, val_ints(pad, n)), add(d, val_int(7));
}

static void draw_roll(Drawn *d) {
  int64_t *v = numbers(d, 2);
  v[0] = upto(d->seed, 3), v[1] = any_dim(d);
  add(d, val_ints(v, 1)), add(d, val_ints(v + 1, (int)upto(d->seed, 2)));
}

static void draw_repeats(Drawn *d) {
  int64_t *v = numbers(d, d->self->ndim);
  for (int i = 0; i < d->self->ndim; i++) v[i] = 1 + upto(d->seed, 2);
  add(d, val_ints(v, d->self->ndim));
}

static void draw_interleave(Drawn *d) { add(d, val_int(1 + upto(d->seed, 3))), add(d, val_int(any_dim(d))); }

/* Tensors that differ in the joined dimension only. */
static void draw_list(Drawn *d) {
  d->nlist = 2 + (int)upto(d->seed, 2);
  add(d, val_int(any_dim(d)));
}

typedef struct {
  const char *op;
  DrawFn *draw;
} Case;

static const Case cases[] = {
    {"aten.view.default", draw_sizes},
    {"aten.reshape.default", draw_sizes},
    {"aten._unsafe_view.default", draw_sizes},
    {"aten.view_copy.default", draw_sizes},
    {"aten.flatten.using_ints", draw_flatten},
    {"aten.unflatten.int", draw_unflatten},
    {"aten.ravel.default", draw_nothing},
    {"aten.permute.default", draw_order},
    {"aten.transpose.int", draw_two_dims},
    {"aten.swapaxes.default", draw_two_dims},
    {"aten.movedim.int", draw_two_dims},
    {"aten.numpy_T.default", draw_nothing},
    {"aten.squeeze.default", draw_nothing},
    {"aten.squeeze.dim", draw_dim},
    {"aten.squeeze.dims", draw_some_dims},
    {"aten.unsqueeze.default", draw_new_dim},
    {"aten.expand.default", draw_expand},
    {"aten.expand_copy.default", draw_expand},
    {"aten.slice.Tensor", draw_slice},
    {"aten.slice_copy.Tensor", draw_slice},
    {"aten.narrow.default", draw_narrow},
    {"aten.select.int", draw_select},
    {"aten.split.Tensor", draw_pieces},
    {"aten.split_with_sizes.default", draw_piece_sizes},
    {"aten.chunk.default", draw_chunks},
    {"aten.tensor_split.sections", draw_chunks},
    {"aten.unbind.int", draw_dim},
    {"aten.diagonal.default", draw_diagonal},
    {"aten.unfold.default", draw_windows},
    {"aten.clone.default", draw_nothing},
    {"aten.tril.default", draw_offset},
    {"aten.triu.default", draw_offset},
    {"aten.flip.default", draw_some_dims},
    {"aten.roll.default", draw_roll},
    {"aten.constant_pad_nd.default", draw_padding},
    {"aten.cat.default", draw_list},
    {"aten.repeat.default", draw_repeats},
    {"aten.repeat_interleave.self_int", draw_interleave},
    {"aten.stack.default", draw_list},
    {"aten.atleast_3d.default", draw_nothing},
};

/* i64, elements first, first + 1, ... */
static Tensor *counting(Scope *s, int ndim, const int64_t *size, int64_t first) {
  Tensor *t;
  assert_ok(tensor_new(s, DT_I64, ndim, size, &t));
  for (int64_t i = 0; i < tensor_numel(t); i++) ((int64_t *)tensor_data(t))[i] = first + i;
  return t;
}

static void read_all(const Tensor *t, int64_t *out) {
  const int64_t *data = tensor_data(t);
  for (int64_t i = 0; i < tensor_numel(t); i++) {
    int64_t rest = i, at = 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
      at += rest % t->size[d] * t->stride[d];
      rest /= t->size[d];
    }
    out[i] = data[at];
  }
}

typedef struct {
  Ctx ctx;
  Scope scope;
  Arena arena;
  Dist *dist;
  Mesh *mesh;
  Status failed; /* of the op itself, on plain tensors */
} Trial;

static bool call_op(Trial *t, const Op *op, const Value *arg, Call *c) {
  *c = (Call){.ctx = &t->ctx, .op = op, .arg = arg, .scope = &t->scope, .arena = &t->arena};
  Status s = op->def->compose ? op->def->compose(c) : op_run(c);
  status_free(s);
  return !s;
}

/* What coord holds of a plain tensor under this spec, as a tensor. */
static Tensor *part_of(Trial *t, const Tensor *whole, const Spec *spec, const int *coord) {
  static int64_t values[MOST];
  int64_t size[MAX_DIMS], n;
  Layout l = spec_layout(spec);
  Tensor *out;
  assert_ok(layout_local(&l, coord, size));
  assert_ok(tensor_new(&t->scope, DT_I64, whole->ndim, size, &out));
  n = held(&l, coord, &t->arena, from_held);
  read_all(whole, values);
  for (int64_t i = 0; i < n; i++) ((int64_t *)tensor_data(out))[i] = values[from_held[i]];
  return out;
}

static void compare_part(Trial *t, const Op *op, const Tensor *got, const Tensor *whole, const Decision *d, int i,
                         const int *coord) {
  Tensor *want = part_of(t, whole, d->out[i], coord);
  char a[128], b[128], c[128], have[256], in[256], out[256];
  bool same = tensor_same_size(got, want);
  if (same) {
    read_all(got, from_held);
    read_all(want, to_held);
    same = !memcmp(from_held, to_held, (size_t)tensor_numel(want) * sizeof *to_held);
  }
  if (!same)
    test_failed(
        "%s of %s %s -> %s: %s, rank %d has %s, not %s", op->schema.name, tensor_describe(whole, b, sizeof b),
        placements_print(d->have[0]->place, t->mesh->naxes, have, sizeof have),
        placements_print(d->want[0]->place, t->mesh->naxes, in, sizeof in),
        placements_print(d->out[i]->place, t->mesh->naxes, out, sizeof out), coord[0],
        shape_describe(got->ndim, got->size, a, sizeof a), shape_describe(want->ndim, want->size, c, sizeof c));
}

/* Input i of the global call, plain and as a DTensor without shards. */
typedef struct {
  Tensor *plain[4], *spread[4];
  int n;
  bool is_list;
  Value plain_arg[MAX_PARAMS], spread_arg[MAX_PARAMS];
} Inputs;

static bool bind_all(Trial *t, const Op *op, const Drawn *d, Inputs *in) {
  for (int which = 0; which < 2; which++) {
    Tensor **list = which ? in->spread : in->plain;
    NamedValue args[8] = {{NULL, in->is_list ? val_tensors(list, in->n) : val_tensor(list[0])}};
    for (int i = 0; i < d->nargs; i++) args[i + 1] = (NamedValue){NULL, d->args[i]};
    Status s = op_bind(&t->arena, op, args, 1 + d->nargs, which ? in->spread_arg : in->plain_arg);
    if (s) test_failed("%s", status_message(s));
  }
  return true;
}

/* Every rank's part, by the decision for it; false if nothing was kept cut. */
static bool check_ranks(Trial *t, const Op *op, Inputs *in, const Call *whole) {
  int coord[MAX_AXES] = {0};
  bool cut = false;
  do {
    Call global = {.ctx = &t->ctx, .op = op, .arg = in->spread_arg, .scope = &t->scope, .arena = &t->arena}, local;
    Decision d;
    Value arg[MAX_PARAMS];
    assert_ok(propagate(&global, coord, &t->arena, &d));
    memcpy(arg, d.arg, (size_t)d.op->schema.nparams * sizeof *arg);
    Tensor *parts[4];
    for (int i = 0; i < in->n; i++) parts[i] = part_of(t, in->plain[i], d.want[i], coord);
    arg[0] = in->is_list ? val_tensors(parts, in->n) : val_tensor(parts[0]);
    if (!call_op(t, d.op, arg, &local))
      test_failed("%s: the local call %s fails", op->schema.name, d.op->schema.name);
    assert_int_equal(local.nout, whole->nout);
    for (int i = 0; i < whole->nout; i++) {
      compare_part(t, op, out_tensor(&local, i), out_tensor(whole, i), &d, i, coord);
      cut |= !d.out[i]->replicated;
    }
  } while (next_coord(t->mesh->axis, t->mesh->naxes, coord));
  return cut;
}

static bool draw_inputs(Trial *t, const Case *c, Drawn *d, Inputs *in, uint64_t *seed) {
  int64_t size[MAX_DIMS];
  int ndim = draw_shape(seed, size);
  d->self = counting(&t->scope, ndim, size, 0);
  c->draw(d);
  in->is_list = d->nlist > 0;
  in->n = in->is_list ? d->nlist : 1;
  Placement model[MAX_AXES];
  for (int a = 0; a < t->mesh->naxes; a++) model[a] = draw_place(seed, ndim, size);
  for (int i = 0; i < in->n; i++) {
    if (i && !strcmp(c->op, "aten.cat.default") && upto(seed, 2)) size[d->args[0].i] = upto(seed, 7);
    in->plain[i] = i ? counting(&t->scope, ndim, size, 1000 * i) : d->self;
    if (i && upto(seed, 4) == 0) model[0] = draw_place(seed, ndim, size);
    const Spec *spec;
    Status s = spec_new(t->mesh, DT_I64, ndim, size, NULL, model, &spec);
    status_free(s);
    if (s) return false;
    Layout l = spec_layout(spec);
    if (!fits_everywhere(&l)) return false;
    assert_ok(dtensor_wrap(&t->scope, spec, NULL, &in->spread[i]));
  }
  return true;
}

/* 1: checked and some result is cut; 0: checked; -1: not possible */
static int check_case(const Case *c, uint64_t *seed) {
  Trial t = {.failed = OK};
  int axis[MAX_AXES], naxes = draw_mesh(seed, axis), result = -1;
  Drawn d = {.seed = seed};
  Inputs in = {.n = 0};
  Call whole;
  const Op *op = op_find(c->op);
  assert_non_null(op);
  ctx_init(&t.ctx, 1);
  assert_ok(dist_new(NULL, &t.dist));
  assert_ok(mesh_new(t.dist, axis, naxes, NULL, NULL, &t.mesh));
  if (draw_inputs(&t, c, &d, &in, seed) && bind_all(&t, op, &d, &in) && call_op(&t, op, in.plain_arg, &whole) &&
      !op->def->compose)
    result = check_ranks(&t, op, &in, &whole);
  scope_clear(&t.scope);
  arena_free(&t.arena);
  ctx_free(&t.ctx);
  dist_free(t.dist);
  return result;
}

static void local_calls_give_the_parts_of_the_whole(void **state) {
  (void)state;
  uint64_t seed = 11;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int cut = 0, checked = 0;
    for (int n = 0; n < 400; n++) {
      int r = check_case(&cases[i], &seed);
      checked += r >= 0;
      cut += r > 0;
    }
    if (op_find(cases[i].op)->def->compose) continue; /* taken apart: its parts are checked */
    if (checked < 40 || cut < 15) test_failed("%s: %d cases, of %d results are cut", cases[i].op, checked, cut);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(local_calls_give_the_parts_of_the_whole),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
