/* api.c -- the public functions of tessera.h; contracts are there. */
#include "tessera.h"

#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/program.h"
#include "base/parallel.h"
#include "kernels/copy.h"
#include "ops/tensors.h"
#include "pt2/read.h"
#include "runtime/specialize.h"
#include "tensor/safetensors.h"

_Static_assert((int)TESS_C64 == (int)DT_C64 && (int)TESS_BF16 == (int)DT_BF16, "TessDtype and Dtype number alike");

static PublicCtx *public_ctx(TessCtx *ctx) { return (PublicCtx *)ctx; }

Scope *api_scope(TessCtx *ctx) { return public_ctx(ctx)->scope ? &public_ctx(ctx)->scope->handles : &ctx->scope; }

bool api_stick(TessCtx *ctx, Status s) {
  if (!s) return false;
  if (ctx->error) status_free(s);
  else ctx->error = s;
  return true;
}

bool api_begin(TessCtx *ctx, const char *function, const ApiArg *args, int n) {
  if (!ctx || ctx->error) return false;
  for (int i = 0; i < n; i++) {
    if (args[i].n < 0) return !api_stick(ctx, fail(ERR_USAGE, "%s: %d of %s", function, args[i].n, args[i].what));
    if (args[i].n && !args[i].p) return !api_stick(ctx, fail(ERR_USAGE, "%s: %s is NULL", function, args[i].what));
  }
  return true;
}

const char *tess_version(void) { return TESS_VERSION; }

TessCtx *tess_ctx_new(int threads) {
  PublicCtx *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  if (threads <= 0) threads = parallel_cores();
  ctx_init(&p->ctx, threads);
  api_stick(&p->ctx, op_registry_status());
  return &p->ctx;
}

void tess_ctx_free(TessCtx *ctx) {
  if (!ctx) return;
  while (public_ctx(ctx)->scope) tess_scope_end(ctx, public_ctx(ctx)->scope);
  api_end_data_parallel(ctx);
  api_leave_world(ctx);
  ctx_free(ctx);
  free(ctx);
}

int tess_error(const TessCtx *ctx) { return !ctx ? (int)ERR_USAGE : ctx->error ? (int)status_code(ctx->error) : 0; }

const char *tess_error_message(const TessCtx *ctx) {
  return !ctx ? "the context is NULL" : ctx->error ? status_message(ctx->error) : "";
}

void tess_error_clear(TessCtx *ctx) {
  if (!ctx) return;
  status_free(ctx->error);
  ctx->error = OK;
}

void tess_manual_seed(TessCtx *ctx, uint64_t seed) {
  if (!ctx) return;
  ctx->seed = seed;
  ctx->offset = 0;
}

void tess_random_state(const TessCtx *ctx, unsigned char state[16]) {
  if (ctx && state) ctx_random_state(ctx, state);
}

void tess_set_random_state(TessCtx *ctx, const unsigned char state[16]) {
  if (API_BEGIN(ctx, GIVEN("the state", state))) ctx_set_random_state(ctx, state);
}

/* ---- scopes ------------------------------------------------------------------------- */

TessScope *tess_scope_begin(TessCtx *ctx) {
  if (!ctx) return NULL;
  TessScope *s = calloc(1, sizeof *s);
  if (!s) {
    api_stick(ctx, fail_oom());
    return NULL;
  }
  s->outer = public_ctx(ctx)->scope;
  public_ctx(ctx)->scope = s;
  return s;
}

void tess_scope_end(TessCtx *ctx, TessScope *scope) {
  if (!ctx || !scope) return;
  for (TessScope *s = public_ctx(ctx)->scope; s;
       s = public_ctx(ctx)->scope) { /* inner ones that were left open too */
    public_ctx(ctx)->scope = s->outer;
    scope_clear(&s->handles);
    bool last = s == scope;
    free(s);
    if (last) break;
  }
}

TessTensor *tess_keep(TessCtx *ctx, const TessTensor *t) {
  if (!API_BEGIN(ctx, GIVEN("the tensor", t))) return NULL;
  TessScope *inner = public_ctx(ctx)->scope;
  Scope *outer = inner && inner->outer ? &inner->outer->handles : &ctx->scope;
  Tensor *kept = NULL;
  return api_stick(ctx, api_share(ctx, t)) || api_stick(ctx, tensor_handle(outer, t, &kept)) ? NULL : kept;
}

/* ---- tensors -------------------------------------------------------------------------- */

Status api_check_type(TessDtype d, int ndim, const int64_t *size) {
  if ((int)d < 0 || (int)d > (int)TESS_C64) return fail(ERR_USAGE, "there is no dtype %d", (int)d);
  if (ndim < 0 || (ndim && !size)) return fail(ERR_USAGE, "a tensor of %d dimensions without sizes", ndim);
  return OK;
}

TessTensor *tess_tensor_new(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size) {
  Tensor *t = NULL;
  if (!API_READY(ctx) || api_stick(ctx, api_check_type(dtype, ndim, size))) return NULL;
  return api_stick(ctx, tensor_new(api_scope(ctx), (Dtype)dtype, ndim, size, &t)) ? NULL : t;
}

TessTensor *tess_tensor_meta(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size) {
  Tensor *t = NULL;
  if (!API_READY(ctx) || api_stick(ctx, api_check_type(dtype, ndim, size)) ||
      api_stick(ctx, tensor_meta(api_scope(ctx), (Dtype)dtype, ndim, size, &t)))
    return NULL;
  return t;
}

TessTensor *tess_tensor_from(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size, const void *data) {
  TessTensor *t = tess_tensor_new(ctx, dtype, ndim, size);
  if (!t || !API_BEGIN(ctx, LISTED("the data", data, tensor_numel(t) > 0))) return NULL;
  if (tensor_numel(t)) memcpy(tensor_data(t), data, (size_t)tensor_numel(t) * dtype_size(t->dtype));
  return t;
}

TessTensor *tess_tensor_borrow(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size, const int64_t *stride,
                               void *data) {
  Tensor *t = NULL;
  if (!API_READY(ctx) || api_stick(ctx, api_check_type(dtype, ndim, size)) ||
      api_stick(ctx, tensor_meta(api_scope(ctx), (Dtype)dtype, ndim, size, &t)) ||
      !API_BEGIN(ctx, LISTED("the data", data, tensor_numel(t) > 0)))
    return NULL;
  for (int d = 0; stride && d < ndim; d++) {
    if (stride[d] < 0) {
      api_stick(
          ctx, fail(ERR_USAGE, "stride %lld of dimension %d: strides cannot be negative", (long long)stride[d], d));
      return NULL;
    }
    t->stride[d] = stride[d];
  }
  return api_stick(ctx,
                   storage_borrow(data, (size_t)tensor_extent(t) * dtype_size(t->dtype), NULL, NULL, &t->storage))
             ? NULL
             : t;
}

TessDtype tess_dtype(const TessTensor *t) { return t ? (TessDtype)t->dtype : TESS_BOOL; }
int tess_ndim(const TessTensor *t) { return t ? t->ndim : 0; }
const int64_t *tess_size(const TessTensor *t) { return t ? t->size : NULL; }
const int64_t *tess_stride(const TessTensor *t) { return t ? t->stride : NULL; }
int64_t tess_numel(const TessTensor *t) { return t ? tensor_numel(t) : 0; }
void *tess_data(const TessTensor *t) { return t ? tensor_data(t->local ? t->local : t) : NULL; }

int tess_read(TessCtx *ctx, const TessTensor *t, void *out) {
  if (!API_BEGIN(ctx, GIVEN("the tensor", t), LISTED("out", out, t && tensor_numel(t) > 0))) return -1;
  if (t->spec)
    return api_stick(ctx, status_hint(fail(ERR_USAGE, "tess_read of a DTensor"),
                                      "read tess_to_local() or tess_full_tensor() of it"))
               ? -1
               : 0;
  int64_t stride[MAX_DIMS];
  if (tensor_numel(t) && !tensor_data(t))
    return api_stick(ctx, fail(ERR_USAGE, "tess_read of a tensor without memory")) ? -1 : 0;
  contiguous_strides(t->ndim, t->size, stride);
  kernel_copy(&ctx->kern, (View){out, t->size, stride, t->ndim, t->dtype}, tensor_view(t));
  return 0;
}

/* ---- files ------------------------------------------------------------------------------- */

TessTensor *tess_load(TessCtx *ctx, const char *path, const char *name) {
  if (!API_BEGIN(ctx, GIVEN("the path", path), GIVEN("the name", name))) return NULL;
  SafeTensors *file = NULL;
  Tensor *t = NULL;
  if (api_stick(ctx, safetensors_open(path, &file))) return NULL;
  api_stick(ctx, safetensors_get(file, name, api_scope(ctx), &t));
  safetensors_close(file);
  return ctx->error ? NULL : t;
}

int tess_save(TessCtx *ctx, const char *path, const char *const *names, const TessTensor *const *tensors, int n) {
  if (!API_BEGIN(ctx, GIVEN("the path", path), LISTED("the names", names, n), LISTED("the tensors", tensors, n)))
    return -1;
  for (int i = 0; i < n; i++) {
    if (!API_BEGIN(ctx, GIVEN("a name", names[i]))) return -1;
    if (!tensors[i] && api_stick(ctx, fail(ERR_USAGE, "tess_save: tensor %d, '%s', is NULL", i, names[i])))
      return -1;
  }
  SafeItem *items = calloc((size_t)n + 1, sizeof *items);
  for (int i = 0; items && i < n; i++) items[i] = (SafeItem){names[i], tensors[i]};
  bool failed = api_stick(ctx, items ? safetensors_save(path, items, n, NULL, 0, FILE_OVERWRITE) : fail_oom());
  free(items);
  return failed ? -1 : 0;
}

/* ---- ops --------------------------------------------------------------------------------- */

static Value to_value(const TessArg *a) {
  switch (a->kind) {
    case TESS_ARG_NONE: break;
    case TESS_ARG_TENSOR: return val_tensor(a->v.tensor);
    case TESS_ARG_INT: return val_int(a->v.i);
    case TESS_ARG_FLOAT: return val_float(a->v.f);
    case TESS_ARG_BOOL: return val_bool(a->v.i != 0);
    case TESS_ARG_STR: return val_str(a->v.str);
    case TESS_ARG_DTYPE: return val_dtype((Dtype)a->v.dtype);
    case TESS_ARG_INTS: return val_ints(a->v.ints, a->n);
    case TESS_ARG_FLOATS: return val_floats(a->v.floats, a->n);
    case TESS_ARG_TENSORS: return val_tensors((Tensor *const *)(uintptr_t)a->v.tensors, a->n);
  }
  return val_none();
}

/* Lists and texts that are none; NULL for a tensor means None, which binding judges. */
static Status check_args(const char *op, const TessArg *args, int nargs) {
  for (int i = 0; i < nargs; i++) {
    const TessArg *a = &args[i];
    bool list = a->kind >= TESS_ARG_INTS,
         is_null = list ? a->n && !a->v.ints : a->kind == TESS_ARG_STR && !a->v.str;
    if ((unsigned)a->kind > TESS_ARG_TENSORS)
      return fail(ERR_USAGE, "%s: argument %d is of kind %d", op, i, (int)a->kind);
    if (list && a->n < 0) return fail(ERR_USAGE, "%s: argument %d is a list of %d", op, i, a->n);
    if (is_null) return fail(ERR_USAGE, "%s: argument %d is NULL", op, i);
  }
  return OK;
}

Status api_bind(TessCtx *ctx, const char *name, const TessArg *args, int nargs, Arena *arena, Value *bound,
                Call *c) {
  const Op *op = op_find(name);
  if (!op) {
    const Op *near = op_nearest(name);
    Status s = fail(ERR_USAGE, "there is no op '%s'", name);
    return near ? status_hint(s, "did you mean '%s'?", near->schema.name) : s;
  }
  if (nargs > MAX_PARAMS) return fail(ERR_USAGE, "%s: %d arguments", name, nargs);
  TRY(check_args(name, args, nargs));
  NamedValue given[MAX_PARAMS];
  for (int i = 0; i < nargs; i++) given[i] = (NamedValue){args[i].name, to_value(&args[i])};
  *c = (Call){.ctx = ctx, .op = op, .arg = bound, .scope = api_scope(ctx), .arena = arena};
  return op_bind(arena, op, given, nargs, bound);
}

/* Tensors without memory are those of tess_tensor_meta(), and parameters that were resharded since. */
static Status check_memory(const Call *c) {
  char is[160];
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    const Tensor *held = w.tensor->spec ? w.tensor->local : w.tensor;
    if (held && !tensor_data(held) && tensor_numel(held))
      return status_hint(fail(ERR_USAGE, "%s: argument '%s', %s, has no memory", c->op->schema.name,
                              c->op->schema.params[w.arg].name, tensor_describe(w.tensor, is, sizeof is)),
                         "it was made without values, or is a gathered parameter that has been freed since");
  }
  return OK;
}

static Status call(TessCtx *ctx, const char *name, const TessArg *args, int nargs, Arena *arena, Call *c) {
  Value bound[MAX_PARAMS];
  TRY(api_bind(ctx, name, args, nargs, arena, bound, c));
  Status s = public_ctx(ctx)->plans ? OK : check_memory(c);
  if (!s) s = op_dispatch(c);
  c->arg = NULL; /* it was on this function's stack */
  return s;
}

static TessArg result_of(const Value *v) {
  switch (v->kind) {
    case VAL_TENSOR: return tess_t(v->tensor);
    case VAL_INT: return tess_i(v->i);
    case VAL_FLOAT: return tess_f(v->f);
    case VAL_BOOL: return tess_b(v->b);
    case VAL_DTYPE: return tess_d((TessDtype)v->dtype);
    default: return tess_none();
  }
}

/* Results go to tensors, or to values. */
static int call_into(TessCtx *ctx, const char *op, const TessArg *args, int nargs, TessTensor **tensors,
                     TessArg *values, int cap) {
  if (!tensors && !values) cap = 0;
  Arena arena = {0};
  Call c = {0};
  int n = -1;
  if (!api_stick(ctx, call(ctx, op, args, nargs, &arena, &c))) {
    n = c.nout;
    for (int i = 0; i < n && i < cap; i++) {
      if (values) values[i] = result_of(&c.out[i]);
      else tensors[i] = out_tensor(&c, i);
    }
  }
  arena_free(&arena);
  return n;
}

int tess_call_n(TessCtx *ctx, const char *op, const TessArg *args, int nargs, TessTensor **out, int cap) {
  if (!API_BEGIN(ctx, GIVEN("the op", op), LISTED("the arguments", args, nargs))) return -1;
  return call_into(ctx, op, args, nargs, out, NULL, cap);
}

int tess_call_values(TessCtx *ctx, const char *op, const TessArg *args, int nargs, TessArg *out, int cap) {
  if (!API_BEGIN(ctx, GIVEN("the op", op), LISTED("the arguments", args, nargs))) return -1;
  return call_into(ctx, op, args, nargs, NULL, out, cap);
}

const char *tess_op_schema(const char *op) {
  const Op *found = op ? op_find(op) : NULL;
  return found ? found->def->schema : NULL;
}

const char *tess_op_name(int i) { return i >= 0 && i < op_count() ? op_at(i)->schema.name : NULL; }

TessTensor *tess_call_1(TessCtx *ctx, const char *op, const TessArg *args, int nargs) {
  TessTensor *out = NULL;
  return tess_call_n(ctx, op, args, nargs, &out, 1) < 0 ? NULL : out;
}

/* ---- programs ------------------------------------------------------------------------------ */

TessProgram *tess_open(TessCtx *ctx, const char *path) {
  if (!API_BEGIN(ctx, GIVEN("the path", path))) return NULL;
  Exported *e = NULL;
  TessProgram *p = calloc(1, sizeof *p);
  if (!p) {
    api_stick(ctx, fail_oom());
    return NULL;
  }
  p->ctx = ctx;
  if (api_stick(ctx, pt2_read(path, &e)) || api_stick(ctx, session_open(ctx, e, &p->session))) {
    free(p);
    return NULL;
  }
  return p;
}

void tess_close(TessProgram *p) {
  if (!p || p->lent) return;
  session_free(p->session);
  free(p);
}

int tess_input_count(const TessProgram *p) { return p ? exported_user_inputs(session_program(p->session)) : 0; }

static const Val *user_input(const TessProgram *p, int i) {
  if (!p) return NULL;
  const Exported *e = session_program(p->session);
  for (int k = 0; k < e->graph->ninputs; k++) {
    if (e->inputs[k].kind == IN_USER && i-- == 0) return e->graph->inputs[k];
  }
  return NULL;
}

const char *tess_input_name(const TessProgram *p, int i) {
  const Val *v = user_input(p, i);
  return v ? v->name : NULL;
}

int tess_input_spec(const TessProgram *p, int i, TessDtype *dtype, int64_t *size, int cap) {
  const Val *v = user_input(p, i);
  if (!v) return -1;
  TessDtype unused;
  if (!dtype) dtype = &unused;
  if (v->type != TY_TENSOR) {
    *dtype = v->type == TY_FLOAT ? TESS_F64 : v->type == TY_BOOL ? TESS_BOOL : TESS_I64;
    return 0;
  }
  *dtype = (TessDtype)v->dtype;
  for (int d = 0; size && d < v->ndim && d < cap; d++) size[d] = sym_is_int(v->size[d]) ? v->size[d]->value : -1;
  return v->ndim;
}

static bool is_user_output(OutputKind k) { return output_is_returned(k); }

int tess_output_count(const TessProgram *p) {
  if (!p) return 0;
  const Exported *e = session_program(p->session);
  int n = 0;
  for (int i = 0; i < e->graph->noutputs; i++) n += is_user_output(e->outputs[i].kind);
  return n;
}

Status api_gather_inputs(const TessProgram *p, const TessTensor *const *inputs, int n, Value *values) {
  const Exported *e = session_program(p->session);
  int u = 0;
  for (int i = 0; i < e->graph->ninputs && u < n; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    const Tensor *t = inputs[u];
    if (!t) return fail(ERR_USAGE, "input '%s' is NULL", e->graph->inputs[i]->name);
    values[u] = val_tensor(t);
    if (e->graph->inputs[i]->type != TY_TENSOR) {
      if (tensor_numel(t) != 1)
        return fail(ERR_USAGE, "input '%s' is a number: give a tensor of one element", e->graph->inputs[i]->name);
      values[u] = val_load(t->dtype, tensor_data(t));
    }
    u++;
  }
  return OK;
}

int tess_run(TessProgram *p, const TessTensor *const *inputs, int ninputs, TessTensor **out, int cap) {
  TessCtx *ctx = p ? p->ctx : NULL;
  if (!API_BEGIN(ctx, LISTED("the inputs", inputs, ninputs))) return -1;
  Arena arena = {0};
  Value *values = arena_new_n(&arena, Value, ninputs + 1), *results = NULL;
  int n = 0;
  Handler *tape = ctx_set_handler(ctx, LEVEL_TAPE, NULL); /* results require no gradient */
  bool failed = api_stick(ctx, values ? api_gather_inputs(p, inputs, ninputs, values) : fail_oom()) ||
                api_stick(ctx, session_run(p->session, values, ninputs, api_scope(ctx), &arena, &results, &n));
  ctx_set_handler(ctx, LEVEL_TAPE, tape);
  for (int i = 0; !failed && out && i < n && i < cap; i++)
    out[i] = results[i].kind == VAL_TENSOR ? results[i].tensor : NULL;
  arena_free(&arena);
  return failed ? -1 : n;
}
