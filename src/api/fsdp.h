/* fsdp.h -- modules that are fully sharded: what the files of the public API on them share. */
#ifndef TESS_API_FSDP_H
#define TESS_API_FSDP_H

#include "api/module.h"
#include "fsdp/fsdp.h"

/* The unit of a module; fails if there is none on this context. */
Status fsdp_unit_of(TessCtx *ctx, const TessModule *m, FsdpUnit **out);

/* Units of a tree, each once, root first, with the names of their modules. */
typedef struct {
  FsdpUnit **v;
  char **name;
  int n, cap, name_cap;
} UnitList;
Status fsdp_units_in(TessModule *root, UnitList *out);
void fsdp_units_free(UnitList *list);

/* Parameters that a unit takes: below its modules, in PyTorch's order, each once (fsdp_params.c). */
typedef struct {
  FsdpParamGiven *v;
  Mesh **mesh; /* by parameter */
  int n, cap, mesh_cap;
  Arena arena;
} ParamList;
Status fsdp_params_of(TessCtx *ctx, TessModule *const *modules, int n, Mesh *mesh, const TessFsdpOptions *how,
                      ParamList *out);
void fsdp_params_free(ParamList *list);
extern const FsdpSlots fsdp_module_slots;

#endif
