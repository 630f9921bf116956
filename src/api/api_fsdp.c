/* api_fsdp.c -- public functions: making modules fully sharded, and what their hooks do. */
#include <stdlib.h>
#include <string.h>

#include "api/fsdp.h"
#include "base/grow.h"

static PublicCtx *inside(TessCtx *ctx) { return (PublicCtx *)ctx; }

/* ---- units of a tree -------------------------------------------------------------------------------------- */

void fsdp_units_free(UnitList *list) {
  for (int i = 0; i < list->n; i++) free(list->name[i]);
  free(list->v);
  free(list->name);
  *list = (UnitList){0};
}

static Status add_unit(UnitList *l, FsdpUnit *u, const char *path) {
  for (int i = 0; i < l->n; i++) {
    if (l->v[i] != u) continue;
    TextBuf both = {0}; /* a list of modules is called by all of them */
    text_printf(&both, "%s, %s", l->name[i], path);
    if (both.failed) return text_free(&both), fail_oom();
    free(l->name[i]);
    l->name[i] = both.text;
    return OK;
  }
  TRY_ROOM(l->v, l->n, l->cap);
  TRY_ROOM(l->name, l->n, l->name_cap);
  TRY_NEW(l->name[l->n], strdup(path));
  l->v[l->n++] = u;
  return OK;
}

Status fsdp_units_in(TessModule *root, UnitList *out) {
  ModuleList list;
  *out = (UnitList){0};
  TRY(modules_of(root, &list));
  Status s = OK;
  for (int i = 0; i < list.n && !s; i++)
    if (list.v[i].module->fsdp) s = add_unit(out, list.v[i].module->fsdp, list.v[i].path);
  module_list_free(&list);
  if (s) fsdp_units_free(out);
  return s;
}

Status fsdp_unit_of(TessCtx *ctx, const TessModule *m, FsdpUnit **out) {
  char path[256];
  if (!m->fsdp) return fail(ERR_USAGE, "module '%s' is not fully sharded", tess_module_path(m, path, sizeof path));
  if (m->fsdp->ctx != ctx)
    return status_hint(
        fail(ERR_USAGE, "module '%s' was fully sharded on another context", tess_module_path(m, path, sizeof path)),
        "a rank makes and shards modules of its own");
  *out = m->fsdp;
  return OK;
}

/* ---- hooks -------------------------------------------------------------------------------------------------- */

static Status start_run(TessModule *m) {
  UnitList units;
  TRY(fsdp_units_in(m, &units));
  Status s = fsdp_start_run(m->fsdp, units.v, units.name, units.n);
  fsdp_units_free(&units);
  return s;
}

static Status before(TessCtx *ctx, TessModule *m, TessTensor **inputs, int n) {
  FsdpUnit *u;
  TRY(fsdp_unit_of(ctx, m, &u));
  if (!u->run) TRY(start_run(m));
  return fsdp_before_forward(u, m->fsdp_index, api_scope(ctx), inputs, n);
}

static int before_forward(TessCtx *ctx, TessModule *m, TessTensor **inputs, int n, TessMesh *mesh, void *arg) {
  (void)mesh, (void)arg;
  return api_stick(ctx, before(ctx, m, inputs, n)) ? -1 : 0;
}

static int after_forward(TessCtx *ctx, TessModule *m, TessTensor **outputs, int n, TessMesh *mesh, void *arg) {
  (void)mesh, (void)arg;
  if (!m->fsdp || !m->fsdp->run) return 0;
  return api_stick(ctx, fsdp_after_forward(m->fsdp, m->fsdp_index, api_scope(ctx), outputs, n)) ? -1 : 0;
}

/* ---- making ------------------------------------------------------------------------------------------------- */

static bool is_inside(const TessModule *m, const TessModule *root) {
  for (int i = 0; i < root->nchildren; i++)
    if (root->child[i].module == m || is_inside(m, root->child[i].module)) return true;
  return false;
}

/* Modules of the list that are inside of others, or there twice, go with these. */
static int outer_modules(TessModule *const *modules, int n, TessModule **out) {
  int kept = 0;
  for (int i = 0; i < n; i++) {
    bool inner = false;
    for (int k = 0; k < n && !inner; k++)
      inner = (k < i && modules[k] == modules[i]) || is_inside(modules[i], modules[k]);
    if (!inner) out[kept++] = modules[i];
  }
  return kept;
}

static Status check_modules(TessModule *const *modules, int n) {
  char path[256];
  if (!n) return fail(ERR_USAGE, "no module is given to be fully sharded");
  for (int i = 0; i < n; i++) {
    if (!modules[i]) return fail(ERR_USAGE, "module %d of the list is NULL", i);
    tess_module_path(modules[i], path, sizeof path);
    if (modules[i]->fsdp) return fail(ERR_USAGE, "module '%s' is fully sharded already", path);
    if (!modules[i]->forward)
      return status_hint(fail(ERR_USAGE,
                              "module '%s' has no forward function, so its parameters would never be "
                              "gathered",
                              path),
                         "shard the modules inside it, or the one around it");
  }
  return OK;
}

static Status find_mesh(TessCtx *ctx, TessMesh *given, Mesh **out) {
  Dist *d;
  TRY(api_dist(ctx, &d));
  *out = given ? given : d->current;
  if (*out) return OK;
  int all = d->world ? world_size(d->world) : 1;
  return mesh_new(d, &all, 1, NULL, NULL, out);
}

static Dtype dtype_or_none(TessDtype d) { return d == TESS_BOOL ? DT_NONE : (Dtype)d; }

static Status check_dtype(TessDtype d, const char *what) {
  if (d == TESS_BOOL || ((int)d > 0 && (int)d <= (int)TESS_C64 && dtype_is_float((Dtype)d))) return OK;
  return fail(ERR_USAGE, "%s must be a dtype of floating point", what);
}

static Status options_of(const TessFsdpOptions *how, FsdpOptions *out) {
  TRY(check_dtype(how->param_dtype, "param_dtype"));
  TRY(check_dtype(how->reduce_dtype, "reduce_dtype"));
  TRY(check_dtype(how->output_dtype, "output_dtype"));
  if ((int)how->reshard < 0 || how->reshard > TESS_RESHARD_TO)
    return fail(ERR_USAGE, "there is no way %d to reshard", (int)how->reshard);
  *out = (FsdpOptions){.reshard = (Reshard)how->reshard,
                       .reshard_ranks = how->reshard_ranks,
                       .precision = {dtype_or_none(how->param_dtype), dtype_or_none(how->reduce_dtype),
                                     dtype_or_none(how->output_dtype), how->keep_inputs != 0},
                       .offload = how->offload};
  return OK;
}

static Status add_group(FsdpUnit *u, Mesh *mesh, bool own, const TessFsdpOptions *how, const ParamList *params) {
  DpMesh dp;
  FsdpOptions options;
  FsdpGroup *g, **last = &u->groups;
  FsdpParamGiven *given;
  int n = 0;
  TRY(options_of(how, &options));
  TRY(dp_mesh_new(mesh, own ? NULL : how->shard_axes, own ? NULL : how->replicate_axes, how->replicate != 0, &dp));
  TRY_NEW(given, calloc((size_t)params->n + 1, sizeof *given));
  for (int i = 0; i < params->n; i++)
    if (params->mesh[i] == mesh) given[n++] = params->v[i];
  Status s = fsdp_group_new(u, &dp, &options, given, n, &g);
  free(given);
  TRY(s);
  while (*last) last = &(*last)->next;
  *last = g;
  u->ngroups++;
  return OK;
}

/* A group per mesh, in the order in which parameters name them. */
static Status add_groups(FsdpUnit *u, Mesh *mesh, const TessFsdpOptions *how, const ParamList *params) {
  for (int i = 0; i < params->n; i++) {
    bool seen = false;
    for (int k = 0; k < i && !seen; k++) seen = params->mesh[k] == params->mesh[i];
    if (!seen) TRY(add_group(u, params->mesh[i], params->mesh[i] != mesh, how, params));
  }
  return OK;
}

static Status new_unit(TessCtx *ctx, int nmodules, const TessFsdpOptions *how, FsdpUnit **out) {
  FsdpUnit *u;
  FsdpOptions options;
  TRY(options_of(how, &options));
  TRY_NEW(u, calloc(1, sizeof *u));
  *u = (FsdpUnit){.ctx = ctx,
                  .slots = &fsdp_module_slots,
                  .tape = api_tape,
                  .next = inside(ctx)->fsdp,
                  .link = &inside(ctx)->fsdp,
                  .precision = options.precision,
                  .auto_reshard = options.reshard == RESHARD_DEFAULT,
                  .most_reducing = 1,
                  .is_last_backward = true,
                  .nmodules = nmodules};
  atomic_init(&u->refs, 1);
  if (u->next) u->next->link = &u->next;
  inside(ctx)->fsdp = u;
  u->to_run = calloc((size_t)nmodules, sizeof *u->to_run);
  if (!u->to_run) return fsdp_unit_unref(u), fail_oom();
  *out = u;
  return OK;
}

static Status attach(FsdpUnit *u, TessModule *const *modules, int n) {
  for (int i = 0; i < n; i++) {
    TRY(module_add_hook_first(modules[i], TESS_BEFORE_FORWARD, before_forward, NULL));
    TRY(module_add_hook(modules[i], TESS_AFTER_FORWARD, after_forward, NULL, NULL));
    modules[i]->fsdp = fsdp_unit_ref(u);
    modules[i]->fsdp_index = i;
    u->modules++;
  }
  return OK;
}

static Status fully_shard(TessCtx *ctx, TessModule *const *modules, int n, Mesh *mesh, const TessFsdpOptions *how) {
  ParamList params;
  FsdpUnit *u;
  Reshard resolved;
  DpMesh dp;
  TRY(dp_mesh_new(mesh, how->shard_axes, how->replicate_axes, how->replicate != 0, &dp));
  TRY(dp_reshard(&dp, (Reshard)how->reshard, how->reshard_ranks, &resolved));
  TRY(fsdp_params_of(ctx, modules, n, mesh, how, &params));
  Status s = ctx->error ? OK : new_unit(ctx, n, how, &u);
  if (!s && !ctx->error) {
    s = add_groups(u, mesh, how, &params);
    if (!s) s = attach(u, modules, n);
    fsdp_unit_unref(u);
  }
  fsdp_params_free(&params);
  return s;
}

int tess_fully_shard(TessCtx *ctx, TessModule *const *modules, int n, TessMesh *mesh,
                     const TessFsdpOptions *options) {
  static const TessFsdpOptions plain = {0};
  Mesh *on = NULL;
  TessModule **outer;
  if (!API_BEGIN(ctx, LISTED("the modules", modules, n)) ||
      (options && !API_BEGIN(ctx, LISTED("the ignored parameters", options->ignored, options->nignored))) ||
      api_stick(ctx, check_modules(modules, n)) || api_stick(ctx, find_mesh(ctx, mesh, &on)))
    return -1;
  outer = malloc((size_t)n * sizeof *outer);
  if (!outer) return api_stick(ctx, fail_oom()) ? -1 : 0;
  int kept = outer_modules(modules, n, outer);
  api_stick(ctx, fully_shard(ctx, outer, kept, on, options ? options : &plain));
  free(outer);
  return ctx->error ? -1 : 0;
}

int tess_is_fully_sharded(const TessModule *m) { return m && m->fsdp; }

/* ---- ending ------------------------------------------------------------------------------------------------- */

void module_leaves_fsdp(TessModule *m) {
  FsdpUnit *u = m->fsdp;
  if (!u) return;
  for (FsdpGroup *g = u->groups; g; g = g->next)
    for (int i = 0; i < g->n; i++)
      for (int k = 0; k < g->param[i].nslots; k++)
        if (g->param[i].slot[k].module == m) g->param[i].slot[k].module = NULL;
  m->fsdp = NULL;
  if (!--u->modules) fsdp_unit_close(u);
  fsdp_unit_unref(u);
}

void api_end_fsdp(TessCtx *ctx) {
  while (inside(ctx)->fsdp) fsdp_unit_close(inside(ctx)->fsdp);
}
