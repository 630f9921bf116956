/* module.h -- a module: named tensors, named modules inside it, and hooks around its forward function.
 *
 * I1  A module is counted: whoever holds it and every module around it have one reference each.
 * I2  No module is inside itself, so walks end and the last reference frees the whole.
 * I3  Its tensors are handles that belong to no scope (tensor_hold) and live until they are replaced.
 * I4  It belongs to no context: functions that can fail are told which one takes the error.
 */
#ifndef TESS_API_MODULE_H
#define TESS_API_MODULE_H

#include <stdatomic.h>

#include "api/api.h"

typedef struct {
  char *name;
  Tensor *tensor;
  bool buffer, persistent, requires_grad;
} ModuleTensor;

typedef struct {
  char *name;
  TessModule *module;
} ModuleChild;

typedef struct {
  int number;
  TessHookAt at;
  TessModuleHook *fn;
  void *arg;
  void (*release)(void *arg); /* when the hook is gone; NULL: arg is the caller's */
} ModuleHook;

struct TessModule {
  _Atomic int references;
  int64_t version;
  TessForwardFn *forward;
  void *arg;
  void (*release)(void *arg); /* of arg, with the module; NULL: arg is the caller's */
  char *kind;                 /* "linear" ...: what styles of parallelism know it as; NULL: nothing in particular */
  TessModule *parent;         /* the first of those around it, borrowed */
  int parents;
  ModuleTensor *tensor;
  int ntensors, tensor_cap;
  ModuleChild *child;
  int nchildren, child_cap;
  ModuleHook *hook;
  int nhooks, hook_cap, hooks_made;
  int hooks_before;      /* hooks that were put in front of the others */
  struct FsdpUnit *fsdp; /* that it is fully sharded as (api_fsdp.c); NULL: not */
  int fsdp_index;        /* its number there */
  Mesh *mesh;            /* NULL: not distributed */
  Dist *dist;            /* whose mesh it is; compared, never followed */
};

/* Every module of a tree once, root first, with its path; holds a reference of each. */
typedef struct {
  char *path;
  TessModule *module;
} ModuleAt;
typedef struct {
  ModuleAt *v;
  int n, cap;
} ModuleList;
Status modules_of(TessModule *root, ModuleList *out);
void module_list_free(ModuleList *list);

/* The parameters of a tree that require a gradient, or its buffers, each tensor once, with their dotted names; the
 * tensors are borrowed. */
typedef struct {
  Tensor **v;
  const char **name;
  int n, cap, name_cap;
  Arena arena; /* of all this */
} ModuleTensors;
Status module_tensors(TessModule *m, bool buffers, ModuleTensors *out);
void module_tensors_free(ModuleTensors *list);

/* Puts t where the tensor of that name was. */
Status module_replace(TessModule *m, ModuleTensor *where, const Tensor *t);

/* tess_module_hook() whose arg the module frees; release is not called if this fails. */
Status module_add_hook(TessModule *m, TessHookAt at, TessModuleHook *fn, void *arg, void (*release)(void *arg));

/* The same, called before all others. */
Status module_add_hook_first(TessModule *m, TessHookAt at, TessModuleHook *fn, void *arg);
/* The module is about to go. */
void module_leaves_fsdp(TessModule *m);

/* path becomes the list's, also on failure. */
Status module_list_add(ModuleList *list, char *path, TessModule *m);

#endif
