/* prepared.c -- see prepared.h. */
#include "runtime/prepared.h"

#include <math.h>
#include <stdarg.h>
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
const char passes_once[] = PASSES_ONCE "recompose(products=false),unsort_rows,dce";
const char passes_once_for_torch[] = PASSES_ONCE "recompose(products=false,finite_masks=false),dce";
#define PASSES_BEFORE "cse,keep_sorted,recompose,cse,dce,recompute,dce"
#define PASSES_FUSE "fuse_backward,fuse_epilogue,fuse_pointwise"
const char passes_specialized[] = PASSES_BEFORE ",early_updates," PASSES_FUSE;
const char passes_of_step[] = PASSES_BEFORE "," PASSES_FUSE;

const ReduceGradients reduce_gradients_default = {.bucket_mb = 4, .dtype = DT_NONE, .prefetch = -1};

unsigned marks_gathered_axes(const Marks *m) {
  unsigned axes = 0;
  for (int i = 0; m && i < m->graph->ninputs; i++) axes |= m->input[i].gathered;
  return axes;
}

/* The axes along which replicas of parameters update a part each. */
static unsigned marks_update_axes(const Marks *m) {
  unsigned axes = 0;
  for (int i = 0; m && i < m->graph->ninputs; i++)
    for (int a = 0; m->input[i].updated && a < m->mesh->naxes; a++)
      if (is_r(&m->input[i].place[a]) && is_s(&m->input[i].updated[a])) axes |= 1u << a;
  return axes;
}

enum { BYTES_OF_MIB = 1 << 20 };

static size_t put(char *buf, size_t cap, size_t at, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int n = vsnprintf(buf + at, cap - at, format, args);
  va_end(args);
  return n < 0 || (size_t)n >= cap - at ? cap - 1 : at + (size_t)n;
}

const char *passes_of_fsdp(const ReduceGradients *how, const Marks *marks, char *buf, size_t cap) {
  unsigned axes = marks_gathered_axes(marks);
  const char *wrap = how->wrap ? how->wrap : "blocks";
  size_t at = 0;
  buf[0] = 0;
  if (!axes) return buf;
  at = put(buf, cap, at, "scatter_gradients(axes=%u,by_module=true,reduce_at_once=%s,wrap=\"%s\"),", axes,
           how->reduce_at_once ? "true" : "false", wrap);
  put(buf, cap, at, "fsdp(axes=%u,prefetch=%d,keep=%s,wrap=\"%s\"),", axes, how->prefetch < 0 ? 1 : how->prefetch,
      how->keep_gathered ? "true" : "false", wrap);
  return buf;
}

const char *passes_of_reductions(const ReduceGradients *how, const Marks *marks, char *buf, size_t cap) {
  unsigned updated = marks_update_axes(marks);
  double mb = how->bucket_mb > 0 ? how->bucket_mb : 1.0 / BYTES_OF_MIB; /* one that holds a byte is full */
  size_t at = strlen(passes_of_fsdp(how, marks, buf, cap));
  if (updated)
    at = put(buf, cap, at, "scatter_gradients(axes=%u,bucket_size_mb=%g,first_bucket_mb=%g),", updated, mb,
             fmin(mb, 1));
  if (how->bucket_mb > 0)
    at = put(buf, cap, at, "fuse_ddp_with_concat_op(bucket_size_mb=%g,first_bucket_mb=%g),", mb, fmin(mb, 1));
  if (!how->wait_at_once) at = put(buf, cap, at, "overlap(in_order=true),");
  at = put(buf, cap, at, "early_updates");
  if (updated) put(buf, cap, at, ",gather_updates(axes=%u,bucket_size_mb=%g)", updated, mb);
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

void prepare_sharded_updates(Prepared *p) { p->shards_updates = true; }

/* The axes along which each rank has all that this parameter's rank has. */
static unsigned replica_axes_of(const Prepared *p, const InputMark *input, int param) {
  const Mesh *m = p->marks->mesh;
  unsigned axes = 0;
  if (input[param].gathered) return 0;
  for (int a = 0; a < m->naxes; a++)
    if (m->axis[a] > 1 && is_r(&input[param].place[a]) && shards_batches(p, input, a)) axes |= 1u << a;
  return axes;
}

/* The part of a parameter that a rank updates is one piece of its memory: some of its rows, which are cut behind
 * all other axes that cut rows.  NULL where there are fewer rows than ranks: each updates all. */
static Status mark_updated(const Prepared *p, const InputMark *input, int param, Placement **out) {
  const Tensor *t = exported_state(p->program, p->program->inputs[param].target)->tensor;
  const Mesh *m = p->marks->mesh;
  unsigned axes = replica_axes_of(p, input, param);
  int64_t ranks = 1;
  int dim = 0, order[MAX_AXES];
  *out = NULL;
  while (dim < t->ndim && t->size[dim] == 1) dim++;
  if (!axes || dim == t->ndim) return OK;
  const Layout held = {
      .ndim = t->ndim, .shape = t->size, .naxes = m->naxes, .axis = m->axis, .place = input[param].place};
  int cuts = layout_cuts(&held, dim, order);
  for (int a = 0; a < m->naxes; a++)
    if (axes >> a & 1) order[cuts++] = a;
  for (int i = 0; i < cuts; i++) ranks *= m->axis[order[i]];
  if (t->size[dim] < ranks) return OK;
  TRY_NEW(*out, arena_new_n(&p->marks->arena, Placement, m->naxes));
  memcpy(*out, held.place, (size_t)m->naxes * sizeof **out);
  for (int i = 0; i < cuts; i++) {
    Placement *place = &(*out)[order[i]];
    if (axes >> order[i] & 1) *place = place_s(dim);
    place->turn = cuts > 1 ? i + 1 : 0;
  }
  return OK;
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
    InputMark *own = &input[param->param];
    if (p->shards_updates && !param->optim->optimizer->matrices)
      TRY(mark_updated(p, input, param->param, &own->updated));
    Placement *place = own->updated ? own->updated : own->place;
    for (int i = 0; i < OPTIM_MAX_STATES; i++)
      if (param->state[i] >= 0) input[param->state[i]].place = place;
    if (param->kept >= 0) input[param->kept].place = place;
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
