/* optim.h -- one step of an optimizer over flat arrays, in place, one pass over memory.
 *
 * All arrays have n elements of one type, DT_F32 or DT_F64 in the loops; kernels take
 * any floats, each array of a type of its own (computed in f32, or in f64 where the parameter
 * is f64; each array rounded once).
 *
 *   adam     g += wd p, or for adamw p -= lr wd p;   m += (1-b1)(g - m);   v = b2 v + (1-b2) g^2
 *            p -= lr / (1 - b1^t) m / (sqrt(v or max v) / sqrt(1 - b2^t) + eps)
 *   sgd      g += wd p;   m = mu m + (1-damp) g (first step: g);   p -= lr (nesterov: g + mu m, else m)
 *   adagrad  g += wd p;   s += g^2;   p -= lr / (1 + (t-1) decay) g / (sqrt(s) + eps)
 */
#ifndef TESS_KERNELS_OPTIM_H
#define TESS_KERNELS_OPTIM_H

#include "kernels/kernel.h"

typedef enum { OPTIM_ADAM, OPTIM_SGD, OPTIM_ADAGRAD } OptimKind;

enum { OPTIM_ARRAYS = 5, OPTIM_GRADIENT = 1 }; /* p, g, then m, v, max (adam); m or NULL (sgd); s (adagrad) */

typedef struct {
  OptimKind kind;
  double lr, weight_decay, eps;
  double unscale;      /* gradients are multiplied by this first */
  bool store_unscaled; /* ... and stored so; else they are only read */
  bool maximize;
  /* adam */
  double beta1, beta2, step;
  bool decoupled, amsgrad;
  /* sgd */
  double momentum, dampening;
  bool nesterov, first;
  /* adagrad */
  double lr_decay;
} Optim;

/* a[i] may be NULL where an optimizer has no such array. */
void kernel_optim_step(Kern *k, const Optim *o, const Dtype d[OPTIM_ARRAYS], void *const a[OPTIM_ARRAYS],
                       int64_t n);

/* x *= scale; true if some x was not finite. */
bool kernel_unscale(Kern *k, Dtype d, void *x, int64_t n, double scale);

SIMD_DECLARE(void, optim_run, (const Optim *o, Dtype as, void *const a[OPTIM_ARRAYS], int64_t n));
SIMD_DECLARE(bool, unscale_run, (Dtype as, void *x, int64_t n, double scale));

#endif
