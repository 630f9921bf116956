/* api_module.c -- public functions: modules as a tree of names, their parameters and buffers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/module.h"
#include "base/grow.h"

/* ---- making and freeing ------------------------------------------------------------------------ */

TessModule *tess_module_new(TessCtx *ctx, TessForwardFn *forward, void *arg) {
  TessModule *m = API_READY(ctx) ? calloc(1, sizeof *m) : NULL;
  if (!m) {
    if (API_READY(ctx)) api_stick(ctx, fail_oom());
    return NULL;
  }
  atomic_init(&m->references, 1);
  m->forward = forward;
  m->arg = arg;
  return m;
}

TessModule *tess_module_hold(TessModule *m) {
  if (m) atomic_fetch_add(&m->references, 1);
  return m;
}

/* The child is no longer inside m. */
static void drop_child(TessModule *m, ModuleChild *c) {
  free(c->name);
  c->module->parents--;
  if (c->module->parent == m) c->module->parent = NULL;
  tess_module_free(c->module);
}

static void drop_tensor(ModuleTensor *t) {
  free(t->name);
  tess_release(t->tensor);
}

void tess_module_free(TessModule *m) {
  if (!m || atomic_fetch_sub(&m->references, 1) > 1) return;
  module_leaves_fsdp(m);
  for (int i = 0; i < m->ntensors; i++) drop_tensor(&m->tensor[i]);
  for (int i = 0; i < m->nchildren; i++) drop_child(m, &m->child[i]);
  for (int i = 0; i < m->nhooks; i++)
    if (m->hook[i].release) m->hook[i].release(m->hook[i].arg);
  if (m->release) m->release(m->arg);
  free(m->kind);
  free(m->tensor);
  free(m->child);
  free(m->hook);
  free(m);
}

/* ---- finding ------------------------------------------------------------------------------------- */

static ModuleChild *find_child(const TessModule *m, const char *name, size_t n) {
  for (int i = 0; i < m->nchildren; i++)
    if (strlen(m->child[i].name) == n && !strncmp(m->child[i].name, name, n)) return &m->child[i];
  return NULL;
}

/* "layers.0.weight": the module that holds the last part, which *name is left at. */
static TessModule *find_owner(TessModule *m, const char **name) {
  for (const char *dot; m && (dot = strchr(*name, '.')); *name = dot + 1) {
    ModuleChild *next = find_child(m, *name, (size_t)(dot - *name));
    m = next ? next->module : NULL;
  }
  return m;
}

static ModuleTensor *find_tensor(TessModule *m, const char *name) {
  TessModule *owner = m && name ? find_owner(m, &name) : NULL;
  for (int i = 0; owner && i < owner->ntensors; i++)
    if (!strcmp(owner->tensor[i].name, name)) return &owner->tensor[i];
  return NULL;
}

TessModule *tess_module_child(TessModule *m, const char *path) {
  if (!m || !path || !*path) return path ? m : NULL;
  TessModule *owner = find_owner(m, &path);
  ModuleChild *c = owner ? find_child(owner, path, strlen(path)) : NULL;
  return c ? c->module : NULL;
}

int tess_module_child_count(const TessModule *m) { return m ? m->nchildren : 0; }
const char *tess_module_child_name(const TessModule *m, int i) {
  return m && i >= 0 && i < m->nchildren ? m->child[i].name : NULL;
}
TessModule *tess_module_child_at(const TessModule *m, int i) {
  return m && i >= 0 && i < m->nchildren ? m->child[i].module : NULL;
}
TessModule *tess_module_parent(const TessModule *m) { return m ? m->parent : NULL; }
int64_t tess_module_version(const TessModule *m) { return m ? m->version : 0; }

const char *tess_module_kind(const TessModule *m) { return m && m->kind ? m->kind : ""; }

int tess_module_set_kind(TessCtx *ctx, TessModule *m, const char *kind) {
  if (!API_BEGIN(ctx, GIVEN("the module", m))) return -1;
  char *copy = kind ? strdup(kind) : NULL;
  if (kind && !copy) return api_stick(ctx, fail_oom()) ? -1 : 0;
  free(m->kind);
  m->kind = copy;
  return 0;
}

static const char *name_in_parent(const TessModule *m) {
  for (int i = 0; m->parent && i < m->parent->nchildren; i++)
    if (m->parent->child[i].module == m) return m->parent->child[i].name;
  return "";
}

static void print_path(const TessModule *m, TextBuf *out) {
  if (!m->parent) return;
  print_path(m->parent, out);
  text_printf(out, "%s%s", out->len ? "." : "", name_in_parent(m));
}

const char *tess_module_path(const TessModule *m, char *buf, size_t cap) {
  TextBuf out = {0};
  if (!buf || !cap) return "";
  if (m) print_path(m, &out);
  snprintf(buf, cap, "%s", out.text ? out.text : "");
  text_free(&out);
  return buf;
}

/* ---- the tree -------------------------------------------------------------------------------------- */

static bool is_inside(const TessModule *m, const TessModule *root) {
  if (m == root) return true;
  for (int i = 0; i < root->nchildren; i++)
    if (is_inside(m, root->child[i].module)) return true;
  return false;
}

static Status check_name(const char *name, const char *what) {
  if (*name && !strchr(name, '.')) return OK;
  return fail(ERR_USAGE, "a %s cannot be called '%s': names are not empty and have no dots", what, name);
}

static Status add_child(TessModule *m, const char *name, TessModule *child) {
  TRY(check_name(name, "module"));
  if (find_tensor(m, name)) return fail(ERR_USAGE, "the module has a tensor called '%s'", name);
  if (is_inside(m, child)) return fail(ERR_USAGE, "a module cannot be inside itself, as '%s'", name);
  ModuleChild *c = find_child(m, name, strlen(name));
  if (c) { /* in place of the former one */
    ModuleChild former = {strdup(name), c->module};
    if (!former.name) return fail_oom();
    c->module = child;
    drop_child(m, &former);
  } else {
    TRY_ROOM(m->child, m->nchildren, m->child_cap);
    c = &m->child[m->nchildren];
    TRY_NEW(c->name, strdup(name));
    c->module = child;
    m->nchildren++;
  }
  if (!child->parent) child->parent = m;
  child->parents++;
  m->version++;
  return OK;
}

int tess_module_add(TessCtx *ctx, TessModule *m, const char *name, TessModule *child) {
  if (!API_BEGIN(ctx, GIVEN("the module", m), GIVEN("the name", name), GIVEN("the child", child))) return -1;
  return api_stick(ctx, add_child(m, name, child)) ? -1 : 0;
}

int tess_module_remove(TessCtx *ctx, TessModule *m, const char *name) {
  if (!API_BEGIN(ctx, GIVEN("the module", m), GIVEN("the name", name))) return -1;
  const char *last = name;
  TessModule *owner = find_owner(m, &last);
  ModuleTensor *t = find_tensor(m, name);
  ModuleChild *c = owner ? find_child(owner, last, strlen(last)) : NULL;
  if (t) {
    drop_tensor(t);
    memmove(t, t + 1, (size_t)(&owner->tensor[--owner->ntensors] - t) * sizeof *t);
  } else if (c) {
    drop_child(owner, c);
    memmove(c, c + 1, (size_t)(&owner->child[--owner->nchildren] - c) * sizeof *c);
  } else return api_stick(ctx, fail(ERR_USAGE, "the module has no '%s'", name)) ? -1 : 0;
  owner->version++;
  return 0;
}

/* ---- walking ----------------------------------------------------------------------------------------- */

void module_list_free(ModuleList *list) {
  for (int i = 0; i < list->n; i++) {
    free(list->v[i].path);
    tess_module_free(list->v[i].module);
  }
  free(list->v);
  *list = (ModuleList){0};
}

static bool is_listed(const ModuleList *list, const TessModule *m) {
  for (int i = 0; m->parents > 1 && i < list->n; i++)
    if (list->v[i].module == m) return true;
  return false;
}

static Status add_module(ModuleList *list, char *path, TessModule *m) {
  if (!path) return fail_oom();
  TRY_ROOM(list->v, list->n, list->cap);
  list->v[list->n++] = (ModuleAt){path, tess_module_hold(m)};
  return OK;
}

Status module_list_add(ModuleList *list, char *path, TessModule *m) {
  Status s = add_module(list, path, m);
  if (s) free(path);
  return s;
}

/* path becomes the list's. */
static Status collect(ModuleList *list, char *path, TessModule *m) {
  TRY(module_list_add(list, path, m));
  for (int i = 0; i < m->nchildren; i++) {
    if (is_listed(list, m->child[i].module)) continue;
    TextBuf inner = {0};
    text_printf(&inner, "%s%s%s", path, *path ? "." : "", m->child[i].name);
    if (inner.failed) text_free(&inner); /* leaves NULL */
    TRY(collect(list, inner.text, m->child[i].module));
  }
  return OK;
}

Status modules_of(TessModule *root, ModuleList *out) {
  *out = (ModuleList){0};
  Status s = collect(out, strdup(""), root);
  if (s) module_list_free(out);
  return s;
}

int tess_module_walk(TessCtx *ctx, TessModule *m, TessModuleVisit *visit, void *arg) {
  ModuleList list;
  if (!API_BEGIN(ctx, GIVEN("the module", m), GIVEN("the function", visit ? "" : NULL)) ||
      api_stick(ctx, modules_of(m, &list)))
    return -1;
  int code = 0;
  for (int i = 0; i < list.n && !code; i++) code = visit(ctx, list.v[i].path, list.v[i].module, arg);
  module_list_free(&list);
  return ctx->error ? -1 : code;
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

Status module_replace(TessModule *m, ModuleTensor *where, const Tensor *t) {
  Tensor *held;
  TRY(tensor_hold(t, &held));
  tensor_release(where->tensor);
  where->tensor = held;
  m->version++;
  return OK;
}

static Status new_tensor(TessModule *m, const char *name, const Tensor *t, ModuleTensor **out) {
  TRY(check_name(name, "tensor"));
  if (find_child(m, name, strlen(name))) return fail(ERR_USAGE, "the module has a module called '%s'", name);
  TRY_ROOM(m->tensor, m->ntensors, m->tensor_cap);
  ModuleTensor *e = *out = &m->tensor[m->ntensors];
  *e = (ModuleTensor){.persistent = true, .requires_grad = dtype_is_float(t->dtype) || t->dtype == DT_C64};
  TRY_NEW(e->name, strdup(name));
  Status s = module_replace(m, e, t);
  if (s) free(e->name);
  else m->ntensors++;
  return s;
}

static Status set_tensor(TessModule *m, const char *name, const Tensor *t, ModuleTensor **out) {
  *out = find_tensor(m, name);
  const char *last = name;
  TessModule *owner = find_owner(m, &last);
  if (!owner) return fail(ERR_USAGE, "'%s': there is no such module", name);
  return *out ? module_replace(owner, *out, t) : new_tensor(owner, last, t, out);
}

int tess_module_set(TessCtx *ctx, TessModule *m, const char *name, const TessTensor *t) {
  ModuleTensor *e;
  if (!API_BEGIN(ctx, GIVEN("the module", m), GIVEN("the name", name), GIVEN("the tensor", t))) return -1;
  return api_stick(ctx, set_tensor(m, name, t, &e)) ? -1 : 0;
}

int tess_module_set_buffer(TessCtx *ctx, TessModule *m, const char *name, const TessTensor *t, int persistent) {
  ModuleTensor *e;
  if (!API_BEGIN(ctx, GIVEN("the module", m), GIVEN("the name", name), GIVEN("the tensor", t)) ||
      api_stick(ctx, set_tensor(m, name, t, &e)))
    return -1;
  e->buffer = true;
  e->persistent = persistent != 0;
  e->requires_grad = false;
  return 0;
}

TessTensor *tess_module_get(TessModule *m, const char *name) {
  ModuleTensor *e = find_tensor(m, name);
  return e ? e->tensor : NULL;
}

int tess_module_tensor_count(const TessModule *m) { return m ? m->ntensors : 0; }
const char *tess_module_tensor_name(const TessModule *m, int i) {
  return m && i >= 0 && i < m->ntensors ? m->tensor[i].name : NULL;
}

int tess_module_is_buffer(TessModule *m, const char *name) {
  const ModuleTensor *e = find_tensor(m, name);
  return !e ? -1 : !e->buffer ? 0 : e->persistent ? 1 : 2;
}

int tess_module_requires_grad(TessModule *m, const char *name) {
  const ModuleTensor *e = find_tensor(m, name);
  return e ? e->requires_grad : -1;
}

static Status set_requires_grad(ModuleTensor *e, const char *name, bool on) {
  if (!e) return fail(ERR_USAGE, "the module has no tensor '%s'", name);
  if (on && !dtype_is_float(e->tensor->dtype) && e->tensor->dtype != DT_C64)
    return fail(ERR_USAGE, "'%s' is of %s: only floating point and complex tensors can require gradients", name,
                dtype_name(e->tensor->dtype));
  e->requires_grad = on;
  return OK;
}

int tess_module_set_requires_grad(TessCtx *ctx, TessModule *m, const char *name, int on) {
  if (!API_BEGIN(ctx, GIVEN("the module", m), GIVEN("the name", name))) return -1;
  return api_stick(ctx, set_requires_grad(find_tensor(m, name), name, on != 0)) ? -1 : 0;
}
