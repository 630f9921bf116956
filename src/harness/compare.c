/* compare.c -- see compare.h. */
#include "harness/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/human.h"
#include "ops/op.h"

double compare_tolerance(Dtype d) {
  switch (d) {
    case DT_F64: return 1e-9;
    case DT_F32:
    case DT_C64: return 1e-4;
    case DT_F16: return 4e-3;
    case DT_BF16: return 3e-2;
    default: return 0;
  }
}

typedef struct {
  double worst;  /* largest absolute difference */
  int64_t wrong; /* elements out of tolerance */
  int64_t first[MAX_DIMS];
  double got, want; /* at the first wrong element */
} Difference;

static Value element(const Tensor *t, const int64_t *at) {
  int64_t offset = 0;
  for (int d = 0; d < t->ndim; d++) offset += at[d] * t->stride[d];
  return val_load(t->dtype, (const char *)tensor_data(t) + (size_t)offset * dtype_size(t->dtype));
}

static bool close_enough(double got, double want, double rtol, double atol, double *diff) {
  if (isnan(got) || isnan(want) || isinf(got) || isinf(want)) {
    bool same = (isnan(got) && isnan(want)) || got == want;
    *diff = same ? 0 : INFINITY;
    return same;
  }
  *diff = fabs(got - want);
  return *diff <= atol + rtol * fabs(want);
}

static void compare_tensors(const Tensor *got, const Tensor *want, double rtol, double atol, Difference *out) {
  int64_t at[MAX_DIMS] = {0}, n = tensor_numel(got);
  *out = (Difference){0};
  for (int64_t i = 0; i < n; i++) {
    Value g = element(got, at), w = element(want, at);
    int parts = g.kind == VAL_COMPLEX ? 2 : 1;
    for (int p = 0; p < parts; p++) {
      double x = parts == 2 ? g.complex_[p] : val_as_float(&g), y = parts == 2 ? w.complex_[p] : val_as_float(&w),
             diff;
      bool same = g.kind == VAL_INT ? (diff = fabs(x - y), g.i == w.i) : close_enough(x, y, rtol, atol, &diff);
      if (diff > out->worst) out->worst = diff;
      if (!same && out->wrong++ == 0) {
        memcpy(out->first, at, sizeof at);
        out->got = x;
        out->want = y;
      }
    }
    for (int d = got->ndim - 1; d >= 0 && ++at[d] == got->size[d]; d--) at[d] = 0;
  }
}

/* A comparison of outputs, as far as it has come. */
typedef struct {
  FILE *f;
  double rtol, atol;
  bool json;
  int told, bad;
  double scale; /* the largest element of all gradients that are expected */
} Comparison;

static void tell_one(Comparison *c, const char *name, const Tensor *got, const Difference *d) {
  char a[128], b[128];
  tensor_describe(got, a, sizeof a);
  if (c->json) {
    if (isinf(d->worst)) snprintf(b, sizeof b, "\"Infinity\""); /* JSON has no such number */
    else snprintf(b, sizeof b, "%.9g", d->worst);
    fprintf(c->f, "%s{\"output\": \"%s\", \"ok\": %s, \"max_abs_difference\": %s, \"wrong\": %lld}",
            c->told ? ", " : "", name, d->wrong ? "false" : "true", b, (long long)d->wrong);
  } else if (d->wrong == 0) {
    fprintf(c->f, "output %s %s: matches, largest difference %.3g\n", name, a, d->worst);
  } else {
    fprintf(
        c->f,
        "output %s %s: %lld of %lld elements differ, largest difference %.3g, first at %s: %.9g instead of %.9g\n",
        name, a, (long long)d->wrong, (long long)tensor_numel(got), d->worst,
        shape_describe(got->ndim, d->first, b, sizeof b), d->got, d->want);
  }
  c->told++;
}

const char *output_label(const OutputList *outs, int i, char *buf, size_t cap) {
  if (outs->gradient && outs->gradient[i]) return outs->gradient[i];
  snprintf(buf, cap, "%d", i);
  return buf;
}

/* -1: there is none of that name. */
static int find_output(const OutputList *outs, const char *name) {
  char label[16];
  for (int i = 0; i < outs->n; i++)
    if (!strcmp(output_label(outs, i, label, sizeof label), name)) return i;
  return outs->gradient && !strcmp(name, "loss") ? 0 : -1;
}

static double largest(const Tensor *t) {
  int64_t at[MAX_DIMS] = {0}, n = tensor_numel(t);
  double most = 0;
  for (int64_t i = 0; i < n; i++) {
    Value v = element(t, at);
    for (int p = 0; p < (v.kind == VAL_COMPLEX ? 2 : 1); p++) {
      double x = fabs(v.kind == VAL_COMPLEX ? v.complex_[p] : val_as_float(&v));
      if (isfinite(x) && x > most) most = x;
    }
    for (int d = t->ndim - 1; d >= 0 && ++at[d] == t->size[d]; d--) at[d] = 0;
  }
  return most;
}

/* A gradient whose true value is 0 is made of roundings: beside the others, small enough is the same. */
static double size_of_gradient(const Comparison *c, const Tensor *want) {
  double own = largest(want), least = 1e-3 * c->scale;
  return own > least ? own : least;
}

static void note_gradient(Comparison *c, const OutputList *outs, int i, const Tensor *want) {
  double own = i >= 0 && outs->gradient && outs->gradient[i] ? largest(want) : 0;
  if (own > c->scale) c->scale = own;
}

static Status compare_one(Comparison *c, const OutputList *outs, int i, const Tensor *want) {
  const Tensor *got = outs->v[i].tensor;
  bool gradient = outs->gradient && outs->gradient[i];
  char label[16];
  const char *name = output_label(outs, i, label, sizeof label);
  char a[128], b[128];
  if (got->dtype != want->dtype || !tensor_same_size(got, want)) {
    return fail(ERR_DIFF, "output %s is %s, expected %s", name, tensor_describe(got, a, sizeof a),
                tensor_describe(want, b, sizeof b));
  }
  double tolerance = compare_tolerance(got->dtype);
  double atol = (c->atol < 0 ? tolerance : c->atol) * (gradient ? size_of_gradient(c, want) : 1);
  Difference d;
  compare_tensors(got, want, c->rtol < 0 ? tolerance : c->rtol, atol, &d);
  c->bad += d.wrong > 0;
  tell_one(c, name, got, &d);
  return OK;
}

static Status compare_all(Comparison *c, const SafeTensors *st, const char *path, const OutputList *outs,
                          Scope *scope) {
  Tensor *want;
  for (int i = 0; i < st->count; i++) {
    TRY(safetensors_tensor(st, &st->entries[i], scope, &want));
    note_gradient(c, outs, find_output(outs, st->entries[i].name), want);
  }
  for (int i = 0; i < st->count; i++) {
    const char *name = st->entries[i].name;
    int at = find_output(outs, name);
    if (at < 0 || outs->v[at].kind != VAL_TENSOR)
      return fail(ERR_DIFF, "'%s' expects an output '%s', the program has %d output%s%s", path, name, outs->n,
                  PLURAL(outs->n), outs->gradient ? " with its gradients" : "");
    TRY(safetensors_tensor(st, &st->entries[i], scope, &want));
    TRY(compare_one(c, outs, at, want));
  }
  return c->bad ? fail(ERR_DIFF, "%d of %d outputs differ from '%s'", c->bad, st->count, path) : OK;
}

Status compare_with_file(FILE *f, const char *path, const OutputList *outs, double rtol, double atol, bool json) {
  SafeTensors *st;
  Scope scope = {0};
  TRY(safetensors_open(path, &st));
  Comparison c = {.f = f, .rtol = rtol, .atol = atol, .json = json};
  Status s = compare_all(&c, st, path, outs, &scope);
  scope_clear(&scope);
  safetensors_close(st);
  return s;
}

Status compare_with_values(FILE *f, const char *what, const Value *wanted, const OutputList *outs, double rtol,
                           double atol, bool json) {
  Comparison c = {.f = f, .rtol = rtol, .atol = atol, .json = json};
  for (int i = 0; i < outs->n; i++)
    if (wanted[i].kind == VAL_TENSOR) note_gradient(&c, outs, i, wanted[i].tensor);
  for (int i = 0; i < outs->n; i++) {
    char label[16];
    if (outs->v[i].kind != wanted[i].kind)
      return fail(ERR_DIFF, "output %s is of another kind than %s's", output_label(outs, i, label, sizeof label),
                  what);
    if (outs->v[i].kind == VAL_TENSOR) TRY(compare_one(&c, outs, i, wanted[i].tensor));
    else c.bad += val_as_float(&outs->v[i]) != val_as_float(&wanted[i]);
  }
  return c.bad ? fail(ERR_DIFF, "%d of %d outputs differ from %s", c.bad, outs->n, what) : OK;
}

Status compare_pair(const Tensor *got, const Tensor *want, double rtol, double atol, double *worst,
                    int64_t *wrong) {
  char a[128], b[128];
  if (got->dtype != want->dtype || !tensor_same_size(got, want))
    return fail(ERR_DIFF, "%s instead of %s", tensor_describe(got, a, sizeof a),
                tensor_describe(want, b, sizeof b));
  double tolerance = compare_tolerance(got->dtype);
  Difference d;
  compare_tensors(got, want, rtol < 0 ? tolerance : rtol, atol < 0 ? tolerance : atol, &d);
  *worst = d.worst;
  *wrong = d.wrong;
  return OK;
}
