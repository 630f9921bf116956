/* onednn.h -- oneDNN, wrapped so that the C APIs of its versions 2 and 3 look alike.
 *
 * Only onednn.c asks which version it is.  Callers describe memory with OnednnDesc, make
 * a primitive once (tens of microseconds to milliseconds) and run it many times.
 *
 * I1  The engine is the only thing shared: made once per process, constant afterwards.
 *     Everything else belongs to whoever made it.
 * I2  Scratchpads come from the Kern that runs the primitive, so a primitive may be made
 *     by one thread and run by another, by one at a time.
 * I3  A primitive uses the OpenMP team of the thread that made it (parallel.h).
 * I4  No primitive is ever made for bf16 or f16 here: version 2.6 executes AMX code on
 *     virtual machines that cannot run it.  Callers convert to f32.
 */
#ifndef TESS_KERNELS_ONEDNN_H
#define TESS_KERNELS_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>

#include "kernels/kernel.h"

/* ---- engine and errors ------------------------------------------------------ */

/* "2.6.3", and the instruction set that its kernels use: "avx2", "avx512_core" ... */
const char *onednn_version(char *buf, size_t cap);
const char *onednn_isa(void);

/* ---- memory layouts --------------------------------------------------------- */

typedef struct {
  dnnl_memory_desc_t md; /* version 2: the thing itself; version 3: a handle */
  bool made;
} OnednnDesc;

/* f32, s32, s8, u8.  stride == NULL: oneDNN may choose the layout. */
Status onednn_desc(OnednnDesc *d, Dtype dtype, int ndim, const int64_t *size, const int64_t *stride);
void onednn_desc_free(OnednnDesc *d); /* an unmade one is fine */
size_t onednn_desc_bytes(const OnednnDesc *d);
bool onednn_desc_equal(const OnednnDesc *a, const OnednnDesc *b);

/* ---- primitives ------------------------------------------------------------- */

enum { ONEDNN_ARGS = 8 };

typedef struct OnednnPrim {
  dnnl_primitive_desc_t pd;
  dnnl_primitive_t prim;
  dnnl_stream_t stream;
  int nargs;
  dnnl_exec_arg_t arg[ONEDNN_ARGS + 1]; /* the last one is the scratchpad */
  size_t scratch;                       /* bytes of scratchpad */
} OnednnPrim;

void onednn_prim_free(OnednnPrim *p); /* NULL is fine */
/* data[i] belongs to args[i]. */
Status onednn_prim_run(Kern *k, OnednnPrim *p, void *const *data);
/* The layout that a primitive wants for an argument. */
Status onednn_prim_desc(const OnednnPrim *p, int arg, OnednnDesc *out);

/* data: from, to. */
Status onednn_reorder_new(const OnednnDesc *from, const OnednnDesc *to, OnednnPrim **out);

/* ---- convolutions ----------------------------------------------------------- */

/* CONV_WEIGHTS: the gradient of a CONV's weights.  (The gradient of its input is a DECONV.) */
typedef enum { ONEDNN_CONV, ONEDNN_DECONV, ONEDNN_CONV_WEIGHTS } OnednnConvKind;

/* src (n, ic, s...), weights ([g,] oc/g, ic/g, k...), bias (oc) or NULL, dst (n, oc, d...).
 * Lists have one element per spatial dimension; dilation 1 = dense. */
typedef struct {
  OnednnConvKind kind;
  const OnednnDesc *src, *weights, *bias, *dst;
  int nd;
  const int64_t *stride, *dilation, *pad_left, *pad_right;
} OnednnConv;

/* data: src, weights, dst, then bias if there is one.  *out is NULL when oneDNN has no
 * implementation for the problem. */
Status onednn_conv_new(const OnednnConv *c, OnednnPrim **out);

/* ---- matrix products -------------------------------------------------------- */

/* Row-major C[m,n] = alpha * op(A)[m,k] op(B)[k,n] + beta * C; ld* count elements per row
 * as stored. */
Status onednn_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                    const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

#endif
