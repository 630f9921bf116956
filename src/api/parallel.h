/* parallel.h -- modules that a plan names, for the files of parallelize_module. */
#ifndef TESS_API_PARALLEL_H
#define TESS_API_PARALLEL_H

#include "api/module.h"

/* Modules whose path from m matches, name by name ("layers.*.w1"; "": m), with their paths; appended to out. */
Status modules_matching(TessModule *m, const char *path, ModuleList *out);
/* The error of a path that matches nothing: names the first part that does not, and what there is. */
Status no_module(TessModule *m, const char *path);

/* What becomes of the inputs or outputs of a module. */
typedef struct {
  char *from, *to; /* where a plain tensor lies, and where it is brought; from NULL: left alone, to NULL: stays */
} Moved1;
typedef struct {
  Mesh *mesh;
  Moved1 *tensor;
  int n;
  bool all;         /* as many tensors must come as there are texts */
  bool always;      /* what is a DTensor already is brought there, too: else only if from and to differ */
  bool plain;       /* tensors are plain ones afterwards */
  int64_t features; /* of the last dimension of a plain tensor that is sharded along it; 0: as many as ranks make */
} Prepare;
/* A copy of the texts, from and to of n tensors (each may be NULL). */
Status prepare_new(const Prepare *how, const char *const *from, const char *const *to, int n, Prepare **out);
void prepare_free(void *p);
/* The hook (TessModuleHook), with a Prepare as its arg. */
int prepare_tensors(TessCtx *ctx, TessModule *m, TessTensor **t, int n, TessMesh *mesh, void *arg);

#endif
