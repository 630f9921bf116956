/* tessera.h -- the one public header of libtessera: run and train exported PyTorch programs,
 * call any ATen op by name, and spread tensors over ranks, from C.
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
 * NULL for a context or program is taken like one with an error; any other NULL, where it has
 * no meaning of its own, and a negative count are errors of the context.  Of a NULL handle,
 * functions that only ask tell 0, NULL or "".
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
/* Seed and place in the stream, 16 bytes, to save and to go on from. */
TESS_API void tess_random_state(const TessCtx *ctx, unsigned char state[16]);
TESS_API void tess_set_random_state(TessCtx *ctx, const unsigned char state[16]);

/* ---- scopes ---------------------------------------------------------------------- */

/* Tensors made from here on are freed by the matching tess_scope_end(). */
TESS_API TessScope *tess_scope_begin(TessCtx *ctx);
TESS_API void tess_scope_end(TessCtx *ctx, TessScope *scope);
/* A handle of the same tensor in the scope around the innermost one. */
TESS_API TessTensor *tess_keep(TessCtx *ctx, const TessTensor *t);

/* For callers who count references themselves: a handle of the same tensor that belongs to
 * no scope and lives until it is released, by any thread, even after the context is gone
 * (of a DTensor then only tess_to_local() is left, on another context).  NULL on error. */
TESS_API TessTensor *tess_hold(TessCtx *ctx, const TessTensor *t);
TESS_API void tess_release(TessTensor *held); /* of tess_hold() only; NULL is fine */

/* ---- tensors --------------------------------------------------------------------- */

typedef enum {
  TESS_BOOL,
  TESS_U8,
  TESS_I8,
  TESS_I16,
  TESS_I32,
  TESS_I64,
  TESS_F16,
  TESS_BF16,
  TESS_F32,
  TESS_F64,
  TESS_C64
} TessDtype;

/* Contiguous, uninitialised.  NULL on error. */
TESS_API TessTensor *tess_tensor_new(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size);
/* Sizes without memory, for tess_fully_shard(); no op can read it. */
TESS_API TessTensor *tess_tensor_meta(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size);
/* Contiguous, a copy of data. */
TESS_API TessTensor *tess_tensor_from(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size,
                                      const void *data);
/* The caller's memory, which must outlive the tensor and all views of it; stride in
 * elements, NULL: contiguous. */
TESS_API TessTensor *tess_tensor_borrow(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size,
                                        const int64_t *stride, void *data);
/* The same with an owner: release(owner) is called once, by the thread that drops the last
 * tensor that uses the memory.  Not called if NULL is returned. */
TESS_API TessTensor *tess_tensor_adopt(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *size,
                                       const int64_t *stride, void *data, void (*release)(void *owner),
                                       void *owner);

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
TESS_API int tess_save(TessCtx *ctx, const char *path, const char *const *names, const TessTensor *const *tensors,
                       int n);

/* ---- any op by name ---------------------------------------------------------------- */

typedef enum {
  TESS_ARG_NONE,
  TESS_ARG_TENSOR,
  TESS_ARG_INT,
  TESS_ARG_FLOAT,
  TESS_ARG_BOOL,
  TESS_ARG_STR,
  TESS_ARG_DTYPE,
  TESS_ARG_INTS,
  TESS_ARG_FLOATS,
  TESS_ARG_TENSORS
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

static inline TessArg tess_none(void) {
  TessArg a = {TESS_ARG_NONE, 0, NULL, {0}};
  return a;
}
static inline TessArg tess_t(const TessTensor *t) {
  TessArg a = {TESS_ARG_TENSOR, 0, NULL, {0}};
  a.v.tensor = t;
  return a;
}
static inline TessArg tess_i(int64_t i) {
  TessArg a = {TESS_ARG_INT, 0, NULL, {0}};
  a.v.i = i;
  return a;
}
static inline TessArg tess_f(double f) {
  TessArg a = {TESS_ARG_FLOAT, 0, NULL, {0}};
  a.v.f = f;
  return a;
}
static inline TessArg tess_b(int b) {
  TessArg a = {TESS_ARG_BOOL, 0, NULL, {0}};
  a.v.i = b;
  return a;
}
static inline TessArg tess_s(const char *s) {
  TessArg a = {TESS_ARG_STR, 0, NULL, {0}};
  a.v.str = s;
  return a;
}
static inline TessArg tess_d(TessDtype d) {
  TessArg a = {TESS_ARG_DTYPE, 0, NULL, {0}};
  a.v.dtype = d;
  return a;
}
static inline TessArg tess_ints(const int64_t *v, int n) {
  TessArg a = {TESS_ARG_INTS, n, NULL, {0}};
  a.v.ints = v;
  return a;
}
static inline TessArg tess_floats(const double *v, int n) {
  TessArg a = {TESS_ARG_FLOATS, n, NULL, {0}};
  a.v.floats = v;
  return a;
}
static inline TessArg tess_tensors(const TessTensor *const *v, int n) {
  TessArg a = {TESS_ARG_TENSORS, n, NULL, {0}};
  a.v.tensors = v;
  return a;
}
static inline TessArg tess_named(const char *name, TessArg a) {
  a.name = name;
  return a;
}

/* Calls an op ("aten.addmm.default") on plain tensors.  Writes up to `cap` result handles
 * (NULL where a result is None or no tensor) and returns their number, -1 on error. */
TESS_API int tess_call_n(TessCtx *ctx, const char *op, const TessArg *args, int nargs, TessTensor **out, int cap);
/* The same with results of any kind: numbers that are not tensors come back as such. */
TESS_API int tess_call_values(TessCtx *ctx, const char *op, const TessArg *args, int nargs, TessArg *out, int cap);
/* "aten::mm(Tensor self, Tensor mat2) -> Tensor"; NULL: there is no such op. */
TESS_API const char *tess_op_schema(const char *op);
/* All ops, by name: i = 0, 1 ...; NULL: there are no more. */
TESS_API const char *tess_op_name(int i);
/* The first result; NULL on error. */
TESS_API TessTensor *tess_call_1(TessCtx *ctx, const char *op, const TessArg *args, int nargs);
/* tess_call(ctx, "aten.addmm.default", tess_t(b), tess_t(x), tess_t(w)) */
#ifndef __cplusplus
#define tess_call(ctx, op, ...)                            \
  tess_call_1((ctx), (op), (const TessArg[]){__VA_ARGS__}, \
              (int)(sizeof((const TessArg[]){__VA_ARGS__}) / sizeof(TessArg)))
#endif

/* ---- gradients ------------------------------------------------------------------------
 *
 *     tess_set_requires_grad(ctx, w, 1);
 *     TessTensor *loss = tess_call(ctx, "aten.mse_loss.default", tess_t(tess_call(ctx, "aten.mm.default",
 * tess_t(x), tess_t(w))), tess_t(y)); tess_backward(ctx, &loss, NULL, 1, 0); TessTensor *dw = tess_grad_of(ctx, w);
 *
 * Meaning is PyTorch's.  A tensor that was told to require a gradient is a leaf; results of ops on it require one,
 * too, and remember the op.  DTensors are tensors of their global size: their gradients are DTensors.  Tensors of
 * tess_keep() and tess_hold() share what is known of the one they were made of.  Programs (tess_run) give results
 * that require none. */

/* t becomes a leaf, or stops being one; handles of it that were made before do not know.  Floating-point and
 * complex only.  0, or -1 on error. */
TESS_API int tess_set_requires_grad(TessCtx *ctx, TessTensor *t, int on);
TESS_API int tess_requires_grad(const TessTensor *t);
TESS_API int tess_is_leaf(const TessTensor *t); /* also what requires no gradient is one */

enum {
  TESS_RETAIN_GRAPH = 1, /* the backward can be done again: what ops have kept stays */
  TESS_CREATE_GRAPH = 2, /* gradients can be differentiated, too; implies the former */
  TESS_ALLOW_UNUSED = 4, /* tess_grad(): an input that no output depends on gets NULL, which is else an error */
};

/* Adds the gradients of sum_i <outputs[i], cotangents[i]> to those of all leaves that the outputs depend on: all or
 * none.  cotangents NULL, or one of them: 1, of an output of one element.  Without TESS_RETAIN_GRAPH it can be done
 * once.  0, or -1 on error.  (collective, if there are DTensors) */
TESS_API int tess_backward(TessCtx *ctx, TessTensor *const *outputs, TessTensor *const *cotangents, int n,
                           unsigned flags);
/* The same by these m inputs, leaves or not, into gradients[m]; those of leaves stay as they are. */
TESS_API int tess_grad(TessCtx *ctx, TessTensor *const *outputs, TessTensor *const *cotangents, int n,
                       TessTensor *const *inputs, int m, TessTensor **gradients, unsigned flags);

/* What tess_backward() has added up for a leaf, or for a tensor of tess_retain_grad(); NULL: nothing (no error). */
TESS_API TessTensor *tess_grad_of(TessCtx *ctx, const TessTensor *t);
TESS_API int tess_set_grad(TessCtx *ctx, TessTensor *t, const TessTensor *gradient); /* NULL: none */
TESS_API int tess_retain_grad(TessCtx *ctx, TessTensor *t);
/* The same elements, through which no gradient flows. */
TESS_API TessTensor *tess_detach(TessCtx *ctx, const TessTensor *t);

/* In between, results require no gradient (or do again); these nest.  0, or -1 on error. */
TESS_API int tess_no_grad_begin(TessCtx *ctx);
TESS_API void tess_no_grad_end(TessCtx *ctx);
TESS_API int tess_enable_grad_begin(TessCtx *ctx);
TESS_API void tess_enable_grad_end(TessCtx *ctx);
/* The same at once, for those who remember the former setting, which is returned. */
TESS_API int tess_set_grad_enabled(TessCtx *ctx, int on);
TESS_API int tess_grad_enabled(const TessCtx *ctx);

/* Called by a backward when the gradient of a tensor is complete, in the order of registration, before it is added
 * to a leaf or goes on.  It may put another one, of the same size and dtype, into *replacement.  0, or not 0 for
 * failure; an error of the context is one, too. */
typedef int TessGradHook(TessCtx *ctx, TessTensor *gradient, TessTensor **replacement, void *arg);
typedef struct TessHook TessHook;
/* Every hook is given back once: tess_remove_hook() ends it, tess_forget_hook() leaves it to the tensor.  release
 * (may be NULL) is called with arg when it is gone, by whatever thread.  NULL on error. */
TESS_API TessHook *tess_register_hook(TessCtx *ctx, TessTensor *t, TessGradHook *fn, void *arg,
                                      void (*release)(void *arg));
TESS_API void tess_remove_hook(TessHook *hook); /* NULL is fine */
TESS_API void tess_forget_hook(TessHook *hook); /* NULL is fine */

/* ---- optimizers ---------------------------------------------------------------------------
 *
 *     TessOptimizer *o = tess_optimizer_new(ctx, "adamw,lr=3e-4,weight_decay=0.1", params, n);
 *     tess_backward(ctx, &loss, NULL, 1, 0);
 *     tess_clip_grad_norm(ctx, params, n, 1.0, 2, NULL);
 *     tess_optimizer_step(o);
 *     tess_optimizer_zero_grad(o);
 *
 * torch.optim's SGD, Adam, AdamW, Adagrad and Muon, with their arguments as text; Muon leaves what has not two
 * dimensions to AdamW.  Parameters are leaves, plain or DTensors of any meshes; they are written to in place.  An
 * optimizer belongs to its context, and may be freed after it. */

typedef struct TessOptimizer TessOptimizer;

/* optim NULL: AdamW with its defaults.  The parameters are group 0.  NULL on error. */
TESS_API TessOptimizer *tess_optimizer_new(TessCtx *ctx, const char *optim, TessTensor *const *params, int n);
TESS_API void tess_optimizer_free(TessOptimizer *o); /* NULL is fine */
/* More parameters, with the settings that tess_optimizer_new() was given but for these (NULL: none): the number of
 * their group, or -1. */
TESS_API int tess_optimizer_add(TessOptimizer *o, const char *settings, TessTensor *const *params, int n);
/* "lr=1e-4": from the next step on. */
TESS_API int tess_optimizer_set(TessOptimizer *o, int group, const char *settings);
/* Number i of a setting ("betas" has two); 0 if there is none. */
TESS_API double tess_optimizer_setting(const TessOptimizer *o, int group, const char *name, int i);
/* Parameters that have a gradient make a step; gradients are brought to where their parameters lie.  0, or -1.
 * (collective, if there are DTensors) */
TESS_API int tess_optimizer_step(TessOptimizer *o);
TESS_API int tess_optimizer_zero_grad(TessOptimizer *o); /* parameters have none afterwards */

/* What it keeps for parameter number `param`, counted over all groups: names as torch.optim has them. */
TESS_API int tess_optimizer_param_count(const TessOptimizer *o);
TESS_API const char *tess_optimizer_state_name(const TessOptimizer *o, int param, int i); /* NULL: no more */
/* As it is now, placed like the parameter; NULL: there was no step yet (no error). */
TESS_API TessTensor *tess_optimizer_state(TessOptimizer *o, int param, const char *name);
TESS_API int tess_optimizer_set_state(TessOptimizer *o, int param, const char *name, TessTensor *from); /* a copy */
TESS_API int64_t tess_optimizer_steps(const TessOptimizer *o, int param); /* that this parameter has made */
TESS_API int tess_optimizer_set_steps(TessOptimizer *o, int param, int64_t steps);

/* Scales the gradients so that their norm (type 1, 2, INFINITY, p), as one vector, is at most that large, and tells
 * what it was.  Plain tensors and DTensors of any meshes and placements.  0, or -1.  (collective, if there are
 * DTensors) */
TESS_API int tess_clip_grad_norm(TessCtx *ctx, TessTensor *const *params, int n, double most, double type,
                                 double *norm);
/* Brings every element to within -most and most. */
TESS_API int tess_clip_grad_value(TessCtx *ctx, TessTensor *const *params, int n, double most);

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

/* ---- training ---------------------------------------------------------------------------
 *
 *     TessTraining how = {.optim = "adamw,lr=3e-4,weight_decay=0.1", .clip = "1.0", .schedule = "cosine", .steps =
 * 100}; TessTrainer *t = tess_trainer_open(ctx, "loss.pt2", &how); TessStep step; for (int i = 0; i < 100; i++) if
 * (tess_trainer_step(t, inputs, n, &step) > 0) printf("%lld %g\n", (long long)step.step, step.loss);
 *     tess_trainer_write(t, "trained.safetensors");
 *     tess_trainer_free(t);
 *
 * The program returns its loss.  Names and texts are those of the options of `tessera train`, which its manual
 * explains; NULL and 0: as if the option were not given.  A trainer belongs to its context, which must outlive it;
 * random numbers (dropout) are the context's.
 *
 * With a mesh, the ranks of tess_run_ranks() or tess_ctx_mpi() train together: each opens a trainer with the same
 * settings and makes the same calls with the same whole batches, of which it takes its part; contexts have the same
 * seed.  Functions marked (collective) communicate: all ranks must call them, in the same order.  Of the others
 * each rank makes those that it needs, but what changes a trainer (states, rates, data) is to change on all. */

typedef struct TessTrainer TessTrainer;

typedef struct {
  const char *optim;         /* "sgd,lr=0.1,momentum=0.9,nesterov": torch.optim's arguments; NULL: adamw */
  const char *const *groups; /* "no_decay=*.bias,*norm*:weight_decay=0": other settings for some parameters */
  int ngroups;
  const char *freeze;      /* "wte.*,h.0.*": parameters that stay as they are */
  const char *clip;        /* "1.0", "0.05,norm=inf", "value=0.5" */
  const char *schedule;    /* "cosine,warmup=100": of the learning rate; NULL: constant */
  int64_t steps;           /* that the schedule is for; 0: not known */
  int accumulate;          /* batches that make one step, with their mean gradient; 0: 1 */
  const char *dtype;       /* "bf16", "f16": of products, as autocast has it */
  const char *param_dtype; /* of parameters, buffers and inputs, as Module.to() has it */
  const char *state_dtype; /* of what the optimizer keeps */
  const char *memory;      /* "2G", "70%": limit of the memory of a step */
  const char *loss;        /* which output, by name or position; NULL: the only one that can be it */
  const char *nonfinite;   /* what becomes of a step that is not finite: "stop": an error (NULL), "skip", "go" */
  int check_finite;        /* that error names the first node that gave such a value */
  const char *mesh; /* "dp=2,tp=2": the context's ranks train together, as one would on the whole batch; NULL: the
                       plan's, or one rank by itself */
  const char *plan; /* which weights are sharded how: a file, its text (from the first '{' on), or "auto"; NULL:
                       auto if there is a mesh */
  const char *data_axis; /* of the mesh, over which batches are sharded; NULL: those called dp, data, fsdp ... */
  const char *data_parallel; /* "local": the mean of what ranks get on their own rows, as PyTorch's DDP has it;
                                "global" (NULL): as one rank on the whole batch */
  const char *fsdp;      /* parameters, gradients and states are sharded over this axis, too; "": the data axes */
  const char *wrap;      /* with fsdp: "layers.*,head", modules whose parameters are gathered at once */
  int keep_gathered;     /* with fsdp: from the forward to the backward */
  int prefetch;          /* with fsdp: groups that are gathered ahead; 0: 1 */
  const char *rank_rows; /* "5,7": with "local", rows of each batch for the ranks along the data axes */
  const char
      *bucket_mb; /* "25": MiB of gradients that are reduced at once; "0": each by itself; "auto"; NULL: "4" */
  const char *reduce_dtype; /* "bf16", "f16": gradients are rounded to it before they are added up over the ranks */
  int whole_updates; /* ranks that have a parameter each update all of it, and keep all of the optimizer's state;
                        0: a part each, and the parts are gathered */
} TessTraining;

typedef struct {
  int64_t step;      /* of the optimizer, from 1 on */
  double loss;       /* the mean over its batches */
  double grad_norm;  /* before clipping */
  double lr;         /* of parameters that are in no group */
  double loss_scale; /* that the loss was multiplied by for f16; 0: it was not */
  int skipped;       /* it was not finite, and parameters are as before */
} TessStep;

/* Files for training or evaluation: docs/data.md. */
typedef struct {
  const char *const *files; /* .safetensors with a tensor per input, "input=x.npy", or tokens; globs */
  int nfiles;
  const char *tokens; /* "input_ids,labels": the files are streams of tokens, cut into windows for these inputs */
  int unshifted;
  int64_t window;
  const char *token_dtype;
  int64_t batch; /* samples; 0: as the program says */
  int batched, no_shuffle, drop_last;
  uint64_t seed; /* of the order */
} TessData;

/* Reads a .pt2.  how NULL: AdamW with its defaults.  NULL on error.  (collective) */
TESS_API TessTrainer *tess_trainer_open(TessCtx *ctx, const char *path, const TessTraining *how);
TESS_API void tess_trainer_free(TessTrainer *t); /* NULL is fine */
/* The program with parameters as they are now, to ask for its inputs and to run (no step is made, buffers keep
 * their state).  It belongs to the trainer. */
TESS_API TessProgram *tess_trainer_program(TessTrainer *t);

/* One batch: a tensor per user input, in order.  1: it completed a step, which out (may be NULL) tells of; 0: more
 * batches are to come (accumulate); -1 on error: parameters are as before, and the next batch is the first of a
 * step.  (collective) */
TESS_API int tess_trainer_step(TessTrainer *t, const TessTensor *const *inputs, int ninputs, TessStep *out);
/* The loss of one batch; nothing changes, neither buffers nor random numbers.  0, or -1 on error.  (collective) */
TESS_API int tess_trainer_evaluate(TessTrainer *t, const TessTensor *const *inputs, int ninputs, double *loss);
TESS_API int64_t tess_trainer_steps(const TessTrainer *t); /* made so far, those before tess_trainer_resume() too */
/* Learning rates from now on: so much of what the settings say, instead of the schedule.  0, or -1 on error. */
TESS_API int tess_trainer_set_rate(TessTrainer *t, double factor);

/* Batches from files, in place of those that were set before; step n gets the batches that `tessera train` would
 * give it.  All that can be wrong with the files is an error here. */
TESS_API int tess_trainer_set_data(TessTrainer *t, const TessData *data);
/* A whole step with the next batches of these files: 1, or -1 on error.  (collective) */
TESS_API int tess_trainer_next(TessTrainer *t, TessStep *out);
/* The mean loss over files, or over their first batches (0: all).  (collective) */
TESS_API int tess_trainer_evaluate_data(TessTrainer *t, const TessData *data, int64_t batches, double *loss);

/* Everything that changes, by name: parameters and buffers under their own, what optimizers keep as
 * "optim.state.<parameter>.exp_avg" and so on. */
TESS_API int tess_trainer_state_count(const TessTrainer *t);
TESS_API const char *tess_trainer_state_name(const TessTrainer *t, int i); /* NULL if out of range */
/* 0: a parameter, 1: a buffer, 2: one that no state_dict has, 3: of the optimizer, -1: there is none. */
TESS_API int tess_trainer_state_kind(const TessTrainer *t, const char *name);
/* Its memory, which steps write to, as a tensor in the innermost scope; for reading.  Of what is sharded over a
 * mesh, a copy of all of it.  NULL on error.  (collective) */
TESS_API TessTensor *tess_trainer_state(TessTrainer *t, const char *name);
/* Copies the elements of a tensor of the same size; on a mesh, of the whole, from which each rank takes its part.
 */
TESS_API int tess_trainer_set_state(TessTrainer *t, const char *name, const TessTensor *from);
/* All parameters and buffers, from a checkpoint of any format with their names (docs/ckpt.md); other dtypes are
 * cast. On a mesh each rank reads what it holds.  (collective) */
TESS_API int tess_trainer_load(TessTrainer *t, const char *path);

/* Saves everything into a run folder (docs/checkpoints.md), as the save of this step; the last `keep` saves stay
 * (0: all).  The trainer keeps the folder locked until it saves to another or is freed.  On a mesh every rank
 * writes its shards, and what is saved can be resumed on any mesh, or without one.  (collective) */
TESS_API int tess_trainer_save(TessTrainer *t, const char *folder, int keep);
/* Goes on from the newest save of a run folder, the context's random numbers too.  0; 1 if the save has the state
 * of another optimizer, which is left out where this one keeps something else; -1 on error.  (collective) */
TESS_API int tess_trainer_resume(TessTrainer *t, const char *folder);
/* The weights by name, or (.pt2) the program with them; replaces the file if it exists.  On a mesh rank 0 writes.
 * (collective) */
TESS_API int tess_trainer_write(TessTrainer *t, const char *path);

/* ---- programs sharded over ranks --------------------------------------------------------
 *
 * One program per rank of a mesh, each with its part of the weights, that talk through
 * functional collectives of named groups: for torchrun, or for tessera itself.  No rank need be
 * there, any context will do; not collective. */

typedef struct {
  const char *program; /* a .pt2 file */
  const char *mesh;    /* "tp=4", "dp=2,tp=4"; NULL: the plan's */
  const char *plan;    /* a file (a plan, a Hugging Face config.json), its text (from the first '{' on), or "auto";
                          NULL: auto */
  const char *sizes;   /* symbols that are to be numbers: "s0=2,s1=16"; NULL: none */
  int half_sums; /* parts of sums of f16 and bf16 are rounded before they are added up, as PyTorch does; 0: f32
                    until then */
} TessCut;

/* Writes a folder: rank0.pt2 ..., plan.json, report.txt, run.py, README.md, whole or not at all.
 * force: into one that is not empty, replacing files of the same names.  The report, to be freed
 * with tess_free(); NULL on error (2: plan, mesh or folder will not do; 3: the program). */
TESS_API char *tess_shard(TessCtx *ctx, const TessCut *cut, const char *folder, int force);
/* One rank's program alone, as a file that must not be there yet.  0, or -1 on error. */
TESS_API int tess_shard_rank(TessCtx *ctx, const TessCut *cut, int rank, const char *path);

/* ---- ranks ----------------------------------------------------------------------------
 *
 * A rank is a thread with a context of its own (or a process under MPI).  Functions marked
 * (collective) must be called by all ranks of the mesh in question, in the same order; if
 * they disagree, or one fails, all get an error that names the rank, the operation and the
 * numbers.  An error of the world is final: leave it and start anew. */

typedef struct TessMesh TessMesh;
typedef struct TessHub TessHub;

/* A rank's work: 0, or a code of your own for "failed" (the context's error is used if
 * there is one). */
typedef int TessRankFn(TessCtx *ctx, void *arg);

/* Runs fn on n thread ranks and waits for all.  threads: of each rank (<= 0: all cores
 * divided).  0, or the code of the first failure with its message in error (cap bytes). */
TESS_API int tess_run_ranks(int n, int threads, TessRankFn *fn, void *arg, char *error, size_t cap);

/* The same for callers with threads of their own: each thread joins as one rank and
 * leaves; leaving with a message (not NULL) or an error releases the others with it. */
TESS_API TessHub *tess_hub_new(int n); /* NULL: out of memory or n < 1 */
TESS_API TessCtx *tess_hub_join(TessHub *hub, int rank, int threads);
TESS_API void tess_hub_leave(TessCtx *ctx, const char *failure); /* frees the context */
/* By any thread while ranks are in it: all give up; those that wait get this message as their error. */
TESS_API void tess_hub_fail(TessHub *hub, const char *message);
/* After all have left: of the first rank that failed; "" if none. */
TESS_API const char *tess_hub_error(TessHub *hub);
TESS_API void tess_hub_free(TessHub *hub); /* after all have left */

/* This process's rank of an MPI launch (mpirun -n 4 PROGRAM); needs libtessera_mpi.so beside
 * libtessera.so, or TESSERA_MPI_PLUGIN.  threads <= 0: the cores divided among the ranks of a
 * host.  One in the life of a process; tess_ctx_free() tells the others if the context has an
 * error, waits until all ranks leave, and ends MPI. */
TESS_API TessCtx *tess_ctx_mpi(int threads);

/* A context that plans: meshes of any size, DTensors without shards, nothing is run. */
TESS_API TessCtx *tess_ctx_plan(void);

TESS_API int tess_rank(const TessCtx *ctx);       /* 0 for a context by itself */
TESS_API int tess_world_size(const TessCtx *ctx); /* 1 for a context by itself */
/* Was this process started by an MPI launcher? */
TESS_API int tess_mpi_launched(void);
/* Collectives of a program name their group: these ranks of the world are called so.  Each rank
 * is told of every group; of several with one name it belongs to one.  A world without any
 * definition takes every name for all ranks; "0", PyTorch's default group, always means that
 * unless it is defined.  0, or -1 with the context's error. */
TESS_API int tess_define_group(TessCtx *ctx, const char *name, const int *ranks, int n);
/* Seconds that this rank waits for others before it names the missing and ends the world with
 * that error; 0: for ever.  1800 unless set. */
TESS_API void tess_set_timeout(TessCtx *ctx, double seconds);
/* If the world fails, the last 2000 collectives of all its ranks go to this file as JSON, and the
 * error says so: {"error", "ranks": [{"rank", "collectives": [{"sequence", "kind", "dtype",
 * "count", "group", "why", "begun_us", "done_us"} ..]} ..]}.  One rank's setting is enough.
 * Under MPI each rank writes its own, with "." and the rank behind the name, when its context is
 * freed.  NULL: nowhere.  0, or -1 on error. */
TESS_API int tess_set_flight(TessCtx *ctx, const char *path);
/* This rank gives up: all others of the world get an error that names it and has this text. */
TESS_API void tess_fail(TessCtx *ctx, const char *message);
TESS_API int tess_barrier(TessCtx *ctx); /* (collective over the world) 0, or -1 on error */

/* ---- meshes ------------------------------------------------------------------------------ */

/* Axes of sizes[], named names[] (NULL: no names), over ranks 0, 1, 2 ... row-major, or over
 * the given ones.  Every rank calls it, also those outside.  Lives as long as the context;
 * the same again gives the same mesh.  NULL on error. */
TESS_API TessMesh *tess_init_device_mesh(TessCtx *ctx, int naxes, const int *sizes, const char *const *names);
TESS_API TessMesh *tess_mesh_from_ranks(TessCtx *ctx, int naxes, const int *sizes, const char *const *names,
                                        const int *ranks);
/* The axes of these names through this rank; as one axis (name NULL: joined by '_'). */
TESS_API TessMesh *tess_mesh_sub(TessCtx *ctx, TessMesh *mesh, const char *const *names, int n);
TESS_API TessMesh *tess_mesh_flatten(TessCtx *ctx, TessMesh *mesh, const char *const *names, int n,
                                     const char *name);
TESS_API int tess_mesh_ndim(const TessMesh *mesh);
TESS_API int tess_mesh_size(const TessMesh *mesh, int axis);         /* axis < 0: all ranks */
TESS_API const char *tess_mesh_name(const TessMesh *mesh, int axis); /* NULL: none */
TESS_API int tess_mesh_coordinate(const TessMesh *mesh, int *coord); /* ndim numbers; -1: this rank is outside */
TESS_API const int *tess_mesh_ranks(const TessMesh *mesh);
TESS_API const char *tess_mesh_repr(const TessMesh *mesh, char *buf, size_t cap); /* buf */
/* The mesh that functions take where theirs is NULL; returns the former one. */
TESS_API TessMesh *tess_set_mesh(TessCtx *ctx, TessMesh *mesh);

/* ---- DTensors ------------------------------------------------------------------------------
 *
 * A DTensor is a TessTensor: tess_size() and tess_stride() tell the whole, tess_data() is
 * this rank's shard, and tess_call() takes it like any tensor (collective).  Placements are
 * text, one per mesh axis, PyTorch's spellings: "S(0)R", "[Shard(0), Replicate()]", "P(max)",
 * "_S(0, 2)", "S(0; segments 64,16,16; unit 16)".  NULL: all R.  Ranks outside the mesh call
 * what the others call; their shards have no elements. */

/* This rank's shard, not copied.  shape NULL: every shard is as large as this one.
 * run_check (collective): sizes and dtypes are compared, an uneven shape is found out,
 * replicas are made equal to those of coordinate 0. */
TESS_API TessTensor *tess_from_local(TessCtx *ctx, TessTensor *local, TessMesh *mesh, const char *placements,
                                     int run_check, int ndim, const int64_t *shape, const int64_t *stride);
TESS_API TessTensor *tess_to_local(TessCtx *ctx, const TessTensor *t); /* shares memory */
/* The whole on every rank of the mesh; no elements outside it.  (collective) */
TESS_API TessTensor *tess_full_tensor(TessCtx *ctx, const TessTensor *t);
/* dtype < 0: its own; else values are cast before they are sent.  Another mesh: collective
 * over the world.  (collective) */
TESS_API TessTensor *tess_redistribute(TessCtx *ctx, const TessTensor *t, TessMesh *mesh, const char *placements,
                                       int dtype);
/* The same four with what gradients are to be.  grad_placements (NULL: as the DTensor, and R where that is P): of
 * the gradient of a DTensor whose shards come back from to_local and full_tensor; of that whose shards become the
 * gradient of from_local's shard, which must be of its size.  backward_dtype (< 0: t's own): gradients are cast
 * before they are sent back, and arrive in t's dtype.  They are never made partial again: what comes for a P is R,
 * or P as it comes. */
TESS_API TessTensor *tess_from_local_grad(TessCtx *ctx, TessTensor *local, TessMesh *mesh, const char *placements,
                                          int run_check, int ndim, const int64_t *shape, const int64_t *stride,
                                          const char *grad_placements);
TESS_API TessTensor *tess_to_local_grad(TessCtx *ctx, const TessTensor *t, const char *grad_placements);
TESS_API TessTensor *tess_full_tensor_grad(TessCtx *ctx, const TessTensor *t, const char *grad_placements);
TESS_API TessTensor *tess_redistribute_grad(TessCtx *ctx, const TessTensor *t, TessMesh *mesh,
                                            const char *placements, int dtype, int backward_dtype);
/* In two halves: the rank computes while values travel.  Every start (within the tensor's
 * mesh) is waited for once, in the order of the starts; t may be freed meanwhile.  (collective) */
typedef struct TessWork TessWork;
TESS_API TessWork *tess_redistribute_start(TessCtx *ctx, const TessTensor *t, const char *placements);
TESS_API TessTensor *tess_redistribute_wait(TessWork *work);
/* src: the coordinate whose values count (collective); -1: each rank takes its shard of
 * its own values, nothing is sent.  Of a leaf that requires a gradient a leaf is made, with a
 * gradient of its own; through another tensor the gradient flows, whole on every rank. */
TESS_API TessTensor *tess_distribute_tensor(TessCtx *ctx, TessTensor *t, TessMesh *mesh, const char *placements,
                                            int src);
/* Every element `value`: ones, zeros, full, empty. */
TESS_API TessTensor *tess_dtensor_full(TessCtx *ctx, TessMesh *mesh, const char *placements, TessDtype dtype,
                                       int ndim, const int64_t *size, double value);
/* Random: uniform in [0, 1), or normal.  Element i of the whole takes number i of the stream:
 * the same tensor on every mesh, if all ranks have the same seed.  Not for P. */
TESS_API TessTensor *tess_dtensor_rand(TessCtx *ctx, TessMesh *mesh, const char *placements, TessDtype dtype,
                                       int ndim, const int64_t *size, int normal);

TESS_API int tess_is_dtensor(const TessTensor *t);
TESS_API TessMesh *tess_mesh_of(const TessTensor *t); /* NULL: plain */
/* "S(0)R" into buf, which is returned; "" for a plain tensor. */
TESS_API const char *tess_placements(const TessTensor *t, char *buf, size_t cap);
TESS_API const char *tess_repr(const TessTensor *t, char *buf, size_t cap);
/* 1, 0, or -1 on error: same sizes, dtype and elements.  (collective) */
TESS_API int tess_equal(TessCtx *ctx, const TessTensor *a, const TessTensor *b);

/* A DTensor in two parts, and back: its shard, and its spec as text (JSON, into spec of cap
 * bytes).  Nothing is sent; memory is shared. */
TESS_API TessTensor *tess_dtensor_flatten(TessCtx *ctx, const TessTensor *t, char *spec, size_t cap);
TESS_API TessTensor *tess_dtensor_unflatten(TessCtx *ctx, TessTensor *local, TessMesh *mesh, const char *spec);

/* Checkpoints: the boxes of the whole that this rank's shard is, one or (strided) several:
 * writes ndim offsets and sizes for each of up to cap boxes, returns their number, -1 on
 * error (P is refused).  A shard of no elements is one box at the end. */
TESS_API int tess_chunk_list(TessCtx *ctx, const TessTensor *t, int64_t *offsets, int64_t *sizes, int cap);
/* The part of the shard that is the box beginning at these offsets: a view. */
TESS_API TessTensor *tess_get_chunk(TessCtx *ctx, const TessTensor *t, const int64_t *offsets);

/* ---- modules --------------------------------------------------------------------------------
 *
 * A tree of modules with names, parameters, buffers and a forward function each.  Names of
 * inner ones are dotted: "layers.0.weight".  A module belongs to no context and may outlive
 * those it was used with (as handles of tess_hold() may).  Several threads may ask, walk and
 * call it at a time, but not change it.  It is counted: tess_module_new() and
 * tess_module_hold() give a reference each, tess_module_free() drops one, and the last takes
 * the modules inside with it. */

typedef struct TessModule TessModule;
/* Writes up to cap results, returns their number, or -1. */
typedef int TessForwardFn(TessCtx *ctx, TessModule *m, TessTensor **inputs, int ninputs, TessTensor **out, int cap,
                          void *arg);
/* Of one module of a tree; path is "" for the root.  Not 0: the walk ends with that. */
typedef int TessModuleVisit(TessCtx *ctx, const char *path, TessModule *m, void *arg);
/* May distribute tensors of module m (tess_module_set).  0, or not 0 for failure. */
typedef int TessPartitionFn(TessCtx *ctx, const char *path, TessModule *m, TessMesh *mesh, void *arg);
/* May replace tensors of the list: inputs before forward, outputs after it.  mesh: of
 * tess_distribute_module(), or NULL.  0, or not 0 for failure. */
typedef int TessModuleHook(TessCtx *ctx, TessModule *m, TessTensor **tensors, int n, TessMesh *mesh, void *arg);
typedef enum { TESS_BEFORE_FORWARD, TESS_AFTER_FORWARD } TessHookAt;

TESS_API TessModule *tess_module_new(TessCtx *ctx, TessForwardFn *forward, void *arg); /* forward may be NULL */
TESS_API TessModule *tess_module_hold(TessModule *m);                                  /* m */
TESS_API void tess_module_free(TessModule *m);                                         /* NULL is fine */
/* Grows with every change of its own tensors and children. */
TESS_API int64_t tess_module_version(const TessModule *m);

/* What styles of parallelism know a module as: "linear" (weight [out,in], bias [out]), "embedding" (weight
 * [rows,features]), or anything else; "": nothing in particular (NULL).  A copy is kept. */
TESS_API int tess_module_set_kind(TessCtx *ctx, TessModule *m, const char *kind);
TESS_API const char *tess_module_kind(const TessModule *m);

/* m takes over the caller's reference of the child, unless this fails; a child of that name is
 * replaced.  One module may be in several places (hold it for each), but not inside itself. */
TESS_API int tess_module_add(TessCtx *ctx, TessModule *m, const char *name, TessModule *child);
TESS_API int tess_module_remove(TessCtx *ctx, TessModule *m, const char *name); /* a tensor or a module */
TESS_API TessModule *tess_module_child(TessModule *m, const char *path);        /* NULL: none; "": m */
TESS_API int tess_module_child_count(const TessModule *m);
TESS_API const char *tess_module_child_name(const TessModule *m, int i);
TESS_API TessModule *tess_module_child_at(const TessModule *m, int i);
TESS_API TessModule *tess_module_parent(const TessModule *m); /* the first of those around it; NULL: a root */
TESS_API const char *tess_module_path(const TessModule *m, char *buf, size_t cap); /* from its root; buf */
/* Calls visit on every module once, root first.  0, what visit returned, or -1 on error. */
TESS_API int tess_module_walk(TessCtx *ctx, TessModule *m, TessModuleVisit *visit, void *arg);

/* A tensor that is there is replaced and stays what it was; a new one is a parameter, or a
 * buffer (persistent: saved with the parameters).  m keeps a handle of its own.  0, or -1. */
TESS_API int tess_module_set(TessCtx *ctx, TessModule *m, const char *name, const TessTensor *t);
TESS_API int tess_module_set_buffer(TessCtx *ctx, TessModule *m, const char *name, const TessTensor *t,
                                    int persistent);
TESS_API TessTensor *tess_module_get(TessModule *m, const char *name); /* lives until replaced; NULL: none */
TESS_API int tess_module_tensor_count(const TessModule *m);            /* of its own, in the order they came */
TESS_API const char *tess_module_tensor_name(const TessModule *m, int i);
/* 0: a parameter, 1: a buffer, 2: one that is not saved, -1: none. */
TESS_API int tess_module_is_buffer(TessModule *m, const char *name);
/* 1, 0, -1: none.  Parameters of floating point or complex numbers do unless told otherwise. */
TESS_API int tess_module_requires_grad(TessModule *m, const char *name);
TESS_API int tess_module_set_requires_grad(TessCtx *ctx, TessModule *m, const char *name, int on);

/* Calls fn around the forward function, after hooks that were there before.  The hook's number, or -1. */
TESS_API int tess_module_hook(TessCtx *ctx, TessModule *m, TessHookAt at, TessModuleHook *fn, void *arg);
TESS_API void tess_module_unhook(TessModule *m, int hook);
/* Hooks, forward, hooks.  Writes up to cap results, returns their number, or -1. */
TESS_API int tess_module_call(TessCtx *ctx, TessModule *m, TessTensor **inputs, int ninputs, TessTensor **out,
                              int cap);
/* Calls partition on every module, root first; its tensors that are then still plain are
 * replicated from coordinate 0.  input and output become hooks of m.  Once per module.  0, or
 * -1.  (collective) */
TESS_API int tess_distribute_module(TessCtx *ctx, TessModule *m, TessMesh *mesh, TessPartitionFn *partition,
                                    TessModuleHook *input, TessModuleHook *output, void *arg);

/* ---- layers -----------------------------------------------------------------------------------
 *
 * Modules with a forward function, their parameters leaves of f32, begun as torch.nn begins them (with this
 * library's random numbers).  NULL on error. */

TESS_API TessModule *tess_linear(TessCtx *ctx, int64_t in, int64_t out, int bias); /* weight [out,in], bias [out] */
TESS_API TessModule *tess_embedding(TessCtx *ctx, int64_t rows, int64_t features); /* weight [rows,features] */
TESS_API TessModule *tess_layer_norm(TessCtx *ctx, int64_t features, double eps);  /* weight, bias [features] */
TESS_API TessModule *tess_rms_norm(TessCtx *ctx, int64_t features, double eps);    /* weight [features] */

/* Every parameter of the tree that requires a gradient, each once, in the order of the tree: writes up to cap of
 * them, which live until they are replaced, and returns their number; -1 on error. */
TESS_API int tess_module_parameters(TessCtx *ctx, TessModule *m, TessTensor **out, int cap);

/* ---- tensor parallel ----------------------------------------------------------------------------
 *
 *     const TessPlanEntry plan[] = {{.path = "layers.*.w1", .style = TESS_COLWISE},
 *                                   {.path = "layers.*.w2", .style = TESS_ROWWISE}};
 *     tess_parallelize_module(ctx, model, tess_mesh_sub(ctx, mesh, (const char *[]){"tp"}, 1), plan, 2, 0);
 *
 * PyTorch's parallelize_module(): parameters become DTensors on a mesh of one axis, and hooks around forward
 * functions make DTensors of plain tensors, move them, and make plain ones of them again. */

typedef enum {
  TESS_COLWISE,  /* a linear: weight and bias S(0); an embedding: S(1).  Input R, output S(-1) */
  TESS_ROWWISE,  /* a linear: weight S(1), bias R, input S(-1); an embedding: S(0), input R.  Output R */
  TESS_SEQUENCE, /* any module: parameters R as each rank has them; input and output S(1) */
  TESS_PREPARE   /* any module, nothing but inputs and outputs */
} TessStyle;
/* What modules and callers get: as the style has it (plain tensors from colwise and rowwise and as outputs of
 * prepare, else DTensors), plain tensors, DTensors. */
typedef enum { TESS_AS_STYLE, TESS_PLAIN, TESS_SPREAD } TessSeen;

typedef struct {
  const char *path; /* names of children with dots between, "*" and "?" in them; "" or NULL: the module itself */
  TessStyle style;
  /* One placement per tensor, "S(1)"; NULL among them: that tensor is left alone.  inputs: where plain tensors
   * lie; want_inputs: where they are brought (TESS_PREPARE; the other styles know, and take one input at most). */
  const char *const *inputs, *const *want_inputs;
  int ninputs;
  /* TESS_COLWISE, TESS_ROWWISE: outputs, one at most, is where the result is brought.  TESS_PREPARE: outputs is
   * where plain results lie, want_outputs where they are brought. */
  const char *const *outputs, *const *want_outputs;
  int noutputs;
  TessSeen seen_inputs, seen_outputs; /* TESS_PREPARE has both, the other styles seen_outputs */
} TessPlanEntry;

/* Applies the n entries to the modules that match; an entry that matches none, a style that does not fit, a wrong
 * placement is an error before anything is changed.  src: the coordinate whose values count, -1: each rank's own.
 * 0, or -1.  (collective) */
TESS_API int tess_parallelize_module(TessCtx *ctx, TessModule *m, TessMesh *mesh, const TessPlanEntry *plan, int n,
                                     int src);
/* Calls visit on every module that a path of a plan names: their number, what visit returned if not 0 (then < 0),
 * or -1 on error. */
TESS_API int tess_module_match(TessCtx *ctx, TessModule *m, const char *path, TessModuleVisit *visit, void *arg);

/* 1: from here on, a softmax or cross entropy over a dimension that is sharded exchanges its sums, and plain
 * targets meet DTensors as replicated: 3 all-reduces of a number per row for a loss, none in its backward, if that
 * is called before 0 is set again.  Returns the former setting. */
TESS_API int tess_loss_parallel(TessCtx *ctx, int on);

/* ---- data parallel -------------------------------------------------------------------------------
 *
 *     TessDataParallel *d = tess_data_parallel(ctx, model, tess_mesh_sub(ctx, mesh, (const char *[]){"dp"}, 1),
 * NULL);
 *     ... tess_module_call(), tess_backward(): gradients of parameters are averages over the axis ...
 *
 * PyTorch's DistributedDataParallel, on the module itself: each rank has batches of its own; the gradients of all
 * parameters are averaged bucket by bucket while the backward goes on.  Parameters may be DTensors of other axes.
 * What was not synchronised before (tess_data_parallel_sync) is averaged with the next backward that is. */

typedef struct TessDataParallel TessDataParallel;

typedef struct {
  double bucket_mb;   /* MiB of gradients that travel together; 0: 25.  The first bucket has 1, or less */
  int find_unused;    /* the forward may leave out parameters, on some ranks or all */
  int own_buffers;    /* buffers are not made those of coordinate 0 before every forward with gradients */
  int own_parameters; /* parameters and buffers are not made those of coordinate 0 at the beginning */
  int bf16;           /* gradients travel as bf16: half the bytes, rounded before they are added up */
} TessReplicas;

/* mesh: one axis (NULL: the current one).  how NULL: all 0.  m must not change its parameters from here on; they
 * are those that require a gradient now.  NULL on error.  (collective) */
TESS_API TessDataParallel *tess_data_parallel(TessCtx *ctx, TessModule *m, TessMesh *mesh, const TessReplicas *how);
TESS_API void tess_data_parallel_free(TessDataParallel *d); /* the module is as before; NULL is fine */
/* 0: backwards add to gradients of this rank alone; returns the former setting. */
TESS_API int tess_data_parallel_sync(TessDataParallel *d, int on);
TESS_API int tess_data_parallel_buckets(const TessDataParallel *d); /* how many */
/* Ranks may have different numbers of batches in between: one that is at the end takes part in the collectives of
 * the others until all are, and then has the parameters and buffers of one that went on longest.  divide_by_active:
 * sums of gradients are divided by the ranks that still have batches, not by all.  0, or -1 on error. (collective)
 */
TESS_API int tess_data_parallel_join_begin(TessDataParallel *d, int divide_by_active);
TESS_API int tess_data_parallel_join_end(TessDataParallel *d);

/* ---- fully sharded data parallel --------------------------------------------------------------------
 *
 *     for (each block) tess_fully_shard(ctx, &block, 1, mesh, NULL);
 *     tess_fully_shard(ctx, &model, 1, mesh, NULL);
 *     ... tess_module_call(), tess_backward(), tess_optimizer_step() on DTensors that are shards ...
 *
 * PyTorch's fully_shard (FSDP2): a call makes a group of the parameters below its modules that no earlier call has
 * taken, so call it from the inside out.  A group is gathered before forward and freed after it, gathered again for
 * the backward and freed when that leaves the module; its gradients are averaged over all ranks and stay as shards.
 * Each rank has batches of its own.  Parameters may be DTensors of other axes (tensor parallelism).  Whatever takes
 * a module below is told of those that tess_fully_shard() was called with.  (collective) all of it. */

typedef enum {
  TESS_RESHARD_DEFAULT, /* parameters are freed after forward, but for those of the root */
  TESS_RESHARD_ALWAYS,
  TESS_RESHARD_NEVER,
  TESS_RESHARD_TO /* shards of groups of reshard_ranks ranks are kept for the backward */
} TessReshard;

/* Of a parameter, by its dotted name: *dim (0) is cut, over *mesh (that of the call).  0, or not 0 for failure. */
typedef int TessShardPlacementFn(TessCtx *ctx, const char *name, const TessTensor *param, int *dim, TessMesh **mesh,
                                 void *arg);

typedef struct {
  TessReshard reshard;
  int reshard_ranks;
  /* TESS_BOOL (0): as they are.  What parameters are gathered as, gradients reduced as, outputs given as. */
  TessDtype param_dtype, reduce_dtype, output_dtype;
  int keep_inputs; /* inputs of floating point are not cast to param_dtype */
  const char
      *offload; /* a folder: shards of parameters lie in a file there, which the system may take out of memory */
  const char *shard_axes,
      *replicate_axes;        /* mesh is larger than data parallelism: names of its axes, "dp" or "dp,cp" */
  int replicate;              /* mesh is of one axis, and nothing is sharded: gradients are all-reduced */
  const char *const *ignored; /* dotted names of parameters that are left alone */
  int nignored;
  TessShardPlacementFn *placement;
  void *placement_arg;
} TessFsdpOptions;

/* n modules as one group, which is gathered when the first of them runs and freed after the last.  mesh: one axis,
 * or two: replicas and shards (NULL: the current one, or all ranks).  options NULL: all 0.  0, or -1. */
TESS_API int tess_fully_shard(TessCtx *ctx, TessModule *const *modules, int n, TessMesh *mesh,
                              const TessFsdpOptions *options);
TESS_API int tess_is_fully_sharded(const TessModule *m); /* 1: it was called with this module */
/* By hand: start to gather, wait (a forward does by itself), free. */
TESS_API int tess_fsdp_unshard(TessCtx *ctx, TessModule *m, int wait);
TESS_API int tess_fsdp_wait(TessCtx *ctx, TessModule *m);
TESS_API int tess_fsdp_reshard(TessCtx *ctx, TessModule *m);
/* Shards of parameters that had sizes and no values (tess_tensor_meta) get memory, cleared. */
TESS_API int tess_fsdp_materialize(TessCtx *ctx, TessModule *m);
/* After a forward or backward that failed: the root is as before it; gradients that were under way are lost. */
TESS_API int tess_fsdp_reset(TessCtx *ctx, TessModule *m);

typedef enum {
  TESS_FSDP_GRADIENT_SYNC,          /* 0: backwards communicate no gradients, they are added up whole */
  TESS_FSDP_ALL_REDUCE,             /* 0: they are reduced to shards, not over the replicas */
  TESS_FSDP_LAST_BACKWARD,          /* 0: more backwards of the same forwards follow */
  TESS_FSDP_RESHARD_AFTER_FORWARD,  /* 1 or 0 */
  TESS_FSDP_RESHARD_AFTER_BACKWARD, /* 0: parameters stay gathered for the next forward */
  TESS_FSDP_UNSHARD_IN_BACKWARD,    /* 0: the backward does not need the parameters (embeddings) */
  TESS_FSDP_DIVIDE_FACTOR,          /* gradients are divided by this; 0: the number of ranks */
  TESS_FSDP_FORCE_SUM,              /* 1: only sums are asked of collectives */
  TESS_FSDP_REDUCE_UNUSED,          /* 1: parameters that got no gradient have one of zeros */
  TESS_FSDP_MOST_REDUCTIONS         /* under way at once; 1 */
} TessFsdpSetting;
/* For m, or for all fully sharded modules in its tree. */
TESS_API int tess_fsdp_set(TessCtx *ctx, TessModule *m, TessFsdpSetting what, double value, int recurse);
/* Which modules start to be gathered when m has been, in forward or backward. */
TESS_API int tess_fsdp_prefetch(TessCtx *ctx, TessModule *m, int backward, TessModule *const *modules, int n);
/* Called with the flat reduced gradients, before they are divided and cast.  0, or not 0 for failure. */
typedef int TessAllReduceHook(TessCtx *ctx, TessTensor *flat, void *arg);
TESS_API int tess_fsdp_all_reduce_hook(TessCtx *ctx, TessModule *m, TessAllReduceHook *fn, void *arg);

/* pre_forward, all_gather (started), unsharded, post_forward, reshard, reshard_post_forward, pre_backward,
 * post_backward, reduce_scatter, all_reduce (started).  Of collectives: bytes of the buffer, without any padding.
 */
typedef struct {
  const char *event, *group; /* "blocks.0", "norm, head", "<root>" */
  int64_t bytes;
  TessDtype dtype;
  const char *op; /* "sum", "avg", "premul_sum"; "" */
  const int *ranks;
  int nranks;
} TessFsdpEvent;
typedef void TessFsdpWatch(const TessFsdpEvent *event, void *arg);
/* Of all fully sharded modules in the tree; fn NULL: nobody watches. */
TESS_API int tess_fsdp_watch(TessCtx *ctx, TessModule *m, TessFsdpWatch *fn, void *arg);
/* The groups of m: JSON [{"name", "kind", "state", "training", "shard_bytes", "gathered_bytes", "params": [{"name",
 * "dtype", "shape", "placements", "local", "shard_at", "gathered_at"}]}], places in bytes; tess_free(). */
TESS_API char *tess_fsdp_json(TessCtx *ctx, TessModule *m);

/* ---- watching and insisting ------------------------------------------------------------------ */

/* From begin to end every collective of DTensors is noted.  end returns JSON: {"total": 2,
 * "counts": {"all_reduce": 2}, "events": [{"kind", "bytes", "why"}]}; free with tess_free().
 * Scopes nest. */
TESS_API int tess_comm_debug_begin(TessCtx *ctx);
TESS_API char *tess_comm_debug_end(TessCtx *ctx);
/* level 0: ops move their inputs as they need; 1: that is an error where it communicates;
 * 2: always.  Returns the former level. */
TESS_API int tess_explicit_redistribution(TessCtx *ctx, int level);
/* 1: plain tensors meet DTensors as replicated; returns the former setting. */
TESS_API int tess_implicit_replication(TessCtx *ctx, int on);
/* The last 2000 collectives of this rank, as JSON; tess_free(). */
TESS_API char *tess_flight_json(TessCtx *ctx);
TESS_API void tess_free(void *text);

/* ---- planning: any mesh, nothing is run --------------------------------------------------------
 * JSON, to be freed with tess_free(); NULL on error.  Infinities are "inf" and "-inf". */

/* {"shape": [..], "offset": [..], "runs": [[[begin, size], ..] per dimension]} of the rank at
 * coord. */
TESS_API char *tess_plan_layout(TessCtx *ctx, int ndim, const int64_t *shape, int naxes, const int *mesh,
                                const char *placements, const int *coord);
/* {"steps": [{"kind", "axes", "before", "after", "bytes", "cost"}], "cost", "bytes",
 * "collectives"}; cost in microseconds.  greedy: PyTorch's plan instead. */
TESS_API char *tess_plan_redistribute(TessCtx *ctx, TessDtype dtype, int ndim, const int64_t *shape, int naxes,
                                      const int *mesh, const char *from, const char *to, int greedy);
/* A DTensor without a shard, for tess_propagate() on a context that plans. */
TESS_API TessTensor *tess_plan_tensor(TessCtx *ctx, TessMesh *mesh, const char *placements, TessDtype dtype,
                                      int ndim, const int64_t *size, const int64_t *stride);
/* {"inputs": [placements per tensor], "outputs": [{"shape", "placements", "dtype"}], "cost",
 * "op", "args": [..] (sizes rewritten for coordinate 0; null = a tensor or none), "why"}.
 * An op that is written with other ops is decided part by part: inputs are then as the first
 * part that takes each wants it (null: none does), cost is that of all parts, op and args are
 * null. */
TESS_API char *tess_propagate(TessCtx *ctx, const char *op, const TessArg *args, int nargs);

/* A tensor of a checkpoint; placements NULL: every rank has all of it. */
typedef struct {
  const char *name;
  TessDtype dtype;
  int ndim;
  const int64_t *shape;
  const char *placements;
} TessSaved;

/* Who writes what: {"tensors": [{"name", "dtype", "shape", "chunks": [{"rank", "offset", "size"}
 * ..]} ..]}; boxes of a tensor are disjoint and all of it (empty shards: empty boxes).  Of ranks
 * that hold the same box the one with the fewest bytes so far writes it (how 0; 1: PyTorch's
 * count, a box is as much as its tensor; 2: the lowest).  P is refused. */
TESS_API char *tess_plan_save(TessCtx *ctx, int naxes, const int *mesh, const TessSaved *tensors, int n, int how);
/* What the rank at coord, of this or another mesh, copies from there to fill its shards: {"tensors":
 * [{"name", "reads": [{"chunk" (its number), "from" (offset in the chunk), "into" (offset in the
 * shard), "size"} ..]} ..]}.  saved: text of tess_plan_save(). */
TESS_API char *tess_plan_load(TessCtx *ctx, const char *saved, int naxes, const int *mesh, const TessSaved *tensors,
                              int n, const int *coord);

/* ---- checkpoints (docs/checkpoints.md) ---------------------------------------------------------
 *
 * Of any format: saves and run folders of tessera, .safetensors files and folders of them, distributed
 * checkpoints of PyTorch, files of torch.save, programs. */

typedef struct TessCheckpoint TessCheckpoint;

/* Files stay mapped; a run folder is its newest save.  NULL on error. */
TESS_API TessCheckpoint *tess_checkpoint_open(TessCtx *ctx, const char *path);
TESS_API void tess_checkpoint_close(TessCheckpoint *c); /* NULL is fine */
TESS_API int tess_checkpoint_count(const TessCheckpoint *c);
TESS_API const char *tess_checkpoint_name(const TessCheckpoint *c, int i); /* sorted; NULL: there is no such */
/* Are all tensors whole, and their bytes those that were saved?  0, or -1 on error. */
TESS_API int tess_checkpoint_verify(TessCtx *ctx, const TessCheckpoint *c);
/* The whole tensor. */
TESS_API TessTensor *tess_checkpoint_load(TessCtx *ctx, const TessCheckpoint *c, const char *name);
/* Fills a tensor, or this rank's shard of a DTensor, whatever mesh and dtype it was saved with.  Not collective. */
TESS_API int tess_checkpoint_fill(TessCtx *ctx, const TessCheckpoint *c, const char *name, TessTensor *into);
/* Writes tensors under their names, whole or not at all.  format: "tessera", "hf", "safetensors", "dcp"; NULL: by
 * the name of the path, a folder is "tessera".  On several ranks, or with DTensors, it is collective and "tessera":
 * each rank writes what it holds, replicas once. */
TESS_API int tess_checkpoint_save(TessCtx *ctx, const char *path, const char *format, const char *const *names,
                                  const TessTensor *const *tensors, int n, int force);

/* A checkpoint made of others, as `tessera ckpt` makes it; what is NULL or 0 is not asked for. */
typedef struct {
  const char *const *source; /* several are averaged */
  int sources;
  const char *output;
  const char *to;            /* format */
  const char *mesh, *plan;   /* "dp=2,tp=2"; a file */
  const char *dtype;         /* "bf16" */
  const char *select, *drop; /* patterns of names with commas between them */
  const char *const *rename; /* "FROM=TO" */
  int renames;
  const char *program; /* to "pt2": whose weights are replaced */
  uint64_t memory, shard_bytes;
  int threads;
  int force, dry_run;
} TessChange;

/* What was written, as JSON, to be freed with tess_free(); NULL on error. */
TESS_API char *tess_checkpoint_change(TessCtx *ctx, const TessChange *change);

#ifdef __cplusplus
}

template <typename... Args> TessTensor *tess_call(TessCtx *ctx, const char *op, Args... args) {
  const TessArg list[] = {args..., tess_none()};
  return tess_call_1(ctx, op, list, (int)sizeof...(args));
}
#endif
#endif
