/* behaviour_make.c -- making and moving DTensors; see behaviour.h. */
#include <string.h>

#include "behaviour.h"
#include "dist/dist.h"
#include "grad/tape.h"

/* ---- distribute ---------------------------------------------------------------------------------- */

static Status bad_dim(Rank *r, int dim, Tensor **out) {
  Mesh *m;
  Tensor *x;
  Placement p = place_s(dim);
  TRY(x_of(r, &x));
  TRY(case_mesh(r, "a", &m));
  return dtensor_distribute(&r->ctx, &r->scope, x, m, &p, 0, out);
}

static Status distribute_dim_out_of_range(Rank *r, Tensor **out) { return bad_dim(r, 2, out); }
static Status distribute_dim_far_out_of_range(Rank *r, Tensor **out) { return bad_dim(r, 5, out); }
static Status distribute_negative_dim(Rank *r, Tensor **out) { return place_x(r, "a", "S(-1)", out); }
static Status distribute_dim_below_range(Rank *r, Tensor **out) { return place_x(r, "a", "S(-3)", out); }

static Status distribute_scalar(Rank *r, const char *place, Tensor **out) {
  Tensor *t;
  TRY(rank_arange(r, DT_F32, 0, NULL, 0, 1, &t));
  return place_tensor(r, t, "a", place, out);
}
static Status distribute_scalar_shard(Rank *r, Tensor **out) { return distribute_scalar(r, "S(0)", out); }
static Status distribute_scalar_replicate(Rank *r, Tensor **out) { return distribute_scalar(r, "R", out); }

/* As many as there are ranks everywhere, as parts: whatever the split, they come back. */
static Status distribute_fours(Rank *r, const char *place, Tensor **out) {
  Tensor *t, *full;
  TRY(rank_arange(r, DT_F32, 1, (const int64_t[]){2}, 0, world_size(r->w), &t));
  TRY(place_tensor(r, t, "a", place, out));
  TRY(dtensor_full(&r->ctx, &r->scope, *out, &full));
  return rank_same(r, full, t, "the whole");
}
static Status distribute_partial_sum(Rank *r, Tensor **out) { return distribute_fours(r, "P(sum)", out); }
static Status distribute_partial_avg(Rank *r, Tensor **out) { return distribute_fours(r, "P(avg)", out); }

static Status distribute_partial_product(Rank *r, Tensor **out) {
  Tensor *x;
  TRY(x_of(r, &x));
  TRY(place_tensor(r, x, "a", "P(product)", out));
  return sensible(r, *out, x);
}

static Status distribute_mixed_partial(Rank *r, Tensor **out) { return place_x(r, "a,b", "P(sum)P(max)", out); }
static Status distribute_sum_avg_mixed_ok(Rank *r, Tensor **out) { return place_x(r, "a,b", "P(sum)P(avg)", out); }

static Status distribute_dtensor_same(Rank *r, Tensor **out) {
  Tensor *t, *again;
  TRY(place_x(r, "a", "S(0)", &t));
  TRY(place_tensor(r, t, "a", "S(0)", &again));
  (void)out;
  return again->spec == t->spec && again->local->storage == t->local->storage ? OK
                                                                              : fail(ERR_DIFF, "another tensor");
}

static Status distribute_dtensor_other_placement(Rank *r, Tensor **out) {
  Tensor *t;
  TRY(place_x(r, "a", "S(0)", &t));
  return place_tensor(r, t, "a", "R", out);
}

static Status distribute_dtensor_other_mesh(Rank *r, Tensor **out) {
  Tensor *t;
  TRY(place_x(r, "a", "S(0)", &t));
  return place_tensor(r, t, "a,b", "RR", out);
}

static Status distribute_meta(Rank *r, Tensor **out) {
  Tensor *t;
  TRY(tensor_meta(&r->scope, DT_F32, 2, size_x, &t));
  return place_tensor(r, t, "a", "S(0)", out);
}

/* ---- from_local -------------------------------------------------------------------------------------- */

static Status from_local_x(Rank *r, const char *mesh, const char *place, Tensor **out) {
  Tensor *x;
  TRY(x_of(r, &x));
  return from_local(r, x, mesh, place, &(FromLocal){0}, out);
}

static Status from_local_dtensor(Rank *r, Tensor **out) {
  Tensor *t;
  TRY(place_x(r, "a", "S(0)", &t));
  return from_local(r, t, "a", "R", &(FromLocal){0}, out);
}
static Status from_local_mixed_partial(Rank *r, Tensor **out) {
  return from_local_x(r, "a,b", "P(sum)P(max)", out);
}
static Status from_local_negative_dim(Rank *r, Tensor **out) { return from_local_x(r, "a", "S(-1)", out); }

static Status from_local_dim_out_of_range(Rank *r, Tensor **out) {
  Tensor *x;
  Mesh *m;
  Placement p = place_s(2);
  TRY(x_of(r, &x));
  TRY(case_mesh(r, "a", &m));
  return dtensor_from_local(&r->ctx, &r->scope, x, m, &p, &(FromLocal){0}, out);
}

static Status from_local_shape_without_stride(Rank *r, Tensor **out) {
  Tensor *x;
  TRY(x_of(r, &x));
  return from_local(r, x, "a", "S(0)", &(FromLocal){.shape = (const int64_t[]){100, 3}, .ndim = 2}, out);
}

static Status uneven(Rank *r, bool check, Tensor **out) {
  Tensor *t;
  TRY(rank_arange(r, DT_F32, 2, (const int64_t[]){r->me + 1, 2}, 1, 0, &t));
  return from_local(r, t, "a", "S(0)", &(FromLocal){.run_check = check}, out);
}
static Status from_local_uneven_silent(Rank *r, Tensor **out) { return uneven(r, false, out); }
static Status from_local_uneven_run_check(Rank *r, Tensor **out) { return uneven(r, true, out); }

static Status from_local_run_check_dtype(Rank *r, Tensor **out) {
  Tensor *t;
  TRY(rank_arange(r, r->me ? DT_F32 : DT_F64, 2, size_x, 1, 0, &t));
  return from_local(r, t, "a", "S(0)", &(FromLocal){.run_check = true}, out);
}

static Status own_number(Rank *r, bool check) {
  Tensor *t, *d;
  yyjson_val *value = field(r->c, "value"), *mine = yyjson_arr_get(value, (size_t)r->me);
  if (!yyjson_is_arr(mine)) mine = value;
  TRY(rank_arange(r, DT_F32, 1, (const int64_t[]){1}, 0, r->me, &t));
  TRY(from_local(r, t, "a", "R", &(FromLocal){.run_check = check}, &d));
  double ours = (double)*(float *)tensor_data(d->local);
  return ours == yyjson_get_num(yyjson_arr_get(mine, 0)) ? OK : fail(ERR_DIFF, "the value is %g", ours);
}
static Status from_local_run_check_broadcasts(Rank *r, Tensor **out) { return (void)out, own_number(r, true); }
static Status from_local_no_check_keeps(Rank *r, Tensor **out) { return (void)out, own_number(r, false); }

static Status from_local_shares_memory(Rank *r, Tensor **out) {
  Tensor *x, *t;
  TRY(x_of(r, &x));
  TRY(from_local(r, x, "a", "S(0)", &(FromLocal){0}, &t));
  (void)out;
  return t->local->storage == x->storage ? OK : fail(ERR_DIFF, "a copy");
}

/* ---- redistribute ---------------------------------------------------------------------------------------- */

/* PyTorch keeps targets that owe to itself. */
static Status to_partial(Rank *r, const char *from, const char *to, Tensor **out) {
  Tensor *x, *t;
  TRY(x_of(r, &x));
  TRY(place_tensor(r, x, "a", from, &t));
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
  TRY(place_x(r, "a", from, &t));
  return redistribute(r, t, to, out);
}
static Status redistribute_partial_same(Rank *r, Tensor **out) { return redistributed(r, "P(sum)", "P(sum)", out); }
static Status redistribute_negative_dim(Rank *r, Tensor **out) { return redistributed(r, "S(0)", "S(-1)", out); }

static Status redistribute_dim_out_of_range(Rank *r, Tensor **out) {
  Tensor *t;
  Placement p = place_s(2);
  TRY(place_x(r, "a", "S(0)", &t));
  return dtensor_redistribute(&r->ctx, &r->scope, t, NULL, &p, DT_NONE, out);
}

static Status redistribute_cross_mesh(Rank *r, Tensor **out) {
  Tensor *x, *t;
  Mesh *m;
  Placement p[2] = {place_s(0), place_r()};
  TRY(x_of(r, &x));
  TRY(place_tensor(r, x, "a", "S(0)", &t));
  TRY(case_mesh(r, "a,b", &m));
  TRY(dtensor_redistribute(&r->ctx, &r->scope, t, m, p, DT_NONE, out));
  return sensible(r, *out, x);
}

static Status redistribute_out_of_place(Rank *r, Tensor **out) {
  Tensor *t, *u;
  TRY(place_x(r, "a", "S(0)", &t));
  TRY(redistribute(r, t, "S(0)", &u));
  (void)out;
  return u != t && u->local->storage == t->local->storage ? OK
                                                          : fail(ERR_DIFF, "not another handle on the same memory");
}

static Status redistribute_forward_dtype(Rank *r, Tensor **out) {
  Tensor *t, *u;
  Placement p = place_r();
  TRY(place_x(r, "a", "P(sum)", &t));
  TRY(dtensor_redistribute(&r->ctx, &r->scope, t, NULL, &p, DT_BF16, &u));
  (void)out;
  return u->dtype == DT_BF16 && u->local->dtype == DT_BF16 ? OK : fail(ERR_DIFF, "another dtype");
}

/* ---- gradients ------------------------------------------------------------------------------------- */

static Status redistribute_grad(Rank *r, Dtype forward, Dtype backward) {
  Tape tape;
  Tensor *t, *u, *s, *g;
  Placement p = place_r();
  TRY(place_x(r, "a", "S(0)", &t));
  tape_begin(&tape, &r->ctx);
  Status status = tape_require(&tape, &r->scope, t, &t);
  if (!status) status = dtensor_redistribute_as(&r->ctx, &r->scope, t, NULL, &p, forward, backward, &u);
  if (!status) status = OP(&r->call, "aten.sum.default", &s, val_tensor(u));
  if (!status) status = tape_gradients(&tape, &s, NULL, 1, &t, 1, &(Backward){0}, &r->scope, &g);
  tape_end(&tape);
  TRY(status);
  const char *out = yyjson_get_str(field(r->c, "out_dtype")), *grad = yyjson_get_str(field(r->c, "grad_dtype"));
  bool right = u->dtype == (strstr(out, "bfloat16") ? DT_BF16 : DT_F32) && strstr(grad, "float32") &&
               g->dtype == DT_F32 && *(float *)tensor_data(g->local) == 1;
  return right ? OK : fail(ERR_DIFF, "another dtype or gradient");
}

static Status redistribute_forward_dtype_grad(Rank *r, Tensor **out) {
  (void)out;
  return redistribute_grad(r, DT_BF16, DT_NONE);
}
static Status redistribute_backward_dtype_grad(Rank *r, Tensor **out) {
  (void)out;
  return redistribute_grad(r, DT_NONE, DT_BF16);
}

static Status distribute_with_grad(Rank *r, bool leaf, bool *is_leaf, Tensor **out, Tensor **gradient) {
  Tape tape;
  Tensor *x, *y, *s;
  Mesh *m;
  Placement p = place_s(0);
  TRY(case_mesh(r, "a", &m));
  TRY(x_of(r, &x));
  tape_begin(&tape, &r->ctx);
  Status status = tape_require(&tape, &r->scope, x, &x);
  y = x;
  if (!status && !leaf) status = OP(&r->call, "aten.mul.Scalar", &y, val_tensor(x), val_int(2));
  if (!status) status = tape_distribute(&tape, &r->scope, y, m, &p, 0, out);
  if (!status) *is_leaf = tensor_is_leaf(*out);
  if (!status && !leaf) {
    status = OP(&r->call, "aten.sum.default", &s, val_tensor(*out));
    if (!status) status = tape_gradients(&tape, &s, NULL, 1, &x, 1, &(Backward){0}, &r->scope, gradient);
  }
  tape_end(&tape);
  return status;
}

/* PyTorch refuses; here the gradient flows on. */
static Status distribute_non_leaf(Rank *r, Tensor **out) {
  bool leaf = true;
  Tensor *g;
  TRY(distribute_with_grad(r, false, &leaf, out, &g));
  r->better = true;
  for (int64_t i = 0; i < tensor_numel(g); i++)
    if (((float *)tensor_data(g))[i] != 2) return fail(ERR_DIFF, "the gradient is not 2");
  return g->spec || leaf ? fail(ERR_DIFF, "a plain tensor has a plain gradient") : OK;
}

static Status distribute_keeps_requires_grad(Rank *r, Tensor **out) {
  bool leaf = false;
  TRY(distribute_with_grad(r, true, &leaf, out, NULL));
  return tensor_requires_grad(*out) && leaf ? OK : fail(ERR_DIFF, "it is no leaf that requires a gradient");
}

/* ---- the table ------------------------------------------------------------------------------------ */

static const char count_fixed[] = "there are as many placements as the mesh has axes",
                  always_given[] = "the argument is always given";

const Behaviour behaviours_make[] = {
    SKIP(distribute_len_mismatch, count_fixed),
    SKIP(distribute_len_mismatch_2d, count_fixed),
    DO(distribute_dim_out_of_range),
    DO(distribute_dim_far_out_of_range),
    DO(distribute_negative_dim),
    DO(distribute_dim_below_range),
    DO(distribute_scalar_shard),
    DO(distribute_scalar_replicate),
    DO(distribute_non_leaf),
    DO(distribute_partial_sum),
    DO(distribute_partial_avg),
    DO(distribute_partial_product),
    DO(distribute_mixed_partial),
    DO(distribute_sum_avg_mixed_ok),
    DO(distribute_dtensor_same),
    DO(distribute_dtensor_other_placement),
    DO(distribute_dtensor_other_mesh),
    SKIP(distribute_default_replicates, always_given),
    DO(distribute_keeps_requires_grad),
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
    DO(redistribute_forward_dtype_grad),
    DO(redistribute_backward_dtype_grad),
    {0},
};
