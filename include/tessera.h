/* tessera.h -- the one public header of libtessera: run exported PyTorch programs, and
 * any ATen op by name, from C.
 *
 *     TessCtx *ctx = tess_ctx_new(0);
 *     TessProgram *p = tess_open(ctx, "model.pt2");
 *     const TessTensor *in[] = {tess_tensor_from(ctx, TESS_I64, 2, (int64_t[]){1, 3}, ids)};
 *     TessTensor *out[8];
 *     int n = tess_run(p, in, 1, out, 8);
 *     if (n < 0) fprintf(stderr, "%s\n", tess_error_message(ctx));
 *
 * Errors: the first one sticks to its context; every later call on that context returns
 * at once with NULL or -1 until tess_error_clear().  Nothing prints, exits or aborts.
 * Ownership: tensors belong to the innermost open scope of their context and are freed
 * with it; a context has one outermost scope.  Threads: a context and all that belongs
 * to it is for one thread at a time; different contexts are independent.
 */
#ifndef TESSERA_H
#define TESSERA_H

#include <stddef.h>
#include <stdint.h>

#define TESS_VERSION "0.1.0"

#if defined(__GNUC__)
#define TESS_API __attribute__((visibility("default")))
#else
#define TESS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TessCtx TessCtx;
typedef struct TessTensor TessTensor;
typedef struct TessProgram TessProgram;
typedef struct TessScope TessScope;

/* ---- contexts and errors ------------------------------------------------------ */

/* Everything a rank knows.  threads <= 0: all cores.  NULL: out of memory. */
TESS_API TessCtx *tess_ctx_new(int threads);
TESS_API void tess_ctx_free(TessCtx *ctx); /* NULL is fine; frees its tensors and programs' handles */

/* 0, or the code of the error that sticks: the exit codes of the command line (1 failure,
 * 2 usage, 3 bad file, 4 difference, 5 rank, 6 checkpoint). */
TESS_API int tess_error(const TessCtx *ctx);
TESS_API const char *tess_error_message(const TessCtx *ctx); /* "" if none; lives until cleared */
TESS_API void tess_error_clear(TessCtx *ctx);

TESS_API const char *tess_version(void);
/* Random ops count from here; the same seed gives the same numbers. */
TESS_API void tess_manual_seed(TessCtx *ctx, uint64_t seed);

/* ---- scopes ---------------------------------------------------------------------- */

/* Tensors made from here on are freed by the matching tess_scope_end(). */
TESS_API TessScope *tess_scope_begin(TessCtx *ctx);
TESS_API void tess_scope_end(TessCtx *ctx, TessScope *scope);
/* A handle of the same tensor in the scope around the innermost one. */
TESS_API TessTensor *tess_keep(TessCtx *ctx, const TessTensor *t);

/* ---- tensors --------------------------------------------------------------------- */

typedef enum {
  TESS_BOOL, TESS_U8, TESS_I8, TESS_I16, TESS_I32, TESS_I64, TESS_F16, TESS_BF16, TESS_F32, TESS_F64, TESS_C64
} TessDtype;

/* Contiguous, uninitialised.  NULL on error. */
TESS_API TessTensor *tess_tensor_new(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size);
/* Contiguous, a copy of data. */
TESS_API TessTensor *tess_tensor_from(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size, const void *data);
/* The caller's memory, which must outlive the tensor and all views of it; stride in
 * elements, NULL: contiguous. */
TESS_API TessTensor *tess_tensor_borrow(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size, const int64_t *stride, void *data);

TESS_API TessDtype tess_dtype(const TessTensor *t);
TESS_API int tess_ndim(const TessTensor *t);
TESS_API const int64_t *tess_size(const TessTensor *t);   /* ndim numbers */
TESS_API const int64_t *tess_stride(const TessTensor *t); /* in elements */
TESS_API int64_t tess_numel(const TessTensor *t);
TESS_API void *tess_data(const TessTensor *t); /* first element */
/* Copies all elements, row-major, to out (tess_numel elements of the dtype's size). */
TESS_API int tess_read(TessCtx *ctx, const TessTensor *t, void *out);

/* ---- .safetensors files ------------------------------------------------------------ */

/* The tensor of that name; its bytes stay mapped.  NULL on error. */
TESS_API TessTensor *tess_load(TessCtx *ctx, const char *path, const char *name);
/* Writes n tensors under their names, whole or not at all; replaces the file if it
 * exists.  0, or -1 on error. */
TESS_API int tess_save(TessCtx *ctx, const char *path, const char *const *names, const TessTensor *const *tensors, int n);

/* ---- any op by name ---------------------------------------------------------------- */

typedef enum {
  TESS_ARG_NONE, TESS_ARG_TENSOR, TESS_ARG_INT, TESS_ARG_FLOAT, TESS_ARG_BOOL, TESS_ARG_STR, TESS_ARG_DTYPE,
  TESS_ARG_INTS, TESS_ARG_FLOATS, TESS_ARG_TENSORS
} TessArgKind;

typedef struct {
  TessArgKind kind;
  int n;            /* length of a list */
  const char *name; /* NULL: positional; else the schema's argument name */
  union {
    const TessTensor *tensor;
    int64_t i;
    double f;
    const char *str;
    TessDtype dtype;
    const int64_t *ints;
    const double *floats;
    const TessTensor *const *tensors;
  } v;
} TessArg;

static inline TessArg tess_none(void) { TessArg a = {TESS_ARG_NONE, 0, NULL, {0}}; return a; }
static inline TessArg tess_t(const TessTensor *t) { TessArg a = {TESS_ARG_TENSOR, 0, NULL, {0}}; a.v.tensor = t; return a; }
static inline TessArg tess_i(int64_t i) { TessArg a = {TESS_ARG_INT, 0, NULL, {0}}; a.v.i = i; return a; }
static inline TessArg tess_f(double f) { TessArg a = {TESS_ARG_FLOAT, 0, NULL, {0}}; a.v.f = f; return a; }
static inline TessArg tess_b(int b) { TessArg a = {TESS_ARG_BOOL, 0, NULL, {0}}; a.v.i = b; return a; }
static inline TessArg tess_s(const char *s) { TessArg a = {TESS_ARG_STR, 0, NULL, {0}}; a.v.str = s; return a; }
static inline TessArg tess_d(TessDtype d) { TessArg a = {TESS_ARG_DTYPE, 0, NULL, {0}}; a.v.dtype = d; return a; }
static inline TessArg tess_ints(const int64_t *v, int n) { TessArg a = {TESS_ARG_INTS, n, NULL, {0}}; a.v.ints = v; return a; }
static inline TessArg tess_floats(const double *v, int n) { TessArg a = {TESS_ARG_FLOATS, n, NULL, {0}}; a.v.floats = v; return a; }
static inline TessArg tess_tensors(const TessTensor *const *v, int n) { TessArg a = {TESS_ARG_TENSORS, n, NULL, {0}}; a.v.tensors = v; return a; }
static inline TessArg tess_named(const char *name, TessArg a) { a.name = name; return a; }

/* Calls an op ("aten.addmm.default") on plain tensors.  Writes up to `cap` result handles
 * (NULL where a result is None or no tensor) and returns their number, -1 on error. */
TESS_API int tess_call_n(TessCtx *ctx, const char *op, const TessArg *args, int nargs, TessTensor **out, int cap);
/* The first result; NULL on error. */
TESS_API TessTensor *tess_call_1(TessCtx *ctx, const char *op, const TessArg *args, int nargs);
/* tess_call(ctx, "aten.addmm.default", tess_t(b), tess_t(x), tess_t(w)) */
#ifndef __cplusplus
#define tess_call(ctx, op, ...) \
  tess_call_1((ctx), (op), (const TessArg[]){__VA_ARGS__}, (int)(sizeof((const TessArg[]){__VA_ARGS__}) / sizeof(TessArg)))
#endif

/* ---- exported programs ---------------------------------------------------------------- */

/* Reads a .pt2 (weights stay mapped).  The context must outlive the program.  NULL on error. */
TESS_API TessProgram *tess_open(TessCtx *ctx, const char *path);
TESS_API void tess_close(TessProgram *p); /* NULL is fine */

TESS_API int tess_input_count(const TessProgram *p);
TESS_API const char *tess_input_name(const TessProgram *p, int i); /* NULL if out of range */
/* What input i takes: writes its dtype and up to cap sizes, -1 for one that may vary, and
 * returns the number of dimensions.  A number counts as 0-d; -1 if i is out of range. */
TESS_API int tess_input_spec(const TessProgram *p, int i, TessDtype *dtype, int64_t *size, int cap);
TESS_API int tess_output_count(const TessProgram *p);

/* One tensor per user input, in order (a number is given as a tensor of one element).
 * Compiles on the first call for given sizes.  Buffers keep their state from call to
 * call.  Writes up to cap results (NULL where one is no tensor); returns their number,
 * -1 on error. */
TESS_API int tess_run(TessProgram *p, const TessTensor *const *inputs, int ninputs, TessTensor **out, int cap);

#ifdef __cplusplus
}

template <typename... Args> TessTensor *tess_call(TessCtx *ctx, const char *op, Args... args) {
  const TessArg list[] = {args..., tess_none()};
  return tess_call_1(ctx, op, list, (int)sizeof...(args));
}
#endif
#endif
