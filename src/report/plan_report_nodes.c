/* plan_report_nodes.c -- nodes and collectives of a plan, as the program is recorded; see
 * plan_collect.h.
 *
 * A node of the whole program becomes some nodes of the rank's program: those that are new
 * in it when the node has been walked.  Every tess.redistribute among them has its event in
 * the Dist's log, in the same order.
 */
#include <stdio.h>
#include <string.h>

#include "base/ptrmap.h"
#include "graph/graph.h"
#include "ops/tensors.h"
#include "passes/started.h"
#include "report/plan_collect.h"

/* ---- values ---------------------------------------------------------------------------------- */

static const char **sharded_by(const Collector *c, const Val *v) { return &c->sharded_by[v->id * c->mesh->naxes]; }

static bool of_main_graph(const Collector *c, const Node *n) { return n->graph == c->e->graph; }

static Status describe_value(Collector *c, const char *name, const Tensor *t, PlanValue *out) {
  TRY(collect_text(c, name, &out->name));
  TRY(collect_type(c, t->dtype, t->ndim, t->size, &out->type));
  if (t->spec) return collect_place(c, t->spec, &out->place);
  return out->place = &"RRRRRRRR"[MAX_AXES - c->mesh->naxes], OK; /* a plain tensor: alike on all ranks */
}

static Status watch_input(void *arg, int i, const Value *v) {
  Collector *c = arg;
  const Val *val = c->e->graph->inputs[i];
  const InputMark *mark = &c->marks->input[i];
  if (v->kind != VAL_TENSOR) return OK;
  c->value[val->id] = v->tensor;
  for (int a = 0; a < c->mesh->naxes; a++) {
    if (is_r(&mark->place[a]) || !mark->why) continue;
    TRY(collect_text(c, mark->why, &sharded_by(c, val)[a]));
  }
  return OK;
}

typedef struct {
  Collector *c;
  PlanNode *node;    /* NULL: count only */
  const char **from; /* per axis: who cut an argument */
  int n;
  Status status;
} Arguments;

static void add_argument(void *arg, Val **ref) {
  Arguments *a = arg;
  Collector *c = a->c;
  const Tensor *t = c->value[(*ref)->id];
  if (!t || a->status) return;
  if (a->node) a->status = describe_value(c, (*ref)->name, t, &a->node->in[a->n]);
  a->n++;
}

/* What cut the arguments, axis by axis: the first that is known. */
static void find_cuts(void *arg, Val **ref) {
  Arguments *a = arg;
  const Tensor *t = a->c->value[(*ref)->id];
  for (int x = 0; t && t->spec && x < a->c->mesh->naxes; x++)
    if (!a->from[x]) a->from[x] = sharded_by(a->c, *ref)[x];
}

/* ---- nodes ------------------------------------------------------------------------------------- */

static Status add_node(Collector *c, PlanNode **out) {
  PlanReport *p = c->p;
  TRY_NEW(p->node, arena_more(&p->arena, p->node, p->nnodes, &c->node_cap));
  *out = &p->node[p->nnodes++];
  return OK;
}

static Status watch_before(void *arg, const Node *n) {
  Collector *c = arg;
  PlanNode *node;
  char text[512];
  TRY(add_node(c, &node));
  TRY(collect_text(c, n->nouts ? n->outs[0]->name : "", &node->name));
  TRY(collect_text(c, n->target, &node->op));
  node_module(n, text, sizeof text);
  if (!strncmp(text, "_empty_nn_module_stack", 22)) text[0] = 0;
  TRY(collect_text(c, text, &node->module));
  TRY(collect_text(c, node_source(n, text, sizeof text), &node->source));
  TRY(collect_layer(c, node->module, &node->layer));
  node->move = c->p->nmoves;
  int64_t *index;
  TRY(ptrmap_slot(&c->index, n, 0, &index));
  *index = c->p->nnodes - 1;
  if (!of_main_graph(c, n)) return OK;
  Arguments count = {.c = c};
  node_each_val((Node *)(uintptr_t)n, add_argument, &count);
  TRY_NEW(node->in, arena_new_n(&c->p->arena, PlanValue, count.n + 1));
  Arguments fill = {.c = c, .node = node};
  node_each_val((Node *)(uintptr_t)n, add_argument, &fill);
  node->nin = fill.n;
  return fill.status;
}

/* ---- moves ---------------------------------------------------------------------------------------- */

Status collect_add_move(Collector *c, PlanMove **out) {
  PlanReport *p = c->p;
  TRY_NEW(p->move, arena_more(&p->arena, p->move, p->nmoves, &c->move_cap));
  *out = &p->move[p->nmoves++];
  return OK;
}

static int group_size(const Mesh *m, unsigned axes) {
  int n = 1;
  for (int a = 0; a < m->naxes; a++)
    if (axes >> a & 1) n *= m->axis[a];
  return n;
}

/* The input of the program that n brings together because it is sharded in memory alone; -1: none. */
static int gathered_input(const Collector *c, const Node *n) {
  const Val *v = n->args[0].kind == ARG_VAL ? n->args[0].val : NULL;
  return v && !v->node && n->stage == STAGE_FORWARD && c->marks->input[v->index].gathered ? v->index : -1;
}

static bool reduces(const CommEvent *e) { return e->kind == STEP_ALL_REDUCE || e->kind == STEP_REDUCE_SCATTER; }

/* What an optimizer asks for by itself is not the plan's affair. */
static MoveCause cause_of(Stage stage, const CommEvent *e, int node) {
  if (stage == STAGE_UPDATE) return CAUSE_UPDATE;
  if (e->rule && !reduces(e)) return CAUSE_RULE;
  if (e->rule && stage == STAGE_FORWARD) return CAUSE_PARTIAL;
  if (stage == STAGE_BACKWARD) return node < 0 ? CAUSE_GRADIENT : CAUSE_COTANGENT;
  return node < 0 ? CAUSE_OUTPUT : CAUSE_PLAN;
}

/* n: the node that does it; from: per axis, who cut the arguments of the node that it is done for. */
static Status add_event(Collector *c, const CommEvent *e, const Node *n, const char *const *from, int node,
                        bool after) {
  PlanMove *m;
  const Machine *machine = c->r->machine;
  TRY(collect_add_move(c, &m));
  *m = (PlanMove){.kind = e->kind,
                  .axes = e->axes,
                  .ranks = group_size(c->mesh, e->axes),
                  .bytes = e->bytes,
                  .node = n->stage == STAGE_UPDATE ? -1 : node,
                  .after = after,
                  .started = node_starts(n),
                  .stage = n->stage};
  m->cause = cause_of(n->stage, e, node);
  if (machine) m->seconds = machine_collective_seconds(machine, c->mesh, e->kind, e->axes, e->bytes);
  TRY(collect_text(c, n->outs[0]->name, &m->name));
  TRY(collect_text(c, e->why, &m->why));
  TRY(collect_text(c, e->rule ? e->rule : "", &m->rule));
  m->type = m->from = m->to = "";
  if (e->from) {
    TRY(collect_type(c, e->from->dtype, e->from->ndim, e->from->shape, &m->type));
    TRY(collect_place(c, e->from, &m->from));
    TRY(collect_place(c, e->to, &m->to));
  }
  for (int a = 0; from && a < c->mesh->naxes && !m->sharded_by; a++)
    if (e->axes >> a & 1) m->sharded_by = from[a];
  int input = gathered_input(c, n);
  if (input >= 0) {
    m->cause = CAUSE_PARAMETER;
    m->node = -1;
    return collect_layer_of(c, c->e->inputs[input].target, &m->layer);
  }
  if (m->node >= 0) m->layer = c->p->node[m->node].layer;
  return m->stage == STAGE_UPDATE ? collect_layer(c, "update", &m->layer) : OK;
}

/* For those who look for what became of it: what it works on, and the axes of its group. */
static Status note_start(Collector *c, const Node *n, unsigned axes) {
  StrSlot *slot;
  const char *text;
  if (!node_starts(n)) return OK;
  TRY(collect_text(c, n->args[0].val->name, &text));
  TRY(strmap_slot(&c->moved, &c->p->arena, text, &slot));
  slot->value = (void *)(intptr_t)c->p->nmoves;
  TRY(collect_text(c, n->args[2].str, &text));
  TRY(strmap_slot(&c->groups, &c->p->arena, text, &slot));
  slot->value = (void *)(uintptr_t)axes;
  return OK;
}

/* What was recorded since the last time belongs to `node`. */
static Status harvest(Collector *c, const Exported *to, const char *const *from, int node) {
  const Node *n = c->recorded ? c->recorded->next : to->graph->first;
  bool worked = false; /* the op itself was recorded: what follows is done to its result */
  for (; n; c->recorded = n, n = n->next) {
    for (int i = 0; i < n->nouts; i++) {
      StrSlot *slot;
      TRY(strmap_slot(&c->node_of, &c->p->arena, n->outs[i]->name, &slot));
      slot->value = (void *)(intptr_t)(node + 1);
    }
    if (!node_is(n, "tess.redistribute.default") && !node_starts(n)) worked |= !node_is(n, "aten.slice.Tensor");
    else if (c->logged < c->log.n) {
      const CommEvent *e = &c->log.event[c->logged++];
      TRY(add_event(c, e, n, from, node, worked && node >= 0 && !e->rule));
      TRY(note_start(c, n, e->axes));
    }
  }
  return OK;
}

static Status keep_result(Collector *c, const Node *n, int i, const Value *v, const char *const *from,
                          PlanNode *node) {
  const Want *want = n->outs[i]->id < c->marks->nvals ? c->marks->after[n->outs[i]->id] : NULL;
  const Val *val = n->outs[i];
  if (v->kind != VAL_TENSOR) return OK;
  c->value[val->id] = v->tensor;
  for (int a = 0; v->tensor->spec && a < c->mesh->naxes; a++) {
    if (is_r(&v->tensor->spec->place[a])) continue;
    sharded_by(c, val)[a] = from[a];
    if (want && want->axes >> a & 1 && want->why) TRY(collect_text(c, want->why, &sharded_by(c, val)[a]));
  }
  return describe_value(c, val->name, v->tensor, &node->out[node->nout++]);
}

static Status watch_after(void *arg, const Node *n, const Value *outs, int nouts, const Exported *to) {
  Collector *c = arg;
  int index = c->p->nnodes - 1;
  const char *from[MAX_AXES] = {0};
  Arguments a = {.c = c, .from = from};
  if (of_main_graph(c, n)) node_each_val((Node *)(uintptr_t)n, find_cuts, &a);
  TRY(harvest(c, to, from, index));
  PlanNode *node = &c->p->node[index];
  node->nmoves = c->p->nmoves - node->move;
  if (!of_main_graph(c, n)) return OK;
  TRY_NEW(node->out, arena_new_n(&c->p->arena, PlanValue, nouts + 1));
  for (int i = 0; i < n->nouts && i < nouts; i++) TRY(keep_result(c, n, i, &outs[i], from, node));
  return OK;
}

static Status watch_output(void *arg, int i, const Tensor *t, const Exported *to) {
  Collector *c = arg;
  PlanReport *p = c->p;
  const Arg *a = &c->e->graph->outputs[i];
  bool known = a->kind == ARG_VAL;
  TRY(harvest(c, to, known ? sharded_by(c, a->val) : NULL, -1));
  if (!p->output) TRY_NEW(p->output, arena_new_n(&p->arena, PlanValue, c->e->graph->noutputs));
  return describe_value(c, known ? a->val->name : "", t, &p->output[p->noutputs++]);
}

/* What was recorded since the last time belongs to the node that the backward was at. */
static Status watch_visits(void *arg, const Node *n, const Exported *to) {
  Collector *c = arg;
  const int64_t *index = n ? ptrmap_find(&c->index, n) : NULL;
  if (!c->backward) c->visited = -1;
  c->backward = true; /* what comes first belongs to the loss, not to the last node of the forward */
  TRY(harvest(c, to, NULL, c->visited));
  c->visited = index ? (int)*index : -1;
  return OK;
}

/* A gradient belongs to the layer of its parameter. */
static Status watch_gradient(void *arg, int k, const Exported *to) {
  Collector *c = arg;
  int first = c->p->nmoves, layer;
  TRY(harvest(c, to, NULL, -1));
  const char *parameter = c->e->inputs[c->grad.input[k]].target;
  TRY(collect_layer_of(c, parameter ? parameter : c->e->graph->inputs[c->grad.input[k]]->name, &layer));
  for (int i = first; i < c->p->nmoves; i++) c->p->move[i].layer = layer;
  return OK;
}

WalkWatch collect_watch(Collector *c) {
  return (WalkWatch){.arg = c,
                     .input = watch_input,
                     .before = watch_before,
                     .after = watch_after,
                     .output = watch_output,
                     .visits = watch_visits,
                     .gradient = watch_gradient};
}

/* ---- the finished program ---------------------------------------------------------------------------- */

/* A pass may have found a collective without a use. */
static Status drop_dead_moves(Collector *c, const Graph *g) {
  PlanReport *p = c->p;
  StrMap alive = {0};
  StrSlot *slot;
  for (const Node *n = g->first; n; n = n->next)
    for (int i = 0; i < n->nouts; i++) {
      TRY(strmap_slot(&alive, &p->arena, n->outs[i]->name, &slot));
      slot->value = (void *)(uintptr_t)n;
    }
  int kept = 0;
  for (int i = 0; i < p->nnodes; i++) p->node[i].nmoves = 0;
  for (int i = 0; i < p->nmoves; i++) {
    PlanMove *m = &p->move[i];
    const Node *by = strmap_get(&alive, m->name);
    if (!by || (!node_starts(by) && !node_is(by, "tess.redistribute.default"))) continue;
    p->move[kept] = *m;
    if (m->node >= 0 && m->stage == STAGE_FORWARD) {
      PlanNode *node = &p->node[m->node];
      if (!node->nmoves++) node->move = kept;
    }
    kept++;
  }
  p->nmoves = kept;
  return OK;
}

static int64_t tensor_bytes(const Tensor *t) { return t ? tensor_numel(t) * (int64_t)dtype_size(t->dtype) : 0; }

/* In which the op computes. */
static Dtype call_dtype(const Call *c) {
  for (TensorWalk w = call_inputs(c); tensor_next(&w);)
    if (!dtype_is_integral(w.tensor->dtype)) return w.tensor->dtype;
  return c->nout && out_tensor(c, 0) ? out_tensor(c, 0)->dtype : DT_NONE;
}

/* The node that a value of the rank's program was recorded for.  A pass that makes a node of
 * another gives it the name, with a number behind it: linear_3_1, and so on. */
static intptr_t node_named(const Collector *c, const char *name) {
  char stem[256];
  intptr_t found = (intptr_t)strmap_get(&c->node_of, name);
  snprintf(stem, sizeof stem, "%s", name);
  for (char *end; !found && (end = strrchr(stem, '_'));) {
    *end = 0;
    found = (intptr_t)strmap_get(&c->node_of, stem);
  }
  return found;
}

intptr_t collect_node_of(const Collector *c, const Instr *in) {
  intptr_t found = 0;
  if (in->node->stage == STAGE_UPDATE) return 0;
  for (int i = 0; i < in->node->nouts && !found; i++) found = node_named(c, in->node->outs[i]->name);
  return found;
}

Work collect_work(const Collector *c, const Instr *in) {
  Work w = {.flops = op_flops(&in->call), .bytes = op_bytes(&in->call)};
  bool updates = in->call.op->def->flags & OP_UPDATE_EACH;
  if (c->r->machine)
    w.seconds = machine_op_seconds(c->r->machine, call_dtype(&in->call), w.flops, w.bytes, updates);
  return w;
}

static void add_instruction(Collector *c, const Instr *in) {
  PlanTotals *t = &c->p->rank_total;
  Work w = collect_work(c, in);
  t->flops += w.flops;
  if (in->node->stage == STAGE_BACKWARD) t->backward_flops += w.flops;
  t->bytes += w.bytes;
  t->compute += w.seconds;
  t->steps++;
  intptr_t found = collect_node_of(c, in);
  if (found <= 0) return;
  PlanNode *n = &c->p->node[found - 1];
  n->flops += w.flops;
  n->bytes += w.bytes;
  n->seconds += w.seconds;
}

typedef struct {
  PtrMap storages; /* that some node reads: 1, and 2 once its bytes are counted */
  Status status;
} Uses;

static void note_use(void *ctx, Val **ref) {
  Uses *u = ctx;
  const Storage *s = (*ref)->tensor ? (*ref)->tensor->storage : NULL;
  int64_t *slot;
  if (s && !u->status) u->status = ptrmap_slot(&u->storages, s, 1, &slot);
}

/* What the rank computes ahead and keeps; the program's own constants are counted elsewhere. */
static Status folded_bytes(const Collector *c, const Exported *local, int64_t *bytes) {
  Uses u = {0};
  graph_each_val(local->graph, note_use, &u);
  for (int i = 0; i < local->graph->ninputs && !u.status; i++) {
    const InputSpec *in = &local->inputs[i];
    const Tensor *t = local->graph->inputs[i]->tensor;
    if (in->kind != IN_TENSOR_CONSTANT || !t || !t->storage || exported_state(c->e, in->target)) continue;
    int64_t *slot = ptrmap_find(&u.storages, t->storage);
    if (!slot || *slot != 1) continue;
    *bytes += (int64_t)t->storage->size;
    *slot = 2;
  }
  ptrmap_free(&u.storages);
  return u.status;
}

static bool is_gradient(OutputKind k) { return k == OUT_GRADIENT_TO_PARAMETER || k == OUT_GRADIENT_TO_USER_INPUT; }

static void count_outputs(Collector *c, const Program *p) {
  PlanTotals *t = &c->p->rank_total;
  for (int i = 0, user = 0; i < p->graph->graph->noutputs; i++) {
    if (!output_is_returned(p->graph->outputs[i].kind)) continue;
    const Value *v = &p->outputs[user++];
    if (v->kind != VAL_TENSOR) continue;
    bool gradient = is_gradient(p->graph->outputs[i].kind);
    *(gradient ? &t->gradients : &t->outputs) += tensor_bytes(v->tensor);
    c->p->ngradients += gradient;
  }
}

Status collect_program(Collector *c, const Program *p) {
  PlanTotals *t = &c->p->rank_total;
  TRY(collect_buckets(c, p->graph->graph));
  TRY(drop_dead_moves(c, p->graph->graph));
  for (int i = 0; i < p->ninstrs; i++)
    if (!collect_communicates(&p->instrs[i])) add_instruction(c, &p->instrs[i]);
  for (int i = 0; i < p->ninputs; i++) t->inputs += tensor_bytes(p->inputs[i].tensor);
  count_outputs(c, p);
  t->activations = (int64_t)p->slab_bytes;
  t->gradients += (int64_t)p->gradient_bytes;
  TRY(folded_bytes(c, p->graph, &t->buffers));
  return collect_course(c, p);
}
