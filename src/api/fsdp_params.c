/* fsdp_params.c -- which parameters a fully sharded module takes, and how they are found in the tree.
 *
 * PyTorch's order: modules depth first, inner ones before outer ones, without going into modules that are fully
 * sharded already; the parameters of each in their own order.  One that stands in several places is taken once.
 */
#include <stdlib.h>
#include <string.h>

#include "api/fsdp.h"

/* ---- slots ---------------------------------------------------------------------------------------------- */

static ModuleTensor *find(const FsdpSlot *s) {
  TessModule *m = s->module;
  for (int i = 0; m && i < m->ntensors; i++)
    if (!strcmp(m->tensor[i].name, s->name)) return &m->tensor[i];
  return NULL;
}

static Tensor *slot_get(const FsdpSlot *s) {
  ModuleTensor *t = find(s);
  return t ? t->tensor : NULL;
}

static Status slot_put(const FsdpSlot *s, const Tensor *t) {
  ModuleTensor *where = find(s);
  return where ? module_replace(s->module, where, t) : OK; /* the module has been changed since */
}

static bool slot_requires_grad(const FsdpSlot *s) {
  const ModuleTensor *t = find(s);
  return t && t->requires_grad;
}

const FsdpSlots fsdp_module_slots = {slot_get, slot_put, slot_requires_grad};

/* ---- collecting --------------------------------------------------------------------------------------------- */

typedef struct {
  TessCtx *ctx;
  TessModule *const *roots;
  int nroots;
  Mesh *mesh;
  const TessFsdpOptions *how;
  ParamList *out;
  TessModule **seen;
  int nseen, seen_cap;
} Search;

static bool is_root(const Search *s, const TessModule *m) {
  for (int i = 0; i < s->nroots; i++)
    if (s->roots[i] == m) return true;
  return false;
}

static bool is_ignored(const Search *s, const char *name) {
  for (int i = 0; i < s->how->nignored; i++)
    if (s->how->ignored[i] && !strcmp(s->how->ignored[i], name)) return true;
  return false;
}

/* The same values under another name? */
static bool is_tied(const Tensor *a, const Tensor *b) {
  const Tensor *x = a->spec ? a->local : a, *y = b->spec ? b->local : b;
  return x && y && x->storage && a->spec == b->spec && tensor_same_view(x, y);
}

static Status add_slot(Search *s, FsdpParamGiven *p, TessModule *m, const char *name) {
  FsdpSlot *more;
  TRY_NEW(more, arena_new_n(&s->out->arena, FsdpSlot, p->nslots + 1));
  if (p->nslots) memcpy(more, p->slot, (size_t)p->nslots * sizeof *more);
  more[p->nslots].module = m;
  TRY_NEW(more[p->nslots].name, arena_strdup(&s->out->arena, name));
  p->slot = more;
  p->nslots++;
  return OK;
}

static Status ask_placement(Search *s, FsdpParamGiven *p, const Tensor *t, Mesh **mesh) {
  if (!s->how->placement) return OK;
  if (s->how->placement(s->ctx, p->name, t, &p->dim, mesh, s->how->placement_arg) && !s->ctx->error)
    return fail(ERR_FAIL, "the placement function failed on parameter '%s'", p->name);
  return OK;
}

static Status add_param(Search *s, TessModule *m, const ModuleTensor *t, const char *path) {
  ParamList *l = s->out;
  const char *name;
  TRY_NEW(name, arena_printf(&l->arena, "%s%s%s", path, *path ? "." : "", t->name));
  if (is_ignored(s, name)) return OK;
  for (int i = 0; i < l->n; i++)
    if (is_tied(slot_get(&l->v[i].slot[0]), t->tensor)) return add_slot(s, &l->v[i], m, t->name);
  TRY_NEW(l->v, arena_more(&l->arena, l->v, l->n, &l->cap));
  TRY_NEW(l->mesh, arena_more(&l->arena, l->mesh, l->n, &l->mesh_cap));
  FsdpParamGiven *p = &l->v[l->n];
  *p = (FsdpParamGiven){.name = name};
  l->mesh[l->n] = s->mesh;
  TRY(add_slot(s, p, m, t->name));
  TRY(ask_placement(s, p, t->tensor, &l->mesh[l->n]));
  l->n++;
  return OK;
}

static Status search(Search *s, TessModule *m, const char *path) {
  for (int i = 0; i < s->nseen; i++)
    if (s->seen[i] == m) return OK;
  if (!is_root(s, m) && m->fsdp) return OK;
  TRY_NEW(s->seen, arena_more(&s->out->arena, s->seen, s->nseen, &s->seen_cap));
  s->seen[s->nseen++] = m;
  for (int i = 0; i < m->nchildren; i++) {
    const char *inner;
    TRY_NEW(inner, arena_printf(&s->out->arena, "%s%s%s", path, *path ? "." : "", m->child[i].name));
    TRY(search(s, m->child[i].module, inner));
  }
  for (int i = 0; i < m->ntensors && !s->ctx->error; i++)
    if (!m->tensor[i].buffer) TRY(add_param(s, m, &m->tensor[i], path));
  return OK;
}

Status fsdp_params_of(TessCtx *ctx, TessModule *const *modules, int n, Mesh *mesh, const TessFsdpOptions *how,
                      ParamList *out) {
  Search s = {.ctx = ctx, .roots = modules, .nroots = n, .mesh = mesh, .how = how, .out = out};
  *out = (ParamList){0};
  Status status = OK;
  for (int i = 0; i < n && !status; i++) status = search(&s, modules[i], "");
  if (status) fsdp_params_free(out);
  return status;
}

void fsdp_params_free(ParamList *list) {
  arena_free(&list->arena);
  *list = (ParamList){0};
}
