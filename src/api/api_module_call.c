/* api_module_call.c -- public functions: hooks of modules, calling them, distributing them. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "api/module.h"
#include "base/grow.h"
#include "dist/dtensor.h"

/* ---- hooks ---------------------------------------------------------------------------------------- */

Status module_add_hook(TessModule *m, TessHookAt at, TessModuleHook *fn, void *arg, void (*release)(void *arg)) {
  if ((int)at < 0 || at > TESS_AFTER_FORWARD) return fail(ERR_USAGE, "modules have no hooks at %d", (int)at);
  TRY_ROOM(m->hook, m->nhooks, m->hook_cap);
  m->hook[m->nhooks++] = (ModuleHook){m->hooks_made++, at, fn, arg, release};
  return OK;
}

Status module_add_hook_first(TessModule *m, TessHookAt at, TessModuleHook *fn, void *arg) {
  TRY_ROOM(m->hook, m->nhooks, m->hook_cap);
  memmove(&m->hook[1], &m->hook[0], (size_t)m->nhooks++ * sizeof *m->hook);
  m->hook[0] = (ModuleHook){--m->hooks_before, at, fn, arg, NULL};
  return OK;
}

int tess_module_hook(TessCtx *ctx, TessModule *m, TessHookAt at, TessModuleHook *fn, void *arg) {
  if (!API_BEGIN(ctx, GIVEN("the module", m), GIVEN("the hook", fn ? "" : NULL)) ||
      api_stick(ctx, module_add_hook(m, at, fn, arg, NULL)))
    return -1;
  return m->hooks_made - 1;
}

void tess_module_unhook(TessModule *m, int hook) {
  for (int i = 0; m && i < m->nhooks; i++) {
    if (m->hook[i].number != hook) continue;
    ModuleHook gone = m->hook[i];
    memmove(&m->hook[i], &m->hook[i + 1], (size_t)(--m->nhooks - i) * sizeof *m->hook);
    if (gone.release) gone.release(gone.arg);
    return;
  }
}

/* In the order in which they were made; those that hooks add are not called this time. */
static Status run_hooks(TessCtx *ctx, TessModule *m, TessHookAt at, TessTensor **t, int n) {
  static const char *const name[] = {"before", "after"};
  const int made = m->hooks_made;
  for (int last = INT_MIN, found = 1; found;) {
    found = 0;
    for (int i = 0; i < m->nhooks && !found; i++) {
      const ModuleHook h = m->hook[i]; /* a copy: the list may change in the call */
      if (h.number <= last || h.number >= made) continue;
      last = h.number;
      found = 1;
      if (h.at != at) continue;
      if (h.fn(ctx, m, t, n, m->mesh, h.arg) && !ctx->error) {
        char path[256];
        return fail(ERR_FAIL, "a hook %s the forward function of module '%s' failed", name[at],
                    tess_module_path(m, path, sizeof path));
      }
      if (ctx->error) return OK;
    }
  }
  return OK;
}

/* ---- calling ---------------------------------------------------------------------------------------- */

static Status call(TessCtx *ctx, TessModule *m, TessTensor **inputs, int ninputs, TessTensor **out, int cap,
                   int *n) {
  char path[256];
  if (!m->forward)
    return fail(ERR_USAGE, "module '%s' has no forward function", tess_module_path(m, path, sizeof path));
  if (m->mesh && m->dist != ctx->dist)
    return status_hint(
        fail(ERR_USAGE, "module '%s' was distributed on another context", tess_module_path(m, path, sizeof path)),
        "a rank makes and distributes modules of its own");
  TRY(run_hooks(ctx, m, TESS_BEFORE_FORWARD, inputs, ninputs));
  if (ctx->error) return OK;
  *n = m->forward(ctx, m, inputs, ninputs, out, cap, m->arg);
  if (ctx->error) return OK;
  if (*n < 0)
    return fail(ERR_FAIL, "the forward function of module '%s' failed", tess_module_path(m, path, sizeof path));
  return run_hooks(ctx, m, TESS_AFTER_FORWARD, out, *n < cap ? *n : cap);
}

int tess_module_call(TessCtx *ctx, TessModule *m, TessTensor **inputs, int ninputs, TessTensor **out, int cap) {
  if (!API_BEGIN(ctx, GIVEN("the module", m), LISTED("the inputs", inputs, ninputs),
                 LISTED("the room for outputs", out, cap)))
    return -1;
  int n = -1;
  tess_module_hold(m); /* its own function may drop it */
  api_stick(ctx, call(ctx, m, inputs, ninputs, out, cap, &n));
  tess_module_free(m);
  return ctx->error ? -1 : n;
}

/* ---- distributing ------------------------------------------------------------------------------------- */

/* What the function left alone is replicated. */
static Status replicate(TessCtx *ctx, TessModule *m, Mesh *mesh) {
  Placement r[MAX_AXES];
  for (int a = 0; a < MAX_AXES; a++) r[a] = place_r();
  for (int i = 0; i < m->ntensors; i++) {
    if (m->tensor[i].tensor->spec) continue;
    Scope scope = {0};
    Tensor *spread;
    Status s = api_distribute(ctx, &scope, m->tensor[i].tensor, mesh, r, 0, &spread);
    if (!s) s = module_replace(m, &m->tensor[i], spread);
    scope_clear(&scope);
    TRY(s);
  }
  return OK;
}

static Status distribute(TessCtx *ctx, TessModule *m, Mesh *mesh, TessPartitionFn *fn, void *arg) {
  ModuleList list;
  TRY(modules_of(m, &list));
  Status s = OK;
  for (int i = 0; i < list.n && !s && !ctx->error; i++) {
    const ModuleAt *at = &list.v[i];
    if (fn && fn(ctx, at->path, at->module, mesh, arg) && !ctx->error)
      s = fail(ERR_FAIL, "the partition function failed on module '%s'", at->path);
    if (!s && !ctx->error) s = replicate(ctx, at->module, mesh);
  }
  module_list_free(&list);
  return s;
}

static Status find_mesh(TessCtx *ctx, const TessModule *m, TessMesh *given, Mesh **out) {
  if (m->mesh) return fail(ERR_USAGE, "this module is distributed already");
  return api_mesh(ctx, given, out);
}

int tess_distribute_module(TessCtx *ctx, TessModule *m, TessMesh *mesh, TessPartitionFn *fn, TessModuleHook *input,
                           TessModuleHook *output, void *arg) {
  Mesh *on = NULL;
  if (!API_BEGIN(ctx, GIVEN("the module", m)) || api_stick(ctx, find_mesh(ctx, m, mesh, &on)) ||
      api_stick(ctx, distribute(ctx, m, on, fn, arg)) || ctx->error)
    return -1;
  if (input && tess_module_hook(ctx, m, TESS_BEFORE_FORWARD, input, arg) < 0) return -1;
  if (output && tess_module_hook(ctx, m, TESS_AFTER_FORWARD, output, arg) < 0) return -1;
  m->mesh = on;
  m->dist = ctx->dist;
  return 0;
}
