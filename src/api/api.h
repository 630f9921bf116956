/* api.h -- what the files of the public API share. */
#ifndef TESS_API_API_H
#define TESS_API_API_H

#include "comm/comm.h"
#include "dist/dist.h"
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
} PublicCtx;

/* True if there was an error: it sticks, unless an earlier one does. */
bool api_stick(TessCtx *ctx, Status s);
Scope *api_scope(TessCtx *ctx); /* the innermost open one */
/* A call of the op with these arguments; bound has room for MAX_PARAMS. */
Status api_bind(TessCtx *ctx, const char *name, const TessArg *args, int nargs, Arena *arena, Value *bound,
                Call *c);

/* Makes the context one rank of a world (w NULL: of one that plans). */
Status api_join_world(TessCtx *ctx, World *w);
void api_leave_world(TessCtx *ctx);
/* The context's Dist; a context by itself becomes a world of one. */
Status api_dist(TessCtx *ctx, Dist **out);

#endif
