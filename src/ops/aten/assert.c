/* assert.c -- checks that exported programs carry.  They have no result but must stay
 * (OP_EFFECT); one that fails stops the program with the message it was given.
 *
 * A check of metadata is done when a program is specialised (OP_SCALAR) and is not in it any
 * more: it would keep values alive that passes have found a better way to.
 *
 * Strides are not checked: an op may choose others than PyTorch does.
 */
#include <string.h>

#include "kernels/copy.h"
#include "ops/geometry.h"

static Status metadata_run(Call *c) {
  Tensor *t;
  Ints size = in_ints(c, 1);
  char have[128], want[128];
  TRY(need_tensor(c, 0, &t));
  Dtype dtype = in_dtype(c, 3, t->dtype);
  if (dtype != t->dtype)
    return op_fail(c, "the tensor should be %s, it is %s", dtype_name(dtype),
                   tensor_describe(t, have, sizeof have));
  if (in_none(c, 1)) return OK;
  if (size.n != t->ndim || (size.n && memcmp(size.v, t->size, (size_t)size.n * sizeof *size.v))) {
    return op_fail(c, "the tensor should have size %s, it is %s", shape_describe(size.n, size.v, want, sizeof want),
                   tensor_describe(t, have, sizeof have));
  }
  return OK;
}

static Status check(const Call *c, bool holds, int message) {
  if (holds) return OK;
  const char *text = message < 0 ? NULL : in_str(c, message);
  return op_fail(c, "assertion failed%s%s", text && *text ? ": " : "", text ? text : "");
}

static Status check_tensor(const Call *c, int message) {
  Tensor *t;
  char buf[128];
  TRY(need_tensor(c, 0, &t));
  if (tensor_numel(t) != 1 || !dtype_is_compute(t->dtype))
    return op_fail(c, "%s is not one truth value", tensor_describe(t, buf, sizeof buf));
  Value v = val_load(t->dtype, tensor_data(t));
  return check(c, val_as_float(&v) != 0 || (v.kind == VAL_COMPLEX && v.complex_[1] != 0), message);
}

static Status check_number(const Call *c, int message) {
  Value v;
  TRY(in_number(c, 0, &v));
  return check(c, val_as_float(&v) != 0, message);
}

/* least: the smallest size if the call gives no min. */
static Status check_range(const Call *c, int64_t least) {
  Value v;
  TRY(in_number(c, 0, &v));
  int64_t size = val_as_int(&v), min = in_none(c, 1) ? least : in_int(c, 1),
          max = in_none(c, 2) ? INT64_MAX : in_int(c, 2);
  if (size >= min && size <= max) return OK;
  return op_fail(c, "%lld is outside the range %lld to %lld", (long long)size, (long long)min, (long long)max);
}

static Status async_run(Call *c) { return check_tensor(c, -1); }
static Status async_msg_run(Call *c) { return check_tensor(c, 1); }
static Status scalar_run(Call *c) { return check_number(c, 1); }
static Status range_run(Call *c) { return check_range(c, INT64_MIN); }
static Status range_for_size_run(Call *c) { return check_range(c, 0); }
static Status print_run(Call *c) { return (void)c, OK; } /* a library does not print */

/* ---- functional forms: the last argument is a token that they pass on ------------------- */

static Status token_infer(Call *c) {
  Tensor *token;
  TRY(need_tensor(c, c->op->schema.nparams - 1, &token));
  return out_like(c, token->dtype, token);
}

static Status pass_token(Call *c) {
  kernel_copy(&c->ctx->kern, out_view_of(c, 0), in_view(c, c->op->schema.nparams - 1));
  return OK;
}

#define FUNCTIONAL(name, CHECK)         \
  static Status name##_token(Call *c) { \
    TRY(CHECK);                         \
    return pass_token(c);               \
  }
FUNCTIONAL(async_msg, check_tensor(c, 1))
FUNCTIONAL(scalar, check_number(c, 1))
FUNCTIONAL(range, check_range(c, INT64_MIN))
FUNCTIONAL(range_for_size, check_range(c, 0))

/* clang-format off */
#define ASSERT(text, name) {.schema = text, .run = name##_run, .flags = OP_EFFECT}
#define WITH_TOKEN(text, name) {.schema = text, .infer = token_infer, .run = name##_token, .flags = OP_EFFECT}
/* clang-format on */

/* clang-format off */
const OpDef ops_assert[] = {
    {.schema = "aten::_assert_tensor_metadata(Tensor a, SymInt[]? size=None, SymInt[]? stride=None, ScalarType? "
               "dtype=None, *, Device? device=None, Layout? layout=None) -> ()",
     .run = metadata_run, .flags = OP_EFFECT | OP_SCALAR},
    ASSERT("aten::_assert_async(Tensor self) -> ()", async),
    ASSERT("aten::_assert_async.msg(Tensor self, str assert_msg) -> ()", async_msg),
    ASSERT("aten::_assert_scalar(Scalar self, str assert_msg) -> ()", scalar),
    ASSERT("aten::sym_constrain_range(Scalar size, *, int? min=None, int? max=None) -> ()", range),
    ASSERT("aten::sym_constrain_range_for_size(Scalar size, *, int? min=None, int? max=None) -> ()",
        range_for_size),
    ASSERT("aten::_print(str s) -> ()", print),
    WITH_TOKEN("aten::_functional_assert_async.msg(Tensor self, str assert_msg, Tensor dep_token) -> Tensor",
        async_msg),
    WITH_TOKEN("aten::_functional_assert_scalar(Scalar self, str assert_msg, Tensor dep_token) -> Tensor", scalar),
    WITH_TOKEN("aten::_functional_sym_constrain_range(Scalar size, int? min, int? max, Tensor dep_token) -> Tensor", range),
    WITH_TOKEN("aten::_functional_sym_constrain_range_for_size(Scalar size, int? min, int? max, Tensor dep_token) "
               "-> Tensor", range_for_size),
    {0},
};
