/* place_plan.c -- see place_plan.h. */
#include "ckpt/place_plan.h"

#include <stdio.h>
#include <string.h>

#include "plan/mark.h"

enum { LONGEST = 1024 };

/* By style: the dimension of a weight that is cut (-1: none), whether the bias is cut too, whether in segments. */
static const struct {
  int dim;
  bool bias, packed;
} styles[STYLE_COUNT] = {
    [STYLE_COLWISE] = {0, true, false},
    [STYLE_COLWISE_GATHER_OUTPUT] = {0, true, false},
    [STYLE_EMBEDDING_ROWWISE] = {0, false, false},
    [STYLE_PACKED_COLWISE] = {0, true, true},
    [STYLE_ROWWISE] = {1, false, false},
    [STYLE_ROWWISE_SPLIT_INPUT] = {1, false, false},
    [STYLE_PACKED_ROWWISE] = {1, false, true},
    [STYLE_SEQUENCE_PARALLEL] = {-1, false, false},
    [STYLE_REPLICATE] = {-1, false, false},
    [STYLE_GATHER] = {-1, false, false},
};

static int64_t segments_of(const PlanFile *plan, const char *module) {
  for (int i = 0; i < plan->npacked; i++) {
    const PlanEntry e = {.pattern = plan->packed[i].name, .anywhere = true};
    if (pattern_matches(&e, module)) return plan->packed[i].count;
  }
  return 2;
}

/* "optim.state.a.weight.exp_avg" -> "model.a.weight", if the tensor has its size, else ""; others as they are. */
static void parameter_of(const PlacePlan *p, const DerivedTensor *t, char *out) {
  const char *dot = strrchr(t->name, '.');
  snprintf(out, LONGEST, "%s", t->name);
  if (!strncmp(t->name, "optim.state.", 12) && dot > t->name + 12) {
    char model[LONGEST];
    snprintf(model, sizeof model, "model.%.*s", (int)(dot - t->name) - 12, t->name + 12);
    const DerivedTensor *m = derived_find(p->d, model);
    bool like = m && m->ndim == t->ndim && !memcmp(m->size, t->size, (size_t)t->ndim * sizeof *t->size);
    snprintf(out, LONGEST, "%s", like ? model : "");
  }
}

static Status axis_of(const PlacePlan *p, const PlanEntry *e, int *out) {
  *out = e->axis ? mesh_axis_named(p->mesh, e->axis) : mark_tensor_axis(p->mesh, p->plan);
  if (*out < 0 && e->axis)
    return fail(ERR_USAGE, "%s: '%s' names the axis '%s', which the mesh does not have", p->plan->path, e->pattern,
                e->axis);
  if (*out < 0) *out = p->mesh->naxes - 1;
  return OK;
}

static Status place_written(const PlacePlan *p, const PlanEntry *e, const DerivedTensor *t, Placement *out) {
  Placement place[MAX_AXES];
  int n, axis;
  TRY(status_at(placements_parse(e->placements, t->ndim, place, &n), "'%s'", t->name));
  if (n == p->mesh->naxes) {
    memcpy(out, place, (size_t)n * sizeof *place);
    return OK;
  }
  if (n != 1)
    return fail(ERR_USAGE, "%s: '%s' has %d placements for a mesh of %d axes", p->plan->path, e->pattern, n,
                p->mesh->naxes);
  TRY(axis_of(p, e, &axis));
  out[axis] = place[0];
  return OK;
}

static Status place_styled(const PlacePlan *p, const PlanEntry *e, const DerivedTensor *t, const char *module,
                           Placement *out) {
  const bool bias = t->ndim == 1;
  int axis, dim = styles[e->style].dim;
  if (e->style == STYLE_PLACEMENTS) return place_written(p, e, t, out);
  if (dim < 0 || dim >= t->ndim || (bias && !styles[e->style].bias)) return OK;
  TRY(axis_of(p, e, &axis));
  out[axis] = styles[e->style].packed ? place_strided(dim, segments_of(p->plan, module)) : place_s(dim);
  return OK;
}

/* Names of a run have "model." before those that a plan speaks of. */
static bool speaks_of(const PlanEntry *e, const char *name) {
  return pattern_matches(e, name) || (!strncmp(name, "model.", 6) && pattern_matches(e, name + 6));
}

/* The entry that speaks of the parameter itself, or of its module. */
static Status place_planned(const PlacePlan *p, const DerivedTensor *t, Placement *out) {
  char name[LONGEST], module[LONGEST];
  parameter_of(p, t, name);
  if (!*name) return OK;
  snprintf(module, sizeof module, "%s", name);
  char *dot = strrchr(module, '.');
  if (dot) *dot = 0;
  for (int i = 0; i < p->plan->nentries; i++) {
    const PlanEntry *e = &p->plan->entry[i];
    if (speaks_of(e, name) || speaks_of(e, module)) return place_styled(p, e, t, module, out);
  }
  return OK;
}

Status place_by_plan(const void *arg, const DerivedTensor *t, Placement *out) {
  const PlacePlan *p = arg;
  for (int a = 0; a < p->mesh->naxes; a++) out[a] = p->plan || !t->ndim ? place_r() : place_s(0);
  return p->plan ? place_planned(p, t, out) : OK;
}
