/* parallel_prepare.c -- the hook that makes DTensors of the inputs or outputs of a module, moves them, and opens
 * them again; see parallel.h. */
#include <stdlib.h>
#include <string.h>

#include "api/parallel.h"
#include "dist/dtensor.h"
#include "dist/spec.h"

void prepare_free(void *p) {
  Prepare *how = p;
  for (int i = 0; how && i < how->n; i++) {
    free(how->tensor[i].from);
    free(how->tensor[i].to);
  }
  if (how) free(how->tensor);
  free(how);
}

static Status copy_texts(Prepare *p, const char *const *from, const char *const *to, int n) {
  TRY_NEW(p->tensor, calloc((size_t)n + 1, sizeof *p->tensor));
  for (p->n = 0; p->n < n; p->n++) {
    if (!from[p->n]) continue;
    TRY_NEW(p->tensor[p->n].from, strdup(from[p->n]));
    if (to && to[p->n] && !(p->tensor[p->n].to = strdup(to[p->n]))) {
      free(p->tensor[p->n].from);
      return fail_oom();
    }
  }
  return OK;
}

Status prepare_new(const Prepare *how, const char *const *from, const char *const *to, int n, Prepare **out) {
  TRY_NEW(*out, malloc(sizeof **out));
  **out = *how;
  (*out)->tensor = NULL;
  (*out)->n = 0;
  Status s = copy_texts(*out, from, to, n);
  if (s) prepare_free(*out);
  return s;
}

/* A plain tensor as this rank's shard.  Of a contraction the whole size is known, so that shards may differ. */
static Status annotate(TessCtx *ctx, const Prepare *how, const char *text, Tensor **t) {
  Placement p;
  int64_t shape[MAX_DIMS];
  FromLocal as = {0};
  TRY(placement_parse(text, (*t)->ndim, &p));
  memcpy(shape, (*t)->size, sizeof shape);
  if (how->features && is_s(&p) && p.dim == (*t)->ndim - 1) {
    shape[p.dim] = how->features;
    as = (FromLocal){.shape = shape, .ndim = (*t)->ndim};
  }
  return dtensor_from_local(ctx, api_scope(ctx), *t, how->mesh, &p, &as, t);
}

static Status prepare_one(TessCtx *ctx, const Prepare *how, const Moved1 *m, Tensor **t) {
  Placement p;
  bool spread = (*t)->spec != NULL;
  if (spread && (*t)->spec->mesh != how->mesh) {
    char has[256], wants[256];
    return fail(ERR_USAGE, "the tensor is on %s, the module on %s", mesh_print((*t)->spec->mesh, has, sizeof has),
                mesh_print(how->mesh, wants, sizeof wants));
  }
  if (!spread) TRY(annotate(ctx, how, m->from, t));
  if (m->to && (how->always || strcmp(m->from, m->to))) {
    TRY(placement_parse(m->to, (*t)->ndim, &p));
    TRY(dtensor_redistribute(ctx, api_scope(ctx), *t, how->mesh, &p, DT_NONE, t));
  }
  return how->plain ? dtensor_to_local(ctx, api_scope(ctx), *t, t) : OK;
}

int prepare_tensors(TessCtx *ctx, TessModule *m, TessTensor **t, int n, TessMesh *mesh, void *arg) {
  const Prepare *how = arg;
  char path[256];
  (void)mesh;
  Status s = how->all && n != how->n
                 ? fail(ERR_USAGE, "%d tensors come, but the plan has placements of %d", n, how->n)
                 : OK;
  for (int i = 0; i < n && i < how->n && !s; i++)
    if (how->tensor[i].from && t[i]) s = status_at(prepare_one(ctx, how, &how->tensor[i], &t[i]), "tensor %d", i);
  if (s) s = status_at(s, "module '%s'", tess_module_path(m, path, sizeof path));
  return api_stick(ctx, s) ? -1 : 0;
}
