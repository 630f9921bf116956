/* Whatever is given to an op is refused with words or computed with, and never crashes it: kinds
 * and lengths by binding, sizes, dtypes and numbers by the ops.  tests/fuzz/fuzz_ops.c looks for
 * more; what it found is here. */
#include <math.h>

#include "graph/graph.h"
#include "ops/op.h"
#include "unit.h"

typedef struct {
  Ctx ctx;
  Scope scope;
  Arena arena;
} Room;

static int begin(void **state) {
  Room *r = calloc(1, sizeof *r);
  if (!r) return -1;
  ctx_init(&r->ctx, 1);
  *state = r;
  return 0;
}

static int end(void **state) {
  Room *r = *state;
  scope_clear(&r->scope);
  arena_free(&r->arena);
  ctx_free(&r->ctx);
  free(r);
  return 0;
}

static Value tensor(Room *r, Dtype d, int ndim, const int64_t *size) {
  Tensor *t;
  assert_ok(tensor_new(&r->scope, d, ndim, size, &t));
  memset(tensor_data(t), 0, (size_t)tensor_numel(t) * dtype_size(d));
  return val_tensor(t);
}
#define SIZE(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }
#define T(d, ...) tensor(r, DT_##d, SIZE(__VA_ARGS__))
#define T0(d) tensor(r, DT_##d, 0, NULL)
#define INTS(...) \
  val_ints((const int64_t[]){__VA_ARGS__}, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

static Value tensors(Room *r, int n, const Value *each) {
  Tensor **list = arena_new_n(&r->arena, Tensor *, n);
  assert_non_null(list);
  for (int i = 0; i < n; i++) list[i] = each[i].kind == VAL_TENSOR ? each[i].tensor : NULL;
  return val_tensors(list, n);
}
#define LIST(...) tensors(r, (int)(sizeof((Value[]){__VA_ARGS__}) / sizeof(Value)), (const Value[]){__VA_ARGS__})
#define NOTHING val_tensors(NULL, 0)

static Status run(Room *r, const char *name, const Value *args, int n, Tensor **out) {
  Call c = {.ctx = &r->ctx, .op = op_find(name), .scope = &r->scope, .arena = &r->arena};
  NamedValue given[MAX_PARAMS];
  Value bound[MAX_PARAMS];
  assert_non_null(c.op);
  for (int i = 0; i < n; i++) given[i] = (NamedValue){NULL, args[i]};
  TRY(op_bind(&r->arena, c.op, given, n, bound));
  c.arg = bound;
  TRY(op_dispatch(&c));
  if (out) *out = c.nout ? out_tensor(&c, 0) : NULL;
  return OK;
}
#define CALL(name, ...) run(r, name, OP_ARGS(__VA_ARGS__), NULL)
#define REFUSED(words, name, ...) assert_error(CALL(name, __VA_ARGS__), words)

/* ---- kinds: binding -------------------------------------------------------------------------- */

static void kinds_are_checked(void **state) {
  Room *r = *state;
  REFUSED("argument 'self' must be a Tensor, not an int", "aten.neg.default", val_int(3));
  REFUSED("argument 'self' must be a Tensor, not a float", "aten.gelu.default", val_float(3));
  REFUSED("must be a Tensor, not an int", "aten.polar.default", T(F32, 2), val_int(3));
  REFUSED("argument 'mat2' must be a Tensor, not an int", "aten.mm.default", T(F32, 2, 2), val_int(3));
  REFUSED("argument 'self' must be a Tensor, not a str", "aten.add.Tensor", val_str("x"), val_int(3));
  REFUSED("argument 'self' must be a Tensor", "aten.add_.Tensor", val_int(3), T(F32, 2));
  REFUSED("argument 'dim' must be an int, not a float", "aten.unsqueeze.default", T(F32, 2), val_float(1));
  REFUSED("argument 'other' must be a Scalar, not a Tensor", "aten.mul.Scalar", T(F32, 2), T(F32, 2));
  REFUSED("argument 'size' must be an int[]", "aten.zeros.default", val_str("x"));
  REFUSED("argument 'self' is missing", "aten.neg.default", val_none());
}

/* Exported programs have numbers where the schema says Tensor. */
static void numbers_stay_numbers(void **state) {
  Room *r = *state;
  Tensor *out = NULL;
  assert_ok(run(r, "aten.add.Tensor", OP_ARGS(T(F16, 2), val_float(3)), &out));
  assert_int_equal(out->dtype, DT_F16);
  assert_ok(run(r, "aten.mul_.Tensor", OP_ARGS(T(F32, 2), val_int(3)), &out));
  assert_ok(run(r, "aten.mul.Scalar", OP_ARGS(T(F32, 2), T0(F64)), &out)); /* read as a number */
  assert_int_equal(out->dtype, DT_F32);
}

static void lists_are_checked(void **state) {
  Room *r = *state;
  REFUSED("element 1 is None", "aten.cat.default", LIST(T(F32, 2), val_none()), val_int(0));
  REFUSED("argument 'kernel_size' must be an int[2], not a list of 3", "aten.avg_pool2d.default", T(F32, 1, 4, 4),
          INTS(2, 2, 2));
  Value mixed[] = {val_int(1), val_str("x")};
  REFUSED("element 1 is str", "aten.zeros.default", (Value){.kind = VAL_LIST, .n = 2, .list = mixed});
  REFUSED("must be an int[]", "aten.zeros.default", (Value){.kind = VAL_INTS, .n = -1});
  REFUSED("must be an int[]", "aten.zeros.default", (Value){.kind = VAL_INTS, .n = 3});
  int64_t *many = arena_new_n(&r->arena, int64_t, 5000);
  REFUSED("dimensions", "aten.zeros.default", val_ints(many, 5000));
  REFUSED("dimension", "aten.permute.default", T(F32, 2), val_ints(many, 5000));
  assert_ok(CALL("aten.max_pool2d.default", T(F32, 1, 4, 4), INTS(2, 2), val_ints(NULL, 0))); /* stride=[] */
}

static void dtypes_are_checked(void **state) {
  Room *r = *state;
  for (int d = -20; d < 60; d++) {
    if (d >= 0 && d < DT_COUNT) continue;
    Value no = {.kind = VAL_DTYPE, .dtype = (Dtype)d};
    REFUSED("must be a ScalarType", "aten.zeros.default", INTS(2), no);
  }
  Tensor *out = NULL;
  assert_error(tensor_meta(&r->scope, DT_NONE, 0, NULL, &out), "needs a dtype");
}

/* The verifier binds as a call does. */
static void the_verifier_says_the_same(void **state) {
  (void)state;
  static const struct {
    const char *body, *words;
  } cases[] = {
      {"aten.neg.default(3)", "argument 'self' must be a Tensor, not an int"},
      {"aten.avg_pool2d.default(%x, [1, 2, 3])", "argument 'kernel_size' must be an int[2], not a list of 3"},
      {"aten.cat.default([%x, None])", "element 1 is None"},
      {"aten.unsqueeze.default(%x, \"a\")", "argument 'dim' must be an int, not a str"},
      {"aten.add.Tensor(%x, 3)", NULL},
      {"aten.mean.dim(%x, [0])", NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[256];
    Exported *e = NULL;
    snprintf(text, sizeof text, "graph(%%x: f32[4,4] = user) {\n  %%y: f32[4,4] = %s\n  return user %%y\n}\n",
             cases[i].body);
    Status s = graph_parse(text, strlen(text), "test", &e);
    if (!s) s = graph_verify(e);
    if (cases[i].words) assert_error(s, cases[i].words);
    else assert_ok(s);
    exported_free(e);
  }
}

/* ---- sizes, dtypes and numbers: the ops ------------------------------------------------------- */

static void views_stay_in_their_storage(void **state) {
  Room *r = *state;
  Tensor *slice = NULL;
  REFUSED("aten.as_strided", "aten.as_strided_copy.default", T(F32, 4), INTS(100), INTS(1));
  REFUSED("aten.as_strided", "aten.as_strided.default", T(F32, 4), INTS(2), INTS(4));
  REFUSED("aten.as_strided", "aten.as_strided_copy.default", T(F32, 4), INTS(2), INTS(1), val_int(3));
  REFUSED("no storage offset", "aten.as_strided.default", T(F32, 4), INTS(0), INTS(1), val_int(INT64_MAX));
  REFUSED("there is no stride", "aten.as_strided.default", T(F32, 4), INTS(0, 2), INTS(INT64_MAX - 1, 2));
  REFUSED("reach beyond any storage", "aten.as_strided.default", T(F32, 4), INTS(20, 2), INTS(INT64_MAX / 16, 2));
  REFUSED("outside", "aten.as_strided_scatter.default", T(F32, 4), T(F32, 2), INTS(2), INTS(4));
  assert_ok(
      CALL("aten.as_strided_scatter.default", T(F32, 0), T(F32, 0), INTS(0), INTS(1), val_int(INT64_MAX / 16)));
  REFUSED("impossible size", "aten.expand.default", T(F32, 1), INTS(INT64_MAX, INT64_MAX, 1));
  REFUSED("", "aten.unflatten.int", T(F16, 4, 0), val_int(1), INTS(2, 0, 0, INT64_MAX - 1));
  REFUSED("no matrix", "aten.diag_embed.default", T(F32, 3, 3), val_int(INT64_MAX));
  REFUSED("not in a table", "tess.embedding_part.default", T(F32, 3, 3), T(I64, 2), val_int(INT64_MAX), val_int(0));
  REFUSED("impossible size", "aten.eye.m", val_int(0), val_int(INT64_MAX - 1));
  REFUSED("padding", "aten.constant_pad_nd.default", T(F32, 3), INTS(-5, 9));
  REFUSED("padding", "aten.constant_pad_nd.default", T(F32, 3), INTS(9, -5));
  assert_ok(CALL("aten.constant_pad_nd.default", T(F32, 3), INTS(-3, 4)));
  assert_ok(CALL("aten.diagonal.default", T(F32, 3, 3), val_int(INT64_MIN)));
  assert_ok(run(r, "aten.slice.Tensor", OP_ARGS(T(F32, 3), val_int(0), val_int(0), val_int(3), val_int(1ll << 62)),
                &slice));
  assert_non_null(slice);
  assert_true(slice->size[0] == 1 && slice->stride[0] <= INT64_MAX / 16); /* bytes are counted, too */
}

static void dtypes_that_do_not_go_together(void **state) {
  Room *r = *state;
  Tensor *out = NULL;
  REFUSED("c64", "aten.nansum.default", T(F32, 3), val_none(), val_bool(false), val_dtype(DT_C64));
  REFUSED("f64, c64", "aten.cat.default", LIST(T(F64, 2), T(C64, 2)));
  REFUSED("f64, c64", "aten.stack.default", LIST(T(F64, 2), T(C64, 2)));
  REFUSED("f64, c64", "aten.block_diag.default", LIST(T(F64, 2), T(C64, 2)));
  REFUSED("i64 class numbers", "aten.one_hot.default", T(BOOL, 3));
  REFUSED("not that of a half", "aten.glu_backward.default", T(F32, 3), T(F64, 6), val_int(0));
  REFUSED("not that of a half", "aten.glu_backward.default", T(F32, 4), T(F32, 6), val_int(0));
  REFUSED("cannot be converted", "aten.index_add.default", T(BOOL, 2), val_int(0), T(I64, 2), T(U64, 2),
          val_int(2));
  REFUSED("complex128", "aten.float_power.Tensor_Tensor", T(U64, 2), T(C64, 2)); /* one error, not two */
  REFUSED("no order", "aten.msort.default", T(C128, 3));
  assert_ok(run(r, "aten.elu_backward.default",
                OP_ARGS(T(F32, 3), val_int(1), val_int(1), val_int(1), val_bool(false), T(F64, 3)), &out));
  assert_int_equal(out->dtype, DT_F64);
}

static void vectors_go_together(void **state) {
  Room *r = *state;
  const char *cross = "aten.linalg_cross.default", *dot = "aten.linalg_vecdot.default";
  REFUSED("3 elements along dimension 1", cross, T(F32, 2, 3), T(F32, 2, 1));
  REFUSED("same number of dimensions", cross, T(F32, 2, 3), T(F32, 3));
  REFUSED("without dimensions", cross, T0(F32), T0(F32));
  REFUSED("one dtype", cross, T(F32, 3), T(F64, 3));
  REFUSED("not defined for bool", cross, T(BOOL, 3), T(BOOL, 3));
  REFUSED("aten.linalg_cross", cross, T(U64, 3), T(U64, 3));
  REFUSED("aten.linalg_cross", cross, T(F32, 2, 3), T(F32, 4, 3));
  REFUSED("no dimension of 3", "aten.cross.default", T(F32, 2, 4), T(F32, 2, 4));
  REFUSED("floating point or complex", dot, T(I64, 3), T(I64, 3));
  REFUSED("one dtype", dot, T(F32, 3), T(F64, 3));
  REFUSED("one dtype", "aten.isclose.default", T(F32, 3), T(F64, 3));
  REFUSED("must not be negative", "aten.isclose.default", T(F32, 3), T(F32, 3), val_float(-1));
  REFUSED("not defined for f32", "aten.gcd.default", T(F32, 3), T(F32, 3));
}

static void optimizer_lists_go_together(void **state) {
  Room *r = *state;
  const Value f = val_float(0.5), no = val_bool(false);
  REFUSED("'grads' has 0 tensors for 1 parameters", "aten._fused_sgd_.default", LIST(T(F32, 2)), NOTHING, NOTHING,
          f, f, f, f, no, no, no);
  REFUSED("'momentum_buffer_list' has 0 tensors", "aten._fused_sgd_.default", LIST(T(F32, 2)), LIST(T(F32, 2)),
          NOTHING, f, f, f, f, no, no, no);
  REFUSED("'state_steps' has 0 tensors", "aten._fused_adagrad_.default", LIST(T(F32, 2)), LIST(T(F32, 2)),
          LIST(T(F32, 2)), NOTHING, f, f, f, f, no);
  REFUSED("a step count must be a tensor of one number", "aten._fused_adagrad_.default", LIST(T(F32, 2)),
          LIST(T(F32, 2)), LIST(T(F32, 2)), LIST(T(F32, 0)), f, f, f, f, no);
  REFUSED("'exp_avgs' has 0 tensors", "aten._fused_adam_.default", LIST(T(F32, 2)), LIST(T(F32, 2)), NOTHING,
          NOTHING, NOTHING, LIST(T0(F32)), f, f, f, f, f, no, no);
  assert_ok(CALL("aten._fused_sgd_.default", NOTHING, NOTHING, NOTHING, f, f, f, f, no, no, no));
}

static void gradients_have_the_sizes_of_results(void **state) {
  Room *r = *state;
  const bool all[3] = {true, true, true};
  const Value mask = val_bools(all, 3), one = INTS(1, 1), none = INTS(0, 0);
  REFUSED("does not go with the input", "aten.native_layer_norm_backward.default", T(F32, 3, 3), T(F32, 2, 3),
          INTS(3), T(F32, 2), T(F32, 2), T(F32, 3), T(F32, 3), mask);
  REFUSED("one dtype", "aten.native_layer_norm_backward.default", T(F32, 2, 3), T(F32, 2, 3), INTS(3), T(F32, 2),
          T(F32, 2), T(F32, 3), T(F64, 3), mask);
  REFUSED("do not belong together", "aten._adaptive_avg_pool2d_backward.default", T(F32, 3, 2, 2), T(F32, 2, 4, 4));
  REFUSED("groups is 0", "aten.convolution_backward.default", T(F32, 1, 3, 3, 3), T(F32, 1, 3, 3, 3),
          T(F32, 3, 3, 1, 1), INTS(3), one, none, one, val_bool(false), none, val_int(0), mask);
  REFUSED("is not of the result's size", "aten.convolution_backward.default", T(F32, 1, 3, 9, 9),
          T(F32, 1, 3, 3, 3), T(F32, 3, 3, 1, 1), INTS(3), one, none, one, val_bool(false), none, val_int(1), mask);
  REFUSED("not that of the loss", "aten.nll_loss_backward.default", T(F32, 2), T(F32, 5, 5), T(I64, 5), val_none(),
          val_int(0), val_int(-100), T0(F32));
  REFUSED("N, C and HxW are 0, 6 and 3", "aten.native_group_norm.default", T(F32, 2, 6, 3), val_none(), val_none(),
          val_int(0), val_int(6), val_int(3), val_int(2), val_float(1e-5));
  REFUSED("not those of the input", "aten.native_group_norm_backward.default", T(F32, 1, 2), T(F32, 1, 2),
          T(F32, 1, 1), T(F32, 1, 1), val_none(), val_int(1), val_int(2), val_int(INT64_MAX), val_int(1), mask);
  REFUSED("maximum_indices", "aten._embedding_bag_dense_backward.default", T(F32, 4, 4), T(I64, 6), T(I64, 6),
          T(I64, 4), T(I64, 4), val_int(5), val_bool(false), val_int(2), val_none());
  REFUSED("a number per index", "aten._embedding_bag_per_sample_weights_backward.default", T(F32, 4, 3),
          T(F32, 9, 3), T(I64, 6), T(I64, 4), T(I64, 5), val_int(0));
  REFUSED("need mode sum", "aten._embedding_bag_per_sample_weights_backward.default", T(F32, 4, 3), T(F32, 9, 3),
          T(I64, 6), T(I64, 4), T(I64, 6), val_int(1));
}

/* Parts of tables and of bags lie in the whole. */
static void parts_of_bags(void **state) {
  Room *r = *state;
  const Value no = val_bool(false), none = val_none(), zero = val_int(0), big = val_int(INT64_MAX);
  REFUSED("not in a table", "tess.embedding_dense_backward_part.default", T(F32, 2, 3), T(I64, 2), val_int(4),
          val_int(-1), no, val_int(7), val_int(10));
  REFUSED("impossible size", "tess.embedding_dense_backward_part.default", T(F32, 2, 3), T(I64, 2),
          val_int(INT64_MIN), val_int(-1), no, zero, big);
  REFUSED("not among 4", "tess.embedding_bag_part.default", T(F32, 9, 3), T(I64, 6), T(I64, 4), no, zero, no, none,
          no, val_int(-1), zero, none, no, val_int(3), val_int(2));
  REFUSED("not among 4", "tess.embedding_bag_part.default", T(F32, 9, 3), T(I64, 6), T(I64, 4), no, zero, no, none,
          no, val_int(-1), zero, none, no, big, big);
  REFUSED("not in a table", "tess.embedding_bag_part.default", T(F32, 9, 3), T(I64, 6), T(I64, 4), no, zero, no,
          none, no, val_int(-1), val_int(2), val_int(10), no, zero, val_int(4));
  REFUSED("below zero", "tess.embedding_bag_backward_part.default", T(F32, 2, 3), T(I64, 6), T(I64, 6), T(I64, 2),
          T(I64, 2), val_int(4), no, zero, none, val_int(-1), val_int(INT64_MIN), zero, val_int(10));
  assert_ok(CALL("tess.embedding_bag_part.default", T(F32, 9, 3), T(I64, 0), T(I64, 4), no, zero, no, none, no,
                 val_int(-1), zero, none, no, val_int(4), zero));
}

/* Experts that are not there; a part of the experts that is none. */
static void experts(void **state) {
  Room *r = *state;
  const char *mm = "tess.expert_mm.default", *weight = "tess.expert_mm_weight.default";
  for (int i = 0; i < 2; i++) {
    Tensor *ids = NULL;
    assert_ok(run(r, "aten.full.default", OP_ARGS(INTS(3), val_int(i ? 4 : -1), val_dtype(DT_I64)), &ids));
    REFUSED(i ? "index 4 is out of bounds" : "index -1 is out of bounds", mm, T(F32, 3, 2), T(F32, 4, 2, 5),
            val_tensor(ids));
    REFUSED("is out of bounds", weight, T(F32, 3, 2), T(F32, 3, 5), val_tensor(ids), T(F32, 4, 2, 5));
  }
  REFUSED("is out of bounds", mm, T(F32, 3, 2), T(F32, 0, 2, 5), T(I64, 3));
  REFUSED("is out of bounds", "tess.expert_order.default", T(I64, 3), val_int(0));
  REFUSED("a number of experts", "tess.expert_order.default", T(I64, 3), val_int(-1));
  REFUSED("a number of experts", "tess.expert_order.default", T(F32, 3), val_int(2));
  REFUSED("an i32 or i64 per row", mm, T(F32, 3, 2), T(F32, 4, 2, 5), T(I64, 2));
  REFUSED("an i32 or i64 per row", mm, T(F32, 3, 2), T(F32, 4, 2, 5), T(F32, 3));
  REFUSED("[t,k] and weights [e,k,n]", mm, T(F32, 3, 2), T(F32, 4, 3, 5), T(I64, 3));
  REFUSED("no products of f32 and f16", mm, T(F32, 3, 2), T(F16, 4, 2, 5), T(I64, 3));
  REFUSED("no products of i64 and i64", mm, T(I64, 3, 2), T(I64, 4, 2, 5), T(I64, 3));
  REFUSED("a cotangent [t,n]", weight, T(F32, 3, 2), T(F32, 3, 4), T(I64, 3), T(F32, 4, 2, 5));
  REFUSED("are not among 5", mm, T(F32, 3, 2), T(F32, 4, 2, 5), T(I64, 3), val_int(2), val_int(5));
  REFUSED("are not among", mm, T(F32, 3, 2), T(F32, 4, 2, 5), T(I64, 3), val_int(INT64_MAX), val_int(INT64_MAX));
  assert_ok(CALL(mm, T(F32, 3, 2), T(F32, 4, 2, 5), T(I64, 3), val_int(INT64_MAX - 4), val_int(INT64_MAX)));
}

static void numbers_of_any_size(void **state) {
  Room *r = *state;
  const Value big = val_int(INT64_MAX), small = val_int(INT64_MIN);
  assert_ok(CALL("aten.tril.default", T(F32, 2, 2), big));
  assert_ok(CALL("aten.triu.default", T(F32, 2, 2), small));
  assert_ok(CALL("aten.tril_indices.default", val_int(1LL << 60), val_int(0), val_int(0)));
  assert_ok(CALL("aten.triu_indices.default", val_int(1LL << 40), val_int(3), val_int(0)));
  REFUSED("padding is", "aten.convolution.default", T(F32, 1, 1, 3), T(F32, 1, 1, 1), val_none(), INTS(1),
          INTS(INT64_MAX), INTS(1), val_bool(false), INTS(0), val_int(1));
  REFUSED("layers", "aten.gru.input", T(F32, 1, 1, 1), T(F32, 1, 1, 1), NOTHING, val_bool(true), big, val_float(0),
          val_bool(false), val_bool(false), val_bool(false));
  REFUSED("padding is", "aten.im2col.default", T(F32, 1, 3, 3), INTS(1, 1), INTS(1, 1), INTS(INT64_MAX, 1),
          INTS(1, 1));
  REFUSED("dimensions", "aten.istft.default", T(C64, 3), val_int(4));
  assert_ok(CALL("aten.special_legendre_polynomial_p.n_scalar", T(F32, 3), val_float(1e18)));
  REFUSED("not in a table", "tess.embedding_part.default", T(F32, 3, 3), T(I64, 2), val_int(0), small);
  assert_ok(CALL("aten.special_airy_ai.default", tensor(r, DT_F32, 0, NULL)));
  Tensor *far = NULL;
  assert_ok(run(r, "aten.full.default", OP_ARGS(INTS(2), val_float(1e300), val_dtype(DT_F64)), &far));
  assert_ok(CALL("aten.special_airy_ai.default", val_tensor(far)));
  assert_ok(CALL("aten.special_laguerre_polynomial_l.x_scalar", val_float(0.5), T(F32, 3)));
  for (int i = 0; i < 3; i++) {
    double odd[] = {NAN, INFINITY, 1e300};
    Status s = CALL("aten.upsample_nearest1d.default", T(F32, 1, 1, 4), INTS(3), val_float(odd[i]));
    if (i < 2) assert_error(s, "not finite");
    else assert_ok(s);
    assert_ok(CALL("aten.logspace.default", val_float(odd[i]), val_float(1), val_int(3), val_float(10),
                   val_dtype(DT_I32)));
    assert_ok(CALL("aten.addmm.default", T(I64, 2, 2), T(I64, 2, 2), T(I64, 2, 2), val_float(odd[i])));
  }
}

/* Inference alone refuses sizes that do not belong together: where there is nothing to compute with it is all that
 * is asked, and gradients rely on what it let through. */
static Status infer(Room *r, const char *name, const Value *args, int n) {
  Call c = {.ctx = &r->ctx, .op = op_find(name), .arg = args, .scope = &r->scope, .arena = &r->arena};
  assert_non_null(c.op);
  assert_int_equal(n, c.op->schema.nparams);
  return c.op->def->infer(&c);
}
#define INFER(name, ...) infer(r, name, OP_ARGS(__VA_ARGS__))

static void inference_refuses_sizes(void **state) {
  Room *r = *state;
  const Value two = INTS(2, 2, 2), none = INTS(0, 0, 0), one = INTS(1, 1, 1), no = val_bool(false);
  const Value x = T(F32, 3, 4, 4, 4), dy = T(F32, 3, 2, 2, 2), at = T(I64, 3, 2, 2, 2), few = T(I64, 33);
  assert_ok(INFER("aten.max_pool3d_with_indices_backward.default", dy, x, two, two, none, one, no, at));
  assert_error(INFER("aten.max_pool3d_with_indices_backward.default", dy, x, two, two, none, one, no, few),
               "of the gradient's size");
  assert_ok(INFER("aten.adaptive_max_pool3d_backward.default", dy, x, at));
  assert_error(INFER("aten.adaptive_max_pool3d_backward.default", dy, x, few), "of the gradient's size");
  assert_ok(INFER("aten.avg_pool3d_backward.default", dy, x, two, two, none, no, no, val_none()));
  assert_error(INFER("aten.avg_pool3d_backward.default", dy, x, two, one, none, no, no, val_none()),
               "the size of the output");
}

/* Windows of fractional pooling stay in the image, whatever their sizes and the samples are. */
static void windows_stay_in_the_image(void **state) {
  Room *r = *state;
  const double odd[] = {NAN, INFINITY, -INFINITY, -3, 1, 16777217, 1e30};
  const int64_t size[] = {1, 1, 2};
  REFUSED("do not fit", "aten.fractional_max_pool2d.default", T(F32, 1, 1, 9, 8), INTS(INT64_MAX - 1, 2),
          INTS(3, 4), T(F32, 1, 1, 2));
  REFUSED("do not fit", "aten.fractional_max_pool2d.default", T(F32, 1, 1, 9, 8), INTS(2, 2),
          INTS(3, INT64_MAX - 1), T(F32, 1, 1, 2));
  for (int i = 0; i < 14; i++) {
    Dtype d = i % 2 ? DT_F32 : DT_F64;
    Value samples = tensor(r, d, 3, size), images = tensor(r, d, 4, (const int64_t[]){1, 1, 100, 100});
    Call c = {.ctx = &r->ctx, .op = op_find("aten.fractional_max_pool2d.default"), .scope = &r->scope};
    for (int k = 0; k < 2; k++) {
      if (d == DT_F32) ((float *)tensor_data(samples.tensor))[k] = (float)odd[i / 2];
      else ((double *)tensor_data(samples.tensor))[k] = odd[i / 2];
    }
    c.arena = &r->arena;
    c.arg = (Value[]){images, INTS(3, 2), INTS(17, 40), samples};
    assert_ok(op_dispatch(&c));
    const int64_t *at = tensor_data(out_tensor(&c, 1));
    for (int k = 0; k < 17 * 40; k++) assert_in_range(at[k], 0, 100 * 100 - 1);
  }
}

static void nothing_is_folded(void **state) {
  Room *r = *state;
  Tensor *out = NULL;
  assert_ok(run(r, "aten.sum.dim_IntList", OP_ARGS(T(F32, 0, 2, 0, 3), INTS(0, 2)), &out));
  assert_int_equal(tensor_numel(out), 6);
  for (int i = 0; i < 6; i++) assert_true(((const float *)tensor_data(out))[i] == 0);
  assert_ok(CALL("aten.instance_norm.default", T(F32, 0, 6, 3), val_none(), val_none(), T(F32, 6), T(F32, 6),
                 val_bool(true), val_float(0.1), val_float(1e-5), val_bool(false)));
  assert_ok(CALL("aten.group_norm.default", T(F32, 3, 0, 1, 3), val_int(1LL << 40)));
  assert_ok(CALL("aten.slice_copy.Tensor", T(F32, 0), val_int(0), val_none(), val_none(), val_int(INT64_MAX)));
  REFUSED("a source", "aten.scatter_reduce.two", T0(F32), val_int(0), T0(I64), T(F32, 0), val_str("amin"));
}

int main(void) {
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, begin, end)
  const struct CMUnitTest tests[] = {
      TEST(kinds_are_checked),
      TEST(numbers_stay_numbers),
      TEST(lists_are_checked),
      TEST(dtypes_are_checked),
      TEST(the_verifier_says_the_same),
      TEST(views_stay_in_their_storage),
      TEST(dtypes_that_do_not_go_together),
      TEST(vectors_go_together),
      TEST(optimizer_lists_go_together),
      TEST(gradients_have_the_sizes_of_results),
      TEST(parts_of_bags),
      TEST(experts),
      TEST(numbers_of_any_size),
      TEST(inference_refuses_sizes),
      TEST(windows_stay_in_the_image),
      TEST(nothing_is_folded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
