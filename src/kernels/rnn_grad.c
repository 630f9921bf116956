/* rnn_grad.c -- gradients of recurrent layers; see rnn.h.
 *
 * What a layer gave holds every state, so that all gates are two products over all rows; only the cells of an LSTM
 * are computed step by step.  Going back, a step is one product too: from the gates to the state before.  The
 * gradients of x and of the weights are products over all rows again. */
#include <string.h>

#include "kernels/gemm.h"
#include "kernels/rnn.h"

typedef struct {
  Kern *k;
  Dtype d;
  const RnnLayer *l;
  const RnnGrad *g;
  int64_t width; /* gates * hidden */
  /* By row: */
  char *before; /* the state before, (out) */
  char *gates;  /* activations, then gradients of what comes from x, (width) */
  char *hid;    /* GRU: what comes from h, then its gradient, (width); others: gates */
  char *cell;   /* LSTM: (hidden) */
  char *full;   /* LSTM: h before the projection, (hidden); NULL: not projected */
  char *dh;     /* projected: the gradient of h, (out) */
  double *sum;  /* (width) */
  char *part;   /* (batch, hidden): the gradient of h before the projection */
} Job;

static size_t item(const Job *j) { return dtype_size(j->d); }
static char *at(const Job *j, const void *p, int64_t i) { return (char *)(uintptr_t)p + i * (int64_t)item(j); }
static int64_t row_of(const Job *j, int64_t t, int64_t b) { return j->l->first[t] + b * j->l->row_step; }

/* The step before t for sequence b, -1: it starts here. */
static int64_t step_before(const Job *j, int64_t t, int64_t b) {
  const RnnLayer *l = j->l;
  if (!l->reverse) return t - 1;
  return t + 1 < l->steps && b < l->alive[t + 1] ? t + 1 : -1;
}

/* ---- products ---------------------------------------------------------------------------- */

typedef struct {
  const void *data;
  int64_t size[2], stride[2];
} Rect;

static Rect rect(const void *data, int64_t rows, int64_t columns) {
  return (Rect){data, {rows, columns}, {columns, 1}};
}

static Rect turned(Rect m) { return (Rect){m.data, {m.size[1], m.size[0]}, {m.stride[1], m.stride[0]}}; }

static View view_of(const Job *j, const Rect *m) {
  return (View){(void *)(uintptr_t)m->data, m->size, m->stride, 2, j->d};
}

/* c = a b, or c += a b. */
static Status product(const Job *j, Rect a, Rect b, Rect c, bool add) {
  if (!c.size[0] || !c.size[1]) return OK;
  View to = view_of(j, &c);
  return gemm(
      j->k,
      &(Gemm){.a = view_of(j, &a), .b = view_of(j, &b), .c = to, .add = add ? &to : NULL, .alpha = 1, .beta = 1});
}

/* ---- elements ------------------------------------------------------------------------------ */

#define DEFINE_SUMS(T, t)                                                                 \
  static void add_bias_##t(T *rows, int64_t n, int64_t width, const T *bias) {            \
    for (int64_t i = 0; bias && i < n; i++)                                               \
      for (int64_t e = 0; e < width; e++) rows[i * width + e] += bias[e];                 \
  }                                                                                       \
  static void add_##t(T *to, const T *from, int64_t n) {                                  \
    for (int64_t e = 0; e < n; e++) to[e] += from[e];                                     \
  }                                                                                       \
  /* sum: room for width numbers. */                                                      \
  static void sum_rows_##t(T *to, const T *rows, int64_t n, int64_t width, double *sum) { \
    memset(sum, 0, (size_t)width * sizeof *sum);                                          \
    for (int64_t i = 0; i < n; i++)                                                       \
      for (int64_t e = 0; e < width; e++) sum[e] += (double)rows[i * width + e];          \
    for (int64_t e = 0; e < width; e++) to[e] = (T)sum[e];                                \
  }
DEFINE_SUMS(float, f32)
DEFINE_SUMS(double, f64)

#define BY_TYPE(j, name, ...) ((j)->d == DT_F64 ? name##_f64(__VA_ARGS__) : name##_f32(__VA_ARGS__))
#define BY_TYPE_SIMD(j, name, ...)                                    \
  ((j)->d == DT_F64 ? SIMD_CALL((j)->k->isa, name##_f64)(__VA_ARGS__) \
                    : SIMD_CALL((j)->k->isa, name##_f32)(__VA_ARGS__))

/* A pointer to elements, for functions of either type. */
static void *p(const Job *j, const void *base, int64_t row, int64_t width) {
  return base ? at(j, base, row * width) : NULL;
}

/* ---- forward, again --------------------------------------------------------------------------- */

static Status make_room(Job *j, int64_t batch) {
  const RnnLayer *l = j->l;
  bool gru = l->kind == RNN_GRU, lstm = l->kind == RNN_LSTM;
  const struct {
    char **field;
    int64_t n;
  } parts[] = {{&j->before, l->rows * l->out},
               {&j->gates, l->rows * j->width},
               {&j->hid, gru ? l->rows * j->width : 0},
               {&j->cell, lstm ? l->rows * l->hidden : 0},
               {&j->full, l->w_hr ? l->rows * l->hidden : 0},
               {&j->dh, l->w_hr ? l->rows * l->out : 0},
               {&j->part, l->w_hr ? batch * l->hidden : 0}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (parts[i].n) TRY_NEW(*parts[i].field, kern_scratch(j->k, (size_t)parts[i].n * item(j)));
  if (!gru) j->hid = j->gates;
  TRY_NEW(j->sum, kern_scratch(j->k, (size_t)j->width * sizeof *j->sum + 8));
  return OK;
}

static const void *cell_before(const Job *j, int64_t t, int64_t b) {
  int64_t s = step_before(j, t, b);
  return s < 0 ? p(j, j->l->c, b, j->l->hidden) : p(j, j->cell, row_of(j, s, b), j->l->hidden);
}

static void activate(const Job *j, int64_t t) {
  const RnnLayer *l = j->l;
  for (int64_t b = 0; b < l->alive[t]; b++) {
    int64_t row = row_of(j, t, b);
    BY_TYPE_SIMD(j, rnn_gates, l->kind, p(j, j->gates, row, j->width), p(j, j->hid, row, j->width),
                 l->kind == RNN_LSTM ? cell_before(j, t, b) : NULL, p(j, j->cell, row, l->hidden),
                 p(j, j->full, row, l->hidden), l->hidden);
  }
}

static Status recompute(const Job *j) {
  const RnnLayer *l = j->l;
  bool gru = l->kind == RNN_GRU;
  for (int64_t t = 0; t < l->steps; t++)
    for (int64_t b = 0; b < l->alive[t]; b++) {
      int64_t s = step_before(j, t, b);
      const void *from = s < 0 ? p(j, l->h, b, l->out) : p(j, l->y, row_of(j, s, b), l->y_width);
      memcpy(p(j, j->before, row_of(j, t, b), l->out), from, (size_t)l->out * item(j));
    }
  Rect gates = rect(j->gates, l->rows, j->width), hid = rect(j->hid, l->rows, j->width);
  TRY(product(j, rect(l->x, l->rows, l->in), turned(rect(l->w_ih, j->width, l->in)), gates, false));
  TRY(product(j, rect(j->before, l->rows, l->out), turned(rect(l->w_hh, j->width, l->out)), hid, !gru));
  BY_TYPE(j, add_bias, (void *)j->gates, l->rows, j->width, l->b_ih);
  BY_TYPE(j, add_bias, (void *)j->hid, l->rows, j->width, l->b_hh);
  for (int64_t i = 0; i < l->steps; i++) activate(j, l->reverse ? l->steps - 1 - i : i);
  return OK;
}

/* ---- back ------------------------------------------------------------------------------------------ */

/* dh of sequences at step t: their gates, and dh of the step before. */
static Status step_back(const Job *j, int64_t t) {
  const RnnLayer *l = j->l;
  const RnnGrad *g = j->g;
  int64_t n = l->alive[t];
  for (int64_t b = 0; b < n; b++) {
    if (g->y) BY_TYPE(j, add, p(j, g->h, b, l->out), p(j, g->y, row_of(j, t, b), l->y_width), l->out);
    if (j->dh) memcpy(p(j, j->dh, row_of(j, t, b), l->out), p(j, g->h, b, l->out), (size_t)l->out * item(j));
  }
  if (l->w_hr)
    TRY(product(j, rect(g->h, n, l->out), rect(l->w_hr, l->out, l->hidden), rect(j->part, n, l->hidden), false));
  for (int64_t b = 0; b < n; b++) {
    int64_t row = row_of(j, t, b);
    void *gates = p(j, j->gates, row, j->width), *dh = p(j, l->w_hr ? j->part : g->h, b, l->hidden);
    BY_TYPE_SIMD(j, rnn_back, l->kind, gates, p(j, j->hid, row, j->width), p(j, j->before, row, l->out),
                 l->kind == RNN_LSTM ? cell_before(j, t, b) : NULL, p(j, j->cell, row, l->hidden), dh,
                 p(j, g->c, b, l->hidden), l->hidden);
  }
  Rect hid = {p(j, j->hid, l->first[t], j->width), {n, j->width}, {l->row_step * j->width, 1}};
  return product(j, hid, rect(l->w_hh, j->width, l->out), rect(g->h, n, l->out), l->kind == RNN_GRU);
}

static Status over_all_rows(const Job *j) {
  const RnnLayer *l = j->l;
  const RnnGrad *g = j->g;
  Rect gates = rect(j->gates, l->rows, j->width), hid = rect(j->hid, l->rows, j->width);
  if (g->x) TRY(product(j, gates, rect(l->w_ih, j->width, l->in), rect(g->x, l->rows, l->in), true));
  if (g->w_ih) TRY(product(j, turned(gates), rect(l->x, l->rows, l->in), rect(g->w_ih, j->width, l->in), false));
  if (g->w_hh)
    TRY(product(j, turned(hid), rect(j->before, l->rows, l->out), rect(g->w_hh, j->width, l->out), false));
  if (g->b_ih) BY_TYPE(j, sum_rows, g->b_ih, (void *)j->gates, l->rows, j->width, j->sum);
  if (g->b_hh) BY_TYPE(j, sum_rows, g->b_hh, (void *)j->hid, l->rows, j->width, j->sum);
  if (!g->w_hr) return OK;
  return product(j, turned(rect(j->dh, l->rows, l->out)), rect(j->full, l->rows, l->hidden),
                 rect(g->w_hr, l->out, l->hidden), false);
}

static Status run(Job *j) {
  const RnnLayer *l = j->l;
  int64_t batch = 0;
  for (int64_t t = 0; t < l->steps; t++) batch = l->alive[t] > batch ? l->alive[t] : batch;
  TRY(make_room(j, batch));
  TRY(recompute(j));
  for (int64_t i = 0; i < l->steps; i++) TRY(step_back(j, l->reverse ? i : l->steps - 1 - i));
  return over_all_rows(j);
}

Status rnn_layer_grad(Kern *k, Dtype d, const RnnLayer *l, const RnnGrad *g) {
  Job j = {.k = k, .d = d, .l = l, .g = g, .width = rnn_gates(l->kind) * l->hidden};
  size_t mark = kern_mark(k);
  Status s = run(&j);
  kern_release(k, mark);
  return s;
}
