/* module_stack.h -- the modules that a node stands in, outermost first, as torch.export has noted them.
 *
 *     for (ModuleWalk w = modules_around(n); module_next(&w);) use(w.path, w.npath, w.type, w.ntype);
 *
 * nn_module_stack is entries "key,path,package.Class" joined by ';'.  Nodes of no module carry a placeholder. */
#ifndef TESS_GRAPH_MODULE_STACK_H
#define TESS_GRAPH_MODULE_STACK_H

#include <string.h>

#include "graph/graph.h"

typedef struct {
  const char *rest;
  const char *path, *type; /* "layers.0.mlp" ("" of the whole), "LlamaMLP"; not ended by NUL */
  size_t npath, ntype;
} ModuleWalk;

static inline ModuleWalk modules_around(const Node *n) {
  return (ModuleWalk){.rest = node_meta(n, "nn_module_stack")};
}

static inline bool module_next(ModuleWalk *w) {
  static const char self[] = "L['self']", none[] = "_empty_nn_module_stack";
  if (!w->rest || !*w->rest || !strncmp(w->rest, none, sizeof none - 1)) return false;
  size_t n = strcspn(w->rest, ";");
  const char *comma = memchr(w->rest, ',', n), *end = w->rest + n;
  w->rest = *end ? end + 1 : end;
  if (!comma) return false;
  w->path = comma + 1;
  w->npath = strcspn(w->path, ",;");
  w->type = w->path + w->npath;
  w->ntype = (size_t)(end - w->type);
  for (const char *p = w->type; p < end; p++)
    if (*p == ',' || *p == '.') w->type = p + 1, w->ntype = (size_t)(end - w->type);
  if (w->npath >= sizeof self - 1 && !strncmp(w->path, self, sizeof self - 1)) {
    size_t skip = sizeof self - 1 + (w->path[sizeof self - 1] == '.');
    w->path += skip;
    w->npath -= skip;
  }
  return true;
}

#endif
