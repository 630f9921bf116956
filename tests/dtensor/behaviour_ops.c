/* behaviour_ops.c -- ops on DTensors, factories and meshes; see behaviour.h. */
#include <stdio.h>
#include <string.h>

#include "behaviour.h"
#include "dist/checkpoint.h"
#include "dist/dist.h"
#include "grad/tape.h"

/* ---- ops --------------------------------------------------------------------------------------------------- */

static Status add_plain(Rank *r, int ndim, const int64_t *size, Tensor **out) {
  Tensor *d, *t;
  TRY(place_x(r, "a", "S(0)", &d));
  TRY(rank_arange(r, DT_F32, ndim, size, 1, 1, &t));
  return OP(&r->call, "aten.add.Tensor", out, val_tensor(d), val_tensor(t));
}
static Status mixed_tensor_dtensor(Rank *r, Tensor **out) { return add_plain(r, 2, size_x, out); }
static Status mixed_scalar_tensor(Rank *r, Tensor **out) { return add_plain(r, 0, NULL, out); }
static Status mixed_one_element_tensor(Rank *r, Tensor **out) { return add_plain(r, 1, (const int64_t[]){1}, out); }
static Status mixed_implicit_replication(Rank *r, Tensor **out) {
  r->dist->implicit_replication = true;
  return add_plain(r, 2, size_x, out);
}
static Status mixed_python_scalar(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(place_x(r, "a", "S(0)", &d));
  return OP(&r->call, "aten.add.Scalar", out, val_tensor(d), val_int(2));
}

static Status cross_mesh_op(Rank *r, Tensor **out) {
  Tensor *d, *e;
  TRY(place_x(r, "a", "S(0)", &d));
  TRY(place_x(r, "a,b", "RR", &e));
  return OP(&r->call, "aten.add.Tensor", out, val_tensor(d), val_tensor(e));
}

static Status add_scalar_to_partial(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(local_two(r, "a", "P(sum)", 1, &d));
  return OP(&r->call, "aten.add.Scalar", out, val_tensor(d), val_int(1));
}
static Status mul_partial_by_scalar(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(local_two(r, "a", "P(sum)", 1, &d));
  return OP(&r->call, "aten.mul.Scalar", out, val_tensor(d), val_int(3));
}
static Status partial_times_partial(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(local_two(r, "a", "P(sum)", 1, &d));
  return OP(&r->call, "aten.mul.Tensor", out, val_tensor(d), val_tensor(d));
}

static Status number_of(Rank *r, Tensor *t, Value *out) {
  Value bound[MAX_PARAMS];
  Call c = {
      .ctx = &r->ctx, .op = op_find("aten.item.default"), .arg = bound, .scope = &r->scope, .arena = &r->arena};
  if (!c.op) c.op = op_find("aten._local_scalar_dense.default");
  if (!c.op) return fail(ERR_FAIL, "no op gives a number");
  TRY(op_bind(&r->arena, c.op, &(NamedValue){NULL, val_tensor(t)}, 1, bound));
  TRY(op_dispatch(&c));
  *out = c.out[0];
  return OK;
}

/* PyTorch gives each rank its own part; the value is 0 + 1 + 2 + 3. */
static Status item_on_partial(Rank *r, Tensor **out) {
  Tensor *t, *d;
  Value v;
  TRY(rank_arange(r, DT_F32, 0, NULL, 0, r->me, &t));
  TRY(from_local(r, t, "a", "P(sum)", &(FromLocal){0}, &d));
  TRY(number_of(r, d, &v));
  (void)out;
  r->better = true;
  return val_as_float(&v) == 6 ? OK : fail(ERR_DIFF, "the value is %g", val_as_float(&v));
}

static Status item_on_shard(Rank *r, Tensor **out) {
  Tensor *t, *d;
  Value v;
  TRY(rank_arange(r, DT_F32, 1, (const int64_t[]){1}, 0, r->me, &t));
  TRY(from_local(r, t, "a", "S(0)", &(FromLocal){0}, &d));
  (void)out;
  return number_of(r, d, &v);
}

static Status compare_equal(Rank *r, bool spoil) {
  Tensor *d, *x, *e;
  bool equal;
  TRY(place_x(r, "a", "S(0)", &d));
  TRY(x_of(r, &x));
  int64_t rows = (size_x[0] + world_size(r->w) - 1) / world_size(r->w); /* of the first ranks */
  bool last = r->me == (size_x[0] - 1) / rows;                          /* that has any */
  if (spoil && last) ((float *)tensor_data(d->local))[0] += 1;
  TRY(place_tensor(r, x, "a", "R", &e));
  TRY(dtensor_equal(&r->ctx, d, e, &equal));
  return equal == yyjson_get_bool(field(r->c, "equal")) ? OK : fail(ERR_DIFF, "equal: %d", equal);
}
static Status equal_op(Rank *r, Tensor **out) { return (void)out, compare_equal(r, false); }
static Status equal_op_false_on_one_rank(Rank *r, Tensor **out) { return (void)out, compare_equal(r, true); }

static Status inplace_on_partial_relu(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(place_x(r, "a", "P(sum)", &d));
  return OP(&r->call, "aten.relu_.default", out, val_tensor(d));
}

static Status inplace_add_needs_redistribute(Rank *r, Tensor **out) {
  Tensor *x, *d, *e, *sum;
  int64_t size[2];
  if (read_ints(field(r->c, "global"), size, 2) != 2) return fail(ERR_FILE, "the case tells no global sizes");
  TRY(rank_arange(r, DT_F32, 2, size, 1, 0, &x));
  TRY(place_tensor(r, x, "a", "S(0)", &d));
  TRY(place_tensor(r, x, "a", "S(1)", &e));
  TRY(OP(&r->call, "aten.add_.Tensor", &sum, val_tensor(d), val_tensor(e)));
  *out = d;
  TRY(OP(&r->call, "aten.add.Tensor", &sum, val_tensor(x), val_tensor(x)));
  TRY(dtensor_full(&r->ctx, &r->scope, d, &e));
  return rank_same(r, e, sum, "the sum");
}

/* PyTorch refuses an op on a sharded tensor; ours gives what one rank gives. */
static Status like_one_rank(Rank *r, const char *op, int64_t rows, Value arg, Tensor **out) {
  Tensor *x, *d, *plain;
  TRY(rank_arange(r, DT_F32, 2, (const int64_t[]){rows, 3}, 1, 0, &x));
  TRY(place_tensor(r, x, "a", "S(0)", &d));
  int n = arg.kind == VAL_NONE ? 1 : 2;
  TRY(op_call(&r->call, op, &plain, 1, (const Value[]){val_tensor(x), arg}, n));
  TRY(op_call(&r->call, op, out, 1, (const Value[]){val_tensor(d), arg}, n));
  return sensible(r, *out, plain);
}
static Status unsupported_op(Rank *r, Tensor **out) {
  return like_one_rank(r, "aten.nonzero.default", 8, val_none(), out);
}
static Status view_unshardable(Rank *r, Tensor **out) {
  return like_one_rank(r, "aten.view.default", world_size(r->w),
                       val_ints((const int64_t[]){3, world_size(r->w)}, 2), out);
}
static Status reshape_unshardable(Rank *r, Tensor **out) {
  return like_one_rank(r, "aten.reshape.default", world_size(r->w),
                       val_ints((const int64_t[]){3, world_size(r->w)}, 2), out);
}
static Status unbind_sharded(Rank *r, Tensor **out) {
  return like_one_rank(r, "aten.unbind.int", 8, val_int(0), out);
}
static Status expand_sharded_singleton(Rank *r, Tensor **out) {
  return like_one_rank(r, "aten.expand.default", 1, val_ints((const int64_t[]){8, 3}, 2), out);
}

static Status checkpoint_partial(Rank *r, Tensor **out) {
  Tensor *d;
  ChunkList list;
  TRY(place_x(r, "a", "P(sum)", &d));
  (void)out;
  return dtensor_chunks(d, &r->arena, &list);
}

static Status deepcopy(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(place_x(r, "a", "S(0)", &d));
  TRY(OP(&r->call, "aten.clone.default", out, val_tensor(d)));
  return (*out)->local->storage != d->local->storage ? OK : fail(ERR_DIFF, "the same memory");
}

static Status to_dtype(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(place_x(r, "a", "P(sum)", &d));
  TRY(OP(&r->call, "aten.to.dtype", out, val_tensor(d), val_dtype(DT_BF16)));
  return (*out)->dtype == DT_BF16 ? OK : fail(ERR_DIFF, "another dtype");
}

static Status to_local_no_grad_identity(Rank *r, Tensor **out) {
  Tensor *d, *local;
  TRY(place_x(r, "a", "S(0)", &d));
  TRY(dtensor_to_local(&r->ctx, &r->scope, d, &local));
  (void)out;
  return local->storage == d->local->storage ? OK : fail(ERR_DIFF, "a copy");
}

static Status repr(Rank *r, Tensor **out) {
  Tensor *t, *d;
  char text[400], ours[100];
  int64_t n = world_size(r->w);
  snprintf(ours, sizeof ours, "DTensor(f32[%d], Mesh(a=%d), [S(0)], local f32[1])", (int)n, (int)n);
  TRY(rank_arange(r, DT_F32, 1, &n, 0, 1, &t));
  TRY(place_tensor(r, t, "a", "S(0)", &d));
  (void)out;
  return strcmp(dtensor_print(d, text, sizeof text), ours) ? fail(ERR_DIFF, "%s", text) : OK;
}

/* ---- factories and meshes ------------------------------------------------------------------------------ */

static Status zeros(Rank *r, Mesh *m, const char *place, Tensor **out) {
  Placement p[MAX_AXES];
  int n;
  TRY(placements_parse(place, 2, p, &n));
  return dtensor_fill(&r->ctx, &r->scope, m, p, DT_F32, 2, size_x, 0, out);
}

static Status factory_requires_grad(Rank *r, Tensor **out) {
  Tape tape;
  Mesh *m;
  Placement p = place_s(0);
  TRY(case_mesh(r, "a", &m));
  TRY(dtensor_fill(&r->ctx, &r->scope, m, &p, DT_F32, 2, size_x, 1, out));
  tape_begin(&tape, &r->ctx);
  Status s = tape_set_required(&tape, *out, true);
  tape_end(&tape);
  TRY(s);
  return tensor_requires_grad(*out) && tensor_is_leaf(*out) ? OK : fail(ERR_DIFF, "it requires no gradient");
}

static Status factory_dim_out_of_range(Rank *r, Tensor **out) {
  Mesh *m;
  Placement p = place_s(2);
  TRY(case_mesh(r, "a", &m));
  return dtensor_fill(&r->ctx, &r->scope, m, &p, DT_F32, 2, size_x, 0, out);
}

static Status factory_negative_dim(Rank *r, Tensor **out) {
  Mesh *m;
  TRY(case_mesh(r, "a", &m));
  TRY(zeros(r, m, "S(-1)", out));
  r->better = true;
  return is_s_of(&(*out)->spec->place[0], 1) ? OK : fail(ERR_DIFF, "not S(1)");
}

static Status all_but_one(Rank *r, Mesh **out) { return case_mesh(r, "a-1", out); }
static Status submesh_distribute(Rank *r, Tensor **out) { return place_x(r, "a-1", "S(0)", out); }
static Status submesh_factory(Rank *r, Tensor **out) {
  Mesh *m;
  TRY(all_but_one(r, &m));
  return zeros(r, m, "S(0)", out);
}
static Status submesh_op(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(submesh_distribute(r, &d));
  return OP(&r->call, "aten.add.Tensor", out, val_tensor(d), val_tensor(d));
}
static Status submesh_redistribute(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(submesh_distribute(r, &d));
  return redistribute(r, d, "R", out);
}
static Status mesh_too_big(Rank *r, Tensor **out) {
  Mesh *m;
  return (void)out, case_mesh(r, "a+1", &m);
}
static Status mesh_slice_unknown(Rank *r, Tensor **out) {
  Mesh *m;
  TRY(case_mesh(r, "a,b", &m));
  (void)out;
  return mesh_axis_named(m, "zz") < 0 ? fail(ERR_USAGE, "no axis zz") : OK;
}

/* ---- the table ------------------------------------------------------------------------------------ */

static const char count_fixed[] = "there are as many placements as the mesh has axes",
                  always_given[] = "the argument is always given",
                  only_dense[] = "tensors are strided, sizes a list";

const Behaviour behaviours_ops[] = {
    DO(mixed_tensor_dtensor),
    DO(mixed_scalar_tensor),
    DO(mixed_one_element_tensor),
    DO(mixed_python_scalar),
    DO(mixed_implicit_replication),
    DO(cross_mesh_op),
    DO(add_scalar_to_partial),
    DO(mul_partial_by_scalar),
    DO(partial_times_partial),
    DO(item_on_partial),
    DO(item_on_shard),
    DO(equal_op),
    DO(equal_op_false_on_one_rank),
    DO(inplace_on_partial_relu),
    DO(inplace_add_needs_redistribute),
    DO(unsupported_op),
    DO(view_unshardable),
    DO(reshape_unshardable),
    DO(unbind_sharded),
    DO(expand_sharded_singleton),
    DO(checkpoint_partial),
    DO(deepcopy),
    DO(to_dtype),
    DO(to_local_no_grad_identity),
    DO(repr),
    SKIP(factory_len_mismatch, count_fixed),
    SKIP(factory_layout, only_dense),
    DO(factory_dim_out_of_range),
    DO(factory_negative_dim),
    SKIP(factory_default_replicates, always_given),
    SKIP(factory_size_forms, only_dense),
    DO(factory_requires_grad),
    SKIP(factory_no_mesh, always_given),
    DO(submesh_distribute),
    DO(submesh_factory),
    DO(submesh_op),
    DO(submesh_redistribute),
    DO(mesh_too_big),
    DO(mesh_slice_unknown),
    {0},
};
