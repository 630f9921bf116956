/* rnn.h -- one direction of one layer of an LSTM, GRU or plain recurrent network.
 *
 * Gates are stacked in the rows of the weights: LSTM i, f, g, o; GRU r, z, n.
 *
 *   LSTM   c = f*c + i*g          h = o * tanh(c)      i, f, o sigmoid, g tanh
 *   GRU    n = tanh(xn + r * hn)  h = (1-z)*n + z*h    r, z sigmoid; hn with its bias
 *   else   h = tanh or relu (x + h)
 *
 * Sequences are rows of a matrix, so that time first, batch first and packed sequences
 * are the same to the kernel: sequence b at step t is row first[t] + b*row_step.
 */
#ifndef TESS_KERNELS_RNN_H
#define TESS_KERNELS_RNN_H

#include "kernels/kernel.h"

typedef enum { RNN_LSTM, RNN_GRU, RNN_TANH, RNN_RELU } RnnKind;

static inline int rnn_gates(RnnKind k) { return k == RNN_LSTM ? 4 : k == RNN_GRU ? 3 : 1; }

/* All memory is contiguous, of one dtype: f32 or f64. */
typedef struct {
  RnnKind kind;
  bool reverse;
  int64_t steps, rows, in, hidden;
  int64_t out;          /* width of h: hidden, or that of the projection */
  const int64_t *first; /* [steps] */
  const int64_t *alive; /* [steps] the first so many sequences have this step */
  int64_t row_step;
  const void *x;           /* (rows, in) */
  const void *w_ih, *w_hh; /* (gates*hidden, in), (gates*hidden, out) */
  const void *b_ih, *b_hh; /* (gates*hidden) or both NULL */
  const void *w_hr;        /* (out, hidden) or NULL */
  void *h, *c;             /* (batch, out), (batch, hidden): initial state in, final out */
  void *y;                 /* (rows, y_width): out columns from y on are written */
  int64_t y_width;
} RnnLayer;

Status rnn_layer(Kern *k, Dtype d, const RnnLayer *l);

/* The gradients of one direction of one layer.  Of the layer h and c are the initial states and y what it gave;
 * gates are computed again from these, for all steps at once.  All contiguous, of the layer's dtype. */
typedef struct {
  const void *y; /* of y: (rows, y_width), from the same column on as the layer's; NULL: zero */
  void *h, *c;   /* of the final states in, of the initial ones out */
  void *x;       /* (rows, in): is added to */
  void *w_ih, *w_hh, *b_ih, *b_hh, *w_hr; /* NULL: not wanted */
} RnnGrad;

Status rnn_layer_grad(Kern *k, Dtype d, const RnnLayer *l, const RnnGrad *g);

/* One sequence, one step.  pre: x's part of the gates (and, but for GRU, h's); hid: h's
 * part (GRU).  h and c are read and written; RNN_LSTM writes h only. */
SIMD_DECLARE(void, rnn_step_f32,
             (RnnKind kind, const float *pre, const float *hid, float *h, float *c, int64_t hidden));
SIMD_DECLARE(void, rnn_step_f64,
             (RnnKind kind, const double *pre, const double *hid, double *h, double *c, int64_t hidden));
/* The same for gradients.  g: what came from x (and, but for GRU, from h) becomes activations; of an LSTM the cell
 * c and, if it is not NULL, h in full. */
SIMD_DECLARE(void, rnn_gates_f32,
             (RnnKind kind, float *g, const float *hid, const float *c_before, float *c, float *full, int64_t n));
SIMD_DECLARE(void, rnn_gates_f64,
             (RnnKind kind, double *g, const double *hid, const double *c_before, double *c, double *full,
              int64_t n));
/* Activations become gradients of what came from x; those of what came from h are the same, but of a GRU in hid.
 * dh becomes (GRU) the part that goes to the state before without a product; dc that of the cell before. */
SIMD_DECLARE(void, rnn_back_f32,
             (RnnKind kind, float *g, float *hid, const float *before, const float *c_before, const float *c,
              float *dh, float *dc, int64_t n));
SIMD_DECLARE(void, rnn_back_f64,
             (RnnKind kind, double *g, double *hid, const double *before, const double *c_before, const double *c,
              double *dh, double *dc, int64_t n));
/* acc[m*ld + n] += sum_k a[m,k] b[n,k] for few m: rows of b are read once. */
SIMD_DECLARE(void, rnn_dots_f32,
             (float *acc, int64_t ld, const float *a, const float *b, int64_t m, int64_t n, int64_t k));
SIMD_DECLARE(void, rnn_dots_f64,
             (double *acc, int64_t ld, const double *a, const double *b, int64_t m, int64_t n, int64_t k));

#endif
