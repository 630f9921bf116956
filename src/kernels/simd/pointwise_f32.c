/* pointwise_f32.c -- see pointwise_real.h. */
#include "kernels/pointwise.h"
#include "kernels/simd/math.h"
#include "kernels/simd/special.h"
#include "kernels/special.h"

#define REAL float
#define STEP pw_step_f32
#define FN(f) f##_f32
#define LM(name) name##f
#define LGAMMA_R lgammaf_r
#define VECTORISED INDEPENDENT
#define MATH_VECTORISED INDEPENDENT
#include "kernels/simd/pointwise_real.h"
