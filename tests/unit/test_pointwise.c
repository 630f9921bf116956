/* Tile programs: every layout against one element at a time, every f32 instruction
 * against its f64 twin, and chains of ops in one program against the ops one by one. */
#include <math.h>

#include "kernels/pointwise.h"
#include "ops/pointwise_ops.h"
#include "random_layout.h"
#include "unit.h"

static double uniform(double low, double high) { return low + (high - low) * (double)below(1 << 20) / (1 << 20); }

/* ---- layouts ---------------------------------------------------------------------- */

enum { ROOM = 60000 };

static int64_t offset_of(const Layout *l, const int64_t *at) {
  int64_t o = 0;
  for (int d = 0; d < l->ndim; d++) o += l->size[d] == 1 ? 0 : at[d] * l->stride[d];
  return o;
}

static float as_f32(Dtype d, const char *data, int64_t i) {
  Value v = val_load(d, data + (size_t)i * dtype_size(d));
  return (float)val_as_float(&v);
}

/* out = x y + z, in f32, each of a dtype and layout of its own. */
static void check_layout(Kern *k, char *data[4]) {
  static const Dtype dtypes[] = {DT_F32, DT_F32, DT_F32, DT_BF16, DT_F16, DT_F64, DT_I32, DT_I64, DT_U8, DT_BOOL};
  static const int64_t sizes[] = {1, 2, 3, 5, 40, 95, 96, 300, 2500};
  Layout l[4] = {{.ndim = (int)below(5)}};
  Dtype d[4];
  for (int i = 0; i < l[0].ndim; i++) l[0].size[i] = sizes[below(i == 0 ? 9 : 6)];
  for (int i = 0; i < 4; i++) {
    if (i) l[i] = l[0];
    d[i] = dtypes[below(i ? 10 : 6)];
  }
  for (int i = 0; i < 4; i++) {
    if (random_strides(&l[i], i > 0) > ROOM) return;
  }
  for (int i = 1; i < 4; i++) {
    for (int64_t j = 0; j < ROOM; j++) {
      Value v = val_int(below(13) - (d[i] == DT_U8 ? 0 : 6));
      val_store(&v, d[i], data[i] + (size_t)j * dtype_size(d[i]));
    }
  }
  PwProgram p;
  pw_init(&p);
  int x[3];
  View in[3], out = {data[0], l[0].size, l[0].stride, l[0].ndim, d[0]};
  for (int i = 0; i < 3; i++) {
    x[i] = pw_cast(&p, pw_input(&p, d[i + 1]), DT_F32);
    in[i] = (View){data[i + 1], l[i + 1].size, l[i + 1].stride, l[i + 1].ndim, d[i + 1]};
  }
  int product = pw_op(&p, PW_MUL, x[0], x[1], -1, NULL);
  pw_output(&p, pw_cast(&p, pw_op(&p, PW_ADD, product, x[2], -1, NULL), d[0]));
  assert_ok(kernel_pointwise(k, &p, &out, in));
  int64_t n = 1, at[4] = {0};
  for (int i = 0; i < l[0].ndim; i++) n *= l[0].size[i];
  for (int64_t i = 0; i < n; i++) {
    float want = as_f32(d[1], data[1], offset_of(&l[1], at)) * as_f32(d[2], data[2], offset_of(&l[2], at)) +
                 as_f32(d[3], data[3], offset_of(&l[3], at));
    float got = as_f32(d[0], data[0], offset_of(&l[0], at));
    if (want != got)
      test_failed("element %lld of %lld is %g, should be %g", (long long)i, (long long)n, (double)got,
                  (double)want);
    for (int j = l[0].ndim - 1; j >= 0 && ++at[j] == l[0].size[j]; j--) at[j] = 0;
  }
}

static void test_layouts(void **state) {
  (void)state;
  seed = 3;
  char *data[4];
  for (int i = 0; i < 4; i++) assert_non_null(data[i] = malloc(ROOM * 8));
  for (int isa = 0; isa <= (int)isa_detect(); isa++) {
    Kern k;
    kern_init(&k, 1 + isa % 2);
    k.isa = (Isa)isa;
    for (int turn = 0; turn < 150; turn++) check_layout(&k, data);
    kern_free(&k);
  }
  for (int i = 0; i < 4; i++) free(data[i]);
}

/* ---- instructions ----------------------------------------------------------------- */

/* Values where the functions are defined; truth values for the condition of PW_WHERE. */
static void test_instructions(void **state) {
  (void)state;
  enum { N = 1003 };
  static float x[N], y[N], z[N], got[N];
  static double dx[N], dy[N], dz[N], want[N];
  static uint8_t condition[N];
  seed = 5;
  for (int i = 0; i < N; i++) {
    dx[i] = x[i] = (float)uniform(0.01, 0.99), dy[i] = y[i] = (float)uniform(0.5, 3),
    dz[i] = z[i] = (float)uniform(-2, -0.1);
    condition[i] = below(2) == 1;
  }
  PwInstr in = {.imm = {.f = {0.5, 2, 1.25}}};
  for (int op = 0; op < PW_OP_COUNT; op++) {
    if (op == PW_CAST || op == PW_POLAR || !pw_knows((PwOp)op, DT_F32)) continue;
    assert_true(pw_knows((PwOp)op, DT_F64));
    in.op = (uint8_t)op;
    bool where = op == PW_WHERE;
    assert_int_equal(SIMD_CALL(ISA_BASE, pw_step_f64)(&in, want, where ? (const void *)condition : dx, dy, dz, N),
                     PW_OK);
    for (int isa = 0; isa <= (int)isa_detect(); isa++) {
      assert_int_equal(SIMD_CALL((Isa)isa, pw_step_f32)(&in, got, where ? (const void *)condition : x, y, z, N),
                       PW_OK);
      for (int i = 0; i < N; i++) {
        bool truth = (op >= PW_ISNAN && op <= PW_SIGNBIT) || (op >= PW_EQ && op <= PW_GE);
        double g = truth ? ((uint8_t *)got)[i] : (double)got[i], w = truth ? ((uint8_t *)want)[i] : want[i];
        if ((op == PW_ACOSH || op == PW_ZETA) && isnan(w) && isnan(g)) continue;
        if (!(fabs(g - w) <= 2e-6 + 3e-6 * fabs(w))) {
          test_failed("%s of %g, %g, %g on %s: %.9g, should be %.9g", pw_op_name((PwOp)op), dx[i], dy[i], dz[i],
                      isa_name((Isa)isa), g, w);
        }
      }
    }
  }
}

static void test_zero_division(void **state) {
  (void)state;
  Kern k;
  kern_init(&k, 1);
  int64_t x[2] = {5, INT64_MIN}, y[2] = {2, -1}, z[2];
  const int64_t size[1] = {2}, stride[1] = {1};
  View out = {z, size, stride, 1, DT_I64}, in[2] = {{x, size, stride, 1, DT_I64}, {y, size, stride, 1, DT_I64}};
  PwProgram p;
  pw_init(&p);
  int a = pw_input(&p, DT_I64), b = pw_input(&p, DT_I64);
  pw_output(&p, pw_op(&p, PW_FLOOR_DIV, a, b, -1, NULL));
  assert_ok(kernel_pointwise(&k, &p, &out, in));
  assert_true(z[0] == 2 && z[1] == INT64_MIN);
  y[0] = 0;
  assert_error(kernel_pointwise(&k, &p, &out, in), "division by zero");
  while (!p.too_long) a = pw_op(&p, PW_NEG, a, -1, -1, NULL);
  assert_error(kernel_pointwise(&k, &p, &out, in), "too many");
  kern_free(&k);
}

/* Of the smallest number, whose magnitude is no i64, PyTorch's gcd with 6 is -2. */
static void test_common_divisors(void **state) {
  (void)state;
  enum { N = 6 };
  const int64_t x[N] = {0, 0, -4, INT64_MIN, INT64_MIN, (int64_t)1 << 62}, y[N] = {0, -7, 6, 6, INT64_MIN, 3};
  const int64_t gcd[N] = {0, 7, 2, 2, INT64_MIN, 1},
                lcm[N] = {0, 0, 12, INT64_MIN, INT64_MIN, (int64_t)1 << 62}; /* products wrap */
  int64_t got[N];
  for (int isa = 0; isa <= (int)isa_detect(); isa++) {
    const PwInstr divisor = {.op = PW_GCD}, multiple = {.op = PW_LCM};
    assert_int_equal(SIMD_CALL((Isa)isa, pw_step_i64)(&divisor, got, x, y, NULL, N), PW_OK);
    assert_memory_equal(got, gcd, sizeof gcd);
    assert_int_equal(SIMD_CALL((Isa)isa, pw_step_i64)(&multiple, got, x, y, NULL, N), PW_OK);
    assert_memory_equal(got, lcm, sizeof lcm);
  }
}

/* ---- chains ----------------------------------------------------------------------- */

enum { POOL = 6, LENGTH = 12 }; /* values to choose operands from, calls in a chain */

typedef struct {
  const char *name;
  int operands; /* arguments that take tensors */
  Value rest[2];
  int nrest;
} Choice;

static const Choice choices[] = {
    {"aten.add.Tensor", 2, {{0}}, 0},
    {"aten.sub.Tensor", 2, {{0}}, 0},
    {"aten.mul.Tensor", 2, {{0}}, 0},
    {"aten.div.Tensor", 2, {{0}}, 0},
    {"aten.maximum.default", 2, {{0}}, 0},
    {"aten.gt.Tensor", 2, {{0}}, 0},
    {"aten.logical_and.default", 2, {{0}}, 0},
    {"aten.where.self", 3, {{0}}, 0},
    {"aten.sigmoid.default", 1, {{0}}, 0},
    {"aten.gelu.default", 1, {{0}}, 0},
    {"aten.silu.default", 1, {{0}}, 0},
    {"aten.abs.default", 1, {{0}}, 0},
    {"aten.tanh.default", 1, {{0}}, 0},
    {"aten.exp.default", 1, {{0}}, 0},
    {"aten.isnan.default", 1, {{0}}, 0},
    {"aten.mul.Scalar", 1, {{.kind = VAL_FLOAT, .f = 0.3}}, 1},
    {"aten.add.Scalar", 1, {{.kind = VAL_INT, .i = 3}}, 1},
    {"aten.pow.Tensor_Scalar", 1, {{.kind = VAL_INT, .i = 2}}, 1},
    {"aten.clamp.default", 1, {{.kind = VAL_INT, .i = -1}, {.kind = VAL_FLOAT, .f = 1.5}}, 2},
    {"aten.to.dtype", 1, {{.kind = VAL_DTYPE, .dtype = DT_BF16}}, 1},
    {"aten.to.dtype", 1, {{.kind = VAL_DTYPE, .dtype = DT_F16}}, 1},
    {"aten.to.dtype", 1, {{.kind = VAL_DTYPE, .dtype = DT_F32}}, 1},
    {"aten.to.dtype", 1, {{.kind = VAL_DTYPE, .dtype = DT_U8}}, 1},
    {"aten.to.dtype", 1, {{.kind = VAL_DTYPE, .dtype = DT_I32}}, 1},
    {"aten.to.dtype", 1, {{.kind = VAL_DTYPE, .dtype = DT_F64}}, 1},
};

typedef struct {
  Ctx *ctx;
  Scope scope;
  Arena arena;
  PwProgram program;
  Tensor *value[POOL + LENGTH]; /* inputs, then results of single calls */
  int reg[POOL + LENGTH], n;    /* the same in the program */
} Chain;

/* [7, 300], some broadcast. */
static void make_inputs(Chain *c, View *in) {
  static const Dtype dtypes[] = {DT_F32, DT_BF16, DT_F16, DT_I64, DT_U8, DT_BOOL};
  for (int i = 0; i < POOL; i++) {
    const int64_t size[2] = {i == 4 ? 1 : 7, i == 5 ? 1 : 300};
    assert_ok(tensor_new(&c->scope, dtypes[below(6)], 2, size, &c->value[i]));
    const Tensor *t = c->value[i];
    for (int64_t j = 0; j < tensor_numel(t); j++) {
      Value v = val_float(uniform(t->dtype == DT_U8 ? 0 : -4, 4));
      val_store(&v, t->dtype, (char *)tensor_data(t) + (size_t)j * dtype_size(t->dtype));
    }
    c->reg[i] = pw_input(&c->program, t->dtype);
    in[i] = tensor_view(t);
  }
  c->n = POOL;
}

/* One call of any op on values so far, which also becomes a part of the program; or none, if the op refuses them.
 */
static void add_call(Chain *chain) {
  const Choice *o = &choices[below(sizeof choices / sizeof *choices)];
  const Op *op = op_find(o->name);
  assert_non_null(op);
  NamedValue args[MAX_PARAMS];
  int from[MAX_PARAMS] = {0}, nargs = 0, n = chain->n;
  for (; nargs < o->operands; nargs++) {
    int pick = (int)(below(2) ? n - 1 - below(2) : below(n));
    args[nargs] = (NamedValue){NULL, val_tensor(chain->value[pick])};
    from[nargs] = chain->reg[pick];
  }
  for (int i = 0; i < o->nrest; i++) args[nargs++] = (NamedValue){NULL, o->rest[i]};
  Value *bound = arena_new_n(&chain->arena, Value, op->schema.nparams);
  assert_non_null(bound);
  assert_ok(op_bind(&chain->arena, op, args, nargs, bound));
  Call c = {.ctx = chain->ctx, .op = op, .arg = bound, .scope = &chain->scope, .arena = &chain->arena};
  Status s = op_dispatch(&c);
  if (s) { /* sub of bool and the like */
    status_free(s);
    return;
  }
  PwValue made;
  assert_ok(pointwise_emit(&c, &chain->program, from, &made));
  assert_int_equal(made.dtype, out_tensor(&c, 0)->dtype);
  chain->value[n] = out_tensor(&c, 0);
  chain->reg[chain->n++] = made.reg;
}

static void assert_same(const Tensor *want, const char *got) {
  assert_true(tensor_is_contiguous(want));
  for (int64_t i = 0; i < tensor_numel(want); i++) {
    size_t bytes = dtype_size(want->dtype);
    const char *a = got + (size_t)i * bytes, *b = (char *)tensor_data(want) + (size_t)i * bytes;
    Value x = val_load(want->dtype, a), y = val_load(want->dtype, b);
    if (memcmp(a, b, bytes) && !(isnan(val_as_float(&x)) && isnan(val_as_float(&y)))) {
      test_failed("%s element %lld: %.9g in the chain, %.9g one by one", dtype_name(want->dtype), (long long)i,
                  val_as_float(&x), val_as_float(&y));
    }
  }
}

static void check_chain(Ctx *ctx) {
  Chain c = {.ctx = ctx};
  View in[POOL];
  pw_init(&c.program);
  make_inputs(&c, in);
  for (int step = 0; step < LENGTH * 3 && c.n < POOL + LENGTH; step++) add_call(&c);
  /* The last value of full size, and the one before it. */
  const int64_t full[2] = {7, 300}, stride[2] = {300, 1};
  static char got[2][7 * 300 * 8];
  View out[2];
  int which[2], nout = 0;
  for (int i = c.n - 1; i >= POOL && nout < 2; i--) {
    if (tensor_numel(c.value[i]) != 7 * 300) continue;
    which[nout] = i;
    out[nout] = (View){got[nout], full, stride, 2, c.value[i]->dtype};
    pw_output(&c.program, c.reg[i]);
    nout++;
  }
  if (nout) assert_ok(kernel_pointwise(&ctx->kern, &c.program, out, in));
  for (int k = 0; k < nout; k++) assert_same(c.value[which[k]], got[k]);
  scope_clear(&c.scope);
  arena_free(&c.arena);
}

static void test_chains(void **state) {
  (void)state;
  Ctx ctx;
  ctx_init(&ctx, 1);
  for (seed = 1000; seed < 1400; seed++) {
    uint32_t keep = seed;
    check_chain(&ctx);
    seed = keep;
  }
  ctx_free(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_layouts), cmocka_unit_test(test_instructions),
                                     cmocka_unit_test(test_zero_division), cmocka_unit_test(test_common_divisors),
                                     cmocka_unit_test(test_chains)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
