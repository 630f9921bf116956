/* clip.h -- the norm of gradients, and what they are multiplied by so that it is at most so large. */
#ifndef TESS_OPTIM_CLIP_H
#define TESS_OPTIM_CLIP_H

#include "ops/formula.h"

/* The norm of all of them as one vector, a number in f32 at least; n > 0.  They may be plain tensors and DTensors
 * of several meshes: one collective, or none, for the gradients of a mesh that are placed alike.  In a program, of
 * large gradients that several ranks hold each takes a part, and one number is exchanged. */
Tensor *norm_of_grads(Formula *f, Tensor *const *grad, int n, double type);
/* 1, or less: most / (norm + 1e-6). */
Tensor *clip_factor(Formula *f, Tensor *norm, double most);

#endif
