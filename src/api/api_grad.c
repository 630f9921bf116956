/* api_grad.c -- public functions: gradients. */
#include <stdlib.h>

#include "api/api.h"

static PublicCtx *inside(TessCtx *ctx) { return (PublicCtx *)ctx; }

Tape *api_tape(TessCtx *ctx) {
  PublicCtx *p = inside(ctx);
  if (!p->taping) {
    bool paused = p->tape.paused;
    tape_begin(&p->tape, ctx);
    p->tape.paused = paused;
    p->taping = true;
  }
  return &p->tape;
}

Status api_share(TessCtx *ctx, const Tensor *t) {
  return inside(ctx)->taping && dtype_kind(t->dtype) >= KIND_FLOAT ? tape_share((Tensor *)(uintptr_t)t) : OK;
}

int tess_set_requires_grad(TessCtx *ctx, TessTensor *t, int on) {
  if (!API_BEGIN(ctx, GIVEN("the tensor", t))) return -1;
  if (!on && !inside(ctx)->taping) return 0;
  return api_stick(ctx, tape_set_required(api_tape(ctx), t, on != 0)) ? -1 : 0;
}

int tess_requires_grad(const TessTensor *t) { return t && tensor_requires_grad(t); }
int tess_is_leaf(const TessTensor *t) { return t && tensor_is_leaf(t); }

/* ---- going back ----------------------------------------------------------------------------------------- */

static bool lists_given(TessCtx *ctx, TessTensor *const *list, int n, const char *what, bool may_be_null) {
  for (int i = 0; i < n && list; i++)
    if (!list[i] && !may_be_null && api_stick(ctx, fail(ERR_USAGE, "%s %d is NULL", what, i))) return false;
  return true;
}

static Backward how_of(unsigned flags) {
  return (Backward){.keep = (flags & TESS_RETAIN_GRAPH) != 0,
                    .create_graph = (flags & TESS_CREATE_GRAPH) != 0,
                    .allow_unused = (flags & TESS_ALLOW_UNUSED) != 0};
}

int tess_backward(TessCtx *ctx, TessTensor *const *outputs, TessTensor *const *cotangents, int n, unsigned flags) {
  if (!API_BEGIN(ctx, LISTED("the outputs", outputs, n)) || !lists_given(ctx, outputs, n, "output", false))
    return -1;
  Backward how = how_of(flags);
  return api_stick(ctx, tape_backward(api_tape(ctx), outputs, cotangents, n, &how)) ? -1 : 0;
}

int tess_grad(TessCtx *ctx, TessTensor *const *outputs, TessTensor *const *cotangents, int n,
              TessTensor *const *inputs, int m, TessTensor **gradients, unsigned flags) {
  if (!API_BEGIN(ctx, LISTED("the outputs", outputs, n), LISTED("the inputs", inputs, m),
                 LISTED("the room for the gradients", gradients, m)) ||
      !lists_given(ctx, outputs, n, "output", false) || !lists_given(ctx, inputs, m, "input", false))
    return -1;
  for (int i = 0; i < m; i++)
    if (!tensor_requires_grad(inputs[i]) &&
        api_stick(ctx, status_hint(fail(ERR_USAGE, "input %d does not require a gradient", i),
                                   "mark it with tess_set_requires_grad() before the forward")))
      return -1;
  Backward how = how_of(flags);
  return api_stick(
             ctx, tape_gradients(api_tape(ctx), outputs, cotangents, n, inputs, m, &how, api_scope(ctx), gradients))
             ? -1
             : 0;
}

/* ---- gradients that tensors keep ------------------------------------------------------------------------- */

TessTensor *tess_grad_of(TessCtx *ctx, const TessTensor *t) {
  Tensor *g = NULL;
  if (!API_BEGIN(ctx, GIVEN("the tensor", t)) || !tape_gradient_of(t)) return NULL;
  return api_stick(ctx, tensor_handle(api_scope(ctx), tape_gradient_of(t), &g)) ? NULL : g;
}

int tess_set_grad(TessCtx *ctx, TessTensor *t, const TessTensor *gradient) {
  if (!API_BEGIN(ctx, GIVEN("the tensor", t))) return -1;
  if (!gradient && !inside(ctx)->taping) return 0;
  return api_stick(ctx, tape_set_gradient(api_tape(ctx), t, gradient)) ? -1 : 0;
}

int tess_retain_grad(TessCtx *ctx, TessTensor *t) {
  if (!API_BEGIN(ctx, GIVEN("the tensor", t))) return -1;
  return api_stick(ctx, tape_retain(api_tape(ctx), t)) ? -1 : 0;
}

TessTensor *tess_detach(TessCtx *ctx, const TessTensor *t) {
  Tensor *cut = NULL;
  if (!API_BEGIN(ctx, GIVEN("the tensor", t))) return NULL;
  return api_stick(ctx, tensor_alias(api_scope(ctx), t, &cut)) ? NULL : cut;
}

/* ---- without gradients -------------------------------------------------------------------------------------- */

int tess_grad_enabled(const TessCtx *ctx) { return ctx && !((const PublicCtx *)ctx)->tape.paused; }

int tess_set_grad_enabled(TessCtx *ctx, int on) {
  int was = tess_grad_enabled(ctx);
  if (ctx) inside(ctx)->tape.paused = !on;
  return was;
}

static int mode_begin(TessCtx *ctx, bool paused) {
  if (!API_READY(ctx)) return -1;
  PublicCtx *p = inside(ctx);
  if (p->nmodes == 64 && api_stick(ctx, fail(ERR_USAGE, "no_grad and enable_grad are nested more than 64 deep")))
    return -1;
  p->modes = p->modes << 1 | p->tape.paused;
  p->nmodes++;
  p->tape.paused = paused;
  return 0;
}

static void mode_end(TessCtx *ctx) {
  if (!ctx || !inside(ctx)->nmodes) return;
  PublicCtx *p = inside(ctx);
  p->tape.paused = p->modes & 1;
  p->modes >>= 1;
  p->nmodes--;
}

int tess_no_grad_begin(TessCtx *ctx) { return mode_begin(ctx, true); }
void tess_no_grad_end(TessCtx *ctx) { mode_end(ctx); }
int tess_enable_grad_begin(TessCtx *ctx) { return mode_begin(ctx, false); }
void tess_enable_grad_end(TessCtx *ctx) { mode_end(ctx); }

/* ---- hooks -------------------------------------------------------------------------------------------------- */

typedef struct {
  TessGradHook *fn;
  void *arg;
  void (*release)(void *arg);
} UserHook;

static void user_hook_release(void *arg) {
  UserHook *u = arg;
  if (u->release) u->release(u->arg);
  free(u);
}

/* What the hook makes lives in a scope of its own; what it gives back is handed on. */
static Status call_user_hook(void *arg, Ctx *ctx, Tensor *gradient, Scope *scope, Tensor **out) {
  UserHook *u = arg;
  TessScope *made = tess_scope_begin(ctx);
  TessTensor *given = NULL;
  if (!made) return fail_oom();
  int code = u->fn(ctx, gradient, &given, u->arg);
  Status s = ctx->error;
  ctx->error = OK;
  if (!s && code) s = fail(ERR_FAIL, "a hook of a gradient failed with code %d", code);
  if (!s && given && given != gradient) s = tensor_handle(scope, given, out);
  tess_scope_end(ctx, made);
  return s;
}

TessHook *tess_register_hook(TessCtx *ctx, TessTensor *t, TessGradHook *fn, void *arg, void (*release)(void *arg)) {
  TapeHook *h = NULL;
  if (!API_BEGIN(ctx, GIVEN("the tensor", t), GIVEN("the function", fn ? "" : NULL))) return NULL;
  UserHook *u = malloc(sizeof *u);
  if (!u) {
    api_stick(ctx, fail_oom());
    return NULL;
  }
  *u = (UserHook){fn, arg, release};
  if (!api_stick(ctx, tape_hook(api_tape(ctx), t, call_user_hook, u, user_hook_release, &h))) return (TessHook *)h;
  free(u);
  return NULL;
}

void tess_remove_hook(TessHook *hook) { tape_unhook((TapeHook *)hook, true); }
void tess_forget_hook(TessHook *hook) { tape_unhook((TapeHook *)hook, false); }
