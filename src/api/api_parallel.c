/* api_parallel.c -- public functions: parallelize_module, a table of styles and what they do to a module. */
#include <string.h>

#include "api/parallel.h"
#include "dist/dist.h"

/* The styles that shard, by the kind of module; texts are placements on the one axis of the mesh. */
typedef struct {
  TessStyle style;
  const char *kind, *weight, *bias;
  const char *input; /* of plain tensors, unless the plan says otherwise */
  const char *want, *output;
} StyleRow;
static const StyleRow rows[] = {
    {TESS_COLWISE, "linear", "S(0)", "S(0)", "R", "R", "S(-1)"},
    {TESS_COLWISE, "embedding", "S(1)", "R", "R", "R", "S(-1)"},
    {TESS_ROWWISE, "linear", "S(1)", "R", "S(-1)", "S(-1)", "R"},
    {TESS_ROWWISE, "embedding", "S(0)", "R", "S(-1)", "R", "R"}, /* S(-1) is PyTorch's default here, too */
};
static const char *const style_name[] = {"colwise", "rowwise", "sequence", "prepare"};

static bool shards(TessStyle s) { return s == TESS_COLWISE || s == TESS_ROWWISE; }

static const StyleRow *row_of(TessStyle style, const char *kind) {
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rows[i].style == style && !strcmp(rows[i].kind, kind)) return &rows[i];
  return NULL;
}

/* ---- checking ----------------------------------------------------------------------------------------- */

typedef struct {
  TessCtx *ctx;
  Mesh *mesh;
  int src;
} Applying;

/* An entry of the plan and the modules that it means. */
typedef struct {
  const TessPlanEntry *entry;
  ModuleList found;
} Planned;

static Status check_texts(const char *const *texts, int n, const char *what) {
  Placement p;
  if (n < 0 || (n && !texts)) return fail(ERR_USAGE, "%s: %d placements are told of, but not given", what, n);
  for (int i = 0; i < n; i++)
    if (texts[i]) TRY(status_at(placement_parse(texts[i], MAX_DIMS, &p), "%s %d", what, i));
  return OK;
}

static Status check_pair(const char *const *from, const char *const *to, int n, const char *what) {
  TRY(check_texts(from, n, what));
  if (to) TRY(check_texts(to, n, what));
  for (int i = 0; to && i < n; i++)
    if (to[i] && !from[i])
      return status_hint(fail(ERR_USAGE, "%s %d is wanted as %s, but not told how it lies", what, i, to[i]),
                         "give its placement, or leave both out");
  return OK;
}

static Status check_entry(const TessPlanEntry *e) {
  if ((unsigned)e->style > TESS_PREPARE) return fail(ERR_USAGE, "there is no style %d", (int)e->style);
  if ((unsigned)e->seen_inputs > TESS_SPREAD || (unsigned)e->seen_outputs > TESS_SPREAD)
    return fail(ERR_USAGE, "tensors are seen as 0, 1 or 2, not %d and %d", (int)e->seen_inputs,
                (int)e->seen_outputs);
  TRY(check_pair(e->inputs, e->want_inputs, e->ninputs, "input"));
  TRY(check_pair(e->outputs, e->want_outputs, e->noutputs, "output"));
  if (e->style == TESS_PREPARE || (e->ninputs <= 1 && e->noutputs <= 1 && !e->want_inputs && !e->want_outputs))
    return OK;
  return status_hint(fail(ERR_USAGE, "the style %s has one input and one output, and knows where it wants them",
                          style_name[e->style]),
                     "leave want_inputs and want_outputs to the style prepare");
}

static Status check_module(const TessPlanEntry *e, const ModuleAt *at) {
  const char *kind = tess_module_kind(at->module);
  if (e->style != TESS_PREPARE && at->module->mesh)
    return fail(ERR_USAGE, "module '%s' is distributed already", at->path);
  if (!shards(e->style)) return OK;
  if (!row_of(e->style, kind))
    return status_hint(fail(ERR_USAGE, "module '%s' %s%s: the style %s is for kinds linear and embedding", at->path,
                            *kind ? "is of kind " : "has no kind", kind, style_name[e->style]),
                       "name a module inside it, or say what it is with tess_module_set_kind()");
  const Tensor *w = tess_module_get(at->module, "weight");
  if (w && w->ndim == 2) return OK;
  return fail(ERR_USAGE, "module '%s' is of kind %s, but has no weight of two dimensions", at->path, kind);
}

static Status plan_entry(TessModule *m, const TessPlanEntry *e, Planned *out) {
  const char *path = e->path ? e->path : "";
  out->entry = e;
  TRY(status_at(check_entry(e), "plan entry '%s'", path));
  TRY(modules_matching(m, path, &out->found));
  if (!out->found.n) return no_module(m, path);
  for (int i = 0; i < out->found.n; i++) TRY(check_module(e, &out->found.v[i]));
  return OK;
}

/* ---- applying --------------------------------------------------------------------------------------------- */

static Status add_prepare(TessModule *m, TessHookAt at, const Prepare *how, const char *const *from,
                          const char *const *to, int n) {
  Prepare *p;
  TRY(prepare_new(how, from, to, n, &p));
  Status s = module_add_hook(m, at, prepare_tensors, p, prepare_free);
  if (s) prepare_free(p);
  return s;
}

static Status place(const Applying *w, TessModule *m, const char *name, const char *text, int src) {
  Placement p;
  Scope scope = {0};
  Tensor *spread, *t = tess_module_get(m, name);
  if (!t || t->spec) return OK;
  TRY(placement_parse(text, t->ndim, &p));
  Status s = api_distribute(w->ctx, &scope, t, w->mesh, &p, src, &spread);
  for (int i = 0; i < m->ntensors && !s; i++)
    if (!strcmp(m->tensor[i].name, name)) s = module_replace(m, &m->tensor[i], spread);
  scope_clear(&scope);
  return s;
}

/* What the style does not name is replicated, as tess_distribute_module() does. */
static Status apply_sharding(const Applying *w, const TessPlanEntry *e, TessModule *m) {
  const StyleRow *row = row_of(e->style, tess_module_kind(m));
  TRY(place(w, m, "weight", row->weight, w->src));
  TRY(place(w, m, "bias", row->bias, w->src));
  if (tess_distribute_module(w->ctx, m, w->mesh, NULL, NULL, NULL, NULL)) return OK; /* the context has the error */
  const char *from = e->ninputs && e->inputs[0] ? e->inputs[0] : row->input, *to = row->want;
  const char *out = e->noutputs && e->outputs[0] ? e->outputs[0] : row->output;
  bool contracted = e->style == TESS_ROWWISE && !strcmp(row->kind, "linear");
  Prepare in = {.mesh = w->mesh, .features = contracted ? tess_module_get(m, "weight")->size[1] : 0};
  TRY(add_prepare(m, TESS_BEFORE_FORWARD, &in, &from, &to, 1));
  Prepare after = {.mesh = w->mesh, .always = true, .plain = e->seen_outputs != TESS_SPREAD};
  return add_prepare(m, TESS_AFTER_FORWARD, &after, &out, &out, 1);
}

static Status apply_sequence(const Applying *w, const TessPlanEntry *e, TessModule *m) {
  for (int i = 0; i < m->ntensors; i++)
    if (!m->tensor[i].buffer) TRY(place(w, m, m->tensor[i].name, "R", -1));
  if (tess_distribute_module(w->ctx, m, w->mesh, NULL, NULL, NULL, NULL)) return OK;
  const char *where = e->ninputs && e->inputs[0] ? e->inputs[0] : "S(1)";
  Prepare in = {.mesh = w->mesh, .always = true}, out = {.mesh = w->mesh, .plain = true};
  TRY(add_prepare(m, TESS_BEFORE_FORWARD, &in, &where, &where, 1));
  return e->seen_outputs == TESS_PLAIN ? add_prepare(m, TESS_AFTER_FORWARD, &out, &where, NULL, 1) : OK;
}

static Status apply_prepare(const Applying *w, const TessPlanEntry *e, TessModule *m) {
  Prepare in = {.mesh = w->mesh, .all = true, .plain = e->seen_inputs == TESS_PLAIN},
          out = {.mesh = w->mesh, .all = true, .plain = e->seen_outputs != TESS_SPREAD};
  if (e->ninputs) TRY(add_prepare(m, TESS_BEFORE_FORWARD, &in, e->inputs, e->want_inputs, e->ninputs));
  return e->noutputs ? add_prepare(m, TESS_AFTER_FORWARD, &out, e->outputs, e->want_outputs, e->noutputs) : OK;
}

static Status apply(const Applying *w, const Planned *p) {
  for (int i = 0; i < p->found.n && !w->ctx->error; i++) {
    TessModule *m = p->found.v[i].module;
    const TessPlanEntry *e = p->entry;
    Status s = shards(e->style)            ? apply_sharding(w, e, m)
               : e->style == TESS_SEQUENCE ? apply_sequence(w, e, m)
                                           : apply_prepare(w, e, m);
    TRY(status_at(s, "module '%s'", p->found.v[i].path));
  }
  return OK;
}

/* A module that two entries would distribute. */
static Status check_twice(const Planned *list, int n) {
  for (int a = 0; a < n; a++)
    for (int b = 0; b < a; b++)
      for (int i = 0; i < list[a].found.n; i++)
        for (int k = 0; k < list[b].found.n; k++)
          if (list[a].found.v[i].module == list[b].found.v[k].module && list[a].entry->style != TESS_PREPARE &&
              list[b].entry->style != TESS_PREPARE)
            return fail(ERR_USAGE, "module '%s' is named by two entries of the plan, '%s' and '%s'",
                        list[a].found.v[i].path, list[b].entry->path ? list[b].entry->path : "",
                        list[a].entry->path ? list[a].entry->path : "");
  return OK;
}

static Status parallelize(Applying *w, TessModule *m, const TessPlanEntry *plan, int n, Planned *list) {
  TRY(api_axis(w->ctx, w->mesh, "a module is parallelized", &w->mesh));
  for (int i = 0; i < n; i++) TRY(plan_entry(m, &plan[i], &list[i]));
  TRY(check_twice(list, n));
  for (int i = 0; i < n; i++) TRY(apply(w, &list[i]));
  return OK;
}

int tess_parallelize_module(TessCtx *ctx, TessModule *m, TessMesh *mesh, const TessPlanEntry *plan, int n,
                            int src) {
  if (!API_BEGIN(ctx, GIVEN("the module", m), LISTED("the plan", plan, n))) return -1;
  Arena arena = {0};
  Planned *list = arena_new_n(&arena, Planned, n + 1);
  Applying w = {ctx, mesh, src};
  api_stick(ctx, list ? parallelize(&w, m, plan, n, list) : fail_oom());
  for (int i = 0; list && i < n; i++) module_list_free(&list[i].found);
  arena_free(&arena);
  return ctx->error ? -1 : 0;
}

int tess_module_match(TessCtx *ctx, TessModule *m, const char *path, TessModuleVisit *visit, void *arg) {
  ModuleList found = {0};
  if (!API_BEGIN(ctx, GIVEN("the module", m), GIVEN("the path", path), GIVEN("the function", visit ? "" : NULL)))
    return -1;
  if (api_stick(ctx, modules_matching(m, path, &found))) return module_list_free(&found), -1;
  int code = 0, n = found.n;
  for (int i = 0; i < n && code >= 0 && !ctx->error; i++)
    code = visit(ctx, found.v[i].path, found.v[i].module, arg);
  module_list_free(&found);
  return ctx->error ? -1 : code < 0 ? code : n;
}

int tess_loss_parallel(TessCtx *ctx, int on) {
  Dist *d = NULL;
  if (!API_READY(ctx) || api_stick(ctx, api_dist(ctx, &d))) return 0;
  int former = d->loss_parallel;
  d->loss_parallel = on != 0;
  return former;
}
