/* rnn.c -- see rnn.h.  The input's part of all gates is one product over all steps; what
 * is left for each step is a product with the state and the gates themselves. */
#include "kernels/rnn.h"

#include <string.h>

#include "kernels/onednn.h"

enum { FEW_ROWS = 4 }; /* up to here reading the weights once is all that matters */

typedef struct {
  Kern *k;
  bool wide;
  size_t item;
} Env;

static void *at(const Env *e, const void *p, int64_t i) { return (char *)(uintptr_t)p + (size_t)i * e->item; }

/* c (m rows, ldc apart) += a (m, k) * b (n, k)^T */
typedef struct {
  const Env *e;
  void *c;
  int64_t ldc;
  const void *a, *b;
  int64_t m, n, k;
} Product;

static void dot_columns(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Product *p = arg;
  const Env *e = p->e;
  void *c = at(e, p->c, begin);
  const void *b = at(e, p->b, begin * p->k);
  if (e->wide) SIMD_CALL(e->k->isa, rnn_dots_f64)(c, p->ldc, p->a, b, p->m, end - begin, p->k);
  else SIMD_CALL(e->k->isa, rnn_dots_f32)(c, p->ldc, p->a, b, p->m, end - begin, p->k);
}

static Status product(const Env *e, void *c, int64_t ldc, const void *a, const void *b, int64_t m, int64_t n,
                      int64_t k) {
  if (m == 0 || n == 0 || k == 0) return OK;
  if (!e->wide && m > FEW_ROWS) return onednn_sgemm(false, true, m, n, k, 1, a, k, b, k, 1, c, ldc);
  Product p = {e, c, ldc, a, b, m, n, k};
  parallel_for(e->k->threads, n, 1 + 65536 / (m * k), dot_columns, &p);
  return OK;
}

/* rows of c = bias. */
static void fill_rows(const Env *e, void *c, int64_t ldc, int64_t rows, const void *bias, int64_t n) {
  for (int64_t i = 0; i < rows; i++) {
    void *row = at(e, c, i * ldc);
    if (bias) memcpy(row, bias, (size_t)n * e->item);
    else memset(row, 0, (size_t)n * e->item);
  }
}

static void add(const Env *e, void *to, const void *from, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    if (e->wide) ((double *)to)[i] += ((const double *)from)[i];
    else ((float *)to)[i] += ((const float *)from)[i];
  }
}

typedef struct {
  void *pre;    /* (rows, gates*hidden) */
  void *hid;    /* (batch, gates*hidden), GRU */
  void *before; /* (batch, hidden): h before the projection */
  void *bias;   /* of pre */
} Room;

static Status make_room(const Env *e, const RnnLayer *l, int64_t batch, int64_t width, Room *r) {
  TRY_NEW(r->pre, kern_scratch(e->k, (size_t)(l->rows * width) * e->item));
  TRY_NEW(r->hid, kern_scratch(e->k, (size_t)(batch * width) * e->item));
  TRY_NEW(r->before, kern_scratch(e->k, (size_t)(batch * l->hidden) * e->item));
  TRY_NEW(r->bias, kern_scratch(e->k, (size_t)width * e->item));
  return OK;
}

static Status run_step(const Env *e, const RnnLayer *l, const Room *r, int64_t t, int64_t width) {
  int64_t n = l->alive[t];
  void *pre = at(e, r->pre, l->first[t] * width);
  bool gru = l->kind == RNN_GRU;
  if (gru) fill_rows(e, r->hid, width, n, l->b_hh, width);
  TRY(product(e, gru ? r->hid : pre, gru ? width : l->row_step * width, l->h, l->w_hh, n, width, l->out));
  void *h = l->w_hr ? r->before : l->h;
  for (int64_t b = 0; b < n; b++) {
    const void *p = at(e, pre, b * l->row_step * width), *g = at(e, r->hid, b * width);
    void *hb = at(e, h, b * l->hidden), *cb = l->c ? at(e, l->c, b * l->hidden) : NULL;
    if (e->wide) SIMD_CALL(e->k->isa, rnn_step_f64)(l->kind, p, g, hb, cb, l->hidden);
    else SIMD_CALL(e->k->isa, rnn_step_f32)(l->kind, p, g, hb, cb, l->hidden);
  }
  if (l->w_hr) {
    fill_rows(e, l->h, l->out, n, NULL, l->out);
    TRY(product(e, l->h, l->out, r->before, l->w_hr, n, l->out, l->hidden));
  }
  for (int64_t b = 0; b < n; b++) {
    memcpy(at(e, l->y, (l->first[t] + b * l->row_step) * l->y_width), at(e, l->h, b * l->out),
           (size_t)l->out * e->item);
  }
  return OK;
}

static Status run_layer(const Env *e, const RnnLayer *l) {
  int64_t width = rnn_gates(l->kind) * l->hidden, batch = 0;
  Room r = {0};
  for (int64_t t = 0; t < l->steps; t++) batch = l->alive[t] > batch ? l->alive[t] : batch;
  TRY(make_room(e, l, batch, width, &r));
  fill_rows(e, r.bias, width, 1, l->b_ih, width);
  if (l->b_hh && l->kind != RNN_GRU) add(e, r.bias, l->b_hh, width); /* GRU scales a part of it by r */
  fill_rows(e, r.pre, width, l->rows, r.bias, width);
  TRY(product(e, r.pre, width, l->x, l->w_ih, l->rows, width, l->in));
  for (int64_t i = 0; i < l->steps; i++) TRY(run_step(e, l, &r, l->reverse ? l->steps - 1 - i : i, width));
  return OK;
}

Status rnn_layer(Kern *k, Dtype d, const RnnLayer *l) {
  Env e = {k, d == DT_F64, dtype_size(d)};
  size_t mark = kern_mark(k);
  Status s = run_layer(&e, l);
  kern_release(k, mark);
  return s;
}
