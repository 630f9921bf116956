/* prepared.c -- see prepared.h. */
#include "runtime/prepared.h"

#include <stdlib.h>

#include "dist/dist.h"
#include "passes/pass.h"
#include "runtime/auto_plan.h"

const char passes_once[] = "inline,functionalize,assert_tensors,assert_branches,dce,cse";
const char passes_specialized[] =
    "cse,recompose,cse,dce,recompute,dce,early_updates,fuse_backward,fuse_epilogue,fuse_pointwise";

/* What the program does not write to never changes: packed copies of it may be kept. */
static void freeze_state(const Exported *e) {
  for (int i = 0; i < e->nstate; i++) {
    const Tensor *t = e->state[i].tensor;
    if (t && t->storage && !exported_is_mutated(e, e->state[i].fqn)) t->storage->frozen = true;
  }
}

Status prepare_program(Ctx *ctx, Exported *e) {
  TRY(graph_verify(e));
  TRY(graph_check_ops(e));
  TRY(pass_run_list(e, passes_once, ctx, NULL));
  return exported_is_joint(e) ? exported_find_stages(e) : OK;
}

Status prepare(Ctx *ctx, Exported *e, Prepared **out) {
  Prepared *p = calloc(1, sizeof *p);
  if (!p) {
    exported_free(e);
    return fail_oom();
  }
  atomic_init(&p->refs, 1);
  p->program = e;
  Status s = prepare_program(ctx, e);
  if (s) {
    prepared_unref(p);
    return s;
  }
  freeze_state(e);
  graph_number_nodes(e->graph, 0);
  *out = p;
  return OK;
}

Status prepare_update(Prepared *p, const Recipe *r, const char *loss) {
  Update *u;
  GradOptions o = {.loss = loss, .freeze = r->freeze};
  TRY(grad_request(p->program, &o, &p->arena, &p->step));
  TRY(update_declare(p->program, r, p->step.input, p->step.n, &p->arena, &u));
  p->step.update = u;
  return OK;
}

Status prepare_marks(Prepared *p, const char *mesh, const PlanFile *plan) {
  Mesh *m;
  TRY(dist_new(NULL, &p->dist));
  TRY(mesh_parse(p->dist, mesh, &m));
  TRY(mark_with_plan(p->program, m, plan, &p->notes, &p->marks));
  graph_number_nodes(p->program->graph, 0); /* marking may have used them */
  return OK;
}

Marks prepared_marks(const Prepared *p, Mesh *mesh) {
  Marks m = *p->marks;
  m.mesh = mesh;
  return m;
}

Prepared *prepared_ref(Prepared *p) {
  atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
  return p;
}

void prepared_unref(Prepared *p) {
  if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
  marks_free(p->marks);
  dist_free(p->dist);
  exported_free(p->program);
  text_free(&p->notes);
  arena_free(&p->arena);
  free(p);
}
