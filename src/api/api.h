/* api.h -- what the files of the public API share. */
#ifndef TESS_API_API_H
#define TESS_API_API_H

#include "comm/comm.h"
#include "dist/dist.h"
#include "grad/tape.h"
#include "ops/op.h"
#include "tessera.h"

struct TessScope {
  TessScope *outer;
  Scope handles;
};

/* What a context is outside: the inner one, its open scopes, and its place in a world. */
typedef struct {
  Ctx ctx; /* first: a TessCtx is a Ctx */
  TessScope *scope;
  World *world;    /* NULL: not spread */
  bool plans;      /* a context of tess_ctx_plan() */
  bool owns_world; /* made for a context by itself */
  struct OpenLog *logs;
  Tape tape;                         /* once a tensor requires a gradient; `paused` is told from the beginning */
  bool taping;                       /* it stands in the line of handlers */
  struct TessDataParallel *replicas; /* modules that are data parallel on it */
  struct FsdpUnit *fsdp;             /* modules that are fully sharded on it */
  uint64_t modes;                    /* of no_grad and enable_grad around the innermost, lowest bit first */
  int nmodes;
} PublicCtx;

/* True if there was an error: it sticks, unless an earlier one does. */
bool api_stick(TessCtx *ctx, Status s);

/* An argument that must be there: n elements at p, of which there are at least 0. */
typedef struct {
  const char *what;
  const void *p;
  int n;
} ApiArg;
#define GIVEN(what, p) \
  { what, p, 1 } /* a handle, a text */
#define LISTED(what, p, n) \
  { what, p, n }

/* How public functions begin.  False, and they return at once, if ctx is NULL, has an error, or an
 * argument is missing: that then is its error. */
bool api_begin(TessCtx *ctx, const char *function, const ApiArg *args, int n);
#define API_BEGIN(ctx, ...)                                 \
  api_begin((ctx), __func__, (const ApiArg[]){__VA_ARGS__}, \
            (int)(sizeof((const ApiArg[]){__VA_ARGS__}) / sizeof(ApiArg)))
#define API_READY(ctx) api_begin((ctx), __func__, NULL, 0)

Status api_check_type(TessDtype dtype, int ndim, const int64_t *size);
Scope *api_scope(TessCtx *ctx); /* the innermost open one */
/* A call of the op with these arguments; bound has room for MAX_PARAMS. */
Status api_bind(TessCtx *ctx, const char *name, const TessArg *args, int nargs, Arena *arena, Value *bound,
                Call *c);

/* The context's tape, which stands in the line of handlers from the first tensor on that requires a gradient. */
Tape *api_tape(TessCtx *ctx);
/* Handles that are made of t from here on know of writes to it that change its gradient. */
Status api_share(TessCtx *ctx, const Tensor *t);

/* Modules are fully sharded on it no more: the context is about to leave its world. */
void api_end_fsdp(TessCtx *ctx);
/* Modules are data parallel no more: the context is about to go. */
void api_end_data_parallel(TessCtx *ctx);
struct PlanFile;
/* A plan as users tell it: a file, its text (from the first '{' on), or "auto"; NULL: auto. */
Status api_read_plan(const char *plan, struct PlanFile **out);

void api_leave_world(TessCtx *ctx);
/* The mesh that is given, or else the current one. */
Status api_mesh(TessCtx *ctx, Mesh *given, Mesh **out);
/* The same, of one axis that this rank is on; what: "a module is parallelized". */
Status api_axis(TessCtx *ctx, Mesh *given, const char *what, Mesh **out);
/* dtensor_distribute(); of a leaf that requires a gradient a leaf is made. */
Status api_distribute(TessCtx *ctx, Scope *scope, Tensor *t, Mesh *mesh, const Placement *place, int src,
                      Tensor **out);
/* The context's Dist; a context by itself becomes a world of one. */
Status api_dist(TessCtx *ctx, Dist **out);

#endif
