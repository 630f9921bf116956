/* behaviour.c -- api.jsonl, kind behaviour: what each call does, by name. */
#include <string.h>

#include "dist/checkpoint.h"
#include "dist/dist.h"
#include "ranks.h"

/* Makes the DTensor that the case tells about (NULL: all is checked already).  Where PyTorch
 * refuses and ours is sensible, it checks that and sets r->better. */
typedef Status Behave(Rank *r, Tensor **out);

static const int64_t size_x[2] = {8, 3};

static Status x_of(Rank *r, Tensor **out) { return rank_arange(r, DT_F32, 2, size_x, 1, 0, out); }

/* t on a mesh ("a=4"), from rank 0, placed as the text says. */
static Status place_tensor(Rank *r, Tensor *t, const char *mesh, const char *place, Tensor **out) {
  Mesh *m;
  Placement p[MAX_AXES];
  int n;
  TRY(mesh_parse(r->dist, mesh, &m));
  TRY(placements_parse(place, t->ndim, p, &n));
  return dtensor_distribute(&r->ctx, &r->scope, t, m, p, 0, out);
}

static Status place_x(Rank *r, const char *mesh, const char *place, Tensor **out) {
  Tensor *x;
  TRY(x_of(r, &x));
  return place_tensor(r, x, mesh, place, out);
}

/* Value `value` in two elements of every rank, as P(sum) or whatever. */
static Status local_two(Rank *r, const char *mesh, const char *place, double value, Tensor **out) {
  Mesh *m;
  Placement p[MAX_AXES];
  int n;
  Tensor *local;
  TRY(mesh_parse(r->dist, mesh, &m));
  TRY(placements_parse(place, 1, p, &n));
  TRY(rank_arange(r, DT_F32, 1, (const int64_t[]){2}, 0, value, &local));
  return dtensor_from_local(&r->ctx, &r->scope, local, m, p, &(FromLocal){0}, out);
}

static Status redistribute(Rank *r, const Tensor *t, const char *place, Tensor **out) {
  Placement p[MAX_AXES];
  int n;
  TRY(placements_parse(place, t->ndim, p, &n));
  return dtensor_redistribute(&r->ctx, &r->scope, t, NULL, p, DT_NONE, out);
}

/* PyTorch refuses; ours holds these values. */
static Status sensible(Rank *r, const Tensor *t, const Tensor *plain) {
  Tensor *full;
  TRY(dtensor_full(&r->ctx, &r->scope, t, &full));
  TRY(rank_same(r, full, plain, "the whole"));
  r->better = true;
  return OK;
}

/* ---- distribute ---------------------------------------------------------------------------------- */

static Status bad_dim(Rank *r, int dim, Tensor **out) {
  Mesh *m;
  Tensor *x;
  Placement p = place_s(dim);
  TRY(x_of(r, &x));
  TRY(mesh_parse(r->dist, "a=4", &m));
  return dtensor_distribute(&r->ctx, &r->scope, x, m, &p, 0, out);
}

static Status distribute_dim_out_of_range(Rank *r, Tensor **out) { return bad_dim(r, 2, out); }
static Status distribute_dim_far_out_of_range(Rank *r, Tensor **out) { return bad_dim(r, 5, out); }
static Status distribute_negative_dim(Rank *r, Tensor **out) { return place_x(r, "a=4", "S(-1)", out); }
static Status distribute_dim_below_range(Rank *r, Tensor **out) { return place_x(r, "a=4", "S(-3)", out); }

static Status distribute_scalar(Rank *r, const char *place, Tensor **out) {
  Tensor *t;
  TRY(rank_arange(r, DT_F32, 0, NULL, 0, 1, &t));
  return place_tensor(r, t, "a=4", place, out);
}
static Status distribute_scalar_shard(Rank *r, Tensor **out) { return distribute_scalar(r, "S(0)", out); }
static Status distribute_scalar_replicate(Rank *r, Tensor **out) { return distribute_scalar(r, "R", out); }

/* Fours everywhere, partial: whatever the split, they come back. */
static Status distribute_fours(Rank *r, const char *place, Tensor **out) {
  Tensor *t, *full;
  TRY(rank_arange(r, DT_F32, 1, (const int64_t[]){2}, 0, 4, &t));
  TRY(place_tensor(r, t, "a=4", place, out));
  TRY(dtensor_full(&r->ctx, &r->scope, *out, &full));
  return rank_same(r, full, t, "the whole");
}
static Status distribute_partial_sum(Rank *r, Tensor **out) { return distribute_fours(r, "P(sum)", out); }
static Status distribute_partial_avg(Rank *r, Tensor **out) { return distribute_fours(r, "P(avg)", out); }

static Status distribute_partial_product(Rank *r, Tensor **out) {
  Tensor *x;
  TRY(x_of(r, &x));
  TRY(place_tensor(r, x, "a=4", "P(product)", out));
  return sensible(r, *out, x);
}

static Status distribute_mixed_partial(Rank *r, Tensor **out) { return place_x(r, "a=2,b=2", "P(sum)P(max)", out); }
static Status distribute_sum_avg_mixed_ok(Rank *r, Tensor **out) {
  return place_x(r, "a=2,b=2", "P(sum)P(avg)", out);
}

static Status distribute_dtensor_same(Rank *r, Tensor **out) {
  Tensor *t, *again;
  TRY(place_x(r, "a=4", "S(0)", &t));
  TRY(place_tensor(r, t, "a=4", "S(0)", &again));
  (void)out;
  return again->spec == t->spec && again->local->storage == t->local->storage ? OK
                                                                              : fail(ERR_DIFF, "another tensor");
}

static Status distribute_dtensor_other_placement(Rank *r, Tensor **out) {
  Tensor *t;
  TRY(place_x(r, "a=4", "S(0)", &t));
  return place_tensor(r, t, "a=4", "R", out);
}

static Status distribute_dtensor_other_mesh(Rank *r, Tensor **out) {
  Tensor *t;
  TRY(place_x(r, "a=4", "S(0)", &t));
  return place_tensor(r, t, "a=2,b=2", "RR", out);
}

static Status distribute_meta(Rank *r, Tensor **out) {
  Tensor *t;
  TRY(tensor_meta(&r->scope, DT_F32, 2, size_x, &t));
  return place_tensor(r, t, "a=4", "S(0)", out);
}

/* ---- from_local -------------------------------------------------------------------------------------- */

static Status from_local(Rank *r, Tensor *local, const char *mesh, const char *place, const FromLocal *how,
                         Tensor **out) {
  Mesh *m;
  Placement p[MAX_AXES];
  int n;
  TRY(mesh_parse(r->dist, mesh, &m));
  TRY(placements_parse(place, local->ndim, p, &n));
  return dtensor_from_local(&r->ctx, &r->scope, local, m, p, how, out);
}

static Status from_local_x(Rank *r, const char *mesh, const char *place, Tensor **out) {
  Tensor *x;
  TRY(x_of(r, &x));
  return from_local(r, x, mesh, place, &(FromLocal){0}, out);
}

static Status from_local_dtensor(Rank *r, Tensor **out) {
  Tensor *t;
  TRY(place_x(r, "a=4", "S(0)", &t));
  return from_local(r, t, "a=4", "R", &(FromLocal){0}, out);
}
static Status from_local_mixed_partial(Rank *r, Tensor **out) {
  return from_local_x(r, "a=2,b=2", "P(sum)P(max)", out);
}
static Status from_local_negative_dim(Rank *r, Tensor **out) { return from_local_x(r, "a=4", "S(-1)", out); }

static Status from_local_dim_out_of_range(Rank *r, Tensor **out) {
  Tensor *x;
  Mesh *m;
  Placement p = place_s(2);
  TRY(x_of(r, &x));
  TRY(mesh_parse(r->dist, "a=4", &m));
  return dtensor_from_local(&r->ctx, &r->scope, x, m, &p, &(FromLocal){0}, out);
}

static Status from_local_shape_without_stride(Rank *r, Tensor **out) {
  Tensor *x;
  TRY(x_of(r, &x));
  return from_local(r, x, "a=4", "S(0)", &(FromLocal){.shape = (const int64_t[]){100, 3}, .ndim = 2}, out);
}

static Status uneven(Rank *r, bool check, Tensor **out) {
  Tensor *t;
  TRY(rank_arange(r, DT_F32, 2, (const int64_t[]){r->me + 1, 2}, 1, 0, &t));
  return from_local(r, t, "a=4", "S(0)", &(FromLocal){.run_check = check}, out);
}
static Status from_local_uneven_silent(Rank *r, Tensor **out) { return uneven(r, false, out); }
static Status from_local_uneven_run_check(Rank *r, Tensor **out) { return uneven(r, true, out); }

static Status from_local_run_check_dtype(Rank *r, Tensor **out) {
  Tensor *t;
  TRY(rank_arange(r, r->me ? DT_F32 : DT_F64, 2, size_x, 1, 0, &t));
  return from_local(r, t, "a=4", "S(0)", &(FromLocal){.run_check = true}, out);
}

static Status own_number(Rank *r, bool check) {
  Tensor *t, *d;
  yyjson_val *value = field(r->c, "value"), *mine = yyjson_arr_get(value, (size_t)r->me);
  if (!yyjson_is_arr(mine)) mine = value;
  TRY(rank_arange(r, DT_F32, 1, (const int64_t[]){1}, 0, r->me, &t));
  TRY(from_local(r, t, "a=4", "R", &(FromLocal){.run_check = check}, &d));
  double ours = (double)*(float *)tensor_data(d->local);
  return ours == yyjson_get_num(yyjson_arr_get(mine, 0)) ? OK : fail(ERR_DIFF, "the value is %g", ours);
}
static Status from_local_run_check_broadcasts(Rank *r, Tensor **out) { return (void)out, own_number(r, true); }
static Status from_local_no_check_keeps(Rank *r, Tensor **out) { return (void)out, own_number(r, false); }

static Status from_local_shares_memory(Rank *r, Tensor **out) {
  Tensor *x, *t;
  TRY(x_of(r, &x));
  TRY(from_local(r, x, "a=4", "S(0)", &(FromLocal){0}, &t));
  (void)out;
  return t->local->storage == x->storage ? OK : fail(ERR_DIFF, "a copy");
}

/* ---- redistribute ---------------------------------------------------------------------------------------- */

/* PyTorch keeps partial targets to itself. */
static Status to_partial(Rank *r, const char *from, const char *to, Tensor **out) {
  Tensor *x, *t;
  TRY(x_of(r, &x));
  TRY(place_tensor(r, x, "a=4", from, &t));
  TRY(redistribute(r, t, to, out));
  return sensible(r, *out, x);
}
static Status redistribute_to_partial(Rank *r, Tensor **out) { return to_partial(r, "R", "P(sum)", out); }
static Status redistribute_shard_to_partial(Rank *r, Tensor **out) { return to_partial(r, "S(0)", "P(sum)", out); }
static Status redistribute_partial_other_op(Rank *r, Tensor **out) {
  return to_partial(r, "P(sum)", "P(max)", out);
}

static Status redistributed(Rank *r, const char *from, const char *to, Tensor **out) {
  Tensor *t;
  TRY(place_x(r, "a=4", from, &t));
  return redistribute(r, t, to, out);
}
static Status redistribute_partial_same(Rank *r, Tensor **out) { return redistributed(r, "P(sum)", "P(sum)", out); }
static Status redistribute_negative_dim(Rank *r, Tensor **out) { return redistributed(r, "S(0)", "S(-1)", out); }

static Status redistribute_dim_out_of_range(Rank *r, Tensor **out) {
  Tensor *t;
  Placement p = place_s(2);
  TRY(place_x(r, "a=4", "S(0)", &t));
  return dtensor_redistribute(&r->ctx, &r->scope, t, NULL, &p, DT_NONE, out);
}

static Status redistribute_cross_mesh(Rank *r, Tensor **out) {
  Tensor *x, *t;
  Mesh *m;
  Placement p[2] = {place_s(0), place_r()};
  TRY(x_of(r, &x));
  TRY(place_tensor(r, x, "a=4", "S(0)", &t));
  TRY(mesh_parse(r->dist, "a=2,b=2", &m));
  TRY(dtensor_redistribute(&r->ctx, &r->scope, t, m, p, DT_NONE, out));
  return sensible(r, *out, x);
}

static Status redistribute_out_of_place(Rank *r, Tensor **out) {
  Tensor *t, *u;
  TRY(place_x(r, "a=4", "S(0)", &t));
  TRY(redistribute(r, t, "S(0)", &u));
  (void)out;
  return u != t && u->local->storage == t->local->storage ? OK
                                                          : fail(ERR_DIFF, "not another handle on the same memory");
}

static Status redistribute_forward_dtype(Rank *r, Tensor **out) {
  Tensor *t, *u;
  Placement p = place_r();
  TRY(place_x(r, "a=4", "P(sum)", &t));
  TRY(dtensor_redistribute(&r->ctx, &r->scope, t, NULL, &p, DT_BF16, &u));
  (void)out;
  return u->dtype == DT_BF16 && u->local->dtype == DT_BF16 ? OK : fail(ERR_DIFF, "another dtype");
}

/* ---- ops --------------------------------------------------------------------------------------------------- */

static Status add_plain(Rank *r, int ndim, const int64_t *size, Tensor **out) {
  Tensor *d, *t;
  TRY(place_x(r, "a=4", "S(0)", &d));
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
  TRY(place_x(r, "a=4", "S(0)", &d));
  return OP(&r->call, "aten.add.Scalar", out, val_tensor(d), val_int(2));
}

static Status cross_mesh_op(Rank *r, Tensor **out) {
  Tensor *d, *e;
  TRY(place_x(r, "a=4", "S(0)", &d));
  TRY(place_x(r, "a=2,b=2", "RR", &e));
  return OP(&r->call, "aten.add.Tensor", out, val_tensor(d), val_tensor(e));
}

static Status add_scalar_to_partial(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(local_two(r, "a=4", "P(sum)", 1, &d));
  return OP(&r->call, "aten.add.Scalar", out, val_tensor(d), val_int(1));
}
static Status mul_partial_by_scalar(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(local_two(r, "a=4", "P(sum)", 1, &d));
  return OP(&r->call, "aten.mul.Scalar", out, val_tensor(d), val_int(3));
}
static Status partial_times_partial(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(local_two(r, "a=4", "P(sum)", 1, &d));
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
  TRY(from_local(r, t, "a=4", "P(sum)", &(FromLocal){0}, &d));
  TRY(number_of(r, d, &v));
  (void)out;
  r->better = true;
  return val_as_float(&v) == 6 ? OK : fail(ERR_DIFF, "the value is %g", val_as_float(&v));
}

static Status item_on_shard(Rank *r, Tensor **out) {
  Tensor *t, *d;
  Value v;
  TRY(rank_arange(r, DT_F32, 1, (const int64_t[]){1}, 0, r->me, &t));
  TRY(from_local(r, t, "a=4", "S(0)", &(FromLocal){0}, &d));
  (void)out;
  return number_of(r, d, &v);
}

static Status compare_equal(Rank *r, bool spoil) {
  Tensor *d, *x, *e;
  bool equal;
  TRY(place_x(r, "a=4", "S(0)", &d));
  TRY(x_of(r, &x));
  if (spoil && r->me == 3) ((float *)tensor_data(d->local))[0] += 1;
  TRY(place_tensor(r, x, "a=4", "R", &e));
  TRY(dtensor_equal(&r->ctx, d, e, &equal));
  return equal == yyjson_get_bool(field(r->c, "equal")) ? OK : fail(ERR_DIFF, "equal: %d", equal);
}
static Status equal_op(Rank *r, Tensor **out) { return (void)out, compare_equal(r, false); }
static Status equal_op_false_on_one_rank(Rank *r, Tensor **out) { return (void)out, compare_equal(r, true); }

static Status inplace_on_partial_relu(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(place_x(r, "a=4", "P(sum)", &d));
  return OP(&r->call, "aten.relu_.default", out, val_tensor(d));
}

static Status inplace_add_needs_redistribute(Rank *r, Tensor **out) {
  Tensor *x, *d, *e, *sum;
  TRY(rank_arange(r, DT_F32, 2, (const int64_t[]){8, 12}, 1, 0, &x));
  TRY(place_tensor(r, x, "a=4", "S(0)", &d));
  TRY(place_tensor(r, x, "a=4", "S(1)", &e));
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
  TRY(place_tensor(r, x, "a=4", "S(0)", &d));
  int n = arg.kind == VAL_NONE ? 1 : 2;
  TRY(op_call(&r->call, op, &plain, 1, (const Value[]){val_tensor(x), arg}, n));
  TRY(op_call(&r->call, op, out, 1, (const Value[]){val_tensor(d), arg}, n));
  return sensible(r, *out, plain);
}
static Status unsupported_op(Rank *r, Tensor **out) {
  return like_one_rank(r, "aten.nonzero.default", 8, val_none(), out);
}
static Status view_unshardable(Rank *r, Tensor **out) {
  return like_one_rank(r, "aten.view.default", 4, val_ints((const int64_t[]){3, 4}, 2), out);
}
static Status reshape_unshardable(Rank *r, Tensor **out) {
  return like_one_rank(r, "aten.reshape.default", 4, val_ints((const int64_t[]){3, 4}, 2), out);
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
  TRY(place_x(r, "a=4", "P(sum)", &d));
  (void)out;
  return dtensor_chunks(d, &r->arena, &list);
}

static Status deepcopy(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(place_x(r, "a=4", "S(0)", &d));
  TRY(OP(&r->call, "aten.clone.default", out, val_tensor(d)));
  return (*out)->local->storage != d->local->storage ? OK : fail(ERR_DIFF, "the same memory");
}

static Status to_dtype(Rank *r, Tensor **out) {
  Tensor *d;
  TRY(place_x(r, "a=4", "P(sum)", &d));
  TRY(OP(&r->call, "aten.to.dtype", out, val_tensor(d), val_dtype(DT_BF16)));
  return (*out)->dtype == DT_BF16 ? OK : fail(ERR_DIFF, "another dtype");
}

static Status to_local_no_grad_identity(Rank *r, Tensor **out) {
  Tensor *d, *local;
  TRY(place_x(r, "a=4", "S(0)", &d));
  TRY(dtensor_to_local(&r->ctx, &r->scope, d, &local));
  (void)out;
  return local->storage == d->local->storage ? OK : fail(ERR_DIFF, "a copy");
}

static Status repr(Rank *r, Tensor **out) {
  Tensor *t, *d;
  char text[400];
  static const char ours[] = "DTensor(f32[4], Mesh(a=4), [S(0)], local f32[1])";
  TRY(rank_arange(r, DT_F32, 1, (const int64_t[]){4}, 0, 1, &t));
  TRY(place_tensor(r, t, "a=4", "S(0)", &d));
  (void)out;
  return strcmp(dtensor_print(d, text, sizeof text), ours) ? fail(ERR_DIFF, "%s", text) : OK;
}

/* ---- factories and meshes -------------------------------------------------------------------------------------
 */

static Status zeros(Rank *r, Mesh *m, const char *place, Tensor **out) {
  Placement p[MAX_AXES];
  int n;
  TRY(placements_parse(place, 2, p, &n));
  return dtensor_fill(&r->ctx, &r->scope, m, p, DT_F32, 2, size_x, 0, out);
}

static Status factory_dim_out_of_range(Rank *r, Tensor **out) {
  Mesh *m;
  Placement p = place_s(2);
  TRY(mesh_parse(r->dist, "a=4", &m));
  return dtensor_fill(&r->ctx, &r->scope, m, &p, DT_F32, 2, size_x, 0, out);
}

static Status factory_negative_dim(Rank *r, Tensor **out) {
  Mesh *m;
  TRY(mesh_parse(r->dist, "a=4", &m));
  TRY(zeros(r, m, "S(-1)", out));
  r->better = true;
  return is_s_of(&(*out)->spec->place[0], 1) ? OK : fail(ERR_DIFF, "not S(1)");
}

static Status first_three(Rank *r, Mesh **out) { return mesh_parse(r->dist, "a=3", out); }
static Status submesh_distribute(Rank *r, Tensor **out) { return place_x(r, "a=3", "S(0)", out); }
static Status submesh_factory(Rank *r, Tensor **out) {
  Mesh *m;
  TRY(first_three(r, &m));
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
  return (void)out, mesh_parse(r->dist, "a=5", &m);
}
static Status mesh_slice_unknown(Rank *r, Tensor **out) {
  Mesh *m;
  TRY(mesh_parse(r->dist, "a=2,b=2", &m));
  (void)out;
  return mesh_axis_named(m, "zz") < 0 ? fail(ERR_USAGE, "no axis zz") : OK;
}

/* ---- the table
 * --------------------------------------------------------------------------------------------------- */

static const char count_fixed[] = "there are as many placements as the mesh has axes",
                  always_given[] = "the argument is always given", gradients[] = "gradients of DTensors come later",
                  modules[] = "modules belong to the public API: unit/test_dtensor.c, python/tests/test_module.py",
                  only_dense[] = "tensors are strided, sizes a list";

#define DO(name) \
  { #name, name, NULL }
#define SKIP(name, why) \
  { #name, NULL, why }

static const struct {
  const char *name;
  Behave *fn;
  const char *why; /* skipped */
} table[] = {
    SKIP(distribute_len_mismatch, count_fixed),
    SKIP(distribute_len_mismatch_2d, count_fixed),
    DO(distribute_dim_out_of_range),
    DO(distribute_dim_far_out_of_range),
    DO(distribute_negative_dim),
    DO(distribute_dim_below_range),
    DO(distribute_scalar_shard),
    DO(distribute_scalar_replicate),
    SKIP(distribute_non_leaf, gradients),
    DO(distribute_partial_sum),
    DO(distribute_partial_avg),
    DO(distribute_partial_product),
    DO(distribute_mixed_partial),
    DO(distribute_sum_avg_mixed_ok),
    DO(distribute_dtensor_same),
    DO(distribute_dtensor_other_placement),
    DO(distribute_dtensor_other_mesh),
    SKIP(distribute_default_replicates, always_given),
    SKIP(distribute_keeps_requires_grad, gradients),
    DO(distribute_meta),
    SKIP(distribute_no_mesh, always_given),
    SKIP(distribute_mesh_context, always_given),
    DO(from_local_dtensor),
    DO(from_local_mixed_partial),
    SKIP(from_local_default, always_given),
    DO(from_local_negative_dim),
    DO(from_local_dim_out_of_range),
    SKIP(from_local_len_mismatch_short, count_fixed),
    SKIP(from_local_len_mismatch_long, count_fixed),
    DO(from_local_shape_without_stride),
    DO(from_local_uneven_silent),
    DO(from_local_uneven_run_check),
    DO(from_local_run_check_dtype),
    DO(from_local_run_check_broadcasts),
    DO(from_local_no_check_keeps),
    DO(from_local_shares_memory),
    SKIP(redistribute_no_placements, always_given),
    DO(redistribute_to_partial),
    DO(redistribute_shard_to_partial),
    DO(redistribute_partial_other_op),
    DO(redistribute_partial_same),
    DO(redistribute_cross_mesh),
    SKIP(redistribute_len_mismatch_short, count_fixed),
    SKIP(redistribute_len_mismatch_long, count_fixed),
    DO(redistribute_dim_out_of_range),
    DO(redistribute_negative_dim),
    DO(redistribute_out_of_place),
    DO(redistribute_forward_dtype),
    SKIP(redistribute_forward_dtype_grad, gradients),
    SKIP(redistribute_backward_dtype_grad, gradients),
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
    SKIP(factory_requires_grad, gradients),
    SKIP(factory_no_mesh, always_given),
    DO(submesh_distribute),
    DO(submesh_factory),
    DO(submesh_op),
    DO(submesh_redistribute),
    DO(mesh_too_big),
    DO(mesh_slice_unknown),
};

static Behave *find_behaviour(const char *name, const char **why) {
  *why = strncmp(name, "module_", 7) ? NULL : modules;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (strcmp(name, table[i].name)) continue;
    *why = table[i].why;
    return table[i].fn;
  }
  return NULL;
}

/* A list, or one per rank. */
static yyjson_val *for_rank(yyjson_val *list, int rank) {
  yyjson_val *mine = yyjson_arr_get(list, (size_t)rank);
  return yyjson_is_arr(mine) ? mine : list;
}

static Status compare(Rank *r, Tensor *t) {
  yyjson_val *places = field(r->c, "placements"), *size = field(r->c, "global"),
             *local = field(r->c, "local_shape"), *full = field(r->c, "full");
  Placement p[MAX_AXES];
  int n;
  char text[200];
  if (places && (!read_placements(places, t->ndim, p, &n) || !placements_equal(p, t->spec->place, n)))
    return fail(ERR_DIFF, "placed %s", placements_print(t->spec->place, t->spec->mesh->naxes, text, sizeof text));
  if (size) TRY(rank_same_ints(for_rank(size, r->me), t->size, t->ndim, "global size"));
  if (local) TRY(rank_same_ints(for_rank(local, r->me), t->local->size, t->local->ndim, "local size"));
  if (!full) return OK;
  Tensor *ours;
  TRY(dtensor_full(&r->ctx, &r->scope, t, &ours));
  for (int64_t i = 0; i < tensor_numel(ours); i++)
    if ((double)((float *)tensor_data(ours))[i] != yyjson_get_num(yyjson_arr_get(full, (size_t)i)))
      return fail(ERR_DIFF, "element %lld is %g", (long long)i, (double)((float *)tensor_data(ours))[i]);
  return OK;
}

static Status behave(Rank *r) {
  const char *why;
  Tensor *t = NULL;
  Status s = find_behaviour(yyjson_get_str(field(r->c, "name")), &why)(r, &t);
  if (s && field(r->c, "error") && status_code(s) != ERR_DIFF) {
    status_free(s);
    r->refused = true;
    return OK;
  }
  TRY(s);
  return t && !field(r->c, "error") ? compare(r, t) : OK;
}

Verdict case_behaviour(Case *c) {
  const char *name = yyjson_get_str(field(c, "name")), *why;
  Behave *fn = find_behaviour(name, &why);
  if (!fn) return why ? skipped(c, "%s", why) : wrong(c, "no behaviour is called '%s'", name);
  return on_ranks(c, yyjson_get_int(field(c, "ranks")), behave);
}
