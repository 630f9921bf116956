/* grad_points.c -- see grad_points.h. */
#include "grad_points.h"

#include <math.h>
#include <string.h>

#include "grad/tape.h"

enum { COTANGENTS = 1000 };

/* One of -1 .. 1: number `at` of a tensor. */
static double number_of(uint64_t seed, int which, int64_t at) {
  uint64_t x = (seed ^ (uint64_t)which << 40 ^ (uint64_t)at) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 32) * 0x94d049bb133111ebu;
  return (double)(int64_t)(x ^ x >> 29) / 9.3e18;
}

static Value complex_of(double re, double im) { return (Value){.kind = VAL_COMPLEX, .complex_ = {re, im}}; }

static double imaginary(const Value *v) { return v->kind == VAL_COMPLEX ? v->complex_[1] : 0; }

/* Where element k, in row-major order, lies. */
static int64_t place_of(const Tensor *t, int64_t k) {
  int64_t place = 0;
  for (int d = t->ndim - 1; d >= 0; d--) place += k % t->size[d] * t->stride[d], k /= t->size[d];
  return place;
}

static char *element_at(const Tensor *t, int64_t place) {
  return (char *)tensor_data(t) + place * (int64_t)dtype_size(t->dtype);
}

/* A copy of the same layout, a step on if it is moved.  Directions belong to places in memory: elements that share
 * one go the same way. */
static Status copy_moved(const Point *p, Scope *scope, int flat, const Tensor *t, double step, Tensor **out) {
  Tensor *all;
  int64_t extent = tensor_extent(t);
  TRY(tensor_new(scope, t->dtype, 1, &extent, &all));
  if (extent) memcpy(tensor_data(all), tensor_data(t), (size_t)extent * dtype_size(t->dtype));
  for (int64_t i = 0; p->moved >> flat & 1 && i < extent; i++) {
    Value v = val_load(t->dtype, element_at(all, i));
    v = complex_of(val_as_float(&v) + step * number_of(p->seed, flat, 2 * i),
                   imaginary(&v) + step * number_of(p->seed, flat, 2 * i + 1));
    val_store(&v, t->dtype, element_at(all, i));
  }
  return tensor_as_strided(scope, all, t->ndim, t->size, t->stride, 0, out);
}

static Value cotangent_of(const Point *p, int result, int64_t k) {
  return complex_of(number_of(p->seed, COTANGENTS + result, 2 * k),
                    number_of(p->seed, COTANGENTS + result, 2 * k + 1));
}

/* Re<a, b> = Re(conj(a) b), where a tensor without imaginary parts has none. */
static double product(Dtype d, Value a, Value b) {
  return val_as_float(&a) * val_as_float(&b) + (d == DT_C64 ? imaginary(&a) * imaginary(&b) : 0);
}

static bool is_float(const Tensor *t) {
  return dtype_kind(t->dtype) == KIND_FLOAT || dtype_kind(t->dtype) == KIND_COMPLEX;
}

static bool is_half(const Tensor *t) { return t->dtype == DT_F16 || t->dtype == DT_BF16; }

/* The results of a call; of one that returns nothing, what it has written to. */
static int results_of(const Call *c, Tensor **result) {
  int n = 0;
  for (TensorWalk w = call_outputs(c); n < POINT_TENSORS && tensor_next(&w);) result[n++] = w.tensor;
  if (c->op->schema.nreturns == 0)
    for (TensorWalk w = call_inputs(c); n < POINT_TENSORS && tensor_next(&w);)
      if (c->op->schema.params[w.arg].mutated) result[n++] = w.tensor;
  return n;
}

/* ---- one evaluation --------------------------------------------------------------------------------------- */

typedef struct {
  const Point *p;
  Ctx ctx;
  Scope scope;
  Arena arena;
  Value arg[MAX_PARAMS];
  Tensor *leaf[POINT_TENSORS]; /* with a tape: handles that require gradients */
  Tensor *result[POINT_TENSORS];
  int n;
} Trial;

static Status call_at(Trial *t, double step, Tape *tape, Found *out) {
  const Point *p = t->p;
  Tensor *with[POINT_TENSORS];
  Call source = {.op = p->op, .arg = p->arg};
  Call c = {.ctx = &t->ctx, .op = p->op, .arg = t->arg, .scope = &t->scope, .arena = &t->arena};
  for (TensorWalk w = call_inputs(&source); tensor_next(&w);) {
    if (w.flat >= POINT_TENSORS) return fail(ERR_USAGE, "too many tensors");
    out->halves |= is_half(w.tensor);
    TRY(copy_moved(p, &t->scope, w.flat, w.tensor, step, &with[w.flat]));
    if (!tape || !(p->moved >> w.flat & 1)) continue;
    TRY(tape_require(tape, &t->scope, with[w.flat], &t->leaf[w.flat]));
    TRY(tensor_handle(&t->scope, t->leaf[w.flat], &with[w.flat]));
    if (p->op->schema.mutates) /* leaves are not written to */
      TRY(OP(&c, "aten.clone.default", &with[w.flat], val_tensor(t->leaf[w.flat])));
  }
  TRY(replace_tensors(&t->arena, p->arg, p->op->schema.nparams, with, t->arg));
  TRY(op_dispatch(&c));
  out->results = t->n = results_of(&c, t->result);
  for (int i = 0; i < t->n; i++) {
    uint64_t bit = (uint64_t)1 << i;
    if (is_float(t->result[i]) && tensor_numel(t->result[i])) out->floats |= bit;
    if (t->result[i]->dtype == DT_F64) out->exact |= bit;
    out->halves |= is_half(t->result[i]);
    if (t->result[i]->grad) out->linked |= bit;
  }
  return OK;
}

static Status sum_results(Trial *t, double step, Found *out) {
  TRY(call_at(t, step, NULL, out));
  for (int i = 0; i < t->n; i++) {
    const Tensor *r = t->result[i];
    for (int64_t k = 0; (out->floats & t->p->heard) >> i & 1 && k < tensor_numel(r); k++)
      out->value += product(r->dtype, cotangent_of(t->p, i, k), val_load(r->dtype, element_at(r, place_of(r, k))));
  }
  return OK;
}

static Status gradients_of(Trial *t, Tape *tape, Found *out) {
  const Point *p = t->p;
  Tensor *output[POINT_TENSORS], *cotangent[POINT_TENSORS], *input[POINT_TENSORS], *gradient[POINT_TENSORS] = {0};
  int which[POINT_TENSORS], n = 0, nin = 0;
  TRY(call_at(t, 0, tape, out));
  for (int i = 0; i < t->n; i++) {
    const Tensor *r = t->result[i];
    if (!((out->floats & out->linked & p->heard) >> i & 1)) continue;
    output[n] = t->result[i];
    TRY(tensor_new(&t->scope, r->dtype, r->ndim, r->size, &cotangent[n]));
    for (int64_t k = 0; k < tensor_numel(r); k++) {
      Value v = cotangent_of(p, i, k);
      val_store(&v, r->dtype, element_at(cotangent[n], k));
    }
    n++;
  }
  for (int i = 0; i < POINT_TENSORS; i++)
    if (t->leaf[i]) which[nin] = i, input[nin++] = t->leaf[i];
  if (n)
    TRY(tape_gradients(tape, output, cotangent, n, input, nin, &(Backward){.allow_unused = true}, &t->scope,
                       gradient));
  for (int i = 0; i < nin; i++) {
    const Tensor *g = gradient[i], *x = input[i];
    if (g && (g->dtype != x->dtype || !tensor_same_size(g, x)))
      return fail(ERR_DIFF, "the gradient of tensor %d has another size or dtype", which[i]);
    for (int64_t k = 0; g && k < tensor_numel(g); k++) {
      int64_t at = place_of(x, k);
      double part = product(
          g->dtype, val_load(g->dtype, element_at(g, place_of(g, k))),
          complex_of(number_of(p->seed, which[i], 2 * at), number_of(p->seed, which[i], 2 * at + 1)));
      out->value += part;
      out->size += fabs(part);
    }
  }
  return OK;
}

static void trial_end(Trial *t) {
  scope_clear(&t->scope);
  arena_free(&t->arena);
  ctx_free(&t->ctx);
}

Status point_value(const Point *p, double step, Found *out) {
  Trial t = {.p = p};
  *out = (Found){0};
  ctx_init(&t.ctx, 1);
  Status s = sum_results(&t, step, out);
  trial_end(&t);
  return s;
}

Status point_slope(const Point *p, Found *out) {
  Trial t = {.p = p};
  Tape tape;
  *out = (Found){0};
  ctx_init(&t.ctx, 1);
  tape_begin(&tape, &t.ctx);
  Status s = gradients_of(&t, &tape, out);
  tape_end(&tape);
  trial_end(&t);
  return s;
}
