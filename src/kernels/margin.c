/* margin.c -- see margin.h. */
#include "kernels/margin.h"

#include <string.h>

static Status check_class(int64_t t, int64_t classes) {
  if (t >= 0 && t < classes) return OK;
  return fail(ERR_FAIL, "target %lld is not one of %lld classes", (long long)t, (long long)classes);
}

Status margin_multi(const MarginRows *r, const MultiMargin *m, double *loss) {
  for (int64_t row = 0; row < r->n; row++) {
    const double *x = r->x + row * r->c;
    int64_t t = r->target[row];
    double sum = 0;
    TRY(check_class(t, r->c));
    for (int64_t i = 0; i < r->c; i++) {
      double z = m->margin - x[t] + x[i];
      if (i != t && z > 0) sum += m->p == 1 ? z : z * z;
    }
    loss[row] = sum * (m->weight ? m->weight[t] : 1) / (double)r->c;
  }
  return OK;
}

Status margin_multi_grad(const MarginRows *r, const MultiMargin *m, const double *g, double *dx) {
  for (int64_t row = 0; row < r->n; row++) {
    const double *x = r->x + row * r->c;
    double *d = dx + row * r->c, sum = 0;
    int64_t t = r->target[row];
    TRY(check_class(t, r->c));
    double scale = g[row] * (m->weight ? m->weight[t] : 1) / (double)r->c;
    for (int64_t i = 0; i < r->c; i++) {
      double z = m->margin - x[t] + x[i];
      d[i] = i == t || !(z > 0) ? 0 : m->p == 1 ? scale : 2 * scale * z;
      sum += d[i];
    }
    d[t] = -sum;
  }
  return OK;
}

Status margin_multilabel(const MarginRows *r, double *loss, double *is_target) {
  memset(is_target, 0, (size_t)(r->n * r->c) * sizeof *is_target);
  for (int64_t row = 0; row < r->n; row++) {
    const double *x = r->x + row * r->c;
    const int64_t *target = r->target + row * r->c;
    double *is = is_target + row * r->c, sum = 0;
    for (int64_t k = 0; k < r->c && target[k] >= 0; k++) {
      TRY(check_class(target[k], r->c));
      is[target[k]] = 1;
    }
    for (int64_t k = 0; k < r->c && target[k] >= 0; k++) {
      for (int64_t i = 0; i < r->c; i++) {
        double z = 1 - x[target[k]] + x[i];
        if (is[i] == 0 && z > 0) sum += z;
      }
    }
    loss[row] = sum / (double)r->c;
  }
  return OK;
}

Status margin_multilabel_grad(const MarginRows *r, const double *is_target, const double *g, double *dx) {
  memset(dx, 0, (size_t)(r->n * r->c) * sizeof *dx);
  for (int64_t row = 0; row < r->n; row++) {
    const double *x = r->x + row * r->c, *is = is_target + row * r->c;
    const int64_t *target = r->target + row * r->c;
    double *d = dx + row * r->c, step = g[row] / (double)r->c;
    for (int64_t k = 0; k < r->c && target[k] >= 0; k++) {
      TRY(check_class(target[k], r->c));
      for (int64_t i = 0; i < r->c; i++) {
        if (is[i] != 0 || !(1 - x[target[k]] + x[i] > 0)) continue;
        d[i] += step;
        d[target[k]] -= step;
      }
    }
  }
  return OK;
}
