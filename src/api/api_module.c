/* api_module.c -- public functions: named tensors in a tree, with a forward function each;
 * enough of a module to be distributed. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "dist/dtensor.h"

typedef struct {
  char *name;
  Tensor *tensor; /* in the module's own scope */
} Entry;

struct TessModule {
  TessCtx *ctx;
  TessForwardFn *forward;
  void *arg;
  Scope handles;
  Entry *entry;
  int n, cap;
  char **child_name;
  TessModule **child;
  int children, children_cap;
  /* set by tess_distribute_module */
  TessMesh *mesh;
  TessModuleHook *input, *output;
  void *hook_arg;
};

TessModule *tess_module_new(TessCtx *ctx, TessForwardFn *forward, void *arg) {
  TessModule *m = ctx->error ? NULL : calloc(1, sizeof *m);
  if (!m) {
    if (!ctx->error) api_stick(ctx, fail_oom());
    return NULL;
  }
  m->ctx = ctx;
  m->forward = forward;
  m->arg = arg;
  return m;
}

void tess_module_free(TessModule *m) {
  if (!m) return;
  scope_clear(&m->handles);
  for (int i = 0; i < m->n; i++) free(m->entry[i].name);
  for (int i = 0; i < m->children; i++) {
    free(m->child_name[i]);
    tess_module_free(m->child[i]);
  }
  free(m->entry);
  free(m->child_name);
  free(m->child);
  free(m);
}

static Entry *find_entry(TessModule *m, const char *name) {
  for (int i = 0; i < m->n; i++)
    if (!strcmp(m->entry[i].name, name)) return &m->entry[i];
  return NULL;
}

/* "layers.0.weight": the module that holds the last part, which *name is left at. */
static TessModule *find_owner(TessModule *m, const char **name) {
  for (const char *dot; m && (dot = strchr(*name, '.')); *name = dot + 1) {
    TessModule *next = NULL;
    for (int i = 0; i < m->children; i++)
      if (strlen(m->child_name[i]) == (size_t)(dot - *name) &&
          !strncmp(m->child_name[i], *name, (size_t)(dot - *name)))
        next = m->child[i];
    m = next;
  }
  return m;
}

static Status set_tensor(TessModule *m, const char *name, const Tensor *t) {
  Tensor *kept;
  TRY(tensor_alias(&m->handles, t, &kept));
  Entry *e = find_entry(m, name);
  if (e) {
    e->tensor = kept;
    return OK;
  }
  if (m->n == m->cap) {
    Entry *more;
    TRY_NEW(more, realloc(m->entry, (size_t)(m->cap * 2 + 4) * sizeof *more));
    m->entry = more;
    m->cap = m->cap * 2 + 4;
  }
  e = &m->entry[m->n];
  TRY_NEW(e->name, strdup(name));
  e->tensor = kept;
  m->n++;
  return OK;
}

int tess_module_set(TessModule *m, const char *name, const TessTensor *t) {
  if (m->ctx->error) return -1;
  const char *last = name;
  TessModule *owner = name ? find_owner(m, &last) : NULL;
  if (!owner || !t)
    return api_stick(m->ctx,
                     fail(ERR_USAGE, "tess_module_set: %s", !t ? "the tensor is NULL" : "there is no such module"))
               ? -1
               : 0;
  return api_stick(m->ctx, set_tensor(owner, last, t)) ? -1 : 0;
}

TessTensor *tess_module_get(TessModule *m, const char *name) {
  const char *last = name;
  TessModule *owner = find_owner(m, &last);
  Entry *e = owner ? find_entry(owner, last) : NULL;
  return e ? e->tensor : NULL;
}

static Status add_child(TessModule *m, const char *name, TessModule *child) {
  if (strchr(name, '.') || !*name) return fail(ERR_USAGE, "a module cannot be called '%s'", name);
  if (m->children == m->children_cap) {
    int cap = m->children_cap * 2 + 4;
    char **names;
    TessModule **modules;
    TRY_NEW(names, realloc(m->child_name, (size_t)cap * sizeof *names));
    m->child_name = names;
    TRY_NEW(modules, realloc(m->child, (size_t)cap * sizeof *modules));
    m->child = modules;
    m->children_cap = cap;
  }
  TRY_NEW(m->child_name[m->children], strdup(name));
  m->child[m->children++] = child;
  return OK;
}

int tess_module_add(TessModule *m, const char *name, TessModule *child) {
  if (m->ctx->error || !child) return -1;
  return api_stick(m->ctx, add_child(m, name, child)) ? -1 : 0;
}

TessModule *tess_module_child(TessModule *m, const char *name) {
  for (int i = 0; i < m->children; i++)
    if (!strcmp(m->child_name[i], name)) return m->child[i];
  return NULL;
}

/* ---- distributing ------------------------------------------------------------------------------- */

static Status partition(TessModule *m, const char *path, TessMesh *mesh, TessPartitionFn *fn, void *arg) {
  TessCtx *ctx = m->ctx;
  if (fn && fn(ctx, path, m, mesh, arg))
    return ctx->error ? OK : fail(ERR_FAIL, "the partition function failed on module '%s'", path);
  for (int i = 0; i < m->children; i++) {
    char *inner = malloc(strlen(path) + strlen(m->child_name[i]) + 2);
    if (!inner) return fail_oom();
    strcpy(inner, path);
    if (*path) strcat(inner, ".");
    strcat(inner, m->child_name[i]);
    Status s = partition(m->child[i], inner, mesh, fn, arg);
    free(inner);
    TRY(s);
    if (ctx->error) return OK;
  }
  Placement r[MAX_AXES] = {{.kind = PLACE_R}};
  for (int i = 0; i < m->n; i++) { /* what the function left alone is replicated */
    if (m->entry[i].tensor->spec) continue;
    Tensor *spread;
    TRY(dtensor_distribute(ctx, &m->handles, m->entry[i].tensor, mesh, r, 0, &spread));
    m->entry[i].tensor = spread;
  }
  return OK;
}

int tess_distribute_module(TessModule *m, TessMesh *mesh, TessPartitionFn *fn, TessModuleHook *input,
                           TessModuleHook *output, void *arg) {
  TessCtx *ctx = m->ctx;
  if (ctx->error) return -1;
  if (m->mesh)
    return api_stick(ctx, fail(ERR_USAGE, "tess_distribute_module was called on this module before")) ? -1 : 0;
  if (!mesh) mesh = ctx->dist ? ctx->dist->current : NULL;
  if (!mesh)
    return api_stick(ctx, status_hint(fail(ERR_USAGE, "no mesh is given and none is current"),
                                      "pass one, or tess_set_mesh()"))
               ? -1
               : 0;
  if (api_stick(ctx, partition(m, "", mesh, fn, arg)) || ctx->error) return -1;
  m->mesh = mesh;
  m->input = input;
  m->output = output;
  m->hook_arg = arg;
  return 0;
}

int tess_module_call(TessModule *m, TessTensor **inputs, int ninputs, TessTensor **out, int cap) {
  TessCtx *ctx = m->ctx;
  if (ctx->error) return -1;
  if (!m->forward) return api_stick(ctx, fail(ERR_USAGE, "this module has no forward function")) ? -1 : 0;
  if (m->input && m->input(ctx, m, inputs, ninputs, m->mesh, m->hook_arg)) return -1;
  int n = m->forward(ctx, m, inputs, ninputs, out, cap, m->arg);
  if (n >= 0 && m->output && m->output(ctx, m, out, n < cap ? n : cap, m->mesh, m->hook_arg)) return -1;
  return ctx->error ? -1 : n;
}
