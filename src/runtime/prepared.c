/* prepared.c -- see prepared.h. */
#include "runtime/prepared.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/dist.h"
#include "passes/pass.h"
#include "runtime/auto_plan.h"

/* What was written out is found before gradients are made, so that those are of the whole function, too: attention
 * that keeps no scores, one backward of a gelu.  A weight that is used as (in, out) would be transposed for a
 * linear layer, and so would be its gradient: products wait. */
#define PASSES_ONCE "inline,functionalize,assert_tensors,assert_branches,dce,cse,"
const char passes_once[] = PASSES_ONCE "recompose(products=false),dce";
const char passes_once_for_torch[] = PASSES_ONCE "recompose(products=false,finite_masks=false),dce";
#define PASSES_BEFORE "cse,recompose,cse,dce,recompute,dce"
#define PASSES_FUSE "fuse_backward,fuse_epilogue,fuse_pointwise"
const char passes_specialized[] = PASSES_BEFORE ",early_updates," PASSES_FUSE;
const char passes_of_step[] = PASSES_BEFORE "," PASSES_FUSE;

const ReduceGradients reduce_gradients_default = {.bucket_mb = 4, .dtype = DT_NONE, .prefetch = -1};

unsigned marks_gathered_axes(const Marks *m) {
  unsigned axes = 0;
  for (int i = 0; m && i < m->graph->ninputs; i++) axes |= m->input[i].gathered;
  return axes;
}

const char *pass_of_fsdp(const ReduceGradients *how, const Marks *marks, char *buf, size_t cap) {
  unsigned axes = marks_gathered_axes(marks);
  buf[0] = 0;
  if (axes)
    snprintf(buf, cap, "fsdp(axes=%u,prefetch=%d,keep=%s,reduce_at_once=%s,wrap=\"%s\"),", axes,
             how->prefetch < 0 ? 1 : how->prefetch, how->keep_gathered ? "true" : "false",
             how->reduce_at_once ? "true" : "false", how->wrap ? how->wrap : "blocks");
  return buf;
}

const char *passes_of_reductions(const ReduceGradients *how, const Marks *marks, char *buf, size_t cap) {
  const BucketMachine *m = &how->machine;
  char fuse[512] = "";
  if (how->bucket_mb < 0 && m->ranks > 1)
    snprintf(fuse, sizeof fuse,
             "fuse_ddp_with_concat_op(bucket_size_mb=auto,ranks=%d,gflops=%g,memory_gb=%g,link_gb=%g,latency_us=%g,"
             "overlap=%g),",
             m->ranks, m->flops * 1e-9, m->memory * 1e-9, m->bandwidth * 1e-9, fmax(m->latency * 1e6, 1e-9),
             m->overlap);
  else if (how->bucket_mb < 0) snprintf(fuse, sizeof fuse, "fuse_ddp_with_concat_op(bucket_size_mb=auto),");
  else if (how->bucket_mb > 0)
    snprintf(fuse, sizeof fuse, "fuse_ddp_with_concat_op(bucket_size_mb=%g,first_bucket_mb=%g),", how->bucket_mb,
             how->bucket_mb < 1 ? how->bucket_mb : 1);
  size_t at = strlen(pass_of_fsdp(how, marks, buf, cap));
  snprintf(buf + at, cap - at, "%s%searly_updates", fuse, how->wait_at_once ? "" : "overlap(in_order=true),");
  return buf;
}

/* What the program does not write to never changes: packed copies of it may be kept. */
static void freeze_state(const Exported *e) {
  for (int i = 0; i < e->nstate; i++) {
    const Tensor *t = e->state[i].tensor;
    if (t && t->storage && !exported_is_mutated(e, e->state[i].fqn)) t->storage->frozen = true;
  }
}

static Status prepare_program_by(Ctx *ctx, Exported *e, const char *passes) {
  TRY(graph_verify(e));
  TRY(graph_check_ops(e));
  TRY(pass_run_list(e, passes, ctx, NULL));
  return exported_is_joint(e) ? exported_find_stages(e) : OK;
}

Status prepare_program(Ctx *ctx, Exported *e) { return prepare_program_by(ctx, e, passes_once); }

static Status prepare_by(Ctx *ctx, Exported *e, const char *passes, Prepared **out) {
  Prepared *p = calloc(1, sizeof *p);
  if (!p) {
    exported_free(e);
    return fail_oom();
  }
  atomic_init(&p->refs, 1);
  p->program = e;
  Status s = prepare_program_by(ctx, e, passes);
  if (s) {
    prepared_unref(p);
    return s;
  }
  freeze_state(e);
  graph_number_nodes(e->graph, 0);
  *out = p;
  return OK;
}

Status prepare(Ctx *ctx, Exported *e, Prepared **out) { return prepare_by(ctx, e, passes_once, out); }

Status prepare_for_torch(Ctx *ctx, Exported *e, Prepared **out) {
  return prepare_by(ctx, e, passes_once_for_torch, out);
}

/* ---- fully sharded parameters --------------------------------------------------------------------------- */

static bool is_replica_axis(const char *name) { return name && (!strcmp(name, "replica") || !strcmp(name, "ddp")); }

static Status find_fsdp_axis(const Mesh *m, const PlanFile *plan, const char *wanted, int *out) {
  char text[512];
  *out = -1;
  for (int a = 0; a < m->naxes; a++) {
    bool named = wanted && m->name[a] && !strcmp(m->name[a], wanted);
    if (named || (!wanted && mark_is_data_axis(m, plan, a) && !is_replica_axis(m->name[a]))) *out = a;
  }
  if (*out >= 0) return OK;
  mesh_text(m, text, sizeof text);
  return wanted
             ? fail(ERR_USAGE, "parameters are to be sharded over the axis '%s', which the mesh %s does not have",
                    wanted, text)
             : status_hint(fail(ERR_USAGE, "no axis of the mesh %s is one to shard parameters over", text),
                           "call one dp, or name it: --fsdp=AXIS");
}

/* The dimension that is sharded: the first that has a part for every rank and that no other axis cuts; else the
 * first that no other cuts; else the first of all, behind the others in turn. */
static int fsdp_dim(const InputMark *mark, const Tensor *t, int naxes, int axis, int ranks) {
  int best = -1;
  for (int d = t->ndim - 1; d >= 0; d--) {
    bool taken = false;
    for (int a = 0; a < naxes; a++) taken |= a != axis && is_s_of(&mark->place[a], d);
    if (!taken && (t->size[d] >= ranks || best < 0)) best = d;
  }
  return best;
}

static void take_turns(InputMark *mark, int naxes, int axis) {
  int turn = 0;
  for (int a = 0; a < naxes; a++)
    if (a != axis && is_s_of(&mark->place[a], 0)) mark->place[a].turn = ++turn;
  mark->place[axis] = place_s(0);
  mark->place[axis].turn = turn + 1;
}

Status prepare_fsdp(Prepared *p, const PlanFile *plan, const char *axis_name) {
  const Exported *e = p->program;
  const Mesh *m = p->marks->mesh;
  int axis;
  TRY(find_fsdp_axis(m, plan, axis_name, &axis));
  for (int i = 0; i < e->graph->ninputs; i++) {
    const StateEntry *s = e->inputs[i].kind == IN_PARAMETER ? exported_state(e, e->inputs[i].target) : NULL;
    InputMark *mark = &p->marks->input[i];
    if (!s || !s->tensor || !s->tensor->ndim) continue;
    for (int j = 0; j < i; j++) /* names of one tensor share their placements */
      if (p->marks->input[j].place == mark->place) mark->gathered = p->marks->input[j].gathered;
    if (mark->gathered || !is_r(&mark->place[axis])) continue;
    int d = fsdp_dim(mark, s->tensor, m->naxes, axis, m->axis[axis]);
    if (d >= 0) mark->place[axis] = place_s(d);
    else take_turns(mark, m->naxes, axis);
    mark->gathered = 1u << axis;
  }
  return OK;
}

void prepare_replicas(Prepared *p, unsigned axes) {
  const Exported *e = p->program;
  p->replica_axes = axes;
  if (p->marks) p->marks->apart = axes;
  for (int i = 0; p->marks && i < e->graph->ninputs; i++)
    for (int a = 0; e->inputs[i].kind == IN_USER && a < p->marks->mesh->naxes; a++)
      if (axes >> a & 1) p->marks->input[i].place[a] = place_r(); /* all that this rank has of the batch */
}

/* ---- a training step's state ------------------------------------------------------------------------------ */

static bool shards_batches(const Prepared *p, const InputMark *input, int axis) {
  const Exported *e = p->program;
  if (p->replica_axes >> axis & 1) return true;
  for (int i = 0; i < e->graph->ninputs; i++)
    if (e->inputs[i].kind == IN_USER && is_s(&input[i].place[axis])) return true;
  return false;
}

/* A sum over micro-batches stays partial on axes that shard batches: it is reduced once, when the step is made. */
static Status mark_sum(const Prepared *p, const InputMark *input, int param, InputMark *sum) {
  int naxes = p->marks->mesh->naxes;
  TRY_NEW(sum->place, arena_new_n(&p->marks->arena, Placement, naxes));
  for (int a = 0; a < naxes; a++) {
    sum->place[a] = input[param].place[a];
    if (is_r(&sum->place[a]) && shards_batches(p, input, a)) sum->place[a] = place_p(REDUCE_SUM);
  }
  return OK;
}

/* The program has inputs more than the marks know: `old` are those they know, in order. */
static Status mark_states(Prepared *p, Val *const *old, int nold, const Update *u) {
  const Exported *e = p->program;
  Marks *m = p->marks;
  int naxes = m->mesh->naxes;
  InputMark *input;
  TRY_NEW(input, arena_new_n(&m->arena, InputMark, e->graph->ninputs + 1));
  for (int i = 0, known = 0; i < e->graph->ninputs; i++) {
    if (known < nold && e->graph->inputs[i] == old[known]) {
      input[i] = m->input[known++];
      continue;
    }
    TRY_NEW(input[i].place, arena_new_n(&m->arena, Placement, naxes));
    for (int a = 0; a < naxes; a++) input[i].place[a] = place_r();
  }
  for (int k = 0; k < u->nparams; k++) {
    const UpdateParam *param = &u->param[k];
    for (int i = 0; i < OPTIM_MAX_STATES; i++)
      if (param->state[i] >= 0) input[param->state[i]].place = input[param->param].place;
    if (param->kept >= 0) input[param->kept].place = input[param->param].place;
    if (param->sum >= 0) TRY(mark_sum(p, input, param->param, &input[param->sum]));
  }
  m->input = input;
  return OK;
}

Status prepare_update(Prepared *p, const Recipe *r, const char *loss) {
  const Graph *g = p->program->graph;
  int n = g->ninputs;
  Val **old;
  Update *u;
  GradOptions o = {.loss = loss, .freeze = r->freeze};
  TRY_NEW(old, arena_new_n(&p->arena, Val *, n + 1));
  memcpy(old, g->inputs, (size_t)n * sizeof(Val *));
  TRY(grad_request(p->program, &o, &p->arena, &p->step));
  TRY(update_declare(p->program, r, p->step.input, p->step.n, &p->arena, &u));
  p->step.update = u;
  return p->marks ? mark_states(p, old, n, u) : OK;
}

Status prepare_marks(Prepared *p, const char *mesh, const PlanFile *plan, const GradOptions *grad) {
  Mesh *m;
  TRY(dist_new(NULL, &p->dist));
  TRY(mesh_parse(p->dist, mesh, &m));
  TRY(mark_with_plan(p->program, m, plan, grad, &p->notes, &p->marks));
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
