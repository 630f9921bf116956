/* partition.c -- see partition.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/dispatch.h"
#include "passes/pass.h"
#include "rank_files/partition_worker.h"
#include "runtime/auto_plan.h"
#include "runtime/feed_sizes.h"
#include "runtime/program_walk.h"
#include "runtime/session.h"
#include "runtime/shards.h"

static const char passes_lowered[] = "lower_torch(rank=%d),dce", passes_last[] = "overlap(in_order)",
                  passes_last_of_step[] = "fuse_ddp_with_concat_op(undivided),overlap(in_order)",
                  passes_of_groups[] = "lower_groups(rank=%d),dce";

/* ---- opening ---------------------------------------------------------------------------------- */

static Status open_prepared(Partition *c, Exported *e, const char *mesh, const PlanFile *plan,
                            const PartitionStep *step) {
  TRY(prepare_for_torch(&c->ctx, e, &c->prepared));
  if (step) {
    TRY(prepare_update(c->prepared, step->recipe, step->grad->loss));
    c->grad = c->prepared->step;
    c->wants_grad = true;
  }
  TRY(prepare_marks(c->prepared, mesh, plan, step ? step->grad : NULL));
  c->program = c->prepared->program;
  c->marks = c->prepared->marks;
  c->mesh = c->marks->mesh;
  return OK;
}

Status partition_open(Exported *e, const char *mesh, const PlanFile *plan, const PartitionStep *step,
                      Partition **out) {
  Partition *c = calloc(1, sizeof *c);
  if (!c) {
    exported_free(e);
    return fail_oom();
  }
  pthread_mutex_init(&c->lock, NULL);
  c->reduce = reduce_gradients_default;
  ctx_init(&c->ctx, 1);
  Status s = open_prepared(c, e, mesh, plan, step);
  if (s) partition_free(c);
  else *out = c;
  return s;
}

Status partition_want_gradients(Partition *c, const GradOptions *o) {
  TRY(grad_request(c->program, o, &c->arena, &c->grad));
  c->wants_grad = true;
  return OK;
}

Status partition_shard_fully(Partition *c, const PlanFile *plan, const char *axis) {
  return prepare_fsdp(c->prepared, plan, axis);
}

bool partition_drops_output(const Partition *c, int i) {
  return c->loss_alone && i != c->grad.loss && output_is_returned(c->program->outputs[i].kind);
}

void partition_free(Partition *c) {
  if (!c) return;
  prepared_unref(c->prepared);
  ctx_free(&c->ctx);
  pthread_mutex_destroy(&c->lock);
  arena_free(&c->arena);
  free(c);
}

/* ---- one rank ------------------------------------------------------------------------------------ */

static void worker_end(Worker *w) {
  scope_clear(&w->scope);
  arena_free(&w->arena);
  ctx_free(&w->ctx);
}

/* What is left out may lie as it comes. */
static Status want_less(Worker *w) {
  int n = w->cut->program->graph->noutputs;
  Want *output;
  if (!w->cut->loss_alone) return OK;
  TRY_NEW(output, arena_new_n(&w->arena, Want, n + 1));
  memcpy(output, w->marks.output, (size_t)n * sizeof *output);
  for (int i = 0; i < n; i++)
    if (partition_drops_output(w->cut, i)) output[i].axes = 0;
  w->marks.output = output;
  return OK;
}

static void drop_outputs(const Partition *c, Exported *e) {
  int kept = 0;
  for (int i = 0; i < e->graph->noutputs; i++) {
    if (i < c->program->graph->noutputs && partition_drops_output(c, i)) continue;
    e->outputs[kept] = e->outputs[i];
    e->graph->outputs[kept++] = e->graph->outputs[i];
  }
  e->graph->noutputs = kept;
}

static Status worker_begin(Worker *w, Partition *c, int rank) {
  char text[1024];
  *w = (Worker){.cut = c, .rank = rank};
  ctx_init(&w->ctx, 1);
  TRY(dist_new(NULL, &w->dist));
  ctx_attach_dist(&w->ctx, w->dist);
  Mesh *mesh;
  TRY(mesh_parse(w->dist, mesh_text(c->mesh, text, sizeof text), &mesh));
  w->marks = prepared_marks(c->prepared, mesh);
  w->marks.torch_ops = c->half_sums;
  if (!mesh_coord_of(w->marks.mesh, rank, w->marks.mesh->coord))
    return fail(ERR_USAGE, "rank %d is outside of the mesh %s", rank, text);
  w->marks.mesh->inside = true;
  TRY(want_less(w));
  return shards_of_state(&w->ctx.kern, c->program, &w->marks, &w->scope, &w->arena, &w->shard);
}

/* State before user inputs: constants that were made on the way came last. */
static Status order_inputs(Exported *e) {
  Graph *g = e->graph;
  Val **vals;
  InputSpec *specs;
  int n = 0;
  TRY_NEW(vals, arena_new_n(&e->arena, Val *, g->ninputs + 1));
  TRY_NEW(specs, arena_new_n(&e->arena, InputSpec, g->ninputs + 1));
  for (int users = 0; users < 2; users++) {
    for (int i = 0; i < g->ninputs; i++) {
      bool user = e->inputs[i].kind == IN_USER || e->inputs[i].kind == IN_CONSTANT;
      if (user != (users == 1)) continue;
      vals[n] = g->inputs[i];
      vals[n]->index = n;
      specs[n++] = e->inputs[i];
    }
  }
  memcpy(g->inputs, vals, (size_t)n * sizeof *vals);
  e->inputs = specs;
  return OK;
}

static int by_place(const void *a, const void *b) {
  const Tensor *x = *(const Tensor *const *)a, *y = *(const Tensor *const *)b;
  if (x->storage != y->storage) return (uintptr_t)x->storage < (uintptr_t)y->storage ? -1 : 1;
  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Bytes of the weights; what is tied counts once. */
static Status count(Worker *w, const Exported *e, RankFacts *f) {
  const Tensor **t;
  int n = 0;
  f->nodes = e->graph->nnodes;
  TRY_NEW(t, arena_new_n(&w->arena, const Tensor *, e->nstate));
  for (int i = 0; i < e->nstate; i++)
    if (e->state[i].tensor && tensor_numel(e->state[i].tensor)) t[n++] = e->state[i].tensor;
  qsort(t, (size_t)n, sizeof *t, by_place);
  for (int i = 0; i < n; i++)
    if (i == 0 || by_place(&t[i - 1], &t[i]))
      f->weight_bytes += tensor_numel(t[i]) * (int64_t)dtype_size(t[i]->dtype);
  return OK;
}

/* What is lowered is local: no DTensors any more. */
static Status run_local_passes(Worker *w, Exported *e, const char *list) {
  Handler *sharding = ctx_set_handler(&w->ctx, LEVEL_SHARD, NULL);
  Status s = pass_run_list(e, list, &w->ctx, NULL);
  ctx_set_handler(&w->ctx, LEVEL_SHARD, sharding);
  return s;
}

static Status lower(Worker *w, Exported *e) {
  char list[PASSES_CAP];
  size_t at = strlen(passes_of_fsdp(&w->cut->reduce, &w->marks, list, sizeof list));
  snprintf(list + at, sizeof list - at, passes_lowered, w->rank);
  TRY(run_local_passes(w, e, list));
  return order_inputs(e);
}

/* What moves collectives, and behind it groups of parameters. */
static Status place_collectives(Worker *w, Exported *e, CommLog *log) {
  char list[PASSES_CAP];
  TRY(pass_run_list(e, w->cut->loss_alone ? passes_last_of_step : passes_last, &w->ctx, NULL));
  if (!*passes_of_fsdp(&w->cut->reduce, &w->marks, list, sizeof list)) return OK;
  snprintf(list, sizeof list, passes_of_groups, w->rank);
  comm_log_resume(w->dist, log);
  Status s = run_local_passes(w, e, list);
  comm_log_end(w->dist, log);
  return s;
}

int64_t partition_rows(const Partition *c, const Val *input) {
  const Graph *g = c->program->graph;
  for (int i = 0; c->batch && i < g->ninputs; i++) {
    const Val *v = g->inputs[i]; /* the first one tells how many rows a batch has */
    if (c->program->inputs[i].kind != IN_USER || v->type != TY_TENSOR || v->ndim < 1) continue;
    bool same = input->type == TY_TENSOR && input->ndim > 0 && sym_is_int(v->size[0]) &&
                sym_is_int(input->size[0]) && v->size[0]->value == input->size[0]->value;
    return same ? c->batch : 0;
  }
  return 0;
}

/* Inputs with other numbers of rows than the program was exported for. */
static Status resize_batch(Worker *w, Value *inputs) {
  const Exported *e = w->cut->program;
  bool any = false;
  if (!w->cut->batch) return OK;
  for (int i = 0, u = 0; i < e->graph->ninputs; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    Value *v = &inputs[u++];
    int64_t rows = partition_rows(w->cut, e->graph->inputs[i]), size[MAX_DIMS];
    Tensor *t;
    if (!rows) continue;
    memcpy(size, v->tensor->size, sizeof size);
    size[0] = rows;
    TRY(tensor_meta(&w->scope, v->tensor->dtype, v->tensor->ndim, size, &t));
    *v = val_tensor(t);
    any = true;
  }
  return any ? OK
             : status_hint(fail(ERR_USAGE, "%s has no batch of a fixed number of samples", e->name),
                           "leave out --batch: train.py takes any, or fix the size with --size NAME=N");
}

/* Every rank has something to train on: kernels of PyTorch are not all made for empty tensors, some end the
 * process. */
static Status check_parts(Worker *w, const Value *inputs) {
  const Exported *e = w->cut->program;
  if (!w->cut->loss_alone) return OK;
  for (int i = 0, u = 0; i < e->graph->ninputs; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    const Value *v = &inputs[u++];
    const Spec *spec;
    char text[128];
    if (v->kind != VAL_TENSOR) continue;
    TRY(marked_input_spec(&w->marks, i, v->tensor, &spec));
    for (int d = 0; d < v->tensor->ndim; d++)
      if (!spec->local[d] && v->tensor->size[d] &&
          !sym_first_unbound(e->graph->inputs[i]->size[d], &w->cut->fixed)) /* else it is up to train.py */
        return status_hint(fail(ERR_USAGE, "rank %d of %d gets no part of the input '%s', which is %s", w->rank,
                                w->marks.mesh->size, e->graph->inputs[i]->name,
                                tensor_describe(v->tensor, text, sizeof text)),
                           "larger batches (--batch N) or fewer ranks on the data axis");
  }
  return OK;
}

Status worker_program(Worker *w, const SymBindings *at, CommLog *log, const WalkWatch *watch, Exported **out) {
  Specialize how = {.marks = &w->marks,
                    .state = w->shard,
                    .faithful = true,
                    .any_batch = w->cut->batch > 0,
                    .watch = watch,
                    .grad = w->cut->wants_grad ? &w->cut->grad : NULL,
                    .trains = w->cut->grad.update};
  Value *inputs;
  int n;
  TRY(feed_sizes(w->cut->program, at, &w->scope, &w->arena, &inputs, &n));
  TRY(resize_batch(w, inputs));
  TRY(check_parts(w, inputs));
  TRY(specialize(&w->ctx, w->cut->program, &how, inputs, n, out));
  drop_outputs(w->cut, *out);
  if (log) comm_log_begin(w->dist, log);
  Status s = lower(w, *out);
  if (log) comm_log_end(w->dist, log);
  if (s) exported_free(*out);
  return s;
}

Status hint_dynamic(Status s) {
  if (!s || status_code(s) != ERR_DYNAMIC) return s;
  return status_hint(s, "rank files and joint programs need sizes and branches that are known beforehand; "
                        "`tessera run --mesh` and `run --grad` take the program as it is");
}

const int64_t *partition_fixed_size(const Partition *c, const char *symbol) {
  return sym_lookup(&c->fixed, symbol);
}

Status partition_sizes(const Partition *c, SymBindings *out, bool *open) {
  *open = false;
  TRY(feed_symbols(c->program, true, out));
  for (int i = 0; i < out->n; i++) {
    const int64_t *fixed = partition_fixed_size(c, out->v[i].name);
    if (fixed) out->v[i].value = *fixed;
    else *open = true;
  }
  return OK;
}

static Status make(Worker *w, Exported **out, RankFacts *facts) {
  SymBindings sizes;
  bool open;
  TRY(partition_sizes(w->cut, &sizes, &open));
  Status s = open ? worker_dynamic(w, &sizes, &facts->log, out)
                  : hint_dynamic(worker_program(w, &sizes, &facts->log, NULL, out));
  free(sizes.v);
  TRY(s);
  s = place_collectives(w, *out, &facts->log);
  if (!s) s = count(w, *out, facts);
  if (s) {
    exported_free(*out);
    return s;
  }
  pthread_mutex_lock(&w->cut->lock);
  for (int i = 0; i < facts->log.n; i++) w->cut->group[facts->log.event[i].axes] = true;
  pthread_mutex_unlock(&w->cut->lock);
  return OK;
}

Status partition_rank(Partition *c, int rank, Exported **out, RankFacts *facts) {
  Worker w;
  *facts = (RankFacts){0};
  Status s = worker_begin(&w, c, rank);
  if (!s) s = make(&w, out, facts);
  worker_end(&w);
  facts->dist = w.dist;
  if (s) rank_facts_free(facts);
  return s;
}

void rank_facts_free(RankFacts *f) {
  comm_log_free(&f->log);
  dist_free(f->dist);
  *f = (RankFacts){0};
}

/* From now on the symbol is a number.  ERR_USAGE if there is none of that name or it is out of
 * its range. */
static Status partition_fix_size(Partition *c, const char *symbol, int64_t size) {
  SymBinding *more;
  for (int i = 0; i < c->program->nranges; i++) {
    const SymRange *r = &c->program->ranges[i];
    if (strcmp(r->symbol, symbol)) continue;
    if (size < r->min || size > r->max)
      return fail(ERR_USAGE, "%s=%lld is outside of its range, %lld to %lld", symbol, (long long)size,
                  (long long)r->min, (long long)r->max);
    TRY_NEW(more, arena_new_n(&c->arena, SymBinding, c->fixed.n + 1));
    if (c->fixed.n) memcpy(more, c->fixed.v, (size_t)c->fixed.n * sizeof *more);
    more[c->fixed.n++] = (SymBinding){r->symbol, size};
    c->fixed.v = more;
    return OK;
  }
  Status s = fail(ERR_USAGE, "%s has no symbol '%s' among its sizes", c->program->name, symbol);
  TextBuf b = {0};
  for (int i = 0; i < c->program->nranges; i++)
    text_printf(&b, "%s%s", i ? ", " : "", c->program->ranges[i].symbol);
  s = b.text ? status_hint(s, "its symbols: %s", b.text) : status_hint(s, "all its sizes are fixed");
  text_free(&b);
  return s;
}

Status partition_fix_sizes(Partition *c, const char *text) {
  while (text && *text) {
    size_t n = strcspn(text, ",");
    const char *equals = memchr(text, '=', n);
    char name[128], *end = NULL;
    long long value = equals ? strtoll(equals + 1, &end, 10) : 0;
    if (!equals || end == equals + 1 || end != text + n || equals - text >= (ptrdiff_t)sizeof name)
      return fail(ERR_USAGE, "a size is NAME=NUMBER, not '%.*s'", (int)n, text);
    snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    TRY(partition_fix_size(c, name, value));
    text += n + (text[n] == ',');
  }
  return OK;
}
